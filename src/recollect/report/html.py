"""One self-contained page: the answer, charts to explore, and every table; no network, no server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from recollect.escaping import escape_html
from recollect.report.collect import Experiment, Result, Variant
from recollect.report.headline import chain_costs, headlines
from recollect.report.layout import Sheet
from recollect.report.stats import student_quantile
from recollect.report.style import style_of
from recollect.report.summary import default_variants

SCRIPTS = ("state", "charts", "matrices", "tables", "controls")
LABEL = re.compile("`([^`]*)`")


def page(experiments: Sequence[Experiment], tables: Sequence[Sequence[Sheet]], title: str) -> str:
    """The page of experiments, of which it opens the first; the first table of each is its summary."""
    folder = files("recollect.report") / "page"
    seeds = {len(v.seeds) for experiment in experiments for v in experiment.variants}
    data = {
        "experiments": [_experiment(experiment) for experiment in experiments],
        "quantiles": {n: student_quantile(n) for n in range(2, max(seeds) + 1)},
    }
    pairs = list(enumerate(zip(experiments, tables, strict=True)))
    fields = {
        "title": escape_html(title),
        "about": escape_html(f"{_extent(experiments)}; report of {datetime.now(UTC).date().isoformat()}"),
        "origin": escape_html(_origin(experiments)),
        "style": (folder / "page.css").read_text("utf-8"),
        "answers": "\n".join(_answer(i, experiment, sheets[0]) for i, (experiment, sheets) in pairs),
        "tables": "\n".join(_tables(i, experiment, sheets[1:]) for i, (experiment, sheets) in pairs),
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "script": "\n".join((folder / f"{name}.js").read_text("utf-8") for name in SCRIPTS),
    }
    return re.sub(r"{{(\w+)}}", lambda match: fields[match[1]], (folder / "page.html").read_text("utf-8"))


def _results(experiments: Sequence[Experiment]) -> list[Result]:
    return [result for e in experiments for v in e.variants for result in v.results]


def _extent(experiments: Sequence[Experiment]) -> str:
    return f"{_count(len(_results(experiments)), 'result')} in {_count(len(experiments), 'experiment')}"


def _origin(experiments: Sequence[Experiment]) -> str:
    """When and from which commits the results were made, and which of them are not used."""
    results = _results(experiments)
    num_unused = sum(len(e.unused) for e in experiments)
    commits = {str(result["commit"])[:10] for result in results if result.get("commit")}
    finished = sorted(str(result["finished"])[:10] for result in results if result.get("finished"))
    sentences = []
    if commits:
        newest = f"commit {commits.copy().pop()}" if len(commits) == 1 else _count(len(commits), "commit")
        sentences.append(f"From {newest}, listed with their commands under Runs.")
    if finished:
        sentences.append(f"Finished {finished[0]}" + (f" to {finished[-1]}." if finished[0] != finished[-1] else "."))
    if num_unused:
        names = "; ".join(f"{len(e.unused)} of {e.title}" for e in experiments if e.unused)
        sentences.append(
            f"{_count(num_unused, 'more result')} not used, because they repeat others: {names}. The last table of "
            "these experiments lists them."
        )
    return " ".join(sentences)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _answer(index: int, experiment: Experiment, summary: Sheet) -> str:
    """The headline, the summary table, and what the chain cost; the page shows those of the chosen experiment."""
    parts = []
    for i, headline in enumerate(headlines(experiment)):
        kind = "second" if i else "headline"
        parts.append(f'<p class="{kind}" data-verdict="{headline.verdict}">{_emphasise(headline.text)}</p>')
        items = "".join(f"<li>{_emphasise(detail)}</li>" for detail in headline.details)
        parts.append(f'<ul class="details">{items}</ul>' if items else "")
    parts.insert(2, summary.html())
    for variant, text in chain_costs(experiment.variants):
        labels = escape_html(json.dumps([variant.full_label]))
        parts.append(f'<p class="note" data-variants="{labels}">{_emphasise(text)}</p>')
    parts.append(f'<p class="dim">Scenario: {escape_html(experiment.scenario)}.</p>')
    return f'<section class="answer" data-experiment="{index}" aria-label="Answer">{"".join(parts)}</section>'


def _emphasise(text: str) -> str:
    """Escaped, with labels in bold."""
    return LABEL.sub(r"<b>\1</b>", escape_html(text))


def _tables(index: int, experiment: Experiment, sheets: Sequence[Sheet]) -> str:
    blocks = []
    for sheet in sheets:
        short = sheet.title.removesuffix(f": {experiment.title}")
        blocks.append(f'<details class="block"><summary>{escape_html(short)}</summary>{sheet.html()}</details>')
    return f'<div data-experiment="{index}">{"".join(blocks)}</div>'


def _experiment(experiment: Experiment) -> dict[str, Any]:
    shown = {id(v) for v in default_variants(experiment)}
    return {
        "title": experiment.title,
        "tasks": experiment.num_tasks,
        "shown": [i for i, v in enumerate(experiment.variants) if id(v) in shown],
        "variants": [_variant(variant) for variant in experiment.variants],
    }


def _variant(variant: Variant) -> dict[str, Any]:
    colour, marker = style_of(variant.results[0])
    return {
        "name": variant.full_label,
        "method": variant.method,
        "kept": variant.images_kept,
        "ours": variant.method.startswith("rfe"),
        "colour": colour,
        "marker": marker,
        "runs": [dict(_run(result)) for result in variant.results],
    }


def _run(result: Result) -> Iterator[tuple[str, Any]]:
    yield "seed", result["seed"]
    names = {"til": "til", "cil": "cil", "task": "task_prediction", "chain": "til_without_chain"}
    for short, name in names.items():
        if result.get(name):
            yield short, _rounded(result[name]["matrix"])
    if result.get("drift"):
        yield "drift", result["drift"]


def _rounded(matrix: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    return [[None if cell is None else round(cell, 2) for cell in row] for row in matrix]
