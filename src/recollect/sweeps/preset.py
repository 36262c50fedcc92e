"""Presets: TOML files that describe many runs. Those of the package are a start to copy and edit.

about = "what it shows"
like = "cpu/til"              # take over seeds, settings and runs of another preset where this one has none
seeds = [0, 1, 2]

[for."*"]                     # settings of all runs; of methods or streams whose name fits the pattern
epochs = 8

[[runs]]                      # every stream with every method, and with every value of every listed setting
stream = ["split-cifar100"]
method = ["er", "derpp"]      # a registered method, or a Python file relative to this one: "mine.py"
measure_drift = false
set = { memory = [200, 500] }
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any

from recollect.errors import UserError
from recollect.methods import choose_method, relative_to
from recollect.registry import lookup
from recollect.runs import RunConfig, resolve

KEYS = {"about", "like", "seeds", "for", "runs"}
RUN_KEYS = {"stream", "method", "set", "measure_drift", "fixed_heads", "precision"}


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str
    """Its folder below the sweep's own: stream/method and settings/seed."""
    config: RunConfig


@dataclass(frozen=True)
class Preset:
    """A description of many runs."""

    name: str
    about: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Mapping[str, Any]]
    runs: tuple[Mapping[str, Any], ...]

    def jobs(
        self,
        seeds: Sequence[int] | None = None,
        extra: Mapping[str, Any] | None = None,
        precision: str = "auto",
        only: Sequence[str] | None = None,
    ) -> list[Job]:
        """All its runs, with other seeds or further settings where given; all runs of one seed before the next.

        `only` names the methods whose runs are wanted.
        """
        jobs: dict[str, Job] = {}
        for run in self.runs:
            for stream, method in itertools.product(_list(run, "stream"), _list(run, "method")):
                for own in _grid(run.get("set", {})):
                    values = [f"{key.rpartition('.')[2]}-{_plain(value)}" for key, value in own.items()]
                    for seed in seeds or self.seeds:
                        config = self._config(run, stream, method, {**own, **(extra or {})}, seed, precision)
                        job = Job(f"{stream}/{'-'.join([config.method, *values])}/{seed}", config)
                        if jobs.setdefault(job.name, job).config != config:
                            raise UserError(f"{self.name}: two runs are called {job.name}; tell them apart in `set`")
        names: dict[str, str] = {}
        for job in jobs.values():
            other = names.setdefault(job.config.hash, job.name)
            if other != job.name:
                raise UserError(f"{self.name}: {other} and {job.name} are the same run; leave one of them out")
        methods = {job.config.method: job.config.method for job in jobs.values()}
        wanted = {lookup(f"method of {self.name}", methods, method) for method in only or methods}
        order = {seed: i for i, seed in enumerate(seeds or self.seeds)}
        chosen = [job for job in jobs.values() if job.config.method in wanted]
        return sorted(chosen, key=lambda job: order[job.config.seed])

    def _config(
        self, run: Mapping[str, Any], stream: str, method: str, own: Mapping[str, Any], seed: int, precision: str
    ) -> RunConfig:
        settings: dict[str, Any] = {}
        name = choose_method(method).name
        for pattern, values in self.settings.items():
            if fnmatchcase(name, pattern) or fnmatchcase(stream, pattern):
                settings |= values
        flags = {key: run[key] for key in ("measure_drift", "fixed_heads", "precision") if key in run}
        return resolve(stream, method, seed, {**settings, **own}, **{"precision": precision, **flags})


def preset_names() -> list[str]:
    """Those of the package."""
    root = files("recollect.sweeps") / "presets"
    return sorted(
        f"{group.name}/{file.name.removesuffix('.toml')}"
        for group in root.iterdir()
        for file in group.iterdir()
        if file.name.endswith(".toml")
    )


def preset_text(name: str) -> str:
    """The TOML of a preset of the package, or of a file."""
    if name.endswith(".toml"):
        try:
            return Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"the preset {name} cannot be read ({error})") from error
    paths = {preset: files("recollect.sweeps") / "presets" / f"{preset}.toml" for preset in preset_names()}
    return str(lookup("preset", paths, name).read_text(encoding="utf-8"))


def load_preset(name: str) -> Preset:
    """A preset of the package by name, or a file of the user's that ends in .toml."""
    return _load(name, ())


def _load(name: str, before: tuple[str, ...]) -> Preset:
    if name in before:
        raise UserError(f"the presets {', '.join(before)} are like each other in a circle")
    text = preset_text(name)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number of thousands of digits
        raise UserError(f"the preset {name} is not valid TOML: {error}") from error
    for key, kind, what in (("runs", list, "[[runs]]"), ("for", dict, '[for."rfe*"]'), ("about", str, 'about = "…"')):
        if not isinstance(data.get(key, kind()), kind):
            raise UserError(f"the preset {name} has {key} = {data[key]!r}; write {what}")
    base = _load(_resolve_base(data["like"], name), (*before, name)) if "like" in data else None
    runs = tuple(data.get("runs", ())) or (base.runs if base else ())
    seeds = data.get("seeds", list(base.seeds) if base else [0])
    settings = dict(base.settings if base else {}) | data.get("for", {})
    problem = _problem(data, runs, seeds, settings)
    if problem:
        raise UserError(f"the preset {name} {problem}")
    if data.get("runs"):
        runs = tuple({**run, "method": [relative_to(Path(name), m) for m in _list(run, "method")]} for run in runs)
    return Preset(name, data.get("about", base.about if base else ""), tuple(seeds), settings, runs)


def _resolve_base(other: Any, name: str) -> str:
    """The name of the preset that another is like; a file name is relative to the preset's folder."""
    if not isinstance(other, str):
        raise UserError(f"the preset {name} is like {other!r}; give the name of a preset")
    return str(Path(name).parent / other) if other.endswith(".toml") else other


def _problem(data: Mapping[str, Any], runs: Sequence[Any], seeds: Any, settings: Mapping[str, Any]) -> str:
    """What is wrong with it, for a message; empty if nothing is."""
    unknown = sorted(data.keys() - KEYS)
    if unknown:
        return f"has {unknown[0]!r}; it may have {', '.join(sorted(KEYS))}"
    if not isinstance(seeds, list) or not seeds or any(type(seed) is not int for seed in seeds):
        return f"has the seeds {seeds!r}; give a list of whole numbers"
    if not all(isinstance(values, dict) for values in settings.values()):
        return 'has a `for` without settings; write [for."rfe*"] and settings below it'
    if not runs or not all(isinstance(run, dict) and {"stream", "method"} <= run.keys() for run in runs):
        return "has a run without stream or method, or none at all; write [[runs]] with both"
    for run in runs:
        unknown = sorted(run.keys() - RUN_KEYS)
        if unknown:
            return f"has {unknown[0]!r} in a run; there may be {', '.join(sorted(RUN_KEYS))}"
        if not isinstance(run.get("set", {}), dict):
            return f"has the settings {run['set']!r} in a run; write set = {{ option = value }}"
        for key in ("stream", "method"):
            names = run[key] if isinstance(run[key], list) else [run[key]]
            if not names or not all(isinstance(name, str) for name in names):
                return f"has {key} = {run[key]!r} in a run; give a name or a list of names"
        flags = [key for key in ("measure_drift", "fixed_heads") if type(run.get(key, False)) is not bool]
        if flags:
            return f"has {flags[0]} = {run[flags[0]]!r} in a run; it is true or false"
    return ""


def _list(run: Mapping[str, Any], key: str) -> list[str]:
    return [run[key]] if isinstance(run[key], str) else list(run[key])


def _grid(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the listed values; to give a list as a value, put it into a list."""
    values = [value if isinstance(value, list) else [value] for value in settings.values()]
    for chosen in itertools.product(*values):
        yield dict(zip(settings, chosen, strict=True))


def _plain(value: Any) -> str:
    return (
        f"{value:g}"
        if isinstance(value, float)
        else "".join(c if c.isalnum() or c in ".-" else "_" for c in str(value))
    )
