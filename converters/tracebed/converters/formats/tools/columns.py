"""Columns of tabular logs (CSV, Parquet), found by name, in one or several files.

A reader lists the columns that it needs, each with all its possible names and its kind:

    number  float64; NaN if missing
    time    float64, s since 1970 (see `Columns.instants` for times without a time zone)
    label   a Categorical of texts that repeat (users, partitions); empty if missing
    text    texts that do not repeat (job ids); empty if missing
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tracebed.converters.formats.tools.cast import NOTHING, abbreviated, cast, place_in, plain
from tracebed.converters.formats.tools.files import MAX_LINE, PARQUET, Input, delimiter_of
from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.ground.errors import InputError
from tracebed.ground.parquet_file import read_table, refusing
from tracebed.ground.registry import unknown

if TYPE_CHECKING:
    import pandas as pd


def one_machine(labels: pd.Categorical, chosen: str | None, where: str) -> tuple[str, BoolArray]:
    """Return the name of the machine (empty if unknown) and the mask of its records, shape (records,).

    `chosen` is case-insensitive. Raises InputError if the log has several machines and `chosen` is None, or if it has
    not the chosen one.
    """
    counts = np.bincount(labels.codes[labels.codes >= 0], minlength=len(labels.categories))
    present = {str(name): code for code, name in enumerate(labels.categories) if name and counts[code]}
    if chosen is not None and not present:
        raise InputError("the records name no machine", where=where, hint="leave out the name of the machine")
    if chosen is not None:
        name = next((name for name in present if name.lower() == chosen.strip().lower()), None)
        if name is None:
            error = unknown("machine", chosen, list(present))
            raise InputError(error.what, where=where, hint=error.hint)
        return name, np.asarray(labels.codes == present[name], dtype=bool)
    if len(present) > 1:
        what = f"contains jobs of {len(present)} machines: {', '.join(name[:40] for name in [*present][:10])}"
        raise InputError(what, where=where, hint="choose one: convert --machine NAME")
    return next(iter(present), ""), np.ones(len(labels), dtype=bool)


PARQUET_HINT = "download it again"

ASSUMED_UTC = "records with times without a time zone, taken as UTC (convert --time-zone ZONE sets the zone)"
CSV_TYPES = {
    "number": pa.float64(),
    "time": pa.timestamp("us"),
    "label": pa.dictionary(pa.int32(), pa.string()),
    "text": pa.string(),
}


class ColumnSpec(NamedTuple):
    """A column to read: its kind, its possible names in lower case (preferred first), whether it is required."""

    kind: str
    names: tuple[str, ...]
    needed: bool = False


def column_spec(kind: str, *names: str, needed: bool = False) -> ColumnSpec:
    """Return a `ColumnSpec`."""
    return ColumnSpec(kind, names, needed)


@dataclass
class Columns:
    """The columns read, each of shape (records,)."""

    files: Sequence[Input]
    rows: list[int]
    """Number of records in each file."""
    values: dict[str, Any]
    extras: dict[str, pd.Series[Any]] = field(default_factory=dict)
    absolute: Sequence[set[str]] = ()
    """For each file, the time columns that hold instants, not local wall-clock times."""
    unread: tuple[str, ...] = ()
    """Columns of the files that are left out."""

    def __len__(self) -> int:
        return sum(self.rows)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def numbers(self, name: str) -> FloatArray:
        """Return a column of numbers, shape (records,); all NaN if no file has the column."""
        values: FloatArray = self.values[name] if name in self.values else np.full(len(self), np.nan)
        return values

    def labels(self, name: str) -> Any:
        """Return a column of labels, shape (records,); all empty if no file has the column."""
        return self.values[name] if name in self.values else relabel(np.full(len(self), -1), [])

    def instants(self, name: str, zone: str, *, first: bool = False) -> FloatArray:
        """Return times in s since 1970 UTC, shape (records,). Times without a time zone are in `zone`.

        Times in the hour that occurs twice when daylight saving time ends are taken as the second hour, in standard
        time, or as the `first`. `in_order` chooses between both.
        """
        ends = np.cumsum(self.rows)[:-1]
        pieces = np.split(self.numbers(name), ends)
        files = zip(pieces, self.absolute, strict=True)
        return np.concatenate([piece if name in zoned else utc(piece, zone, first) for piece, zoned in files])

    def local(self, name: str) -> int:
        """Return the number of records whose time has no time zone, in a column of times."""
        counts = zip(self.rows, self.absolute, strict=True)
        return sum(rows for rows, zoned in counts if name in self.values and name not in zoned)

    def place(self, row: int) -> str:
        """Return `file:line` of a record (`file, row N` for Parquet)."""
        for file, count in zip(self.files, self.rows, strict=True):
            if row < count:
                return place_in(file, row)
            row -= count
        return str(self.files[-1].where)


def check_zone(zone: str) -> None:
    """Raise InputError if a time zone is unknown."""
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        raise InputError(f"unknown time zone {zone!r}", hint="use a name such as America/Denver") from None


def utc(seconds: FloatArray, zone: str, first: bool = False) -> FloatArray:
    """Convert wall-clock times, in s since 1970, to UTC; in an hour that occurs twice, to the second or the `first`."""
    import pandas as pd

    check_zone(zone)
    if zone == "UTC" or not len(seconds):
        return seconds
    known = np.isfinite(seconds)
    filled = np.where(known, seconds, 0.0)
    micro = (filled * 1e6).round().astype("int64").astype("datetime64[us]")
    twice = np.full(len(micro), first)
    clock = pd.DatetimeIndex(micro).tz_localize(zone, ambiguous=twice, nonexistent="shift_forward")
    offset = (micro - clock.tz_convert("UTC").tz_localize(None).to_numpy()).astype("timedelta64[us]").astype(np.float64)
    return np.where(known, filled - offset / 1e6, np.nan)


def read_columns(
    files: Sequence[Input],
    wanted: Mapping[str, ColumnSpec],
    *,
    extras: bool = False,
    quoted: bool = True,
    skip: Sequence[str] = (),
) -> Columns:
    """Read the wanted columns (our name -> specification) of all CSV or Parquet files and concatenate the records.

    `extras` reads every other column except `skip`, whose spelling is that of the file; `quoted`: values may be in
    double quotes. Raises InputError if a needed column is missing, a line has too few values, or a value is not of its
    kind.
    """
    tables, absolute, unread = [], [], dict[str, None]()
    for file in files:
        spelt = _original_names(file)
        spellings = _names(file, spelt, wanted)
        others = [name for name in spelt if name not in spellings.values() and name not in skip]
        unread.update(dict.fromkeys(others if not extras else []))
        table, zoned = _read(file, wanted, spellings, others if extras else [], quoted)
        absolute.append(zoned)
        tables.append(table)
    rows = [len(table) for table in tables]
    whole = tables[0] if len(tables) == 1 else _concatenated(tables)
    del tables, table
    values: dict[str, Any] = {}
    more: dict[str, pd.Series[Any]] = {}
    for name in whole.column_names:
        column = whole.column(name)
        whole = whole.drop_columns([name])
        if name in wanted:
            values[name] = _as_array(column, wanted[name].kind)
        else:
            more[name] = column.to_pandas()
    pa.default_memory_pool().release_unused()
    return Columns(files, rows, values, more, absolute, tuple(unread))


def _original_names(file: Input) -> list[str]:
    """Return the names of a file's columns in the spelling of the file."""
    if file.head.startswith(PARQUET):
        with refusing(file.where, PARQUET_HINT):
            return list(pq.read_schema(file.seekable()).names)
    return [name.strip().strip('"') for name in file.header.split(delimiter_of(file.header))]


def _names(file: Input, spelt: Sequence[str], wanted: Mapping[str, ColumnSpec]) -> dict[str, str]:
    """Return our name -> the file's name, one of `spelt`, for each wanted column that the file has."""
    by_lower = {name.lower(): name for name in reversed(spelt)}
    spellings = {}
    for ours, (_, names, needed) in wanted.items():
        theirs = next((by_lower[name] for name in names if name in by_lower), None)
        if theirs is not None:
            if [name.lower() for name in spelt].count(theirs.lower()) > 1:
                twice = f"column {theirs!r} occurs twice"
                raise InputError(twice, where=f"{file.where}:1", hint="remove or rename one of them")
            spellings[ours] = theirs
        elif needed:
            shown = ", ".join(repr(name[:20]) for name in spelt[:8])
            raise InputError(
                f"column {names[0]!r} is missing",
                where=f"{file.where}:1",
                hint=f"add it, or rename one of {shown}, ...",
            )
    return spellings


def _read(
    file: Input, wanted: Mapping[str, ColumnSpec], spellings: Mapping[str, str], others: Sequence[str], quoted: bool
) -> tuple[pa.Table, set[str]]:
    """Return the columns of one file, renamed and converted to their kinds, and the time columns that hold instants."""
    if file.head.startswith(PARQUET):
        names = list(dict.fromkeys([*spellings.values(), *others]))
        table = read_table(file.seekable(), where=file.where, hint=PARQUET_HINT, columns=names)
    else:
        kinds = {theirs: wanted[ours].kind for ours, theirs in spellings.items()}
        table = _read_csv(file, kinds, others, quoted)
    columns, absolute = {}, set()
    for ours, theirs in spellings.items():
        try:
            columns[ours], instant = cast(table.column(theirs), wanted[ours].kind, file, theirs)
        except pa.ArrowException:  # of a column of lists, of bytes, ...
            type = str(table.column(theirs).type)[:40]
            what = f"{theirs[:40]} has the type {type}, not that of a {wanted[ours].kind}"
            raise InputError(what, where=file.where, hint="correct the file") from None
        if instant:
            absolute.add(ours)
    for name in others:
        columns[f"extra_{name}"] = plain(table.column(name))
    return pa.table(columns), absolute


def _read_csv(file: Input, kinds: Mapping[str, str], others: Sequence[str], quoted: bool) -> pa.Table:
    """Read a CSV file with its column types; if that fails, read all values as texts to find the invalid one."""
    parse = {"delimiter": delimiter_of(file.header), "quote_char": '"' if quoted else False}
    names = list(dict.fromkeys([*kinds, *others]))

    def attempt(types: Mapping[str, pa.DataType], encoding: str, careful: bool) -> pa.Table:
        with file.open() as stream:
            return pyarrow.csv.read_csv(
                stream,
                pyarrow.csv.ReadOptions(
                    use_threads=not careful, block_size=MAX_LINE if careful else 2**22, encoding=encoding
                ),
                pyarrow.csv.ParseOptions(newlines_in_values=careful and quoted, **parse),
                pyarrow.csv.ConvertOptions(
                    include_columns=names, column_types=types, null_values=NOTHING, strings_can_be_null=True
                ),
            )

    try:
        return attempt({name: CSV_TYPES[kind] for name, kind in kinds.items()}, "utf8", careful=False)
    except (pa.ArrowException, UnicodeDecodeError):
        texts = {name: pa.string() for name in names}
        try:
            return attempt(texts, "utf8", careful=True)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            if "UTF8" not in str(error) and not isinstance(error, UnicodeDecodeError):
                raise unreadable(error, file) from None
        try:
            return attempt(texts, "latin1", careful=True)
        except pa.ArrowException as error:
            raise unreadable(error, file) from None


ARROW_KINDS = {"double": "a number", "int64": "a whole number", "bool": "true or false"}


def unreadable(
    error: Exception, file: Input, names: Sequence[str] = (), place: Callable[[int], str] | None = None
) -> InputError:
    """Return an error of Arrow about a CSV file as an InputError that names the line, and the column by `names`."""
    text = str(error).splitlines()[0][:400]
    number = re.search(r"Row #(\d+)", text)
    where = file.where
    if number:
        where = place(int(number[1])) if place else place_in(file, int(number[1]) - 2)
    hint = "correct or remove the line"
    if "Empty CSV" in text:
        what, hint = "contains no jobs", "check that the file is complete"
    elif fields := re.search(r"Expected (\d+) columns, got (\d+): ?(.*)", text):
        what, hint = f"{fields[2]} values, but the header has {fields[1]} columns", "complete or remove the line"
        if int(fields[2]) < int(fields[1]) and fields[3].count('"') % 2 and not fields[3].endswith("..."):
            what, hint = "a quoted value is not closed", "close the quote, or complete the line"
    elif value := re.search(r"column #(\d+):.*conversion error to (\w+): invalid value '(.*)'", text):
        name = names[int(value[1])] if int(value[1]) < len(names) else f"column {int(value[1]) + 1}"
        what = f"{name[:40]} {abbreviated(value[3])} is not {ARROW_KINDS.get(value[2], value[2])}"
    elif "UTF8" in text:
        what, hint = "the file is not UTF-8", "convert it: iconv -f LATIN1 -t UTF-8"
    elif "straddl" in text:
        for _ in file.lines():  # raises InputError if a line is too long
            pass
        what, hint = "a quoted value is not closed", "close the quote, or complete the line"
    else:
        what, hint = f"not a readable table: {text[:200]}", "check that the file is in this format"
    return InputError(what, where=where, hint=hint)


def _concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables; columns that a table lacks are null in its rows."""
    types: dict[str, pa.DataType] = {}
    for table in tables:
        for column in table.schema:
            if types.setdefault(column.name, column.type) != column.type:
                types[column.name] = pa.string()
    whole = []
    for table in tables:
        columns = {
            name: table.column(name).cast(type) if name in table.column_names else pa.nulls(len(table), type)
            for name, type in types.items()
        }
        whole.append(pa.table(columns))
    return pa.concat_tables(whole)


def _as_array(column: pa.ChunkedArray, kind: str) -> Any:
    if kind == "label":
        column = column.unify_dictionaries()
        pieces = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in column.chunks]
        codes = np.concatenate(pieces) if pieces else np.zeros(0, np.int32)
        names = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
        return relabel(codes, [name or "" for name in names])
    if kind == "text":
        import pandas as pd

        return pd.Series(column.to_pandas(), dtype="str")
    return column.to_numpy().astype(np.float64, copy=False)


def relabel(codes: npt.NDArray[np.integer[Any]], names: Sequence[str]) -> pd.Categorical:
    """Return the labels `names[code]`, shape (records,); code -1 gives the empty label. Names may repeat."""
    import pandas as pd

    names = [str(name) for name in names]  # enum members become plain strings
    places = {name: index for index, name in enumerate(dict.fromkeys([*names, ""]))}
    renumbered = np.array([*(places[name] for name in names), places[""]], dtype=np.int32)
    dtype = pd.CategoricalDtype(pd.Index(list(places), dtype="str"))
    labels: pd.Categorical = pd.Categorical.from_codes(renumbered[codes], dtype=dtype)
    return labels


WHICH_HOUR = "records with a time in the hour that occurs twice at the end of daylight saving time, taken as the second"
"""The defect of records for which the other times and the elapsed time do not tell which hour it was."""
ROUNDING_S = 1.5
"""Largest difference of `end - start` and the elapsed time that agree: each is a whole number of seconds."""


def in_order(
    c: Columns, names: Sequence[str], zone: str, elapsed: FloatArray | None = None
) -> tuple[dict[str, FloatArray], BoolArray]:
    """Return times in s since 1970 UTC, and the records that leave open which of two hours a time was in.

    The hours are chosen such that the times, in the order of `names`, are in order and the last two are `elapsed` s
    apart (more, if the job was suspended). Of hours that are equally likely, the second one counts, in standard time.
    """
    times = {name: c.instants(name, zone) for name in names}
    return times, settle(times, {name: c.instants(name, zone, first=True) for name in names}, elapsed)


def settle(
    times: Mapping[str, FloatArray], first: Mapping[str, FloatArray], elapsed: FloatArray | None = None
) -> BoolArray:
    """Choose the second (`times`) or the `first` hours in place, as `in_order` does, and return the unclear records."""
    names = list(times)
    twice = np.logical_or.reduce([first[name] < times[name] for name in names])
    unclear = np.zeros(len(twice), dtype=bool)
    for row in np.flatnonzero(twice).tolist():
        hours = [(times[name][row], first[name][row]) for name in names]
        ways = list(product(*(pair if pair[1] < pair[0] else pair[:1] for pair in hours)))
        span = np.nan if elapsed is None else float(elapsed[row])
        scores = [_score(way, span) for way in ways]
        best = min(scores)
        unclear[row] = scores.count(best) > 1
        for name, time in zip(names, ways[scores.index(best)], strict=True):
            times[name][row] = time
    return unclear


def _score(times: Sequence[float], elapsed: float) -> tuple[int, int]:
    """Return how many times precede the one before, and how badly the elapsed time fits; low is likely."""
    known = [time for time in times if time == time]
    disorder = sum(later < earlier for earlier, later in pairwise(known))
    rest = times[-1] - times[-2] - elapsed
    return disorder, 0 if rest != rest or abs(rest) <= ROUNDING_S else 1 if rest > 0 else 2
