"""Metrics that are sent to TensorBoard and MLflow during a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.engine import Observer
from recollect.errors import StoppedError, UserError
from recollect.runs import resolve, run
from recollect.runs.live import Expendable, metrics_of_event

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
    shown = [event.value for event in board.Scalars("average til")]
    assert len(shown) == 2
    assert shown[-1] == pytest.approx(result["til"]["average_accuracy"], abs=1e-3)
    assert len(board.Scalars("task 1/fit/loss")) == 2
    client = mlflow.MlflowClient()
    (tracked,) = client.search_runs([client.get_experiment_by_name("recollect").experiment_id])
    assert tracked.info.status == "FINISHED"
    assert tracked.data.metrics["average til"] == pytest.approx(result["til"]["average_accuracy"])
    assert tracked.data.params["method.name"] == "rfe"


def test_an_unknown_live_target_is_refused(tmp_path: Path) -> None:
    config = resolve("split-digits", "finetune", 0, {"epochs": 1})
    with pytest.raises(UserError, match="--live is tensorboard or mlflow, got 'wandb'"):
        run(config, tmp_path / "run", device="cpu", live=["wandb"])


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
    assert metrics_of_event("task", {"task": 2, **row}) == {"average til": (60.0, 2), "average cil": (40.0, 2)}
