"""Reads everything in a file as sequences of numbers, in pieces: tensors, bytes, text, encodings and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from recollect.audit import decoding
from recollect.audit.files import Stored, open_layout, read_pieces, unreadable_error
from recollect.audit.inventory import list_stores
from recollect.audit.pictures import decode_pictures, read_pictures

Contents = Iterator[tuple[str, Iterable[Tensor]]]
MIN_NUMBER, MAX_NUMBER = 1e-12, 1e12  # sizes that are likely if bytes really are floating-point numbers
STRETCH = 64  # numbers that are judged together
FLOATS = {"32-bit": torch.float32, "64-bit": torch.float64}
ENCODINGS = {"base64": (decoding.decode_base64, 4), "hexadecimal digits": (decoding.decode_hex, 2)}


def read_contents(path: Path, image_shape: Sequence[int]) -> Contents:
    """Yield everything to be searched in a file: a name and its numbers in pieces."""
    if not path.is_file():
        raise unreadable_error(
            path, "a broken link, a link to a folder, or not a regular file; remove it or audit its target"
        )
    is_tensors = path.suffix == ".safetensors"
    yield from _read_tensors(path) if is_tensors else _read_bytes(path)
    yield from _read_text(path, open_layout(path).end if is_tensors else None, image_shape)
    for name, picture in read_pictures(path, image_shape):
        yield name, [picture]


def _read_tensors(path: Path) -> Contents:
    """Yield the tensors of a safetensors file, as numbers and as bytes; free slots of a store are separate."""
    sizes = {f"{store.name}.images": len(store) for store in list_stores(path)}
    for stored in open_layout(path).tensors:
        if stored.begin == stored.end:
            continue
        samples = sizes.get(stored.name)
        if samples is None:
            yield from _read_numbers(path, stored)
        else:
            middle = stored.begin + samples * ((stored.end - stored.begin) // stored.shape[0])
            yield stored.name, _to_numbers(read_pieces(path, stored.begin, middle), stored.dtype)
            yield f"{stored.name} (free slots)", _to_numbers(read_pieces(path, middle, stored.end), stored.dtype)
        if stored.dtype != torch.uint8:
            yield f"{stored.name} (its bytes)", _to_numbers(read_pieces(path, stored.begin, stored.end), torch.uint8)


def _read_numbers(path: Path, stored: Stored) -> Contents:
    def read() -> Iterator[Tensor]:
        return _to_numbers(read_pieces(path, stored.begin, stored.end), stored.dtype)

    if stored.dtype.is_complex:
        yield f"{stored.name} (real parts)", (piece.real for piece in read())
        yield f"{stored.name} (imaginary parts)", (piece.imag for piece in read())
    else:
        yield stored.name, read()


def _read_bytes(path: Path) -> Contents:
    """Yield a file of any other kind as bytes, and as floating-point numbers that start at any byte."""
    yield "(bytes of the file)", _to_numbers(read_pieces(path), torch.uint8)
    if all(piece.isascii() for piece in read_pieces(path)):
        return
    for bits, dtype in FLOATS.items():
        for skip in range(dtype.itemsize):
            yield f"({bits} numbers from byte {skip})", map(_zero_unlikely, _to_numbers(read_pieces(path, skip), dtype))


def _read_text(path: Path, end: int | None, image_shape: Sequence[int]) -> Contents:
    """Yield what is written as text in a file: numbers, the characters up to `end`, base64 and hexadecimal digits."""
    yield "(numbers in text)", decoding.parse_numbers(read_pieces(path))
    if not all(piece.isascii() for piece in read_pieces(path, 0, end)):  # else its characters are its bytes
        yield "(characters)", decoding.parse_characters(read_pieces(path, 0, end), escaped=False)
    if any(b"\\" in piece for piece in read_pieces(path, 0, end)):
        yield "(escaped characters)", decoding.parse_characters(read_pieces(path, 0, end), escaped=True)
    for encoding, (decode, group) in ENCODINGS.items():
        decoded = partial(_decode, path, decode)
        if next(decoded(0), None) is None:
            continue
        for skip in range(group):
            yield f"({encoding})", _to_numbers(decoded(skip), torch.uint8)
        for bits, dtype in FLOATS.items():
            yield f"({encoding}, {bits} numbers)", map(_zero_unlikely, _to_numbers(decoded(0), dtype))
        for skip in range(group):
            for data in decoded(skip):
                for name, picture in decode_pictures(data, image_shape):
                    yield f"({encoding}) {name}", [picture]


def _decode(path: Path, decode: decoding.Decode, skip: int) -> Iterator[bytes]:
    return decode(read_pieces(path), skip)


def _to_numbers(pieces: Iterable[bytes | bytearray], dtype: torch.dtype) -> Iterator[Tensor]:
    """View bytes as numbers of a type; each piece holds complete ones, and an incomplete last number is dropped."""
    for piece in pieces:
        size = len(piece) // dtype.itemsize * dtype.itemsize
        if size:
            data = piece if isinstance(piece, bytearray) else bytearray(piece)
            yield torch.frombuffer(data, dtype=torch.uint8)[:size].view(dtype)


def _zero_unlikely(numbers: Tensor) -> Tensor:
    """Set to 0 those stretches that are not really numbers: most of them would be absurdly large or small."""
    if not numbers.any():
        return numbers
    size = numbers.abs()
    is_likely = (numbers == 0) | ((size > MIN_NUMBER) & (size < MAX_NUMBER))
    padded = torch.nn.functional.pad(is_likely, (0, -len(numbers) % STRETCH), value=True).view(-1, STRETCH)
    keep = padded.sum(dim=1) * 2 >= STRETCH
    return torch.where(keep.repeat_interleave(STRETCH)[: len(numbers)], numbers, 0)
