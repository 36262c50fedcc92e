"""Finds image files: all in a folder, or those of each class in a folder with one sub-folder per class."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from recollect.errors import UserError

SUFFIXES = {
    ".avif",
    ".bmp",
    ".gif",
    ".heic",
    ".heif",
    ".jfif",
    ".jpeg",
    ".jpg",
    ".mpo",
    ".png",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
}
LITTER = {"desktop.ini", "thumbs.db"}


def find_images(folder: Path) -> list[Path]:
    """All images in a folder and its subfolders, sorted; links are followed, and other files reported."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder")
    files: list[Path] = []
    visited: set[Path] = set()
    for parent, subfolders, names in os.walk(folder, followlinks=True):
        resolved = Path(parent).resolve()
        is_new = resolved not in visited
        visited.add(resolved)
        subfolders[:] = [name for name in subfolders if is_new and not is_litter(Path(name))]
        files += [Path(parent, name) for name in names if is_new and not is_litter(Path(name))]
    images = sorted(path for path in files if path.suffix.lower() in SUFFIXES)
    if len(images) < len(files):
        suffixes = sorted({path.suffix or "no suffix" for path in files if path.suffix.lower() not in SUFFIXES})
        number = len(files) - len(images)
        files_are = "file" if number == 1 else "files"
        warnings.warn(f"skipped {number} non-image {files_are} in {folder} ({', '.join(suffixes)})", stacklevel=2)
    return images


def class_pictures(root: Path, skipped: list[Path] | None = None) -> dict[str, list[Path]]:
    """The images of each class of a folder with one sub-folder per class, both in order.

    Other files, and class folders without images, are refused or, with a list of `skipped` ones, added to it.
    """
    refuse_missing(root)
    names = [p.name for p in _entries(root) if p.is_dir()]
    if not names:
        raise UserError(f"{root} has no sub-folders; put the images of each class in a folder of its own")
    strays = [p for p in _entries(root) if p.is_file()]
    if skipped is not None:
        skipped += strays
    elif strays:
        raise UserError(
            f"{strays[0]} is next to the class folders; remove it, or move it into a class if it is an image"
        )
    classes = {name: list_pictures(root / name, skipped) for name in names}
    found = {name: pictures for name, pictures in classes.items() if pictures}
    if not found:
        raise _without_images(root / names[0])
    if skipped is not None:
        skipped += [root / name for name in names if name not in found]
    return found


def refuse_missing(root: Any) -> None:
    """Raise an error about a path that is not a folder of classes; data of other kinds is not looked at."""
    if isinstance(root, str | Path) and not Path(root).is_dir():
        what = "is not a folder" if Path(root).exists() else "does not exist"
        raise UserError(f"{root} {what}; give a folder with a sub-folder of images for each class")


def _entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not is_litter(p))


def is_litter(path: Path) -> bool:
    """What systems leave in folders: hidden files, and thumbnails."""
    return path.name.startswith((".", "@eaDir")) or path.name.lower() in LITTER


def list_pictures(folder: Path, skipped: list[Path] | None = None) -> list[Path]:
    """The images of one class; other files and folders as for `class_pictures`."""
    if not folder.is_dir():
        raise UserError(f"{folder} is missing; every class of the training folder needs its test folder")
    entries = _entries(folder)
    if skipped is None:
        for path in entries:
            if path.is_dir():
                raise _misplaced(path)
    else:
        others = [path for path in entries if path.suffix.lower() not in SUFFIXES or not path.is_file()]
        skipped += others
        entries = [path for path in entries if path not in others]
    for path in entries:
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path} is a broken link; fix it, or remove it from {folder.name!r}")
        if path.suffix.lower() not in SUFFIXES or not path.is_file():
            kinds = ", ".join(sorted(SUFFIXES))
            raise UserError(f"{path} is not an image ({kinds}); convert it, or remove it from {folder.name!r}")
    if not entries and skipped is None:
        raise _without_images(folder)
    return entries


def _without_images(folder: Path) -> UserError:
    """About a class folder without images: the user may have meant a folder in it."""
    inner = next((path for path in _entries(folder) if path.is_dir()), None)
    return _misplaced(inner) if inner else UserError(f"the class folder {folder} has no images; add some, or remove it")


def _misplaced(path: Path) -> UserError:
    what = f"{path} is a folder, where images of {path.parent.name!r} should be"
    return UserError(f"{what}; give the folder that holds the classes")
