"""The search finds images however a tensor or a file holds them, and raises no false alarm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from recollect.audit import Searcher, take_inventory
from tests.audit.support import (
    PIECES,
    copied,
    in_a_larger_picture,
    newest,
    noisy,
    normalised,
    photo_pieces,
    rewrite,
    shifted,
)


def flat(image: Tensor) -> Tensor:
    return image.flatten()


DISGUISES: dict[str, Callable[[Tensor], Tensor]] = {
    "bytes as floats": lambda image: image.float(),
    "scaled": lambda image: image / 255,
    "normalised": normalised,
    "normalised, half precision": lambda image: normalised(image).half().float(),
    "pixel by pixel": lambda image: image.permute(1, 2, 0) / 255,
    "normalised, pixel by pixel": lambda image: normalised(image).permute(1, 2, 0),
    "mirrored": lambda image: image.flip(2) / 255,
    "shifted down right": lambda image: shifted(image, 4, 4) / 255,
    "shifted up left": lambda image: normalised(shifted(image, -4, -3)),
    "mirrored and shifted, pixel by pixel": lambda image: shifted(image.flip(2), 2, -4).permute(1, 2, 0) / 255,
    "upside down": lambda image: image.flip(1) / 255,
    "turned by half": lambda image: normalised(image.flip(1, 2)).permute(1, 2, 0),
    "padded": lambda image: torch.nn.functional.pad(image, (4, 4, 4, 4)) / 255,
    "mirrored in a larger picture": lambda image: in_a_larger_picture(image.flip(2)) / 255,
    "upside down in a larger picture, pixel by pixel": lambda image: in_a_larger_picture(image.flip(1)).permute(
        1, 2, 0
    ),
    "beside a huge number": lambda image: torch.cat([torch.tensor([1e12]), image.flatten() / 255]),
    "noisy": lambda image: noisy(image) / 255,
    "noisy, upside down": lambda image: noisy(image.flip(1)) / 255,
    "noisy, mirrored, normalised": lambda image: normalised(noisy(image.flip(2))),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_an_image_hidden_in_a_weight_tensor_is_found(
    disguise: str, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied(folders("rfe"), tmp_path / "run")
    secret = 17
    hidden = flat(DISGUISES[disguise](PIECES[secret])).float()

    def hide(tensors: dict[str, Tensor]) -> None:
        weights = torch.randn(len(hidden) + 5000, generator=torch.Generator().manual_seed(2)) * 0.1
        weights[1234 : 1234 + len(hidden)] = hidden
        tensors["learner.network.backbone.extra"] = weights

    rewrite(newest(folder), hide)
    searcher = Searcher(PIECES)
    found = list(searcher.search(load_file(newest(folder))["learner.network.backbone.extra"], newest(folder), "extra"))
    assert {finding.image for finding in found} == {secret}
    assert found[0].mirrored == ("mirrored" in disguise or "turned" in disguise)
    assert found[0].upside_down == ("upside down" in disguise or "turned" in disguise)
    assert {f.tensor for f in searcher.search_folder(folder) if f.image == secret} >= {"learner.network.backbone.extra"}


@pytest.mark.parametrize("layout", ["bytes tensor", "raw file", "inside floats"])
def test_an_image_stored_as_raw_bytes_is_found(layout: str, folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(folders("rfe"), tmp_path / "run")
    if layout == "raw file":
        (folder / "notes.bin").write_bytes(b"some text" + PIECES[5].numpy().tobytes() + b"more")
    else:
        as_floats = PIECES[5].flatten().view(torch.float32)
        tensor = PIECES[5:6] if layout == "bytes tensor" else as_floats

        def hide(tensors: dict[str, Tensor]) -> None:
            tensors["learner.network.backbone.extra"] = tensor

        rewrite(newest(folder), hide)
    assert {finding.image for finding in Searcher(PIECES[:8]).search_folder(folder)} == {5}
    if layout == "raw file":
        assert any("notes.bin is not a file of a run" in problem for problem in take_inventory(folder).problems("none"))


def test_clean_folders_give_no_false_alarm(folders: Callable[[str], Path]) -> None:
    """Hundreds of pieces never learned from, against every tensor and byte of folders with and without samples."""
    searcher = Searcher(photo_pieces(500, seed=9))
    assert searcher.flat == []
    assert list(searcher.search_folder(folders("rfe"))) == []
    learned = Searcher(PIECES)
    assert list(learned.search_folder(folders("rfe"))) == []
    memory = load_file(newest(folders("er")))["learner.memory.images"]
    stored = {i for i, piece in enumerate(PIECES) if any(torch.equal(piece, image) for image in memory)}
    assert {finding.image for finding in learned.search_folder(folders("er"))} == stored
    assert len(stored) > 5


def test_images_without_contrast_are_listed_as_not_searched() -> None:
    grey = torch.full((1, 3, 32, 32), 128, dtype=torch.uint8)
    slope = (torch.arange(32)[:, None] * 6).expand(1, 3, 32, 32).to(torch.uint8)
    wave = torch.arange(32)[:, None].mul(0.4).sin() * 90 + 120  # contrast in columns alone
    stripes = wave.expand(1, 3, 32, 32).to(torch.uint8)
    searcher = Searcher(torch.cat([grey, PIECES[:1], stripes, slope]))
    assert searcher.flat == [0, 3]
    for upside_down in (False, True):
        seen = stripes[0].flip(1) if upside_down else stripes[0]
        hidden = torch.cat([torch.randn(500), normalised(seen).permute(1, 2, 0).flatten(), torch.randn(500)])
        (finding,) = searcher.search(hidden, Path("x"), "stripes")
        assert (finding.image, finding.upside_down) == (2, upside_down)
    assert list(searcher.search(torch.zeros(5000), Path("x"), "zeros")) == []
    assert Searcher(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)).flat == [0]


def with_contrast(image: Tensor, contrast: float) -> Tensor:
    values = image.float()
    return ((values - values.mean()) * contrast / values[:, 4:-4, 4:-4].std() + 120).round().byte()


def test_low_contrast_images_are_found_without_noise_and_listed() -> None:
    """With enough contrast they are found under noise as well, also where one channel alone has any."""
    clear = torch.stack([with_contrast(piece, 14.0) for piece in PIECES[:20]])
    faint = torch.stack([with_contrast(piece, 3.0) for piece in PIECES[:20]])
    blue = torch.full_like(clear, 90)
    blue[:, 2] = clear[:, 2]
    for images, is_faint, ways in ((clear, False, (flat, noisy)), (faint, True, (flat,)), (blue, False, (flat, noisy))):
        searcher = Searcher(images)
        searched = set(range(20)) - set(searcher.flat)
        assert (searched == set(searcher.faint)) == is_faint
        expected = searched if is_faint else searched - set(searcher.faint)
        assert len(expected) > 12
        for way in ways:
            hidden = torch.cat([torch.cat([torch.randn(100), way(image).flatten() / 255]) for image in images])
            assert {finding.image for finding in searcher.search(hidden, Path("x"), "y")} >= expected
