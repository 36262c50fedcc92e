"""Decodes picture files: those to search for, and those in a folder under any name or inside other files."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import torch
from torch import Tensor

from recollect.audit.files import list_files, read_pieces, unreadable_error
from recollect.errors import UserError
from recollect.pictures import SUFFIXES, decode_image

SIGNATURES = {  # the first bytes of picture formats, and their offset from the start
    b"\x89PNG\r\n\x1a\n": 0, b"\xff\xd8\xff": 0, b"GIF8": 0, b"II*\0": 0, b"MM\0*": 0, b"WEBP": 8, b"ftyp": 4,
}  # fmt: skip
LONGEST_SIGNATURE = 12


def read_images(folder: Path, image_shape: Sequence[int]) -> tuple[list[Path], Tensor]:
    """Read all picture files under a folder as bytes [n, c, h, w], resized to the images of a run."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a folder of the images to search for")
    paths = [path for path in list_files(folder) if path.suffix.lower() in SUFFIXES]
    if not paths:
        raise UserError(f"there are no images under {folder}; give a folder of the images to search for")
    images = []
    for path in paths:
        with path.open("rb") as file:
            images.append(_decode_resized(file, str(path), image_shape))
    return paths, torch.stack(images)


def read_pictures(path: Path, image_shape: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """Decode a file if it is a picture, whatever its name, and pictures inside it."""
    with path.open("rb") as file:
        try:
            yield from _decode_views(file, str(path), image_shape, "picture")
            begin = 1
        except UserError as error:
            if path.suffix.lower() in SUFFIXES:
                raise unreadable_error(path, error) from error
            begin = 0  # not a picture: it is searched as bytes, and for pictures inside it
        for offset in _find_signatures(read_pieces(path)):
            if offset >= begin:
                try:
                    yield from _decode_views(
                        cast(IO[bytes], _Part(file, offset)), "part.bin", image_shape, f"picture at byte {offset}"
                    )
                except UserError:  # bytes that look like the start of a picture
                    continue


def decode_pictures(data: bytes, image_shape: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """Decode pictures inside bytes."""
    for offset in _find_signatures([data]):
        try:
            yield from _decode_views(io.BytesIO(data[offset:]), "part.bin", image_shape, "picture")
        except UserError:
            continue


def _find_signatures(pieces: Iterable[bytes | bytearray]) -> Iterator[int]:
    """Yield the offsets where a picture may start."""
    tail, begin = b"", 0
    for piece in itertools.chain(pieces, [b""]):
        data = tail + piece
        starts = set()
        for signature, distance in SIGNATURES.items():
            at = data.find(signature, distance)
            while at >= 0:
                starts.add(at - distance)
                at = data.find(signature, at + 1)
        rest = max(len(data) - LONGEST_SIGNATURE + 1, 0) if piece else len(data)
        yield from (begin + start for start in sorted(starts) if start < rest)
        tail = data[rest:]
        begin += rest


def _decode_views(file: IO[bytes], where: str, image_shape: Sequence[int], name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield a picture in its own size and, if that differs, in the size of the images."""
    channels, height, width = image_shape
    picture = _decode_picture(file, where, channels)
    yield f"({name})", picture
    if picture.shape[1:] != (height, width):
        file.seek(0)
        yield f"({name}, resized)", _decode_picture(file, where, channels, height)


def _decode_resized(file: IO[bytes], where: str, image_shape: Sequence[int]) -> Tensor:
    """Decode a picture file as bytes [c, h, w]; if it has another size, its central square is resized."""
    *_, (_, picture) = _decode_views(file, where, image_shape, "picture")
    return picture


def _decode_picture(file: IO[bytes], where: str, channels: int, size: int | None = None) -> Tensor:
    picture = torch.from_numpy(decode_image(file, where, size))
    return picture if channels > 1 else picture.float().mean(dim=0, keepdim=True).round().to(torch.uint8)


class _Part(io.RawIOBase):
    """A file from an offset on, as a file."""

    def __init__(self, file: IO[bytes], offset: int) -> None:
        self._file = file
        self._offset = offset
        self._file.seek(offset)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell() - self._offset

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET:
            position += self._offset
        return self._file.seek(position, whence) - self._offset

    def read(self, size: int | None = -1) -> bytes:
        return self._file.read(-1 if size is None else size)
