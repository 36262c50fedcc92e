"""Finding the tensors of an ONNX file whose values are in another file, which onnxruntime would open.

onnxruntime has no option that forbids this, so the messages of the file that can contain a tensor are walked before it
sees them. The encoding is that of Protocol Buffers: a tag (field number and wire type), then a value.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""The wire types; the others are those of groups, which ONNX does not have."""
CONTAINERS = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
}
"""By message, the fields that are or contain tensors."""
EXTERNAL_DATA = 13
"""The field of a tensor that names the other file."""


def has_external_data(content: bytes) -> bool:
    """Whether a tensor of the file names another file; raise ValueError if the content is not an ONNX file."""
    waiting = [("ModelProto", memoryview(content))]
    while waiting:
        message, data = waiting.pop()
        for field, value in _fields(data):
            if message == "TensorProto" and field == EXTERNAL_DATA:
                return True
            if field in CONTAINERS[message]:
                waiting.append((CONTAINERS[message][field], value))
    return False


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The number and value of each field that is bytes: text, packed numbers or another message."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        field, wire_type = tag >> 3, tag & 7
        start = position
        if wire_type == VARINT:
            _, position = _read_varint(data, position)
        elif wire_type == BYTES:
            length, start = _read_varint(data, position)
            position = start + length
        elif wire_type in (FIXED64, FIXED32):
            position += 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"the wire type {wire_type} is not one of ONNX")
        if tag >> 32 or position > len(data):  # parsers differ in what they make of longer tags
            raise ValueError("a field exceeds its bounds")
        if wire_type == BYTES:
            yield field, data[start:position]


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """A number in groups of 7 bits, the lowest first, and the position after it."""
    number = 0
    for index, byte in enumerate(data[position : position + 10]):
        number |= (byte & 127) << (7 * index)
        if byte < 128:
            return number, position + index + 1
    raise ValueError("a number has no end")
