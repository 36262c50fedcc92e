"""Does RFE do on real data what the paper says, at a size two cores can show? Runs it, and writes docs/results.md.

    python benchmarks/real_data_check.py run --data-root DATA     all runs, two at a time; done ones are skipped
    python benchmarks/real_data_check.py page                     docs/results.md from results/real-data-check/*.json

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
RESULTS = ROOT / "results" / "real-data-check"
PAGE = ROOT / "docs" / "results.md"
SEEDS = (0, 1, 2)
STATISTICS = ("frozen", "batch", "adapting")
SIZE = ["backbone.width=16", "epochs=8"]
RFE = ["auxiliary_dim=64", "projection_dim=64"]
Result = Mapping[str, Any]


def runs() -> dict[str, list[str]]:
    """Name of each run and what sets it apart on the command line."""
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
    return found


def method_runs() -> dict[str, list[str]]:
    """Every other method under the same settings, one seed each."""
    names = ["joint", "agem", "er-ace", "derpp", "er-mkd", "tamil", "cls-er", "rfe-p", "rfe-b"]
    names += ["lwf", "ewc", "si", "expansion"]
    own = {"rfe-p": RFE, "rfe-b": RFE, "expansion": ["auxiliary_dim=64"]}
    return {f"{name}-0": ["--method", name, "--seed", "0", "--set", *SIZE, *own.get(name, [])] for name in names}


def run_all(data_root: str | None) -> None:
    """Do what is not done yet; an interrupted run goes on where it stopped."""
    RESULTS.mkdir(parents=True, exist_ok=True)

    def one(name: str, words: list[str]) -> None:
        if (RESULTS / f"{name}.json").exists():
            return
        out = Path("runs") / "check" / name
        command = ["run", "--stream", "split-cifar100", "--train-per-class", "100", "--threads", "1", "--out", str(out)]
        command += ["--data-root", data_root] if data_root else []
        print(shlex.join(["recollect", *command, *words]), flush=True)
        subprocess.run([sys.executable, "-m", "recollect", *command, *words], check=True, stdout=subprocess.DEVNULL)
        shutil.copyfile(out / "result.json", RESULTS / f"{name}.json")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda item: one(*item), (runs() | method_runs()).items()))


def load() -> dict[str, Result]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def page(results: Mapping[str, Result]) -> str:
    """The whole of docs/results.md."""
    return (
        "\n\n".join(
            [
                _head(results),
                _comparison(results),
                _chain(results),
                _statistics(results),
                _methods(results),
                _commands(results),
            ]
        )
        + "\n"
    )


def _head(results: Mapping[str, Result]) -> str:
    hours = sum(sum(result["seconds"].values()) for result in results.values()) / 3600
    config = results["rfe-frozen-0"]["config"]
    data, training, method = config["stream"], config["training"], config["method"]
    return f"""# Results

Generated from `results/real-data-check/` by `python benchmarks/real_data_check.py page`; do not edit.

## The real-data check

Split CIFAR-100, {data["tasks"]} tasks of 20 classes, real images, {data["train_per_class"]} training images a class of which a
tenth are held out, all test images. {config["backbone"]["name"]} of width {config["backbone"]["width"]} (features of
{8 * config["backbone"]["width"]}), auxiliary and projection dimension {method["auxiliary_dim"]}, {training["epochs"]} epochs a stage,
batch {training["batch_size"]}, one processor thread a run. This is far below the paper's size (500 images a class, width 64,
40 epochs), so figures compare with each other and not with the paper's. The {len(results)} runs below took {hours:.1f} hours in all on one thread
each, beside other work; the command does all of them, two at a time, and skips what is done:

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
    others = {"finetune": "finetune-seen-0", "er": "er-seen-0", "rfe": "rfe-adapting-0"}
    names = others | {name.removesuffix("-0"): name for name in method_runs()}
    there = {name: results[run] for name, run in names.items() if run in results}
    ranked = sorted(there.items(), key=lambda item: -item[1]["til"]["average_accuracy"])
    rows = [
        [f"`{name}`", _figure(result, "til"), _number(result["til"]["forgetting"]), _figure(result, "cil"),
         str(result["memory"]["samples"])]
        for name, result in ranked
    ]  # fmt: skip
    missing = [f"`{name}`" for name in names if name not in there]
    note = f"\n\nNot run yet: {', '.join(missing)}." if missing else ""
    return f"""### Every method, one seed

The same settings for all, each method with its default options; one seed, so small differences mean nothing.

{_table(["method", "TIL", "TIL forgetting", "CIL", "images kept"], rows)}{note}"""


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
            PAGE.write_text(page(load()), encoding="utf-8")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
