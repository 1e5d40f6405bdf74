"""Schema of the tables of a Run: columns with dtype, meaning and unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tracebed.converters.workload import MAX_EXACT, Column, RowError
from tracebed.ground.errors import InputError
from tracebed.ground.table import BoolArray, Packed, Table, column, packed, repeated

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")

TABLES: dict[str, dict[str, Column]] = {
    # A row per job, in submit order.
    "jobs": {
        "job_id": Column("str", "id of the job, unique in the run"),
        "kind": Column("str", "rigid, moldable, malleable or evolving"),
        "submit_planned": Column("float64", "submit time in the workload, s"),
        "submit": Column("float64", "actual submit time, s; NaN: not submitted"),
        "start": Column("float64", "time of the (last) allocation of nodes, s; NaN: never"),
        "launched": Column("float64", "time at which the work began, s; NaN: never, or not observed", NAN),
        "end": Column("float64", "time at which all nodes of the job were released, s; NaN: never"),
        "state": Column("str", "final state: a JobState"),
        "reason": Column("str", "reason for the state, if needed", ""),
        "nodes": Column("int64", "requested nodes; 0: unknown"),
        "run_time": Column("float64", "run time in the workload, s: dedicated, on the requested nodes; NaN: unknown"),
        "time_limit": Column("float64", "time limit, s; NaN: none"),
        "user": Column("str", "user of the job; empty: unknown", ""),
        "group": Column("str", "group, project or account of the job; empty: unknown", ""),
        "partition": Column("str", "partition in the workload; of several (cpu,gpu) all; empty: unknown", ""),
        "deadline": Column("float64", "deadline in the workload, s; NaN: none", NAN),
        "behaviour": Column("str", "run-time behavior of the processes; empty: unknown", ""),
        "restarts": Column("int64", "number of times that the job was requeued because it lost a node", 0),
        "checksum": Column("str", "checksum of the result, hexadecimal; empty: unknown", ""),
    },
    # A row per job, range of consecutive nodes, and period in which the job holds the same cores of these nodes.
    "allocations": {
        "job_id": Column("str", "the job"),
        "node": Column("int64", "first node of the range, index into `info.nodes`"),
        "count": Column("int64", "number of nodes in the range: node, node + 1, ..."),
        "start": Column("float64", "start of the period, s"),
        "end": Column("float64", "end of the period, s; NaN: held when the run was interrupted"),
        "cores": Column("int64", "cores on each of the nodes"),
        "cpus": Column("str", "CPUs on each of the nodes as a list (0-3,7); empty for virtual nodes", ""),
    },
    # A row per change of the nodes of a job, and per change of its cores on a node. NaN: not reached, or not observed.
    "reconfigurations": {
        "job_id": Column("str", "the job"),
        "kind": Column("str", "expand or shrink; of cores on a node also move: as many other cores"),
        "nodes_from": Column("int64", "nodes before"),
        "nodes_to": Column("int64", "nodes after"),
        "asked": Column("float64", "time of the decision of the policy, s"),
        "decided": Column("float64", "time at which the job accepted, at a malleability point, s"),
        "applied": Column("float64", "time at which the job worked on the new nodes, s"),
        "ended": Column("float64", "time at which the released nodes were idle, s"),
        "state": Column(
            "str",
            "applied; cancelled if the job ended first; denied if an evolving job did not get the nodes; refused if "
            "the batch system did not give them",
        ),
        "node": Column("int64", "node with a change of cores, index into `info.nodes`; -1: a change of nodes", -1),
        "cores_from": Column("int64", "cores on the node before; 0 for a change of nodes", 0),
        "cores_to": Column("int64", "cores on the node after; 0 for a change of nodes", 0),
        "cause": Column("str", "resize (of nodes), lend, return, inherit or operator", "resize"),
        "nodes_asked": Column("int64", "nodes requested by an evolving job; 0: a decision without a request", 0),
        "seen": Column("float64", "time at which the rank noticed the change, s", NAN),
        "decision_s": Column("float64", "duration of the decision on a resize, wall s", NAN),
        "grant_s": Column("float64", "duration of the request until the batch system held the new nodes, wall s", NAN),
        "merge_s": Column("float64", "duration until the batch system changed the nodes of the job, wall s", NAN),
        "spawn_s": Column("float64", "duration of the launch of new ranks, wall s", NAN),
        "redistribution_s": Column("float64", "duration of the move of the state, wall s", NAN),
        "termination_s": Column("float64", "duration of the end of dropped ranks, wall s", NAN),
        "moved_mib": Column("float64", "state that moved between ranks, MiB", NAN),
    },
    # A row per node and sample: means over the time since the last sample of the node. NaN: not measured. And a row per
    # node and change of the state of its power: nodes begin on.
    "nodes": {
        "time": Column("float64", "time of the sample, s"),
        "node": Column("int64", "index into `info.nodes`"),
        "cpu_busy": Column("float64", "busy cores, by whatever process", NAN),
        "power_w": Column("float64", "power of the node, or of its machine (one node has this figure), W", NAN),
        "power_state": Column("str", "from this time on: on, shutdown, off or boot; empty: a sample of use", ""),
        "work_rate": Column("float64", "units of work of the ranks per second of CPU time", NAN),
        "cpu_share": Column("float64", "CPU time over wall time of the ranks while they compute", NAN),
        "pressure": Column("float64", "share of time in which a task on the machine waited for a CPU", NAN),
        "steal": Column("float64", "cores taken by the hypervisor", NAN),
        "outside": Column("float64", "cores busy with processes that are not part of the run", NAN),
        "late_s": Column("float64", "largest lateness of a rank after a deadline, wall s", NAN),
    },
}
"""Table -> column -> specification. Times are trace seconds since time 0 of the workload."""


def conform(name: str, table: pd.DataFrame | pa.Table | Table | None, where: str | None = None) -> Table:
    """Return `table` with exactly the columns of the table `name` of `TABLES`, in their order and with their dtypes.

    The columns of a large table are packed. A column with a default may be left out; None: no rows. `where` is the
    file, for messages.
    """
    schema = TABLES[name]
    if table is None:
        return Table(
            {
                label: np.empty(0, spec.dtype) if spec.dtype != "str" else repeated("", 0)
                for label, spec in schema.items()
            }
        )
    names = table.column_names if isinstance(table, pa.Table) else [*table]
    columns: dict[str, Any] = {}
    for label, spec in schema.items():
        if names.count(label) > 1:
            raise InputError(f"column {label!r} appears twice", where=where, hint="repeat the run")
        if label in names:
            values: Any = table.kept(label) if isinstance(table, Table) else table[label]
            if isinstance(values, Packed) and values.dtype != spec.dtype:
                values = values.values
            found = values if isinstance(values, Packed) else column(values, spec.dtype)
            columns[label] = packed(_cast(values, spec.dtype, label, where) if found is None else found)
        elif spec.default is not None:
            columns[label] = repeated(spec.default, len(table))
        else:
            raise InputError(f"table {name} lacks column {label!r}", where=where, hint="repeat the run")
    return Table(columns)


def refuse(bad: BoolArray, what: Callable[[int], str], where: str | None) -> None:
    """Raise RowError with the message `what(row)` for the first row in which `bad` is true."""
    if bad.any():
        row = int(bad.argmax())
        raise RowError(what(row), row, where)


def _cast(values: Any, dtype: Any, label: str, where: str | None) -> Any:
    """Return a column of another type as one of `dtype`."""
    import pandas as pd

    series = values.to_pandas() if isinstance(values, pa.ChunkedArray) else pd.Series(values)
    series = series.infer_objects()
    try:
        if dtype == "int64" and series.dtype.kind == "f":
            numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
            whole = (numbers == np.floor(numbers)) & (np.abs(numbers) <= MAX_EXACT)
            refuse(~whole, lambda row: f"{label} is {numbers[row]:g}, not a whole number", where)
        if dtype == "str" or series.dtype.kind in "iuf" or series.empty:
            return column(series.astype(dtype), dtype)
    except (ValueError, TypeError, OverflowError):
        pass  # a missing value in a column of integers
    raise InputError(f"column {label!r} is not of type {dtype}", where=where, hint="repeat the run")
