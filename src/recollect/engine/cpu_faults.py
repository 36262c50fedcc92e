"""Faults of torch's CPU kernels that would end the process or corrupt its memory, and how they are avoided.

1. Convolutions. Seen with torch 2.13 (oneDNN's AVX2 kernels): the backward pass of a channels-last convolution of
   kernel 1 and stride 2 writes out of bounds where a group has fewer than 8 input channels. Channels-first is
   safe, and so are kernels of 3. One operand in channels-last order is enough to reach the fault, so such a layer keeps
   its weight in channels-first order and gets its input in it too.
2. bf16. Seen with torch 2.13 on a virtual machine whose processor reports AMX: a bf16 matrix product ends the
   process with an illegal instruction. Nothing tells of it beforehand, so it is tried once, in a process of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

MIN_INPUT_CHANNELS = 8
PROBE_SECONDS = 20


def set_layout(module: nn.Module) -> None:
    """Lay out the module's convolutions channels-last, except those that torch computes wrongly in that order."""
    for part in module.modules():
        if not isinstance(part, nn.Conv2d):
            continue
        if not _is_fragile(part):
            part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        elif _make_input_contiguous not in part._forward_pre_hooks.values():
            part.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            part.register_forward_pre_hook(_make_input_contiguous)


def _is_fragile(layer: nn.Conv2d) -> bool:
    is_pointwise = all(size == 1 for size in layer.kernel_size)
    is_strided = any(step > 1 for step in layer.stride)
    return is_pointwise and is_strided and layer.in_channels // layer.groups < MIN_INPUT_CHANNELS


def _make_input_contiguous(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    x: Tensor = inputs[0]
    # One channel, or one pixel, is contiguous in both orders, and torch may take its strides for channels-last; a
    # clone resets them.
    is_ambiguous = x.shape[-3] == 1 or x.shape[-2:].numel() == 1
    return (x.clone(memory_format=torch.contiguous_format) if is_ambiguous else x.contiguous(), *inputs[1:])


@cache
def survives_bf16() -> bool:
    """Whether this machine's processor multiplies bf16 matrices without ending the process."""
    if sys.platform != "linux":  # where the fault was seen, and where a fork is safe
        return True
    import resource

    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of fork beside threads
        child = os.fork()
    if child == 0:
        failed = True
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump of the whole process takes seconds
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PROBE_SECONDS)
            torch.set_num_threads(1)
            x = torch.ones(64, 64, dtype=torch.bfloat16)
            failed = float((x @ x)[0, 0]) != 64.0
        finally:  # whatever happens, the child runs nothing else of the program
            os._exit(failed)
    return os.waitpid(child, 0)[1] == 0
