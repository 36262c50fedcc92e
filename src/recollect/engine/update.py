"""One optimiser step, and the plateau that lowers a group's learning rate when its validation loss stalls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from recollect.core import Frozen
from recollect.distributed.world import SINGLE, World
from recollect.errors import UserError
from recollect.methods import Phase


class NonFiniteLossError(UserError):
    """The loss became NaN or infinite."""


@dataclass(frozen=True, kw_only=True)
class Plateau:
    """Learning rate × factor once the loss has not fallen by a relative 1e-4 for `patience` epochs in a row."""

    patience: int = 3
    factor: float = 0.1
    threshold: float = 1e-4


class _Watch:
    """The plateau of one parameter group."""

    def __init__(self) -> None:
        self.best = math.inf
        self.num_stalled = 0

    def lowers(self, loss: float, plateau: Plateau) -> bool:
        if loss < self.best * (1 - plateau.threshold):
            self.best, self.num_stalled = loss, 0
            return False
        self.num_stalled += 1
        if self.num_stalled < plateau.patience:
            return False
        self.num_stalled = 0
        return True


class Optimiser:
    """Adam over the groups of a phase; every other parameter of the learner is frozen.

    Calling it takes one step. Losses stay on the device until `losses` are asked for, so no step waits for the host.
    All ranks take the same step, by the mean of their gradients weighted by `weight`.
    """

    def __init__(
        self,
        learner: nn.Module,
        phase: Phase,
        plateau: Plateau,
        num_steps: int,
        device: torch.device,
        world: World = SINGLE,
    ) -> None:
        self._learner = learner
        self._world = world
        self.weight = 1.0
        learner.requires_grad_(False)
        groups = []
        for parameters in phase.groups.values():
            for parameter in parameters:
                parameter.requires_grad_(True)
            groups.append({"params": list(parameters), "lr": phase.schedule.learning_rate})
        self.names = list(phase.groups)
        self._adam = torch.optim.Adam(groups, fused=True)
        self._plateau, self._rate = plateau, phase.schedule.learning_rate
        self._watches = [_Watch() for _ in groups]
        self._losses = torch.zeros(num_steps, device=device)
        self.step = 0

    def __call__(self, loss: Tensor, edit: Callable[[list[Tensor]], None] | None = None) -> None:
        self._adam.zero_grad(set_to_none=True)
        with torch.autocast(loss.device.type, enabled=False):
            loss.backward()
            loss = self._all_reduce(loss.detach())
            if edit is not None:
                edit([_gradient(parameter) for parameter in self._parameters()])
            self._adam.step()
        torch.clear_autocast_cache()  # the weights have moved: no later pass of this step may read old copies
        self._losses[self.step] = loss
        self.step += 1

    def set_rate(self, share: float) -> None:
        """Train on at a share of the phase's learning rate."""
        for group in self._adam.param_groups:
            group["lr"] = share * self._rate

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """The gradients of another loss, as `edit` is given them; nothing moves."""
        gradients = torch.autograd.grad(loss, self._parameters(), allow_unused=True, materialize_grads=True)
        self._world.all_reduce_(gradients, self.weight)
        return list(gradients)

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self._adam.param_groups for parameter in group["params"]]

    def _all_reduce(self, loss: Tensor) -> Tensor:
        """Make gradients and moving statistics those of the global batch; returns its loss."""
        if self._world.size == 1:
            return loss
        loss, parameters = loss.clone(), self._parameters()
        reached = loss.new_tensor([parameter.grad is not None for parameter in parameters])
        all_here = all(parameter.grad is not None for parameter in parameters)
        gradients = [_gradient(parameter) for parameter in parameters]
        self._world.all_reduce_([loss, reached, *gradients, *_running_statistics(self._learner)], self.weight)
        for parameter, anywhere in zip(parameters, [] if all_here else reached.tolist(), strict=False):
            if not anywhere:  # Adam skips it, as in one process
                parameter.grad = None
        return loss

    def mean_loss(self) -> float:
        """The mean loss of the epoch so far; refuses to go on where it is not a number."""
        losses = self._losses[: self.step]
        if not bool(torch.isfinite(losses).all()):
            first = int((~torch.isfinite(losses)).nonzero()[0, 0])
            raise NonFiniteLossError(f"the loss became {float(losses[first])} at step {first + 1}")
        return float(losses.mean())

    def check(self, validation: Mapping[str, float]) -> None:
        """Refuse to go on where the weights that the last step left give no number."""
        for name, loss in validation.items():
            if not math.isfinite(loss):
                raise NonFiniteLossError(f"the validation loss of the {name} became {loss} after step {self.step}")

    def end_epoch(self, validation: Mapping[str, float]) -> dict[str, float]:
        """Lower the learning rate of groups that stall; returns the rates that the next epoch trains with."""
        for name, group, watch in zip(self.names, self._adam.param_groups, self._watches, strict=True):
            if watch.lowers(validation[name], self._plateau):
                group["lr"] *= self._plateau.factor
        self.step = 0
        return {name: float(group["lr"]) for name, group in zip(self.names, self._adam.param_groups, strict=True)}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Moments of every parameter and losses of this epoch; step, learning rates and plateaus."""
        state = self._adam.state_dict()["state"]
        tensors = {f"{index}.{name}": tensor for index, moments in state.items() for name, tensor in moments.items()}
        values = {
            "step": self.step,
            "rates": [group["lr"] for group in self._adam.param_groups],
            "best": [watch.best if math.isfinite(watch.best) else None for watch in self._watches],
            "num_stalled": [watch.num_stalled for watch in self._watches],
        }
        return tensors | {"losses": self._losses}, values

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Stand where `state` was taken."""
        own = self._adam.state_dict()
        parameters = self._parameters()
        for name, tensor in tensors.items():
            index, _, moment = name.partition(".")
            if moment:  # the fused step trusts its shapes
                shape = {"step": torch.Size()}.get(moment, parameters[int(index)].shape)
                if tensor.shape != shape or not tensor.is_floating_point():
                    raise ValueError(f"{name} has the shape {list(tensor.shape)}, not {list(shape)}")
                own["state"].setdefault(int(index), {})[moment] = tensor
        if any(moments.keys() != {"step", "exp_avg", "exp_avg_sq"} for moments in own["state"].values()):
            raise ValueError("moments of Adam are missing")
        self._adam.load_state_dict(own)
        for parameter, moments in self._adam.state.items():
            for moment, tensor in moments.items():
                if tensor.shape == parameter.shape:  # laid out in memory as the parameter, as the fused step expects
                    moments[moment] = torch.empty_like(parameter).copy_(tensor)
        self._losses.copy_(tensors["losses"])
        self.step = int(values["step"])
        if self.step < 0:
            raise ValueError(f"step {self.step}")
        for group, rate in zip(self._adam.param_groups, values["rates"], strict=True):
            group["lr"] = float(rate)
        for watch, best, num_stalled in zip(self._watches, values["best"], values["num_stalled"], strict=True):
            watch.best, watch.num_stalled = math.inf if best is None else float(best), int(num_stalled)


def _running_statistics(learner: nn.Module) -> list[Tensor]:
    """Buffers that a forward pass may have updated: BatchNorm's running statistics, also of adapting teachers."""
    active = [module for module in learner.modules() if module.training]
    for module in learner.modules():
        if isinstance(module, Frozen) and module.statistics == "adapting":
            active += module.modules()
    return [buffer for module in active for buffer in module.buffers(recurse=False) if buffer.is_floating_point()]


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
