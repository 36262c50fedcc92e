"""A table as Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from recollect.escaping import escape_csv, escape_html, escape_latex, escape_markdown

MAX_CHARACTERS = 60
"""Of a number or a name."""


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
        kinds = [' class="text"' * self._is_text(i) for i in range(len(self.columns))]
        columns = zip(kinds, self.columns, strict=True)
        head = "".join(f'<th scope="col"{kind}>{escape_html(column)}</th>' for kind, column in columns)
        rows = []
        for i, (first, *rest) in enumerate(self._body(escape_html, marks)):
            cells = "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds[1:], rest, strict=True))
            about = f' data-variants="{escape_html(json.dumps(self.variants[i]))}"' if self.variants else ""
            rows.append(f'<tr{about}><th scope="row"{kinds[0]}>{first}</th>{cells}</tr>')
        notes = "".join(f"<li>{escape_html(note)}</li>" for note in self.notes)
        title = escape_html(self.title)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">{table}</div>'
        below = f"<ul>{notes}</ul>" if notes else ""
        return f'<figure class="sheet"><figcaption>{title}</figcaption>{scroll}{below}</figure>'

    def _is_text(self, column: int) -> bool:
        """Whether a column has sentences, which are set in lines, rather than numbers or names."""
        texts = (cell if isinstance(cell, str) else cell.text for cell in (row[column] for row in self.rows))
        return max(map(len, texts), default=0) > MAX_CHARACTERS

    def _body(self, safe: Callable[[str], str], marks: dict[str, str]) -> list[list[str]]:
        def show(cell: Cell | str) -> str:
            if isinstance(cell, str):
                return safe(cell)
            return marks.get(cell.mark, "{}").format(safe(cell.text))

        return [[show(cell) for cell in row] for row in self.rows]
