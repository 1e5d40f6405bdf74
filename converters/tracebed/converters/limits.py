"""Bounds of numbers in workloads. This module is light: help needs no more."""

MAX_EXACT = 2.0**53
"""Largest accepted number (seconds, MiB). Beyond it, a float64 does not tell a whole number from the next."""
MAX_SIZE = 10**8
"""Largest accepted size, in nodes or cores per node. The largest machines have about ten million cores."""
