"""The Workload: a submission list with its schema and its provenance.

A workload is a pandas table with one row a job, sorted by submit time, and the record of how it came to be.
Columns that a workload does not have take the default of `SCHEMA`; only the `REQUIRED` ones must be there.
This module offers all that describes a workload; the schema and the provenance have modules of their own.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracebed.converters.limits import MAX_EXACT, MAX_SIZE
from tracebed.converters.provenance import Provenance, Source, Step, System, steps_of
from tracebed.converters.schema import (
    NOT_KNOWN,
    REQUIRED,
    SCHEMA,
    BoolArray,
    Column,
    FloatArray,
    IntArray,
    Kind,
    RowError,
    checked_table,
    column_of,
    dtype_of,
)

__all__ = [
    "MAX_EXACT",
    "MAX_SIZE",
    "NOT_KNOWN",
    "REQUIRED",
    "SCHEMA",
    "BoolArray",
    "Column",
    "FloatArray",
    "IntArray",
    "Kind",
    "Provenance",
    "RowError",
    "Source",
    "Step",
    "System",
    "Workload",
    "column_of",
    "dtype_of",
    "steps_of",
]

NOT_REQUESTED = ("memory_mib", "user", "group", "queue", "partition", "status", "logged_start", "logged_end")
REQUESTED = tuple(name for name in SCHEMA if name not in NOT_REQUESTED)
"""Columns that a scheduler or a testbed is given: what jobs request and how they behave."""


class Workload:
    """A submission list: `table` (one row a job, see `SCHEMA`) and its `provenance`. Treat both as frozen."""

    def __init__(self, table: pd.DataFrame, provenance: Provenance | None = None, *, where: str | None = None) -> None:
        """Check and adopt `table`.

        The table is sorted by submit time (stable) and its columns are brought to the dtypes of `SCHEMA`.

        Args:
            table: one row a job; columns outside `SCHEMA` are kept if they begin with `extra_`,
                as bool, int64, float64 or str.
            provenance: the record so far.
            where: the file it comes from, for messages.

        Raises:
            InputError: a column is missing, unknown or of the wrong type; a RowError, where one value is impossible
                or an id repeated.
        """
        self.table = checked_table(table, where)
        self.provenance = provenance or Provenance()

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self.table)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column as an array of shape (jobs,), its default where the workload lacks it."""
        return column_of(self.table, name)

    def floats(self, name: str) -> FloatArray:
        """Return a numeric column as float64."""
        return np.asarray(self.column(name), dtype=np.float64)

    def ints(self, name: str) -> IntArray:
        """Return an integer column as int64."""
        return np.asarray(self.column(name), dtype=np.int64)

    def with_step(self, step: Step, table: pd.DataFrame | None = None, *, system: System | None = None) -> Workload:
        """Return the workload after `step`: a new table or system where given, the step in the provenance."""
        provenance = replace(
            self.provenance,
            steps=(*self.provenance.steps, step),
            system=system or self.provenance.system,
        )
        return Workload(self.table if table is None else table, provenance)

    def with_provenance(self, **changes: Any) -> Workload:
        """Return the same jobs with fields of the provenance replaced."""
        return Workload(self.table, replace(self.provenance, **changes))

    def runnable(self) -> tuple[Workload, dict[str, int]]:
        """Return the jobs that can be run, and how many cannot, by reason (run time or nodes not known)."""
        no_time = ~np.isfinite(self.floats("run_time"))
        no_nodes = self.ints("nodes") < 1
        counts = {
            "jobs without a run time left out": int(no_time.sum()),
            "jobs without nodes left out": int((no_nodes & ~no_time).sum()),
        }
        keep = ~(no_time | no_nodes)
        return (self if keep.all() else Workload(self.table[keep], self.provenance)), counts

    @property
    def work(self) -> FloatArray:
        """Node seconds of each job, shape (jobs,); 0 if its run time or size is unknown."""
        return np.nan_to_num(self.floats("run_time")) * self.ints("nodes")

    @property
    def offered_load(self) -> float | None:
        """sum(run time * nodes) / (nodes of the system * span of the submissions).

        None if the size of the system is unknown or the submissions span no time.
        """
        nodes, span = self.provenance.system.nodes, self.span
        return None if nodes is None or span <= 0.0 else float(self.work.sum()) / (nodes * span)

    @property
    def span(self) -> float:
        """Time from the first to the last submission, s."""
        submit = self.floats("submit_time")
        return float(submit[-1] - submit[0]) if len(submit) else 0.0

    @cached_property
    def sha256(self) -> str:
        """Hash of what a scheduler or a testbed is given: the columns `REQUESTED` of the jobs, by submit time.

        A missing column counts as its default. The provenance, what the log says of the past (status, logged times)
        and of people and queues, and `extra_` columns do not change the hash.
        """
        digest = hashlib.sha256(f"{len(self)} jobs".encode())
        for name in REQUESTED:
            digest.update(f"\n{name}\n".encode())
            digest.update(_canonical(self.column(name)))
        return digest.hexdigest()

    def __repr__(self) -> str:
        facts = self._facts()
        return f"Workload({facts.pop('jobs')} jobs, {', '.join(f'{name} {value}' for name, value in facts.items())})"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks."""
        facts = {**self._facts(), "made by": " → ".join(step.name for step in self.provenance.steps) or "unknown"}
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
        return f"<table><caption>Workload</caption>{''.join(rows)}</table>"

    def _facts(self) -> dict[str, str]:
        """Return what is worth a line of this workload: name -> text."""
        kinds, counts = np.unique(self.column("kind").astype(str), return_counts=True)
        load = self.offered_load
        return {
            "jobs": f"{len(self):,}",
            "kinds": " + ".join(f"{count:,} {kind}" for kind, count in zip(kinds, counts, strict=True)) or "none",
            "system": str(self.provenance.system),
            "span": f"{self.span:,.0f} s",
            "offered load": "unknown" if load is None else f"{load:.3g}",
        }


def _canonical(values: npt.NDArray[Any]) -> bytes:
    """Return bytes that are equal for equal columns: one value if all are the same, as defaults are."""
    if len(values) and (values == values[0]).all():
        values = values[:1]
    if values.dtype.kind == "f":
        if np.isnan(values).all():
            return b"NaN"
        values = np.where(np.isnan(values), np.nan, values) + 0.0  # one bit pattern for all NaN, and for 0 and -0
    if values.dtype.kind in "if":
        return values.tobytes()
    return b"".join(b"%d:%b" % (len(text), text) for text in (str(value).encode() for value in values))
