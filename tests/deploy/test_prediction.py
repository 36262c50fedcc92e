"""Predicting files, folders, arrays and loaders."""

from __future__ import annotations

import csv
import io
import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from recollect import ContinualClassifier
from recollect.cli.rendering.predictions import TablePrinter
from recollect.inference import predict_chunks
from tests.deploy.support import (
    SMALL,
    digits,
    make_classifier,
    predict_files,
    random_images,
    train_model,
    write_images,
    write_photos,
)
from tests.support import recollect


def test_loaders_and_another_process_give_the_same_predictions() -> None:
    model, x = train_model("may"), torch.from_numpy(random_images()).permute(0, 3, 1, 2)
    expected = model.predict_proba(x)
    pairs = [(image, 0) for image in x]
    for loader in (torch.utils.data.DataLoader(list(x), batch_size=7), torch.utils.data.DataLoader(pairs)):
        assert np.array_equal(model.predict_proba(loader), expected)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # it can be pickled after predicting
        assert np.allclose(pool.submit(model.predict_proba, x).result(), expected, atol=1e-6)


def test_a_folder_is_predicted_like_its_files_in_chunks(folder: Path, tmp_path: Path) -> None:
    classifier = ContinualClassifier.load(folder, device="cpu")
    root = write_photos(tmp_path / "p")
    files = sorted(root.rglob("*.png"))
    expected = predict_files(classifier, files, top=2)
    predictions = predict_files(classifier, [root / "a", *files[10:]], top=2, chunk_size=3)
    assert [row["path"] for row in predictions] == [str(file) for file in files]
    assert [row["class"] for row in predictions] == [row["class"] for row in expected]
    probabilities = [row["probability"] for row in expected]  # kernels differ by batch size
    assert [row["probability"] for row in predictions] == pytest.approx(probabilities, rel=1e-4)
    (tmp_path / "empty").mkdir()
    image, empty = predict_files(classifier, [files[0], tmp_path / "empty"])
    assert image["class"] == expected[0]["class"]
    assert (empty["class"], empty["error"]) == (None, f"there are no images in {tmp_path / 'empty'}")


def test_links_are_followed_once_and_hidden_files_are_skipped(folder: Path, tmp_path: Path) -> None:
    root = write_photos(tmp_path / "p")
    many = tmp_path / "many"
    many.mkdir()
    (many / "a").symlink_to(root / "a")
    (many / "loop").symlink_to(many)
    (many / "gone.png").symlink_to(tmp_path / "nothing.png")
    for name in (".thumbs", "@eaDir"):
        (many / name).mkdir()
        (many / name / "t.png").write_bytes((root / "a" / "0.png").read_bytes())
    predictions = predict_files(ContinualClassifier.load(folder, device="cpu"), [many])
    linked = [str(many / "a" / path.name) for path in sorted((root / "a").iterdir())]
    assert [row["path"] for row in predictions] == [*linked, str(many / "gone.png")]
    assert "error" in predictions[-1]


def test_piped_output_is_neither_wrapped_nor_truncated(folder: Path, tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 30)
    path = write_photos(deep) / "a" / "0.png"
    (deep / "a" / "bad.png").write_bytes(b"")
    done = recollect("predict", folder, path, deep / "a" / "bad.png")
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert any(line.strip().startswith(str(path)) and line.split()[-1] in ("may", "june", "july") for line in lines)
    assert any("bad.png is not a readable image (an empty file)" in line for line in lines)


def test_names_that_the_terminal_cannot_encode_are_escaped(tmp_path: Path) -> None:
    model = tmp_path / "model"
    ContinualClassifier("convnet", **SMALL).learn((random_images(), ["猫", "犬"] * 12), task="may").save(model)
    odd = tmp_path / os.fsdecode(b"caf\xe9.png")
    Image.fromarray(random_images()[0]).save(tmp_path / "plain.png")
    (tmp_path / "plain.png").rename(odd)
    for encoding in ("cp1252", "utf-8"):
        done = recollect("predict", model, odd, "--device", "cpu", "--json", encoding=encoding)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)[0]["class"] in ("猫", "犬")
        assert recollect("predict", model, odd, "--device", "cpu", encoding=encoding).returncode == 0


def test_a_repeated_class_is_shown_with_its_newest_task(tmp_path: Path) -> None:
    model = make_classifier(epochs=2).learn(digits("may"), task="may").learn(digits("july"), task="july")
    x, y = digits("may", test=True)
    ones = write_images(tmp_path / "x", x[[name == "1" for name in y]], ["1"] * y.count("1"))
    assert {row["task"] for row in predict_files(model, [ones]) if row["class"] == "1"} == {"july"}


def test_an_unreadable_image_does_not_stop_the_others(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make_classifier(epochs=1).learn(digits("may"), task="may").save(model)
    root = write_images(tmp_path / "x", digits("may", test=True)[0][:3], ["0"] * 3)
    (root / "0" / "1.png").write_bytes(b"no picture")
    (root / "0" / "._0.png").write_bytes(b"of a Mac")
    done = recollect("predict", model, root / "0", "--json", "--device", "cpu")
    assert done.returncode == 2
    predictions = json.loads(done.stdout)
    assert [Path(row["path"]).name for row in predictions] == ["0.png", "1.png", "2.png"]
    assert ["error" in row for row in predictions] == [False, True, False]
    assert "1 of 3 images cannot be read" in done.stderr


def test_predict_decodes_each_file_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(write_photos(tmp_path / "p", num=3).rglob("*.png"))
    classifier = ContinualClassifier.load(folder, device="cpu")
    opened, open_image = [], Image.open

    def count(file: Any, **options: Any) -> Image.Image:
        opened.append(file)
        return open_image(file, **options)

    monkeypatch.setattr(Image, "open", count)
    monkeypatch.setattr(Image, "fromarray", lambda *_: pytest.fail("an image was decoded and converted back"))
    assert len(predict_files(classifier, files)) == 6
    assert len(opened) == 6


def test_csv_has_a_line_per_image_and_no_formula(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    for name in ("=1.png", "plain.png"):
        Image.fromarray(random_images()[0]).save(tmp_path / "p" / name)
    (tmp_path / "p" / "bad.png").write_bytes(b"no picture")
    paths = ("p/plain.png", "=1.png", "p/bad.png")
    (tmp_path / "p" / "=1.png").rename(tmp_path / "=1.png")
    done = recollect("predict", folder, *paths, "--csv", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 2
    header, plain, formula, bad = csv.reader(io.StringIO(done.stdout))
    assert header == ["path", "class", "probability", "task", "error"]
    expected = json.loads(recollect("predict", folder, *paths, "--json", "--device", "cpu", cwd=tmp_path).stdout)
    assert plain == ["p/plain.png", expected[0]["class"], f"{expected[0]['probability']:.6f}", expected[0]["task"], ""]
    assert (formula[0], bad[0], bad[1:4]) == ("'=1.png", "p/bad.png", ["", "", ""])
    assert "is not a readable image" in bad[4]
    for options in (["--json"], ["--top", "2"]):
        refused = recollect("predict", folder, paths[0], "--csv", *options, cwd=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, "")


def test_predictions_arrive_before_later_files_are_read(folder: Path, tmp_path: Path) -> None:
    files = sorted(write_photos(tmp_path / "p", num=3).rglob("*.png"))
    chunks = predict_chunks(ContinualClassifier.load(folder, device="cpu"), files, chunk_size=4)
    first = next(chunks)
    assert [row["path"] for row in first] == [str(file) for file in files[:4]]
    for file in files[4:]:
        file.unlink()
    (second,) = chunks
    assert ["error" in row for row in second] == [True, True]


def test_the_first_chunks_are_small_so_that_results_are_seen_soon(folder: Path, tmp_path: Path) -> None:
    files = sorted(write_photos(tmp_path / "p", num=20).rglob("*.png"))
    chunks = list(predict_chunks(ContinualClassifier.load(folder, device="cpu"), files, chunk_size=16))
    assert [len(chunk) for chunk in chunks] == [8, 16, 16]
    assert [row["path"] for chunk in chunks for row in chunk] == [str(file) for file in files]


def test_columns_of_later_chunks_line_up_with_the_header() -> None:
    console = Console(file=io.StringIO(), width=200)
    printer = TablePrinter(console)
    for path in ("long/name/of/an/image.png", "x.png"):
        row = {"path": path, "class": "cat", "probability": 0.5, "task": "may"}
        printer.add([row | {"top": [row]}])
    assert isinstance(console.file, io.StringIO)
    header, first, second = console.file.getvalue().splitlines()
    assert header.index("class") == first.index("cat") == second.index("cat")


def test_folders_are_read_at_any_depth(folder: Path, tmp_path: Path) -> None:
    deep = tmp_path / "p" / "2026" / "05" / "camera" / "a"
    deep.mkdir(parents=True)
    Image.fromarray(random_images()[0]).save(deep / "x.png")
    (row,) = predict_files(ContinualClassifier.load(folder, device="cpu"), [tmp_path / "p"])
    assert row["path"] == str(deep / "x.png")


def test_predict_uses_the_given_number_of_threads(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, numbers = write_photos(tmp_path / "p", num=1) / "a" / "0.png", []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    assert recollect("predict", folder, path, "--threads", 3, "--device", "cpu").returncode == 0
    assert numbers[0] == 3
    assert recollect("predict", folder, path, "--threads", -1, "--device", "cpu").returncode == 2
