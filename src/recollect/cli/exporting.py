"""`recollect stream export`: a benchmark's images as folders, as a practitioner has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from recollect.cli.base import app

stream_app = App(name="stream", help="Streams as folders of images.", help_format="plaintext")
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
    set: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
) -> None:
    """Write a stream as PNG files: OUT/train/<task>/<class>/ to learn from, OUT/test/<task>/<class>/ to check with.

    Parameters
    ----------
    stream
        What to write; `recollect list` names them.
    out
        The folder to make.
    seed
        Decides which images are drawn, as of `recollect run`.
    data_root
        Folder with the data, as of `recollect run`.
    tasks
        Number of tasks.
    train_per_class
        A seeded subset of so many training images a class.
    test_per_class
        So many test images a class; 0 for all.
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
        raise UserError(f"test_per_class counts images, got {test_per_class}; 0 writes all")
    short = {"stream.tasks": tasks, "stream.train_per_class": train_per_class}
    settings = {key: value for key, value in short.items() if value is not None} | parse(set or [])
    console = stdout()
    found = open_stream(stream, resolve(stream, "finetune", seed, settings).stream_options, seed, data_root)
    with Progress(console=console, transient=True) as bar:
        written = bar.add_task("Writing images", total=count_images(found, test_per_class))
        num = export_stream(found, out, test_per_class=test_per_class, advance=lambda: bar.advance(written))
    print_text(f"{num} images of {len(found.tasks)} tasks are in {out}/train and {out}/test.")
