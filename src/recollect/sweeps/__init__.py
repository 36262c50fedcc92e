"""Many runs: presets that describe them, sweeps that do them, on one machine or many."""

from recollect.sweeps.execute import Status, in_process, plan, sweep
from recollect.sweeps.preset import Job, Preset, load_preset, preset_names, preset_text
from recollect.sweeps.processes import engine_for, in_processes
from recollect.sweeps.select import By, Choice, best_settings

__all__ = [
    "By",
    "Choice",
    "Job",
    "Preset",
    "Status",
    "best_settings",
    "engine_for",
    "in_process",
    "in_processes",
    "load_preset",
    "plan",
    "preset_names",
    "preset_text",
    "sweep",
]
