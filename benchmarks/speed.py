"""How fast is it? Writes results/bench.json and docs/speed.md; `make bench` runs it (about ten minutes on two cores).

    python benchmarks/speed.py run [--data-root DATA]    measure; with DATA also the memory that Tiny ImageNet needs
    python benchmarks/speed.py quick NAME                four methods and inference in five minutes; results/bench-NAME.json
    python benchmarks/speed.py memory --data-root DATA   that memory alone, added to the existing measurements
    python benchmarks/speed.py page                      docs/speed.md from results/bench.json

Training is measured in units of U, a bare PyTorch loop. U and every row take turns within one process, so that other
load on the machine affects all alike; a row's figure is the median over rounds of (time of the U just before it / its
own time).
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pages.speed import PAGE, page
from recollect.storage import write_json

RESULTS = Path(__file__).parents[1] / "results" / "bench.json"
RUN_FOLDER = Path("runs") / "bench-tiny"


def measure(data_root: str | None) -> dict[str, Any]:
    from measuring.inference import measure_chain_growth, measure_inference
    from measuring.system import describe_machine, measure_help, measure_peak_memory
    from measuring.training import measure_task_growth, measure_training
    from recollect.runs.folder import code_version

    warnings.filterwarnings("ignore", "no validation images")
    warnings.filterwarnings("ignore", "identity='average'")
    bench = {
        "machine": describe_machine(),
        "commit": code_version(),
        "help_seconds": measure_help(),
        "training": measure_training(),
        "inference": measure_inference(),
        "chain_growth": measure_chain_growth(),
        "task_growth": measure_task_growth(),
    }
    return bench | ({"tiny_imagenet": measure_peak_memory(data_root, RUN_FOLDER)} if data_root else {})


def measure_quickly() -> dict[str, Any]:
    """Training of a few methods, and inference in single precision, with few rounds."""
    from measuring.inference import measure_inference
    from measuring.system import describe_machine
    from measuring.training import measure_training
    from recollect.runs.folder import code_version

    warnings.filterwarnings("ignore", "no validation images")
    warnings.filterwarnings("ignore", "identity='average'")
    return {
        "machine": describe_machine() | {"capability": torch.backends.cpu.get_cpu_capability()},
        "commit": code_version(),
        "training": measure_training(("finetune", "er", "derpp"), ("rfe",), num_rounds=3),
        "inference": measure_inference(("fp32",), share=0.25),
    }


def read() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text(encoding="utf-8")))


def write(bench: Mapping[str, Any]) -> None:
    RESULTS.write_text(json.dumps(bench, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(bench), encoding="utf-8")


def main() -> None:
    match sys.argv[1:]:
        case ["run"]:
            write(measure(None))
        case ["run", "--data-root", folder]:
            write(measure(folder))
        case ["memory", "--data-root", folder]:
            from measuring.system import measure_peak_memory

            write(read() | {"tiny_imagenet": measure_peak_memory(folder, RUN_FOLDER)})
        case ["quick", name]:
            write_json(RESULTS.with_name(f"bench-{name}.json"), measure_quickly())
        case ["page"]:
            PAGE.write_text(page(read()), encoding="utf-8")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
