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
SIZES = ("auxiliary_dim", "projection_dim")  # go with the width of the network, and are named only where they vary
ORDER = ["joint", "finetune", "lwf", "ewc", "si", "expansion", "agem", "er", "derpp", "er-ace", "er-mkd", "tamil"]
ORDER += ["cls-er", "rfe", "rfe-p", "rfe-b", "rfe-e2e", "rfe-mlp-residual", "rfe-mlp-projection", "rfe-no-aux"]
OLD_ORDER = {name: 10 * index for index, name in enumerate(ORDER)}  # of results from before runs wrote `display`


@dataclass(frozen=True)
class Variant:
    """One method with its settings, over seeds."""

    method: str
    memory: int
    """Exemplars it may keep; 0 for methods without a memory."""
    own: Mapping[str, Any]
    """Settings that are not the method's defaults; its dimensions only where they vary."""
    results: tuple[Result, ...]
    """One a seed, in the order of seeds."""

    @property
    def label(self) -> str:
        return ", ".join([self.method, *(f"{key}={value}" for key, value in self.own.items())])

    @property
    def order(self) -> int:
        """Where its method stands in tables, smallest first."""
        display = self.results[0].get("display")
        return int(display["order"]) if display else OLD_ORDER.get(self.method, 1000)

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
    unusual: tuple[str, ...] = ()
    """Which of them are not the stream's own defaults, as section.option."""
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
        images = f", {stream['train_per_class']} images a class" if stream.get("train_per_class") else ""
        width = f" of width {backbone['width']}" if "width" in backbone else ""
        order = ", seeded class order" if stream.get("class_order") == "seeded" else ""
        epochs = f"; {training['epochs']} epochs" if "epochs" in training else ""
        return f"{self.stream}, {self.num_tasks} tasks{images}{order}; {self.backbone}{width}{epochs}{self.besides}"


def collect(results: Iterable[Result]) -> list[Experiment]:
    """Experiments in the order of their titles; where a configuration was run twice on one data, the first counts."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(repr([sorted(each.items()) for each in _shared(result).values()]), []).append(result)
    experiments = []
    for group in groups.values():
        of_data: dict[str | None, dict[str, Result]] = {}
        several = len({result["data"] for result in group if "data" in result}) > 1
        for result in group:
            of_data.setdefault(result.get("data") if several else None, {}).setdefault(result["config"]["hash"], result)
        for data, found in of_data.items():
            one = _experiment(list(found.values()))
            if several:
                stream = {**one.settings["stream"], "data": data or "unknown"}
                one = replace(one, settings={**one.settings, "stream": stream})
            experiments.append(one)
    for title, number in Counter(experiment.title for experiment in experiments).items():
        if number > 1:
            alike = [place for place, experiment in enumerate(experiments) if experiment.title == title]
            _tell_apart(experiments, alike)
    return sorted(experiments, key=lambda experiment: experiment.title)


def _shared(result: Result) -> dict[str, dict[str, Any]]:
    """What makes an experiment: settings outside the method. Options that the stream has no more do not tell apart."""
    config = result["config"]
    known = _defaults(result)
    return {
        section: {
            key: value
            for key, value in config[section].items()
            if key == "name" or not known or f"{section}.{key}" in known
        }
        for section in NOT_METHOD
    }


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
        options = {"memory": _memory(result)} | _options(result)
        by_method.setdefault(result["config"]["method"]["name"], {}).setdefault(repr(options), []).append(result)
    variants = []
    for method, groups in by_method.items():
        found = [_options(group[0]) for group in groups.values()]
        keys = list(dict.fromkeys(key for options in found for key in options))
        varied = {key for key in keys if len({repr(options.get(key)) for options in found}) > 1}
        for group, options in zip(groups.values(), found, strict=True):
            usual = _defaults(group[0])
            own = {
                key: value
                for key, value in options.items()
                if value != usual.get(f"method.{key}", ...) and (key in varied or (usual and key not in SIZES))
            }
            seeds = {result["seed"]: result for result in sorted(group, key=lambda each: bool(each.get("drift")))}
            ordered = tuple(seeds[seed] for seed in sorted(seeds))
            variants.append(Variant(method, _memory(group[0]), own, ordered))
    variants.sort(key=lambda v: (v.memory, v.order, v.method, bool(v.own), repr(v.own)))
    settings, usual = _shared(results[0]), _defaults(results[0])
    unusual = tuple(
        f"{section}.{key}"
        for section, own in settings.items()
        for key, value in own.items()
        if key != "name" and value != usual.get(f"{section}.{key}", ...)
    )
    return Experiment(settings, tuple(variants), unusual)


def _options(result: Result) -> dict[str, Any]:
    """What tells variants of a method apart; a drift measured beside does not, and the budget stands by itself."""
    config = result["config"]
    method = {key: value for key, value in config["method"].items() if key not in ("name", "memory")}
    return method | {key: config[key] for key in ("fixed_heads", "precision") if key in config}


def _defaults(result: Result) -> dict[str, Any]:
    """All options of such a run as they come; nothing for a method or stream that is not installed."""
    config = result["config"]
    try:
        found = available_options(*(config[section]["name"] for section in ("stream", "method", "backbone")))
    except UserError:
        return {}
    usual = {f"{section}.{name}": option.default for section, each in found.items() for name, option in each.items()}
    precision = config.get("precision")  # decided by the device, so none is unusual
    return usual | {"method.fixed_heads": False, "method.precision": precision}


def _memory(result: Result) -> int:
    budget = result["config"]["method"].get("memory", 0)
    return budget if result["memory"]["samples"] and isinstance(budget, int) else 0
