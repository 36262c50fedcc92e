"""Web pages of others get nothing from the server and store nothing through it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from recollect.serve.collection import Collection
from recollect.serve.guard import Guard, is_local
from tests.serve.support import ADDRESS

OWN = {"origin": ADDRESS, "sec-fetch-site": "same-origin"}


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:9000", "[::1]:8000"])
def test_names_of_this_computer_are_accepted(client: TestClient, host: str) -> None:
    assert client.get("/model", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "", "[::1"])
def test_other_names_are_refused(client: TestClient, host: str) -> None:
    answer = client.get("/model", headers={"host": host})
    assert (answer.status_code, list(answer.json())) == (403, ["error"])


def test_all_interfaces_accept_addresses_but_no_foreign_names(open_client: Any) -> None:
    client = open_client(host="0.0.0.0")
    for host, status in (("192.168.1.7:8000", 200), (socket.gethostname(), 200), ("evil.example", 403)):
        assert client.get("/model", headers={"host": host}).status_code == status
    assert open_client(host="box.lan").get("/model", headers={"host": "Box.lan:80"}).status_code == 200
    assert open_client().get("/model", headers={"host": "192.168.1.7"}).status_code == 403


def test_only_loopback_is_local() -> None:
    assert [is_local(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "Localhost")] == [True] * 5
    assert [is_local(host) for host in ("0.0.0.0", "::", "192.168.1.7", "box.lan", "")] == [False] * 5


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": ADDRESS, "sec-fetch-site": "cross-site"},
    ],
)
def test_requests_of_other_pages_are_refused(
    open_client: Any, two_months: Path, tmp_path: Path, image: Path, headers: dict[str, str]
) -> None:
    client = open_client(collection=Collection(tmp_path / "july", two_months))
    for path in ("/predict", "/collect?class=cat"):
        assert client.post(path, content=image.read_bytes(), headers=headers).status_code == 403
    assert list((tmp_path / "july").iterdir()) == []


def test_storing_needs_the_origin_and_classifying_does_not(
    open_client: Any, two_months: Path, tmp_path: Path, image: Path
) -> None:
    client = open_client(collection=Collection(tmp_path / "july", two_months))
    content = image.read_bytes()
    assert client.post("/predict", content=content).status_code == 200
    assert client.post("/collect?class=cat", content=content).status_code == 403
    assert client.post("/collect?class=cat", content=content, headers={"sec-fetch-site": "none"}).status_code == 403
    for headers in (OWN, {"origin": ADDRESS}, {"sec-fetch-site": "same-origin"}):
        assert client.post("/collect?class=cat", content=content, headers=headers).status_code == 201


def test_a_request_that_the_end_of_the_server_interrupts_is_answered() -> None:
    sent: list[Any] = []

    async def wait(*_: object) -> None:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    async def interrupt() -> None:
        scope: Any = {"type": "http", "method": "GET", "headers": [(b"host", b"localhost")]}
        request = asyncio.ensure_future(Guard(wait, "127.0.0.1", "")(scope, wait, send))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        request.cancel()
        await request

    asyncio.run(interrupt())
    assert (sent[0]["status"], sent[1]["body"]) == (503, b'{"error":"the server stops"}')


def test_every_answer_has_security_headers(client: TestClient) -> None:
    for answer in (client.get("/"), client.get("/nowhere"), client.get("/model", headers={"host": "evil.example"})):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers


def test_the_policy_allows_only_the_script_of_the_page(client: TestClient) -> None:
    answer = client.get("/")
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = answer.headers["content-security-policy"]
    assert f"script-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert not re.search(r"""(src|href)=["'](?!data:,)""", answer.text)
    assert "http" not in answer.text
