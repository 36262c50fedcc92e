"""The ONNX file gives the probabilities of PyTorch, and needs only onnxruntime and NumPy."""

from __future__ import annotations

import json
import subprocess
import venv
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from packaging.requirements import Requirement
from PIL import Image, ImageOps
from torch import nn

from recollect import ContinualClassifier
from recollect.deploy import ModelStore
from recollect.deploy.data import read_images
from recollect.errors import UserError
from tests.deploy.support import SIZE, digits, make_classifier, random_images, train_model

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
CASES = {  # backbone, image size, whether each task is adapted to, options
    "convnet, 4 tasks": ("convnet", 16, [True, True, False, True], {}),
    "resnet, 3 tasks, odd size": ("resnet18", 40, [True] * 3, {"width": 4}),
    "vit, 2 tasks": ("vit-small", 32, [True] * 2, {}),
    "efficientnet, frozen and adapted, odd size": ("efficientnet-lite0", 45, [False, True], {"features": "blocks"}),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of few images
@pytest.mark.parametrize("case", CASES)
def test_the_file_gives_the_probabilities_of_torch(case: str, tmp_path: Path) -> None:
    from recollect.deploy.export import export

    backbone, size, adapted, options = CASES[case]
    rng = np.random.default_rng(0)
    model = ContinualClassifier(backbone, image_size=size, epochs=1, device="cpu", precision="fp32", **options)
    for task, adapt in enumerate(adapted):
        images = rng.integers(0, 256, (12, size, size, 3), dtype=np.uint8)
        names = ["cat" if task % 3 == 0 else f"{task}a", f"{task}b"]
        model.learn((images, [names[i % 2] for i in range(12)]), task=f"month {task}", adapt=adapt, force=adapt)
    assert [task.adapted for task in model.tasks_] == adapted
    export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    tolerance = 1e-4 if backbone.startswith("efficientnet") else 1e-5  # a few images in 1808 dimensions
    for num in (1, 9):
        images = rng.integers(0, 256, (num, size, size, 3), dtype=np.uint8)
        across, within = session.run(None, {"pixels": np.ascontiguousarray(images.transpose(0, 3, 1, 2))})
        assert np.abs(across - model.predict_proba(images)).max() < tolerance
        expected = np.concatenate([model.predict_proba(images, task=task.name) for task in model.tasks_], axis=1)
        assert np.abs(within - expected).max() < tolerance
    about: dict[str, Any] = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["recollect.classes"]) == model.classes_.tolist()
    assert [task["name"] for task in json.loads(about["recollect.tasks"])] == [task.name for task in model.tasks_]
    assert about["recollect.image_size"] == str(size)
    assert "bilinear" in about["recollect.preprocessing"]
    assert across.shape[1] == len(model.classes_)


class Clamping(nn.Module):
    """ReLU6 as a layer, as a function, and in place with its result unused."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu6 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU6(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu6(self.relu6(self.norm(self.conv(9 * x))) * 2, inplace=True) - 1
        F.relu6(x, inplace=True)
        return x.mean((2, 3))


def test_networks_are_simplified_without_changing_their_features() -> None:
    from recollect.deploy.export import simplified

    network, x = Clamping().eval(), torch.randn(5, 3, 8, 8)
    copy = simplified(network, (3, 8, 8))
    assert torch.allclose(copy(x), network(x), atol=1e-5)
    assert isinstance(copy, torch.fx.GraphModule)
    assert [node.target for node in copy.graph.nodes].count(torch.clamp) == 2


def test_merged_classes_are_summed_in_the_file(tmp_path: Path) -> None:
    from recollect.deploy.export import export

    train_model("may", "june").save(tmp_path / "model")
    ModelStore(tmp_path / "model").merge("junea", ["juneb", "maya"])
    model = ContinualClassifier.load(tmp_path / "model", device="cpu")
    export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    images = random_images()
    across, within = session.run(None, {"pixels": np.ascontiguousarray(images.transpose(0, 3, 1, 2))})
    assert np.abs(across - model.predict_proba(images)).max() < 1e-5
    assert np.abs(within[:, :2] - model.predict_proba(images, task="may")).max() < 1e-5
    assert np.abs(within[:, 2] - 1).max() < 1e-5
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["recollect.classes"]) == ["junea", "mayb"]
    assert [task["classes"] for task in json.loads(about["recollect.tasks"])] == [["junea", "mayb"], ["junea"]]


def test_probabilities_near_one_agree(tmp_path: Path) -> None:
    """With the smallest temperatures that calibration allows."""
    from recollect.deploy.export import export

    model = make_classifier(epochs=6).learn(digits("may"), task="may").learn(digits("june"), task="june")
    tasks = tuple(replace(task, temperature=0.2) for task in model.tasks_)
    sharp = ContinualClassifier.of(replace(model.model, tasks=tasks, temperature=0.2), device="cpu")
    export(sharp, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    x = read_images(digits("june", test=True)[0], SIZE)
    across, within = session.run(None, {"pixels": x.numpy()})
    assert np.median(within[:, 2:].max(1)) > 0.99
    assert np.abs(across - sharp.predict_proba(x)).max() < 1e-5
    assert np.abs(within[:, 2:] - sharp.predict_proba(x, task="june")).max() < 1e-5


def test_the_described_preprocessing_is_that_of_predict(tmp_path: Path) -> None:
    """Followed literally with Pillow and NumPy, on images that a plain conversion to RGB would change."""
    from recollect.deploy.export import PREPROCESSING

    rng = np.random.default_rng(0)
    clear = Image.fromarray(rng.integers(0, 256, (50, 40, 4), dtype=np.uint8))
    deep = Image.fromarray(rng.integers(0, 65536, (40, 50), dtype=np.uint16))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8))
    for name, picture in (("clear", clear), ("deep", deep), ("turned", turned)):
        path = tmp_path / f"{name}.png"
        picture.save(path, exif=exif)
        opened = ImageOps.exif_transpose(Image.open(path))
        if opened.mode == "I;16":
            opened = Image.fromarray((np.asarray(opened) // 257).astype(np.uint8))
        if opened.mode == "RGBA":
            opened = Image.alpha_composite(Image.new("RGBA", opened.size, "white"), opened)
        square = ImageOps.fit(opened.convert("RGB"), (32, 32), Image.Resampling.BILINEAR)
        assert np.array_equal(read_images([path], 32)[0], np.asarray(square).transpose(2, 0, 1)), name
    for term in ("exif_transpose", "divided by 257", "over white", "RGB", "bilinear", "ImageOps.fit"):
        assert term in PREPROCESSING


def test_a_file_with_other_probabilities_is_not_written(
    three_versions: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recollect.deploy.export import export

    graph = onnx.load(exported)
    del graph.metadata_props[:]
    monkeypatch.setattr("torch.onnx.export", lambda *_, **__: SimpleNamespace(model_proto=graph))
    model = ModelStore(three_versions).load()
    for changed in (
        replace(model, temperature=0.02 * model.temperature),
        replace(model, tasks=(*model.tasks[:2], replace(model.tasks[2], temperature=0.02))),
    ):
        with pytest.raises(UserError, match="probabilities differ from those of PyTorch by 0.*, more than 0.001"):
            export(ContinualClassifier.of(changed, device="cpu"), tmp_path / "model.onnx")
        del graph.metadata_props[:]
    assert list(tmp_path.iterdir()) == []
    export(ContinualClassifier.of(model, device="cpu"), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").exists()


def test_images_whose_answer_rounding_changes_do_not_count() -> None:
    from recollect.deploy.export import _compare

    expected, opposite = np.tile([1.0, 0.0], (16, 1)), np.tile([0.0, 1.0], (16, 1))
    mostly = np.concatenate([opposite[:10], expected[10:]])
    _compare(mostly, expected, mostly)  # PyTorch disagrees with itself on the same ten images
    for file, graph in ((mostly, expected), (opposite, mostly), (opposite, opposite), (expected * np.nan, expected)):
        with pytest.raises(UserError, match="the file was not written"):
            _compare(file, expected, graph)


def bare_environment(folder: Path, names: tuple[str, ...]) -> Path:
    """The interpreter of a new environment with only the given distributions and their requirements."""
    venv.create(folder, with_pip=False, symlinks=True)
    site_packages = next(folder.glob("lib*/python*/site-packages"))
    pending, installed = list(names), set()
    while pending:
        name = pending.pop()
        if name in installed:
            continue
        installed.add(name)
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or () if not file.parts[0].startswith("..")}:
            if not (site_packages / top).exists():
                (site_packages / top).symlink_to(Path(str(package.locate_file(top))))
        required = [Requirement(text) for text in package.requires or ()]
        pending += [item.name for item in required if item.marker is None or item.marker.evaluate({"extra": ""})]
    return next(path for path in (folder / "bin/python", folder / "Scripts/python.exe") if path.exists())


def test_the_file_needs_only_onnxruntime_and_numpy(three_versions: Path, exported: Path, tmp_path: Path) -> None:
    images = random_images()
    (tmp_path / "model.onnx").symlink_to(exported)
    np.save(tmp_path / "pixels.npy", np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    python = bare_environment(tmp_path / "bare", ("onnxruntime", "numpy"))
    code = """
import importlib.util, json
import numpy, onnxruntime
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
numpy.save("out.npy", session.run(["probabilities"], {"pixels": numpy.load("pixels.npy")})[0])
print(json.dumps([name for name in ("torch", "recollect", "PIL", "onnx", "safetensors", "scipy", "sympy")
                  if importlib.util.find_spec(name)]))
"""
    done = subprocess.run([python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    assert (
        np.abs(np.load(tmp_path / "out.npy") - ContinualClassifier.load(three_versions).predict_proba(images)).max()
        < 1e-5
    )
