"""Backbones: published sizes, strict loading of real checkpoint layouts, users' own modules, growing heads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from recollect.errors import UserError
from recollect.nets import Network, as_backbone, backbones
from recollect.nets.convnet import ConvNet
from recollect.nets.resnet import ResNet18, resnet18
from recollect.nets.vit import ViT, vit_s16
from recollect.nets.weights import load_weights
from recollect.rng import Key


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def resnet18_checkpoint() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the ImageNet checkpoint of ResNet-18."""

    def norm(name: str, n: int) -> dict[str, tuple[int, ...]]:
        parts = {f"{name}.{part}": (n,) for part in ("weight", "bias", "running_mean", "running_var")}
        return parts | {f"{name}.num_batches_tracked": ()}

    found: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7)} | norm("bn1", 64)
    for layer, (before, after) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], start=1):
        for block in (0, 1):
            name = f"layer{layer}.{block}"
            found[f"{name}.conv1.weight"] = (after, before if block == 0 else after, 3, 3)
            found[f"{name}.conv2.weight"] = (after, after, 3, 3)
            found |= norm(f"{name}.bn1", after) | norm(f"{name}.bn2", after)
        if layer > 1:
            found[f"layer{layer}.0.downsample.0.weight"] = (after, before, 1, 1)
            found |= norm(f"layer{layer}.0.downsample.1", after)
    return found | {"fc.weight": (1000, 512), "fc.bias": (1000,)}


def vit_s16_checkpoint() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the checkpoint of ViT-S/16, ImageNet-21k fine-tuned on 1k."""
    found: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, 384),
        "pos_embed": (1, 197, 384),
        "patch_embed.proj.weight": (384, 3, 16, 16),
        "patch_embed.proj.bias": (384,),
        "norm.weight": (384,),
        "norm.bias": (384,),
        "head.weight": (1000, 384),
        "head.bias": (1000,),
    }
    for i in range(12):
        found |= {
            f"blocks.{i}.norm1.weight": (384,),
            f"blocks.{i}.norm1.bias": (384,),
            f"blocks.{i}.attn.qkv.weight": (1152, 384),
            f"blocks.{i}.attn.qkv.bias": (1152,),
            f"blocks.{i}.attn.proj.weight": (384, 384),
            f"blocks.{i}.attn.proj.bias": (384,),
            f"blocks.{i}.norm2.weight": (384,),
            f"blocks.{i}.norm2.bias": (384,),
            f"blocks.{i}.mlp.fc1.weight": (1536, 384),
            f"blocks.{i}.mlp.fc1.bias": (1536,),
            f"blocks.{i}.mlp.fc2.weight": (384, 1536),
            f"blocks.{i}.mlp.fc2.bias": (384,),
        }
    return found


def random_file(layout: dict[str, tuple[int, ...]], path: Path) -> dict[str, torch.Tensor]:
    tensors = {
        name: torch.zeros((), dtype=torch.int64) if name.endswith("tracked") else torch.rand(shape) * 0.05
        for name, shape in layout.items()
    }
    save_file(tensors, path)
    return tensors


def independent_vit(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """ViT-S/16 from torch's own transformer layers, sharing no code with ours."""
    layer = nn.TransformerEncoderLayer(384, 6, 1536, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 12, nn.LayerNorm(384, 1e-6), enable_nested_tensor=False)
    names = {
        "norm1.weight": "norm1.weight", "norm1.bias": "norm1.bias",
        "norm2.weight": "norm2.weight", "norm2.bias": "norm2.bias",
        "attn.qkv.weight": "self_attn.in_proj_weight", "attn.qkv.bias": "self_attn.in_proj_bias",
        "attn.proj.weight": "self_attn.out_proj.weight", "attn.proj.bias": "self_attn.out_proj.bias",
        "mlp.fc1.weight": "linear1.weight", "mlp.fc1.bias": "linear1.bias",
        "mlp.fc2.weight": "linear2.weight", "mlp.fc2.bias": "linear2.bias",
    }  # fmt: skip
    state = {f"layers.{i}.{theirs}": weights[f"blocks.{i}.{ours}"] for i in range(12) for ours, theirs in names.items()}
    encoder.load_state_dict(state | {"norm.weight": weights["norm.weight"], "norm.bias": weights["norm.bias"]})
    patches = x.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 1, 4, 5).reshape(len(x), 196, 768)
    tokens = patches @ weights["patch_embed.proj.weight"].reshape(384, 768).T + weights["patch_embed.proj.bias"]
    z = torch.cat([weights["cls_token"].expand(len(x), 1, 384), tokens], 1) + weights["pos_embed"]
    return encoder.train()(z)[:, 0]  # training mode avoids the fused inference path; dropout is 0


def test_resnet18_has_the_published_size_and_nonnegative_features() -> None:
    assert count(ResNet18()) == 11_168_832
    assert count(ResNet18(imagenet_stem=True)) == 11_176_512
    assert ResNet18(1, 16)(torch.randn(2, 1, 32, 32)).shape == (2, 128)
    assert bool((ResNet18(3, 4)(torch.randn(2, 3, 32, 32)) >= 0).all())


def test_stem_follows_the_image_size() -> None:
    assert resnet18((3, 64, 64), width=4).conv1.kernel_size == (3, 3)
    assert resnet18((3, 96, 96), width=4).conv1.kernel_size == (7, 7)
    assert resnet18((3, 224, 224), width=4, stem="small").conv1.kernel_size == (3, 3)
    assert resnet18((3, 96, 96), width=4)(torch.randn(1, 3, 96, 96)).shape == (1, 32)


def test_imagenet_weights_load_strictly(tmp_path: Path) -> None:
    network = ResNet18(imagenet_stem=True)
    tensors = random_file(resnet18_checkpoint(), tmp_path / "w.safetensors")
    load_weights(network, tmp_path / "w.safetensors", drop=("fc.",))
    state = network.state_dict()
    assert state.keys() == {name for name in tensors if not name.startswith("fc.")}
    assert all(torch.equal(state[name], tensors[name]) for name in state)


def test_vit_loads_the_real_layout_and_equals_an_independent_implementation(tmp_path: Path) -> None:
    network = ViT().eval()
    assert count(network) == 21_665_664 + 384 * 512 + 512
    tensors = random_file(vit_s16_checkpoint(), tmp_path / "w.safetensors")
    load_weights(network.trunk, tmp_path / "w.safetensors", drop=("head.",))
    x = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        expected = independent_vit(tensors, x)
        assert torch.allclose(network.trunk(x), expected, atol=1e-5)
        assert torch.allclose(network(x), F.relu(expected @ network.neck.weight.T + network.neck.bias), atol=1e-5)
        assert network(torch.randn(1, 3, 32, 32)).shape == (1, 512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("cls_token"), "missing .*cls_token"),
        (lambda t: t.update(extra=torch.zeros(1)), "not expected .*extra"),
        (lambda t: t.update(cls_token=torch.zeros(1, 1, 3)), r"cls_token has shape \(1, 1, 3\), expected \(1, 1, 32\)"),
    ],
)
def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path: Path, change, message: str) -> None:
    network = ViT(image_size=32, patch_size=16, dim=32, depth=1, num_heads=2)
    before = {name: tensor.clone() for name, tensor in network.trunk.state_dict().items()}
    tensors = {name: torch.ones_like(tensor) for name, tensor in before.items()}
    change(tensors)
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=message):
        load_weights(network.trunk, tmp_path / "w.safetensors")
    assert all(torch.equal(before[name], tensor) for name, tensor in network.trunk.state_dict().items())


def test_an_unreadable_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="not a readable safetensors"):
        load_weights(nn.Linear(1, 1), tmp_path / "w.safetensors")


def test_pretrained_networks_state_their_normalisation(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []
    for home in ("resnet", "vit"):
        monkeypatch.setattr(f"recollect.nets.{home}.load_pretrained", lambda network, name, drop: fetched.append(name))
    imagenet, halves = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ((0.5,) * 3, (0.5,) * 3)
    assert resnet18((3, 96, 96), weights="imagenet").normalisation == imagenet
    assert vit_s16((3, 224, 224)).normalisation == halves
    assert len(fetched) == 2
    assert resnet18((3, 96, 96)).normalisation is vit_s16((3, 224, 224), weights="none").normalisation is None
    own = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    own.normalisation = imagenet
    assert as_backbone(own, (3, 2, 2)).normalisation == imagenet


def test_imagenet_weights_need_the_imagenet_shape() -> None:
    with pytest.raises(UserError, match="width 16"):
        resnet18((3, 224, 224), width=16, weights="imagenet")
    with pytest.raises(UserError, match="stem=imagenet"):
        resnet18((3, 32, 32), weights="imagenet")


def test_any_module_becomes_a_backbone() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 9), nn.BatchNorm1d(9))
    before = plain[2].running_mean.clone()  # type: ignore[union-attr, operator]
    backbone = as_backbone(plain, (3, 16, 16))
    assert backbone.feature_dim == 9
    assert backbone.nonnegative is False
    assert plain.training
    assert torch.equal(before, plain[2].running_mean)  # type: ignore[arg-type]
    assert as_backbone(plain, (3, 16, 16), feature_dim=9, nonnegative=True).nonnegative is True
    own = ResNet18(3, 4)
    assert as_backbone(own, (3, 16, 16)) is own
    with pytest.raises(UserError, match="does not take images of shape"):
        as_backbone(plain, (3, 8, 8))
    with pytest.raises(UserError, match=r"gave \(2, 4, 16, 16\)"):
        as_backbone(nn.Conv2d(3, 4, 1), (3, 16, 16))


@pytest.mark.parametrize("name", ["convnet", "resnet18", "vit-small"])
def test_registered_backbones_state_the_size_and_sign_of_their_features(name: str) -> None:
    network = backbones()[name].make((3, 32, 32))
    f = network(torch.randn(2, 3, 32, 32))
    assert f.shape == (2, network.feature_dim)
    assert not network.nonnegative or bool((f >= 0).all())


def network(fixed: tuple[int, ...] = ()) -> Network:
    return Network(as_backbone(nn.Flatten(), (1, 2, 2)), Key(0), fixed)


def test_heads_grow_in_unequal_sizes_and_old_ones_stay() -> None:
    net = network()
    net.begin_task(2)
    first = net.heads[0].weight.clone()
    net.begin_task(1)
    net.begin_task(3)
    assert net(torch.randn(4, 1, 2, 2)).shape == (4, 6)
    assert [net.units(t) for t in range(3)] == [slice(0, 2), slice(2, 3), slice(3, 6)]
    assert net.task_of_unit.tolist() == [0, 0, 1, 2, 2, 2]
    assert torch.equal(net.heads[0].weight, first)


def test_a_head_starts_the_same_whether_fixed_or_grown() -> None:
    grown, fixed = network(), network((2, 3))
    grown.begin_task(2)
    grown.begin_task(3)
    assert torch.equal(grown.heads[1].weight, fixed.heads[1].weight)
    fixed.begin_task(2)
    assert fixed.seen() == slice(0, 2)
    assert fixed(torch.randn(1, 1, 2, 2)).shape == (1, 5)
    with pytest.raises(UserError, match="heads are fixed to"):
        fixed.begin_task(4)


def test_cross_entropy_over_seen_units_or_the_images_own_task() -> None:
    net = network((2, 2, 2))
    net.begin_task(2)
    net.begin_task(2)
    logits, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 3])
    seen = F.cross_entropy(logits[:, :4], y)
    assert torch.allclose(net.cross_entropy(logits, y, "seen"), seen)
    own = [
        F.cross_entropy(logits[i : i + 1, 2 * (c // 2) : 2 * (c // 2) + 2], torch.tensor([c % 2]))
        for i, c in enumerate(y.tolist())
    ]
    assert torch.allclose(net.cross_entropy(logits, y, "task"), torch.stack(own).mean())


def test_removed_units_leave_the_softmax_of_the_others() -> None:
    network = Network(ConvNet(3, 4), Key(0))
    for num_classes in (3, 1, 2):
        network.begin_task(num_classes)
    f = torch.randn(5, network.feature_dim)
    before = [head(f) for head in network.heads]
    masks = network.drop_units([1, 3])
    assert [mask.tolist() for mask in masks] == [[True, False, True], [False], [True, True]]
    assert network.sizes() == [2, 0, 2]
    assert network.task_of_unit.tolist() == [0, 0, 2, 2]
    after = [head(f) for head in network.heads]
    assert torch.allclose(after[0].softmax(1), before[0][:, [0, 2]].softmax(1), atol=1e-6)
    assert after[1].shape == (5, 0)
    assert torch.equal(after[2], before[2])
    left = network.heads[0].weight.detach().sum(0).abs().max()
    assert float(left) < 1e-6  # nothing of the removed row can be computed
