"""The page in a real browser: it answers at once, its controls work, a link restores it; dark, on a phone, on paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from recollect.methods import methods
from recollect.report.style import COLOURS
from recollect.report.write import write_report
from tests.report.results import many_results, result_of, some_results

DIGITS = "split-digits, 5 tasks; convnet of width 16; 15 epochs"
ROWS = '.answer:visible tr[data-variants]:not([hidden]) th[scope="row"]'


def write(results: list[dict[str, Any]], folder: Path) -> str:
    write_report(results, folder, "A <report> & more")
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(some_results(), tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Many methods, and another experiment with 20 tasks and two runs of one seed."""
    long = result_of("rfe", 0, 50.0, chain=51.0, **{"stream.tasks": 20})
    return write([*many_results(), long, dict(long)], tmp_path_factory.mktemp("many"))


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Opens pages that must neither log anything nor request anything."""
    pages, troubles = [], []

    def open_one(address: str, width: int = 1400, **options: Any) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        start = address.partition("#")[0]
        page.on("request", lambda request: None if request.url.startswith(start) else troubles.append(request.url))
        page.goto(address)
        pages.append(page)
        return page

    yield open_one
    for page in pages:
        page.close()
    assert troubles == []


def visible_labels(page: Any) -> list[str]:
    return [text.strip() for text in page.locator(ROWS).all_text_contents()]


def test_the_page_fetches_nothing(address: str) -> None:
    text = Path(address.removeprefix("file://")).read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!#)""", text)
    assert "url(" not in text
    assert "{{" not in text
    assert "<title>A &lt;report&gt; &amp; more</title>" in text


def test_the_first_screen_answers_which_method_is_best_without_images(open_page: Any, many: str) -> None:
    page = open_page(many)
    headline = page.locator(".headline:visible")
    assert headline.text_content() == "Without keeping images, rfe-plus is best with the task unknown: 34.1 ± 0.2 %."
    labels = visible_labels(page)
    assert len(labels) == 12
    assert labels[:3] == ["rfe-plus", "rfe", "fsa"]
    assert labels[-1] == "joint"
    last = page.locator(ROWS).last.bounding_box()
    assert last["y"] + last["height"] < 900
    assert page.evaluate("document.documentElement.scrollHeight") < 3000
    assert page.locator("details[open]").count() == 0
    heads = page.locator(".answer:visible thead th").all_text_contents()
    assert heads == ["method", "images kept", "task unknown (CIL)", "task predicted correctly", "task known (TIL)",
                     "forgetting, task known", "parameters, M (training / inference)", "seeds"]  # fmt: skip


def test_the_page_names_dates_commits_commands_and_unused_results(open_page: Any, many: str) -> None:
    page = open_page(many)
    assert re.fullmatch(
        r"73 results in 2 experiments; report of \d{4}-\d\d-\d\dFrom commit 0{10}.* 1 more result not used.*",
        page.locator("header .about").text_content(),
    )
    page.get_by_label("Experiment").select_option(index=1)
    page.locator("#tables summary:visible", has_text="Results that are not used").click()
    assert "repeats seed 0 of rfe" in page.locator("#tables details[open]").text_content()
    page.locator("#tables summary:visible", has_text=re.compile("^Runs$")).click()
    assert "recollect run" in page.locator("#tables details[open]").last.text_content()
    assert "The chain cost rfe 1.0 points here" in page.locator(".note:visible").text_content()
    assert page.locator(".answer:visible .dim").text_content() == "Scenario: class-incremental."


def test_methods_experiments_and_metrics_can_be_chosen(open_page: Any, address: str) -> None:
    page = open_page(address)
    page.locator("#chooser summary").click()
    page.locator("#matrices-block summary").click()
    assert page.locator("#matrices table").count() == 4
    page.get_by_role("checkbox", name="joint").uncheck()
    assert page.locator("#matrices table").count() == 3
    assert page.locator("#curves polyline").count() == 3
    assert page.locator("#curves .band").count() == 3
    assert "joint" not in visible_labels(page)
    page.get_by_role("radio", name="task known", exact=True).check()
    first = page.locator("#matrices table").first
    assert "average 51.0 %, 3 seeds" in first.text_content()
    page.get_by_role("combobox", name="Seed").select_option("2")
    assert "average 52.0 %, seed 2" in first.text_content()
    assert page.locator("#curves .band").count() == 0
    page.get_by_role("radio", name="task known, without the chain").check()
    assert page.locator("#matrices table").count() == 1
    assert "er (500); derpp (500)" in page.locator("#matrices-missing").text_content()
    page.get_by_label("Experiment").select_option(label=DIGITS)
    assert page.locator("#methods input").count() == 2
    assert visible_labels(page) == ["finetune", "rfe"]


def test_tables_follow_the_chosen_methods_and_are_sorted(open_page: Any, many: str) -> None:
    page = open_page(many)
    page.locator("#chooser summary").click()
    page.get_by_label("Filter").fill("er-ace")
    page.get_by_role("button", name="Show those that match").click()
    assert visible_labels(page) == ["er-ace", "er-ace"]
    page.locator("#tables summary:visible", has_text="Time").click()
    shown = page.locator("#tables details[open] tbody tr:not([hidden]) th").all_text_contents()
    assert shown == ["er-ace (200)", "er-ace (500)"]
    page.get_by_role("button", name="Show the default").click()
    heading = page.locator(".answer:visible thead th").nth(2)
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert visible_labels(page)[:2] == ["joint", "rfe-plus"]
    heading.get_by_role("button").click()
    assert visible_labels(page)[0] == "finetune"
    page.get_by_role("button", name="Show none").click()
    assert visible_labels(page) == []


def test_a_link_restores_experiment_methods_metric_seed_and_task(open_page: Any, address: str) -> None:
    page = open_page(address)
    page.get_by_label("Experiment").select_option(label=DIGITS)
    page.locator("#chooser summary").click()
    page.get_by_role("checkbox", name="finetune").uncheck()
    page.get_by_role("radio", name="task known", exact=True).check()
    page.get_by_role("combobox", name="Seed").select_option("0")
    page.locator("#after").focus()
    page.locator("#after").press("ArrowLeft")
    other = open_page(page.url)
    for opened in (page, other):
        assert opened.locator("#experiment").input_value() == "1"
        assert visible_labels(opened) == ["rfe"]
        assert opened.locator("#metric input:checked").get_attribute("value") == "til"
        assert opened.locator("#seed").input_value() == "0"
        assert opened.locator("#now").text_content() == "4"
    other.evaluate("location.hash = 'experiment=gone&metric=odd&seed=7&task=99&method=%3Cb%3E'")
    other.wait_for_function("document.getElementById('experiment').value === '0'")
    assert visible_labels(other) == []
    assert other.locator("#now").text_content() == "5"


def test_labels_are_distinct_and_markers_tell_methods_apart(open_page: Any, many: str) -> None:
    page = open_page(many)
    for e in page.evaluate("DATA.experiments"):
        names = [variant["name"] for variant in e["variants"]]
        assert len(set(names)) == len(names)
        styles = {(variant["method"], variant["colour"], variant["marker"]) for variant in e["variants"]}
        assert len({style[1:] for style in styles}) == len({style[0] for style in styles})


def test_stepping_through_tasks_moves_the_matrix_and_the_features(open_page: Any, address: str) -> None:
    page = open_page(address)
    page.get_by_label("Experiment").select_option(index=1)
    page.locator("#matrices-block summary").click()
    page.locator("#drift summary").click()
    slider = page.locator("#after")
    slider.focus()
    slider.press("Home")
    assert page.locator("#now").text_content() == "1"
    later = page.locator("#matrices table").first.locator(".later")
    assert later.count() == 4
    assert "Task 1 is just learned" in page.locator("#scatter").text_content()
    slider.press("ArrowRight")
    assert "After task 2: RMSE drifted 0.500" in page.locator("#scatter").text_content()
    assert later.count() == 3
    page.get_by_label("Images of task").select_option("3")
    assert "Task 3 is not learned yet" in page.locator("#scatter").text_content()
    page.locator("#play").click()
    page.get_by_label("Experiment").select_option(index=0)  # which stops it
    assert page.locator("#play").text_content() == "Play"
    page.locator("#play").click()
    page.wait_for_function("document.getElementById('play').textContent === 'Play'")
    assert page.locator("#now").text_content() == "5"


def test_the_page_has_dark_and_light_colours_and_works_by_keyboard(open_page: Any, address: str) -> None:
    page = open_page(address)
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.get_by_role("button", name="Switch between dark and light").click()
    assert page.evaluate(back) != light
    assert page.locator("#theme").text_content() == "Light"
    assert page.evaluate("all('svg').every((s) => s.getAttribute('aria-label') || s.getAttribute('aria-hidden'))")
    unnamed = "all('input, select').filter((i) => !i.labels.length).length"
    assert page.evaluate(unnamed) == 0
    assert page.evaluate("document.querySelectorAll('td').length > 20 && !document.querySelector('th:not([scope])')")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_texts_and_methods_contrast_with_the_page_in_light_and_dark() -> None:
    css = (files("recollect.report") / "page" / "page.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root[^{,]*\{([^}]*)\}", css.partition("@media")[0])
    themes = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in blocks]
    assert len(themes) == 2
    for theme in themes:
        for back in ("back", "panel", "ours"):
            for text in ("text", "dim", "accent"):
                assert contrast(theme[text], theme[back]) >= 4.5, (text, back)
        assert min(contrast(colour, theme["back"]) for colour in COLOURS) >= 3
        own = {row.colour for name, row in methods().items() if name.startswith("rfe")}
        assert min(contrast(colour, theme["ours"]) for colour in own) >= 3


def test_cells_of_matrices_contrast_with_their_text(open_page: Any, many: str) -> None:
    page = open_page(many)
    lowest = """Math.min(...range(101).map((i) => {
      const [back, ink] = paint(i / 100).match(/rgb\\(.*?\\)|#\\w+/g);
      const light = luminance(back.match(/\\d+/g).map(Number));
      return ink === "#000" ? (light + 0.05) / 0.05 : 1.05 / (light + 0.05);
    }))"""
    assert page.evaluate(lowest) >= 4.5


def test_the_page_fits_a_phone_with_legible_text(open_page: Any, many: str, address: str) -> None:
    smallest = """Math.min(...all("body *")
      .filter((e) => e.checkVisibility() && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
      .map((e) => parseFloat(getComputedStyle(e).fontSize) * (e.ownerSVGElement ? e.getScreenCTM().a : 1)))"""
    for start in (many, address):
        page = open_page(start, width=390, color_scheme="dark")
        for index in (0, 1):
            page.get_by_label("Experiment").select_option(index=index)
            page.evaluate("all('details').forEach((block) => { block.open = true; })")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            assert page.evaluate(smallest) >= 10
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_page_fits_a_sheet_of_paper(open_page: Any, address: str) -> None:
    page = open_page(address, color_scheme="dark")
    page.emulate_media(media="print")
    assert not page.locator("#theme").is_visible()
    colours = "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    assert page.evaluate(colours) == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("all('#tables details').every((block) => block.open)")
    assert len(page.pdf()) > 10_000
