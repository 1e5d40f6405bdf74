"""PILS: compute-bound work in the cache, after the benchmark of that name by BSC, Barcelona.

The tasks of BSC's benchmark spin for a given time. The tasks of this one do a given amount of work, so threads that
share a CPU take longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracebed.benchmarks.applications.base import Application, Demands
from tracebed.benchmarks.kernels import Kernel, compute
from tracebed.benchmarks.program import Program


@dataclass(frozen=True)
class Pils(Application):
    """Compute-bound work that stays in the first-level cache."""

    demands: ClassVar[Demands] = Demands(cpu="all cores, all the time", memory="4 KiB a core", bandwidth="none")

    def kernel(self, program: Program) -> Kernel:
        """Return the kernel of PILS."""
        return compute
