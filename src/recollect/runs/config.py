"""A run's whole configuration, resolved from a stream's protocol and the user's settings, with a hash as its name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import msgspec

from recollect.engine import Training
from recollect.errors import UserError
from recollect.methods import ChosenMethod, Method, MethodFile, choose_method, registered_method
from recollect.methods.learner import check_heads
from recollect.nets import Recipe, backbones, is_pretrained
from recollect.registry import lookup
from recollect.runs.settings import Option, check, find_option, options_of, options_of_function
from recollect.streams import Source, StreamOptions, streams

SECTIONS = ("stream", "method", "backbone", "training")


class ConfigFile(TypedDict):
    """config.json: the options of each section; the first three sections also have a name."""

    stream: dict[str, Any]
    method: dict[str, Any]
    backbone: dict[str, Any]
    training: dict[str, Any]
    seed: int
    fixed_heads: bool
    measure_drift: bool
    precision: str
    method_file: NotRequired[MethodFile]
    hash: str


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides what is learned; where data lies and what computes it is left out."""

    stream: str
    method: str
    method_row: Method = field(repr=False, compare=False)
    """What the method's name stands for."""
    method_file: MethodFile | None = None
    """Where the method is defined, unless it is registered."""
    backbone: str
    seed: int
    stream_options: StreamOptions
    method_options: Any
    backbone_options: Mapping[str, Any]
    training: Training
    fixed_heads: bool = False
    measure_drift: bool = False
    precision: str = "auto"
    """fp32, bf16, or auto until a run decides it."""

    def __post_init__(self) -> None:
        check_heads(self.method_options, fixed=self.fixed_heads)

    @property
    def file_argument(self) -> str | None:
        """How `choose_method` finds a method that is not registered."""
        return None if self.method_file is None else f"{self.method_file.path}:{self.method}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the hash of all of them except the path of the method's file, which may move."""
        plain = {
            "stream": {"name": self.stream, **_plain(self.stream_options)},
            "method": {"name": self.method, **_plain(self.method_options)},
            "backbone": {"name": self.backbone, **self.backbone_options},
            "training": _plain(self.training),
            "seed": self.seed,
            "fixed_heads": self.fixed_heads,
            "measure_drift": self.measure_drift,
            "precision": self.precision,
        }
        if self.method_file is not None:
            plain["method_file"] = {"sha256": self.method_file.sha256}
        canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        if self.method_file is not None:
            plain["method_file"] = dataclasses.asdict(self.method_file)
        return plain | {"hash": hashlib.sha256(canonical.encode()).hexdigest()[:16]}

    @property
    def hash(self) -> str:
        return str(self.to_json()["hash"])

    def non_default_options(self) -> dict[str, dict[str, Any]]:
        """By section, the options that differ from the defaults for this stream, method and backbone."""
        defaults = _available_options(self.stream, self.method_row, self.backbone, self.backbone_options)
        plain = self.to_json()
        values = {section: _omitted(section, self.method_row) | plain[section] for section in defaults}
        return {
            section: {
                name: values[section][name]
                for name, option in options.items()
                if values[section].get(name, option.default) != option.default
            }
            for section, options in defaults.items()
        }

    @staticmethod
    def from_json(data: Mapping[str, Any], method: str | None = None) -> RunConfig:
        """The config that wrote `data`; checked like settings typed by hand.

        A method that is not registered must be given as `method`, a file: what `data` says of it is not run.
        """
        try:
            data = msgspec.convert(data, ConfigFile)
            names = {section: _name(data[section]) for section in ("stream", "method", "backbone")}
            chosen = _choose_again(names["method"], data.get("method_file"), method)
            settings = {
                f"{section}.{key}": value
                for section in SECTIONS
                for key, value in (_omitted(section, chosen.row) | data[section]).items()
                if key != "name"
            }
            config = _resolve(
                names["stream"],
                chosen,
                data["seed"],
                settings | {"backbone": names["backbone"]},
                fixed_heads=data["fixed_heads"],
                measure_drift=data["measure_drift"],
                precision=data["precision"],
            )
        except msgspec.ValidationError as error:
            raise UserError(f"not a run's config.json: {error}") from error
        if config.hash != data.get("hash"):
            raise UserError(
                "config.json does not match its own hash; it was edited: start a new run with --set instead"
            )
        return config


def _plain(options: Any) -> dict[str, Any]:
    """Options as plain values, without those that are left out at their default."""
    left_out = _left_out(options).items()
    return {name: value for name, value in dataclasses.asdict(options).items() if (name, value) not in left_out}


def _left_out(options: Any) -> dict[str, Any]:
    """The values at which options are left out."""
    fields = dataclasses.fields(options)
    return {field.name: field.default for field in fields if field.metadata.get("omitted_at_default")}


def _omitted(section: str, method: Method) -> dict[str, Any]:
    """What a config.json means where it lacks an option; a stream or method may have another default today."""
    options = {"stream": StreamOptions(), "method": method.config, "training": Training()}
    return _left_out(options[section]) if section in options else {}


def _name(section: Mapping[str, Any]) -> str:
    return msgspec.convert(section.get("name"), str)


def _choose_again(name: str, file: MethodFile | None, given: str | None) -> ChosenMethod:
    """The method of an existing run: registered, or in the same version of a file that the user names again."""
    if file is not None and given is None:
        raise UserError(
            f"the method {name!r} of this run comes from a Python file ({file.path}); a file that a run folder names "
            "is never executed, so name yours: --method FILE.py, or method= from Python"
        )
    chosen = registered_method(name) if given is None else choose_method(given)
    if chosen.name != name:
        raise UserError(f"the method of this run is {name!r}, not {chosen.name!r}; leave --method out or correct it")
    if chosen.file is not None and file is not None and chosen.file.sha256 != file.sha256:
        raise UserError(
            f"{chosen.file.path} has changed since this run was started (SHA-256 {file.sha256[:12]}…, now "
            f"{chosen.file.sha256[:12]}…); restore it, or start a new run with another --out"
        )
    return chosen


def available_options(stream: str, method: str, backbone: str | None = None) -> dict[str, dict[str, Option]]:
    """Every option that a run of this stream, method and backbone takes, with its default, by section."""
    return _available_options(stream, choose_method(method).row, backbone, {})


def _available_options(
    stream: str, method: Method, backbone: str | None, backbone_options: Mapping[str, Any]
) -> dict[str, dict[str, Option]]:
    """As `available_options`; a method may have other defaults if the backbone's options are of a pretrained one."""
    source: Source = lookup("stream", streams(), stream)
    protocol = source.protocol
    name = backbone or protocol.backbone
    recipe: Recipe = lookup("backbone", backbones(), name)
    options = {
        "stream": options_of("stream", source.options),
        "method": options_of("method", method.config),
        "backbone": options_of_function("backbone", recipe.make),
        "training": options_of("training", Training()),
    }
    own = protocol.backbone_options if name == protocol.backbone else {}
    pretrained = method.pretrained if is_pretrained(name, {**own, **backbone_options}) else {}
    defaults_of = {
        "training": {**protocol.training, **recipe.training},
        "method": {**pretrained, **protocol.method},
        "backbone": own,
    }
    for section, defaults in defaults_of.items():
        for key, value in defaults.items():
            if key in options[section]:
                options[section][key] = dataclasses.replace(options[section][key], default=value)
    return options


def resolve(
    stream: str,
    method: str,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    *,
    fixed_heads: bool = False,
    measure_drift: bool = False,
    precision: str = "auto",
) -> RunConfig:
    """The method's defaults, then the stream's protocol, then the user's settings, which win.

    `method` is a registered name, or a Python file that defines METHODS: `file.py`, or `file.py:name`; the file is run.

    >>> config = resolve("split-cifar100", "rfe", seed=0, settings={"alpha": 0.3, "backbone.width": 16})
    >>> config.method_options.alpha, config.training.epochs
    (0.3, 40)
    """
    options = {"fixed_heads": fixed_heads, "measure_drift": measure_drift}
    return _resolve(stream, choose_method(method), seed, settings or {}, **options, precision=precision)


def _resolve(
    stream: str,
    method: ChosenMethod,
    seed: int,
    settings: Mapping[str, Any],
    *,
    fixed_heads: bool,
    measure_drift: bool,
    precision: str,
) -> RunConfig:
    if precision not in ("auto", "fp32", "bf16"):
        raise UserError(f"precision is 'auto', 'fp32' or 'bf16', got {precision!r}")
    settings = dict(settings)
    backbone = settings.pop("backbone", None)
    if backbone is not None and not isinstance(backbone, str):
        raise UserError(f"backbone is a name, got {backbone!r}")
    weights = [settings[key] for key in ("weights", "backbone.weights") if key in settings]
    options = _available_options(stream, method.row, backbone, {"weights": weights[0]} if weights else {})
    values = {section: {name: option.default for name, option in own.items()} for section, own in options.items()}
    given: dict[tuple[str, str], str] = {}
    for key, value in settings.items():
        option = find_option(key, options)
        twice = given.setdefault((option.section, option.name), key)
        if twice != key:
            raise UserError(f"{twice} and {key} are the same option; give it once")
        values[option.section][option.name] = check(option, value)
    name = backbone or streams()[stream].protocol.backbone
    recipe = backbones()[name]
    defaults = options_of_function("backbone", recipe.make)
    for omitted in recipe.omitted_at_default:
        if values["backbone"][omitted] == defaults[omitted].default:
            del values["backbone"][omitted]
    try:
        return RunConfig(
            stream=stream,
            method=method.name,
            method_row=method.row,
            method_file=method.file,
            seed=seed,
            backbone=name,
            stream_options=dataclasses.replace(streams()[stream].options, **values["stream"]),
            method_options=dataclasses.replace(method.row.config, **values["method"]),
            backbone_options=values["backbone"],
            training=Training(**values["training"]),
            fixed_heads=fixed_heads,
            measure_drift=measure_drift,
            precision=precision,
        )
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error
