"""Accepted ranges of sizes, speeds and times, and their check."""

from __future__ import annotations

from numbers import Real

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


def check(name: str, value: float, least: float, most: float) -> None:
    """Raise InputError unless the value called `name` is a number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= value <= most:
        raise InputError(f"{name} is {value!r}", hint=f"give a number from {least:g} to {most:,.0f}")
