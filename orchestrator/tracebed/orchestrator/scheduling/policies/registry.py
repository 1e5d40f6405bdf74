"""Policies by name: the entry points of the group `tracebed.policies`, ours and other people's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args, get_type_hints

from tracebed.errors import InputError
from tracebed.orchestrator.scheduling.state import Policy

GROUP = "tracebed.policies"
WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
HINTS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
"""Type of a parameter -> what it may be."""


def names() -> list[str]:
    """Return the names of all installed policies."""
    return sorted(entry.name for entry in entry_points(group=GROUP))


def load(name: str, parameters: Mapping[str, Any] | None = None) -> Policy:
    """Return the policy `name` with `parameters`, whose values may be texts.

    Raises:
        InputError: there is no such policy or parameter, a value is not of its type, or its package is broken.
    """
    entry = next((entry for entry in entry_points(group=GROUP) if entry.name == name), None)
    if entry is None:
        raise InputError(f"no policy {name!r}", hint=f"installed are {', '.join(names())}")
    factory = _factory(entry)
    hints = get_type_hints(factory)
    known = {field.name: hints[field.name] for field in fields(factory)}
    values = {}
    for key, value in (parameters or {}).items():
        if key not in known:
            has = ", ".join(known) or "none"
            raise InputError(f"policy {name} has no parameter {key!r}", hint=f"it has {has}")
        values[key] = _parsed(value, known[key], f"{name}.{key}")
    policy: Policy = factory(**values)
    return policy


def parameters(policy: Policy) -> dict[str, Any]:
    """Return the parameters of a policy with their values."""
    return {field.name: getattr(policy, field.name) for field in fields(policy)}  # type: ignore[arg-type]


def _factory(entry: EntryPoint) -> Any:
    try:
        factory = entry.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"policy {entry.name} cannot be loaded: {error}", where=entry.value) from error
    if not is_dataclass(factory):
        raise InputError(f"policy {entry.name} is not a dataclass", where=entry.value)
    return factory


def _parsed(value: Any, kind: Any, where: str) -> Any:
    """Return `value`, maybe a text, as `kind` (bool, int, float, str, or a `Literal` of texts)."""
    if choices := get_args(kind):
        if value in choices:
            return value
        raise InputError(f"{where} cannot be {value!r}", hint=f"one of {', '.join(choices)}")
    try:
        if isinstance(value, str):
            return WORDS[value.lower()] if kind is bool else kind(value)
        if isinstance(value, bool) == (kind is bool) and isinstance(value, int | float):
            parsed = kind(value)
            if kind is str or parsed == value or value != value:  # 2.7 is no int; NaN is itself
                return parsed
    except (ValueError, KeyError, OverflowError):
        pass
    raise InputError(f"{where} cannot be {value!r}", hint=HINTS.get(kind, f"it is of type {kind}"))
