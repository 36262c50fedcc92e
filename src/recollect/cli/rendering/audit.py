"""What `recollect audit` prints: everything stored, as a table or as JSON, and whether that is as expected."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TimeElapsedColumn
from rich.table import Table

from recollect.audit import Audit, Finding, Searcher, list_files, read_images, take_inventory
from recollect.audit.claims import NOT_FOUND
from recollect.audit.files import INCOMPLETE
from recollect.deploy import ModelStore
from recollect.errors import UserError
from recollect.escaping import escape
from recollect.methods import choose_method
from recollect.storage import read_json

MAX_LINES = 20  # of one kind
MAX_SIDE = 1 << 12  # pixels of an image to search for
LIMITS = (
    "This lists what is stored. It does not prove that weights reveal nothing about the images they were trained on."
)


def show_audit(
    console: Console, folder: Path, against: Path | None, expect: str | None, method: str | None, *, as_json: bool
) -> int:
    """Print the audit; returns the exit code."""
    audit = take_inventory(folder, choose_method(method).row if method else None)
    if (folder / "model.json").exists():
        ModelStore(folder).load()  # a model that cannot be loaded is refused
    problems = audit.problems(expect) if expect else []
    search = _search(folder, against) if against else Search([], [], [], [])
    declared = set() if expect == "none" else {(store.file, f"{store.name}.images") for store in audit.stores}
    if expect:
        undeclared = [finding for finding in search.findings if (finding.file, finding.tensor) not in declared]
        problems += [f"{search.names[finding.image]} is in {finding.file}, {finding.tensor}" for finding in undeclared]
    if as_json:
        print(json.dumps(_to_json(audit, search, problems), indent=1))
    else:
        _print_audit(console, audit)
        if against:
            _print_findings(console, search)
        for problem in problems[:MAX_LINES]:
            console.print(f"[bold red]not as expected:[/] {escape(problem)}", soft_wrap=True)
        if len(problems) > MAX_LINES:
            console.print(f"[bold red]not as expected:[/] and {len(problems) - MAX_LINES} more; --json lists all")
        if expect and not problems:
            but = f", except for {len(search.flat)} images that cannot be searched for" if search.flat else ""
            console.print(f"As expected: [bold]{expect}[/]{but}.")
        console.print(f"[dim]{LIMITS}[/]")
        if against:
            console.print(f"[dim]An image is not found if it is {'; '.join(NOT_FOUND)}.[/]")
    return 1 if problems else 0


@dataclass(frozen=True)
class Search:
    """What `--against` searched for and found; `flat` and `faint` as in Searcher."""

    findings: list[Finding]
    names: list[Path]
    flat: list[int]
    faint: list[int]


class _DataFile(TypedDict):
    """The part of a run's data.json that is read."""

    image_shape: tuple[int, int, int]


def _image_shape(folder: Path) -> tuple[int, int, int]:
    """The shape of the images that a run or a model was trained on."""
    if (folder / "model.json").exists():
        size = ModelStore(folder).load().settings.image_size
        return 3, size, size
    path = folder / "data.json"
    if not path.exists():
        raise UserError(f"{path} is missing, so that the size of the images is unknown; --against cannot be used")
    channels, height, width = read_json(path, _DataFile, INCOMPLETE)["image_shape"]
    if channels not in (1, 3) or not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise UserError(f"{path}: images of shape {channels, height, width} cannot be searched for")
    return channels, height, width


def _search(folder: Path, against: Path) -> Search:
    shape = _image_shape(folder)
    names, images = read_images(against, shape)
    searcher = Searcher(images)
    columns = (SpinnerColumn(), "{task.description}", BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("searching", total=sum(path.stat().st_size for path in list_files(folder)))
        done = 0

        def begin(path: Path) -> None:
            nonlocal done
            text = f"{len(names)} images in {escape(str(path.relative_to(folder)))}"
            progress.update(bar, completed=done, description=text)
            done += path.stat().st_size

        return Search(list(searcher.search_folder(folder, begin)), names, searcher.flat, searcher.faint)


def _print_audit(console: Console, audit: Audit) -> None:
    table = Table(
        "file", "what", "tensors", "bytes", title=f"contents of {escape(str(audit.folder))}", title_justify="left"
    )
    groups: dict[tuple[str, str], list[int]] = {}
    for entry in audit.entries:
        groups.setdefault((str(entry.file.relative_to(audit.folder)), entry.kind), []).append(entry.num_bytes)
    for (file, kind), sizes in groups.items():
        table.add_row(escape(file), kind, str(len(sizes)), f"{sum(sizes):,}")
    console.print(table)
    for store in audit.stores:
        tasks = ", ".join(f"{num} of task {task}" for task, num in sorted(Counter(store.tasks).items())) or "none"
        where = escape(f"{store.file.relative_to(audit.folder)}, {store.name}")
        console.print(f"Training samples in {where}: [bold]{len(store)}[/] of at most {store.capacity} ({tasks}).")
    if not any(len(store) for store in audit.stores):
        console.print("Training samples: [bold]none[/].")
    for other in audit.others[:MAX_LINES]:
        console.print(f"[bold]Unrecognised:[/] {escape(str(other.relative_to(audit.folder)))}", soft_wrap=True)
    if len(audit.others) > MAX_LINES:
        console.print(f"[bold]Unrecognised:[/] {len(audit.others) - MAX_LINES} more files; --json lists all")


def _print_findings(console: Console, search: Search) -> None:
    num = len({finding.image for finding in search.findings})
    console.print(f"Of {len(search.names) - len(search.flat)} images searched for, [bold]{num}[/] were found.")
    if search.flat:
        console.print(f"[bold]{len(search.flat)}[/] have no contrast and cannot be searched for; --json lists them.")
    if search.faint:
        console.print(f"[bold]{len(search.faint)}[/] have little contrast and are found only without noise.")
    for finding in search.findings[:MAX_LINES]:
        position = f"{finding.file}, {finding.tensor}, at {finding.offset}"
        changes = {"mirrored": finding.mirrored, "upside down": finding.upside_down, "inverted": finding.inverted}
        parts = [position, *(name for name, is_changed in changes.items() if is_changed)]
        console.print(escape(f"  {search.names[finding.image]}: {', '.join(parts)}"), soft_wrap=True)
    if len(search.findings) > MAX_LINES:
        console.print(f"  and {len(search.findings) - MAX_LINES} more; --json lists all")


def _to_json(audit: Audit, search: Search, problems: list[str]) -> dict[str, Any]:
    return {
        "folder": str(audit.folder),
        "tensors": [
            {"file": str(e.file), "name": e.name, "what": e.kind, "shape": list(e.shape), "bytes": e.num_bytes}
            for e in audit.entries
        ],
        "samples": [
            {"file": str(s.file), "store": s.name, "samples": len(s), "capacity": s.capacity, "tasks": list(s.tasks)}
            for s in audit.stores
        ],
        "unrecognised": [str(path) for path in audit.others],
        "found": [
            {"image": str(search.names[f.image]), "file": str(f.file), "tensor": f.tensor, "offset": f.offset,
             "mirrored": f.mirrored, "upside_down": f.upside_down, "inverted": f.inverted}
            for f in search.findings
        ],
        "not_searched": [str(search.names[index]) for index in search.flat],
        "found_only_without_noise": [str(search.names[index]) for index in search.faint],
        "problems": problems,
        "limits": LIMITS,
        "not_found_if": list(NOT_FOUND),
    }  # fmt: skip
