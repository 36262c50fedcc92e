"""split-digits: the 1,797 digits that come with scikit-learn, upsampled from 8 to 32 pixels; no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from recollect.streams.protocol import Dataset, Protocol, Size, Source, StreamOptions

TEST_EVERY = 5  # every fifth image of a class is a test image, whatever the seed


def load_digits(options: StreamOptions, data_root: Path | None) -> Dataset:
    """Grey images of 0…9; a fixed stratified 20 % are the test set."""
    from sklearn.datasets import load_digits as bundled

    digits = bundled()
    labels = torch.from_numpy(digits.target.astype(np.int64))
    small = torch.from_numpy(digits.images.astype(np.float32))[:, None] * (255 / 16)
    images = F.interpolate(small, (32, 32), mode="bilinear").round().to(torch.uint8)
    test = torch.zeros(len(labels), dtype=torch.bool)
    for digit in range(10):
        test[(labels == digit).nonzero()[:, 0][::TEST_EVERY]] = True
    return Dataset(
        tuple("0123456789"), images[~test], labels[~test], images[test], labels[test], (0.3053,), (0.3248,), flip=False
    )


STREAMS = {
    "split-digits": Source(
        load=load_digits,
        options=StreamOptions(crop_padding=2),
        protocol=Protocol(
            backbone="convnet",
            training={"epochs": 15, "learning_rate": 2e-3},
            method={
                "memory": 50,
                "auxiliary_dim": 64,
                "projection_dim": 64,
                "retrospect_epochs": 40,
                "plastic_decay": 0.9,  # averages that fit into 600 steps
                "stable_decay": 0.9,
            },
        ),
        size=Size(10, 143, (1, 32, 32)),
        about="scikit-learn's digits in 5 tasks of 2 classes, 32 pixels; bundled, no download",
    ),
}
