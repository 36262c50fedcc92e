"""ResNet-18 (He et al. 2016), for small images and with the ImageNet stem, under torchvision's parameter names.

Small images: 3x3 stem, no pooling after it; 11,168,832 parameters at width 64. ImageNet stem: 7x7 stride 2 and a pool.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from recollect.errors import UserError
from recollect.nets.backbone import Normalisation, Recipe
from recollect.nets.weights import load_pretrained

IMAGENET_STEM_FROM = 96  # pixels
MAX_WIDTH = 1024  # three billion parameters


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet18(nn.Module):
    """Four stages of two blocks with `width`, 2, 4 and 8 times `width` channels, then the mean over positions."""

    nonnegative = True
    normalisation: Normalisation | None = None

    def __init__(self, in_channels: int = 3, width: int = 64, *, imagenet_stem: bool = False) -> None:
        super().__init__()
        if not 1 <= width <= MAX_WIDTH:
            raise UserError(f"the width of ResNet-18 lies between 1 and {MAX_WIDTH}, got {width}; the paper's is 64")
        self.feature_dim = 8 * width
        self.conv1: nn.Conv2d
        if imagenet_stem:
            self.conv1 = nn.Conv2d(in_channels, width, 7, 2, 3, bias=False)
        else:
            self.conv1 = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if imagenet_stem else nn.Identity()
        self.layer1 = nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, width, 1))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(BasicBlock(2 * width, 4 * width, 2), BasicBlock(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(BasicBlock(4 * width, 8 * width, 2), BasicBlock(8 * width, 8 * width, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean(dim=(2, 3))


def resnet18(
    image_shape: tuple[int, int, int],
    *,
    width: int = 64,
    stem: Literal["auto", "small", "imagenet"] = "auto",
    weights: Literal["none", "imagenet"] = "none",
) -> ResNet18:
    """ResNet-18; stem 'auto' is the ImageNet stem from 96 pixels up; weights 'imagenet' come from the hub.

    width: channels of the first stage; features have 8 times as many.
    stem: 'small' (3x3), 'imagenet' (7x7, stride 2, pool), or 'auto' by image size.
    weights: 'none', or 'imagenet' for the ImageNet-1k weights of torchvision.
    """
    if stem not in ("auto", "small", "imagenet"):
        raise UserError(f"stem is 'auto', 'small' or 'imagenet', got {stem!r}")
    channels, *size = image_shape
    imagenet_stem = stem == "imagenet" or (stem == "auto" and min(size) >= IMAGENET_STEM_FROM)
    network = ResNet18(channels, width, imagenet_stem=imagenet_stem)
    if weights == "none":
        return network
    if weights != "imagenet":
        raise UserError(f"weights of resnet18 are 'none' or 'imagenet', got {weights!r}")
    if not imagenet_stem or width != 64 or channels != 3:
        raise UserError(
            f"the ImageNet weights fit width 64, 3 channels and the ImageNet stem; got width {width}, "
            f"{channels} channels, images of {size}: set stem=imagenet, or resize to 96 pixels up"
        )
    load_pretrained(network, "timm/resnet18.tv_in1k", drop=("fc.",))
    network.normalisation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return network


BACKBONES = {"resnet18": Recipe(resnet18)}
