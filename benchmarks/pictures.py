"""Pictures of the pages. Each file carries the digest of the data drawn in it, and is redrawn only where that changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

FOLDER = Path(__file__).parents[1] / "docs" / "images"


@dataclass(frozen=True)
class Picture:
    """A file name, the data that the picture shows, and how to draw it.

    A change of the drawing alone is not noticed: delete the file to have it redrawn.
    """

    name: str
    data: Any
    draw: Callable[[Path], object]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.data, sort_keys=True).encode()).hexdigest()

    def update(self, folder: Path = FOLDER) -> None:
        """Draw it unless the file shows this data already."""
        path = folder / self.name
        if stored_digest(path) == self.digest:
            return
        self.draw(path)
        info = PngInfo()
        info.add_text("Source", self.digest)
        with Image.open(path) as image:
            image.convert("RGB").quantize(256).save(path, pnginfo=info, optimize=True)


def stored_digest(path: Path) -> str:
    """The digest that a picture carries; empty without a picture."""
    if not path.exists():
        return ""
    with Image.open(path) as image:
        return str(image.info.get("Source", ""))
