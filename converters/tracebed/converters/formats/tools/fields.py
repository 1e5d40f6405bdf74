"""Logs without a header (GWF, MWF), with fields identified by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracebed.converters.formats.tools.columns import relabel
from tracebed.converters.formats.tools.files import Input, bad_line, wrong_fields
from tracebed.converters.workload import MAX_EXACT, FloatArray
from tracebed.ground.errors import InputError

NONE = ("", "-1", "-1.0")
"""Spellings of a missing value."""
BLOCK = 50_000
"""Lines held as Python strings at a time; a million lines of 29 fields would take 2 GB."""


@dataclass
class Fields:
    """The fields of all lines as text, empty if missing."""

    names: Sequence[str]
    blocks: list[list[pa.Array]] = field(default_factory=list)
    """Blocks of up to `BLOCK` lines; each block has one array per field, in order."""
    lines: list[tuple[Input, int]] = field(default_factory=list)
    """File and line number of each row."""

    def __len__(self) -> int:
        return len(self.lines)

    def append(self, rows: list[list[str]]) -> None:
        """Append the fields of a block of lines."""
        columns = [pa.array(values, pa.string()) for values in zip_longest(*rows, fillvalue="")]
        nothing = pa.array([""] * len(rows), pa.string())
        self.blocks.append([*columns, *[nothing] * (len(self.names) - len(columns))])

    def known_texts(self, name: str) -> pa.ChunkedArray:
        """Return a field as text, null if unknown."""
        at = self.names.index(name)
        column = pa.chunked_array([block[at] for block in self.blocks])
        return pc.if_else(pc.is_in(column, pa.array(NONE)), pa.scalar(None, pa.string()), column)

    def texts(self, name: str) -> pd.Series[str]:
        """Return a field as text, empty if unknown."""
        return pd.Series(pc.fill_null(self.known_texts(name), "").to_pandas(), dtype="str")

    def labels(self, name: str) -> pd.Categorical:
        """Return a field as labels."""
        codes, names = pd.factorize(self.texts(name))
        return relabel(codes, names.tolist())

    def numbers(self, name: str) -> FloatArray:
        """Return a field as numbers, shape (rows,), NaN if unknown. Raises InputError if a value is invalid."""
        texts = self.known_texts(name)
        numbers: FloatArray
        try:
            numbers = texts.cast(pa.float64()).to_numpy().astype(np.float64, copy=False)
        except pa.ArrowInvalid:  # the check below names the invalid value
            numbers = np.asarray(pd.to_numeric(texts.to_pandas(), errors="coerce"), dtype=np.float64)
        bad = ~(np.abs(numbers) < MAX_EXACT) & texts.is_valid().to_numpy()
        if bad.any():
            row = int(np.argmax(bad))
            why = "too large" if np.isfinite(numbers[row]) else "not a number"
            what = f"field {self.names.index(name) + 1} ({name}) is {texts[row].as_py()[:40]!r}, {why}"
            raise bad_line(what, self.place(row))
        return numbers

    def known(self, name: str) -> FloatArray:
        """Return a field as numbers, shape (rows,), NaN if unknown or negative."""
        values = self.numbers(name)
        return np.where(values >= 0, values, np.nan)

    def place(self, row: int) -> str:
        """Return `file:line` of a row."""
        file, number = self.lines[row]
        return f"{file.where}:{number}"


def read_fields(
    files: Sequence[Input], names: Sequence[str], split: Callable[[str], list[str]], comments: str, fewest: int
) -> Fields:
    """Read all lines except comments. A line is `split` into at least `fewest` and at most all fields of `names`."""
    fields = Fields(names)
    rows: list[list[str]] = []
    for file in files:
        for number, line in file.lines():
            line = line.strip()
            if not line or line[0] in comments:
                continue
            row = split(line)
            if not fewest <= len(row) <= len(names):
                raise wrong_fields(len(row), fewest, f"{file.where}:{number}")
            rows.append(row)
            fields.lines.append((file, number))
            if len(rows) == BLOCK:
                fields.append(rows)
                rows = []
    if rows:
        fields.append(rows)
    if not len(fields):
        raise InputError("contains no jobs", where=files[0].where, hint="check that the file is complete")
    return fields


def first_line(file: Input, comments: bytes) -> str:
    """Return the first line in the head of a file that is neither empty nor a comment, or an empty string."""
    for line in file.head.splitlines():
        line = line.strip()
        if line and line[:1] not in comments:
            return line.decode("utf-8", "replace")
    return ""
