"""One self-contained page: every table, and charts to explore; no network, no server."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from recollect.escaping import escape_html
from recollect.report.collect import Experiment, Result, Variant
from recollect.report.layout import Sheet


def page(experiments: Sequence[Experiment], tables: Sequence[Sequence[Sheet]], title: str) -> str:
    """The page of experiments and their tables."""
    folder = files("recollect.report") / "page"
    parts = {kind: (folder / f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")}
    data = {"experiments": [_experiment(experiment) for experiment in experiments]}
    num = sum(len(variant.results) for experiment in experiments for variant in experiment.variants)
    blocks = [
        f"<details{' open' if i == 0 else ''}><summary>{escape_html(experiment.title)}</summary>"
        f"{''.join(sheet.html() for sheet in sheets)}</details>"
        for i, (experiment, sheets) in enumerate(zip(experiments, tables, strict=True))
    ]
    fields = {
        "title": escape_html(title),
        "subtitle": f"Runs: {num}. Experiments: {len(experiments)}. Made by recollect from the results of these runs.",
        "style": parts["css"],
        "tables": "\n".join(blocks),
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "script": parts["js"],
    }
    return re.sub(r"{{(\w+)}}", lambda match: fields[match[1]], parts["html"])


def _experiment(experiment: Experiment) -> dict[str, Any]:
    return {
        "title": experiment.title,
        "tasks": experiment.num_tasks,
        "variants": [_variant(variant) for variant in experiment.variants],
    }


def _variant(variant: Variant) -> dict[str, Any]:
    return {
        "name": variant.full_label,
        "method": variant.method,
        "bytes": variant.results[0]["memory"]["bytes"],
        "runs": [_run(result) for result in variant.results],
    }


def _run(result: Result) -> dict[str, Any]:
    chain = result.get("til_without_chain")
    return {
        "seed": result["seed"],
        "til": _rounded(result["til"]["matrix"]),
        "cil": _rounded(result["cil"]["matrix"]),
        "chain": _rounded(chain["matrix"]) if chain else None,
        "drift": result.get("drift"),
    }


def _rounded(matrix: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    return [[None if cell is None else round(cell, 2) for cell in row] for row in matrix]
