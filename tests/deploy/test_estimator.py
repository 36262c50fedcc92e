"""The classifier in scikit-learn's conventions, and those of scikit-learn's own checks that apply to images."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils import estimator_checks as checks
from torch.utils.data import DataLoader

from recollect import ContinualClassifier, deploy
from recollect.deploy.data import read_labelled
from recollect.errors import UserError
from tests.deploy.support import SMALL, Tied, bits, random_images, train_model, write_photos

NAMES = ["cat", "dog"] * 12


def new_model(**options: Any) -> ContinualClassifier:
    return ContinualClassifier(**({"backbone": "convnet"} | SMALL | options))


@pytest.fixture(scope="module")
def learned() -> ContinualClassifier:
    """A classifier of cats and dogs, not to be taught more."""
    return new_model().fit(random_images(), NAMES)


def test_fit_forgets_and_partial_fit_continues() -> None:
    x, more = random_images(), random_images(1)
    model = new_model()
    assert model.partial_fit(x, NAMES) is model
    expected = bits(model.model)
    assert model.partial_fit(more, ["cow", "hen"] * 12) is model
    assert [task.name for task in model.tasks_] == ["task 1", "task 2"]
    assert model.classes_.tolist() == ["cat", "dog", "cow", "hen"]
    with pytest.raises(UserError, match="got 24 images and 3 labels"):
        model.fit(x, NAMES[:3])
    assert len(model.tasks_) == 2  # a fit that fails forgets nothing
    assert model.fit(x, NAMES) is model
    assert [task.name for task in model.tasks_] == ["task 1"]
    assert bits(model.model) == expected
    assert model.predict(x).tolist() == new_model().learn((x, NAMES), task="may").predict(x).tolist()


def test_automatic_task_names_are_free_ones() -> None:
    model = new_model().partial_fit(random_images(), NAMES, task="task 2").partial_fit(random_images(1), NAMES)
    assert [task.name for task in model.tasks_] == ["task 2", "task 3"]


def test_a_folder_has_its_labels(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos", ("cat", "dog"))
    model = new_model().fit(root)
    assert model.classes_.tolist() == ["cat", "dog"]
    images, labels = read_labelled(root, 32).images, ["cat"] * 10 + ["dog"] * 10
    assert model.score(root) == model.score(images, labels) == model.score(root, labels)
    assert model.score(zip(images, labels, strict=True)) == model.score(images, labels)
    with pytest.raises(UserError, match="name the classes; leave labels out, or give a list of paths"):
        model.fit(root, labels)
    with pytest.raises(UserError, match="requires y to be passed, but the target y is None; give a label per image"):
        model.partial_fit(images)


def test_parameters_are_those_given_even_after_learning() -> None:
    model = new_model(image_size=0, width=8)
    given = model.get_params()
    assert (given["backbone"], given["image_size"], given["width"], given["seed"]) == ("convnet", 0, 8, 0)
    model.fit(random_images(), NAMES)
    assert model.get_params() == given
    assert model.settings.image_size == 64
    copy = clone(model)
    assert copy.get_params() == given
    assert not copy.has_learned
    assert not hasattr(copy, "classes_")
    with pytest.raises(NotFittedError, match="nothing has been learned yet"):
        copy.predict(random_images())


def test_the_clone_of_a_loaded_model_learns_the_same(tmp_path: Path) -> None:
    module = Tied()
    model = new_model(backbone=module).fit(random_images(), NAMES).save(tmp_path / "model")
    copy = clone(ContinualClassifier.load(tmp_path / "model", backbone=module, device="cpu"))
    assert copy.get_params()["backbone"] is not module
    assert copy.get_params().keys() == model.get_params().keys()
    assert bits(copy.fit(random_images(), NAMES).model) == bits(model.model)


def test_set_params_only_before_learning(learned: ContinualClassifier) -> None:
    model = new_model()
    assert model.set_params(epochs=np.int64(3), width=8) is model
    assert (model.settings.epochs, model.settings.backbone_options) == (3, {"width": 8})
    before = model.get_params()
    for wrong, message in (
        ({"epochs": 0.5}, "epochs is an integer from 1 to 100000, got 0.5"),
        ({"epoch": 3}, "unknown option 'epoch'; did you mean 'epochs'?"),
        ({"colour": 3}, "unknown option 'colour'; parameters are image_size, epochs, "),
        ({"colour": 3}, "flip, precision (options of the backbone 'convnet': width)"),
        ({"device": None}, "device is a name, got None; 'auto' chooses one"),
        ({"backbone": 5}, "backbone is a name or a module, got 5"),
    ):
        with pytest.raises(UserError) as caught:
            model.set_params(seed=7, **wrong)
        assert message in str(caught.value)
        assert model.get_params() == before
        assert model.settings.seed == 0
    assert learned.set_params(epochs=1, backbone="convnet") is learned
    with pytest.raises(UserError, match="seed, width cannot be changed after learning; sklearn.base.clone"):
        learned.set_params(epochs=1, seed=1, width=8)
    with pytest.raises(UserError, match="unknown option 'epoch'; did you mean 'epochs'"):
        learned.set_params(epoch=3)


def test_the_repr_shows_parameters_and_what_is_learned() -> None:
    assert repr(ContinualClassifier()) == "ContinualClassifier()"
    model = ContinualClassifier("convnet", image_size=32, epochs=1)
    call = "ContinualClassifier(backbone='convnet', image_size=32, epochs=1)"
    assert repr(model) == call
    assert eval(repr(model.fit(random_images(), NAMES))).get_params() == model.get_params()
    assert repr(model) == f"{call}  # 1 task, 2 classes"
    assert repr(ContinualClassifier(Tied())) == "ContinualClassifier(backbone=Tied(...))"


def test_images_of_every_kind_are_predicted_alike(learned: ContinualClassifier, paths: list[Path]) -> None:
    x = random_images()
    floats = torch.from_numpy(x).permute(0, 3, 1, 2) / 255
    (paths[0].parent / ".hidden").write_text("x")
    expected = learned.predict_proba(x)
    for images in (
        paths[0].parent,
        str(paths[0].parent),
        paths,
        [str(path) for path in paths],
        (path for path in paths),
        (image for image in x),
        (Image.open(path) for path in paths),
        floats,
        floats.half(),
        DataLoader(floats, batch_size=7),
    ):
        assert np.array_equal(learned.predict_proba(images), expected)
    assert learned.score(paths[0].parent, NAMES) == learned.score((image for image in x), iter(NAMES))
    empty = paths[0].parent / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="there are no images in .*empty"):
        learned.predict(empty)
    with pytest.raises(UserError, match="nowhere cannot be read .No such file or directory.; check the path"):
        learned.predict(paths[0].parent / "nowhere")
    with pytest.raises(UserError, match="floats from 0 to 1; got float32 from 0.0 to 255.0"):
        learned.predict(floats * 255)
    with pytest.raises(UserError, match="each item is an image, got a tuple of 2; leave labels out"):
        learned.predict(zip(x, NAMES, strict=True))


def test_labels_that_are_no_class_are_an_error_or_wrong(learned: ContinualClassifier) -> None:
    x = random_images()
    message = "no label is a known class: the first is 'Cat', and the classes are 'cat', 'dog'; labels are"
    with pytest.raises(UserError, match=message):
        learned.score(x, ["Cat", "Dog"] * 12)
    for labels in ([0, 1] * 12, torch.ones(24), ["cat", 1] * 12, np.zeros(24, int)):
        with pytest.raises(UserError, match=r"the label [01] is a number, and the classes have names such as 'cat'"):
            learned.score(x, labels)
    right = learned.predict(x).tolist()
    assert learned.score(x, right) == 1
    assert learned.score(x, ["cow"] * 6 + right[6:]) == 0.75
    two = train_model("may", "june")
    assert repr(two).endswith("  # 2 tasks, 4 classes")
    with pytest.raises(UserError, match="no label is a known class: the first is 'maya', and the classes are 'junea'"):
        two.score(x, ["maya", "mayb"] * 12, task="june")
    for images, labels in ((x, []), (x[:0], []), (x, right[:3])):
        with pytest.raises(UserError, match="give one label per image, and at least one"):
            learned.score(images, labels)


def test_cross_validation_works() -> None:
    model = new_model()
    assert is_classifier(model)
    scores = cross_val_score(model, random_images(num=48), NAMES * 2, cv=2)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert not model.has_learned


def test_scikit_learn_is_imported_only_when_needed() -> None:
    """Importing it takes a second, so no module of deploy does so before it is needed."""
    for path in sorted(Path(deploy.__file__).parent.glob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        modules = {node.module or "" for node in body if isinstance(node, ast.ImportFrom)}
        modules |= {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
        if path.name != "unfitted.py":
            assert not [name for name in modules if name.startswith(("sklearn", "recollect.deploy.unfitted"))], path


class OnTables(ContinualClassifier):
    """Draws each row of a table as stripes, since the checks give tables; and predicts numbers, which they compare."""

    def learn(self, data: Any, task: str, **options: Any) -> Any:
        x, y = data
        return super().learn((draw(x), y), task, **options)

    def predict_proba(self, x: Any, task: str | None = None) -> np.ndarray:
        return super().predict_proba(draw(x), task)

    def predict(self, x: Any, task: str | None = None) -> np.ndarray:
        return super().predict(x, task).astype(int)


def draw(table: Any) -> np.ndarray:
    values = 0.5 + np.arctan(np.asarray(table, float)) / np.pi
    columns = np.arange(32) * values.shape[1] // 32
    return np.repeat(values[:, None, columns, None], 32, axis=1)


WITHOUT_IMAGES = [
    checks.check_estimator_cloneable,
    checks.check_estimator_repr,
    checks.check_estimator_tags_renamed,
    checks.check_estimators_unfitted,
    checks.check_get_params_invariance,
    checks.check_mixin_order,
    checks.check_no_attributes_set_in_init,
    checks.check_parameters_default_constructible,
    checks.check_requires_y_none,
    checks.check_set_params,
    checks.check_valid_tag_types,
]
WITH_IMAGES = [
    checks.check_classifiers_one_label,
    checks.check_dont_overwrite_parameters,
    checks.check_estimators_fit_returns_self,
    checks.check_estimators_overwrite_params,
    checks.check_estimators_pickle,
    checks.check_fit_check_is_fitted,
    checks.check_fit_idempotent,
    checks.check_fit_score_takes_y,
    checks.check_methods_sample_order_invariance,
    checks.check_methods_subset_invariance,
    checks.check_pipeline_consistency,
    checks.check_readonly_memmap_input,
    checks.check_supervised_y_no_nan,
]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of few images, and that parameters are validated early
@pytest.mark.parametrize("check", WITHOUT_IMAGES, ids=lambda check: check.__name__)
def test_checks_of_scikit_learn_that_need_no_images(check: Callable[[str, Any], None]) -> None:
    check("ContinualClassifier", new_model())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("check", WITH_IMAGES, ids=lambda check: check.__name__)
def test_checks_of_scikit_learn_on_images(check: Callable[[str, Any], None]) -> None:
    check("OnTables", OnTables("convnet", **SMALL))
