"""The page that `recollect check --html` writes: one file without scripts, links or other resources."""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter, defaultdict
from importlib.resources import files

from recollect.cli.rendering.model import show_number, show_percent
from recollect.deploy.checks import CheckReport
from recollect.deploy.confusion import CheckDetails, Confusion, WrongImage
from recollect.escaping import escape_html
from recollect.report.layout import Sheet

MAX_CLASSES = 50  # in the confusion table: those with the most mistakes
MAX_PICTURES = 600
LEGEND = (
    '<p class="dim">Below each image: the class it was taken for with its probability, its true class and task, and '
    "its file.</p>"
)


def render_page(report: CheckReport, title: str) -> str:
    """The page of a check: accuracies, confusions, and the wrong images with what they were taken for."""
    details = report.details
    num_images = sum(check.num_images for check in report.tasks)
    parts = {
        "title": escape_html(title),
        "summary": f"{num_images} images, {len(details.wrong)} wrong over all classes.",
        "verdict": _verdict(report),
        "tasks": _task_sheet(report).html(),
        "classes": "".join(sheet.html() for sheet in _class_sheets(details)),
        "matrix": _matrix(details),
        "wrong": _pictures(details),
    }
    template = (files("recollect.cli.rendering") / "check.html").read_text("utf-8")
    return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], template)


def _verdict(report: CheckReport) -> str:
    if not report.objections:
        return '<p class="passed">Passed.</p>'
    items = "".join(f"<li><b>{escape_html(task)}</b> {escape_html(reason)}.</li>" for task, reason in report.objections)
    return f'<ul class="failed">{items}</ul>'


def _task_sheet(report: CheckReport) -> Sheet:
    columns = ("task", "images", "accuracy (task known)", "accuracy (all classes)", "forgetting", "compared with")
    rows = [
        (
            check.task,
            str(check.num_images),
            show_percent(check.within),
            show_percent(check.across),
            show_number(check.forgetting, 1),
            check.against,
        )
        for check in report.tasks
    ]
    notes = [f"Not tested: {', '.join(report.untested)}."] if report.untested else []
    return Sheet("tasks", "Accuracy per task", columns, rows, notes)


def _class_sheets(details: CheckDetails) -> list[Sheet]:
    """The accuracy per class, a table per task."""
    rows = defaultdict(list)
    for check in details.classes:
        percents = show_percent(check.within), show_percent(check.across)
        rows[check.task].append((check.name, str(check.num_images), *percents))
    columns = ("class", "images", "accuracy (task known)", "accuracy (all classes)")
    return [Sheet("classes", f"Accuracy per class of {task}", columns, listed) for task, listed in rows.items()]


def _matrix(details: CheckDetails) -> str:
    """The confusion table of the classes that are involved in a mistake: a row per true class."""
    confusions = details.list_confusions()
    if not confusions:
        return "<p>No image was taken for another class.</p>"
    tested, num_wrong, num_mistakes = details.count_tested(), Counter[str](), Counter[str]()
    for pair in confusions:
        num_wrong[pair.true_class] += pair.num_images
        for name in (pair.true_class, pair.predicted):
            num_mistakes[name] += pair.num_images
    shown = {name for name, _ in num_mistakes.most_common(MAX_CLASSES)}
    names = [name for name in dict.fromkeys((*tested, *num_mistakes)) if name in shown]
    counts = {(pair.true_class, pair.predicted): pair.num_images for pair in confusions}
    counts |= {(name, name): number - num_wrong[name] for name, number in tested.items()}
    head = "".join(f'<th scope="col"><span>{escape_html(name)}</span></th>' for name in names)
    rows = []
    for name in names:
        cells = "".join(_cell(counts.get((name, other), 0), tested[name], is_right=name == other) for other in names)
        rows.append(f'<tr><th scope="row">{escape_html(name)}</th>{cells}</tr>')
    left_out = f"Only the {MAX_CLASSES} classes with the most mistakes are shown."
    if len(num_mistakes) <= MAX_CLASSES:
        left_out = "Classes without mistakes are left out." if len(names) < len(tested) else ""
    return (
        f'<p class="dim">A row per true class, a column per predicted class. {left_out}</p>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Confusion table"><table class="matrix">'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(number: int, num_tested: int, *, is_right: bool) -> str:
    if not number:
        return "<td></td>"
    kind = "right" if is_right else "mistaken"
    return f'<td class="{kind}" style="--share: {100 * number / num_tested:.0f}%">{number}</td>'


def _pictures(details: CheckDetails) -> str:
    """The wrong images by confused pair, the worst pair first, and in it the most confident mistake first."""
    if not details.wrong:
        return "<p>None.</p>"
    images = defaultdict(list)
    for image in details.wrong:
        images[image.true_class, image.predicted].append(image)
    sections, room = [], MAX_PICTURES
    for confusion in details.list_confusions():
        listed = sorted(images[confusion.true_class, confusion.predicted], key=lambda image: -image.probability)
        pictured = [image for image in listed if image.thumbnail][:room]
        room -= len(pictured)
        sections.append(_section(confusion, pictured))
    return f'{LEGEND}<div class="pairs">{"".join(sections)}</div>'


def _section(confusion: Confusion, pictured: list[WrongImage]) -> str:
    title = f"<h3>{escape_html(str(confusion))}</h3>"
    omitted = confusion.num_images - len(pictured)
    note = f'<p class="dim">{omitted} without a picture here; --csv lists them.</p>' if omitted else ""
    return f'<section>{title}<div class="pictures">{"".join(map(_figure, pictured))}</div>{note}</section>'


def _figure(image: WrongImage) -> str:
    source = f"data:image/jpeg;base64,{b64encode(image.thumbnail).decode('ascii')}"
    predicted, true_class, path = (escape_html(text) for text in (image.predicted, image.true_class, image.path))
    return (
        f'<figure><img src="{source}" alt="{true_class}, taken for {predicted}" loading="lazy">'
        f"<figcaption><b>{predicted}</b> {image.probability:.2f}<br>{true_class}, {escape_html(image.task)}"
        f'<br><span class="dim">{path}</span></figcaption></figure>'
    )
