"""What a simulator's format loses: jobs that cannot run, and columns without a field, which may be stored apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.json_jobs import Item, plain
from tracebed.converters.log import INSTANTS
from tracebed.converters.workload import SCHEMA, BoolArray, Workload, column_of
from tracebed.ground.errors import InputError, tolerate


def simulated_jobs(workload: Workload, format: str) -> tuple[Workload, dict[str, int]]:
    """Return the jobs that can run, from time 0 on, and counts of the others. Raises InputError if no job can run."""
    runnable, counts = workload.runnable()
    if not len(runnable):
        raise InputError(f"no job with a run time and nodes to write for {format}", hint="check the workload")
    first = float(runnable.floats("submit_time")[0])
    if not first:
        return runnable, counts
    table = runnable.table.assign(**{name: runnable.table[name] - first for name in INSTANTS if name in runnable.table})
    start = runnable.provenance.unix_start
    return Workload(table, replace(runnable.provenance, unix_start=None if start is None else start + first)), counts


def unsupported_columns(workload: Workload, held: Collection[str]) -> dict[str, BoolArray]:
    """Return the columns not in `held` with values that differ from the default -> the jobs that have such values."""
    differing = {str(name): _differing(workload.table, str(name)) for name in workload.table if name not in held}
    return {name: of for name, of in differing.items() if of.any()}


def warn_of_losses(
    workload: Workload, losses: Mapping[str, BoolArray | int], format: str, held: Collection[str], fate: str
) -> None:
    """Warn of losses (of masks, their jobs) and of columns not in `held`; `fate` is what happens to their values."""
    names = unsupported_columns(workload, held)
    losses = {**losses, f"columns without a field in {format} ({', '.join(names)}), {fate}": len(names)}
    tolerate({what: int(np.sum(jobs)) for what, jobs in losses.items()})


def on_parts_of_nodes(workload: Workload) -> BoolArray:
    """Return the mask of the jobs that use fewer cores of a node than it has, or than another job."""
    cores = workload.ints("cores_per_node")
    return cores < (workload.provenance.system.cores_per_node or cores.max())


NOT_RIGID = "jobs that are not rigid, written at their requested size"
PART_OF_NODE = "jobs on part of the cores of a node, written as whole nodes"


def notes_of(workload: Workload, held: Collection[str]) -> list[dict[str, Any]]:
    """Return for each job its values in columns not in `held`, as JSON values; default values are omitted."""
    notes: list[dict[str, Any]] = [{} for _ in range(len(workload))]
    for name, differing in unsupported_columns(workload, held).items():
        for job, value in zip(np.flatnonzero(differing), workload.table[name][differing], strict=True):
            notes[job][name] = plain(value)
    return notes


def columns_of(notes: Sequence[Item], held: Collection[str], nodes: Sequence[int]) -> dict[str, Any]:
    """Return the columns stored by `notes_of`, for jobs on `nodes` nodes."""
    names = dict.fromkeys(name for note in notes for name in note.values)
    known = [name for name in names if name in SCHEMA and name not in held]
    columns: dict[str, Any] = {}
    for name in known:
        column = SCHEMA[name]
        if column.dtype == "str":
            columns[name] = [note.text(name) if name in note.values else str(column.default) for note in notes]
        else:
            usual = nodes if column.default == "nodes" else [column.default] * len(notes)
            columns[name] = [
                note.number(name) if name in note.values else value for note, value in zip(notes, usual, strict=True)
            ]
    return columns | extras_of(notes, [name for name in names if name.startswith("extra_")])


def extras_of(notes: Sequence[Item], names: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Return further values of the jobs as columns of numbers, or of texts; NaN or empty if missing."""
    columns: dict[str, Any] = {}
    for name in names:
        values = [note.values.get(name) for note in notes]
        if all(value is None or (isinstance(value, (int, float)) and abs(value) < 2**53) for value in values):
            numbers = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
            whole = not np.isnan(numbers).any() and bool((numbers == np.floor(numbers)).all())
            columns[prefix + name] = numbers.astype(np.int64) if whole else numbers
        else:
            columns[prefix + name] = ["" if value is None else str(value) for value in values]
    return columns


def _differing(table: pd.DataFrame, name: str) -> BoolArray:
    values = table[name].to_numpy()
    missing = values != values if values.dtype.kind == "f" else values == ""
    default = SCHEMA[name].default if name in SCHEMA else None
    if default is None:
        return np.asarray(~missing & np.ones(len(table), dtype=bool), dtype=bool)
    return np.asarray(~missing & (values != column_of(table.drop(columns=name), name)), dtype=bool)
