"""The lock of a model folder; a folder of other things is refused before anything is written to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recollect.errors import UserError
from recollect.pictures import is_litter
from recollect.storage import LOCK_NAME, UNFINISHED, lock_folder


@contextmanager
def lock_model(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a model folder, new or existing; another folder is refused."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder for the model")
    if not (folder / "model.json").is_file():
        foreign = _foreign_files(folder)
        if foreign:
            raise UserError(f"{folder} is not a model folder: it contains {foreign[0]!r}; give an empty one")
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, wait=wait):
        yield


def _foreign_files(folder: Path) -> list[str]:
    """What neither a model, nor a crash, nor the operating system puts into a model folder."""
    own = ("model.json", "versions", LOCK_NAME, UNFINISHED)
    names = [path.name for path in folder.iterdir() if not is_litter(path)] if folder.exists() else []
    return sorted(name for name in names if name not in own and not name.endswith(f".{UNFINISHED}"))
