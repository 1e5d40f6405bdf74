"""A log: the accounting records of a machine, before cleaning.

The table has the columns of a workload (see `workload.SCHEMA`), but each row is a record. A job may have several
records, ids may repeat, and texts may be pandas categories. `cleaning` turns records into jobs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracebed.converters.formats.tools.columns import check_zone, relabel
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import MAX_SIZE, REQUIRED, BoolArray, IntArray, Provenance, Step, System
from tracebed.ground.errors import InputError, tolerate

if TYPE_CHECKING:
    import pandas as pd

MAX_SPAN_S = 1e10
"""Longest accepted run time or limit: 317 years."""
TOO_LARGE = "jobs with more nodes than the machine has, kept (clean: over_machine)"
INSTANTS = ("submit_time", "logged_start", "logged_end", "deadline", "earliest_start", "extra_eligible")


@dataclass(frozen=True)
class Log:
    """Records, their provenance, and their name in messages."""

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
    defects: Mapping[str, BoolArray | int] | None = None,
    place: Callable[[int], str] | None = None,
    names: Sequence[str] = (),
    unread: Sequence[str] = (),
    since_1970: bool = True,
    only: BoolArray | None = None,
) -> Log:
    """Return a log made of the columns that a reader found.

    Times become s since the first submission. Records without a submit time are left out. Invalid values are
    counted and repaired: a submit time after the start becomes the start; an end before the start, a time span
    above `MAX_SPAN_S`, and a size above `MAX_SIZE` become unknown.

    Args:
        format: the name of the reader.
        columns: columns of `workload.SCHEMA` or `extra_...`, each of shape (records,). Instants are in s since
            1970 UTC, NaN if unknown. A missing `run_time` is `logged_end` - `logged_start`. `nodes` and
            `cores_per_node` may be floats, which are rounded up; invalid sizes become 0 nodes (unknown) or 1 core.
            Columns that are not needed may be pandas series.
        system: the machine.
        time_zone: the time zone of the machine's clock.
        parameters: the options of the reader, for the provenance; `keep_names`: whether names stay as they are.
        defects: tolerated defect -> affected records, shape (records,), or number of occurrences if the defect does
            not belong to records. Each defect gives one warning with the number and the place of the first record.
        place: function from the number of a record to `file:line`.
        names: columns that hold names of persons and projects, which are replaced by pseudonyms.
        unread: columns of the files that are left out; a warning lists them.
        only: mask of the records of the chosen machine, shape (records,); default: all records.
        since_1970: whether instants are in s since 1970. Otherwise they are in s since the start of the log
            and are not shifted.

    Raises:
        InputError: no record has a submit time, or the time zone is unknown.
    """
    import pandas as pd

    where = place_of(files)
    if time_zone is not None:
        check_zone(time_zone)
    columns = dict(columns)
    masks = {what: mask for what, mask in (defects or {}).items() if not isinstance(mask, int)}
    counts = {what: count for what, count in (defects or {}).items() if isinstance(count, int)}
    rows: IntArray | None = None
    if only is not None and not only.all():
        rows = np.flatnonzero(only)
        columns = {name: _selected(values, rows) for name, values in columns.items()}
        masks = {what: mask[rows] for what, mask in masks.items()}
        counts = {"records of other machines, left out": len(only) - len(rows), **counts}
    noted = {**masks, **_repair_times(columns), **_repair_sizes(columns, system)}
    submit = columns["submit_time"]
    known = np.isfinite(submit)
    if not known.any():
        raise InputError("contains no jobs with a submit time", where=where, hint="check that the file is complete")
    origin = float(np.floor(submit[known].min())) if since_1970 else 0.0
    for name in INSTANTS:
        if name in columns:
            columns[name] = np.asarray(columns[name], dtype=np.float64) - origin
    tallies = {what: int(mask.sum()) for what, mask in noted.items()} | counts
    for what, count in tallies.items():
        first = where
        if place and count and what in noted:
            row = int(np.argmax(noted[what]))
            first = place(row if rows is None else int(rows[row]))
        tolerate({what: count}, where=first)
    tolerate({f"columns left out (convert --keep extra keeps them): {', '.join(unread)}": len(unread)}, where=where)
    if not (parameters or {}).get("keep_names"):
        key = hashlib.blake2b(b"".join(file.key for file in files), digest_size=32).digest()
        columns |= {name: pseudonyms(columns[name], name, key) for name in names if name in columns}
    table = pd.DataFrame(
        {name: values for name, values in columns.items() if name in REQUIRED or has_values(values)}, copy=False
    )
    if not known.all():
        table = table[known].reset_index(drop=True)
    if len(files) > 1:
        alike = int(table.duplicated([name for name in ("job_id", *INSTANTS[:3]) if name in table]).sum())
        tolerate(
            {"records with the id and times of an earlier record (clean: drop_copies)": alike},
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


def _selected(values: Any, rows: IntArray) -> Any:
    """Return the selected rows of a column."""
    import pandas as pd

    return values.iloc[rows].reset_index(drop=True) if isinstance(values, pd.Series) else values[rows]


def place_of(files: Sequence[Input]) -> str:
    """Return the name of a log in messages: its file, or the folder of its files."""
    return files[0].where if len(files) == 1 else str(files[0].path.parent)


def _repair_times(columns: dict[str, Any]) -> dict[str, BoolArray]:
    """Repair invalid times in place; return defect -> affected records, shape (records,)."""
    submit = np.asarray(columns["submit_time"], dtype=np.float64)
    start = np.asarray(columns.get("logged_start", np.full(len(submit), np.nan)))
    late = start < submit
    noted = {
        "records without a submit time, left out": ~np.isfinite(submit),
        "records submitted after their start, submit time set to the start": late,
    }
    columns["submit_time"] = np.where(late, start, submit)
    if "run_time" not in columns:
        columns["run_time"] = np.asarray(columns["logged_end"]) - start
    for name, what in (("run_time", "run times"), ("time_limit", "time limits")):
        if name in columns:
            values = np.asarray(columns[name], dtype=np.float64)
            bad = (values < 0) | (values > MAX_SPAN_S)
            noted[f"{what} that are negative or longer than 300 years, set to unknown"] = bad
            columns[name] = np.where(bad, np.nan, values)
    if "logged_end" in columns:
        end = np.asarray(columns["logged_end"])
        backwards = end < start
        noted["records that end before their start, end set to unknown"] = backwards
        columns["logged_end"] = np.where(backwards | (end - start > MAX_SPAN_S), np.nan, end)
    return noted


def _repair_sizes(columns: dict[str, Any], system: System | None) -> dict[str, BoolArray]:
    """Round sizes up to integers in place; return defect -> affected records, shape (records,)."""
    noted: dict[str, BoolArray] = {}
    for name, least in (("nodes", 0), ("cores_per_node", 1)):
        values = np.asarray(columns.get(name, np.zeros(0, np.int64)))
        if values.dtype.kind == "f":
            sound = (values >= least) & (values <= MAX_SIZE)
            columns[name] = np.where(sound, np.ceil(values), least).astype(np.int64)
            if name == "nodes":
                noted["jobs of unknown size"] = ~sound
            else:
                noted["jobs with an invalid number of cores per node, set to 1"] = ~sound & ~np.isnan(values)
    if system is not None and system.nodes is not None and "nodes" in columns:
        noted[TOO_LARGE] = np.asarray(columns["nodes"]) > system.nodes
    return noted


def pseudonyms(labels: Any, kind: str, key: bytes) -> pd.Categorical:
    """Replace names by keyed hashes. Equal names get equal pseudonyms; the empty name stays empty.

    The key is a hash of the log's files: the same files give the same pseudonyms, and whoever has the files can compute
    the pseudonym of any name. Pseudonyms have 40 bits: two of 10,000 names collide with probability 5e-5.
    """
    import pandas as pd

    names = labels if isinstance(labels, pd.Categorical) else pd.Categorical(pd.Series(labels, dtype="str"))

    def of(name: str) -> str:
        digest = hashlib.blake2b(f"{kind}\0{name}".encode(), key=key, digest_size=5)
        return f"{kind}-{digest.hexdigest()}" if name else ""

    hidden = [of(str(name)) for name in names.categories]
    return relabel(names.codes, hidden)


def has_values(values: Any) -> bool:
    """Return whether any record has a value in this column."""
    import pandas as pd

    if isinstance(values, pd.Categorical):
        return list(values.categories) not in ([], [""])
    values = values if isinstance(values, pd.Series) else np.asarray(values)  # to convert texts takes long
    if values.dtype.kind == "f":
        return not bool(np.isnan(values).all())
    return values.dtype.kind in "iub" or bool((values != "").any())
