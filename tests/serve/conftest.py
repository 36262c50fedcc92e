"""A small model of two months, its application and images."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from recollect.serve.app import Service, make_app
from recollect.serve.current import CurrentModel
from tests.deploy.support import digits, make_classifier, write_digits
from tests.serve.support import ADDRESS

OpenClient = Callable[..., TestClient]


@pytest.fixture(scope="session")
def two_months(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with the versions 001-may and 002-june, not to be changed."""
    folder = tmp_path_factory.mktemp("serve") / "model"
    model = make_classifier(epochs=3).learn(digits("may"), task="may").save(folder)
    model.learn(digits("june"), task="june").save(folder)
    return folder


@pytest.fixture
def folder(two_months: Path, tmp_path: Path) -> Path:
    """A copy of the model folder."""
    return Path(shutil.copytree(two_months, tmp_path / "model"))


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a digit 2."""
    return min((write_digits(tmp_path_factory.mktemp("images"), "june", test=True) / "2").iterdir())


@pytest.fixture
def open_client(two_months: Path) -> Iterator[OpenClient]:
    """Opens clients of the application, which are closed after the test."""
    with ExitStack() as stack:

        def open_(folder: Path = two_months, host: str = "127.0.0.1", **options: Any) -> TestClient:
            worker = stack.enter_context(ThreadPoolExecutor(1))
            service = Service(CurrentModel(folder, "cpu", exports=False), worker, **options)
            client = TestClient(make_app(service, host), base_url=ADDRESS, raise_server_exceptions=False)
            return stack.enter_context(client)

        yield open_


@pytest.fixture
def client(open_client: OpenClient) -> TestClient:
    """A client of the model of two months."""
    return open_client()
