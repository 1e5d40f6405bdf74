"""Exporters: a registry, fed by entry points of the group `tracebed.exporters`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tracebed.errors import InputError
from tracebed.files import replacing
from tracebed.orchestrator.run import Run
from tracebed.registry import Registry


@dataclass(frozen=True)
class Exporter:
    """A format to which runs are exported. A package adds a format by an entry point that names such an object."""

    summary: str
    """What the format is for, in a line."""
    write: Callable[[Run, BinaryIO], list[str]]
    """Write the run to an open file, and return what the file lacks, a sentence each."""


EXPORTERS: Registry[Exporter] = Registry("tracebed.exporters", "export format")


def export(run: Run, to: str, path: Path | str) -> list[str]:
    """Write a run to a file in the format of another program; compressed if the name ends in `.gz` or `.zst`.

    Args:
        run: the run.
        to: name of the format: perfetto, evalys, swf, csv, or one of an installed package.
        path: the file. A file of this name is replaced once the new one is complete.

    Returns:
        What the file lacks, a sentence each.

    Raises:
        InputError: the format is unknown, or the file cannot be written.
    """
    exporter = EXPORTERS.load(to)
    if not isinstance(exporter, Exporter):
        what = f"is not an exporter: {type(exporter).__name__}"
        raise InputError(what, where=EXPORTERS.entries[to].value, hint="the entry point names an Exporter")
    with replacing(Path(path)) as file:
        return exporter.write(run, file)
