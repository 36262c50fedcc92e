"""Forgetting classes: what is removed from the files, what stays, and that the model can learn more."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect import ContinualClassifier
from recollect.deploy import Model, ModelStore, Settings
from recollect.errors import UserError
from recollect.inference import ExportedClassifier
from tests.deploy.support import Tied, bits, digits, random_images, train_model, write_images, write_photos
from tests.support import StopAt, StopError, recollect


def load(folder: Path) -> ContinualClassifier:
    return ContinualClassifier.load(folder, device="cpu")


def rows_of(model: Model, name: str) -> dict[str, bytes]:
    """The bytes of all rows that a class has in the tensors of a model, by tensor."""
    unit, rows = model.units.index(name), {}
    first = 0
    for index, task in enumerate(model.tasks):
        if first <= unit < first + len(task.units):
            of_task = (f"network.heads.{index}.weight", f"identity.rule.means_{index}")
            rows |= {key: model.tensors[key][unit - first] for key in of_task if key in model.tensors}
        first += len(task.units)
    ends = ("statistics.means", "anchor.weight", "discriminant.weight")
    rows |= {key: tensor[unit] for key, tensor in model.tensors.items() if key.endswith(ends)}
    return {key: row.numpy().tobytes() for key, row in rows.items()}


@pytest.mark.filterwarnings("ignore:identity='class-means' favours tasks of few classes")
@pytest.mark.parametrize(
    ("identity", "num_rows"), [("anchored", 5), ("auto", 3), ("class-means", 2)]
)  # "auto" is forward here
def test_nothing_of_the_class_is_in_the_new_files(identity: Any, num_rows: int, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    store, settings = ModelStore(folder), Settings(backbone="convnet", image_size=32, epochs=1, identity=identity)
    store.learn((random_images(0, 36), ["secret", "b", "c"] * 12), "may", settings, device="cpu")
    store.learn((random_images(1), ["d", "e"] * 12), "june", device="cpu")
    rows = rows_of(store.load(), "secret")
    assert len(rows) == num_rows
    old = (store.path("002-june") / "weights.safetensors").read_bytes()
    assert all(row in old for row in rows.values())
    forgotten = store.forget(["secret"])
    assert forgotten == ("002-june-edited", ["001-may", "002-june"], [], "002-june")
    new = (store.path("002-june-edited") / "weights.safetensors").read_bytes()
    assert [key for key, row in rows.items() if row in new] == []
    assert b"secret" not in (store.path("002-june-edited") / "model.json").read_bytes()
    after = store.load()
    assert after.units == ["b", "c", "d", "e"]
    for key in [key.removesuffix(".centre") for key in after.tensors if key.endswith(".centre")]:
        assert len(after.tensors[f"{key}.statistics.counts"]) == 4
        means = after.tensors[f"{key}.statistics.means"]
        assert torch.allclose(after.tensors[f"{key}.centre"], means.mean(0), atol=1e-5)  # made without the class
        assert float(after.tensors[f"{key}.weight"].sum(0).abs().max()) < 1e-2
    probabilities = load(folder).predict_proba(random_images())
    assert probabilities.shape == (24, 4)
    assert np.allclose(probabilities.sum(axis=1), 1)


def test_remaining_rows_of_a_head_do_not_reveal_the_forgotten_one(tmp_path: Path) -> None:
    """Heads of tasks that were learned at once are discriminants, whose rows sum to zero."""
    model = train_model("may").learn((random_images(1, 36), ["x", "y", "z"] * 12), task="june", adapt=False)
    model.save(tmp_path / "model")
    before = model.model.tensors["network.heads.1.weight"]
    assert torch.allclose(before[0], -before[1:].sum(0), atol=1e-5)
    ModelStore(tmp_path / "model").forget(["x"])
    after = ModelStore(tmp_path / "model").load().tensors["network.heads.1.weight"]
    assert not torch.allclose(before[0], -after.sum(0), atol=1e-2)
    assert torch.allclose(after[0] - after[1], before[1] - before[2], atol=1e-6)  # the softmax is the same


def test_the_newest_tasks_feature_statistics_are_dropped_with_its_class(folder: Path, tmp_path: Path) -> None:
    store = ModelStore(folder)
    for task in ("may", "july"):
        write_photos(tmp_path / "tests" / task, (f"{task}a", f"{task}b"), 4)
    store.check(tmp_path / "tests", device="cpu")
    assert store.load().checks != {}
    store.forget(["maya"])
    assert store.load().typical is not None
    assert store.load().checks != {}
    store.forget(["julya"])
    assert store.load().typical is None
    assert store.load().checks == {}
    done = recollect("inspect", folder, "--images", tmp_path / "tests")
    assert (done.returncode, "one of its classes was forgotten" in done.stderr) == (2, True)


def test_a_class_is_forgotten_in_all_tasks_and_under_a_merged_name(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = train_model("may", "june")
    model.learn((random_images(3, 36), ["maya", "julya", "julyb"] * 12), task="july").save(folder)
    store = ModelStore(folder)
    store.merge("summer", ["junea", "julya"])
    store.forget(["summer", "maya"])
    assert [task.units for task in store.load().tasks] == [("mayb",), ("juneb",), ("julyb",)]
    assert set(load(folder).predict(random_images(), task="july")) == {"julyb"}
    old, new = model.predict_proba(random_images(5)), load(folder).predict_proba(random_images(5))
    assert new.shape == (24, 3)
    assert np.isfinite(new).all()
    assert old.shape == (24, 6)


def test_the_rest_is_classified_as_well_as_before(tmp_path: Path) -> None:
    model = (
        train_model(epochs=6, learning_rate=2e-3).learn(digits("may"), task="may").learn(digits("june"), task="june")
    )
    model.save(tmp_path / "model")
    ModelStore(tmp_path / "model").forget(["0", "2"])
    after = load(tmp_path / "model")
    for task, name in (("may", "1"), ("june", "3")):
        images, names = digits(task, test=True)
        images = images[[label == name for label in names]]
        assert np.mean(after.predict(images) == name) >= np.mean(model.predict(images) == name) > 0.8


def test_a_model_goes_on_learning_after_forgetting(tmp_path: Path) -> None:
    """Uninterrupted and interrupted, to the same bits; every command works."""
    folder, other, tests = tmp_path / "model", tmp_path / "other", tmp_path / "tests"
    train_model("may", "june").save(folder)
    assert recollect("forget", folder, "maya").returncode == 0
    shutil.copytree(folder, other)
    july = random_images(7), ["maya", "julyb"] * 12
    with pytest.raises(StopError):
        ModelStore(other).learn(july, "july", device="cpu", observer=StopAt(30), checkpoint_seconds=0.0)
    with pytest.raises(UserError, match="a learn was interrupted"):
        ModelStore(other).forget(["mayb"])
    for store in (ModelStore(folder), ModelStore(other)):
        store.learn(july, "july", device="cpu")
        assert store.load().units == ["mayb", "junea", "juneb", "julyb", "maya"]  # learned again
        assert store.versions() == ["002-june", "002-june-edited", "003-july"]
    assert bits(ModelStore(folder).load()) == bits(ModelStore(other).load())
    write_photos(tests / "may", ("mayb",), 4)
    assert recollect("check", folder, tests, "--device", "cpu").returncode == 0
    write_photos(tests / "may", ("maya",), 4)
    skipping = recollect("check", folder, tests)
    assert (skipping.returncode, "the task 'may' has no class 'maya'; it has mayb" in skipping.stderr) == (0, True)
    for command in (["inspect"], ["audit"], ["rollback", "--to", "june"], ["predict", tests]):
        done = recollect(command[0], folder, *command[1:])
        assert done.returncode == 0, done.stderr
    assert ModelStore(folder).current() == "002-june-edited"


def test_a_task_without_classes_stays_in_the_chain(tmp_path: Path) -> None:
    folder, tests = tmp_path / "model", tmp_path / "tests"
    train_model("may", "june", "july").save(folder)
    num_hops = len([name for name in ModelStore(folder).load().tensors if name.startswith("rfe.chain.retrospectors")])
    done = recollect("forget", folder, "junea", "juneb")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    after = load(folder)
    assert [task.classes for task in after.tasks_] == [("maya", "mayb"), (), ("julya", "julyb")]
    assert len([name for name in after.model.tensors if name.startswith("rfe.chain.retrospectors")]) == num_hops
    assert after.predict_proba(random_images()).shape == (24, 4)
    with pytest.raises(UserError, match="all classes of the task 'june' were forgotten; leave out the task"):
        after.predict(random_images(), task="june")
    assert after.features(random_images(), as_of="june").shape == after.features(random_images()).shape
    write_photos(tests / "may", ("maya", "mayb"), 4)
    checked = recollect("check", folder, tests, "--json", "--device", "cpu")
    assert json.loads(checked.stdout)["untested"] == ["july"]
    write_photos(tests / "june", ("junea",), 4)
    assert "all its classes were forgotten" in recollect("check", folder, tests).stderr
    assert recollect("inspect", folder).returncode == 0
    ModelStore(folder).learn((random_images(4), ["x", "y"] * 12), "august", device="cpu")
    assert ModelStore(folder).load().units == ["maya", "mayb", "julya", "julyb", "x", "y"]


@pytest.mark.parametrize("forgotten", [["junea"], ["junea", "juneb"]])
def test_a_model_is_exported_after_forgetting(forgotten: list[str], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    folder, images = tmp_path / "model", random_images()
    train_model("may", "june", "july").save(folder)
    ModelStore(folder).forget(forgotten)
    done = recollect("export", folder, tmp_path / "model.onnx")
    assert done.returncode == 0, done.stderr
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    pixels = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    across, within = session.run(None, {"pixels": pixels})
    model = load(folder)
    expected = [model.predict_proba(images, task=task.name) for task in model.tasks_ if task.classes]
    assert np.abs(across - model.predict_proba(images)).max() < 1e-5
    assert np.abs(within - np.concatenate(expected, axis=1)).max() < 1e-5
    exported = ExportedClassifier.load(tmp_path / "model.onnx")
    assert [task.classes for task in exported.tasks_] == [task.classes for task in model.tasks_]
    assert np.abs(exported.predict_proba(pixels, "july") - expected[-1]).max() < 1e-5
    if not model.tasks_[1].classes:
        with pytest.raises(UserError, match="all classes of the task 'june' were forgotten; leave out the task"):
            exported.predict_proba(pixels, "june")


def test_purge_deletes_all_other_versions(folder: Path) -> None:
    (folder / "versions" / "001-may" / "model.json").write_text("damaged")
    (folder / "versions" / "unfinished").mkdir()
    done = recollect("forget", folder, "maya", "junea")
    assert done.returncode == 0, done.stderr
    undo = f"recollect rollback {folder} --to 003-july undoes this"
    assert f"Forgot maya, junea. {folder} is now at 003-july-edited; {undo}." in done.stdout
    assert "Versions that still contain what was forgotten: 001-may, 002-june, 003-july;" in done.stdout
    again = recollect("forget", folder, "maya", "--purge")
    assert again.returncode == 2
    assert "003-july-edited has no class 'maya', but 002-june, 003-july still hold it" in again.stderr
    assert f"recollect forget {folder} --purge deletes" in again.stderr
    done = recollect("forget", folder, "--purge")
    assert done.returncode == 0, done.stderr
    assert "Deleted 001-may, 002-june, 003-july." in done.stdout
    assert sorted(path.name for path in (folder / "versions").iterdir()) == ["003-july-edited"]
    assert recollect("forget", folder, "mayb", "--purge").returncode == 0
    assert sorted(path.name for path in (folder / "versions").iterdir()) == ["003-july-edited-2"]
    assert ModelStore(folder).load().classes == ["juneb", "julya", "julyb"]


def test_a_learn_whose_version_before_was_purged_is_refused_with_the_reason(folder: Path) -> None:
    store = ModelStore(folder)
    store.forget([], purge=True)
    before = bits(store.load())
    with pytest.raises(UserError, match="'july' is already learned; .*; the version before it was deleted"):
        store.learn((random_images(num=4), ["a", "b"] * 2), "july", device="cpu")
    assert bits(store.load()) == before


def test_only_versions_with_the_task_still_hold_a_class(folder: Path) -> None:
    """Whatever its name was there."""
    store = ModelStore(folder)
    store.rename("julya", "cat")
    assert store.forget(["cat"]).holders == ["003-july", "003-july-edited"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["maya", "mayb", "junea", "juneb", "julya", "julyb"], "of which one at least must be left; delete its folder"),
        ([], "name at least one class to forget"),
        (["mayaa"], "the model has no class 'mayaa'; did you mean 'maya'"),
    ],
)
def test_impossible_requests_are_refused(three_versions: Path, arguments: list[str], message: str) -> None:
    done = recollect("forget", three_versions, *arguments)
    assert (done.returncode, message in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert ModelStore(three_versions).versions() == ["001-may", "002-june", "003-july"]


def test_a_custom_backbone_is_passed_again(tmp_path: Path) -> None:
    train_model("may", backbone=Tied()).save(tmp_path / "model")
    store = ModelStore(tmp_path / "model")
    with pytest.raises(UserError, match="a custom backbone; pass the same module"):
        store.forget(["maya"])
    store.forget(["maya"], backbone=Tied(1))
    assert store.load().classes == ["mayb"]


def test_class_names_with_spaces_are_forgotten_on_the_command_line(tmp_path: Path) -> None:
    model = train_model()
    model.learn((random_images(), ["Sam O'Neil (left)", "dog"] * 12), task="may").save(tmp_path / "model")
    assert recollect("forget", tmp_path / "model", "Sam O'Neil (left)").returncode == 0
    assert ModelStore(tmp_path / "model").load().classes == ["dog"]


def test_forgetting_depends_on_nothing_but_the_model(tmp_path: Path) -> None:
    model = train_model("may", "june")
    for name in ("a", "b"):
        model.save(tmp_path / name)
        ModelStore(tmp_path / name).forget(["maya"])
    first, second = (ModelStore(tmp_path / name).load() for name in ("a", "b"))
    assert first.lineage == second.lineage
    assert replace(first, tensors={}) == replace(second, tensors={})
    assert bits(first) == bits(second)


def test_a_frozen_model_is_edited_but_not_adapted_afterwards(tmp_path: Path) -> None:
    folder, may = tmp_path / "model", write_images(tmp_path / "may", random_images(), ["a", "b"] * 12)
    settings = Settings(backbone="efficientnet-lite0", backbone_options={"features": "last"}, image_size=32, epochs=1)
    store = ModelStore(folder)
    store.learn(may, "may", settings, device="cpu")
    store.learn((random_images(1), ["c", "d"] * 12), "june", device="cpu")
    old = load(folder).predict_proba(random_images(2))
    store.forget(["c"])
    new = load(folder).predict_proba(random_images(2))
    rest = np.delete(old, 2, axis=1)
    assert np.abs(new - rest / rest.sum(axis=1, keepdims=True)).max() < 0.05  # the covariance is shrunk a little more
    with pytest.raises(UserError, match="'june' is already learned"):
        store.learn((random_images(1), ["c", "d"] * 12), "june", adapt=True, device="cpu")
    assert store.learn((random_images(3), ["e", "f"] * 12), "july", device="cpu").model.classes == list("abdef")
