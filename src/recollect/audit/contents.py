"""What a file holds as sequences of numbers, however they were written; each comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from recollect.audit import decoding
from recollect.audit.files import Stored, open_layout, read_pieces, unreadable
from recollect.audit.inventory import stores_of
from recollect.audit.pictures import pictures_in, pictures_of

Contents = Iterator[tuple[str, Iterable[Tensor]]]
SMALLEST, LARGEST, STRETCH = 1e-12, 1e12, 64  # of numbers that bytes may stand for; compared so many at a time
FLOATS = {"32-bit": torch.float32, "64-bit": torch.float64}
ENCODINGS = {"base64": (decoding.base64_in, 4), "hexadecimal digits": (decoding.hex_in, 2)}


def contents_of(path: Path, image_shape: Sequence[int]) -> Contents:
    """Everything to be searched in a file, as names and numbers."""
    if not path.is_file():
        raise unreadable(path, "a broken link, a link to a folder, or no regular file; remove it or audit its target")
    is_tensors = path.suffix == ".safetensors"
    yield from _tensors_of(path) if is_tensors else _bytes_of(path)
    yield from _texts_of(path, open_layout(path).end if is_tensors else None, image_shape)
    for name, picture in pictures_of(path, image_shape):
        yield name, [picture]


def _tensors_of(path: Path) -> Contents:
    """The tensors of a safetensors file, as numbers and as bytes; the free slots of a store apart from its samples."""
    sizes = {f"{store.name}.images": len(store) for store in stores_of(path)}
    for stored in open_layout(path).tensors:
        if stored.begin == stored.end:
            continue
        samples = sizes.get(stored.name)
        if samples is None:
            yield from _numbers_of(path, stored)
        else:
            middle = stored.begin + samples * ((stored.end - stored.begin) // stored.shape[0])
            yield stored.name, _as_numbers(read_pieces(path, stored.begin, middle), stored.dtype)
            yield f"{stored.name} (free slots)", _as_numbers(read_pieces(path, middle, stored.end), stored.dtype)
        if stored.dtype != torch.uint8:
            yield f"{stored.name} (its bytes)", _as_numbers(read_pieces(path, stored.begin, stored.end), torch.uint8)


def _numbers_of(path: Path, stored: Stored) -> Contents:
    def read() -> Iterator[Tensor]:
        return _as_numbers(read_pieces(path, stored.begin, stored.end), stored.dtype)

    if stored.dtype.is_complex:
        yield f"{stored.name} (real parts)", (piece.real for piece in read())
        yield f"{stored.name} (imaginary parts)", (piece.imag for piece in read())
    else:
        yield stored.name, read()


def _bytes_of(path: Path) -> Contents:
    """A file of any other kind, as bytes and as floating-point numbers that begin at any byte."""
    yield "(bytes of the file)", _as_numbers(read_pieces(path), torch.uint8)
    if all(piece.isascii() for piece in read_pieces(path)):
        return
    for bits, dtype in FLOATS.items():
        for skip in range(dtype.itemsize):
            yield f"({bits} numbers from byte {skip})", map(_keep_likely, _as_numbers(read_pieces(path, skip), dtype))


def _texts_of(path: Path, end: int | None, image_shape: Sequence[int]) -> Contents:
    """What is written as text in a file, of which the characters up to `end` count."""
    yield "(numbers in text)", decoding.numbers_in(read_pieces(path))
    if not all(piece.isascii() for piece in read_pieces(path, 0, end)):  # else its characters are its bytes
        yield "(characters)", decoding.characters_in(read_pieces(path, 0, end), escaped=False)
    if any(b"\\" in piece for piece in read_pieces(path, 0, end)):
        yield "(escaped characters)", decoding.characters_in(read_pieces(path, 0, end), escaped=True)
    for encoding, (decode, group) in ENCODINGS.items():
        decoded = partial(_decode, path, decode)
        if next(decoded(0), None) is None:
            continue
        for skip in range(group):
            yield f"({encoding})", _as_numbers(decoded(skip), torch.uint8)
        for bits, dtype in FLOATS.items():
            yield f"({encoding}, {bits} numbers)", map(_keep_likely, _as_numbers(decoded(0), dtype))
        for skip in range(group):
            for data in decoded(skip):
                for name, picture in pictures_in(data, image_shape):
                    yield f"({encoding}) {name}", [picture]


def _decode(path: Path, decode: decoding.Decode, skip: int) -> Iterator[bytes]:
    return decode(read_pieces(path), skip)


def _as_numbers(pieces: Iterable[bytes | bytearray], dtype: torch.dtype) -> Iterator[Tensor]:
    """Bytes as numbers of a type, each piece holding complete ones; a trailing incomplete number is dropped."""
    for piece in pieces:
        whole = len(piece) // dtype.itemsize * dtype.itemsize
        if whole:
            yield torch.frombuffer(piece if isinstance(piece, bytearray) else bytearray(piece), dtype=torch.uint8)[
                :whole
            ].view(dtype)


def _keep_likely(numbers: Tensor) -> Tensor:
    """Numbers with those stretches set to 0 that are no numbers: most would be absurdly large or small."""
    if not numbers.any():
        return numbers
    size = numbers.abs()
    is_likely = (numbers == 0) | ((size > SMALLEST) & (size < LARGEST))
    padded = torch.nn.functional.pad(is_likely, (0, -len(numbers) % STRETCH), value=True).view(-1, STRETCH)
    keep = padded.sum(dim=1) * 2 >= STRETCH
    return torch.where(keep.repeat_interleave(STRETCH)[: len(numbers)], numbers, 0)
