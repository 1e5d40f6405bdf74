"""Parsers for times such as `1-02:03:04` and sizes such as `16gb`, and for columns of them."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tracebed.converters.formats.tools.cast import NOTHING
from tracebed.converters.formats.tools.columns import Columns
from tracebed.converters.formats.tools.files import bad_line
from tracebed.converters.workload import FloatArray

POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
SPAN = re.compile(r"(?:(\d+)[-:](?=\d+:\d+:))?(?:(\d+):)?(\d+):(\d+(?:\.\d*)?)$")
AMOUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([kmgtpe]?)$", re.IGNORECASE)


def span(text: str) -> float | None:
    """Return `[D-]HH:MM:SS`, `D:HH:MM:SS`, `MM:SS.mmm` or plain seconds in s; None if the text is none of these."""
    if text.isdecimal() and text.isascii():
        return float(text)
    match = SPAN.match(text)
    if not match:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds


def amount(text: str) -> float | None:
    """Return a number with a suffix K, M, ... E (powers of 1024, for Slurm's numbers of nodes too); None: no amount."""
    match = AMOUNT.match(text)
    return float(match[1]) * 1024.0 ** POWERS[match[2].lower()] if match else None


def parsed(columns: Columns, name: str, read: Callable[[str], float | None], what: str) -> FloatArray:
    """Return labels as numbers, shape (records,), NaN if missing. Raises InputError for one that `read` rejects."""
    labels = columns.labels(name)
    values = np.full(len(labels.categories) + 1, np.nan)  # the last value belongs to code -1
    for code, label in enumerate(labels.categories):
        text = str(label).strip()
        if text in NOTHING:
            continue
        value = read(text)
        if value is None:
            row = int(np.argmax(labels.codes == code))
            raise bad_line(f"{name} {text[:40]!r} is not {what}", columns.place(row))
        values[code] = value
    result: FloatArray = values[labels.codes]
    return result


def first_positive(*choices: FloatArray) -> FloatArray:
    """Return for each record the first positive value of `choices`, each of shape (records,); NaN if there is none."""
    result = np.full(len(choices[0]), np.nan)
    for values in reversed(choices):
        result = np.where(values > 0, values, result)
    return result
