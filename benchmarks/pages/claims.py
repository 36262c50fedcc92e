"""The claims of docs/results.md: a summary, a table per experiment, and how many are supported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pages.experiments import EXEMPLARS, get_experiment, load_json, main_experiment
from pages.markdown import details, table
from recollect.report.claims import RFE_FORMS, claims
from recollect.report.query import find_variant
from recollect.report.speed import MODERATE, SIMILAR, time_claims
from recollect.report.verdict import INCONCLUSIVE, LEVEL_POINTS, REFUTED, SUPPORTED, Claim

MAIN, TIME = "Split CIFAR-100, 5 tasks", "Time, ResNet-18 at full width"
PRESETS = {
    "Split CIFAR-100, 10 tasks": "rmse",
    "Split CIFAR-100, 20 tasks (the paper: Tiny ImageNet)": "long-chain",
    "Tiny ImageNet, 10 tasks": "tinyimagenet",
    "Split CIFAR-10, 5 tasks": "cifar10",
}
SUMMARY: dict[str, tuple[str, ...]] = {
    "RFE, without images, is level with all rehearsal methods or above (TIL)": ("rfe-level-with-rehearsal",),
    "RFE-P and RFE-B are above all rehearsal methods (TIL)": ("rfe-p-above-rehearsal-til", "rfe-b-above-rehearsal-til"),
    "RFE-P and RFE-B are above RFE (TIL)": ("rfe-p-above-rfe", "rfe-b-above-rfe"),
    "less forgetting over many tasks (TIL)": tuple(f"{form}-forgets-less" for form in RFE_FORMS),
    "above all rehearsal methods over 20 tasks (TIL)": tuple(f"{form}-above-rehearsal-over-time" for form in RFE_FORMS),
    "the gated form is level with MLPs or above (TIL)": ("gated-level-with-mlp",),
    "end to end is as accurate as in two stages (TIL)": ("end-to-end-level",),
    "the chain corrects drift, α = 0": ("rfe-chain-gain-alpha-0",),
    "the chain corrects drift, RFE at the paper's α": ("rfe-chain-gain",),
    "training takes about as long as ER": ("rfe-training-time",),
}
"""Ids of the claims that a row of the summary stands for."""


def values() -> dict[str, str]:
    """For the template."""
    groups = {MAIN: list(claims(main_experiment()))}
    groups |= {title: list(claims(get_experiment(preset))) for title, preset in PRESETS.items()}
    groups[TIME] = time_claims(load_json("bench.json"), {method: _run_ratio(method) for method in RFE_FORMS})
    usual = {title: [c for c in group if c.memory in (None, EXEMPLARS)] for title, group in groups.items()}
    other = [c for group in groups.values() for c in group if c.memory not in (None, EXEMPLARS)]
    verdicts = [c.verdict for group in usual.values() for c in group]
    tables = [f"### {title}\n\n{_table(group)}" for title, group in usual.items()]
    return {
        "num_claims": str(len(verdicts)),
        "num_supported": str(verdicts.count(SUPPORTED)),
        "num_refuted": str(verdicts.count(REFUTED)),
        "num_inconclusive": str(verdicts.count(INCONCLUSIVE)),
        "num_of_one_seed": str(
            sum(c.verdict == INCONCLUSIVE and "(1 seed)" in c.measured for group in usual.values() for c in group)
        ),
        "claim_summary": _summary(groups),
        "claim_tables": "\n\n".join(tables),
        "claims_with_other_memory": details(
            "The same with 100 and 200 exemplars, which the paper does not have", _table(other)
        ),
        "level": f"{LEVEL_POINTS:.0f}",
        "similar_time": f"{SIMILAR:g}",
        "moderate_time": f"{MODERATE:g}",
    }


def _summary(groups: Mapping[str, Sequence[Claim]]) -> str:
    """The verdict on each claim in each group; where several claims are one row, the least favourable."""
    columns = {
        "CIFAR-100": [c for c in groups[MAIN] if c.memory in (None, EXEMPLARS)],
        "the same, 200 exemplars": [c for c in groups[MAIN] if c.memory == 200],
        **{title.split(" (")[0]: groups[title] for title in PRESETS},
        "time": groups[TIME],
    }
    rows = []
    for title, ids in SUMMARY.items():
        cells = []
        for group in columns.values():
            verdicts = {c.verdict for c in group if c.id in ids}
            cells.append(next((v for v in (REFUTED, INCONCLUSIVE, SUPPORTED) if v in verdicts), "–"))
        rows.append([title, *cells])
    return table(["the paper's claim", *columns], rows, is_text=True)


def _table(group: Sequence[Claim]) -> str:
    rows = [[c.text, f"**{c.verdict}**", c.evidence] for c in group]
    return table(["the paper's claim", "verdict", "measured"], rows, is_text=True)


def _run_ratio(method: str) -> float | None:
    """A method's training time over ER's, in whole runs of 10 tasks."""
    tiny = get_experiment("tinyimagenet")
    pair = [find_variant(tiny, *key) for key in ((method, EXEMPLARS * (method != "rfe")), ("er", EXEMPLARS))]
    seconds = [sum(v.results[0]["seconds"].get(phase, 0.0) for phase in ("fit", "retrospect")) for v in pair if v]
    return seconds[0] / seconds[1] if len(seconds) == 2 else None
