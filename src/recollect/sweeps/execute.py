"""Doing many runs: what is done is skipped, what was cut goes on, what failed is tried again with the reason kept.

`sweep.json` in the sweep's folder says of every run how often it was tried and why it failed. Runs go one after the
other in this process, several at a time in processes of their own, or on a Ray cluster (sweeps/cluster.py).
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from recollect.engine import StopRequest, listening
from recollect.errors import StoppedError, UserError
from recollect.runs import RunConfig, command_of, find_results, read_json, run, settled, write_json
from recollect.sweeps.preset import Job

MOST_DEATHS = 3  # a process that dies without a word is started again so often
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


Engine = Callable[[Sequence[Status], Mapping[str, Any], StopRequest], Iterator[tuple[Status, str | None]]]
"""Does runs; gives each as it ends, with the reason if it failed."""


def plan(jobs: Sequence[Job], out: Path, also: Sequence[Path] = (), device: str = "auto") -> list[Status]:
    """Every run with its folder; done where a result of the same configuration lies under `out` or `also`."""
    out.mkdir(parents=True, exist_ok=True)
    results = find_results([out, *also])
    paths = {found["config"]["hash"]: path for path, found in results.items()}
    before = read_json(out / "sweep.json") if (out / "sweep.json").exists() else {}
    statuses = []
    for job in jobs:
        folder = out / job.name
        job = replace(job, config=settled(job.config, folder, device, force=False))
        known = before.get(job.name, {}) if isinstance(before, dict) else {}
        status = Status(job, folder, "waiting", int(known.get("attempts", 0)), list(known.get("reasons", [])))
        path = paths.get(job.config.hash)
        if path is not None:
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
    """Do what is not done; `words` (data_root, device, threads, checkpoint_seconds) go to every run."""
    todo = [status for status in statuses if status.state != "done"]
    for status in todo:
        status.attempts += 1
    with listening() as stop:
        try:
            for status, reason in engine(todo, words, stop):
                if reason is None:
                    status.state, status.result = "done", read_json(status.folder / "result.json")
                else:
                    status.state = "failed"
                    status.reasons.append(reason)
                _note(statuses, out)
                told(status)
        finally:
            _note(statuses, out)
        stop.check()


def _note(statuses: Sequence[Status], out: Path) -> None:
    path = out / "sweep.json"
    before = read_json(path) if path.exists() else {}
    now = {s.job.name: {"state": s.state, "attempts": s.attempts, "reasons": s.reasons} for s in statuses}
    write_json(path, {**(before if isinstance(before, dict) else {}), **now})


def work(config: Mapping[str, Any], folder: Path, words: Mapping[str, Any], *, heed_signals: bool = True) -> str | None:
    """Do one run; why it failed, or nothing. A stop asked for is raised."""
    try:
        found = RunConfig.from_json(config)
        run(found, folder, command=command_of(found, folder), heed_signals=heed_signals, **words)
    except (StoppedError, KeyboardInterrupt):
        raise
    except (UserError, OSError) as error:
        return str(error)
    except Exception:  # a run's failure must not take the others with it; all of it is kept as the reason
        return traceback.format_exc()
    return None


def in_process(
    todo: Sequence[Status], words: Mapping[str, Any], stop: StopRequest
) -> Iterator[tuple[Status, str | None]]:
    """One after the other, here."""
    for status in todo:
        if stop.number is not None:
            return
        status.state = "running"
        yield status, work(status.job.config.to_json(), status.folder, words)


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
                    elif not process.stopped:
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
        status.state = "running"
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(
            target=_in_child, args=(theirs, status.job.config.to_json(), status.folder, dict(words))
        )
        self._process.start()
        theirs.close()
        self.died = self.stopped = self._asked = False

    def has_ended(self) -> bool:
        return not self._process.is_alive()

    def reason(self) -> str | None:
        """Why it failed, if it did, once it has ended."""
        self._process.join()
        try:
            kind, text = self._ours.recv()
        except EOFError:
            self.died = True
            return f"the process ended without a word, exit code {self._process.exitcode}"
        self.stopped = kind == "stopped"
        return None if kind == "done" else str(text)

    def ask_to_stop(self) -> None:
        """To save and end; a second time would not let it save."""
        if not self._asked:
            self._asked = True
            self._process.terminate()


def _in_child(pipe: Connection, config: Mapping[str, Any], folder: Path, words: Mapping[str, Any]) -> None:
    try:
        reason = work(config, folder, words)
        pipe.send(("done" if reason is None else "failed", reason))
    except (StoppedError, KeyboardInterrupt):
        pipe.send(("stopped", ""))
