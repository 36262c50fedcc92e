"""Text that others wrote (names of files, classes, tasks, methods) made safe for where it is shown.

A name may hold a terminal's escape sequences, markup, a link or a spreadsheet's formula: it is shown, not interpreted.
"""

from __future__ import annotations

import html
import re

from rich.markup import escape as _escape_rich

# C0, DEL and C1 controls, line separators, marks that turn the direction of text, and halves of surrogate pairs
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")  # the latter four are full-width forms
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?( %| ± \d+(\.\d+)?| \(± \d+(\.\d+)? over tasks\))?")
ENTITY = re.compile(r"&(?=#?\w+;)")
# an underscore between letters or digits is no emphasis
MARKDOWN = re.compile(r"[\\`*\[\]|~]|(?<![a-zA-Z0-9])_|_(?![a-zA-Z0-9])|(?<=\w):(?=//)|(?<=www)\.")
LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$", "–": "--",
    "≥": r"$\geq$", "·": r"$\cdot$", "α": r"$\alpha$",
    "[": "{[}", "*": "{*}",  # which the end of the row above would take for its own options
}  # fmt: skip


def escape_controls(text: str, *, keep_lines: bool = False) -> str:
    """For a terminal: controls as visible escapes, with `keep_lines` all but the ends of lines."""

    def show(match: re.Match[str]) -> str:
        return "\n" if keep_lines and match[0] == "\n" else match[0].encode("unicode_escape").decode("ascii")

    return CONTROLS.sub(show, text)


def escape(text: str) -> str:
    """For a rich console: controls are visible, and what looks like markup is printed as it is."""
    return _escape_rich(escape_controls(text))


def escape_json(text: str) -> str:
    """For JSON that is printed: controls within its strings as escapes, which mean the same."""
    return CONTROLS.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def escape_csv(text: str) -> str:
    """For a spreadsheet: what would be a formula begins with an apostrophe, which makes it a text."""
    is_formula = FORMULA.match(text) and not NUMBER.fullmatch(text)
    return escape_controls(f"'{text}" if is_formula else text)


def escape_markdown(text: str) -> str:
    """For a heading or a cell of a table: one line without HTML, links, mentions, emphasis or code."""
    line = escape_controls(" ".join(text.split()))
    plain = MARKDOWN.sub(lambda match: f"\\{match[0]}", line)
    # GitHub links @name and a@b.c also after a backslash; a zero-width space stops it
    return ENTITY.sub("&amp;", plain).replace("<", "&lt;").replace("@", "@&#8203;")


def escape_latex(text: str) -> str:
    """For LaTeX: one line without commands."""
    return "".join(LATEX.get(letter, letter) for letter in escape_controls(" ".join(text.split())))


def escape_html(text: str) -> str:
    """For an element or an attribute of a page."""
    return html.escape(escape_controls(text))
