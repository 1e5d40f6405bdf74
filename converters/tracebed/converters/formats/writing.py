"""Functions that write a workload as a file or folder in any format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.registry import by_name, check_options, known, named
from tracebed.converters.workload import Workload
from tracebed.errors import InputError
from tracebed.files import replacing, replacing_folder


def write_workload(workload: Workload, path: Path | str, format: str | None = None, **options: Any) -> None:
    """Write a workload in `format`, or in the format given by the name of `path`; compressed if it ends in `.gz`.

    The file (or folder, for a format with several files) is written atomically: an existing one is replaced only by a
    complete one.

    Raises:
        InputError: the name has no format that can be written, the path is not writable, or the writer does not
            accept an option.
    """
    path = Path(path)
    chosen, writer = writer_for(path, format)
    check_options(writer, options, f"writing {chosen.name}", str(path))
    if writer is chosen.write_folder:
        with replacing_folder(path, (chosen.written,)) as folder:
            writer(workload, folder, **options)
    else:
        with replacing(path) as file:
            writer(workload, file, **options)


def writer_for(path: Path, name: str | None = None) -> tuple[Format, Callable[..., None]]:
    """Return the format that `write_workload` would use, and its writer, to check a path before reading a long log.

    Raises:
        InputError: the name has no format that can be written.
    """
    chosen = named(name) if name else by_name(path)
    writer = (chosen.write if path.suffix else None) or chosen.write_folder or chosen.write if chosen else None
    if chosen is None or writer is None:
        writable = ", ".join(suffix for format in known() if format.write for suffix in format.suffixes)
        others = ", ".join(format.name for format in known() if format.write_folder)
        hint = f"use a name ending in {writable}" + (f", or --to with one of {others}" if others else "")
        raise InputError("the name has no known output format", where=str(path), hint=hint)
    return chosen, writer
