"""The compute kernels: the same work in C and NumPy, counted in units, without the interpreter lock."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.patience import until
from tracebed.benchmarks import kernels
from tracebed.ground.errors import InputError, TestbedError

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = 5
"""Number of shared libraries that the build makes."""


@pytest.fixture(autouse=True)
def fresh_choice() -> Iterator[None]:
    """Reset the choice of the kernel in every test."""
    kernels._pick.cache_clear()
    yield
    kernels._pick.cache_clear()


def c_kernel() -> kernels.Kernel:
    try:
        return kernels._load(kernels.LIBRARY)
    except OSError:
        pytest.skip("the C kernel was not built")


def by_definition(units: int) -> int:
    """Return the sum of `units` units as pils.c defines it, in plain Python."""
    total = 0
    for unit in range(units):
        for lane in range(kernels.LANES):
            x = (unit * 2654435769 + lane + 1) % 2**32
            for _ in range(kernels.SWEEPS):
                x ^= (x << 13) % 2**32
                x ^= x >> 17
                x ^= (x << 5) % 2**32
            total += x
    return total % 2**64


def test_both_kernels_do_the_same_work() -> None:
    c, numpy = c_kernel(), kernels._numpy_kernel()
    assert c(0, 3) == numpy(0, 3) == by_definition(3)
    for first, units in ((0, 0), (0, 1), (7, 15), (16, 16), (3, 17), (10**12, 100)):
        assert c(first, units) == numpy(first, units), (first, units)
    assert c(5, 0) == 0


@given(st.integers(0, 2**40), st.lists(st.integers(0, 40), max_size=5))
def test_the_checksum_does_not_depend_on_the_division(first: int, lengths: list[int]) -> None:
    c, begin, total = c_kernel(), first, 0
    for length in lengths:
        total += c(begin, length)
        begin += length
    assert total % 2**64 == c(first, sum(lengths))


def test_without_the_library_numpy_is_used_with_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRACEBED_KERNEL", raising=False)
    monkeypatch.setattr(kernels, "LIBRARY", tmp_path / "absent.so")
    with pytest.warns(UserWarning, match="install a C compiler"):
        assert kernels.kernel_name() == "numpy"
    assert kernels.compute(0, 2) == by_definition(2)
    kernels._pick.cache_clear()
    monkeypatch.setenv("TRACEBED_KERNEL", "c")
    with pytest.raises(TestbedError, match="the C kernel is missing"):
        kernels.compute(0, 1)


def test_an_outdated_library_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A checkout whose library was compiled from earlier sources must not call functions that have changed."""
    (tmp_path / "old.c").write_text("int tracebed_pils(void) { return 0; }\n", encoding="utf-8")
    done = subprocess.run(["cc", "-shared", "-o", tmp_path / "old.so", tmp_path / "old.c"], check=False)
    if done.returncode:
        pytest.skip("needs a C compiler: apt-get install gcc")
    monkeypatch.setattr(kernels, "LIBRARY", tmp_path / "old.so")
    monkeypatch.setenv("TRACEBED_KERNEL", "c")
    with pytest.raises(TestbedError, match=r"the C kernel is missing: .* is outdated"):
        kernels.compute(0, 1)


def test_the_kernel_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEBED_KERNEL", "numpy")
    with pytest.warns(UserWarning, match="slower NumPy kernel"):
        assert kernels.kernel_name() == "numpy"
    kernels._pick.cache_clear()
    monkeypatch.setenv("TRACEBED_KERNEL", "fortran")
    with pytest.raises(InputError, match="fortran"):
        kernels.compute(0, 1)


@pytest.mark.parametrize("name", ["c", "numpy"])
def test_other_threads_run_while_a_kernel_does(name: str) -> None:
    kernel = c_kernel() if name == "c" else kernels._numpy_kernel()
    calls, turns = [], [0.0]
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            begun = time.monotonic()
            kernel(0, 20_000 if name == "c" else 2_000)
            calls.append((begun, time.monotonic()))

    def has_run_meanwhile() -> bool:
        """Return whether this thread ran well within a call. On a busy machine it may miss some calls."""
        turns.append(time.monotonic())
        middle = [(begun + (ended - begun) / 4, ended - (ended - begun) / 4) for begun, ended in calls[-1:]]
        return any(first < turn < last for first, last in middle for turn in turns)

    thread = threading.Thread(target=compute)
    thread.start()
    found = until(has_run_meanwhile, pause_s=0.001)  # with the lock held, this thread runs only between two calls
    over.set()
    thread.join()
    assert found


def test_calibration_is_the_median_rate_by_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = 0.0, 0

    def compute(first: int, units: int) -> None:
        nonlocal clock, calls
        calls += 1
        slow = calls == 1 or calls % 5 == 0  # a cold first call and occasional disturbed calls
        clock += units / 5000.0 * (3.0 if slow else 1.0)

    monkeypatch.setattr(kernels, "compute", compute)
    monkeypatch.setattr(kernels.time, "thread_time", lambda: clock)
    assert kernels.calibrate(0.2) == pytest.approx(5000.0)


def test_the_c_kernel_needs_no_numpy() -> None:
    c_kernel()
    code = "import sys; from tracebed.benchmarks.kernels import compute; compute(0, 1); "
    code += "print('numpy' in sys.modules)"
    environment = {key: value for key, value in os.environ.items() if key != "TRACEBED_KERNEL"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


# The build hook


class App:
    """A recorder of the hook's warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def display_warning(self, text: str) -> None:
        self.warnings.append(text)


def build(root: Path) -> tuple[dict[str, Any], list[str]]:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    hooks: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    for name in hooks.LIBRARIES:
        shutil.copytree((ROOT / name).parent, (root / name).parent, ignore=shutil.ignore_patterns("*.so"))
    app, data = App(), {"artifacts": [], "pure_python": True}
    hooks.CompileHook(str(root), {}, None, None, str(root), "wheel", app).initialize("standard", data)
    return data, app.warnings


@pytest.mark.slow
def test_the_build_makes_a_library_that_works(tmp_path: Path) -> None:
    data, said = build(tmp_path)
    if said:
        pytest.skip(said[0])
    library = tmp_path / str(data["artifacts"][0])
    assert kernels._load(library)(0, 2) == by_definition(2)
    assert not data["pure_python"] and str(data["tag"]).startswith("py3-none-linux")


@pytest.mark.parametrize("compiler", [None, "false", "no-such-compiler -O9"])
def test_the_build_succeeds_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str | None
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere" if compiler is None else os.environ["PATH"])
    monkeypatch.delenv("CC", raising=False)
    if compiler is not None:
        monkeypatch.setenv("CC", compiler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data, said = build(tmp_path)
    assert data == {"artifacts": [], "pure_python": True}
    assert len(said) == (1 if compiler is None else LIBRARIES) and all("slower" in warning for warning in said)
