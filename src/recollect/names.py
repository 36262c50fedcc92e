"""Names of tasks and classes, normalised so that one name has one spelling."""

from __future__ import annotations

import unicodedata
from typing import Any

from recollect.errors import UserError

UNKNOWN = "unknown"  # what `predict --min-probability` answers below the threshold
MAX_LENGTH = 100


def normalise(name: str) -> str:
    """The NFC form: file systems and keyboards write one character in several ways."""
    return unicodedata.normalize("NFC", name)


def check_task_name(task: Any) -> str:
    """The normalised name of a task, which is also the name of a folder of test images."""
    if not isinstance(task, str) or not task.strip() or len(task) > MAX_LENGTH or task.startswith("."):
        raise UserError(
            f"a task's name is a string of 1 to {MAX_LENGTH} characters that does not start with a dot, got {task!r}"
        )
    if set(task) & set("/\\") or not task.isprintable():
        raise UserError(f"a task's name contains no slash and only printable characters, got {task!r}")
    return normalise(task)


def check_class_name(label: Any) -> str:
    """The normalised name of the class that a label stands for: a string or an integer."""
    value = label.tolist() if hasattr(label, "tolist") else label
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int) or not str(value).strip():
        raise UserError(f"a label is a string or an integer, and not blank; got {label!r}")
    name = normalise(str(value))
    if name == UNKNOWN:
        raise UserError(f"the class name {name!r} is reserved for `predict --min-probability`; rename the class")
    if not name.isprintable():  # including bytes that a file system could not decode
        raise UserError(f"the class name {name!r} contains characters that cannot be printed; rename the class")
    return name
