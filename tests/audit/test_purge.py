"""Purging removes the samples of a task from every checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from recollect.audit import Searcher, purge, take_inventory
from recollect.errors import UserError
from recollect.runs import run
from tests.audit.support import PIECES, config_of, copied, photo_stream


@pytest.mark.parametrize("method", ["er", "rfe-b", "rfe-p"])
def test_purge_removes_a_tasks_samples_and_the_run_can_be_loaded(
    method: str, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied(folders(method), tmp_path / "run")
    before = {task: sum(s.tasks.count(task) for s in take_inventory(folder).stores) for task in (1, 2, 3)}
    assert before[3] > 0
    gone = [PIECES[i] for i in range(48, 72)]
    assert list(Searcher(torch.stack(gone)).search_folder(folder))
    assert purge(folder, 3) == before[3]
    after = take_inventory(folder)
    assert {task for store in after.stores for task in store.tasks} == {t for t in (1, 2) if before[t]}
    assert list(Searcher(torch.stack(gone)).search_folder(folder)) == []
    assert purge(folder, 3) == 0
    (folder / "result.json").unlink()
    again = run(config_of(method), folder, stream=photo_stream(), device="cpu")
    assert again["memory"]["samples"] == 12 - before[3]
    with pytest.raises(UserError, match="tasks count from 1, got 0"):
        purge(folder, 0)
