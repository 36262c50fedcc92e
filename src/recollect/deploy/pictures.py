"""One image of any kind (a file, a Pillow image, an array, a tensor) as a uint8 square."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from recollect.device import to_host
from recollect.errors import UserError
from recollect.pictures import read_file, upright


def read_image(image: Any, size: int) -> Tensor:
    """An image of any kind, or its path, as uint8 [3, size, size]."""
    if isinstance(image, str | Path):
        return torch.from_numpy(read_file(image, size))
    if isinstance(image, tuple):
        raise UserError(f"each item is an image, got a tuple of {len(image)}; leave labels out")
    return _resize(image, size)


def _resize(image: Any, size: int) -> Tensor:
    """One image of any kind as uint8 [3, size, size]: the centre square, resized."""
    if isinstance(image, Image.Image):
        try:
            picture = upright(image)
        except (OSError, ValueError) as error:  # corrupt, or with pixels of an unsupported type
            raise UserError(f"an image cannot be read ({error}); replace or remove it") from error
    else:
        picture = _to_pillow(image).convert("RGB")
    if picture.size != (size, size):
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1)))


def _to_pillow(image: Any) -> Image.Image:
    if isinstance(image, Tensor):
        image = to_host(image.float() if image.is_floating_point() else image)
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or not array.size or (array.shape[0] not in (1, 3) and array.shape[2] not in (1, 3)):
        raise UserError(f"an image has the shape [height, width], [h, w, 3] or [3, h, w]; got {list(array.shape)}")
    if array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.dtype != np.uint8:
        is_float = np.issubdtype(array.dtype, np.floating)
        if not is_float or not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise UserError(
                f"pixels are uint8, or floats from 0 to 1; got {array.dtype} from {array.min()} to {array.max()}"
            )
        array = np.rint(array * 255).astype(np.uint8)
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
