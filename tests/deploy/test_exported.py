"""Predicting with an exported file: as the model folder does, and without torch."""

from __future__ import annotations

import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from recollect import ContinualClassifier
from recollect.errors import UserError
from recollect.inference import ExportedClassifier, predict_chunks
from recollect.serve.app import Service, make_app
from recollect.serve.collection import Collection
from recollect.serve.current import CurrentModel
from recollect.storage import write_bytes
from tests.deploy.support import predict_and_list_modules, random_images, write_photos
from tests.serve.support import ADDRESS
from tests.support import recollect

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
NUMBER = re.compile(r"\b[01]\.\d+\b")


@pytest.mark.parametrize(
    "options",
    [["--top", 3], ["--csv"], ["--json", "--top", 9], ["--json", "--task", "may", "--min-probability", 0.5]],
    ids=lambda options: options[0],
)
def test_the_command_prints_what_the_folder_prints(
    three_versions: Path, exported: Path, tmp_path: Path, options: list[object]
) -> None:
    root = write_photos(tmp_path / "p", num=3)
    (root / "a" / "bad.png").write_bytes(b"no picture")
    (tmp_path / "empty").mkdir()
    texts = []
    for model in (three_versions, exported):
        done = recollect("predict", model, root / "b" / "0.png", root, tmp_path / "empty", *options, "--threads", 2)
        assert done.returncode == 2
        assert f"2 of 9 images cannot be read, the first is {root / 'a' / 'bad.png'}" in done.stderr
        texts.append(done.stdout)
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in texts]
    assert len(numbers[0]) >= 7
    assert numbers[1] == pytest.approx(numbers[0], abs=1e-5 if "--top" not in options or "--json" in options else 1e-3)
    assert NUMBER.sub("", texts[1]) == NUMBER.sub("", texts[0])


def test_predicting_with_a_file_does_not_import_torch(exported: Path, tmp_path: Path) -> None:
    path = write_photos(tmp_path / "p", num=1) / "a" / "0.png"
    line, modules = predict_and_list_modules(exported, path)
    assert line.startswith(f"{path},")
    assert modules == []


def test_the_classifier_agrees_with_that_of_the_folder(
    three_versions: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images = ContinualClassifier.load(three_versions, device="cpu"), random_images(7, 9)
    pixels = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    classifier = ExportedClassifier.load(exported)
    assert classifier.image_size == model.image_size == 32
    assert classifier.classes_.tolist() == model.classes_.tolist()
    assert [(task.name, task.classes) for task in classifier.tasks_] == [(t.name, t.classes) for t in model.tasks_]
    for max_batch in (256, 4):
        monkeypatch.setattr("recollect.inference.exported.MAX_BATCH", max_batch)
        for task in (None, "may", "june", "july"):
            expected = model.predict_proba(images, task)
            assert np.abs(classifier.predict_proba(pixels, task) - expected).max() < 1e-5
            assert classifier.predict(pixels, task).tolist() == model.predict(images, task).tolist()
    assert np.array_equal(model.predict_proba(pixels[::-1])[::-1], model.predict_proba(images))
    assert classifier.predict_proba(pixels[:0]).shape == (0, 6)
    for wrong in (images, pixels[0], pixels.astype(np.float32), images.tolist()):
        with pytest.raises(UserError, match=r"give a uint8 array of images \[n, 3, 32, 32\], got"):
            classifier.predict_proba(wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="there is no task 'march'; the model has learned may, june, july"):
        classifier.predict(pixels, task="march")


def test_the_server_answers_with_the_file_until_it_is_exported_again(
    three_versions: Path, exported: Path, tmp_path: Path
) -> None:
    file, image = tmp_path / "model.onnx", write_photos(tmp_path / "p", num=1) / "a" / "0.png"
    file.write_bytes(exported.read_bytes())
    os.utime(file, (0, 0))
    ((expected,),) = predict_chunks(ContinualClassifier.load(three_versions, device="cpu"), [image], top=2)
    with ThreadPoolExecutor(1) as worker:
        service = Service(CurrentModel(file), worker, Collection(tmp_path / "july", file))
        client = TestClient(make_app(service), base_url=ADDRESS)
        about = client.get("/model").json()
        assert (about["name"], about["image_size"], len(about["classes"])) == (str(file), 32, 6)
        answer = client.post("/predict?top=2", content=image.read_bytes()).json()
        assert [row["class"] for row in answer["top"]] == [row["class"] for row in expected["top"]]
        assert answer["probability"] == pytest.approx(expected["probability"], abs=1e-5)
        assert answer["version"] == about["version"]
        client.headers["origin"] = ADDRESS
        assert client.post("/collect?class=owl", content=image.read_bytes()).status_code == 201
        write_bytes(file, b"damaged")
        with pytest.warns(UserWarning, match=f"version {about['version']} stays in use: .* export the model again"):
            assert client.post("/predict", content=image.read_bytes()).json()["version"] == about["version"]
        names, tasks = about["classes"], about["tasks"]
        upper = [task | {"classes": [name.upper() for name in task["classes"]]} for task in tasks]
        renamed = {"classes": json.dumps([name.upper() for name in names]), "tasks": json.dumps(upper)}
        change_metadata(exported, tmp_path / "new.onnx", **renamed).replace(file)
        answer = client.post("/predict", content=image.read_bytes()).json()
        assert (answer["class"], answer["version"] > about["version"]) == (expected["class"].upper(), True)


def change_metadata(source: Path, target: Path, **values: str) -> Path:
    """A copy of an exported file with other metadata."""
    model = onnx.load(source)
    for entry in model.metadata_props:
        entry.value = values.get(entry.key.removeprefix("recollect."), entry.value)
    target.write_bytes(model.SerializeToString())
    return target


def test_other_files_and_options_are_refused(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = write_photos(tmp_path / "p", num=1) / "a" / "0.png"
    content, bare = exported.read_bytes(), onnx.load(exported)
    del bare.metadata_props[:]
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "cut.onnx").write_bytes(content[: len(content) // 2])
    (tmp_path / "bare.onnx").write_bytes(bare.SerializeToString())
    refused = "is not a file that `recollect export` wrote"
    cases: list[tuple[Path, list[object], str]] = [
        (tmp_path / "none.onnx", [], "cannot be read (No such file or directory); give a model folder, or a file"),
        (tmp_path / "text.onnx", [], f"{refused} (no ONNX file, or a damaged one); export the model again"),
        (tmp_path / "empty", [], refused),
        (tmp_path / "cut.onnx", [], refused),
        (tmp_path / "bare.onnx", [], f"{refused} (it has no classes and tasks in its metadata)"),
        (change_metadata(exported, tmp_path / "1.onnx", image_size="64"), [], f"{refused} (its inputs and outputs do"),
        (
            change_metadata(exported, tmp_path / "2.onnx", tasks="[]"),
            [],
            f"{refused} (its classes are not those of its",
        ),
        (change_metadata(exported, tmp_path / "3.onnx", tasks="{"), [], refused),
        (
            change_metadata(exported, tmp_path / "4.onnx", classes='["a", "b", "c", "d", "e", "f"]'),
            [],
            f"{refused} (its classes are not those of its tasks)",
        ),
        (exported, ["--device", "cuda"], "is computed on the processor, got the device 'cuda'; give the model folder"),
        (exported, ["--threads", -1], "threads are between 1 and 1024, or 0 for onnxruntime's choice; got -1"),
    ]
    for file, options, message in cases:
        done = recollect("predict", file, image, *options)
        assert (done.returncode, done.stdout) == (2, ""), file
        assert message in done.stderr, done.stderr
        assert "threads" in message or str(file) in done.stderr
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = recollect("predict", exported, image)
    assert (done.returncode, "needs onnxruntime to be read: pip install 'recollect-rfe[onnx]'" in done.stderr) == (
        2,
        True,
    )
