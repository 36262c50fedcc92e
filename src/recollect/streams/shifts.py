"""Inputs that change from task to task while the classes stay the same: task t of T sees its own version of each image.

rotated    by t/T of 180 degrees; what comes in at the corners is black
permuted   pixels in an order drawn from the seed, another one for each task
coloured   hue turned by t/T of a full circle
corrupted  noise, blur, low contrast, coarse pixels, brightness: one kind for each task

The first task sees the images as they are.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.errors import UserError
from recollect.rng import Key
from recollect.streams.protocol import Shift

NOISE = 38.0  # standard deviation, in levels of 255
CONTRAST, BRIGHTNESS = 0.3, 0.4
AT_ONCE = 4096  # images
YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


def check_shift(shift: Shift, num_tasks: int, num_channels: int) -> None:
    """Refuse what the images do not allow."""
    if shift == "coloured" and num_channels != 3:
        raise UserError(f"shift=coloured turns the hue of RGB images; these have {num_channels} channel")
    if shift == "corrupted" and num_tasks > len(CORRUPTIONS) + 1:
        raise UserError(f"shift=corrupted has {len(CORRUPTIONS) + 1} tasks at most, got tasks={num_tasks}")


def shifted(images: Tensor, shift: Shift, task: int, num_tasks: int, key: Key, split: str) -> Tensor:
    """The version of uint8 images [n, c, h, w] that a task sees; noise is drawn anew for each split."""
    if task == 0 or shift == "none":
        return images
    parts = []
    for number, part in enumerate(images.split(AT_ONCE)):
        pixels = part.float()
        if shift == "rotated":
            pixels = _rotate(pixels, math.pi * task / num_tasks)
        elif shift == "permuted":
            pixels = _permute(pixels, (key / "permutation" / task).generator())
        elif shift == "coloured":
            pixels = _turn_hue(pixels, 2 * math.pi * task / num_tasks)
        else:
            pixels = CORRUPTIONS[task - 1](pixels, (key / "noise" / split / task / number).generator())
        parts.append(pixels.round().clamp(0, 255).to(torch.uint8))
    return torch.cat(parts)


def _rotate(x: Tensor, angle: float) -> Tensor:
    cos, sin = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(x), 2, 3)
    return F.grid_sample(x, F.affine_grid(turn, list(x.shape), align_corners=False), align_corners=False)


def _permute(x: Tensor, rng: torch.Generator) -> Tensor:
    order = torch.randperm(x.shape[2] * x.shape[3], generator=rng)
    return x.flatten(2)[:, :, order].reshape(x.shape)


def _turn_hue(x: Tensor, angle: float) -> Tensor:
    cos, sin = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[1.0, 0.0, 0.0], [0.0, cos, -sin], [0.0, sin, cos]])
    return torch.einsum("ij,njhw->nihw", torch.linalg.inv(YIQ) @ turn @ YIQ, x)


def _noise(x: Tensor, rng: torch.Generator) -> Tensor:
    return x + NOISE * torch.randn(x.shape, generator=rng)


def _blur(x: Tensor, rng: torch.Generator) -> Tensor:
    width = 2 * max(1, x.shape[3] // 16) + 1
    return F.avg_pool2d(F.pad(x, [width // 2] * 4, mode="replicate"), width, stride=1)


def _flatten_contrast(x: Tensor, rng: torch.Generator) -> Tensor:
    mean = x.mean((1, 2, 3), keepdim=True)
    return mean + CONTRAST * (x - mean)


def _pixelate(x: Tensor, rng: torch.Generator) -> Tensor:
    coarse = [max(1, size // 3) for size in x.shape[2:]]
    return F.interpolate(F.interpolate(x, coarse, mode="area"), x.shape[2:], mode="nearest")


def _brighten(x: Tensor, rng: torch.Generator) -> Tensor:
    return x + BRIGHTNESS * 255


CORRUPTIONS = (_noise, _blur, _flatten_contrast, _pixelate, _brighten)
