"""Repetition of failed tests (`again.py`), on folders of small tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
PASSING = "".join(f"def test_passes_{number}(): pass\n" for number in range(4))
HOOKS = "from again import pytest_sessionfinish, pytest_sessionstart\n"

Repeat = Callable[[str], subprocess.CompletedProcess[str]]


def fails_until(file: Path, count: int, name: str = "test_fails_at_first") -> str:
    """Return a test that fails in its first `count` runs, counted by the size of `file`."""
    return (
        f"def {name}():\n"
        f"    file = __import__('pathlib').Path({str(file)!r})\n"
        "    runs = len(file.read_text()) if file.exists() else 0\n"
        "    file.write_text('x' * (runs + 1))\n"
        f"    assert runs >= {count}\n"
    )


@pytest.fixture
def repeat(tmp_path: Path) -> Repeat:
    """Return a function that runs tests with one module, then `again.py`, and returns how the latter ended."""
    (tmp_path / "conftest.py").write_text(HOOKS)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "-p xdist",
        "TOX_ENV_DIR": str(tmp_path),
        "TRACEBED_TEST_REPEATED": str(tmp_path / "record"),
    }

    def run(module: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_drawn.py").write_text(module)
        tests = [sys.executable, "-m", "pytest", "-q", "-o", "cache_dir=cache", "-p", "no:randomly", "."]
        subprocess.run(tests, cwd=tmp_path, env=environment, check=False, capture_output=True)
        command = [sys.executable, str(ROOT / "again.py"), "."]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)

    return run


@pytest.mark.slow
def test_no_test_that_fails_again_passes(repeat: Repeat, tmp_path: Path) -> None:
    done = repeat(PASSING + fails_until(tmp_path / "runs", 2))
    assert done.returncode == 1
    assert "test_fails_at_first failed again" in done.stderr


@pytest.mark.slow
def test_a_test_that_failed_once_runs_three_times_beside_three_others(repeat: Repeat, tmp_path: Path) -> None:
    done = repeat(PASSING + fails_until(tmp_path / "runs", 1))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs").read_text() == "x" * 4
    assert done.stdout.count("4 passed") == 3
    assert (tmp_path / "record").read_text() == "test_drawn.py::test_fails_at_first\n"


def test_no_more_than_three_failures_are_repeated(repeat: Repeat, tmp_path: Path) -> None:
    module = PASSING + "".join(fails_until(tmp_path / f"runs{name}", 1, f"test_{name}") for name in "abcd")
    done = repeat(module)
    assert (done.returncode, done.stderr) == (1, "4 tests failed, at most 3 are repeated\n")


def test_no_run_that_was_cut_short_counts_as_repeated(repeat: Repeat) -> None:
    done = repeat(PASSING + "def test_ends():\n    __import__('pytest').exit('cut short', returncode=3)\n")
    assert done.returncode == 1
    assert "did not run all tests" in done.stderr


def test_passed_runs_need_no_repetition(repeat: Repeat) -> None:
    done = repeat(PASSING)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("made", "status", "repeated"), [(["py311"], 0, "py311\n"), ([], 1, ""), (["py312"], 1, "py312\n")]
)
def test_only_pythons_that_are_installed_are_repeated(
    tmp_path: Path, made: list[str], status: int, repeated: str
) -> None:
    """`.ci/run`: tox makes a folder for a missing Python, too. In this test, the repetition fails under Python 3.12."""
    (text,) = re.findall(
        r"^again\(\) \{\n.*?^\}\n", (ROOT.parent / ".ci" / "run").read_text(), re.MULTILINE | re.DOTALL
    )
    tox = tmp_path / ".venv" / "bin" / "tox"
    tox.parent.mkdir(parents=True)
    tox.write_text('#!/bin/sh\necho "$3"; test "$3" != py312\n')
    tox.chmod(0o700)
    for environment in ("py311", "py312", "py313"):
        (tmp_path / ".tox" / environment / "log").mkdir(parents=True)
    for environment in made:
        (tmp_path / ".tox" / environment / "bin").mkdir()
        (tmp_path / ".tox" / environment / "bin" / "python").touch()
    command = f"set -euo pipefail\n{text}\nagain py311 py312 py313"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (status, repeated)
