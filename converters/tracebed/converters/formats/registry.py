"""The formats that tracebed knows, and how the right one is found.

To add a format, write a module with `recognises`, `read` and, where it can hold a workload, `write`, and add
its line to `FORMATS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tracebed.converters.formats import csv, parquet, swf
from tracebed.converters.formats.files import Input, read_input, replacing
from tracebed.converters.workload import Workload
from tracebed.errors import InputError

HEAD_BYTES = 65_536
"""How much of a file is shown to `recognises`."""


class Format(NamedTuple):
    """One format: its name, the ends of its files' names, and its functions."""

    name: str
    suffixes: tuple[str, ...]
    recognises: Callable[[bytes], bool]
    """Whether the first `HEAD_BYTES` of a file (decompressed) look like this format."""
    read: Callable[..., Workload]
    """`read(file: Input, **options)`."""
    write: Callable[[Workload, BinaryIO], None] | None


FORMATS = (
    Format("parquet", (".parquet",), parquet.recognises, parquet.read, parquet.write),
    Format("csv", (".csv",), csv.recognises, csv.read, csv.write),
    Format("swf", (".swf",), swf.recognises, swf.read, swf.write),
)
NAMES = tuple(format.name for format in FORMATS)


def read(path: Path | str, format: str | None = None, **options: Any) -> Workload:
    """Read a workload; its format is known by its content, else by its name, unless `format` says it.

    A file that tracebed wrote brings its provenance with it and is read as the very same workload. Of any
    other file the provenance is the file itself (name, SHA-256) and a step `read` with what was tolerated.

    Args:
        path: the file, also compressed with gzip.
        format: one of `NAMES`.
        options: of the format's reader (`by="core"` of swf).

    Raises:
        InputError: no such file, a broken one, of no known format, without a job, or an option is not taken.
    """
    file = read_input(Path(path))
    chosen = _named(format) if format else _recognised(file, Path(path))
    taken = inspect.signature(chosen.read).parameters
    for option in options:
        if option not in taken:
            raise InputError(f"the format {chosen.name} takes no option {option!r}", where=file.where)
    workload = chosen.read(file, **options)
    if not len(workload):
        raise InputError("holds no job", where=file.where, mend="check that the file is complete")
    return workload


def write(workload: Workload, path: Path | str, format: str | None = None) -> None:
    """Write a workload in the format that the name of `path` asks for, or `format`; gzip if it ends in `.gz`.

    The file appears whole or not at all; what stood there before is lost only to a complete successor.

    Raises:
        InputError: the name asks for no format that can be written, or the place cannot be written to.
    """
    path = Path(path)
    chosen = _named(format) if format else _by_name(path)
    if chosen is None or chosen.write is None:
        writable = ", ".join(suffix for known in FORMATS if known.write for suffix in known.suffixes)
        raise InputError(
            "its name asks for no format that can be written", where=str(path), mend=f"end it in {writable}"
        )
    with replacing(path) as file:
        chosen.write(workload, file)


def _named(name: str) -> Format:
    for known in FORMATS:
        if known.name == name:
            return known
    raise InputError(f"no format {name!r}", mend=f"one of {', '.join(NAMES)}")


def _by_name(path: Path) -> Format | None:
    name = path.name.lower().removesuffix(".gz")
    return next((known for known in FORMATS if name.endswith(known.suffixes)), None)


def _recognised(file: Input, path: Path) -> Format:
    head = file.data[:HEAD_BYTES]
    by_content = next((known for known in FORMATS if known.recognises(head)), None)
    chosen = by_content or _by_name(path)
    if chosen is None:
        raise InputError(
            "neither its content nor its name tells its format",
            where=file.where,
            mend=f"say which it is: {', '.join(NAMES)}",
        )
    return chosen
