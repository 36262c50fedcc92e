"""A pretrained backbone is shown images with the constants that it was trained with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import Tensor, nn

from recollect.runs import resolve, run
from tests.support import make_stream


class Pretrained(nn.Module):
    feature_dim, nonnegative = 4, False

    def __init__(self, normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None) -> None:
        super().__init__()
        self.normalisation = normalisation
        self.linear = nn.Linear(256, 4)
        self.smallest = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.smallest = min(self.smallest, float(x.min()))
        features: Tensor = self.linear(x.flatten(1))
        return features


@pytest.mark.parametrize("constants", [((0.5,), (0.25,)), None])
def test_images_are_shown_with_the_backbones_constants_or_the_streams(
    constants: tuple[tuple[float, ...], tuple[float, ...]] | None, tmp_path: Path
) -> None:
    stream, backbone = make_stream((2, 2), channels=1), Pretrained(constants)
    config = resolve("tensors", "finetune", 0, {"backbone": "own", "epochs": 1})
    run(config, tmp_path / "run", stream=stream, backbone=backbone, device="cpu")
    mean, std = constants or (stream.pixels.mean, stream.pixels.std)
    assert backbone.smallest == pytest.approx(-mean[0] / std[0], rel=1e-4)  # the black border of crops
    described = json.loads((tmp_path / "run" / "data.json").read_text())
    assert (described["mean"], described["std"]) == (list(mean), list(std))
