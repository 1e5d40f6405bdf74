"""The job lines of a file in Standard Workload Format as a table of fields."""

from __future__ import annotations

import csv
import io
import re
import warnings
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import MAX_EXACT
from tracebed.ground.errors import InputError

FIELDS = (
    *("job", "submit", "wait", "run", "allocated", "cpu_time", "used_memory", "requested", "limit"),
    *("requested_memory", "status", "user", "group", "executable", "queue", "partition"),
    *("preceding", "think"),
)
NAMES = ("user", "group", "executable", "queue", "partition")
"""Fields that are numbers in the standard but words in some logs."""
NUMBERS = tuple(name for name in FIELDS if name not in NAMES)
PARTIAL = (2, 3, 4)
BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")


class FieldLines(NamedTuple):
    """The job lines of a file, one row per line with columns `FIELDS`, and counts of tolerated defects.

    If lines have more than 18 fields, the column `more` has the further fields.
    """

    fields: pd.DataFrame
    numbers: np.ndarray[Any, Any] | None = None
    """Line number of each row in the file, shape (rows,)."""
    comments: list[tuple[int, str]] = []  # noqa: RUF012 - never modified
    counts: dict[str, int] = {}  # noqa: RUF012 - never modified


def read_lines(file: Input) -> FieldLines:
    """Read the job lines in one pass if they follow the standard, otherwise line by line."""
    data = file.text
    comments: list[tuple[int, str]] = []
    position, above = 0, 0
    while data[position : position + 1] in (b";", b"\n", b"\r"):
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        above += 1
        if data[position : position + 1] == b";":
            comments.append((above, data[position + 1 : end].decode("utf-8", "replace").rstrip("\r")))
        position = end + 1
    fields = None if BLANK_LINE.search(data, position) else _read_at_once(data, position)
    if fields is not None:
        line_numbers = np.arange(len(fields)) + above + 1
        return FieldLines(fields, line_numbers, comments, {"comment lines not in ASCII": _not_ascii(comments)})
    return _read_one_by_one(file)


def _read_at_once(data: bytes, position: int) -> pd.DataFrame | None:
    """Return the fields if every line from `position` on has 18 and all numbers are integers; otherwise None."""
    body = io.BytesIO(data)
    body.seek(position)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pd.errors.ParserWarning)
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)
        try:
            fields = pd.read_csv(
                body,
                sep=r"\s+",
                header=None,
                names=[*FIELDS, "more"],
                index_col=False,
                na_filter=False,
                skip_blank_lines=False,
                quoting=csv.QUOTE_NONE,
            )
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError):
            return None
    more = fields.pop("more")
    for name in NAMES:
        if fields[name].dtype.kind == "O":  # words, or numbers too large for int64
            fields[name] = fields[name].astype("str")
    regular = len(fields) > 0 and more.dtype.kind not in "biuf" and bool((more == "").all())
    regular = regular and all(fields[name].dtype == np.int64 for name in NUMBERS)
    return fields if regular and all(fields[name].dtype.kind in "iOT" for name in NAMES) else None


def _read_one_by_one(file: Input) -> FieldLines:
    """Read line by line; raise InputError at the first line that is not a job."""
    comments: list[tuple[int, str]] = []
    rows: list[list[str]] = []
    more: list[str] = []
    numbers: list[int] = []
    short = semicolons = 0
    for number, line in file.lines():
        line = line.strip()
        if line.startswith(";"):
            comments.append((number, line[1:]))
        elif line:
            tokens = line.split()
            if any(";" in token for token in tokens[:17]):
                tokens = [token.strip() or "-1" for token in line.removesuffix(";").split(";")]
                semicolons += 1
            comment = next((i for i, token in enumerate(tokens) if token.startswith(";")), len(tokens))
            tokens = tokens[:comment]
            if len(tokens) < 17:
                raise InputError(
                    f"line has {len(tokens)} fields instead of 18",
                    where=f"{file.where}:{number}",
                    hint="complete or remove the line, or name the format: convert --from FORMAT",
                )
            short += len(tokens) == 17
            more.append(" ".join(tokens[18:]))
            rows.append(tokens[:18] if len(tokens) > 17 else [*tokens, "-1"])
            numbers.append(number)
    columns = {name: [row[index] for row in rows] for index, name in enumerate(FIELDS)}
    fields = pd.DataFrame(
        {name: pd.Series(columns[name], dtype="str") for name in NAMES}
        | {name: _numbers(columns[name], name, numbers, file.where) for name in NUMBERS}
    )
    if any(more):
        fields["more"] = pd.Series(more, dtype="str")
    counts = {
        "comment lines not in ASCII": _not_ascii(comments),
        "lines with semicolons between the fields": semicolons,
        "lines with 17 fields, field 18 set to -1": short,
    }
    return FieldLines(fields, np.array(numbers, dtype=np.int64), comments, counts)


def _numbers(values: list[str], name: str, lines: list[int], where: str) -> np.ndarray[Any, Any]:
    """Return a field of all lines as int64 if every value is whole, otherwise as float64."""
    plain = all(value.isascii() and "_" not in value for value in values)  # Python reads 1_0 as 10
    try:
        if plain:
            return np.array([int(value) for value in values], dtype=np.int64)
    except (ValueError, OverflowError):
        pass  # some values are not integers
    result = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            result[row] = float(value) if value.isascii() and "_" not in value else np.nan
        except ValueError:
            result[row] = np.nan
        if not np.isfinite(result[row]):
            raise InputError(
                f"field {FIELDS.index(name) + 1} ({name}) is {value[:40]!r}, not a number",
                where=f"{where}:{lines[row]}",
                hint="correct or remove the line",
            )
    whole = (result == np.floor(result)) & (np.abs(result) < MAX_EXACT)
    return result.astype(np.int64) if whole.all() else result


def _not_ascii(comments: list[tuple[int, str]]) -> int:
    return sum(not text.isascii() for _, text in comments)


def refuse_unreadable(lines: FieldLines, where: str) -> None:
    """Raise InputError if a job has an invalid number, submit time or status, or if two jobs have the same number."""
    assert lines.numbers is not None
    f = {name: lines.fields[name].to_numpy() for name in NUMBERS}
    vast = {name: (f[name].dtype.kind == "f") & (np.abs(f[name]) >= MAX_EXACT) for name in NUMBERS}
    broken = {name: vast[name] | (f[name] != np.floor(f[name])) for name in ("job", "status", "preceding")}
    for name, what, bad in (
        ("job", "invalid job number", broken["job"] | (f["job"] < 0)),
        ("submit", "missing submit time", f["submit"] < 0),
        ("status", "invalid status code", broken["status"]),
        ("preceding", "invalid job number", broken["preceding"]),
        ("requested", "invalid number of processors", vast["requested"]),
        ("allocated", "invalid number of processors", vast["allocated"]),
    ):
        if bad.any():
            raise InputError(
                f"{what}: field {FIELDS.index(name) + 1} is {f[name][bad][0]}",
                where=f"{where}:{lines.numbers[bad][0]}",
                hint="correct or remove the line",
            )

    jobs = lines.fields["job"][~is_superfluous(lines.fields)]
    if not jobs.is_unique:
        row = jobs.index[jobs.duplicated()][0]
        what = f"second job with number {jobs[row]}"
        raise InputError(what, where=f"{where}:{lines.numbers[row]}", hint="renumber or remove the line")


def is_superfluous(fields: pd.DataFrame) -> pd.Series[bool]:
    """Return the mask of lines that are parts of a checkpointed job with a line for the whole job."""
    partial = fields["status"].isin(PARTIAL)
    return partial & fields["job"].isin(fields["job"][~partial])
