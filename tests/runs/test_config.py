"""A run's config: defaults, settings, checks, and the hash that identifies it."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from recollect.errors import UserError
from recollect.methods import methods
from recollect.runs import RunConfig, resolve


def test_a_stream_has_its_own_defaults_and_settings_override_them() -> None:
    config = resolve("split-digits", "rfe", 3, {"alpha": 0, "backbone.width": 4, "stream.tasks": 10})
    assert config.backbone == "convnet"
    assert config.training.epochs == 15
    assert config.method_options.retrospect_epochs == 40
    assert config.method_options.alpha == 0.0
    assert config.backbone_options == {"width": 4}
    assert config.stream_options.tasks == 10


def test_real_streams_default_to_the_paper_s_settings() -> None:
    config = resolve("split-cifar100", "rfe-b", 0)
    assert (config.backbone, dict(config.backbone_options)["width"]) == ("resnet18", 64)
    assert (config.training.epochs, config.training.learning_rate, config.training.batch_size) == (40, 5e-4, 32)
    assert (config.training.patience, config.training.factor) == (3, 0.1)
    options = config.method_options
    assert (options.alpha, options.memory, options.auxiliary_dim, options.projection_dim) == (1.0, 500, 128, 128)
    assert (options.retrospect_epochs or config.training.epochs, options.retrospect_learning_rate) == (40, 5e-3)
    assert (config.stream_options.crop_padding, config.stream_options.validation) == (4, 0.1)


def test_the_vit_has_the_paper_s_schedule() -> None:
    config = resolve("split-cifar100", "rfe", 0, {"backbone": "vit-s16"})
    assert (config.training.epochs, config.training.learning_rate) == (30, 1e-5)
    assert config.method_options.retrospect_learning_rate == 5e-3
    assert resolve("split-cifar100", "rfe", 0, {"backbone": "vit-s16", "epochs": 2}).training.epochs == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alhpa": 1}, "no option is called 'alhpa'; did you mean method.alpha. There are .*method.alpha"),
        ({"training.retrospect_epoch": 1}, "did you mean method.retrospect_epochs. There are"),
        ({"xyz": 1}, "no option is called 'xyz'; there are stream.tasks"),
        ({"keep": "resevoir"}, "must be none | previous | reservoir, got 'resevoir'; did you mean 'reservoir'?"),
        ({"alpha": "high"}, "method.alpha must be a number, got 'high'"),
        ({"alpha": -1}, "alpha"),
        ({"keep": "some"}, "method.keep must be none | previous | reservoir"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": 1.5}, "training.epochs must be a whole number, got 1.5"),
        ({"epochs": True}, "training.epochs must be a whole number"),
        ({"backbone": "vgg"}, "unknown backbone 'vgg'; choose from convnet"),
        ({"auxiliary_dim": 7}, "auxiliary_dim must be even, got 7"),
        ({"tasks": [["1"], 2]}, "stream.tasks must be a whole number | a list"),
    ],
)
def test_bad_settings_are_refused_with_the_allowed_values(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message) if "|" in message else message):
        resolve("split-digits", "rfe", 0, settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": float("nan")}, "method.alpha must be a number, got nan"),
        ({"alpha": float("inf")}, "method.alpha must be a number, got inf"),
        ({"learning_rate": 10**400}, "training.learning_rate must be a number"),
        ({"alpha": 2, "method.alpha": 3}, "alpha and method.alpha are the same option"),
        ({"image_size": 32}, "no option is called 'image_size'"),
    ],
)
def test_values_that_are_not_finite_or_given_twice_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve("split-digits", "rfe", 0, settings)


@pytest.mark.parametrize("name", sorted(methods()))
def test_config_json_rebuilds_the_config(name: str) -> None:
    config = resolve("split-digits", name, 7, {"epochs": 3}, fixed_heads=True, measure_drift=True, precision="bf16")
    again = RunConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert again == config
    assert again.hash == config.hash
    edited = config.to_json() | {"seed": 8}
    with pytest.raises(UserError, match="does not match its own hash"):
        RunConfig.from_json(edited)
    with pytest.raises(UserError, match="not a run's config"):
        RunConfig.from_json({"stream": "x"})


PRETRAINED = {"alpha": 0.0, "form": "affine", "averaging": True, "mirror": True}


@pytest.mark.parametrize(
    ("stream", "settings", "expected"),
    [
        ("split-cifar100", {}, {}),
        ("split-cifar100", {"backbone": "efficientnet-lite0"}, PRETRAINED),
        ("split-digits", {"backbone": "efficientnet-lite0", "backbone.weights": "imagenet"}, PRETRAINED),
        ("split-cifar100", {"backbone": "efficientnet-lite0", "weights": "none"}, {}),
        ("split-cifar100", {"backbone": "resnet18", "weights": "imagenet"}, PRETRAINED),
        ("split-cifar100", {"backbone": "efficientnet-lite0", "alpha": 4, "averaging": False},
         PRETRAINED | {"alpha": 4.0, "averaging": False}),
    ],
)  # fmt: skip
def test_rfe_plus_has_other_defaults_with_pretrained_weights(
    stream: str, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = resolve(stream, "rfe-plus", 0, settings)
    options, defaults = (dataclasses.asdict(o) for o in (config.method_options, methods()["rfe-plus"].config))
    assert {name: options[name] for name in PRETRAINED} == {name: defaults[name] for name in PRETRAINED} | expected
    given = {name: value for name, value in settings.items() if name in ("alpha", "averaging")}
    assert config.non_default_options()["method"] == given
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert resolve(stream, "rfe", 0, settings | {"alpha": 1.0, "averaging": False}).method_options.form == "gated"


def test_an_option_that_a_config_leaves_out_is_not_the_default_of_the_method() -> None:
    config = resolve("split-digits", "rfe-plus", 0, {"components": 0})
    assert "components" not in config.to_json()["method"]
    assert config.non_default_options()["method"] == {"components": 0}
    assert RunConfig.from_json(config.to_json()) == config


def test_features_of_a_backbone_are_named_only_if_not_the_default() -> None:
    def options(**given: str) -> dict[str, object]:
        settings = {"backbone": "efficientnet-lite0", **{f"backbone.{name}": value for name, value in given.items()}}
        config = resolve("split-cifar10", "slda", seed=0, settings=settings)
        assert RunConfig.from_json(config.to_json()).hash == config.hash
        assert config.non_default_options()["backbone"] == {k: v for k, v in given.items() if v == "blocks"}
        return dict(config.to_json()["backbone"])

    as_before = {"name": "efficientnet-lite0", "weights": "imagenet", "image_size": 0}  # earlier hashes still hold
    assert options() == options(features="last") == as_before
    assert options(features="blocks") == as_before | {"features": "blocks"}


def test_seed_method_options_and_precision_change_the_hash() -> None:
    base = resolve("split-digits", "rfe", 0)
    others = [
        resolve("split-digits", "rfe", 1),
        resolve("split-digits", "rfe-p", 0),
        resolve("split-digits", "rfe", 0, {"alpha": 2}),
    ]
    others += [resolve("split-digits", "rfe", 0, precision="bf16"), resolve("split-digits", "rfe", 0, {"width": 8})]
    others += [resolve("split-digits", "rfe", 0, {"schedule": "cosine"})]
    assert len({config.hash for config in [base, *others]}) == 7
    assert "schedule" not in base.to_json()["training"]  # a newer option, which leaves the hashes of earlier runs alone
    assert resolve("split-digits", "rfe", 0, {"schedule": "plateau"}) == base
