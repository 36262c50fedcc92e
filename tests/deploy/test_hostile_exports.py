"""ONNX files that `recollect export` did not write: refused when they are read or computed, with a message."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.errors import UserError
from recollect.inference import ExportedClassifier
from recollect.inference.external_data import CONTAINERS, EXTERNAL_DATA, has_external_data
from recollect.serve.current import CurrentModel
from recollect.storage import write_bytes

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
classify (uint8[{batch},3,{size},{size}] pixels) => (float[{batch},2] probabilities, float[{batch},2] within)
<int64[2] shape = {{-1,1}}, int64[3] axes = {{1,2,3}}, int64 zero = {{0}}, int64[2] constant = {{{repeats}}}>
{{
    numbers = Cast<to=1>(pixels)
    means = ReduceMean<keepdims=0>(numbers, axes)
    column = Reshape(means, shape)
    rows = MatMul(column, weight)
    whole = Cast<to=7>(pixels)
    largest = ReduceMax<keepdims=0>(whole)
    nothing = Mul(largest, zero)
    repeats = Add(constant, nothing)
    probabilities = Tile(rows, repeats)
    within = Identity(rows)
}}
"""
IMAGES = np.full((2, 3, 16, 16), 2, np.uint8)


def build_model(
    tasks: Any = ((("may", ("a", "b")),)), size: int = 16, batch: str = "n", repeats: str = "1,1", classes: Any = None
) -> Any:
    """A model whose output is repeated along rows and columns; onnxruntime finds out only when it computes it."""
    model = onnx.parser.parse_model(GRAPH.format(size=size, batch=batch, repeats=repeats))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([[3, 4]], np.float32), "weight"))
    described = list(dict.fromkeys(name for _, names in tasks for name in names))
    metadata = {
        "recollect.classes": json.dumps(described if classes is None else classes),
        "recollect.tasks": json.dumps([{"name": name, "classes": list(names)} for name, names in tasks]),
        "recollect.image_size": str(size),
    }
    onnx.helper.set_model_props(model, metadata)
    return model


def store_outside(tensor: Any) -> None:
    """Let a tensor take its values from secret.bin."""
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret.bin")


def test_tensors_in_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(np.array([5, 6], np.float32).tobytes())
    inside = build_model()
    classifier = ExportedClassifier(inside.SerializeToString())
    assert classifier.predict_proba(IMAGES).tolist() == [[6, 8]] * 2

    initialiser = build_model()
    store_outside(initialiser.graph.initializer[-1])
    constant = build_model()
    tensor = constant.graph.initializer.pop()
    store_outside(tensor)
    constant.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["weight"], value=tensor))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(initialiser.SerializeToString(), options)
    assert session.run(["within"], {"pixels": IMAGES})[0].tolist() == [[10, 12]] * 2, "onnxruntime reads the file"
    for model in (initialiser, constant):
        with pytest.raises(UserError, match=r"^m\.onnx is not a file that .* \(it refers to other files\); export"):
            ExportedClassifier(model.SerializeToString(), "m.onnx")
    content = initialiser.SerializeToString()
    longer = content.replace(b"\x0a\x08location", b"\x8a\x00\x08location")  # another encoding of the same tag
    assert len(longer) == len(content) + 1
    for data in (longer, b"\x0b" + content, content[:-1], b"\xff" * 11, b"\xba\x80\x80\x80\x80\x01" + content[1:]):
        with pytest.raises(UserError, match="no ONNX file, or a damaged one|refers to other files"):
            ExportedClassifier(data)


def test_all_messages_that_can_contain_a_tensor_are_walked() -> None:
    messages: dict[str, Any] = {}
    waiting = [onnx.ModelProto.DESCRIPTOR]
    while waiting:
        message = waiting.pop()
        if message.name not in messages:
            messages[message.name] = message
            waiting += [field.message_type for field in message.fields if field.message_type]
    containers = {"TensorProto"}
    for _ in messages:
        containers |= {
            name
            for name, message in messages.items()
            if any(field.message_type and field.message_type.name in containers for field in message.fields)
        }
    assert {
        name: {
            field.number: field.message_type.name
            for field in messages[name].fields
            if field.message_type and field.message_type.name in containers
        }
        for name in containers
    } == CONTAINERS
    assert messages["TensorProto"].fields_by_name["external_data"].number == EXTERNAL_DATA
    tensor = onnx.TensorProto(external_data=[onnx.StringStringEntryProto(key="location")])
    branch = onnx.GraphProto(sparse_initializer=[onnx.SparseTensorProto(indices=tensor)])
    node = onnx.NodeProto(attribute=[onnx.AttributeProto(graphs=[branch])])
    assert has_external_data(onnx.ModelProto(functions=[onnx.FunctionProto(node=[node])]).SerializeToString())


DECOMPOSED = unicodedata.normalize("NFD", "ä")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": []}, "its classes are not those of its tasks"),
        ({"tasks": [("may", [])]}, "its classes are not those of its tasks"),
        ({"classes": ["b", "a"]}, "its classes are not those of its tasks"),
        ({"tasks": [("may", "a"), ("may", "b")]}, "a name of a task is not normalised, or there twice"),
        ({"tasks": [(DECOMPOSED, "ab")]}, "a name of a task is not normalised"),
        ({"tasks": [("../may", "ab")]}, "a task's name is a string .* got '../may'"),
        ({"tasks": [("may", ["a", "\x1b[2J"])]}, r"the class name '\\x1b\[2J' contains characters"),
        ({"tasks": [("may", ["a", "unknown"])]}, "the class name 'unknown' is reserved"),
        ({"tasks": [("may", ["a", DECOMPOSED])]}, "a name of a class is not normalised"),
        ({"tasks": [("may", ["a", "a", "b"])]}, "there twice in a task"),
        ({"size": 15}, "its image size is not from 16 to 1024"),
        ({"size": 1025}, "its image size is not from 16 to 1024"),
        ({"batch": "1"}, "its inputs and outputs do not fit its metadata"),
    ],
    ids=str,
)
def test_metadata_of_no_model_is_refused(changes: dict[str, Any], message: str) -> None:
    content = build_model(**changes).SerializeToString()
    with pytest.raises(UserError, match=rf"^m\.onnx is not a file that `recollect export` wrote \(.*{message}"):
        ExportedClassifier(content, "m.onnx")


def test_files_that_cannot_be_computed_are_refused_and_not_served(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    write_bytes(file, build_model().SerializeToString())
    current = CurrentModel(file)
    loaded = current.refresh()
    refused = f"{file} is not a file that `recollect export` wrote (its output probabilities has the shape"
    for repeats, message in (
        ("1,-1", f"onnxruntime cannot compute {file} (InvalidArgument); export the model again"),
        ("2,1", f"{refused} [4, 2] instead of [2, 2]); export the model again"),
        ("1,2", f"{refused} [2, 4] instead of [2, 2]); export the model again"),
    ):
        write_bytes(file, build_model(repeats=repeats).SerializeToString())
        with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
            ExportedClassifier.load(file).predict(IMAGES)
        with pytest.warns(UserWarning, match=f"version {loaded.version} stays in use: .*{re.escape(str(file))}"):
            assert current.refresh() is loaded
