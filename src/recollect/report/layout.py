"""A table as Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$", "–": "--",
    "≥": r"$\geq$", "·": r"$\cdot$", "α": r"$\alpha$",
}  # fmt: skip


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

    def markdown(self) -> str:
        marks = {"best": "**{}**", "second": "<u>{}</u>"}
        head = ["---", *["---:"] * (len(self.columns) - 1)]
        body = self._body(lambda text: " ".join(text.replace("<", "&lt;").replace("|", r"\|").split()), marks)
        lines = [f"| {' | '.join(line)} |" for line in (list(self.columns), head, *body)]
        return "\n".join([f"### {self.title}", "", *lines, "", *(f"- {note}" for note in self.notes), ""])

    def latex(self) -> str:
        def safe(text: str) -> str:
            return "".join(LATEX.get(letter, letter) for letter in text)

        marks = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
        lines = [" & ".join(line) + r" \\" for line in self._body(safe, marks)]
        return "\n".join([
            r"\begin{table}", r"\centering", rf"\caption{{{safe(self.title)}. {safe(' '.join(self.notes))}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", r"\toprule",
            " & ".join(map(safe, self.columns)) + r" \\", r"\midrule", *lines, r"\bottomrule",
            r"\end{tabular}", r"\end{table}", "",
        ])  # fmt: skip

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([self.columns, *self._body(str, {})])
        return out.getvalue()

    def html(self) -> str:
        marks = {"best": "<strong>{}</strong>", "second": "<u>{}</u>"}
        head = "".join(f'<th scope="col">{escape(column)}</th>' for column in self.columns)
        rows = []
        for first, *rest in self._body(escape, marks):
            cells = "".join(f"<td>{cell}</td>" for cell in rest)
            rows.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        title = escape(self.title)
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
