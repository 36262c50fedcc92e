"""docs/results-streams.md: what methods reach on streams beyond class splits."""

from __future__ import annotations

from pages.experiments import RESULTS, ROOT
from pages.markdown import details, fill, table
from recollect.report.collect import Experiment, Variant, collect
from recollect.report.query import mean_accuracy
from recollect.report.stats import chain_gain, spread
from recollect.results import find_results

PAGE = ROOT / "docs" / "results-streams.md"
FOLDER = RESULTS / "streams" / "digits"


def page() -> str:
    """The whole of docs/results-streams.md."""
    results = find_results([FOLDER]).values()
    experiments = sorted(collect(results), key=lambda experiment: experiment.scenario)
    parts = [f"## {experiment.scenario.capitalize()}\n\n{_table(experiment)}" for experiment in experiments]
    rows = [[f"`{result['command']}`", f"`{result['commit'][:10]}`"] for result in results]
    listing = details(f"{len(rows)} runs", table(["command", "commit"], rows, is_text=True))
    return fill(
        "results-streams.md",
        {
            "overview": _overview(experiments), "tables": "\n\n".join(parts), "runs": listing,
            "chain": _chain(experiments),
        },
    )  # fmt: skip


def _overview(experiments: list[Experiment]) -> str:
    """Task-unknown accuracy of each method in each scenario."""
    by_scenario = {e.scenario: {_name(v): f"{mean_accuracy(v, 'cil'):.1f}" for v in e.variants} for e in experiments}
    names = sorted({name for cells in by_scenario.values() for name in cells})
    rows = [[f"`{name}`", *(cells.get(name, "–") for cells in by_scenario.values())] for name in names]
    return table(["method", *by_scenario], rows)


def _name(variant: Variant) -> str:
    """Without the options that a scenario changes for every method."""
    return f"{variant.method} ({variant.memory})" if variant.memory else variant.method


def _table(experiment: Experiment) -> str:
    rows = []
    for v in sorted(experiment.variants, key=lambda v: -mean_accuracy(v, "cil")):
        rows.append([
            f"`{_name(v)}`", str(len(v.seeds)), spread(v.values("til", "average_accuracy")),
            spread(v.values("til_without_chain", "average_accuracy")),
            spread(v.values("cil", "average_accuracy")), spread(v.values("cil", "forgetting")),
        ])  # fmt: skip
    return table(["method", "seeds", "TIL", "TIL without the chain", "CIL", "forgetting (CIL)"], rows)


def _chain(experiments: list[Experiment]) -> str:
    """What the chain adds to RFE's accuracy with the task known, in each scenario."""
    gains = {e.scenario: gain for e in experiments for v in e.variants if v.method == "rfe" and (gain := chain_gain(v))}
    return ", ".join(f"{name} {gain}" for name, gain in sorted(gains.items(), key=lambda item: item[1].mean))
