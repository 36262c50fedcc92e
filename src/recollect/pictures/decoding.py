"""Decodes image files as uint8 arrays [3, h, w]: upright, in RGB, within limits that protect the memory."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from recollect.errors import UserError

MAX_PIXELS = 178_000_000  # where Pillow suspects an attack; nearly all cameras have fewer
BOMB_PIXELS, BOMB_PIXELS_PER_BYTE = 120_000_000, 200  # beyond both, a small file is made to fill the memory
ORIENTATION = 0x0112  # of EXIF
DRAFT = 2
"""A large JPEG is decoded at a half, a quarter or an eighth of its size, if that is at least so many times the size
asked for, which is faster."""
FORMATS = ("AVIF", "BMP", "GIF", "HEIF", "JPEG", "MPO", "PNG", "PPM", "TIFF", "WEBP")
"""What Pillow may read. Among the others is EPS, for which it starts Ghostscript."""
SUFFIX_OF = {"HEIF": ".heic", "JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif"}
"""Where it is not the name of the format."""


def decode_image(file: IO[bytes], where: str, size: int | None = None) -> np.ndarray:
    """One picture as uint8 [3, h, w], upright; with `size` its central square, resized."""
    if Path(where).suffix.lower() in (".heic", ".heif") or _is_heif(file):
        _read_heif(where)
    try:
        with (
            warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
            Image.open(file, formats=_formats()) as opened,
        ):
            _check_size(opened, file)
            if size is not None:
                opened.draft("RGB", (DRAFT * size, DRAFT * size))
            picture = upright(opened)
    except Exception as error:  # a damaged file makes Pillow raise almost anything
        raise UserError(f"{where} is not a readable image ({_why(error, file)}); replace or remove it") from error
    if size is not None:
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))


def read_file(path: str | Path, size: int) -> np.ndarray:
    """One image file as uint8 [3, size, size]: the centre square, resized."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path") from error
    return read_content(content, str(path), size)


def read_content(content: bytes, name: str, size: int) -> np.ndarray:
    """The content of an image file as uint8 [3, size, size]: the centre square, resized; errors mention the name."""
    return decode_image(io.BytesIO(content), name, size)


def find_suffix(file: IO[bytes]) -> str:
    """The suffix for a picture that `decode_image` has read, by its content."""
    with (
        warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
        Image.open(file, formats=_formats()) as opened,
    ):
        name = str(opened.format)
    return SUFFIX_OF.get(name, f".{name.lower()}")


def read_size(path: Path) -> tuple[int, int] | None:
    """Width and height of a picture file, by its header alone; None if that cannot be read."""
    try:
        with (
            warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
            Image.open(path, formats=_formats()) as opened,
        ):
            return opened.size
    except Exception:  # a damaged file makes Pillow raise almost anything; decoding it will say what is wrong
        return None


def _formats() -> list[str]:
    """Those of the allowed formats that this Pillow reads."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _check_size(opened: Image.Image, file: IO[bytes]) -> None:
    """Refuse what would fill the memory, before it is decoded."""
    num_pixels, position = opened.width * opened.height, file.tell()
    num_bytes = file.seek(0, io.SEEK_END)
    file.seek(position)
    if num_pixels > MAX_PIXELS or num_pixels > max(BOMB_PIXELS, BOMB_PIXELS_PER_BYTE * num_bytes):
        raise ValueError(f"{opened.width} x {opened.height} pixels in {num_bytes} bytes, too many to be a photo")


def _why(error: Exception, file: IO[bytes]) -> str:
    """What is wrong with a picture file, in words."""
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {MAX_PIXELS} pixels"
    if "pixels" in str(error):
        return str(error)
    if not file.seek(0, 2):
        return "an empty file"
    if isinstance(error, UnidentifiedImageError):
        return "not a format that recollect reads"
    return "cut short" if "truncated" in str(error) else type(error).__name__


def _is_heif(file: IO[bytes]) -> bool:
    """Whether a picture is in the format of Apple's photos, whatever its name."""
    position = file.tell()
    start = file.read(11)
    file.seek(position)
    return start[4:] in (b"ftyphei", b"ftyphev")


def _read_heif(where: str) -> None:
    """Teach Pillow the format of Apple's photos, which a package of its own reads."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError as error:
        raise UserError(f"{where} needs pip install 'recollect-rfe[heif]' to be read; or convert it to JPEG") from error
    register_heif_opener()


def upright(opened: Image.Image) -> Image.Image:
    """A picture of any mode as RGB, turned as its EXIF says; what is transparent becomes white."""
    opened.load()
    image = ImageOps.exif_transpose(opened) if opened.getexif().get(ORIENTATION, 1) != 1 else opened
    if image.mode.startswith("I"):  # 16 or 32 bits a pixel, which convert() would clip to white
        image = _as_bytes(np.asarray(image), wide=image.mode == "I")
    if image.mode == "F":
        raise ValueError("floating-point pixels")
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _as_bytes(pixels: np.ndarray, *, wide: bool) -> Image.Image:
    """Grey of 16 bits; 32 bits may hold as many, or bytes."""
    least, most = int(pixels.min()), int(pixels.max())
    if least < 0 or most > 65535:
        raise ValueError(f"pixels from {least} to {most}, where 0 to 65535 can be read")
    return Image.fromarray((pixels if wide and most < 256 else pixels // 257).astype(np.uint8))
