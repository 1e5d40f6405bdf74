"""Recipes: cleaning steps with their parameters in a YAML file, so that a paper's cleaning can be done again.

about: what it reproduces
machine: {nodes: 9688, cores_per_node: 68}
read: {time_zone: America/Los_Angeles}   # options of the log's reader
steps:
  - drop_partitions: {partitions: [xfer, compile]}
  - merge_split
expect: {records: 55600, jobs: 41524}    # warned of, where a log of so many records gives other jobs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from tracebed import yaml_text
from tracebed.converters.cleaning.steps import checked
from tracebed.converters.workload import System
from tracebed.errors import InputError
from tracebed.yaml_text import shown

SHIPPED = files("tracebed.converters") / "recipes"


@dataclass(frozen=True)
class Recipe:
    """A named cleaning."""

    name: str
    steps: tuple[tuple[str, dict[str, Any]], ...]
    about: str = ""
    system: System | None = None
    expect: dict[str, int] = field(default_factory=dict)
    read: dict[str, Any] = field(default_factory=dict)
    """Options of the log's reader."""
    text: str = ""
    """The file itself."""

    def without(self, name: str) -> Recipe:
        """Return the recipe without a step. Raises InputError if it has no such step."""
        if name not in [step for step, _ in self.steps]:
            raise InputError(
                f"the recipe {self.name} has no step {name!r}",
                hint=f"one of {', '.join(step for step, _ in self.steps)}",
            )
        kept = tuple(step for step in self.steps if step[0] != name)
        return replace(self, steps=kept, expect={})

    def with_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> Recipe:
        """Return the recipe with parameters of its steps changed. Raises InputError where it has no such step."""
        for name in settings:
            self.without(name)
        steps = [{name: {**parameters, **settings.get(name, {})}} for name, parameters in self.steps]
        checked = tuple(_step(step, self.name) for step in steps)
        return replace(self, steps=checked, expect={} if settings else self.expect)


def names() -> list[str]:
    """Return the names of the recipes that tracebed ships."""
    return sorted(file.name.removesuffix(".yaml") for file in SHIPPED.iterdir() if file.name.endswith(".yaml"))


def load_recipe(name: str) -> Recipe:
    """Read a shipped recipe by name, or one's own by path.

    Raises:
        InputError: there is none, it is no YAML, or it names a step or parameter that does not exist.
    """
    path = Path(name)
    try:
        text = yaml_text.read(SHIPPED / f"{name}.yaml" if name in names() else path)
    except OSError as error:
        hint = f"one of {', '.join(names())}, or the path of a YAML file"
        raise InputError(f"no recipe {name!r}: {error.strerror}", hint=hint) from None
    except UnicodeDecodeError:
        raise InputError("not a text", where=name, hint="a recipe is YAML") from None
    try:
        raw = yaml.safe_load(text)
    except yaml_text.BROKEN as error:
        raise yaml_text.broken(error, name, "correct the file") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("steps"), list):
        raise InputError("a recipe is a mapping with a list of steps", where=name, hint="see docs/cleaning.md")
    strange = set(raw) - {"about", "machine", "read", "steps", "expect"}
    if strange:
        raise InputError(f"unknown key {min(map(str, strange))!r}", where=name, hint="about, machine, read, ...")
    return Recipe(
        path.stem,
        tuple(_step(item, name) for item in raw["steps"]),
        str(raw.get("about", "")).strip(),
        _system(raw.get("machine"), name),
        _counts(raw.get("expect"), name),
        _options(raw.get("read"), name),
        text,
    )


def _step(item: Any, where: str) -> tuple[str, dict[str, Any]]:
    if isinstance(item, str):
        item = {item: {}}
    if not isinstance(item, dict) or len(item) != 1:
        raise InputError(
            f"step {shown(item)} is no step", where=where, hint="write its name, or name: {parameter: value}"
        )
    [(name, parameters)] = item.items()
    if not isinstance(parameters or {}, dict):
        raise InputError(f"step {name}: {shown(parameters)}", where=where, hint="write parameter: value below it")
    plain = {str(parameter): _plain(value) for parameter, value in (parameters or {}).items()}
    try:
        return str(name), checked(str(name), plain)
    except InputError as error:
        raise InputError(error.what, where=where, hint=error.hint) from None


def _plain(value: Any) -> Any:
    """Return a parameter as JSON can hold it: YAML makes dates of dates."""
    return str(value) if isinstance(value, date) else value


def _system(raw: Any, where: str) -> System | None:
    if raw is None:
        return None
    hint = "such as {nodes: 9688, cores_per_node: 68, name: Cori KNL}"
    if not isinstance(raw, dict) or not set(raw) <= {"nodes", "cores_per_node", "name"}:
        raise InputError(f"machine: {shown(raw)}", where=where, hint=hint)
    nodes, cores = (raw.get(name) for name in ("nodes", "cores_per_node"))
    if not all(size is None or type(size) is int for size in (nodes, cores)):
        raise InputError(f"machine: {shown(nodes)} nodes of {shown(cores)} cores", where=where, hint=hint)
    called = raw.get("name", "")
    if not isinstance(called, str):
        raise InputError(f"machine: the name {shown(called)}", where=where, hint=hint)
    try:
        return System(nodes, cores, called)
    except InputError as error:
        raise InputError(f"machine: {error.what}", where=where, hint=error.hint) from None


def _options(raw: Any, where: str) -> dict[str, Any]:
    if raw is not None and not isinstance(raw, dict):
        raise InputError("read holds options of the reader", where=where, hint="such as {by: core}")
    for name, value in (raw or {}).items():
        if not isinstance(value, str | bool):
            raise InputError(f"read: {str(name)[:40]} {shown(value)}", where=where, hint="a word, true or false")
    return {str(name): value for name, value in (raw or {}).items()}


def _counts(raw: Any, where: str) -> dict[str, int]:
    if raw is None:
        return {}
    if isinstance(raw, dict) and set(raw) <= {"records", "jobs"} and all(type(n) is int for n in raw.values()):
        return {str(name): int(count) for name, count in raw.items()}
    raise InputError("expect holds counts", where=where, hint="such as {records: 55600, jobs: 41524}")
