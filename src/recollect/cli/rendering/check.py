"""What `recollect check` prints, and the table of wrong images that it writes."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from recollect.cli.rendering.model import show_number, show_percent
from recollect.deploy.checks import CheckReport
from recollect.deploy.confusion import CheckDetails
from recollect.escaping import escape
from recollect.report.layout import Sheet

MAX_LISTED = 10  # classes, pairs and images; the files that a check writes have all


def print_check(console: Console, report: CheckReport) -> None:
    """The accuracy of each task, its weakest classes and mistakes, and why it fails the check."""
    titles = ("task", "images", "all classes", "was", "task known", "was", "lost", "since")
    table = Table(*titles, box=None, padding=(0, 1))
    for check in report.tasks:
        table.add_row(
            escape(check.task),
            str(check.num_images),
            show_percent(check.across),
            show_percent(check.across_before),
            show_percent(check.within),
            "–" if check.of_one_class else show_percent(check.before),
            show_number(check.forgetting, 1),
            check.against,
        )
    console.print(table)
    console.print(
        "All classes: predict without --task. Was: the earlier accuracy, measured at the point named under 'since'. "
        "Lost: the drop with the task known, in points; --max-forgetting limits it."
    )
    _print_details(console, report.details)
    for task, reason in report.objections:
        console.print(f"[bold red]{escape(task)}[/] {reason}.")
    if any(report.gate.is_confused(check) for check in report.tasks):
        console.print("Use --task where the task is known, learn more images, or merge classes that are the same.")
    worst = report.largest_ungated_loss
    if worst is not None:
        console.print(
            f"Without --task, accuracy on {escape(worst.task)} fell from {worst.across_before:.1f} % to "
            f"{worst.across:.1f} %, as there are more classes to choose from; --min-accuracy limits it."
        )
    if report.untested:
        console.print(f"Not tested: {escape(', '.join(report.untested))}.")
    if report.gate.is_set and not report.objections:
        console.print(f"[bold]Passed[/]: {escape(', '.join(check.task for check in report.tasks))}.")


def _print_details(console: Console, details: CheckDetails) -> None:
    """The classes of the lowest accuracy, the worst confusions and the first wrong images."""
    if not details.wrong:
        return
    titles = ("class", "task", "images", "all classes", "task known")
    classes = Table(*titles, box=None, padding=(0, 2))
    for check in sorted(details.classes, key=lambda check: check.across)[:MAX_LISTED]:
        percents = show_percent(check.across), show_percent(check.within)
        classes.add_row(escape(check.name), escape(check.task), str(check.num_images), *percents)
    console.print(classes)
    _print_rest(console, len(details.classes), "classes")
    confusions = details.list_confusions()
    for confusion in confusions[:MAX_LISTED]:
        console.print(escape(str(confusion)), soft_wrap=True)
    _print_rest(console, len(confusions), "confused pairs")
    images = Table("wrong image", "class", "taken for", "probability", box=None, padding=(0, 2))
    for image in details.wrong[:MAX_LISTED]:
        names = map(escape, (image.path, image.true_class, image.predicted))
        images.add_row(*names, f"{image.probability:.3f}")
    console.print(images)
    _print_rest(console, len(details.wrong), "wrong images")


def _print_rest(console: Console, num: int, what: str) -> None:
    if num > MAX_LISTED:
        console.print(f"{MAX_LISTED} of {num} {what} are shown; --html and --json list all.")


def wrong_images_csv(details: CheckDetails) -> str:
    """The wrong images as CSV."""
    rows = [
        (image.path, image.task, image.true_class, image.predicted, f"{image.probability:.6f}")
        for image in details.wrong
    ]
    return Sheet("wrong", "Wrong images", ("path", "task", "class", "predicted", "probability"), rows).csv()
