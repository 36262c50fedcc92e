"""The application that the commands are added to, and the types of their options."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

Flag = Annotated[bool, Parameter(negative=())]
Paths = Annotated[list[Path], Parameter(negative=())]
Texts = Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())]
Precision = Literal["auto", "fp32", "bf16"]
# Options that several commands share come with their help, so their docstrings leave them out.
ModelFolder = Annotated[Path, Parameter(help="The model folder.")]
Model = Annotated[
    Path, Parameter(help="The model folder, or a file written by `recollect export`, which starts faster.")
]
Device = Annotated[str, Parameter(help="auto, cpu, cuda, cuda:1, mps.")]
Threads = Annotated[int, Parameter(help="CPU threads; 0 leaves the choice to torch or onnxruntime.")]
Wait = Annotated[
    bool, Parameter(negative=(), help="Wait while another command is changing the model, instead of stopping.")
]
CheckpointSeconds = Annotated[
    float, Parameter(help="Seconds between checkpoints within a phase; each phase and each task ends with one.")
]

app = App(
    name="recollect",
    help="Keep training an image classifier on new tasks with little forgetting and without keeping old images.",
    help_format="markdown",
    version=lambda: version("recollect-rfe"),
    version_flags=["--version"],
    group_commands=Group("Options", sort_key=9),  # --help and --version; commands have groups of their own
    suppress_keyboard_interrupt=False,
)
