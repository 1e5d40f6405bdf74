"""What a cleaning step says it does to a table of records; `audit` does it, and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import BoolArray, FloatArray, Provenance, column_of

HOUR = 3600.0
SHARE = "extra_node_share"
"""Which part of its nodes a job had, where it shared them."""
FLAG = "extra_flag"
"""What was flagged in a job, separated by spaces."""


@dataclass(frozen=True)
class Records:
    """What a step looks at: the table, sorted by submit time and then by start, and where it comes from."""

    table: pd.DataFrame
    provenance: Provenance

    def __len__(self) -> int:
        return len(self.table)

    def floats(self, name: str) -> FloatArray:
        """Return a numeric column, shape (records,), NaN or the schema's default where there is none."""
        if name.startswith("extra_") and name not in self.table:
            return np.full(len(self.table), np.nan)
        return np.asarray(column_of(self.table, name), dtype=np.float64)

    def codes(self, name: str) -> tuple[Any, list[str]]:
        """Return a text column as numbers, shape (records,), and the text that each number stands for."""
        if name not in self.table:
            return np.zeros(len(self.table), np.int64), [""]
        values = self.table[name]
        if isinstance(values.dtype, pd.CategoricalDtype):
            return values.cat.codes.to_numpy(), [str(label) for label in values.cat.categories]
        codes, labels = pd.factorize(values)
        return codes, [str(label) for label in labels]

    def is_in(self, name: str, wanted: Sequence[str]) -> BoolArray:
        """Tell which records have one of these texts in a column."""
        codes, labels = self.codes(name)
        chosen = [code for code, label in enumerate(labels) if label in wanted]
        return np.isin(codes, chosen)


Reason = str | Callable[[Any], Sequence[str]]
"""Why a record was touched: one text for all, or a function from record numbers to texts."""


@dataclass(frozen=True)
class Effect:
    """What becomes of the records; masks of shape (records,), `None`: of none."""

    drop: BoolArray | None = None
    merge: BoolArray | None = None
    """Dropped as well, but what they told lives on in another record."""
    change: BoolArray | None = None
    flag: BoolArray | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """New values of columns, for all records."""
    reason: Reason = ""
    found: Sequence[str] = ()
    """What the step found that is no matter of single records (gaps and their lengths)."""


def flagged(records: Records, mask: BoolArray, name: str, drop: bool, reason: Reason, found: Sequence[str]) -> Effect:
    """Return the effect of a step that flags jobs, or drops them if asked."""
    if drop:
        return Effect(drop=mask, reason=reason, found=found)
    before = records.table[FLAG].astype(object) if FLAG in records.table else pd.Series("", records.table.index)
    marked = before.where(~mask, (before + f" {name}").str.strip())
    return Effect(flag=mask, columns={FLAG: marked} if mask.any() else {}, reason=reason, found=found)


def texts(values: Any, before: str, after: str = "") -> Reason:
    """Return a reason that shows each record's own value."""
    return lambda rows: [f"{before}{value}{after}" for value in np.asarray(values)[rows]]


def node_hours(table: pd.DataFrame) -> tuple[float, float]:
    """Return node hours and hours of run time; records of unknown run time count as none.

    Of a shared node a job counts its share, where the log tells.
    """
    run = np.nan_to_num(np.asarray(table["run_time"], dtype=np.float64))
    nodes = np.asarray(table["nodes"], dtype=np.float64)
    if SHARE in table:
        nodes = nodes * np.nan_to_num(np.asarray(table[SHARE], dtype=np.float64), nan=1.0)
    return float(run @ nodes) / HOUR, float(run.sum()) / HOUR
