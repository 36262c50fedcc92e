"""docs/tutorial.md: three months of a folder, walked through with real commands on CIFAR-100, their output as it came.

python benchmarks/tutorial.py run --data-root DATA       the commands and the comparison of backbones; done parts are skipped
python benchmarks/tutorial.py page                       the page and its charts, from results/tutorial/
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pictures import Picture
from recollect.runs.folder import code_version
from recollect.storage import write_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "tutorial"
PAGE = ROOT / "docs" / "tutorial.md"
MONTHS = {"may": "task-1", "june": "task-2", "july": "task-3"}
NETWORK = "--backbone efficientnet-lite0 --image-size 64"
STEPS = {  # as the page has them; a test runs the same on digits
    "export": "recollect stream export split-cifar100 photos --tasks 10 --train-per-class 100 --test-per-class 50 --data-root DATA",
    "sort": "mv photos/train/task-1 photos/2026-05 && mv photos/train/task-2 photos/2026-06 && mv photos/train/task-3 photos/2026-07 && "
            "mkdir photos-test && mv photos/test/task-1 photos-test/may",
    "learn-may": f"recollect learn model photos/2026-05 --task may {NETWORK}",
    "check-may": "recollect check model photos-test",
    "predict": "recollect predict model photos-test/may/*/00001.png",
    "delete-may": "rm -r photos/2026-05 && mv photos/test/task-2 photos-test/june",
    "learn-june": "recollect learn model photos/2026-06 --task june",
    "check-june": "recollect check model photos-test",
    "delete-june": "rm -r photos/2026-06 && mv photos/test/task-3 photos-test/july",
    "learn-july": "recollect learn model photos/2026-07 --task july",
    "check": "recollect check model photos-test --max-forgetting 5",
    "inspect": "recollect inspect model",
    "unknown": "recollect predict model photos-test/may/*/00002.png --min-probability 0.5 --top 2",
    "alike": "recollect inspect model --images photos-test/july",
    "shift": "recollect inspect model --images photos/test/task-4",
    "audit": "recollect audit model --expect none",
    "rollback": "recollect rollback model --to june",
    "export-onnx": "recollect export model model.onnx",
}  # fmt: skip
BACKBONES = {
    "efficientnet-lite0, ImageNet": NETWORK,
    "efficientnet-lite0, from scratch": f"{NETWORK} --set weights=none",
    "resnet18 of width 32, from scratch": "--backbone resnet18 --image-size 64 --set width=32",
}
SEEDS = (0, 1, 2)


def shell(command: str, folder: Path, data_root: str) -> dict[str, Any]:
    """Do a command of the page; what it printed and how it ended."""
    words = command.replace("DATA", shlex.quote(data_root)).replace(
        "recollect ", f"{shlex.quote(sys.executable)} -m recollect "
    )
    environment = {**os.environ, "COLUMNS": "100", "TERM": "dumb"}
    started = perf_counter()
    done = subprocess.run(words, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    seconds = perf_counter() - started
    return {"command": command, "output": done.stdout + done.stderr, "exit": done.returncode, "seconds": seconds}


def run(data_root: str) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        place = Path(work)
        if not (RESULTS / "walk.json").exists():
            write_json(RESULTS / "walk.json", walk(place / "walk", data_root))
        for seed in SEEDS:
            for name, words in BACKBONES.items():
                path = RESULTS / f"{name.replace(', ', '-').replace(' ', '-').lower()}-{seed}.json"
                if not path.exists():
                    write_json(path, compare(name, words, seed, place / path.stem, data_root))


def walk(folder: Path, data_root: str) -> dict[str, Any]:
    """All steps of the page, and the figures of its charts."""
    folder.mkdir()
    found: dict[str, Any] = {"steps": {}, "checks": {}, "commit": code_version()}
    for name, command in STEPS.items():
        found["steps"][name] = shell(command, folder, data_root)
        if found["steps"][name]["exit"] not in (0, 1) or (found["steps"][name]["exit"] == 1 and name != "check"):
            sys.exit(f"{command}: {found['steps'][name]['output']}")
        print(found["steps"][name]["output"], flush=True)
        if name in ("learn-may", "learn-june", "learn-july"):
            found["checks"][name.removeprefix("learn-")] = _accuracies(folder, data_root)
        if name == "learn-july":
            found["predictions"] = _predictions(folder)
    return found


def _accuracies(folder: Path, data_root: str) -> dict[str, float]:
    """Accuracy within each learned task, on the test images that are there."""
    model = folder / "model-copy"  # a check leaves its figures in the model, and the page's own comes first
    shutil.copytree(folder / "model", model)
    names = [task for task in MONTHS if (folder / "photos-test" / task).exists()]
    learned = json.loads(shell("recollect inspect model-copy --json", folder, data_root)["output"])["tasks"]
    known = [each["name"] for each in learned if each["name"] in names]
    tests = folder / "photos-test-known"
    tests.mkdir()
    for name in known:
        (tests / name).symlink_to(folder / "photos-test" / name, target_is_directory=True)
    checked = json.loads(shell("recollect check model-copy photos-test-known --json", folder, data_root)["output"])
    shutil.rmtree(model)
    shutil.rmtree(tests)
    return {each["task"]: each["within"] for each in checked["tasks"]}


def _predictions(folder: Path) -> list[list[float]]:
    """Of every test image: the probability of its likeliest class, and 1 where that is right."""
    from recollect import ContinualClassifier

    model = ContinualClassifier.load(folder / "model")
    found = []
    for month in MONTHS:
        for place in sorted((folder / "photos-test" / month).iterdir()):
            paths = sorted(place.iterdir())
            probabilities = model.predict_proba(paths)
            for row in probabilities:
                found.append([round(float(row.max()), 4), float(model.classes_[int(row.argmax())] == place.name)])
    return found


def compare(name: str, words: str, seed: int, folder: Path, data_root: str) -> dict[str, Any]:
    """Two months with one kind of backbone."""
    folder.mkdir()
    commands = [
        f"{STEPS['export']} --seed {seed}", "mkdir photos-test && mv photos/test/task-1 photos-test/may && mv photos/test/task-2 photos-test/june",
        f"recollect learn model photos/train/task-1 --task may {words.replace(' --set', f' --seed {seed} --set') if '--set' in words else f'{words} --seed {seed}'}",
        "recollect learn model photos/train/task-2 --task june", "recollect check model photos-test --json",
    ]  # fmt: skip
    done = [shell(command, folder, data_root) for command in commands]
    for each in done:
        if each["exit"]:
            sys.exit(f"{each['command']}: {each['output']}")
    checks = json.loads(done[-1]["output"])["tasks"]
    shutil.rmtree(folder)
    print(name, seed, checks, flush=True)
    return {"backbone": name, "seed": seed, "commands": commands, "checks": checks, "commit": code_version(),
            "learn_seconds": sum(each["seconds"] for each in done[2:4])}  # fmt: skip


# The page


def page() -> str:
    found = json.loads((RESULTS / "walk.json").read_text(encoding="utf-8"))

    def step(name: str) -> str:
        each = found["steps"][name]
        command = each["command"].replace(" && ", "\n$ ")
        lines = [line.rstrip() for line in each["output"].strip("\n").splitlines()]
        first = next((place for place, line in enumerate(lines) if line.startswith("Beside ")), 0)
        output = "\n".join(lines[first:])
        return f"```console\n$ {command}\n{output}\n```" if output else f"```console\n$ {command}\n```"

    minutes = {name: found["steps"][f"learn-{name}"]["seconds"] / 60 for name in MONTHS}
    return TEMPLATE.format(
        **{name.replace("-", "_"): step(name) for name in STEPS},
        minutes=", ".join(f"{value:.0f}" for value in minutes.values()),
        commit=found["commit"][:10],
        comparison=_comparison(),
        sure=_sure(found["predictions"]),
    )


def _sure(predictions: list[list[float]]) -> str:
    answered = [right for probability, right in predictions if probability >= 0.5]
    every = [right for _, right in predictions]
    return (
        f"of {len(every)} test images {100 * sum(every) / len(every):.0f} % are right when all are answered; at 0.5, "
        f"{100 * len(answered) / len(every):.0f} % are answered and {100 * sum(answered) / max(len(answered), 1):.0f} % of those are right"
    )


def _comparison() -> str:
    from recollect.report.stats import spread

    rows = []
    for name in BACKBONES:
        pattern = f"{name.replace(', ', '-').replace(' ', '-').lower()}-[0-9].json"
        results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob(pattern))]
        if results:
            checks = [{each["task"]: each for each in result["checks"]} for result in results]
            cells = [
                spread([c[task][kind] for c in checks]) for task in ("may", "june") for kind in ("within", "across")
            ]
            rows.append(
                [name, *cells, f"{sum(r['learn_seconds'] for r in results) / len(results) / 60:.0f}", str(len(results))]
            )
    head = ["backbone", "May, task known", "May, unknown", "June, task known", "June, unknown", "minutes", "seeds"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return (
        f"""## With and without pretraining

The same two months learned from folders of 1,000 images each, images of 64 pixels; percent of 500 test images a month, after June; mean ± standard
deviation over seeds.

{table}

"""
        if rows
        else ""
    )


TEMPLATE = """# Tutorial: months of a folder

Generated by `python benchmarks/tutorial.py page` from commands that were really run (commit `{commit}`); do not edit. A test runs the same
commands on the bundled digits.

You have photos in folders, a new one every month, and may not keep last month's. This walks through three months of them. CIFAR-100 stands in
for your photos; leave out the first step if you have some. It needs `pip install 'recollect-rfe[efficientnet,onnx]'` where recollect is installed.

## Photos

{export}

{sort}

Each folder holds one sub-folder of images a class, as `learn` wants it: `photos/2026-05/<class>/*.png`. Test images are named by task.

## May

{learn_may}

The network was trained on ImageNet before; it came with the extra. `--backbone resnet18` starts from nothing.
Learning took {minutes} minutes for the three months here, one processor thread beside other work.

{check_may}

{predict}

## June and July

May's images go. May's classes stay.

{delete_may}

{learn_june}

{check_june}

A check right after a month was learned is what later ones are compared with, on the same files. In July:

{delete_june}

{learn_july}

{check}

The exit code is 1 if a task has lost more than allowed: a gate for a release. "Task known" is the accuracy if you say which month an image belongs
to (`--task may`), "task unknown" over all classes of all months, which is harder.
The rule behind "task unknown" was chosen while looking at test images of May and June, so those two figures flatter it somewhat; July's were not looked at.

![Accuracy on each month's test images after each month](images/tutorial-months.png)

## What is inside

{inspect}

The first stage holds the backbone to its old features, so it drifts little, and the chain undoes only some of that; what is left the old months' heads bear, as the
checks show. [Results](results.md#the-weight-of-the-loss-against-drift) has the chain at work where nothing holds the backbone.

{audit}

## How sure is it?

Probabilities are calibrated on images held out of the newest month. Below a probability that you choose the answer is `unknown`:

{unknown}

Here {sure}.

![Share of right answers against probability, and what a threshold costs](images/tutorial-sure.png)

Are new images like those learned last? July's test images, and then images of ten classes that the model has never seen (the end of what is printed):

{alike}

{shift}

The mean feature tells them apart. Single images of an unseen class still get an answer of a known one, if a less probable one.

## Back, and out

{rollback}

{export_onnx}

{comparison}More: [models](models.md) has all commands, the Python interface and the format of the folder.
"""


# Charts


def pictures() -> Iterator[Picture]:
    found = json.loads((RESULTS / "walk.json").read_text(encoding="utf-8"))
    yield Picture("tutorial-months.png", found["checks"], lambda path: draw_months(found["checks"], path))
    yield Picture("tutorial-sure.png", found["predictions"], lambda path: draw_sure(found["predictions"], path))


def draw_months(checks: dict[str, dict[str, float]], path: Path) -> None:
    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    after = list(checks)
    for number, name in enumerate(after):
        places = [place + 0.26 * (number - 1) for place, month in enumerate(MONTHS) if month in checks[name]]
        bars = axes.bar(places, list(checks[name].values()), 0.24, label=f"after {name}", color=f"C{number}")
        axes.bar_label(bars, fmt="%.0f", fontsize=9)
    axes.set_xticks(range(len(MONTHS)), [f"{month}'s test images" for month in MONTHS])
    axes.set_ylim(0, 112)
    axes.set_ylabel("right, percent (task known)")
    axes.legend(fontsize=9, loc="upper center", ncol=3)
    figure.savefig(path, dpi=110)


def draw_sure(predictions: list[list[float]], path: Path) -> None:
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    reliability, threshold = figure.subplots(1, 2)
    bins = [[p for p in predictions if low / 10 <= p[0] < (low + 1) / 10 + (low == 9)] for low in range(10)]
    for place, group in enumerate(bins):
        if group:
            right = 100 * sum(p[1] for p in group) / len(group)
            reliability.bar(10 * place + 5, right, 9, color="tab:blue")
            reliability.text(10 * place + 5, right + 1.5, str(len(group)), ha="center", fontsize=8)
    reliability.plot([0, 100], [0, 100], "k:", label="perfectly calibrated")
    reliability.set(xlabel="probability of the answer, percent", ylabel="of these right, percent", xlim=(0, 100), ylim=(0, 105),
                    title="Does it know how sure it is? (images in each bin)")  # fmt: skip
    reliability.legend(fontsize=9, loc="upper left")
    least = [step / 20 for step in range(20)]
    kept = [[p[1] for p in predictions if p[0] >= each] for each in least]
    threshold.plot(least, [100 * len(each) / len(predictions) for each in kept], label="answered", color="tab:grey")
    threshold.plot(
        least,
        [100 * sum(each) / len(each) if each else float("nan") for each in kept],
        label="right among answered",
        color="tab:green",
    )
    threshold.set(xlabel="--min-probability", ylabel="percent", ylim=(0, 105), title="What `unknown` buys")
    threshold.legend(fontsize=9, loc="lower left")
    figure.savefig(path, dpi=110)


def main() -> None:
    match sys.argv[1:]:
        case ["run", "--data-root", folder]:
            run(str(Path(folder).resolve()))
        case ["page"]:
            for picture in pictures():
                picture.update()
            PAGE.write_text(page(), encoding="utf-8")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
