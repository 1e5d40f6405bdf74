"""The kernels by whose units jobs are sized, by name."""

from __future__ import annotations

from collections.abc import Callable

from tracebed.benchmarks.kernels import Kernel, compute
from tracebed.benchmarks.kernels.stream import unit_kernel
from tracebed.ground.errors import InputError

KERNELS: dict[str, Callable[[], Kernel]] = {"pils": lambda: compute, "stream": unit_kernel}
"""Name -> function that returns the kernel, for all threads of this process."""


def kernel_of(name: str) -> Kernel:
    """Return the kernel `name` for all threads of this process. Raises InputError if the kernel is unknown."""
    if name not in KERNELS:
        raise InputError(f"unknown kernel {name!r}", hint=f"one of {', '.join(KERNELS)}")
    return KERNELS[name]()
