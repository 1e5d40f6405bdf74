"""Recipes: YAML files with cleaning steps and their parameters, such as the cleaning that a paper describes.

about: the workload that the recipe reproduces
machine: {nodes: 9688, cores_per_node: 68}
read: {time_zone: America/Los_Angeles}   # options for reading the log
steps:
  - drop_partitions: {partitions: [xfer, compile]}
  - merge_split
expect: {records: 55600, jobs: 41524}    # warn if a log with 55,600 records does not give 41,524 jobs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tracebed.converters.cleaning.steps import checked
from tracebed.converters.workload import MAX_SIZE, System
from tracebed.ground.errors import InputError
from tracebed.ground.registry import one_of
from tracebed.ground.yaml_file import YamlFile, abbreviated

SHIPPED = files("tracebed.converters") / "recipes"
HINT = "`tracebed clean --recipe cori-knl --show` prints a recipe"
KEPT = {"partition": "partitions", "queue": "queues"}
"""Column -> parameter of the step `keep_partitions`."""
Step = tuple[str, dict[str, Any]]
"""Name and parameters of a cleaning step."""


@dataclass(frozen=True)
class Recipe:
    """A named sequence of cleaning steps, with the system and the expected result."""

    name: str
    steps: tuple[Step, ...]
    about: str = ""
    system: System | None = None
    expect: dict[str, int] = field(default_factory=dict)
    read: dict[str, Any] = field(default_factory=dict)
    """Options for reading the log."""
    text: str = ""
    """Text of the recipe file."""

    def without(self, name: str) -> Recipe:
        """Return the recipe without the step `name`. Raise InputError if the recipe does not have it."""
        if name not in [step for step, _ in self.steps]:
            raise InputError(
                f"recipe {self.name} has no step {name!r}",
                hint=f"one of {', '.join(step for step, _ in self.steps)}",
            )
        kept = tuple(step for step in self.steps if step[0] != name)
        return replace(self, steps=kept, expect={})

    def with_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> Recipe:
        """Return the recipe with changed parameters: step -> parameter -> value.

        Raises:
            InputError: the recipe does not have the step, or a parameter is unknown or invalid.
        """
        for name in settings:
            self.without(name)
        steps = ((name, checked(name, {**parameters, **settings.get(name, {})})) for name, parameters in self.steps)
        return replace(self, steps=tuple(steps), expect={} if settings else self.expect)

    def only(self, names: Mapping[str, Sequence[str]]) -> Recipe:
        """Return the recipe for the jobs of some partitions or queues only.

        Args:
            names: `partition` or `queue` -> the names.

        Raises:
            InputError: there is no such choice, or the recipe already keeps other jobs.
        """
        for name in names:
            one_of("choice", name, KEPT)
        wanted = {KEPT[name]: [*values] for name, values in names.items()}
        kept = next((parameters for step, parameters in self.steps if step == "keep_partitions"), None)
        if kept is None:
            return replace(self, steps=(("keep_partitions", wanted), *self.steps), expect={})
        if any(kept.values()):
            what = f"the recipe {self.name} already keeps some partitions"
            raise InputError(what, hint="change them with clean --set keep_partitions.partitions=NAME")
        return self.with_settings({"keep_partitions": wanted})


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Machine(_Strict):
    nodes: Annotated[int, Field(ge=1, le=MAX_SIZE)] | None = None
    cores_per_node: Annotated[int, Field(ge=1, le=MAX_SIZE)] | None = None
    name: str = ""


class _Expected(_Strict):
    records: int | None = None
    jobs: int | None = None


class _RecipeFile(_Strict):
    about: str = ""
    machine: _Machine | None = None
    read: dict[str, str | bool] = {}
    steps: list[Any]
    expect: _Expected = _Expected()


def names() -> list[str]:
    """Return the names of the recipes shipped with tracebed."""
    return sorted(file.name.removesuffix(".yaml") for file in SHIPPED.iterdir() if file.name.endswith(".yaml"))


def load_recipe(name: Path | str) -> Recipe:
    """Read a recipe, given by the name of a shipped recipe or by the path of a YAML file.

    Raises:
        InputError: the recipe does not exist, is not valid YAML, or has an invalid key, step or parameter.
    """
    path = SHIPPED / f"{name}.yaml" if name in names() else Path(name)
    source = YamlFile.read(
        path, "recipe", hint=HINT, unreadable=f"one of {', '.join(names())}, or the path of a YAML file"
    )
    file = source.checked(_RecipeFile)
    return Recipe(
        Path(name).stem,
        tuple(_step(item, index, source) for index, item in enumerate(file.steps)),
        file.about.strip(),
        System(**file.machine.model_dump()) if file.machine else None,
        file.expect.model_dump(exclude_none=True),
        dict(file.read),
        source.text,
    )


def _step(item: Any, index: int, source: YamlFile) -> Step:
    """Return a step of a recipe, given as a name or as a mapping from the name to its parameters."""
    if isinstance(item, str):
        item = {item: None}
    if not isinstance(item, dict) or len(item) != 1:
        raise source.error(
            f"step {abbreviated(item)} is not a step", "steps", index, hint="use name, or name: {parameter: value}"
        )
    [(name, parameters)] = item.items()
    if not isinstance(parameters, dict | None):
        what = f"step {abbreviated(name)}: {abbreviated(parameters)} is not a mapping"
        raise source.error(what, "steps", index, hint="use name: {parameter: value}")
    try:
        return str(name), checked(str(name), {str(key): value for key, value in (parameters or {}).items()})
    except InputError as error:
        raise source.error(error.what, "steps", index, hint=error.hint) from None
