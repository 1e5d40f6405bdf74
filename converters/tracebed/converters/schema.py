"""The columns of a workload: names, types, meanings and defaults. Also checks a table against them."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracebed.converters.requests import parse_requests
from tracebed.ground.bounds import MAX_EXACT, MAX_SIZE
from tracebed.ground.errors import InputError
from tracebed.ground.table import (
    PACKED_FROM,
    BoolArray,
    Packed,
    Table,
    Texts,
    all_differ,
    call,
    column,
    encoded,
    numbers,
    packed,
    texts,
    word,
)

if TYPE_CHECKING:
    import pandas as pd


FloatArray = npt.NDArray[np.float64]


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
    "ranks_per_node": Column("int64", "MPI ranks on each node, each of which keeps a core when a job shrinks", 1),
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
    "after": Column("str", "job_id of the job that must end before this job starts, or is submitted (think_time)", ""),
    "think_time": Column("float64", "time from the end of `after` to the submission, s; NaN: none", NOT_KNOWN),
    "priority": Column("float64", "priority, in proportion to which the policy mallob shares the nodes; above 0", 1.0),
    "deadline": Column("float64", "deadline, s since time 0; NaN: none", NOT_KNOWN),
    "earliest_start": Column("float64", "earliest start time, s since time 0; NaN: none", NOT_KNOWN),
    "behaviour": Column("str", "communication of the processes (independent, bsp, forks, ...)", ""),
    "logged_start": Column("float64", "start in the log, s since time 0; NaN: unknown", NOT_KNOWN),
    "logged_end": Column("float64", "end in the log, s since time 0; NaN: unknown", NOT_KNOWN),
}
REQUIRED = tuple(name for name, column in SCHEMA.items() if column.default is None)


class RowError(InputError):
    """Invalid value in one row (from 0) of a table. A reader of text files may add the line number."""

    def __init__(self, what: str, row: int, where: str | None) -> None:
        super().__init__(
            what, where=f"{where}, row {row + 1}" if where else f"row {row + 1}", hint="correct or remove it"
        )
        self.row = row


def column_of(table: pd.DataFrame | Table, name: str) -> npt.NDArray[Any]:
    """Return column `name` of a workload's table, shape (jobs,), or its default if the table lacks the column."""
    if name in table:
        return np.asarray(table[name])
    default = SCHEMA[name].default
    if isinstance(default, str) and default in SCHEMA:
        return column_of(table, default)
    dtype = SCHEMA[name].dtype
    return np.full(len(table), default, dtype=object if dtype == "str" else dtype)


def checked_table(table: pd.DataFrame | pa.Table | Table, where: str | None) -> Table:
    """Return `table` with the dtypes of SCHEMA, sorted by submit time. Raise InputError if a value is invalid."""
    names = list(table) if isinstance(table, Table) else _names(table)
    for name in REQUIRED:
        if name not in names:
            found = ", ".join(repr(str(label)) for label in names[:5]) or "none"
            hint = f"required: {', '.join(REQUIRED)}; found: {found}; `tracebed import` reads tables of other programs"
            raise InputError(f"column {name!r} is missing", where=where, hint=hint)
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise InputError(f"column {twice[0]!r} appears twice", where=where, hint="remove or rename one")
    unknown = [name for name in names if name not in SCHEMA and not str(name).startswith("extra_")]
    if unknown:
        raise InputError(
            f"unknown column {unknown[0]!r}",
            where=where,
            hint="rename it, or prefix it with 'extra_' to keep it",
        )
    result = Table({str(name): packed(column_in(table, name, where)) for name in names})
    _refuse(result, result.equal("job_id", ""), "job_id is missing", where)
    _refuse(result, np.isnan(result["submit_time"]), "submit_time is missing", where)
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
        if name in result:
            _refuse(result, result[name] < 0, f"{name} is negative", where)
    for name in [name for name in result if name in SCHEMA]:
        if SCHEMA[name].dtype == "float64":
            _refuse(result, np.abs(result[name]) > MAX_EXACT, f"{name} is infinite, or beyond 2^53", where)
        elif SCHEMA[name].dtype == "int64":
            _refuse(result, result[name] > MAX_SIZE, f"{name} is beyond {MAX_SIZE:,}", where)
    if "priority" in result:
        _refuse(result, result["priority"] <= 0.0, "priority is not above 0", where)
    for name in ("cores_per_node", "ranks_per_node"):
        if name in result:
            _refuse(result, result[name] < 1, f"{name} is below 1", where)
    if "kind" in result:
        _refuse(result, ~result.among("kind", Kind), "kind is not one of " + ", ".join(Kind), where)
    if not _ascend(result.raw("job_id")):
        _refuse(result, duplicated(result.raw("job_id")), "job_id is not unique", where)
    if {"nodes_min", "nodes_max"} & {*result}:
        sizes = [name if name in result else "nodes" for name in ("nodes_min", "nodes_pref", "nodes_max")]
        low, pref, high = (result[name] for name in sizes)
        _refuse(result, (low > pref) | (pref > high), "not nodes_min <= nodes_pref <= nodes_max", where)
    if "requests" in result:
        _check_requests(result, where)
    submit = result["submit_time"]
    if np.any(np.diff(submit) < 0):
        result = result.take(np.argsort(submit, kind="stable"))
    return result


def _names(table: pd.DataFrame | pa.Table) -> list[Any]:
    return table.column_names if isinstance(table, pa.Table) else table.columns.tolist()


def column_in(table: Any, name: Any, where: str | None = None) -> Any:
    """Return a column of the table of a user, converted to its dtype; a missing value is the default of the column."""
    kept = table.kept(name) if isinstance(table, Table) else None
    default = SCHEMA[name].default if name in SCHEMA else None
    if isinstance(kept, Packed) and name in SCHEMA and kept.dtype == SCHEMA[name].dtype:
        if kept.words is not None:
            return Packed(kept.numbers, _named(kept.words, str(default))) if default else kept
        if not kept.times or default is None or default != default:  # no missing value has a default
            return kept
    values: Any = table.raw(name) if isinstance(table, Table) else table[name]
    dtype = SCHEMA[name].dtype if name in SCHEMA else dtype_of(values)
    converted = column(values, dtype)
    if converted is None:
        series = values.to_pandas() if isinstance(values, pa.ChunkedArray) else values
        if dtype == "int64" and default is not None and series.isna().any():
            # The default of a column, such as `nodes_min`, may be another column.
            usual: Any = column_in(table, default, where) if isinstance(default, str) else default
            series = series.where(series.notna(), usual)
        converted = _converted(series, name, dtype, where)
    if dtype == "str":
        converted = call("coalesce", converted, word("")) if converted.null_count else converted
        return _named(converted, str(default)) if default else converted
    if dtype == "float64" and default is not None and np.isnan(converted).any():
        return np.where(np.isnan(converted), np.float64(str(default)), converted)
    return converted


def _named(values: Texts, default: str) -> Texts:
    """Return the texts of a column with `default` in place of empty texts."""
    empty = call("equal", values, word(""))
    return call("if_else", empty, word(default), values) if call("any", empty).as_py() else values


def _check_requests(table: Table, where: str | None) -> None:
    """Raise RowError unless the requests of each job are valid, and between its smallest and largest size."""
    low, high = column_of(table, "nodes_min"), column_of(table, "nodes_max")
    for row in np.flatnonzero(~table.equal("requests", "")).tolist():
        try:
            wanted = [request.nodes for request in parse_requests(table.text("requests", row))]
        except InputError as error:
            raise RowError(error.what, row, where) from error
        if not low[row] <= min(wanted) <= max(wanted) <= high[row]:
            raise RowError("requests: nodes below nodes_min, or above nodes_max", row, where)


def _ascend(ids: Texts) -> bool:
    """Return whether each id is longer than the one before, or as long and later in the alphabet, as numbers are.

    Such ids are unique. The comparison takes a tenth of the time of a search for ids that appear twice.
    """
    whole = ids.combine_chunks() if ids.num_chunks > 1 else ids
    length = numbers(call("binary_length", whole))
    later = numbers(call("greater", whole[1:], whole[:-1]))
    return bool(((length[1:] > length[:-1]) | ((length[1:] == length[:-1]) & later)).all())


def duplicated(ids: Texts) -> BoolArray:
    """Return whether each id occurs in an earlier row."""
    if len(ids) >= PACKED_FROM and all_differ(ids):
        return np.zeros(len(ids), dtype=bool)
    codes = encoded(ids)[0]
    return np.asarray(codes < np.maximum.accumulate(np.append(0, codes + 1))[:-1])


def dtype_of(values: Any) -> str:
    """Return the dtype of an extra column (pandas, NumPy or Arrow): bool, int64, float64 or str."""
    if isinstance(values, pa.ChunkedArray):
        fitting = [dtype for dtype in ("bool", "int64", "float64", "str") if column(values, dtype) is not None]
        return fitting[0] if fitting else dtype_of(values.to_pandas())
    kind = values.dtype.kind
    if kind in "biu":
        missing = not isinstance(values, np.ndarray) and values.hasnans
        return "float64" if missing else "bool" if kind == "b" else "int64"
    return "float64" if kind == "f" else "str"


def _converted(values: pd.Series[Any], name: str, dtype: str, where: str | None) -> Any:
    """Return `values` as a column of `dtype`. Raise RowError for the first value that cannot be converted."""
    import pandas as pd

    if dtype == "str" and isinstance(values.dtype, pd.CategoricalDtype):
        # Arrow does this thirty times as fast as pandas.
        names = pa.array([str(name) for name in values.cat.categories], pa.large_string())
        codes = pa.array(values.cat.codes.to_numpy(), mask=values.isna().to_numpy())
        return texts(pa.DictionaryArray.from_arrays(codes, names).cast(pa.large_string()))
    if dtype == "str":
        return texts(values.astype(object).where(values.notna(), "").astype("str"))
    if values.dtype.kind in "mM":
        hint = "use numbers: seconds since time 0"
        raise InputError(f"{name} contains dates or time spans, not numbers", where=where, hint=hint)
    numeric = pd.to_numeric(values, errors="coerce").astype("float64")
    bad = (numeric.isna() & values.notna()) | (numeric.isna() if dtype == "int64" else False)
    if dtype == "int64":
        bad |= numeric != np.floor(numeric)
    if bad.any():
        row = int(np.argmax(bad.to_numpy()))
        wanted = "a whole number" if dtype == "int64" else "a number"
        given = str(values.iloc[row])[:40] if values.notna().iloc[row] else None
        what = f"{name} is missing" if given is None else f"{name} {given!r} is not {wanted}"
        raise RowError(what, row, where)
    return numeric.to_numpy(dtype=dtype)


def _refuse(table: Table, bad: Any, what: str, where: str | None) -> None:
    bad = np.asarray(bad, dtype=bool)
    if bad.any():
        row = int(np.argmax(bad))
        more = f", and {bad.sum() - 1:,} more" if bad.sum() > 1 else ""
        raise RowError(f"{what} (job {table.text('job_id', row)[:40]!r}{more})", row, where)


EXTRA = "copied from the source, not part of the schema"


def meaning_of(name: str) -> str:
    """Return the meaning of a column, with its unit."""
    return SCHEMA[name].meaning if name in SCHEMA else EXTRA


def dictionary(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one row per column of a workload's table, in its order: name, type, meaning, number of jobs with a value.

    The schema's columns that the table lacks follow, with their `default`: a value or the name of another column.
    `default` is None for the columns of the table.
    """
    rows: list[dict[str, Any]] = []
    for label, values in table.items():
        name = str(label)
        missing = values.isna() if values.dtype.kind == "f" else values == ""
        dtype = SCHEMA[name].dtype if name in SCHEMA else dtype_of(values)
        row = {"column": name, "type": dtype, "meaning": meaning_of(name), "known": int((~missing).sum())}
        rows.append({**row, "default": None})
    for name, spec in SCHEMA.items():
        if name not in table:
            absent = isinstance(spec.default, float) and np.isnan(spec.default)
            default = "not known" if absent else "empty" if spec.default == "" else str(spec.default)
            row = {"column": name, "type": spec.dtype, "meaning": spec.meaning, "known": 0}
            rows.append({**row, "default": default})
    return rows
