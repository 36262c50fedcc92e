"""The lock of a folder: one holder, and what a crash left is removed by the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.storage import LockedError, lock_folder

LEFT = "model.json.0123456789abcdef.unfinished"


def test_a_folder_is_locked_by_one_holder_at_a_time(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path),
        pytest.raises(LockedError, match=r"process \d+ is using"),
        lock_folder(tmp_path),
    ):
        pass
    with lock_folder(tmp_path):
        pass


def test_temporary_files_of_a_crash_are_removed(tmp_path: Path) -> None:
    (tmp_path / "versions").mkdir()
    for folder in (tmp_path, tmp_path / "versions"):
        (folder / LEFT).write_text("half")
    with lock_folder(tmp_path):
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["lock", "versions"]


def test_files_with_similar_names_are_kept(tmp_path: Path) -> None:
    names = ["model.json", "thesis.unfinished", ".0123456789abcdef.unfinished", "a.0123456789ABCDEF.unfinished",
             "a.0123456789abcdef.unfinished.txt"]  # fmt: skip
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / LEFT).mkdir()
    with lock_folder(tmp_path):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {*names, LEFT, "lock"}


def test_files_in_a_subfolder_with_its_own_lock_are_kept(tmp_path: Path) -> None:
    """Another process may be writing there, as the workers of a sweep do."""
    (tmp_path / "run").mkdir()
    with lock_folder(tmp_path / "run"):
        (tmp_path / "run" / LEFT).write_text("half")
        with lock_folder(tmp_path):
            assert (tmp_path / "run" / LEFT).exists()


def test_a_refused_process_removes_nothing(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        (tmp_path / LEFT).write_text("half")
        with pytest.raises(LockedError), lock_folder(tmp_path):
            pass
        assert (tmp_path / LEFT).exists()
