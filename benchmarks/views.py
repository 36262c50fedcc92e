"""What do cached views and bf16 cost in accuracy? Writes results/views/*.json; docs/speed.md shows them.

    python benchmarks/views.py run --data-root DATA     every study, two at a time; done ones are skipped

One study trains RFE once and, after each task's first stage, its second stage once for every number of views from the
same starting point, so that only the views differ. `fp32-…` are the same runs in fp32, with the default views alone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import nn

from recollect.core import RFE
from recollect.engine import Engine, Runtime
from recollect.engine.evaluation import evaluate
from recollect.methods import Phase, Schedule, Setup, build_learner
from recollect.methods._rfe_config import RFEConfig
from recollect.methods.rfe import RFELearner
from recollect.nets import Network
from recollect.nets.resnet import ResNet18
from recollect.rng import Key
from recollect.runs import resolve
from recollect.runs.folder import code_version
from recollect.storage import write_json
from recollect.streams import TaskInfo, open_stream

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "views"
VIEWS = (0, 1, 2, 4, 8)
SEEDS = (0, 1, 2)
STUDIES = {f"{precision}-alpha{alpha}-{seed}": (precision, alpha, seed)
           for seed in SEEDS for precision, alpha in (("bf16", 1), ("bf16", 0), ("fp32", 1))}  # fmt: skip


class ViewsLearner(RFELearner):
    """One network, and one chain for every number of views."""

    def __init__(self, network: Network, config: RFEConfig, setup: Setup, views: tuple[int, ...]) -> None:
        super().__init__(network, config, setup)
        own = self.config
        self.chains = nn.ModuleDict()
        for num_views in views:
            self.config = replace(own, views=num_views)
            self.chains[str(num_views)] = RFELearner(network, self.config, setup).rfe
        self.config = own
        self.rfe = self.chain(own.views)

    def chain(self, views: int) -> RFE:
        chain = self.chains[str(views)]
        assert isinstance(chain, RFE)
        return chain

    def other_chains(self) -> list[RFE]:
        """All but the one that the first stage trains with."""
        chains = [self.chain(int(views)) for views in self.chains]
        return [chain for chain in chains if chain is not self.rfe]

    def begin_task(self, task: TaskInfo) -> None:
        if task.index:
            for chain in self.other_chains():
                chain.end_task(self.network.backbone)
        super().begin_task(task)
        for chain in self.other_chains():
            with (self.setup.key / "retrospectors" / task.index).initialising():
                chain.begin_task()

    def phases(self, task: TaskInfo) -> Iterator[Phase]:
        own, config = self.rfe, self.config
        stages = super().phases(task)
        yield next(iter(stages))
        for views in map(int, self.chains):
            self.rfe, self.config = self.chain(views), replace(config, views=views)
            self.rfe.anchor = own.anchor  # whose BatchNorm has followed the data of the first stage
            *_, second = RFELearner.phases(self, task)
            yield replace(second, name=f"retrospect-{views}")
        self.rfe, self.config = own, config


def study(name: str, data_root: Path) -> dict[str, Any]:
    """Train it, and evaluate it through every chain."""
    precision, alpha, seed = STUDIES[name]
    settings = {"backbone.width": 16, "epochs": 8, "auxiliary_dim": 64, "projection_dim": 64, "alpha": float(alpha)}
    config = resolve("split-cifar100", "rfe", seed, settings | {"stream.train_per_class": 100}, precision=precision)
    stream = open_stream(config.stream, config.stream_options, seed, data_root)
    key = Key(seed) / "learner"
    with (key / "backbone").initialising():
        backbone = ResNet18(3, 16)
    views = VIEWS if precision == "bf16" else (config.method_options.views,)
    schedule = Schedule(config.training.epochs, config.training.learning_rate)
    make = partial(ViewsLearner, views=views)
    learner = build_learner(make, config.method_options, backbone, stream.image_shape, schedule, key)
    runtime = Runtime.choose("auto", precision, threads=1)
    record = Engine(learner, stream, config.training, runtime, seed).run()
    accuracies = {}
    for num_views in views:
        learner.rfe = learner.chain(num_views)
        evaluated = evaluate(learner, stream.tasks, "test", stream.pixels, runtime)
        accuracies[str(num_views)] = {key: fmean(v for v in row if v is not None) for key, row in evaluated.items()}
    return {
        "precision": precision, "alpha": alpha, "seed": seed, "views": accuracies, "seconds": record.seconds,
        "settings": config.to_json(), "commit": code_version(), "environment": runtime.describe(),
        "command": f"python benchmarks/views.py study {name} --data-root DATA",
    }  # fmt: skip


def run_all(data_root: str) -> None:
    def one(name: str) -> None:
        if not (RESULTS / f"{name}.json").exists():
            subprocess.run([sys.executable, __file__, "study", name, "--data-root", data_root], check=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, STUDIES))


def main() -> None:
    match sys.argv[1:]:
        case ["run", "--data-root", folder]:
            run_all(folder)
        case ["study", name, "--data-root", folder] if name in STUDIES:
            RESULTS.mkdir(parents=True, exist_ok=True)
            write_json(RESULTS / f"{name}.json", study(name, Path(folder)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
