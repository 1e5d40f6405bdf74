"""PILS: compute-bound work in the cache, after the benchmark of that name by BSC, Barcelona.

The tasks of BSC's benchmark spin for a given time. The tasks of this one do a given amount of work, so threads that
share a CPU take longer.
"""

from __future__ import annotations

from tracebed.benchmarks import malleable
from tracebed.benchmarks.kernels import compute
from tracebed.benchmarks.program import Launch
from tracebed.benchmarks.rank import Control


def run(launch: Launch, control: Control) -> int:
    """Run one rank of a PILS job, and return the exit status of its process."""
    return malleable.run(launch, control, compute)
