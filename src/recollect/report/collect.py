"""Results sorted for comparison: an experiment is one setting, its variants are methods, each with its seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recollect.report.defaults import earlier_defaults, non_default_options, with_added_options
from recollect.report.scenario import CLASS_INCREMENTAL, scenario
from recollect.report.style import order_of

Result = Mapping[str, Any]
SHARED = ("stream", "backbone", "training")
"""Sections of a config that all variants of an experiment share."""
SIZES = ("auxiliary_dim", "projection_dim")
"""Options that follow the width of the network, and are named only where they vary."""


@dataclass(frozen=True)
class Variant:
    """One method with its options, over seeds."""

    method: str
    memory: int
    """Exemplars it may keep; 0 for methods without a memory."""
    options: Mapping[str, Any]
    """Options that differ from the method's defaults; its dimensions only where they vary."""
    results: tuple[Result, ...]
    """One per seed, in the order of seeds."""
    distinction: str = ""
    """What else sets it apart from other variants of its experiment."""

    @property
    def label(self) -> str:
        options = (f"{name}={value}" for name, value in self.options.items())
        return ", ".join([self.method, *options, *filter(None, [self.distinction])])

    @property
    def full_label(self) -> str:
        """The label, with the number of exemplars."""
        return f"{self.label} ({self.memory})" if self.memory else self.label

    @property
    def images_kept(self) -> str:
        """The number of exemplars; `all` for joint training, which needs the images of all tasks."""
        return "all" if self.method == "joint" else str(self.memory)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(result["seed"] for result in self.results)

    def values(self, evaluation: str, metric: str) -> list[float | None]:
        """One value per seed; None where it is undefined."""
        summaries = (result.get(evaluation) for result in self.results)
        return [None if summary is None else summary[metric] for summary in summaries]


@dataclass(frozen=True)
class Unused:
    """A result that is not part of its variant, and why."""

    result: Result
    reason: str


@dataclass(frozen=True)
class Experiment:
    """Variants learned from the same stream under the same settings."""

    settings: Mapping[str, Mapping[str, Any]]
    """Of the stream, the backbone and the training."""
    variants: tuple[Variant, ...]
    changed: tuple[str, ...] = ()
    """Which settings differ from their defaults, as section.option."""
    suffix: str = ""
    """What distinguishes it from another experiment of the same title."""
    unused: tuple[Unused, ...] = ()
    """Results that repeat others of the experiment."""

    @property
    def stream(self) -> str:
        return str(self.settings["stream"]["name"])

    @property
    def num_tasks(self) -> int:
        return len(self.variants[0].results[0]["til"]["matrix"])

    @property
    def backbone(self) -> str:
        return str(self.settings["backbone"]["name"])

    @property
    def scenario(self) -> str:
        """What kind of stream was learned, and whether every image was seen once."""
        is_online = self.settings["training"].get("epochs") == 1
        return scenario(self.settings["stream"]) + ", online" * is_online

    @property
    def title(self) -> str:
        stream, backbone, training = (self.settings[section] for section in SHARED)
        kind = "" if scenario(stream) == CLASS_INCREMENTAL else f", {scenario(stream)}"
        images = f", {stream['train_per_class']} images per class" if stream.get("train_per_class") else ""
        width = f" of width {backbone['width']}" if "width" in backbone else ""
        order = ", seeded class order" if stream.get("class_order") == "seeded" else ""
        epochs = f"; {_count(training['epochs'], 'epoch')}" if "epochs" in training else ""
        tasks = _count(self.num_tasks, "task")
        return f"{self.stream}, {tasks}{images}{order}{kind}; {self.backbone}{width}{epochs}{self.suffix}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def collect(results: Iterable[Result]) -> list[Experiment]:
    """Experiments sorted by title. Where a configuration was run twice on the same data, the first result counts.

    Of results that differ in neither options nor seed, one counts; the others are listed as unused.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        key = repr([sorted(options.items()) for options in _settings(result).values()])
        groups.setdefault(key, []).append(result)
    experiments = [experiment for group in groups.values() for experiment in _split_by_data(group)]
    for title, number in Counter(experiment.title for experiment in experiments).items():
        if number > 1:
            _add_suffixes(experiments, [i for i, experiment in enumerate(experiments) if experiment.title == title])
    return sorted(experiments, key=lambda experiment: experiment.title)


def _settings(result: Result) -> dict[str, dict[str, Any]]:
    """The settings outside the method. Options that earlier results have and no run has any more are left out."""
    config = result["config"]
    defaults = earlier_defaults(config) if result.get("non_default_options") is None else None
    return {
        section: {
            name: value
            for name, value in config[section].items()
            if name == "name" or defaults is None or name in defaults[section]
        }
        for section in SHARED
    }


def _split_by_data(results: list[Result]) -> list[Experiment]:
    """Results of the same settings; those learned from different data are different experiments."""
    is_split = len({result["data"] for result in results if "data" in result}) > 1
    by_data: dict[str | None, list[Result]] = {}
    for result in results:
        by_data.setdefault(result.get("data") if is_split else None, []).append(result)
    experiments = []
    for digest, group in by_data.items():
        experiment = _experiment(group)
        if is_split:
            stream = {**experiment.settings["stream"], "data": digest or "unknown"}
            experiment = replace(experiment, settings={**experiment.settings, "stream": stream})
        experiments.append(experiment)
    return experiments


def _add_suffixes(experiments: list[Experiment], same_title: list[int]) -> None:
    """Name the settings in which experiments of one title differ."""
    flat = []
    for i in same_title:
        sections = experiments[i].settings.items()
        flat.append({f"{section}.{name}": value for section, options in sections for name, value in options.items()})
    differing = sorted(
        {name for settings in flat for name in settings if len({repr(other.get(name)) for other in flat}) > 1}
    )
    for i, settings in zip(same_title, flat, strict=True):
        parts = [f"{name}={settings[name]}" if name in settings else f"default {name}" for name in differing]
        experiments[i] = replace(experiments[i], suffix=f"; {', '.join(parts)}")


def _experiment(results: list[Result]) -> Experiment:
    by_hash: dict[str, Result] = {}
    for result in results:
        by_hash.setdefault(result["config"]["hash"], result)
    by_method: dict[str, dict[str, list[Result]]] = {}
    for result in by_hash.values():
        by_method.setdefault(result["config"]["method"]["name"], {}).setdefault(_key(result), []).append(result)
    variants = [variant for method, groups in by_method.items() for variant in _variants(method, [*groups.values()])]
    variants = sorted(
        _distinguish(variants),
        key=lambda v: (v.memory, order_of(v.results[0]), bool(v.options), repr(v.options), v.distinction),
    )
    settings, changed = _settings(results[0]), non_default_options(results[0])
    names = tuple(
        f"{section}.{name}"
        for section, options in settings.items()
        for name in options
        if name != "name" and (changed is None or name in changed[section])
    )
    return Experiment(settings, tuple(variants), names, unused=tuple(_unused(results, variants)))


def _distinguish(variants: list[Variant]) -> list[Variant]:
    """Label what else differs: a precision that is not the most common one, and options behind equal labels."""
    usual = Counter(precision_of(v.results[0]) for v in variants).most_common(1)[0][0]
    marked = [replace(v, distinction=_other_precision(v.results[0], usual)) for v in variants]
    by_label: dict[str, list[Variant]] = {}
    for v in marked:
        by_label.setdefault(v.full_label, []).append(v)
    return [v for group in by_label.values() for v in (group if len(group) == 1 else _tell_apart(group))]


def _tell_apart(variants: list[Variant]) -> Iterator[Variant]:
    """Variants of one label, each with the options in which they differ; one that a version lacks is named as such."""
    all_options = [_method_options(v.results[0]) for v in variants]
    names = dict.fromkeys(name for options in all_options for name in options)
    varied = [name for name in names if len({repr(options.get(name, ...)) for options in all_options}) > 1]
    for v, options in zip(variants, all_options, strict=True):
        parts = [f"{name}={options[name]}" if name in options else f"no {name}" for name in varied]
        yield replace(v, distinction=", ".join(filter(None, [v.distinction, *parts])))


def precision_of(result: Result) -> str:
    return str(result["config"].get("precision", "unknown precision"))


def _other_precision(result: Result, usual: str) -> str:
    return "" if precision_of(result) == usual else precision_of(result)


def _unused(results: list[Result], variants: list[Variant]) -> Iterator[Unused]:
    """The results that no variant has: another run of the same configuration, or of the same options and seed."""
    used = {id(result) for v in variants for result in v.results}
    by_key = {(_key(result), result["seed"]): (v, result) for v in variants for result in v.results}
    for result in results:
        if id(result) in used:
            continue
        v, other = by_key.get((_key(result), result["seed"]), (None, None))
        if v is None or other is None:
            yield Unused(result, "another result has the same configuration hash")
        else:
            yield Unused(result, f"repeats seed {result['seed']} of {v.full_label}; {_why_not(result, other)}")


def _why_not(result: Result, used: Result) -> str:
    """Why the other of two results of the same seed counts."""
    processes = [r.get("environment", {}).get("processes", 1) for r in (result, used)]
    ran = f"this run used {processes[0]} processes, the other {processes[1]}; " if len(set(processes)) > 1 else ""
    is_same = result["config"]["hash"] == used["config"]["hash"]
    return ran + ("the first of them counts" if is_same else "the one that measured drift, or else the last, counts")


def _key(result: Result) -> str:
    """The same for results of one variant."""
    options = sorted(({"memory": _memory(result)} | _method_options(result)).items())
    return repr((result["config"]["method"]["name"], options))


def _variants(method: str, groups: list[list[Result]]) -> list[Variant]:
    """One per group of results, which differ in their seeds alone; each is labelled by what sets it apart."""
    all_options = [_method_options(group[0]) for group in groups]
    names = dict.fromkeys(name for options in all_options for name in options)
    varied = {name for name in names if len({repr(options.get(name)) for options in all_options}) > 1}
    variants = []
    for group, options in zip(groups, all_options, strict=True):
        changed = non_default_options(group[0])
        if changed is None:
            shown = varied
        else:
            shown = {name for name in changed["method"] if name in varied or name not in SIZES}
            shown |= {"fixed_heads"} if options.get("fixed_heads") else set()
        known = (changed["method"] if changed else {}) | options  # a config leaves some options out
        label = {name: value for name, value in known.items() if name in shown and name != "memory"}
        by_seed = {result["seed"]: result for result in sorted(group, key=lambda result: bool(result.get("drift")))}
        variants.append(Variant(method, _memory(group[0]), label, tuple(by_seed[seed] for seed in sorted(by_seed))))
    return variants


def _method_options(result: Result) -> dict[str, Any]:
    """What distinguishes variants of a method. The budget has a field of its own; measuring drift changes nothing."""
    config = result["config"]
    options = with_added_options(config["method"])
    method = {name: value for name, value in options.items() if name not in ("name", "memory")}
    file = {"method_file": config["method_file"]["sha256"][:8]} if "method_file" in config else {}
    return method | file | {name: config[name] for name in ("fixed_heads", "precision") if name in config}


def _memory(result: Result) -> int:
    budget = result["config"]["method"].get("memory", 0)
    return budget if result["memory"]["samples"] and isinstance(budget, int) else 0
