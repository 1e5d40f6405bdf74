"""The `Format` class: the name, the marks and the functions of a format; and the installed formats by name.

A new format is a module with a `FORMAT` and one line in `pyproject.toml`, in tracebed or in another package:

    [project.entry-points."tracebed.formats"]
    mine = "my_package.mine:FORMAT"
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracebed.converters.formats.tools.files import SUFFIXES, Input
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.registry import Registry

if TYPE_CHECKING:
    from tracebed.converters.log import Log


BY_CORE = ("sacct", "swf", "ub-slurm")
"""Formats of logs whose readers have the option `by`."""
OF_LOGS = frozenset(
    (
        *BY_CORE,
        *("cori", "eagle", "fdata", "gwf", "lassen", "mwf", "pbs", "pm100", "supercloud", "table", "theta"),
    )
)
"""Formats of logs of real machines: what `from_log` says without loading the readers, and a test compares them."""


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


FORMATS: Registry[Format] = Registry("tracebed.formats", "format", Format)


def known() -> list[Format]:
    """Return all formats, the most reliable marks first; warn about formats that cannot be loaded."""
    formats = []
    for name in FORMATS.names():
        try:
            formats.append(named(name))
        except InputError as error:
            tolerate({str(error): 1})
    return sorted(formats, key=lambda format: format.marks)


def named(name: str) -> Format:
    """Return the format `name`. Raise InputError if the format does not exist or its package is broken."""
    return FORMATS.load(name)


def by_name(path: Path) -> Format | None:
    """Return the format with the ending of a file name, ignoring compression endings, or None."""
    name = path.name.lower()
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return next((format for format in known() if format.suffixes and name.endswith(format.suffixes)), None)


def from_log(workload: Workload) -> bool:
    """Return whether the jobs come from a log of a machine.

    A workload of a model or of another simulator has no machine other than the simulated one.
    """
    steps = workload.provenance.steps
    return bool(steps) and steps[0].parameters.get("format") in OF_LOGS


def check_options(function: Callable[..., Any], options: Mapping[str, Any], doing: str, where: str) -> None:
    """Raise InputError if a reader or writer does not accept one of the options."""
    taken = inspect.signature(function).parameters
    for option in options:
        if option not in taken:
            known = [name for name, one in taken.items() if one.kind is one.KEYWORD_ONLY]
            hint = f"available options: {', '.join(known) or 'none'}"
            raise InputError(f"{doing} does not support option {option!r}", where=where, hint=hint)
