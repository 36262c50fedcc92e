"""Streams: how classes, subsets and validation are drawn, and what augmentation does to each image."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.support import make_stream

from recollect.errors import UserError
from recollect.streams import ImageOptions, Pixels, StreamOptions, open_stream, stream_from_tensors
from recollect.streams.build import streams


def options(**changes: object) -> StreamOptions:
    return StreamOptions(**({"crop_padding": 2} | changes))  # type: ignore[arg-type]


def digits(seed: int = 0, **changes: object):  # type: ignore[no-untyped-def]
    return open_stream("split-digits", options(**changes), seed)


def test_digits_are_five_tasks_with_a_test_set_that_no_seed_changes() -> None:
    a, b = digits(0), digits(1)
    assert [t.info.class_names for t in a.tasks] == [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7"), ("8", "9")]
    assert sum(len(t.train) + len(t.validation) + len(t.test) for t in a.tasks) == 1797
    share = sum(len(t.test) for t in a.tasks) / 1797
    assert share == pytest.approx(0.2, abs=0.005)
    for x, y in zip(a.tasks, b.tasks, strict=True):
        assert torch.equal(x.test.indices, y.test.indices)
        assert not torch.equal(x.train.indices, y.train.indices)
        assert abs(len(x.validation) / (len(x.train) + len(x.validation)) - 0.1) < 0.01


def test_train_validation_and_test_share_no_image() -> None:
    stream = digits()
    seen: set[bytes] = set()
    for task in stream.tasks:
        for split in (task.train, task.validation, task.test):
            pictures = {row.tobytes() for row in split.take(torch.arange(len(split)))[0].numpy()}
            assert not pictures & seen
            seen |= pictures
    assert len(seen) > 1700


def test_labels_count_units_across_tasks() -> None:
    for task in digits(tasks=4).tasks:
        units = set(task.train.labels.tolist())
        assert units == set(task.test.labels.tolist())
        assert len(units) == task.info.num_classes
    sizes = [t.info.num_classes for t in digits(tasks=4).tasks]
    assert sizes == [3, 3, 2, 2]


def test_class_order_by_label_seeded_or_listed() -> None:
    seeded = [n for t in digits(3, class_order="seeded").tasks for n in t.info.class_names]
    assert sorted(seeded) == list("0123456789") != seeded
    assert seeded == [n for t in digits(3, class_order="seeded").tasks for n in t.info.class_names]
    listed = digits(tasks=[["7"], ["1", "2", "3"]])
    assert [t.info.class_names for t in listed.tasks] == [("7",), ("1", "2", "3")]
    assert set(listed.tasks[0].test.labels.tolist()) == {0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": 11}, "11 tasks need at least as many classes"),
        ({"tasks": 0}, "at least 1 task"),
        ({"tasks": []}, "got an empty list"),
        ({"crop_padding": 33}, "more than the images' 32 pixels"),
        ({"tasks": [["7", "x"]]}, "no class is called 'x'"),
        ({"tasks": [["7"], ["7", "7"]]}, "names each of its classes once"),
        ({"tasks": [["7"]], "class_order": "seeded"}, "draws the tasks itself"),
        ({"class_order": "random"}, "'label' or 'seeded', got 'random'"),
        ({"validation": 1.0}, "share in"),
        ({"train_per_class": -1}, "got -1"),
    ],
)
def test_bad_options_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        digits(**changes)


def test_train_per_class_is_a_seeded_subset() -> None:
    few = digits(0, train_per_class=10)
    assert [len(t.train) for t in few.tasks] == [18] * 5
    assert [len(t.validation) for t in few.tasks] == [2] * 5
    assert torch.equal(few.tasks[0].train.indices, digits(0, train_per_class=10).tasks[0].train.indices)
    assert not torch.equal(few.tasks[0].train.indices, digits(1, train_per_class=10).tasks[0].train.indices)
    one = digits(0, train_per_class=1)
    assert [len(t.train) for t in one.tasks] == [2] * 5


def test_statistics_come_from_the_first_task() -> None:
    stream = make_stream((2, 2))
    split = stream.tasks[0].train
    images = split.take(torch.arange(len(split)))[0].double() / 255
    assert stream.pixels.mean == pytest.approx(images.mean((0, 2, 3)).tolist())
    assert stream.pixels.std == pytest.approx(images.std((0, 2, 3), correction=0).tolist())


def test_invalid_tensors_are_refused() -> None:
    images, labels = torch.zeros(4, 3, 16, 16, dtype=torch.uint8), torch.arange(4)
    with pytest.raises(UserError, match="must be uint8"):
        stream_from_tensors(images.float(), labels, images, labels, tasks=2)
    with pytest.raises(UserError, match="and 3 labels"):
        stream_from_tensors(images, labels[:3], images, labels, tasks=2)
    with pytest.raises(UserError, match="test images have shape"):
        stream_from_tensors(images, labels, images[:, :1], labels, tasks=2)
    with pytest.raises(UserError, match="labels go up to 3 but there are 2"):
        stream_from_tensors(images, labels, images, labels, tasks=2, class_names=["a", "b"])
    with pytest.raises(UserError, match="class '1' has no training image"):
        stream_from_tensors(images[:2], torch.tensor([0, 2]), images, labels, tasks=1)


def test_plain_images_are_normalised_and_not_augmented() -> None:
    pixels = Pixels((0.5, 0.25, 0.0), (0.5, 0.25, 1.0))
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    found = pixels.normalise(images)
    for c, (mean, std) in enumerate(zip(pixels.mean, pixels.std, strict=True)):
        assert torch.allclose(found[:, c], (images[:, c] / 255 - mean) / std, atol=1e-6)


@pytest.mark.parametrize("flip", [False, True])
def test_each_image_gets_its_own_crop_and_flip(flip: bool) -> None:
    pixels = Pixels((0.0,), (1.0,), padding=2, flip=flip)
    one = torch.randint(1, 256, (1, 1, 8, 8), dtype=torch.uint8)
    moved = pixels.crop_and_flip(one.expand(400, 1, 8, 8), pixels.draw(400, torch.Generator().manual_seed(0)))
    canvas = torch.zeros(12, 12, dtype=torch.uint8)
    canvas[2:10, 2:10] = one[0, 0]
    views = {}
    for top in range(5):
        for left in range(5):
            view = canvas[top : top + 8, left : left + 8]
            views[view.numpy().tobytes()] = (top, left, False)
            if flip:
                views[view.flip(1).contiguous().numpy().tobytes()] = (top, left, True)
    drawn = [views[m[0].contiguous().numpy().tobytes()] for m in moved]  # a view outside the set is a KeyError
    assert len(set(drawn)) == len(views)
    shares = torch.tensor([drawn.count(view) for view in views.values()]) / len(drawn)
    assert bool((shares > 0.2 / len(views)).all())
    again = pixels.crop_and_flip(one.expand(400, 1, 8, 8), pixels.draw(400, torch.Generator().manual_seed(0)))
    assert torch.equal(moved, again)


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def folder(root: Path, classes: tuple[str, ...] = ("cat", "dog", "Übung")) -> Path:
    for c, name in enumerate(classes):
        for i in range(5):
            picture(root / name / f"{i}.png", (80 * c, 10 * i, 0))
    return root


def test_a_folder_of_images_is_a_stream(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos")
    stream = open_stream("images", ImageOptions(tasks=[["dog"], ["cat", "Übung"]], image_size=16), 0, root)
    assert stream.image_shape == (3, 16, 16)
    assert [t.info.class_names for t in stream.tasks] == [("dog",), ("cat", "Übung")]
    assert [len(t.test) for t in stream.tasks] == [1, 2]
    images, _ = stream.tasks[0].train.take(torch.arange(4))
    assert set(images[:, 0, 8, 8].tolist()) == {80}
    assert len(open_stream("images", ImageOptions(tasks=3, image_size=16), 0, root).tasks) == 3


def test_images_of_a_folder_are_copied_nowhere(tmp_path: Path, data_folder: Path) -> None:
    open_stream("images", ImageOptions(tasks=1, image_size=16), 0, folder(tmp_path / "photos"))
    assert not list(data_folder.rglob("*"))


def test_a_stream_has_options_of_its_own() -> None:
    assert open_stream("split-digits").pixels.padding == 2
    assert open_stream("split-digits", StreamOptions()).pixels.padding == 4
    with pytest.raises(UserError, match="options of the stream 'images' are ImageOptions, got StreamOptions"):
        open_stream("images", StreamOptions(), 0, Path("."))


def test_train_and_test_folders_are_not_mixed(tmp_path: Path) -> None:
    for part, red in (("train", 50), ("test", 200)):
        for name, num in (("cat", 3), ("dog", 4)):
            for i in range(num):
                picture(tmp_path / part / name / f"{i}.png", (red, 10 * i, 0))
    stream = open_stream("images", ImageOptions(tasks=1, image_size=16, validation=0.0), 0, tmp_path)
    for split, red in ((stream.tasks[0].train, 50), (stream.tasks[0].test, 200)):
        images, _ = split.take(torch.arange(len(split)))
        assert images[:, 0, 8, 8].tolist() == [red] * 7


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "cat" / "notes.txt").write_text("hello"), r"notes\.txt is not an image"),
        (lambda root: (root / "cat" / "9.png").write_bytes(b"junk"), r"9\.png is not a readable image"),
        (lambda root: (root / "stray.png").write_bytes(b""), r"stray\.png is next to the class folders"),
        (lambda root: (root / "empty").mkdir(), "empty has no images"),
        (lambda root: (root / "cat" / "dir.png").mkdir(), r"'cat' contains the folder .*dir\.png; move its images"),
        (lambda root: (root / "cat" / "gone.png").symlink_to(root / "nowhere"), r"gone\.png is a broken link"),
        (lambda root: (root / "train" / "fish").mkdir(parents=True), "has a folder train/ but no test/"),
    ],
)
def test_an_invalid_image_folder_is_named(tmp_path: Path, spoil, message: str) -> None:
    root = folder(tmp_path / "photos")
    spoil(root)
    with pytest.raises(UserError, match=message):
        open_stream("images", ImageOptions(tasks=1), 0, root)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--data-root"):
        open_stream("images", ImageOptions(), 0)
    with pytest.raises(UserError, match="nowhere is not a folder"):
        open_stream("images", ImageOptions(), 0, tmp_path / "nowhere")
    with pytest.raises(UserError, match="unknown stream 'cifar'; choose from"):
        open_stream("cifar", StreamOptions(), 0)


def test_real_streams_default_to_the_papers_tasks() -> None:
    found = {name: source.options.tasks for name, source in streams().items()}
    assert found["split-cifar10"] == found["split-cifar100"] == found["split-digits"] == 5
    assert found["split-tinyimagenet"] == 10


def test_sixteen_bit_images_keep_their_grey_values(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(5):
        Image.fromarray(torch.full((20, 20), 257 * (100 + i), dtype=torch.uint16).numpy()).save(
            tmp_path / "a" / f"{i}.png"
        )
    stream = open_stream("images", ImageOptions(tasks=1, image_size=16), 0, tmp_path)
    images, _ = stream.tasks[0].train.take(torch.arange(len(stream.tasks[0].train)))
    assert set(images.unique().tolist()) <= {100, 101, 102, 103, 104}


def test_the_digest_depends_on_the_content_and_not_on_the_folder(tmp_path: Path) -> None:
    a, b = folder(tmp_path / "a"), folder(tmp_path / "b")
    digests = [open_stream("images", ImageOptions(tasks=1), 0, root).digest for root in (a, b)]
    assert digests[0] == digests[1] != ""
    picture(b / "cat" / "0.png", (1, 2, 3))
    assert open_stream("images", ImageOptions(tasks=1), 0, b).digest != digests[0]
    assert digits(0).digest == digits(1).digest != ""
