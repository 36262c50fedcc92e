"""Does an index of vectors stay searchable after the model has moved on? The runs behind a section of docs/results.md.

    python benchmarks/recall.py --data-root DATA          all runs, one after the other; done ones are skipped

Five months of CIFAR-100 (20 classes each, 100 images per class) are learned. In the first month half of its test images are put in an
index, by the model of then. After every month the other half is looked up in it, with today's features and with today's estimate of the
first month's (`features(x, as_of=...)`), and the ten nearest are compared with those that the first month's model would have found.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from recollect import ContinualClassifier
from recollect.runs.folder import code_version
from recollect.storage import write_json
from recollect.streams import Split, open_stream
from recollect.streams.protocol import StreamOptions

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "recall"
SEEDS, ALPHAS, NEAREST = (0, 1, 2), (0.0, 1.0), 10


def nearest(queries: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The rows of the index nearest to each query, by Euclidean distance: [queries, 10]."""
    distances = (queries**2).sum(1)[:, None] - 2 * queries @ index.T + (index**2).sum(1)[None]
    return np.argsort(distances, axis=1, kind="stable")[:, :NEAREST]


def recall(returned: np.ndarray, wanted: np.ndarray) -> float:
    """Percent of the wanted neighbours that were returned."""
    return 100 * float(
        np.mean([len(set(a) & set(b)) / NEAREST for a, b in zip(returned.tolist(), wanted.tolist(), strict=True)])
    )


def arrays(*splits: Split) -> tuple[np.ndarray, np.ndarray]:
    whole = Split.concatenate(splits)
    images, labels = np.asarray(whole.images), np.asarray(whole.labels)
    return images[np.asarray(whole.indices)].transpose(0, 2, 3, 1), labels


def measure(alpha: float, seed: int, data_root: Path) -> dict[str, Any]:
    stream = open_stream("split-cifar100", StreamOptions(tasks=5, train_per_class=100), seed, data_root)
    settings = {"image_size": 32, "epochs": 8, "alpha": alpha, "seed": seed, "width": 16}
    model = ContinualClassifier("resnet18", **settings)
    tests, labels = arrays(stream.tasks[0].test)
    order = np.random.default_rng(seed).permutation(len(tests))
    stored, asked = order[: len(order) // 2], order[len(order) // 2 :]
    after: list[dict[str, float]] = []
    index, wanted = np.zeros(0), np.zeros(0)

    def alike(rows: np.ndarray) -> float:
        return 100 * float(np.mean(labels[stored][rows] == labels[asked][:, None]))

    for number, task in enumerate(stream.tasks):
        images, classes = arrays(task.train, task.validation)
        model.learn((images, [task.info.class_names[c - 20 * number] for c in classes]), task=task.info.name)
        first = stream.tasks[0].info.name
        if number == 0:
            index = model.features(tests[stored])
            wanted = nearest(model.features(tests[asked]), index)
            after.append({"recall_drifted": 100.0, "recall_rectified": 100.0, "same_class_drifted": alike(wanted),
                          "same_class_rectified": alike(wanted)})  # fmt: skip
            continue
        drifted = nearest(model.features(tests[asked]), index)
        rectified = nearest(model.features(tests[asked], as_of=first), index)
        after.append({"recall_drifted": recall(drifted, wanted), "recall_rectified": recall(rectified, wanted),
                      "same_class_drifted": alike(drifted), "same_class_rectified": alike(rectified)})  # fmt: skip
        print(alpha, seed, number, after[-1], flush=True)
    return {
        "alpha": alpha,
        "seed": seed,
        "settings": settings,
        "index": len(stored),
        "queries": len(asked),
        "after": after,
    }


def main() -> None:
    match sys.argv[1:]:
        case ["--data-root", folder]:
            pass
        case _:
            sys.exit(__doc__)
    for seed in SEEDS:
        for alpha in ALPHAS:
            path = RESULTS / f"alpha-{alpha:g}-seed-{seed}.json"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                command = "python benchmarks/recall.py --data-root DATA"
                write_json(path, measure(alpha, seed, Path(folder)) | {"command": command, "commit": code_version()})


if __name__ == "__main__":
    main()
