"""Devices and precision; beside it only device.py and reading.py name devices."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from recollect.distributed.world import SINGLE, World
from recollect.engine.cpu_faults import set_layout, survives_bf16
from recollect.errors import UserError

Precision = Literal["fp32", "bf16"]
MAX_THREADS = 1024


@dataclass(frozen=True)
class Runtime:
    """Where and how precisely a run computes."""

    device: torch.device
    precision: Precision = "fp32"
    world: World = SINGLE

    @staticmethod
    def choose(device: str = "auto", precision: str = "fp32", threads: int = 0, world: World = SINGLE) -> Runtime:
        """`auto` takes a GPU, then a Mac's, then the processor; `threads=0` leaves torch's choice.

        The precision `auto` is bf16 where the device computes in it natively, and fp32 elsewhere. With several ranks
        on a machine each uses a GPU of its own, or all share the processor.
        """
        if precision not in ("auto", "fp32", "bf16"):
            raise UserError(f"precision is 'auto', 'fp32' or 'bf16', got {precision!r}")
        available = ["cpu"]
        if torch.backends.mps.is_available() and world.size == 1:
            available.insert(0, "mps")
        if torch.cuda.is_available():
            available.insert(0, "cuda")
        name = available[0] if device == "auto" else device
        kind, _, number = name.partition(":")
        count = torch.cuda.device_count() if kind == "cuda" else 1
        if kind == "cuda" and world.size > 1:
            if number or world.launch.local_rank >= count:
                raise UserError(
                    "each process takes a GPU of its own: say --device cuda, and start no more processes on a machine "
                    f"than it has GPUs; got --device {device}, and there are {count}"
                )
            number = str(world.launch.local_rank)
            name = f"cuda:{number}"
            torch.cuda.set_device(world.launch.local_rank)
        if kind not in available or (number and not (number.isdecimal() and int(number) < count)):
            raise UserError(f"device {device!r} is not available here; there is {', '.join(available)}")
        if not 0 <= threads <= MAX_THREADS:
            raise UserError(f"threads must be between 1 and {MAX_THREADS}, or 0 for torch's own choice; got {threads}")
        if threads:
            torch.set_num_threads(threads)
        if kind == "cuda":  # the same bits again on the same machine
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        if precision == "bf16" and kind == "cpu" and not survives_bf16():
            raise UserError(
                "a bf16 matrix product ends the process on this machine (a fault of torch or of the virtual machine); "
                "use --precision fp32, or set the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
            )
        native = precision == "auto" and _computes_in_bf16(kind)
        return Runtime(torch.device(name), "bf16" if precision == "bf16" or native else "fp32", world)

    @property
    def is_on_processor(self) -> bool:
        """Whether it computes on no GPU."""
        return self.device.type == "cpu"

    def place(self, module: nn.Module) -> None:
        """Move a module to the device, its convolutions laid out channels last where that is faster."""
        module.to(self.device)
        if self.device.type != "mps":  # where that layout has given wrong results
            set_layout(module)

    @contextmanager
    def own_randomness(self) -> Iterator[None]:
        """Layers such as dropout draw from torch's global generators; the caller's go on afterwards as they were."""
        on_host, on_device = torch.get_rng_state(), None
        if self.device.type == "cuda":
            on_device = torch.cuda.get_rng_state(self.device)
        try:
            yield
        finally:
            torch.set_rng_state(on_host)
            if on_device is not None:
                torch.cuda.set_rng_state(on_device, self.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision for forward passes, where asked for."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @property
    def dtype(self) -> torch.dtype:
        """What layers compute in."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    def describe(self) -> dict[str, Any]:
        """What bits are promised under: machine, threads, versions."""
        name = platform.processor() or platform.machine()
        if self.device.type == "cuda":
            name = torch.cuda.get_device_name(self.device)
        return {
            "device": self.device.type,
            "processor": name,
            "processes": self.world.size,
            "threads": torch.get_num_threads(),
            "precision": self.precision,
            "platform": platform.platform(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }


def _computes_in_bf16(kind: str) -> bool:
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if kind != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return False
    abilities = torch.cpu.get_capabilities()  # of the processor; oneDNN may be limited to less, by ONEDNN_MAX_CPU_ISA
    if not (abilities.get("avx512_bf16") or abilities.get("amx_bf16")) or not torch.backends.mkldnn.is_available():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and survives_bf16()
