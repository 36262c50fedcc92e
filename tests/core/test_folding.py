"""A folded copy says what the network says, without BatchNorm; what cannot be folded is copied as it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from recollect.core import folded
from recollect.nets import backbones
from recollect.nets.resnet import ResNet18


def worn(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module as after training: every number of its norms is its own."""
    torch.manual_seed(seed)
    for part in module.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            for tensor, low in (
                (part.weight, 0.5),
                (part.bias, -1.0),
                (part.running_mean, -1.0),
                (part.running_var, 0.5),
            ):
                with torch.no_grad():
                    tensor.uniform_(low, low + 2)
    return module.double().eval()


def num_norms(module: nn.Module) -> int:
    return sum(isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)) for part in module.modules())


@pytest.mark.parametrize("name", sorted(set(backbones()) - {"own"}))
def test_every_backbone_folded_gives_the_same_features(name: str) -> None:
    shape = (3, 32, 32)
    small = {"resnet18": {"width": 4}, "vit-s16": {"weights": "none"}}
    options = small.get(name, {})
    module = worn(backbones()[name].make(shape, **options))
    x = torch.randn(3, *shape, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(folded(module, shape)(x), module(x), rtol=1e-10, atol=1e-12)


def test_resnet_has_no_norm_left_and_the_original_is_untouched() -> None:
    module = worn(ResNet18(3, 4))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    copy = folded(module, (3, 32, 32))
    assert num_norms(module) == 20
    assert num_norms(copy) == 0
    assert not any(parameter.requires_grad for parameter in copy.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


class Branching(nn.Module):
    """Reads the layer before its norm twice, and decides by the values it sees."""

    def __init__(self, by_value: bool) -> None:
        super().__init__()
        self.layer, self.norm, self.by_value = nn.Linear(12, 5), nn.BatchNorm1d(5), by_value

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x.flatten(1))
        if self.by_value and y.sum() > 0:
            return -y
        return self.norm(y) + y


class Twice(nn.Module):
    """Uses one layer with two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.one, self.two = nn.Linear(12, 12), nn.BatchNorm1d(12), nn.BatchNorm1d(12)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.layer(self.one(self.layer(x.flatten(1)))))


@pytest.mark.parametrize(
    "module", [Branching(False), Branching(True), Twice()], ids=["read twice", "by value", "twice"]
)
def test_modules_that_cannot_be_folded_give_the_same_outputs(module: nn.Module) -> None:
    module = worn(module)
    copy = folded(module, (3, 2, 2))
    assert num_norms(copy) == num_norms(module)
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    assert torch.equal(copy(x), module(x))


def test_an_error_inside_a_module_is_raised() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        folded(nn.Sequential(nn.Flatten(), nn.Linear(7, 5)), (3, 2, 2))


def test_a_network_is_folded_under_autocast_too() -> None:
    module = worn(ResNet18(3, 4)).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert num_norms(folded(module, (3, 32, 32))) == 0


def test_a_linear_layer_is_folded() -> None:
    module = worn(nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5), nn.ReLU()))
    copy = folded(module, (3, 2, 2))
    assert num_norms(copy) == 0
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    assert torch.allclose(copy(x), module(x), rtol=1e-10)


def test_a_folded_copy_with_other_outputs_is_not_used() -> None:
    """A hook is lost when a module is traced; the example shows it."""
    module = worn(nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5)))
    module.register_forward_hook(lambda _module, _inputs, output: 2 * output)
    copy = folded(module, (3, 2, 2))
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    assert torch.allclose(copy(x), module(x))
