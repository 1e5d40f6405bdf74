"""STREAM: memory-bound work, triads on the arrays of the rank (McCalpin 1995; see kernels/stream.c)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracebed.benchmarks.applications.base import Application, Demands
from tracebed.benchmarks.kernels import Kernel, stream
from tracebed.benchmarks.program import Program
from tracebed.ground.errors import InputError


@dataclass(frozen=True)
class Stream(Application):
    """Memory-bound work on arrays that are larger than the caches.

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
        """Raise InputError if the size is below one block."""
        if self.size_mib < 1:
            raise InputError(f"stream.size_mib cannot be {self.size_mib}", hint="at least 1")

    @property
    def own_mib(self) -> int:
        """Size of the arrays, MiB."""
        return self.size_mib

    def kernel(self, program: Program) -> Kernel:
        """Return the function that does triads."""
        return stream.unit_kernel(self.size_mib)
