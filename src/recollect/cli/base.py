"""The application that the commands are added to, and the types of their options."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

Flag = Annotated[bool, Parameter(negative=())]
Paths = Annotated[list[Path], Parameter(negative=())]
Texts = Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())]

app = App(
    name="recollect",
    help="Keep training an image classifier on new tasks with little forgetting and without keeping old images.",
    help_format="plaintext",
    version=lambda: version("recollect-rfe"),
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)
