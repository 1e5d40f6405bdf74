"""The kernels of STREAM, in C or NumPy, on arrays of the caller (see stream.c).

`TRACEBED_KERNEL` selects the kernel as for PILS. The functions release the interpreter lock while they work.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

from tracebed.benchmarks import kernels
from tracebed.benchmarks.memory import MIB, require
from tracebed.ground.errors import InputError, TestbedError

BLOCK = 8192  # as in stream.c
SCALAR = 3.0
ELEMENT = ctypes.sizeof(ctypes.c_double)
SIZE_MIB = 96  # size of the three arrays of memory-bound units by default, MiB: more than the cache of most cores
CACHED = 16_384  # elements that the NumPy kernels work on at once, so that intermediate results stay in the cache

Doubles = ctypes.Array[ctypes.c_double]


class Function(enum.IntEnum):
    """The four kernels, in the order in which STREAM runs them."""

    COPY = 0  # c = a
    SCALE = 1  # b = s c
    ADD = 2  # c = a + b
    TRIAD = 3  # a = b + s c

    @property
    def bytes(self) -> int:
        """Bytes that the kernel reads and writes for an element, as STREAM counts them."""
        return ELEMENT * (2 if self in (Function.COPY, Function.SCALE) else 3)


class Arrays(NamedTuple):
    """The three arrays of STREAM, of the same length."""

    a: Doubles
    b: Doubles
    c: Doubles


class StreamKernels(Protocol):
    """The functions of stream.c. `first` and `count` select elements or units."""

    def stream(self, function: Function, arrays: Arrays, scalar: float, first: int, count: int) -> None:
        """Run one of the four kernels."""

    def fill(self, array: Doubles, value: float, first: int, count: int) -> None:
        """Set elements to a value."""

    def error(self, array: Doubles, value: float, first: int, count: int) -> float:
        """Return the sum of the absolute differences between the elements and a value."""

    def pattern(self, arrays: Arrays, first: int, count: int) -> None:
        """Set the elements of b and c to the values on which units work."""

    def units(self, arrays: Arrays, first: int, count: int) -> int:
        """Do units of the application `stream`, and return their checksum. The length is a multiple of `BLOCK`."""


def arrays(elements: int) -> Arrays:
    """Return three arrays of zeros on pages of their own. A page takes memory when it is written first."""
    try:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        found = [mmap.mmap(-1, elements * ELEMENT, flags=private) for _ in range(3)]
    except (OSError, OverflowError, ValueError) as error:
        raise TestbedError(f"no memory for three arrays of {elements:,} doubles: {error}") from error
    return Arrays(*((ctypes.c_double * elements).from_buffer(memory) for memory in found))


def unit_kernel(size_mib: int = SIZE_MIB) -> kernels.Kernel:
    """Return the kernel of memory-bound units, on arrays that all threads of this process share.

    A unit is a triad on a block of `BLOCK` elements. Blocks follow no order that a cache could predict. The checksum of
    a unit depends on the size of the three arrays, at least one block.
    """
    blocks = size_mib * MIB // (3 * ELEMENT * BLOCK)
    if blocks < 1:
        raise InputError(f"the arrays of STREAM cannot have {size_mib} MiB", hint="at least 1 MiB")
    require(size_mib)
    own, functions = arrays(blocks * BLOCK), load()
    functions.pattern(own, 0, blocks * BLOCK)
    functions.fill(own.a, 0.0, 0, blocks * BLOCK)
    return lambda first, count: functions.units(own, first, count)


@cache
def load() -> StreamKernels:
    """Return the kernels that `TRACEBED_KERNEL` selects."""
    return _C() if kernels.kernel_name() == "c" else _NumPy()


class _C:
    """The compiled kernels."""

    def __init__(self) -> None:
        pointer, size = ctypes.POINTER(ctypes.c_double), ctypes.c_uint64
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "": (None, [ctypes.c_int, pointer, pointer, pointer, ctypes.c_double, size, size]),
            "_fill": (None, [pointer, ctypes.c_double, size, size]),
            "_error": (ctypes.c_double, [pointer, ctypes.c_double, size, size]),
            "_pattern": (None, [pointer, pointer, size, size]),
            "_units": (size, [pointer, pointer, pointer, size, size, size]),
        }
        library = ctypes.CDLL(str(kernels.LIBRARY))  # its functions run without the interpreter lock
        try:
            for name, (result, arguments) in signatures.items():
                function = getattr(library, f"tracebed_stream{name}")
                function.restype, function.argtypes = result, arguments
        except AttributeError as error:
            raise TestbedError(f"the compiled kernels are outdated: {error}", hint="reinstall tracebed") from error
        self._library = library

    def stream(self, function: Function, arrays: Arrays, scalar: float, first: int, count: int) -> None:
        self._library.tracebed_stream(function, *arrays, scalar, first, count)

    def fill(self, array: Doubles, value: float, first: int, count: int) -> None:
        self._library.tracebed_stream_fill(array, value, first, count)

    def error(self, array: Doubles, value: float, first: int, count: int) -> float:
        return float(self._library.tracebed_stream_error(array, value, first, count))

    def pattern(self, arrays: Arrays, first: int, count: int) -> None:
        self._library.tracebed_stream_pattern(arrays.b, arrays.c, first, count)

    def units(self, arrays: Arrays, first: int, count: int) -> int:
        return int(self._library.tracebed_stream_units(*arrays, len(arrays.a) // BLOCK, first, count))


class _NumPy:
    """The same in NumPy. Intermediate results are written to the array of the result, never to a new array."""

    def __init__(self) -> None:
        import numpy

        self._np = numpy

    def _view(self, array: Doubles) -> Any:
        return self._np.frombuffer(memoryview(array), dtype=self._np.float64)

    def stream(self, function: Function, arrays: Arrays, scalar: float, first: int, count: int) -> None:
        np, (a, b, c) = self._np, map(self._view, arrays)
        for start in range(first, first + count, CACHED):
            part = slice(start, min(start + CACHED, first + count))
            match function:
                case Function.COPY:
                    np.copyto(c[part], a[part])
                case Function.SCALE:
                    np.multiply(c[part], scalar, out=b[part])
                case Function.ADD:
                    np.add(a[part], b[part], out=c[part])
                case Function.TRIAD:
                    np.multiply(c[part], scalar, out=a[part])
                    np.add(a[part], b[part], out=a[part])

    def fill(self, array: Doubles, value: float, first: int, count: int) -> None:
        self._view(array)[first : first + count] = value

    def error(self, array: Doubles, value: float, first: int, count: int) -> float:
        return float(self._np.abs(self._view(array)[first : first + count] - value).sum())

    def pattern(self, arrays: Arrays, first: int, count: int) -> None:
        index = self._np.arange(first, first + count)
        for array, prime in ((arrays.b, 1009), (arrays.c, 2003)):
            self._view(array)[first : first + count] = index % prime

    def units(self, arrays: Arrays, first: int, count: int) -> int:
        np, (a, b, c) = self._np, map(self._view, arrays)
        blocks, checksum = len(a) // BLOCK, 0
        for unit in range(first, first + count):
            start = ((unit * 0x9E3779B97F4A7C15 % 2**64 >> 32) * blocks >> 32) * BLOCK
            part = slice(start, start + BLOCK)
            np.multiply(c[part], SCALAR, out=a[part])
            np.add(a[part], b[part], out=a[part])
            checksum += (unit + 1) * int(a[part].sum())
        return checksum % kernels.MODULUS


# The kernels by whose units jobs are sized: name -> function that returns the kernel, for all threads of a process.
KERNELS: dict[str, Callable[[], kernels.Kernel]] = {"pils": lambda: kernels.compute, "stream": unit_kernel}


def kernel_of(name: str) -> kernels.Kernel:
    """Return the kernel `name` for all threads of this process. Raises InputError if the kernel is unknown."""
    if name not in KERNELS:
        raise InputError(f"unknown kernel {name!r}", hint=f"one of {', '.join(KERNELS)}")
    return KERNELS[name]()
