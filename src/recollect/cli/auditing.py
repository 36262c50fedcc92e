"""`recollect audit`: what is kept, as a table or as JSON, and whether that is as expected."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from recollect.audit import Audit, Finding, Searcher, read_images, take_stock
from recollect.errors import UserError
from recollect.runs import read_json

LIMITS = "This lists what is stored. It does not prove that weights reveal nothing about the images they learned from."


def show_audit(console: Console, folder: Path, against: Path | None, expect: str | None, *, as_json: bool) -> int:
    """Print the audit; returns the exit code."""
    found = take_stock(folder)
    problems = found.problems(expect) if expect else []
    findings, names, flat = _search(folder, against) if against else ([], [], [])
    declared = {(str(store.file), f"{store.name}.images") for store in found.stores}
    hidden = [f for f in findings if not _is_declared(f, declared)]
    if expect == "none":
        hidden = findings
    if expect:
        problems += [f"{names[f.image]} is in {f.file}, {f.tensor}" for f in hidden]
    if as_json:
        print(json.dumps(_plain(found, findings, names, flat, problems), indent=1))
    else:
        _print(console, found)
        if against:
            _print_findings(console, findings, names, flat)
        for problem in problems:
            console.print(f"[bold red]not as expected:[/] {escape(problem)}", soft_wrap=True)
        if expect and not problems:
            console.print(f"As expected: [bold]{expect}[/].")
        console.print(f"[dim]{LIMITS}[/]")
    return 1 if problems else 0


def _is_declared(finding: Finding, declared: set[tuple[str, str]]) -> bool:
    """Whether a finding lies in samples that the folder says it holds (the bytes of that file hold it as well)."""
    files = {file for file, _ in declared}
    return (str(finding.file), finding.tensor) in declared or (
        str(finding.file) in files and finding.tensor.startswith("(bytes")
    )


def _search(folder: Path, against: Path) -> tuple[list[Finding], list[Path], list[int]]:
    data = folder / "data.json"
    shape = read_json(data).get("image_shape") if data.exists() else None
    if not isinstance(shape, list) or len(shape) != 3:
        raise UserError(f"{data} does not say what size of images the run learned from; --against cannot be used")
    paths, images = read_images(against, shape)
    searcher = Searcher(images)
    return list(searcher.search_folder(folder)), paths, searcher.flat


def _print(console: Console, found: Audit) -> None:
    table = Table(
        "file", "what", "tensors", "bytes", title=f"what {escape(str(found.folder))} holds", title_justify="left"
    )
    groups: dict[tuple[str, str], list[int]] = {}
    for entry in found.entries:
        groups.setdefault((str(entry.file.relative_to(found.folder)), entry.kind), []).append(entry.num_bytes)
    for (file, kind), sizes in groups.items():
        table.add_row(escape(file), kind, str(len(sizes)), f"{sum(sizes):,}")
    console.print(table)
    for store in found.stores:
        tasks = ", ".join(f"{num} of task {task}" for task, num in sorted(Counter(store.tasks).items())) or "none"
        where = escape(f"{store.file.relative_to(found.folder)}, {store.name}")
        console.print(f"Training samples in {where}: [bold]{len(store)}[/] of at most {store.capacity} ({tasks}).")
    if not any(len(store) for store in found.stores):
        console.print("Training samples: [bold]none[/].")
    for other in found.others:
        console.print(f"[bold]Not understood:[/] {escape(str(other.relative_to(found.folder)))}")


def _print_findings(console: Console, findings: list[Finding], names: list[Path], flat: list[int]) -> None:
    num = len({finding.image for finding in findings})
    console.print(f"Of {len(names) - len(flat)} images looked for, [bold]{num}[/] were found.")
    if flat:
        console.print(f"[bold]{len(flat)}[/] have too little contrast and were not looked for; --json lists them.")
    for finding in findings[:20]:
        way = ", mirrored" if finding.mirrored else ""
        text = f"  {names[finding.image]}: {finding.file}, {finding.tensor}, at {finding.offset}{way}"
        console.print(escape(text), soft_wrap=True)
    if len(findings) > 20:
        console.print(f"  and {len(findings) - 20} more; --json lists all")


def _plain(
    found: Audit, findings: list[Finding], names: list[Path], flat: list[int], problems: list[str]
) -> dict[str, Any]:
    return {
        "folder": str(found.folder),
        "tensors": [
            {"file": str(e.file), "name": e.name, "what": e.kind, "shape": list(e.shape), "bytes": e.num_bytes}
            for e in found.entries
        ],
        "samples": [
            {"file": str(s.file), "store": s.name, "samples": len(s), "capacity": s.capacity, "tasks": list(s.tasks)}
            for s in found.stores
        ],
        "not_understood": [str(path) for path in found.others],
        "found": [
            {"image": str(names[f.image]), "file": str(f.file), "tensor": f.tensor, "offset": f.offset,
             "mirrored": f.mirrored}
            for f in findings
        ],
        "not_searched": [str(names[index]) for index in flat],
        "problems": problems,
        "limits": LIMITS,
    }  # fmt: skip
