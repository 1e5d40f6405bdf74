"""The `Format` class: the name of a format, its marks, and its functions for reading and writing."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.log import Log
from tracebed.converters.workload import Workload


class Marks(enum.IntEnum):
    """Reliability of the marks that identify a format; formats with more reliable marks are tried first."""

    OWN_NAMES = 1
    """Column names or keys that no other format has."""
    COMMON_NAMES = 2
    """Column names that other formats may have too."""
    LINES = 3
    """The pattern of a line and its number of fields."""
    LOOSE = 4
    """The pattern of a line, which lines of other formats may match too."""


@dataclass(frozen=True)
class Format:
    """A format of workloads or logs, registered by an entry point of the same name in the group `tracebed.formats`."""

    name: str
    summary: str
    """The contents of the format in a few words."""
    recognizes: Callable[[Input], bool]
    """`recognizes(file)`: whether a file has the marks of this format, in its `head` or its `columns`."""
    marks: Marks = Marks.OWN_NAMES
    suffixes: tuple[str, ...] = ()
    """File name endings of this format."""
    read: Callable[..., Workload] | None = None
    """`read(file: Input, **options)`: reader of a file of jobs."""
    read_log: Callable[..., Log] | None = None
    """`read_log(files: Sequence[Input], **options)`: reader of a log, one or several files of records."""
    write: Callable[..., None] | None = None
    """`write(workload: Workload, file: BinaryIO, **options)`: writer of a single file."""
    write_folder: Callable[..., None] | None = None
    """`write_folder(workload: Workload, folder: Path, **options)`: writer of a format with several files.

    If the format also has `write`, a path with an ending selects `write`.
    """
    written: str = ""
    """A file that `write_folder` always creates. An existing folder with this file may be replaced."""

    @property
    def reader(self) -> Callable[..., Workload] | Callable[..., Log] | None:
        """The reader of the format; None if the format is write-only."""
        return self.read_log or self.read
