"""docs/results-unknown.md: what methods reach when the task of an image is unknown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pages.experiments import RESULTS, ROOT
from pages.markdown import details, fill, require, table
from recollect.report.collect import Experiment, Result, Variant, collect
from recollect.report.query import mean_accuracy
from recollect.report.stats import difference, spread
from recollect.results import find_results

PAGE = ROOT / "docs" / "results-unknown.md"
ORACLE = RESULTS / "oracle.json"
CALIBRATION = RESULTS / "calibration.json"
PRESETS = {
    "digits": "Digits, five tasks of two classes, from scratch",
    "months": "Digits in months of 6, 1, 1 and 2 classes, from scratch",
    "scratch": "CIFAR-100, five tasks, from scratch",
    "pretrained": "CIFAR-100, ten tasks, pretrained EfficientNet-Lite0 at 64 pixels",
    "pretrained-128": "CIFAR-100, ten tasks, pretrained EfficientNet-Lite0 at 128 pixels",
    "pretrained-cifar10": "CIFAR-10, five tasks, pretrained EfficientNet-Lite0 at 64 pixels",
    "pretrained-tinyimagenet": "Tiny ImageNet, ten tasks, pretrained EfficientNet-Lite0 at 64 pixels",
}
FEATURES = {"blocks": ", all blocks", "last": ", last layer", "": ""}
"""What the name of an experiment says of its features."""
RIVALS = ("ncm", "slda", "ranpac", "fecam", "fsa", "ldc")
"""Simpler methods without a chain, which anyone would use instead; all but ldc freeze the backbone."""
EVALUATIONS = ("til", "cil")
BEST = "the best rival"
CHOSEN = ("averaging", "mirror")
"""Options of rfe-plus with pretrained weights that presets leave out once, to show what they gain."""
COMPONENTS = "components"
"""The option of rfe-plus that `fsa` has here too, which is then not the method of its paper."""


def page() -> str:
    """The whole of docs/results-unknown.md."""
    parts, runs = [], []
    for preset, title in PRESETS.items():
        folder = RESULTS / "unknown" / preset
        results = find_results([folder]) if folder.exists() else {}
        experiments = collect(results.values())
        for experiment in sorted(experiments, key=features_of):
            heading, command = f"## {title}{FEATURES[features_of(experiment)]}", f"`recollect sweep unknown/{preset}`"
            verdict = _verdict(experiment, experiments)
            parts.append("\n\n".join([heading, command, _table(experiment), verdict]))
        runs += [_run(result) for result in results.values()]
    listing = details(f"{len(runs)} runs", table(["command", "commit"], runs, is_text=True))
    return fill(
        "results-unknown.md",
        {
            "overview": _overview(),
            "oracle": _oracle(),
            "tables": "\n\n".join(parts),
            "runs": listing,
            "rules": _rules(),
            "calibration": _calibration(),
        },
    )


def readme_values() -> dict[str, str]:
    """With pretrained weights: rfe-plus, fsa with its components, the best rival and slda, and the best on the last layer."""
    values: dict[str, str] = {}
    for data, preset in (("cifar10", "pretrained-cifar10"), ("cifar100", "pretrained")):
        experiments = collect(find_results([RESULTS / "unknown" / preset]).values())
        layers = {features_of(e): {v.label: v for v in e.variants if len(v.seeds) == 3} for e in experiments}
        shown = {"rfe-plus": _chosen(layers["blocks"].values()), "slda": layers["blocks"]["slda"]}
        shown["components"] = layers["blocks"]["fsa, components=8"]
        shown |= {f"{name}_best": _best_rival(found.values()) for name, found in layers.items()}
        require(
            mean_accuracy(shown["last_best"], "cil") < mean_accuracy(shown["slda"], "cil"),
            "all blocks gain more than training",
        )
        keeps_nothing = [v for v in layers["blocks"].values() if v.method != "joint" and not v.memory]
        require(shown["rfe-plus"] is max(keeps_nothing, key=lambda v: mean_accuracy(v, "cil")), "rfe-plus is the best")
        for name, v in shown.items():
            accuracies = (f"{mean_accuracy(v, evaluation):.1f}" for evaluation in ("til", "cil"))
            values[f"{data}_{name.replace('-', '_')}"] = " / ".join(accuracies)
        values[f"{data}_options"] = options_of(shown["rfe-plus"])
        values |= {f"{data}_{name}_rival": _label(shown[f"{name}_best"]) for name in layers}
        if data == "cifar100":
            steps = (layers["last"]["fsa"], layers["blocks"]["fsa"], shown["components"], shown["rfe-plus"])
            for part, before, after in zip(("blocks", "components", "training"), steps[:-1], steps[1:], strict=True):
                gain = mean_accuracy(after, "cil") - mean_accuracy(before, "cil")
                values[f"{data}_by_{part}"] = f"{gain:.1f}"
    return values


def _best_rival(variants: Iterable[Variant]) -> Variant:
    """With the task unknown."""
    return max((v for v in variants if _is_rival(v)), key=lambda v: mean_accuracy(v, "cil"))


def _is_rival(v: Variant) -> bool:
    """Whether it is a simpler method, without the components of rfe-plus."""
    return v.method in RIVALS and COMPONENTS not in v.options


def _table(experiment: Experiment) -> str:
    rows = []
    for v in sorted(experiment.variants, key=lambda v: -mean_accuracy(v, "cil")):
        seconds = [sum(result["seconds"].values()) for result in v.results]
        rows.append([
            f"`{_label(v)}`", "all" if v.method == "joint" else str(v.memory), str(len(v.seeds)),
            spread(v.values("til", "average_accuracy")), spread(v.values("task_prediction", "average_accuracy")),
            spread(v.values("cil", "average_accuracy")), f"{v.results[0]['parameters']['inference'] / 1e6:.2f}",
            f"{sum(seconds) / len(seconds) / 60:.1f}",
        ])  # fmt: skip
    head = ["method", "images kept", "seeds", "TIL", "task predicted", "CIL", "parameters (millions)", "minutes"]
    return table(head, rows)


def _label(v: Variant) -> str:
    """As options are typed."""
    return v.label.replace("=True", "=true")


def options_of(v: Variant) -> str:
    """What the label of a variant says beside its method."""
    return f"`{' '.join(options)}`" if (options := _label(v).split(", ")[1:]) else "its defaults"


def features_of(experiment: Experiment) -> str:
    """Which layers of an EfficientNet are read; nothing for other backbones."""
    backbone = experiment.settings["backbone"]
    return str(backbone.get("features", "last")) if backbone["name"].startswith("efficientnet") else ""


def _verdict(experiment: Experiment, experiments: Sequence[Experiment]) -> str:
    """How the forms of RFE, and training on all images at once, compare with the simpler methods."""
    rows = []
    for v in experiment.variants:
        if v.method == "joint" or _is_ours(v):
            rows += [
                [f"`{_label(v)}` minus {what}", *cells]
                for what, rivals in _rivals(v, experiment, experiments).items()
                if any(cells := [_gap(v, rivals, evaluation) for evaluation in EVALUATIONS])
            ]
    return table(["difference in points", "task known", "task unknown"], rows) if rows else ""


def _rivals(v: Variant, experiment: Experiment, experiments: Sequence[Experiment]) -> dict[str, list[Variant]]:
    """With whom a variant is compared."""
    published = [rival for e in experiments if features_of(e) == "last" for rival in e.variants]
    rivals = {BEST: [rival for rival in experiment.variants if _is_rival(rival)]}
    if v.method == "joint":
        return rivals
    if features_of(experiment) == "blocks":
        rivals["the best rival on the last layer"] = [rival for rival in published if _is_rival(rival)]
    if "identity" not in v.options:
        rivals["the same components without a chain"] = [
            rival for rival in experiment.variants if rival.method in RIVALS and COMPONENTS in rival.options
        ]
        rivals["training on all images at once"] = [rival for rival in experiment.variants if rival.method == "joint"]
    return rivals


def _is_ours(v: Variant) -> bool:
    return v.method == "rfe-plus" and dict(v.options).get("identity") in (None, "forward")


def _chosen(variants: Iterable[Variant]) -> Variant:
    """`rfe-plus` as its preset has it, once that has three seeds; other rows show what its options gain."""
    ours = [v for v in variants if _is_ours(v) and "identity" not in v.options]

    def num_chosen(v: Variant) -> int:
        return sum(bool(v.results[0]["config"]["method"].get(name)) for name in CHOSEN)

    return max(ours, key=lambda v: (min(len(v.seeds), 3), num_chosen(v)))


def _gap(v: Variant, rivals: Sequence[Variant], evaluation: str) -> str:
    """Minus the best of them, which is named; nothing if no seed is common."""
    if not rivals:
        return ""
    best = max(rivals, key=lambda rival: mean_accuracy(rival, evaluation))
    gap = difference(v, best, evaluation, "average_accuracy")
    return "" if gap is None else f"{gap} (`{_label(best)}`)"


def _overview() -> str:
    """For each stream, what rfe-plus gains over the best rival, on the same features and as published, and joint too."""
    rows = []
    for preset, title in PRESETS.items():
        experiments = collect(find_results([RESULTS / "unknown" / preset]).values())
        for experiment in experiments:
            rivals = [rival for rival in experiment.variants if _is_rival(rival)]
            joint = [v for v in experiment.variants if v.method == "joint"]
            if any(_is_ours(v) and "identity" not in v.options for v in experiment.variants):
                v = _chosen(experiment.variants)
                published = [
                    rival for e in experiments if features_of(e) == "last" for rival in e.variants if _is_rival(rival)
                ]
                bound = [_gap(joint[0], rivals, evaluation) if joint else "" for evaluation in EVALUATIONS]
                gains = [_gap(v, rivals, evaluation) for evaluation in EVALUATIONS]
                gains += [_gap(v, published, e) or "–" for e in EVALUATIONS]
                if preset == "pretrained-tinyimagenet" and joint:
                    ahead = difference(v, joint[0], "til"), difference(v, joint[0], "cil")
                    require(all(gap and gap.mean > 0 for gap in ahead), "rfe-plus is above joint on Tiny ImageNet")
                rows.append([title, options_of(v), *gains, *(cell or "not run" for cell in bound)])
    head = ["stream", "`rfe-plus` with", "same features: task known", "task unknown", "last layer: task known"]
    head += ["task unknown", "`joint`, same features: task known", "task unknown"]
    return table(head, rows)


def _oracle() -> str:
    """Accuracies of finished runs with the statistics that they stored, and with true ones."""
    rows: list[dict[str, Any]] = json.loads(ORACLE.read_text(encoding="utf-8"))["rows"] if ORACLE.exists() else []
    cells = [
        [
            f"{row['stream']}, {row['tasks']} tasks", f"`{row['method']}, identity={row['identity']}, components={row.get('components', 0)}`", str(row["seed"]),
            *(f"{row[kind][name]:.1f}" for name in ("til", "task_prediction", "cil") for kind in ("stored", "true")),
        ]
        for row in rows
    ]  # fmt: skip
    head = [
        "stream",
        "method",
        "seed",
        "TIL",
        "TIL, true",
        "task predicted",
        "task predicted, true",
        "CIL",
        "CIL, true",
    ]
    return table(head, cells) if cells else "Not measured yet."


def _rules() -> str:
    """The rules on digits, with and without their parts."""
    rows = []
    for experiment in collect(find_results([RESULTS / "unknown" / "rules"]).values()):
        for v in experiment.variants:
            options = dict(v.options)
            rows.append([
                str(options.get("identity", "anchored")), "yes" if options.get("head_weight", 0.5) else "no",
                "yes" if options.get("correct_drift", True) else "no", str(options.get("components", 8)), str(len(v.seeds)),
                *(spread(v.values(name, "average_accuracy")) for name in ("til", "task_prediction", "cil")),
            ])  # fmt: skip
    order = {"anchored": 0, "forward": 1, "lda": 2, "class-means": 3, "average": 4}
    rows.sort(key=lambda row: (order[row[0]], row[1] == "no", row[2] == "no", row[3] == "0"))
    head = ["rule", "heads", "drift", "components", "seeds", "TIL", "task predicted", "CIL"]
    return table(head, [[f"`{row[0]}`", *row[1:]] for row in rows]) if rows else "Not measured yet."


def _calibration() -> str:
    """How far off estimates for earlier months are, and what they gain in calibration."""
    rows: list[dict[str, Any]] = (
        json.loads(CALIBRATION.read_text(encoding="utf-8"))["rows"] if CALIBRATION.exists() else []
    )
    groups: dict[tuple[int, bool], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["classes"], row["adapt"]), []).append(row)
    cells = []
    for (classes, adapt), runs in sorted(groups.items(), key=lambda item: (item[0][1], -item[0][0])):
        states = [state for run in runs for state in run["after"]]
        pairs = [pair for state in states for pair in zip(state["estimated"], state["actual"], strict=True)]
        off = {
            name: [abs(estimated[name] - actual[name]) for estimated, actual in pairs] for name in ("known", "unknown")
        }
        errors = [state["calibrated"]["error"] for state in states]
        cells.append([
            f"{classes} classes a month{', adapted' * adapt}", f"{len(runs)}", f"{1 + max(len(run['after']) for run in runs)}",
            *(f"{sum(values) / len(values):.1f} (at most {max(values):.1f})" for values in (off["known"], off["unknown"])),
            f"{sum(errors) / len(errors):.1f}",
            ", ".join(sorted({f"`{run['commit'][:10]}`" for run in runs})),
        ])  # fmt: skip
    head = [
        "months",
        "seeds",
        "number",
        "task known: off by",
        "task unknown: off by",
        "calibration error",
        "commit",
    ]
    return table(head, cells) if cells else "Not measured yet."


def _run(result: Result) -> list[str]:
    return [f"`{result['command']}`", f"`{result['commit'][:10]}`"]
