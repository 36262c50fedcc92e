"""Run folders: `config.json`, `events.jsonl`, `result.json` and `checkpoint/`. Files appear whole or not at all."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypedDict

from recollect.engine import Observer
from recollect.errors import UserError
from recollect.results import problem_of
from recollect.runs.config import ConfigFile, RunConfig
from recollect.storage import LOCK_NAME, UNFINISHED, append_line, read_json, write_json
from recollect.storage.documents import parse_json
from recollect.storage.files import read_limited

MAX_LOG_BYTES = 1 << 30
OWN = ("result.json", "checkpoint", "events.jsonl", "data.json", "config.json")  # in the order they may go


class RunFolder:
    """One run's folder, claimed for one config."""

    def __init__(self, path: Path, config: RunConfig, *, force: bool = False) -> None:
        self.path = path
        self._config = config
        self._force = force
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; give a folder as --out")
        names = [file.name for file in path.iterdir()] if path.exists() else []
        contents = [name for name in names if not name.endswith(f".{UNFINISHED}") and name != LOCK_NAME]
        if contents and "config.json" not in contents:
            raise UserError(
                f"{path} holds {contents[0]!r} and is not a run folder; give an empty or new folder as --out"
            )
        if contents and not force:
            existing = read_json(path / "config.json", ConfigFile)
            if existing["hash"] != config.hash:
                raise UserError(
                    f"{path} holds a run of another configuration ({_differences(existing, config.to_json())}); "
                    "choose another --out, or overwrite it with --force"
                )

    def check_data(
        self, data: Mapping[str, Any], remedy: str = "choose another --out, or overwrite it with --force"
    ) -> None:
        """Refuse to resume or load a run, or to return its result, with other data than it was trained on."""
        path = self.path / "data.json"
        if self._force or not path.exists():
            return
        recorded = read_json(path, dict[str, Any])
        differ = [key for key in data if recorded.get(key) != data[key]]
        if differ:
            raise UserError(f"{self.path} holds a run on other data (another {' and '.join(differ)}); {remedy}")

    def claim(self, data: Mapping[str, Any]) -> None:
        """Make the folder this run's own; with `force` whatever an earlier run left in it goes."""
        if self._force:
            for name in OWN:
                target = self.path / name
                shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "config.json").exists():
            write_json(self.path / "config.json", self._config.to_json())
        write_json(self.path / "data.json", data)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    def result(self) -> dict[str, Any] | None:
        """The finished result, if there is one and it is not to be overwritten."""
        path = self.path / "result.json"
        if self._force or not path.exists():
            return None
        remedy = "delete it to make it again"
        result = read_json(path, dict[str, Any], remedy)
        problem = problem_of(result)
        if problem or result["config"]["hash"] != self._config.hash:
            raise UserError(f"{path} is not this run's result ({problem or 'another hash'}); {remedy}")
        return result

    def finish(self, result: Mapping[str, Any]) -> None:
        write_json(self.path / "result.json", result)


class EventLog(Observer):
    """Appends each event to events.jsonl, and forwards everything to another observer."""

    def __init__(self, path: Path, other: Observer) -> None:
        self._path = path
        self._other = other

    def event(self, kind: str, **fields: Any) -> None:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        append_line(self._path, json.dumps({"event": kind, "time": when, **fields}, allow_nan=False))
        self._other.event(kind, **fields)

    def phase(self, title: str, num_images: int) -> None:
        self._other.phase(title, num_images)

    def advance(self, num_images: int) -> None:
        self._other.advance(num_images)

    def report(self, loss: float | None = None, accuracy: float | None = None) -> None:
        self._other.report(loss, accuracy)


def last_data_root(events: Path) -> Path | None:
    """The data folder named by the last start; a line that a crash left incomplete is skipped."""
    root: str | None = None
    for line in read_lines(events):
        try:
            event = parse_json(line, _StartEvent)
        except ValueError:  # another event, or an incomplete line
            continue
        root = event["data_root"]
    return None if root is None else Path(root)


class _StartEvent(TypedDict):
    event: Literal["started"]
    data_root: str | None


def read_lines(path: Path) -> list[bytes]:
    """The lines of a log, which may be absent or hold anything."""
    try:
        return read_limited(path, MAX_LOG_BYTES).splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); move it away and run again") from error


def code_version() -> str:
    """The commit of the checkout that this code runs from, marked where it was changed; else the package's version."""
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(package), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        git("ls-files", "--error-unmatch", __file__)  # a checkout that merely contains the environment is not ours
        return f"{commit}{'+changes' if git('status', '--porcelain', '--', '.') else ''}"
    except (OSError, subprocess.CalledProcessError):
        return f"recollect {version('recollect-rfe')}"


def _differences(existing: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Which settings differ, for a message."""
    differences = []
    file, before_file = wanted.get("method_file"), existing.get("method_file")
    if file and before_file and before_file.sha256 != file["sha256"]:
        differences.append(f"{file['path']} has changed since")
    for section, value in wanted.items():
        before = existing.get(section)
        if isinstance(value, dict) and isinstance(before, dict):
            differences += [
                f"{section}.{key} is {before.get(key)}, not {setting}"
                for key, setting in value.items()
                if before.get(key) != setting
            ]
        elif section not in ("hash", "method_file") and before != value:
            differences.append(f"{section} is {before}, not {value}")
    return "; ".join(differences[:3]) or "other options"
