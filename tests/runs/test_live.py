"""Metrics that are sent to TensorBoard, MLflow and Weights & Biases during a run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from recollect.engine import Observer
from recollect.errors import StoppedError, UserError
from recollect.runs import resolve, run
from recollect.runs.live import Expendable, live_observers, metrics_of_event

SMALL = {"stream.tasks": 2, "stream.train_per_class": 10, "epochs": 2, "backbone.width": 2, "retrospect_epochs": 1}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what MLflow itself calls
def test_metrics_reach_tensorboard_and_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    config = resolve("split-digits", "rfe", 0, SMALL, precision="fp32")
    result = run(config, tmp_path / "run", device="cpu", live=["tensorboard", "mlflow"])
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    shown = board.Scalars("til/average")
    assert [event.step for event in shown] == [1, 2]
    assert shown[-1].value == pytest.approx(result["til"]["average_accuracy"], abs=1e-3)
    assert [event.step for event in board.Scalars("loss/fit")] == [1, 2, 3, 4]
    assert [event.step for event in board.Scalars("validation loss/retrospect/auxiliary")] == [1, 2]
    (last,) = board.Scalars("cil/task 2")
    assert (last.step, last.value) == (2, pytest.approx(result["cil"]["matrix"][1][1], abs=1e-3))
    client = mlflow.MlflowClient()
    (tracked,) = client.search_runs([client.get_experiment_by_name("recollect").experiment_id])
    assert tracked.info.status == "FINISHED"
    assert tracked.data.metrics["til/average"] == pytest.approx(result["til"]["average_accuracy"])
    assert tracked.data.params["method.name"] == "rfe"


def test_an_unknown_live_target_is_refused(tmp_path: Path) -> None:
    config = resolve("split-digits", "finetune", 0, {"epochs": 1})
    with pytest.raises(UserError, match="unknown --live 'tensorbord'; did you mean 'tensorboard'. There are .*wandb"):
        run(config, tmp_path / "run", device="cpu", live=["tensorbord"])


def test_a_server_that_fails_is_reported_and_the_run_continues(tmp_path: Path) -> None:
    class Broken(Observer):
        def event(self, kind: str, **fields: object) -> None:
            raise ConnectionError("gone")

    careful = Expendable("mlflow", Broken)
    with pytest.warns(UserWarning, match=r"mlflow receives no more metrics .gone.; the run continues"):
        careful.event("epoch")
    careful.event("epoch")

    def unreachable() -> Observer:
        raise ConnectionError("no route")

    with pytest.warns(UserWarning, match=r"mlflow receives no more metrics .no route.; the run continues"):
        never = Expendable("mlflow", unreachable)
    never.event("epoch")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what MLflow itself calls
def test_a_resumed_run_continues_its_record_in_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    config = resolve("split-digits", "rfe", 0, SMALL, precision="fp32")

    class Stop(Observer):
        def event(self, kind: str, **fields: object) -> None:
            if kind == "task":
                raise StoppedError(2)

    with pytest.raises(StoppedError):
        run(config, tmp_path / "run", device="cpu", live=["mlflow"], observer=Stop())
    client = mlflow.MlflowClient()
    experiments = [client.get_experiment_by_name("recollect").experiment_id]
    assert [tracked.info.status for tracked in client.search_runs(experiments)] == ["KILLED"]
    run(config, tmp_path / "run", device="cpu", live=["mlflow"])
    assert [tracked.info.status for tracked in client.search_runs(experiments)] == ["FINISHED"]


def test_averages_leave_out_tasks_that_are_not_learned_yet() -> None:
    row = {"til": [80.0, 40.0, 10.0], "cil": [60.0, 20.0, None]}
    assert metrics_of_event("task", {"task": 2, **row}) == {
        "til/task 1": (80.0, 2), "til/task 2": (40.0, 2), "til/average": (60.0, 2),
        "cil/task 1": (60.0, 2), "cil/task 2": (20.0, 2), "cil/average": (40.0, 2),
    }  # fmt: skip


def test_metrics_reach_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package, with the calls that are used."""
    sent: list[dict[str, Any]] = []
    started: list[dict[str, Any]] = []
    tracked = SimpleNamespace(define_metric=Mock(), log=sent.append, finish=Mock())
    package = SimpleNamespace(init=lambda **options: started.append(options) or tracked)
    monkeypatch.setitem(sys.modules, "wandb", package)
    config = resolve("split-digits", "finetune", 0)
    fields = {"phase": "task 2 · fit", "epoch": 3, "epochs": 15, "loss": 0.5, "accuracy": None, "validation": {}}
    for _ in range(2):
        (observer,) = live_observers(["wandb"], tmp_path, config)
        observer.event("epoch", **fields, learning_rate={"classifier": 0.1})
        observer.event("finished")
    assert sent == [{"loss/fit": 0.5, "learning rate/fit/classifier": 0.1, "step": 18}] * 2
    assert started[0]["id"] == started[1]["id"]
    assert started[0]["config"]["method"]["name"] == "finetune"
    tracked.define_metric.assert_called_with("*", step_metric="step")
    tracked.finish.assert_called_with(exit_code=0)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="--live wandb needs Weights & Biases: pip install 'recollect-rfe.wandb.'"):
        live_observers(["wandb"], tmp_path, config)
