"""Tables of what methods cost: time, parameters and memory, with the paper's figures where it has them."""

from __future__ import annotations

from statistics import fmean

from recollect.report.collect import Experiment, Variant
from recollect.report.layout import Cell, Sheet
from recollect.report.paper import has_paper_costs, paper, parameters
from recollect.report.stats import estimate


def time_sheet(experiment: Experiment, name: str = "time") -> Sheet:
    """Minutes of training and evaluation, over ER's; for Tiny ImageNet with the paper's hours and seconds."""
    rows: list[list[Cell | str]] = []
    show_paper = has_paper_costs(experiment)
    for v in experiment.variants:
        training, evaluation = minutes(v)
        speed = fmean(result["images_per_second"] for result in v.results)
        er = _matching_er(experiment, v)
        ratio = f"{training / minutes(er)[0]:.2f}" if er else "–"
        rows.append([v.full_label, f"{training:.1f}", f"{evaluation:.1f}", f"{speed:.0f}", ratio])
        rows[-1] += _paper_times(v.method) if show_paper else []
    columns = ["method", "training, minutes", "all evaluations, minutes", "images per second", "training / ER's"]
    notes = ["Wall-clock time, possibly on a machine with other work; docs/speed.md compares speed."]
    if show_paper:
        columns += ["paper: training, hours", "training / ER's", "testing, seconds", "testing / ER's"]
        notes.append("The paper timed class-incremental runs with 1,000 exemplars on a GPU.")
    return Sheet(name, f"Time: {experiment.title}", columns, rows, notes, labels_of(experiment))


def space_sheet(experiment: Experiment, name: str = "space") -> Sheet:
    """Parameters, stored images and all stored values, with the paper's parameter counts."""
    published = {id(v): parameters(experiment, v) for v in experiment.variants}
    show_paper = any(published.values())
    rows: list[list[Cell | str]] = []
    for v in experiment.variants:
        result, counts = v.results[0], published[id(v)]
        stored = result.get("values_held")
        own = f"{result['parameters']['training'] / 1e6:.2f} / {result['parameters']['inference'] / 1e6:.2f}"
        row: list[Cell | str] = [v.full_label, own]
        row += ["–" if counts is None else f"{counts[0]:.2f} / {counts[1]:.2f}"] if show_paper else []
        kept = (str(result["memory"]["samples"]), f"{result['memory']['bytes'] / 2**20:.2f}")
        row += ["all", "all"] if v.method == "joint" else kept
        row += ["all images" if v.method == "joint" else "–" if stored is None else f"{stored / 1e6:.2f}"]
        row += [estimate(v.values("til", "average_accuracy"))]
        rows.append(row)
    columns = ["method", "parameters, M (training / inference)", *["paper's parameters"] * show_paper]
    columns += ["images kept", "their size, MB", "all stored values, M of float32", "TIL"]
    notes = ["TIL: percent, mean ± half of the 95 % interval."] + [_paper_space()] * has_paper_costs(experiment)
    title = f"Parameters and memory: {experiment.title}"
    return Sheet(name, title, columns, rows, notes, labels_of(experiment))


def labels_of(experiment: Experiment) -> list[tuple[str]]:
    """For a table with one row per variant."""
    return [(v.full_label,) for v in experiment.variants]


def minutes(v: Variant) -> tuple[float, float]:
    """Mean minutes of training and of evaluation."""
    evaluation = [result["seconds"].get("evaluate", 0.0) for result in v.results]
    training = [sum(r["seconds"].values()) - seconds for r, seconds in zip(v.results, evaluation, strict=True)]
    return fmean(training) / 60, fmean(evaluation) / 60


def _paper_space() -> str:
    """The paper's figures on space, as a sentence."""
    space = paper()["space_split_tinyimagenet"]
    return (
        f"The paper: 1,000 images are {space['memory_1000_images_float32_values_m']:.2f} M float32 values, and RFE "
        f"adds {space['rfe_added_values_m']:.2f} M values; RFE is {space['rfe_til_above_derpp_1000']:.2f} points above "
        f"DER++ with 1,000 exemplars and RFE-P {space['rfe_p_til_above_tamil_1000']:.2f} above "
        "TAMiL with as many (TIL)."
    )


def _matching_er(experiment: Experiment, v: Variant) -> Variant | None:
    """ER with as many exemplars; for a method without any, the one ER there is."""
    candidates = {er.memory: er for er in experiment.variants if er.method == "er" and not er.options}
    if v.memory:
        return candidates.get(v.memory)
    return next(iter(candidates.values())) if len(candidates) == 1 else None


def _paper_times(method: str) -> list[str]:
    times = paper()["time_split_tinyimagenet_class_incremental"]
    cells = []
    for key in ("training_hours", "testing_seconds"):
        value, er = times[key].get(method), times[key]["er"]
        cells += ["–", "–"] if value is None else [f"{value:.2f}", f"{value / er:.2f}"]
    return cells
