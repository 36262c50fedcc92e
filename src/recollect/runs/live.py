"""Metrics of a run while it runs, for TensorBoard, MLflow or Weights & Biases; events.jsonl is always written too."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recollect.engine import Observer
from recollect.errors import UserError
from recollect.registry import lookup
from recollect.runs.config import SECTIONS, RunConfig


class Observers(Observer):
    """Forwards everything to several observers."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def event(self, kind: str, **fields: Any) -> None:
        for observer in self._observers:
            observer.event(kind, **fields)

    def phase(self, title: str, num_images: int) -> None:
        for observer in self._observers:
            observer.phase(title, num_images)

    def advance(self, num_images: int) -> None:
        for observer in self._observers:
            observer.advance(num_images)

    def report(self, loss: float | None = None, accuracy: float | None = None) -> None:
        for observer in self._observers:
            observer.report(loss, accuracy)


class TensorBoard(Observer):
    """Writes to `tensorboard/` in the run folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError("--live tensorboard needs TensorBoard: pip install 'recollect-rfe[tensorboard]'") from error
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def event(self, kind: str, **fields: Any) -> None:
        for name, (value, step) in metrics_of_event(kind, fields).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


class MLflow(Observer):
    """A run of MLflow, tracked wherever MLFLOW_TRACKING_URI says; the folder's path is its name."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise UserError("--live mlflow needs MLflow: pip install 'recollect-rfe[mlflow]'") from error
        self._client = mlflow.MlflowClient()
        name = "recollect"
        existing = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if existing is None else existing.experiment_id
        tag = _record_id(folder, config)
        earlier = self._client.search_runs([experiment], f"tags.recollect = '{tag}'", max_results=1)
        if earlier:  # a resumed run continues its record
            self._run = earlier[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        self._run = self._client.create_run(experiment, run_name=str(folder), tags={"recollect": tag}).info.run_id
        plain = config.to_json()
        for section in SECTIONS:
            for key, value in plain[section].items():
                self._client.log_param(self._run, f"{section}.{key}", value)
        self._client.log_param(self._run, "seed", config.seed)

    def event(self, kind: str, **fields: Any) -> None:
        for name, (value, step) in metrics_of_event(kind, fields).items():
            self._client.log_metric(self._run, name, value, step=step)
        if kind in ("finished", "stopped"):
            self._client.set_terminated(self._run, "FINISHED" if kind == "finished" else "KILLED")


class WeightsAndBiases(Observer):
    """A run of Weights & Biases, in the project recollect; the folder's path is its name."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError("--live wandb needs Weights & Biases: pip install 'recollect-rfe[wandb]'") from error
        tag = _record_id(folder, config)  # a resumed run continues its record
        self._run = wandb.init(project="recollect", name=str(folder), id=tag, resume="allow", config=config.to_json())
        self._run.define_metric("*", step_metric="step")  # its own steps must not decrease; epochs and tasks alternate

    def event(self, kind: str, **fields: Any) -> None:
        metrics = metrics_of_event(kind, fields)
        if metrics:
            (step,) = {step for _, step in metrics.values()}
            self._run.log({name: value for name, (value, _) in metrics.items()} | {"step": step})
        if kind in ("finished", "stopped"):
            self._run.finish(exit_code=0 if kind == "finished" else 1)


def _record_id(folder: Path, config: RunConfig) -> str:
    """The same when the run is resumed."""
    return hashlib.blake2b(f"{folder.resolve()} {config.hash}".encode(), digest_size=8).hexdigest()


class Expendable(Observer):
    """Forwards events to an observer until it fails once, which is reported; the run continues without it."""

    def __init__(self, name: str, make: Callable[[], Observer]) -> None:
        self._name = name
        self._other: Observer | None = None
        with self._guarded():
            self._other = make()

    def event(self, kind: str, **fields: Any) -> None:
        if self._other is not None:
            with self._guarded():
                self._other.event(kind, **fields)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except UserError:  # a package that is not installed: reported before the run starts
            raise
        except Exception as error:  # of a server or library that is not ours
            self._other = None
            warnings.warn(
                f"{self._name} receives no more metrics ({error}); the run continues without it", stacklevel=4
            )


def live_observers(names: list[str], folder: Path, config: RunConfig) -> list[Observer]:
    """The observers that were requested."""
    makers: dict[str, Callable[[], Observer]] = {
        "tensorboard": lambda: TensorBoard(folder),
        "mlflow": lambda: MLflow(folder, config),
        "wandb": lambda: WeightsAndBiases(folder, config),
    }
    return [Expendable(name, make) for name, make in [(name, lookup("--live", makers, name)) for name in names]]


def metrics_of_event(kind: str, fields: Mapping[str, Any]) -> dict[str, tuple[float, int]]:
    """The numbers of an event with their step, by names that are the same for all tasks.

    Steps of training are epochs, counted on from task to task as if none ended early; those of accuracies are tasks.
    """
    if kind == "epoch":
        task, _, phase = str(fields["phase"]).partition(" · ")
        step = (int(task.removeprefix("task ")) - 1) * int(fields["epochs"]) + int(fields["epoch"])
        metrics: dict[str, Any] = {f"loss/{phase}": fields["loss"], f"accuracy/{phase}": fields["accuracy"]}
        metrics |= {f"validation loss/{phase}/{name}": value for name, value in fields["validation"].items()}
        metrics |= {f"learning rate/{phase}/{name}": value for name, value in fields["learning_rate"].items()}
        return {name: (float(value), step) for name, value in metrics.items() if value is not None}
    if kind == "task":
        learned, metrics = int(fields["task"]), {}
        for name in ("til", "cil"):
            row = {f"{name}/task {i + 1}": cell for i, cell in enumerate(fields[name][:learned]) if cell is not None}
            metrics |= row | ({f"{name}/average": sum(row.values()) / len(row)} if row else {})
        return {name: (float(value), learned) for name, value in metrics.items()}
    return {}
