"""How fast are photos decoded? 20 JPEG files of 12 megapixels, at 224 pixels; writes results/decoding.json.

    python benchmarks/decoding.py

The photos are generated: smooth areas with detail and noise, about as large as those of phones. Ways are timed in turn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image, ImageOps

from measuring.system import describe_machine
from measuring.timing import measure_seconds
from recollect.pictures import read_file
from recollect.runs.folder import code_version
from recollect.storage import write_json

RESULTS = Path(__file__).parents[1] / "results" / "decoding.json"
NUM_PHOTOS, WIDTH, HEIGHT, SIZE, ROUNDS, THREADS = 20, 4032, 3024, 224, 5, 2


def generate(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = [folder / f"{number:02}.jpg" for number in range(NUM_PHOTOS)]
    for path in paths:
        image = np.zeros((HEIGHT, WIDTH, 3))
        for cells, strength in ((12, 110), (120, 60), (1000, 20)):
            small = Image.fromarray(rng.integers(0, 256, (cells * 3 // 4, cells, 3), dtype=np.uint8))
            image += np.asarray(small.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)) * (strength / 255)
        image += rng.normal(0, 4, image.shape)
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return paths


def decode_whole(path: Path) -> np.ndarray:
    """Every pixel, and then the central square."""
    with Image.open(path) as opened:
        return np.asarray(ImageOps.fit(opened.convert("RGB"), (SIZE, SIZE), Image.Resampling.BILINEAR))


def one_by_one(read: Callable[[Path], np.ndarray], paths: Sequence[Path]) -> None:
    for path in paths:
        read(path)


def in_threads(read: Callable[[Path], np.ndarray], paths: Sequence[Path]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read, paths))


def main() -> None:
    draft = partial(read_file, size=SIZE)
    with tempfile.TemporaryDirectory() as folder:
        paths = generate(Path(folder))
        megabytes = sum(path.stat().st_size for path in paths) / NUM_PHOTOS / 2**20
        ways = {
            "whole": partial(one_by_one, decode_whole, paths),
            "draft": partial(one_by_one, draft, paths),
            "draft, two threads": partial(in_threads, draft, paths),
        }
        rounds = [{name: measure_seconds(way) for name, way in ways.items()} for _ in range(ROUNDS)]
    milliseconds = {name: [1000 * times[name] / NUM_PHOTOS for times in rounds] for name in ways}
    for name, values in milliseconds.items():
        print(f"{name}: {median(values):.0f} ms per photo")
    about = {"photos": NUM_PHOTOS, "width": WIDTH, "height": HEIGHT, "image_size": SIZE, "file_megabytes": megabytes}
    write_json(
        RESULTS, {**about, "milliseconds": milliseconds, "machine": describe_machine(), "commit": code_version()}
    )


if __name__ == "__main__":
    main()
