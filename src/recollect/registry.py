"""Finding methods, streams and backbones: every module of a package that defines a table adds its rows.

Third parties add theirs through entry points of the group `recollect.methods`, `recollect.streams` or
`recollect.backbones`, each pointing at such a table.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from recollect.errors import UserError


def discover(package: str, table: str) -> dict[str, Any]:
    """All rows of the mappings called `table` in the modules of `package` and in the entry points of its group."""
    root = importlib.import_module(package)
    modules = (importlib.import_module(f"{package}.{info.name}") for info in pkgutil.iter_modules(root.__path__))
    tables: list[Mapping[str, Any]] = [getattr(module, table) for module in modules if hasattr(module, table)]
    tables += [point.load() for point in _entry_points(f"recollect.{table.lower()}", tuple(sys.path))]
    merged: dict[str, Any] = {}
    for rows in tables:
        for name, row in rows.items():
            if name in merged:
                raise UserError(f"two {table.lower()} are called {name!r}; rename one of them")
            merged[name] = row
    return dict(sorted(merged.items()))


@cache
def _entry_points(group: str, paths: tuple[str, ...]) -> EntryPoints:
    """Of everything installed on such a path; reading them takes some 30 ms."""
    return entry_points(group=group)


def lookup(kind: str, rows: Mapping[str, Any], name: str) -> Any:
    """The row called `name`, or a message that lists what there is, the nearest first."""
    if name not in rows:
        near = nearest(name, rows)
        hint = f"did you mean {near!r}? There are" if near else "choose from"
        raise UserError(f"unknown {kind} {name!r}; {hint} {', '.join(rows)}")
    return rows[name]


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, if one is near enough."""
    return next(iter(difflib.get_close_matches(name, list(names), 1)), None)
