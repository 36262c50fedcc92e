"""Smaller studies on docs/results.md: BatchNorm, CLS-ER, weights, digits, processes, an old index, and all runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pages.comparisons import cls_er_decay, cls_er_decays, lead
from pages.experiments import (
    CPU,
    EXEMPLARS,
    RESULTS,
    exemplar_share,
    get_experiment,
    load,
    load_recall,
    main_experiment,
)
from pages.markdown import details, require, table
from recollect.report.collect import Result, collect
from recollect.report.query import find_variant, get_variant, mean_accuracy, newest_task_accuracy, validation_accuracy
from recollect.report.stats import spread, summarise_gaps
from recollect.results import find_results
from recollect.sweeps.preset import load_preset

PRESETS = ("til", "ablation", "alpha", "pca", "rmse", "cifar10", "long-chain", "tinyimagenet", "share",
           "averages", "units", "forms", "many-tasks")  # fmt: skip
PAPERS_SHARE_CIFAR10 = 50
"""Exemplars that are about as large a fraction of the training images as the paper's 500."""
WEIGHTS = {"lwf": "distill", "ewc": "penalty", "si": "penalty"}
"""The option that weighs the regularisation of a method without data."""


def values() -> dict[str, str]:
    """For the template."""
    return {
        **_batch_norm(),
        **_cls_er(),
        "weights_table": _weights_table(),
        **_digits(),
        **_processes(),
        **_recall(),
        **_runs(),
        "cifar10_share_effect": _share_effect(),
    }


def _share_effect() -> str:
    """Whether ER's lead over RFE on CIFAR-10 comes from the share of images that it keeps; nothing where that was not run."""
    cifar10 = get_experiment("cifar10")
    rfe, er = get_variant(cifar10, "rfe"), find_variant(cifar10, "er", PAPERS_SHARE_CIFAR10)
    if er is None:
        return ""
    many = get_variant(cifar10, "er", EXEMPLARS)
    few, share = exemplar_share(cifar10, PAPERS_SHARE_CIFAR10), exemplar_share(cifar10, EXEMPLARS)
    return (
        f"RFE's lead over ER, task known: {lead(rfe, many)} points where ER keeps {EXEMPLARS} images ({share}), {lead(rfe, er)} where it keeps "
        f"{PAPERS_SHARE_CIFAR10} ({few}, about the paper's fraction).\n"
    )


def _batch_norm() -> dict[str, str]:
    """What the teacher's BatchNorm does: frozen, batch statistics, or adapting."""
    runs: dict[str, dict[int, Result]] = {}
    for result in load("statistics"):
        runs.setdefault(result["config"]["method"]["teacher_statistics"], {})[result["seed"]] = result
    rows, lines = [], []
    for name in ("frozen", "batch", "adapting"):
        results = runs[name].values()
        accuracies = [
            spread([r[key]["average_accuracy"] for r in results]) for key in ("til", "til_without_chain", "cil")
        ]
        rows.append([f"`{name}`", *accuracies, spread([r["til"]["forgetting"] for r in results])])
    for name in ("batch", "adapting"):
        gaps = [_til(runs[name][seed]) - _til(result) for seed, result in runs["frozen"].items()]
        summary = summarise_gaps(gaps)
        outcome = "" if summary and summary.is_clear else ": inconclusive"
        per_seed = ", ".join(f"{gap:+.1f}" for gap in gaps)
        lines.append(f"- `{name}` minus `frozen`, TIL, per seed: {per_seed}; {summary} (95 % interval){outcome}.")
    rfe = get_variant(main_experiment(), "rfe")
    parts = []
    for key, title in (("til", "with the chain"), ("til_without_chain", "without it")):
        main = dict(zip(rfe.seeds, rfe.values(key, "average_accuracy"), strict=True))
        gaps = [
            (main[seed] or 0.0) - r[key]["average_accuracy"] for seed, r in runs["adapting"].items() if seed in main
        ]
        parts.append(f"{title} {summarise_gaps(gaps)} points")
    head = ["teacher_statistics", "TIL", "TIL without the chain", "CIL", "TIL forgetting"]
    return {
        "batch_norm_table": table(head, rows),
        "batch_norm_differences": "\n".join(lines),
        "batch_norm_main_runs": ", ".join(parts),
    }


def _til(result: Result) -> float:
    return float(result["til"]["average_accuracy"])


def _cls_er() -> dict[str, str]:
    """CLS-ER by the decay of its averages."""
    main = main_experiment()
    tried, rfe = cls_er_decays(main), get_variant(main, "rfe")
    validation = {decay: validation_accuracy(v) for decay, v in tried.items()}
    newest = {decay: newest_task_accuracy(v, "til") for decay, v in tried.items()}
    best = max(validation, key=lambda decay: validation[decay])
    rows = []
    for decay in sorted(tried, reverse=True):
        v = tried[decay]
        accuracies = [spread(v.values(evaluation, "average_accuracy")) for evaluation in ("til", "cil")]
        mark = " ←" * (decay == best)
        rows.append([f"{decay:g}{mark}", f"{validation[decay]:.1f}", f"{newest[decay]:.1f}", *accuracies, lead(rfe, v),
                     _list(v.seeds)])  # fmt: skip
    head = ["decay", "validation TIL", "newest task, TIL", "TIL", "CIL", "RFE's lead, TIL", "seeds"]
    return {
        "cls_er_decay": cls_er_decay(main),
        "cls_er_best_decay": f"{best:g}",
        "cls_er_newest": f"{newest[best]:.0f}",
        "cls_er_newest_default": f"{newest[0.999]:.0f}",
        "cls_er_table": table(head, rows),
    }


def _weights_table() -> str:
    """Validation accuracy against the weight of methods without data."""
    tried: dict[str, dict[float, Result]] = {}
    for result in load("weights"):
        method = result["config"]["method"]
        tried.setdefault(method["name"], {})[method[WEIGHTS[method["name"]]]] = result
    rows = []
    for name, by_weight in tried.items():
        best = max(by_weight, key=lambda weight: by_weight[weight]["validation"]["til"])
        for weight in sorted(by_weight):
            result, mark = by_weight[weight], " ←" if weight == best else ""
            rows.append([f"`{name}`", f"`{WEIGHTS[name]}={weight:g}`{mark}", f"{result['validation']['til']:.1f}",
                         f"{_til(result):.1f}"])  # fmt: skip
    return table(["method", "weight", "validation TIL", "test TIL"], rows)


def _digits() -> dict[str, str]:
    experiment = get_experiment("digits-all")
    finetune = get_variant(experiment, "finetune")
    low = dict(zip(finetune.seeds, finetune.values("til", "average_accuracy"), strict=True))
    others = [v for v in experiment.variants if v.memory or v.method.startswith("rfe")]
    pairs = [(s, x) for v in others for s, x in zip(v.seeds, v.values("til", "average_accuracy"), strict=True)]
    require(
        all(value is not None and value > (low[seed] or 0.0) for seed, value in pairs),
        "every method that keeps data, and every form of RFE, is above finetune on every seed",
    )
    metrics = (("til", "average_accuracy"), ("til", "forgetting"), ("cil", "average_accuracy"))
    rows = [
        [
            f"`{v.method}`",
            *(spread(v.values(*metric)) for metric in metrics),
            "all" if v.method == "joint" else str(v.memory),
        ]
        for v in sorted(experiment.variants, key=lambda v: -mean_accuracy(v, "til"))
    ]
    return {
        "digits_seeds": _list(finetune.seeds),
        "digits_table": table(["method", "TIL", "TIL forgetting", "CIL", "images kept"], rows),
    }


def _processes() -> dict[str, str]:
    """One process against two."""
    (shared,), single = collect(find_results([RESULTS / "processes"]).values()), get_experiment("digits-all")
    rows, differences = [], []
    for v in shared.variants:
        alone, cells = get_variant(single, v.method, v.memory), []
        for evaluation in ("til", "cil"):
            two, one = (dict(zip(w.seeds, w.values(evaluation, "average_accuracy"), strict=True)) for w in (v, alone))
            gaps = [(two[seed] or 0.0) - (one[seed] or 0.0) for seed in one if seed in two]
            per_seed = ", ".join(f"{gap:+.1f}" for gap in gaps)
            cells += [spread([one[seed] for seed in one if seed in two]), spread(list(two.values())), per_seed]
            gap = summarise_gaps(gaps)
            mark = " (**excludes zero**)" if gap and gap.is_clear else ""
            differences.append(f"{v.method} {evaluation.upper()} {gap}{mark}")
        rows.append([f"`{v.method}`", *cells])
    head = ["method", "TIL, one", "two", "per seed", "CIL, one", "two", "per seed"]
    return {
        "processes_seeds": _list(shared.variants[0].seeds),
        "processes_differences": "; ".join(differences),
        "processes_num_intervals": str(len(differences)),
        "processes_num_expected": f"{len(differences) / 20:.1f}",
        "processes_table": table(head, rows),
    }


def _recall() -> dict[str, str]:
    """Searches in an index that an earlier model has built."""
    by_alpha = load_recall()
    keys = ("recall_drifted", "recall_rectified", "same_class_drifted", "same_class_rectified")
    rows = [
        [f"{alpha:g}", str(i + 1), *(spread([result["after"][i][key] for result in results]) for key in keys)]
        for alpha, results in by_alpha.items()
        for i in range(len(results[0]["after"]))
    ]
    every = [result for results in by_alpha.values() for result in results]
    commits = sorted({f"`{result['commit'][:10]}`" for result in every})
    head = [
        "α",
        "months learned",
        "recall@10, drifted",
        "recall@10, rectified",
        "same class, drifted",
        "same class, rectified",
    ]
    return {
        "recall_index": str(every[0]["index"]),
        "recall_queries": str(every[0]["queries"]),
        "recall_width": str(every[0]["settings"]["width"]),
        "recall_seeds": _list(sorted({result["seed"] for result in every})),
        "recall_command": every[0]["command"],
        "recall_commits": f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}",
        "recall_table": table(head, rows),
    }


def _runs() -> dict[str, str]:
    """Every run with its command, and the presets that are not complete."""
    rows = []
    for path, result in sorted(find_results([CPU, RESULTS / "processes"]).items()):
        name = path.parent.relative_to(RESULTS).as_posix().removeprefix("cpu/")
        num_processes = result["environment"].get("processes", 1)
        launcher = f"torchrun --nproc-per-node {num_processes} -m " if num_processes > 1 else ""
        rows.append([f"`{name}`", f"`{result['commit'][:10]}`", f"`{launcher}{result['command']}`"])
    results = load(".")
    environments = {f"torch {r['environment']['torch']}, Python {r['environment']['python']}" for r in results}
    incomplete = []
    for preset in PRESETS:
        configs = [job.config.to_json() for job in load_preset(f"cpu/{preset}").jobs(precision="bf16")]
        num_done = sum(any(_is_same_run(config, result["config"]) for result in results) for config in configs)
        if num_done < len(configs):
            incomplete.append(f"`cpu/{preset}` {num_done} of {len(configs)}")
    return {
        "environments": "; ".join(sorted(environments)),
        "run_table": details(
            f"{len(rows)} runs, with command and commit", table(["run", "commit", "command"], rows, is_text=True)
        ),
        "incomplete": f"These presets are not complete yet: {', '.join(incomplete)}." if incomplete else "",
    }


def _is_same_run(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two configs agree on all options that both have; options are added and removed between versions."""
    if any(config[key] != other[key] for key in ("seed", "fixed_heads", "precision")):
        return False
    sections = [(config[section], other[section]) for section in ("stream", "method", "backbone", "training")]
    return all(
        options[name] == value for options, section in sections for name, value in section.items() if name in options
    )


def _list(numbers: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, numbers))
