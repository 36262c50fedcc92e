"""Models of these tests learn noise for an epoch or two, and say so."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "deploy" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*it was hardly learned"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*it is left out"))
