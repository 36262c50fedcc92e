"""Reading image files, and a stream from any folder with one sub-folder of images per class."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console

from recollect.errors import UserError
from recollect.rng import Key
from recollect.streams.cache import Decoded, dataset_in_memory
from recollect.streams.protocol import Dataset, Protocol, Source, StreamOptions


@dataclass(frozen=True, kw_only=True)
class ImageOptions(StreamOptions):
    image_size: int = 64
    """Side length in pixels; the central square of each image is resized to it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 16 <= self.image_size <= 1024:
            raise UserError(f"image_size lies between 16 and 1024 pixels, got {self.image_size}")


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
TEST_SHARE = 0.2
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
        raise UserError(f"{where} is not a readable image ({_why(error, file)}); replace it or take it out") from error
    if size is not None:
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))


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
        return "no picture of a known kind"
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


def load_folder(options: StreamOptions, data_root: Path | None) -> Dataset:
    """`root/class/*.png`, or `root/train/class` and `root/test/class`; without a test folder a fifth is held out.

    A user's own images are decoded for every run and copied nowhere.
    """
    if data_root is None:
        raise UserError("the stream 'images' reads a folder with one sub-folder per class; give it with --data-root")
    if not data_root.is_dir():
        raise UserError(f"--data-root {data_root} is not a folder")
    if not isinstance(options, ImageOptions):
        raise UserError(f"the options of the stream 'images' are ImageOptions, got {type(options).__name__}")
    with Console(stderr=True).status(f"reading the images of {data_root}"):
        return dataset_in_memory(*_decode(data_root, options.image_size))


def _decode(root: Path, size: int) -> Decoded:
    separate = (root / "train").is_dir() and (root / "test").is_dir()
    if not separate and (root / "train").is_dir() and not _is_class(root / "train"):
        raise UserError(f"{root} has a folder train/ but no test/; add one, or give {root / 'train'} as --data-root")
    train_root = root / "train" if separate else root
    folders = class_pictures(train_root)
    names = tuple(folders)
    pictures: dict[str, list[tuple[Path, int]]] = {"train": [], "test": []}
    for label, name in enumerate(names):
        paths = folders[name]
        if separate:
            pictures["train"] += [(p, label) for p in paths]
            pictures["test"] += [(p, label) for p in _pictures(root / "test" / name)]
        else:
            held_out = min(max(1, round(TEST_SHARE * len(paths))), len(paths) - 1)
            order = np.random.default_rng((Key(0) / "test images" / name).number()).permutation(len(paths))
            pictures["test"] += [(paths[i], label) for i in sorted(order[:held_out])]
            pictures["train"] += [(paths[i], label) for i in sorted(order[held_out:])]
    arrays = {}
    for split, listed in pictures.items():
        decoded = [decode_image(io.BytesIO(p.read_bytes()), str(p), size) for p, _ in listed]
        arrays[f"{split}_images"] = np.stack(decoded) if decoded else np.zeros((0, 3, size, size), np.uint8)
        arrays[f"{split}_labels"] = np.array([label for _, label in listed], np.int64)
    return arrays, names


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
    return {name: _pictures(root / name, skipped) for name in names}


def _entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not is_litter(p))


def is_litter(path: Path) -> bool:
    """What systems leave in folders: hidden files, and thumbnails."""
    return path.name.startswith((".", "@eaDir")) or path.name.lower() in LITTER


def _is_class(folder: Path) -> bool:
    return not any(p.is_dir() for p in _entries(folder))


def _pictures(folder: Path, skipped: list[Path] | None = None) -> list[Path]:
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


STREAMS = {
    "images": Source(
        load=load_folder,
        options=ImageOptions(tasks=2),
        protocol=Protocol(training={"epochs": 20}),
        about="any folder with one sub-folder of images per class, given by --data-root; the central squares, resized",
    ),
}
