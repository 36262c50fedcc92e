"""Does `learn` hold 100,000 images? Time and memory of a quick learn; writes results/many-images.json.

    python benchmarks/many_images.py [NUMBER]

The images are generated: 128 pixels, JPEG, 100 classes. The learn reads them with the default backbone, which is not trained.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from measuring.system import describe_machine
from recollect.deploy import ModelStore
from recollect.runs.folder import code_version
from recollect.storage import write_json

RESULTS = Path(__file__).parents[1] / "results" / "many-images.json"
NUM_IMAGES, NUM_CLASSES, SIZE = 100_000, 100, 128


def generate(folder: Path, num_images: int) -> int:
    """Noise around a pattern of each class; returns the bytes of all files."""
    rng = np.random.default_rng(0)
    total = 0
    for number in range(NUM_CLASSES):
        pattern = rng.integers(0, 256, (8, 8, 3)).repeat(SIZE // 8, 0).repeat(SIZE // 8, 1)
        (folder / f"class-{number:03}").mkdir(parents=True)
        for image in range(num_images // NUM_CLASSES):
            noise = rng.integers(-40, 41, (SIZE // 4, SIZE // 4, 3)).repeat(4, 0).repeat(4, 1)
            path = folder / f"class-{number:03}" / f"{image:05}.jpg"
            Image.fromarray((pattern + noise).clip(0, 255).astype(np.uint8)).save(path)
            total += path.stat().st_size
    return total


def watch_memory(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """The largest numbers of kilobytes that the process had of its own and mapped from files, which the system may drop."""
    peaks = {"RssAnon": 0, "RssFile": 0}
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        for name in peaks:
            found = [int(line.split()[1]) for line in status.splitlines() if line.startswith(name)]
            peaks[name] = max([peaks[name], *found])
        time.sleep(0.2)
    return peaks


def measure(num_images: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        num_bytes = generate(Path(folder) / "images", num_images)
        arguments = ["learn", str(Path(folder) / "model"), str(Path(folder) / "images"), "--task", "all"]
        started = time.perf_counter()
        with subprocess.Popen([sys.executable, "-m", "recollect", *arguments], stdout=subprocess.DEVNULL) as process:
            peaks = watch_memory(process)
        assert process.returncode == 0
        seconds = time.perf_counter() - started
        image_size = ModelStore(Path(folder) / "model").load().settings.image_size
    return {
        "command": "recollect learn model images --task all",
        "images": num_images,
        "file_megabytes": num_bytes / 2**20,
        "seconds": seconds,
        "peak_megabytes": peaks["RssAnon"] / 2**10,
        "peak_mapped_megabytes": peaks["RssFile"] / 2**10,
        "image_size": image_size,
        "machine": describe_machine(),
        "commit": code_version(),
    }


def main() -> None:
    few = measure(NUM_CLASSES * 10)
    many = measure(int(sys.argv[1]) if sys.argv[1:] else NUM_IMAGES)
    write_json(RESULTS, {"few": few, "many": many})


if __name__ == "__main__":
    main()
