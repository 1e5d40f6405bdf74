"""Policies by name: the entry points of the group `tracebed.policies`, or classes in files, `FILE.py:CLASS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from tracebed.ground.errors import InputError
from tracebed.ground.extension_errors import note
from tracebed.ground.extension_files import ExtensionFile
from tracebed.ground.parameters import with_parameters
from tracebed.ground.registry import Registry
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.state import HasWallTimes, Policy

POLICIES: Registry[type[Policy]] = Registry("tracebed.policies", "policy")


def names() -> list[str]:
    """Return the names of all installed policies."""
    return POLICIES.names()


def file_of(policy: str) -> ExtensionFile | None:
    """Return the file of a policy that is named as `FILE.py:CLASS`; None: `policy` is the name of an installed one.

    Raises:
        InputError: `policy` is a file without a class.
    """
    return ExtensionFile.of("policy", policy)


def located(policy: str, folder: Any) -> str:
    """Return `policy` with the absolute path of its file; the name of an installed policy stays as it is.

    Args:
        policy: name of an installed policy, or `FILE.py:CLASS`.
        folder: folder to which a relative path belongs, such as the folder of the YAML file with `policy`.

    Raises:
        InputError: `policy` is a file without a class.
    """
    file = ExtensionFile.of("policy", policy, folder)
    return policy if file is None else file.place


def load(name: str, parameters: Mapping[str, Any] | None = None) -> Policy:
    """Return the policy `name` with `parameters`. Values may be strings.

    Args:
        name: name of an installed policy, or `FILE.py:CLASS`.
        parameters: the parameters by name.

    Raises:
        InputError: the policy or a parameter is unknown, a value is invalid, or the policy cannot be imported.
    """
    return _made(*_class_of(name), parameters)


def parameter_names(policy: str | type[Policy] | Policy) -> list[str]:
    """Return the names of the parameters of a policy; arguments and errors as for `resolve`."""
    factory: Any = _class_of(policy)[1] if isinstance(policy, str) else policy
    return [field.name for field in fields(factory)] if is_dataclass(factory) else []


def _class_of(name: str) -> tuple[str, Any]:
    """Return the name of a policy without its place, and its class; arguments and errors as for `load`."""
    if (file := file_of(name)) is not None:
        factory = file.load()
        _check(factory, file.name, file.place)
        return file.name, factory
    if "@" in name:
        hint = f"give it as FILE.py:{name.partition('@')[0]}"
        raise InputError(f"policy {name} is the policy of a file, and the file is unknown", hint=hint)
    factory = POLICIES.load(name)
    if not is_dataclass(factory):
        raise InputError(f"policy {name} is not a dataclass", where=POLICIES.entries[name].value)
    return name, factory


def resolve(
    policy: str | type[Policy] | Policy, parameters: Mapping[str, Any] | None = None, *, speed: float | None = None
) -> tuple[str, Policy]:
    """Return name and instance of `policy`: a registered name, a file, a policy class, or a policy instance.

    The name of a class is its registered name, or its class name if it is not registered. The name of a policy in a
    file has the hash of the file: `BestFit@3f2a9c1b2d3e`.

    Args:
        policy: a name, `FILE.py:CLASS`, a class or an instance.
        parameters: the parameters if `policy` is a name or a class.
        speed: trace seconds per wall second of the run, for a policy with wall times. None: the speed is not known yet.

    Raises:
        InputError: as for `load`, or `policy` is not a policy, or parameters are given for an instance, or a parameter
            differs from the speed of the run.
    """
    name, chosen = _resolved(policy, parameters)
    return name, chosen.at_speed(speed) if speed is not None and isinstance(chosen, HasWallTimes) else chosen


def _resolved(policy: str | type[Policy] | Policy, parameters: Mapping[str, Any] | None) -> tuple[str, Policy]:
    """Return name and instance of `policy`; arguments and errors as for `resolve`."""
    if isinstance(policy, str):
        file = file_of(policy)
        return policy if file is None else file.versioned, load(policy, parameters)
    factory: Any = policy if isinstance(policy, type) else type(policy)
    _check(factory, factory.__qualname__)
    note(f"policy {factory.__name__}", factory.__module__)
    value = f"{factory.__module__}:{factory.__qualname__}"
    registered = (name for name, entry in POLICIES.entries.items() if entry.value == value)
    name = next(registered, factory.__name__)
    if isinstance(policy, type):
        return name, _made(name, factory, parameters)
    if parameters:
        raise InputError(f"parameters are given for an instance of policy {name}", hint="give a name or a class")
    return name, policy


def parameters(policy: Policy) -> dict[str, Any]:
    """Return the parameters of a policy: name -> value."""
    return {field.name: getattr(policy, field.name) for field in fields(policy)}  # type: ignore[arg-type]


def check(policy: Policy, interval_s: float, over_limit: OverLimit) -> None:
    """Raise InputError if the parameters of `policy` contradict the options of the scheduler.

    A policy that is called at ticks needs an interval between calls. A policy whose expected ends do not depend on the
    number of nodes cannot be used if jobs are killed at their limits, because these depend on the speed of the job.
    """
    if getattr(policy, "calls", None) == "tick" and not interval_s:
        raise InputError("calls=tick needs an interval between calls", hint="give --interval, or interval_s")
    if getattr(policy, "expected_end", None) == "limit" and over_limit is OverLimit.KILL:
        raise InputError("expected_end=limit contradicts --over-limit kill", hint="use expected_end=scaled")


def _check(factory: Any, name: str, where: str = "") -> None:
    """Raise InputError unless `factory` is the class of a policy."""
    lacks = [f"`{part}`" for part in ("decide", "malleable") if not hasattr(factory, part)]
    if not (isinstance(factory, type) and is_dataclass(factory)):
        lacks.insert(0, "`@dataclass(frozen=True)`")
    if lacks:
        hint = f"a policy is a dataclass with `malleable` and `decide`; {' and '.join(lacks)} missing"
        raise InputError(f"{name} is not a policy", where=where, hint=hint)


def _made(name: str, factory: Any, parameters: Mapping[str, Any] | None) -> Policy:
    """Return an instance of the policy class `factory`."""
    policy: Policy = with_parameters("policy", name, factory, parameters or {})
    return policy
