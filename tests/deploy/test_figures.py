"""What a model says of itself is what was measured: temperatures, accuracies, drift, shift, forgetting, time."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from recollect import ContinualClassifier
from recollect.cli import practising
from recollect.cli.practising import _lost_unasked, _objections
from recollect.cli.predicting import predict_images
from recollect.deploy import learning, load_model
from recollect.deploy.data import read_images, read_labelled
from recollect.deploy.reading import fit_temperature
from recollect.deploy.report import Checked, check, measure_shift
from recollect.engine import Observer
from recollect.rng import Key
from tests.deploy.test_models import classifier, digits
from tests.runs.test_runs import recollect


@pytest.fixture(scope="module")
def months() -> tuple[ContinualClassifier, ContinualClassifier]:
    """A model after May, and after June; α = 1, whose teacher adapts its statistics while it teaches."""
    resnet: dict[str, Any] = {"backbone": "resnet18", "width": 4, "epochs": 4}
    may = classifier(**resnet).learn(digits("may"), task="may")
    june = ContinualClassifier.of(may.model, device="cpu").learn(digits("june"), task="june")
    return may, june


def held_out(task: str, number: int) -> tuple[torch.Tensor, list[str]]:
    """The validation images of a task, drawn by hand as docs/models.md says: 15 % of each class."""
    data = read_labelled(digits(task), 32)
    rows = []
    for label in range(len(data.class_names)):
        mine = (data.labels == label).nonzero()[:, 0]
        order = torch.randperm(len(mine), generator=(Key(0) / "validation" / number / label).generator())
        rows.append(mine[order[: round(0.15 * len(mine))]])
    chosen = torch.cat(rows).sort().values
    return data.images[chosen], [data.class_names[label] for label in data.labels[chosen].tolist()]


def test_drift_is_between_the_models_of_two_months(months: tuple[ContinualClassifier, ContinualClassifier]) -> None:
    may, june = months
    x, _ = held_out("june", 1)
    then = may.features(x)
    drifted = np.sqrt(np.square(june.features(x) - then).mean())
    rectified = np.sqrt(np.square(june.features(x, as_of="may") - then).mean())
    task = june.tasks_[-1]
    assert (task.drifted, task.rectified) == pytest.approx((drifted, rectified), rel=1e-4)
    assert may.tasks_[0].drifted is None


def test_accuracies_and_temperatures_are_those_of_validation_images(
    months: tuple[ContinualClassifier, ContinualClassifier],
) -> None:
    _, june = months
    x, y = held_out("june", 1)
    task = june.tasks_[-1]
    assert task.accuracy == pytest.approx(100 * june.score(x, y, task="june"))
    assert task.across == pytest.approx(100 * june.score(x, y))
    labels = torch.tensor([("2", "3").index(name) for name in y])
    found = june.reader.outputs(x)
    assert task.temperature == pytest.approx(fit_temperature(found.within[:, 2:], labels))
    assert june.model.temperature == pytest.approx(fit_temperature(found.across, labels + 2))
    assert {task.temperature, june.model.temperature} != {1.0}


def test_no_validation_image_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    split = learning._split
    monkeypatch.setattr(learning, "_split", lambda *words: seen.append(split(*words)) or seen[-1])
    model = classifier(epochs=1).learn(digits("may"), task="may")
    train, validation = (set(part.indices.tolist()) for part in seen[0])
    assert not train & validation
    assert len(train | validation) == sum(model.tasks_[0].images.values())
    images, _ = seen[0][1].take(torch.arange(len(validation)))
    assert torch.equal(images, held_out("may", 0)[0])


def test_a_learn_ends_early_where_validation_stalls() -> None:
    class Epochs(Observer):
        def __init__(self) -> None:
            self.seen: dict[str, list[float]] = {}

        def event(self, kind: str, **fields: Any) -> None:
            if kind == "epoch":
                self.seen.setdefault(fields["phase"], []).append(sum(fields["validation"].values()))

    epochs = Epochs()
    x, y = digits("may")
    classifier(epochs=60, learning_rate=2e-2).learn((x[:60], y[:60]), task="may", observer=epochs)
    for losses in epochs.seen.values():
        assert len(losses) == losses.index(min(losses)) + 7 < 60  # six more than the best


def test_shift_tells_changed_images_from_the_task_s_own(
    months: tuple[ContinualClassifier, ContinualClassifier],
) -> None:
    _, june = months
    (x, _), (other, _), (held, _) = digits("june", test=True), digits("may", test=True), held_out("june", 1)
    own, inverted, unlike = (measure_shift(june, read_images(images, 32)) for images in (x, 255 - x, other))
    assert own.shift < 2 * own.by_chance
    assert min(inverted.shift, unlike.shift) > 3 * own.by_chance
    then, now = june.features(held), june.features(x)
    expected = np.sqrt(np.square((now.mean(0) - then.mean(0))[then.std(0) > 0] / then.std(0)[then.std(0) > 0]).mean())
    assert own.shift == pytest.approx(expected, rel=1e-3)
    assert own.by_chance == pytest.approx((1 / len(x) + 1 / len(held)) ** 0.5)
    assert (own.task, own.sure) == ("june", pytest.approx(float(june.predict_proba(x).max(axis=1).mean())))
    assert own.usual_sure == pytest.approx(float(june.predict_proba(held).max(axis=1).mean()), rel=1e-4)


def write(folder: Path, images: np.ndarray, names: list[str]) -> Path:
    for number, (image, name) in enumerate(zip(images, names, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name / f"{number}.png")
    return folder


def test_a_gate_that_fails_fails_again_and_the_newest_task_has_forgotten_nothing(
    months: tuple[ContinualClassifier, ContinualClassifier], tmp_path: Path
) -> None:
    may, june = months
    model, tests = tmp_path / "model", tmp_path / "tests"
    may.save(model)
    x, y = digits("may", test=True)
    write(tests / "may", x, y)
    first = check(model, tests, "cpu")
    assert [(each.forgetting, each.against) for each in first] == [(None, "learned last")]
    june.save(model)
    second = check(model, tests, "cpu")
    assert (second[0].against, second[0].before) == ("the first check", first[0].within)
    swapped = tmp_path / "swapped"
    write(swapped / "may", x, [{"0": "1", "1": "0"}[name] for name in y])
    for _ in range(2):  # a bad figure is never what later ones are measured by
        done = recollect("check", model, swapped, "--max-forgetting", 5, "--device", "cpu")
        assert done.returncode == 1
        assert "may has lost more than 5 points" in done.stdout
        assert "Not tested: june." in done.stdout


def test_told_its_task_an_image_is_answered_by_the_same_probabilities(
    months: tuple[ContinualClassifier, ContinualClassifier],
) -> None:
    may, june = months
    x, _ = digits("may", test=True)
    assert may.predict(x, task="may").tolist() == may.predict(x).tolist()  # there being no other
    over_all = june.reader.outputs(read_images(x, 32)).across[:, :2]
    assert june.predict(x, task="may").tolist() == june.classes_[over_all.argmax(1)].tolist()


def test_a_loss_that_the_gate_does_not_see_is_said(tmp_path: Path) -> None:
    was = Checked("may", 90.0, 80.0, 91.0, "the first check", 10, across_before=82.0)
    now = replace(was, across=50.0)
    assert list(_objections(now, 5.0, None)) == []
    assert list(_objections(now, 5.0, 60.0)) == ["is right below 60 % with the task unknown"]
    assert "may fell from 82.0 % to 50.0 %" in _lost_unasked([was, now], 5.0)
    assert _lost_unasked([was], 5.0) == ""


def test_a_retrospector_that_adds_to_the_drift_is_left_out() -> None:
    found = classifier(epochs=4).learn(digits("may"), task="may")
    x, y = digits("june")
    two = x[[name == "2" for name in y]]
    with pytest.warns(UserWarning, match=r"drifted by 0\.\d+ since 'may', and the retrospector would make that 0\.\d+"):
        found.learn((two, ["2"] * len(two)), task="june")
    newest = found.tasks_[-1]
    assert newest.drifted == newest.rectified
    assert newest.drifted is not None
    assert newest.drifted > 0
    now, as_of_may = found.features(two), found.features(two, as_of="may")
    assert np.array_equal(now, as_of_may)


def test_a_task_that_was_hardly_learned_is_said() -> None:
    x, y = digits("may")
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="it was hardly learned; give it more images or epochs"):
        classifier(epochs=1).learn((rng.permutation(x), y), task="may")


def test_a_task_of_one_class_is_compared_among_all_classes(tmp_path: Path) -> None:
    model, tests = tmp_path / "model", tmp_path / "tests"
    found = classifier(epochs=4).learn(digits("may"), task="may")
    x, y = digits("june")
    two, three = (x[[name == each for name in y]] for each in "23")
    found.learn((two, ["2"] * len(two)), task="june").save(model)
    found.learn((three, ["3"] * len(three)), task="july").save(model)
    write(tests / "june", 255 - two[:20], ["2"] * 20)
    (june,) = check(model, tests, "cpu")
    assert june.within == 100.0
    assert june.forgetting is not None
    assert june.before == found.tasks_[1].across
    assert june.forgetting == pytest.approx((june.before or 0.0) - june.across)


@pytest.mark.filterwarnings("ignore:fewer than 10", "ignore:too few", "ignore:no validation images")
def test_a_gate_without_anything_to_compare_with_does_not_pass(tmp_path: Path) -> None:
    model, tests = tmp_path / "model", tmp_path / "tests"
    x, y = digits("may")
    found = classifier(epochs=1).learn((x[:4], y[:4]), task="may")
    found.learn(digits("june"), task="june").save(model)
    write(tests / "may", x[:4], y[:4])
    assert found.tasks_[0].accuracy is None
    done = recollect("check", model, tests, "--max-forgetting", 50, "--device", "cpu")
    assert (done.returncode, "may has no figure from when it was learned" in done.stdout) == (1, True)
    assert recollect("check", model, tests, "--device", "cpu").returncode == 0


def test_a_model_that_cannot_be_written_is_checked_and_says_so(
    months: tuple[ContinualClassifier, ContinualClassifier], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from rich.console import Console

    months[1].save(tmp_path / "model")
    write(tmp_path / "tests" / "may", *digits("may", test=True))
    before = (tmp_path / "model" / "versions" / "002-june" / "model.json").read_bytes()

    def refuse(folder: Path) -> Any:
        raise OSError(30, "Read-only file system", str(folder / "lock"))

    monkeypatch.setattr(practising, "lock_folder", refuse)
    for as_json in (False, True):
        with pytest.warns(UserWarning, match="cannot be written: these figures are not kept"):
            assert (
                practising.check_model(
                    Console(), tmp_path / "model", tmp_path / "tests", 50, None, "cpu", as_json=as_json
                )
                == 0
            )
    assert (tmp_path / "model" / "versions" / "002-june" / "model.json").read_bytes() == before


def test_what_learn_and_inspect_say_is_what_predict_reaches(tmp_path: Path) -> None:
    model = tmp_path / "model"
    classifier(epochs=3).learn(digits("may"), task="may").save(model)
    done = recollect("learn", model, write(tmp_path / "june", *digits("june")), "--task", "june", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    task = load_model(model).tasks[-1]
    said = " ".join(done.stdout.split())
    assert f"Of its validation images {task.across:.1f} % are right among all classes" in said
    assert f"{task.accuracy:.1f} % if told that they are of june" in said
    assert "TIL" not in said
    shown = recollect("inspect", model).stdout
    assert f"{task.across:.1f} %" in shown


def test_the_estimate_is_steps_times_images_times_epochs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    monkeypatch.setattr(practising, "seconds_an_image", lambda *_: 0.5)
    model = classifier(epochs=10)
    practising._print_estimate(Console(), model, 120, {"cat": 120}, "cpu", 1)
    assert (
        "About 14.0 minutes" in capsys.readouterr().out
    )  # 120 images, 10 epochs, half a second, times 1.4 for both stages
    model.learn(digits("may"), task="may")
    practising._print_estimate(Console(), model, 120, {"cat": 120}, "cpu", 1)
    assert "About 20.0 minutes" in capsys.readouterr().out


def test_a_class_that_came_back_is_shown_with_its_newest_task(tmp_path: Path) -> None:
    model = classifier(epochs=2).learn(digits("may"), task="may").learn(digits("july"), task="july")
    model.save(tmp_path / "model")
    x, y = digits("may", test=True)
    ones = write(tmp_path / "x", x[[name == "1" for name in y]], ["1"] * y.count("1"))
    found = [each for each in predict_images(tmp_path / "model", [ones], None, 1, 0.0, "cpu") if each["class"] == "1"]
    assert found
    assert {each["task"] for each in found} == {"july"}


def test_a_learn_that_was_cut_after_its_version_was_written_is_ended(tmp_path: Path) -> None:
    """At every point between: the version is there, the pointer is not, or what was unfinished is not yet removed."""
    may, june = write(tmp_path / "may", *digits("may")), write(tmp_path / "june", *digits("june"))
    made = ("--backbone", "convnet", "--image-size", "32", "--epochs", "1", "--device", "cpu")
    model, work = tmp_path / "model", tmp_path / "model" / "unfinished"
    for images, task, words in ((may, "may", made), (june, "june", ("--device", "cpu"))):
        pointer = (model / "model.json").read_bytes() if model.exists() else None
        assert recollect("learn", model, images, "--task", task, *words).returncode == 0
        (work / load_model(model).tasks[-1].learn).mkdir(parents=True)
        if pointer is None:
            (model / "model.json").unlink()
        else:
            (model / "model.json").write_bytes(pointer)
        again = recollect("learn", model, images, "--task", task, *words)
        assert (again.returncode, "was learned already" in again.stdout) == (0, True), again.stderr
        assert load_model(model).tasks[-1].name == task
        assert not work.exists()
    assert len(list((model / "versions").iterdir())) == 2


def test_a_name_used_before_does_not_cost_another_learn_its_checkpoints(tmp_path: Path) -> None:
    may = write(tmp_path / "may", *digits("may"))
    made = ("--backbone", "convnet", "--image-size", "32", "--epochs", "1", "--device", "cpu")
    model = tmp_path / "model"
    assert recollect("learn", model, may, "--task", "may", *made).returncode == 0
    (model / "unfinished" / ("a" * 32)).mkdir(parents=True)  # of June, which was cut
    again = recollect("learn", model, may, "--task", "may", "--device", "cpu")
    assert (again.returncode, "'may' is learned already" in again.stderr) == (2, True)
    assert (model / "unfinished" / ("a" * 32)).is_dir()


def test_strangers_in_a_model_folder_do_no_harm(tmp_path: Path) -> None:
    model = tmp_path / "model"
    classifier(epochs=1).learn(digits("may"), task="may").save(model)
    for name in (".DS_Store", "model.onnx"):
        (model / name).write_bytes(b"x")
    june = write(tmp_path / "june", *digits("june"))
    assert recollect("learn", model, june, "--task", "june", "--device", "cpu").returncode == 0
    shutil.rmtree(model / "versions")
    (model / "model.json").unlink()
    done = recollect("learn", model, june, "--task", "june", "--device", "cpu")
    assert done.returncode == 2
    assert "is no model folder, for it holds" in done.stderr


def test_one_unreadable_image_costs_only_itself(tmp_path: Path) -> None:
    model = tmp_path / "model"
    classifier(epochs=1).learn(digits("may"), task="may").save(model)
    root = write(tmp_path / "x", digits("may", test=True)[0][:3], ["0"] * 3)
    (root / "0" / "1.png").write_bytes(b"no picture")
    (root / "0" / "._0.png").write_bytes(b"of a Mac")
    done = recollect("predict", model, root / "0", "--json", "--device", "cpu")
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert [Path(each["path"]).name for each in found] == ["0.png", "1.png", "2.png"]
    assert ["error" in each for each in found] == [False, True, False]
    assert "1 of 3 images cannot be read" in done.stderr
