"""The application that the commands are added to, and the types of their options."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

from cyclopts import App, Parameter

Flag = Annotated[bool, Parameter(negative=())]
Texts = Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())]

app = App(
    name="recollect",
    help="Keep training an image classifier on new tasks, forgetting little of old ones, keeping no old data.",
    help_format="plaintext",
    version=lambda: version("recollect-rfe"),
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)
