"""Decodes numbers and bytes that are written as text: decimal numbers, characters, base64 and hexadecimal digits.

Each function reads a stream of bytes in pieces and yields one sequence in pieces. What the end of a piece cuts is
carried over to the next.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

PRINTABLE = rb"[\t\n\r\x20-\x7e]"
TEXT = re.compile(rb"\A%b+|%b{64,}|%b+\Z" % (PRINTABLE, PRINTABLE, PRINTABLE))
NUMBER = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
NUMBER_CHARACTERS = b"0123456789.eE+-"
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "0": "\0"}
BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_\\\r\n"
HEX = b"0123456789abcdefABCDEFxX\\ \t\r\n,:;"
_SAFE_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
Decode = Callable[[Iterable[bytes | bytearray], int], Iterator[bytes]]
_NO_HEX = bytes(set(HEX) - set(b"0123456789abcdefABCDEF"))
MIN_RUN = 32  # characters of base64 or hexadecimal digits; shorter ones are words
MAX_RUN = 1 << 23  # characters of base64 or hexadecimal digits decoded at a time
MAX_TEXT = 1 << 18  # characters of other text read at a time, as each number or escape becomes an object
MAX_REPLACED = 0.25  # fraction of invalid characters above which bytes are not text


def parse_numbers(pieces: Iterable[bytes | bytearray]) -> Iterator[Tensor]:
    """Yield all decimal numbers in text, as one sequence."""
    tail = b""
    for piece in _split_pieces(pieces, MAX_TEXT):
        data = tail + piece
        cut = len(data.rstrip(NUMBER_CHARACTERS)) if piece else len(data)
        tail = data[cut:] if len(data) - cut < MAX_TEXT else b""
        numbers = [float(number) for run in TEXT.finditer(data[:cut]) for number in NUMBER.findall(run[0])]
        if numbers:
            yield torch.tensor(numbers, dtype=torch.float64)


def parse_characters(pieces: Iterable[bytes | bytearray], *, escaped: bool) -> Iterator[Tensor]:
    """Yield the code points of UTF-8 text; if `escaped`, \\u00ff and \\xff are the characters they stand for."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    tail = ""
    for piece in _split_pieces(pieces, MAX_TEXT):
        text = tail + decoder.decode(piece, final=not piece)
        tail = ""
        if escaped and piece:  # an escape may be cut
            last = text.rfind("\\", max(len(text) - 6, 0))
            if last >= 0:
                first = len(text[: last + 1].rstrip("\\"))  # of backslashes in a row, which are escaped in pairs
                last -= (last - first) % 2
                text, tail = text[:last], text[last:]
        if text and text.count("\ufffd") <= MAX_REPLACED * len(text):
            plain = ESCAPE.sub(_unescape, text) if escaped else text
            yield torch.frombuffer(bytearray(plain.encode("utf-32-le", "surrogatepass")), dtype=torch.int32)


def _unescape(match: re.Match[str]) -> str:
    digits = match[1] or match[2]
    return chr(int(digits, 16)) if digits else ESCAPED.get(match[3], match[3])


def decode_base64(pieces: Iterable[bytes | bytearray], skip: int = 0) -> Iterator[bytes]:
    """Decode runs of base64, leaving out the first `skip` characters of each."""
    for text in _find_runs(pieces, BASE64, _clean_base64, skip, 4):
        yield base64.b64decode(text)


def decode_hex(pieces: Iterable[bytes | bytearray], skip: int = 0) -> Iterator[bytes]:
    """Decode runs of hexadecimal digits, leaving out the first `skip` digits of each."""
    for text in _find_runs(pieces, HEX, _clean_hex, skip, 2):
        yield binascii.unhexlify(text)


def _find_runs(
    pieces: Iterable[bytes | bytearray], alphabet: bytes, clean: Callable[[bytes], bytes], skip: int, group: int
) -> Iterator[bytes]:
    """Yield long runs of an alphabet without the separators of its digits, in complete groups of digits."""
    digit = b"[%b]" % re.escape(alphabet)
    long, cut_or_long = re.compile(digit + b"{%d,}" % MIN_RUN), re.compile(rb"\A%b+|%b{%d,}" % (digit, digit, MIN_RUN))
    tail, rest, is_cut = b"", b"", False
    for piece in _split_pieces(pieces, MAX_RUN):
        data = tail + piece
        end = len(data.rstrip(alphabet)) if piece else len(data)
        runs = [(run.start(), run[0]) for run in (cut_or_long if is_cut else long).finditer(data, 0, end)]
        tail = data[end:]
        if len(tail) >= MAX_RUN:
            runs.append((end, tail))
            tail = b""
        for start, run in runs:
            text = rest + clean(run) if is_cut and start == 0 else clean(run)[skip:]
            size = len(text) // group * group
            rest = text[size:]
            if size:
                yield text[:size]
        is_cut = (end == 0 and is_cut) if tail else bool(runs) and runs[-1][0] + len(runs[-1][1]) == len(data)


def _clean_base64(run: bytes) -> bytes:
    if b"\\" in run:
        run = run.replace(b"\\n", b"").replace(b"\\r", b"")
    return run.translate(_SAFE_TO_STANDARD, b"\\\r\n")


def _clean_hex(run: bytes) -> bytes:
    for prefix in (b"0x", b"0X"):
        run = run.replace(prefix, b"")
    return run.translate(None, _NO_HEX)


def _split_pieces(pieces: Iterable[bytes | bytearray], size: int) -> Iterator[bytes | bytearray]:
    """Yield pieces of at most a size, then an empty one; a piece of zeros becomes a single zero."""
    for piece in pieces:
        if piece.count(0) == len(piece):
            yield b"\0"
        else:
            yield from (piece[at : at + size] for at in range(0, len(piece), size))
    yield b""
