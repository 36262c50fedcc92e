"""README and CONTRIBUTING say what works: their examples run, their commands parse."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import recollect
import recollect.methods
import recollect.nets
import recollect.streams
from recollect import testing
from recollect.deploy.data import read_images
from recollect.deploy.export import export
from recollect.methods import methods
from recollect.runs import parse, resolve, run
from recollect.runs.run import create_learner
from recollect.streams import open_stream

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_example_runs_and_is_short() -> None:
    (code,) = blocks(README, "python")
    scope: dict[str, object] = {}
    exec(compile(code.replace("range(100)", "range(1)"), "README.md", "exec"), scope)  # own_loop.py trains as long
    assert scope["old_logits"].shape == (32, 2)  # type: ignore[attr-defined]
    loop = code[code.index("backbone =") :]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 15


@pytest.mark.filterwarnings("ignore:only .* % of .* validation images", "ignore:.*it is left out")  # of noise
def test_the_examples_of_models_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    learning, keeping, serving, loading = blocks((ROOT / "docs" / "models.md").read_text(encoding="utf-8"), "python")
    scope: dict[str, Any] = {}
    exec(compile(learning, "models.md", "exec"), scope)
    (tmp_path / "photos-test" / "may" / "cat").mkdir(parents=True)
    Image.fromarray(scope["may"][0][0]).save(tmp_path / "photos-test" / "may" / "cat" / "one.png")
    exec(compile(keeping, "models.md", "exec"), scope)
    assert [check.task for check in scope["report"].tasks] == ["may"]
    model = scope["model"]
    assert model.classes_.tolist() == ["cat", "dog", "cattle"]
    export(model, tmp_path / "model.onnx")
    noise = np.random.default_rng(0)
    for values in (
        noise.integers(0, 256, (40, 30, 3), np.uint8),
        noise.integers(0, 256, (40, 30, 4), np.uint8),  # with transparency
        noise.integers(0, 65536, (40, 30), np.uint16),
    ):
        Image.fromarray(values).save("some.png")
        exec(compile(serving, "models.md", "exec"), scope)
        assert [scope["best"]] == model.predict(["some.png"]).tolist()
        assert np.array_equal(scope["pixels"][0], read_images(["some.png"], 32)[0])
        assert np.allclose(scope["probabilities"], model.predict_proba(["some.png"]), atol=1e-5)
        exec(compile(loading, "models.md", "exec"), scope)
        assert scope["names"].tolist() == [scope["best"]]


def test_snippets_of_the_python_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recollect.report.write.draw_experiment", lambda *arguments: [])  # seconds; tested elsewhere
    scope: dict[str, Any] = {}
    for code in blocks((ROOT / "docs" / "python.md").read_text(encoding="utf-8"), "python"):
        exec(compile(code, "python.md", "exec"), scope)
    assert scope["failed"] == {}
    assert scope["table"].shape == (4, 6)
    assert scope["summary"]["accuracy"]["mean"].index.tolist() == [("er", 1e-3), ("er", 1e-2)]
    assert scope["choice"].num_tried == 2
    assert scope["paths"][0].read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(scope["estimates"]) == len(scope["matrix"]) == 2
    assert len(scope["result"]["til"]["matrix"]) == 3


def test_one_file_adds_a_method_a_stream_or_a_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of CONTRIBUTING, put where it says."""
    codes = blocks((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "python")
    for package, code in zip((recollect.methods, recollect.streams, recollect.nets), codes, strict=True):
        folder = tmp_path / package.__name__
        folder.mkdir()
        (folder / "added_here.py").write_text(code, encoding="utf-8")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    testing.check_method("head-only")
    config = resolve("noise", "head-only", 0, {"backbone": "pooled", "side": 2, "epochs": 1}, precision="fp32")
    learner = create_learner(config, open_stream("noise"))
    before = {name: tensor.clone() for name, tensor in learner.network.backbone.state_dict().items()}
    result = run(config, tmp_path / "run")
    assert len(result["til"]["matrix"]) == 4
    (last,) = (tmp_path / "run" / "checkpoint").glob("task-004")
    kept = load_file(last / "state.safetensors")
    now = {name: tensor for name, tensor in kept.items() if "network.backbone." in name}
    assert len(now) == len(before) == 2
    for name, tensor in before.items():
        assert any(key.endswith(name) and torch.equal(tensor, value) for key, value in now.items())


def test_the_run_commands_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = blocks((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "python")[0]
    (tmp_path / "head_only.py").write_text(example, encoding="utf-8")
    text = README + (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    commands = re.findall(r"^recollect run (.*)$", text.replace("\\\n", " "), re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        words = command.partition("#")[0].split()
        given = {words[i]: words[i + 1] for i in range(len(words) - 1) if words[i].startswith("--")}
        settings = words[words.index("--set") + 1 :] if "--set" in words else []
        resolve(given["--stream"], given["--method"], int(given.get("--seed", 0)), parse(settings))


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120
    rows = [line for line in README.splitlines() if line.startswith("| `")]
    assert 0 < len(rows) <= 10


def test_the_first_screen_has_both_commands_and_they_exist() -> None:
    first_screen = README.splitlines()[:20]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert any(line.startswith(f"make {target} ") for line in first_screen)
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_source_archive_has_the_pages_that_readme_links_to() -> None:
    manifest = [line.split() for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()]
    folders = {name for command, *names in manifest if command == "graft" for name in names}
    files = {name for command, *names in manifest if command == "include" for name in names}
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    targets = set(re.findall(r"\]\(([^):#]+)[^):]*\)", prose))
    assert len(targets) > 15
    assert {target for target in targets if target.split("/")[0] not in folders | files} == set()
    assert all((ROOT / name).exists() for name in folders | files)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["urls"]["Paper"] in README
    assert project["urls"]["Paper"] in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_every_method_has_a_page_or_is_on_one() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "methods").glob("*.md"))
    assert all(re.search(rf"(^# .*\b{name}\b|`{name}`)", pages, re.MULTILINE) for name in methods())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_point_to_existing_files_and_headings() -> None:
    num_links, num_anchors = 0, 0
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\(([^)#]*)(#[^)]*)?\)", prose):
            if "://" not in target:
                num_links += 1
                file = page.parent / target if target else page
                assert file.exists(), f"{page.name} links to {target}"
                if anchor:
                    num_anchors += 1
                    assert anchor[1:] in anchors(file), f"{page.name} links to {target}{anchor}"
    assert num_links > 50
    assert num_anchors > 10


def test_the_api_page_has_every_public_name_once() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    names = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    objects = [getattr(import_module(home), name) for home, _, name in (name.rpartition(".") for name in names)]
    assert len(names) == len(set(names))
    assert {getattr(recollect, name) for name in recollect.__all__ if name != "__version__"} <= set(objects)
    modules = [ROOT / "src" / f"{name.replace('.', '/')}.py" for name in names]
    assert not any(path.exists() for path in modules)  # the site would show the module of the same name
    pages = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(str(path.relative_to(ROOT / "docs")) in pages for path in (ROOT / "docs").rglob("*.md"))


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "recollect", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == version("recollect-rfe")


def test_the_help_lists_everyday_commands_before_experiments() -> None:
    text = subprocess.run([sys.executable, "-m", "recollect", "--help"], capture_output=True, text=True).stdout
    titles = [
        text.index(title) for title in ("─ Models ─", "learn", "predict", "─ Experiments ─", "sweep", "─ Options ─")
    ]
    assert titles == sorted(titles)
    assert "─ Commands ─" not in text
