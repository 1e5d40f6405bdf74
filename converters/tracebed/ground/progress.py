"""Progress of long calls: a line on standard error from time to time, unless the caller takes the figures."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from tracebed.ground.display import time_text

FIRST_S, EVERY_S = 5.0, 10.0
"""Time to the first line and between lines, s."""


def reporter(what: str, total: float | None, on_progress: Callable[[Any], None] | None) -> Callable[[Any], None]:
    """Return the function of the caller, or without one a function that prints a line after five seconds.

    Args:
        what: the call, in words.
        total: value of the progress at the end; None: unknown.
        on_progress: the function of the caller. One that does nothing silences the call.
    """
    return on_progress or progress_lines(what, total, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201


def progress_lines(
    what: str, total: float | None, emit: Callable[[str], None], *, first_s: float = FIRST_S
) -> Callable[[float], None]:
    """Return a function that emits a line about its argument, the progress, after a time and then from time to time.

    Args:
        what: the task, in words.
        total: value of the progress at the end; None: unknown.
        emit: prints a line.
        first_s: time to the first line, s.
    """
    due = time.monotonic() + first_s
    first: tuple[float, float] | None = None  # time and progress; the preparation before it says nothing of the rest

    def report(done: float) -> None:
        nonlocal due, first
        now = time.monotonic()
        first = first or (now, done)
        if now >= due:
            due = now + EVERY_S
            passed, more = now - first[0], done - first[1]
            left = f", {time_text(passed * (total - done) / more)} left" if total and more > 0 and total > done else ""
            emit(f"{what}: {done / total:.0%}{left}" if total else f"{what}: {done:g} done" if done else what)

    return report
