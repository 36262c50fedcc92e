"""Picture files: those to look for, and those in a folder under any name or inside other files."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import torch
from torch import Tensor

from recollect.audit.files import files_of, read_pieces, unreadable
from recollect.errors import UserError
from recollect.streams.images import SUFFIXES, decode_image

SIGNATURES = {  # how pictures begin, and how far from their first byte that is
    b"\x89PNG\r\n\x1a\n": 0, b"\xff\xd8\xff": 0, b"GIF8": 0, b"II*\0": 0, b"MM\0*": 0, b"WEBP": 8, b"ftyp": 4,
}  # fmt: skip
LONGEST_SIGNATURE = 12


def read_images(folder: Path, image_shape: Sequence[int]) -> tuple[list[Path], Tensor]:
    """All picture files under a folder as bytes [n, c, h, w], made to the size that a run learned from."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give a folder of the images to look for")
    paths = [path for path in files_of(folder) if path.suffix.lower() in SUFFIXES]
    if not paths:
        raise UserError(f"there are no images under {folder}; give a folder of the images to look for")
    images = []
    for path in paths:
        with path.open("rb") as file:
            images.append(_sized(file, str(path), image_shape))
    return paths, torch.stack(images)


def pictures_of(path: Path, image_shape: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """What a file shows, if it is a picture under whatever name, and what pictures inside it show."""
    with path.open("rb") as file:
        try:
            yield from _views(file, str(path), image_shape, "picture")
            begin = 1
        except UserError as error:
            if path.suffix.lower() in SUFFIXES:
                raise unreadable(path, error) from error
            begin = 0  # no picture: it is searched as bytes, and for pictures inside it
        for offset in _signatures(read_pieces(path)):
            if offset >= begin:
                try:
                    yield from _views(
                        cast(IO[bytes], _Part(file, offset)), "part.bin", image_shape, f"picture at byte {offset}"
                    )
                except UserError:  # bytes that look like the start of a picture
                    continue


def pictures_in(data: bytes, image_shape: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """What pictures in decoded bytes show."""
    for offset in _signatures([data]):
        try:
            yield from _views(io.BytesIO(data[offset:]), "part.bin", image_shape, "picture")
        except UserError:
            continue


def _signatures(pieces: Iterable[bytes | bytearray]) -> Iterator[int]:
    """Where a picture may begin."""
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


def _views(file: IO[bytes], where: str, image_shape: Sequence[int], name: str) -> Iterator[tuple[str, Tensor]]:
    """A picture in the size of the images, and in its own."""
    channels, height, width = image_shape
    picture = _shown(file, where, channels)
    yield f"({name})", picture
    if picture.shape[1:] != (height, width):
        file.seek(0)
        yield f"({name}, resized)", _shown(file, where, channels, height)


def _sized(file: IO[bytes], where: str, image_shape: Sequence[int]) -> Tensor:
    """A picture file as bytes [c, h, w]; its middle square resized where it has another size."""
    *_, (_, picture) = _views(file, where, image_shape, "picture")
    return picture


def _shown(file: IO[bytes], where: str, channels: int, size: int | None = None) -> Tensor:
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
