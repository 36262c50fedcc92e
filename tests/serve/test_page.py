"""The page in a real browser: images are classified, answers corrected; dark, on a phone, by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.support import serving

# The lowest contrast of a text on the page with what is behind it.
CONTRAST = """() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const back = parse(getComputedStyle(e).backgroundColor);
      if (back.length < 4 || back[3] > 0) return back;
    }
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let lowest = 21;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(behind(element))];
    lowest = Math.min(lowest, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
  }
  return lowest;
}"""


@pytest.fixture(scope="module")
def july(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("photos") / "july"


@pytest.fixture(scope="module")
def address(browser: Any, two_months: Path, july: Path) -> Iterator[str]:
    with serving(two_months, "--collect", july, cwd=july.parent) as (_, address):
        yield address


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1400, "height": 900})
    troubles: list[str] = []

    def add_unless(text: str, *expected: str) -> None:
        if not text.startswith(expected):
            troubles.append(text)

    refused = "Failed to load resource: the server responded with a status of 4"  # answers that the page shows
    opened.on("console", lambda message: add_unless(message.text, refused))
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on("request", lambda request: add_unless(request.url, address, f"blob:{address}", "data:,"))
    opened.goto(address)
    yield opened
    opened.close()
    assert troubles == []


def test_an_image_is_classified_and_corrected(page: Any, july: Path, image: Path) -> None:
    page.locator("#files").set_input_files([image, image])
    card = page.locator(".card").first
    card.get_by_role("heading", name="2", exact=True).wait_for()
    page.locator("#status", has_text="2 images classified").wait_for()
    assert card.locator("tbody tr").count() == 4
    assert card.locator("tbody tr").first.text_content().endswith("june")
    assert card.locator("img").evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 8
    page.get_by_label("Task").select_option("may")
    page.locator("tbody tr").nth(3).wait_for()  # two classes of each image
    assert "may" in card.locator("tbody").text_content()
    assert f"stored on disk, in {july}/<class>/" in page.locator("#privacy").text_content()
    card.get_by_role("button", name="Wrong? Correct it").click()
    card.get_by_label("Right class").select_option(label="a new class …")
    card.get_by_label("Name of the new class").fill("a/b")
    card.get_by_role("button", name="Store the image on disk").click(no_wait_after=True)
    card.get_by_text("cannot be the name of a folder").wait_for()
    card.get_by_label("Name of the new class").fill("swan")
    card.get_by_role("button", name="Store the image on disk").click()
    card.get_by_text("Corrected to swan. Stored on disk as").wait_for()
    (stored,) = july.rglob("*.png")
    assert (stored.parent.name, stored.read_bytes()) == ("swan", image.read_bytes())
    card.get_by_role("button", name="Change the correction").click()
    card.get_by_label("Right class").select_option(label="3")
    card.get_by_role("button", name="Store the image on disk").click()
    card.get_by_text("Corrected to 3.").wait_for()
    assert [path.parent.name for path in july.rglob("*.png")] == ["3"]
    page.get_by_role("button", name="Clear the list").click()
    assert page.locator(".card").count() == 0


def test_the_page_fits_a_phone_and_has_readable_colours(page: Any, image: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    page.locator("#files").set_input_files([image, tmp_path / "broken.png"])
    page.get_by_text("1 image classified, 1 without an answer").wait_for()
    assert "This file is not a readable image" in page.locator(".card").nth(1).text_content()
    page.get_by_role("button", name="Wrong? Correct it").click()
    for width in (390, 1400):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    colours = []
    for _ in range(2):
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert page.evaluate(CONTRAST) >= 4.5
        page.get_by_role("button", name="Switch between dark and light").click()
    assert len(set(colours)) == 2


def test_the_page_works_by_keyboard(page: Any, image: Path) -> None:
    page.locator("#files").set_input_files(image)
    page.get_by_role("button", name="Wrong? Correct it").wait_for()
    focused = []
    for _ in range(5):
        page.keyboard.press("Tab")
        focused.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert focused == ["theme", "files", "task", "clear", "Wrong? Correct it"]
    page.keyboard.press("Enter")
    page.keyboard.type("3")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_text("Corrected to 3.").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Change the correction"
    unnamed = "[...document.querySelectorAll('input, select')].filter((field) => !field.labels.length).length"
    assert page.evaluate(unnamed) == 0
    assert page.evaluate("!document.querySelector('th:not([scope])')")
