"""Model folders survive what people and machines do to them: lost pointers, damage, branches, litter, odd names."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from recollect import ContinualClassifier
from recollect.cli import predicting
from recollect.cli.predicting import predict_images
from recollect.deploy import load_model, versions_of
from recollect.deploy.data import read_images, read_labelled
from recollect.deploy.folder import current, roll_back
from recollect.deploy.report import measure_shift
from recollect.errors import UserError
from recollect.storage import lock_folder
from tests.runs.test_runs import recollect

SMALL: dict[str, Any] = {"image_size": 32, "epochs": 1, "device": "cpu", "precision": "fp32"}
LEARN = ("--backbone", "convnet", "--image-size", "32", "--epochs", "1", "--device", "cpu")


def images(seed: int = 0, num: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (num, 32, 32, 3), dtype=np.uint8)


def taught(*tasks: str, **options: Any) -> ContinualClassifier:
    model = ContinualClassifier(**({"backbone": "convnet"} | SMALL | options))
    for number, task in enumerate(tasks):
        model.learn((images(number), [f"{task}a", f"{task}b"] * 12), task=task)
    return model


def photos(folder: Path, names: tuple[str, ...] = ("a", "b"), num: int = 10) -> Path:
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for place, image in enumerate(images(number, num)):
            Image.fromarray(image).save(folder / name / f"{place}.png")
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three versions."""
    folder = tmp_path_factory.mktemp("models") / "model"
    model = ContinualClassifier("convnet", **SMALL)
    for number, task in enumerate(("may", "june", "july")):
        model.learn((images(number), [f"{task}a", f"{task}b"] * 12), task=task).save(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def test_a_lost_pointer_costs_nothing(folder: Path, tmp_path: Path) -> None:
    (folder / "model.json").unlink()
    with pytest.raises(UserError, match=r"model.json is lost; go back to a version with .* --to 003-july"):
        load_model(folder)
    done = recollect("learn", folder, photos(tmp_path / "p"), "--task", "may", *LEARN)
    assert done.returncode == 2
    assert versions_of(folder) == ["001-may", "002-june", "003-july"]
    assert recollect("rollback", folder, "--to", "july").returncode == 0
    assert len(load_model(folder).tasks) == 3


def test_rollback_rescues_a_damaged_model(folder: Path) -> None:
    weights = folder / "versions/003-july/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    about = folder / "versions/001-may/model.json"
    about.write_text(about.read_text().replace("maya", "cat"))  # an edited version does not stand in the way
    with pytest.raises(UserError, match=r"does not match its hash\); go back with recollect rollback .* --to 002-june"):
        load_model(folder)
    with pytest.raises(UserError, match="does not match its digest"):
        load_model(folder, "001-may")
    done = recollect("rollback", folder, "--to", "june")
    assert done.returncode == 0, done.stderr
    assert [task.name for task in load_model(folder).tasks] == ["may", "june"]


def test_branches_keep_their_ancestors_and_are_told_apart(folder: Path) -> None:
    for number in range(4):
        roll_back(folder, "june")
        branch = ContinualClassifier.load(folder, device="cpu")
        branch.learn((images(9 + number), ["x", "y"] * 12), task="july").save(folder)
    names = versions_of(folder)
    assert len(names) == 5
    assert {"001-may", "002-june", current(folder)} <= set(names)
    assert roll_back(folder, "july") == current(folder)  # of this line, not of another branch
    roll_back(folder, "may")
    with pytest.raises(UserError, match=r"several versions end with 'july'; name one of: 001-may \(may\)"):
        roll_back(folder, "july")
    assert roll_back(folder, names[-1]) == names[-1]


def test_saving_again_or_elsewhere(folder: Path, tmp_path: Path) -> None:
    model = ContinualClassifier.load(folder, device="cpu")
    model.save(folder)
    assert versions_of(folder) == ["001-may", "002-june", "003-july"]
    with pytest.raises(UserError, match="holds another model; save this one to an empty or new folder"):
        taught("may").save(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("x")
    with pytest.raises(UserError, match=r"it holds thesis.txt; give an empty or new folder"):
        model.save(tmp_path / "other")


def test_a_folder_for_checkpoints_keeps_what_else_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    (tmp_path / ("0" * 32)).mkdir()
    model = ContinualClassifier("convnet", **SMALL)
    with pytest.warns(UserWarning, match="of a learn of other images, another name or another model; dropped"):
        model.learn((images(), ["a", "b"] * 12), task="may", work=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "x"


def test_litter_of_a_crash_is_cleared_and_no_alarm(tmp_path: Path) -> None:
    model, data = tmp_path / "model", photos(tmp_path / "p")
    model.mkdir()
    (model / "model.json.123.unfinished").write_text("{")
    assert recollect("learn", model, data, "--task", "may", *LEARN).returncode == 0
    assert not list(model.glob("*.123.unfinished"))
    (model / "unfinished").mkdir()  # killed after the model was written, before this was removed
    again = recollect("learn", model, data, "--task", "may", *LEARN)
    assert again.returncode == 0
    assert "was learned already" in again.stdout
    assert recollect("learn", model, data, "--task", "may", *LEARN).returncode == 2


def test_a_first_learn_that_was_cut_is_said(tmp_path: Path) -> None:
    (tmp_path / "model" / "unfinished").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no model yet: its first learn was cut, and the same command goes on"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("name", ["", " ", ".aug", "2026/05", "x" * 101, "a\nb", "\udcff", 5])
def test_names_that_cannot_be_are_refused_before_any_work(name: Any) -> None:
    with pytest.raises(UserError, match="a task's name"):
        ContinualClassifier("convnet", **SMALL).learn((images(), ["a", "b"] * 12), task=name)


def test_markup_and_length_do_no_harm(tmp_path: Path) -> None:
    model, data = tmp_path / "model", photos(tmp_path / "p")
    done = recollect("learn", model, data, "--task", "[red]" + "x" * 90, *LEARN)
    assert done.returncode == 0, done.stderr
    assert len(versions_of(model)[0]) < 60


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "width=abc"], "width"),
        (["--set", "nope=1"], "nope"),
        (["--set", "epochs=1.5"], "takes options of the backbone; epochs is none"),
        (["--epochs", "0"], "epochs is a whole number from 1"),
        (["--image-size", "9"], "image_size is a whole number from 16 to 1024, got 9"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    done = recollect("learn", tmp_path / "m", photos(tmp_path / "p"), "--task", "may", *words)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_labels_of_any_kind_name_the_same_class() -> None:
    x, plain = images(), [0, 1] * 12
    model = ContinualClassifier("convnet", **SMALL).learn((x, torch.tensor(plain)), task="may")
    assert model.classes_.tolist() == ["0", "1"]
    expected = model.score(x, plain)
    for labels in (torch.tensor(plain), np.array(plain, dtype=float), ["0", "1"] * 12):
        assert model.score(x, labels) == expected
    for label in (None, 0.5, float("nan"), [1, 0], ""):
        with pytest.raises(UserError, match="a label is a text or a whole number"):
            model.learn((x, [label] * 24), task="june")
    with pytest.raises(UserError, match="got 24 images, 3 labels"):
        model.score(x, plain[:3])
    for one in (x[0], x[0, :, :, :1], x[0, :, :, 0], torch.from_numpy(x[0]).permute(2, 0, 1)):
        with pytest.raises(UserError, match=r"one image, of shape \[.*32, 32.*\]"):
            model.predict(one)
    assert len(model.predict(Image.fromarray(x[0]))) == 1


def test_a_picture_is_the_same_by_path_and_in_hand(tmp_path: Path) -> None:
    deep = Image.fromarray((np.arange(32 * 32).reshape(32, 32) * 60).astype(np.uint16))
    clear = Image.new("RGBA", (32, 32), (255, 0, 0, 0))
    for number, picture in enumerate((deep, clear)):
        path = tmp_path / f"{number}.png"
        picture.save(path)
        by_path, in_hand = read_images([path], 32), read_images([Image.open(path)], 32)
        assert torch.equal(by_path, in_hand)
    assert read_images([tmp_path / "0.png"], 32).float().mean() < 160
    assert int(read_images([tmp_path / "1.png"], 32).min()) == 255  # what is transparent is white


def test_a_turned_photo_is_read_upright(tmp_path: Path) -> None:
    array = np.zeros((32, 32, 3), np.uint8)
    array[:8] = 255  # white above
    for orientation, side in ((3, np.s_[24:, :]), (6, np.s_[:, 24:]), (8, np.s_[:, :8])):  # where that comes to lie
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / f"{orientation}.png"
        Image.fromarray(array).save(path, exif=exif)
        found = read_images([path], 32)[0, 0].numpy()
        assert found[side].min() > 250, orientation
        assert found.mean() == pytest.approx(255 / 4)


def test_photos_of_phones_and_what_systems_leave_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pillow_heif import register_heif_opener

    register_heif_opener()
    root = photos(tmp_path / "p")
    picture = Image.fromarray(np.full((40, 40, 3), 200, np.uint8))
    for name in ("x.HEIC", "x.avif", "x.jfif"):
        kind = {".HEIC": "HEIF", ".avif": "AVIF", ".jfif": "JPEG"}[Path(name).suffix]
        picture.save(root / "a" / name, format=kind)
        assert abs(float(read_images([root / "a" / name], 32).float().mean()) - 200) < 3
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store"):
        (root / "a" / name).write_bytes(b"x")
    assert read_labelled(root, 32).count() == {"a": 13, "b": 10}
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(UserError, match=r"x.HEIC needs pip install 'recollect-rfe\[heif\]'"):
        read_images([root / "a" / "x.HEIC"], 32)
    with pytest.raises(UserError, match="p/a is a folder, where images of 'p' should be"):
        read_labelled(tmp_path, 32)
    big = Image.new("L", (12_000, 9_000))  # 108 megapixels
    big.save(tmp_path / "big.png")
    assert read_images([tmp_path / "big.png"], 32).shape == (1, 3, 32, 32)


def test_pairs_of_lists_and_three_grey_images() -> None:
    x, names = images(num=4), ["a", "b", "a", "b"]
    expected = read_labelled((x, names), 32).digest
    assert read_labelled((list(x), names), 32).digest == expected
    assert read_labelled(([Image.fromarray(image) for image in x], names), 32).digest == expected
    assert read_labelled(list(zip(x, names, strict=True)), 32).digest == expected
    two = read_labelled([(x[0], "a"), (x[1], "b")], 32)
    assert two.digest == read_labelled((x[:2], names[:2]), 32).digest
    with pytest.raises(UserError, match="each item is an image and its label, got 3 parts"):
        read_labelled([(image, "a", 3) for image in x], 32)
    grey = x[:, :, :, 0]
    for num in (1, 2, 3, 4):
        assert len(read_images(grey[:num], 32)) == num


def test_grey_of_32_bits_is_read_by_what_it_holds(tmp_path: Path) -> None:
    ramp = np.arange(32 * 32, dtype=np.int32).reshape(32, 32)
    for name, values in (("bytes", ramp // 4), ("deep", ramp // 4 * 257), ("beyond", ramp * 100), ("below", ramp - 1)):
        Image.fromarray(values.astype(np.int32)).save(tmp_path / f"{name}.tif")
    for name in ("bytes", "deep"):
        found = read_images([tmp_path / f"{name}.tif"], 32)
        assert np.array_equal(found[0, 0], ramp // 4)
    for name, span in (("beyond", "0 to 102300"), ("below", "-1 to 1022")):
        with pytest.raises(UserError, match=rf"{name}.tif is not a readable image \(pixels from {span}"):
            read_images([tmp_path / f"{name}.tif"], 32)


def test_a_loader_with_or_without_labels_and_another_process_predict_the_same() -> None:
    model, x = taught("may"), torch.from_numpy(images()).permute(0, 3, 1, 2)
    expected = model.predict_proba(x)
    pairs = [(image, 0) for image in x]
    for loader in (torch.utils.data.DataLoader(list(x), batch_size=7), torch.utils.data.DataLoader(pairs)):
        assert np.array_equal(model.predict_proba(loader), expected)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # a model that has read can be sent
        assert np.allclose(pool.submit(model.predict_proba, x).result(), expected, atol=1e-6)


def test_a_folder_is_predicted_as_its_files_chunk_by_chunk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = photos(tmp_path / "p")
    files = sorted(root.rglob("*.png"))
    expected = predict_images(folder, files, None, 2, 0.0, "cpu")
    monkeypatch.setattr(predicting, "CHUNK", 3)
    found = predict_images(folder, [root / "a", *files[10:]], None, 2, 0.0, "cpu")
    assert [each["path"] for each in found] == [str(file) for file in files]
    assert [each["class"] for each in found] == [each["class"] for each in expected]
    probabilities = [each["probability"] for each in expected]
    assert [each["probability"] for each in found] == pytest.approx(probabilities, rel=1e-4)  # kernels differ by batch
    (tmp_path / "empty").mkdir()
    answered, empty = predict_images(folder, [files[0], tmp_path / "empty"], None, 1, 0.0, "cpu")
    assert answered["class"] == expected[0]["class"]
    assert (empty["class"], empty["error"]) == (None, f"there are no images under {tmp_path / 'empty'}")


def test_links_are_followed_once_and_litter_is_left_out_at_any_depth(folder: Path, tmp_path: Path) -> None:
    root = photos(tmp_path / "p")
    many = tmp_path / "many"
    many.mkdir()
    (many / "a").symlink_to(root / "a")
    (many / "loop").symlink_to(many)
    (many / "gone.png").symlink_to(tmp_path / "nothing.png")
    for name in (".thumbs", "@eaDir"):
        (many / name).mkdir()
        (many / name / "t.png").write_bytes((root / "a").iterdir().__next__().read_bytes())
    found = predict_images(folder, [many], None, 1, 0.0, "cpu")
    linked = [str(many / "a" / path.name) for path in sorted((root / "a").iterdir())]
    assert [each["path"] for each in found] == [*linked, str(many / "gone.png")]
    assert "error" in found[-1]


def test_a_class_cannot_be_called_as_no_class_is() -> None:
    with pytest.raises(
        UserError, match="a class cannot be called 'unknown', which `predict --min-probability` answers"
    ):
        ContinualClassifier("convnet", **SMALL).learn((images(), ["cat", "unknown"] * 12), task="may")


def test_a_letter_written_in_two_ways_is_one_class() -> None:
    found = read_labelled((images(num=4), ["\u00e9", "e\u0301", "\u00e9", "a"]), 32)
    assert found.class_names == ("a", "\u00e9")


def test_all_unreadable_images_are_named_at_once_in_words(tmp_path: Path) -> None:
    root = photos(tmp_path / "p")
    (root / "a" / "empty.png").write_bytes(b"")
    (root / "a" / "text.jpg").write_text("hello")
    whole = (root / "b" / "0.png").read_bytes()
    (root / "b" / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError) as caught:
        read_labelled(root, 32)
    lines = str(caught.value).splitlines()
    assert [line.partition("(")[2].partition(")")[0] for line in lines] == [
        "an empty file", "no picture of a known kind", "cut short",
    ]  # fmt: skip
    for number in range(30):
        (root / "a" / f"more{number}.png").write_bytes(b"")
    with pytest.raises(UserError, match="and 13 more"):
        read_labelled(root, 32)


def test_what_is_piped_is_neither_folded_nor_cut(folder: Path, tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 30)
    path = photos(deep) / "a" / "0.png"
    (deep / "a" / "bad.png").write_bytes(b"")
    done = recollect("predict", folder, path, deep / "a" / "bad.png")
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert any(line.strip().startswith(str(path)) and line.split()[-1] in ("may", "june", "july") for line in lines)
    assert any("bad.png is not a readable image (an empty file)" in line for line in lines)


def test_a_model_that_is_being_taught_is_not_read_for_another_learn(folder: Path, tmp_path: Path) -> None:
    root = photos(tmp_path / "p")
    with lock_folder(folder):
        done = recollect("learn", folder, root, "--task", "august", "--device", "cpu")
    assert done.returncode == 2
    assert "images:" not in done.stdout  # nothing is read or estimated before it is refused
    assert len(load_model(folder).tasks) == 3


def test_whatever_a_damaged_file_makes_pillow_raise_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(picture: Image.Image) -> Image.Image:
        raise struct.error("unpack requires a buffer of 12 bytes")

    Image.fromarray(images()[0]).save(tmp_path / "x.jpg")
    monkeypatch.setattr(Image.Image, "getexif", broken)
    with pytest.raises(UserError, match=r"x.jpg is not a readable image \(error\); replace it or take it out"):
        read_images([tmp_path / "x.jpg"], 32)


@pytest.mark.filterwarnings("ignore:fewer than 10 images", "ignore:no validation images")
def test_few_images_leave_calibration_and_shift_as_they_were() -> None:
    model = taught("may")
    before, far = model.model.temperature, images(5)
    assert measure_shift(model, read_images(far, 32)).num_images == len(far)
    with pytest.warns(UserWarning, match="too few images to hold any out"):
        model.learn((images(3, 3), ["x", "y", "z"]), task="june")
    assert model.model.temperature == before
    assert model.model.typical is None
    with pytest.raises(UserError, match="no images were held out when 'june' was learned"):
        measure_shift(model, read_images(far, 32))


def test_a_module_of_one_s_own_stays_as_it_was() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    before = [parameter.detach().clone() for parameter in module.parameters()]
    one, two = (ContinualClassifier(module, **SMALL).learn((images(), ["a", "b"] * 12), task="may") for _ in range(2))
    for old, parameter in zip(before, module.parameters(), strict=True):
        assert torch.equal(old, parameter)
    kept = one.features(images())
    two.learn((images(1), ["c", "d"] * 12), task="june")
    assert np.array_equal(one.features(images()), kept)


def test_the_gate_minds_what_predict_does(folder: Path, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    photos(tests / "may", ("maya", "mayb"), 6)
    found = json.loads(recollect("check", folder, tests, "--json").stdout)
    assert (found["passed"], found["objections"], found["untested"]) == (True, [], ["june", "july"])
    across = found["tasks"][0]["across"]
    asked = recollect("check", folder, tests, "--min-accuracy", min(across + 1, 100), "--json")
    assert json.loads(asked.stdout)["passed"] == (asked.returncode == 0) == (across == 100)
    photos(tests / "august", ("x", "y"), 2)
    assert "images of no task that was learned: august" in recollect("check", folder, tests).stderr
    assert recollect("check", folder, tests, "--min-accuracy", min(across + 1, 100)).returncode == (
        1 if across < 100 else 0
    )
    assert recollect("check", folder, tests, "--min-accuracy", across).returncode == 0
    assert recollect("check", folder, tests, "--max-forgetting", "nan").returncode == 2
    assert recollect("check", tests, tests).returncode == 2
    assert not (tests / "lock").exists()
