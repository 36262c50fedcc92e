"""The paper's claims, judged by the results at hand.

Differences are paired by seed, with Student's 95 % interval, not corrected for multiple comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from recollect.report.collect import Experiment, Variant
from recollect.report.layout import Cell, Sheet
from recollect.report.paper import TASKS
from recollect.report.stats import Difference, chain_gain, difference, summarise_gaps
from recollect.report.verdict import (
    ABOVE_OR_BELOW,
    LESS_OR_MORE,
    LEVEL_POINTS,
    Claim,
    count_seeds,
    judge,
    judge_all_ahead,
    judge_level,
    needed,
)

REHEARSAL = ("agem", "er", "derpp", "er-ace", "er-mkd", "tamil", "cls-er")
RFE_FORMS = ("rfe", "rfe-p", "rfe-b")
RFE_WITH_MEMORY = ("rfe-p", "rfe-b")
ABOVE = ("split-cifar100", "split-tinyimagenet")
"""Streams on which the paper has RFE level with all rehearsal methods or above them."""
MANY_TASKS = 10
"""The number of tasks from which on the paper shows forgetting."""
LONG_CHAIN = 20
"""The number of tasks of the paper's long chain."""

DefaultVariants = Mapping[tuple[str, int], Variant]
"""Methods with their default options, by name and number of exemplars."""


def claims(experiment: Experiment) -> Iterator[Claim]:
    """The paper's claims that an experiment's results are about."""
    variants: dict[tuple[str, int], Variant] = {}
    for v in experiment.variants:
        if not v.options:
            variants.setdefault((v.method, v.memory), v)  # the usual precision comes before others
    for memory in sorted({memory for name, memory in variants if name in REHEARSAL}):
        yield from _against_rehearsal(experiment, variants, memory)
    rfe = variants.get(("rfe", 0))
    for form in RFE_WITH_MEMORY:
        if rfe is not None and experiment.stream in ABOVE:
            for memory, v in sorted((key[1], v) for key, v in variants.items() if key[0] == form):
                text = f"{form.upper()} with {memory} exemplars is more accurate than RFE (TIL)"
                yield from judge_all_ahead(f"{form}-above-rfe", text, {"RFE": difference(v, rfe, "til")}, memory)
    if experiment.num_tasks >= MANY_TASKS:
        yield from _over_many_tasks(variants, is_long=experiment.num_tasks >= LONG_CHAIN)
    if rfe is not None:
        yield from _retrospector_forms(variants, rfe)
    yield from _chain(experiment)


def _against_rehearsal(experiment: Experiment, variants: DefaultVariants, memory: int) -> Iterator[Claim]:
    """RFE and its forms against the rehearsal methods with the same number of exemplars."""
    rivals = {key: v for key, v in variants.items() if key[0] in REHEARSAL and key[1] == memory}
    stream, is_as_paper = experiment.stream, experiment.num_tasks == TASKS.get(experiment.stream)
    rfe = variants.get(("rfe", 0))
    if rfe is not None and stream in ABOVE:
        yield from judge_all_ahead(
            "rfe-level-with-rehearsal",
            f"RFE, which keeps no image, is level with every rehearsal method with {memory} exemplars or above (TIL)",
            {_label(key): difference(rfe, v, "til") for key, v in rivals.items()},
            memory,
            margin=LEVEL_POINTS,
        )
    for form in RFE_WITH_MEMORY:
        v = variants.get((form, memory))
        if v is None:
            continue
        evaluations = ["til"] if stream in ABOVE else []
        evaluations += ["cil"] if is_as_paper and stream == "split-tinyimagenet" else []
        for evaluation in evaluations:
            yield from judge_all_ahead(
                f"{form}-above-rehearsal-{evaluation}",
                f"{form.upper()} is more accurate than every rehearsal method with as many exemplars, {memory} "
                f"({evaluation.upper()})",
                {_label(key): difference(v, rival, evaluation) for key, rival in rivals.items()},
                memory,
            )
        if is_as_paper and stream != "split-tinyimagenet":
            yield from _comparable(form, v, rivals, memory, "cil" if stream == "split-cifar100" else "til")


def _comparable(form: str, v: Variant, rivals: DefaultVariants, memory: int, evaluation: str) -> Iterator[Claim]:
    """A form of RFE against the median of the rehearsal methods, with the best of them named."""
    text = f"{form.upper()} is comparable to rehearsal with {memory} exemplars: level with its median or above"
    to_median = {f"the median of {len(rivals)}": _gap_to_median(v, list(rivals.values()), evaluation)}
    claim_id = f"{form}-comparable-to-rehearsal"
    for claim in judge_all_ahead(claim_id, f"{text} ({evaluation.upper()})", to_median, memory, margin=LEVEL_POINTS):
        gaps = {_label(key): gap for key, rival in rivals.items() if (gap := difference(v, rival, evaluation))}
        best = min(gaps, key=lambda name: gaps[name].mean)
        described = ABOVE_OR_BELOW.describe(gaps[best], best)
        yield replace(claim, measured=f"{claim.measured}; {described}, the best of them")


def _gap_to_median(one: Variant, rivals: Sequence[Variant], evaluation: str) -> Difference | None:
    """The difference to the rivals' median, seed by seed."""
    ours, *theirs = (dict(zip(v.seeds, v.values(evaluation, "average_accuracy"), strict=True)) for v in (one, *rivals))
    gaps = []
    for seed, value in ours.items():
        others = [other for by_seed in theirs if (other := by_seed.get(seed)) is not None]
        if value is not None and len(others) == len(rivals):
            gaps.append(value - median(others))
    return summarise_gaps(gaps)


def _over_many_tasks(variants: DefaultVariants, *, is_long: bool) -> Iterator[Claim]:
    """Less forgetting and, in the long chain, a higher mean accuracy over time."""
    rivals = {key: v for key, v in variants.items() if key[0] in REHEARSAL}
    improving = [key for key, v in rivals.items() if fmean(x or 0.0 for x in v.values("til", "forgetting")) < 0]
    for (form, memory), v in variants.items():
        if form not in RFE_FORMS:
            continue
        compared = {key: rival for key, rival in rivals.items() if not memory or key[1] == memory}
        title = _label((form.upper(), memory))
        gaps = {key: difference(rival, v, "til", "forgetting") for key, rival in compared.items()}
        remark = ""
        others = [gap for key, gap in gaps.items() if gap and key not in improving]
        if improving and others:
            names = ", ".join(_label(key) for key in improving if key in gaps)
            remark = (
                f"; without {names}, which is better on old tasks at the end than when they were new: {judge(others)}"
            )
        for claim in judge_all_ahead(
            f"{form}-forgets-less",
            f"{title} forgets less than rehearsal over many tasks (TIL)",
            {_label(key): gap for key, gap in gaps.items()},
            memory or None,
            comparison=LESS_OR_MORE,
        ):
            yield replace(claim, measured=claim.measured + remark)
        if is_long:
            yield from judge_all_ahead(
                f"{form}-above-rehearsal-over-time",
                f"{title} is above every rehearsal method in mean accuracy over {LONG_CHAIN} tasks (TIL)",
                {_label(key): difference(v, rival, "til", "incremental_accuracy") for key, rival in compared.items()},
                memory or None,
            )


def _retrospector_forms(variants: DefaultVariants, rfe: Variant) -> Iterator[Claim]:
    """The parts of the retrospector."""
    forms = {key[0]: v for key, v in variants.items() if key[0] in ("rfe-mlp-residual", "rfe-mlp-projection")}
    yield from judge_all_ahead(
        "gated-level-with-mlp",
        "The gated retrospector is level with the MLP forms or above (TIL)",
        {name: difference(rfe, v, "til") for name, v in forms.items()},
        margin=LEVEL_POINTS,
    )
    for name, claim_id, text in (
        ("rfe-no-aux", "auxiliary-needed", "The auxiliary network is needed: RFE is above a form without it (TIL)"),
        ("expansion", "above-expansion", "The small networks alone (expansion) are below RFE (TIL)"),
    ):
        if (name, 0) in variants:
            yield from judge_all_ahead(claim_id, text, {name: difference(rfe, variants[name, 0], "til")})
    if ("rfe-e2e", 0) in variants:
        text = "Training end to end is as accurate as in two stages (TIL)"
        yield judge_level("end-to-end-level", text, difference(variants["rfe-e2e", 0], rfe, "til"))


def _chain(experiment: Experiment) -> Iterator[Claim]:
    """The accuracy that the chain adds, at a method's default α and where nothing holds the backbone."""
    start = "The chain corrects drift"
    for v in experiment.variants:
        if v.method in RFE_FORMS and not v.options:
            title = _label((v.method.upper(), v.memory))
            text = f"{start}: {title} is more accurate with the chain than without it, at the paper's α = 1 (TIL)"
            gains = {f"{v.method} without it": chain_gain(v)}
            yield from judge_all_ahead(f"{v.method}-chain-gain", text, gains, v.memory or None)
    for v in experiment.variants:
        if v.method == "rfe" and dict(v.options) == {"alpha": 0.0}:
            text = f"{start}: RFE is more accurate with the chain than without it, at α = 0 (TIL)"
            yield from judge_all_ahead("rfe-chain-gain-alpha-0", text, {"rfe without it": chain_gain(v)})
            drifts = [result["drift"] for result in v.results if result.get("drift")]
            if drifts:
                yield _rectified_nearer(drifts)


def _rectified_nearer(drifts: Sequence[Mapping[str, Sequence[Sequence[float | None]]]]) -> Claim:
    """Whether rectified features are nearer to the original ones than drifted features, averaged per seed."""
    per_seed = [
        [
            (before, after)
            for i, (drifted, rectified) in enumerate(zip(drift["drifted"], drift["rectified"], strict=True))
            for before, after in zip(drifted[:i], rectified[:i], strict=True)
            if before is not None and after is not None
        ]
        for drift in drifts
    ]
    gap = summarise_gaps([fmean(before - after for before, after in pairs) for pairs in per_seed])
    assert gap is not None
    pairs = [pair for of_seed in per_seed for pair in of_seed]
    num_nearer = sum(after < before for before, after in pairs)
    drifted, rectified = fmean(before for before, _ in pairs), fmean(after for _, after in pairs)
    interval = "" if gap.half_width is None else f" ± {gap.half_width:.2f}"
    verdict = judge([gap])
    return Claim(
        "rectified-nearer",
        "The chain recovers old features: the RMSE of rectified features is below that of drifted ones, α = 0",
        verdict,
        f"{drifted:.2f} → {rectified:.2f}, nearer by {gap.mean:.2f}{interval}; {num_nearer} of {len(pairs)} pairs of "
        f"tasks over all seeds are nearer ({count_seeds([gap])})",
        needed=needed(verdict, [(gap, 0.0)]),
    )


def claim_sheet(experiment: Experiment, name: str) -> Sheet | None:
    """The claims of an experiment as a table; None where none can be judged."""
    rows: list[list[Cell | str]] = [[claim.text, claim.verdict, claim.evidence] for claim in claims(experiment)]
    notes = [
        "Percentage points, paired by seed: mean ± half of Student's 95 % interval, not corrected for multiple "
        "comparisons.",
        "A claim over several methods is supported if every interval lies above zero, refuted if one lies below.",
        f"For level, the threshold is -{LEVEL_POINTS:.0f} points; as accurate as means an interval within "
        f"± {LEVEL_POINTS:.0f}.",
        "A single seed is always inconclusive; its interval over tasks says nothing about other seeds.",
    ]
    columns = ["the paper's claim", "verdict", "measured"]
    return Sheet(name, f"The paper's claims: {experiment.title}", columns, rows, notes) if rows else None


def _label(key: tuple[str, int]) -> str:
    name, memory = key
    return f"{name} ({memory})" if memory else name
