"""Logs of lines without a header (GWF, MWF): a field is known by its place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracebed.converters.formats.files import Input
from tracebed.converters.workload import FloatArray
from tracebed.errors import InputError

NONE = ("", "-1", "-1.0")
"""How these logs write that they do not know."""


@dataclass(frozen=True)
class Fields:
    """The fields of all lines, as text."""

    names: Sequence[str]
    rows: list[list[str]]
    lines: list[tuple[Input, int]]
    """File and line of each row."""

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self, name: str) -> pd.Series[str]:
        """Return a field as text, empty where it is not known."""
        at = self.names.index(name)
        values = [row[at] if at < len(row) else "" for row in self.rows]
        return pd.Series(["" if value in NONE else value for value in values], dtype="str")

    def labels(self, name: str) -> pd.Categorical:
        """Return a field as labels."""
        labels: pd.Categorical = pd.Categorical(self.texts(name).astype(object))
        return labels

    def numbers(self, name: str) -> FloatArray:
        """Return a field as numbers, NaN where it is not known; raise InputError at what is none."""
        texts = self.texts(name)
        result = np.full(len(texts), np.nan)
        for row, text in enumerate(texts):
            if text:
                with contextlib.suppress(ValueError):  # told below, like nan and inf
                    result[row] = float(text)
                if not np.isfinite(result[row]):
                    raise InputError(
                        f"field {self.names.index(name) + 1} ({name}) is {text[:40]!r}, not a number",
                        where=self.place(row),
                        mend="mend or remove the line",
                    )
        return result

    def known(self, name: str) -> FloatArray:
        """Return a field of amounts as numbers, NaN where it is negative too."""
        values = self.numbers(name)
        return np.where(values >= 0, values, np.nan)

    def place(self, row: int) -> str:
        """Return `file:line` of a row."""
        file, number = self.lines[row]
        return f"{file.where}:{number}"


def read_fields(
    files: Sequence[Input], names: Sequence[str], split: Callable[[str], list[str]], comments: str, fewest: int
) -> Fields:
    """Read all lines of all files.

    Args:
        files: the files.
        names: what the fields are called, in order.
        split: from a line to its fields.
        comments: what comment lines begin with, each a character.
        fewest: fields that a line must have.

    Raises:
        InputError: a line has too few fields, or more than there are names; there is no line at all.
    """
    rows: list[list[str]] = []
    lines: list[tuple[Input, int]] = []
    for file in files:
        for number, line in file.lines():
            line = line.strip()
            if line and line[0] not in comments:
                row = split(line)
                if not fewest <= len(row) <= len(names):
                    raise InputError(
                        f"{len(row)} fields, a job has {fewest}",
                        where=f"{file.where}:{number}",
                        mend="complete or remove the line, or name the format with --from",
                    )
                rows.append(row)
                lines.append((file, number))
    if not rows:
        raise InputError("holds no job", where=files[0].where, mend="check that the file is complete")
    return Fields(names, rows, lines)


def first_line(file: Input, comments: bytes) -> str:
    """Return the first line of a file that is neither empty nor a comment; empty if its head has none."""
    for line in file.head.splitlines():
        line = line.strip()
        if line and line[:1] not in comments:
            return line.decode("utf-8", "replace")
    return ""
