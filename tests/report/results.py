"""Invented results in the format of result.json, with values that can be checked by hand."""

from __future__ import annotations

from typing import Any

from recollect.metrics import summarise
from recollect.runs import resolve

SETTINGS = {"split-cifar100": {"backbone.width": 16, "stream.train_per_class": 100, "epochs": 8}}


def matrix_of(final: float, size: int = 5, drop: float = 4.0) -> list[list[float | None]]:
    """Every task is learned to final + drop and ends at final, but for the last one."""
    rows: list[list[float | None]] = []
    for i in range(size):
        rows.append([final + drop * (j == i) if j <= i else None for j in range(size)])
    rows[-1] = [final] * size
    return rows


def result_of(
    method: str, seed: int, til: float, cil: float = 10.0, *, stream: str = "split-cifar100", samples: int = 0,
    drift: bool = False, chain: float | None = None, **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    reduced = {} if "backbone" in settings else SETTINGS.get(stream, {})
    config = resolve(stream, method, seed, reduced | settings, precision="fp32")
    size = config.stream_options.tasks
    assert isinstance(size, int)
    empty: list[float | None] = [None] * size
    triangle = [[0.5 if j < i else None for j in range(size)] for i in range(size)]
    points = [[0.0, 0.0], [1.0, 2.0], [-1.0, 0.5]]
    scatter = [
        {"original": points, "drifted": [points] * (size - 1 - j), "rectified": [points] * (size - 1 - j)}
        for j in range(size)
    ]
    return {
        "til": summarise(matrix_of(til, size), empty),
        "cil": summarise(matrix_of(cil, size), empty),
        "til_without_chain": None if chain is None else summarise(matrix_of(chain, size), empty),
        "validation": {"til": til, "cil": cil},
        "drift": {"drifted": triangle, "rectified": triangle, "scatter": scatter} if drift else None,
        "parameters": {"training": 2_000_000, "inference": 1_500_000},
        "values_held": 3_000_000,
        "memory": {"samples": samples, "bytes": samples * 3072},
        "seconds": {"fit": 60.0, "evaluate": 30.0},
        "images_per_second": 100.0,
        "seed": seed,
        "config": config.to_json(),
        "non_default_options": config.non_default_options(),
        "command": "recollect run",
        "commit": "0" * 40,
        "environment": {},
    }


def some_results() -> list[dict[str, Any]]:
    """Two methods far apart, one close to the better, on three seeds; and a second experiment with drift."""
    results = []
    for seed in (0, 1, 2):
        results.append(result_of("rfe", seed, 50.0 + seed, chain=45.0))
        results.append(result_of("er", seed, 40.0 + seed, memory=500, samples=500))
        results.append(result_of("derpp", seed, 50.5 - seed, memory=500, samples=500))
        results.append(result_of("joint", seed, 70.0))
    results.append(result_of("rfe", 0, 90.0, stream="split-digits", drift=True, chain=80.0))
    results.append(result_of("finetune", 0, 60.0, stream="split-digits"))
    return results


MANY = {"rfe": 30.0, "rfe-plus": 34.0, "lwf": 12.0, "ewc": 11.0, "si": 10.5, "fsa": 19.0, "ldc": 16.0, "expansion": 9.0,
        "finetune": 5.0, "joint": 40.0}  # fmt: skip
KEEPING = {"er": 20.0, "derpp": 21.0, "tamil": 22.0, "agem": 12.0, "er-ace": 23.0, "rfe-p": 31.0, "rfe-b": 32.0}


def many_results() -> list[dict[str, Any]]:
    """Ten methods without images and seven with two numbers of images, on three seeds."""
    results = [result_of(method, seed, 50.0, cil + 0.1 * seed) for method, cil in MANY.items() for seed in (0, 1, 2)]
    for memory in (200, 500):
        results += [
            result_of(method, seed, 50.0, cil + memory / 500, memory=memory, samples=memory)
            for method, cil in KEEPING.items()
            for seed in (0, 1, 2)
        ]
    return results
