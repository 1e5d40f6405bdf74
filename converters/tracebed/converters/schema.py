"""The columns of a workload: names, types, meanings and defaults. Also checks a table against them."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracebed.converters.limits import MAX_EXACT, MAX_SIZE
from tracebed.converters.requests import parse_requests
from tracebed.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Kind(enum.StrEnum):
    """Flexibility of a job: who decides its size, and when (Feitelson and Rudolph 1996)."""

    RIGID = "rigid"
    """The user decides at submission."""
    MOLDABLE = "moldable"
    """The scheduler decides when the job starts."""
    MALLEABLE = "malleable"
    """The scheduler decides while the job runs."""
    EVOLVING = "evolving"
    """The job decides while it runs."""


class Column(NamedTuple):
    """One column of a workload: numpy dtype, meaning with unit, and default.

    `default` is a value, or the name of the column whose values are used instead. None: the column is required.
    """

    dtype: str
    meaning: str
    default: object = None


NOT_KNOWN = float("nan")
SCHEMA: dict[str, Column] = {
    "job_id": Column("str", "id of the job, unique in the workload"),
    "submit_time": Column("float64", "s since time 0 of the workload"),
    "run_time": Column("float64", "static run time on the requested allocation, s; NaN: unknown"),
    "time_limit": Column("float64", "requested wall time limit, s; NaN: none", NOT_KNOWN),
    "nodes": Column("int64", "requested nodes; 0: unknown"),
    "cores_per_node": Column("int64", "requested cores per node", 1),
    "kind": Column("str", "rigid, moldable, malleable or evolving", Kind.RIGID.value),
    "nodes_min": Column("int64", "minimum number of nodes", "nodes"),
    "nodes_max": Column("int64", "maximum number of nodes", "nodes"),
    "nodes_pref": Column("int64", "preferred number of nodes", "nodes"),
    "requests": Column("str", "nodes for which an evolving job asks, as share:nodes of its work (0.25:6 0.5:2)", ""),
    "speedup": Column("str", "speedup model over nodes: linear, amdahl, downey or table", "linear"),
    "speedup_parameters": Column("str", "parameters of the speedup model, separated by spaces", ""),
    "application": Column("str", "benchmark that runs in place of the job", "pils"),
    "application_parameters": Column("str", "options of the benchmark as name=value, separated by spaces", ""),
    "state_mib": Column("float64", "data that a reconfiguration redistributes, MiB", 0.0),
    "memory_mib": Column("float64", "requested memory per node, MiB; NaN: unknown", NOT_KNOWN),
    "user": Column("str", "user (pseudonym)", ""),
    "group": Column("str", "group, project or account (pseudonym)", ""),
    "features": Column("str", "features of nodes that the job demands, as Slurm's --constraint (bigmem&ib)", ""),
    "gres": Column("str", "generic resources on each node, as Slurm's --gres (gpu:2,nvme:1)", ""),
    "fewest_nodes": Column("int64", "smallest number of nodes that Slurm was asked for (-N); 0: `nodes`", 0),
    "spread": Column("int64", "1: the cores may lie on any number of nodes (no --ntasks-per-node)", 0),
    "dependency": Column("str", "conditions of the start, as in --dependency of Slurm (afterok:12,singleton)", ""),
    "array": Column("str", "array of the job, and how many of its tasks may run at once (12 or 12%5)", ""),
    "reservation": Column("str", "reservation in which the job runs", ""),
    "licenses": Column("str", "licences of the cluster, as Slurm's --licenses (matlab:2,abaqus:1)", ""),
    "queue": Column("str", "queue or quality of service", ""),
    "partition": Column("str", "partition; of several (cpu,gpu), a job of a log ran in the first", ""),
    "status": Column("str", "final state in the log: completed, failed, cancelled, ...", ""),
    "after": Column("str", "job_id of the job that must end before this job is submitted", ""),
    "think_time": Column("float64", "time from the end of `after` to the submission, s; NaN: none", NOT_KNOWN),
    "deadline": Column("float64", "deadline, s since time 0; NaN: none", NOT_KNOWN),
    "earliest_start": Column("float64", "earliest start time, s since time 0; NaN: none", NOT_KNOWN),
    "behaviour": Column("str", "communication of the processes (independent, bsp, forks, ...)", ""),
    "logged_start": Column("float64", "start in the log, s since time 0; NaN: unknown", NOT_KNOWN),
    "logged_end": Column("float64", "end in the log, s since time 0; NaN: unknown", NOT_KNOWN),
}
REQUIRED = tuple(name for name, column in SCHEMA.items() if column.default is None)


class RowError(InputError):
    """Invalid value in one row of a table. A reader of text files may add the line number.

    Args:
        what: the defect.
        row: number of the row, from 0.
        where: the file.
    """

    def __init__(self, what: str, row: int, where: str | None) -> None:
        super().__init__(
            what, where=f"{where}, row {row + 1}" if where else f"row {row + 1}", hint="correct or remove it"
        )
        self.row = row


def column_of(table: pd.DataFrame, name: str) -> npt.NDArray[Any]:
    """Return column `name` of a workload's table, shape (jobs,), or its default if the table lacks the column."""
    if name in table:
        return table[name].to_numpy()
    default = SCHEMA[name].default
    if isinstance(default, str) and default in SCHEMA:
        return column_of(table, default)
    dtype = SCHEMA[name].dtype
    return np.full(len(table), default, dtype=object if dtype == "str" else dtype)


def checked_table(table: pd.DataFrame, where: str | None) -> pd.DataFrame:
    """Return `table` with the dtypes of SCHEMA, sorted by submit time. Raise InputError if a value is invalid."""
    for name in REQUIRED:
        if name not in table:
            found = ", ".join(repr(str(label)) for label in table.columns[:5]) or "none"
            hint = f"required: {', '.join(REQUIRED)}; found: {found}; `tracebed import` reads tables of other programs"
            raise InputError(f"column {name!r} is missing", where=where, hint=hint)
    if table.columns.has_duplicates:
        twice = table.columns[table.columns.duplicated()][0]
        raise InputError(f"column {twice!r} appears twice", where=where, hint="remove or rename one")
    unknown = [name for name in table if name not in SCHEMA and not str(name).startswith("extra_")]
    if unknown:
        raise InputError(
            f"unknown column {unknown[0]!r}",
            where=where,
            hint="rename it, or prefix it with 'extra_' to keep it",
        )
    columns: dict[str, Any] = {}
    for label, values in table.items():
        name = str(label)
        dtype = SCHEMA[name].dtype if name in SCHEMA else dtype_of(values)
        if isinstance(values.dtype, pd.CategoricalDtype):
            values = _as_texts(values)
        elif values.dtype != dtype or (dtype == "str" and values.hasnans):
            values = _converted(values, name, dtype, where)
        columns[name] = values
    result = pd.DataFrame(columns, index=table.index, copy=False)  # a log may have 11 million jobs
    _refuse(result, result["job_id"] == "", "job_id is missing", where)
    of = {name: result[name].to_numpy() for name in result if name in SCHEMA and SCHEMA[name].dtype != "str"}
    _refuse(result, np.isnan(of["submit_time"]), "submit_time is missing", where)
    for name in (
        "run_time",
        "time_limit",
        "nodes",
        "nodes_min",
        "nodes_max",
        "nodes_pref",
        "state_mib",
        "memory_mib",
    ):
        if name in of:
            _refuse(result, of[name] < 0, f"{name} is negative", where)
    for name, numbers in of.items():
        if SCHEMA[name].dtype == "float64":
            _refuse(result, np.abs(numbers) > MAX_EXACT, f"{name} is infinite, or beyond 2^53", where)
        elif SCHEMA[name].dtype == "int64":
            _refuse(result, numbers > MAX_SIZE, f"{name} is beyond {MAX_SIZE:,}", where)
    if "cores_per_node" in of:
        _refuse(result, of["cores_per_node"] < 1, "cores_per_node is below 1", where)
    if "kind" in result:
        _refuse(result, ~result["kind"].isin([*Kind]), "kind is not one of " + ", ".join(Kind), where)
    if not _ascend(result["job_id"]) and not result["job_id"].is_unique:
        _refuse(result, result["job_id"].duplicated(), "job_id is not unique", where)
    if {"nodes_min", "nodes_max"} & of.keys():
        low, pref, high = (of.get(name, of["nodes"]) for name in ("nodes_min", "nodes_pref", "nodes_max"))
        _refuse(result, (low > pref) | (pref > high), "not nodes_min <= nodes_pref <= nodes_max", where)
    if "requests" in result:
        _check_requests(result, where)
    submit = result["submit_time"].to_numpy()
    if np.any(np.diff(submit) < 0):
        result = result.iloc[np.argsort(submit, kind="stable")]
    return result.reset_index(drop=True)


def _check_requests(table: pd.DataFrame, where: str | None) -> None:
    """Raise RowError unless the requests of each job are valid, and between its smallest and largest size."""
    low, high = column_of(table, "nodes_min"), column_of(table, "nodes_max")
    for row in np.flatnonzero(table["requests"] != "").tolist():
        try:
            wanted = [request.nodes for request in parse_requests(table["requests"].iloc[row])]
        except InputError as error:
            raise RowError(error.what, row, where) from error
        if not low[row] <= min(wanted) <= max(wanted) <= high[row]:
            raise RowError("requests: nodes below nodes_min, or above nodes_max", row, where)


def _ascend(ids: pd.Series[str]) -> bool:
    """Return whether each id is longer than the one before, or as long and later in the alphabet, as numbers are.

    Such ids are unique. The comparison takes a tenth of the time of a search for ids that appear twice.
    """
    texts = pa.array(ids, type=pa.large_string())
    length = pc.binary_length(texts).to_numpy(zero_copy_only=False)
    later = pc.greater(texts[1:], texts[:-1]).to_numpy(zero_copy_only=False)
    return bool(((length[1:] > length[:-1]) | ((length[1:] == length[:-1]) & later)).all())


def dtype_of(values: pd.Series[Any]) -> str:
    """Return the dtype of an extra column with these values: bool, int64, float64 or str."""
    kind = values.dtype.kind
    if kind in "biu":
        return "float64" if values.hasnans else "bool" if kind == "b" else "int64"
    return "float64" if kind == "f" else "str"


def _as_texts(labels: pd.Series[Any]) -> pd.Series[Any]:
    """Return categories as texts. Arrow does this thirty times as fast as pandas."""
    names = pa.array([str(name) for name in labels.cat.categories], pa.string())
    codes = pa.array(labels.cat.codes.to_numpy(), mask=labels.isna().to_numpy())
    texts = pc.fill_null(pa.DictionaryArray.from_arrays(codes, names).cast(pa.string()), "")
    return pd.Series(texts.to_pandas(), dtype="str").set_axis(labels.index)


def _converted(values: pd.Series[Any], name: str, dtype: str, where: str | None) -> pd.Series[Any]:
    """Return `values` as `dtype`. Raise RowError for the first value that cannot be converted."""
    if dtype == "str":
        return values.astype(object).where(values.notna(), "").astype("str")
    if values.dtype.kind in "mM":
        hint = "use numbers: seconds since time 0"
        raise InputError(f"{name} contains dates or time spans, not numbers", where=where, hint=hint)
    numbers = pd.to_numeric(values, errors="coerce").astype("float64")
    bad = (numbers.isna() & values.notna()) | (numbers.isna() if dtype == "int64" else False)
    if dtype == "int64":
        bad |= numbers != np.floor(numbers)
    if bad.any():
        row = int(np.argmax(bad.to_numpy()))
        wanted = "a whole number" if dtype == "int64" else "a number"
        given = str(values.iloc[row])[:40] if values.notna().iloc[row] else None
        what = f"{name} is missing" if given is None else f"{name} {given!r} is not {wanted}"
        raise RowError(what, row, where)
    return pd.Series(numbers.to_numpy(dtype=dtype), index=values.index)


def _refuse(table: pd.DataFrame, bad: Any, what: str, where: str | None) -> None:
    bad = np.asarray(bad, dtype=bool)
    if bad.any():
        row = int(np.argmax(bad))
        more = f", and {bad.sum() - 1:,} more" if bad.sum() > 1 else ""
        raise RowError(f"{what} (job {str(table['job_id'].iloc[row])[:40]!r}{more})", row, where)
