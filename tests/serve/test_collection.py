"""Corrected images are stored unchanged, in folders with safe names."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from recollect.deploy.data import read_labelled
from recollect.deploy.editing import check_folder_name
from recollect.errors import UserError
from recollect.serve.collection import Collection
from tests.serve.support import ADDRESS


@pytest.fixture
def july(tmp_path: Path) -> Path:
    return tmp_path / "photos" / "july"


@pytest.fixture
def client(open_client: Any, two_months: Path, july: Path) -> TestClient:
    client: TestClient = open_client(collection=Collection(july, two_months))
    client.headers["origin"] = ADDRESS
    return client


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_corrected_image_is_stored_unchanged_and_can_be_learned(client: TestClient, july: Path, image: Path) -> None:
    content = image.read_bytes()
    answer = client.post("/collect", params={"class": " sea lion "}, content=content)
    name = f"{hashlib.sha256(content).hexdigest()[:16]}.png"
    assert answer.json() == {"class": "sea lion", "path": str(july / "sea lion" / name)}
    assert files_in(july) == {f"sea lion/{name}": content}
    assert client.get("/model").json()["collect"] == {"folder": str(july), "classes": ["sea lion"]}
    assert read_labelled(july, 32).class_names == ("sea lion",)


@pytest.mark.parametrize(("kind", "suffix"), [("JPEG", ".jpg"), ("TIFF", ".tif"), ("WEBP", ".webp"), ("PPM", ".ppm")])
def test_the_suffix_comes_from_the_content(client: TestClient, july: Path, kind: str, suffix: str) -> None:
    photo = io.BytesIO()
    Image.new("RGB", (8, 8), "white").save(photo, kind)
    assert client.post("/collect?class=cat", content=photo.getvalue()).status_code == 201
    assert [Path(name).suffix for name in files_in(july)] == [suffix]


def test_a_second_correction_replaces_the_first(client: TestClient, july: Path, image: Path) -> None:
    (july / "cow").mkdir()
    (july / "cow" / "mine.png").write_bytes(b"mine")
    for name in ("cat", "cat", "cow", "dog"):
        assert client.post(f"/collect?class={name}", content=image.read_bytes()).status_code == 201
    assert sorted(Path(name).parent.name for name in files_in(july)) == ["cow", "dog"]
    assert files_in(july)["cow/mine.png"] == b"mine"
    assert not (july / "cat").exists()  # `learn` refuses an empty class


@pytest.mark.parametrize(
    "name",
    [
        "", "  ", ".", "..", "../up", "a/b", "a\\b", ".hidden", "unknown", "two\nlines", "nul", "COM1.txt", "dot.",
        "a:b", "x" * 201, "ä" * 101, "thumbs.db", "@eaDir", "bell\x07", "zero\x00",
    ],
)  # fmt: skip
def test_names_that_are_no_safe_folder_are_refused(client: TestClient, july: Path, image: Path, name: str) -> None:
    answer = client.post("/collect", params={"class": name}, content=image.read_bytes())
    assert (answer.status_code, list(answer.json())) == (422, ["error"])
    assert list(july.iterdir()) == []


def test_ordinary_names_are_kept() -> None:
    for name in ("cat", "Sea lion", "0", "St. Bernard", "猫", "console", "O'Hara & Co"):
        assert check_folder_name(name) == name
    assert check_folder_name("cafe\u0301") == "caf\u00e9"


def test_what_is_no_image_is_not_stored(client: TestClient, july: Path, image: Path) -> None:
    for content in (b"<svg/>", b"", image.read_bytes()[:-40]):
        assert client.post("/collect?class=cat", content=content).status_code == 400
    assert list(july.iterdir()) == []


def test_links_are_not_followed(client: TestClient, july: Path, tmp_path: Path, image: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (july / "cat").symlink_to(tmp_path / "elsewhere")
    answer = client.post("/collect?class=cat", content=image.read_bytes())
    assert answer.status_code == 422
    assert "symbolic link" in answer.json()["error"]
    target = tmp_path / "target.png"
    target.write_bytes(b"theirs")
    (july / "dog").mkdir()
    name = f"{hashlib.sha256(image.read_bytes()).hexdigest()[:16]}.png"
    (july / "dog" / name).symlink_to(target)
    assert client.post("/collect?class=dog", content=image.read_bytes()).status_code == 201
    assert target.read_bytes() == b"theirs"
    assert not (july / "dog" / name).is_symlink()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert client.get("/model").json()["collect"]["classes"] == ["dog"]


def test_a_folder_that_cannot_be_written_is_reported(client: TestClient, july: Path, image: Path) -> None:
    (july / "cat").write_text("a file")
    answer = client.post("/collect?class=cat", content=image.read_bytes())
    assert (answer.status_code, "cannot be stored (File exists)" in answer.json()["error"]) == (500, True)


def test_the_folder_is_none_of_the_model(two_months: Path, tmp_path: Path) -> None:
    for folder in (two_months, two_months / "photos"):
        with pytest.raises(UserError, match="in the model folder, which keeps no images"):
            Collection(folder, two_months)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file; give a folder"):
        Collection(tmp_path / "file", two_months)
