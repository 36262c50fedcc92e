"""Pieces of photographs, runs that learned from them, and ways to change an image before it is hidden."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recollect.engine import checkpoint
from recollect.runs import RunConfig, resolve
from recollect.streams import Stream, stream_from_tensors

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


def copied(folder: Path, to: Path) -> Path:

    shutil.copytree(folder, to)
    return to


def rewrite(file: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def newest(folder: Path) -> Path:
    return checkpoint.ordered(folder / "checkpoint")[-1] / "state.safetensors"


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
