"""Listening on a port until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from recollect.errors import UserError

MAX_CONNECTIONS = 32  # each may hold one upload in memory
GRACE_SECONDS = 5  # for requests that are being answered when the server stops


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 stands for any free one."""
    if not 0 <= port <= 65535:
        raise UserError(f"a port is a number from 0 to 65535, got {port}")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (socket.gaierror, UnicodeError) as error:
        raise UserError(f"--host {host} is not an address of this computer; leave it out for 127.0.0.1") from error
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(f"cannot listen on {host}, port {port} ({reason}); choose another --port or --host") from error


def address_of(host: str, listening: socket.socket) -> str:
    """The address of the page."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"


def run(app: ASGIApp, listening: socket.socket, when_started: Callable[[], None]) -> None:
    """Answer requests until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(
        app, http="h11", ws="none", lifespan="off", loop="asyncio", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )  # fmt: skip
    signal.signal(signal.SIGTERM, _exit)  # uvicorn raises the signal again after it has stopped
    with suppress(KeyboardInterrupt):
        _Server(config, when_started).run([listening])


def _exit(number: int, frame: FrameType | None) -> None:
    """End the command as the signal would, but close what is open first."""
    sys.exit(128 + number)


class _Server(uvicorn.Server):
    """Says when it has started."""

    def __init__(self, config: uvicorn.Config, when_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._when_started = when_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._when_started()
