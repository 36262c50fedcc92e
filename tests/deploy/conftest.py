"""Small models for these tests; they learn noise for an epoch or two, and warn about it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from recollect import ContinualClassifier
from tests.deploy.support import digits, make_classifier, random_images, train_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "deploy" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore:only .* % of .* validation images"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*it is left out"))


@pytest.fixture(scope="session")
def three_versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with three versions, not to be changed."""
    folder = tmp_path_factory.mktemp("models") / "model"
    model = train_model()
    for number, task in enumerate(("may", "june", "july")):
        model.learn((random_images(number), [f"{task}a", f"{task}b"] * 12), task=task).save(folder)
    return folder


@pytest.fixture(scope="session")
def exported(three_versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported file of that model, not to be changed."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from recollect.deploy.export import export

    file = tmp_path_factory.mktemp("exported") / "model.onnx"
    export(ContinualClassifier.load(three_versions, device="cpu"), file)
    return file


@pytest.fixture(scope="session")
def months() -> tuple[ContinualClassifier, ContinualClassifier]:
    """A classifier after May and one after June, with BatchNorm; not to be taught more."""
    may = make_classifier(backbone="resnet18", width=4, epochs=4).learn(digits("may"), task="may")
    return may, ContinualClassifier.of(may.model, device="cpu").learn(digits("june"), task="june")


@pytest.fixture
def folder(three_versions: Path, tmp_path: Path) -> Path:
    """A copy of a model folder with three versions."""
    return Path(shutil.copytree(three_versions, tmp_path / "model"))


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Files of random images, in the order of their paths."""
    paths = [tmp_path / "images" / f"{number:02}.png" for number in range(24)]
    paths[0].parent.mkdir()
    for path, image in zip(paths, random_images(), strict=True):
        Image.fromarray(image).save(path)
    return paths
