"""Copies between the host and a device, sizes of batches, and the precision of what is computed from outputs.

Losses and scores are computed in single precision at least; linear algebra of statistics in double, on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; asynchronous where the copy no longer needs the host's memory when the call returns.

    CUDA stages ordinary memory before the call returns. Elsewhere an asynchronous copy may read memory that was freed
    already.
    """
    return tensor.to(device, non_blocking=device.type == "cuda")


def to_host(tensor: Tensor) -> Tensor:
    """A copy in ordinary memory."""
    return tensor.detach().cpu()


def at_least_single(x: Tensor) -> Tensor:
    """Half-precision tensors as single; others unchanged."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def on_host_in_double(x: Tensor) -> Tensor:
    """A copy for linear algebra that single precision is too coarse for; not every device has doubles."""
    return to_host(x).double()


class Rows:
    """A tensor that is filled part by part, so that its parts are not held beside it.

    >>> rows = Rows(3)
    >>> rows.add(torch.tensor([[1.0], [2.0]]))
    >>> rows.add(torch.tensor([[3.0]]))
    >>> rows.tensor.flatten()
    tensor([1., 2., 3.])
    """

    def __init__(self, num: int) -> None:
        self._tensor = torch.zeros(0)
        self._num, self._filled = num, 0

    @property
    def tensor(self) -> Tensor:
        assert self._filled == self._num, f"{self._filled} of {self._num} rows were filled"
        return self._tensor

    def add(self, part: Tensor) -> None:
        """Put the part after those before it."""
        if not self._filled:
            self._tensor = part.new_empty(self._num, *part.shape[1:])
        self._tensor[self._filled : self._filled + len(part)] = part
        self._filled += len(part)


def reading_batch_size(images: Tensor, device: torch.device) -> int:
    """How many of the images [n, c, h, w] a network reads at a time when it is not trained.

    On a CPU, large batches of large images leave its caches and take longer per image.
    """
    largest = 256
    if device.type != "cpu":
        return largest
    height, width = images.shape[-2:]
    return max(16, min(largest, 16 * 128 * 128 // max(height * width, 1)))
