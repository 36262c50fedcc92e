"""What the paper says, judged by the results at hand: it holds, it does not, or it cannot be told.

Differences are paired by seed, with Student's 95 % interval, not corrected for their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from recollect.report.collect import Experiment, Variant
from recollect.report.layout import Cell, Sheet
from recollect.report.stats import Difference, difference, of_gaps

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"
REHEARSAL = ("agem", "er", "derpp", "er-ace", "er-mkd", "tamil", "cls-er")
ABOVE = ("split-cifar100", "split-tinyimagenet")
"""Streams on which the paper has RFE level with all rehearsal or above it."""
TASKS = {"split-cifar10": 5, "split-cifar100": 5, "split-tinyimagenet": 10}
"""Into how many the paper's tables split them."""
MANY = 10
"""Tasks from which on the paper shows forgetting."""
LONG = 20
"""Tasks of the paper's long chain."""
CLOSE = 2.0
"""Percentage points within which two accuracies count as close."""

Plain = Mapping[tuple[str, int], Variant]
"""Methods with the options they come with, by name and exemplars."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and what the results say of it."""

    text: str
    verdict: str
    found: str
    memory: int | None = None
    """The exemplars that it is about; None where it is about no one number of them."""


@dataclass(frozen=True)
class Words:
    """How a difference above zero is told, and one below."""

    above: str
    below: str

    def tell(self, gap: Difference, name: str) -> str:
        return f"{str(gap)[1:]} {self.above if gap.mean >= 0 else self.below} {name}"


ABOVE_OR_BELOW = Words("above", "below")


def claims(experiment: Experiment) -> Iterator[Claim]:
    """Those of the paper's claims that an experiment's results speak of."""
    plain = {(v.method, v.memory): v for v in experiment.variants if not v.own}
    for memory in sorted({memory for name, memory in plain if name in REHEARSAL}):
        yield from _beside_rehearsal(experiment, plain, memory)
    rfe = plain.get(("rfe", 0))
    for form in ("rfe-p", "rfe-b"):
        if rfe is not None and experiment.stream in ABOVE:
            for memory, v in sorted((key[1], v) for key, v in plain.items() if key[0] == form):
                text = f"{form.upper()} with {memory} exemplars is more accurate than RFE (TIL)"
                yield from _all_ahead(text, {"RFE": difference(v, rfe, "til")}, memory)
    if experiment.num_tasks >= MANY:
        yield from _over_many_tasks(plain, is_long=experiment.num_tasks >= LONG)
    if rfe is not None:
        yield from _forms(plain, rfe)
    yield from _chain(experiment)


def _beside_rehearsal(experiment: Experiment, plain: Plain, memory: int) -> Iterator[Claim]:
    """RFE and its forms against the rehearsal methods that keep so many exemplars."""
    rivals = {key: v for key, v in plain.items() if key[0] in REHEARSAL and key[1] == memory}
    stream, as_paper = experiment.stream, experiment.num_tasks == TASKS.get(experiment.stream)
    rfe = plain.get(("rfe", 0))
    if rfe is not None and stream in ABOVE:
        yield from _all_ahead(
            f"RFE, which keeps no image, is level with every rehearsal method with {memory} exemplars or above (TIL)",
            {_name(key): difference(rfe, v, "til") for key, v in rivals.items()},
            memory,
            margin=CLOSE,
        )
    for form in ("rfe-p", "rfe-b"):
        v = plain.get((form, memory))
        if v is None:
            continue
        title = form.upper()
        if stream in ABOVE:
            yield from _all_ahead(
                f"{title} is more accurate than every rehearsal method with as many exemplars, {memory} (TIL)",
                {_name(key): difference(v, rival, "til") for key, rival in rivals.items()},
                memory,
            )
        if as_paper and stream == "split-tinyimagenet":
            yield from _all_ahead(
                f"{title} is more accurate than every rehearsal method with as many exemplars, {memory} (CIL)",
                {_name(key): difference(v, rival, "cil") for key, rival in rivals.items()},
                memory,
            )
        elif as_paper:
            kind = "cil" if stream == "split-cifar100" else "til"
            text = f"{title} is comparable to rehearsal with {memory} exemplars: level with its median or above"
            over = {f"the median of {len(rivals)}": _over_median(v, list(rivals.values()), kind)}
            for claim in _all_ahead(f"{text} ({kind.upper()})", over, memory, margin=CLOSE):
                yield replace(claim, found=f"{claim.found}{_beside_the_best(v, rivals, kind)}")


def _beside_the_best(one: Variant, rivals: Plain, evaluation: str) -> str:
    """How far from the rival that is best in the mean."""
    gaps = {_name(key): gap for key, v in rivals.items() if (gap := difference(one, v, evaluation))}
    name = min(gaps, key=lambda name: gaps[name].mean)
    return f"; {ABOVE_OR_BELOW.tell(gaps[name], name)}, the best of them"


def _over_many_tasks(plain: Plain, *, is_long: bool) -> Iterator[Claim]:
    """Less forgetting, and in the long chain more accuracy all the way."""
    rivals = {key: v for key, v in plain.items() if key[0] in REHEARSAL}
    rising = [key for key, v in rivals.items() if fmean(x or 0.0 for x in v.figures("til", "forgetting")) < 0]
    for (form, memory), v in plain.items():
        if form not in ("rfe", "rfe-p", "rfe-b"):
            continue
        beside = {key: rival for key, rival in rivals.items() if not memory or key[1] == memory}
        title = f"{form.upper()}{f' ({memory})' if memory else ''}"
        gaps = {key: difference(rival, v, "til", "forgetting") for key, rival in beside.items()}
        apart = ""
        others = [gap for key, gap in gaps.items() if gap and key not in rising]
        if rising and others:
            names = ", ".join(_name(key) for key in rising if key in gaps)
            apart = (
                f"; without {names}, which knows old tasks better at the end than when they were new: {verdict(others)}"
            )
        told = {_name(key): gap for key, gap in gaps.items()}
        words = Words("less than", "more than")
        for claim in _all_ahead(f"{title} forgets less than rehearsal over many tasks (TIL)", told, words=words):
            yield replace(claim, found=claim.found + apart)
        if is_long:
            yield from _all_ahead(
                f"{title} is above every rehearsal method while {LONG} tasks arrive (mean accuracy on the way, TIL)",
                {_name(key): difference(v, rival, "til", "incremental_accuracy") for key, rival in beside.items()},
            )


def _forms(plain: Plain, rfe: Variant) -> Iterator[Claim]:
    """The retrospector's parts."""
    forms = {key[0]: v for key, v in plain.items() if key[0] in ("rfe-mlp-residual", "rfe-mlp-projection")}
    yield from _all_ahead(
        "The gated retrospector is level with the MLP forms or above (TIL)",
        {name: difference(rfe, v, "til") for name, v in forms.items()},
        margin=CLOSE,
    )
    for name, text in (
        ("rfe-no-aux", "The auxiliary extractor is needed: RFE is above a form without it (TIL)"),
        ("expansion", "The small extractors by themselves (expansion) are no match for RFE (TIL)"),
    ):
        if (name, 0) in plain:
            yield from _all_ahead(text, {name: difference(rfe, plain[name, 0], "til")})
    if ("rfe-e2e", 0) in plain:
        yield _close("Training end to end is as accurate as in two stages (TIL)",
                     difference(plain["rfe-e2e", 0], rfe, "til"))  # fmt: skip


def claim_sheet(experiment: Experiment, name: str) -> Sheet | None:
    """The claims of an experiment as a table; nothing where none can be judged."""
    found = list(claims(experiment))
    rows: list[list[Cell | str]] = [[claim.text, claim.verdict, claim.found] for claim in found]
    notes = [
        "Percentage points, paired by seed, mean and half of Student's 95 % interval, not corrected for their number.",
        "A claim over several methods holds if every interval lies above zero and fails if one lies wholly below.",
        f"For level, -{CLOSE:.0f} points stand for zero; as accurate as means an interval within ± {CLOSE:.0f}.",
        "With one seed nothing can be told; its interval over tasks says how they differ, not what another seed gives.",
    ]
    columns = ["the paper's claim", "here", "measured"]
    return Sheet(name, f"The paper's claims: {experiment.title}", columns, rows, notes) if rows else None


def verdict(gaps: Sequence[Difference], margin: float = 0.0) -> str:
    """Of a claim that all differences are above zero or, with a margin, at least not below it."""
    ends = [(gap.mean - gap.half_width, gap.mean + gap.half_width) for gap in gaps if gap.half_width is not None]
    if any(high < -margin for _, high in ends):
        return FAILS
    return HOLDS if len(ends) == len(gaps) and all(low > -margin for low, _ in ends) else OPEN


def _all_ahead(
    text: str,
    found: Mapping[str, Difference | None],
    memory: int | None = None,
    *,
    words: Words = ABOVE_OR_BELOW,
    margin: float = 0.0,
) -> Iterator[Claim]:
    gaps = {name: gap for name, gap in found.items() if gap is not None}
    if gaps:
        yield Claim(text, verdict(list(gaps.values()), margin), _told(gaps, words, margin), memory)


def _over_median(one: Variant, rivals: Sequence[Variant], evaluation: str) -> Difference | None:
    """How far above the rivals' median, seed by seed."""
    mine, *theirs = (dict(zip(v.seeds, v.figures(evaluation, "average_accuracy"), strict=True)) for v in (one, *rivals))
    gaps = []
    for seed, value in mine.items():
        others = [each.get(seed) for each in theirs]
        known = [other for other in others if other is not None]
        if value is not None and len(known) == len(rivals):
            gaps.append(value - median(known))
    return of_gaps(gaps)


def _told(gaps: Mapping[str, Difference], words: Words, margin: float) -> str:
    """Which are ahead, level, open and behind: of many that are ahead or level the least and the greatest."""
    kinds: dict[str, list[tuple[float, str]]] = {"ahead": [], "level": [], "open": [], "behind": []}
    for name, gap in gaps.items():
        kind = "ahead" if gap.is_ahead else {HOLDS: "level", FAILS: "behind", OPEN: "open"}[verdict([gap], margin)]
        kinds[kind].append((gap.mean, words.tell(gap, name)))
    parts = []
    for kind, group in kinds.items():
        group.sort()
        if kind in ("ahead", "level") and len(group) > 3:
            parts.append(f"{kind} {len(group)} of {len(gaps)}, from {group[0][1]} to {group[-1][1]}")
        elif group:
            parts.append(f"{kind}: {', '.join(told for _, told in group)}")
    seeds = sorted({gap.num_seeds for gap in gaps.values()})
    return f"{'; '.join(parts)} ({_range(seeds)})"


def _close(text: str, gap: Difference | None) -> Claim:
    if gap is None or gap.half_width is None:
        return Claim(text, OPEN, f"{gap} (1 seed)" if gap else "no common seed")
    low, high = gap.mean - gap.half_width, gap.mean + gap.half_width
    apart = low > CLOSE or high < -CLOSE
    judged = HOLDS if max(-low, high) <= CLOSE else FAILS if apart else OPEN
    return Claim(text, judged, f"{gap} ({_range([gap.num_seeds])})")


def _chain(experiment: Experiment) -> Iterator[Claim]:
    """What reading through the chain earns at the α that a method comes with and where nothing holds the backbone."""
    for v in experiment.variants:
        if v.method in ("rfe", "rfe-p", "rfe-b") and not v.own:
            title = _name((v.method.upper(), v.memory))
            text = f"The chain makes up for drift: {title} is above reading without it, at the paper's α = 1 (TIL)"
            yield from _all_ahead(text, {f"{v.method} without it": earned(v)}, v.memory or None)
    for v in experiment.variants:
        if v.method == "rfe" and dict(v.own) == {"alpha": 0.0}:
            text = "The chain makes up for drift: RFE is above reading without it, at α = 0 (TIL)"
            yield from _all_ahead(text, {"rfe without it": earned(v)})
            measured = [result["drift"] for result in v.results if result.get("drift")]
            if measured:
                yield _nearer(measured)


def earned(v: Variant) -> Difference | None:
    """Accuracy through the chain less that without it, seed by seed."""
    if not all(result.get("til_without_chain") for result in v.results):
        return None
    through, without = (v.figures(kind, "average_accuracy") for kind in ("til", "til_without_chain"))
    return of_gaps([a - b for a, b in zip(through, without, strict=True) if a is not None and b is not None])


def _nearer(measured: Sequence[Mapping[str, Sequence[Sequence[float | None]]]]) -> Claim:
    """Whether rectified features are nearer to the original ones than drifted ones, in the mean of each seed."""
    pairs = [
        [
            (before, after)
            for i, (drifted, rectified) in enumerate(zip(drift["drifted"], drift["rectified"], strict=True))
            for before, after in zip(drifted[:i], rectified[:i], strict=True)
            if before is not None and after is not None
        ]
        for drift in measured
    ]
    gap = of_gaps([fmean(before - after for before, after in each) for each in pairs])
    assert gap is not None
    every = [pair for each in pairs for pair in each]
    nearer = sum(after < before for before, after in every)
    before, after = (fmean(pair[place] for pair in every) for place in (0, 1))
    interval = "" if gap.half_width is None else f" ± {gap.half_width:.2f}"
    return Claim(
        "The chain carries features back: RMSE rectified below drifted, α = 0",
        verdict([gap]),
        f"{before:.2f} → {after:.2f}, nearer by {gap.mean:.2f}{interval}; {nearer} of {len(every)} pairs of tasks "
        f"of all seeds are nearer ({_range([gap.num_seeds])})",
    )


def _name(key: tuple[str, int]) -> str:
    return f"{key[0]} ({key[1]})" if key[1] else key[0]


def _range(seeds: Sequence[int]) -> str:
    words = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"{words} seed{'' if seeds[-1] == 1 else 's'}"
