"""What people hand in, in which order they do things, and how answers come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from recollect import ContinualClassifier
from recollect.cli.practising import _objections
from recollect.deploy import load_model, versions_of
from recollect.deploy.data import read_labelled
from recollect.deploy.folder import roll_back
from recollect.deploy.report import Checked, check, measure_shift
from recollect.errors import UserError
from tests.deploy.test_folders import LEARN, SMALL, images, photos, taught
from tests.runs.test_runs import recollect


def test_a_rolled_back_learn_does_not_stand_for_one_of_other_images(tmp_path: Path) -> None:
    model, may = tmp_path / "model", photos(tmp_path / "may")
    bad, good = photos(tmp_path / "bad", ("c", "d")), photos(tmp_path / "good", ("c", "d"), num=12)
    june = ("--task", "june", "--device", "cpu")
    assert recollect("learn", model, may, "--task", "may", *LEARN).returncode == 0
    assert recollect("learn", model, bad, *june).returncode == 0
    first = load_model(model)
    roll_back(model, "may")
    (model / "unfinished" / first.tasks[-1].learn).mkdir(parents=True)  # begun again, and cut
    done = recollect("learn", model, good, *june)
    assert done.returncode == 0, done.stderr
    assert load_model(model).tasks[-1].images == {"c": 12, "d": 12}
    roll_back(model, "may")
    again = recollect("learn", model, bad, *june)  # the same as at first gives the same version, at once
    assert (again.returncode, "was learned already from these images" in again.stdout) == (0, True)
    assert load_model(model).tasks == first.tasks


def test_inspect_passes_over_what_a_kill_left_and_names_what_is_damaged(tmp_path: Path) -> None:
    model = tmp_path / "model"
    for number, task in enumerate(("may", "june")):
        known = ContinualClassifier.load(model, device="cpu") if number else ContinualClassifier("convnet", **SMALL)
        known.learn((images(number), [f"{task}a", f"{task}b"] * 12), task=task).save(model)
    for place in ("versions/unfinished/weights.safetensors", "unfinished/x/unfinished/state.safetensors"):
        (model / place).parent.mkdir(parents=True)
        (model / place).write_bytes(b"half")
    (model / "versions" / "002-june" / "weights.safetensors").write_bytes(b"half")
    roll_back(model, "may")
    done = recollect("inspect", model, "--json")
    assert done.returncode == 0, done.stderr
    about = json.loads(done.stdout)
    assert (about["damaged_versions"], about["images_kept"]) == (["002-june"], 0)
    shown = recollect("inspect", model).stdout
    assert "Versions to go back to: none" in shown
    assert "versions/002-june" in shown


class Photos(Dataset[Any]):
    """Large images, of which it counts those that are still held."""

    def __init__(self, classes: list[str] | None = None) -> None:
        if classes:
            self.classes = classes
        self.alive: list[weakref.ref[Any]] = []
        self.most = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = np.full((300, 300, 3), index, np.uint8)
        self.alive.append(weakref.ref(image))
        self.most = max(self.most, sum(each() is not None for each in self.alive))
        return image, index % 2


def test_a_dataset_is_read_image_by_image() -> None:
    data = Photos()
    assert read_labelled(data, 32).images.shape == (20, 3, 32, 32)
    assert data.most <= 3


def test_a_datasets_classes_name_its_labels() -> None:
    data = Photos(["cat", "dog"])
    for given in (data, Subset(data, range(6)), DataLoader(data, batch_size=4)):
        assert read_labelled(given, 32).class_names == ("cat", "dog")
    assert read_labelled(Photos(), 32).class_names == ("0", "1")
    with pytest.raises(UserError, match="the label 1 is of none of the dataset's 1 classes"):
        read_labelled(Photos(["cat"]), 32)


class Tied(nn.Module):
    """A layer goes by two names."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.body = nn.Sequential(self.stem, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.body(x)
        return features


def test_a_layer_of_two_names_is_saved_and_loaded(tmp_path: Path) -> None:
    model = taught("may", "june", backbone=Tied()).save(tmp_path / "model")
    again = ContinualClassifier.load(tmp_path / "model", backbone=Tied(1), device="cpu")
    assert np.array_equal(model.predict_proba(images()), again.predict_proba(images()))


@pytest.mark.filterwarnings("ignore:.*is of a learn of other images, another name or another model; dropped")
def test_checkpoints_of_one_module_are_not_anothers(tmp_path: Path) -> None:
    first, second, alone = (
        ContinualClassifier(Tied(seed), **SMALL).learn((images(), ["a", "b"] * 12), task="may", work=work)
        for seed, work in ((0, tmp_path / "w"), (1, tmp_path / "w"), (1, None))
    )
    assert np.array_equal(second.features(images()), alone.features(images()))
    assert not np.array_equal(first.features(images()), second.features(images()))


@pytest.mark.parametrize(
    ("before", "now"), [(100 * 11 / 20, 100 * 10 / 20), (100 * 0.55, 100 * 0.5), (94.9999988, 90.0)]
)
def test_a_gate_is_not_shut_by_rounding(before: float, now: float) -> None:
    checked = Checked("may", now, 100 * 0.29, before, "the first check", 20)
    assert not list(_objections(checked, 5, 29))
    assert len(list(_objections(checked, 4.9, 29.1))) == 2


@pytest.mark.filterwarnings("ignore:fewer than 10 images")
def test_one_held_out_image_is_nothing_to_compare_with(tmp_path: Path) -> None:
    model = taught("may").learn((images(3, 6), ["cow"] * 6), task="june")
    with pytest.raises(UserError, match="only one image was held out when 'june' was learned"):
        measure_shift(model, images())


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8"])
def test_names_that_a_terminal_cannot_show_are_still_answered(tmp_path: Path, encoding: str) -> None:
    model = tmp_path / "model"
    ContinualClassifier("convnet", **SMALL).learn((images(), ["猫", "犬"] * 12), task="may").save(model)
    odd = tmp_path / os.fsdecode(b"caf\xe9.png")
    Image.fromarray(images()[0]).save(tmp_path / "plain.png")
    (tmp_path / "plain.png").rename(odd)
    for words in (["--json"], []):
        done = subprocess.run(
            [sys.executable, "-m", "recollect", "predict", str(model), str(odd), "--device", "cpu", *words],
            capture_output=True, env=os.environ | {"PYTHONIOENCODING": f"{encoding}:strict", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        if words:
            assert json.loads(done.stdout.decode(encoding))[0]["class"] in ("猫", "犬")


def test_a_task_written_in_two_ways_is_one(tmp_path: Path) -> None:
    model = taught("ma\u0301j")
    assert model.tasks_[0].name == "m\u00e1j"
    with pytest.raises(UserError, match="is learned already"):
        model.learn((images(1), ["c", "d"] * 12), task="m\u00e1j")
    assert model.predict(images(), task="ma\u0301j").shape == (24,)
    model.save(tmp_path / "model")
    tests = photos(tmp_path / "tests" / "ma\u0301j", ("ma\u0301ja", "ma\u0301jb"))
    (found,) = check(tmp_path / "model", tests.parent, "cpu")
    assert found.task == "m\u00e1j"
    assert roll_back(tmp_path / "model", "ma\u0301j") == "001-m\u00e1j"


def test_a_save_that_was_cut_before_its_pointer_is_repeated(tmp_path: Path) -> None:
    model = taught("may").save(tmp_path / "model")
    (tmp_path / "model" / "model.json").unlink()
    with pytest.raises(UserError, match="model.json is lost; go back to a version"):
        taught("june").save(tmp_path / "model")
    model.save(tmp_path / "model")
    assert versions_of(tmp_path / "model") == ["001-may"]
    assert load_model(tmp_path / "model").tasks == model.model.tasks


def test_what_systems_leave_in_a_new_folder_is_no_stranger(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".DS_Store").touch()
    taught("may").save(tmp_path / "model")
    assert versions_of(tmp_path / "model") == ["001-may"]


def test_a_backbone_too_many_or_gone_is_said_on_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taught("may").save(tmp_path / "model")
    with pytest.raises(UserError, match="has the backbone 'convnet' and takes no other; leave backbone= out"):
        ContinualClassifier.load(tmp_path / "model", backbone=Tied())
    monkeypatch.setattr("recollect.deploy.reading.backbones", dict)
    with pytest.raises(UserError, match="convnet"):
        ContinualClassifier.load(tmp_path / "model")


def test_options_are_refused_by_the_names_they_were_given(tmp_path: Path) -> None:
    model, data = tmp_path / "model", photos(tmp_path / "p")
    assert recollect("learn", model, data, "--task", "may", "--no-mirror", *LEARN).returncode == 0
    assert load_model(model).settings.flip is False
    done = recollect(
        "learn", model, photos(tmp_path / "q", ("c", "d")), "--task", "june", "--mirror", "--device", "cpu"
    )
    assert (done.returncode, "--mirror cannot be changed" in done.stderr) == (2, True)
    done = recollect("learn", tmp_path / "new", data, "--task", "may", "--set", "patience=3")
    assert (done.returncode, "takes options of the backbone; patience is none" in done.stderr) == (2, True)


def test_pictures_in_hand_that_cannot_be_read_are_said() -> None:
    with pytest.raises(UserError, match="an image cannot be read .floating-point pixels.; replace it"):
        taught("may").predict([Image.fromarray(np.zeros((32, 32), np.float32))])
    with pytest.raises(UserError, match="^an image has the shape"):
        taught("may").predict([np.zeros((32, 32, 7), np.uint8)])


def test_a_single_image_is_not_learned_from() -> None:
    with pytest.raises(UserError, match="one image alone .of 'a'. cannot be learned from"):
        ContinualClassifier("convnet", **SMALL).learn((images(num=1), ["a"]), task="may")
    with pytest.raises(UserError, match="batch_size is a whole number from 2"):
        ContinualClassifier("convnet", **SMALL, batch_size=1)


def test_classes_and_answers_are_arrays() -> None:
    model = taught("may", "june")
    likeliest = model.classes_[model.predict_proba(images()).argmax(axis=1)]
    assert likeliest.tolist() == model.predict(images()).tolist()
