"""`check` in detail: classes, confused pairs, wrong images, and the files that list them."""

from __future__ import annotations

import csv
import io
import json
from base64 import b64decode
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from recollect import ContinualClassifier
from recollect.cli.rendering.check_page import render_page
from recollect.deploy import Gate, ModelStore
from recollect.deploy.checks import CheckReport, TaskCheck
from recollect.deploy.confusion import CheckDetails, ClassCheck, WrongImage
from tests.deploy.support import (
    SMALL,
    digits,
    make_classifier,
    predict_files,
    random_images,
    write_digits,
    write_images,
)
from tests.support import recollect

SCRIPT, FORMULA = "<script>", "=1+1"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model with hostile class names, and test images of which half are wrong: both classes have the same."""
    root = tmp_path_factory.mktemp("hostile")
    classifier = ContinualClassifier("convnet", **SMALL)
    classifier.learn((random_images(), [SCRIPT, FORMULA] * 12), task="<b>may").save(root / "model")
    for name in (SCRIPT, FORMULA):
        write_images(root / "tests" / "<b>may", random_images(1, 6), [name] * 6)
    return root / "model", root / "tests"


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_details_of_a_check_equal_those_counted_from_predictions(
    months: tuple[ContinualClassifier, ContinualClassifier], tmp_path: Path
) -> None:
    classifier, model, tests = months[1], tmp_path / "model", tmp_path / "tests"
    classifier.save(model)
    for task in ("may", "june"):
        write_digits(tests / task, task, test=True)
    zeros = sorted((tests / "may" / "0").iterdir())
    for path in zeros[:5]:  # wrongly labelled
        path.rename(tests / "may" / "1" / f"zero-{path.name}")
    details = ModelStore(model).check(tests, device="cpu").details
    answers: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for path in sorted(tests.glob("*/*/*.png")):
        (row,) = predict_files(classifier, [path])
        answers.setdefault((path.parts[-3], path.parts[-2]), []).append((str(path), row["class"]))
    wrong = {
        (path, task, name, given) for (task, name), rows in answers.items() for path, given in rows if given != name
    }
    assert {(image.path, image.task, image.true_class, image.predicted) for image in details.wrong} == wrong
    assert len(wrong) >= 3
    for check in details.classes:
        rows = answers[check.task, check.name]
        right = sum(given == check.name for _, given in rows)
        assert (check.num_images, check.across) == (len(rows), pytest.approx(100 * right / len(rows)))
    assert len(details.classes) == len(answers) == 4
    pairs = Counter((name, given) for _, _, name, given in wrong)
    confusions = details.list_confusions()
    assert {(pair.true_class, pair.predicted): pair.num_images for pair in confusions} == dict(pairs)


def test_the_worst_confusion_comes_first() -> None:
    classes = [ClassCheck("may", "cat", 50, 90.0, 84.0), ClassCheck("may", "dog", 20, 90.0, 90.0)]
    mistakes = [("dog", "cat")] * 2 + [("cat", "dog")] * 7 + [("cat", "cow")] * 2
    details = CheckDetails(classes, [WrongImage("x.png", "may", *pair, 0.9) for pair in mistakes])
    assert [str(confusion) for confusion in details.list_confusions()] == [
        "cat taken for dog: 7 of 50",
        "dog taken for cat: 2 of 20",
        "cat taken for cow: 2 of 50",
    ]


@pytest.mark.parametrize(
    ("within", "across", "num_images", "is_confused"),
    [(90.0, 64.0, 10, True), (90.0, 64.0, 9, False), (90.0, 65.0, 10, False), (100 * 0.55, 100 * 0.3, 20, False)],
)
def test_a_task_is_confused_25_points_below_its_accuracy_with_the_task_known(
    within: float, across: float, num_images: int, is_confused: bool
) -> None:
    check = TaskCheck("may", within, across, None, "learned last", num_images, is_newest=True)
    report = CheckReport([check], [], Gate())
    assert [objection.task for objection in report.objections] == ["may"] * is_confused
    shown = report.to_json()
    assert (shown["tasks"][0]["is_confused"], shown["passed"]) == (is_confused, not is_confused)
    assert CheckReport([check], [], Gate(max_confusion=26.0)).objections == []


def test_a_confused_task_fails_the_check(tmp_path: Path) -> None:
    model, tests = tmp_path / "model", tmp_path / "tests"
    x, y = digits("june")
    two = x[[name == "2" for name in y]]
    classifier = make_classifier(epochs=4).learn(digits("may"), task="may")
    classifier.learn((two, ["2"] * len(two)), task="june").save(model)
    images, names = digits("may", test=True)
    zeros = images[[name == "0" for name in names]]
    write_images(tests / "june", zeros, ["2"] * len(zeros))  # with the task known, they can only be twos
    done = recollect("check", model, tests, "--device", "cpu")
    assert done.returncode == 1
    assert "june is confused with other tasks: accuracy" in done.stdout
    assert "2 taken for 0: " in done.stdout
    report = json.loads(recollect("check", model, tests, "--device", "cpu", "--json").stdout)
    assert (report["passed"], report["tasks"][0]["is_confused"]) == (False, True)
    assert report["confusions"][0]["true_class"] == "2"
    assert recollect("check", model, tests, "--device", "cpu", "--max-confusion", "100").returncode == 0
    assert len(report["wrong"]) == sum(pair["num_images"] for pair in report["confusions"])


def test_the_table_of_wrong_images_contains_no_formula(hostile: tuple[Path, Path], tmp_path: Path) -> None:
    model, tests = hostile
    done = recollect("check", model, tests, "--csv", tmp_path / "wrong.csv", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "wrong image" in done.stdout
    header, *rows = csv.reader(io.StringIO((tmp_path / "wrong.csv").read_text("utf-8")))
    assert header == ["path", "task", "class", "predicted", "probability"]
    assert len(rows) == 6
    assert {tuple(sorted((name, predicted))) for _, _, name, predicted, _ in rows} == {("'" + FORMULA, SCRIPT)}
    assert all(Path(row[0]).is_file() and 0.5 <= float(row[4]) <= 1 for row in rows)


def test_the_page_shows_wrong_images_and_escapes_all_names(hostile: tuple[Path, Path], tmp_path: Path) -> None:
    model, tests = hostile
    page_file = tmp_path / "check.html"
    assert recollect("check", model, tests, "--html", page_file, "--device", "cpu").returncode == 0
    page = Elements(page_file.read_text("utf-8"))
    tags = [tag for tag, _ in page.found]
    assert not {"script", "link", "iframe", "a"} & set(tags)
    assert f"{SCRIPT} taken for {FORMULA}" in page.text or f"{FORMULA} taken for {SCRIPT}" in page.text
    assert "Accuracy per class of <b>may" in page.text
    images = [attributes for tag, attributes in page.found if tag == "img"]
    assert len(images) == 6
    for attributes in images:
        kind, _, content = (attributes["src"] or "").partition(",")
        assert kind == "data:image/jpeg;base64"
        assert Image.open(io.BytesIO(b64decode(content))).size == (32, 32)
    assert not any(value and "://" in value for _, attributes in page.found for value in attributes.values())


def test_the_page_limits_its_pictures_and_classes() -> None:
    names = [f"class {number}" for number in range(60)]
    wrong = [
        WrongImage(f"{number}.png", "may", name, names[number - 1], 0.5, b"picture" if number % 2 else b"")
        for number, name in enumerate(names)
    ]
    details = CheckDetails([ClassCheck("may", name, 1, 0.0, 0.0) for name in names], wrong)
    page = Elements(render_page(CheckReport([], [], Gate(), details), "Check"))
    tags = Counter(tag for tag, _ in page.found)
    assert tags["img"] == 30
    assert page.text.count("1 without a picture here") == 30
    assert "Only the 50 classes with the most mistakes are shown." in page.text


def test_check_decodes_each_file_once_for_all_its_outputs(
    hostile: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tests = hostile
    opened, open_image = [], Image.open

    def count(file: Any, **options: Any) -> Image.Image:
        opened.append(file)
        return open_image(file, **options)

    monkeypatch.setattr(Image, "open", count)
    files = ("--csv", tmp_path / "wrong.csv", "--html", tmp_path / "check.html")
    assert recollect("check", model, tests, *files, "--json", "--device", "cpu").returncode == 0
    assert len(opened) == 12


def test_a_file_that_cannot_be_written_is_refused_before_the_check(hostile: tuple[Path, Path], tmp_path: Path) -> None:
    for option in ("--csv", "--html"):
        done = recollect("check", *hostile, option, tmp_path / "missing" / "file", "--device", "cpu")
        assert (done.returncode, done.stdout) == (2, "")
        assert "give a file in an existing folder" in done.stderr


def test_a_page_with_images_is_not_written_into_the_model_folder(hostile: tuple[Path, Path]) -> None:
    model, tests = hostile
    done = recollect("check", model, tests, "--html", model / "check.html", "--device", "cpu")
    assert (done.returncode, (model / "check.html").exists()) == (2, False)
    assert "is in the model folder, which keeps no images" in done.stderr
