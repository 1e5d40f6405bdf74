"""Tables of jobs of any program with a header, as CSV or Parquet: a row per job, times in any unit, numbers or dates.

A column is matched with a field by its name or by the options of the import, and the unit of its times is found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tracebed.converters.formats.reading import AS_TABLE, foreign_kind_of
from tracebed.converters.formats.tools.cast import FAR, NOTHING, abbreviated, cast
from tracebed.converters.formats.tools.columns import WHICH_HOUR, Columns, ColumnSpec, read_columns, settle, utc
from tracebed.converters.formats.tools.files import PARQUET, Input, delimiter_of
from tracebed.converters.workload import MAX_EXACT, FloatArray, IntArray, Workload
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.registry import one_of, unknown
from tracebed.orchestrator.run import Run
from tracebed.validation.simulators.assembly import run_of
from tracebed.validation.simulators.observed import DURATIONS, FIELDS, INSTANTS, NUMBERS, TEXTS, Observed
from tracebed.validation.simulators.simulator import ExternalSimulator, ReadOptions

CLOCK = re.compile(r"(?:(\d{1,15})-)?(\d{1,15}):(\d{1,15})(?::(\d{1,15}(?:\.\d+)?))?")
"""A duration as Slurm prints it: `1-02:03:04`, `02:03:04`, `03:04`."""
NEVER = -1.0  # an unknown time, or the time of an event that never came, as several simulators write it
UTC = "UTC"
_FILTER = "rows "  # prefix of the columns that select rows, beside the fields
EPOCH = 5e8  # numbers above this, in s, are taken as times since 1970 (1985-11-05)

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}  # unit of times -> s
SPELT = {
    **{name: name for name in UNITS},
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("msec", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("usec", "micros", "microseconds"), "us"),
    **dict.fromkeys(("nsec", "nanos", "nanoseconds"), "ns"),
    **dict.fromkeys(("mins", "minute", "minutes"), "min"),
    **dict.fromkeys(("hour", "hours"), "h"),
}
"""Last word of a column name -> unit."""
NAMES: dict[str, tuple[str, ...]] = {
    "job_id": ("jobid", "id", "job", "jobnumber", "jobidraw", "jobname", "name"),
    "submit": (
        "submit",
        "submittime",
        "submission",
        "submissiontime",
        "submitted",
        "arrival",
        "arrivaltime",
        "subtime",
        "submitjob",
    ),
    "start": ("start", "starttime", "startingtime", "started", "begin", "begintime", "starts", "launchjob"),
    "end": (
        *("end", "endtime", "finish", "finishtime", "finished", "completion", "completiontime", "ended", "stoptime"),
        "jobepilogcomplete",  # slurm_model, with submitjob and launchjob
    ),
    "wait": ("wait", "waittime", "waitingtime", "waiting"),
    "run": ("run", "runtime", "executiontime", "elapsed", "duration", "actualruntime"),
    "response": ("response", "responsetime", "turnaround", "turnaroundtime"),
    "nodes": (
        *("nodes", "numnodes", "nnodes", "nodecount", "allocnodes", "requestednodes", "reqnodes", "size"),
        *("requestednumberofresources", "requestednumberofprocessors"),  # Batsim, whose machines are nodes
        *("numhosts", "nhosts", "hostcount", "numberofnodes", "numberofhosts", "numnodesalloc", "nodect"),
    ),
    "cores": (
        *("cores", "procs", "processors", "cpus", "ncpus", "alloccpus", "numcores", "requestedprocessors"),
        *("ncores", "nprocs", "numprocs", "numprocessors", "numcpus", "numberofcores", "cpucount", "slots", "numslots"),
    ),
    "state": ("state", "status", "finalstate", "jobstate", "success"),
    "run_time": ("dedicatedruntime",),
    "time_limit": ("timelimit", "walltime", "requestedtime", "reqtime", "requestedwalltime", "limit"),
    "user": ("user", "username", "userid", "owner"),
    "kind": ("kind", "type", "jobtype"),
    "held": ("heldnodes", "allocatedresources", "allocatednodes", "allocatedprocessors", "assignedresources"),
}
"""Field -> names of its column in lower case, without punctuation and unit; preferred names first."""

NUMBER = re.compile(r"\d{1,15}")
COPIES = 0.99  # smallest share of jobs whose limit is their run time for which the limits are run times
ROUNDING_S = 0.01  # rounding error of printed run times, s


@dataclass(frozen=True)
class Table:
    """The known columns of a table of jobs."""

    file: Input
    jobs: pd.DataFrame  # as `Observed.jobs`
    held: pd.Series[str] | None  # intervals of node numbers that each job held
    columns: Columns
    found: Mapping[str, ColumnMatch]
    kept: IntArray  # row in the file of each row of `jobs`
    unix: bool  # whether submit, start and end are s since 1970
    time_zone: str | None = None  # time zone in which date-times without an offset were read; None if there are none
    assumed: bool = False  # whether the time zone was not given

    def place(self, row: int) -> str:
        """Return `file:line` of a row."""
        return self.columns.place(int(self.kept[row]))


def names_of(file: Input) -> list[str]:
    """Return the column names of a table in the spelling of the file."""
    if file.head.startswith(PARQUET):
        return list(file.columns)
    return [name.strip().strip('"') for name in file.header.split(delimiter_of(file.header))]


def read_table(path: Path, options: ReadOptions) -> Table:
    """Read a table of jobs: CSV (comma, semicolon, tab or bar; compressed or not) or Parquet."""
    file = Input.at(path)
    if options.unit:
        one_of("unit", options.unit, UNITS)
    spelt = names_of(file)
    found = columns_of(spelt, options.columns, file.where)
    try:
        check_enough(found, spelt, file.where)
    except InputError:
        if options.columns or not (kind := foreign_kind_of(file)):
            raise
        what = f"is {kind}, without the columns of a table of jobs"
        raise InputError(what, where=file.where, hint=AS_TABLE) from None
    wanted = {field: ColumnSpec("text", (column.name.lower(),)) for field, column in found.items()}
    for name in options.rows:
        if name not in spelt:
            raise unknown(f"column of {file.where}:", name, list(spelt))
        wanted[_FILTER + name] = ColumnSpec("text", (name.lower(),))
    columns = read_columns([file], wanted)
    kept = _kept(columns, options.rows, file.where)
    jobs: dict[str, pd.Series[str] | FloatArray] = {}
    local, first = False, dict[str, FloatArray]()
    for field, column in found.items():
        texts = pd.Series(columns[field], dtype="str").str.strip()
        if field in TEXTS:
            jobs[field] = texts
        elif field in NUMBERS:
            numbers = _Numbers(file, columns, column.name, texts)
            if field in INSTANTS and numbers.are_dates:
                jobs[field], zoned = numbers.dates(options.time_zone)
                local = local or not zoned
                if not zoned:
                    first[field], _ = numbers.dates(options.time_zone, first=True)
            else:
                unit = column.unit or options.unit
                guessed = field in INSTANTS and not unit
                jobs[field] = numbers.since_1970() if guessed else numbers.values * scale_of(field, column, unit)
            if field in (*INSTANTS, *DURATIONS, "time_limit", "run_time"):
                jobs[field] = np.where(jobs[field] == NEVER, np.nan, jobs[field])
    if first.keys() >= {"start", "end"}:
        times = {name: np.asarray(jobs[name]) for name in INSTANTS if name in first}
        ran = np.asarray(jobs.get("run", np.full(len(columns), np.nan)))
        unclear = settle(times, {name: first[name] for name in times}, ran)
        tolerate({WHICH_HOUR: int(unclear[kept].sum())}, where=file.where)
        jobs |= times
    instants = [np.asarray(jobs[name]) for name in INSTANTS if name in jobs]
    known = [values[np.isfinite(values)] for values in instants]
    unix = any(map(len, known)) and all(values.min() > EPOCH for values in known if len(values))
    held = pd.Series(columns["held"], dtype="str").iloc[kept].reset_index(drop=True) if "held" in found else None
    zone = (options.time_zone or UTC) if local else None
    selected = pd.DataFrame(jobs).iloc[kept].reset_index(drop=True)
    return Table(file, selected, held, columns, found, kept, unix, zone, local and not options.time_zone)


def _kept(columns: Columns, rows: Mapping[str, str], where: str) -> IntArray:
    """Return the numbers of the rows with the chosen values; all rows without a choice."""
    kept = np.ones(len(columns), dtype=bool)
    for name, value in rows.items():
        texts = pd.Series(columns[_FILTER + name], dtype="str").str.strip()
        own = (texts == value).to_numpy()
        if not own.any():
            values = ", ".join(texts.unique()[:5].tolist())
            raise InputError(f"no row has {name} {value!r}", where=where, hint=f"the column has {values}")
        kept &= own
    if rows and not kept.any():
        chosen = ", ".join(f"{name}={value}" for name, value in rows.items())
        raise InputError(f"no row has {chosen}", where=where, hint="leave one of them out")
    return np.flatnonzero(kept)


class _Numbers:
    """A column of numbers, durations or dates, as texts."""

    def __init__(self, file: Input, columns: Columns, name: str, texts: pd.Series[str]) -> None:
        self.file, self.columns, self.name, self.texts = file, columns, name, texts
        missing = texts.isin(NOTHING).to_numpy()
        values = pd.to_numeric(texts.where(~missing), errors="coerce").to_numpy(dtype=np.float64, copy=True)
        for row in np.flatnonzero(np.isnan(values) & ~missing).tolist():
            values[row] = _clock(texts.iloc[row])
        self._numbers = values
        self.invalid = np.isnan(values) & ~missing

    @property
    def are_dates(self) -> bool:
        """Whether most values are neither missing nor numbers."""
        return bool(self.invalid.sum() > np.isfinite(self._numbers).sum())

    @property
    def values(self) -> FloatArray:
        """The numbers, in the unit of the file, shape (rows,); NaN where missing."""
        bad = self.invalid | (np.abs(self._numbers) > MAX_EXACT)
        if bad.any():
            row = int(bad.argmax())
            why = "not a number" if self.invalid[row] else f"above {MAX_EXACT:.3g}, the largest number that is read"
            what = f"{self.name[:40]} {abbreviated(self.texts.iloc[row])} is {why}"
            raise InputError(what, where=self.columns.place(row), hint="correct or remove the line")
        return self._numbers

    def since_1970(self) -> FloatArray:
        """Return times without a stated unit, s: far instants are ms, us or ns since 1970."""
        values = self.values
        largest = np.nanmax(np.abs(values), initial=0.0)
        power = 1.0 if largest < FAR else 1e3 if largest < FAR * 1e3 else 1e6 if largest < FAR * 1e6 else 1e9
        return values / power

    def dates(self, zone: str, *, first: bool = False) -> tuple[FloatArray, bool]:
        """Return date-times, s since 1970 UTC, and whether they have an offset; without, they are in `zone` or UTC."""
        # In the hour that occurs twice, a time is one of the second hour, or of the `first`.
        column, zoned = cast(pa.chunked_array([pa.array(self.texts, pa.string())]), "time", self.file, self.name)
        seconds = column.to_numpy().astype(np.float64)
        return (seconds if zoned else utc(seconds, zone or UTC, first=first)), zoned


def _clock(text: str) -> float:
    """Return a duration such as `1-02:03:04` in s; NaN if the text is not one."""
    match = CLOCK.fullmatch(text)
    if not match:
        return float("nan")
    days, first, second, third = match.groups()
    hours, minutes, seconds = (0, first, second) if third is None else (first, second, third)
    return int(days or 0) * 86_400.0 + int(hours) * 3600.0 + int(minutes) * 60.0 + float(seconds)


class ColumnMatch(NamedTuple):
    """A column of a table: its name in the file, and the unit of its times if the name states it."""

    name: str
    unit: str


def split(name: str) -> tuple[str, str]:
    """Return the letters of a column name in lower case without its unit, and the unit; empty if it states none."""
    # `Start Time (ms)`, `start_time_ms` and `startTimeMs` are `starttime` in `ms`.
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    words = [word.lower() for word in words]
    unit = SPELT.get(words[-1], "") if len(words) > 1 else ""
    return "".join(words[:-1] if unit else words), unit


def columns_of(spelt: Sequence[str], chosen: Mapping[str, str], where: str) -> dict[str, ColumnMatch]:
    """Return the column of each field that a table has: the one that the user chose, or one of `NAMES`."""
    for field in chosen:
        one_of("field", field, FIELDS)
    found: dict[str, ColumnMatch] = {}
    parts = {name: split(name) for name in reversed(spelt)}
    for field, name in chosen.items():
        if name not in parts:
            raise unknown(f"column of {where}:", name, list(spelt))
        found[field] = ColumnMatch(name, parts[name][1])
    taken = set(chosen.values())
    free = [name for name in spelt if name not in taken]
    for field, names in NAMES.items():
        if field in found:
            continue
        order = {known: place for place, known in enumerate(names)}
        fitting = sorted(
            (order[parts[name][0]], place, name) for place, name in enumerate(free) if parts[name][0] in order
        )
        if fitting:
            name = fitting[0][2]
            found[field] = ColumnMatch(name, parts[name][1])
    if "run" in found and "run_time" not in found:  # with both, `run_time` is the planned run time, as in workloads
        runs = [name for name in free if parts[name][0] == "runtime" and name != found["run"].name]
        if parts[found["run"].name][0] == "run" and runs:
            found["run_time"] = ColumnMatch(runs[0], parts[runs[0]][1])
    for field, column in found.items():
        if list(spelt).count(column.name) > 1:
            hint = "remove or rename one of them"
            raise InputError(f"column {column.name!r} ({field}) occurs twice", where=where, hint=hint)
    return found


def check_enough(found: Mapping[str, ColumnMatch], spelt: Sequence[str], where: str) -> None:
    """Raise InputError unless starts and ends are known, directly or by waits, run times and response times."""
    starts = {"start", "wait"} & found.keys() or {"end", "run"} <= found.keys()
    ends = {"end", "run", "response"} & found.keys()
    if starts and ends:
        return
    lacks = " and ".join([*(() if starts else ("start (or wait)",)), *(() if ends else ("end (or run, response)",))])
    shown = ", ".join(spelt[:12])
    names = "--columns start=NAME,end=NAME, or `columns: {start: NAME, end: NAME}` in a file"
    hint = f"name them by {names}; the columns are {shown}"
    raise InputError(f"no column is recognized as {lacks}", where=where, hint=hint)


def scale_of(field: str, column: ColumnMatch, unit: str) -> float:
    """Return the factor from the numbers of a column to s; 1 for fields that are not times."""
    if field not in (*INSTANTS, *DURATIONS, "time_limit", "run_time"):
        return 1.0
    return UNITS[column.unit or unit or "s"]


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
    """Remove the time limits of a table if they are run times, and return a warning."""
    # A column `walltime` holds limits in some logs, and run times in others.
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
    """Return the nodes of each job from intervals of node numbers (`0-3 7`), or None if an ended job is without."""
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
    """Return the intervals of `0-3 7` as (first, last); a node occurs once."""
    pairs = []
    for word in text.replace(",", " ").split():
        low, dash, high = word.partition("-")
        if not (NUMBER.fullmatch(low) and (NUMBER.fullmatch(high) or not dash)):
            what = f"{table.found['held'].name} {text[:40]!r} is not a list of node numbers such as 0-3 7"
            raise InputError(what, where=table.place(row), hint="correct it, or rename the column")
        pairs.append((int(low), int(high) if dash else int(low)))
    pairs.sort()
    if any(high < low for low, high in pairs) or any(b[0] <= a[1] for a, b in pairwise(pairs)):
        what = f"{table.found['held'].name} {text[:40]!r} names a node twice, or an interval backwards"
        raise InputError(what, where=table.place(row), hint="correct it, or rename the column")
    return pairs


SIMULATOR = ExternalSimulator(name="csv", title="a table of jobs of any program, with a header", read=read)
"""A table of jobs of any program, with a header: CSV or Parquet."""
