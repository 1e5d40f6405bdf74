"""The Workload: a submission list with its provenance.

A workload is a table with one row per job, sorted by submit time, and a record of its origin. Missing columns take the
default of `SCHEMA`; only the columns in `REQUIRED` must be present.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracebed.converters.provenance import Provenance, Source, Step, System, steps_of
from tracebed.converters.schema import (
    NOT_KNOWN,
    REQUIRED,
    SCHEMA,
    Column,
    FloatArray,
    Kind,
    RowError,
    checked_table,
    column_in,
    column_of,
    dtype_of,
)
from tracebed.ground.bounds import MAX_EXACT, MAX_SIZE
from tracebed.ground.display import facts_html, time_text
from tracebed.ground.sparks import curve_svg
from tracebed.ground.table import (
    BLOCK,
    BoolArray,
    IntArray,
    Table,
    Texts,
    call,
    cast,
    counts_of,
    numbers,
    repeated,
    word,
)

if TYPE_CHECKING:
    import pandas as pd

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
"""Columns that a scheduler or a testbed receives: what the jobs request and how they behave."""
LATER = (
    *("requests", "features", "gres", "fewest_nodes", "spread"),
    *("dependency", "array", "reservation", "licenses", "ranks_per_node", "priority"),
)
"""Columns that are newer than stored hashes, such as those of the recorded suites."""
POINTS = 200
"""Points of the curve of demand that a notebook shows."""


class Workload:
    """A submission list: `table` (a row per job) and `provenance` (system, sources, steps). Treat both as frozen.

    The columns of `table`, with their units, are listed by `tracebed describe --list` and in the reference.
    """

    def __init__(
        self,
        table: pd.DataFrame | pa.Table | Table,
        provenance: Provenance | None = None,
        *,
        where: str | None = None,
    ) -> None:
        """Check `table`, sort it by submit time (stable), and convert its columns to the dtypes of `SCHEMA`.

        Args:
            table: one row per job; columns outside `SCHEMA` are kept if their names begin with `extra_`,
                as bool, int64, float64 or str.
            where: the source file, for messages.

        Raises:
            InputError: a column is missing, unknown or of the wrong type.
            RowError: a value is invalid, or a job id is not unique.
        """
        self._columns = checked_table(table, where)
        self.provenance = provenance or Provenance()

    @cached_property
    def table(self) -> pd.DataFrame:
        """The columns as a pandas frame. It is made when it is first read."""
        return self._columns.frame()

    @property
    def columns(self) -> Table:
        """The table as columns: those of the frame, once it was made, since code may have changed it."""
        frame = vars(self).get("table")
        return self._columns if frame is None else Table({str(name): column_in(frame, name) for name in frame})

    def __len__(self) -> int:
        return len(vars(self).get("table", self._columns))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column as an array of shape (jobs,), or its default if the workload lacks the column."""
        return column_of(vars(self).get("table", self._columns), name)

    def kept(self, name: str) -> Any:
        """Return a column as it is kept: an array, `Texts` or `Packed`; in little memory if the workload lacks it."""
        columns = vars(self).get("table")
        if columns is None and name in self._columns:
            return self._columns.kept(name)
        default = SCHEMA[name].default
        if columns is not None or (isinstance(default, str) and default in SCHEMA):
            return self.arrow(name) if SCHEMA[name].dtype == "str" else self.column(name)
        return repeated(default, len(self))

    def floats(self, name: str) -> FloatArray:
        """Return a numeric column as float64."""
        return np.asarray(self.column(name), dtype=np.float64)

    def ints(self, name: str) -> IntArray:
        """Return an integer column as int64."""
        return np.asarray(self.column(name), dtype=np.int64)

    def arrow(self, name: str) -> Texts:
        """Return a column of texts, or its default if the workload lacks the column, as an array of Arrow."""
        frame = vars(self).get("table")
        if name not in (self._columns if frame is None else frame):
            return repeated(str(SCHEMA[name].default), len(self))
        return self._columns.raw(name) if frame is None else column_in(frame, name)

    def texts(self, name: str) -> pd.Series[str]:
        """Return a column of texts, or its default if the workload lacks the column."""
        import pandas as pd

        frame = vars(self).get("table")
        if frame is not None and name in frame:
            column: pd.Series[str] = frame[name]
            return column
        return pd.Series(pd.array(self.arrow(name), dtype="str"), name=name)

    def partitions(self) -> pd.Series[str]:
        """Return the partition of each job; of several, such as `cpu,gpu`, the first."""
        names = self.texts("partition")
        return names.map({name: name.partition(",")[0] for name in names.unique()}).astype("str")

    def with_step(
        self, step: Step, table: pd.DataFrame | Table | None = None, *, system: System | None = None
    ) -> Workload:
        """Return the workload with `step` added to its provenance, and with the new table or system if given."""
        provenance = replace(
            self.provenance,
            steps=(*self.provenance.steps, step),
            system=system or self.provenance.system,
        )
        return Workload(self.columns if table is None else table, provenance)

    def with_provenance(self, **changes: Any) -> Workload:
        """Return the same jobs with fields of the provenance replaced."""
        return Workload(self.columns, replace(self.provenance, **changes))

    def runnable(self) -> tuple[Workload, dict[str, int]]:
        """Return the jobs with a known run time and size, and the number of jobs left out by reason."""
        no_time = ~np.isfinite(self.floats("run_time"))
        no_nodes = self.ints("nodes") < 1
        counts = {
            "jobs without a run time left out": int(no_time.sum()),
            "jobs without nodes left out": int((no_nodes & ~no_time).sum()),
        }
        keep = ~(no_time | no_nodes)
        return (self if keep.all() else Workload(self.columns.take(keep), self.provenance)), counts

    @property
    def work(self) -> FloatArray:
        """Node seconds of each job, shape (jobs,); 0 if the run time or the size is unknown."""
        return np.nan_to_num(self.floats("run_time")) * self.ints("nodes")

    @property
    def offered_load(self) -> float | None:
        """Offered load: sum(run time * nodes) / (nodes of the system * span of the submissions).

        None if the size of the system is unknown or the span is 0.
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
        """Hash of the columns `REQUESTED`, which a scheduler or a testbed receives, in the order of submission.

        A missing column counts as its default. The other columns (status, logged times, users, queues, `extra_`)
        and the provenance do not change the hash, nor do the columns `LATER` with their defaults.
        """
        return self.digest(name for name in REQUESTED if name not in LATER or self._differs(name))

    def _differs(self, name: str) -> bool:
        """Return whether some job has a value other than the default in a column."""
        columns = self.columns
        if name not in columns:
            return False
        default = SCHEMA[name].default
        same = columns.equal(name, default) if isinstance(default, str) else columns[name] == default
        return not bool(same.all())

    def digest(self, names: Iterable[str]) -> str:
        """Return the hash of columns in the order of submission; a missing column counts as its default."""
        digest = hashlib.sha256(f"{len(self)} jobs".encode())
        columns = self.columns  # once: they are converted again if the frame was made
        for name in names:
            digest.update(f"\n{name}\n".encode())
            for part in self._canonical(columns, name):
                digest.update(part)
        return digest.hexdigest()

    def _canonical(self, columns: Table, name: str) -> Iterable[bytes]:
        """Return blocks of bytes that are equal for equal columns. A missing column is its default."""
        if name in columns:
            return _canonical(columns.raw(name))
        default = SCHEMA[name].default
        if isinstance(default, str) and default in SCHEMA:
            return self._canonical(columns, default)
        return _canonical_default(name, min(1, len(self)))

    def __repr__(self) -> str:
        facts = self._facts()
        return f"Workload({facts.pop('jobs')} jobs, {', '.join(f'{name} {value}' for name, value in facts.items())})"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks, and a picture of the demand over time if the size is known."""
        facts = {**self._facts(), "made by": " → ".join(step.name for step in self.provenance.steps) or "unknown"}
        shown, nodes = facts_html("Workload", facts), self.provenance.system.nodes
        if not len(self) or nodes is None:
            return shown
        submit, sizes = self.floats("submit_time"), self.floats("nodes")
        end = submit + self.floats("run_time")
        at = np.linspace(submit.min(), end.max(), POINTS)
        started, ended = (
            np.cumsum(np.r_[0.0, sizes[order]])[np.searchsorted(times[order], at, side="right")]
            for times in (submit, end)
            for order in [np.argsort(times)]
        )
        label = f"requested nodes over {time_text(at[-1] - at[0])}, if no job waited; dashed: the {nodes:,} nodes"
        return shown + curve_svg(started - ended, nodes, label)

    def _facts(self) -> dict[str, str]:
        """Return the facts shown by the representations of the workload: name -> text."""
        counts = sorted(counts_of(self.arrow("kind")).items())
        load = self.offered_load
        return {
            "jobs": f"{len(self):,}",
            "kinds": " + ".join(f"{count:,} {kind}" for kind, count in counts) or "none",
            "system": str(self.provenance.system),
            "span": f"{self.span:,.0f} s",
            "offered load": "unknown" if load is None else f"{load:.3g}",
        }


@cache
def _canonical_default(name: str, count: int) -> tuple[bytes, ...]:
    return tuple(_canonical(repeated(SCHEMA[name].default, count)))


def _canonical(column: Any) -> Iterator[bytes]:
    """Yield bytes that are equal for equal columns. A constant column, such as a default, becomes one value."""
    is_text = isinstance(column, pa.ChunkedArray)
    same = call("all", call("equal", column, column[0])).as_py() if is_text and len(column) else False
    values = column[:1] if same or (not is_text and len(column) and (column == column[0]).all()) else column
    if not is_text and values.dtype.kind == "f" and np.isnan(values).all():
        yield b"NaN"
        return
    for first in range(0, len(values), BLOCK):
        block = values[first : first + BLOCK]
        if is_text:
            yield _canonical_texts(block)
            continue
        if block.dtype.kind == "f":
            block = np.where(np.isnan(block), np.nan, block) + 0.0  # one bit pattern for all NaN, and for 0 and -0
        yield bytes(block.tobytes())


def _canonical_texts(texts: Texts) -> bytes:
    lengths = cast(call("binary_length", texts), pa.large_string())
    joined = call("binary_join_element_wise", lengths, texts, word(":"))
    return b"".join(_text_of(part) for part in joined.chunks)


def _text_of(texts: pa.LargeStringArray) -> bytes:
    """Return the concatenation of all texts, which is the data buffer of an array that is no slice."""
    length = int(numbers(call("binary_length", texts)).sum())
    return texts.buffers()[2].slice(0, length).to_pybytes() if length else b""
