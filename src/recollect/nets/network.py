"""A backbone and one linear head per task; the heads' outputs, side by side, are the classifier's units."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recollect.device import at_least_single
from recollect.errors import UserError
from recollect.nets.backbone import Backbone
from recollect.rng import Key


class Network(nn.Module):
    """Heads grow as tasks arrive; `fixed_heads` allocates all of them up front, as the paper does."""

    task_of_unit: Tensor

    def __init__(self, backbone: nn.Module, key: Key, fixed_heads: Sequence[int] = ()) -> None:
        super().__init__()
        self.backbone = backbone
        assert isinstance(backbone, Backbone)
        self.feature_dim = backbone.feature_dim
        self._frozen = frozenset(name for name, p in self.backbone.named_parameters() if not p.requires_grad)
        self.heads = nn.ModuleList()
        self.num_tasks = 0
        self._units_of_task: list[Sequence[int] | None] = []
        self.fixed_heads = tuple(fixed_heads)
        self._key = key / "heads"
        self.register_buffer("task_of_unit", torch.zeros(0, dtype=torch.int64), persistent=False)
        for num_classes in self.fixed_heads:
            self._add_head(num_classes)

    @property
    def is_pretrained(self) -> bool:
        """Whether the backbone came with weights, which say how images are normalised."""
        return getattr(self.backbone, "normalisation", None) is not None

    def learnable(self) -> list[nn.Parameter]:
        """The backbone's parameters but for those that its maker froze."""
        return [parameter for name, parameter in self.backbone.named_parameters() if name not in self._frozen]

    def begin_task(self, num_classes: int, units: Sequence[int] | None = None) -> None:
        """Give the next task its head; of classes with `units`, those that earlier tasks have had need none."""
        task = self.num_tasks
        self.num_tasks += 1
        if units is not None:
            num_units = sum(self.sizes()[:task])
            num_classes = sum(unit >= num_units for unit in units)
        self._units_of_task.append(units)
        if self.fixed_heads:
            if task >= len(self.fixed_heads) or self.fixed_heads[task] != num_classes:
                raise UserError(
                    f"task {task + 1} has {num_classes} classes but heads are fixed to {self.fixed_heads}; "
                    "set fixed_heads=false to let heads grow"
                )
        else:
            self._add_head(num_classes)

    def _add_head(self, num_classes: int) -> None:
        device = self.task_of_unit.device
        with (self._key / len(self.heads)).initialising(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")  # all classes were forgotten
            head = nn.Linear(self.feature_dim, num_classes)
        new = torch.full((num_classes,), len(self.heads), dtype=torch.int64, device=device)
        self.task_of_unit = torch.cat([self.task_of_unit, new])
        self.heads.append(head.to(device))

    @torch.no_grad()
    def drop_units(self, units: Collection[int]) -> list[Bool[Tensor, " _"]]:
        """Remove units from heads that are read within their tasks; returns a mask of those kept of each task.

        The rows of a head may sum to zero, so that those that are left would reveal one that was removed. They are
        centred again, which changes no softmax within the task.
        """
        kept = torch.ones_like(self.task_of_unit, dtype=torch.bool)
        kept[list(units)] = False
        masks = list(kept.split(self.sizes()))
        self.heads, heads = nn.ModuleList(), self.heads
        self.task_of_unit = self.task_of_unit[:0]
        for head, mask in zip(heads, masks, strict=True):
            assert isinstance(head, nn.Linear)
            self._add_head(int(mask.sum()))
            weight, bias = head.weight[mask], head.bias[mask]
            if not bool(mask.all()):
                weight, bias = weight - weight.mean(0), bias - bias.mean()
            self.heads[-1].load_state_dict({"weight": weight, "bias": bias})
        return masks

    def sizes(self) -> list[int]:
        """Units of each head."""
        return [head.out_features for head in self.heads if isinstance(head, nn.Linear)]

    def units(self, task: int) -> slice:
        """Where a task's units lie in the classifier's outputs."""
        sizes = self.sizes()
        return slice(sum(sizes[:task]), sum(sizes[: task + 1]))

    def heads_of(self, task: int) -> nn.ModuleList:
        """The heads that have the units of a task's classes: its own, and those of classes that it brings back."""
        returned = {int(self.task_of_unit[unit]) for unit in self._units_of_task[task] or ()}
        return nn.ModuleList([self.heads[index] for index in sorted({task, *returned})])

    def seen(self) -> slice:
        """The units of all tasks begun so far."""
        return slice(0, sum(self.sizes()[: self.num_tasks]))

    def logits(self, f: Float[Tensor, "b d"]) -> Float[Tensor, "b units"]:
        """All heads on the same features."""
        return torch.cat([head(f) for head in self.heads], dim=1)

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b units"]:
        return self.logits(self.backbone(x))

    def cross_entropy(self, logits: Float[Tensor, "b units"], y: Int[Tensor, " b"], units: str) -> Float[Tensor, ""]:
        """Cross-entropy over the units seen so far, of each image's own task (`units="task"`), or all (`"all"`)."""
        logits = at_least_single(logits) if units == "all" else at_least_single(logits)[:, self.seen()]
        return F.cross_entropy(self.within_task(logits, y) if units == "task" else logits, y)

    def within_task(self, logits: Float[Tensor, "b units"], y: Int[Tensor, " b"]) -> Float[Tensor, "b units"]:
        """The logits with -∞ at the units of other tasks than the newest that has the class of each image's label."""
        tasks = self.task_of_unit[: logits.shape[1]]
        apart = tasks[None, :] != tasks[y][:, None]
        for units in self._units_of_task:
            if units is not None:
                is_in = torch.zeros_like(tasks, dtype=torch.bool)
                is_in[list(units)] = True
                apart[is_in[y]] = ~is_in
        return logits.masked_fill(apart, float("-inf"))
