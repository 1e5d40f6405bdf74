"""Policies of batch systems, whose parameters are wall times: the speed of a run, and whole seconds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeVar

from tracebed.ground.errors import InputError

ROUNDING_S = 1e-6
"""Times this close below a whole second count as the whole second, since sums of times are rounded."""
P = TypeVar("P")


def at_speed(policy: P, speed: float) -> P:
    """Return `policy` in a run at `speed`. Raise InputError if its parameter `speed` differs; 0: not set."""
    known: Any = policy
    if known.speed not in (0.0, speed):
        name = type(policy).__name__.lower()
        what = f"{name}.speed is {known.speed:g}, but the speed of the run is {speed:g}"
        raise InputError(what, hint=f"leave {name}.speed out: the speed of the run is used")
    return policy if known.speed == speed else replace(known, speed=speed)


def whole_second(at: float) -> int:
    """Return the whole second of an instant, rounded down."""
    return math.floor(at + ROUNDING_S)


def whole_limit(limit: float, step: int) -> int:
    """Return a time limit, s, in whole multiples of `step`, rounded up, at least one."""
    return max(1, math.ceil(limit / step - ROUNDING_S)) * step
