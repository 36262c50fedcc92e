"""Finished runs on photographs, shared by the tests of the audit, which change copies only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recollect.runs import run
from tests.audit.support import config_of, photo_stream


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run folder of a method; each is made once."""
    made: dict[str, Path] = {}
    root = tmp_path_factory.mktemp("audited")

    def folder(method: str) -> Path:
        if method not in made:
            run(config_of(method), root / method, stream=photo_stream(), device="cpu")
            made[method] = root / method
        return made[method]

    return folder
