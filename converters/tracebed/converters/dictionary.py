"""The data dictionary of a workload: what each column means, in which unit, and how much it says."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracebed.converters.workload import SCHEMA, Workload, dtype_of

EXTRA = "kept as the source has it, not part of the schema"


def meaning_of(name: str) -> str:
    """Return what a column means, with its unit."""
    return SCHEMA[name].meaning if name in SCHEMA else EXTRA


def dictionary(workload: Workload) -> list[dict[str, Any]]:
    """Return a row for each column of the table, in its order: name, type, meaning, jobs that it says something of.

    After them come the columns of the schema that the table lacks, with what stands in for them: `default` is a
    value, or the name of another column; None for columns that are there.
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
