"""Finds image files: all in a folder, or those of each class in a folder with one sub-folder per class."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

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
        warnings.warn(f"skipped {number} files in {folder} that are not images: {', '.join(suffixes)}", stacklevel=2)
    return images


def class_pictures(root: Path, skipped: list[Path] | None = None) -> dict[str, list[Path]]:
    """The images of each class of a folder with one sub-folder per class, both in order.

    Other files are refused or, with a list of `skipped` ones, added to it.
    """
    if not root.is_dir():
        raise UserError(f"{root} is no folder; give one with a sub-folder of images for each class")
    names = [p.name for p in _entries(root) if p.is_dir()]
    if not names:
        raise UserError(f"{root} has no sub-folders; put the images of each class in a folder of its own")
    strays = [p for p in _entries(root) if p.is_file()]
    if skipped is not None:
        skipped += strays
    elif strays:
        raise UserError(
            f"{strays[0]} lies beside the class folders; take it out, or move it into a class if it is an image"
        )
    return {name: list_pictures(root / name, skipped) for name in names}


def _entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not is_litter(p))


def is_litter(path: Path) -> bool:
    """What systems leave in folders: hidden files, and thumbnails."""
    return path.name.startswith((".", "@eaDir")) or path.name.lower() in LITTER


def list_pictures(folder: Path, skipped: list[Path] | None = None) -> list[Path]:
    """The images of one class; other files as for `class_pictures`."""
    if not folder.is_dir():
        raise UserError(f"{folder} is missing; every class of the training folder needs its test folder")
    entries = _entries(folder)
    for path in entries:
        if path.is_dir():
            raise UserError(
                f"{path} is a folder, where images of {folder.name!r} should be; give the folder that holds the classes"
            )
    if skipped is not None:
        others = [path for path in entries if path.suffix.lower() not in SUFFIXES or not path.is_file()]
        skipped += others
        entries = [path for path in entries if path not in others]
    for path in entries:
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path} is a link to a file that is gone; mend it, or take it out of {folder.name!r}")
        if path.suffix.lower() not in SUFFIXES or not path.is_file():
            kinds = ", ".join(sorted(SUFFIXES))
            raise UserError(f"{path} is not an image ({kinds}); convert it, or take it out of {folder.name!r}")
    if not entries:
        raise UserError(f"the class folder {folder} is empty; add images, or remove it")
    return entries
