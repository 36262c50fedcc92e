"""Comparisons of methods on docs/results.md: tables, RFE's lead, the chain, the forms of the retrospector."""

from __future__ import annotations

from collections.abc import Callable

from pages.experiments import (
    EXEMPLARS,
    FEW_EXEMPLARS,
    FORMS,
    count_seeds,
    exemplar_share,
    get_experiment,
    main_experiment,
)
from pages.markdown import details, fill, require, table
from recollect.report.claims import REHEARSAL, RFE_FORMS, RFE_WITH_MEMORY
from recollect.report.collect import Experiment, Variant
from recollect.report.paper import accuracy, rank_correlation
from recollect.report.query import (
    accuracy_over_time,
    accuracy_when_new,
    find_variant,
    get_variant,
    mean_accuracy,
    newest_task_accuracy,
    on_common_seeds,
    select,
    validation_accuracy,
)
from recollect.report.sheets import accuracy_sheet, difference_sheet
from recollect.report.stats import chain_gain, difference, spread
from recollect.report.verdict import LEVEL_POINTS


def values() -> dict[str, str]:
    """For the template."""
    main, tiny, cifar10 = main_experiment(), get_experiment("tinyimagenet"), get_experiment("cifar10")
    stream, backbone, training = (main.settings[section] for section in ("stream", "backbone", "training"))
    joint, rfe = get_variant(main, "joint"), get_variant(main, "rfe")
    when_new = accuracy_when_new(rfe, "til")
    require(when_new > mean_accuracy(joint, "til"), "joint is no upper bound")
    shown = select(main, lambda v: not v.options and v.method not in FORMS)
    return {
        "train_per_class": str(stream["train_per_class"]),
        "width": str(backbone["width"]),
        "epochs": str(training["epochs"]),
        "joint_til": f"{mean_accuracy(joint, 'til'):.1f}",
        "rfe_til_when_new": f"{when_new:.1f}",
        "share_cifar100": exemplar_share(main, EXEMPLARS),
        "share_tinyimagenet": exemplar_share(tiny, EXEMPLARS),
        "share_cifar10": exemplar_share(cifar10, EXEMPLARS),
        "main_tables": accuracy_tables(shown),
        "main_order": order(shown),
        "main_differences": details(
            "Each form of RFE against every other method, paired", difference_sheet(shown, "til").markdown().strip()
        ),
        "lead_table": _lead_table(main),
        "units_table": _units_table(main),
        "single_head": single_head(main),
        "cifar10_tables": accuracy_tables(cifar10),
        "cifar10_order": order(cifar10),
        "tinyimagenet_tables": accuracy_tables(tiny),
        "tinyimagenet_order": order(tiny),
        "chain_and_drift_loss": chain_and_drift_loss(main),
        **_long_chain(),
        **_alpha(main),
        **_forms(main),
        **_unexplained(main, cifar10),
    }


def accuracy_tables(experiment: Experiment) -> str:
    return "\n\n".join(accuracy_sheet(experiment, evaluation).markdown().strip() for evaluation in ("til", "cil"))


def order(experiment: Experiment) -> str:
    """How similar the order of methods is to the paper's."""
    groups: dict[str, Callable[[Variant], bool]] = {
        "without joint and finetune": lambda v: v.method not in ("joint", "finetune"),
        "rehearsal methods only": lambda v: v.method in REHEARSAL,
    }
    parts = []
    for evaluation in ("til", "cil"):
        variants = {name: [v for v in experiment.variants if keep(v)] for name, keep in groups.items()}
        correlations = {name: rank_correlation(experiment, group, evaluation) for name, group in variants.items()}
        texts = [f"{value[0]:+.2f} {name} ({value[1]})" for name, value in correlations.items() if value]
        if texts:
            parts.append(f"{evaluation.upper()} {', '.join(texts)}")
    start = (
        "Rank correlation with the paper, over methods with the same number of exemplars (their number in parentheses)"
    )
    return f"{start}: {'; '.join(parts)}."


def lead(one: Variant | None, other: Variant | None) -> str:
    """The difference in task-incremental accuracy; a dash where one is missing."""
    gap = difference(one, other, "til") if one and other else None
    return "–" if gap is None else f"{gap.mean:+.1f}" + ("" if gap.half_width is None else f" ± {gap.half_width:.1f}")


def label(v: Variant) -> str:
    return f"{v.method} ({v.memory})" if v.memory else v.method


def _lead_table(main: Experiment) -> str:
    """RFE's lead against how many exemplars its rivals keep."""
    rfe = get_variant(main, "rfe")
    memories = (FEW_EXEMPLARS, 200, EXEMPLARS)
    rows = []
    for method in REHEARSAL:
        cells = [lead(rfe, find_variant(main, method, memory)) for memory in memories]
        rival = find_variant(main, method, EXEMPLARS)
        published = [accuracy(main, v, "til") if v else None for v in (rfe, rival)]
        cells.append(f"{published[0][0] - published[1][0]:+.1f}" if published[0] and published[1] else "–")
        rows.append([method, *cells])
    head = ["RFE's lead over, in TIL", *(f"{m} exemplars ({exemplar_share(main, m)})" for m in memories)]
    return table([*head, "the paper, 500 (1.1 %)"], rows)


def _units_table(main: Experiment) -> str:
    """Methods whose cross-entropy covers all heads so far, and with RFE's single-head loss."""
    rfe, rows = get_variant(main, "rfe"), []
    for v in main.variants:
        if v.options.get("units") == "task":
            seen = get_variant(main, v.method, v.memory)
            cells = [spread(w.values(kind, "average_accuracy")) for kind in ("til", "cil") for w in (seen, v)]
            rows.append([label(v), *cells, lead(rfe, seen), lead(rfe, v), str(len(v.seeds))])
    head = ["method", "TIL, seen", "TIL, task", "CIL, seen", "CIL, task"]
    return table([*head, "RFE's lead in TIL, seen", "task", "seeds of task"], rows)


def single_head(main: Experiment) -> str:
    """The best rehearsal method with RFE's single-head loss, compared with RFE on the same seeds."""
    rfe = get_variant(main, "rfe")
    variants = [v for v in main.variants if v.options.get("units") == "task" and v.memory == EXEMPLARS]
    gaps = {v.method: gap for v in variants if (gap := difference(v, rfe, "til"))}
    best = max(gaps, key=lambda name: gaps[name].mean)
    gap = gaps[best]
    side = "above" if gap.mean > 0 else "below"
    return (
        f"Trained with RFE's single-head loss, {best} with {EXEMPLARS} images is the best of the {len(gaps)} rehearsal "
        f"methods tried, {gap.unsigned} points {side} RFE without images ({count_seeds(gap.num_seeds)}, task known)."
    )


def chain_and_drift_loss(main: Experiment) -> str:
    """What the drift loss contributes, and what the chain adds."""
    rfe, finetune, free = get_variant(main, "rfe"), get_variant(main, "finetune"), get_variant(main, "rfe", alpha=0.0)
    from_loss = mean_accuracy(rfe, "til_without_chain") - mean_accuracy(finetune, "til")
    gain, free_gain, plus_gain = (chain_gain(v) for v in (rfe, free, get_variant(main, "rfe-plus")))
    assert gain is not None
    assert free_gain is not None
    assert plus_gain is not None
    return (
        f"Of RFE's lead over fine-tuning, {from_loss:.0f} points come from the loss that keeps the backbone near its old "
        f"features and {gain.unsigned} from the chain; without that loss (α = 0) the chain adds {free_gain.unsigned} "
        f"(± half of the 95 % interval). To `rfe-plus`, whose Gaussians follow the drift by themselves, the chain adds {plus_gain} points."
    )


def cls_er_decays(main: Experiment) -> dict[float, Variant]:
    """CLS-ER by the decay of its averages; 0.999 is the default."""
    tried = {v.options["stable_decay"]: v for v in get_experiment("averages").variants}
    return {0.999: get_variant(main, "cls-er", EXEMPLARS)} | tried


def cls_er_decay(main: Experiment) -> str:
    """CLS-ER with the decay that is best on validation images."""
    tried = cls_er_decays(main)
    best = max(tried, key=lambda decay: validation_accuracy(tried[decay]))
    default, chosen = newest_task_accuracy(tried[0.999], "til"), newest_task_accuracy(tried[best], "til")
    require(best < 0.999 and chosen > default, "the averages of cls-er are too long for runs as short as these")
    gap = difference(tried[best], get_variant(main, "rfe"), "til")
    assert gap is not None
    side = "above" if gap.mean > 0 else "below"
    return (
        f"The moving averages of `cls-er` are too slow by default for runs as short as these: with a decay of {best:g}, "
        f"the best on validation images, it reaches {spread(tried[best].values('til', 'average_accuracy'))}, {gap.unsigned} "
        f"{side} RFE ({count_seeds(gap.num_seeds)}, task known)."
    )


def _long_chain() -> dict[str, str]:
    """After how many tasks each form of RFE is above DER++ and ER."""
    experiment = get_experiment("long-chain")
    parts = []
    for form in RFE_FORMS:
        own = accuracy_over_time(get_variant(experiment, form, EXEMPLARS * (form != "rfe")), "til")
        counts = []
        for name in ("derpp", "er"):
            rival = accuracy_over_time(get_variant(experiment, name, EXEMPLARS), "til")
            counts.append(f"{name} {sum(a > b for a, b in zip(own, rival, strict=True))} times")
        parts.append(f"{form} is above {' and '.join(counts)}")
    return {
        "long_chain_counts": "; ".join(parts),
        "long_chain_num_tasks": str(experiment.num_tasks),
        "long_chain_seeds": count_seeds(len(get_variant(experiment, "rfe").seeds)),
        "long_chain_tables": accuracy_tables(experiment),
    }


def _alpha(main: Experiment) -> dict[str, str]:
    """Accuracy with and without the chain against α."""
    by_alpha = {
        v.results[0]["config"]["method"]["alpha"]: v
        for v in main.variants
        if v.method == "rfe" and set(v.options) <= {"alpha"}
    }
    shown = [(f"rfe, {alpha:g}", v) for alpha, v in sorted(by_alpha.items())]
    shown += [(f"{label(v)}, 1", v) for v in main.variants if v.method in RFE_WITH_MEMORY and not v.options]
    rows = []
    for name, v in shown:
        accuracies = [spread(v.values(key, "average_accuracy")) for key in ("til", "til_without_chain")]
        rows.append([name, *accuracies, str(chain_gain(v) or "–"), spread(v.values("til", "forgetting")),
                     spread(v.values("cil", "average_accuracy")), str(len(v.seeds))])  # fmt: skip
    compared = dict(zip(by_alpha, on_common_seeds([*by_alpha.values()]), strict=True))
    seeds = next(iter(compared.values())).seeds
    best, best_without = (
        max((mean_accuracy(v, evaluation), alpha) for alpha, v in compared.items())
        for evaluation in ("til", "til_without_chain")
    )
    require(best[0] - best_without[0] < LEVEL_POINTS, "at this size the drift loss does nearly all of the work")
    head = ["method, α", "TIL", "TIL without the chain", "gain from the chain", "TIL forgetting", "CIL", "seeds"]
    return {
        "best_without_chain": f"{best_without[0]:.1f} % at α = {best_without[1]:g}",
        "best_with_chain": f"{best[0]:.1f} % at α = {best[1]:g}",
        "alpha_seeds": f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        "alpha_table": table(head, rows),
    }


def _forms(main: Experiment) -> dict[str, str]:
    """The forms of the retrospector, at the default α and, where they were run, at α = 0."""
    rfe, projection = get_variant(main, "rfe"), get_variant(main, "rfe-mlp-projection")
    gap = difference(projection, rfe, "til")
    published = [accuracy(main, v, "til") for v in (projection, rfe)]
    assert gap is not None
    assert all(published)
    require(gap.mean > -10, "the collapse of MLP-Projection is not reproduced")
    shown = select(main, lambda v: not v.options and v.method in ("rfe", *FORMS))
    free, free_rfe = (
        [v for v in main.variants if dict(v.options) == {"alpha": 0.0}],
        get_variant(main, "rfe", alpha=0.0),
    )
    rows = [
        [v.method, *(spread(v.values(key, "average_accuracy")) for key in ("til", "til_without_chain")),
         "–" if v is free_rfe else lead(v, free_rfe), str(len(v.seeds))]
        for v in free
    ]  # fmt: skip
    head = ["form", "TIL", "TIL without the chain", "minus rfe, same seeds", "seeds"]
    return {
        "forms_table": accuracy_sheet(shown, "til").markdown().strip(),
        "forms_differences": table(
            ["form", "TIL, minus rfe"], [[v.method, lead(v, rfe)] for v in shown.variants if v.method != "rfe"]
        ),
        "paper_projection": f"{published[0][0]:.2f}" if published[0] else "–",
        "paper_rfe": f"{published[1][0]:.2f}" if published[1] else "–",
        "projection_gap": str(gap),
        "forms_alpha_0": fill("forms-alpha-0.md", {"table": table(head, rows)}) if len(free) > 1 else "",
    }


def _unexplained(main: Experiment, cifar10: Experiment) -> dict[str, str]:
    """Differences from the paper that nothing on the page explains."""
    rfe, long = get_variant(main, "rfe"), get_experiment("long-chain")
    end_to_end = difference(get_variant(main, "rfe-e2e"), rfe, "til")
    tamil = difference(rfe, get_variant(main, "tamil", FEW_EXEMPLARS), "til")
    assert end_to_end is not None
    assert tamil is not None
    require(end_to_end.mean < -1, "trained end to end, RFE is less accurate than in two stages")
    require(tamil.mean > 0, "TAMiL with few exemplars is far below RFE")
    er = get_variant(cifar10, "er", EXEMPLARS)
    gaps = {
        evaluation: " and ".join(
            f"{gap.mean:+.1f}" for v in cifar10.variants if v.method in RFE_WITH_MEMORY and (gap := difference(v, er, evaluation))
        )
        for evaluation in ("til", "cil")
    }  # fmt: skip
    over_time = [
        f"{difference(get_variant(long, 'rfe'), get_variant(long, name, EXEMPLARS), 'til', 'incremental_accuracy')} from {name}"
        for name in ("derpp", "er")
    ]
    return {
        "end_to_end_gap": str(end_to_end),
        "cifar10_til_gaps": gaps["til"],
        "cifar10_cil_gaps": gaps["cil"],
        "cifar10_seeds": count_seeds(len(er.seeds)),
        "long_chain_gaps": " and ".join(over_time),
        "tamil_gap": f"{tamil.mean:.1f}",
    }
