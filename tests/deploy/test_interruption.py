"""A learn is a transaction: interrupted anywhere, the old model stays and the same command resumes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recollect import ContinualClassifier
from recollect.deploy import ModelStore
from recollect.errors import UserError
from recollect.storage import LockedError, lock_folder
from tests.deploy.support import (
    LEARN,
    bits,
    digits,
    learn_command,
    random_images,
    train_model,
    write_digits,
    write_images,
    write_photos,
)
from tests.support import recollect


def test_a_killed_learn_leaves_the_model_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """An unreadable image changes nothing either."""
    model, other = tmp_path / "model", tmp_path / "other"
    may, june = write_digits(tmp_path / "may", "may", limit=80), write_digits(tmp_path / "june", "june", limit=80)
    for folder in (model, other):
        assert recollect(*learn_command(folder, may, "may")).returncode == 0
    before = recollect("predict", model, *sorted((may / "0").iterdir())[:3], "--json").stdout
    (june / "2" / "bad.png").write_bytes(b"no picture")
    bad = recollect(*learn_command(model, june, "june", "--strict"))
    assert (bad.returncode, "bad.png is not a readable image" in bad.stderr) == (2, True)
    (june / "2" / "bad.png").unlink()
    command = [sys.executable, "-m", "recollect", *learn_command(model, june, "june", "--checkpoint-every", "0")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and len(list((model / "unfinished").glob("*/task-001.phase*"))) < 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert recollect("predict", model, *sorted((may / "0").iterdir())[:3], "--json").stdout == before
    assert json.loads(recollect("inspect", model, "--json").stdout)["unfinished_learn"]
    done = recollect(*learn_command(model, june, "june"))
    assert (done.returncode, "june resumes from its last checkpoint" in done.stdout) == (0, True), done.stderr
    assert not (model / "unfinished").exists()
    assert recollect(*learn_command(other, june, "june")).returncode == 0
    assert bits(ModelStore(model).load()) == bits(ModelStore(other).load())


def test_a_learn_interrupted_after_writing_its_version_is_finished(tmp_path: Path) -> None:
    """The version exists, but the pointer is not written or the checkpoints are not removed yet."""
    may, june = write_images(tmp_path / "may", *digits("may")), write_images(tmp_path / "june", *digits("june"))
    model, work = tmp_path / "model", tmp_path / "model" / "unfinished"
    for images, task, options in ((may, "may", LEARN), (june, "june", ("--device", "cpu"))):
        pointer = (model / "model.json").read_bytes() if model.exists() else None
        assert recollect("learn", model, images, "--task", task, *options).returncode == 0
        (work / ModelStore(model).load().tasks[-1].learn).mkdir(parents=True)
        if pointer is None:
            (model / "model.json").unlink()
        else:
            (model / "model.json").write_bytes(pointer)
        again = recollect("learn", model, images, "--task", task, *options)
        assert (again.returncode, "was already learned" in again.stdout) == (0, True), again.stderr
        assert ModelStore(model).load().tasks[-1].name == task
        assert not work.exists()
    assert len(list((model / "versions").iterdir())) == 2


def test_a_rolled_back_version_is_reused_for_the_same_images_only(tmp_path: Path) -> None:
    model, may = tmp_path / "model", write_photos(tmp_path / "may")
    bad, good = write_photos(tmp_path / "bad", ("c", "d")), write_photos(tmp_path / "good", ("c", "d"), num=12)
    june = ("--task", "june", "--device", "cpu")
    assert recollect("learn", model, may, "--task", "may", *LEARN).returncode == 0
    assert recollect("learn", model, bad, *june).returncode == 0
    first = ModelStore(model).load()
    ModelStore(model).rollback("may")
    (model / "unfinished" / first.tasks[-1].learn).mkdir(parents=True)  # started again, and interrupted
    done = recollect("learn", model, good, *june)
    assert done.returncode == 0, done.stderr
    assert ModelStore(model).load().tasks[-1].images == {"c": 12, "d": 12}
    ModelStore(model).rollback("may")
    again = recollect("learn", model, bad, *june)  # the same learn as the first
    assert (again.returncode, "was already learned from these images" in again.stdout) == (0, True)
    assert ModelStore(model).load().tasks == first.tasks


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    model, data = tmp_path / "model", write_photos(tmp_path / "p")
    model.mkdir()
    (model / "model.json.0123456789abcdef.unfinished").write_text("{")
    assert recollect("learn", model, data, "--task", "may", *LEARN).returncode == 0
    assert not list(model.glob("*.unfinished"))
    (model / "unfinished").mkdir()  # killed after the model was written, before this was removed
    again = recollect("learn", model, data, "--task", "may", *LEARN)
    assert again.returncode == 0
    assert "was already learned" in again.stdout
    assert not (model / "unfinished").exists()


def test_loading_explains_that_the_first_learn_was_interrupted(tmp_path: Path) -> None:
    (tmp_path / "model" / "unfinished").mkdir(parents=True)
    with pytest.raises(UserError, match="its first learn has not finished; if it is not running, rerun its command"):
        ModelStore(tmp_path / "model").load()


def test_repeating_a_learn_keeps_the_checkpoints_of_another(tmp_path: Path) -> None:
    may = write_images(tmp_path / "may", *digits("may"))
    model = tmp_path / "model"
    assert recollect("learn", model, may, "--task", "may", *LEARN).returncode == 0
    (model / "unfinished" / ("a" * 32)).mkdir(parents=True)  # of June, which was interrupted
    again = recollect("learn", model, may, "--task", "may", "--device", "cpu")
    assert (again.returncode, "may was already learned from these images" in again.stdout) == (0, True)
    assert (model / "unfinished" / ("a" * 32)).is_dir()


def test_inspect_skips_leftovers_and_lists_corrupt_versions(tmp_path: Path) -> None:
    model = tmp_path / "model"
    for number, task in enumerate(("may", "june")):
        classifier = ContinualClassifier.load(model, device="cpu") if number else train_model()
        classifier.learn((random_images(number), [f"{task}a", f"{task}b"] * 12), task=task).save(model)
    for path in ("versions/unfinished/weights.safetensors", "unfinished/x/unfinished/state.safetensors"):
        (model / path).parent.mkdir(parents=True)
        (model / path).write_bytes(b"half")
    (model / "versions" / "002-june" / "weights.safetensors").write_bytes(b"half")
    ModelStore(model).rollback("may")
    done = recollect("inspect", model, "--json")
    assert done.returncode == 0, done.stderr
    about = json.loads(done.stdout)
    assert (about["damaged_versions"], about["images_kept"]) == (["002-june"], 0)
    printed = recollect("inspect", model).stdout
    assert "Other versions: none" in printed
    assert f"Corrupt versions, which can be deleted: {model}/versions/002-june" in printed


def test_learn_is_refused_before_reading_while_the_folder_is_locked(folder: Path, tmp_path: Path) -> None:
    root = write_photos(tmp_path / "p")
    with lock_folder(folder):
        done = recollect("learn", folder, root, "--task", "august", "--device", "cpu")
    assert done.returncode == 2
    assert "images:" not in done.stdout  # nothing is read or estimated before it is refused
    assert len(ModelStore(folder).load().tasks) == 3


def test_learning_and_saving_in_python_finishes_an_interrupted_command(folder: Path, tmp_path: Path) -> None:
    """`learn().save()` writes no second version of a learn, and removes its checkpoints."""
    photos = write_photos(tmp_path / "august")
    model = ContinualClassifier.load(folder, device="cpu").learn(photos, task="august")
    august = model.save(folder).tasks_[-1]
    (folder / "unfinished" / august.learn).mkdir(parents=True)
    ModelStore(folder).rollback("july")
    ContinualClassifier.load(folder, device="cpu").learn(photos, task="august").save(folder)
    assert ModelStore(folder).versions() == ["001-may", "002-june", "003-july", "004-august"]
    assert ModelStore(folder).load().tasks[-1] == august
    assert not (folder / "unfinished").exists()


def test_the_store_learns_in_python_as_the_command_does(tmp_path: Path) -> None:
    store, photos = ModelStore(tmp_path / "model"), write_photos(tmp_path / "may")
    settings = train_model().settings
    first = store.learn(photos, "may", settings, device="cpu")
    assert (first.was_learned, store.versions()) == (False, ["001-may"])
    (tmp_path / "model" / "model.json").unlink()
    (tmp_path / "model" / "unfinished").mkdir()
    again = store.learn(photos, "may", settings, device="cpu")
    assert (again.was_learned, again.model.tasks) == (True, first.model.tasks)
    with lock_folder(tmp_path / "model"), pytest.raises(LockedError):
        store.learn(photos, "june", device="cpu")
    with pytest.raises(UserError, match="settings cannot be changed"):
        store.learn(photos, "june", settings, device="cpu")
