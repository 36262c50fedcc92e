"""Every test that docs/reliability.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reliability.md"


def test_every_test_that_the_page_names_exists() -> None:
    file = ""
    names = re.findall(r"`([\w/]+\.py|…)(?:::(\w+))?`", PAGE.read_text(encoding="utf-8"))
    assert len(names) > 40
    for path, test in names:
        file = file if path == "…" else path
        assert (TESTS / file).is_file(), file
        assert not test or f"def {test}(" in (TESTS / file).read_text(encoding="utf-8"), f"{file} has no {test}"
