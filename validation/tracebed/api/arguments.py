"""Arguments that several functions take: sizes, seeds, calibrations, and a function that is told the progress."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tracebed.ground import bounds
from tracebed.ground.display import time_text
from tracebed.ground.errors import InputError

if TYPE_CHECKING:
    from tracebed.orchestrator.testbeds.calibration import Calibration
    from tracebed.orchestrator.testbeds.nodes import Inventory


def check_size(name: str, value: int) -> None:
    """Raise InputError unless `value`, the argument `name`, is a whole number from 1 to `bounds.MAX_MACHINE`."""
    bounds.check(name, value, 1, bounds.MAX_MACHINE)
    if not isinstance(value, Integral):
        raise InputError(f"{name} is {value!r}", hint="give a whole number")


def check_seed(seed: int) -> None:
    """Raise InputError unless `seed` is a whole number of at least 0."""
    if not isinstance(seed, Integral) or seed < 0:
        raise InputError(f"seed is {seed!r}", hint="give a whole number of at least 0")


AnyCalibration: TypeAlias = "Calibration | Path | str"
"""A calibration, or its file."""


def loaded_calibration(calibration: AnyCalibration | None) -> Calibration | None:
    """Return a calibration that is given as such or as a file."""
    if not isinstance(calibration, Path | str):
        return calibration
    from tracebed.orchestrator.testbeds.calibration import Calibration

    return Calibration.load(calibration)


def warn_of_another_testbed(calibration: Calibration, nodes: Inventory) -> None:
    """Warn if the calibration was made on another inventory, kind of nodes, grain or duty."""
    duty = nodes.duty(calibration.duty or None)
    differing = {
        "inventory": (calibration.inventory, nodes.name),
        "execution": (calibration.execution, nodes.execution),
        "grain": (calibration.grain_s, nodes.grain_s),
        "duty": (calibration.duty, duty),
    }
    for what, (made, given) in differing.items():
        if made != given:
            text = f"the calibration was made for {what} {made}, but it is used for {what} {given}"
            warnings.warn(text, stacklevel=3)


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
