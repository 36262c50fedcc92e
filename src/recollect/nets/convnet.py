"""A small plain network for small data: three 3x3 convolutions with BatchNorm, ReLU and pooling, then the mean."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from recollect.errors import UserError
from recollect.nets.backbone import Recipe

MAX_WIDTH = 4096


class ConvNet(nn.Module):
    """`width`, 2 and 4 times `width` channels; about 24,000 parameters at width 16."""

    nonnegative = True

    def __init__(self, in_channels: int = 3, width: int = 16) -> None:
        super().__init__()
        if not 1 <= width <= MAX_WIDTH:
            raise UserError(f"the width of the convnet lies between 1 and {MAX_WIDTH}, got {width}")
        self.feature_dim = 4 * width
        channels = (in_channels, width, 2 * width, 4 * width)
        self.layers = nn.Sequential(
            *(
                layer
                for before, after in pairwise(channels)
                for layer in (
                    nn.Conv2d(before, after, 3, padding=1, bias=False),
                    nn.BatchNorm2d(after),
                    nn.ReLU(),
                    nn.MaxPool2d(2),
                )
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean(dim=(2, 3))  # type: ignore[no-any-return]


def convnet(image_shape: tuple[int, int, int], *, width: int = 16) -> ConvNet:
    """Three small convolutions; the default of split-digits.

    width: channels of the first layer; features have 4 times as many.
    """
    return ConvNet(image_shape[0], width)


BACKBONES = {"convnet": Recipe(convnet)}
