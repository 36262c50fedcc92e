"""The address that tests give to the application, and a server in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ADDRESS = "http://127.0.0.1:8000"


@contextmanager
def serving(*arguments: object, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`recollect serve` on a free port, and the address that it prints."""
    command = [sys.executable, "-m", "recollect", "serve", *map(str, arguments), "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            printed = server.stdout.readline()
            address = re.search(r"http://\S+:\d+", printed)
            assert address is not None, printed + (server.stderr.read() if not printed else "")
            yield server, address[0]
        finally:
            server.kill()
