"""Parameters of extensions: dataclasses made from names and values, which may be strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_args, get_type_hints

from tracebed.ground.errors import InputError
from tracebed.ground.extension_errors import in_words, line_of, of_extension

WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
HINTS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
"""Type of a parameter -> description of its valid values."""


def with_parameters(noun: str, name: str, factory: Any, parameters: Mapping[str, Any]) -> Any:
    """Return an instance of the dataclass `factory` with `parameters`. Values may be strings.

    The fields of `factory` are of type bool, int, float, str, or a `Literal` of strings. Raises InputError if a
    parameter is unknown, lacks a value, or is invalid, and ExtensionError if code of another package has failed.
    """
    if not hasattr(factory, "__dataclass_fields__"):
        raise InputError(f"{noun} {name} is not a dataclass", where=line_of(factory), hint="decorate it: @dataclass")
    try:
        known = _types(factory)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        what = f"{noun} {name}: the type of a parameter is unknown: {in_words(error)}"
        raise InputError(what, where=line_of(factory), hint="import the types of the fields") from error
    values = {}
    for key, value in parameters.items():
        if key not in known:
            has = ", ".join(known) or "none"
            raise InputError(f"{noun} {name} has no parameter {key!r}", hint=f"parameters: {has}")
        values[key] = _parsed(value, known[key], f"{name}.{key}")
    for field in fields(factory):
        if field.init and field.name not in values and field.default is field.default_factory is MISSING:
            what = f"{noun} {name}: the parameter {field.name!r} has no default, and no value is given"
            hint = f"give it a default in the class, or a value ({field.name}=...)"
            raise InputError(what, where=line_of(factory, field.name), hint=hint)
    with of_extension():
        return factory(**values)


@cache
def _types(factory: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass. Evaluating the annotations is slow."""
    hints = get_type_hints(factory)
    return {field.name: hints[field.name] for field in fields(factory)}


def _parsed(value: Any, kind: Any, where: str) -> Any:
    """Return `value`, which may be a string, as `kind` (bool, int, float, str, or a `Literal` of strings)."""
    if choices := get_args(kind):
        if {"yes", "no"} <= set(choices) and isinstance(value, bool | str) and str(value).lower() in WORDS:
            return "yes" if WORDS[str(value).lower()] else "no"  # YAML reads yes and no as booleans
        if value in choices:
            return value
        raise InputError(f"{where} cannot be {value!r}", hint=f"one of {', '.join(choices)}")
    try:
        if isinstance(value, str):
            return WORDS[value.lower()] if kind is bool else kind(value)
        if isinstance(value, bool) == (kind is bool) and isinstance(value, int | float):
            parsed = kind(value)
            if kind is str or parsed == value or value != value:  # 2.7 is not an int; NaN != NaN
                return parsed
    except (ValueError, KeyError, OverflowError):
        pass
    raise InputError(f"{where} cannot be {value!r}", hint=HINTS.get(kind, f"it is of type {kind}"))
