"""`check`: what accuracies are compared with, and the gate."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from recollect import ContinualClassifier
from recollect.cli.rendering.check import print_check
from recollect.deploy import Gate, ModelStore
from recollect.deploy.checks import CheckReport, TaskCheck
from tests.deploy.support import (
    Tied,
    digits,
    make_classifier,
    train_model,
    write_images,
    write_photos,
)
from tests.support import recollect

Months = tuple[ContinualClassifier, ContinualClassifier]


def test_checks_compare_with_the_first_check_and_failures_are_not_recorded(months: Months, tmp_path: Path) -> None:
    may, june = months
    model, tests = tmp_path / "model", tmp_path / "tests"
    may.save(model)
    x, y = digits("may", test=True)
    write_images(tests / "may", x, y)
    first = ModelStore(model).check(tests, device="cpu").tasks
    assert [(check.forgetting, check.against) for check in first] == [(None, "learned last")]
    june.save(model)
    second = ModelStore(model).check(tests, device="cpu").tasks
    assert (second[0].against, second[0].before) == ("the first check", first[0].within)
    swapped = tmp_path / "swapped"
    write_images(swapped / "may", x, [{"0": "1", "1": "0"}[name] for name in y])
    for _ in range(2):  # a failed check is never the one that later checks compare with
        done = recollect("check", model, swapped, "--max-forgetting", 5, "--device", "cpu")
        assert done.returncode == 1
        assert "points, more than 5." in done.stdout
        assert "Not tested: june." in done.stdout


def test_a_loss_over_all_classes_that_the_gate_ignores_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    slight = TaskCheck("may", 90.0, 80.0, 91.0, "the first check", 10, across_before=82.0)
    severe = replace(slight, across=66.0)
    report = CheckReport([slight, severe], [], Gate(max_forgetting=5.0))
    assert (report.objections, report.largest_ungated_loss) == ([], severe)
    print_check(Console(width=200), report)
    assert "Without --task, accuracy on may fell from 82.0 % to 66.0 %" in capsys.readouterr().out
    assert CheckReport([slight], [], Gate(max_forgetting=5.0)).largest_ungated_loss is None
    gated = CheckReport([slight, severe], [], Gate(max_forgetting=5.0, min_accuracy=70.0))
    assert gated.objections == [("may", "has an accuracy over all classes of 66.0 %, below 70 %")]
    assert gated.largest_ungated_loss is None


def test_a_task_of_one_class_is_compared_over_all_classes(tmp_path: Path) -> None:
    model, tests = tmp_path / "model", tmp_path / "tests"
    classifier = make_classifier(epochs=4).learn(digits("may"), task="may")
    x, y = digits("june")
    two, three = (x[[name == digit for name in y]] for digit in "23")
    classifier.learn((two, ["2"] * len(two)), task="june").save(model)
    classifier.learn((three, ["3"] * len(three)), task="july").save(model)
    write_images(tests / "june", 255 - two[:20], ["2"] * 20)
    (june,) = ModelStore(model).check(tests, device="cpu").tasks
    assert june.within == 100.0
    assert june.forgetting is not None
    assert june.before == classifier.tasks_[1].across
    assert june.forgetting == pytest.approx((june.before or 0.0) - june.across)


@pytest.mark.filterwarnings("ignore:fewer than 10", "ignore:too few", "ignore:no validation images")
def test_the_gate_fails_without_an_earlier_accuracy(tmp_path: Path) -> None:
    model, tests = tmp_path / "model", tmp_path / "tests"
    x, y = digits("may")
    classifier = make_classifier(epochs=1).learn((x[:4], y[:4]), task="may")
    classifier.learn(digits("june"), task="june").save(model)
    write_images(tests / "may", x[:4], y[:4])
    assert classifier.tasks_[0].accuracy is None
    done = recollect("check", model, tests, "--max-forgetting", 50, "--device", "cpu")
    assert (done.returncode, "may has no earlier accuracy to compare with" in done.stdout) == (1, True)
    assert recollect("check", model, tests, "--device", "cpu").returncode == 0


def test_a_read_only_model_is_checked_with_a_warning(
    months: Months, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    months[1].save(tmp_path / "model")
    write_images(tmp_path / "tests" / "june", *digits("june", test=True))
    about = tmp_path / "model" / "versions" / "002-june" / "model.json"
    before = about.read_bytes()

    def refuse(folder: Path, **options: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system", str(folder / "lock"))

    monkeypatch.setattr("recollect.deploy.recording.lock_folder", refuse)
    with pytest.warns(UserWarning, match="cannot be written: later checks cannot compare with this one"):
        report = ModelStore(tmp_path / "model").check(tmp_path / "tests", Gate(max_forgetting=50), device="cpu")
    assert not report.objections
    assert about.read_bytes() == before


NUM_IMAGES: list[int] = []


class Counter(Tied):
    """A backbone that records how many images it has read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        NUM_IMAGES.append(len(x))
        return super().forward(x)


def test_check_reads_every_image_once(tmp_path: Path) -> None:
    train_model("may", "june", backbone=Counter()).save(tmp_path / "model")
    for task in ("may", "june"):
        write_photos(tmp_path / "tests" / task, (f"{task}a", f"{task}b"), 5)
    NUM_IMAGES.clear()
    report = ModelStore(tmp_path / "model").check(tmp_path / "tests", device="cpu", backbone=Counter())
    assert len(report.tasks) == 2
    by_two_networks = [10, 10] * 2  # today's and the first task's; smaller batches only try the backbone's shape
    assert [num for num in NUM_IMAGES if num > 2] == by_two_networks


@pytest.mark.parametrize(
    ("before", "now"), [(100 * 11 / 20, 100 * 10 / 20), (100 * 0.55, 100 * 0.5), (94.9999988, 90.0)]
)
def test_the_gate_tolerates_rounding(before: float, now: float) -> None:
    check = TaskCheck("may", now, 100 * 0.29, before, "the first check", 20)
    assert not list(Gate(5, 29).objections(check))
    assert len(list(Gate(4.9, 29.1).objections(check))) == 2


def test_min_accuracy_is_measured_over_all_classes(folder: Path, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    write_photos(tests / "may", ("maya", "mayb"), 4)  # too few to be confused with other tasks
    report = json.loads(recollect("check", folder, tests, "--json").stdout)
    assert (report["passed"], report["objections"], report["untested"]) == (True, [], ["june", "july"])
    across = report["tasks"][0]["across"]
    gated = recollect("check", folder, tests, "--min-accuracy", min(across + 1, 100), "--json")
    assert json.loads(gated.stdout)["passed"] == (gated.returncode == 0) == (across == 100)
    passed = recollect("check", folder, tests, "--min-accuracy", across)
    assert (passed.returncode, passed.stdout.splitlines()[-2:]) == (0, ["Not tested: june, july.", "Passed: may."])
    assert recollect("check", folder, tests, "--max-forgetting", "nan").returncode == 2
    assert recollect("check", tests, tests).returncode == 2
    assert not (tests / "lock").exists()


def test_misspelt_folders_are_skipped_and_fail_a_gate(folder: Path, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    write_photos(tests / "may", ("maya", "mayb"), 4)
    alone = json.loads(recollect("check", folder, tests, "--json").stdout)
    write_photos(tests / "may", ("mayc",), 4)  # forgotten, renamed or misspelt
    write_photos(tests / "august", ("x", "y"), 2)
    done = recollect("check", folder, tests, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["skipped"]) == (0, ["august", "may/mayc"])
    assert report["tasks"] == alone["tasks"]
    assert "folders that are not named after a learned task: august" in done.stderr
    assert "the task 'may' has no class 'mayc'; it has maya, mayb. These images are skipped" in done.stderr
    gated = recollect("check", folder, tests, "--min-accuracy", 0)
    assert gated.returncode == 1
    assert "august was not tested, as the model has no task or class of that name" in gated.stdout.replace("\n", " ")
    assert "Passed" not in gated.stdout
