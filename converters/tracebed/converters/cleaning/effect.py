"""Input and result of a cleaning step: `Records` and `Effect`. The module `audit` applies the effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import BoolArray, FloatArray, Provenance, column_of

HOUR = 3600.0
SHARE = "extra_node_share"
"""Share of its nodes that a job used, from 0 to 1."""
FLAG = "extra_flag"
"""Flags of a job, separated by spaces."""


@dataclass(frozen=True)
class Records:
    """Input of a step: the table, sorted by submit time and then by start, and its provenance."""

    table: pd.DataFrame
    provenance: Provenance

    def __len__(self) -> int:
        return len(self.table)

    def floats(self, name: str) -> FloatArray:
        """Return a numeric column, shape (records,). A missing column is NaN, or the default of the schema."""
        if name.startswith("extra_") and name not in self.table:
            return np.full(len(self.table), np.nan)
        return np.asarray(column_of(self.table, name), dtype=np.float64)

    def codes(self, name: str) -> tuple[Any, list[str]]:
        """Return a text column as codes, shape (records,), and their texts; of several partitions, the first counts."""
        if name not in self.table:
            return np.zeros(len(self.table), np.int64), [""]
        values = self.table[name]
        if isinstance(values.dtype, pd.CategoricalDtype):
            return values.cat.codes.to_numpy(), [str(label) for label in values.cat.categories]
        if name == "partition":
            values = values.str.partition(",")[0]
        codes, labels = pd.factorize(values)
        return codes, [str(label) for label in labels]

    def is_in(self, name: str, wanted: Sequence[str]) -> BoolArray:
        """Return which records have one of these texts in the column `name`, shape (records,)."""
        codes, labels = self.codes(name)
        chosen = [code for code, label in enumerate(labels) if label in wanted]
        return np.isin(codes, chosen)


Reason = str | Callable[[Any], Sequence[str]]
"""Reason for an effect: one text for all records, or a function from row numbers to texts."""


@dataclass(frozen=True)
class Effect:
    """Effect of a step: masks of shape (records,), where `None` means no record, and new columns."""

    drop: BoolArray | None = None
    merge: BoolArray | None = None
    """Records whose content another record takes over; they are dropped as well."""
    change: BoolArray | None = None
    flag: BoolArray | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """New columns: name -> values, shape (records,)."""
    reason: Reason = ""
    found: Sequence[str] = ()
    """Findings that do not concern a single record, such as gaps and their lengths."""


def flagged(records: Records, mask: BoolArray, name: str, drop: bool, reason: Reason, found: Sequence[str]) -> Effect:
    """Return the effect of a step that flags jobs, or drops them if `drop`."""
    if drop:
        return Effect(drop=mask, reason=reason, found=found)
    before = records.table[FLAG].astype(object) if FLAG in records.table else pd.Series("", records.table.index)
    marked = before.where(~mask, (before + f" {name}").str.strip())
    return Effect(flag=mask, columns={FLAG: marked} if mask.any() else {}, reason=reason, found=found)


def texts(values: Any, before: str, after: str = "") -> Reason:
    """Return a reason that shows the value of each record."""
    return lambda rows: [f"{before}{value}{after}" for value in np.asarray(values)[rows]]


def node_hours(table: pd.DataFrame) -> tuple[float, float]:
    """Return node hours (of shared nodes, the job's share) and hours of run time. An unknown run time counts as 0."""
    run = np.nan_to_num(np.asarray(table["run_time"], dtype=np.float64))
    nodes = np.asarray(table["nodes"], dtype=np.float64)
    if SHARE in table:
        nodes = nodes * np.nan_to_num(np.asarray(table[SHARE], dtype=np.float64), nan=1.0)
    return float(run @ nodes) / HOUR, float(run.sum()) / HOUR
