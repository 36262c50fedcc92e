"""The best of a grid, by validation accuracy and never by test accuracy."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

By = Literal["til", "cil"]
"""The validation accuracy that decides: with the task known (til) or among all classes (cil)."""
SECTIONS = ("method", "stream", "backbone", "training")
DECIDE_VALIDATION = (
    "tasks", "class_order", "train_per_class", "validation", "shift", "repeats", "blur", "imbalance",
)  # fmt: skip
"""Stream options that decide which images are validated on, and among which classes."""
DECIDE_COST = ("image_size", "features")
"""Options of pretrained backbones that are a matter of time and memory, not of tuning."""


@dataclass(frozen=True)
class Choice:
    """The settings that did best, of those tried under the same conditions."""

    stream: str
    method: str
    conditions: dict[str, Any]
    """What distinguishes these runs from others of the same stream and method, with which they cannot be compared."""
    settings: dict[str, Any]
    """Those that differ among the runs tried, and the memory; named with their section unless it is the method."""
    validation: float
    """Mean accuracy on validation images over the seeds."""
    num_tried: int
    num_seeds: int
    by: By
    """Which accuracy that is; choices by different ones cannot be compared."""
    all_settings: dict[str, Any] = field(repr=False)
    """Everything that the runs chosen were run with."""


@dataclass(frozen=True)
class _Group:
    """Runs whose validation accuracies can be compared: seeds of each of the settings tried."""

    conditions: dict[str, Any]
    tried: dict[str, dict[int, Mapping[str, Any]]]

    def describe(self) -> dict[str, Any]:
        """Its conditions, and the options of the stream that all its runs share: they may be why its data is other."""
        settings = [_settings(next(iter(seeds.values()))) for seeds in self.tried.values()]
        varied = _varied(settings)
        shared = {key: value for key, value in settings[0].items() if key.startswith("stream.") and key not in varied}
        return self.conditions | shared


def best_settings(results: Iterable[Mapping[str, Any]], by: By = "til") -> list[Choice]:
    """For runs of a method that validate on the same images and classes, the settings with the best mean accuracy `by`.

    Any setting may be chosen but the memory's budget, the backbone's name, image size and layers, precision and fixed
    heads, and those of the stream that decide what is validated on. Only seeds that all settings of a group were run
    with are compared.
    """
    groups: dict[str, _Group] = {}
    for result in results:
        if result.get("validation", {}).get(by) is not None:
            conditions = _conditions(result)
            group = groups.setdefault(repr(conditions), _Group(conditions, {}))
            group.tried.setdefault(repr(_settings(result)), {})[result["seed"]] = result
    choices = [_choose(group, groups.values(), by) for group in groups.values()]
    return sorted(
        (choice for choice in choices if choice), key=lambda c: (c.stream, c.method, str(c.conditions), str(c.settings))
    )


def _conditions(result: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be the same for accuracies to be compared; without a digest of the data all options of the stream."""
    config, data = result["config"], result.get("data")
    stream = {
        f"stream.{key}": value
        for key, value in sorted(config["stream"].items())
        if key != "name" and (data is None or key in DECIDE_VALIDATION)
    }
    network = {f"backbone.{key}": value for key, value in config["backbone"].items() if key in DECIDE_COST}
    return {
        "stream": config["stream"]["name"],
        "method": config["method"]["name"],
        "method_file": config.get("method_file", {}).get("sha256"),
        "memory": config["method"].get("memory"),
        "backbone": config["backbone"]["name"],
        **network,
        **stream,
        "data": data,
        "fixed_heads": config.get("fixed_heads"),
        "precision": config.get("precision"),
    }


def _settings(result: Mapping[str, Any]) -> dict[str, Any]:
    """What may be chosen, by name."""
    config, conditions = result["config"], _conditions(result)
    elsewhere = {key for section in SECTIONS[1:] for key in config[section]}
    return {
        key if section == "method" and key not in elsewhere else f"{section}.{key}": value
        for section in SECTIONS
        for key, value in sorted(config[section].items())
        if key != "name" and f"{section}.{key}" not in {*conditions, "method.memory"}
    }


def _choose(group: _Group, groups: Iterable[_Group], by: By) -> Choice | None:
    stream, method, memory = (group.conditions[key] for key in ("stream", "method", "memory"))
    common = set.intersection(*({*seeds} for seeds in group.tried.values()))
    if not common:
        num = len(group.tried)
        warnings.warn(f"{stream}, {method}: no seed was run with all {num} settings, so none is chosen", stacklevel=3)
        return None
    settings = {key: _settings(next(iter(seeds.values()))) for key, seeds in group.tried.items()}
    scores = {key: fmean(seeds[s]["validation"][by] for s in common) for key, seeds in group.tried.items()}
    best = max(scores, key=scores.__getitem__)
    chosen = {} if memory is None else {"memory": memory}
    chosen |= {name: settings[best][name] for name in _varied(settings.values()) if name in settings[best]}
    conditions = {name: group.describe().get(name) for name in _differences(group, groups)}
    everything = group.conditions | settings[best]
    return Choice(stream, method, conditions, chosen, scores[best], len(group.tried), len(common), by, everything)


def _differences(group: _Group, groups: Iterable[_Group]) -> list[str]:
    """What differs between the groups of one stream and method, except for the memory, which is always shown."""
    same = [g for g in groups if all(g.conditions[key] == group.conditions[key] for key in ("stream", "method"))]
    varied = _varied(g.conditions for g in same)
    if "data" in varied:
        described = [g.describe() for g in same]
        varied += [key for key in _varied(described) if key not in varied and all(key in d for d in described)]
    return [name for name in varied if name != "memory"]


def _varied(dicts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Keys whose values differ, or that some have and others have not."""
    settings = list(dicts)
    names = dict.fromkeys(name for options in settings for name in options)
    return [name for name in names if len({repr(options.get(name)) for options in settings}) > 1]
