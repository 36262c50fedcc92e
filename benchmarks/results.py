"""Recreate docs/results.md, docs/results-unknown.md, docs/results-streams.md, docs/choosing.md, the pictures and the table of README.md from the raw results under results/.

python benchmarks/results.py
"""

from __future__ import annotations

from pages import choosing, scenarios, unknown
from pages.drawing import pictures
from pages.results import PAGE, README, page, readme


def main() -> None:
    for picture in pictures():
        picture.update()
    PAGE.write_text(page(), encoding="utf-8")
    for other in (unknown, scenarios, choosing):
        other.PAGE.write_text(other.page(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")


if __name__ == "__main__":
    main()
