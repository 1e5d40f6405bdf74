"""Functions that write a workload as a file or folder in any format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracebed.converters.formats.format import Format, by_name, check_options, known, named
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import WORKLOAD, OutputKind


def write_workload(
    workload: Workload, path: Path | str, format: str | None = None, *, replace: bool = False, **options: Any
) -> Path:
    """Write a workload, whole or not at all, and return its path.

    Args:
        workload: the workload.
        path: the file, or the folder of a format that has several files. A name that ends in .gz is compressed.
        format: name of the format; by default the name of the file tells it.
        replace: whether a workload that tracebed wrote to `path` earlier is replaced.
        options: options of the writer, such as `whole_seconds=True` for SWF.

    Raises:
        InputError: the name tells no format that can be written, `path` exists and may not be replaced, it cannot be
            written, or the writer does not accept an option.

    Example:
        >>> import tracebed.api as tb
        >>> tb.write(tb.generate("cirne", jobs=30, nodes=16), "w.parquet").name
        'w.parquet'
    """
    path = Path(path)
    chosen, writer = writer_for(path, format)
    check_options(writer, options, f"writing {chosen.name}", str(path))
    if writer is chosen.write_folder:
        kind = folder_kind(chosen)
        with kind.folder(path, kind.parts, replace=replace) as folder:
            writer(workload, folder, **options)
    else:
        with WORKLOAD.file(path, replace=replace) as file:
            writer(workload, file, **options)
    return path


def check_output(path: Path, format: str | None = None, *, replace: bool = False) -> None:
    """Check that `write_workload` can write to `path`, before a long log is read.

    Raises:
        InputError: as `write_workload`, except that the options of the writer are not checked.
    """
    chosen, writer = writer_for(path, format)
    (folder_kind(chosen) if writer is chosen.write_folder else WORKLOAD).check(path, replace=replace)


def folder_kind(format: Format) -> OutputKind:
    """Return the kind of the folders that `format` writes."""
    return OutputKind(f"a workload for {format.name}", WORKLOAD.mark + rb"|\Aid,job_id\b", parts=(format.written,))


def writer_for(path: Path, name: str | None = None) -> tuple[Format, Callable[..., None]]:
    """Return the format that `write_workload` would use, and its writer. Raises InputError if it cannot be written."""
    chosen = named(name) if name else by_name(path)
    writer = (chosen.write if path.suffix else None) or chosen.write_folder or chosen.write if chosen else None
    if chosen is None or writer is None:
        writable = ", ".join(suffix for format in known() if format.write for suffix in format.suffixes)
        others = ", ".join(format.name for format in known() if format.write_folder)
        hint = f"use a name ending in {writable}" + (f", or convert --to {others}" if others else "")
        raise InputError("the name has no known output format", where=str(path), hint=hint)
    return chosen, writer
