"""Running a command: warnings, errors and signals become messages and exit codes."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import warnings
from typing import NoReturn

from cyclopts import CycloptsError, MissingArgumentError

from recollect.cli import commands  # noqa: F401  (importing them adds them to the application)
from recollect.cli.base import app
from recollect.distributed.launch import read_launch
from recollect.escaping import escape_controls

SPIN_COUNT = 20_000  # rounds until a waiting thread sleeps; libgomp's 300,000 make busy machines slow
GRACE_SECONDS = 5.0  # for the first process to print its message: torchrun ends all processes once one has ended


def main() -> None:
    """Run the command line; a user's mistake ends in a message and exit code 2."""
    from recollect.errors import OneProcessError, StoppedError, UserError

    if "OMP_WAIT_POLICY" not in os.environ:  # both are read when torch is loaded
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
    warnings.showwarning = print_warning
    for stream in (sys.stdout, sys.stderr):  # names of files and classes may contain characters it cannot encode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print_message(describe_mistake(error))
        sys.exit(2)
    except UserError as error:
        fail(error, always=isinstance(error, OneProcessError))
    except BrokenPipeError:  # the program that read our output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        fail(f"{error}; check the path, its permissions and the free space")
    except KeyboardInterrupt:
        print_message("interrupted; the same command resumes from the last checkpoint")
        sys.exit(130)
    except StoppedError as stopped:
        print_message("saved; the same command resumes from here")
        sys.exit(128 + stopped.number)


def describe_mistake(error: CycloptsError) -> str:
    """What is wrong with the arguments; positional ones are named as the help names them."""
    if not isinstance(error, MissingArgumentError) or error.argument is None:
        return str(error)
    name, command = error.argument.name, " ".join(error.command_chain or ())
    shown = name.lstrip("-").upper() if error.argument.index is not None else name
    what = f"{name} needs a value" if error.keyword else f"{shown} is missing"
    leading_dash = f" (one that begins with a dash as {name}=VALUE)" if error.keyword else ""
    hint = str(error).partition("requires an argument.")[2].strip()  # did you mean …
    return f"{what}{leading_dash}. {hint}" if hint else f"{what}{leading_dash}; see recollect {command} --help"


def fail(message: object, *, always: bool = False) -> NoReturn:
    """Print why, and end with exit code 2."""
    print_message(message, always=always)
    if read_launch().rank:
        time.sleep(GRACE_SECONDS)
    sys.exit(2)


def print_message(message: object, *, always: bool = False) -> None:
    """Print to stderr; only the first of several processes prints, unless `always`."""
    if always or read_launch().rank == 0:
        print(f"recollect: {escape_controls(str(message), keep_lines=True)}", file=sys.stderr)


def print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without its place in the source."""
    print_message(message)
