"""What the paper says, judged by the results at hand: it holds, it does not, or it cannot be told.

Differences are paired by seed, with Student's 95 % interval, each by itself (not corrected for their number).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from recollect.report.collect import Experiment, Variant
from recollect.report.layout import Cell, Sheet
from recollect.report.stats import Difference, difference, of_gaps

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"
REHEARSAL = ("agem", "er", "derpp", "er-ace", "er-mkd", "tamil", "cls-er")
ABOVE = ("split-cifar100", "split-tinyimagenet")
"""Streams on which the paper has RFE above all rehearsal."""
MANY = 10
"""Tasks from which on the paper shows that RFE forgets less."""
CLOSE = 2.0
"""Percentage points within which two accuracies count as close."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and what the results say of it."""

    text: str
    verdict: str
    found: str


def claims(experiment: Experiment) -> Iterator[Claim]:
    """Those of the paper's claims that an experiment's results speak of."""
    plain = {(v.method, v.memory): v for v in experiment.variants if not v.own}
    rfe = plain.get(("rfe", 0))
    if rfe is not None:
        rivals = {key: v for key, v in plain.items() if key[0] in REHEARSAL}
        claimed = experiment.stream in ABOVE
        yield from _all_ahead(
            "RFE, which keeps no image, is more accurate than every rehearsal method (TIL)",
            {_name(key): difference(rfe, v, "til") for key, v in rivals.items() if claimed},
        )
        yield from _all_ahead(
            "RFE forgets less than every rehearsal method over many tasks (TIL)",
            {_name(key): _less(rfe, v) for key, v in rivals.items() if experiment.num_tasks >= MANY},
            of="less than ",
        )
        for form in ("rfe-p", "rfe-b"):
            found = {key: v for key, v in plain.items() if key[0] == form}
            yield from _all_ahead(
                f"{form.upper()}, with exemplars, is more accurate than RFE (TIL)",
                {_name(key): difference(v, rfe, "til") for key, v in found.items()},
                of="of ",
            )
        forms = {key[0]: v for key, v in plain.items() if key[0] in ("rfe-mlp-residual", "rfe-mlp-projection")}
        yield from _all_ahead(
            "The gated retrospector is more accurate than the MLP forms (TIL)",
            {name: difference(rfe, v, "til") for name, v in forms.items()},
        )
        if ("rfe-e2e", 0) in plain:
            yield _close("Training end to end is as accurate as in two stages (TIL)",
                         difference(plain["rfe-e2e", 0], rfe, "til"))  # fmt: skip
    yield from _chain(experiment)


def claim_sheet(experiment: Experiment, name: str) -> Sheet | None:
    """The claims of an experiment as a table; nothing where none can be judged."""
    found = list(claims(experiment))
    rows: list[list[Cell | str]] = [[claim.text, claim.verdict, claim.found] for claim in found]
    notes = [
        "Percentage points, paired by seed, mean and half of Student's 95 % interval, each by itself.",
        "A claim over several methods holds if every interval lies above zero and fails if one lies below.",
        f"Close means: the whole interval within ± {CLOSE:.0f} points.",
    ]
    columns = ["the paper's claim", "here", "measured"]
    return Sheet(name, f"The paper's claims: {experiment.title}", columns, rows, notes) if rows else None


def verdict(gaps: Sequence[Difference]) -> str:
    """Of a claim that all differences are above zero."""
    if any(gap.is_clear and gap.mean < 0 for gap in gaps):
        return FAILS
    return HOLDS if all(gap.is_ahead for gap in gaps) else OPEN


def _all_ahead(text: str, found: Mapping[str, Difference | None], of: str = "over ") -> Iterator[Claim]:
    gaps = {name: gap for name, gap in found.items() if gap is not None}
    if gaps:
        yield Claim(text, verdict(list(gaps.values())), _told(gaps, of))


def _told(gaps: Mapping[str, Difference], of: str) -> str:
    """How many are ahead, open and behind; all that are not ahead by name, or the smallest lead."""
    kinds: dict[str, Callable[[Difference], bool]] = {
        "ahead": lambda gap: gap.is_ahead,
        "open": lambda gap: not gap.is_clear,
        "behind": lambda gap: gap.is_clear and gap.mean < 0,
    }
    parts = []
    for kind, belongs in kinds.items():
        group = sorted((gap.mean, f"{gap} {of}{name}".strip()) for name, gap in gaps.items() if belongs(gap))
        if group and kind == "ahead" and len(group) > 2:
            parts.append(f"ahead {len(group)} of {len(gaps)}, least {group[0][1]}")
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
    """What reading through the chain earns, and whether it brings features nearer to what they were."""
    for v in experiment.variants:
        if v.method != "rfe" or set(v.own) - {"alpha"} or not v.results[0].get("til_without_chain"):
            continue
        alpha = v.results[0]["config"]["method"]["alpha"]
        through, without = (v.figures(key, "average_accuracy") for key in ("til", "til_without_chain"))
        gap = of_gaps([a - b for a, b in zip(through, without, strict=True) if a is not None and b is not None])
        text = f"The chain makes up for drift: accuracy through it above without it, α = {alpha:g} (TIL)"
        yield from _all_ahead(text, {"": gap}, of="")
        measured = [result["drift"] for result in v.results if result.get("drift")]
        if measured:
            yield _nearer(measured, alpha)


def _nearer(measured: Sequence[Mapping[str, Sequence[Sequence[float | None]]]], alpha: float) -> Claim:
    pairs = [
        (before, after)
        for drift in measured
        for i, (drifted, rectified) in enumerate(zip(drift["drifted"], drift["rectified"], strict=True))
        for before, after in zip(drifted[:i], rectified[:i], strict=True)
        if before is not None and after is not None
    ]
    nearer = sum(after < before for before, after in pairs)
    before, after = (fmean(pair[place] for pair in pairs) for place in (0, 1))
    text = f"The chain carries features back: RMSE rectified below drifted, α = {alpha:g}"
    judged = HOLDS if nearer == len(pairs) else (FAILS if nearer * 2 <= len(pairs) else OPEN)
    seeds = _range([len(measured)])
    return Claim(text, judged, f"{nearer} of {len(pairs)} pairs of tasks, mean {before:.2f} → {after:.2f} ({seeds})")


def _less(one: Variant, other: Variant) -> Difference | None:
    """How much less one forgets than another."""
    return difference(other, one, "til", "forgetting")


def _name(key: tuple[str, int]) -> str:
    return f"{key[0]} ({key[1]})" if key[1] else key[0]


def _range(seeds: Sequence[int]) -> str:
    words = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"{words} seed{'' if seeds[-1] == 1 else 's'}"
