"""The machine, the time of `recollect --help`, and the memory of a run."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measuring.timing import measure_seconds, report_progress
from recollect.engine import Runtime
from recollect.runs.folder import code_version

PRINT_PEAK = """
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
RUN = ["run", "--stream", "split-tinyimagenet", "--method", "rfe", "--train-per-class", "100"]
SETTINGS = ["--set", "epochs=1", "retrospect_epochs=4"]


def measure_help() -> list[float]:
    """Seconds of `recollect --help`."""

    def work() -> None:
        subprocess.run([sys.executable, "-m", "recollect", "--help"], check=True, stdout=subprocess.DEVNULL)

    return [measure_seconds(work) for _ in range(7)]


def measure_peak_memory(data_root: str, out: Path) -> dict[str, Any]:
    """Peak resident memory while RFE at full width learns two of ten tasks of Tiny ImageNet; the run is then stopped."""
    arguments = [*RUN, "--data-root", data_root, "--out", str(out), "--force", *SETTINGS]
    report_progress(f"Tiny ImageNet: recollect {' '.join(arguments)}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "events.jsonl").unlink(missing_ok=True)
    with subprocess.Popen([sys.executable, "-c", PRINT_PEAK, *arguments], stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None and _count_tasks(out / "events.jsonl") < 2:
            time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        peak = int(process.stdout.read().split("peak")[-1])
    command = f"recollect {' '.join([*RUN, *SETTINGS])}"
    return {"command": command, "gigabytes": peak / 2**20, "commit": code_version()}


def _count_tasks(events: Path) -> int:
    return events.read_text(encoding="utf-8").count('{"event": "task"') if events.exists() else 0


def describe_machine() -> dict[str, Any]:
    processor = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        processor = names[0].split(":", 1)[1].strip()
    return Runtime.choose("auto", "auto").describe() | {"processor": processor}
