"""The tables of a report, laid out as the paper's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from statistics import fmean

from recollect.report.claims import claim_sheet
from recollect.report.collect import Experiment, Variant
from recollect.report.layout import Cell, Sheet
from recollect.report.paper import accuracy, is_full_size, paper
from recollect.report.stats import best_two, difference, of_gaps
from recollect.report.tables import spread

TITLES = {"til": "Task-incremental", "cil": "Class-incremental"}
MARKS = "Among as many exemplars: bold is best, underlined second, only if clearly ahead (95 %, paired) of all below."
PAPER = "The paper's figure stands beside ours for the same stream, method and exemplars."
SMALLER = "Our runs are smaller than the paper's, so only the order of its figures compares."


def sheets(experiment: Experiment) -> Iterator[Sheet]:
    """All tables of an experiment that its results allow."""
    start = slug_of(experiment)
    judged = claim_sheet(experiment, f"{start}-claims")
    if judged:
        yield judged
    for evaluation in TITLES:
        yield _accuracy(experiment, evaluation, f"{start}-{evaluation}")
    for evaluation in TITLES:
        found = _differences(experiment, evaluation, f"{start}-{evaluation}-differences")
        if found.rows:
            yield found
    chain = [v for v in experiment.variants if v.results[0].get("til_without_chain")]
    if chain:
        yield _chain(experiment, chain, f"{start}-chain")
    yield _time(experiment, f"{start}-time")
    yield _space(experiment, f"{start}-space")
    if experiment.stream == "split-tinyimagenet" and experiment.num_tasks == 10:
        yield _cited(f"{start}-cited")


def slug_of(experiment: Experiment) -> str:
    """The beginning of its files' names."""
    return slug(experiment.title)


def slug(text: str) -> str:
    """A text as part of a file name; a long one is cut and told from others by its hash."""
    found = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "x"
    return found if len(found) <= 120 else f"{found[:100]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _accuracy(experiment: Experiment, evaluation: str, name: str) -> Sheet:
    marks: dict[int, str] = {}
    for memory in {v.memory for v in experiment.variants}:
        group = [v for v in experiment.variants if v.memory == memory]
        for variant, mark in zip(best_two(group, evaluation), ("best", "second"), strict=True):
            marks[id(variant)] = mark
    published = {id(v): accuracy(experiment, v, evaluation) for v in experiment.variants}
    has_paper = any(published.values())
    rows: list[list[Cell | str]] = []
    for v in experiment.variants:
        mark = marks.get(id(v), "")
        parameters = v.results[0]["parameters"]
        row: list[Cell | str] = [
            v.label, str(v.memory), f"{parameters['training'] / 1e6:.2f} / {parameters['inference'] / 1e6:.2f}",
            Cell(spread(v.figures(evaluation, "average_accuracy")), mark), spread(v.figures(evaluation, "forgetting")),
            spread(v.figures(evaluation, "incremental_accuracy")), str(len(v.seeds)),
        ]  # fmt: skip
        if has_paper:
            found = published[id(v)]
            row.append("–" if found is None else f"{found[0]:.2f} ± {found[1]:.2f}")
        rows.append(row)
    columns = [
        "method",
        "exemplars",
        "parameters, M (training / inference)",
        "accuracy",
        "forgetting",
        "incremental",
        "seeds",
    ]
    notes = ["Percent, mean ± standard deviation over seeds.", MARKS] + ([PAPER] if has_paper else [])
    notes += [SMALLER] if has_paper and not is_full_size(experiment) else []
    return Sheet(name, f"{TITLES[evaluation]}: {experiment.title}", columns + ["paper"] * has_paper, rows, notes)


def _differences(experiment: Experiment, evaluation: str, name: str) -> Sheet:
    """RFE in each form against every other method; forms of RFE against each other once."""
    ours = [v for v in experiment.variants if v.method.startswith("rfe")]
    others = [v for v in experiment.variants if v.method != "joint" and not v.method.startswith("rfe")]
    rows: list[list[Cell | str]] = []
    for place, one in enumerate(ours):
        for other in [*ours[:place], *others]:
            gap = difference(one, other, evaluation)
            if gap is not None and gap.half_width is not None:
                told = ("ahead" if gap.mean > 0 else "behind") if gap.is_clear else "cannot be told"
                rows.append([named(one), named(other), str(gap), str(gap.num_seeds), told])
    notes = ["Percentage points, seed by seed, mean and half of Student's 95 % interval."]
    columns = ["method", "less", "difference", "common seeds", ""]
    return Sheet(name, f"{TITLES[evaluation]} accuracy, paired differences: {experiment.title}", columns, rows, notes)


def _chain(experiment: Experiment, variants: Sequence[Variant], name: str) -> Sheet:
    rows: list[list[Cell | str]] = []
    for v in variants:
        through, without = (v.figures(key, "average_accuracy") for key in ("til", "til_without_chain"))
        gap = of_gaps([a - b for a, b in zip(through, without, strict=True) if a is not None and b is not None])
        earned = "–" if gap is None else str(gap)
        rows.append([named(v), spread(through), spread(without), earned])
    columns = ["method", "through the chain", "without it", "what the chain earns"]
    notes = [
        "Task-incremental accuracy of the same runs: old heads on estimated features, and on today's.",
        "Mean and half of Student's 95 % interval.",
    ]
    return Sheet(name, f"What the chain earns: {experiment.title}", columns, rows, notes)


def _time(experiment: Experiment, name: str) -> Sheet:
    published = paper()["time_split_tinyimagenet_class_incremental"]["training_hours"]
    show_paper = experiment.stream == "split-tinyimagenet" and experiment.num_tasks == 10
    plain = {v.memory: v for v in experiment.variants if v.method == "er" and not v.own}
    rows: list[list[Cell | str]] = []
    for v in experiment.variants:
        training, evaluating = _minutes(v)
        speed = fmean(result["images_per_second"] for result in v.results)
        er = plain.get(v.memory) if v.memory else next(iter(plain.values()), None) if len(plain) == 1 else None
        ratio = f"{training / _minutes(er)[0]:.2f}" if er else "–"
        rows.append([named(v), f"{training:.1f}", f"{evaluating:.1f}", f"{speed:.0f}", ratio])
        if show_paper:
            rows[-1].append(f"{published[v.method] / published['er']:.2f}" if v.method in published else "–")
    columns = ["method", "training, minutes", "all evaluations, minutes", "images a second", "training over ER's"]
    notes = [
        "As each run took on its machine beside whatever else it did; the benchmark compares speed under one roof."
    ]
    return Sheet(
        name, f"Time: {experiment.title}", columns + ["paper (1,000 exemplars), over ER's"] * show_paper, rows, notes
    )


def _minutes(v: Variant) -> tuple[float, float]:
    """Mean minutes of training and of evaluation."""
    evaluating = [result["seconds"].get("evaluate", 0.0) for result in v.results]
    training = [sum(result["seconds"].values()) - each for result, each in zip(v.results, evaluating, strict=True)]
    return fmean(training) / 60, fmean(evaluating) / 60


def _space(experiment: Experiment, name: str) -> Sheet:
    rows: list[list[Cell | str]] = []
    for v in experiment.variants:
        result = v.results[0]
        held = result.get("values_held")
        rows.append([
            named(v), f"{result['parameters']['inference'] / 1e6:.2f}", str(result["memory"]["samples"]),
            f"{result['memory']['bytes'] / 2**20:.2f}", "–" if held is None else f"{held / 1e6:.2f}",
            spread(v.figures("til", "average_accuracy")),
        ])  # fmt: skip
    columns = ["method", "parameters at inference, M", "images kept", "their bytes, MB"]
    columns += ["all values held, M of float32", "TIL"]
    return Sheet(name, f"Space: {experiment.title}", columns, rows)


def _cited(name: str) -> Sheet:
    cited = paper()["cited_non_rehearsal_tinyimagenet_10_tasks_til"]
    rows = [[key, f"{value}"] for key, value in cited.items() if key != "note"]
    return Sheet(name, "Cited by the paper, not run here: methods without rehearsal, Tiny ImageNet, 10 tasks, TIL",
                 ["method", "accuracy, cited"], rows, [cited["note"]])  # fmt: skip


def named(v: Variant) -> str:
    """Its label, with its exemplars."""
    return f"{v.label} ({v.memory})" if v.memory else v.label
