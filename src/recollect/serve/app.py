"""The web application: the page, `GET /model`, `POST /predict`, `POST /collect`. An error is {"error": message}."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from recollect.errors import UserError
from recollect.inference import Ranking
from recollect.serve.collection import Collection, check_image
from recollect.serve.current import CurrentModel
from recollect.serve.guard import Guard, is_own_page

MEGABYTE = 1_000_000
MAX_DISCARDED_BYTES = 100 * MEGABYTE
RAW_TYPES = ("image/", "application/octet-stream", "application/x-www-form-urlencoded")  # the last is curl's default
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Service:
    """What the application works with."""

    model: CurrentModel
    worker: Executor
    """One thread: neither a model nor a collection may be used by two at once, and the event loop stays free."""
    collection: Collection | None = None
    """Where corrected images are stored; without it nothing is."""
    min_probability: float = 0.0
    max_bytes: int = 20 * MEGABYTE

    async def do(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run something in the worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self.worker, work, *arguments)

    async def show_model(self, request: Request) -> Response:
        return JSONResponse(await self.do(self._describe))

    async def predict(self, request: Request) -> Response:
        query = request.query_params
        content = await self._read_body(request)
        return JSONResponse(await self.do(self._classify, content, query.get("task") or None, query.get("top", "1")))

    async def collect(self, request: Request) -> Response:
        if self.collection is None:
            raise HTTPException(404, "images are not stored; start the server with --collect FOLDER")
        if not is_own_page(request.headers):
            raise HTTPException(403, "only the page of this server can store images")
        content, label = await self._read_body(request), request.query_params.get("class", "")
        return JSONResponse(await self.do(self._store, self.collection, content, label), 201)

    def _describe(self) -> dict[str, Any]:
        about = {**self.model.refresh().describe(), "min_probability": self.min_probability}
        about |= {"name": str(self.model.path), "max_bytes": self.max_bytes, "collect": None}
        if self.collection is not None:
            about["collect"] = {"folder": str(self.collection.folder), "classes": self.collection.classes()}
        return about

    def _classify(self, content: bytes, task: str | None, top: str) -> dict[str, Any]:
        loaded = self.model.refresh()
        if not re.fullmatch(r"[0-9]{1,9}", top):
            raise HTTPException(422, f"top is a number of classes, at least 1; got {top!r}")
        with refusing(422):
            ranking = Ranking(loaded.classifier, task, top=int(top), min_probability=self.min_probability)
        with refusing(400):
            return loaded.predict(content, ranking, task)

    def _store(self, collection: Collection, content: bytes, label: str) -> dict[str, str]:
        with refusing(400):
            suffix = check_image(content)
        try:
            with refusing(422):
                path = collection.add(content, suffix, label)
        except OSError as error:
            raise HTTPException(500, f"the image cannot be stored ({error.strerror}); check the folder") from error
        return {"class": path.parent.name, "path": str(path)}

    async def _read_body(self, request: Request) -> bytes:
        """The body of a request. One that is too large is refused without keeping it in memory.

        Most clients read the answer only after they have sent everything, so what follows is received and discarded,
        within limits; a client that asks first (curl) is refused at once.
        """
        kind = request.headers.get("content-type", RAW_TYPES[0])
        if not kind.lower().startswith(RAW_TYPES):
            raise HTTPException(415, "send the image file itself, such as curl --data-binary @photo.jpg")
        message = f"the file is larger than {self.max_bytes / MEGABYTE:g} MB; send a smaller one"
        too_large = HTTPException(413, message, {"Connection": "close"})
        is_large = int(request.headers.get("content-length", "0")) > self.max_bytes
        if is_large and "expect" in request.headers:
            raise too_large
        content, num_bytes = bytearray(), 0
        try:
            async for chunk in request.stream():
                num_bytes += len(chunk)
                is_large = is_large or num_bytes > self.max_bytes
                if is_large:
                    content.clear()
                else:
                    content += chunk
                if num_bytes > self.max_bytes + MAX_DISCARDED_BYTES:
                    break
        except ClientDisconnect as error:
            raise HTTPException(400, "the upload was interrupted") from error
        if is_large:
            raise too_large
        return bytes(content)


def make_app(service: Service, host: str = "127.0.0.1") -> ASGIApp:
    """The application of a server that listens on the host."""
    page = (files("recollect.serve") / "page.html").read_text("utf-8")

    async def show_page(request: Request) -> Response:
        return HTMLResponse(page)

    routes = [
        Route("/", show_page),
        Route("/model", service.show_model),
        Route("/predict", service.predict, methods=["POST"]),
        Route("/collect", service.collect, methods=["POST"]),
    ]
    handlers: Any = {HTTPException: show_error, Exception: show_failure}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), host, content_policy(page))


@contextmanager
def refusing(status: int) -> Iterator[None]:
    """A user's mistake becomes an answer with this status."""
    try:
        yield
    except UserError as error:
        raise HTTPException(status, str(error)) from error


def content_policy(page: str) -> str:
    """Allows the page its own script and style, by their hashes, and requests to this server; nothing else."""
    sources = {}
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        sources[tag] = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{sources['script']}'; style-src 'sha256-{sources['style']}'; "
        "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


async def show_error(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def show_failure(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the server failed; its terminal shows why"}, 500)
