"""The audit lists every tensor and every stored sample, and reports samples that should not be there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from recollect.audit import take_inventory
from recollect.audit.inventory import describe_tensor
from recollect.errors import UserError
from recollect.methods import methods
from tests.audit.support import copied, newest, rewrite


def test_inventory_lists_every_tensor_with_its_role_and_size(folders: Callable[[str], Path]) -> None:
    audit = take_inventory(folders("rfe-p"))
    assert {entry.file for entry in audit.entries} == set(folders("rfe-p").rglob("*.safetensors"))
    for file in {entry.file for entry in audit.entries}:
        held = load_file(file)
        listed = {entry.name: entry for entry in audit.entries if entry.file == file}
        assert held.keys() == listed.keys()
        assert all(listed[name].num_bytes == tensor.nbytes for name, tensor in held.items())
    kinds = {entry.kind for entry in audit.entries}
    assert {"network", "retrospector", "auxiliary network", "frozen copy of the network", "memory of RFE"} <= kinds
    assert "other" not in {entry.kind for entry in audit.entries if not entry.name.startswith("fit.")}


@pytest.mark.parametrize(
    ("method", "expect", "tasks"), [("rfe", "none", set()), ("rfe-p", "previous", {3}), ("er", "reservoir", {1, 2, 3})]
)
def test_each_method_stores_only_the_samples_it_may(
    method: str, expect: str, tasks: set[int], folders: Callable[[str], Path]
) -> None:
    audit = take_inventory(folders(method))
    assert audit.problems(expect) == []
    found = {task for store in audit.stores for task in store.tasks}
    assert found == tasks
    assert all(len(store) == 12 for store in audit.stores)
    if method != "rfe":
        (problem,) = audit.problems("none")
        assert "holds 12 samples of tasks" in problem
    if method == "er":
        (problem,) = audit.problems("previous")
        assert "older than the last 1" in problem


def test_samples_of_a_task_older_than_allowed_are_reported(folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(folders("rfe-p"), tmp_path / "run")

    def keep_an_old_one(tensors: dict[str, Tensor]) -> None:
        tensors["learner.past.memory.tasks"][3] = 0

    rewrite(newest(folder), keep_an_old_one)
    (problem,) = take_inventory(folder).problems("previous")
    assert "holds 1 samples of tasks 1, older than the last 1" in problem


def test_images_in_free_memory_slots_are_reported(folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(folders("rfe-p"), tmp_path / "run")

    def forget_to_erase(tensors: dict[str, Tensor]) -> None:
        tensors["learner.past.memory._extra_state"][0] = 0

    rewrite(newest(folder), forget_to_erase)
    for expect in ("none", "previous", "reservoir"):
        (problem,) = take_inventory(folder).problems(expect)
        assert "has 12 images in slots that should be free" in problem


def test_a_file_that_cannot_be_read_stops_the_audit(folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(folders("rfe"), tmp_path / "run")
    newest(folder).write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot be read .*; the audit would be incomplete"):
        take_inventory(folder)
    with pytest.raises(UserError, match="is not a folder"):
        take_inventory(tmp_path / "nowhere")


def test_statistics_of_the_anchor_are_no_copy_of_the_network() -> None:
    labels = methods()["rfe-plus"].contents
    assert describe_tensor("identity.rule.anchor.statistics.means", labels) == "class means and covariances"
    assert describe_tensor("identity.first.module.conv.weight", labels) == "frozen copy of the network"
    assert describe_tensor("rfe.anchor.module.conv.weight", labels) == "frozen copy of the network"
