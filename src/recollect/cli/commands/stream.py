"""The command `stream export`: a benchmark's images as folders."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from recollect.cli.base import Texts, app

stream_app = App(name="stream", help="Streams as folders of images.", help_format="markdown")
app.command(stream_app)


@stream_app.command(name="export")
def export_images(
    stream: str,
    out: Path,
    *,
    seed: int = 0,
    data_root: Path | None = None,
    tasks: int | None = None,
    train_per_class: int | None = None,
    test_per_class: int = 0,
    set: Texts = None,
) -> None:
    """Write a stream as PNG files: `OUT/train/<task>/<class>/` for `learn`, `OUT/test/<task>/<class>/` for `check`.

    Parameters
    ----------
    stream
        The stream to write; `recollect list` shows all.
    out
        The folder to create.
    seed
        Determines the subset of images, as for `recollect run`.
    data_root
        Folder with the data, as for `recollect run`.
    tasks
        Number of tasks.
    train_per_class
        Write a seeded subset of N training images per class.
    test_per_class
        Write N test images per class; 0 for all.
    set
        Options of the stream as key=value.
    """
    from rich.progress import Progress

    from recollect.cli.console import print_text, stdout
    from recollect.errors import UserError
    from recollect.runs import parse, resolve
    from recollect.streams import open_stream
    from recollect.streams.export import count_images, export_stream

    if test_per_class < 0:
        raise UserError(f"the number of test images per class is 0 or more, got {test_per_class}; 0 writes all")
    short = {"stream.tasks": tasks, "stream.train_per_class": train_per_class}
    settings = {key: value for key, value in short.items() if value is not None} | parse(set or [])
    opened = open_stream(stream, resolve(stream, "finetune", seed, settings).stream_options, seed, data_root)
    with Progress(console=stdout(), transient=True) as bar:
        task = bar.add_task("Writing images", total=count_images(opened, test_per_class))
        num = export_stream(opened, out, test_per_class=test_per_class, advance=lambda: bar.advance(task))
    print_text(f"{num} images of {len(opened.tasks)} tasks are in {out}/train and {out}/test.")
