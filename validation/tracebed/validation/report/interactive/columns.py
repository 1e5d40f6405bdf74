"""Compact encoding of columns of integers in a page.

A column is stored as the differences between successive values, in zigzag order (0, -1, 1, -2, ...), as unsigned
32-bit integers: first the low bytes of all differences, then the second bytes, and so on. Most high bytes are 0, so
that Deflate (RFC 1951) stores a value in one to three bytes. A column may be relative to an earlier one: ends to
starts, predicted to real times. `columns.js` decodes the columns.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracebed.converters.workload import FloatArray

MISSING = -(2**31)
"""Value of a missing time."""


class PackedColumn(NamedTuple):
    """A column of 32-bit integers, shape (rows,)."""

    values: npt.NDArray[np.integer]
    base: str = ""
    """Earlier column to which the stored values are relative. A missing value of the base counts as 0."""
    rows: str = ""
    """Earlier column with the row of the base for each value; by default, the same row."""


def pack(facts: Mapping[str, Any], columns: Mapping[str, PackedColumn]) -> str:
    """Return facts and columns as one base64 text.

    The decompressed bytes are the length of the facts (4 bytes, little-endian), the facts as JSON, and the columns one
    after the other. The key `columns` of the facts lists name, length, base and rows of each column.
    """
    index = [[name, len(column.values), column.base, column.rows] for name, column in columns.items()]
    head = json.dumps({**facts, "columns": index}, separators=(",", ":"), sort_keys=True).encode()
    body = [len(head).to_bytes(4, "little"), head]
    for column in columns.values():
        values = column.values.astype(np.int32)
        if column.base:
            base = columns[column.base].values
            base = base[columns[column.rows].values] if column.rows else base
            values = np.where(values == MISSING, MISSING, values - np.where(base == MISSING, 0, base)).astype(np.int32)
        body.append(_encoded(values))
    return base64.b64encode(zlib.compress(b"".join(body))).decode()


def ticks(seconds: FloatArray, tick: float) -> npt.NDArray[np.int32]:
    """Return times (s) as integer multiples of `tick` (s); `MISSING` for a time that is not finite."""
    known = np.isfinite(seconds)
    return np.where(known, np.rint(np.where(known, seconds, 0.0) / tick), MISSING).astype(np.int32)


def _encoded(values: npt.NDArray[np.int32]) -> bytes:
    steps = np.diff(values, prepend=np.int32(0))  # modulo 2^32, as in the decoder
    zigzag = ((steps << 1) ^ (steps >> 31)).astype("<u4")
    return zigzag.view(np.uint8).reshape(-1, 4).T.tobytes()
