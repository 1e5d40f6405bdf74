"""Parquet files that a user names: the size of the decoded table is checked before it fills the memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracebed.ground.errors import InputError
from tracebed.ground.input_files import open_file
from tracebed.ground.table import BLOCK, PACKED_FROM, Packed, Table, call, cast, numbers, packed_arrow, release_memory

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

FREE_BYTES = 2**28
"""Size of a decoded table that is always accepted."""
MANY_BYTES = 2**20
"""Size of a file from which on several threads decode it."""
GIVEN_UP = 2**19
"""Size of a dictionary, bytes, from which on the writer of a file has probably given it up for its other texts."""
MAX_RATIO = 200
"""Largest accepted ratio of the decoded table to the file. A table of a million jobs, most columns constant, has 60."""


def read_frame(path: Path, *, hint: str) -> pd.DataFrame:
    """Return the table in a file as a pandas frame, without regard to metadata of pandas; errors as of `read`."""
    content = read(path, hint=hint)
    if isinstance(content, Table):
        return content.frame()
    with refusing(str(path), hint):
        table: pd.DataFrame = content.to_pandas(ignore_metadata=True, use_threads=content.nbytes > MANY_BYTES)
        return table
    raise AssertionError("unreachable")


def read(path: Path, *, hint: str) -> pa.Table | Table:
    """Return the table in a file, as `read_packed`. Raises InputError if it cannot be read, or as `read_table`."""
    with open_file(path, hint=hint) as file:
        if not file.seekable():
            raise InputError("is a pipe: Parquet needs a file", where=str(path), hint=hint)
    with refusing(str(path), hint), pa.OSFile(os.fsencode(path)) as source:
        return read_packed(source, where=str(path), hint=hint)
    raise AssertionError("unreachable")


def read_packed(source: pa.NativeFile, *, where: str, hint: str) -> pa.Table | Table:
    """Return the table in `source`; a large one packed, with columns of other types as arrays of Arrow.

    Errors as of `read_table`.
    """
    with refusing(where, hint):
        file = pq.ParquetFile(source)
        names = file.schema_arrow.names
        if file.metadata.num_rows < PACKED_FROM or len({*names}) < len(names):
            return _plain(_read(file, source, where))
        texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        columns = {}
        for name in names:  # one after the other: the whole table may take several times the memory
            whole = _read(file, source, where, [name], [name] if name in texts else []).column(0)
            columns[name] = packed_arrow(whole)
            del whole
            release_memory()
        return Table(columns)
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class Stored:
    """Numbers in a Parquet file, which are read each time that they are used, one row group after the other."""

    file: pq.ParquetFile
    name: str
    dtype: np.dtype[Any]
    first: int
    last: int
    """The rows in the file: from `first` until before `last`."""

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return self.dtype.itemsize

    def __getitem__(self, rows: Any) -> Any:
        """Return consecutive rows, which are read later; or an array of some rows: their numbers, or a mask."""
        if isinstance(rows, slice):
            first, last, _ = rows.indices(len(self))
            return replace(self, first=self.first + first, last=self.first + max(first, last))
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        if (rows[1:] < rows[:-1]).any():
            return self.astype(self.dtype)[rows]
        bounds = np.arange(self.file.num_row_groups + 1) * BLOCK
        ends = pairwise(np.searchsorted(rows, bounds - self.first).tolist())
        parts = [self._group(at)[rows[a:b] + self.first - bounds[at]] for at, (a, b) in enumerate(ends) if a < b]
        return np.concatenate([np.empty(0, self.dtype), *parts])

    def astype(self, dtype: Any) -> npt.NDArray[Any]:
        """Return the numbers as an array of the type `dtype`."""
        values = np.empty(len(self), dtype)
        for at in range(self.first // BLOCK, -(-self.last // BLOCK)):
            group, begin = self._group(at), at * BLOCK
            low, high = max(self.first, begin), min(self.last, begin + BLOCK)
            values[low - self.first : high - self.first] = group[low - begin : high - begin]
        return values

    def _group(self, at: int) -> npt.NDArray[Any]:
        return numbers(self.file.read_row_group(at, [self.name], use_threads=False).column(0))

    def __reduce__(self) -> Any:
        """Pickle the numbers: the file may be gone elsewhere."""
        return np.asarray, (self.astype(self.dtype),)


def in_file(table: Table, path: Path) -> Table:
    """Return a table, which was read from `path`, with its packed numbers as `Stored`, if its row groups are blocks."""
    file = pq.ParquetFile(pa.OSFile(os.fsencode(path)))
    sizes = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    if len(table) < PACKED_FROM or {*sizes[:-1]} - {BLOCK} or sizes[-1] > BLOCK:
        return table
    columns = {}
    for name in {*table} & {*file.schema_arrow.names}:
        values = table.kept(name)
        if isinstance(values, Packed) and values.words is None:
            numbers_of = Stored(file, name, np.dtype(values.dtype), 0, len(table))
            columns[name] = Packed(numbers_of, times=values.times)
    return table.assign(**columns)


def read_table(source: pa.NativeFile, *, where: str, hint: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return some or all columns of the table in `source`, validated: all texts are UTF-8.

    Raises InputError if the content is not Parquet or damaged, or the table is larger than `FREE_BYTES` and than
    `MAX_RATIO` times the file.
    """
    with refusing(where, hint):
        return _plain(_read(pq.ParquetFile(source), source, where, columns))
    raise AssertionError("unreachable")


def _plain(table: pa.Table) -> pa.Table:
    """Return a table with texts in place of dictionaries."""
    for at, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(at, field.name, cast(table.column(at), field.type.value_type))
    return table


def _read(
    file: pq.ParquetFile,
    source: pa.NativeFile,
    where: str,
    columns: Sequence[str] | None = None,
    encoded: Sequence[str] = (),
) -> pa.Table:
    """Return columns of `file`, which is in `source`. Of the texts, those in `encoded` or large ones are dictionaries.

    It is read without pyarrow.dataset, which takes 20 ms to import.
    """
    most = max(FREE_BYTES, MAX_RATIO * source.size())
    large, texts = _size(file.metadata, most)
    if large > most:
        raise _bomb(large, where)
    texts = [name for name in texts if columns is None or name in columns]
    texts = [name for name in texts if name in encoded or not _mostly_plain(source, name, most - large)]
    if names := [*dict.fromkeys([*texts, *encoded])]:
        table = pq.ParquetFile(source, read_dictionary=names).read(columns)
        for name in texts:
            large += _length(table.column(name))
            if large > most:
                raise _bomb(large, where)
    else:
        table = file.read(columns, use_threads=source.size() > MANY_BYTES)
    table.validate(full=True)  # invalid UTF-8 would fail later, at an unpredictable place
    return table


@contextmanager
def refusing(where: str, hint: str) -> Iterator[None]:
    """Raise InputError if the block fails on a broken Parquet file."""
    try:
        yield
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        raise InputError(f"not a readable Parquet file: {line}", where=where, hint=hint) from None


def _size(metadata: pq.FileMetaData, most: int) -> tuple[int, list[str]]:
    """Return the size of a table in bytes without repeated texts, and the columns whose repeated texts may be large.

    The metadata of single columns are not looked at: if they are damaged, pyarrow 26 ends the process.
    """
    columns = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    size = sum(max(0, group.total_byte_size) + 8 * max(0, group.num_rows) * len(columns) for group in groups)
    if not any(group.num_rows * group.total_byte_size > most for group in groups):
        return size, []
    return size, [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def _mostly_plain(source: pa.NativeFile, name: str, most: int) -> bool:
    """Return whether most texts of a column are not in its dictionaries, and `most` bytes hold those that are.

    A writer gives up a dictionary when it is large. To make one of all texts takes ten times as long as to read them.
    """
    file = pq.ParquetFile(source, read_dictionary=[name])
    given_up, size = True, 0
    for group in range(file.num_row_groups):
        for batch in file.iter_batches(1, [group], [name]):
            words = batch.column(0).dictionary
            given_up = given_up and words.nbytes >= GIVEN_UP
            size += file.metadata.row_group(group).num_rows * (call("max", call("binary_length", words)).as_py() or 0)
            break
    return given_up and size <= most


def _length(column: pa.ChunkedArray) -> int:
    """Return the total length in bytes of the texts of a column."""
    total = 0
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            lengths = cast(call("binary_length", chunk.dictionary), pa.int64())
            total += call("sum", call("take", lengths, chunk.indices)).as_py() or 0
    return total


def _bomb(size: int, where: str) -> InputError:
    what = f"its table has {size / 2**20:,.0f} MiB, more than {MAX_RATIO} times the file"
    return InputError(what, where=where, hint="is it the right file? Write it again without dictionary and compression")
