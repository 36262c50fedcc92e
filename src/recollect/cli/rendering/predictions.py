"""What `recollect predict` prints: a table, CSV or JSON."""

from __future__ import annotations

import csv
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from recollect.cli.console import print_json
from recollect.escaping import escape, escape_controls, escape_csv

Predictions = Sequence[Mapping[str, Any]]
MAX_PATH_SHARE = 0.5  # of a terminal's width that is reserved for the paths of later images


class Printer(ABC):
    """Prints predictions chunk by chunk."""

    @abstractmethod
    def add(self, predictions: Predictions) -> None:
        """Take the next predictions, and print them if the format allows it."""

    def finish(self) -> None:
        """Print what has not been printed yet."""
        return


class TablePrinter(Printer):
    """A row per image, and one for each further class; the errors of a chunk follow its rows."""

    titles = ("image", "class", "probability", "task")

    def __init__(self, console: Console) -> None:
        self._console = console
        self._widths: list[int] = []

    def add(self, predictions: Predictions) -> None:
        rows = [row for prediction in predictions for row in _table_rows(prediction)]
        is_first, before = not self._widths, self._widths or [cell_len(title) for title in self.titles]
        columns = zip(*rows, strict=True)
        self._widths = [max(width, *map(cell_len, column)) for width, column in zip(before, columns, strict=True)]
        self._widths[0] = min(self._widths[0], int(MAX_PATH_SHARE * self._console.width))
        table = Table(box=None, padding=(0, 2), show_header=is_first)
        for title, width in zip(self.titles, self._widths, strict=True):  # columns stay where the last chunk had them
            table.add_column(title, overflow="fold", min_width=width)
        for row in rows:
            table.add_row(*map(escape, row))
        self._console.print(table)
        for prediction in predictions:
            if "error" in prediction:
                self._console.print(f"[red]{escape(prediction['error'])}[/]", soft_wrap=True)


class CsvPrinter(Printer):
    """A line per image, for spreadsheets and scripts."""

    titles = ("path", "class", "probability", "task", "error")

    def __init__(self) -> None:
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._writer.writerow(self.titles)

    def add(self, predictions: Predictions) -> None:
        for prediction in predictions:
            probability = prediction["probability"]
            texts = {**prediction, "probability": None if probability is None else f"{probability:.6f}"}
            self._writer.writerow(escape_csv(texts.get(title) or "") for title in self.titles)
        sys.stdout.flush()


class JsonPrinter(Printer):
    """One list, printed at the end."""

    def __init__(self) -> None:
        self._predictions: list[Mapping[str, Any]] = []

    def add(self, predictions: Predictions) -> None:
        self._predictions += predictions

    def finish(self) -> None:
        print_json(self._predictions)


def _table_rows(prediction: Mapping[str, Any]) -> list[list[str]]:
    if "error" in prediction:
        return [[escape_controls(prediction["path"]), "–", "–", "–"]]
    rows = [
        (prediction["path"] if rank == 0 else "", row["class"], f"{row['probability']:.3f}", row["task"] or "–")
        for rank, row in enumerate([prediction, *prediction["top"][1:]])
    ]
    return [[escape_controls(text) for text in row] for row in rows]
