"""Checks of arguments that several functions take."""

from __future__ import annotations

from numbers import Integral

from tracebed.ground import bounds
from tracebed.ground.errors import InputError


def check_size(name: str, value: int) -> None:
    """Raise InputError unless `value`, the argument `name`, is a whole number from 1 to `bounds.MAX_MACHINE`."""
    bounds.check(name, value, 1, bounds.MAX_MACHINE)
    if not isinstance(value, Integral):
        raise InputError(f"{name} is {value!r}", hint="give a whole number")


def check_seed(seed: int) -> None:
    """Raise InputError unless `seed` is a whole number of at least 0."""
    if not isinstance(seed, Integral) or seed < 0:
        raise InputError(f"seed is {seed!r}", hint="give a whole number of at least 0")
