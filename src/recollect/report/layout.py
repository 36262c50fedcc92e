"""A table as Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from recollect.escaping import escape_csv, escape_html, escape_latex, escape_markdown


@dataclass(frozen=True)
class Cell:
    """A text, and whether it is the best or the second best of its column."""

    text: str
    mark: str = ""
    """`best`, `second` or nothing."""


@dataclass(frozen=True)
class Sheet:
    """A table with a title and remarks."""

    name: str
    """Of its files."""
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    notes: Sequence[str] = field(default_factory=tuple)
    variants: Sequence[Sequence[str]] = field(default_factory=tuple)
    """The labels of the variants that each row is about, by which the page selects rows; empty to show all rows."""

    def markdown(self) -> str:
        marks = {"best": "**{}**", "second": "<u>{}</u>"}
        head = ["---", *["---:"] * (len(self.columns) - 1)]
        body = self._body(escape_markdown, marks)
        lines = [f"| {' | '.join(line)} |" for line in (map(escape_markdown, self.columns), head, *body)]
        notes = [f"- {escape_markdown(note)}" for note in self.notes]
        return "\n".join([f"### {escape_markdown(self.title)}", "", *lines, "", *notes, ""])

    def latex(self) -> str:
        marks = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
        lines = [" & ".join(line) + r" \\" for line in self._body(escape_latex, marks)]
        caption = f"{escape_latex(self.title)}. {escape_latex(' '.join(self.notes))}"
        return "\n".join([
            r"\begin{table}", r"\centering", rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", r"\toprule",
            " & ".join(map(escape_latex, self.columns)) + r" \\", r"\midrule", *lines, r"\bottomrule",
            r"\end{tabular}", r"\end{table}", "",
        ])  # fmt: skip

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([map(escape_csv, self.columns), *self._body(escape_csv, {})])
        return out.getvalue()

    def html(self) -> str:
        marks = {"best": "<strong>{}</strong>", "second": "<u>{}</u>"}
        head = "".join(f'<th scope="col">{escape_html(column)}</th>' for column in self.columns)
        rows = []
        for i, (first, *rest) in enumerate(self._body(escape_html, marks)):
            cells = "".join(f"<td>{cell}</td>" for cell in rest)
            about = f' data-variants="{escape_html(json.dumps(self.variants[i]))}"' if self.variants else ""
            rows.append(f'<tr{about}><th scope="row">{first}</th>{cells}</tr>')
        notes = "".join(f"<li>{escape_html(note)}</li>" for note in self.notes)
        title = escape_html(self.title)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">{table}</div>'
        below = f"<ul>{notes}</ul>" if notes else ""
        return f'<figure class="sheet"><figcaption>{title}</figcaption>{scroll}{below}</figure>'

    def _body(self, safe: Callable[[str], str], marks: dict[str, str]) -> list[list[str]]:
        def show(cell: Cell | str) -> str:
            if isinstance(cell, str):
                return safe(cell)
            return marks.get(cell.mark, "{}").format(safe(cell.text))

        return [[show(cell) for cell in row] for row in self.rows]
