"""docs/long-chains.md: cost and accuracy of chains over many tasks."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from pages.experiments import RESULTS, ROOT, load_json
from pages.markdown import details, fill, table
from recollect.report.collect import collect
from recollect.report.query import mean_accuracy
from recollect.report.stats import spread
from recollect.results import find_results

PAGE = ROOT / "docs" / "long-chains.md"
FOLDER = RESULTS / "cpu" / "many-tasks"
TARGETS = {(100, 1): 1.5, (100, 256): 1.25}
"""By tasks and batch: the most that a pass may take, relative to the bare backbone."""


def page(measured: Mapping[str, Any]) -> str:
    """The whole of docs/long-chains.md."""
    machine = measured["machine"]
    results = list(find_results([FOLDER]).values())
    runs = [[f"`{result['command']}`", f"`{result['commit'][:10]}`"] for result in results]
    return fill(
        "long-chains.md",
        {
            "machine": f"{machine['processor']}, {machine['threads']} threads, commit `{measured['commit'][:10]}`",
            "cost": _cost(measured["cells"]),
            **_compacted(),
            "accuracy": _accuracy(results),
            "runs": details(
                f"{len(runs)} run{'s' * (len(runs) != 1)}", table(["command", "commit"], runs, is_text=True)
            ),
        },
    )


def _cost(cells: list[Mapping[str, Any]]) -> str:
    rows = []
    for cell in cells:
        target = TARGETS.get((cell["tasks"], cell["batch"]))
        verdict = "" if target is None else f"≤ {target}: {'met' if cell['ratio'] <= target else '**missed**'}"
        rows.append([
            f"`{cell['method']}`", str(cell["tasks"]), str(cell["batch"]), f"{cell['ratio']:.3f}",
            f"{cell['milliseconds']:.1f}", f"{cell['parameters'] / 1e6:.1f}", verdict,
        ])  # fmt: skip
    header = ["method", "tasks", "batch", "time / bare backbone", "ms", "parameters (millions)", "target"]
    return table(header, rows)


def _compacted() -> dict[str, str]:
    """Finished runs before and after their chains were compacted."""
    runs = load_json("compact.json")["runs"]
    rows = []
    for name in ("trained", "compacted"):
        cells = [run[name] for run in runs]
        rows.append([
            name, *(spread([cell[key] for cell in cells]) for key in ("til", "cil")),
            *(f"{median(cell[key] for cell in cells):.2f}" for key in ("ratio_1", "ratio_32")),
            f"{cells[0]['parameters'] / 1e6:.2f}",
        ])  # fmt: skip
    without = spread([run["trained"]["til_without_chain"] for run in runs])
    rows.append(["none: old heads on today's features", without, "–", "–", "–", "–"])
    header = ["chain", "TIL", "CIL", "time / bare backbone, batch 1", "batch 32", "parameters (millions)"]
    seeds = ", ".join(str(run["seed"]) for run in runs)
    return {
        "compact": table(header, rows),
        "compact_tasks": str(runs[0]["tasks"]),
        "compact_seeds": f"seed{'s' * (len(runs) > 1)} {seeds}",
        "compact_machine": f"{runs[0]['machine']['processor']}, commit `{runs[0]['commit'][:10]}`",
    }


def _accuracy(results: list[dict[str, Any]]) -> str:
    rows = []
    for experiment in collect(results):
        for v in sorted(experiment.variants, key=lambda v: -mean_accuracy(v, "til")):
            minutes = sum(sum(run["seconds"].values()) for run in v.results) / len(v.results) / 60
            rows.append([
                f"`{v.label}`", str(len(v.seeds)), spread(v.values("til", "average_accuracy")),
                spread(v.values("til", "forgetting")), spread(v.values("cil", "average_accuracy")), f"{minutes:.0f}",
            ])  # fmt: skip
    return table(["method", "seeds", "TIL", "forgetting (TIL)", "CIL", "minutes"], rows)
