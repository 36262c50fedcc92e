"""How fast is it? Writes results/bench.json and docs/speed.md; `make bench` runs it (about ten minutes on two cores).

    python benchmarks/speed.py run [--data-root DATA]    measure; with DATA also the memory that Tiny ImageNet needs
    python benchmarks/speed.py memory --data-root DATA   that memory alone, into the results there are
    python benchmarks/speed.py page                      docs/speed.md from results/bench.json

Training is measured in units of U, a bare PyTorch loop: ResNet-18 at full width, 32x32, batch 32, Adam, fp32, tensors in
memory, no augmentation, no bookkeeping. U and every row take turns within one process, so that what else the machine
does falls on all alike; a row's figure is the median over rounds of (time of the U just before it / its own).
"""

from __future__ import annotations

import dataclasses
import gc
import json
import platform
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.core import average, folded
from recollect.engine import Observer, Runtime, Training
from recollect.engine.fit import Fit
from recollect.methods import Learner, Phase, Schedule, Setup, methods
from recollect.methods._rfe_config import RFEConfig
from recollect.nets import Network
from recollect.nets.resnet import ResNet18
from recollect.precision import at_least_single
from recollect.rng import Key
from recollect.runs.folder import code_version
from recollect.streams import Split, Stream, TaskData, TaskInfo, stream_from_tensors

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "bench.json"
PAGE = ROOT / "docs" / "speed.md"
BATCH, STEPS, ROUNDS = 32, 4, 7
TASK_IMAGES, EPOCHS = 9000, 40  # a task of split-cifar100 without its validation images; the paper's epochs
MEMORY = 500
VIEWS = RFEConfig().views
STAGE_2 = {"stage 2, few epochs": 2, "stage 2, many epochs": 42}
TARGETS = {
    "finetune": ("1.0", 1.7), "er": ("0.50-0.52", 0.9), "derpp": ("0.50-0.52", 0.9), "er-ace": ("0.50-0.52", 0.9),
    "agem": ("0.50-0.52", 0.9), "er-mkd": ("0.36-0.41", 0.65), "tamil": ("0.36-0.41", 0.65), "cls-er": ("0.36-0.41", 0.65),
    "rfe, stage 1": ("0.72", 1.25), "rfe, whole task": ("0.51", 1.1), "rfe-p, whole task": ("0.30", 0.6),
    "rfe-b, whole task": ("0.30", 0.6),
}  # fmt: skip
INFERENCE = {10: {1: ("1.51", 1.10), 32: ("1.10", 1.03), 256: ("1.07", 1.02)},
             20: {1: ("2.0", 1.20), 32: ("1.20", 1.05), 256: ("1.1-1.2", 1.04)}}  # fmt: skip
HELP_SECONDS = 0.5
CHAIN_LENGTHS = (1, 2, 5, 10, 20, 50, 100)
TASK_NUMBERS = (2, 5, 10, 20)
Work = Callable[[], None]


def bare_loop() -> Work:
    """U: what anybody would write first."""
    torch.manual_seed(0)
    device = Runtime.choose("auto").device
    network = nn.Sequential(ResNet18(3, 64), nn.Linear(512, 20)).to(device)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-4)
    x, y = torch.randn(STEPS, BATCH, 3, 32, 32, device=device), torch.randint(0, 20, (STEPS, BATCH), device=device)

    def work() -> None:
        for step in range(STEPS):
            optimiser.zero_grad()
            F.cross_entropy(network(x[step]), y[step]).backward()
            optimiser.step()

    return work


def random_stream(num_tasks: int, per_task: int = BATCH * STEPS) -> Stream:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(20 * num_tasks).repeat_interleave(-(-per_task // 20))
    images = torch.randint(0, 256, (len(labels), 3, 32, 32), generator=rng, dtype=torch.uint8)
    names = [[str(20 * task + c) for c in range(20)] for task in range(num_tasks)]
    return stream_from_tensors(images, labels, images[:20], labels[:20], tasks=names, validation=0.0)


class Bench:
    """A learner of full width that has come to task `number` (1-based), and pieces of its training to be timed."""

    def __init__(self, method: str, number: int = 2, **options: Any) -> None:
        self.runtime = Runtime.choose("auto", "auto")
        self.stream = random_stream(1)
        info = self.stream.tasks[0].info
        row = methods()[method]
        known = {field.name for field in dataclasses.fields(row.config)}
        config = dataclasses.replace(
            row.config, **{k: v for k, v in ({"memory": MEMORY} | options).items() if k in known}
        )
        key = Key(0)
        with key.initialising():
            network = Network(ResNet18(3, 64), key)
        self.learner: Learner[Any] = row.learner(network, config, Setup((3, 32, 32), Schedule(1, 5e-4), key))
        self.images = self.stream.tasks[0].train.images
        for index in range(number):
            self.info = TaskInfo(index, info.name, info.class_names)
            self.learner.begin_task(self.info)
            self.runtime.place(self.learner)
            if index < number - 1:
                if index == 0 and number == 2:  # fill the memories that are written step by step
                    self.fit(self.phase()).run(Observer(), lambda _num: None)
                split = self.split(index, MEMORY)
                self.learner.eval()
                with self.runtime.autocast():
                    self.learner.end_task(self.info, TaskData(split, self.stream.pixels, self.runtime.device, 256, key))

    def split(self, index: int, num: int = BATCH * STEPS) -> Split:
        rows = torch.arange(num) % len(self.images)
        return Split(self.images, rows, 20 * index + torch.arange(num) % 20)

    def phase(self, name: str = "fit", epochs: int = 1) -> Phase:
        found = next(phase for phase in self.learner.phases(self.info) if phase.name == name)
        return dataclasses.replace(found, schedule=Schedule(epochs, found.schedule.learning_rate))

    def fit(self, phase: Phase, split: Split | None = None) -> Fit:
        split = split or self.split(self.info.index)
        return Fit(self.learner, phase, split, Split(self.images, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)),
                   pixels=self.stream.pixels, training=Training(batch_size=BATCH), runtime=self.runtime, key=Key(1), title="bench")  # fmt: skip

    def work(self, name: str = "fit", epochs: int = 1) -> Work:
        """All of a phase, again and again."""
        fit = self.fit(self.phase(name, epochs))

        def work() -> None:
            fit.epoch = 0
            fit.run(Observer(), lambda _num: None)

        return work


def seconds_of(work: Work) -> float:
    wait = torch.accelerator.synchronize if torch.accelerator.is_available() else lambda: None
    wait()
    started = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - started


def take_turns(works: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """Seconds of each piece of work in each round, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            seconds = seconds_of(work)
            if turn:
                times[name].append(seconds)
    return times


def beside(unit: Work, works: Mapping[str, Work], rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each piece of work in each round, and of the unit of work run just before it."""
    times: dict[str, list[float]] = {name: [] for name in works}
    units: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            before, seconds = seconds_of(unit), seconds_of(work)
            if turn:
                units[name].append(before)
                times[name].append(seconds)
    return times, units


def measure_training() -> dict[str, Any]:
    """Images a second of every row over U's."""
    plain = ["finetune", "er", "derpp", "er-ace", "agem", "er-mkd", "tamil", "cls-er"]
    works = {name: Bench(name).work() for name in plain}
    for name in ("rfe", "rfe-p", "rfe-b"):
        works[f"{name}, stage 1"] = Bench(name).work()
        for part, epochs in STAGE_2.items():
            works[f"{name}, {part}"] = Bench(name, views=1).work("retrospect", epochs)
    say(f"training, {len(works)} rows")
    times, units = beside(bare_loop(), works, ROUNDS)
    return {
        "unit_images_per_second": median(BATCH * STEPS / u for each in units.values() for u in each),
        "seconds": times,
        "unit_seconds": units,
        "ratio": {
            name: {"median": median(each), "low": min(each), "high": max(each)}
            for name, each in ratios_of(times, units).items()
        },
    }


def ratios_of(times: Mapping[str, list[float]], units: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Of every row, round by round, its images a second over U's; of RFE also those of both stages together."""
    # every time in units of the bare loop that ran just before it: of U's time for as many images
    inverse = {name: [t / u for t, u in zip(each, units[name], strict=True)] for name, each in times.items()}
    ratios = {name: [1 / each for each in found] for name, found in inverse.items() if "stage 2" not in name}
    short, long = STAGE_2.values()
    for name in ("rfe", "rfe-p", "rfe-b"):
        whole = []
        for one, few, many in zip(
            inverse[f"{name}, stage 1"], *(inverse[f"{name}, {part}"] for part in STAGE_2), strict=True
        ):
            step = max(many - few, 0.0) / (long - short)  # an image in stage 2
            cache = max(few - short * step, 0.0)  # one view of an image through both networks
            views = TASK_IMAGES * VIEWS + (0 if name == "rfe" else MEMORY * (VIEWS + 1))
            total = TASK_IMAGES * EPOCHS * (one + step) + views * cache
            whole.append(TASK_IMAGES * EPOCHS / total)
        ratios[f"{name}, whole task"] = whole
    return ratios


class Readers:
    """One class-incremental pass through the chain, and through the same backbone and heads without it."""

    def __init__(self, num_tasks: int, precision: str) -> None:
        self.runtime = Runtime.choose("auto", precision)
        bench = Bench("rfe", num_tasks, views=0)
        self.learner = bench.learner.eval()
        self.read = self.learner.reader(self.runtime.dtype)
        self.backbone = folded(self.learner.network.backbone, (3, 32, 32), self.runtime.dtype)

    def through_chain(self, x: Tensor) -> Tensor:
        return self.read(x).cil

    def without(self, x: Tensor) -> Tensor:
        f = self.backbone(x)
        return average([at_least_single(head(f)) for head in self.learner.network.heads])

    def ratio(self, batch: int, rounds: int) -> tuple[list[float], list[float]]:
        x = torch.randn(batch, 3, 32, 32).to(self.runtime.device)

        def timed(function: Callable[[Tensor], Tensor]) -> Work:
            def work() -> None:
                with torch.inference_mode(), self.runtime.autocast():
                    function(x)

            return work

        times = take_turns({"chain": timed(self.through_chain), "plain": timed(self.without)}, rounds)
        return times["chain"], times["plain"]


def measure_inference() -> list[dict[str, Any]]:
    found = []
    for precision in ("fp32", "bf16"):
        for num_tasks, batches in INFERENCE.items():
            readers = Readers(num_tasks, precision)
            for batch in batches:
                say(f"inference, {precision}, {num_tasks} tasks, batch {batch}")
                chain, plain = readers.ratio(batch, {1: 150, 32: 20, 256: 7}[batch])
                ratio = median(c / p for c, p in zip(chain, plain, strict=True))
                found.append({"precision": precision, "tasks": num_tasks, "batch": batch, "ratio": ratio,
                              "milliseconds": 1000 * median(chain), "milliseconds_without": 1000 * median(plain)})  # fmt: skip
    return found


def measure_chain_growth() -> list[dict[str, Any]]:
    """Time of one pass and bytes of the model against the number of tasks."""
    found = []
    for num_tasks in CHAIN_LENGTHS:
        say(f"chain of {num_tasks} tasks")
        readers = Readers(num_tasks, "auto")
        chain, plain = readers.ratio(32, 10)
        model = 4 * readers.learner.parameter_counts().inference
        before = tensor_bytes()
        readers.read = None  # type: ignore[assignment]
        found.append({"tasks": num_tasks, "milliseconds": 1000 * median(chain), "milliseconds_without": 1000 * median(plain),
                      "megabytes": model / 2**20, "reader_megabytes": (before - tensor_bytes()) / 2**20})  # fmt: skip
    return found


def tensor_bytes() -> int:
    """Bytes of all tensors that live."""
    gc.collect()
    storages = (thing.untyped_storage() for thing in gc.get_objects() if issubclass(type(thing), Tensor))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def measure_task_growth() -> list[dict[str, Any]]:
    """Time of a step of each stage against the task's number."""
    works: dict[str, Work] = {}
    for number in TASK_NUMBERS:
        works[f"rfe|fit|{number}"] = Bench("rfe", number).work()
        for name in ("rfe", "rfe-b"):
            works[f"{name}|retrospect|{number}"] = Bench(name, number).work("retrospect", epochs=16)
    say("training time against the task's number")
    times = take_turns(works, 3)
    return [
        {"method": method, "stage": stage, "task": int(number), "seconds": median(times[name])}
        for name in works for method, stage, number in [name.split("|")]
    ]  # fmt: skip


def measure_help() -> list[float]:
    command = [sys.executable, "-m", "recollect", "--help"]
    return [seconds_of(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)) for _ in range(7)]


PEAK = """
import pathlib, resource, sys
from recollect.cli import main
sys.argv = ["recollect", *sys.argv[1:]]
try:
    main()
finally:
    status = pathlib.Path("/proc/self/status")  # ru_maxrss would count the process that started this one
    lines = status.read_text().splitlines() if status.exists() else []
    peak = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    print("peak", *(peak or [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


def measure_tiny_imagenet(data_root: str, out: Path) -> dict[str, Any]:
    """Peak resident memory of learning two of ten tasks of Tiny ImageNet with RFE at full width, then stopped."""
    words = [
        "run",
        "--stream",
        "split-tinyimagenet",
        "--method",
        "rfe",
        "--train-per-class",
        "100",
        "--data-root",
        data_root,
    ]
    words += ["--out", str(out), "--force", "--set", "epochs=1", "retrospect_epochs=4"]
    say("Tiny ImageNet: recollect " + " ".join(words))
    out.mkdir(parents=True, exist_ok=True)
    (out / "events.jsonl").unlink(missing_ok=True)
    with subprocess.Popen([sys.executable, "-c", PEAK, *words], stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None and _num_tasks(out) < 2:
            time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        peak = int(process.stdout.read().split("peak")[-1])
    return {
        "command": "recollect " + " ".join(words[:7]) + " --set epochs=1 retrospect_epochs=4",
        "gigabytes": peak / 2**20,
        "commit": code_version(),
    }


def _num_tasks(out: Path) -> int:
    path = out / "events.jsonl"
    return path.read_text(encoding="utf-8").count('{"event": "task"') if path.exists() else 0


def machine() -> dict[str, Any]:
    name = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        name = next(
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        )
    return Runtime.choose("auto", "auto").describe() | {"processor": name}


def load_studies() -> dict[str, Any]:
    folder = ROOT / "results" / "views"
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(data_root: str | None) -> None:
    warnings.filterwarnings("ignore", "no validation images")
    warnings.filterwarnings("ignore", "identity='average'")
    found: dict[str, Any] = {"machine": machine(), "commit": code_version()}
    found["help_seconds"] = measure_help()
    found["training"] = measure_training()
    found["inference"] = measure_inference()
    found["chain_growth"] = measure_chain_growth()
    found["task_growth"] = measure_task_growth()
    if data_root:
        found["tiny_imagenet"] = measure_tiny_imagenet(data_root, Path("runs") / "bench-tiny")
    write(found)


def memory(data_root: str) -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    write(found | {"tiny_imagenet": measure_tiny_imagenet(data_root, Path("runs") / "bench-tiny")})


def write(found: Mapping[str, Any]) -> None:
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")
    print(page(found))


def page(found: Mapping[str, Any]) -> str:
    """The whole of docs/speed.md."""
    about, training = found["machine"], found["training"]
    rows = []
    for name, (authors, target) in TARGETS.items():
        ratio = training["ratio"][name]
        rows.append([name, authors, f"≥ {target:g}", f"**{ratio['median']:.2f}**", f"{ratio['low']:.2f}-{ratio['high']:.2f}",
                     verdict(ratio["median"] >= target)])  # fmt: skip
    helps = median(found["help_seconds"])
    inference = [
        [f"{cell['tasks']} tasks, batch {cell['batch']}, {cell['precision']}", INFERENCE[cell["tasks"]][cell["batch"]][0],
         f"≤ {INFERENCE[cell['tasks']][cell['batch']][1]:.2f}", f"**{cell['ratio']:.3f}**",
         f"{cell['milliseconds_without']:.1f} → {cell['milliseconds']:.1f} ms",
         verdict(cell["ratio"] <= INFERENCE[cell["tasks"]][cell["batch"]][1])]
        for cell in found["inference"]
    ]  # fmt: skip
    growth = found["chain_growth"]
    extra = [cell["milliseconds"] - cell["milliseconds_without"] for cell in growth]
    slope = fit_slope([cell["tasks"] - 1 for cell in growth], extra)
    bytes_slope = fit_slope([cell["tasks"] for cell in growth], [cell["megabytes"] for cell in growth])
    reader_slope = fit_slope([cell["tasks"] for cell in growth], [cell["reader_megabytes"] for cell in growth])
    chain = [[str(c["tasks"]), f"{c['milliseconds_without']:.1f}", f"{c['milliseconds']:.1f}", f"{c['megabytes']:.1f}",
              f"{c['reader_megabytes']:.1f}"] for c in growth]  # fmt: skip
    tiny = found.get("tiny_imagenet")
    peak = f"""
## Memory

Tiny ImageNet (64x64, the first two of 10 tasks, images mapped from disk, 100 a class trained on, stage 2 with 4 cached views) learned with RFE at full width peaks at **{tiny["gigabytes"]:.2f} GB** resident (asked: under 4 GB; commit `{tiny["commit"][:10]}`).
The features of stage 2's views take at most `views_megabytes` (1024 by default); as many views are kept as fit, and where not
one does, stage 2 runs the networks on fresh views at every step and says so.
""" if tiny else ""  # fmt: skip
    return f"""# Speed

Generated by `make bench` from `results/bench.json`; do not edit. Ratios are of times that took turns in one process.

Machine: {about["processor"]}, {about["threads"]} threads, {about["device"]}, torch {about["torch"]}, Python {about["python"]};
default precision {about["precision"]}; commit `{found["commit"][:10]}{"+changes" * found["commit"].endswith("+changes")}`.

## Training

Images a second of the stream over U = {training["unit_images_per_second"]:.1f} images a second: a bare PyTorch loop with ResNet-18 at full width, batch {BATCH},
Adam, fp32, tensors in memory, no augmentation. Ours includes augmentation, memory writes and bookkeeping, at task 2, with
{MEMORY} samples where a method keeps any. "Whole task" is N·E / (T₁ + T₂) with E = {EPOCHS} epochs in both stages and N = {TASK_IMAGES}, the
caching of {VIEWS} views included.

{table(["", "authors' code", "target", "here", "lowest-highest of " + str(ROUNDS), ""], rows)}

## Inference

One class-incremental pass through the chain over backbone + heads alone, both with the same precision and BatchNorm folded.

{table(["", "authors' code", "target", "here", "milliseconds", ""], inference)}

## Start

`recollect --help` takes {helps:.2f} s (target ≤ {HELP_SECONDS} s): {verdict(helps <= HELP_SECONDS)}.

## How cost grows

One pass over a batch of 32, the model's parameters at four bytes each, and the bytes of the copy that reading works on (BatchNorm folded,
hops joined, in {about["precision"]}), against the number of tasks. Each further task costs **{slope:.2f} ms** a batch, **{bytes_slope:.2f} MB** of the model
and **{reader_slope:.2f} MB** of the copy (least squares).

{table(["tasks", "without the chain, ms", "through the chain, ms", "model, MB", "copy, MB"], chain)}

Seconds of the same training work at task 2, 5, 10 and 20, and the last over the first. RFE-B's second stage carries its samples down the
whole chain.

{table(["", *(f"task {n}" for n in TASK_NUMBERS), "growth"], task_rows(found["task_growth"]))}
{peak}{serving()}{accuracy(load_studies())}"""


def serving() -> str:
    """Answers of whole models, from benchmarks/serving.py."""
    path = ROOT / "results" / "serving.json"
    if not path.exists():
        return ""
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for name, cell in found["models"].items():
        one, many = cell["batches"]["1"], cell["batches"]["32"]
        rows += [[f"{name}, {way}", f"{one[key]:.1f}", f"{32000 / many[key]:.0f}", f"{one[key] / one['predict']:.2f}", f"{many[key] / many['predict']:.2f}"]
                 for way, key in (("`predict`", "predict"), ("ONNX file", "onnx"))]  # fmt: skip
    commands = ", ".join(f"{cell['command_seconds']:.1f} s with {name}" for name, cell in found["models"].items())
    sizes = ", ".join(f"{cell['megabytes']:.0f} MB of {name}" for name, cell in found["models"].items())
    return f"""
## Answers

Models of three tasks with ten classes each, images of 64 pixels, fp32, {found["threads"]} threads, from bytes to probabilities of all classes; PyTorch and onnxruntime
take turns (`python benchmarks/serving.py`, commit `{found["commit"][:10]}`). The files have {sizes}.

{table(["", "one image, ms", "images a second in batches of 32", "time over predict's, one image", "batch of 32"], rows)}

`recollect predict` from start to end takes {commands} for one picture.
"""


def accuracy(studies: Mapping[str, Any]) -> str:
    """What the fast paths cost in accuracy, from the studies of benchmarks/views.py."""
    bf16 = [study for study in studies.values() if study["precision"] == "bf16"]
    if not bf16:
        return ""

    def cells(alpha: int, views: str) -> list[float]:
        return [study["views"][views]["til"] for study in bf16 if study["alpha"] == alpha]

    rows = []
    for views in bf16[0]["views"]:
        name = "fresh views every epoch" if views == "0" else f"{views} cached view{'s' if views != '1' else ''}"
        row = [name]
        for alpha in (0, 1):
            fresh, found = cells(alpha, "0"), cells(alpha, views)
            paired = ", ".join(f"{a - b:+.1f}" for a, b in zip(found, fresh, strict=True))
            row += [spread(found), "" if views == "0" else paired]
        rows.append(row)
    seconds = {views: median(study["seconds"][f"retrospect-{views}"] for study in bf16) for views in bf16[0]["views"]}
    for row, views in zip(rows, seconds, strict=True):
        row.append(f"{seconds[views]:.0f} s")
    one = {study["seed"]: study["views"][str(VIEWS)]["til"] for study in bf16 if study["alpha"] == 1}
    full = {
        study["seed"]: study["views"][str(VIEWS)]["til"] for study in studies.values() if study["precision"] == "fp32"
    }
    seeds = sorted(one.keys() & full.keys())
    precision = ""
    if seeds:
        precision = f"""
Mixed precision (bf16, the default where the device computes in it natively) beside fp32, TIL with {VIEWS} views at α = 1, seeds
{", ".join(map(str, seeds))}: **{spread([one[s] for s in seeds])}** against **{spread([full[s] for s in seeds])}**; seed by seed
{", ".join(f"{one[s] - full[s]:+.1f}" for s in seeds)}.
"""
    return f"""
## What speed costs in accuracy

Split CIFAR-100 at the size of [docs/results.md](results.md), test TIL of RFE. After each first stage the second stage was trained
once for every number of views from the same start, in a batch order of its own; α = 0 is where the chain carries everything. Mean ±
standard deviation of {len(cells(0, "0"))} seeds at α = 0 and {len(cells(1, "0"))} at α = 1, and each seed's difference from fresh views. Made by `python benchmarks/views.py run --data-root DATA`,
commit `{bf16[0]["commit"][:10]}`.

{table(["", "α = 0", "less fresh", "α = 1", "less fresh", "stage 2 of a run"], rows)}
{precision}"""


def spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def task_rows(cells: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    lines: dict[str, dict[int, float]] = {}
    for cell in cells:
        lines.setdefault(f"{cell['method']}, {cell['stage']}", {})[cell["task"]] = cell["seconds"]
    return [
        [name, *(f"{by[n]:.2f}" for n in TASK_NUMBERS), f"{by[TASK_NUMBERS[-1]] / by[TASK_NUMBERS[0]]:.2f}"]
        for name, by in lines.items()
    ]


def fit_slope(x: Sequence[float], y: Sequence[float]) -> float:
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def verdict(holds: bool) -> str:
    return "met" if holds else "**missed**"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    match sys.argv[1:]:
        case ["run"]:
            run(None)
        case ["run", "--data-root", folder]:
            run(folder)
        case ["memory", "--data-root", folder]:
            memory(folder)
        case ["page"]:
            PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
