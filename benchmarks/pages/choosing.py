"""docs/choosing.md: which method to use, by what may be kept and what is known; every cell is a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pages.experiments import CPU, MAIN, RESULTS, ROOT
from pages.markdown import fill, require, table
from recollect.report.collect import Experiment, Variant, collect
from recollect.report.headline import candidates, rank
from recollect.report.query import mean_accuracy
from recollect.report.stats import chain_gain, difference, estimate
from recollect.report.verdict import LEVEL_POINTS
from recollect.results import find_results

PAGE = ROOT / "docs" / "choosing.md"
UNKNOWN = RESULTS / "unknown"
PRETRAINED = {
    "CIFAR-100, 10 tasks, 64 pixels": [UNKNOWN / "pretrained"],
    "CIFAR-100, 10 tasks, 128 pixels": [UNKNOWN / "pretrained-128"],
    "CIFAR-10, 5 tasks, 64 pixels": [UNKNOWN / "pretrained-cifar10"],
    "Tiny ImageNet, 10 tasks, 64 pixels": [UNKNOWN / "pretrained-tinyimagenet"],
}
SCRATCH = {
    "CIFAR-100, 5 tasks": [*(CPU / preset for preset in MAIN), UNKNOWN / "scratch"],
    "CIFAR-10, 5 tasks": [CPU / "cifar10"],
    "Tiny ImageNet, 10 tasks": [CPU / "tinyimagenet"],
    "digits, 5 tasks": [CPU / "digits-all", UNKNOWN / "digits"],
    "digits, tasks of 6, 1, 1 and 2 classes": [UNKNOWN / "months"],
}
EVALUATIONS = {"known": "til", "unknown": "cil"}
HEAD = ["data", "no images kept: best", "next", "images kept: best", "next", "all images"]


def page() -> str:
    """The whole of docs/choosing.md."""
    values = {}
    for weights, sources in (("pretrained", PRETRAINED), ("scratch", SCRATCH)):
        found = {name: e for name, folders in sources.items() for e in _experiments(folders)}
        for known, evaluation in EVALUATIONS.items():
            rows = [[name, *_cells(experiment, evaluation)] for name, experiment in found.items()]
            values[f"{weights}_{known}"] = table(HEAD, rows)
        if weights == "pretrained":
            values |= {f"lead_{known}": _lead(found.values(), way) for known, way in EVALUATIONS.items()}
        for name, experiment in found.items():
            _check_advice(weights, name, experiment)
            if name == "CIFAR-100, 5 tasks":
                values["chain"] = _chain(experiment)
    return fill("choosing.md", values)


def _lead(experiments: Iterable[Experiment], evaluation: str) -> str:
    """From how many to how many points rfe-plus is above fsa with the same components."""
    leads = []
    for experiment in experiments:
        variants = {v.method: v for v in reversed(ranked(experiment, evaluation, keeps=False)) if _has_components(v)}
        leads.append(mean_accuracy(variants["rfe-plus"], evaluation) - mean_accuracy(variants["fsa"], evaluation))
    require(min(leads) > 0, "rfe-plus is above fsa with components")
    return f"{min(leads):.1f} to {max(leads):.1f}"


def _has_components(v: Variant) -> bool:
    return v.method == "rfe-plus" or bool(v.options.get("components"))


def _check_advice(weights: str, name: str, experiment: Experiment) -> None:
    """Stop where the tables no longer show what the sentences above them say."""
    free = {evaluation: ranked(experiment, evaluation, keeps=False) for evaluation in EVALUATIONS.values()}
    keeping = ranked(experiment, "cil", keeps=True)
    leaders = {variants[0].method for variants in free.values()}
    if weights == "pretrained":
        require(leaders == {"rfe-plus"}, f"pretrained, no images: rfe-plus is the most accurate ({name})")
        if keeping:
            known, best = ranked(experiment, "til", keeps=True)[0], free["til"][0]
            require(mean_accuracy(known, "til") < mean_accuracy(best, "til"), f"replay is below, task known ({name})")
            slda = next(v for v in free["cil"] if v.method == "slda")
            gap = mean_accuracy(slda, "cil") - mean_accuracy(keeping[0], "cil")
            require(gap > 10, f"replay is far below slda, task unknown ({name})")
    elif name == "CIFAR-100, 5 tasks":
        require(leaders == {"rfe-plus"}, f"from scratch, no images: rfe-plus is the most accurate ({name})")
        gap = mean_accuracy(free["cil"][0], "cil") - mean_accuracy(keeping[0], "cil")
        require(gap > 0, f"from scratch, rfe-plus is above replay, task unknown ({name})")
    elif name.startswith("digits"):
        first, second = free["cil"][:2]
        require({first.method, second.method} == {"fsa", "rfe-plus"}, f"fsa and rfe-plus are best ({name})")
        gap = mean_accuracy(first, "cil") - mean_accuracy(second, "cil")
        require(first.method == "fsa" or gap < LEVEL_POINTS, f"fsa is as good as rfe-plus, task unknown ({name})")
        if keeping:
            gap = mean_accuracy(second, "cil") - mean_accuracy(keeping[0], "cil")
            require(gap > 0, f"from scratch, fsa and rfe-plus are above replay, task unknown ({name})")
    elif name == "CIFAR-10, 5 tasks":
        gap = mean_accuracy(keeping[0], "cil") - mean_accuracy(free["cil"][0], "cil")
        require(
            free["cil"][0].method == "rfe" and not keeping[0].method.startswith("rfe") and gap > 10,
            f"replay is far above RFE ({name})",
        )
        best_known = ranked(experiment, "til", keeps=True)[0].method
        er = [v for v in experiment.variants if (v.method, v.memory) == ("er", 50)]
        is_above = bool(er) and mean_accuracy(free["til"][0], "til") > mean_accuracy(er[0], "til")
        require(is_above, f"RFE is above er with 50 images, task known ({name})")
        require(best_known == "er", f"with the task known, er is the best ({name})")
    else:
        kept = {v.method for v in ranked(experiment, "til", keeps=True)[:2]}
        require(kept == {"rfe-p", "rfe-b"}, f"with the task known, rfe-p and rfe-b are best ({name})")


def _chain(experiment: Experiment) -> str:
    """What the chain adds to rfe-plus, which is next to nothing."""
    gain = chain_gain(next(v for v in candidates(experiment, "til") if v.method == "rfe-plus"))
    require(gain is not None and abs(gain.mean) < LEVEL_POINTS, "the chain adds next to nothing to rfe-plus")
    return str(gain)


def _experiments(folders: Sequence[Path]) -> list[Experiment]:
    """The experiment of these folders, of several one with rfe-plus, then with most methods; or none."""
    experiments = collect(find_results([folder for folder in folders if folder.exists()]).values())
    return sorted(experiments, key=lambda e: (all(v.method != "rfe-plus" for v in e.variants), -len(e.variants)))[:1]


def _cells(experiment: Experiment, evaluation: str) -> list[str]:
    free, keeping = (ranked(experiment, evaluation, keeps=keeps) for keeps in (False, True))
    joint = rank([v for v in candidates(experiment, evaluation) if v.method == "joint"], evaluation)
    bound = _name_and_accuracy(joint[0], evaluation) if joint else "–"
    return [*_best_two(free, evaluation), *_best_two(keeping, evaluation), bound]


def ranked(experiment: Experiment, evaluation: str, *, keeps: bool) -> list[Variant]:
    """Methods that keep images or none, the best first, each with the number of images that it has most seeds with.

    Classifiers on a backbone that was adapted to the first task, or with components of classes, count as methods of their own; one without them
    is left out where validation images prefer one with them.
    """
    chosen = candidates(experiment, evaluation)
    own = ({"adapt": True}, {"components": 8})
    chosen += [v for v in experiment.variants if dict(v.options) in own and v not in chosen]
    chosen = [v for v in chosen if bool(v.memory) == keeps and v.method != "joint"]
    best: dict[tuple[Any, ...], Variant] = {}
    for v in sorted(rank(chosen, evaluation), key=lambda v: -len(v.seeds)):
        best.setdefault((v.method, v.options.get("adapt"), v.options.get("components")), v)
    return rank(list(best.values()), evaluation)


def _best_two(methods: Sequence[Variant], evaluation: str) -> list[str]:
    """The best, in bold where it is clearly ahead of the next, and the next."""
    cells = [_name_and_accuracy(v, evaluation) for v in methods[:2]]
    if len(methods) > 1:
        gap = difference(methods[0], methods[1], evaluation)
        if gap is not None and gap.is_ahead:
            cells[0] = f"**{cells[0]}**"
    return [*cells, "–", "–"][:2]


def _name_and_accuracy(v: Variant, evaluation: str) -> str:
    own = ", adapted" if v.options.get("adapt") else ", with components" if v.options.get("components") else ""
    images = f" ({v.memory} images)" if v.memory else ""
    one_seed = " ¹" * (len(v.seeds) == 1)
    return f"`{v.method}`{own}{images} {estimate(v.values(evaluation, 'average_accuracy'))}{one_seed}"
