"""Presets describe runs, and are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.errors import UserError
from recollect.runs import command_of, parse, resolve
from recollect.sweeps import load_preset, preset_names
from tests.sweeps.small import PRESET, jobs_of


def test_every_preset_has_runs_and_every_paper_preset_has_a_cpu_version() -> None:
    names = preset_names()
    assert {name for name in names if name.startswith("paper/")} == {
        f"paper/{name}"
        for name in ("til", "cil", "time", "space", "ablation", "vit", "grid", "heatmap", "long-chain", "pca", "rmse")
    }
    assert {name.replace("paper/", "cpu/") for name in names if name.startswith("paper/")} <= set(names)
    for name in names:
        preset = load_preset(name)
        assert preset.about
        assert preset.jobs()
    assert load_preset("paper/cil").jobs() == load_preset("paper/til").jobs()


def test_paper_presets_have_the_paper_s_settings() -> None:
    jobs = {job.name: job.config for job in load_preset("paper/til").jobs()}
    assert len([name for name in jobs if name.startswith("split-cifar100/")]) == 3 * (3 + 7 * 2 + 2 * 2 + 3)
    config = jobs["split-cifar100/derpp-memory-1000/2"]
    assert (config.training.epochs, config.training.learning_rate, config.training.batch_size) == (40, 5e-4, 32)
    assert (config.method_options.memory, config.seed, config.backbone_options["width"]) == (1000, 2, 64)
    chain = {job.config.stream_options.tasks for job in load_preset("paper/long-chain").jobs()}
    assert chain == {20}
    (drift,) = load_preset("paper/rmse").jobs()
    assert (drift.config.stream_options.tasks, drift.config.method_options.alpha, drift.config.measure_drift) == (
        10,
        0,
        True,
    )
    vit = load_preset("paper/vit").jobs()[0].config
    assert (vit.backbone, vit.training.epochs, vit.training.learning_rate) == ("vit-s16", 30, 1e-5)


def test_settings_apply_by_pattern_and_lists_expand(preset: Path) -> None:
    jobs = jobs_of(preset)
    assert [job.name for job in jobs[:4]] == [
        "split-digits/finetune/0", "split-digits/rfe/0", "split-digits/er-memory-4/0", "split-digits/er-memory-8/0",
    ]  # fmt: skip
    assert {job.config.seed for job in jobs[4:]} == {1}
    assert jobs[1].config.method_options.retrospect_epochs == 1
    assert all(job.config.training.epochs == 1 for job in jobs)
    more = jobs_of(preset, seeds=[7], extra=parse(["stream.class_order=seeded", "epochs=2"]))
    assert {(job.config.seed, job.config.training.epochs) for job in more} == {(7, 2)}
    assert all(job.config.stream_options.class_order == "seeded" for job in more)
    assert jobs_of(preset, only=["rfe", "finetune"]) == [jobs[0], jobs[1], jobs[4], jobs[5]]
    with pytest.raises(UserError, match="unknown method of .*small.toml 'rfee'; did you mean 'rfe'. There are"):
        jobs_of(preset, only=["rfee"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = [0]", "has a run without stream or method"),
        ("about = ", "is not valid TOML"),
        (PRESET.replace("about", "abuot"), "has 'abuot'; it may have"),
        (PRESET.replace("seeds = [0, 1]", 'seeds = "0"'), "has the seeds '0'"),
        (PRESET.replace('method = "er"', 'method = "err"'), "unknown method 'err'; did you mean"),
        (PRESET.replace('method = "er"', 'method = "er"\nsteam = 1'), "has 'steam' in a run"),
        (PRESET.replace("memory = [4, 8]", "memry = 4"), "no option is called 'memry'"),
        (PRESET + '[[runs]]\nstream = "split-digits"\nmethod = "finetune"\nfixed_heads = true', "two runs are called"),
        ("runs = 5", "has runs = 5; write"),
        ('for = "rfe"', "has for = 'rfe'; write"),
        (PRESET.replace('method = "er"', "method = 5"), "has method = 5 in a run; give a name"),
        ("like = 3", "is like 3; give the name of a preset"),
        (PRESET.replace("{ memory = [4, 8] }", "3"), "has the settings 3 in a run"),
        (PRESET.replace('method = "er"', 'method = "er"\nmeasure_drift = "no"'), "measure_drift = 'no' in a run"),
        ('like = "paper/tli"', "unknown preset 'paper/tli'; did you mean 'paper/til'"),
    ],
)  # fmt: skip
def test_a_wrong_preset_is_refused_with_the_reason(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        load_preset(str(path)).jobs()


def test_a_preset_that_inherits_from_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "circle.toml"
    path.write_text(f'like = "{path}"')
    with pytest.raises(UserError, match="in a circle"):
        load_preset(str(path))


def test_the_command_line_of_a_run_gives_the_same_configuration() -> None:
    from recollect.cli.app import app

    for job in [*load_preset("cpu/vit").jobs(), *load_preset("paper/rmse").jobs()]:
        options = command_of(job.config, Path("out"), 3).split()[1:]
        _, bound, _ = app.parse_args(options)
        given = bound.arguments
        options = {key: given[key] for key in ("measure_drift", "precision") if key in given}
        again = resolve(given["stream"], given["method"], given["seed"], parse(given.get("set", [])), **options)
        assert again.hash == job.config.hash
        assert given["threads"] == 3


def test_overriding_a_listed_setting_is_refused_as_the_same_run_twice(preset: Path) -> None:
    preset.write_text(PRESET.replace('method = ["finetune", "rfe"]', 'method = "derpp"'))
    with pytest.raises(UserError, match="er-memory-4/0 and .*er-memory-8/0 are the same run; leave one of them out"):
        jobs_of(preset, extra={"memory": 6})
