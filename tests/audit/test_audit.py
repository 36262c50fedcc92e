"""The audit lists what is kept and finds images wherever and however they are hidden."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from recollect.audit import Searcher, purge, take_inventory
from recollect.engine import checkpoint
from recollect.errors import UserError
from recollect.runs import RunConfig, resolve, run
from recollect.streams import Stream, stream_from_tensors
from tests.support import recollect

SETTINGS = {"backbone": "convnet", "epochs": 1, "width": 4}


def photo_pieces(num: int, size: int = 32, seed: int = 0) -> Tensor:
    """Real picture content: pieces of the two photographs that come with scikit-learn."""
    from sklearn.datasets import load_sample_images

    photos = [torch.from_numpy(photo.copy()).permute(2, 0, 1) for photo in load_sample_images().images]
    generator = torch.Generator().manual_seed(seed)
    pieces: list[Tensor] = []
    while len(pieces) < num:
        photo = photos[len(pieces) % 2]
        top, left = (int(torch.randint(0, side - size, (), generator=generator)) for side in photo.shape[1:])
        piece = photo[:, top : top + size, left : left + size]
        if piece.float().std() > 25:
            pieces.append(piece.clone())
    return torch.stack(pieces)


PIECES = photo_pieces(72)


def photo_stream() -> Stream:
    labels = torch.arange(6).repeat_interleave(12)
    tasks = [["0", "1"], ["2", "3"], ["4", "5"]]
    return stream_from_tensors(PIECES, labels, PIECES[::6], labels[::6], tasks=tasks)


def config_of(method: str) -> RunConfig:
    small = {"memory": 12} if method in ("er", "rfe-p", "rfe-b") else {}
    small |= {"auxiliary_dim": 8, "projection_dim": 4} if method.startswith("rfe") else {}
    return resolve("tensors", method, 0, SETTINGS | small, precision="fp32")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A finished run of a method on photographs; made once."""
    made: dict[str, Path] = {}
    root = tmp_path_factory.mktemp("audited")

    def folder(method: str) -> Path:
        if method not in made:
            run(config_of(method), root / method, stream=photo_stream(), device="cpu")
            made[method] = root / method
        return made[method]

    return folder


def copied(folder: Path, to: Path) -> Path:
    import shutil

    shutil.copytree(folder, to)
    return to


def rewrite(file: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def newest(folder: Path) -> Path:
    return checkpoint.ordered(folder / "checkpoint")[-1] / "state.safetensors"


def test_it_lists_every_tensor_with_what_it_is(folders: Callable[[str], Path]) -> None:
    audit = take_inventory(folders("rfe-p"))
    assert {entry.file for entry in audit.entries} == set(folders("rfe-p").rglob("*.safetensors"))
    for file in {entry.file for entry in audit.entries}:
        held = load_file(file)
        listed = {entry.name: entry for entry in audit.entries if entry.file == file}
        assert held.keys() == listed.keys()
        assert all(listed[name].num_bytes == tensor.nbytes for name, tensor in held.items())
    kinds = {entry.kind for entry in audit.entries}
    assert {"network", "retrospector", "auxiliary network", "frozen copy of the network", "memory of RFE"} <= kinds
    assert "other" not in {entry.kind for entry in audit.entries if not entry.name.startswith("fit.")}


@pytest.mark.parametrize(
    ("method", "expect", "tasks"), [("rfe", "none", set()), ("rfe-p", "previous", {3}), ("er", "reservoir", {1, 2, 3})]
)
def test_each_method_keeps_what_it_says(
    method: str, expect: str, tasks: set[int], folders: Callable[[str], Path]
) -> None:
    audit = take_inventory(folders(method))
    assert audit.problems(expect) == []
    found = {task for store in audit.stores for task in store.tasks}
    assert found == tasks
    assert all(len(store) == 12 for store in audit.stores)
    if method != "rfe":
        (problem,) = audit.problems("none")
        assert "holds 12 samples of tasks" in problem
    if method == "er":
        (problem,) = audit.problems("previous")
        assert "older than the last 1" in problem


def test_a_memory_that_was_not_purged_is_found(folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(folders("rfe-p"), tmp_path / "run")

    def keep_an_old_one(tensors: dict[str, Tensor]) -> None:
        tensors["learner.past.memory.tasks"][3] = 0

    rewrite(newest(folder), keep_an_old_one)
    (problem,) = take_inventory(folder).problems("previous")
    assert "holds 1 samples of tasks 1, older than the last 1" in problem


def test_images_left_in_slots_that_should_be_free_are_found(folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(folders("rfe-p"), tmp_path / "run")

    def forget_to_erase(tensors: dict[str, Tensor]) -> None:
        tensors["learner.past.memory._extra_state"][0] = 0

    rewrite(newest(folder), forget_to_erase)
    for expect in ("none", "previous", "reservoir"):
        (problem,) = take_inventory(folder).problems(expect)
        assert "has 12 images in slots that should be free" in problem


def flat(image: Tensor) -> Tensor:
    return image.flatten()


def noisy(image: Tensor) -> Tensor:
    noise = torch.randint(-2, 3, image.shape, generator=torch.Generator().manual_seed(1))
    return (image.int() + noise).clamp(0, 255)


def shifted(image: Tensor, down: int, right: int) -> Tensor:
    out = torch.zeros_like(image)
    height, width = image.shape[1:]
    rows, columns = slice(max(down, 0), height + min(down, 0)), slice(max(right, 0), width + min(right, 0))
    source = image[:, max(-down, 0) : height - max(down, 0), max(-right, 0) : width - max(right, 0)]
    out[:, rows, columns] = source
    return out


def normalised(image: Tensor) -> Tensor:
    mean, std = torch.tensor([0.51, 0.49, 0.44])[:, None, None], torch.tensor([0.27, 0.21, 0.3])[:, None, None]
    return (image / 255 - mean) / std


def in_a_larger_picture(image: Tensor) -> Tensor:
    larger = torch.randint(0, 256, (3, 48, 61), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    larger[:, 9:41, 20:52] = image
    return larger


DISGUISES: dict[str, Callable[[Tensor], Tensor]] = {
    "bytes as floats": lambda image: image.float(),
    "scaled": lambda image: image / 255,
    "normalised": normalised,
    "normalised, half precision": lambda image: normalised(image).half().float(),
    "pixel by pixel": lambda image: image.permute(1, 2, 0) / 255,
    "normalised, pixel by pixel": lambda image: normalised(image).permute(1, 2, 0),
    "mirrored": lambda image: image.flip(2) / 255,
    "shifted down right": lambda image: shifted(image, 4, 4) / 255,
    "shifted up left": lambda image: normalised(shifted(image, -4, -3)),
    "mirrored and shifted, pixel by pixel": lambda image: shifted(image.flip(2), 2, -4).permute(1, 2, 0) / 255,
    "upside down": lambda image: image.flip(1) / 255,
    "turned by half": lambda image: normalised(image.flip(1, 2)).permute(1, 2, 0),
    "padded": lambda image: torch.nn.functional.pad(image, (4, 4, 4, 4)) / 255,
    "mirrored in a larger picture": lambda image: in_a_larger_picture(image.flip(2)) / 255,
    "upside down in a larger picture, pixel by pixel": lambda image: in_a_larger_picture(image.flip(1)).permute(
        1, 2, 0
    ),
    "beside a huge number": lambda image: torch.cat([torch.tensor([1e12]), image.flatten() / 255]),
    "noisy": lambda image: noisy(image) / 255,
    "noisy, upside down": lambda image: noisy(image.flip(1)) / 255,
    "noisy, mirrored, normalised": lambda image: normalised(noisy(image.flip(2))),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_an_image_hidden_in_a_weight_tensor_is_found(
    disguise: str, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied(folders("rfe"), tmp_path / "run")
    secret = 17
    hidden = flat(DISGUISES[disguise](PIECES[secret])).float()

    def hide(tensors: dict[str, Tensor]) -> None:
        weights = torch.randn(len(hidden) + 5000, generator=torch.Generator().manual_seed(2)) * 0.1
        weights[1234 : 1234 + len(hidden)] = hidden
        tensors["learner.network.backbone.extra"] = weights

    rewrite(newest(folder), hide)
    searcher = Searcher(PIECES)
    found = list(searcher.search(load_file(newest(folder))["learner.network.backbone.extra"], newest(folder), "extra"))
    assert {finding.image for finding in found} == {secret}
    assert found[0].mirrored == ("mirrored" in disguise or "turned" in disguise)
    assert found[0].upside_down == ("upside down" in disguise or "turned" in disguise)
    assert {f.tensor for f in searcher.search_folder(folder) if f.image == secret} >= {"learner.network.backbone.extra"}


@pytest.mark.parametrize("layout", ["bytes tensor", "raw file", "inside floats"])
def test_raw_bytes_are_found_too(layout: str, folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(folders("rfe"), tmp_path / "run")
    if layout == "raw file":
        (folder / "notes.bin").write_bytes(b"some text" + PIECES[5].numpy().tobytes() + b"more")
    else:
        as_floats = PIECES[5].flatten().view(torch.float32)
        tensor = PIECES[5:6] if layout == "bytes tensor" else as_floats

        def hide(tensors: dict[str, Tensor]) -> None:
            tensors["learner.network.backbone.extra"] = tensor

        rewrite(newest(folder), hide)
    assert {finding.image for finding in Searcher(PIECES[:8]).search_folder(folder)} == {5}
    if layout == "raw file":
        assert any("notes.bin is no file of a run" in problem for problem in take_inventory(folder).problems("none"))


def test_clean_folders_give_no_false_alarm(folders: Callable[[str], Path]) -> None:
    """Hundreds of pieces never learned from, against every tensor and byte of folders with and without samples."""
    searcher = Searcher(photo_pieces(500, seed=9))
    assert searcher.flat == []
    assert list(searcher.search_folder(folders("rfe"))) == []
    learned = Searcher(PIECES)
    assert list(learned.search_folder(folders("rfe"))) == []
    memory = load_file(newest(folders("er")))["learner.memory.images"]
    stored = {i for i, piece in enumerate(PIECES) if any(torch.equal(piece, image) for image in memory)}
    assert {finding.image for finding in learned.search_folder(folders("er"))} == stored
    assert len(stored) > 5


def test_images_without_contrast_are_said_not_to_be_searched() -> None:
    grey = torch.full((1, 3, 32, 32), 128, dtype=torch.uint8)
    slope = (torch.arange(32)[:, None] * 6).expand(1, 3, 32, 32).to(torch.uint8)
    wave = torch.arange(32)[:, None].mul(0.4).sin() * 90 + 120  # contrast in columns alone
    stripes = wave.expand(1, 3, 32, 32).to(torch.uint8)
    searcher = Searcher(torch.cat([grey, PIECES[:1], stripes, slope]))
    assert searcher.flat == [0, 3]
    for upside_down in (False, True):
        seen = stripes[0].flip(1) if upside_down else stripes[0]
        hidden = torch.cat([torch.randn(500), normalised(seen).permute(1, 2, 0).flatten(), torch.randn(500)])
        (finding,) = searcher.search(hidden, Path("x"), "stripes")
        assert (finding.image, finding.upside_down) == (2, upside_down)
    assert list(searcher.search(torch.zeros(5000), Path("x"), "zeros")) == []
    assert Searcher(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)).flat == [0]


def with_contrast(image: Tensor, contrast: float) -> Tensor:
    values = image.float()
    return ((values - values.mean()) * contrast / values[:, 4:-4, 4:-4].std() + 120).round().byte()


def test_images_of_little_contrast_are_found_without_noise_and_said_to_need_that() -> None:
    """With enough contrast they are found under noise as well, also where one channel alone has any."""
    clear = torch.stack([with_contrast(piece, 14.0) for piece in PIECES[:20]])
    faint = torch.stack([with_contrast(piece, 3.0) for piece in PIECES[:20]])
    blue = torch.full_like(clear, 90)
    blue[:, 2] = clear[:, 2]
    for images, is_faint, ways in ((clear, False, (flat, noisy)), (faint, True, (flat,)), (blue, False, (flat, noisy))):
        searcher = Searcher(images)
        searched = set(range(20)) - set(searcher.flat)
        assert (searched == set(searcher.faint)) == is_faint
        expected = searched if is_faint else searched - set(searcher.faint)
        assert len(expected) > 12
        for way in ways:
            hidden = torch.cat([torch.cat([torch.randn(100), way(image).flatten() / 255]) for image in images])
            assert {finding.image for finding in searcher.search(hidden, Path("x"), "y")} >= expected


def test_an_image_beside_declared_samples_is_not_excused(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """Hidden in a folder that may hold samples: as bytes of another tensor, and in a slot that should be free."""
    images = tmp_path / "images"
    images.mkdir()
    held = load_file(newest(folders("er")))["learner.memory.images"]
    Image.fromarray(held[0].permute(1, 2, 0).numpy()).save(images / "held.png")
    command = ["audit", folders("er"), "--expect", "reservoir", "--against", images]
    assert recollect(*command).returncode == 0
    folder = copied(folders("er"), tmp_path / "bytes")
    rewrite(newest(folder), lambda tensors: tensors.update(extra=held[0].flatten().view(torch.float32)))
    done = recollect("audit", folder, *command[2:])
    assert done.returncode == 1
    assert "extra (its bytes)" in done.stdout
    folder = copied(folders("er"), tmp_path / "free")

    def free(tensors: dict[str, Tensor]) -> None:
        tensors["learner.memory._extra_state"][0] -= 11

    rewrite(newest(folder), free)
    shown = list(Searcher(held).search_folder(folder))
    assert {f.tensor for f in shown} == {"learner.memory.images", "learner.memory.images (free slots)"}


@pytest.mark.parametrize("method", ["er", "rfe-b", "rfe-p"])
def test_purge_removes_a_tasks_samples_everywhere_and_the_run_still_reads(
    method: str, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied(folders(method), tmp_path / "run")
    before = {task: sum(s.tasks.count(task) for s in take_inventory(folder).stores) for task in (1, 2, 3)}
    assert before[3] > 0
    gone = [PIECES[i] for i in range(48, 72)]
    assert list(Searcher(torch.stack(gone)).search_folder(folder))
    assert purge(folder, 3) == before[3]
    after = take_inventory(folder)
    assert {task for store in after.stores for task in store.tasks} == {t for t in (1, 2) if before[t]}
    assert list(Searcher(torch.stack(gone)).search_folder(folder)) == []
    assert purge(folder, 3) == 0
    (folder / "result.json").unlink()
    again = run(config_of(method), folder, stream=photo_stream(), device="cpu")
    assert again["memory"]["samples"] == 12 - before[3]
    with pytest.raises(UserError, match="tasks count from 1, got 0"):
        purge(folder, 0)


def test_a_file_that_cannot_be_read_stops_the_audit(folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(folders("rfe"), tmp_path / "run")
    newest(folder).write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot be read .*; the audit would be incomplete"):
        take_inventory(folder)
    with pytest.raises(UserError, match="is not a folder"):
        take_inventory(tmp_path / "nowhere")


def test_the_command_is_a_gate(folders: Callable[[str], Path], tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for index in (5, 17):  # both with enough contrast to be looked for
        Image.fromarray(PIECES[index].permute(1, 2, 0).numpy()).save(images / f"{index}.png")
    done = recollect("audit", folders("rfe"), "--expect", "none", "--against", images)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Training samples: none" in done.stdout
    assert "Of 2 images searched for, 0 were found" in done.stdout
    assert "does not prove that weights reveal nothing" in done.stdout
    done = recollect("audit", folders("er"), "--expect", "none", "--json")
    assert done.returncode == 1
    held = json.loads(done.stdout)
    assert held["samples"][0]["samples"] == 12
    assert held["problems"]
    assert recollect("audit", folders("er"), "--expect", "reservoir").returncode == 0
    folder = copied(folders("er"), tmp_path / "run")
    done = recollect("purge", folder, "--task", 2)
    assert "samples of task 2 removed; the audit finds none left" in done.stdout
    assert recollect("audit", folder, "--against", tmp_path / "nothing").returncode == 2


def test_picture_files_are_looked_into(folders: Callable[[str], Path], tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(30):
        kind = "jpg" if number % 3 else "png"
        Image.fromarray(PIECES[number].permute(1, 2, 0).numpy()).save(images / f"{number}.{kind}")
    folder = copied(folders("finetune"), tmp_path / "run")
    shutil.copytree(images, folder / "checkpoint" / "photos")
    done = recollect("audit", folder, "--against", images, "--expect", "none")
    assert done.returncode == 1
    assert "Of 30 images searched for, 30 were found." in done.stdout
    assert "Unrecognised: 10 more files; --json lists all" in done.stdout


def test_what_is_no_run_and_no_model_is_not_vouched_for(tmp_path: Path) -> None:
    done = recollect("audit", tmp_path, "--expect", "none")
    assert (done.returncode, "holds no run and no model" in done.stderr) == (2, True)
    (tmp_path / "model.json").write_text("garbage")
    assert recollect("audit", tmp_path, "--expect", "none").returncode == 2
