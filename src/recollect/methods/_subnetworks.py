"""What methods share that are told the task: each task t has a sub-network f_t of its own and a head w_t on it.

til: z_t = w_t(f_t(x));  L_CE is over the units of the task.
cil: every sub-network reads the image, and classes are ranked by softmax(z_t)_c / N.

With shared weights, only the weights of convolutions and linear layers are shared. All other learnable parameters
(biases, normalisation, embeddings) and all buffers (BatchNorm's statistics) are copied when a task ends, so each task
has its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd

from recollect.core import average
from recollect.device import at_least_single
from recollect.methods.learner import (
    Learner,
    Parameters,
    Phase,
    Scores,
    Setup,
    Validation,
    num_correct,
    num_parameters,
)
from recollect.nets import Network
from recollect.streams import Batch, TaskData, TaskInfo

Config = TypeVar("Config")


class SubnetworkLearner(Learner[Config], ABC):
    """Reads each task by its own sub-network and head."""

    one_unit_per_class = False

    @abstractmethod
    def task_features(self, x: Tensor) -> list[Tensor]:
        """f_t(x) of every task begun."""

    def rank(self, logits: Sequence[Tensor]) -> Tensor:
        """Scores over the units of all tasks, from the logits of each task."""
        return average(logits)

    def scores(self, x: Tensor) -> Scores:
        features = self.task_features(x)
        logits = [at_least_single(head(f)) for head, f in zip(self.network.heads, features, strict=False)]
        for size in self.network.sizes()[len(logits) :]:  # fixed heads of future tasks have no sub-network yet
            logits.append(x.new_zeros(len(x), size))
        return Scores(til=torch.cat(logits, dim=1), cil=self.rank(logits))

    def features(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        own = self.task_features(x)
        return own[-1], own

    def task_loss(self, f: Tensor, batch: Batch, task: TaskInfo) -> Tensor:
        """L_CE(w_t(f), y) over the units of the task."""
        return F.cross_entropy(*self._logits_and_labels(f, batch, task))

    def task_validation(self, f: Tensor, batch: Batch, task: TaskInfo, group: str) -> Validation:
        """L_CE and how many images are classified correctly within the task."""
        logits, y = self._logits_and_labels(f, batch, task)
        return Validation({group: F.cross_entropy(logits, y)}, num_correct(logits, y))

    def _logits_and_labels(self, f: Tensor, batch: Batch, task: TaskInfo) -> tuple[Tensor, Tensor]:
        logits = at_least_single(self.network.heads[task.index](f))
        return logits, batch.y - self.network.units(task.index).start


class SharedWeightsLearner(SubnetworkLearner[Config], ABC):
    """Sub-networks that share the backbone's weights. The backbone itself holds the newest task's own tensors."""

    def __init__(self, network: Network, config: Config, setup: Setup, layers: Collection[str] | None = None) -> None:
        """Share the weights of these layers; by default of all."""
        super().__init__(network, config, setup)
        learnable = {id(parameter) for parameter in network.learnable()}
        self.layers = {
            f"{name}.weight".lstrip("."): name
            for name, module in network.backbone.named_modules()
            if isinstance(module, _ConvNd | nn.Linear) and id(module.weight) in learnable
            if layers is None or name in layers
        }
        """Layers whose weights are shared: the name of the module by that of its weight."""
        self.own_names = [
            name
            for name, tensor in network.backbone.state_dict(keep_vars=True).items()
            if name not in self.layers and (not isinstance(tensor, nn.Parameter) or id(tensor) in learnable)
        ]
        """Parameters and buffers of which each task has its own."""

    @abstractmethod
    def subnetwork(self, x: Tensor, task: int) -> Tensor:
        """f_t(x) of a task that has ended."""

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        for index, tensor in enumerate(self.own_tensors()):
            self.register_buffer(f"own_{task.index}_{index}", tensor.detach().clone())

    def end_task(self, task: TaskInfo, data: TaskData) -> None:
        for index, tensor in enumerate(self.own_tensors()):
            self.get_buffer(f"own_{task.index}_{index}").copy_(tensor.detach())

    def task_features(self, x: Tensor) -> list[Tensor]:
        return [self.subnetwork(x, task) for task in range(self.network.num_tasks)]

    def weights(self) -> list[nn.Parameter]:
        """The shared weights."""
        return [self.network.backbone.get_parameter(name) for name in self.layers]

    def own_tensors(self) -> list[Tensor]:
        """The newest task's own parameters and buffers, as the backbone holds them."""
        tensors = self.network.backbone.state_dict(keep_vars=True)
        return [tensors[name] for name in self.own_names]

    def own_parameters(self) -> list[nn.Parameter]:
        """The learnable ones among them."""
        return [tensor for tensor in self.own_tensors() if isinstance(tensor, nn.Parameter)]

    def run(self, x: Tensor, weights: Mapping[str, Tensor], task: int | None = None) -> Tensor:
        """The backbone with these weights and a task's own tensors; by default those that it holds."""
        own = {} if task is None else {
            name: self.get_buffer(f"own_{task}_{index}") for index, name in enumerate(self.own_names)
        }  # fmt: skip
        features: Tensor = functional_call(self.network.backbone, {**weights, **own}, (x,))
        return features

    def phase(
        self,
        task: TaskInfo,
        step: Callable[..., None],
        forward: Callable[[Tensor], Tensor],
        trained: Sequence[nn.Parameter],
        name: str = "fit",
    ) -> Phase:
        """Train these parameters and the task's head, with its own statistics."""
        head = self.network.heads[task.index]

        def validate(batch: Batch) -> Validation:
            return self.task_validation(forward(batch.x), batch, task, "classifier")

        groups = {"classifier": [*trained, *head.parameters()]}
        return Phase(name, groups, step, validate, self.setup.schedule, [self.network.backbone, head])

    def parameter_counts(self) -> Parameters:
        """Inference needs the tensors of each task, but not the backbone's own copy of the newest task's."""
        own = sum(tensor.numel() for tensor in self.own_tensors() if tensor.is_floating_point())
        own_parameters = sum(parameter.numel() for parameter in self.own_parameters())
        held = num_parameters(self.network) + own * self.network.num_tasks
        return Parameters(held, held - (own_parameters if self.network.num_tasks else 0))
