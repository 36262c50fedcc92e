"""Pictures of the pages: each carries the digest of the figures drawn in it, and is drawn anew only where they changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

PICTURES = Path(__file__).parents[1] / "docs" / "images"


def digest(drawn: Any) -> str:
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()


def stamp_of(path: Path) -> str:
    """The digest that a picture carries; nothing if there is none."""
    if not path.exists():
        return ""
    with Image.open(path) as image:
        return str(image.info.get("Source", ""))


def draw(name: str, drawn: Any, make: Callable[[Path], object], folder: Path = PICTURES) -> None:
    """Draw a picture unless it shows these figures already."""
    path = folder / name
    if stamp_of(path) == digest(drawn):
        return
    make(path)
    info = PngInfo()
    info.add_text("Source", digest(drawn))
    with Image.open(path) as image:
        image.convert("RGB").quantize(256).save(path, pnginfo=info, optimize=True)
