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

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from tracebed.converters.cleaning.steps import STEPS
from tracebed.converters.workload import System
from tracebed.errors import InputError

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
                mend=f"one of {', '.join(step for step, _ in self.steps)}",
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
        text = (SHIPPED / f"{name}.yaml").read_text("utf-8") if name in names() else path.read_text("utf-8")
    except OSError as error:
        mend = f"one of {', '.join(names())}, or the path of a YAML file"
        raise InputError(f"no recipe {name!r}: {error.strerror}", mend=mend) from None
    except UnicodeDecodeError:
        raise InputError("not a text", where=name, mend="a recipe is YAML") from None
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = (
            f":{error.problem_mark.line + 1}" if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark else ""
        )
        problem = str(getattr(error, "problem", error))
        raise InputError(f"not YAML: {problem}", where=f"{name}{line}", mend="mend the file") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("steps"), list):
        raise InputError("a recipe is a mapping with a list of steps", where=name, mend="see docs/cleaning.md")
    strange = set(raw) - {"about", "machine", "read", "steps", "expect"}
    if strange:
        raise InputError(f"unknown key {min(map(str, strange))!r}", where=name, mend="about, machine, read, ...")
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
        raise InputError(f"step {item!r} is no step", where=where, mend="write its name, or name: {parameter: value}")
    [(name, parameters)] = item.items()
    if name not in STEPS:
        raise InputError(f"no cleaning step {name!r}", where=where, mend=f"one of {', '.join(STEPS)}")
    parameters = parameters or {}
    taken = [parameter for parameter in inspect.signature(STEPS[name]).parameters if parameter != "records"]
    for parameter in parameters if isinstance(parameters, dict) else [parameters]:
        if parameter not in taken:
            raise InputError(
                f"step {name} takes no {parameter!r}", where=where, mend=f"it takes {', '.join(taken) or 'nothing'}"
            )
    return name, {parameter: _plain(value) for parameter, value in parameters.items()}


def _plain(value: Any) -> Any:
    """Return a parameter as JSON can hold it: YAML makes dates of dates."""
    return value if isinstance(value, bool | int | float | str | list) else str(value)


def _system(raw: Any, where: str) -> System | None:
    if raw is None:
        return None
    try:
        return System(**raw)
    except (TypeError, InputError) as error:
        raise InputError(f"machine: {error}", where=where, mend="nodes, cores_per_node and name") from None


def _options(raw: Any, where: str) -> dict[str, Any]:
    if raw is not None and not isinstance(raw, dict):
        raise InputError("read holds options of the reader", where=where, mend="such as {by: core}")
    return {str(name): _plain(value) for name, value in (raw or {}).items()}


def _counts(raw: Any, where: str) -> dict[str, int]:
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not all(isinstance(value, int) for value in raw.values()):
        raise InputError("expect holds counts", where=where, mend="such as {records: 55600, jobs: 41524}")
    return raw
