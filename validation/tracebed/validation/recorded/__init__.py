"""Recorded suites: real runs of small workloads that are part of the package, for the validation of simulators.

A suite is a zip file: `suite.yaml` for `tracebed validate`, the workloads, and the runs of each case without journal
and node samples. `index.yaml` lists the suites.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import yaml

from tracebed.ground.errors import InputError
from tracebed.ground.registry import unknown
from tracebed.orchestrator.run import Run

ROOM = files(__package__)
INDEX = "index.yaml"
REAL = "real"  # folder of the real runs in a suite: `real/CASE/rep-01`


@dataclass(frozen=True)
class RecordedSuite:
    """A recorded suite of the package."""

    name: str
    title: str  # what was run where, in one line
    cases: int  # number of cases: workloads x policies
    runs: int  # number of real runs of all cases
    jobs: int  # number of jobs of all cases
    recorded: str  # date of the first run, ISO 8601
    sha256: str  # SHA-256 of the zip file

    @property
    def data(self) -> bytes:
        """The zip file. InputError: it is missing or was changed, so the installation is damaged."""
        file = ROOM / f"{self.name}.zip"
        content = file.read_bytes() if file.is_file() else b""
        if hashlib.sha256(content).hexdigest() != self.sha256:
            what = "the recorded suite is missing or was changed"
            raise InputError(what, where=str(file), hint="install tracebed again")
        return content


def recorded_suites() -> dict[str, RecordedSuite]:
    """Return the recorded suites of the package by name."""
    content = yaml.safe_load((ROOM / INDEX).read_text(encoding="utf-8")) or {}
    return {name: RecordedSuite(name, **facts) for name, facts in content.items()}


def recorded_suite(name: str) -> RecordedSuite:
    """Return the recorded suite `name`.

    Raises:
        InputError: there is no such suite.
    """
    known = recorded_suites()
    if name not in known:
        raise unknown("recorded suite", name, list(known))
    return known[name]


def unpack(name: str, folder: Path) -> Path:
    """Copy a recorded suite to `folder`, which must not exist or be empty. Return the suite file.

    Raises:
        InputError: there is no such suite, or `folder` has content or cannot be written.
    """
    suite = recorded_suite(name)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError("exists and is not empty", where=str(folder), hint="name another folder with -o")
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(io.BytesIO(suite.data)) as archive:
            archive.extractall(folder)
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}"
        raise InputError(what, where=str(folder), hint="name another folder with -o") from error
    return folder / "suite.yaml"


@contextmanager
def unpacked(name: str) -> Iterator[Path]:
    """Copy a recorded suite to a temporary folder for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="tracebed-recorded-") as scratch:
        unpack(name, Path(scratch))
        yield Path(scratch)


def recorded_runs(name: str) -> dict[str, tuple[Run, ...]]:
    """Return the real runs of a recorded suite by case (`cirne-easy`), in the order of their names."""
    with unpacked(name) as folder:
        cases = sorted(path for path in (folder / REAL).iterdir() if path.is_dir())
        return {case.name: tuple(Run.load(path) for path in sorted(case.iterdir())) for case in cases}
