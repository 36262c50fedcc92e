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
    ".mpo",
    ".png",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
}
LITTER = {"__macosx", "desktop.ini", "thumbs.db"}


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
        noun = "file" if number == 1 else "files"
        warnings.warn(f"skipped {number} non-image {noun} in {folder} ({', '.join(suffixes)})", stacklevel=2)
    return images


def class_pictures(root: Path, skipped: list[Path] | None = None) -> dict[str, list[Path]]:
    """The images of each class of a folder with one sub-folder per class, both in order.

    Other files, folders in those of classes, and classes without images are refused or, with a list of `skipped` ones,
    added to it. A folder with images in that of a class is always refused: its images would be lost.
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
    classes = {}
    for name in names:
        others: list[Path] = []
        paths = list_pictures(root / name, None if skipped is None else others)
        if paths:
            classes[name] = paths
        if skipped is not None:
            skipped += others if paths else [root / name]
    if not classes:
        raise UserError(f"no sub-folder of {root} has images; put the images of each class in a folder of its own")
    return classes


def refuse_missing(root: Path) -> None:
    """Raise an error unless there is such a folder."""
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
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
    for path in entries:
        if path.is_dir() and (skipped is None or _has_images(path)):
            raise UserError(
                f"{folder.name!r} contains the folder {path}; move its images up one level, or give the folder whose "
                "sub-folders are the classes"
            )
    if skipped is not None:
        skipped += [path for path in entries if not _is_image(path)]
        entries = [path for path in entries if _is_image(path)]
    for path in entries:
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path} is a broken link; fix it, or remove it from {folder.name!r}")
        if not _is_image(path):
            kinds = ", ".join(sorted(SUFFIXES))
            raise UserError(f"{path} is not an image ({kinds}); convert it, or remove it from {folder.name!r}")
    if not entries and skipped is None:
        raise UserError(f"the class folder {folder} has no images; add some, or remove it")
    return entries


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


def _has_images(folder: Path) -> bool:
    """Whether there are images in a folder, at any depth."""
    return any(Path(name).suffix.lower() in SUFFIXES for _, _, names in os.walk(folder) for name in names)
