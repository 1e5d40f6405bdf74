"""What a format is: its name, its marks, and the functions that read and write it."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.log import Log
from tracebed.converters.workload import Workload


class Marks(enum.IntEnum):
    """How sure the marks are by which a format is recognized; surer formats are tried first."""

    OWN_NAMES = 1
    """Names of columns or keys that no other format has."""
    COMMON_NAMES = 2
    """Names of columns that other formats may have, too."""
    LINES = 3
    """The shape of a line and its number of fields."""
    LOOSE = 4
    """The shape of a line that lines of other formats may have, too."""


@dataclass(frozen=True)
class Format:
    """A format of workloads or logs. The entry point of the same name in the group `tracebed.formats` names it."""

    name: str
    summary: str
    """What the format holds, in a few words."""
    recognises: Callable[[Input], bool]
    """Whether a file has the marks of this format; looks at the `head` or the `columns` of the file."""
    marks: Marks = Marks.OWN_NAMES
    suffixes: tuple[str, ...] = ()
    """Ends of the names of such files."""
    read: Callable[..., Workload] | None = None
    """`read(file: Input, **options)`: of a file that holds jobs."""
    read_log: Callable[..., Log] | None = None
    """`read_log(files: Sequence[Input], **options)`: of a log in one file or several that hold records."""
    write: Callable[..., None] | None = None
    """`write(workload: Workload, file: BinaryIO, **options)`."""
    write_folder: Callable[..., None] | None = None
    """`write_folder(workload: Workload, folder: Path, **options)`, for a format of several files.

    If the format has `write`, too, a name with an ending means the one file.
    """
    written: str = ""
    """One of the files that `write_folder` makes. An earlier folder with this file may be replaced."""

    @property
    def reader(self) -> Callable[..., Workload] | Callable[..., Log] | None:
        """The function that reads the format; None if the format is only written."""
        return self.read_log or self.read

    @property
    def pseudonymizes(self) -> bool:
        """Whether names of users and projects become pseudonyms: the reader has an option to keep the names."""
        return self.reader is not None and "keep_names" in inspect.signature(self.reader).parameters
