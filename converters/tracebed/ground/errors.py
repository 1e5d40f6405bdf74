"""The exceptions of tracebed, its exit codes and its warnings.

    TracebedError               an error that the user can correct; never shown as a traceback
    ├── InputError              a file, an option or a value is invalid                      exit 2
    └── TestbedError            a node, an agent or a job process failed                     exit 4

This module is the lowest layer: all parts of tracebed may import it, and it imports none of them.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping


class ExitCode(enum.IntEnum):
    """Exit code of a `tracebed` command."""

    OK = 0
    """The command succeeded. After a comparison: the prediction is accurate."""
    INACCURATE = 1
    """The prediction is inaccurate (comparisons only)."""
    USAGE = 2
    """Wrong usage or invalid input."""
    INCONCLUSIVE = 3
    """The comparison is inconclusive (comparisons only)."""
    UNHEALTHY = 4
    """The testbed, or data recorded on it, is unhealthy."""
    INTERNAL = 70
    """Internal error: a defect of tracebed, to be reported (`EX_SOFTWARE` of sysexits.h)."""
    INTERRUPTED = 130
    """Interrupted by Ctrl-C. Results recorded before are kept."""
    BROKEN_PIPE = 141
    """The reader of the standard output closed the pipe (`| head`). SIGPIPE gives other programs the same status."""


class TracebedError(Exception):
    """An error that the user can correct. Its text is one line: place, defect, hint.

    Args:
        what: the defect, with the invalid value.
        where: the file, with the line or job if known (`log.swf:17`).
        hint: how to correct the defect.
    """

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.what}{hint}"


class InputError(TracebedError):
    """Invalid file, option or value."""


class TestbedError(TracebedError):
    """Failure of a node, an agent or a job process.

    Args:
        transient: whether a retry may succeed.
    """

    __test__ = False  # pytest must not collect a class because its name begins with Test
    exit_code = ExitCode.UNHEALTHY

    def __init__(
        self, what: str, *, where: str | None = None, hint: str | None = None, transient: bool = False
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.transient = transient


class Tolerated(UserWarning):
    """A tolerated defect of the input, with its number of occurrences.

    Emit one warning per kind of defect. The command line prints each as one line.
    """

    def __init__(self, what: str, count: int, *, where: str | None = None) -> None:
        place = f"{where}: " if where else ""
        super().__init__(f"{place}{what} ({count:,} {'time' if count == 1 else 'times'})")
        self.what = what
        self.count = count
        self.where = where


def tolerate(counts: Mapping[str, int], *, where: str | None = None) -> None:
    """Emit one warning per kind of defect with occurrences. `counts` maps defect -> occurrences."""
    import warnings

    for what, count in counts.items():
        if count:
            warnings.warn(Tolerated(what, count, where=where), stacklevel=3)


def reason_of(error: Exception) -> str:
    """Return why a text could not be parsed. That of a RecursionError differs from one Python to another."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error to stderr, without the module `traceback`: a node is to start fast."""
    sys.__excepthook__(type(error), error, error.__traceback__)
