"""A search takes little memory, and finds images wherever its chunks begin."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recollect.audit import Searcher, decoding, search
from tests.audit.support import PIECES

SIZES = (5 << 20, 35 << 20)  # bytes of a file
MAX_MEGABYTES = 100  # above the interpreter with torch and the images, which are about 320
MAX_GROWTH = 50  # megabytes from the small file to the large one, which as numbers would take 120 more
SEARCH = """
import json, resource, sys
from pathlib import Path
from recollect.audit import Searcher
from tests.audit.support import PIECES
def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
searcher, before, rows = Searcher(PIECES[:4]), megabytes(), []
for folder in sys.argv[1:]:
    images = sorted({finding.image for finding in searcher.search_folder(Path(folder))})
    rows.append((images, megabytes() - before))
print(json.dumps(rows))
"""


def write_sparse(folder: Path, size: int, *, safetensors: bool) -> None:
    """A file of zeros that takes no room, with an image at its end."""
    header = b""
    if safetensors:
        about = {"weights": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
        text = json.dumps(about).encode()
        header = struct.pack("<Q", len(text)) + text
    folder.mkdir()
    with (folder / ("state.safetensors" if safetensors else "notes.bin")).open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)
        file.seek(-PIECES[0].numel(), 2)
        file.write(PIECES[2].numpy().tobytes())


def test_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    """Peak memory is small, and a file of seven times the size needs hardly more."""
    folders = []
    for size in SIZES:
        for safetensors in (False, True):
            folders.append(tmp_path / f"{size}-{safetensors}")
            write_sparse(folders[-1], size, safetensors=safetensors)
    command = [sys.executable, "-c", SEARCH, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=600)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [images for images, _ in rows] == [[2]] * 4
    peaks = [peak for _, peak in rows]  # in this order, so that they never fall
    assert peaks[-1] < MAX_MEGABYTES
    assert peaks[-1] - peaks[1] < MAX_GROWTH


@pytest.mark.parametrize("num_pieces", [1, 7])
def test_images_are_found_across_the_ends_of_chunks(num_pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CHUNK", 5000)
    searcher = Searcher(PIECES[:4])
    searcher.reach = 32 * 64 * 4
    generator = torch.Generator().manual_seed(0)
    wide = torch.nn.functional.pad(PIECES[2], (20, 12))
    for offset in range(3000, 16000, 1700):
        numbers = torch.randn(40000, generator=generator)
        numbers[offset : offset + wide.numel()] = wide.permute(1, 2, 0).flatten() / 255
        findings = list(searcher.search(iter(numbers.chunk(num_pieces)), Path("x"), "y"))
        assert [f.image for f in findings] == [2]
        assert offset < findings[0].offset < offset + wide.numel()


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 97, 5000])
def test_text_is_decoded_the_same_in_pieces_of_any_size(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MAX_RUN", 500)
    data = torch.randint(0, 256, (3000,), generator=torch.Generator().manual_seed(0)).tolist()
    encoded = base64.b64encode(bytes(data))
    for skip in range(4):
        text = b"!" + b"x" * skip + encoded + b"!"
        assert b"".join(decoding.decode_base64(in_pieces(text, size), skip)) == bytes(data)
    for skip in range(2):
        text = b"!" + b"a" * skip + bytes(data).hex(" ").encode() + b"!"
        assert b"".join(decoding.decode_hex(in_pieces(text, size), skip)) == bytes(data)
    text = json.dumps([value / 7 for value in data]).encode()
    assert torch.cat(list(decoding.parse_numbers(in_pieces(text, size)))).tolist() == [value / 7 for value in data]
    for ascii_only in (True, False):
        text = json.dumps("".join(map(chr, data)), ensure_ascii=ascii_only).encode()
        characters = torch.cat(list(decoding.parse_characters(in_pieces(text, size), escaped=True)))
        assert characters[1:-1].tolist() == data
