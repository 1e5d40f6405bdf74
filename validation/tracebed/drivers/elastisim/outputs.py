"""Tables that ElastiSim writes. Times are seconds with six significant digits."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import MAX_EXACT, FloatArray
from tracebed.ground.errors import InputError

STATISTICS, UTILIZATION, TASKS = "job_statistics.csv", "node_utilization.csv", "task_times.csv"
DIGITS = 6  # significant digits of the numbers that ElastiSim prints
NEVER = -1.0  # start of a job that was killed before it started

STATISTICS_COLUMNS = {
    "ID": "id",
    "Type": "type",
    "Submit Time": "submit",
    "Start Time": "start",
    "End Time": "end",
    "Wait Time": "wait",
    "Makespan": "makespan",
    "Turnaround Time": "turnaround",
    "Status": "status",
}
UTILIZATION_COLUMNS = {"Time": "time", "Node": "node", "State": "state", "Running jobs": "jobs"}
TASK_COLUMNS = {"Time": "time", "Job": "id", "Node": "node", "Task": "task", "Duration": "duration"}
TEXTS = {"type", "status", "node", "state", "jobs", "task"}
WORDS = {"type": ("rigid", "moldable", "malleable", "evolving", "adaptive"), "status": ("completed", "killed")}


def statistics(path: Path) -> pd.DataFrame:
    """Return job_statistics.csv by id, which counts from 0. A start before time 0 (never started) is NaN."""
    table = _table(path, STATISTICS_COLUMNS).sort_values("id", kind="stable", ignore_index=True)
    wrong = table["id"].to_numpy() != np.arange(len(table))
    if wrong.any():
        what = f"lacks job {int(wrong.argmax())}: ElastiSim numbers the jobs from 0 by submit time"
        raise InputError(what, where=str(path), hint="use the file as ElastiSim wrote it")
    for name, words in WORDS.items():
        table[name] = table[name].str.lower()
        other = ~table[name].isin(words)
        if other.any():
            what = f"{name} of job {int(other.argmax())} is {table[name][int(other.argmax())]!r}"
            raise InputError(what, where=str(path), hint=f"one of {', '.join(words)}")
    never = (table["start"] == NEVER) & (table["status"] == "killed") & (table["end"] >= 0)
    table.loc[never, ["start", "wait", "makespan"]] = np.nan
    return table


def utilization(path: Path) -> pd.DataFrame:
    """Return node_utilization.csv: a row each time the jobs of a node change, in the order of the file."""
    return _table(path, UTILIZATION_COLUMNS)


def tasks(path: Path) -> pd.DataFrame:
    """Return task_times.csv: a row per task and node, at its end."""
    return _table(path, TASK_COLUMNS)


def unit(values: FloatArray) -> FloatArray:
    """Return the unit of the last printed digit of each value."""
    exponent = np.floor(np.log10(np.maximum(np.abs(np.nan_to_num(values)), 1e-9)))
    return np.asarray(10.0 ** (exponent - (DIGITS - 1)), dtype=np.float64)


def _table(path: Path, columns: Mapping[str, str]) -> pd.DataFrame:
    """Read the columns of a table, numbers as float64 and ids as int64."""
    hint = f"the file is ElastiSim's {path.name}, complete, as ElastiSim wrote it"
    if path.is_file() and not path.stat().st_size:
        what = "is empty: ElastiSim did not finish (it ends with status 0 even after a deadlock)"
        raise InputError(what, where=str(path), hint="its log names the reason")
    content = io.BytesIO(Input.at(path).text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows with more values than the header
            raw = pd.read_csv(content, dtype=str, keep_default_na=False, encoding_errors="replace", index_col=False)
    except (OSError, ValueError, pd.errors.ParserWarning) as error:
        what = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(f"cannot be read: {what}", where=str(path), hint=hint) from error
    if missing := [name for name in columns if name not in raw]:
        raise InputError(f"lacks column {missing[0]!r}", where=str(path), hint=hint)
    table = raw[list(columns)].rename(columns=dict(columns))
    if table.empty:
        raise InputError("has no rows: ElastiSim did not finish", where=str(path), hint="its log names the reason")
    for name in table.columns.difference([*TEXTS]):
        numbers = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64)
        bad = ~(np.abs(numbers) <= MAX_EXACT) | ((name == "id") & (numbers != np.floor(numbers)))
        if bad.any():
            row = int(bad.argmax())
            what = f"{name} is {table[name][row][:40]!r}, not a number"
            raise InputError(what, where=f"{path}:{row + 2}", hint=hint)
        table[name] = numbers.astype(np.int64) if name == "id" else numbers
    return table
