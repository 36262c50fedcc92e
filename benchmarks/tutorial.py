"""The tutorial: three months of folders, learned with real commands on CIFAR-100, whose output is recorded.

python benchmarks/tutorial.py run --data-root DATA       run the commands and the comparison of backbones; finished parts are skipped
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
            for name, options in BACKBONES.items():
                path = RESULTS / f"{name.replace(', ', '-').replace(' ', '-').lower()}-{seed}.json"
                if not path.exists():
                    write_json(path, compare(name, options, seed, folder / path.stem, data_root))


def walk(folder: Path, data_root: str) -> dict[str, Any]:
    """All steps of the page, and the data of its charts."""
    folder.mkdir()
    recorded: dict[str, Any] = {"steps": {}, "checks": {}, "commit": code_version()}
    for name, command in STEPS.items():
        recorded["steps"][name] = shell(command, folder, data_root)
        if recorded["steps"][name]["exit"] not in ((0, 1) if name.startswith("check") else (0,)):
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


def _predictions(folder: Path) -> list[list[float]]:
    """For every test image its confidence, and 1 if the predicted class is correct."""
    from recollect import ContinualClassifier

    model = ContinualClassifier.load(folder / "model")
    predictions = []
    for month in MONTHS:
        for class_folder in sorted((folder / "photos-test" / month).iterdir()):
            paths = sorted(class_folder.iterdir())
            probabilities = model.predict_proba(paths)
            for row in probabilities:
                predictions.append(
                    [round(float(row.max()), 4), float(model.classes_[int(row.argmax())] == class_folder.name)]
                )
    return predictions


def compare(name: str, options: str, seed: int, folder: Path, data_root: str) -> dict[str, Any]:
    """Two months with one backbone."""
    folder.mkdir()
    commands = [
        f"{STEPS['export']} --seed {seed}", "mkdir photos-test && mv photos/test/task-1 photos-test/may && mv photos/test/task-2 photos-test/june",
        f"recollect learn model photos/train/task-1 --task may {options.replace(' --set', f' --seed {seed} --set') if '--set' in options else f'{options} --seed {seed}'}",
        "recollect learn model photos/train/task-2 --task june", "recollect check model photos-test --json",
    ]  # fmt: skip
    done = [shell(command, folder, data_root) for command in commands]
    for step in done:
        if step["exit"] not in ((0, 1) if step["command"].startswith("recollect check") else (0,)):
            sys.exit(f"{step['command']}: {step['output']}")
    checks = json.loads(done[-1]["output"])["tasks"]
    shutil.rmtree(folder)
    print(name, seed, checks, flush=True)
    return {"backbone": name, "seed": seed, "commands": commands, "checks": checks, "commit": code_version(),
            "learn_seconds": sum(step["seconds"] for step in done[2:4])}  # fmt: skip


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
