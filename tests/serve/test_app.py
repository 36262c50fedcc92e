"""The JSON interface: predictions, errors with their status, limits, and the current version."""

from __future__ import annotations

import asyncio
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from recollect import ContinualClassifier, ModelStore
from recollect.inference import predict_chunks
from recollect.serve.app import Service, make_app
from recollect.serve.current import CurrentModel, Loaded


def test_predictions_are_those_of_the_command(client: TestClient, two_months: Path, image: Path) -> None:
    classifier = ContinualClassifier.load(two_months, device="cpu")
    for query, options in (("?top=3", {"top": 3}), ("?task=may&top=9", {"task": "may", "top": 9}), ("", {})):
        ((expected,),) = predict_chunks(classifier, [image], **options)  # type: ignore[arg-type]
        answer = client.post(f"/predict{query}", content=image.read_bytes())
        assert answer.status_code == 200
        del expected["path"]
        assert answer.json() == {**expected, "version": "002-june"}
    assert list(answer.json()) == ["class", "probability", "task", "top", "version"]
    assert (answer.json()["class"], answer.json()["task"]) == ("2", "june")


def test_an_improbable_class_is_unknown(open_client: Any, image: Path) -> None:
    answer = open_client(min_probability=1.0).post("/predict?top=2", content=image.read_bytes()).json()
    assert (answer["class"], answer["task"], answer["top"][0]["class"]) == ("unknown", None, "2")


def test_the_model_is_described(client: TestClient) -> None:
    about = client.get("/model").json()
    assert about["classes"] == ["0", "1", "2", "3"]
    assert about["tasks"] == [{"name": "may", "classes": ["0", "1"]}, {"name": "june", "classes": ["2", "3"]}]
    assert (about["version"], about["image_size"], about["collect"]) == ("002-june", 16, None)


@pytest.mark.parametrize(
    ("method", "path", "kind", "status", "message"),
    [
        ("POST", "/predict", "image/png", 400, "not a readable image (not a format that recollect reads)"),
        ("POST", "/predict?top=0", "image/png", 422, "top is a number of classes"),
        ("POST", "/predict?top=%F0%9D%9F%99", "image/png", 422, "top is a number of classes"),
        ("POST", "/predict?task=march", "image/png", 422, "there is no task 'march'; the model has learned may, june"),
        ("POST", "/predict", "multipart/form-data; boundary=x", 415, "--data-binary @photo.jpg"),
        ("POST", "/predict", "application/json", 415, "send the image file itself"),
        ("GET", "/predict", "image/png", 405, "Method Not Allowed"),
        ("GET", "/docs", "image/png", 404, "Not Found"),
        ("POST", "/collect?class=cat", "image/png", 404, "start the server with --collect FOLDER"),
    ],
)
def test_errors_are_json_with_a_status(
    client: TestClient, method: str, path: str, kind: str, status: int, message: str
) -> None:
    answer = client.request(method, path, content=b"no picture", headers={"content-type": kind})
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_formats_outside_the_list_are_refused(client: TestClient) -> None:
    postscript = io.BytesIO()
    Image.new("RGB", (8, 8)).save(postscript, "EPS")
    for content in (postscript.getvalue(), b""):
        assert client.post("/predict", content=content).status_code == 400


def test_photos_of_phones_are_read_without_a_file_name(client: TestClient) -> None:
    from pillow_heif import register_heif_opener

    register_heif_opener()
    photo = io.BytesIO()
    Image.new("RGB", (64, 64), "white").save(photo, "HEIF")
    assert client.post("/predict", content=photo.getvalue()).status_code == 200


def test_a_large_file_is_refused_and_not_read_to_its_end(
    open_client: Any, two_months: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recollect.serve.app.MAX_DISCARDED_BYTES", 1000)
    declared = open_client(max_bytes=1000).post("/predict", content=bytes(1001))
    assert (declared.status_code, declared.json()) == (413, {"error": declared.json()["error"]})
    assert "larger than 0.001 MB" in declared.json()["error"]
    assert open_client(max_bytes=1000).post("/predict", content=bytes(1000)).status_code == 400
    received: list[int] = []
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:  # without a declared length, and without an end
        received.append(400)
        return {"type": "http.request", "body": bytes(400), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {"type": "http", "method": "POST", "path": "/predict", "query_string": b""}
    scope |= {"headers": [(b"host", b"localhost")], "root_path": "", "http_version": "1.1"}
    asks_first = scope | {"headers": [*scope["headers"], (b"content-length", b"1001"), (b"expect", b"100-continue")]}
    with ThreadPoolExecutor(1) as worker:
        app = make_app(Service(CurrentModel(two_months, "cpu", exports=False), worker, max_bytes=1000))
        asyncio.run(app(asks_first, receive, send))  # type: ignore[arg-type]
        assert (sent[0]["status"], received) == (413, [])
        sent.clear()
        asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 413
    assert sum(received) == 2400


def test_a_new_version_is_used_at_once(open_client: Any, folder: Path, image: Path) -> None:
    store = ModelStore(folder)
    store.rollback("may")
    client = open_client(folder)
    content = image.read_bytes()
    assert client.post("/predict", content=content).json()["version"] == "001-may"
    store.rollback("june")
    assert client.post("/predict", content=content).json()["version"] == "002-june"
    assert client.get("/model").json()["classes"] == ["0", "1", "2", "3"]


def test_a_damaged_version_leaves_the_earlier_one_in_use(open_client: Any, folder: Path, image: Path) -> None:
    client = open_client(folder)
    ModelStore(folder).rollback("may")
    (folder / "versions" / "001-may" / "weights.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="version 002-june stays in use: .* does not match its hash"):
        answer = client.post("/predict", content=image.read_bytes())
    assert answer.json()["version"] == "002-june"


def test_an_unchanged_version_is_not_loaded_again(
    client: TestClient, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CurrentModel, "_load", lambda self: pytest.fail("loaded again"))
    assert client.post("/predict", content=image.read_bytes()).status_code == 200


def test_the_page_answers_while_an_image_is_classified(
    client: TestClient, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, finish, predict = threading.Event(), threading.Event(), Loaded.predict

    def slow(*arguments: Any) -> Any:
        started.set()
        assert finish.wait(30)
        return predict(*arguments)

    monkeypatch.setattr(Loaded, "predict", slow)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/predict", content=image.read_bytes())
        assert started.wait(30)
        assert client.get("/").status_code == 200
        assert not waiting.done()
        finish.set()
        assert waiting.result().status_code == 200


def test_a_failure_is_json_too(client: TestClient, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loaded, "predict", lambda *_: 1 / 0)
    answer = client.post("/predict", content=image.read_bytes())
    assert (answer.status_code, answer.json()) == (500, {"error": "the server failed; its terminal shows why"})
    assert answer.headers["x-content-type-options"] == "nosniff"
