"""The best of a grid, by validation accuracy and never by test accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from recollect.runs.config import SECTIONS


@dataclass(frozen=True)
class Choice:
    """The settings of one stream, method and memory that did best, of those tried."""

    stream: str
    method: str
    settings: dict[str, Any]
    """Only those that differ among the runs tried."""
    validation: float
    """Mean task-incremental accuracy on validation images over the seeds."""
    num_tried: int


def best_settings(results: Iterable[Mapping[str, Any]]) -> list[Choice]:
    """For each stream, method and memory budget, the settings with the best mean validation accuracy over seeds."""
    groups: dict[tuple[str, str, Any], dict[str, list[Mapping[str, Any]]]] = {}
    for result in results:
        config = result["config"]
        if result.get("validation", {}).get("til") is None:
            continue
        group = groups.setdefault(
            (config["stream"]["name"], config["method"]["name"], config["method"].get("memory")), {}
        )
        group.setdefault(repr(_settings(config)), []).append(result)
    found = []
    for (stream, method, memory), tried in sorted(groups.items(), key=str):
        settings = {key: _settings(each[0]["config"]) for key, each in tried.items()}
        varied = {name for own in settings.values() for name in own
                  if len({repr(each.get(name)) for each in settings.values()}) > 1}  # fmt: skip
        score = {key: fmean(result["validation"]["til"] for result in each) for key, each in tried.items()}
        best = max(score, key=score.__getitem__)
        chosen = {name: value for name, value in settings[best].items() if name in varied}
        chosen = {"memory": memory, **chosen} if memory is not None else chosen
        found.append(Choice(stream, method, chosen, score[best], len(tried)))
    return found


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for section in SECTIONS for key, value in config[section].items() if key not in ("name", "memory")
    }
