"""A method in a Python file that the user names: it runs without a package, and only where the user names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recollect.errors import UserError
from recollect.methods import choose_method
from recollect.report.collect import collect
from recollect.runs import RunConfig, find_results, load_run, resolve
from recollect.sweeps import in_process, load_preset, plan, sweep
from recollect.sweeps.tune import load_space
from recollect.testing import checks
from tests.support import recollect

SOURCE = '''
from __future__ import annotations

from dataclasses import dataclass

import torch

from recollect.methods import BaselineConfig, Learner, Method


@dataclass(frozen=True, kw_only=True)
class Options(BaselineConfig):
    strength: float = 1.0
    """How strongly."""


class Mine(Learner[Options]):
    def __init__(self, network, config, setup):
        super().__init__(network, config, setup)
        self.register_buffer("velocity", torch.zeros(3))

    def phases(self, task):
        yield self.classifier_phase(task, self.step, self.config.units)

    def step(self, batch, update):
        update(self.config.strength * self.network.cross_entropy(self.network(batch.x), batch.y, self.config.units))


METHODS = {"mine": Method(Mine, Options(), "an example", contents={"velocity": "velocity of the weights"})}
'''
SMALL = {"epochs": 1, "tasks": 2, "train_per_class": 5, "backbone.width": 2}
SMALL_OPTIONS = ["--precision", "fp32", "--set", *(f"{key}={value}" for key, value in SMALL.items())]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "methods" / "mine.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


@pytest.mark.filterwarnings("ignore:no validation images")
def test_a_method_of_a_file_runs_and_is_never_executed_unless_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "run"
    arguments = ["run", "--stream", "split-digits", "--method", file, "--out", out, *SMALL_OPTIONS, "strength=2"]
    done = recollect(*arguments)
    assert done.returncode == 0, done.stderr
    (result,) = find_results([out]).values()
    assert result["config"]["method"] == {"name": "mine", "units": "seen", "strength": 2.0}
    assert result["non_default_options"]["method"] == {"strength": 2.0}
    assert result["config"]["method_file"]["path"] == str(file)
    assert "How strongly." in recollect("list", "--method", file).stdout

    elsewhere = file.rename(tmp_path / "moved.py")
    resumed = recollect("resume", out, "--method", elsewhere)
    assert resumed.returncode == 0, resumed.stderr
    assert load_run(out, method=f"{elsewhere}:mine").learner.velocity.shape == (3,)
    assert "velocity of the weights" in recollect("audit", out, "--method", elsewhere).stdout
    assert "velocity of the weights" not in recollect("audit", out).stdout
    refused = recollect("resume", out)
    assert refused.returncode == 2
    assert f"comes from a Python file ({file}); a file that a run folder names is never executed" in refused.stderr
    with pytest.raises(UserError, match="name yours: --method FILE.py, or method= from Python"):
        load_run(out)
    with pytest.raises(UserError, match="the method of this run is 'mine', not 'er'"):
        load_run(out, method="er")

    file.write_text(SOURCE.replace("an example", "another example"))
    changed = recollect("resume", out, "--method", file)
    assert changed.returncode == 2
    assert f"{file} has changed since this run was started (SHA-256 " in changed.stderr
    assert f"holds a run of another configuration ({file} has changed since)" in recollect(*arguments).stderr
    edited = resolve("split-digits", str(file), 0, SMALL | {"strength": 2}, precision="fp32")
    (experiment,) = collect([result, result | {"config": edited.to_json()}])
    assert all("strength=2.0, method_file=" in variant.label for variant in experiment.variants)
    assert len(experiment.variants) == 2


def test_the_config_of_a_stranger_executes_nothing(tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"{SOURCE}open({str(tmp_path / 'sprung')!r}, 'w').close()")
    config = resolve("split-digits", "finetune", 0).to_json()
    for change in (
        {"method_file": {"path": str(trap), "sha256": ""}},
        {"method": config["method"] | {"name": str(trap)}},
        {"method": config["method"] | {"name": f"{trap}:mine"}},
    ):
        with pytest.raises(UserError, match="never executed|unknown method"):
            RunConfig.from_json(config | change)
    assert not (tmp_path / "sprung").exists()
    assert choose_method(str(trap)).name == "mine"
    assert (tmp_path / "sprung").exists()


@pytest.mark.filterwarnings("ignore:no validation images")
def test_presets_and_spaces_name_files_relative_to_themselves(file: Path, tmp_path: Path) -> None:
    preset = tmp_path / "preset.toml"
    settings = "\n".join(f'"{key}" = {value}' for key, value in SMALL.items())
    preset.write_text(f'[for."mi*"]\n{settings}\n[[runs]]\nstream = "split-digits"\nmethod = "methods/mine.py"\n')
    inherits = file.parent / "inherits.toml"
    inherits.write_text('like = "../preset.toml"')
    jobs = load_preset(str(preset)).jobs(precision="fp32")
    assert [job.name for job in jobs] == ["split-digits/mine/0"]
    assert load_preset(str(inherits)).jobs(precision="fp32")[0].config.hash == jobs[0].config.hash
    statuses = plan(jobs, tmp_path / "out", device="cpu")
    sweep(statuses, tmp_path / "out", engine=in_process, device="cpu", threads=1)
    assert [status.reasons for status in statuses] == [[]]
    assert f"--method {file}:mine" in statuses[0].result["command"]  # type: ignore[index]
    space = file.parent / "space.toml"
    space.write_text('stream = "split-digits"\nmethod = "mine.py"\n[space]\nstrength = [1.0, 2.0]\n')
    assert load_space(space).config({"strength": 2.0}, 0, "fp32").method_options.strength == 2.0


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        (None, "", "the method file .*mine.py cannot be read .No such file or directory.; check the path"),
        ("METHODS = []", "", "defines no method; end it with METHODS ="),
        (SOURCE + 'METHODS["other"] = METHODS["mine"]', "", "defines the methods mine, other; choose one, e.g."),
        (SOURCE, ":mnie", "unknown method of .*mine.py 'mnie'; did you mean 'mine'?"),
        (SOURCE.replace('"mine"', '"rfe"'), "", "defines 'rfe', which is also the name of a registered method"),
        ("\nx = 1 / 0", "", "mine.py cannot be run in line 2: ZeroDivisionError: division by zero"),
        ("def", "", "mine.py cannot be run: SyntaxError: .*line 1"),
    ],
)  # fmt: skip
def test_a_file_without_a_usable_method_is_refused(source: str | None, name: str, message: str, file: Path) -> None:
    file.unlink() if source is None else file.write_text(source)
    with pytest.raises(UserError, match=message):
        choose_method(f"{file}{name}")


def test_the_conformance_suite_takes_a_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(checks, "CHECKS", (lambda row: checked.append(row.about),))
    checks.check_method(str(file))
    assert checked == ["an example"]
    assert json.loads(json.dumps(resolve("split-digits", str(file), 0).to_json()))["method_file"]["path"] == str(file)
