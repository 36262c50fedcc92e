"""What `recollect list` prints: all names, and all options with their defaults."""

from __future__ import annotations

import inspect
import json

from rich.console import Console
from rich.table import Table

from recollect.escaping import escape
from recollect.methods import methods
from recollect.nets import backbones
from recollect.runs import available_options, describe
from recollect.streams import streams
from recollect.sweeps import load_preset, preset_names


def print_all(console: Console) -> None:
    """The registered names, with one line about each."""
    backbone_lines = {name: (inspect.getdoc(recipe.make) or "").splitlines()[0] for name, recipe in backbones().items()}
    for title, rows in (
        ("streams", {name: source.about for name, source in streams().items()}),
        ("methods", {name: method.about for name, method in methods().items()}),
        ("backbones", backbone_lines),
        ("presets", {name: load_preset(name).about for name in preset_names()}),
    ):
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, about in rows.items():
            table.add_row(f"[bold]{escape(name)}[/]", escape(about))
        console.print(table, "")
    console.print(escape("Options: recollect list --stream S --method M [--backbone B]"))


def print_options(console: Console, stream: str, method: str, backbone: str | None) -> None:
    """All options of such a run, as they are given to --set."""
    sections = available_options(stream, method, backbone)
    table = Table(title=escape(f"options of {method} on {stream}"), title_justify="left", box=None, padding=(0, 2))
    table.add_column("option", no_wrap=True)
    for column in ("type", "default", ""):
        table.add_column(column, overflow="fold")
    for section, options in sections.items():
        for name, option in options.items():
            cells = (describe(option.hint), json.dumps(option.default), option.about)
            table.add_row(f"{section}.[bold]{escape(name)}[/]", *map(escape, cells))
    console.print(table)
    console.print("Set them with --set key=value; the part before the dot can be left out if the name is unique.")
