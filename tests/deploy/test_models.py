"""For people with a folder: learn month by month, predict, inspect, check, roll back; nothing lost when it is cut."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from recollect import ContinualClassifier
from recollect.audit import take_stock
from recollect.deploy import load_model, versions_of
from recollect.deploy.data import read_images, read_labelled
from recollect.deploy.reading import fit_temperature
from recollect.errors import UserError
from tests.runs.test_runs import recollect

MONTHS = {"may": ("0", "1"), "june": ("2", "3"), "july": ("1", "4")}


def digits(task: str, *, test: bool = False) -> tuple[np.ndarray, list[str]]:
    from sklearn.datasets import load_digits

    found = load_digits()
    names = found.target.astype(str)
    rows = np.isin(names, MONTHS[task]) & ((np.arange(len(names)) % 5 == 0) == test)
    return (found.images[rows] * 15.9).astype(np.uint8), names[rows].tolist()


def write_folder(folder: Path, task: str, *, test: bool = False, most: int = 10_000) -> Path:
    for number, (image, name) in enumerate(zip(*digits(task, test=test), strict=True)):
        if number < most:
            (folder / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / name / f"{number}.png")
    return folder


def classifier(**options: Any) -> ContinualClassifier:
    small = {"backbone": "convnet", "image_size": 32, "epochs": 8, "learning_rate": 2e-3, "flip": False}
    return ContinualClassifier(**(small | {"precision": "fp32", "device": "cpu"} | options))


@pytest.fixture(scope="module")
def learned() -> ContinualClassifier:
    found = classifier()
    for task in MONTHS:
        found.learn(digits(task), task=task)
    return found


def test_it_holds_on_to_old_tasks_and_sums_a_class_that_came_back(learned: ContinualClassifier) -> None:
    assert learned.classes_.tolist() == ["0", "1", "2", "3", "4"]
    for task in MONTHS:
        x, y = digits(task, test=True)
        assert learned.score(x, y, task=task) > 0.8  # half is chance
        whole = learned.predict_proba(x)
        assert whole.sum(axis=1) == pytest.approx(np.ones(len(x)), abs=1e-5)
    x, _ = digits("may", test=True)
    units = learned.reader.probabilities(read_images(x, 32)).numpy()
    assert learned.predict_proba(x)[:, 1] == pytest.approx(units[:, 1] + units[:, 4], abs=1e-6)
    assert learned.predict(x[:4], task="may").tolist() == digits("may", test=True)[1][:4]
    with pytest.raises(UserError, match="there is no task 'march'; the model has learned may, june, july"):
        learned.predict(x, task="march")
    with pytest.raises(UserError, match="the task 'may' is learned already"):
        learned.learn(digits("may"), task="may")


def test_one_new_class_a_month_can_be_ranked() -> None:
    """Two classes in May, then one more: the new one is told from the old ones, and they from it."""
    found = classifier().learn(digits("may"), task="may")
    x, y = digits("june")
    found.learn((x[[label == "2" for label in y]], ["2"] * y.count("2")), task="june")
    x, y = digits("june", test=True)
    new = x[[label == "2" for label in y]]
    old, names = digits("may", test=True)
    assert found.score(new, ["2"] * len(new)) > 0.6
    assert found.score(old, names) > 0.6


def bits(model: Any) -> str:
    found = hashlib.sha256()
    for name in sorted(model.tensors):
        found.update(name.encode() + model.tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def test_separate_processes_give_the_same_bits_as_one(learned: ContinualClassifier, tmp_path: Path) -> None:
    """A model saved and loaded between tasks is the one that saw them in a row."""
    whole = classifier()
    for task in ("may", "june"):
        whole.learn(digits(task), task=task)
    cut = classifier().learn(digits("may"), task="may").save(tmp_path / "model")
    code = (
        "import sys; from tests.deploy.test_models import digits; from recollect import ContinualClassifier as C\n"
        "C.load(sys.argv[1], device='cpu').learn(digits('june'), task='june').save(sys.argv[1])"
    )
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    words = [sys.executable, "-c", code, str(tmp_path / "model")]
    subprocess.run(words, check=True, env=environment, cwd=Path(__file__).parents[2])
    found = load_model(tmp_path / "model")
    assert bits(found) == bits(whole.model)
    assert [task.temperature for task in found.tasks] == [task.temperature for task in whole.model.tasks]
    assert cut.tasks_[0].name == "may"


def test_features_as_of_a_task_are_near_those_it_gave() -> None:
    """Without the drift loss, where the chain carries everything: nearer than today's by far."""
    model = classifier(alpha=0.0, epochs=15).learn(digits("may"), task="may")
    x, _ = digits("may", test=True)
    original = model.features(x)
    model.learn(digits("june"), task="june")
    now, estimate = model.features(x), model.features(x, as_of="may")
    assert np.square(estimate - original).mean() < 0.7 * np.square(now - original).mean()
    assert (model.features(x, as_of="june") == now).all()


def test_probabilities_are_calibrated_by_a_temperature() -> None:
    """Logits of known sharpness: labels drawn from softmax(z), and z given three times too large."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4000, 5, generator=generator) * 2
    labels = torch.multinomial(z.softmax(1), 1, generator=generator)[:, 0]
    assert fit_temperature(3 * z, labels) == pytest.approx(3.0, rel=0.1)
    sure = torch.eye(2)[torch.arange(6) % 2] * 5
    assert fit_temperature(sure, torch.arange(6) % 2) > 1.0  # six images without a mistake prove little
    assert fit_temperature(z[:0], labels[:0]) == 1.0


def command(model: Path, images: Path, task: str, *more: str) -> list[str]:
    made = ["--backbone", "convnet", "--image-size", "32", "--epochs", "6", "--no-mirror", "--precision", "fp32"]
    words = [
        "learn",
        str(model),
        str(images),
        "--task",
        task,
        "--threads",
        "1",
        *(made if task == "may" else []),
        *more,
    ]
    return [sys.executable, "-m", "recollect", *words]


def test_the_commands_walk_two_months(tmp_path: Path) -> None:
    model = tmp_path / "model"
    for task in ("may", "june"):
        done = subprocess.run(command(model, write_folder(tmp_path / task, task), task), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "minutes" in done.stdout
        assert "keeps no image" in done.stdout
        assert "goes on after" not in done.stdout
        write_folder(tmp_path / "test" / task, task, test=True)
    some = sorted((tmp_path / "test" / "may" / "0").iterdir())[:2]
    found = json.loads(recollect("predict", model, *some, "--json", "--top", 3).stdout)
    assert [list(each) for each in found] == [["path", "class", "probability", "task", "top"]] * 2
    assert len(found[0]["top"]) == 3
    unknown = json.loads(recollect("predict", model, some[0], "--json", "--min-probability", 1).stdout)
    assert (unknown[0]["class"], unknown[0]["task"]) == ("unknown", None)
    known = json.loads(recollect("predict", model, some[0], "--json", "--task", "may").stdout)
    assert known[0]["class"] == "0"
    about = json.loads(recollect("inspect", model, "--json", "--images", tmp_path / "june").stdout)
    assert [task["name"] for task in about["tasks"]] == ["may", "june"]
    assert about["tasks"][1]["rectified"] < about["tasks"][1]["drifted"]
    assert about["shift"]["num_images"] > 100
    assert about["images_kept"] == 0
    checked = recollect("check", model, tmp_path / "test", "--max-forgetting", 20, "--json")
    assert checked.returncode == 0, checked.stderr
    tasks = json.loads(checked.stdout)["tasks"]
    assert [each["against"] for each in tasks] == ["validation, when learned", "learned last"]
    assert [each["across_before"] for each in tasks] == [about["tasks"][0]["across"], None]
    again = json.loads(recollect("check", model, tmp_path / "test", "--json").stdout)
    assert again == json.loads(checked.stdout)
    assert recollect("audit", model, "--expect", "none", "--against", tmp_path / "may" / "0").returncode == 0
    assert take_stock(model).problems("none") == []
    twice = subprocess.run(command(model, tmp_path / "june", "june"), capture_output=True, text=True)
    assert (twice.returncode, "is learned already; choose another name" in twice.stderr) == (2, True)
    assert "is at 001-may again" in recollect("rollback", model, "--to", "may").stdout
    assert [task.name for task in load_model(model).tasks] == ["may"]
    assert versions_of(model) == ["001-may", "002-june"]
    missing = recollect("rollback", model, "--to", "march")
    assert (missing.returncode, "001-may (may), 002-june (june)" in " ".join(missing.stderr.split())) == (2, True)


def test_a_learn_is_a_transaction(tmp_path: Path) -> None:
    """Killed, the model predicts as before and the same command goes on to the same bits; bad images change nothing."""
    model, other = tmp_path / "model", tmp_path / "other"
    may, june = write_folder(tmp_path / "may", "may", most=80), write_folder(tmp_path / "june", "june", most=80)
    for folder in (model, other):
        subprocess.run(command(folder, may, "may"), check=True, capture_output=True)
    before = recollect("predict", model, *sorted((may / "0").iterdir())[:3], "--json").stdout
    (june / "2" / "bad.png").write_bytes(b"no picture")
    bad = subprocess.run(command(model, june, "june"), capture_output=True, text=True)
    assert (bad.returncode, "bad.png is not a readable image" in bad.stderr) == (2, True)
    (june / "2" / "bad.png").unlink()
    with subprocess.Popen(
        command(model, june, "june", "--checkpoint-every", "0"), stdout=subprocess.DEVNULL
    ) as process:
        while process.poll() is None and len(list((model / "unfinished").glob("*/task-001.phase*"))) < 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert recollect("predict", model, *sorted((may / "0").iterdir())[:3], "--json").stdout == before
    assert json.loads(recollect("inspect", model, "--json").stdout)["unfinished_learn"]
    done = subprocess.run(command(model, june, "june"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (model / "unfinished").exists()
    subprocess.run(command(other, june, "june"), check=True, capture_output=True)
    assert bits(load_model(model)) == bits(load_model(other))


@pytest.mark.parametrize("damage", ["flip", "cut", "json", "format"])
def test_a_damaged_or_foreign_model_is_refused(damage: str, learned: ContinualClassifier, tmp_path: Path) -> None:
    learned.save(tmp_path)
    place = tmp_path / "versions" / "003-july"
    weights, about = place / "weights.safetensors", place / "model.json"
    if damage in ("flip", "cut"):
        data = bytearray(weights.read_bytes())
        data[-5] ^= 1
        weights.write_bytes(data if damage == "flip" else data[:-100])
    else:
        changed = json.loads(about.read_text())
        changed |= {"tasks": 3} if damage == "json" else {"format": 99}
        about.write_text(json.dumps(changed))
    with pytest.raises(UserError, match="has the format 99" if damage == "format" else "cannot be used"):
        load_model(tmp_path)


def test_all_that_people_have_is_the_same_data(tmp_path: Path) -> None:
    x, y = digits("may")
    x = np.kron(x, np.ones((1, 4, 4), np.uint8))[:40]
    y = y[:40]
    pairs = [(Image.fromarray(image), label) for image, label in zip(x, y, strict=True)]
    loader = torch.utils.data.DataLoader(
        [(torch.from_numpy(image)[None] / 255, int(label)) for image, label in zip(x, y, strict=True)], batch_size=7
    )
    digest = read_labelled((x, y), 32).digest
    assert read_labelled(pairs, 32).digest == digest
    assert read_labelled(loader, 32).digest == digest
    for data, says in (
        ((x.astype(float) * 2, y), "pixels are bytes, or numbers from 0 to 1"),
        ((x, y[:-1]), "there are 40 images and 39 labels"),
        (3, "cannot learn from a int"),
        ((x[:, None, None], y), "an image has the shape"),
        (tmp_path / "nowhere", "is no folder"),
    ):
        with pytest.raises(UserError, match=says):
            read_labelled(data, 32)
    with pytest.warns(UserWarning, match="fewer than 10 images of 'b'"), pytest.warns(UserWarning, match="favour"):
        classifier(epochs=1).learn((x[:32], ["a"] * 30 + ["b"] * 2), task="may")


def test_a_module_of_ones_own_and_a_half_open_image_zoo(tmp_path: Path) -> None:
    """Grey, alpha, CMYK, 16 bits, turned by EXIF, of any size; read with a backbone given in Python."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    found = ContinualClassifier(module, image_size=32, epochs=1, device="cpu", precision="fp32")
    x, y = digits("may")
    found.learn((x, y), task="may").save(tmp_path / "model")
    paths = []
    for mode, size in (("L", (40, 30)), ("RGBA", (17, 90)), ("CMYK", (64, 64)), ("I;16", (50, 50)), ("P", (33, 33))):
        paths.append(tmp_path / f"{mode.replace(';', '')}.{'tif' if mode == 'CMYK' else 'png'}")
        Image.new(mode, size).save(paths[-1])
    again = ContinualClassifier.load(tmp_path / "model", backbone=module, device="cpu")
    assert again.predict_proba(paths).shape == (5, 2)
    assert (again.predict_proba(x) == found.predict_proba(x)).all()
    with pytest.raises(UserError, match="a backbone of your own; give the same module"):
        ContinualClassifier.load(tmp_path / "model", device="cpu").predict(x)
