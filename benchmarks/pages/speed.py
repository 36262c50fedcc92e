"""docs/speed.md, from results/bench.json, results/serving.json, results/many-images.json, results/decoding.json and results/views/."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pages.experiments import RESULTS, ROOT, load_json
from pages.markdown import fill, table
from recollect.report.speed import EPOCHS, MEMORY, TASK_IMAGES, VIEWS
from recollect.report.stats import slope, spread

PAGE = ROOT / "docs" / "speed.md"
TRAINING_TARGETS = {
    "finetune": ("1.0", 1.7), "er": ("0.50-0.52", 0.9), "derpp": ("0.50-0.52", 0.9), "er-ace": ("0.50-0.52", 0.9),
    "agem": ("0.50-0.52", 0.9), "er-mkd": ("0.36-0.41", 0.65), "tamil": ("0.36-0.41", 0.65), "cls-er": ("0.36-0.41", 0.65),
    "rfe, stage 1": ("0.72", 1.25), "rfe, whole task": ("0.51", 1.1), "rfe-p, whole task": ("0.30", 0.6),
    "rfe-b, whole task": ("0.30", 0.6),
}  # fmt: skip
"""The speed of the authors' code over U, and the target."""
INFERENCE_TARGETS = {10: {1: ("1.51", 1.10), 32: ("1.10", 1.03), 256: ("1.07", 1.02)},
                     20: {1: ("2.0", 1.20), 32: ("1.20", 1.05), 256: ("1.1-1.2", 1.04)}}  # fmt: skip
"""By number of tasks and batch size, the ratio of the authors' code and the target."""
HELP_TARGET_SECONDS = 0.5


def page(bench: Mapping[str, Any]) -> str:
    """The whole of docs/speed.md."""
    machine = bench["machine"]
    help_seconds = median(bench["help_seconds"])
    values = {
        "processor": machine["processor"],
        "threads": str(machine["threads"]),
        "device": machine["device"],
        "torch": machine["torch"],
        "python": machine["python"],
        "precision": machine["precision"],
        "commit": bench["commit"][:10] + "+changes" * bench["commit"].endswith("+changes"),
        "unit_speed": f"{bench['training']['unit_images_per_second']:.1f}",
        "memory": str(MEMORY),
        "epochs": str(EPOCHS),
        "task_images": str(TASK_IMAGES),
        "views": str(VIEWS),
        "training_table": _training_table(bench["training"]),
        "inference_table": _inference_table(bench["inference"]),
        "help_seconds": f"{help_seconds:.2f}",
        "help_target": f"{HELP_TARGET_SECONDS}",
        "help_verdict": _verdict(help_seconds <= HELP_TARGET_SECONDS),
        "task_growth_table": _task_growth_table(bench["task_growth"]),
        "peak_gigabytes": f"{bench['tiny_imagenet']['gigabytes']:.2f}",
        "peak_commit": bench["tiny_imagenet"]["commit"][:10],
    }
    others = [_other_processor(path) for path in sorted(RESULTS.glob("bench-*.json"))]
    values["other_processors"] = "\n\n".join(others) or "Not measured yet."
    return fill(
        "speed.md",
        values | _chain_growth(bench["chain_growth"]) | _serving() | _many_images() | _decoding() | _accuracy(),
    )


def _other_processor(path: Path) -> str:
    """The tables of a quick measurement."""
    bench = json.loads(path.read_text(encoding="utf-8"))
    machine = bench["machine"]
    about = (
        f"{machine['processor']}, torch's kernels for {machine['capability']}, {machine['threads']} threads, fp32, "
        f"commit `{bench['commit'][:10]}` (`python benchmarks/speed.py quick {path.stem.removeprefix('bench-')}`)."
    )
    measured = [name for name in TRAINING_TARGETS if name in bench["training"]["ratio"]]  # some of them
    return "\n\n".join([about, _training_table(bench["training"], measured), _inference_table(bench["inference"])])


def _training_table(training: Mapping[str, Any], names: Iterable[str] = TRAINING_TARGETS) -> str:
    rows = []
    for name in names:
        (authors, target), ratio = TRAINING_TARGETS[name], training["ratio"][name]
        span = f"{ratio['low']:.2f}-{ratio['high']:.2f}"
        verdict = _verdict(ratio["median"] >= target)
        rows.append([name, authors, f"≥ {target:g}", f"**{ratio['median']:.2f}**", span, verdict])
    num_rounds = len(training["seconds"]["er"])
    return table(["", "authors' code", "target", "here", f"range over {num_rounds} rounds", ""], rows)


def _inference_table(cells: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for cell in cells:
        authors, target = INFERENCE_TARGETS[cell["tasks"]][cell["batch"]]
        name = f"{cell['tasks']} tasks, batch {cell['batch']}, {cell['precision']}"
        times = f"{cell['milliseconds_without']:.1f} → {cell['milliseconds']:.1f} ms"
        verdict = _verdict(cell["ratio"] <= target)
        rows.append([name, authors, f"≤ {target:.2f}", f"**{cell['ratio']:.3f}**", times, verdict])
    return table(["", "authors' code", "target", "here", "milliseconds", ""], rows)


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def _chain_growth(cells: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    num_tasks = [cell["tasks"] for cell in cells]
    extra = [cell["milliseconds"] - cell["milliseconds_without"] for cell in cells]
    keys = ("milliseconds_without", "milliseconds", "megabytes", "reader_megabytes")
    rows = [[str(cell["tasks"]), *(f"{cell[key]:.1f}" for key in keys)] for cell in cells]
    return {
        "milliseconds_per_task": f"{slope([num - 1 for num in num_tasks], extra):.2f}",
        "megabytes_per_task": f"{slope(num_tasks, [cell['megabytes'] for cell in cells]):.2f}",
        "reader_megabytes_per_task": f"{slope(num_tasks, [cell['reader_megabytes'] for cell in cells]):.2f}",
        "chain_growth_table": table(
            ["tasks", "without the chain, ms", "with the chain, ms", "model, MB", "inference copy, MB"], rows
        ),
    }


def _task_growth_table(cells: Sequence[Mapping[str, Any]]) -> str:
    seconds: dict[str, dict[int, float]] = {}
    for cell in cells:
        seconds.setdefault(f"{cell['method']}, {cell['stage']}", {})[cell["task"]] = cell["seconds"]
    numbers = sorted({cell["task"] for cell in cells})
    rows = [
        [name, *(f"{by_task[n]:.2f}" for n in numbers), f"{by_task[numbers[-1]] / by_task[numbers[0]]:.2f}"]
        for name, by_task in seconds.items()
    ]
    return table(["", *(f"task {n}" for n in numbers), "growth"], rows)


def _serving() -> dict[str, str]:
    """Inference with whole models, measured by benchmarks/serving.py."""
    serving = load_json("serving.json")
    rows = []
    for name, model in serving["models"].items():
        one, many = model["batches"]["1"], model["batches"]["32"]
        for title, key in (("`predict`", "predict"), ("ONNX file", "onnx")):
            ratios = [f"{times[key] / times['predict']:.2f}" for times in (one, many)]
            row = f"{name}, {model['image_size']} pixels, {title}"
            rows.append([row, f"{one[key]:.1f}", f"{32000 / many[key]:.0f}", *ratios])
    models = serving["models"].items()
    keys = ("command_seconds", "exported_command_seconds")
    commands = [[name, *(f"{model[key]:.2f}" for key in keys)] for name, model in models]
    head = ["", "one image, ms", "images per second in batches of 32", "time / predict's, one image", "batch of 32"]
    return {
        "serving_threads": str(serving["threads"]),
        "serving_commit": serving["commit"][:10],
        "onnx_sizes": ", ".join(f"{model['megabytes']:.0f} MB for {name}" for name, model in models),
        "serving_table": table(head, rows),
        "command_table": table(["", "model folder, s", "exported file, s"], commands),
    }


def _many_images() -> dict[str, str]:
    """A quick learn of very many images, measured by benchmarks/many_images.py."""
    measured = load_json("many-images.json")
    few, many = measured["few"], measured["many"]
    growth = (many["peak_megabytes"] - few["peak_megabytes"]) * 2**20 / (many["images"] - few["images"])
    rows = [
        [f"{row['images']:,}", f"{row['seconds'] / 60:.1f}", f"{row['peak_megabytes'] * 2**20 / 1e9:.2f}"]
        for row in (few, many)
    ]
    return {
        "many_images": f"{many['images']:,}",
        "many_size": str(many["image_size"]),
        "many_kilobytes": f"{growth / 1000:.0f}",
        "many_pixels": f"{3 * many['image_size'] ** 2 / 1000:.0f}",
        "many_commit": many["commit"][:10],
        "many_table": table(["images", "minutes", "anonymous memory, GB"], rows),
    }


def _decoding() -> dict[str, str]:
    """Photos of 12 megapixels, measured by benchmarks/decoding.py."""
    measured = load_json("decoding.json")
    times = {name: median(values) for name, values in measured["milliseconds"].items()}
    names = {"whole": "every pixel", "draft": "as recollect does, one thread", "draft, two threads": "two threads"}
    rows = [[names[name], f"{value:.0f}", f"{times['whole'] / value:.1f}"] for name, value in times.items()]
    return {
        "photos": str(measured["photos"]),
        "photo_size": f"{measured['width']} × {measured['height']}",
        "photo_megabytes": f"{measured['file_megabytes']:.1f}",
        "decoding_size": str(measured["image_size"]),
        "decoding_commit": measured["commit"][:10],
        "decoding_table": table(["", "ms per photo", "times as fast"], rows),
    }


def _accuracy() -> dict[str, str]:
    """The accuracy that cached views and bf16 cost, measured by benchmarks/views.py."""
    studies = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((RESULTS / "views").glob("*.json"))]
    bf16 = [study for study in studies if study["precision"] == "bf16"]

    def accuracies(alpha: int, views: str) -> list[float]:
        return [study["views"][views]["til"] for study in bf16 if study["alpha"] == alpha]

    rows = []
    for views in bf16[0]["views"]:
        row = ["fresh views every epoch" if views == "0" else f"{views} cached view{'s' * (views != '1')}"]
        for alpha in (0, 1):
            fresh, cached = accuracies(alpha, "0"), accuracies(alpha, views)
            gaps = ", ".join(f"{a - b:+.1f}" for a, b in zip(cached, fresh, strict=True))
            row += [spread(cached), "" if views == "0" else gaps]
        seconds = median(study["seconds"][f"retrospect-{views}"] for study in bf16)
        rows.append([*row, f"{seconds:.0f} s"])
    by_seed = {
        precision: {
            study["seed"]: study["views"][str(VIEWS)]["til"]
            for study in studies
            if study["precision"] == precision and study["alpha"] == 1
        }
        for precision in ("bf16", "fp32")
    }
    seeds = sorted(by_seed["bf16"].keys() & by_seed["fp32"].keys())
    return {
        "views_num_seeds_0": str(len(accuracies(0, "0"))),
        "views_num_seeds_1": str(len(accuracies(1, "0"))),
        "views_commit": bf16[0]["commit"][:10],
        "views_table": table(["", "α = 0", "minus fresh", "α = 1", "minus fresh", "stage 2 of a run"], rows),
        "precision_seeds": ", ".join(map(str, seeds)),
        "accuracy_bf16": spread([by_seed["bf16"][seed] for seed in seeds]),
        "accuracy_fp32": spread([by_seed["fp32"][seed] for seed in seeds]),
        "precision_gaps": ", ".join(f"{by_seed['bf16'][seed] - by_seed['fp32'][seed]:+.1f}" for seed in seeds),
    }
