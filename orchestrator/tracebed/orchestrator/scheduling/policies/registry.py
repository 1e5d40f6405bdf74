"""Policies by name: the entry points of the group `tracebed.policies`, built-in and third-party."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from tracebed.errors import InputError
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.registry import Registry

POLICIES: Registry[type[Policy]] = Registry("tracebed.policies", "policy")
WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
HINTS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
"""Type of a parameter -> description of its valid values."""


def names() -> list[str]:
    """Return the names of all installed policies."""
    return POLICIES.names()


def load(name: str, parameters: Mapping[str, Any] | None = None) -> Policy:
    """Return the policy `name` with `parameters`. Values may be strings.

    Raises:
        InputError: the policy or a parameter is unknown, a value is invalid, or the policy cannot be imported.
    """
    factory = POLICIES.load(name)
    if not is_dataclass(factory):
        raise InputError(f"policy {name} is not a dataclass", where=POLICIES.entries[name].value)
    return _with_parameters(name, factory, parameters or {})


def resolve(policy: str | type[Policy] | Policy, parameters: Mapping[str, Any] | None = None) -> tuple[str, Policy]:
    """Return name and instance of `policy`: a registered name, a policy class, or a policy instance.

    The name of a class is its registered name, or its class name if it is not registered.

    Args:
        policy: a name, a class or an instance.
        parameters: the parameters if `policy` is a name or a class.

    Raises:
        InputError: as for `load`, or `policy` is not a policy, or parameters are given for an instance.
    """
    if isinstance(policy, str):
        return policy, load(policy, parameters)
    factory: Any = policy if isinstance(policy, type) else type(policy)
    if not all((is_dataclass(factory), hasattr(factory, "decide"), hasattr(factory, "malleable"))):
        what = f"{factory.__qualname__} is not a policy"
        raise InputError(what, hint="a policy is a dataclass with `malleable` and `decide`")
    value = f"{factory.__module__}:{factory.__qualname__}"
    registered = (name for name, entry in POLICIES.entries.items() if entry.value == value)
    name = next(registered, factory.__name__)
    if isinstance(policy, type):
        return name, _with_parameters(name, factory, parameters or {})
    if parameters:
        raise InputError(f"parameters are given for an instance of policy {name}", hint="give a name or a class")
    return name, policy


def parameters(policy: Policy) -> dict[str, Any]:
    """Return the parameters of a policy: name -> value."""
    return {field.name: getattr(policy, field.name) for field in fields(policy)}  # type: ignore[arg-type]


def _with_parameters(name: str, factory: Any, parameters: Mapping[str, Any]) -> Policy:
    """Return an instance of the policy class `factory` with `parameters`. Values may be strings."""
    hints = get_type_hints(factory)
    known = {field.name: hints[field.name] for field in fields(factory)}
    values = {}
    for key, value in parameters.items():
        if key not in known:
            has = ", ".join(known) or "none"
            raise InputError(f"policy {name} has no parameter {key!r}", hint=f"parameters: {has}")
        values[key] = _parsed(value, known[key], f"{name}.{key}")
    policy: Policy = factory(**values)
    return policy


def _parsed(value: Any, kind: Any, where: str) -> Any:
    """Return `value`, which may be a string, as `kind` (bool, int, float, str, or a `Literal` of strings)."""
    if choices := get_args(kind):
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
