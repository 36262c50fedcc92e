"""A model folder that is served from its exported file."""

from __future__ import annotations

import signal
import stat
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from recollect import ContinualClassifier
from recollect.deploy import ModelStore
from recollect.inference import ExportedClassifier
from recollect.serve.current import CurrentModel
from tests.serve.support import serving

SECONDS = 120


def wait_for_export(model: CurrentModel) -> None:
    deadline = time.monotonic() + SECONDS
    assert model._export is not None
    while not model._export.is_done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_folder_is_served_from_its_exported_file_once_that_exists(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = CurrentModel(folder, "cpu")
    images = np.random.default_rng(0).integers(0, 256, (8, 3, 16, 16), np.uint8)
    first = model.refresh()
    assert isinstance(first.classifier, ContinualClassifier)
    images = images.repeat(first.classifier.image_size // 16, 2).repeat(first.classifier.image_size // 16, 3)
    wait_for_export(model)
    second = model.refresh()
    assert isinstance(second.classifier, ExportedClassifier)
    assert (second.version, second.state) == (first.version, first.state)
    expected, found = (loaded.classifier.predict_proba(images) for loaded in (first, second))
    np.testing.assert_allclose(found, expected, atol=1e-3)
    ModelStore(folder).rollback("may")
    third = model.refresh()
    assert isinstance(third.classifier, ContinualClassifier)  # until the new version is exported
    assert third.version != second.version


def test_a_model_that_cannot_be_exported_is_served_as_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho 'no memory left' >&2\nexit 2\n")
    failing.chmod(failing.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(failing))
    monkeypatch.setattr("recollect.serve.current.ONNX", ())
    model = CurrentModel(folder, "cpu")
    wait_for_export(model)
    with pytest.warns(UserWarning, match="cannot be exported: no memory left"):
        loaded = model.refresh()
    assert isinstance(loaded.classifier, ContinualClassifier)
    assert model.refresh() is loaded  # and no second warning


def test_a_model_whose_export_cannot_begin_is_served_as_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    monkeypatch.setattr("recollect.serve.current.ONNX", ())
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with pytest.warns(UserWarning, match="cannot be exported: .*missing"):
        model = CurrentModel(folder, "cpu")
    assert isinstance(model.refresh().classifier, ContinualClassifier)
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("ends", ["close", "forgotten"])
def test_an_export_that_is_not_needed_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    waiting = tmp_path / "python"
    waiting.write_text("#!/bin/sh\nexec sleep 600\n")
    waiting.chmod(waiting.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(sys, "executable", str(waiting))
    monkeypatch.setattr("recollect.serve.current.ONNX", ())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    model = CurrentModel(folder, "cpu")
    assert model._export is not None
    process = model._export._process
    assert len(list((tmp_path / "temporary").iterdir())) == 1
    if ends == "close":
        model.close()
    del model
    assert process.returncode == -signal.SIGKILL
    assert not list((tmp_path / "temporary").iterdir())


def test_without_onnx_runtime_nothing_is_exported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.serve.current.ONNX", ("a_package_that_nobody_has",))
    assert CurrentModel(folder, "cpu")._export is None


def test_a_server_that_is_ended_ends_its_export(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    with serving(folder, "--device", "cpu", cwd=tmp_path) as (server, _):
        assert len(list((tmp_path / "temporary").iterdir())) == 1
        server.terminate()
        assert server.wait(60) == 128 + signal.SIGTERM
    assert not list((tmp_path / "temporary").iterdir())
