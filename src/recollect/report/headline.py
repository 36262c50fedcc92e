"""The answer of an experiment in sentences: which method is best without keeping images, and how certain that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from recollect.report.collect import Experiment, Variant, precision_of
from recollect.report.stats import Difference, all_defined, chain_gain, difference, estimate, half_width
from recollect.report.verdict import INCONCLUSIVE, LEVEL_POINTS

KNOWN = {"cil": "the task unknown", "til": "the task known"}
CLEAR = "clear"
ABLATIONS = ("rfe-e2e", "rfe-mlp-residual", "rfe-mlp-projection", "rfe-no-aux")
"""Forms of RFE that explain it and are not offered as methods."""


@dataclass(frozen=True)
class Headline:
    """A sentence for each evaluation, and what belongs to it. Labels of variants are in backticks."""

    verdict: str
    """`clear` or `inconclusive`."""
    text: str
    details: Sequence[str]


def headlines(experiment: Experiment) -> list[Headline]:
    """With the task unknown, then known; none where no method without images has a result."""
    return [headline for evaluation in KNOWN for headline in _headline(experiment, evaluation)]


def candidates(experiment: Experiment, evaluation: str) -> list[Variant]:
    """The variant that each method is compared by: of those with several seeds, the best on validation images.

    Without validation accuracies of a common seed, it is the one with default options. Where a method was run with the
    precision that most have, no other is compared. Ablations are left out beside RFE.
    """
    groups: dict[tuple[str, int], list[Variant]] = {}
    for v in experiment.variants:
        groups.setdefault((v.method, v.memory), []).append(v)
    ((usual, _),) = Counter(precision_of(v.results[0]) for v in experiment.variants).most_common(1)
    groups = {key: [v for v in group if precision_of(v.results[0]) == usual] or group for key, group in groups.items()}
    if ("rfe", 0) in groups:
        groups = {key: group for key, group in groups.items() if key[0] not in ABLATIONS}
    return [_choose(group, evaluation) for group in groups.values()]


def _choose(variants: Sequence[Variant], evaluation: str) -> Variant:
    """One of several variants of a method, by validation images and never by test images."""
    several = [v for v in variants if len(v.seeds) > 1] or variants
    common = set.intersection(*(set(v.seeds) for v in several))

    def validations(v: Variant) -> list[float]:
        return all_defined(
            [result.get("validation", {}).get(evaluation) for result in v.results if result["seed"] in common]
        )

    are_known = all(validations(v) for v in several)
    return max(several, key=lambda v: (fmean(validations(v)) if are_known else 0.0, not v.options, len(v.seeds)))


def rank(variants: Sequence[Variant], evaluation: str) -> list[Variant]:
    """The variants with an accuracy, the highest mean first."""
    measured = [v for v in variants if all_defined(v.values(evaluation, "average_accuracy"))]
    return sorted(measured, key=lambda v: -_mean(v, evaluation))


def chain_costs(variants: Sequence[Variant]) -> Iterator[tuple[Variant, str]]:
    """For each variant whose accuracy is lower with the chain than without it: a sentence that says why."""
    for v in variants:
        gain = chain_gain(v)
        if gain is None or round(gain.mean, 1) >= 0:
            continue
        lost = [value for value in v.values("til_without_chain", "forgetting") if value is not None]
        why = ""
        if lost and fmean(lost) < LEVEL_POINTS:
            why = (
                f" Without the chain, forgetting was {fmean(lost):.1f} points: there was little to correct, and "
                "estimates have errors."
            )
        elif lost:
            why = (
                f" Without the chain, forgetting was {fmean(lost):.1f} points: perhaps the errors of the estimates "
                "were larger than the drift that they corrected."
            )
        interval = "" if gain.is_clear else f" {_doubt(gain)}"
        yield v, f"The chain cost `{v.full_label}` {gain.unsigned} points here, task known.{interval}{why}"


def _headline(experiment: Experiment, evaluation: str) -> Iterator[Headline]:
    chosen = candidates(experiment, evaluation)
    variants = [v for v in chosen if v.method != "joint"]
    free = rank([v for v in variants if not v.memory], evaluation)
    keeping = rank([v for v in variants if v.memory], evaluation)
    bounds = rank([v for v in chosen if v.method == "joint"], evaluation)
    if not free:
        return
    best, rivals = free[0], free[1:]
    reached = f"{KNOWN[evaluation]}: {_accuracy(best, evaluation)}"
    doubt = _strongest_doubt(best, rivals, evaluation)
    details = []
    if not rivals:
        yield Headline(
            INCONCLUSIVE,
            f"`{best.label}` is the only method here that keeps no images, so nothing can be compared. With {reached}.",
            [*_compare(best, keeping, evaluation), *_bound(bounds, evaluation)],
        )
        return
    if doubt:
        text = f"Inconclusive: without keeping images, `{best.label}` has the highest accuracy with {reached}; {doubt}."
        several = [v for v in free if len(v.seeds) > 1]
        if several and len(several) < len(free):
            details.append(_best_of_several(several, evaluation))
    else:
        text = f"Without keeping images, `{best.label}` is best with {reached}."
        compared, alone = _split_by_seeds(best, rivals, evaluation)
        details.append(f"Next: `{compared[0].label}`, {_accuracy(compared[0], evaluation)}.")
        listed = ", ".join(f"`{v.label}` {_accuracy(v, evaluation)}" for v in alone)
        details += [f"Not compared, for too few seeds in common: {listed}."] * bool(alone)
    details += [*_compare(best, keeping, evaluation), *_bound(bounds, evaluation)]
    yield Headline(INCONCLUSIVE if doubt else CLEAR, text, details)


def _best_of_several(variants: Sequence[Variant], evaluation: str) -> str:
    best, rivals = variants[0], variants[1:]
    doubt = _strongest_doubt(best, rivals, evaluation) if rivals else ""
    verdict = f"; {doubt}" if doubt else ", ahead of all others" if rivals else ""
    return f"Among those with several seeds, `{best.label}` is highest: {_accuracy(best, evaluation)}{verdict}."


def _strongest_doubt(best: Variant, rivals: Sequence[Variant], evaluation: str) -> str:
    """Why the best may not be best: the highest rival that it does not clearly lead."""
    if len(best.seeds) == 1:
        return "one seed says nothing about others"
    compared, alone = _split_by_seeds(best, rivals, evaluation)
    for rival in compared:
        gap = difference(best, rival, evaluation)
        if gap is not None and not gap.is_ahead:
            return f"its lead over `{rival.label}` is {gap} points ({gap.num_seeds} seeds)"
    values = all_defined(best.values(evaluation, "average_accuracy"))
    lowest = fmean(values) - (half_width(values) or 0.0)
    unclear = [v for v in alone if not compared or _mean(v, evaluation) >= lowest]
    return (
        f"it has too few seeds in common with `{unclear[0].label}`, {_accuracy(unclear[0], evaluation)}"
        if unclear
        else ""
    )


def _split_by_seeds(best: Variant, rivals: Sequence[Variant], evaluation: str) -> tuple[list[Variant], list[Variant]]:
    """Those with several seeds in common with the best, for which there is an interval, and the others."""
    gaps = [(difference(best, v, evaluation), v) for v in rivals]
    compared = [v for gap, v in gaps if gap is not None and gap.half_width is not None]
    return compared, [v for v in rivals if v not in compared]


def _compare(best: Variant, keeping: Sequence[Variant], evaluation: str) -> Iterator[str]:
    if not keeping:
        return
    other = next((v for v in keeping if len(v.seeds) > 1), keeping[0])
    gap = difference(other, best, evaluation)
    against = "" if gap is None else f", {gap.unsigned} points {'above' if gap.mean >= 0 else 'below'} `{best.label}`"
    doubt = "" if gap is None or gap.is_clear else f" {_doubt(gap)}"
    accuracy = _accuracy(other, evaluation)
    yield f"Of those that keep images, `{other.label}` with {other.memory} is highest: {accuracy}{against}.{doubt}"


def _bound(bounds: Sequence[Variant], evaluation: str) -> Iterator[str]:
    if bounds:
        yield f"`{bounds[0].label}`, trained on all images at once: {_accuracy(bounds[0], evaluation)}."


def _doubt(gap: Difference) -> str:
    return f"Inconclusive ({gap.num_seeds} seed{'s' * (gap.num_seeds > 1)})."


def _accuracy(v: Variant, evaluation: str) -> str:
    one_seed = " (1 seed)" * (len(v.seeds) == 1)
    return f"{estimate(v.values(evaluation, 'average_accuracy'))} %{one_seed}"


def _mean(v: Variant, evaluation: str) -> float:
    return fmean(all_defined(v.values(evaluation, "average_accuracy")))
