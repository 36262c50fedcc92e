"""Results sorted for comparison: an experiment is one setting, its variants are methods, each with its seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recollect.errors import UserError
from recollect.runs import available_options

Result = Mapping[str, Any]
NOT_METHOD = ("stream", "backbone", "training")
ORDER = ["joint", "finetune", "lwf", "ewc", "si", "expansion", "agem", "er", "derpp", "er-ace", "er-mkd", "tamil"]
ORDER += ["cls-er", "rfe", "rfe-p", "rfe-b", "rfe-e2e", "rfe-mlp-residual", "rfe-mlp-projection", "rfe-no-aux"]


@dataclass(frozen=True)
class Variant:
    """One method with its settings, over seeds."""

    method: str
    memory: int
    """Exemplars it may keep; 0 for methods without a memory."""
    own: Mapping[str, Any]
    """Settings in which it differs from other variants of its method."""
    results: tuple[Result, ...]
    """One a seed, in the order of seeds."""

    @property
    def label(self) -> str:
        return ", ".join([self.method, *(f"{key}={value}" for key, value in self.own.items())])

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(result["seed"] for result in self.results)

    def figures(self, evaluation: str, figure: str) -> list[float | None]:
        """A figure of every seed; None where it is undefined."""
        found = (result.get(evaluation) for result in self.results)
        return [None if each is None else each[figure] for each in found]


@dataclass(frozen=True)
class Experiment:
    """Variants learned from the same stream under the same settings."""

    settings: Mapping[str, Mapping[str, Any]]
    """Of the stream, the backbone and the training."""
    variants: tuple[Variant, ...]
    besides: str = ""
    """What tells it from another of the same title."""

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
    def title(self) -> str:
        stream, backbone, training = (self.settings[section] for section in NOT_METHOD)
        images = f", {stream['train_per_class']} images a class" if stream["train_per_class"] else ""
        width = f" of width {backbone['width']}" if "width" in backbone else ""
        order = ", seeded class order" if stream["class_order"] == "seeded" else ""
        learned = f"{self.num_tasks} tasks{images}{order}"
        return f"{self.stream}, {learned}; {self.backbone}{width}; {training['epochs']} epochs{self.besides}"


def collect(results: Iterable[Result]) -> list[Experiment]:
    """Experiments in the order of their titles; where a configuration was run twice, the first result counts."""
    groups: dict[str, dict[str, Result]] = {}
    for result in results:
        shared = repr([sorted(result["config"][section].items()) for section in NOT_METHOD])
        groups.setdefault(shared, {}).setdefault(result["config"]["hash"], result)
    experiments = [_experiment(list(group.values())) for group in groups.values()]
    for title, number in Counter(experiment.title for experiment in experiments).items():
        if number > 1:
            alike = [place for place, experiment in enumerate(experiments) if experiment.title == title]
            _tell_apart(experiments, alike)
    return sorted(experiments, key=lambda experiment: experiment.title)


def _tell_apart(experiments: list[Experiment], alike: list[int]) -> None:
    """Name the settings in which experiments of one title differ."""
    flat = []
    for place in alike:
        settings = experiments[place].settings.items()
        flat.append({f"{section}.{key}": value for section, own in settings for key, value in own.items()})
    keys = sorted({key for each in flat for key in each if len({repr(other.get(key)) for other in flat}) > 1})
    for place, each in zip(alike, flat, strict=True):
        words = ", ".join(f"{key}={each[key]}" if key in each else f"no {key}" for key in keys)
        experiments[place] = replace(experiments[place], besides=f"; {words}")


def _experiment(results: list[Result]) -> Experiment:
    by_method: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        options = _options(result)
        by_method.setdefault(result["config"]["method"]["name"], {}).setdefault(repr(options), []).append(result)
    variants = []
    for method, groups in by_method.items():
        all_options = [_options(group[0]) for group in groups.values()]
        varied = [key for key in all_options[0] if len({repr(options.get(key)) for options in all_options}) > 1]
        for group, options in zip(groups.values(), all_options, strict=True):
            usual = _defaults(group[0])
            own = {key: options[key] for key in varied if key != "memory" and options[key] != usual.get(key, ...)}
            seeds = {result["seed"]: result for result in sorted(group, key=lambda each: bool(each.get("drift")))}
            ordered = tuple(seeds[seed] for seed in sorted(seeds))
            variants.append(Variant(method, _memory(group[0]), own, ordered))
    known = {name: place for place, name in enumerate(ORDER)}
    variants.sort(key=lambda v: (v.memory, known.get(v.method, len(known)), v.method, repr(v.own)))
    config = results[0]["config"]
    return Experiment({section: config[section] for section in NOT_METHOD}, tuple(variants))


def _options(result: Result) -> dict[str, Any]:
    """What tells variants of a method apart; a drift measured beside does not."""
    config = result["config"]
    method = {key: value for key, value in config["method"].items() if key != "name"}
    if not _memory(result):
        method.pop("memory", None)
    return method | {"fixed_heads": config["fixed_heads"], "precision": config["precision"]}


def _defaults(result: Result) -> dict[str, Any]:
    """The options of a result's method as they come; nothing for a method or stream that is not installed."""
    config = result["config"]
    try:
        options = available_options(config["stream"]["name"], config["method"]["name"], config["backbone"]["name"])
    except UserError:
        return {}
    return {name: option.default for name, option in options["method"].items()} | {"fixed_heads": False}


def _memory(result: Result) -> int:
    held = result["memory"]["samples"]
    return int(result["config"]["method"].get("memory", 0)) if held else 0
