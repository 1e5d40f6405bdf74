"""Tables of jobs with a header, as CSV or Parquet: times in any unit, as numbers or dates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from tracebed.converters.formats.reading import AS_TABLE, foreign_kind_of
from tracebed.converters.formats.tools.cast import FAR, NOTHING, abbreviated, cast
from tracebed.converters.formats.tools.columns import WHICH_HOUR, Columns, ColumnSpec, read_columns, settle, utc
from tracebed.converters.formats.tools.files import PARQUET, Input, delimiter_of
from tracebed.converters.workload import MAX_EXACT, FloatArray, IntArray
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.registry import one_of, unknown
from tracebed.validation.simulators.columns import UNITS, ColumnMatch, check_enough, columns_of, scale_of
from tracebed.validation.simulators.observed import DURATIONS, INSTANTS, NUMBERS, TEXTS
from tracebed.validation.simulators.simulator import ReadOptions

CLOCK = re.compile(r"(?:(\d{1,15})-)?(\d{1,15}):(\d{1,15})(?::(\d{1,15}(?:\.\d+)?))?")
"""A duration as Slurm prints it: `1-02:03:04`, `02:03:04`, `03:04`."""
NEVER = -1.0
"""An unknown time, or the time of an event that never came, as several simulators write it."""
UTC = "UTC"
_FILTER = "rows "
"""Prefix of the columns that select rows, beside the fields."""
EPOCH = 5e8
"""Numbers above this, in s, are taken as times since 1970 (1985-11-05)."""


@dataclass(frozen=True)
class Table:
    """The known columns of a table of jobs."""

    file: Input
    jobs: pd.DataFrame
    """As `Observed.jobs`."""
    held: pd.Series[str] | None
    """Intervals of node numbers that each job held."""
    columns: Columns
    found: Mapping[str, ColumnMatch]
    kept: IntArray
    """Row in the file of each row of `jobs`."""
    unix: bool
    """Whether submit, start and end are s since 1970."""
    time_zone: str | None = None
    """Time zone in which date-times without an offset were read; None if there are none."""
    assumed: bool = False
    """Whether the time zone was not given."""

    def place(self, row: int) -> str:
        """Return `file:line` of a row."""
        return self.columns.place(int(self.kept[row]))


def names_of(file: Input) -> list[str]:
    """Return the column names of a table in the spelling of the file."""
    if file.head.startswith(PARQUET):
        return list(file.columns)
    return [name.strip().strip('"') for name in file.header.split(delimiter_of(file.header))]


def read_table(path: Path, options: ReadOptions) -> Table:
    """Read a table of jobs.

    Args:
        path: a CSV file (separated by comma, semicolon, tab or bar; compressed or not) or a Parquet file.
        options: the columns, the unit of the times, and the time zone.

    Raises:
        InputError: the file is not a table, a column is missing, or a value is invalid.
    """
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
    """Return the numbers of the rows with the chosen values; all rows without a choice.

    Raises:
        InputError: a column has no such value.
    """
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
        """The numbers, in the unit of the file, shape (rows,); NaN where missing.

        Raises:
            InputError: a value is not a number.
        """
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
        """Return date-times, s since 1970 UTC, and whether they have an offset. Without one, they are in `zone` or UTC.

        In the hour that occurs twice, a time is one of the second hour, or of the `first`.

        Raises:
            InputError: a value is not a date-time, or the time zone is unknown.
        """
        column, zoned = cast(pa.chunked_array([pa.array(self.texts, pa.string())]), "time", self.file, self.name)
        seconds = column.to_numpy().astype(np.float64)
        return (seconds if zoned else utc(seconds, zone or UTC, first=first)), zoned


def _clock(text: str) -> float:
    """Return a duration such as `1-02:03:04` in s; NaN if the text is not one."""
    found = CLOCK.fullmatch(text)
    if not found:
        return float("nan")
    days, first, second, third = found.groups()
    hours, minutes, seconds = (0, first, second) if third is None else (first, second, third)
    return int(days or 0) * 86_400.0 + int(hours) * 3600.0 + int(minutes) * 60.0 + float(seconds)
