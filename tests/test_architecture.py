"""Imports go one way, and only the runtime knows devices."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import recollect

TESTS = Path(__file__).parent
ROOT = TESTS.parent / "src" / "recollect"
LEAVES = {"rng", "errors", "registry", "device", "reading", "distributed", "escaping", "storage"}
ALLOWED = {
    "rng": set(),
    "errors": set(),
    "registry": {"errors"},
    "device": set(),
    "reading": set(),
    "distributed": {"errors"},
    "escaping": set(),
    "names": {"errors"},
    "pictures": {"errors"},
    "storage": {"errors"},
    "results": {"storage"},
    "core": {"rng", "device"},
    "nets": LEAVES,
    "inference": {"errors", "names", "pictures", "storage"},
    "streams": LEAVES | {"pictures"},
    "memory": LEAVES | {"streams"},
    "metrics": LEAVES,
    "methods": LEAVES - {"distributed"} | {"core", "nets", "streams", "memory", "metrics"},
    "engine": LEAVES | {"core", "nets", "streams", "memory", "metrics", "methods"},
    "runs": LEAVES | {"core", "nets", "streams", "memory", "metrics", "methods", "engine", "results"},
    "testing": LEAVES | {"core", "nets", "streams", "memory", "metrics", "methods", "engine", "runs"},
    "sweeps": LEAVES | {"results", "nets", "streams", "methods", "engine", "runs"},
    "deploy": LEAVES
    | {"names", "pictures", "inference", "core", "nets", "streams", "metrics", "methods", "engine", "runs"},
    "audit": LEAVES | {"pictures", "inference", "streams", "methods", "engine", "runs"},
    "report": {"errors", "escaping", "storage"},
    "serve": LEAVES | {"names", "pictures", "inference", "engine", "deploy"},
    "cli": LEAVES
    | {
        "pictures",
        "inference",
        "core",
        "nets",
        "streams",
        "memory",
        "metrics",
        "methods",
        "engine",
        "runs",
        "report",
        "results",
        "audit",
        "sweeps",
        "deploy",
        "serve",
    },
}
FILES = sorted(ROOT.rglob("*.py"))
# What reads files or draws pictures works on the host; the runtime with its processes is where devices are known.
HOST_ONLY = {"device.py", "reading.py", "engine/runtime.py", "distributed/world.py"}
HOST_ONLY |= {"report/figures.py", "report/tables.py", "cli/app.py", "deploy/export.py", "inference/exported.py"}
HOST_ONLY |= {"inference/stored.py"}
HOST_ONLY |= {f"audit/{name}.py" for name in ("contents", "decoding", "files", "probes", "search")}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("recollect"):
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("recollect")}
    return {name.split(".")[1] if "." in name else "" for name in names}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if part in ("__init__", "__main__"):
        return
    assert imported(path) - {part} <= ALLOWED[part]


def imported_modules(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it: `from a import b` counts as a, and as a.b where that is one."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0, f"{path} has a relative import"
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


def list_files(module: str) -> list[Path]:
    """The files of ours that importing a module runs: its own, and those of the packages around it."""
    parts = module.split(".")
    if parts[0] != ROOT.name:
        return []
    paths = [ROOT.parent.joinpath(*parts[:i], "__init__.py") for i in range(1, len(parts) + 1)]
    return [path for path in [*paths, ROOT.parent.joinpath(*parts).with_suffix(".py")] if path.exists()]


def reachable_modules(paths: list[Path]) -> set[str]:
    """All modules that files import, directly or through other files of ours."""
    modules: set[str] = set()
    waiting, visited = list(paths), set[Path]()
    while waiting:
        path = waiting.pop()
        if path not in visited:
            visited.add(path)
            imports = imported_modules(path)
            modules |= imports
            waiting += [file for module in imports for file in list_files(module)]
    return modules


def test_report_never_reaches_torch_the_engine_or_the_registries() -> None:
    reachable = reachable_modules(sorted((ROOT / "report").glob("*.py")))
    packages = {module.split(".")[1] for module in reachable if module.startswith("recollect.")}
    assert packages <= {"report", "errors", "escaping", "storage"}
    assert "torch" not in {module.split(".")[0] for module in reachable}
    assert "torch" in {module.split(".")[0] for module in reachable_modules([ROOT / "runs" / "run.py"])}


@pytest.mark.parametrize("package", ["inference", "pictures"])
def test_predicting_with_an_exported_file_never_reaches_torch(package: str) -> None:
    reachable = reachable_modules(sorted((ROOT / package).glob("*.py")))
    assert "torch" not in {module.split(".")[0] for module in reachable}


def test_importing_the_report_does_not_import_torch() -> None:
    modules = [f"recollect.report.{path.stem}" for path in sorted((ROOT / "report").glob("*.py"))]
    code = f"import sys, {', '.join(modules)}, recollect.results\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def forbidden(source: str) -> list[str]:
    """Device names, host copies and double precision in code (docstrings and comments may speak of them)."""
    tree = ast.parse(source)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            if re.fullmatch(r"(cuda|cpu|mps)(:\d+)?", node.value):
                found.append(node.value)
        elif isinstance(node, ast.Attribute) and node.attr in {
            "cpu",
            "cuda",
            "mps",
            "numpy",
            "float64",
            "double",
            "item",
        }:
            found.append(f".{node.attr}")
        elif isinstance(node, ast.keyword) and node.arg == "non_blocking":  # not safe everywhere: `to_device` is
            found.append(node.arg)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_runtime_knows_devices(path: Path) -> None:
    if path.relative_to(ROOT).as_posix() not in HOST_ONLY:
        assert forbidden(path.read_text(encoding="utf-8")) == []


def test_the_search_for_devices_finds_them() -> None:
    assert forbidden('x = y.to("cuda:0"); z = x.cpu().numpy(); torch.zeros(1, dtype=torch.float64)') != []
    assert sorted(forbidden("a = x.cpu()\nb = 'mps'\nc = t.double()")) == [".cpu", ".double", "mps"]
    assert forbidden("x.to(device, non_blocking=True)") == ["non_blocking"]


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_do_not_import_torch(flag: str) -> None:
    code = f"import sys; sys.argv = ['recollect', '{flag}']\nimport recollect.cli.app as a\n"
    code += "try: a.main()\nexcept SystemExit: pass\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("False")
    if flag == "--version":
        assert done.stdout.split() == [version("recollect-rfe"), "False"]


def test_the_package_has_its_version() -> None:
    assert recollect.__version__ == version("recollect-rfe")
    assert "__version__" in dir(recollect)


def test_no_test_file_imports_another() -> None:
    """What several test files need is in a file without tests, such as support.py."""
    imports = {(str(path), module) for path in TESTS.rglob("*.py") for module in imported_modules(path)}
    assert {(path, module) for path, module in imports if re.match(r"tests\.(\w+\.)*test_", module)} == set()


def test_no_file_has_more_than_300_lines() -> None:
    assert {str(p) for p in FILES if len(p.read_text(encoding="utf-8").splitlines()) > 300} == set()
