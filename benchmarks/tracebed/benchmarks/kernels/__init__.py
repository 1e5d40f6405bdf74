"""The compute kernels: C if a compiler was available when tracebed was built, else NumPy.

Both kernels do the same units of work, return the same sum, and release the interpreter lock meanwhile. Their speeds
differ, so the time of a unit is always measured. `TRACEBED_KERNEL` (`c`, `numpy`) selects a kernel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from tracebed.ground.errors import InputError, TestbedError

Mode = TypeVar("Mode")
LIBRARY = Path(__file__).with_name("libtracebed_kernels.so")
LANES = 1024  # as in pils.c
SWEEPS = 16

MODULUS = 2**64  # checksums are sums modulo this number
# A function of (first, count): it does the units first, first + 1, ... of work in this thread, without the lock of the
# interpreter, and returns their checksum, a sum modulo 2^64. So the checksum of all units does not depend on how they
# were divided.
Kernel = Callable[[int, int], int]


def compute(first: int, units: int) -> int:
    """Do `units` units of PILS work from the number `first` in this thread, and return their checksum."""
    return _pick()[1](first, units)


def kernel_name() -> str:
    """Return the name of the kernel that `compute` uses: `c` or `numpy`."""
    return _pick()[0]


def calibrate(seconds: float = 0.2, samples: int = 5) -> float:
    """Return the rate of a core, units of `compute` per s of CPU time: the median of `samples` in `seconds` in all."""
    units = 1
    while (took := _cpu_time(units, compute)) < seconds / 16:
        units *= 2
    # A quarter of the time warms up caches and clock frequency.
    units = max(1, round(units * seconds * 0.75 / samples / took))
    rates = sorted(units / _cpu_time(units, compute) for _ in range(samples))
    return rates[samples // 2]


def work_rates(windows: int, seconds: float, kernel: Kernel) -> list[tuple[float, float]]:
    """Measure the rate of a core in consecutive windows of `seconds` of CPU time, after one window that warms up.

    Each window has the units per second of CPU time, and CPU time over wall time.
    """
    units, measured = 1, []
    while (took := _cpu_time(units, kernel)) < seconds / 16:
        units *= 2
    rate = units / took
    for _ in range(windows + 1):
        units = max(1, round(rate * seconds))
        begun = time.monotonic()
        cpu_s = _cpu_time(units, kernel)
        rate = units / cpu_s
        measured.append((rate, cpu_s / (time.monotonic() - begun)))
    return measured[1:]


def alternated(modes: Sequence[Mode], pairs: int) -> Iterator[tuple[int, Mode]]:
    """Yield the number of each pair of measurements, from 1, with each of its modes, in alternating order."""
    for number in range(1, pairs + 1):
        for mode in modes if number % 2 else reversed(modes):
            yield number, mode


def _cpu_time(units: int, kernel: Kernel) -> float:
    begun = time.thread_time()
    kernel(0, units)
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
                hint = "install gcc, then reinstall tracebed"
                raise TestbedError(f"the C kernel is missing: {error}", hint=hint) from error
    import warnings

    warnings.warn(
        "jobs compute with the slower NumPy kernel"
        + ("" if wanted else "; for the C kernel, install a C compiler (gcc), then reinstall tracebed"),
        UserWarning,
        stacklevel=3,
    )
    return "numpy", _numpy_kernel()


def _load(library: Path) -> Kernel:
    """Return the function `tracebed_pils_units` of `library`; raise OSError if it is of other sources."""
    import ctypes

    try:
        function = ctypes.CDLL(str(library)).tracebed_pils_units  # functions of a CDLL run without the interpreter lock
    except AttributeError as error:
        raise OSError(f"{library} is outdated") from error
    function.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    function.restype = ctypes.c_uint64
    kernel: Kernel = function
    return kernel


def _numpy_kernel(block: int = 16) -> Kernel:
    """Return the NumPy kernel. It computes `block` units at once to reduce the overhead of the interpreter."""
    try:
        import numpy as np
    except ImportError as error:
        hint = "install a C compiler, then reinstall tracebed, or install NumPy"
        raise TestbedError("neither the compiled kernel nor NumPy is installed", hint=hint) from error

    lane = np.arange(1, LANES + 1, dtype=np.uint32)

    def kernel(first: int, units: int) -> int:
        total, end = 0, first + units
        for begin in range(first, end, block):
            unit = np.arange(begin, min(begin + block, end), dtype=np.uint64).astype(np.uint32)
            lanes = (unit * np.uint32(2654435769))[:, None] + lane
            shifted = np.empty_like(lanes)
            for _ in range(SWEEPS):
                for shift, by in ((np.left_shift, 13), (np.right_shift, 17), (np.left_shift, 5)):
                    shift(lanes, np.uint32(by), out=shifted)
                    np.bitwise_xor(lanes, shifted, out=lanes)
            total += int(lanes.sum(dtype=np.uint64))
        return total % MODULUS

    return kernel
