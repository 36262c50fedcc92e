"""Commands on one model folder at a time: readers need no lock, writers wait for it or are refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from recollect.deploy import ModelStore, store
from recollect.deploy.versions import load_version, write_pointer
from recollect.errors import UserError
from recollect.storage import LockedError, lock_folder
from tests.deploy.support import random_images, write_photos
from tests.support import recollect

HOLD = """
import sys
from pathlib import Path
from recollect.storage import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_lock(folder: Path, *, seconds: float | None = None) -> Iterator[None]:
    """Another process holds the lock, as a learn does: for some seconds, or all the time."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        timer = threading.Timer(seconds or 600.0, process.stdin.close)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            process.stdin.close()


@pytest.fixture
def july(tmp_path: Path) -> Path:
    """Test images of the newest task."""
    write_photos(tmp_path / "tests" / "july", ("julya", "julyb"), 4)
    return tmp_path / "tests"


def test_readers_work_while_a_learn_holds_the_lock(folder: Path, july: Path) -> None:
    with held_lock(folder):
        for command in (["inspect"], ["predict", july], ["check", july], ["audit"]):
            done = recollect(command[0], folder, *command[1:])
            assert done.returncode == 0, done.stderr
            unrecorded = f"not recorded because a learn is running in {folder}" in done.stderr
            assert unrecorded == (command[0] == "check"), done.stderr
    assert ModelStore(folder).load().checks == {}
    assert recollect("check", folder, july).stderr == ""
    assert len(ModelStore(folder).load().checks) == 1
    with held_lock(folder):
        assert recollect("check", folder, july).stderr == ""  # nothing new to record


def test_a_check_waits_only_to_record(folder: Path, july: Path) -> None:
    with (
        held_lock(folder, seconds=3.0),  # longer than the check computes before it records
        pytest.warns(UserWarning, match="is using .*; waiting until it ends"),
    ):
        ModelStore(folder).check(july, device="cpu", wait=True)
    assert len(ModelStore(folder).load().checks) == 1


@pytest.mark.parametrize(
    "command",
    [
        ["rename", "maya", "cat"],
        ["merge", "pet", "maya", "mayb"],
        ["forget", "maya"],
        ["rollback", "--to", "june"],
        ["learn", "photos", "--task", "august", "--device", "cpu"],
    ],
    ids=lambda command: command[0],
)
def test_writers_are_refused_or_wait(command: list[str], folder: Path, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos")
    with held_lock(folder):
        done = recollect(command[0], folder, *command[1:], cwd=tmp_path)
        assert (done.returncode, "is using" in done.stderr) == (2, True)
    assert ModelStore(folder).current() == "003-july"
    with held_lock(folder, seconds=0.5):
        done = recollect(command[0], folder, *command[1:], "--wait", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("waiting until it ends") == 1
    assert ModelStore(folder).current() != "003-july"


def test_a_version_removed_while_it_is_read_is_followed_by_the_new_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_slowly(path: Path) -> Any:
        if path.name == "003-july":
            write_pointer(folder, "002-june")
            shutil.rmtree(path)
        return load_version(path)

    monkeypatch.setattr(store, "load_version", load_slowly)
    assert ModelStore(folder).load_current()[0] == "002-june"
    about = json.loads(recollect("inspect", folder, "--json").stdout)
    assert (about["version"], about["versions"]) == ("002-june", ["001-may", "002-june"])
    shutil.rmtree(folder / "versions" / "002-june")
    with pytest.raises(UserError, match="cannot be used"):
        ModelStore(folder).load()


def test_a_check_is_recorded_in_versions_learned_meanwhile(
    folder: Path, july: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not where the task has lost a class since."""
    check_tasks = store.check_tasks

    def check_slowly(*arguments: Any) -> Any:
        result = check_tasks(*arguments)
        ModelStore(folder).learn((random_images(8), ["x", "y"] * 12), "august", device="cpu")
        ModelStore(folder).forget(["julya"])
        return result

    monkeypatch.setattr(store, "check_tasks", check_slowly)
    ModelStore(folder).check(july, device="cpu")
    num_checks = {name: len(ModelStore(folder).load(name).checks) for name in ModelStore(folder).versions()}
    assert num_checks == {"001-may": 0, "002-june": 0, "003-july": 1, "004-august": 1, "004-august-edited": 0}


def test_a_check_of_a_purged_version_is_not_recorded(folder: Path, july: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_tasks = store.check_tasks

    def check_slowly(*arguments: Any) -> Any:
        result = check_tasks(*arguments)
        ModelStore(folder).forget(["julya"], purge=True)
        return result

    monkeypatch.setattr(store, "check_tasks", check_slowly)
    with pytest.warns(UserWarning, match="not recorded because its version was removed meanwhile"):
        ModelStore(folder).check(july, device="cpu")


def test_the_lock_is_taken_once_it_is_free(tmp_path: Path) -> None:
    with (
        held_lock(tmp_path, seconds=0.5),
        pytest.warns(UserWarning, match=r"process \d+ is using .*; waiting"),
        lock_folder(tmp_path, wait=True),
        pytest.raises(LockedError),
        lock_folder(tmp_path),
    ):
        pass
