"""The applications that run compute kernels: `stream` (in memory), `pils` (in the cache), and simulations (both)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tracebed.benchmarks.applications.base import Application, Demands
from tracebed.benchmarks.kernels import MODULUS, Kernel, compute, stream
from tracebed.benchmarks.program import Program
from tracebed.ground.errors import InputError


@dataclass(frozen=True)
class Stream(Application):
    """STREAM: memory-bound work, triads on the arrays of the rank (McCalpin 1995; see kernels/stream.c).

    The arrays are larger than the caches.

    Args:
        size_mib: size of the three arrays of a rank, MiB. The checksum and the work rate depend on it. Work is sized by
            the rate of the default size.
    """

    kernels: ClassVar[tuple[str, ...]] = ("stream",)
    demands: ClassVar[Demands] = Demands(
        cpu="all cores, most of the time waiting for memory",
        memory=f"size_mib, {stream.SIZE_MIB} MiB by default",
        bandwidth="as much as the cores can get",
    )

    size_mib: int = stream.SIZE_MIB

    def __post_init__(self) -> None:
        if self.size_mib < 1:
            raise InputError(f"stream.size_mib cannot be {self.size_mib}", hint="at least 1")

    @property
    def own_mib(self) -> int:
        """Size of the arrays, MiB."""
        return self.size_mib

    def kernel(self, program: Program) -> Kernel:
        """Return the function that does triads."""
        return stream.unit_kernel(self.size_mib)


@dataclass(frozen=True)
class Pils(Application):
    """PILS: compute-bound work in the first-level cache, after the benchmark of that name by BSC, Barcelona.

    The tasks of BSC's benchmark spin for a given time. The tasks of this one do a given amount of work, so threads that
    share a CPU take longer.
    """

    demands: ClassVar[Demands] = Demands(cpu="all cores, all the time", memory="4 KiB a core", bandwidth="none")

    def kernel(self, program: Program) -> Kernel:
        """Return the kernel of PILS."""
        return compute


@dataclass(frozen=True)
class PhasedSimulation(Application):
    """A simulation as CoreNeuron, NEST and Alya are: a memory-bound initialization, then long compute phases.

    Sources: the DROM paper, section 6 and figure 5 (the data of NEST and CoreNeuron are divided by the first number of
    threads, so the share of a removed thread falls on others), and the SD-Policy paper, section 5 (memory-bound
    phases).

    Args:
        initialization: share of the work in the memory-bound initialization, 0 to 1.
        data: `free`, or `static`: the data of a rank are four tasks for each of the cores on which it starts.
    """

    kernels: ClassVar[tuple[str, ...]] = ("pils", "stream")
    demands: ClassVar[Demands] = Demands(
        cpu="all cores; with data=static an imbalance on fewer cores",
        memory=f"{stream.SIZE_MIB} MiB, and that of the job",
        bandwidth="as stream in the initialization, then none",
    )

    initialization: float = 0.05
    data: Literal["free", "static"] = "free"

    def __post_init__(self) -> None:
        if not 0 <= self.initialization <= 1:
            raise InputError(f"simulation.initialization cannot be {self.initialization}", hint="0 to 1")

    @property
    def partition(self) -> str:
        """How the data of a rank are divided."""
        return self.data

    @property
    def own_mib(self) -> int:
        """Size of the arrays of the initialization, MiB."""
        return stream.SIZE_MIB if self.initialization else 0

    def kernel(self, program: Program) -> Kernel:
        """Return the function that does the first units in memory, and the others in the cache."""
        border = int(self.initialization * (program.serial_units + program.parallel_units))
        if not border:
            return compute
        in_memory, ratio = stream.unit_kernel(), program.ratios.get("stream", 1.0)

        def kernel(first: int, count: int) -> int:
            middle = min(max(first, border), first + count)
            begin, end = int(ratio * first), int(ratio * middle)  # so that a unit takes as long as one in the cache
            return (in_memory(begin, end - begin) + compute(middle, first + count - middle)) % MODULUS

        return kernel
