"""The unit of the application `stream`, in C and NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tracebed.benchmarks import kernels
from tracebed.benchmarks.kernels import stream as binding
from tracebed.benchmarks.kernels.stream import BLOCK, StreamKernels, arrays
from tracebed.benchmarks.memory import free_mib
from tracebed.errors import TestbedError


@pytest.fixture(autouse=True)
def fresh_choice() -> Iterator[None]:
    """Reset the choice of the kernel in every test."""
    kernels._pick.cache_clear()
    binding.load.cache_clear()
    yield
    kernels._pick.cache_clear()
    binding.load.cache_clear()


def both() -> tuple[StreamKernels, StreamKernels]:
    try:
        return binding._C(), binding._NumPy()
    except OSError:
        pytest.skip("the C kernels were not built")


def test_units_have_the_checksum_of_their_definition() -> None:
    blocks = 5
    expected = 0
    for unit in range(100):
        block = (unit * 0x9E3779B97F4A7C15 % 2**64 >> 32) * blocks >> 32
        elements = range(block * BLOCK, (block + 1) * BLOCK)
        expected += (unit + 1) * sum(index % 1009 + 3 * (index % 2003) for index in elements)
    for made in both():
        data = arrays(blocks * BLOCK)
        made.pattern(data, 0, len(data.a))
        assert made.units(data, 0, 100) == expected
        assert sum(made.units(data, first, 10) for first in range(0, 100, 10)) == expected
        assert list(data.a[:5]) == [0, 4, 8, 12, 16]
        data.c[3 * BLOCK] += 1  # data that are not read would not matter
        assert made.units(data, 0, 100) != expected


def test_an_outdated_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    both()
    monkeypatch.setattr(kernels, "LIBRARY", "libc.so.6")
    with pytest.raises(TestbedError, match="reinstall"):
        binding._C()


def test_arrays_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(TestbedError, match="no memory"):
        arrays(2**58)


def test_free_memory_is_what_linux_says(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 4096000 kB\nMemAvailable:    2048000 kB\n")
    assert free_mib(tmp_path / "meminfo") == 2000
    assert (free_mib(tmp_path / "absent") or 0) > 0
