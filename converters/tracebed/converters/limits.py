"""Bounds of numbers in workloads. Without imports, so that `--help` stays fast."""

MAX_EXACT = 2.0**53
"""Largest accepted number (seconds, MiB). Above it, a float64 does not represent every whole number."""
MAX_SIZE = 10**8
"""Largest accepted size, in nodes or cores per node. The largest machines have about ten million cores."""
