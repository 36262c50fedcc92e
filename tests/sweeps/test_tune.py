"""A search with Optuna resumes where it was interrupted, and is decided by validation accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recollect.cli.app import app
from recollect.engine.update import NonFiniteLossError
from recollect.errors import UserError
from recollect.storage import write_json
from recollect.sweeps import Status, engine_for, execute
from recollect.sweeps import tune as module
from recollect.sweeps.execute import Diverged
from recollect.sweeps.tune import load_space, tune

pytest.importorskip("optuna", reason="optuna is not installed")
SPACE = """
stream = "split-digits"
method = "er"
seeds = [0, 1]
set = { epochs = 1, "stream.tasks" = 2, "stream.train_per_class" = 10, "backbone.width" = 2 }

[space]
learning_rate = { low = 1e-4, high = 1e-1, log = true }
memory = { low = 2, high = 10, step = 2 }
units = ["seen", "task"]
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    return path


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_interrupted_search_resumes_its_trial(space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    true_run = execute.run
    calls: list[Path] = []

    def interrupt(config: Any, folder: Path, **options: Any) -> Any:
        calls.append(folder)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return true_run(config, folder, **options)

    monkeypatch.setattr(execute, "run", interrupt)
    options = {"precision": "fp32", "device": "cpu", "threads": 1}
    with pytest.raises(KeyboardInterrupt):
        tune(load_space(space), out, 3, **options)
    trials = tune(load_space(space), out, 3, **options)
    assert len(trials) == 3
    assert calls[3] == calls[2]  # the same configuration, so the same folder
    assert trials == sorted(trials, key=lambda trial: -trial.validation)
    assert all(1e-4 <= t.chosen["learning_rate"] <= 1e-1 for t in trials)
    assert all(t.chosen["memory"] in (2, 4, 6, 8, 10) for t in trials)
    other = replace(load_space(space), method="finetune", dimensions={})
    with pytest.raises(UserError, match="a search of another space or by another accuracy; choose another --out"):
        tune(other, out, 3, **options)
    with pytest.raises(UserError, match="--trials counts trials, got 0"):
        tune(other, out, 0, **options)
    num_calls = len(calls)
    assert tune(load_space(space), out, 3, **options) == trials
    assert len(calls) == num_calls


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:trial .* with .* failed")
def test_an_interrupted_search_tries_the_settings_of_an_uninterrupted_one(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in runs, one of them twice, and while settings are chosen; some trials fail; nothing is trained."""
    true_suggest = module._suggest
    executed: list[str] = []
    interruptions: list[int | str] = []

    def engine(todo: Iterable[Status], options: Mapping[str, Any], stop: Any) -> Iterator[tuple[Status, str | None]]:
        for status in todo:
            executed.append(status.folder.name)
            interrupt_at(len(executed))
            status.folder.mkdir()
            rate = status.job.config.training.learning_rate
            write_json(status.folder / "result.json", {"validation": {"til": rate}})
            yield status, Diverged("the loss is nan") if rate < 3e-4 else None

    def suggest(trial: Any, name: str, values: Any) -> Any:
        interrupt_at(f"{name} of run {len(executed)}")
        return true_suggest(trial, name, values)

    def interrupt_at(moment: int | str) -> None:
        if moment in interruptions:
            interruptions.remove(moment)
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "engine_for", lambda workers: engine)
    monkeypatch.setattr(module, "_suggest", suggest)
    space.write_text(SPACE.replace("seeds = [0, 1]", "seeds = [0]"))
    orders = []
    for moments in ([], [3, 4, 14], ["memory of run 9"], ["memory of run 12"]):
        executed, interruptions, num_interruptions = [], [*moments], len(moments)
        out = tmp_path / str(len(orders))
        for _ in range(num_interruptions):
            with pytest.raises(KeyboardInterrupt):
                tune(load_space(space), out, 14, precision="fp32", device="cpu")
        trials = tune(load_space(space), out, 14, precision="fp32", device="cpu")
        orders.append((list(dict.fromkeys(executed)), [(trial.chosen, trial.validation) for trial in trials]))
    assert len(orders[0][0]) > 14
    assert all(order == orders[0] for order in orders)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_trial_that_cannot_be_trained_is_reported_and_others_are_tried(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_run, calls = execute.run, []

    def sometimes(config: Any, folder: Path, **options: Any) -> Any:
        calls.append(folder)
        if len(calls) == 1:
            raise NonFiniteLossError("the loss is nan")
        return true_run(config, folder, **options)

    monkeypatch.setattr(execute, "run", sometimes)
    with pytest.warns(UserWarning, match="trial 0 with .* failed: the loss is nan"):
        trials = tune(load_space(space), tmp_path / "out", 1, precision="fp32", device="cpu", threads=1)
    assert [trial.number for trial in trials] == [1]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_invalid_setting_fails_its_trial_and_no_other(space: Path, tmp_path: Path) -> None:
    space.write_text(SPACE.replace("{ low = 2, high = 10, step = 2 }", "[-1, 3]"))
    options = {"precision": "fp32", "device": "cpu", "threads": 1}
    with pytest.warns(UserWarning, match="trial . .* failed: memory must be positive, got -1") as failures:
        trials = tune(load_space(space), tmp_path / "out", 2, **options)
    assert str(failures[0].message).startswith("trial 0 ")  # before any trial has finished
    assert {trial.chosen["memory"] for trial in trials} == {3}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:trial . with .* failed")
def test_parallel_trials_count_once_and_runs_of_the_same_settings_are_executed_once(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs at a time, of which the second always ends first, and one of which fails; nothing is trained."""
    executed: list[Path] = []

    def pairs(todo: Iterable[Status], options: Mapping[str, Any], stop: Any) -> Iterator[tuple[Status, str | None]]:
        waiting = iter(todo)
        while running := [status for status in (next(waiting, None), next(waiting, None)) if status is not None]:
            for status in reversed(running):
                executed.append(status.folder)
                status.folder.mkdir()
                write_json(status.folder / "result.json", {"validation": {"til": 1.0 + len(executed)}})
                yield status, "the process died" if len(executed) == 6 else None

    monkeypatch.setattr(module, "engine_for", lambda workers: {2: pairs}[workers])
    text = SPACE.replace("seeds = [0, 1]", "seeds = [0]")
    space.write_text(text.replace("{ low = 1e-4, high = 1e-1, log = true }", "[1e-3, 1e-2]"))
    done: list[int] = []
    options = {"precision": "fp32", "device": "cpu", "threads": 1, "on_done": lambda trial: done.append(trial.number)}
    trials = tune(load_space(space), tmp_path / "out", 12, workers=2, **options)
    assert len(trials) == 12
    assert sorted(done) == sorted(trial.number for trial in trials)
    assert done != sorted(done)
    assert len(set(done)) == 12
    assert len(executed) == len(set(executed)) < 13
    with pytest.raises(UserError, match="--workers is a number of parallel runs, at least 1; got 0"):
        engine_for(0)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_search_is_decided_by_one_accuracy(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def engine(todo: Iterable[Status], options: Mapping[str, Any], stop: Any) -> Iterator[tuple[Status, str | None]]:
        for status in todo:
            status.folder.mkdir()
            rate = status.job.config.training.learning_rate
            write_json(status.folder / "result.json", {"validation": {"til": rate, "cil": 1 - rate}})
            yield status, None

    monkeypatch.setattr(module, "engine_for", lambda workers: engine)
    command = ["tune", str(space), "--trials", "3", "--device", "cpu", "--precision", "fp32", "--out"]
    for by in ("til", "cil"):
        app([*command, str(tmp_path / by), "--by", by], result_action="return_value")
        assert f"validation {by.upper()} " in capsys.readouterr().out
    by_til = tune(load_space(space), tmp_path / "til", 3, precision="fp32")
    by_cil = tune(load_space(space), tmp_path / "cil", 3, by="cil", precision="fp32")
    rates = [[trial.chosen["learning_rate"] for trial in trials] for trials in (by_til, by_cil)]
    assert rates[1] == sorted(rates[1]) == rates[0][::-1]
    with pytest.raises(UserError, match="a search of another space or by another accuracy"):
        tune(load_space(space), tmp_path / "til", 3, by="cil", precision="fp32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("stream =", "steam ="), "has 'steam'"),
        (('stream = "split-digits"\n', ""), "lacks stream, method or space"),
        (("{ low = 2, high = 10, step = 2 }", "{ low = 2 }"), "memory is a list of values, or has low up to high"),
        (
            ("{ low = 2, high = 10, step = 2 }", "{ low = 10, high = 2 }"),
            "memory is a list of values, or has low up to",
        ),
        (("{ low = 2, high = 10, step = 2 }", '{ low = "a", high = 2 }'), "memory is a list of values"),
        (("{ low = 2, high = 10, step = 2 }", "{ low = 2, high = 10, step = 2, log = true }"), "log = true or a step"),
        (('stream = "split-digits"', "stream = 5"), "stream is a name, got 5"),
        (("[space]", "[space"), "cannot be read"),
    ],
)
def test_a_wrong_space_is_refused(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(SPACE.replace(*change))
    with pytest.raises(UserError, match=message):
        load_space(path)
