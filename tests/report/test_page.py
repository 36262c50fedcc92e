"""The page in a real browser: no errors, no requests, controls that work, dark, on a phone, on paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recollect.report.write import write_report
from tests.report.results import some_results


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("report")
    write_report(some_results(), out, "A <report> & more")
    return (out / "report.html").as_uri()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1100, "height": 800})
    troubles: list[str] = []
    opened.on("console", lambda message: troubles.append(message.text))
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on("request", lambda request: troubles.append(request.url) if request.url != address else None)
    opened.goto(address)
    yield opened
    opened.close()
    assert troubles == []


def test_the_page_fetches_nothing(address: str) -> None:
    text = Path(address.removeprefix("file://")).read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!#)""", text)
    assert "url(" not in text
    assert "{{" not in text
    assert "<title>A &lt;report&gt; &amp; more</title>" in text


def test_methods_experiments_and_readings_can_be_chosen(page: Any) -> None:
    assert page.locator("#matrices svg").count() == 4
    page.get_by_role("checkbox", name="joint").uncheck()
    assert page.locator("#matrices svg").count() == 3
    assert page.locator("#curves polyline").count() == 3
    assert "average 50.0 %, seed 0" in page.locator("#matrices svg").first.text_content()
    page.get_by_role("combobox", name="Seed").select_option("2")
    assert "average 52.0 %, seed 2" in page.locator("#matrices svg").first.text_content()
    page.get_by_role("radio", name="task unknown").check()
    assert "average 10.0 %" in page.locator("#matrices svg").first.text_content()
    page.get_by_role("radio", name="task known, without the chain").check()
    assert page.locator("#matrices").get_by_text("has no chain").count() == 2
    page.get_by_label("Experiment").select_option(label="split-digits, 5 tasks; convnet of width 16; 15 epochs")
    assert page.locator("#methods input").count() == 2
    assert page.locator("#tables details[open] summary").all_text_contents() == [
        "split-digits, 5 tasks; convnet of width 16; 15 epochs"
    ]


def test_stepping_through_tasks_moves_the_matrix_and_the_features(page: Any) -> None:
    page.get_by_label("Experiment").select_option(index=1)
    assert page.locator("#drift").is_visible()
    slider = page.locator("#after")
    slider.focus()
    slider.press("Home")
    assert page.locator("#now").text_content() == "1"
    faded = page.locator("#matrices svg").first.locator('g[opacity="0.18"]').count()
    assert faded == 14
    assert "task 1 is just learned" in page.locator("#scatter").text_content()
    slider.press("ArrowRight")
    assert "after task 2: RMSE drifted 0.500" in page.locator("#scatter").text_content()
    assert page.locator("#matrices svg").first.locator('g[opacity="0.18"]').count() == 12
    page.get_by_label("Images of task").select_option("3")
    assert "task 3 is not learned yet" in page.locator("#scatter").text_content()
    page.locator("#play").click()
    page.get_by_label("Experiment").select_option(index=0)  # which stops it
    assert page.locator("#play").text_content() == "Play"
    page.locator("#play").click()
    page.wait_for_function("document.getElementById('play').textContent === 'Play'")
    assert page.locator("#now").text_content() == "5"


def test_the_page_has_dark_and_light_colours_and_works_by_keyboard(page: Any) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.get_by_role("button", name="Switch between dark and light").click()
    assert page.evaluate(back) != light
    assert page.locator("#theme").text_content() == "Light"
    assert page.evaluate("[...document.querySelectorAll('svg')].every((s) => s.getAttribute('aria-label'))")
    unnamed = "[...document.querySelectorAll('input, select')].filter((i) => !i.labels.length).length"
    assert page.evaluate(unnamed) == 0
    assert page.evaluate("document.querySelectorAll('td').length > 20 && !document.querySelector('th:not([scope])')")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")


def test_the_page_fits_a_phone_and_a_sheet_of_paper(browser: Any, address: str) -> None:
    phone = browser.new_page(viewport={"width": 360, "height": 740}, color_scheme="dark")
    phone.goto(address)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    assert phone.evaluate("document.documentElement.dataset.theme") == "dark"
    phone.emulate_media(media="print")
    assert not phone.locator("#theme").is_visible()
    colours = "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    assert phone.evaluate(colours) == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
    phone.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert phone.evaluate("[...document.querySelectorAll('#tables details')].every((block) => block.open)")
    assert len(phone.pdf()) > 10_000
    phone.close()
