"""The only file that knows devices and precision."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from recollect.errors import UserError

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Runtime:
    """Where and how precisely a run computes."""

    device: torch.device
    precision: Precision = "fp32"

    @staticmethod
    def choose(device: str = "auto", precision: str = "fp32", threads: int = 0) -> Runtime:
        """`auto` takes a GPU, then a Mac's, then the processor; `threads=0` leaves torch's choice."""
        if precision not in ("fp32", "bf16"):
            raise UserError(f"precision is 'fp32' or 'bf16', got {precision!r}")
        available = ["cpu"]
        if torch.backends.mps.is_available():
            available.insert(0, "mps")
        if torch.cuda.is_available():
            available.insert(0, "cuda")
        name = available[0] if device == "auto" else device
        if name.split(":")[0] not in available:
            raise UserError(f"device {device!r} is not available here; there is {', '.join(available)}")
        if threads < 0:
            raise UserError(f"threads must be positive, or 0 for torch's own choice; got {threads}")
        if threads:
            torch.set_num_threads(threads)
        return Runtime(torch.device(name), "bf16" if precision == "bf16" else "fp32")

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision for forward passes, where asked for."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def describe(self) -> dict[str, Any]:
        """What bits are promised under: machine, threads, versions."""
        name = platform.processor() or platform.machine()
        if self.device.type == "cuda":
            name = torch.cuda.get_device_name(self.device)
        return {
            "device": self.device.type,
            "processor": name,
            "threads": torch.get_num_threads(),
            "precision": self.precision,
            "platform": platform.platform(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }


def to_host(tensor: Tensor) -> Tensor:
    """A copy in ordinary memory."""
    return tensor.detach().cpu()
