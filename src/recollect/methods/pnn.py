"""Progressive neural networks (Rusu et al. 2016): each task adds a network, called a column; earlier ones are frozen.

h_i^k = σ(W_i^k h_{i-1}^k + U_i^k relu(V_i^k [α_i^{kj} h_{i-1}^j]_{j<k}))   for layer i > 1 of column k
f_k = h_L^k + U^k relu(V^k [α^{kj} h_L^j]_{j<k});  L = L_CE(w_k ∘ f_k, D_k)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from recollect.errors import UserError
from recollect.methods._subnetworks import SubnetworkLearner
from recollect.methods.learner import Method, Parameters, Phase, Setup, Update, Validation, num_parameters
from recollect.nets import Network
from recollect.streams import Batch, TaskInfo

Inputs = dict[int, Tensor]
"""What each layer of a column was given, by the layer's number; the column's output comes last."""


@dataclass(frozen=True, kw_only=True)
class PNNConfig:
    lateral: float = 0.5
    """Hidden units of a lateral connection, relative to the inputs of its layer; 0 for columns without connections."""

    def __post_init__(self) -> None:
        if self.lateral < 0:
            raise UserError(f"lateral cannot be negative, got {self.lateral}; 0 is without lateral connections")


class Lateral(nn.Module):
    """U relu(V [α_j h_j]): what earlier columns add to the output of a layer."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, num_columns: int, share: float) -> None:
        super().__init__()
        self.scales = nn.Parameter(0.1 * torch.randn(num_columns))  # α
        self.reduce: nn.Module
        self.connect: nn.Module
        if isinstance(layer, nn.Conv2d):
            hidden = math.ceil(share * layer.in_channels / layer.groups)
            self.dim = 1
            self.reduce = nn.Conv2d(num_columns * layer.in_channels, hidden, 1)
            self.connect = nn.Conv2d(
                hidden,
                layer.out_channels,
                layer.kernel_size,  # type: ignore[arg-type]
                layer.stride,  # type: ignore[arg-type]
                layer.padding,  # type: ignore[arg-type]
                layer.dilation,  # type: ignore[arg-type]
                bias=False,
            )
        else:
            hidden = math.ceil(share * layer.in_features)
            self.dim = -1
            self.reduce = nn.Linear(num_columns * layer.in_features, hidden)
            self.connect = nn.Linear(hidden, layer.out_features, bias=False)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        scaled = [scale * h for scale, h in zip(self.scales, inputs, strict=True)]
        connected: Tensor = self.connect(torch.relu(self.reduce(torch.cat(scaled, dim=self.dim))))
        return connected


class PNN(SubnetworkLearner[PNNConfig]):
    """The run's backbone is never trained: every column starts as a copy of it."""

    def __init__(self, network: Network, config: PNNConfig, setup: Setup) -> None:
        super().__init__(network, config, setup)
        learnable = {id(parameter) for parameter in network.learnable()}
        self.learnable_names = [name for name, p in network.backbone.named_parameters() if id(p) in learnable]
        self.layers = self._connected_layers()
        self.columns, self.laterals = nn.ModuleList(), nn.ModuleList()

    @torch.no_grad()
    def _connected_layers(self) -> list[str]:
        """Names of the layers that an image passes once, in that order, without the first and without frozen ones."""
        backbone, calls = self.network.backbone, list[str]()
        if not self.config.lateral:
            return []
        with ExitStack() as hooks:
            for name, layer in backbone.named_modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    record = layer.register_forward_pre_hook(lambda module, inputs, name=name: calls.append(name))
                    hooks.callback(record.remove)
            weight, was_training = next(backbone.parameters(), torch.zeros(())), backbone.training
            backbone.eval()(torch.zeros(1, *self.setup.image_shape, device=weight.device, dtype=weight.dtype))
            backbone.train(was_training)
        return [n for n in calls[1:] if calls.count(n) == 1 and f"{n}.weight".lstrip(".") in self.learnable_names]

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        laterals, dim = nn.ModuleList(), self.network.feature_dim
        if task.index and self.config.lateral:
            with (self.setup.key / "laterals" / task.index).initialising():
                layers: list[Any] = [self.network.backbone.get_submodule(name) for name in self.layers]
                for layer in [*layers, nn.Linear(dim, dim)]:
                    laterals.append(Lateral(layer, task.index, self.config.lateral))
        self.columns.append(deepcopy(self.network.backbone))
        self.laterals.append(laterals.to(self.network.task_of_unit.device))

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        column, laterals = self.columns[task.index], self.laterals[task.index]
        head = self.network.heads[task.index]

        def forward(x: Tensor) -> Tensor:
            earlier: list[Inputs] = []
            with torch.no_grad():
                for index in range(task.index):
                    self.read(x, index, earlier)
            return self.read(x, task.index, earlier)

        def step(batch: Batch, update: Update) -> None:
            update(self.task_loss(forward(batch.x), batch, task))

        def validate(batch: Batch) -> Validation:
            return self.task_validation(forward(batch.x), batch, task, "column")

        learnable = [column.get_parameter(name) for name in self.learnable_names]
        groups = {"column": [*learnable, *laterals.parameters(), *head.parameters()]}
        yield Phase("fit", groups, step, validate, self.setup.schedule, [column, laterals, head])

    def read(self, x: Tensor, index: int, earlier: list[Inputs]) -> Tensor:
        """f_k(x) of a column, given what the layers of earlier columns were given; appends its own."""
        column, laterals, own = self.columns[index], self.laterals[index], Inputs()
        assert isinstance(laterals, nn.ModuleList)

        def pass_on(number: int, module: nn.Module | None, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            own[number] = inputs[0]
            if not len(laterals):
                return output
            connected: Tensor = laterals[number]([given[number] for given in earlier])
            return output + connected

        with ExitStack() as hooks:
            for number, name in enumerate(self.layers):
                hook = column.get_submodule(name).register_forward_hook(partial(pass_on, number))
                hooks.callback(hook.remove)
            f = column(x)
        f = pass_on(len(self.layers), None, (f,), f)
        earlier.append(own)
        return f

    def task_features(self, x: Tensor) -> list[Tensor]:
        earlier: list[Inputs] = []
        return [self.read(x, index, earlier) for index in range(self.network.num_tasks)]

    def parameter_counts(self) -> Parameters:
        inference = num_parameters(self.columns, self.laterals, self.network.heads)
        return Parameters(inference + num_parameters(self.network.backbone), inference)


METHODS = {
    "pnn": Method(
        PNN,
        PNNConfig(),
        "a new network for each task, connected to the frozen earlier ones; is told the task",
        cost=3.4,
        copies=8,
        contents={"columns": "network of a task", "laterals": "connections of a task to the networks before it"},
        colour="#b07d00",
        order=52,
        marker="o",
    )
}
