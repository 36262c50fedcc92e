"""No shape of a network that a user can choose may corrupt memory or end the process, on any kind of processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recollect.engine import Runtime
from recollect.engine.cpu_faults import set_layout, survives_bf16
from recollect.errors import UserError

PROCESSORS: dict[str, dict[str, str]] = {
    "as it is": {},
    "oneDNN with AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "both with AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
}
HEAP_CHECKER = Path("/usr/lib/x86_64-linux-gnu/libc_malloc_debug.so")

GRID = """
import itertools, sys
import torch
from torch import nn
from recollect.core import folded
from recollect.engine import Runtime
from recollect.nets.resnet import ResNet18

torch.set_num_threads(1)
runtime = Runtime.choose("cpu", "fp32")

def train_and_read(network, shape):
    runtime.place(network)
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(10, *shape).contiguous(memory_format=layout).requires_grad_()
        network(x).square().mean().backward()
        runtime.place(network)  # once more, as before each task
        reader = folded(network, shape)
        with torch.no_grad():
            expected, output = network.eval()(x), reader(x)
        network.train()
        assert torch.allclose(output, expected, rtol=1e-3, atol=1e-4), (network, layout)

for channels, kernel, stride, grouped in itertools.product(range(1, 18), (1, 3), (1, 2), (False, True)):
    groups = channels if grouped else 1
    layer = nn.Conv2d(channels, 2 * channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    first = nn.Conv2d(3, channels, 3, padding=1)
    train_and_read(nn.Sequential(first, layer, nn.BatchNorm2d(2 * channels), nn.ReLU()), (3, 16, 16))
    train_and_read(nn.Sequential(layer, nn.BatchNorm2d(2 * channels)), (channels, 16, 16))
for width in (1, 4):
    train_and_read(ResNet18(3, width), (3, 32, 32))
print("the grid is done")
"""


@pytest.mark.parametrize("settings", PROCESSORS.values(), ids=PROCESSORS)
def test_small_convolutions_train_and_predict_without_corrupting_memory(settings: dict[str, str]) -> None:
    """The heap is checked at every release, so that an overrun is seen where it happens and not by luck."""
    checker = {"LD_PRELOAD": str(HEAP_CHECKER), "MALLOC_CHECK_": "3"} if HEAP_CHECKER.exists() else {}
    ended = subprocess.run(
        [sys.executable, "-c", GRID], env=os.environ | settings | checker, capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "the grid is done"), ended.stderr[-2000:]


def test_only_layers_that_torch_computes_wrongly_leave_channels_last() -> None:
    def lay_out(*shape: int, **options: Any) -> nn.Conv2d:
        layer = nn.Conv2d(*shape, **options)
        set_layout(layer)
        return layer

    def is_channels_last(layer: nn.Conv2d) -> bool:
        return layer(torch.randn(2, layer.in_channels, 9, 9)).is_contiguous(memory_format=torch.channels_last)

    assert is_channels_last(lay_out(8, 8, 1, 2))
    assert is_channels_last(lay_out(4, 8, 3, 2))
    assert is_channels_last(lay_out(4, 8, 1, 1))
    assert not is_channels_last(lay_out(7, 8, 1, 2))
    assert not is_channels_last(lay_out(14, 8, 1, 2, groups=2))
    fragile = lay_out(4, 8, 1, 2)
    set_layout(fragile)
    x = torch.randn(2, 4, 9, 9).contiguous(memory_format=torch.channels_last)
    assert fragile(x).is_contiguous()
    assert len(fragile._forward_pre_hooks) == 1


def test_bf16_is_refused_and_not_chosen_where_it_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert survives_bf16()  # as tests/conftest.py makes sure
    assert Runtime.choose("cpu", "bf16").precision == "bf16"
    monkeypatch.setattr("recollect.engine.runtime.survives_bf16", lambda: False)
    assert Runtime.choose("cpu", "auto").precision == "fp32"
    with pytest.raises(UserError, match="use --precision fp32"):
        Runtime.choose("cpu", "bf16")


def test_bf16_is_not_chosen_where_onednn_would_emulate_it() -> None:
    code = "from recollect.engine import Runtime; print(Runtime.choose('cpu').precision)"
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "fp32"
