"""Shared fixtures. Shapes in the signatures of core, nets and streams are checked while tests run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import install_import_hook

CHECKED = ["core.auxiliary", "core.gaussian_rules", "core.identity", "core.statistics", "core.objectives"]
CHECKED += ["core.retrospector", "core.rfe", "nets.network", "streams.pixels"]
_hook = install_import_hook([f"recollect.{module}" for module in CHECKED], "beartype.beartype")

import torch  # noqa: E402

from recollect.engine.cpu_faults import survives_bf16  # noqa: E402
from recollect.streams import Stream  # noqa: E402
from tests.support import make_stream  # noqa: E402

if not survives_bf16():  # mixed precision is tested here too, with the instructions that work
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"
    survives_bf16.cache_clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest go first, so that no process is left alone with them at the end."""
    items.sort(key=lambda item: item.path.name not in ("test_demo.py", "test_cluster.py"))


@pytest.fixture(autouse=True)
def data_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Downloads and caches go to a fresh folder."""
    folder = tmp_path_factory.mktemp("data")
    monkeypatch.setenv("RECOLLECT_DATA", str(folder))
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright; without them the test is skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium on this machine; .ci/run installs it")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def tiny() -> Stream:
    return make_stream()


@pytest.fixture(autouse=True)
def untouched_global_generator() -> None:
    """No test depends on what another drew from torch's global generator."""
    torch.manual_seed(0)
