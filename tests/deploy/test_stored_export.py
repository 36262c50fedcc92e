"""An export that is stored in a model folder: used without torch, for its own version, and only if it is intact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from recollect import ContinualClassifier
from recollect.audit import take_inventory
from recollect.deploy import ModelStore
from recollect.deploy.export import store_export
from recollect.errors import UserError
from recollect.inference import ExportedClassifier
from recollect.inference.stored import ABOUT, FILE, load_stored
from recollect.serve.current import CurrentModel
from tests.deploy.support import predict_and_list_modules, random_images, write_photos
from tests.support import recollect

pytest.importorskip("onnx", reason="onnx is not installed")


@pytest.fixture(scope="module")
def with_export(three_versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose current version has its export, not to be changed."""
    folder = Path(shutil.copytree(three_versions, tmp_path_factory.mktemp("stored") / "model"))
    done = recollect("export", folder)
    assert done.returncode == 0, done.stderr
    file = folder / "versions" / "003-july" / FILE
    assert done.stdout == f"{file} is stored; predict and serve use it until the model changes.\n"
    return folder


@pytest.fixture
def stored(with_export: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(with_export, tmp_path / "model"))


def test_predict_uses_it_without_torch_and_answers_the_same(three_versions: Path, stored: Path, tmp_path: Path) -> None:
    path = write_photos(tmp_path / "p", num=1) / "a" / "0.png"
    line, modules = predict_and_list_modules(stored, path)
    assert modules == []
    expected = recollect("predict", three_versions, path, "--csv").stdout.splitlines()[1]
    assert line.split(",")[:2] == expected.split(",")[:2]
    assert float(line.split(",")[2]) == pytest.approx(float(expected.split(",")[2]), abs=1e-3)


def test_it_belongs_to_its_version(stored: Path) -> None:
    loaded = load_stored(stored)
    assert loaded is not None
    assert loaded[0] == ModelStore(stored).current()
    pixels = np.ascontiguousarray(random_images(3, 5).transpose(0, 3, 1, 2))
    model = ContinualClassifier.load(stored, device="cpu")
    np.testing.assert_allclose(loaded[1].predict_proba(pixels), model.predict_proba(pixels), atol=1e-3)
    ModelStore(stored).rollback("may")
    assert load_stored(stored) is None
    ModelStore(stored).rollback("july")
    assert load_stored(stored) is not None
    assert load_stored(stored / "nowhere") is None


def test_a_server_needs_no_export_of_its_own(stored: Path) -> None:
    served = CurrentModel(stored)
    assert isinstance(served.refresh().classifier, ExportedClassifier)
    assert served._export is None
    assert served.refresh().version == "003-july"


@pytest.mark.parametrize("damage", ["changed", "cut", "missing", "other weights"])
def test_what_is_damaged_or_of_other_weights_is_refused(stored: Path, damage: str, tmp_path: Path) -> None:
    version = stored / "versions" / "003-july"
    content = bytearray((version / FILE).read_bytes())
    if damage == "changed":
        content[len(content) // 2] ^= 1
        (version / FILE).write_bytes(content)
    elif damage == "cut":
        (version / FILE).write_bytes(content[:1000])
    elif damage == "missing":
        (version / FILE).unlink()
    else:
        about = json.loads((version / ABOUT).read_text())
        (version / ABOUT).write_text(json.dumps(about | {"weights": "0" * 64}))
    with pytest.raises(UserError, match=f"store it again with recollect export {stored}"):
        load_stored(stored)
    if damage == "changed":
        path = write_photos(tmp_path / "p", num=1) / "a" / "0.png"
        assert recollect("predict", stored, path).returncode == 2
        store_export(stored)  # as the message says
        assert load_stored(stored) is not None


def test_one_that_an_earlier_version_stored_is_not_used(stored: Path) -> None:
    file = stored / "versions" / "003-july" / ABOUT
    about = json.loads(file.read_text())
    file.write_text(json.dumps({name: about[name] for name in ("sha256", "weights")}))
    with pytest.warns(UserWarning, match="was stored by another version of recollect and is not used; store it again"):
        assert load_stored(stored) is None


def test_the_audit_knows_it_by_its_hash(stored: Path) -> None:
    audit = take_inventory(stored)
    assert [entry.kind for entry in audit.entries if entry.name == FILE] == ["exported model"]
    assert audit.problems("none") == []
    file = stored / "versions" / "003-july" / FILE
    file.write_bytes(file.read_bytes() + b"hidden")
    assert any(f"{FILE} is not a file of a run" in problem for problem in take_inventory(stored).problems("none"))


def test_a_crash_while_storing_leaves_a_model_without_export(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("recollect.deploy.export.convert", lambda *_: b"half an export")
    monkeypatch.setattr("recollect.deploy.export.write_json", fail)
    with pytest.raises(OSError, match="no space left"):
        store_export(stored)
    assert load_stored(stored) is None
    assert len(ContinualClassifier.load(stored, device="cpu").classes_) == 6
