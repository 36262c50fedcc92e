"""The examples of public names run as they are printed."""

from __future__ import annotations

import doctest
import sys
from importlib import import_module
from pathlib import Path

import pytest

import recollect
from recollect.errors import UserError

WITHOUT = {
    "Observer",
    "RunConfig",
    "StoppedError",
    "UserError",
    "__version__",
}  # made by others, or only caught


@pytest.mark.parametrize("name", [name for name in recollect.__all__ if name not in WITHOUT])
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    public = getattr(recollect, name)
    home = sys.modules[public.__module__]
    found = [*doctest.DocTestFinder(recurse=False).find(public, name, module=home, globs=vars(home).copy())]
    found += doctest.DocTestFinder(recurse=False).find(home, globs=vars(home).copy())
    runner = doctest.DocTestRunner()
    for each in found:
        runner.run(each)
    assert runner.tries > 0
    assert runner.failures == 0


def test_public_names_are_exported() -> None:
    names = [name for name in recollect.__all__ if name != "__version__"]
    assert [getattr(recollect, name).__name__ for name in names] == names
    assert import_module("recollect.errors").UserError is UserError
