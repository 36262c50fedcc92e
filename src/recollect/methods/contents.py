"""What a learner's tensors are, by the attributes in their names: for the audit, and the bytes that results list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

COMMON = {"memory": "memory", "backbone": "network", "heads": "network"}


def kind_of_tensor(name: str, labels: Mapping[str, str]) -> str:
    """The label of the first attribute in `labels` that the name contains; one that ends in `_` is a prefix.

    >>> kind_of_tensor("identity.rule.anchor.weight", {"rule": "statistics"} | COMMON)
    'statistics'
    """
    parts = name.split(".")
    for label, kind in labels.items():
        if any(part == label or (label.endswith("_") and part.startswith(label)) for part in parts):
            return kind
    return "other"


def bytes_by_kind(state: Mapping[str, Tensor], contents: Mapping[str, str]) -> dict[str, int]:
    """Bytes of a state, by what a method says of its tensors."""
    sizes: Counter[str] = Counter()
    for name, tensor in state.items():
        sizes[kind_of_tensor(name, {**contents, **COMMON})] += tensor.nbytes
    return dict(sorted(sizes.items()))
