"""`inspect` of models whose current version, or the file that names it, is damaged."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support import recollect


def damage(folder: Path, *names: str) -> None:
    for name in names:
        weights = folder / "versions" / name / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-9])


def test_inspect_lists_the_versions_if_the_current_one_is_damaged(folder: Path) -> None:
    damage(folder, "002-june", "003-july")
    done = recollect("inspect", folder)
    assert done.returncode == 2
    assert [line.split() for line in done.stdout.splitlines()[:4]] == [
        ["version", "state"],
        ["001-may", "intact"],
        ["002-june", "damaged"],
        ["003-july", "damaged"],
    ]
    command = f"recollect rollback {folder} --to 001-may"
    assert f"{command} makes the newest intact version current." in done.stdout
    assert f"does not match its hash); {command}" in done.stderr  # 002-june, whose model.json is intact, is not offered
    about = json.loads(recollect("inspect", folder, "--json").stdout)
    assert about["versions"] == {"001-may": "intact", "002-june": "damaged", "003-july": "damaged"}
    assert about["newest_intact"] == "001-may"
    assert recollect("rollback", folder, "--to", "001-may").returncode == 0
    assert recollect("inspect", folder).returncode == 0


def test_inspect_lists_the_versions_if_the_pointer_is_damaged(folder: Path) -> None:
    (folder / "model.json").write_text("{")
    about = folder / "versions" / "002-june" / "model.json"
    about.write_text(about.read_text().replace('"format": 5', '"format": 99'))
    done = recollect("inspect", folder)
    assert (done.returncode, "model.json cannot be read" in done.stderr) == (2, True)
    assert [line.strip().split(maxsplit=1) for line in done.stdout.splitlines()[1:4]] == [
        ["001-may", "intact"],
        ["002-june", "of another format"],
        ["003-july", "intact"],
    ]


def test_inspect_of_a_model_without_an_intact_version_names_a_backup(folder: Path) -> None:
    damage(folder, "001-may", "002-june", "003-july")
    done = recollect("inspect", folder)
    assert (done.returncode, "restore it from a backup" in done.stderr) == (2, True)
    assert "rollback" not in done.stdout
