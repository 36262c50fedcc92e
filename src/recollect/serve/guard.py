"""What protects a server on this computer from web pages of others: checks of Host and Origin, and security headers.

A page of another site can make the browser send requests here. With DNS rebinding it even counts as the same origin,
but its Host is then a name that is not ours. Without rebinding, the browser states the origin and keeps the answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}
READING = {"GET", "HEAD"}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_local(host: str) -> bool:
    """Whether only this computer reaches a server that listens on the host."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


class Guard:
    """Wraps an application: refuses what a foreign page may have sent, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, host: str, policy: str) -> None:
        self._app = app
        address = _address(host)
        self._all_addresses = address is not None and address.is_unspecified
        self._names = LOCAL_NAMES | {host.lower()}
        if self._all_addresses:
            self._names |= {socket.gethostname().lower()}
        self._headers = {**HEADERS, "Content-Security-Policy": policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_answered = False

        async def send_with_headers(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        if scope["type"] != "http":  # the start and the end of the server
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        app = self._app
        if not self._is_own_name(headers.get("host", "")):
            app = _refuse("this server has another name; open it as it was started, or give the name with --host")
        elif scope["method"] not in READING and is_foreign(headers):
            app = _refuse("requests from pages of other sites are refused")
        try:
            await app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server stops, and has waited for this request long enough
            if not is_answered:
                await _refuse("the server stops", 503)(scope, receive, send_with_headers)

    def _is_own_name(self, host: str) -> bool:
        name = _split_host(host)
        return name in self._names or (self._all_addresses and _address(name) is not None)


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a request comes from another origin."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin", "none"):
        return True
    return origin is not None and urlsplit(origin).netloc != headers.get("host")


def is_own_page(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a request comes from the page of this server."""
    stated = headers.get("sec-fetch-site") == "same-origin" or "origin" in headers
    return stated and not is_foreign(headers)


def _refuse(message: str, status: int = 403) -> ASGIApp:
    return JSONResponse({"error": message}, status)


def _split_host(host: str) -> str:
    """The name in a Host header, without port and brackets; "" if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
