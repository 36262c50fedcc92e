"""Doing many runs: what is done is skipped, what was cut goes on, what failed is tried again with the reason kept.

`sweep.json` in the sweep's folder says of every run how often it was tried and why it failed. Runs go one after the
other in this process, several at a time in processes of their own, or on a Ray cluster (sweeps/cluster.py).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, TypedDict

from recollect.engine import StopRequest, listening
from recollect.errors import StoppedError, UserError
from recollect.results import find_results
from recollect.runs import RunConfig, command_of, run, settled
from recollect.storage import LockedError, lock_folder, read_json, write_json
from recollect.streams import streams
from recollect.sweeps.preset import Job

MOST_DEATHS = 3  # a process that dies without a word is started again so often
MOST_REASON = 8000  # letters
GRACE_SECONDS = 30.0  # in which a worker whose sweep has died may finish its step and save
HELD_SECONDS = 60.0  # how long a run waits for a folder that another process, perhaps an ending one, works on
WAIT_SECONDS = 0.5
State = Literal["waiting", "running", "done", "failed"]


@dataclass
class Status:
    """One run of a sweep, as it stands."""

    job: Job
    folder: Path
    state: State = "waiting"
    attempts: int = 0
    reasons: list[str] = field(default_factory=list)
    """Why it failed, each time."""
    result: dict[str, Any] | None = None
    found_in: Path | None = None
    """Where its result lay when the sweep began."""

    def begin(self) -> None:
        self.state = "running"
        self.attempts += 1


class Attempts(TypedDict):
    """What sweep.json keeps of a run."""

    state: State
    attempts: int
    reasons: list[str]


Engine = Callable[[Sequence[Status], Mapping[str, Any], StopRequest], Iterator[tuple[Status, str | None]]]
"""Does runs; gives each as it ends, with the reason if it failed."""


def plan(jobs: Sequence[Job], out: Path, also: Sequence[Path] = (), device: str = "auto") -> list[Status]:
    """Every run with its folder; done where a result of the same configuration lies under `out` or `also`.

    A configuration does not name the images of a folder or of tensors; such runs are looked at again when their turn
    comes, with their data at hand.
    """
    results = find_results([folder for folder in (out, *also) if folder.exists()])
    paths = {found["config"]["hash"]: path for path, found in results.items()}
    before = _attempts_so_far(out)
    statuses = []
    for job in jobs:
        folder = out / job.name
        job = replace(job, config=settled(job.config, folder, device, force=False))
        known = before.get(job.name, {"state": "waiting", "attempts": 0, "reasons": []})
        status = Status(job, folder, "waiting", known["attempts"], known["reasons"])
        path = paths.get(job.config.hash)
        names_its_data = streams()[job.config.stream].size is not None and job.config.backbone != "own"
        if path is not None and names_its_data:
            status.state, status.result, status.found_in = "done", results[path], path
        statuses.append(status)
    return statuses


def sweep(
    statuses: Sequence[Status],
    out: Path,
    *,
    engine: Engine,
    told: Callable[[Status], None] = lambda status: None,
    **words: Any,
) -> None:
    """Do what is not done; `words` (data_root, device, threads, checkpoint_seconds) go to every run.

    While it works the folder is locked: a second sweep of it is refused.
    """
    out.mkdir(parents=True, exist_ok=True)
    with lock_folder(out), listening() as stop:
        try:
            todo = [status for status in statuses if status.state != "done"]
            for status, reason in engine(todo, words, stop):
                if reason is None:
                    status.state, status.result = "done", read_json(status.folder / "result.json", dict[str, Any])
                else:
                    status.state = "failed"
                    status.reasons.append(reason)
                _note(statuses, out)
                told(status)
        finally:
            for status in statuses:
                if status.state == "running":
                    status.state = "waiting"
            _note(statuses, out)
        stop.check()


def _note(statuses: Sequence[Status], out: Path) -> None:
    """Keep how it stands, beside what is known of runs that are not of this sweep."""
    now = {s.job.name: {"state": s.state, "attempts": s.attempts, "reasons": s.reasons} for s in statuses}
    write_json(out / "sweep.json", {**_attempts_so_far(out), **now})


def _attempts_so_far(out: Path) -> dict[str, Attempts]:
    path = out / "sweep.json"
    return read_json(path, dict[str, Attempts]) if path.exists() else {}


def work(config: Mapping[str, Any], folder: Path, words: Mapping[str, Any], *, heed_signals: bool = True) -> str | None:
    """Do one run; why it failed, or nothing. A request to stop and a locked folder are raised."""
    try:
        found = RunConfig.from_json(config)
        command = command_of(found, folder, words.get("threads", 0))
        run(found, folder, command=command, heed_signals=heed_signals, **words)
    except (StoppedError, KeyboardInterrupt, LockedError):
        raise
    except (UserError, OSError) as error:
        return str(error)[:MOST_REASON]
    except Exception:  # a run's failure must not take the others with it; all of it is kept as the reason
        return traceback.format_exc()[-MOST_REASON:]
    return None


def work_once_free(
    config: Mapping[str, Any],
    folder: Path,
    words: Mapping[str, Any],
    *,
    heed_signals: bool = True,
    stop: StopRequest | None = None,
) -> str | None:
    """As `work`, once nobody else holds the folder: a killed sweep's worker does until it has saved."""
    started = time.monotonic()
    while True:
        try:
            return work(config, folder, words, heed_signals=heed_signals)
        except LockedError as error:
            if time.monotonic() - started > HELD_SECONDS:
                return str(error)
        time.sleep(WAIT_SECONDS)
        if stop is not None:
            stop.check()


def in_process(
    todo: Sequence[Status], words: Mapping[str, Any], stop: StopRequest
) -> Iterator[tuple[Status, str | None]]:
    """One after the other, here."""
    for status in todo:
        if stop.number is not None:
            return
        status.begin()
        yield status, work_once_free(status.job.config.to_json(), status.folder, words, stop=stop)


def in_processes(num: int) -> Engine:
    """So many at a time, each in a process of its own."""

    def engine(
        todo: Sequence[Status], words: Mapping[str, Any], stop: StopRequest
    ) -> Iterator[tuple[Status, str | None]]:
        waiting, running = list(todo), list[_Process]()
        deaths: dict[str, int] = {}
        try:
            while (waiting and stop.number is None) or running:
                while waiting and len(running) < num and stop.number is None:
                    running.append(_Process(waiting.pop(0), words))
                time.sleep(0.1)
                if stop.number is not None:
                    for process in running:
                        process.ask_to_stop()
                for process in [each for each in running if each.has_ended()]:
                    running.remove(process)
                    name = process.status.job.name
                    reason = process.reason()
                    if process.died and stop.number is None and deaths.setdefault(name, 0) < MOST_DEATHS:
                        deaths[name] += 1
                        process.status.reasons.append(reason or "")
                        waiting.insert(0, process.status)
                    elif not process.stopped and not (process.died and stop.number is not None):
                        yield process.status, reason
        finally:
            for process in running:
                process.ask_to_stop()
                process.reason()

    return engine


class _Process:
    """A run in a process of its own."""

    def __init__(self, status: Status, words: Mapping[str, Any]) -> None:
        self.status = status
        status.begin()
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(
            target=_in_child, args=(theirs, status.job.config.to_json(), status.folder, dict(words))
        )
        self._process.start()
        theirs.close()
        self.died = self.stopped = self._asked = False
        self._said: tuple[str, str | None] | None = None

    def has_ended(self) -> bool:
        """Whether it has said its last word, or died; a word must be taken before it can end."""
        try:
            if self._said is None and self._ours.poll():
                self._said = self._ours.recv()
        except (EOFError, OSError):
            self.died = True
        return self._said is not None or self.died or not self._process.is_alive()

    def reason(self) -> str | None:
        """Why it failed, if it did, once it has ended."""
        self._process.join()
        self.has_ended()  # takes the word, if there is one
        if self._said is None:
            self.died = True
            return f"the process ended without a word, exit code {self._process.exitcode}"
        kind, text = self._said
        self.stopped = kind == "stopped"
        return None if kind == "done" else str(text)

    def ask_to_stop(self) -> None:
        """To save and end; a second time would not let it save."""
        if not self._asked:
            self._asked = True
            self._process.terminate()


def _in_child(pipe: Connection, config: Mapping[str, Any], folder: Path, words: Mapping[str, Any]) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the sweep alone, which asks each run once
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        reason = work_once_free(config, folder, words)
        said = ("done" if reason is None else "failed", reason)
    except (StoppedError, KeyboardInterrupt):
        said = ("stopped", "")
    with suppress(BrokenPipeError):  # the sweep has died
        pipe.send(said)


def _end_with_parent() -> None:
    """Wait for the sweep to end, however it does; then save and end as on SIGTERM, at once after a grace period."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # reads a pipe that the system closes with the parent
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(128 + signal.SIGTERM)
