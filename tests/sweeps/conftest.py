"""The small preset as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweeps.small import PRESET


@pytest.fixture
def preset(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(PRESET)
    return path
