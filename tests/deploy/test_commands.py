"""The commands for model folders, from learn to rollback, and what they print."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from recollect.audit import take_inventory
from recollect.cli.rendering.model import print_learned
from recollect.deploy import ModelStore
from recollect.deploy.model import Accuracies
from recollect.deploy.stages import LearnResult
from tests.deploy.support import (
    LEARN,
    digits,
    learn_command,
    make_classifier,
    write_digits,
    write_images,
    write_photos,
)
from tests.support import recollect


def test_every_command_works_on_a_model_of_two_months(tmp_path: Path) -> None:
    model = tmp_path / "model"
    for task in ("may", "june"):
        done = recollect(*learn_command(model, write_digits(tmp_path / task, task), task))
        assert done.returncode == 0, done.stderr
        assert "minutes" in done.stdout
        assert "stores no images" in done.stdout
        assert "resumes" not in done.stdout
        write_digits(tmp_path / "test" / task, task, test=True)
    some = sorted((tmp_path / "test" / "may" / "0").iterdir())[:2]
    predictions = json.loads(recollect("predict", model, *some, "--json", "--top", 3).stdout)
    assert [list(prediction) for prediction in predictions] == [["path", "class", "probability", "task", "top"]] * 2
    assert len(predictions[0]["top"]) == 3
    unknown = json.loads(recollect("predict", model, some[0], "--json", "--min-probability", 1).stdout)
    assert (unknown[0]["class"], unknown[0]["task"]) == ("unknown", None)
    known = json.loads(recollect("predict", model, some[0], "--json", "--task", "may").stdout)
    assert known[0]["class"] == "0"
    about = json.loads(recollect("inspect", model, "--json", "--images", tmp_path / "june").stdout)
    assert [task["name"] for task in about["tasks"]] == ["may", "june"]
    assert about["tasks"][1]["rectified"] < about["tasks"][1]["drifted"]
    assert about["shift"]["num_images"] > 100
    assert about["images_kept"] == 0
    checked = recollect("check", model, tmp_path / "test", "--max-forgetting", 20, "--json")
    assert checked.returncode == 0, checked.stderr
    tasks = json.loads(checked.stdout)["tasks"]
    assert [task["against"] for task in tasks] == ["validation, when learned", "learned last"]
    assert [task["across_before"] for task in tasks] == [about["tasks"][0]["across"], None]
    again = json.loads(recollect("check", model, tmp_path / "test", "--json").stdout)
    assert again == json.loads(checked.stdout)
    assert recollect("audit", model, "--expect", "none", "--against", tmp_path / "may" / "0").returncode == 0
    assert take_inventory(model).problems("none") == []
    twice = recollect(*learn_command(model, tmp_path / "june", "june"))
    assert (twice.returncode, "june was already learned from these images" in twice.stdout) == (0, True)
    other = recollect(*learn_command(model, tmp_path / "may", "june"))
    assert (
        other.returncode,
        "is already learned; use a new task name for new images, or first roll back" in other.stderr,
    ) == (2, True)
    earlier = recollect(*learn_command(model, tmp_path / "may", "may"))
    assert (earlier.returncode, "'may' is already learned" in earlier.stderr) == (2, True)
    assert "is now at 001-may" in recollect("rollback", model, "--to", "may").stdout
    assert [task.name for task in ModelStore(model).load().tasks] == ["may"]
    assert ModelStore(model).versions() == ["001-may", "002-june"]
    missing = recollect("rollback", model, "--to", "march")
    assert (missing.returncode, "001-may (may), 002-june (june)" in " ".join(missing.stderr.split())) == (2, True)


def test_learn_and_inspect_print_the_recorded_accuracies(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make_classifier(epochs=3).learn(digits("may"), task="may").save(model)
    done = recollect(
        "learn", model, write_images(tmp_path / "june", *digits("june")), "--task", "june", "--device", "cpu"
    )
    assert done.returncode == 0, done.stderr
    task = ModelStore(model).load().tasks[-1]
    printed = " ".join(done.stdout.split())
    accuracies = f"Validation accuracy {task.across:.1f} % (all classes), {task.accuracy:.1f} % (task known)"
    assert re.search(r"Learned june in \d+ s\. ", printed)
    assert f" s. {accuracies}. The model in {model} has 4 classes in 2 tasks now" in printed
    table = recollect("inspect", model).stdout
    for text in ("val. accuracy (all classes)", "(task known)", "residual drift", f"{task.across:.1f} %"):
        assert text in table


def test_long_task_names_with_markup_are_accepted(tmp_path: Path) -> None:
    model, data = tmp_path / "model", write_photos(tmp_path / "p")
    done = recollect("learn", model, data, "--task", "[red]" + "x" * 90, *LEARN)
    assert done.returncode == 0, done.stderr
    assert len(ModelStore(model).versions()[0]) < 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "width=abc"], "width"),
        (["--set", "nope=1"], "nope"),
        (["--set", "epochs=1.5"], "takes options of the backbone, which epochs is not"),
        (["--epochs", "0"], "epochs is an integer from 1"),
        (["--image-size", "9"], "image size is an integer from 16 to 1024, got 9"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    done = recollect("learn", tmp_path / "m", write_photos(tmp_path / "p"), "--task", "may", *options)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_options_of_an_existing_model_are_refused_by_their_flags(tmp_path: Path) -> None:
    model, data = tmp_path / "model", write_photos(tmp_path / "p")
    assert recollect("learn", model, data, "--task", "may", "--no-mirror", *LEARN).returncode == 0
    assert ModelStore(model).load().settings.flip is False
    more = ("learn", model, write_photos(tmp_path / "q", ("c", "d")), "--task", "june")
    done = recollect(*more, "--mirror", "--epochs", "1", "--device", "cpu")
    assert (done.returncode, "already exists; --mirror is fixed when a model is created" in done.stderr) == (2, True)
    assert recollect(*more, "--no-mirror", *LEARN).returncode == 0  # a monthly script repeats its options
    assert [task.name for task in ModelStore(model).load().tasks] == ["may", "june"]
    done = recollect("learn", tmp_path / "new", data, "--task", "may", "--set", "patience=3")
    assert (done.returncode, "takes options of the backbone, which patience is not" in done.stderr) == (2, True)


def test_output_without_a_terminal_is_lines_with_the_time(tmp_path: Path) -> None:
    done = recollect("learn", tmp_path / "model", write_photos(tmp_path / "p"), "--task", "may", *LEARN)
    lines = [line for line in done.stdout.splitlines() if line.startswith("20") and " may " in line]
    assert [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line) for line in lines] == [
        "may reading 20 files", "may task 1 · fit: begins", "may task 1 · retrospect: begins",
    ]  # fmt: skip
    assert "" not in done.stdout.splitlines()


def test_a_first_learn_from_a_missing_folder_leaves_nothing(tmp_path: Path) -> None:
    done = recollect("learn", tmp_path / "model", tmp_path / "nowhere", "--task", "may", *LEARN)
    assert done.returncode == 2
    assert f"{tmp_path / 'nowhere'} does not exist; give a folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("task", "rejected", "text"),
    [
        ({"unadapted": Accuracies(90.0, 70.0)}, None, "from 70.0 to 80.0 % (all classes) and from 90.0 to 95.0 %"),
        ({}, Accuracies(85.0, 60.0), "from 80.0 to 60.0 % (all classes) and from 95.0 to 85.0 % (task known), so"),
        ({"adapted": False}, None, "The network itself was not changed."),
    ],
)
def test_what_adaptation_changed_is_printed(
    folder: Path, capsys: pytest.CaptureFixture[str], task: dict[str, Any], rejected: Accuracies | None, text: str
) -> None:
    model = ModelStore(folder).load()
    newest = replace(model.tasks[-1], accuracy=95.0, across=80.0, **task)
    result = LearnResult(replace(model, tasks=(*model.tasks[:-1], newest)), was_learned=False, rejected=rejected)
    print_learned(Console(width=500), folder, result, 3.0)
    assert text in capsys.readouterr().out
