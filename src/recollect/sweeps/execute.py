"""Executing many runs: finished ones are skipped, interrupted ones resume, failed ones are tried again.

`sweep.json` in the sweep's folder records for every run how often it was tried and why it failed. Runs are executed one
after the other in this process, several at a time in processes of their own (sweeps/processes.py), or on a Ray cluster
(sweeps/cluster.py).
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from recollect.engine import StopRequest, catch_signals
from recollect.engine.update import NonFiniteLossError
from recollect.errors import StoppedError, UserError
from recollect.results import find_results
from recollect.runs import RunConfig, command_of, resolve_precision, run
from recollect.storage import LockedError, lock_folder, read_json, write_json
from recollect.streams import streams
from recollect.sweeps.preset import Job

MAX_DEATHS = 3  # a process that dies without a message is started again so often
MAX_REASON = 8000  # characters
LOCKED_SECONDS = 60.0  # how long a run waits for a folder that another process has locked
WAIT_SECONDS = 0.5
State = Literal["waiting", "running", "done", "failed"]


@dataclass
class Status:
    """The state of one run of a sweep."""

    job: Job
    folder: Path
    state: State = "waiting"
    attempts: int = 0
    reasons: list[str] = field(default_factory=list)
    """Why it failed, one entry per attempt."""
    result: dict[str, Any] | None = None
    existing_result: Path | None = None
    """The path of its result, where there was one before the sweep."""

    def begin(self) -> None:
        self.state = "running"
        self.attempts += 1


class Attempts(TypedDict):
    """What sweep.json records about a run."""

    state: State
    attempts: int
    reasons: list[str]


class Diverged(str):
    """The reason of a run that failed because its loss became NaN or infinite, so because of its settings."""


Engine = Callable[[Iterable[Status], Mapping[str, Any], StopRequest], Iterator[tuple[Status, str | None]]]
"""Executes runs, taking the next one when it can start it; yields each as it ends, with the reason if it failed."""


def plan(jobs: Sequence[Job], out: Path, also: Sequence[Path] = (), device: str = "auto") -> list[Status]:
    """Every run with its folder; done where `out` or `also` contains a result of the same configuration.

    A configuration does not identify the images of a folder or of tensors; such runs are compared with their data when
    they are executed.
    """
    results = find_results([folder for folder in (out, *also) if folder.exists()])
    paths = {result["config"]["hash"]: path for path, result in results.items()}
    before = _attempts_so_far(out)
    statuses = []
    for job in jobs:
        folder = out / job.name
        job = replace(job, config=resolve_precision(job.config, folder, device, force=False))
        earlier = before.get(job.name, {"state": "waiting", "attempts": 0, "reasons": []})
        status = Status(job, folder, "waiting", earlier["attempts"], earlier["reasons"])
        path = paths.get(job.config.hash)
        identifies_data = streams()[job.config.stream].size is not None and job.config.backbone != "own"
        if path is not None and identifies_data:
            status.state, status.result, status.existing_result = "done", results[path], path
        statuses.append(status)
    return statuses


def sweep(
    statuses: Sequence[Status],
    out: Path,
    *,
    engine: Engine,
    on_done: Callable[[Status], None] = lambda status: None,
    **options: Any,
) -> None:
    """Execute the runs that are not done; `options` (data_root, device, threads, checkpoint_seconds) go to every run.

    The folder is locked meanwhile: a second sweep of it is refused.
    """
    out.mkdir(parents=True, exist_ok=True)
    with lock_folder(out), catch_signals() as stop:
        try:
            todo = [status for status in statuses if status.state != "done"]
            for status, reason in engine(todo, options, stop):
                if reason is None:
                    status.state, status.result = "done", read_json(status.folder / "result.json", dict[str, Any])
                else:
                    status.state = "failed"
                    status.reasons.append(reason)
                _record(statuses, out)
                on_done(status)
        finally:
            for status in statuses:
                if status.state == "running":
                    status.state = "waiting"
            _record(statuses, out)
        stop.check()


def _record(statuses: Sequence[Status], out: Path) -> None:
    """Write sweep.json, which also keeps its entries about runs that are not in this sweep."""
    now = {s.job.name: {"state": s.state, "attempts": s.attempts, "reasons": s.reasons} for s in statuses}
    write_json(out / "sweep.json", {**_attempts_so_far(out), **now})


def _attempts_so_far(out: Path) -> dict[str, Attempts]:
    path = out / "sweep.json"
    return read_json(path, dict[str, Attempts]) if path.exists() else {}


def do_run(
    config: Mapping[str, Any],
    folder: Path,
    options: Mapping[str, Any],
    method: str | None = None,
    *,
    heed_signals: bool = True,
) -> str | None:
    """Execute one run; returns why it failed, if it did. A request to stop and a locked folder are raised.

    A config as JSON can be sent to other processes; `method` is the file of a method that is not registered.
    """
    try:
        run_config = RunConfig.from_json(config, method)
        command = command_of(run_config, folder, options.get("threads", 0))
        run(run_config, folder, command=command, heed_signals=heed_signals, **options)
    except (StoppedError, KeyboardInterrupt, LockedError):
        raise
    except NonFiniteLossError as error:
        return Diverged(error)
    except (UserError, OSError) as error:
        return str(error)[:MAX_REASON]
    except Exception:  # a failed run must not stop the others; the traceback is kept as the reason
        return traceback.format_exc()[-MAX_REASON:]
    return None


def do_run_when_unlocked(
    config: Mapping[str, Any],
    folder: Path,
    options: Mapping[str, Any],
    method: str | None = None,
    *,
    heed_signals: bool = True,
    stop: StopRequest | None = None,
) -> str | None:
    """As `do_run`, once no other process locks the folder; the worker of a killed sweep does until it has saved."""
    started = time.monotonic()
    while True:
        try:
            return do_run(config, folder, options, method, heed_signals=heed_signals)
        except LockedError as error:
            if time.monotonic() - started > LOCKED_SECONDS:
                return str(error)
        time.sleep(WAIT_SECONDS)
        if stop is not None:
            stop.check()


def in_process(
    todo: Iterable[Status], options: Mapping[str, Any], stop: StopRequest
) -> Iterator[tuple[Status, str | None]]:
    """One after the other, in this process."""
    for status in todo:
        if stop.number is not None:
            return
        status.begin()
        config = status.job.config
        yield status, do_run_when_unlocked(config.to_json(), status.folder, options, config.file_argument, stop=stop)
