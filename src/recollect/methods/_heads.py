"""Heads that start as the discriminant of the features that they will be trained on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from recollect.core import Discriminant, folded, held_out
from recollect.device import Rows, at_least_single
from recollect.reading import read_batches
from recollect.streams import Batch, TaskData

TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SHRINKAGE = 0.2


def mirror(x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b c height width"]:
    """Left and right exchanged."""
    return x.flip(3)


@torch.no_grad()
def read_features(
    backbone: nn.Module, image_shape: tuple[int, int, int], data: TaskData, *, mirrored: bool = False
) -> Tensor:
    """Features of a task's images as they are, or mirrored."""
    read, rows = folded(backbone, image_shape), Rows(len(data))

    def read_batch(batch: Batch) -> Tensor:
        return at_least_single(read(mirror(batch.x) if mirrored else batch.x))

    for f in read_batches(read_batch, data.batches(), data.device):
        rows.add(f)
    return rows.tensor


@torch.no_grad()
def start_heads(heads: Sequence[nn.Module], f: Tensor, labels: Tensor, shrinkage: float = SHRINKAGE) -> None:
    """Make heads, side by side, the discriminant of features f, as confident as a fifth of them, held out, allows."""
    with torch.autocast(f.device.type, enabled=False):
        _start_heads(heads, f, labels, shrinkage)


def _start_heads(heads: Sequence[nn.Module], f: Tensor, labels: Tensor, shrinkage: float) -> None:
    sizes = [len(head.get_parameter("bias")) for head in heads]
    held = held_out(labels)
    temperature = TEMPERATURES[-1]
    if bool(held.any()) and not bool(held.all()):
        scores = _fit(f[~held], labels[~held], sum(sizes), shrinkage)(f[held])
        losses = [F.cross_entropy(scores / t, labels[held]) for t in TEMPERATURES]
        temperature = TEMPERATURES[int(torch.stack(losses).argmin())]
    whole = _fit(f, labels, sum(sizes), shrinkage)
    bias = whole.bias - whole.weight @ whole.centre
    for head, rows, shifts in zip(heads, whole.weight.split(sizes), bias.split(sizes), strict=True):
        head.load_state_dict({"weight": rows / temperature, "bias": shifts / temperature})


def _fit(f: Tensor, labels: Tensor, num_classes: int, shrinkage: float) -> Discriminant:
    discriminant = Discriminant(f.shape[1], shrinkage).to(f.device)
    discriminant.grow(num_classes)
    discriminant.add(f, labels)
    discriminant.refresh()
    return discriminant
