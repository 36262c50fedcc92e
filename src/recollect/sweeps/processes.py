"""Several runs of a sweep at a time, each in a process of its own: a process that dies is started again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from recollect.engine import StopRequest
from recollect.errors import StoppedError, UserError
from recollect.sweeps.execute import MAX_DEATHS, Engine, Status, do_run_when_unlocked, in_process

GRACE_SECONDS = 30.0  # for a worker whose sweep has died to finish its step and save


def engine_for(workers: int) -> Engine:
    """The engine of this machine for so many runs at a time."""
    if workers < 1:
        raise UserError(f"--workers is a number of parallel runs, at least 1; got {workers}")
    return in_process if workers == 1 else in_processes(workers)


def in_processes(num: int) -> Engine:
    """`num` at a time, each in a process of its own."""

    def engine(
        todo: Iterable[Status], options: Mapping[str, Any], stop: StopRequest
    ) -> Iterator[tuple[Status, str | None]]:
        waiting, running, again = iter(todo), list[_Process](), list[Status]()
        deaths: dict[str, int] = {}
        try:
            while True:
                while len(running) < num and stop.number is None:
                    status = again.pop() if again else next(waiting, None)
                    if status is None:
                        break
                    running.append(_Process(status, options))
                if not running:
                    return
                time.sleep(0.1)
                if stop.number is not None:
                    for process in running:
                        process.ask_to_stop()
                for process in [p for p in running if p.has_ended()]:
                    running.remove(process)
                    name = process.status.job.name
                    reason = process.reason()
                    if process.died and stop.number is None and deaths.setdefault(name, 0) < MAX_DEATHS:
                        deaths[name] += 1
                        process.status.reasons.append(reason or "")
                        again.append(process.status)
                    elif not process.stopped and not (process.died and stop.number is not None):
                        yield process.status, reason
        finally:
            for process in running:
                process.ask_to_stop()
                process.reason()

    return engine


class _Process:
    """A run in a process of its own."""

    def __init__(self, status: Status, options: Mapping[str, Any]) -> None:
        self.status = status
        status.begin()
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe(duplex=False)
        config = status.job.config
        arguments = (config.to_json(), status.folder, dict(options), config.file_argument)
        self._process: BaseProcess = context.Process(target=_run_in_child, args=(theirs, *arguments))
        self._process.start()
        theirs.close()
        self.died = self.stopped = self._asked = False
        self._outcome: tuple[str, str | None] | None = None

    def has_ended(self) -> bool:
        """Whether it has sent its outcome, or died; the outcome must be received before the process can end."""
        try:
            if self._outcome is None and self._ours.poll():
                self._outcome = self._ours.recv()
        except (EOFError, OSError):
            self.died = True
        return self._outcome is not None or self.died or not self._process.is_alive()

    def reason(self) -> str | None:
        """Why it failed, if it did, once it has ended."""
        self._process.join()
        self.has_ended()  # receives the outcome, if there is one
        if self._outcome is None:
            self.died = True
            return f"the process ended without a message, exit code {self._process.exitcode}"
        kind, text = self._outcome
        self.stopped = kind == "stopped"
        return None if kind == "done" else text

    def ask_to_stop(self) -> None:
        """Ask it to save and end, once; a second request would not let it save."""
        if not self._asked:
            self._asked = True
            self._process.terminate()


def _run_in_child(pipe: Connection, *run: Any) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches only the sweep, which asks each run once
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        reason = do_run_when_unlocked(*run)
        outcome = ("done" if reason is None else "failed", reason)
    except (StoppedError, KeyboardInterrupt):
        outcome = ("stopped", "")
    with suppress(BrokenPipeError):  # the sweep has died
        pipe.send(outcome)


def _end_with_parent() -> None:
    """Wait until the sweep has ended in any way; then save and end as on SIGTERM, or exit after a grace period."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # reads a pipe that the system closes with the parent
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(128 + signal.SIGTERM)
