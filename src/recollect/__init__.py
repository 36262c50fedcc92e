"""recollect: keep training an image classifier on new tasks, forgetting little of old ones, keeping no old data."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "ContinualClassifier": "recollect.deploy",
    "Gate": "recollect.deploy",
    "ModelStore": "recollect.deploy",
    "Observer": "recollect.engine",
    "RFE": "recollect.core",
    "RetrospectorChain": "recollect.core",
    "RunConfig": "recollect.runs",
    "StoppedError": "recollect.errors",
    "UserError": "recollect.errors",
    "load_run": "recollect.runs",
    "open_stream": "recollect.streams",
    "resolve": "recollect.runs",
    "run": "recollect.runs",
    "stream_from_tensors": "recollect.streams",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that `recollect --help` does not wait for torch."""
    if name == "__version__":
        from importlib.metadata import version

        return version("recollect-rfe")
    if name not in _HOMES:
        raise AttributeError(f"module 'recollect' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
