"""Values given as text, checked against the options they set."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Literal

from recollect.errors import UserError
from recollect.registry import nearest
from recollect.storage.documents import parse_json

MAX_SHOWN = 100  # characters of a wrong value in a message


@dataclasses.dataclass(frozen=True)
class Option:
    """One setting: its section, its type, its default, and a line about it."""

    section: str
    name: str
    hint: Any
    default: Any
    about: str


def options_of(section: str, defaults: Any) -> dict[str, Option]:
    """The fields of a config dataclass, documented by the string below each field."""
    config: type = type(defaults)
    hints = typing.get_type_hints(config)
    about = _field_docs(config)
    return {
        field.name: Option(
            section, field.name, hints[field.name], getattr(defaults, field.name), about.get(field.name, "")
        )
        for field in dataclasses.fields(defaults)
    }


def options_of_function(section: str, function: Callable[..., Any]) -> dict[str, Option]:
    """The keyword options of a backbone's function, documented as `name: …` lines of its docstring."""
    hints = typing.get_type_hints(function)
    lines = (inspect.getdoc(function) or "").splitlines()
    about = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    return {
        name: Option(section, name, hints[name], parameter.default, about.get(name, ""))
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def parse(pairs: typing.Sequence[str]) -> dict[str, Any]:
    """`key=value` texts; a value is read as JSON where it is JSON, else as a string."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise UserError(f"--set takes key=value, got {pair!r}")
        try:
            settings[key] = parse_json(text, Any)
        except ValueError:
            settings[key] = text
    return settings


def check(option: Option, value: Any) -> Any:
    """The value in the option's own type, or an error that names the allowed values."""
    for hint in _alternatives(option.hint):
        if _fits(hint, value):
            return float(value) if hint is float else value
    shown = "a number of thousands of digits" if _is_huge(value) else repr(value)
    if len(shown) > MAX_SHOWN:
        shown = f"{shown[:MAX_SHOWN]}… ({len(shown)} characters)"
    near = nearest(value, _choices(option.hint)) if isinstance(value, str) else None
    hint = f"; did you mean {near!r}?" if near else ""
    raise UserError(f"{option.section}.{option.name} must be {describe(option.hint)}, got {shown}{hint}")


def find_option(key: str, options: Mapping[str, Mapping[str, Option]]) -> Option:
    """The option that a key names, with or without its section."""
    section, _, name = key.rpartition(".")
    matches = [own[name] for title, own in options.items() if name in own and section in ("", title)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        sections = " and ".join(option.section for option in matches)
        raise UserError(f"{key!r} is an option of {sections}; write {matches[0].section}.{key}")
    full_names = {f"{title}.{option}": option for title, own in options.items() for option in own}
    near = nearest(name, full_names.values())  # a wrong section is as likely as a mistyped name
    meant = [full_name for full_name, option in full_names.items() if option == near]
    hint = f"did you mean {' or '.join(meant)}? There are" if meant else "there are"
    raise UserError(f"no option is called {key!r}; {hint} {', '.join(full_names)}")


def _choices(hint: Any) -> list[str]:
    """The words among its values."""
    literals = (item for item in _alternatives(hint) if typing.get_origin(item) is Literal)
    return [choice for literal in literals for choice in typing.get_args(literal) if isinstance(choice, str)]


def _is_huge(value: Any) -> bool:
    """Whether Python refuses to print it."""
    return isinstance(value, int) and abs(value) >= 10**1000


def describe(hint: Any) -> str:
    """A type as people read it."""
    names = []
    for alternative in _alternatives(hint):
        if typing.get_origin(alternative) is Literal:
            names += [str(choice) for choice in typing.get_args(alternative)]
        else:
            plain: Mapping[Any, str] = {bool: "true|false", int: "a whole number", float: "a number", str: "text"}
            names.append(plain.get(alternative, "a list"))
    return " | ".join(names)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _fits(hint: Any, value: Any) -> bool:
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    if typing.get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(typing.get_args(hint)[0], item) for item in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


@functools.cache
def _field_docs(config: type) -> dict[str, str]:
    """The string literal that follows each field, in a class and its bases."""
    import ast
    import textwrap

    docs: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for pair in pairwise(body.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = text
    return docs
