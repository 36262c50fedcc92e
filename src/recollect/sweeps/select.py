"""The best of a grid, by validation accuracy and never by test accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

SHARED = ("stream", "backbone", "training")


@dataclass(frozen=True)
class Choice:
    """The settings of one stream, method and memory that did best, of those tried."""

    stream: str
    method: str
    settings: dict[str, Any]
    """Those of the method that differ among the runs tried, and the memory."""
    validation: float
    """Mean task-incremental accuracy on validation images over the seeds."""
    num_tried: int


def best_settings(results: Iterable[Mapping[str, Any]]) -> list[Choice]:
    """For runs on the same data, alike in all but the method's settings, those with the best mean validation accuracy.

    Memory budgets are separate groups. Only seeds that all settings of a group were run with are compared.
    """
    unique = {(result["config"]["hash"], result.get("data")): result for result in results}
    groups: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for result in unique.values():
        config = result["config"]
        if result.get("validation", {}).get("til") is not None:
            shared = [sorted(config[section].items()) for section in SHARED]
            besides = [result.get("data"), *(config.get(key) for key in ("fixed_heads", "precision"))]
            group = groups.setdefault(
                repr([shared, besides, config["method"]["name"], config["method"].get("memory")]), {}
            )
            group.setdefault(repr(_settings(config)), []).append(result)
    found = [_choose(tried) for tried in groups.values()]
    return sorted((choice for choice in found if choice), key=lambda c: (c.stream, c.method, str(c.settings)))


def _choose(tried: Mapping[str, list[Mapping[str, Any]]]) -> Choice | None:
    common = set.intersection(*({result["seed"] for result in each} for each in tried.values()))
    if not common:
        return None
    settings = {key: _settings(each[0]["config"]) for key, each in tried.items()}
    names = {name for own in settings.values() for name in own}
    varied = {name for name in names if len({repr(own.get(name)) for own in settings.values()}) > 1}
    score = {
        key: fmean(result["validation"]["til"] for result in each if result["seed"] in common)
        for key, each in tried.items()
    }
    best = max(score, key=score.__getitem__)
    config = tried[best][0]["config"]
    chosen = {"memory": config["method"]["memory"]} if "memory" in config["method"] else {}
    chosen |= {name: value for name, value in settings[best].items() if name in varied}
    return Choice(config["stream"]["name"], config["method"]["name"], chosen, score[best], len(tried))


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config["method"].items() if key not in ("name", "memory")}
