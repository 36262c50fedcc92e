"""Model folders: versions, rollback, saving, and folders that are corrupt, incomplete or foreign."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from recollect import ContinualClassifier
from recollect.deploy import ModelStore
from recollect.errors import UserError
from tests.deploy.support import (
    LEARN,
    Tied,
    digits,
    make_classifier,
    random_images,
    train_model,
    write_images,
    write_photos,
)
from tests.support import recollect


def test_a_missing_pointer_is_restored_by_rollback(folder: Path, tmp_path: Path) -> None:
    (folder / "model.json").unlink()
    with pytest.raises(UserError, match=r"model.json is missing; choose a version with .* --to 003-july"):
        ModelStore(folder).load()
    done = recollect("learn", folder, write_photos(tmp_path / "p"), "--task", "may", *LEARN)
    assert done.returncode == 2
    assert ModelStore(folder).versions() == ["001-may", "002-june", "003-july"]
    assert recollect("rollback", folder, "--to", "july").returncode == 0
    assert len(ModelStore(folder).load().tasks) == 3


def test_rollback_recovers_from_a_corrupt_version(folder: Path) -> None:
    weights = folder / "versions/003-july/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    about = folder / "versions/001-may/model.json"
    about.write_text(about.read_text().replace("maya", "cat"))  # an edited version is skipped
    with pytest.raises(UserError, match=r"does not match its hash\); recollect rollback .* --to 002-june"):
        ModelStore(folder).load()
    with pytest.raises(UserError, match="does not match its digest"):
        ModelStore(folder).load("001-may")
    done = recollect("rollback", folder, "--to", "june")
    assert done.returncode == 0, done.stderr
    assert [task.name for task in ModelStore(folder).load().tasks] == ["may", "june"]


def test_branches_keep_their_ancestors_and_rollback_stays_on_the_branch(folder: Path) -> None:
    for number in range(4):
        ModelStore(folder).rollback("june")
        branch = ContinualClassifier.load(folder, device="cpu")
        branch.learn((random_images(9 + number), ["x", "y"] * 12), task="july").save(folder)
    names = ModelStore(folder).versions()
    assert names == ["001-may", "002-june", "003-july", *(f"003-july-{number}" for number in range(2, 6))]
    assert {"001-may", "002-june", ModelStore(folder).current()} <= set(names)
    assert ModelStore(folder).rollback("july") == ModelStore(folder).current()  # not of another branch
    ModelStore(folder).rollback("may")
    with pytest.raises(UserError, match=r"several versions end with 'july'; choose one of: 001-may \(may\)"):
        ModelStore(folder).rollback("july")
    assert ModelStore(folder).rollback(names[-1]) == names[-1]


def test_save_is_idempotent_and_refuses_other_folders(folder: Path, tmp_path: Path) -> None:
    model = ContinualClassifier.load(folder, device="cpu")
    model.save(folder)
    assert ModelStore(folder).versions() == ["001-may", "002-june", "003-july"]
    with pytest.raises(UserError, match="has another model; save this one to an empty or new folder"):
        train_model("may").save(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("x")
    with pytest.raises(UserError, match="is not a model folder: it contains 'thesis.txt'; give an empty one"):
        model.save(tmp_path / "other")


@pytest.mark.parametrize("damage", ["flip", "truncate", "json", "format"])
def test_a_corrupt_version_is_refused(damage: str, folder: Path) -> None:
    version = folder / "versions" / "003-july"
    weights, about = version / "weights.safetensors", version / "model.json"
    if damage in ("flip", "truncate"):
        data = bytearray(weights.read_bytes())
        data[-5] ^= 1
        weights.write_bytes(data if damage == "flip" else data[:-100])
    else:
        changed = json.loads(about.read_text())
        changed |= {"tasks": 3} if damage == "json" else {"format": 99}
        about.write_text(json.dumps(changed))
    with pytest.raises(UserError, match="has the format 99" if damage == "format" else "cannot be used"):
        ModelStore(folder).load()


def test_a_save_interrupted_before_its_pointer_can_be_repeated(tmp_path: Path) -> None:
    model = train_model("may").save(tmp_path / "model")
    (tmp_path / "model" / "model.json").unlink()
    with pytest.raises(UserError, match="model.json is missing; choose a version"):
        train_model("june").save(tmp_path / "model")
    model.save(tmp_path / "model")
    assert ModelStore(tmp_path / "model").versions() == ["001-may"]
    assert ModelStore(tmp_path / "model").load().tasks == model.model.tasks


def test_files_of_the_operating_system_do_not_make_a_folder_foreign(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".DS_Store").touch()
    train_model("may").save(tmp_path / "model")
    assert ModelStore(tmp_path / "model").versions() == ["001-may"]


def test_foreign_files_are_tolerated_in_a_model_folder_only(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make_classifier(epochs=1).learn(digits("may"), task="may").save(model)
    for name in (".DS_Store", "model.onnx"):
        (model / name).write_bytes(b"x")
    june = write_images(tmp_path / "june", *digits("june"))
    assert recollect("learn", model, june, "--task", "june", "--device", "cpu").returncode == 0
    shutil.rmtree(model / "versions")
    (model / "model.json").unlink()
    done = recollect("learn", model, june, "--task", "june", "--device", "cpu")
    assert done.returncode == 2
    assert "is not a model folder: it contains 'model.onnx'" in done.stderr


def test_a_superfluous_or_missing_backbone_is_refused_on_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_model("may").save(tmp_path / "model")
    with pytest.raises(UserError, match="has the backbone 'convnet'; leave out backbone="):
        ContinualClassifier.load(tmp_path / "model", backbone=Tied())
    monkeypatch.setattr("recollect.deploy.reader.backbones", dict)
    with pytest.raises(UserError, match="convnet"):
        ContinualClassifier.load(tmp_path / "model")


def test_a_layer_with_two_names_is_saved_and_loaded(tmp_path: Path) -> None:
    model = train_model("may", "june", backbone=Tied()).save(tmp_path / "model")
    again = ContinualClassifier.load(tmp_path / "model", backbone=Tied(1), device="cpu")
    assert np.array_equal(model.predict_proba(random_images()), again.predict_proba(random_images()))


def test_a_model_with_a_custom_backbone_is_saved_and_loaded(tmp_path: Path) -> None:
    """And predicts grey, transparent, CMYK, 16-bit and palette images of any size."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    model = ContinualClassifier(module, image_size=32, epochs=1, device="cpu", precision="fp32")
    x, y = digits("may")
    model.learn((x, y), task="may").save(tmp_path / "model")
    paths = []
    for mode, size in (("L", (40, 30)), ("RGBA", (17, 90)), ("CMYK", (64, 64)), ("I;16", (50, 50)), ("P", (33, 33))):
        paths.append(tmp_path / f"{mode.replace(';', '')}.{'tif' if mode == 'CMYK' else 'png'}")
        Image.new(mode, size).save(paths[-1])
    again = ContinualClassifier.load(tmp_path / "model", backbone=module, device="cpu")
    assert again.predict_proba(paths).shape == (5, 2)
    assert (again.predict_proba(x) == model.predict_proba(x)).all()
    with pytest.raises(UserError, match="a custom backbone; pass the same module"):
        ContinualClassifier.load(tmp_path / "model", device="cpu").predict(x)


def test_class_means_under_their_earlier_name_are_loaded() -> None:
    model = train_model("may")
    tensors = {name.replace("identity.rule.", "means."): tensor for name, tensor in model.model.tensors.items()}
    assert tensors.keys() != model.model.tensors.keys()
    earlier = ContinualClassifier.of(replace(model.model, tensors=tensors), device="cpu")
    assert np.array_equal(earlier.predict_proba(random_images()), model.predict_proba(random_images()))


def test_unicode_spellings_of_a_task_name_are_equal(tmp_path: Path) -> None:
    model = train_model("ma\u0301j")
    assert model.tasks_[0].name == "m\u00e1j"
    with pytest.raises(UserError, match="is already learned"):
        model.learn((random_images(1), ["c", "d"] * 12), task="m\u00e1j")
    assert model.predict(random_images(), task="ma\u0301j").shape == (24,)
    model.save(tmp_path / "model")
    tests = write_photos(tmp_path / "tests" / "ma\u0301j", ("ma\u0301ja", "ma\u0301jb"))
    (check,) = ModelStore(tmp_path / "model").check(tests.parent, device="cpu").tasks
    assert check.task == "m\u00e1j"
    assert ModelStore(tmp_path / "model").rollback("ma\u0301j") == "001-m\u00e1j"
