"""Does RFE do on real data what the paper says, at a size two cores can show? Runs it, and writes docs/results.md.

    python benchmarks/real_data_check.py run --data-root DATA     all runs, two at a time; done ones are skipped
    python benchmarks/real_data_check.py page                     docs/results.md from the raw results under results/

DATA holds CIFAR-100's official binary archive, packed or unpacked; left out, it is downloaded.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "results.md"
SEEDS = (0, 1, 2)
STATISTICS = ("frozen", "batch", "adapting")
SIZE = ["backbone.width=16", "epochs=8"]
RFE = ["auxiliary_dim=64", "projection_dim=64"]
CIFAR = ["--stream", "split-cifar100", "--train-per-class", "100"]
WITH_DATA = ("er", "agem", "derpp", "er-ace", "er-mkd", "tamil", "cls-er")
RFE_WITH_DATA = ("rfe-p", "rfe-b")
RFE_FORMS = ("rfe", *RFE_WITH_DATA, "rfe-e2e", "rfe-mlp-residual", "rfe-mlp-projection", "rfe-no-aux")
SHARED = ("finetune", "er", "rfe", "rfe-b")  # learned by two processes too
WITHOUT_DATA = ("lwf", "ewc", "si", "expansion")
WEIGHTS = {
    "lwf": ("distill", ("0.3", "1", "3", "10")),
    "ewc": ("penalty", ("10", "100", "1000", "10000")),
    "si": ("penalty", ("0.1", "1", "10", "100")),
}
Result = Mapping[str, Any]


def first_runs() -> dict[str, list[str]]:
    """RFE beside fine-tuning and replay, and what the teacher's BatchNorm should do."""
    found = {
        f"{method}-{units}-0": ["--method", method, "--seed", "0", "--set", *SIZE, f"units={units}"]
        for method in ("finetune", "er") for units in ("seen", "task")
    }  # fmt: skip
    drift = ["--method", "rfe", "--measure-drift", "--set", *SIZE]
    found["rfe-alpha0-0"] = ["--seed", "0", *drift, "alpha=0", *RFE]
    for seed in SEEDS:
        for statistics in STATISTICS:
            name = f"rfe-{statistics}-{seed}"
            found[name] = ["--seed", str(seed), *drift, f"teacher_statistics={statistics}", *RFE]
    return {name: [*CIFAR, "--precision", "fp32", *words, "views=0"] if "rfe" in name else [*CIFAR, "--precision", "fp32", *words]
            for name, words in found.items()}  # fmt: skip


def method_runs() -> dict[str, list[str]]:
    """Every method under the same settings, one seed each."""
    own = dict.fromkeys(("rfe", *RFE_WITH_DATA), RFE) | {"expansion": ["auxiliary_dim=64"]}
    return {
        f"{name}-0": [*CIFAR, "--method", name, "--seed", "0", "--set", *SIZE, *own.get(name, [])]
        for name in ("joint", "finetune", *WITH_DATA, "rfe", *RFE_WITH_DATA, *WITHOUT_DATA)
    }


def weight_runs() -> dict[str, list[str]]:
    """The weights that methods without data are tried with, on fewer images."""
    stream = ["--stream", "split-cifar100", "--train-per-class", "30"]
    return {
        f"{name}-{value}": [*stream, "--method", name, "--seed", "0", "--set", *SIZE, f"{option}={value}"]
        for name, (option, values) in WEIGHTS.items() for value in values
    }  # fmt: skip


def digit_runs() -> dict[str, list[str]]:
    """split-digits as it comes, three seeds."""
    names = ("joint", "finetune", *WITH_DATA, *RFE_FORMS)
    return {f"{name}-{seed}": ["--stream", "split-digits", "--method", name, "--seed", str(seed)]
            for seed in SEEDS for name in names}  # fmt: skip


def process_runs() -> dict[str, list[str]]:
    """split-digits learned by two processes, to stand beside one."""
    return {f"{name}-{seed}": ["--stream", "split-digits", "--method", name, "--seed", str(seed)]
            for seed in SEEDS for name in SHARED}  # fmt: skip


GROUPS = {
    "real-data-check": first_runs,
    "methods-check": method_runs,
    "weights-check": weight_runs,
    "digits-check": digit_runs,
    "processes-check": process_runs,
}


def run_all(data_root: str | None) -> None:
    """Do what is not done yet; an interrupted run goes on where it stopped."""

    def one(group: str, name: str, words: list[str]) -> None:
        raw = RESULTS / group / f"{name}.json"
        if raw.exists():
            return
        raw.parent.mkdir(parents=True, exist_ok=True)
        out = Path("runs") / group / name
        command = ["run", "--threads", "1", "--out", str(out), *words]
        if data_root and "split-digits" not in words:
            command[1:1] = ["--data-root", data_root]
        print(shlex.join(["recollect", *command]), flush=True)
        several = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if group == "processes-check" else []
        subprocess.run([sys.executable, *several, "-m", "recollect", *command], check=True, stdout=subprocess.DEVNULL)
        shutil.copyfile(out / "result.json", raw)

    todo = [(group, name, words) for group, runs in GROUPS.items() for name, words in runs().items()]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda item: one(*item), todo))


def load(group: str) -> dict[str, Result]:
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((RESULTS / group).glob("*.json"))
    }


def page() -> str:
    """The whole of docs/results.md."""
    first, methods, weights, digits, shared = (load(group) for group in GROUPS)
    parts = [_head(first), _comparison(first), _chain(first), _statistics(first), _methods(methods), _weights(weights),
             _digits(digits), _processes(digits, shared), _commands(first | {f"{k} (all methods)": v for k, v in methods.items()} | weights)]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(results: Mapping[str, Result]) -> str:
    hours = sum(sum(result["seconds"].values()) for result in results.values()) / 3600
    config = results["rfe-frozen-0"]["config"]
    data, training, method = config["stream"], config["training"], config["method"]
    return f"""# Results

Generated from the raw results under `results/` by `python benchmarks/real_data_check.py page`; do not edit.

## The real-data check

Split CIFAR-100, {data["tasks"]} tasks of 20 classes, real images, {data["train_per_class"]} training images a class of which a
tenth are held out, all test images. {config["backbone"]["name"]} of width {config["backbone"]["width"]} (features of
{8 * config["backbone"]["width"]}), auxiliary and projection dimension {method["auxiliary_dim"]}, {training["epochs"]} epochs a stage,
batch {training["batch_size"]}, one processor thread a run. This is far below the paper's size (500 images a class, width 64,
40 epochs), so figures compare with each other and not with the paper's. The {len(results)} runs of the next three sections took {hours:.1f} hours in all on one thread
each, beside other work, in fp32 and with fresh views in the second stage; the command does all of them, two at a time, and skips
what is done:

```
python benchmarks/real_data_check.py run --data-root DATA
```"""


def _comparison(results: Mapping[str, Result]) -> str:
    titles = {
        "finetune-seen-0": "finetune, `units=seen`", "finetune-task-0": "finetune, `units=task`",
        "er-seen-0": "ER, 500 exemplars, `units=seen`", "er-task-0": "ER, 500 exemplars, `units=task`",
        "rfe-frozen-0": "RFE, `teacher_statistics=frozen`", "rfe-batch-0": "RFE, `teacher_statistics=batch`",
        "rfe-adapting-0": "RFE, `teacher_statistics=adapting`", "rfe-alpha0-0": "RFE, α = 0",
    }  # fmt: skip
    rows = [
        [title, *(_figure(results[name], key) for key in ("til", "til_without_chain", "cil")),
         _number(results[name]["til"]["forgetting"]), str(results[name]["memory"]["samples"])]
        for name, title in titles.items()
    ]  # fmt: skip
    table = _table(["one seed, percent", "TIL", "TIL without the chain", "CIL", "TIL forgetting", "images kept"], rows)
    rfe, finetune, er = (
        results[n]["til"]["average_accuracy"] for n in ("rfe-adapting-0", "finetune-seen-0", "er-seen-0")
    )
    alpha0 = results["rfe-alpha0-0"]
    gain = alpha0["til"]["average_accuracy"] - alpha0["til_without_chain"]["average_accuracy"]
    return f"""### RFE beside fine-tuning and replay

{table}

- RFE at α = 1 (`adapting`, the default) over finetune (`units=seen`): **{rfe - finetune:+.1f}** points (asked: at least +15): {_verdict(rfe - finetune >= 15)}.
- RFE at α = 1 over ER with 500 exemplars (`units=seen`), on this seed: **{rfe - er:+.1f}** points (asked: above 0): {_verdict(rfe > er)}.
- At α = 0, read through the chain over the same run read without it: **{gain:+.1f}** points (asked: at least +10):
  {_verdict(gain >= 10)}. A retrospector replaced by the identity is that second reading, so it gains 0 and fails."""


def _chain(results: Mapping[str, Result]) -> str:
    drift = results["rfe-alpha0-0"]["drift"]
    pairs = [
        (i, j, drift["drifted"][i][j], drift["rectified"][i][j])
        for i in range(len(drift["drifted"])) for j in range(i)
    ]  # fmt: skip
    rows = [[f"{j + 1}", f"{i + 1}", f"{before:.3f}", f"{after:.3f}"] for i, j, before, after in pairs]
    below = all(after < before for _, _, before, after in pairs)
    return f"""### How far features drift, and how far the chain brings them back

RMSE against the original features on the test images of a task, at α = 0, seed 0. Rectified below drifted for every pair
of tasks: {_verdict(below)}.

{_table(["images of task", "after task", "drifted", "rectified"], rows)}"""


def _statistics(results: Mapping[str, Result]) -> str:
    def cell(statistics: str, read: Callable[[Result], float]) -> str:
        return _spread([read(results[f"rfe-{statistics}-{seed}"]) for seed in SEEDS])

    keys = ("til", "til_without_chain", "cil")
    rows = [
        [f"`{s}`", *(cell(s, lambda r, key=key: r[key]["average_accuracy"]) for key in keys),  # type: ignore[misc]
         cell(s, lambda r: r["til"]["forgetting"])]
        for s in STATISTICS
    ]  # fmt: skip
    paired = {
        s: [results[f"rfe-{s}-{seed}"]["til"]["average_accuracy"] - results[f"rfe-frozen-{seed}"]["til"]["average_accuracy"]
            for seed in SEEDS]
        for s in ("batch", "adapting")
    }  # fmt: skip
    lines = [
        f"- `{s}` less `frozen`, TIL, seed by seed: {', '.join(f'{d:+.1f}' for d in found)}."
        for s, found in paired.items()
    ]
    table = _table(["teacher_statistics", "TIL", "TIL without the chain", "CIL", "TIL forgetting"], rows)
    return f"""### What the teacher's BatchNorm should do

RFE at α = 1, seeds 0, 1, 2, mean ± standard deviation. `frozen` is the paper's text, `adapting` the authors' code.

{table}

{chr(10).join(lines)}
- At α = 1 most of the gain comes from the drift loss and the frozen heads: the chain adds {_chain_gain(results):+.1f} points of
  TIL (`adapting`, mean of the seeds). At α = 0, above, it carries everything."""


def _chain_gain(results: Mapping[str, Result]) -> float:
    found = [results[f"rfe-adapting-{seed}"] for seed in SEEDS]
    return fmean(r["til"]["average_accuracy"] - r["til_without_chain"]["average_accuracy"] for r in found)


def _methods(results: Mapping[str, Result]) -> str:
    """All methods side by side, strongest first; what has not been run yet is said."""
    ranked = sorted(results.items(), key=lambda item: -item[1]["til"]["average_accuracy"])
    rows = [
        [f"`{name.removesuffix('-0')}`", _figure(result, "til"), _number(result["til"]["forgetting"]), _figure(result, "cil"),
         str(result["memory"]["samples"])]
        for name, result in ranked
    ]  # fmt: skip
    missing = [f"`{name.removesuffix('-0')}`" for name in method_runs() if name not in results]
    til = {name.removesuffix("-0"): result["til"]["average_accuracy"] for name, result in results.items()}
    lines = [f"Not run yet: {', '.join(missing)}."] if missing else []
    if {"finetune", "er", "joint"} <= til.keys():
        lines.append(f"finetune < er < joint: {_verdict(til['finetune'] < til['er'] < til['joint'])}.")
    rehearsal = (*WITH_DATA, *RFE_WITH_DATA)
    if not missing:
        below = [name for name in rehearsal if til[name] < til["finetune"]]
        lines.append(f"No rehearsal method below finetune: {_verdict(not below)}.")
    return f"""### Every method, one seed

The same settings for all, each method with its default options but for dimensions of 64 in RFE and expansion, {results["finetune-0"]["config"]["precision"]}; one seed, so small differences mean nothing.

{_table(["method", "TIL", "TIL forgetting", "CIL", "images kept"], rows)}

{" ".join(lines)}"""


def _weights(results: Mapping[str, Result]) -> str:
    """Validation accuracy against the weight of methods without data."""
    rows = []
    for name, (option, values) in WEIGHTS.items():
        tried = {value: results[f"{name}-{value}"] for value in values if f"{name}-{value}" in results}
        best = max(tried, key=lambda value: tried[value]["validation"]["til"], default=None)
        rows += [
            [
                f"`{name}`",
                f"`{option}={value}`{' ←' if value == best else ''}",
                f"{result['validation']['til']:.1f}",
                _figure(result, "til"),
            ]
            for value, result in tried.items()
        ]
    if not rows:
        return ""
    return f"""### The weights of methods without data

Validation accuracy of the values tried, best marked, on the same stream with 30 images a class, seed 0. The defaults are the best ones.
Test accuracy stands beside it and was not looked at for the choice.

{_table(["method", "weight", "validation TIL", "test TIL"], rows)}"""


def _digits(results: Mapping[str, Result]) -> str:
    """The ranking on split-digits."""
    names = sorted({name.rsplit("-", 1)[0] for name in results})
    whole = {name: [results[f"{name}-{seed}"] for seed in SEEDS] for name in names if f"{name}-{SEEDS[-1]}" in results}
    if len(whole) < len({name.rsplit("-", 1)[0] for name in digit_runs()}):
        return ""

    def til(result: Result) -> float:
        return float(result["til"]["average_accuracy"])

    ranked = sorted(whole, key=lambda name: -fmean(map(til, whole[name])))
    rows = [[f"`{name}`", _spread([til(r) for r in whole[name]]), _spread([r["til"]["forgetting"] or 0.0 for r in whole[name]]),
             _spread([r["cil"]["average_accuracy"] for r in whole[name]]), str(whole[name][0]["memory"]["samples"])]
            for name in ranked]  # fmt: skip
    finetune = [til(r) for r in whole["finetune"]]
    rivals = [name for name in (*WITH_DATA, *RFE_FORMS) if name in whole]
    above = all(til(r) > f for name in rivals for r, f in zip(whole[name], finetune, strict=True))
    return f"""### split-digits, three seeds

The bundled digits as the demo learns them (`recollect run --stream split-digits --method M --seed S --threads 1`, commit
`{results["finetune-0"]["commit"][:10]}`), seeds 0, 1, 2, mean ± standard deviation. Every method that keeps data, and RFE in
every form, above finetune in TIL on every seed: {_verdict(above)}.

{_table(["method", "TIL", "TIL forgetting", "CIL", "images kept"], rows)}"""


def _processes(alone: Mapping[str, Result], shared: Mapping[str, Result]) -> str:
    """One process beside two."""
    names = [name for name in SHARED if all(f"{name}-{seed}" in shared for seed in SEEDS)]
    if not names:
        return ""
    rows, told = [], []
    for name in names:
        cells = []
        for key in ("til", "cil"):
            one, two = (
                [group[f"{name}-{seed}"][key]["average_accuracy"] for seed in SEEDS] for group in (alone, shared)
            )
            cells += [_spread(one), _spread(two), ", ".join(f"{b - a:+.1f}" for a, b in zip(one, two, strict=True))]
            gap = fmean(two) - fmean(one)
            within = abs(gap) <= 2 * max(stdev(one), stdev(two))
            told.append(f"{name} {key.upper()} {gap:+.1f}{'' if within else ' (**outside**)'}")
        rows.append([f"`{name}`", *cells])
    head = ["method", "TIL, one", "two", "seed by seed", "CIL, one", "two", "seed by seed"]
    return f"""### One process beside two

split-digits, seeds 0, 1, 2, learned by one process (above) and by two (`torchrun --nproc-per-node 2 -m recollect run …`, commit
`{next(iter(shared.values()))["commit"][:10]}`), mean ± standard deviation. Differences of the means, marked where they exceed two standard
deviations over seeds: {"; ".join(told)}.

{_table(head, rows)}"""


def _commands(results: Mapping[str, Result]) -> str:
    rows = [[f"`{name}`", str(r["seed"]), f"`{r['commit'][:10]}`", f"`{r['command']}`"] for name, r in results.items()]
    environment = results["rfe-frozen-0"]["environment"]
    return f"""### Every run

torch {environment["torch"]}, Python {environment["python"]}, {environment["processor"]}, {environment["threads"]} thread a run.

{_table(["run", "seed", "commit", "command"], rows)}"""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _figure(result: Result, key: str) -> str:
    return "–" if result[key] is None else _number(result[key]["average_accuracy"])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ± {stdev(values):.1f}"


def _verdict(holds: bool) -> str:
    return "holds" if holds else "**does not hold**"


def main() -> None:
    match sys.argv[1:]:
        case ["run"]:
            run_all(None)
        case ["run", "--data-root", folder]:
            run_all(folder)
        case ["page"]:
            PAGE.write_text(page(), encoding="utf-8")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
