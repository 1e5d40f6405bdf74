"""The one error root of tracebed, its exit statuses and its warnings.

    TracebedError               something the user can correct; never shown as a traceback
    ├── InputError              a file, an option or a value is wrong                        exit 2
    └── TestbedError            a node, an agent or a job process misbehaved                 exit 4

This module lies below every other one: all four parts of tracebed may import it, and it imports none of them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class ExitCode(enum.IntEnum):
    """What a `tracebed` command tells the shell."""

    OK = 0
    """The command did its work; of a comparison: the prediction is accurate."""
    INACCURATE = 1
    """A comparison found the prediction inaccurate."""
    USAGE = 2
    """Wrong usage or bad input."""
    INCONCLUSIVE = 3
    """A comparison could not decide."""
    UNHEALTHY = 4
    """The testbed, or data that came from it, is unhealthy."""
    INTERNAL = 70
    """An error that tracebed did not foresee: a defect of tracebed, to be reported (`EX_SOFTWARE` of sysexits.h)."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C; what was done until then was kept."""
    BROKEN_PIPE = 141
    """Who read our output left before its end (`| head`); the status of any program that SIGPIPE ends."""


class TracebedError(Exception):
    """What went wrong, where, and how to correct it, on one line.

    Args:
        what: the defect, with the value that was found.
        where: the file, with a line or a job where there is one (`log.swf:17`).
        hint: what the user can do about it.
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
    """A file, an option or a value is not what it must be."""


class TestbedError(TracebedError):
    """A node, an agent or a job process did not do what it was told.

    Args:
        transient: whether trying again may help.
    """

    __test__ = False  # the name begins like a test's; pytest must not collect it
    exit_code = ExitCode.UNHEALTHY

    def __init__(
        self, what: str, *, where: str | None = None, hint: str | None = None, transient: bool = False
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.transient = transient


class Tolerated(UserWarning):
    """A defect of the input that was tolerated, with how often it occurred.

    Emit it with `warnings.warn`, once a kind of defect; the command line prints each as one line.
    """

    def __init__(self, what: str, count: int, *, where: str | None = None) -> None:
        place = f"{where}: " if where else ""
        super().__init__(f"{place}{what} ({count:,} {'time' if count == 1 else 'times'})")
        self.what = what
        self.count = count
        self.where = where


def tolerate(counts: Mapping[str, int], *, where: str | None = None) -> None:
    """Warn once of each kind of defect in `counts` (defect -> occurrences) that did occur."""
    import warnings

    for what, count in counts.items():
        if count:
            warnings.warn(Tolerated(what, count, where=where), stacklevel=3)
