"""Tables of jobs of any program: a row per job, columns found by name or given by --columns."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.validation.simulators.assembly import run_of
from tracebed.validation.simulators.columns import split
from tracebed.validation.simulators.observed import Observed
from tracebed.validation.simulators.simulator import ExternalSimulator, ReadOptions
from tracebed.validation.simulators.table import Table, read_table

NUMBER = re.compile(r"\d{1,15}")
COPIES = 0.99
"""Smallest share of jobs whose limit is their run time for which the limits are run times."""
ROUNDING_S = 0.01
"""Rounding error of printed run times, s."""


def read(path: Path, workload: Workload | None, options: ReadOptions) -> Run:
    """Read a table of jobs as a run; see `assembly.run_of`."""
    table = read_table(path, options)
    return run_of(observed_of(table, "csv"), workload, options)


def observed_of(table: Table, format: str, **facts: object) -> Observed:
    """Return the jobs of a table; `facts` are further attributes of `Observed`."""
    recorded: dict[str, object] = {
        "columns": {field: column.name for field, column in table.found.items()},
        "units": {field: column.unit for field, column in table.found.items() if column.unit},
    }
    if table.time_zone is not None:
        recorded["time_zone"] = table.time_zone
    notes = _drop_false_limits(table)
    assumed = (
        ["dates without an offset were taken as UTC (--time-zone ZONE, or `time_zone: ZONE` in a file, sets the zone)"]
        if table.assumed
        else []
    )
    attributes: dict[str, object] = {
        "jobs": table.jobs,
        "source": table.file.source,
        "where": table.file.where,
        "place": table.place,
        "format": format,
        "unix": table.unix,
        "facts": recorded,
        "warnings": [*assumed, *notes],
        "allocations": None if table.held is None else allocations_of(table),
    }
    return Observed(**(attributes | facts))  # type: ignore[arg-type]


def _drop_false_limits(table: Table) -> list[str]:
    """Remove the time limits of a table if they are run times, and return a warning.

    A column `walltime` holds limits in some logs, and run times in others.
    """
    column = table.found.get("time_limit")
    if column is None or split(column.name)[0] != "walltime":
        return []
    start, end, run = (table.jobs.get(name, pd.Series(np.nan, table.jobs.index)) for name in ("start", "end", "run"))
    ran = run.fillna(end - start)
    known = ran.notna() & table.jobs["time_limit"].notna()
    same = np.isclose(table.jobs["time_limit"][known], ran[known], rtol=1e-6, atol=ROUNDING_S)
    if not len(same) or same.mean() < COPIES:
        return []
    table.jobs["time_limit"] = np.nan
    return [f"the column {column.name} has the run times of the jobs, and is not read as time limits"]


def allocations_of(table: Table) -> pd.DataFrame | None:
    """Return the nodes of each job from intervals of node numbers (`0-3 7`), or None if an ended job is without.

    Raises:
        InputError: a text is not a list of intervals.
    """
    assert table.held is not None
    rows, first, count = [], [], []
    for row, text in enumerate(table.held.tolist()):
        for low, high in intervals(text, table, row):
            rows.append(row)
            first.append(low)
            count.append(high - low + 1)
    ran = np.isfinite(table.jobs["start"].to_numpy(dtype=np.float64)) if "start" in table.jobs else table.held != ""
    if not rows or not np.isin(np.flatnonzero(np.asarray(ran)), rows).all():
        return None
    return pd.DataFrame({"row": rows, "node": first, "count": count})


def intervals(text: str, table: Table, row: int) -> list[tuple[int, int]]:
    """Return the intervals of `0-3 7` as (first, last).

    Raises:
        InputError: the text is not a list of intervals, or a node occurs twice.
    """
    found = []
    for word in text.replace(",", " ").split():
        low, dash, high = word.partition("-")
        if not (NUMBER.fullmatch(low) and (NUMBER.fullmatch(high) or not dash)):
            what = f"{table.found['held'].name} {text[:40]!r} is not a list of node numbers such as 0-3 7"
            raise InputError(what, where=table.place(row), hint="correct it, or rename the column")
        found.append((int(low), int(high) if dash else int(low)))
    found.sort()
    if any(high < low for low, high in found) or any(b[0] <= a[1] for a, b in pairwise(found)):
        what = f"{table.found['held'].name} {text[:40]!r} names a node twice, or an interval backwards"
        raise InputError(what, where=table.place(row), hint="correct it, or rename the column")
    return found


SIMULATOR = ExternalSimulator(name="csv", title="a table of jobs of any program, with a header", read=read)
"""A table of jobs of any program, with a header: CSV or Parquet."""
