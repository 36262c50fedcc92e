"""Renaming and merging classes: new versions of the same tasks, with the same numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from recollect import ContinualClassifier
from recollect.deploy import ModelStore
from recollect.deploy.reader import Outputs
from recollect.errors import UserError
from tests.deploy.support import LEARN, bits, random_images, train_model, write_photos
from tests.support import recollect


def load(folder: Path) -> ContinualClassifier:
    return ContinualClassifier.load(folder, device="cpu")


def test_rename_changes_the_name_in_every_task_and_nothing_else(tmp_path: Path) -> None:
    model = train_model("may")
    model.learn((random_images(1), ["maya", "junea"] * 12), task="june").save(tmp_path / "model")
    store = ModelStore(tmp_path / "model")
    edited = store.rename("maya", "long-haired cat")
    assert edited == ("002-june-edited", "002-june")
    after = load(tmp_path / "model")
    assert [task.classes for task in after.tasks_] == [("long-haired cat", "mayb"), ("junea", "long-haired cat")]
    assert [list(task.images) for task in after.tasks_] == [["long-haired cat", "mayb"], ["junea", "long-haired cat"]]
    assert after.classes_.tolist() == ["long-haired cat", "mayb", "junea"]
    assert bits(after.model) == bits(model.model)
    assert np.array_equal(after.predict_proba(random_images()), model.predict_proba(random_images()))
    store.rollback("002-june")
    assert store.load().classes == ["maya", "mayb", "junea"]


def test_the_probability_of_merged_classes_is_the_sum_within_a_task_and_the_mean_over_tasks(folder: Path) -> None:
    """Of classes of one task; a class of several tasks is no likelier than others before an image is seen."""
    before, images = load(folder), random_images(9)
    old, june = before.predict_proba(images), before.predict_proba(images, task="june")
    ModelStore(folder).merge("summer", ["junea", "juneb"])
    merged = load(folder).predict_proba(images)
    assert np.array_equal(merged, np.stack([*old[:, :2].T, old[:, 2] + old[:, 3], *old[:, 4:].T], axis=1))
    ModelStore(folder).merge("maya", ["julyb"])
    after = load(folder)
    assert after.classes_.tolist() == ["maya", "mayb", "summer", "julya"]
    columns = np.stack([(old[:, 0] + old[:, 5]) / 2, old[:, 1], old[:, 2] + old[:, 3], old[:, 4]], axis=1)
    assert np.allclose(after.predict_proba(images), columns / columns.sum(axis=1, keepdims=True), atol=1e-6)
    assert np.array_equal(after.predict_proba(images, task="june"), june[:, :1] + june[:, 1:])
    assert after.predict_proba(images, task="july").shape == (24, 2)
    assert after.task("june").images == {"summer": 24}
    assert set(after.predict(images, task="july")) <= {"julya", "maya"}


def test_a_class_of_several_tasks_is_no_likelier_than_others() -> None:
    model = train_model("may")
    for task in ("june", "july"):
        model.learn((random_images(1), ["maya", f"{task}a"] * 12), task=task)
    reader = model.reader
    nothing_known = torch.zeros(1, 6).log_softmax(1)
    probabilities = reader.probabilities(Outputs(nothing_known, nothing_known))
    assert torch.allclose(probabilities, torch.full((1, 4), 1 / 4))
    within = reader.probabilities(Outputs(nothing_known, torch.zeros(1, 6)), task=1)
    assert torch.allclose(within, torch.full((1, 2), 1 / 2))


def test_an_edited_model_learns_resumes_its_lineage_and_is_checked(tmp_path: Path) -> None:
    model, tests = tmp_path / "model", tmp_path / "tests"
    assert recollect("learn", model, write_photos(tmp_path / "may"), "--task", "may", *LEARN).returncode == 0
    june = write_photos(tmp_path / "june", ("c", "d"))
    done = recollect("merge", model, "both", "a", "b")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{model} is now at 001-may-edited; recollect rollback {model} --to 001-may undoes this." in done.stdout
    assert recollect("learn", model, june, "--task", "june", "--device", "cpu").returncode == 0
    store = ModelStore(model)
    assert store.load().units == ["both", "both", "c", "d"]
    assert store.versions() == ["001-may", "001-may-edited", "002-june"]
    write_photos(tests / "may", ("both",), 4)
    checked = recollect("check", model, tests, "--json", "--device", "cpu")
    assert json.loads(checked.stdout)["tasks"][0]["within"] == 100.0  # a single class
    about = json.loads(recollect("inspect", model, "--json").stdout)
    assert about["tasks"][0]["classes"] == ["both"]
    assert recollect("audit", model, "--expect", "none").returncode == 0
    assert store.rollback("may") == "001-may-edited"  # the newest that the current version continues
    assert store.rollback("001-may") == "001-may"
    assert recollect("learn", model, june, "--task", "june", "--device", "cpu").returncode == 0
    assert store.load().units == ["a", "b", "c", "d"]  # not the version that continues the edited one
    assert len(store.versions()) == 4


def test_a_task_is_learned_again_where_only_an_edited_version_has_it(tmp_path: Path) -> None:
    store, june = ModelStore(tmp_path / "model"), (random_images(1), ["c", "d"] * 12)
    train_model("may").save(tmp_path / "model")
    store.learn(june, "june", device="cpu")
    store.rename("c", "cat")
    shutil.rmtree(store.path("002-june"))
    store.rollback("may")
    assert not store.learn(june, "june", device="cpu").was_learned
    assert store.load().classes == ["maya", "mayb", "c", "d"]


def test_an_edit_made_again_uses_its_version(folder: Path) -> None:
    store = ModelStore(folder)
    first = store.rename("maya", "cat")
    store.rollback(first.before)
    assert store.rename("maya", "cat") == first
    assert store.versions() == ["001-may", "002-june", "003-july", "003-july-edited"]
    assert store.rename("cat", "maya").version == "003-july-edited-2"


def test_a_model_in_memory_does_not_undo_an_edit(folder: Path) -> None:
    stale = load(folder)
    ModelStore(folder).rename("maya", "cat")
    with pytest.raises(UserError, match="has another model"):
        stale.save(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rename", "may", "cat"], "the model has no class 'may'; did you mean 'mayb', 'maya'?"),
        (["rename", "zebra", "cat"], "the model has no class 'zebra'; `recollect inspect` lists the classes"),
        (["rename", "maya", "mayb"], "'mayb' already exists; to predict both as one class, merge 'maya' into it"),
        (["rename", "maya", "maya"], "the class 'maya' already exists; choose another name"),
        (["rename", "maya", "unknown"], "the class name 'unknown' is reserved"),
        (["rename", "maya", " "], "a label is a string or an integer, and not blank; got ' '"),
        (["rename", "maya", "a\x1bb"], "characters that cannot be printed"),
        (["merge", "pet", "maya"], "there is no class 'pet' to merge 'maya' into; name two classes, or use rename"),
        (["merge", "maya", "maya"], "name at least one class to merge into 'maya'"),
        (["merge", "pet", "maya", "dog"], "the model has no class 'dog'"),
        (["merge", "unknown", "maya", "mayb"], "the class name 'unknown' is reserved"),
    ],
)
def test_impossible_edits_are_refused(three_versions: Path, arguments: list[str], message: str) -> None:
    command, *rest = arguments
    done = recollect(command, three_versions, *rest)
    assert (done.returncode, message in " ".join(done.stderr.split()), done.stdout) == (2, True, ""), done.stderr
    assert ModelStore(three_versions).versions() == ["001-may", "002-june", "003-july"]


def test_edits_are_refused_while_a_learn_can_be_resumed(folder: Path) -> None:
    (folder / "unfinished" / ("a" * 32)).mkdir(parents=True)
    done = recollect("rename", folder, "maya", "cat")
    assert done.returncode == 2
    assert "a learn was interrupted" in done.stderr
    assert f"run its command again first, or delete {folder}/unfinished" in done.stderr
    assert ModelStore(folder).current() == "003-july"


def test_an_edit_creates_no_folder(tmp_path: Path) -> None:
    done = recollect("rename", tmp_path / "none", "a", "b")
    assert (done.returncode, "there is no folder" in done.stderr) == (2, True)
    assert not (tmp_path / "none").exists()


def test_units_that_do_not_fit_the_classes_are_refused(folder: Path) -> None:
    from recollect.storage import seal

    ModelStore(folder).merge("x", ["maya", "mayb"])
    path = folder / "versions" / "003-july-edited" / "model.json"
    document = json.loads(path.read_text())
    document["tasks"][0]["merged_units"] = ["x", "y"]
    del document["digest"]
    path.write_text(json.dumps(seal(document, "digest")))
    with pytest.raises(UserError, match="the units of the task 'may' do not fit its classes"):
        ModelStore(folder).load()


def test_edits_delete_no_task_and_reuse_no_name(folder: Path) -> None:
    """Eleven edits are more than are kept; the newest version of each task stays, and names count the edits."""
    store = ModelStore(folder)
    for number in range(11):
        store.rename("maya" if number == 0 else f"name{number - 1}", f"name{number}")
    kept = [f"003-july-edited-{number}" for number in range(6, 12)]  # in this order
    assert store.versions() == ["001-may", "002-june", *kept]
    assert store.current() == "003-july-edited-11"
    assert store.rollback("may") == "001-may"
    done = recollect("rollback", folder, "--to", "may")
    assert "is already at 001-may. Other versions: 002-june, 003-july-edited-6," in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", ["../evil", "a/b", "con", "."])
def test_a_name_that_no_folder_can_have_is_refused(folder: Path, name: str) -> None:
    for command in (["rename", folder, "maya", name], ["merge", folder, name, "maya", "mayb"]):
        done = recollect(*command)
        assert (done.returncode, "cannot be the name of a folder" in done.stderr) == (2, True), done.stderr
    assert ModelStore(folder).current() == "003-july"
