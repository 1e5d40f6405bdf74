"""The data dictionary of a workload: the meaning, unit and known values of each column."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracebed.converters.workload import SCHEMA, Workload, dtype_of

EXTRA = "copied from the source, not part of the schema"


def meaning_of(name: str) -> str:
    """Return the meaning of a column, with its unit."""
    return SCHEMA[name].meaning if name in SCHEMA else EXTRA


def dictionary(workload: Workload) -> list[dict[str, Any]]:
    """Return one row per column of the table, in its order: name, type, meaning, and the number of jobs with a value.

    The schema's columns that the table lacks follow, with their `default`: a value or the name of another column.
    `default` is None for the columns of the table.
    """
    rows: list[dict[str, Any]] = []
    for label, values in workload.table.items():
        name = str(label)
        missing = values.isna() if values.dtype.kind == "f" else values == ""
        dtype = SCHEMA[name].dtype if name in SCHEMA else dtype_of(values)
        row = {"column": name, "type": dtype, "meaning": meaning_of(name), "known": int((~missing).sum())}
        rows.append({**row, "default": None})
    for name, column in SCHEMA.items():
        if name not in workload.table:
            absent = isinstance(column.default, float) and np.isnan(column.default)
            default = "not known" if absent else "empty" if column.default == "" else str(column.default)
            row = {"column": name, "type": column.dtype, "meaning": column.meaning, "known": 0}
            rows.append({**row, "default": default})
    return rows
