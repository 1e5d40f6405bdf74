"""Recipes of the columns of a table of jobs: YAML files, described in `formats.table`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from tracebed.converters.formats.tools.columns import Columns, ColumnSpec, column_spec
from tracebed.converters.formats.tools.states import RecordState
from tracebed.converters.workload import FloatArray
from tracebed.ground.states import JobState
from tracebed.ground.yaml_file import YamlFile

SHIPPED = files("tracebed.converters") / "recipes" / "columns"
KINDS = {
    **dict.fromkeys(("job_id", "task"), "text"),
    **dict.fromkeys(("user", "group", "queue", "partition", "features", "dependency", "gpu_type", "status"), "label"),
    **dict.fromkeys(("submit_time", "logged_start", "logged_end", "earliest_start"), "time"),
    **dict.fromkeys(("run_time", "time_limit", "nodes", "cores", "cores_per_node"), "number"),
    **dict.fromkeys(("memory_mib", "memory_of_job_mib", "gpus", "gpus_per_node"), "number"),
}
"""Our name of a column -> its kind (`tools/columns`). `extra_NAME` is a number, too."""
NEEDED = ("job_id", "submit_time", "nodes")
STATES = {str(state) for state in (*JobState, *RecordState)}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NamedColumn(_Strict):
    """A column of the table: its name, or several, and the factor from its unit to ours."""

    column: str | Annotated[list[str], Field(min_length=1)]
    unit: float = 1.0


class ColumnsRecipe(_Strict):
    """Columns of a table of jobs. The keys are described above."""

    about: str = ""
    system: str = ""
    time_zone: str = ""
    columns: dict[str, str | int | float | Annotated[list[str], Field(min_length=1)] | NamedColumn]
    states: dict[str, str] = {}
    header: list[str] = []
    rows: str = ""
    dated: bool = True

    def specs(self) -> dict[str, ColumnSpec]:
        """Return our name -> what to read of the table, without the columns that are constants."""
        specs = {}
        for ours, value in self.columns.items():
            theirs = value.column if isinstance(value, NamedColumn) else value
            if not isinstance(theirs, int | float):
                names = [theirs] if isinstance(theirs, str) else theirs
                lower = (name.lower() for name in names)
                specs[ours] = column_spec(KINDS.get(ours, "number"), *lower, needed=ours in NEEDED)
        return specs

    def numbers(self, c: Columns, name: str) -> FloatArray:
        """Return a column in our unit, shape (rows,); NaN if the recipe does not have it."""
        value = self.columns.get(name)
        if isinstance(value, int | float):
            return np.full(len(c), float(value))
        return c.numbers(name) * (value.unit if isinstance(value, NamedColumn) else 1.0)


def names() -> list[str]:
    """Return the names of the shipped recipes of columns."""
    return sorted(file.name.removesuffix(".yaml") for file in SHIPPED.iterdir() if file.name.endswith(".yaml"))


def load_columns(name: Path | str) -> ColumnsRecipe:
    """Read a recipe of columns, given by the name of a shipped one or by the path of a YAML file.

    Raises:
        InputError: the recipe does not exist, is not valid YAML, has an invalid key, or lacks a column that jobs need.
    """
    path = SHIPPED / f"{name}.yaml" if name in names() else Path(name)
    hint = "keys: about, system, time_zone, columns, states, header, rows, dated"
    unreadable = f"one of {', '.join(names())}, or the path of a YAML file"
    file = YamlFile.read(path, "recipe of columns", hint=hint, unreadable=unreadable)
    recipe = file.checked(ColumnsRecipe)
    for ours in recipe.columns:
        if ours not in KINDS and not ours.startswith("extra_"):
            hint = f"one of {', '.join(KINDS)}, extra_..."
            raise file.error(f"column {ours!r} is unknown", "columns", ours, hint=hint)
    for ours in NEEDED:
        if ours not in recipe.columns:
            raise file.error(f"column {ours!r} is missing", "columns", hint="give its name in the table")
    for theirs, state in recipe.states.items():
        if state not in STATES:
            hint = f"one of {', '.join(sorted(STATES))}"
            raise file.error(f"state {state!r} is unknown", "states", theirs, hint=hint)
    return recipe
