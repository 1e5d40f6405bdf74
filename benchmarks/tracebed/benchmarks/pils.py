"""PILS: compute-bound work in the cache, after the benchmark of that name from Barcelona (BSC).

Where BSC's tasks spin until a time has passed, ours do a fixed amount of work: threads that are squeezed onto
one CPU take longer, and do not just believe that they are done.
"""

from __future__ import annotations

from tracebed.benchmarks import malleable
from tracebed.benchmarks.kernels import compute
from tracebed.benchmarks.program import Launch
from tracebed.benchmarks.rank import Control


def run(launch: Launch, control: Control) -> int:
    """Be one rank of a PILS job; returns the exit status of its process."""
    return malleable.run(launch, control, compute)
