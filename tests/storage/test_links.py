"""A symbolic link in a stranger's folder must not lead a write or a removal to the user's own files."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recollect import ContinualClassifier, resolve, run
from recollect.errors import UserError
from recollect.report.write import write_report
from recollect.storage import append_line, lock_folder, write_json
from tests.report.results import result_of
from tests.support import recollect

LINKS = ["lock", "events.jsonl", "checkpoint", "data.json", "result.json", "tensorboard", "deep/er"]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of the user's that looks like checkpoints, and a file."""
    folder = tmp_path / "mine"
    (folder / "task-001").mkdir(parents=True)
    (folder / "task-001" / "state.json").write_text("precious")
    (folder / "file").write_text("precious")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def place_link(folder: Path, name: str, mine: Path) -> None:
    link = folder / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(mine if name in ("checkpoint", "tensorboard") else mine / "file")


@pytest.fixture(scope="module")
def classifier() -> ContinualClassifier:
    images = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), np.uint8)
    with warnings.catch_warnings(action="ignore"):  # noise cannot be learned
        return ContinualClassifier(backbone="convnet", image_size=16, epochs=1, device="cpu").learn(
            (images, ["a", "b"] * 10), "may"
        )


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", LINKS)
def test_a_run_folder_with_a_link_is_refused_and_its_target_is_unchanged(
    name: str, force: bool, tmp_path: Path, mine: Path
) -> None:
    config = resolve("split-digits", "finetune", 0, {"epochs": 1, "train_per_class": 4}, precision="fp32")
    out, before = tmp_path / "run", contents(mine)
    out.mkdir()
    write_json(out / "config.json", config.to_json())
    place_link(out, name, mine)
    # without force these two are read before the folder is locked, and the target is no JSON
    is_read_first = name in ("data.json", "result.json") and not force
    message = f"{name} cannot be read" if is_read_first else "is a symbolic link; nothing is written"
    with pytest.raises(UserError, match=message):
        run(config, out, device="cpu", force=force)
    assert contents(mine) == before
    assert (out / name).is_symlink()


def test_a_sweep_folder_with_a_link_is_refused(tmp_path: Path, mine: Path) -> None:
    before = contents(mine)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "split-digits").symlink_to(mine)
    ended = recollect("sweep", "cpu/digits", "--seeds", 0, "--out", tmp_path / "sweep")
    assert ended.returncode == 2
    assert "split-digits is a symbolic link" in ended.stderr
    assert contents(mine) == before


@pytest.mark.parametrize("name", ["lock", "model.json", "versions", "unfinished"])
def test_a_model_is_not_saved_to_a_folder_with_a_link(
    name: str, tmp_path: Path, mine: Path, classifier: ContinualClassifier
) -> None:
    before = contents(mine)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / name).symlink_to(mine if name in ("versions", "unfinished") else mine / "file")
    with pytest.raises(UserError, match="is a symbolic link"):
        classifier.save(tmp_path / "model")
    assert contents(mine) == before


@pytest.mark.parametrize("command", ["learn", "rollback"])
@pytest.mark.parametrize("name", ["lock", "unfinished", "versions/009-may", "deep/er"])
def test_commands_refuse_to_change_a_model_folder_with_a_link(
    name: str, command: str, tmp_path: Path, mine: Path, classifier: ContinualClassifier
) -> None:
    model = tmp_path / "model"
    classifier.save(model)
    (model / name).unlink(missing_ok=True)
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).symlink_to(mine if name in ("unfinished", "versions/009-may") else mine / "file")
    pictures = tmp_path / "pictures" / "c"
    pictures.mkdir(parents=True)
    Image.new("RGB", (16, 16)).save(pictures / "one.png")
    before = contents(mine), contents(model / "versions")
    options = [str(pictures.parent), "--task", "june"] if command == "learn" else ["--to", "may"]
    ended = recollect(command, model, *options)
    assert ended.returncode == 2
    assert f"{name} is a symbolic link; nothing is written" in ended.stderr
    assert (contents(mine), contents(model / "versions")) == before


def test_a_file_is_written_beside_a_link_of_its_temporary_name(tmp_path: Path, mine: Path) -> None:
    """Temporary names are random, so that none can be laid out beforehand; the link itself is replaced."""
    (tmp_path / "data.json").symlink_to(mine / "file")
    write_json(tmp_path / "data.json", {"a": 1})
    assert (mine / "file").read_text() == "precious"
    assert not (tmp_path / "data.json").is_symlink()
    assert [path.name for path in tmp_path.glob("*unfinished*")] == []


def test_a_log_or_lock_that_is_a_link_is_refused(tmp_path: Path, mine: Path) -> None:
    (tmp_path / "log").symlink_to(mine / "file")
    with pytest.raises(UserError, match="is a symbolic link"):
        append_line(tmp_path / "log", "more")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "lock").symlink_to(mine / "file")
    with pytest.raises(UserError, match="is a symbolic link"), lock_folder(tmp_path / "folder"):
        pass
    assert (mine / "file").read_text() == "precious"


def test_a_report_is_not_written_through_a_link(tmp_path: Path, mine: Path) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "tables").symlink_to(mine)
    before = contents(mine)
    with pytest.raises(UserError, match="tables is a symbolic link"):
        write_report([result_of("rfe", 0, 50.0)], tmp_path / "report")
    assert contents(mine) == before


def test_a_log_that_is_a_hard_link_is_refused(tmp_path: Path, mine: Path) -> None:
    (tmp_path / "log").hardlink_to(mine / "file")
    with pytest.raises(UserError, match="hard link"):
        append_line(tmp_path / "log", "more")
    assert (mine / "file").read_text() == "precious"


def test_a_folder_reached_through_a_link_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "short").symlink_to(tmp_path / "real")
    with lock_folder(tmp_path / "short"):
        append_line(tmp_path / "short" / "log", "one")
    assert (tmp_path / "real" / "log").read_text() == "one\n"


def test_a_model_made_of_links_is_checked_and_nothing_is_written(
    tmp_path: Path, classifier: ContinualClassifier
) -> None:
    """As volumes of containers are."""
    classifier.save(tmp_path / "real")
    for name in ("a", "b"):
        (tmp_path / "test" / "may" / name).mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(tmp_path / "test" / "may" / name / "one.png")
    (tmp_path / "model").mkdir()
    for name in ("model.json", "versions"):
        (tmp_path / "model" / name).symlink_to(tmp_path / "real" / name)
    before = sorted(path.name for path in (tmp_path / "real").rglob("*"))
    ended = recollect("check", tmp_path / "model", tmp_path / "test")
    assert ended.returncode == 0, ended.stderr
    assert "later checks cannot compare with this one" in ended.stderr
    assert sorted(path.name for path in (tmp_path / "real").rglob("*")) == before
