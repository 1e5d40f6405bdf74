"""Repetition of failed tests: each test three times, beside three other tests; more than three failures are defects.

    tox -e py311 || tox exec -e py311 -- python tests/again.py [FOLDER OF TESTS]

A test of real processes can fail because other tests use the same two cores. A repetition alone would hide such a race;
three repetitions beside others hide a race that fails in three of ten runs in one of three cases, and `.ci/run` prints
the repeated tests as its last line. The exit status is 0 if all repetitions pass.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

MOST, REPETITIONS, OTHERS = 3, 3, 3
RECORD = "TRACEBED_TEST_REPEATED"
"""Environment variable: the file to which the names of repeated tests are appended."""
CACHE = Path(os.environ.get("TOX_ENV_DIR", ".")) / "cache"
"""The cache of the failed pytest, as in tox.ini."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Forget the exit status of the last run, in case this run is killed."""
    _keep_exit_status(session, None)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep the exit status for `main`: only a run of all tests is one whose failed tests can be repeated."""
    _keep_exit_status(session, int(exitstatus))


def _keep_exit_status(session: pytest.Session, status: int | None) -> None:
    if session.config.pluginmanager.hasplugin("cacheprovider") and not hasattr(session.config, "workerinput"):
        session.config.cache.set("tracebed/exit", status)


def main() -> str | None:
    """Repeat the failed tests of the last run. Return why the run remains failed; None: all repetitions passed."""
    folder = sys.argv[1] if len(sys.argv) > 1 else "tests"
    if _cached("tracebed/exit") == 0:
        return None
    failed = sorted(_cached("cache/lastfailed") or {})
    if _cached("tracebed/exit") != 1 or not failed:  # 1: all tests ran, some failed
        return "pytest did not run all tests: a repetition of failed tests proves nothing"
    record = Path(os.environ.get(RECORD, os.devnull))
    repeated = len(record.read_text().splitlines()) if record.exists() else 0
    if repeated + len(failed) > MOST:
        return f"{repeated + len(failed)} tests failed, at most {MOST} are repeated"
    with record.open("a") as names:
        names.writelines(f"{test}\n" for test in failed)
    for test in failed:
        others = _others(test, folder)
        for number in range(1, REPETITIONS + 1):
            chosen = random.Random(number).sample(others, min(OTHERS, len(others)))
            sys.stderr.write(f"{test}: repetition {number} of {REPETITIONS}, beside {', '.join(chosen)}\n")
            if _pytest("-n", str(1 + OTHERS), "--dist", "load", "-p", "no:cacheprovider", test, *chosen).returncode:
                return f"{test} failed again, or a test beside it"
    return None


def _others(test: str, folder: str) -> list[str]:
    """Return the other tests of the file of `test`; where they are too few, the other tests of the folder."""
    found: list[str] = []
    for place in (test.partition("::")[0], folder):
        listed = _pytest("--collect-only", "-q", place, stdout=subprocess.PIPE).stdout.splitlines()
        found = [line for line in listed if "::" in line and line != test]
        if len(found) >= OTHERS:
            break
    return found


def _cached(name: str) -> object:
    file = CACHE / "v" / name
    return json.loads(file.read_text()) if file.exists() else None


def _pytest(*arguments: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], stdout=stdout, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
