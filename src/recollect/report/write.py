"""A report in a folder: tables as Markdown, LaTeX and CSV, pictures, and one page with all of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from recollect.errors import UserError
from recollect.escaping import escape_markdown
from recollect.report.collect import Result, collect
from recollect.report.figures import draw_experiment
from recollect.report.headline import headlines
from recollect.report.html import page
from recollect.report.sheets import sheets
from recollect.report.summary import by_seeds
from recollect.storage import refuse_links, write_text


def write_report(results: Iterable[Result], out: Path, title: str = "recollect report") -> list[Path]:
    """Write the report of all results; the paths written, the page first."""
    experiments = by_seeds(collect(results))
    if not experiments:
        raise UserError("there is no result to report; give folders with finished runs")
    tables = [list(sheets(experiment)) for experiment in experiments]
    texts = {out / "report.html": page(experiments, tables, title)}
    parts = [f"# {escape_markdown(title)}", ""]
    for experiment, of_experiment in zip(experiments, tables, strict=True):
        answers = [" ".join([headline.text, *headline.details]).replace("`", "") for headline in headlines(experiment)]
        parts += [f"## {escape_markdown(experiment.title)}", ""]
        parts += [f"{escape_markdown(answer)}\n" for answer in answers]
        parts += [sheet.markdown() for sheet in of_experiment]
        for sheet in of_experiment:
            texts[out / "tables" / f"{sheet.name}.md"] = sheet.markdown()
            texts[out / "tables" / f"{sheet.name}.tex"] = sheet.latex()
            texts[out / "tables" / f"{sheet.name}.csv"] = sheet.csv()
    texts[out / "report.md"] = "\n".join(parts)
    refuse_links(out)
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    pictures = [picture for experiment in experiments for picture in draw_experiment(experiment, out / "figures")]
    return [*texts, *pictures]
