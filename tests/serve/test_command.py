"""`recollect serve` as a process: its address, its end, and what it refuses."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.serve.support import serving
from tests.support import recollect


def test_the_server_answers_at_its_address_and_ends_by_ctrl_c(two_months: Path, tmp_path: Path, image: Path) -> None:
    with serving(two_months, "--max-megabytes", 0.5, cwd=tmp_path) as (server, address):
        request = urllib.request.Request(f"{address}/predict?top=2", image.read_bytes())
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["class"] == "2"
        with pytest.raises(urllib.error.HTTPError, match="413") as refused:  # after megabytes were sent
            urllib.request.urlopen(f"{address}/predict", bytes(30_000_000), timeout=30)
        refused.value.close()
        port = address.rpartition(":")[2]
        second = recollect("serve", two_months, "--port", port, "--device", "cpu")
        assert (second.returncode, second.stdout) == (2, "")
        assert f"cannot listen on 127.0.0.1, port {port} (Address already in use)" in second.stderr
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=30)
        assert (server.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port=70000"], "a port is a number from 0 to 65535"),
        (["--port=0", "--host=no.such.host.invalid"], "is not an address of this computer"),
        (["--port=0", "--host=192.0.2.1"], "cannot listen on 192.0.2.1"),
        (["--port=0", "--min-probability=2"], "--min-probability is between 0 and 1, got 2"),
        (["--port=0", "--max-megabytes=0"], "--max-megabytes is a positive number, got 0"),
        (["--port=0", "--collect=model/photos"], "in the model folder, which keeps no images"),
    ],
)
def test_bad_options_are_refused(folder: Path, options: list[str], message: str) -> None:
    done = recollect("serve", "model", *options, cwd=folder.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    done = recollect("serve", tmp_path, "--port", 0)
    assert (done.returncode, "has no model; recollect learn" in done.stderr) == (2, True)


def test_missing_packages_are_named(two_months: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = recollect("serve", two_months)
    assert (done.returncode, "pip install 'recollect-rfe[serve]'" in done.stderr) == (2, True)


def test_other_computers_are_warned_about(two_months: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_briefly(app: object, listening: socket.socket, when_started: object) -> None:
        assert callable(when_started)
        when_started()

    monkeypatch.setattr("recollect.serve.server.run", run_briefly)
    local = recollect("serve", two_months, "--port", 0)
    assert (local.returncode, local.stderr) == (0, "")
    shared = recollect("serve", two_months, "--port", 0, "--host", "0.0.0.0", "--collect", tmp_path / "july")
    assert "there is no password: whoever reaches 0.0.0.0 can use the model and store images" in shared.stderr
    assert f"stored on disk in {tmp_path / 'july'}/<class>/" in shared.stdout


def test_other_commands_do_not_import_the_web_packages() -> None:
    code = "import sys, recollect, recollect.cli.app, recollect.deploy, recollect.serve\n"
    code += "print(sorted({'starlette', 'uvicorn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
