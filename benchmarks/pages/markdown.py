"""Markdown: tables, foldable parts, and templates with {{names}}."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

TEMPLATES = Path(__file__).parents[1] / "templates"


def fill(template: str, values: Mapping[str, str]) -> str:
    """A template with its {{names}} replaced; a name without a value, or a value without a name, is an error."""
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    names = set(re.findall(r"{{(\w+)}}", text))
    if names != set(values):
        raise ValueError(f"{template} and its values differ in {sorted(names ^ set(values))}")
    filled = re.sub(r"{{(\w+)}}", lambda match: values[match[1]], text)
    return re.sub(r"\n{3,}", "\n\n", filled).strip() + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, is_text: bool = False) -> str:
    """Columns after the first are right-aligned, unless they hold text."""
    lines = [head, ["---", *["---" if is_text else "---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def details(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def require(condition: bool, sentence: str) -> None:
    """Stop where the results no longer support a sentence of a template."""
    if not condition:
        raise ValueError(f"the results do not support this sentence any more; rewrite it in the template: {sentence}")
