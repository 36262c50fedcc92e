"""The commands that edit the classes of a model: rename, merge, forget."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from recollect.cli.base import Device, Flag, ModelFolder, Wait, app

Classes = Annotated[list[str], Parameter(negative=())]


@app.command
def rename(model: ModelFolder, old: str, new: str, *, wait: Wait = False) -> None:
    """Give a class of a model another name.

    Parameters
    ----------
    old
        The class, as `recollect inspect` lists it.
    new
        Its new name.
    """
    from recollect.cli.rendering.model import print_edited
    from recollect.deploy import ModelStore

    print_edited(f"{old} is now called {new}.", model, ModelStore(model).rename(old, new, wait=wait))


@app.command
def merge(model: ModelFolder, into: str, classes: Classes, *, wait: Wait = False) -> None:
    """Predict several classes of a model as one: its probability is their sum within a task, their mean over tasks.

    Parameters
    ----------
    into
        The name of the merged class: a new name, or that of an existing class, which is then merged too.
    classes
        The classes to merge.
    """
    from recollect.cli.rendering.model import print_edited
    from recollect.deploy import ModelStore

    edited = ModelStore(model).merge(into, classes, wait=wait)
    are = "is" if len(classes) == 1 else "are"
    print_edited(f"{', '.join(classes)} {are} now predicted as {into}.", model, edited)


@app.command
def forget(
    model: ModelFolder,
    classes: Annotated[list[str] | None, Parameter(negative=())] = None,
    *,
    purge: Flag = False,
    device: Device = "auto",
    wait: Wait = False,
) -> None:
    """Remove classes from a model: outputs, means, components and numbers of images. They are never predicted again.

    What an adapted backbone has learned and the covariance that all classes share are not changed.

    Parameters
    ----------
    classes
        The classes to forget; with --purge they may be left out.
    purge
        Also delete all other versions of the model, which still hold the classes.
    """
    from recollect.cli.rendering.model import print_forgotten
    from recollect.deploy import ModelStore

    names = classes or []
    print_forgotten(names, model, ModelStore(model).forget(names, purge=purge, device=device, wait=wait))
