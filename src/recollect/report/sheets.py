"""The tables of a report, laid out as the paper's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence

from recollect.report.claims import claim_sheet
from recollect.report.collect import Experiment, Variant
from recollect.report.costs import labels_of, space_sheet, time_sheet
from recollect.report.layout import Cell, Sheet
from recollect.report.paper import accuracy, is_full_size, paper
from recollect.report.stats import best_two, chain_gain, difference, spread
from recollect.report.summary import runs_sheet, summary_sheet, unused_sheet
from recollect.report.verdict import INCONCLUSIVE

TITLES = {"til": "Task-incremental", "cil": "Class-incremental"}
MARKS = (
    "Among methods with the same number of exemplars, bold is best and underlined second, each only if significantly "
    "above all lower ones (95 %, paired)."
)
PAPER = "The paper's number is shown for the same stream, method and number of exemplars."
SMALLER = "These runs are smaller than the paper's, so only the order of methods is comparable."
MAX_SLUG = 120
"""Characters."""


def sheets(experiment: Experiment) -> Iterator[Sheet]:
    """All tables of an experiment that its results allow."""
    start = slug_of(experiment)
    yield summary_sheet(experiment, f"{start}-summary")
    judged = claim_sheet(experiment, f"{start}-claims")
    if judged:
        yield judged
    for evaluation in TITLES:
        yield accuracy_sheet(experiment, evaluation, f"{start}-{evaluation}")
    for evaluation in TITLES:
        differences = difference_sheet(experiment, evaluation, f"{start}-{evaluation}-differences")
        if differences.rows:
            yield differences
    chain = [v for v in experiment.variants if v.results[0].get("til_without_chain")]
    if chain:
        yield _chain(experiment, chain, f"{start}-chain")
    yield time_sheet(experiment, f"{start}-time")
    yield space_sheet(experiment, f"{start}-space")
    if experiment.stream == "split-tinyimagenet" and experiment.num_tasks == 10:
        yield _cited(f"{start}-cited")
    yield runs_sheet(experiment, f"{start}-runs")
    if experiment.unused:
        yield unused_sheet(experiment, f"{start}-unused")


def slug_of(experiment: Experiment) -> str:
    """The beginning of its files' names."""
    return slug(experiment.title)


def slug(text: str) -> str:
    """A text as part of a file name; a long one is shortened and made unique by its hash."""
    plain = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "x"
    return plain if len(plain) <= MAX_SLUG else f"{plain[:100]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def accuracy_sheet(experiment: Experiment, evaluation: str, name: str = "accuracy") -> Sheet:
    """Accuracy and forgetting of every variant, with the paper's accuracy."""
    marks: dict[int, str] = {}
    for memory in {v.memory for v in experiment.variants}:
        group = [v for v in experiment.variants if v.memory == memory]
        for variant, mark in zip(best_two(group, evaluation), ("best", "second"), strict=True):
            marks[id(variant)] = mark
    published = {id(v): accuracy(experiment, v, evaluation) for v in experiment.variants}
    has_paper = any(published.values())
    rows: list[list[Cell | str]] = []
    for v in experiment.variants:
        parameters = v.results[0]["parameters"]
        row: list[Cell | str] = [
            v.label,
            v.images_kept,
            f"{parameters['training'] / 1e6:.2f} / {parameters['inference'] / 1e6:.2f}",
            Cell(spread(v.values(evaluation, "average_accuracy")), marks.get(id(v), "")),
            spread(v.values(evaluation, "forgetting")),
            spread(v.values(evaluation, "incremental_accuracy")),
            str(len(v.seeds)),
        ]
        if has_paper:
            figure = published[id(v)]
            row.append("–" if figure is None else f"{figure[0]:.2f} ± {figure[1]:.2f}")
        rows.append(row)
    columns = ["method", "exemplars", "parameters, M (training / inference)"]
    columns += ["accuracy", "forgetting", "incremental", "seeds"]
    notes = ["Percent, mean ± standard deviation over seeds.", MARKS] + ([PAPER] if has_paper else [])
    notes += [SMALLER] if has_paper and not is_full_size(experiment) else []
    title, columns = f"{TITLES[evaluation]}: {experiment.title}", columns + ["paper"] * has_paper
    return Sheet(name, title, columns, rows, notes, labels_of(experiment))


def difference_sheet(experiment: Experiment, evaluation: str, name: str = "differences") -> Sheet:
    """Each form of RFE against every other method, and each pair of forms once."""
    ours = [v for v in experiment.variants if v.method.startswith("rfe")]
    others = [v for v in experiment.variants if v.method != "joint" and not v.method.startswith("rfe")]
    rows: list[list[Cell | str]] = []
    labels: list[tuple[str, str]] = []
    for i, one in enumerate(ours):
        for other in [*ours[:i], *others]:
            gap = difference(one, other, evaluation)
            if gap is not None and gap.half_width is not None:
                outcome = ("ahead" if gap.mean > 0 else "behind") if gap.is_clear else INCONCLUSIVE
                rows.append([one.full_label, other.full_label, str(gap), str(gap.num_seeds), outcome])
                labels.append((one.full_label, other.full_label))
    notes = ["Percentage points, paired by seed: mean ± half of Student's 95 % interval."]
    columns = ["method", "minus", "difference", "common seeds", "outcome"]
    title = f"{TITLES[evaluation]} accuracy, paired differences: {experiment.title}"
    return Sheet(name, title, columns, rows, notes, labels)


def _chain(experiment: Experiment, variants: Sequence[Variant], name: str) -> Sheet:
    rows: list[list[Cell | str]] = []
    for v in variants:
        with_chain, without = (v.values(key, "average_accuracy") for key in ("til", "til_without_chain"))
        rows.append([v.full_label, spread(with_chain), spread(without), str(chain_gain(v) or "–")])
    columns = ["method", "with the chain", "without it", "gain"]
    notes = [
        "Task-incremental accuracy of the same runs: old heads on estimated features, and on current ones.",
        "The gain is the mean ± half of Student's 95 % interval.",
    ]
    labels = [(v.full_label,) for v in variants]
    return Sheet(name, f"Gain from the chain: {experiment.title}", columns, rows, notes, labels)


def _cited(name: str) -> Sheet:
    cited = paper()["cited_non_rehearsal_tinyimagenet_10_tasks_til"]
    rows = [[key, f"{value}"] for key, value in cited.items() if key != "note"]
    title = "Cited by the paper, not run here: methods without rehearsal, Tiny ImageNet, 10 tasks, TIL"
    return Sheet(name, title, ["method", "accuracy, cited"], rows, [cited["note"]])
