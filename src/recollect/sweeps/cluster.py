"""A sweep on a Ray cluster whose machines share the folder of the runs.

A run whose worker dies is started again by Ray and resumes from its last checkpoint; the lock of its folder, which died
with the worker, prevents that two workers execute the same run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from recollect.engine import StopRequest
from recollect.errors import UserError
from recollect.sweeps.execute import MAX_DEATHS, MAX_REASON, WAIT_SECONDS, Engine, Status, do_run_when_unlocked


def on_ray(address: str | None, cpus: float, gpus: float) -> Engine:
    """Each run is a Ray task that reserves this many CPUs and GPUs."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--engine ray needs Ray: pip install 'recollect-rfe[ray]'") from error

    def engine(
        todo: Iterable[Status], options: Mapping[str, Any], stop: StopRequest
    ) -> Iterator[tuple[Status, str | None]]:
        todo = list(todo)
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, include_dashboard=False)
            except (ConnectionError, ValueError) as error:
                raise UserError(f"no Ray cluster at {address!r} ({error}); start one: ray start --head") from error
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call,unused-ignore]
        wanted = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
        fits = any(all(machine.get(name, 0.0) >= num for name, num in wanted.items()) for machine in machines)
        if todo and not fits:
            raise UserError(f"the Ray cluster has no machine with {wanted}; lower --cpus-per-run or --gpus-per-run")
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=MAX_DEATHS)(_run_on_worker)
        absolute = {k: v.absolute() if isinstance(v, Path) else v for k, v in options.items()}
        pending = {task.remote(*_arguments(status, absolute)): status for status in todo}
        while pending and stop.number is None:
            ended, _ = ray.wait(list(pending), timeout=WAIT_SECONDS)
            for status in pending.values():
                if status.state == "waiting" and (status.folder / "lock").exists():
                    status.begin()
            for reference in ended:
                status = pending.pop(reference)
                try:
                    yield status, ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield status, f"its task failed on the cluster: {error}"[:MAX_REASON]
        for reference in pending:
            ray.cancel(reference)

    return engine


def _arguments(status: Status, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a worker is given; it has another working directory, so all paths are absolute."""
    config = status.job.config
    method = str(Path(config.file_argument).absolute()) if config.file_argument else None
    return config.to_json(), status.folder.absolute(), options, method


def _run_on_worker(*run: Any) -> str | None:
    return do_run_when_unlocked(*run, heed_signals=False)
