"""Slurm accounting from `sacct --json`, as the columns of `sacct -P`.

Sources: the output of Slurm 22.05.8 (openapi/dbv0.0.38), and the field tables (`PARSER_ARRAY(JOB)`) of data_parser
v0.0.39 to v0.0.45 in the sources of Slurm 23.02 to 26.05. The keys are the same. A number that may be missing is plain
or null in the first, `{"set": ..., "infinite": ..., "number": ...}` in the others, and plain, null or "Infinity" with
`+complex`. A state is a text up to v0.0.39, then a list of a state and flags. Times are in s since 1970, limits in
minutes, memory in MiB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.json_jobs import Item, load
from tracebed.ground.errors import InputError

READ = {
    "Cluster": "cluster",
    "User": "user",
    "Account": "account",
    "Partition": "partition",
    "QOS": "qos",
    "Constraints": "constraints",
    "NodeList": "nodes",
    "SubmitLine": "submit_line",
    "Licenses": "licenses",
}
"""Column of sacct -> key of a job with the same text."""
TIMES = {"Submit": "submission", "Eligible": "eligible", "Start": "start", "End": "end"}
"""Column of sacct -> key of the times of a job."""
LEFT_OUT = frozenset(("steps", "association", "flags", "script"))
NO_VALUE = 2.0**32 - 2
"""Slurm's NO_VAL of 32 bits. This number and larger ones are missing values."""
SHOWN = 64
"""Number of characters of a list of tasks, after which sacct -P cuts it off, too."""
FLAGS = ("RESIZING", "REQUEUED", "REVOKED")
"""Flags of a state that sacct -P prints instead of the state."""


def is_json(file: Input) -> bool:
    """Return whether a file is the output of `sacct --json`."""
    head = file.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return head.startswith(b"{") and b'"jobs"' in head and b'"allocation_nodes"' in head


def as_columns(file: Input) -> Input:
    """Return the file as a table of the columns of `sacct -P` (Parquet), a row for each job; steps are left out."""
    rows = [_row(job) for job in load(file).items("jobs")]
    if not rows:
        raise InputError("contains no jobs", where=file.where, hint="check the time that sacct was asked for")
    names = dict.fromkeys(name for row in rows for name in row)
    kinds = {name: pa.float64() if name in TIMES else pa.string() for name in names}
    table = pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()})
    stream = pa.BufferOutputStream()
    pq.write_table(table, stream)
    return replace(file, raw=stream.getvalue().to_pybytes())


def _row(job: Item) -> dict[str, Any]:
    """Return the columns of a job, and its other texts and numbers under the names of their keys."""
    time, required, tres = job.item("time"), job.item("required"), job.item("tres")
    reservation = job.item("reservation")
    row: dict[str, Any] = {
        **_others(job.values),
        "JobID": _job_id(job),
        **{column: _text(job, key) for column, key in READ.items()},
        **{column: _number(time, key) or None for column, key in TIMES.items()},
        "ElapsedRaw": _whole(time, "elapsed"),
        "TimelimitRaw": _limit(time),
        "State": _state(job.item("state")),
        "AllocNodes": _whole(job, "allocation_nodes"),
        "ReqCPUS": _whole(required, "CPUs"),
        "AllocTRES": _resources(tres, "allocated"),
        "ReqTRES": _resources(tres, "requested"),
        # Slurm 22.05 writes the name of a reservation as a number.
        "Reservation": _text(reservation, "name") if isinstance(reservation.values.get("name"), str) else "",
    }
    row["User"] = row["User"] or _text(job.item("association"), "user")
    return row


def _others(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the texts and numbers below an object that `_row` does not read, by their keys joined with slashes."""
    others: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name in LEFT_OUT or name in READ.values() or name in ("tres", "array", "het", "state", "job_id"):
            continue
        if isinstance(value, dict) and name not in ("time", "required", "reservation"):
            others |= _others(value, f"{name}/")
        elif isinstance(value, str) or (isinstance(value, (int, float)) and name != "allocation_nodes"):
            others[name] = str(value)
    return others


def _text(item: Item, key: str) -> str:
    """Return a text, empty if it is missing or null."""
    return item.text(key) if item.values.get(key) is not None else ""


def _number(item: Item, key: str) -> float | None:
    """Return a number, infinity, or None if it is missing."""
    value = item.values.get(key)
    if value == "Infinity":
        return math.inf
    if isinstance(value, dict):
        inner = item.item(key)
        if value.get("infinite"):
            return math.inf
        return inner.number("number") if value.get("set") else None
    if value is None or (isinstance(value, (int, float)) and value >= NO_VALUE):
        return None
    return item.number(key)


def _whole(item: Item, key: str) -> str:
    """Return a number as sacct -P writes it, empty if it is missing or infinite."""
    value = _number(item, key)
    return "" if value is None or math.isinf(value) else f"{value:.0f}"


def _limit(time: Item) -> str:
    """Return the limit in minutes."""
    value = _number(time, "limit")
    return "Partition_Limit" if value is None else "UNLIMITED" if math.isinf(value) else f"{value:.0f}"


def _state(state: Item) -> str:
    """Return the state of a job, or the flag that sacct -P prints instead."""
    current = state.values.get("current")
    if not isinstance(current, list):
        return _text(state, "current")
    words = [str(word) for word in current]
    return next((flag for flag in FLAGS if flag in words), words[0] if words else "")


def _resources(tres: Item, key: str) -> str:
    """Return trackable resources as sacct -P writes them."""
    parts = []
    for resource in tres.items(key) if tres.values.get(key) else []:
        kind, name, count = _text(resource, "type"), _text(resource, "name"), _whole(resource, "count")
        if count:
            parts.append(f"{kind}{'/' if name else ''}{name}={count}{'M' if kind == 'mem' else ''}")
    return ",".join(parts)


def _job_id(job: Item) -> str:
    """Return the job id as sacct -P writes it: `12`, `12_3`, `12_[5-9%2]` or `12+1`."""
    number, array, het = _whole(job, "job_id"), job.item("array"), job.item("het")
    if not number:
        job.refuse("job_id", "a number")
    if whole := _number(array, "job_id"):
        if task := _whole(array, "task_id"):
            return f"{whole:.0f}_{task}"
        if tasks := _tasks(_text(array, "task")):
            limits = array.item("limits").item("max").item("running")
            most = _number(limits, "tasks")
            return f"{whole:.0f}_[{tasks}{f'%{most:.0f}' if most else ''}]"
    if whole := _number(het, "job_id"):
        return f"{whole:.0f}+{_whole(het, 'job_offset') or 0}"
    return number


def _tasks(text: str) -> str:
    """Return the numbers of tasks, such as `1-3,7`, of a text or of a mask in hexadecimal."""
    if not text.lower().startswith("0x"):
        return text.partition("%")[0]
    try:
        mask = int(text, 16)
    except ValueError:
        return text
    runs = [(run.start(), run.end() - 1) for run in re.finditer("1+", bin(mask)[:1:-1])]
    ranges = ",".join(f"{begin}" if begin == end else f"{begin}-{end}" for begin, end in runs)
    return ranges if len(ranges) <= SHOWN else f"{ranges[: SHOWN - 3]}..."
