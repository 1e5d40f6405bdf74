"""Bounds of sizes, speeds and times that functions and commands accept: what lies beyond them is a mistake."""

from __future__ import annotations

from numbers import Real

from tracebed.errors import InputError

MIN_SPEED, MAX_SPEED = 0.001, 1_000_000.0
"""Speed of a replay, trace seconds per wall second."""
MAX_SECONDS = 1e9
"""Largest overhead or interval, in trace seconds: 30 years."""
MAX_MACHINE = 10_000_000
"""Largest number of nodes of a machine, or of cores of a node."""


def check(name: str, value: float, least: float, most: float) -> None:
    """Check a number.

    Args:
        name: what it is called, for the message.
        value: the number.
        least: the smallest valid number.
        most: the largest valid number.

    Raises:
        InputError: `value` is not a number from `least` to `most`.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= value <= most:
        raise InputError(f"{name} is {value!r}", hint=f"give a number from {least:g} to {most:,.0f}")
