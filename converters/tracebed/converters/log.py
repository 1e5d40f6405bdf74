"""A log: the records of a machine's accounting, before they are a workload.

The table is that of a workload (see `workload.SCHEMA`), but a row is a record: a job may have several, ids may
repeat, and texts may be pandas categories. `cleaning` makes jobs of records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.columns import relabel
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import MAX_SIZE, SCHEMA, BoolArray, IntArray, Provenance, Step, System
from tracebed.errors import InputError, tolerate

MAX_SPAN_S = 1e10
"""Longest accepted run time or limit: 317 years."""
TOO_LARGE = "jobs of more nodes than the machine has, kept as they are (clean: over_machine)"
INSTANTS = ("submit_time", "logged_start", "logged_end", "deadline", "earliest_start")


@dataclass(frozen=True)
class Log:
    """Records, their provenance, and what messages call them."""

    table: pd.DataFrame
    provenance: Provenance
    where: str


def make_log(
    files: Sequence[Input],
    format: str,
    columns: Mapping[str, Any],
    *,
    system: System | None = None,
    time_zone: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    defects: Mapping[str, BoolArray] | None = None,
    counts: Mapping[str, int] | None = None,
    place: Callable[[int], str] | None = None,
    names: Sequence[str] = (),
    keep_names: bool = False,
    extras: Mapping[str, pd.Series[Any]] | None = None,
    unread: Sequence[str] = (),
    since_1970: bool = True,
    only: BoolArray | None = None,
) -> Log:
    """Return the log that a reader found.

    Times become s since the first submission; records without a submit time are left out. What makes no sense
    is counted, and tolerated so: submitted after the start: at the start; ended before the start, a time
    span beyond `MAX_SPAN_S`, a size beyond `MAX_SIZE`: not known.

    Args:
        files: where it was read from.
        format: the reader's name.
        columns: of `workload.SCHEMA` or `extra_...`, a value a record; instants in s since 1970 UTC, NaN not
            known. Without `run_time`, it is `logged_end` - `logged_start`. `nodes` and `cores_per_node` may be
            floats: what is no whole size becomes 0 nodes (not known), or 1 core.
        system: the machine.
        time_zone: of its clock.
        parameters: options of the reader, for the provenance.
        defects: what was tolerated -> which records; each becomes a counted warning that names the first.
        counts: what was tolerated and is no matter of records -> how often.
        place: from the number of a record to `file:line`.
        names: columns that hold names of people and projects.
        keep_names: do not replace those by pseudonyms.
        extras: columns that nobody asked for, with names beginning `extra_`.
        unread: columns that were there and are not kept; a warning names them.
        only: the records to keep, shape (records,); the others are of another machine. All by default.
        since_1970: whether instants are; else they are s since the log's start, and stay so.

    Raises:
        InputError: there is no record with a submit time.
    """
    where = place_of(files)
    found = {**columns, **(extras or {})}
    rows: IntArray | None = None
    if only is not None and not only.all():
        rows = np.flatnonzero(only)
        found = {name: _taken(values, rows) for name, values in found.items()}
        defects = {what: mask[rows] for what, mask in (defects or {}).items()}
        counts = {"records of other machines, left out": len(only) - len(rows), **(counts or {})}
    noted = {**(defects or {}), **_mend_times(found), **_mend_sizes(found, system)}
    submit = found["submit_time"]
    known = np.isfinite(submit)
    if not known.any():
        raise InputError("holds no job with a submit time", where=where, hint="check that the file is complete")
    origin = float(np.floor(submit[known].min())) if since_1970 else 0.0
    for name in INSTANTS:
        if name in found:
            found[name] = np.asarray(found[name], dtype=np.float64) - origin
    tallies = {what: int(mask.sum()) for what, mask in noted.items()} | dict(counts or {})
    for what, count in tallies.items():
        first = where
        if place and count and what in noted:
            row = int(np.argmax(noted[what]))
            first = place(row if rows is None else int(rows[row]))
        tolerate({what: count}, where=first)
    tolerate({f"columns left out, --keep-extra keeps them: {', '.join(unread)}": len(unread)}, where=where)
    if not keep_names:
        key = hashlib.blake2b(b"".join(file.key for file in files), digest_size=32).digest()
        found |= {name: pseudonyms(found[name], name, key) for name in names if name in found}
    table = pd.DataFrame(
        {name: values for name, values in found.items() if name in NEEDED or _says(values)}, copy=False
    )
    if not known.all():
        table = table[known].reset_index(drop=True)
    if len(files) > 1:
        alike = int(table.duplicated([name for name in ("job_id", *INSTANTS[:3]) if name in table]).sum())
        tolerate(
            {"records with number and times of an earlier one; if files overlap, clean them: drop_copies": alike},
            where=where,
        )
    step = Step(
        "read",
        {"format": format, **(parameters or {}), "left_out": list(unread)},
        {what: n for what, n in tallies.items() if n},
    )
    sources = tuple(file.source for file in files)
    provenance = Provenance(system or System(), time_zone, origin if since_1970 else None, sources, (step,))
    return Log(table, provenance, where)


def _taken(values: Any, rows: IntArray) -> Any:
    """Return some rows of a column."""
    return values.iloc[rows].reset_index(drop=True) if isinstance(values, pd.Series) else values[rows]


def place_of(files: Sequence[Input]) -> str:
    """Return what messages call a log: its file, or the folder of its files."""
    return files[0].where if len(files) == 1 else str(files[0].path.parent)


def _mend_times(found: dict[str, Any]) -> dict[str, BoolArray]:
    """Make what sense can be made of times, in place; return what was wrong -> in which records."""
    submit = np.asarray(found["submit_time"], dtype=np.float64)
    start = np.asarray(found.get("logged_start", np.full(len(submit), np.nan)))
    late = start < submit
    noted = {
        "records without a submit time, left out": ~np.isfinite(submit),
        "submitted after they started: submission taken as the start": late,
    }
    found["submit_time"] = np.where(late, start, submit)
    if "run_time" not in found:
        found["run_time"] = np.asarray(found["logged_end"]) - start
    for name, what in (("run_time", "run times"), ("time_limit", "time limits")):
        if name in found:
            values = np.asarray(found[name], dtype=np.float64)
            bad = (values < 0) | (values > MAX_SPAN_S)
            noted[f"{what} that are negative or longer than 300 years, taken as not known"] = bad
            found[name] = np.where(bad, np.nan, values)
    if "logged_end" in found:
        end = np.asarray(found["logged_end"])
        backwards = end < start
        noted["ended before they started: end taken as not known"] = backwards
        found["logged_end"] = np.where(backwards | (end - start > MAX_SPAN_S), np.nan, end)
    return noted


def _mend_sizes(found: dict[str, Any], system: System | None) -> dict[str, BoolArray]:
    """Make whole numbers of sizes, in place; return what was wrong -> in which records."""
    noted: dict[str, BoolArray] = {}
    for name, least in (("nodes", 0), ("cores_per_node", 1)):
        values = np.asarray(found.get(name, np.zeros(0, np.int64)))
        if values.dtype.kind == "f":
            sound = (values >= least) & (values <= MAX_SIZE)
            found[name] = np.where(sound, np.ceil(values), least).astype(np.int64)
            if name == "nodes":
                noted["jobs of unknown size"] = ~sound
            else:
                noted["impossible numbers of cores on a node, taken as 1"] = ~sound & ~np.isnan(values)
    if system is not None and system.nodes is not None and "nodes" in found:
        noted[TOO_LARGE] = np.asarray(found["nodes"]) > system.nodes
    return noted


NEEDED = tuple(name for name, column in SCHEMA.items() if column.default is None)


def pseudonyms(labels: Any, kind: str, key: bytes) -> pd.Categorical:
    """Replace names by keyed hashes, the same for the same name; the empty name stays.

    The key is drawn from the content of the log's files. The same files give the same pseudonyms, so that whoever has
    the files can compute the pseudonym of any name: a pseudonym of a public log protects nobody.
    Forty bits: among 10,000 names two share one with probability 5e-5.
    """
    names = labels if isinstance(labels, pd.Categorical) else pd.Categorical(pd.Series(labels, dtype="str"))

    def of(name: str) -> str:
        digest = hashlib.blake2b(f"{kind}\0{name}".encode(), key=key, digest_size=5)
        return f"{kind}-{digest.hexdigest()}" if name else ""

    hidden = [of(str(name)) for name in names.categories]
    return relabel(names.codes, hidden)


def _says(values: Any) -> bool:
    """Tell whether any record says something in this column."""
    if isinstance(values, pd.Categorical):
        return list(values.categories) not in ([], [""])
    values = values.to_numpy() if isinstance(values, pd.Series) else np.asarray(values)
    if values.dtype.kind == "f":
        return not np.isnan(values).all()
    return values.dtype.kind in "iub" or bool((values != "").any())
