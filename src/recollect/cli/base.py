"""The command line that commands are added to."""

from __future__ import annotations

from importlib.metadata import version

from cyclopts import App

app = App(
    name="recollect",
    help="Keep training an image classifier on new tasks, forgetting little of old ones, keeping no old data.",
    help_format="plaintext",
    version=lambda: version("recollect-rfe"),
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)
