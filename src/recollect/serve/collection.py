"""Images whose class people have corrected, stored for the next `learn`: folder/<class>/<hash>.<suffix>."""

from __future__ import annotations

import hashlib
import io
from contextlib import suppress
from pathlib import Path

from recollect.deploy.editing import check_folder_name
from recollect.errors import UserError
from recollect.pictures import find_suffix, is_litter, read_content
from recollect.serve.current import UPLOAD
from recollect.storage import LinkError, write_bytes

HASH_LENGTH = 16  # hexadecimal digits
CHECKED_SIZE = 32  # pixels


class Collection:
    """A folder of images, one sub-folder per class. Original files are stored unchanged."""

    def __init__(self, folder: Path, model: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file; give a folder for the corrected images")
        if model.resolve() in (folder.resolve(), *folder.resolve().parents):
            raise UserError(f"{folder} is in the model folder, which keeps no images; give a folder elsewhere")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def classes(self) -> list[str]:
        """The classes that have a folder."""
        return sorted(path.name for path in self._folders())

    def add(self, content: bytes, suffix: str, label: str) -> Path:
        """Store an image file under its class, and remove an earlier correction of the same image; returns the path."""
        name = check_folder_name(label)
        file = f"{hashlib.sha256(content).hexdigest()[:HASH_LENGTH]}{suffix}"
        folder = self.folder / name
        if folder.is_symlink():
            raise LinkError(f"{folder} is a symbolic link, which is not followed; replace it by a folder")
        folder.mkdir(exist_ok=True)
        write_bytes(folder / file, content)
        for other in self._folders():
            if other.name != name:
                _remove(other / file, content)
        return folder / file

    def _folders(self) -> list[Path]:
        return [
            path for path in self.folder.iterdir() if path.is_dir() and not path.is_symlink() and not is_litter(path)
        ]


def check_image(content: bytes) -> str:
    """The suffix of an image file that can be read; anything else is refused."""
    read_content(content, UPLOAD, CHECKED_SIZE)
    return find_suffix(io.BytesIO(content))


def _remove(path: Path, content: bytes) -> None:
    """Remove a copy of the image, and its folder if that is then empty."""
    if not path.is_symlink() and path.is_file() and path.read_bytes() == content:
        path.unlink()
        with suppress(OSError):
            path.parent.rmdir()
