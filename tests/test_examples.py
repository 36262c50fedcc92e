"""The examples of public names run as they are printed, and so do the scripts in examples/."""

from __future__ import annotations

import ast
import doctest
import json
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import recollect
from recollect.errors import UserError
from recollect.testing import check_method

ROOT = Path(__file__).parents[1]
SCRIPTS = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
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


@pytest.fixture
def run_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a script of examples/ with small numbers of epochs, tasks or images; its variables."""

    def run(name: str, *numbers: int) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, numbers)])
        return runpy.run_path(str(SCRIPTS[name]), run_name="__main__")

    return run


def test_script_own_loop_runs_the_loop_of_readme(run_script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    theirs = iter(SCRIPTS["own_loop"].read_text(encoding="utf-8").splitlines())
    for line in code.removesuffix("\n").splitlines()[:-1]:  # the last line shows how to go on
        line = line.removesuffix("  # yours").replace("import RFE", "import RFE, open_stream")
        assert line.startswith("tasks =") or line in theirs, f"not in own_loop.py: {line}"
    variables = run_script("own_loop", 2, 16)
    assert len(variables["heads"]) == 2
    accuracies = [float(text) for text in re.findall(r"([\d.]+) %", capsys.readouterr().out)]
    assert len(accuracies) == 4
    assert min(accuracies[1::2]) > 75  # with the chain


def test_scripts_with_own_parts_train(run_script: Any) -> None:
    variables = run_script("own_method", 1)
    assert variables["result"]["config"]["method"]["strength"] == 10
    check_method(str(SCRIPTS["own_method"]))
    variables = run_script("own_backbone", 1)
    assert variables["result"]["config"]["backbone"]["name"] == "own"
    assert variables["result"]["parameters"]["inference"] > sum(p.numel() for p in variables["backbone"].parameters())
    variables = run_script("own_stream", 1)
    assert [task.info.num_classes for task in variables["stream"].tasks] == [4, 4, 2]
    assert variables["result"]["memory"]["samples"] == 50


def test_script_load_run_reads_features_of_old_tasks(run_script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    variables = run_script("load_run", 1)
    assert len(variables["estimates"]) == 5
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith(f"task {number}: ") for number, line in enumerate(lines, 1)] == [True] * 5
    assert "differs from today's features by 0 %" in lines[-1]


def test_scripts_are_short_and_all_are_run() -> None:
    code = Path(__file__).read_text(encoding="utf-8")
    assert all(f'run_script("{name}"' in code for name in SCRIPTS)
    assert len(SCRIPTS) == 5
    assert max(len(path.read_text(encoding="utf-8").splitlines()) for path in SCRIPTS.values()) <= 48


def test_notebook_compiles_with_public_names_and_has_its_outputs() -> None:
    path = ROOT / "examples" / "demo.ipynb"
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    tree = ast.parse("\n".join("".join(cell["source"]) for cell in cells), "demo.ipynb")
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "recollect"
    }
    assert {"load_run", "open_stream", "resolve", "run"} <= used <= set(recollect.__all__)
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert modules == {"matplotlib.pyplot", "recollect", "torch"}
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    (table,) = (text for output in outputs if "images kept" in (text := "".join(output.get("text", ""))))
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["finetune", "er", "fsa", "rfe-plus", "joint"]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert path.stat().st_size < 100_000
