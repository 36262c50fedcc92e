"""JSON documents: written atomically, read with a size limit and a schema, sealed by a hash of their content.

A schema is any type that msgspec supports: a dataclass, a TypedDict, `dict[str, int]`. Python's `json` accepts NaN,
Infinity, lone surrogates and numbers of any length; this does not, so callers need not check for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from recollect.errors import UserError
from recollect.storage.files import read_limited, write_text

MAX_BYTES = 64 << 20
Schema = TypeVar("Schema")


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document as indented JSON."""
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, schema: type[Schema], remedy: str = "move it away and run again") -> Schema:
    """Read a document that fits the schema; anything else is an error that names the file and the remedy."""
    try:
        return load_json(path, schema)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); {remedy}") from error


def load_json(path: Path, schema: type[Schema]) -> Schema:
    """Read a document that fits the schema; raise ValueError if it does not, OSError if it cannot be read."""
    return parse_json(read_limited(path, MAX_BYTES), schema)


def parse_json(data: bytes | str, schema: type[Schema]) -> Schema:
    """Parse a text that fits the schema; raise ValueError if it does not."""
    try:
        return msgspec.json.decode(data, type=schema)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def seal(document: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return the document with a hash of all its other fields."""
    return {**document, field: _digest(document, field)}


def seal_matches(document: Mapping[str, Any], field: str) -> bool:
    """Return whether a document has not changed since it was sealed."""
    return document.get(field) == _digest(document, field)


def _digest(document: Mapping[str, Any], field: str) -> str:
    rest = {key: value for key, value in document.items() if key != field}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
