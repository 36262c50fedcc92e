"""Files that cannot be read, or hold what cannot be meant: exit code 2 and the file's name, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from recollect.audit import Searcher, purge, take_inventory
from recollect.cli.console import stdout
from recollect.cli.rendering.audit import show_audit
from recollect.engine import checkpoint
from recollect.errors import UserError
from tests.audit.support import PIECES

DEEP = "[" * 100_000 + "]" * 100_000
METHODS: dict[str, str] = {
    "a list": '{"method": []}',
    "infinite": '{"method": {"memory": Infinity, "last_tasks": Infinity}}',
    "no number": '{"method": {"memory": NaN, "last_tasks": NaN}}',
    "huge": json.dumps({"method": {"memory": 10**400, "last_tasks": 10**400}}),
    "text": '{"method": {"memory": "many", "last_tasks": "\\ud800"}}',
    "negative": '{"method": {"memory": -1, "last_tasks": -1}}',
    "null": '{"method": {"memory": null, "last_tasks": null}}',
    "nested": '{"method": ' + DEEP + "}",
    "no object": "[1, 2]",
    "cut": '{"method": {',
}
SHAPES = ["[3, 32]", "[3, 32, 1e999]", "[3, NaN, 32]", f"[3, 32, 1{'0' * 400}]", '["3", 32, 32]', "[3, 32, -32]",
          "[true, 32, 32]", "[0, 0, 0]", "[7, 32, 32]", "{}", "null", '"\\ud800"', DEEP]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with one checkpoint that holds three samples of tasks 1 and 2."""
    tensors = {
        "learner.memory.images": PIECES[:4].clone(),
        "learner.memory.tasks": torch.tensor([0, 1, 1, 0]),
        "learner.memory._extra_state": torch.tensor([3, 3]),
    }
    tensors["learner.memory.images"][3] = 0
    run = tmp_path / "run"
    checkpoint.save(run / "checkpoint", "task-002", tensors, {})
    (run / "config.json").write_text('{"method": {"memory": 4, "last_tasks": 1}}')
    (run / "data.json").write_text('{"image_shape": [3, 32, 32]}')
    images = tmp_path / "images"
    images.mkdir()
    Image.fromarray(PIECES[9].permute(1, 2, 0).numpy()).save(images / "x.png")
    return run


def audit(folder: Path, expect: str | None = None) -> int:
    return show_audit(stdout(), folder, folder.parent / "images", expect, None, as_json=False)


@pytest.mark.parametrize("text", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("expect", ["previous", "reservoir"])
def test_a_config_of_the_wrong_type_is_refused(text: str, expect: str, folder: Path) -> None:
    assert take_inventory(folder).problems("reservoir") == []
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        take_inventory(folder).problems(expect)


def test_a_config_that_is_not_utf_8_is_refused(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"method": "\xff\xfe"}')
    with pytest.raises(UserError, match=r"config\.json"):
        take_inventory(folder)
    with pytest.raises(UserError, match=r"config\.json"):
        purge(folder, 1)


@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_an_image_shape_of_the_wrong_type_is_refused(shape: str, folder: Path) -> None:
    assert audit(folder) == 0
    (folder / "data.json").write_text(f'{{"image_shape": {shape}}}')
    with pytest.raises(UserError, match=r"data\.json"):
        audit(folder)


@pytest.mark.parametrize(
    "text", ["[]", "1" + "0" * 400, DEEP, '{"format": 1, "current": "\\ud800"}', '{"format": NaN}']
)
def test_a_model_pointer_of_the_wrong_type_is_refused(text: str, folder: Path) -> None:
    (folder / "model.json").write_text(text)
    with pytest.raises(UserError, match=r"model"):
        audit(folder)


def change(folder: Path, **fields: Any) -> None:
    path = folder / "checkpoint" / "task-002"
    found = checkpoint.load_one(path)
    for name, tensor in fields.items():
        key = f"learner.memory.{name}"
        found.tensors.pop(key) if tensor is None else found.tensors.update({key: tensor})
    checkpoint.save(path.parent, path.name, found.tensors, found.state, found.run)


STATES: dict[str, dict[str, Any]] = {
    "more than there are": {"_extra_state": torch.tensor([9, 9])},
    "negative": {"_extra_state": torch.tensor([-1, 3])},
    "infinite": {"_extra_state": torch.tensor([torch.inf, 3])},
    "no number": {"_extra_state": torch.tensor([torch.nan, 3])},
    "empty": {"_extra_state": torch.zeros(0)},
    "images of no rows": {"images": torch.tensor(3.0)},
    "too few tasks": {"tasks": torch.tensor([0])},
    "infinite tasks": {"tasks": torch.full((4,), torch.inf)},
}


@pytest.mark.parametrize("fields", STATES.values(), ids=STATES)
def test_a_memory_of_the_wrong_shape_is_refused(fields: dict[str, Any], folder: Path) -> None:
    change(folder, **fields)
    for act in (lambda: take_inventory(folder), lambda: purge(folder, 1)):
        with pytest.raises(UserError, match=r"state\.safetensors cannot be read .*learner\.memory is not a memory"):
            act()


@pytest.mark.parametrize("fields", [{"_extra_state": None}, {"logits": torch.zeros(2)}], ids=["size", "field"])
def test_purge_refuses_a_memory_that_it_cannot_empty(fields: dict[str, Any], folder: Path) -> None:
    change(folder, **fields)
    with pytest.raises(UserError, match=r"task-002 holds no memory that can be purged"):
        purge(folder, 1)


def test_purge_refuses_symbolic_links(folder: Path, tmp_path: Path) -> None:
    """Neither a file nor a folder behind a link is read, rewritten or removed."""
    outside = tmp_path / "outside"
    shutil.move(folder / "checkpoint" / "task-002", outside)
    before = {path.name: path.read_bytes() for path in outside.iterdir()}
    link = folder / "checkpoint" / "task-002"
    link.symlink_to(outside)
    with pytest.raises(UserError, match="task-002 is a symbolic link; .* Remove the link"):
        purge(folder, 1)
    link.unlink()
    shutil.copytree(outside, link)
    (link / "state.json").unlink()
    (link / "state.json").symlink_to(outside / "state.json")
    with pytest.raises(UserError, match=r"state\.json is a symbolic link"):
        purge(folder, 1)
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before
    (link / "state.json").unlink()
    shutil.copy(outside / "state.json", link)
    assert purge(folder, 1) == 1


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


def link_to_folder(path: Path) -> None:
    path.symlink_to(path.parent.parent / "images")


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [link_to_nothing, link_to_folder, pipe])
def test_links_and_pipes_stop_the_search(make: Callable[[Path], None], folder: Path) -> None:
    make(folder / "notes.bin")
    with pytest.raises(UserError, match=r"notes\.bin cannot be read"):
        list(Searcher(PIECES[:2]).search_folder(folder))
    assert any(
        "notes.bin is not a file of a run" in problem for problem in take_inventory(folder).problems("reservoir")
    )


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\nnonsense"], ids=["empty", "damaged"])
def test_a_picture_file_that_cannot_be_read_stops_the_search(data: bytes, folder: Path) -> None:
    (folder / "photo.png").write_bytes(data)
    with pytest.raises(UserError, match=r"photo\.png cannot be read"):
        list(Searcher(PIECES[:2]).search_folder(folder))


def test_a_failing_disk_stops_the_search(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "notes.bin").write_bytes(bytes(100))
    opened = Path.open

    def fail(self: Path, *args: Any, **options: Any) -> Any:
        if self.name == "notes.bin":
            raise OSError(5, "Input/output error", str(self))
        return opened(self, *args, **options)

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(UserError, match=r"notes\.bin cannot be read .*Input/output error"):
        list(Searcher(PIECES[:2]).search_folder(folder))


def test_a_folder_that_cannot_be_listed_stops_the_audit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = os.scandir
    hidden = folder / "hidden"
    hidden.mkdir()

    def fail(path: Any) -> Any:
        if str(path) == str(hidden):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(UserError, match=r"hidden cannot be read .*Permission denied"):
        take_inventory(folder)


@pytest.mark.parametrize("name", ["lock", "photos/lock", "photos/state.json", "events.jsonl", "result.json"])
def test_a_picture_named_like_a_file_of_a_run_is_unrecognised(name: str, folder: Path) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(PIECES[0].permute(1, 2, 0).numpy()).save(path, "PNG")
    assert take_inventory(folder).others == [path]


def test_all_files_that_a_run_writes_are_recognised(folder: Path) -> None:
    (folder / "lock").write_text(" 123\n")
    (folder / "events.jsonl").write_text('{"event": "started"}\n{"eve')
    (folder / "result.json.77.unfinished").write_text('{"memory": {"na')
    (folder / "data.json.78.unfinished").write_bytes('{"classes": ["ü'.encode()[:-1])
    assert take_inventory(folder).others == []


def test_the_command_names_a_file_that_it_cannot_read(folder: Path) -> None:
    environment = os.environ | {"COLUMNS": "300", "PYTHONIOENCODING": "utf-8"}

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "recollect", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, errors="replace")

    save_file({"w": torch.zeros(3)}, folder / "extra.safetensors")
    odd = Path(os.fsdecode(os.fsencode(folder) + b"/\xff.bin"))
    odd.write_bytes(b"abc")
    done = run("audit", folder, "--against", folder.parent / "images")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "\\udcff.bin" in done.stdout
    assert json.loads(run("audit", folder, "--json").stdout)["unrecognised"]
    (folder / "extra.safetensors").write_bytes(b"nonsense")
    done = run("audit", folder, "--against", folder.parent / "images")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "extra.safetensors cannot be read" in done.stderr
