"""The compute kernels: C where a compiler was at hand when tracebed was built, NumPy where none was.

Both do the same units of work, come to the same sum, and let go of the interpreter lock meanwhile. They
differ in speed, so units are calibrated and never assumed. `TRACEBED_KERNEL` (`c`, `numpy`) forces one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tracebed.errors import InputError, TestbedError

LIBRARY = Path(__file__).with_name("libtracebed_kernels.so")
LANES = 1024  # as in pils.c
SWEEPS = 16

Kernel = Callable[[int], int]
"""Does so many units of work; returns their sum (see pils.c)."""


def compute(units: int) -> int:
    """Do `units` units of PILS work (a few microseconds each in C) in this thread, and return their sum."""
    return _pick()[1](units)


def kernel_name() -> str:
    """Return `c` or `numpy`: what `compute` runs on."""
    return _pick()[0]


def calibrate(seconds: float = 0.2, samples: int = 5) -> float:
    """Return how many units of `compute` one core does in a second of CPU time, now.

    Args:
        seconds: CPU time to spend, about; a quarter of it warms caches and clock up.
        samples: of how many measurements the median is taken.
    """
    units = 1
    while (took := _cpu_time(units)) < seconds / 16:
        units *= 2
    units = max(1, round(units * seconds * 0.75 / samples / took))
    rates = sorted(units / _cpu_time(units) for _ in range(samples))
    return rates[samples // 2]


def _cpu_time(units: int) -> float:
    begun = time.thread_time()
    compute(units)
    return time.thread_time() - begun


@cache
def _pick() -> tuple[str, Kernel]:
    wanted = os.environ.get("TRACEBED_KERNEL", "")
    if wanted not in ("", "c", "numpy"):
        raise InputError(f"TRACEBED_KERNEL is {wanted!r}", hint="set it to c or numpy, or unset it")
    if wanted != "numpy":
        try:
            return "c", _load(LIBRARY)
        except OSError as error:
            if wanted == "c":
                raise TestbedError(f"there is no C kernel: {error}", hint="install gcc, then tracebed again") from error
    import warnings

    warnings.warn(
        "jobs compute with the slower NumPy kernel"
        + ("" if wanted else "; install a C compiler (gcc), then tracebed again, for the C kernel"),
        UserWarning,
        stacklevel=3,
    )
    return "numpy", _numpy_kernel()


def _load(library: Path) -> Kernel:
    """Bind `tracebed_pils`. Raises OSError where `library` is absent or not for this machine."""
    import ctypes

    function = ctypes.CDLL(str(library)).tracebed_pils  # a CDLL's functions run without the interpreter lock
    function.argtypes = [ctypes.c_uint64]
    function.restype = ctypes.c_uint64
    kernel: Kernel = function
    return kernel


def _numpy_kernel(block: int = 16) -> Kernel:
    """Return the kernel in NumPy: blocks of units at once, so that the interpreter's share stays small."""
    import numpy as np

    lane = np.arange(1, LANES + 1, dtype=np.uint32)

    def kernel(units: int) -> int:
        total = 0
        for first in range(0, units, block):
            unit = np.arange(first, min(first + block, units), dtype=np.uint64).astype(np.uint32)
            lanes = (unit * np.uint32(2654435769))[:, None] + lane
            shifted = np.empty_like(lanes)
            for _ in range(SWEEPS):
                for shift, by in ((np.left_shift, 13), (np.right_shift, 17), (np.left_shift, 5)):
                    shift(lanes, np.uint32(by), out=shifted)
                    np.bitwise_xor(lanes, shifted, out=lanes)
            total += int(lanes.sum(dtype=np.uint64))
        return total % 2**64

    return kernel
