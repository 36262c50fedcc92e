"""The tutorial: three months of folders, learned with real commands on CIFAR-100, whose output is recorded.

python benchmarks/tutorial.py run --data-root DATA       run the commands and the comparison; finished parts are skipped
python benchmarks/tutorial.py page                       docs/tutorial.md and its charts, from results/tutorial/
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from pages.tutorial import PAGE, page, pictures
from recollect.runs.folder import code_version
from recollect.storage import write_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "tutorial"
MONTHS = {"may": "task-1", "june": "task-2", "july": "task-3"}
STEPS = {  # as the page has them; a test runs the same on digits
    "export": "recollect stream export split-cifar100 photos --tasks 10 --train-per-class 100 --test-per-class 50 --data-root DATA",
    "sort": "mv photos/train/task-1 photos/2026-05 && mv photos/train/task-2 photos/2026-06 && mv photos/train/task-3 photos/2026-07 && "
            "mkdir photos-test && mv photos/test/task-1 photos-test/may",
    "learn-may": "recollect learn model photos/2026-05 --task may",
    "check-may": "recollect check model photos-test",
    "predict": "recollect predict model photos-test/may/*/00001.png",
    "delete-may": "rm -r photos/2026-05 && mv photos/test/task-2 photos-test/june",
    "learn-june": "recollect learn model photos/2026-06 --task june",
    "check-june": "recollect check model photos-test",
    "delete-june": "rm -r photos/2026-06 && mv photos/test/task-3 photos-test/july",
    "learn-july": "recollect learn model photos/2026-07 --task july",
    "check": "recollect check model photos-test --max-forgetting 5",
    "page": "recollect check model photos-test --html check.html > check.txt",
    "adapt": "recollect learn model photos/2026-07 --task july --adapt",
    "inspect": "recollect inspect model",
    "unknown": "recollect predict model photos-test/may/*/00002.png --min-probability 0.5 --top 2",
    "alike": "recollect inspect model --images photos-test/july",
    "shift": "recollect inspect model --images photos/test/task-4",
    "audit": "recollect audit model --expect none",
    "rollback": "recollect rollback model --to june",
    "export-onnx": "recollect export model model.onnx",
}  # fmt: skip
WAYS = {  # options of the first learn, and of every learn
    "pretrained, as it is (default)": ("", ""),
    "pretrained, adapted": ("", "--adapt"),
    "from scratch": ("--backbone resnet18", ""),
}
SEEDS = (0, 1, 2)


def shell(command: str, folder: Path, data_root: str) -> dict[str, Any]:
    """Run a command of the page; returns its output, exit code and seconds."""
    line = command.replace("DATA", shlex.quote(data_root)).replace(
        "recollect ", f"{shlex.quote(sys.executable)} -m recollect "
    )
    environment = {**os.environ, "COLUMNS": "100", "TERM": "dumb"}
    started = perf_counter()
    done = subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    seconds = perf_counter() - started
    return {"command": command, "output": done.stdout + done.stderr, "exit": done.returncode, "seconds": seconds}


def run(data_root: str) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        if not (RESULTS / "walk.json").exists():
            write_json(RESULTS / "walk.json", walk(folder / "walk", data_root))
        for seed in SEEDS:
            for name in WAYS:
                path = RESULTS / f"{name.partition(' (')[0].replace(', ', '-').replace(' ', '-')}-{seed}.json"
                if not path.exists():
                    write_json(path, compare(name, seed, folder / path.stem, data_root))


def walk(folder: Path, data_root: str) -> dict[str, Any]:
    """All steps of the page, and the data of its charts."""
    folder.mkdir()
    recorded: dict[str, Any] = {"steps": {}, "checks": {}, "commit": code_version()}
    for name, command in STEPS.items():
        recorded["steps"][name] = shell(command, folder, data_root)
        if recorded["steps"][name]["exit"] not in ((0, 1) if "recollect check" in command else (0,)):
            sys.exit(f"{command}: {recorded['steps'][name]['output']}")
        print(recorded["steps"][name]["output"], flush=True)
        if name in ("learn-may", "learn-june", "learn-july"):
            recorded["checks"][name.removeprefix("learn-")] = _accuracies(folder, data_root)
        if name == "learn-july":
            recorded["predictions"] = _predictions(folder)
    return recorded


def _accuracies(folder: Path, data_root: str) -> dict[str, float]:
    """Accuracy within each learned task, on the test images that are there."""
    model = folder / "model-copy"  # a check is stored in the model, and the page's own must be the first
    shutil.copytree(folder / "model", model)
    names = [task for task in MONTHS if (folder / "photos-test" / task).exists()]
    learned = json.loads(shell("recollect inspect model-copy --json", folder, data_root)["output"])["tasks"]
    shown = [task["name"] for task in learned if task["name"] in names]
    tests = folder / "photos-test-learned"
    tests.mkdir()
    for name in shown:
        (tests / name).symlink_to(folder / "photos-test" / name, target_is_directory=True)
    checked = json.loads(shell("recollect check model-copy photos-test-learned --json", folder, data_root)["output"])
    shutil.rmtree(model)
    shutil.rmtree(tests)
    return {task["task"]: task["within"] for task in checked["tasks"]}


def _predictions(folder: Path) -> dict[str, Any]:
    """The classes in order, and for every test image its class, the predicted one and the confidence."""
    from recollect import ContinualClassifier

    model = ContinualClassifier.load(folder / "model")
    classes, rows = model.classes_.tolist(), []
    for month in MONTHS:
        for class_folder in sorted((folder / "photos-test" / month).iterdir()):
            probabilities = model.predict_proba(sorted(class_folder.iterdir()))
            rows += [
                [classes.index(class_folder.name), int(p.argmax()), round(float(p.max()), 4)] for p in probabilities
            ]
    return {"classes": classes, "months": [list(task.classes) for task in model.tasks_], "rows": rows}


def compare(name: str, seed: int, folder: Path, data_root: str) -> dict[str, Any]:
    """Three months learned in one way."""
    folder.mkdir()
    first, every = WAYS[name]
    learns = [
        f"recollect learn model photos/train/{images} --task {month} {first if month == 'may' else ''} {every} "
        f"{f'--seed {seed}' if month == 'may' else ''}"
        for month, images in MONTHS.items()
    ]
    moves = " && ".join(f"mv photos/test/{images} photos-test/{month}" for month, images in MONTHS.items())
    commands = [
        f"{STEPS['export']} --seed {seed}", f"mkdir photos-test && {moves}",
        *[" ".join(learn.split()) for learn in learns], "recollect check model photos-test --json",
    ]  # fmt: skip
    done = [shell(command, folder, data_root) for command in commands]
    for step in done:
        if step["exit"] not in ((0, 1) if step["command"].startswith("recollect check") else (0,)):
            sys.exit(f"{step['command']}: {step['output']}")
    checks = json.loads(done[-1]["output"])["tasks"]
    shutil.rmtree(folder)
    print(name, seed, checks, flush=True)
    return {"way": name, "seed": seed, "commands": commands, "checks": checks, "commit": code_version(),
            "learn_seconds": [step["seconds"] for step in done[2:5]]}  # fmt: skip


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
