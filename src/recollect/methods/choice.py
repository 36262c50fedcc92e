"""A method by its registered name, or from a Python file: `path/to/file.py`, or `file.py:name` for one of several.

Loading a file runs its code, so a file is loaded only where a user names it: on the command line, in a preset or space,
or in a call from Python. The path that a run's config.json records is shown, never loaded.
"""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from recollect.errors import UserError
from recollect.methods.learner import Method, methods
from recollect.registry import lookup


@dataclass(frozen=True)
class MethodFile:
    """A file that defines a method, and which version of it."""

    path: str
    """As the user wrote it."""
    sha256: str


@dataclass(frozen=True)
class ChosenMethod:
    """A method with its name, and its file unless it is registered."""

    name: str
    row: Method
    file: MethodFile | None = None


def choose_method(text: str) -> ChosenMethod:
    """The method that a user names. A text that ends in `.py` or `.py:name` is a file, and is run.

    >>> choose_method("er").row.about
    'cross-entropy on a replayed batch from a reservoir'
    """
    match = re.fullmatch(r"(.+\.py)(?::(.+))?", text)
    return _from_file(match[1], match[2]) if match else registered_method(text)


def registered_method(name: str) -> ChosenMethod:
    """The method of this name in the package or an entry point; runs no file."""
    return ChosenMethod(name, lookup("method", methods(), name))


def relative_to(file: Path, method: str) -> str:
    """The method that a file of the user's names: a path is relative to the folder of that file."""
    return str(file.parent / method) if re.search(r"\.py(:|$)", method) else method


def _from_file(path: str, name: str | None) -> ChosenMethod:
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"the method file {path} cannot be read ({error.strerror}); check the path") from error
    table = getattr(_load_module(Path(path).absolute(), source), "METHODS", None)
    if not isinstance(table, Mapping) or not table or not all(isinstance(row, Method) for row in table.values()):
        raise UserError(f'{path} defines no method; end it with METHODS = {{"name": Method(learner, config, about)}}')
    if name is None and len(table) > 1:
        raise UserError(f"{path} defines the methods {', '.join(table)}; choose one, e.g. {path}:{next(iter(table))}")
    name = name or next(iter(table))
    row: Method = lookup(f"method of {path}", table, name)
    if name in methods():
        raise UserError(f"{path} defines {name!r}, which is also the name of a registered method; rename it")
    return ChosenMethod(name, row, MethodFile(path, hashlib.sha256(source).hexdigest()))


def _load_module(path: Path, source: bytes) -> ModuleType:
    """Run a file as a module, once for each version of it, so that its classes stay the same ones."""
    name = f"recollect_method_{hashlib.blake2b(bytes(path) + source, digest_size=8).hexdigest()}"
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module  # where dataclasses and type hints look names up
        try:
            exec(compile(source, path, "exec", dont_inherit=True), vars(module))  # the bytes that are hashed
        except Exception as error:  # whatever the user's file raises
            del sys.modules[name]
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
            where = f" in line {lines[-1]}" if lines else ""
            raise UserError(f"{path} cannot be run{where}: {type(error).__name__}: {error}") from error
    return sys.modules[name]
