"""Accepted ranges of sizes, speeds and times, and their check."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from tracebed.ground.errors import InputError

MAX_EXACT = 2.0**53
"""Largest accepted number (seconds, MiB). Above it, a float64 does not represent every whole number."""
MAX_SIZE = 10**8
"""Largest accepted size, in nodes or cores per node. The largest machines have about ten million cores."""


MIN_SPEED, MAX_SPEED = 0.001, 1_000_000.0
"""Accepted speeds of a replay, in trace seconds per wall second."""
MAX_SECONDS = 1e9
"""Largest accepted overhead or interval, in trace seconds (30 years)."""
MAX_MACHINE = 10_000_000
"""Largest accepted number of nodes, and of cores per node."""


def text(bound: float) -> str:
    """Return a bound as text for a message: 1,000,000 or 0.001."""
    return f"{bound:,.0f}" if abs(bound) >= 1000 else f"{bound:g}"


def check(name: str, value: Any, least: float | None, most: float | None, *, whole: bool = False) -> None:
    """Raise InputError unless the value called `name` is a number from `least` to `most`, and `whole` if it must be.

    None: no bound but that of exact numbers.
    """
    low, high = -MAX_EXACT if least is None else least, MAX_EXACT if most is None else most
    kind: Any = Integral if whole else Real  # of NumPy, too; `Real` itself knows no order
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        if least is not None and most is not None:
            accepted = f" from {text(least)} to {text(most)}"
        elif least is not None:
            accepted = f" of at least {text(least)}"
        else:
            accepted = "" if most is None else f" of at most {text(most)}"
        raise InputError(f"{name} is {value!r}", hint=f"give a {'whole ' * whole}number{accepted}")
