"""Every kind of hiding that docs/reliability.md names is tried: those that are found, and those that are not."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from recollect.audit import Searcher
from recollect.audit.claims import FOUND_AS, FOUND_IN, NOT_FOUND
from tests.audit.support import PIECES, in_a_larger_picture, noisy, normalised, shifted

SEARCHED = PIECES[10:34]  # of which none shows what another does
SECRET = 7
IMAGE = SEARCHED[SECRET]
SEARCHER = Searcher(SEARCHED)
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
Hide = Callable[[Path], object]


def raw(image: Tensor = IMAGE) -> bytes:
    return image.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def picture(kind: str, image: Tensor = IMAGE) -> bytes:
    out = io.BytesIO()
    lossy = {"JPEG": {"quality": 98, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(out, kind, **lossy)
    return out.getvalue()


def gif() -> bytes:
    """A grey picture, as a GIF keeps too few colours for others; of the channel of most contrast."""
    best = int(IMAGE.float()[:, 4:-4, 4:-4].flatten(1).std(dim=1).argmax())
    out = io.BytesIO()
    Image.fromarray(IMAGE[best].numpy()).save(out, "GIF")
    return out.getvalue()


def file_of(name: str, data: bytes | str) -> Hide:
    def hide(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    return hide


def tensor_of(values: Tensor) -> Hide:
    return lambda folder: save_file({"weights": values.contiguous()}, folder / "state.safetensors")


def metadata_of(text: str) -> Hide:
    return lambda folder: save_file({"w": torch.zeros(3)}, folder / "state.safetensors", {"note": text})


def name_of(text: str) -> Hide:
    return lambda folder: save_file({text: torch.zeros(3)}, folder / "state.safetensors")


LATIN = raw().decode("latin-1")
BASE64 = base64.b64encode(raw()).decode()
NESTED = IMAGE.permute(1, 2, 0).tolist()

HIDDEN_IN: dict[str, list[Hide]] = {
    "a picture file of any name": [
        file_of(name, picture(kind))
        for name, kind in (("lock", "PNG"), ("photos/state.json", "PNG"), ("x.png", "PNG"), ("data.json", "JPEG"))
    ],
    "a picture file inside another file (PNG, JPEG, GIF, WebP, TIFF)": [
        *(file_of("notes.bin", b"some text" + picture(kind) + b"more") for kind in ("PNG", "JPEG", "WEBP", "TIFF")),
        file_of("notes.bin", b"some text" + gif() + b"more"),
        tensor_of(torch.frombuffer(bytearray(b"before" + picture("PNG")), dtype=torch.uint8)),
        file_of("notes.json", json.dumps({"note": base64.b64encode(picture("PNG")).decode()})),
    ],
    "the raw bytes of a file or of a tensor of any type": [
        file_of("notes.bin", b"text" + raw() + b"more"),
        tensor_of(IMAGE),
        *(tensor_of(IMAGE.flatten().view(dtype)) for dtype in (torch.float32, torch.int64, torch.bfloat16)),
    ],
    "the numbers of a tensor": [
        tensor_of(IMAGE.to(dtype))
        for dtype in (torch.float16, torch.float32, torch.float64, torch.int16, torch.int32, torch.int64, torch.uint16)
    ],
    "the real or imaginary parts of a complex tensor": [
        tensor_of(torch.complex(IMAGE.float(), torch.randn(IMAGE.shape))),
        tensor_of(torch.complex(torch.randn(IMAGE.shape), normalised(IMAGE))),
    ],
    "32-bit or 64-bit floating-point numbers in a file of any kind": [
        file_of("notes.bin", b"abc" + raw(normalised(IMAGE))),
        file_of("notes.bin", b"abcde" + raw(normalised(IMAGE).double())),
    ],
    "the characters of a tensor's name or of a safetensors file's metadata": [
        metadata_of(LATIN),
        name_of(LATIN),
        metadata_of("".join(chr(0x4E00 + byte) for byte in raw())),
    ],
    "the characters of a text file": [
        file_of("notes.txt", LATIN),
        file_of("notes.json", json.dumps({"note": LATIN})),
        file_of("notes.py", repr(raw())),
    ],
    "decimal numbers in JSON or other text": [
        file_of("notes.json", json.dumps({"pixels": NESTED})),
        file_of("notes.json", json.dumps(normalised(IMAGE).tolist(), indent=1)),
        file_of("notes.csv", "\n".join(",".join(map(str, row)) for row in IMAGE.flatten(0, 1).tolist())),
        metadata_of(str(NESTED)),
    ],
    "base64": [
        file_of("notes.json", json.dumps({"note": BASE64})),
        file_of("notes.txt", base64.encodebytes(raw())),
        file_of("notes.json", json.dumps({"note": base64.encodebytes(raw()).decode()})),
        file_of("notes.txt", base64.urlsafe_b64encode(b"x" + raw())),
        file_of("notes.txt", b"x/y" + base64.b64encode(raw())),
        file_of("notes.json", json.dumps([base64.b64encode(bytes(row)).decode() for row in IMAGE.flatten(0, 1)])),
        file_of("notes.txt", base64.b64encode(raw(normalised(IMAGE)))),
        metadata_of(BASE64),
        name_of(BASE64),
        tensor_of(torch.frombuffer(bytearray(BASE64, "ascii"), dtype=torch.uint8)),
    ],
    "hexadecimal digits": [
        file_of("notes.txt", raw().hex()),
        file_of("notes.txt", "a" + raw().hex().upper()),
        file_of("notes.txt", raw().hex(" ")),
        file_of("notes.c", ", ".join(f"0x{byte:02x}" for byte in raw())),
        metadata_of(raw().hex()),
        name_of(raw().hex()),
    ],
}


def with_alpha(image: Tensor) -> Tensor:
    return torch.cat([image, torch.full_like(image[:1], 255)]).permute(1, 2, 0)


HIDDEN_AS: dict[str, list[Callable[[Tensor], Tensor]]] = {
    "scaled or normalised": [
        lambda image: image / 255,
        normalised,
        lambda image: image * -1e-30,
        lambda image: image * 1e30,
    ],
    "with an offset of any size that leaves its pixels distinct": [
        lambda image: image.double() + 1e9,
        lambda image: image.long() + 2**40,
        lambda image: image.long() - 2**62,
        lambda image: image.int() + 2**30,
        lambda image: image.float() + 1e5,
    ],
    "inverted": [lambda image: 255 - image, lambda image: -normalised(image), lambda image: 255 - noisy(image).float()],
    "stored channel by channel": [lambda image: image.float()],
    "stored pixel by pixel": [lambda image: image.permute(1, 2, 0), lambda image: normalised(image).permute(1, 2, 0)],
    "stored pixel by pixel with an alpha channel": [with_alpha, lambda image: with_alpha(image).flip(2) / 255],
    "at any place in a longer sequence": [
        lambda image: torch.cat([torch.full((99,), 7.0), image.flatten()]),
        lambda image: torch.cat([torch.randn(20001), image.flatten()]),
    ],
    "inside a larger picture up to 1024 pixels wide": [
        in_a_larger_picture,
        lambda image: torch.nn.functional.pad(image, (600, 392, 5, 9)),
        lambda image: torch.nn.functional.pad(image, (600, 392, 5, 9)).permute(1, 2, 0),
    ],
    "mirrored": [lambda image: image.flip(2), lambda image: 255 - image.flip(2).permute(1, 2, 0)],
    "upside down": [lambda image: image.flip(1), lambda image: image.flip(1, 2).permute(1, 2, 0) / 255],
    "shifted by up to 4 pixels": [lambda image: shifted(image, 4, -4), lambda image: shifted(image, -3, 4) / 255],
    "with noise up to 2/255": [lambda image: noisy(image).float(), lambda image: normalised(noisy(image))],
}
KEY = torch.randint(0, 256, IMAGE.shape, generator=torch.Generator().manual_seed(8), dtype=torch.uint8)
ORDER = torch.randperm(IMAGE.numel(), generator=torch.Generator().manual_seed(8))


def resized(image: Tensor) -> Tensor:
    return interpolate(image[None].float(), size=40, mode="bilinear")[0]


def scattered(folder: Path) -> None:
    save_file({f"row {i}": row.clone() for i, row in enumerate(IMAGE.flatten(0, 1))}, folder / "state.safetensors")


def frames(folder: Path) -> None:
    first = Image.new("RGB", (32, 32))
    second = Image.fromarray(IMAGE.permute(1, 2, 0).numpy())
    first.save(folder / "film.png", save_all=True, append_images=[second])


HIDDEN_FROM_US: dict[str, Hide] = {
    "compressed otherwise than as a picture file, or in a compressed archive": file_of("a.gz", gzip.compress(raw())),
    "encrypted": tensor_of(IMAGE ^ KEY),
    "encoded as text otherwise than above, or twice, or in numbers of more than 15 digits": file_of(
        "a.txt", base64.b85encode(raw())
    ),
    "turned by 90 degrees": tensor_of(IMAGE.rot90(1, (1, 2))),
    "resized": tensor_of(resized(IMAGE)),
    "blurred": tensor_of(avg_pool2d(IMAGE.float(), 5, 1, 2)),
    "with its colours mixed, as in a conversion to grey": tensor_of(IMAGE[0].float() - IMAGE[1].float()),
    "with its brightness changed by a curve": tensor_of((IMAGE / 255) ** 4),
    "with its pixels in another order, or more than 4 numbers apart": tensor_of(IMAGE.flatten()[ORDER]),
    "scattered over several tensors or files": scattered,
    "in the later frames of a picture file, or where it is fully transparent": frames,
    "in a file other than safetensors as numbers of other types than above": file_of(
        "a.bin", raw(normalised(IMAGE).half())
    ),
}


def search(folder: Path) -> set[int]:
    return {finding.image for finding in SEARCHER.search_folder(folder)}


@pytest.mark.parametrize(("kind", "number"), [(kind, i) for kind in FOUND_IN for i in range(len(HIDDEN_IN[kind]))])
def test_an_image_is_found_in_every_listed_location(kind: str, number: int, tmp_path: Path) -> None:
    HIDDEN_IN[kind][number](tmp_path)
    assert search(tmp_path) == {SECRET}


@pytest.mark.parametrize(("kind", "number"), [(kind, i) for kind in FOUND_AS for i in range(len(HIDDEN_AS[kind]))])
def test_an_image_is_found_in_every_listed_form(kind: str, number: int, tmp_path: Path) -> None:
    hidden = HIDDEN_AS[kind][number](IMAGE).flatten()
    noise = torch.randint(-9, 9, (1500,), generator=torch.Generator().manual_seed(4)).to(hidden.dtype)
    tensor_of(torch.cat([noise, hidden, noise]))(tmp_path)
    findings = [f for f in SEARCHER.search_folder(tmp_path) if f.tensor == "weights"]
    assert {f.image for f in findings} == {SECRET}


@pytest.mark.parametrize("kind", NOT_FOUND)
def test_an_image_is_not_found_in_forms_listed_as_limits(kind: str, tmp_path: Path) -> None:
    """So that the limits stay true: a kind that is found belongs to the promise."""
    HIDDEN_FROM_US[kind](tmp_path)
    assert search(tmp_path) == set()


def test_the_page_lists_exactly_the_tested_forms_and_limits() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Nothing is leaked")[2].partition("\n## ")[0]
    lists = [re.findall(r"^- (.+?)[,;.]?$", part, re.MULTILINE) for part in section.split("\n\n")]
    promised_in, promised_as, limits = [listed for listed in lists if listed]
    assert promised_in == list(FOUND_IN) == list(HIDDEN_IN)
    assert promised_as == list(FOUND_AS) == list(HIDDEN_AS)
    assert limits == list(NOT_FOUND) == list(HIDDEN_FROM_US)
