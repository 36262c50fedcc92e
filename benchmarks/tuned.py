"""Which settings did searches choose? Writes src/recollect/runs/tuned.json, for `recollect run --best`.

    python benchmarks/tuned.py

Reads the raw results under results/ as `recollect best` does: validation images only. A stream and method has one row: of its searches, the
one that tried most settings; among equal ones that with most seeds, then with the most training images per class. Runs of one epoch are a
scenario, not a search.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recollect.errors import UserError
from recollect.report.defaults import with_added_options
from recollect.results import find_results
from recollect.runs import resolve
from recollect.runs.tuned import Tuned
from recollect.sweeps import Choice, best_settings

ROOT = Path(__file__).parents[1]
SIZES = ("backbone", "backbone.width", "backbone.image_size", "backbone.features", "training.epochs")
FILE = ROOT / "src" / "recollect" / "runs" / "tuned.json"


def rows() -> list[Tuned]:
    raw = find_results([ROOT / "results"]).values()
    results = [_as_of_today(result) for result in raw if result["config"]["training"].get("epochs") != 1]
    chosen: dict[tuple[str, str], Choice] = {}
    for choice in best_settings(results):
        key = (choice.stream, choice.method)
        if choice.num_tried > 1 and _is_valid(choice) and (key not in chosen or _rank(choice) > _rank(chosen[key])):
            chosen[key] = choice
    return [
        Tuned(
            stream=choice.stream,
            method=choice.method,
            settings={name: value for name, value in choice.settings.items() if name != "memory"},
            where={
                key: choice.all_settings[key]
                for key in ("memory", "stream.tasks", "stream.train_per_class", *SIZES, "precision")
                if choice.all_settings.get(key) is not None and not (key == "memory" and _keeps_nothing(choice))
            },
            tried=choice.num_tried,
            seeds=choice.num_seeds,
            validation=round(choice.validation, 2),
        )
        for choice in chosen.values()
    ]


def _as_of_today(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with the options that its method got later; else it would be of another setting than newer seeds."""
    config = result["config"]
    return {**result, "config": {**config, "method": with_added_options(config["method"])}}


def _is_valid(choice: Choice) -> bool:
    """Whether runs still have these options; earlier searches may have varied others.

    A rule for unknown tasks is not chosen by the accuracy with the task known, nor a form that was run with other
    options than its rivals.
    """
    if {"identity", "form"} & set(choice.settings):
        return False
    try:
        resolve(choice.stream, choice.method, 0, choice.settings)
    except UserError:
        return False
    return True


def _keeps_nothing(choice: Choice) -> bool:
    """RFE without images has the option all the same."""
    return bool(choice.all_settings.get("keep") == "none")


def _rank(choice: Choice) -> tuple[int, int, int]:
    images: Any = choice.all_settings["stream.train_per_class"]
    return choice.num_tried, choice.num_seeds, images or 10**9


def main() -> None:
    FILE.write_text(json.dumps(rows(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
