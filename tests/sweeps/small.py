"""A small preset, and the events that its runs have logged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from recollect.sweeps import Job, load_preset

PRESET = """
about = "small"
seeds = [0, 1]

[for."*"]
epochs = 1
"stream.tasks" = 2
"stream.train_per_class" = 5
"backbone.width" = 2

[for."rfe*"]
retrospect_epochs = 1

[[runs]]
stream = "split-digits"
method = ["finetune", "rfe"]

[[runs]]
stream = "split-digits"
method = "er"
set = { memory = [4, 8] }
"""
RUN_OPTIONS = {"device": "cpu", "threads": 1}


def jobs_of(preset: Path, **options: Any) -> list[Job]:
    return load_preset(str(preset)).jobs(precision="fp32", **options)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    logs = [Path(parent, "events.jsonl") for parent, _, files in os.walk(folder) if "events.jsonl" in files]
    lines = [line for path in logs for line in path.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["event"] == kind]
