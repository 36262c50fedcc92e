"""Recreate docs/results.md, docs/results-unknown.md, the pictures and the table of README.md from the raw results under results/.

python benchmarks/results.py
"""

from __future__ import annotations

from pages import unknown
from pages.drawing import pictures
from pages.results import PAGE, README, page, readme


def main() -> None:
    for picture in pictures():
        picture.update()
    PAGE.write_text(page(), encoding="utf-8")
    unknown.PAGE.write_text(unknown.page(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")


if __name__ == "__main__":
    main()
