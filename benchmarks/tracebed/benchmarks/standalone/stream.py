"""STREAM: the memory bandwidth of threads on CPUs of their own.

The kernels, sizes, repetitions and the validation follow STREAM 5.10 (McCalpin), written from its description. As
STREAM's rules require, results are labeled as results of a variant (`LABEL`).
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracebed import malleable
from tracebed.benchmarks import kernels
from tracebed.benchmarks.kernels.stream import ELEMENT, SCALAR, Arrays, Function, StreamKernels, arrays, load
from tracebed.benchmarks.memory import free_mib
from tracebed.benchmarks.standalone.team import Team, chosen, share
from tracebed.ground.errors import InputError

LABEL = "based on a variant of the STREAM benchmark code"
ELEMENTS = 10_000_000  # elements of an array: STREAM's default, and the least that is chosen here
CACHES = 4  # an array is at least this many times as large as the last-level caches
REPETITIONS = 10
MOST_REPETITIONS = 250  # the values grow 15-fold in a repetition, and exceed the largest double after 262
TOLERANCE = 1e-13  # largest average relative error of an array
MB = 1e6
MIB = 2**20
CPUS = Path("/sys/devices/system/cpu")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class StreamRepetition:
    """One run of the four kernels.

    Attributes:
        cpus: the CPUs, with a thread on each.
        seconds: wall time of each kernel, in the order of `Function`, s.
    """

    cpus: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class StreamRow:
    """The result of a kernel on a number of threads.

    Attributes:
        function: the kernel.
        mb_per_s: best rate, 10^6 bytes per second.
        average_s: average time, s.
        least_s: shortest time, s.
        most_s: longest time, s.
    """

    function: Function
    mb_per_s: float
    average_s: float
    least_s: float
    most_s: float


@dataclass(frozen=True)
class StreamResult:
    """The result of STREAM.

    Attributes:
        kernel: `c` or `numpy`.
        elements: elements of an array.
        cache_bytes: size of the last-level caches of all CPUs that were used, bytes; None: unknown.
        repetitions: all repetitions.
        errors: average relative error of the arrays a, b and c.
    """

    kernel: str
    elements: int
    cache_bytes: int | None
    repetitions: tuple[StreamRepetition, ...]
    errors: tuple[float, float, float]

    @property
    def valid(self) -> bool:
        """Whether the arrays have the right values."""
        return all(error <= TOLERANCE for error in self.errors)

    @property
    def large_enough(self) -> bool:
        """Whether an array is large enough for STREAM's rule."""
        return self.elements >= least_elements(self.cache_bytes)

    def threads(self) -> list[int]:
        """Return the numbers of threads for which there is a result."""
        return sorted({len(repetition.cpus) for repetition in self._counted()})

    def table(self, threads: int) -> list[StreamRow]:
        """Return the result of each kernel on `threads` threads."""
        counted = [repetition for repetition in self._counted() if len(repetition.cpus) == threads]
        rows = []
        for function in Function:
            times = [repetition.seconds[function] for repetition in counted]
            rate = function.bytes * self.elements / min(times) / MB
            rows.append(StreamRow(function, rate, sum(times) / len(times), min(times), max(times)))
        return rows

    def _counted(self) -> Sequence[StreamRepetition]:
        """Return all repetitions but the first."""
        return self.repetitions[1:]


def least_elements(cache_bytes: int | None) -> int:
    """Return the least number of elements of an array by STREAM's rule, given the bytes of the last-level caches."""
    return math.ceil(CACHES * (cache_bytes or 0) / ELEMENT)


def run(
    elements: int | None = None,
    *,
    threads: int | None = None,
    cpus: Sequence[int] | None = None,
    repetitions: int = REPETITIONS,
) -> StreamResult:
    """Run STREAM, with one thread on each CPU.

    With a table of CPUs, the program takes the CPUs of the table and follows changes between repetitions.

    Args:
        elements: elements of an array; None: by STREAM's rule, at least `ELEMENTS`.
        threads: number of threads; with a table of CPUs the largest number. None: one for each CPU.
        cpus: the CPUs; None: the CPUs of this process. Without a table only.
        repetitions: number of repetitions, 2 to `MOST_REPETITIONS`. The first one does not count.

    Raises:
        InputError: an argument is invalid, or the memory of the node is too small.
        TestbedError: no kernel can be loaded, or the table of CPUs cannot be used.
    """
    if not 2 <= repetitions <= MOST_REPETITIONS:
        raise InputError(f"{repetitions} repetitions are not from 2 to {MOST_REPETITIONS}")
    functions = load()
    with malleable.attach(pin=False) as m:
        used = chosen(m, cpus, threads)
        cache_bytes = last_level_cache(used)
        elements = _sized(elements, cache_bytes)
        data = arrays(elements)
        done: list[StreamRepetition] = []
        with Team(used) as team:
            _fill(team, functions, data)
            for _ in range(repetitions):
                if m.poll():
                    team.resize(chosen(m, None, threads))
                done.append(StreamRepetition(team.cpus, _repetition(team, functions, data)))
    all_used = {cpu for repetition in done for cpu in repetition.cpus}
    return StreamResult(
        kernel=kernels.kernel_name(),
        elements=elements,
        cache_bytes=last_level_cache(all_used),
        repetitions=tuple(done),
        errors=_errors(functions, data, repetitions),
    )


def _sized(elements: int | None, cache_bytes: int | None) -> int:
    """Return the number of elements of an array, with a warning if arrays are too small."""
    least = least_elements(cache_bytes)
    if elements is None:
        elements = max(ELEMENTS, least)
    elif elements < 1:
        raise InputError(f"{elements} elements are not at least 1")
    if elements < least:
        assert cache_bytes is not None
        warnings.warn(
            f"an array of {elements * ELEMENT / MIB:.1f} MiB is smaller than {CACHES} times the last-level cache "
            f"({cache_bytes / MIB:.0f} MiB): STREAM requires {least:,} elements",
            UserWarning,
            stacklevel=3,
        )
    needed_mib = math.ceil(3 * elements * ELEMENT / MIB)
    free = free_mib()
    if free is not None and needed_mib > free:
        what = f"three arrays of {elements:,} elements take {needed_mib:,} MiB, and {free:,} MiB of memory are free"
        raise InputError(what, hint="choose fewer elements")
    return elements


def _fill(team: Team, functions: StreamKernels, data: Arrays) -> None:
    """Write the first values. Each thread writes its elements, so that they lie in the memory near its CPU."""

    def fill(index: int, size: int) -> None:
        for array, value in zip(data, (2.0, 2.0, 0.0), strict=True):  # STREAM doubles a once before its repetitions
            functions.fill(array, value, *share(len(array), size, index))

    team.run(fill)


def _repetition(team: Team, functions: StreamKernels, data: Arrays) -> tuple[float, ...]:
    """Run the four kernels, and return their wall times, s."""
    seconds = []
    for function in Function:

        def work(index: int, size: int, function: Function = function) -> None:
            functions.stream(function, data, SCALAR, *share(len(data.a), size, index))

        begun = time.perf_counter()
        team.run(work)
        seconds.append(time.perf_counter() - begun)
    return tuple(seconds)


def _errors(functions: StreamKernels, data: Arrays, repetitions: int) -> tuple[float, float, float]:
    """Return the average relative error of each array: the same operations on one element give the right values."""
    a, b, c = 2.0, 2.0, 0.0
    for _ in range(repetitions):
        c = a
        b = SCALAR * c
        c = a + b
        a = b + SCALAR * c
    count = len(data.a)
    errors = [
        functions.error(array, value, 0, count) / count / abs(value)
        for array, value in zip(data, (a, b, c), strict=True)
    ]
    return errors[0], errors[1], errors[2]


def last_level_cache(cpus: Iterable[int], folder: Path = CPUS) -> int | None:
    """Return the total size of the last-level caches of `cpus`, bytes. CPUs may share a cache. None: unknown."""
    sizes: dict[str, int] = {}  # CPUs that share the cache -> its size
    for cpu in cpus:
        found: list[tuple[int, str, int]] = []
        for index in (folder / f"cpu{cpu}" / "cache").glob("index*"):
            with contextlib.suppress(OSError, ValueError, IndexError):  # not all files exist on all machines
                level, shared, size = (_line(index / name) for name in ("level", "shared_cpu_list", "size"))
                unit = UNITS.get(size[-1], 1)
                found.append((int(level), shared, int(size.rstrip("KMG")) * unit))
        if not found:
            return None
        _, shared, size_bytes = max(found)
        sizes[shared] = size_bytes
    return sum(sizes.values()) or None


def _line(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
