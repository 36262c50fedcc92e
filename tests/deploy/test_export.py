"""The ONNX file gives what PyTorch gives, with nothing but onnxruntime and numpy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect import ContinualClassifier

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
CASES = {
    "convnet, 1 task": ("convnet", 32, 1, {}),
    "resnet, 5 tasks, odd size": ("resnet18", 40, 5, {"width": 4}),
    "resnet, 20 tasks": ("resnet18", 32, 20, {"width": 4}),
    "vit, 5 tasks": ("vit-small", 32, 5, {}),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of few images
@pytest.mark.parametrize("case", CASES)
def test_the_file_gives_what_torch_gives(case: str, tmp_path: Path) -> None:
    from recollect.deploy.export import export

    backbone, size, num_tasks, options = CASES[case]
    rng = np.random.default_rng(0)
    model = ContinualClassifier(backbone, image_size=size, epochs=1, device="cpu", precision="fp32", **options)
    for task in range(num_tasks):
        images = rng.integers(0, 256, (12, size, size, 3), dtype=np.uint8)
        names = ["cat" if task % 3 == 0 else f"{task}a", f"{task}b"]
        model.learn((images, [names[i % 2] for i in range(12)]), task=f"month {task}")
    export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for num in (1, 9):
        images = rng.integers(0, 256, (num, size, size, 3), dtype=np.uint8)
        across, within = session.run(None, {"pixels": np.ascontiguousarray(images.transpose(0, 3, 1, 2))})
        assert np.abs(across - model.predict_proba(images)).max() < 1e-5
        each = np.concatenate([model.predict_proba(images, task=task.name) for task in model.tasks_], axis=1)
        assert np.abs(within - each).max() < 1e-5
    about: dict[str, Any] = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["recollect.classes"]) == model.classes_
    assert [task["name"] for task in json.loads(about["recollect.tasks"])] == [task.name for task in model.tasks_]
    assert about["recollect.image_size"] == str(size)
    assert "bilinear" in about["recollect.preprocessing"]
    assert across.shape[1] == len(model.classes_)


def test_it_runs_where_neither_torch_nor_recollect_is(tmp_path: Path) -> None:
    """In a process that may import onnxruntime and numpy alone."""
    from recollect.deploy.export import export

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    model = ContinualClassifier("convnet", image_size=32, epochs=1, device="cpu", precision="fp32")
    model.learn((images, ["a", "b"] * 20), task="may")
    export(model, tmp_path / "model.onnx")
    np.save(tmp_path / "pixels.npy", np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    code = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "recollect", "PIL", "safetensors", "sklearn"):
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
import numpy, onnxruntime
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
numpy.save("out.npy", session.run(["probabilities"], {"pixels": numpy.load("pixels.npy")})[0])
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert np.abs(np.load(tmp_path / "out.npy") - model.predict_proba(images)).max() < 1e-5
