"""What the paper says, judged by the results at hand: it holds, it does not, or it cannot be told.

Differences are paired by seed, with Student's 95 % interval, each by itself (not corrected for their number).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
"""Tasks from which on the paper shows forgetting; 20 are its long chain."""
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


def claims(experiment: Experiment) -> Iterator[Claim]:
    """Those of the paper's claims that an experiment's results speak of."""
    plain = {(v.method, v.memory): v for v in experiment.variants if not v.own}
    for memory in sorted({memory for name, memory in plain if name in REHEARSAL}):
        yield from _beside_rehearsal(experiment, plain, memory)
    rfe = plain.get(("rfe", 0))
    for form in ("rfe-p", "rfe-b"):
        if rfe is not None and experiment.stream in ABOVE:
            found = {_name(key): difference(v, rfe, "til") for key, v in plain.items() if key[0] == form}
            yield from _all_ahead(f"{form.upper()}, with exemplars, is more accurate than RFE (TIL)", found, of="of ")
    if experiment.num_tasks >= MANY:
        yield from _forgetting(plain)
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
            )
        if as_paper and stream == "split-tinyimagenet":
            yield from _all_ahead(
                f"{title} is more accurate than every rehearsal method with as many exemplars, {memory} (CIL)",
                {_name(key): difference(v, rival, "cil") for key, rival in rivals.items()},
            )
        elif as_paper:
            kind = "cil" if stream == "split-cifar100" else "til"
            yield from _all_ahead(
                f"{title} is comparable to rehearsal with {memory} exemplars: level with its median or above "
                f"({kind.upper()})",
                {f"the median of {len(rivals)}": _over_median(v, list(rivals.values()), kind)},
                margin=CLOSE,
            )


def _forgetting(plain: Plain) -> Iterator[Claim]:
    """Less forgetting over many tasks; a rival whose accuracy rises while others arrive has nothing to forget."""
    rivals = {key: v for key, v in plain.items() if key[0] in REHEARSAL}
    rising = [key for key, v in rivals.items() if fmean(x or 0.0 for x in v.figures("til", "forgetting")) < 0]
    aside = (
        f"; left out, for it knows old tasks better at the end than when they were new: {', '.join(map(_name, rising))}"
        if rising
        else ""
    )
    for (form, memory), v in plain.items():
        if form not in ("rfe", "rfe-p", "rfe-b"):
            continue
        gaps = {
            _name(key): difference(rival, v, "til", "forgetting")
            for key, rival in rivals.items()
            if key not in rising and (not memory or key[1] == memory)
        }
        title = f"{form.upper()}{f' ({memory})' if memory else ''} forgets less than rehearsal over many tasks (TIL)"
        for claim in _all_ahead(title, gaps, of="less than "):
            yield Claim(claim.text, claim.verdict, claim.found + aside)


def _forms(plain: Plain, rfe: Variant) -> Iterator[Claim]:
    """The retrospector's parts."""
    forms = {key[0]: v for key, v in plain.items() if key[0] in ("rfe-mlp-residual", "rfe-mlp-projection")}
    yield from _all_ahead(
        "The gated retrospector is level with the MLP forms or above (TIL)",
        {name: difference(rfe, v, "til") for name, v in forms.items()},
        margin=CLOSE,
    )
    for name, text in (
        ("rfe-no-aux", "Without the auxiliary extractor the past cannot be recovered: RFE is above it (TIL)"),
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
        "Percentage points, paired by seed, mean and half of Student's 95 % interval, each by itself.",
        "A claim over several methods holds if every interval lies above zero and fails if one lies below.",
        f"Level means: the interval lies above -{CLOSE:.0f} points; as accurate as: within ± {CLOSE:.0f}.",
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
    text: str, found: Mapping[str, Difference | None], of: str = "over ", margin: float = 0.0
) -> Iterator[Claim]:
    gaps = {name: gap for name, gap in found.items() if gap is not None}
    if gaps:
        yield Claim(text, verdict(list(gaps.values()), margin), _told(gaps, of))


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


def _told(gaps: Mapping[str, Difference], of: str) -> str:
    """How many are ahead, open and behind: all that are behind by name, of many others the least and the greatest."""
    kinds: dict[str, Callable[[Difference], bool]] = {
        "ahead": lambda gap: gap.is_ahead,
        "open": lambda gap: not gap.is_clear,
        "behind": lambda gap: gap.is_clear and gap.mean < 0,
    }
    parts = []
    for kind, belongs in kinds.items():
        group = sorted((gap.mean, f"{gap} {of}{name}".strip()) for name, gap in gaps.items() if belongs(gap))
        if kind != "behind" and len(group) > 3:
            parts.append(f"{kind} {len(group)} of {len(gaps)}, from {group[0][1]} to {group[-1][1]}")
        elif group:
            parts.append(f"{kind}: {', '.join(words for _, words in group)}")
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
    """At α = 0, where nothing holds the backbone: what reading through the chain earns, and how near it comes."""
    for v in experiment.variants:
        if v.method != "rfe" or dict(v.own) != {"alpha": 0.0} or not v.results[0].get("til_without_chain"):
            continue
        through, without = (v.figures(key, "average_accuracy") for key in ("til", "til_without_chain"))
        gap = of_gaps([a - b for a, b in zip(through, without, strict=True) if a is not None and b is not None])
        text = "The chain makes up for drift: accuracy through it above without it, α = 0 (TIL)"
        yield from _all_ahead(text, {"": gap}, of="")
        measured = [result["drift"] for result in v.results if result.get("drift")]
        if measured:
            yield _nearer(measured)


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
        f"{before:.2f} → {after:.2f}, nearer by {gap.mean:.2f}{interval}; {nearer} of {len(every)} pairs of tasks are "
        f"nearer ({_range([gap.num_seeds])})",
    )


def _name(key: tuple[str, int]) -> str:
    return f"{key[0]} ({key[1]})" if key[1] else key[0]


def _range(seeds: Sequence[int]) -> str:
    words = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"{words} seed{'' if seeds[-1] == 1 else 's'}"
