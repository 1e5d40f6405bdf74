"""The history of a baseline: its versions in Git, or several files, as one table."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from tracebed.ground.errors import InputError
from tracebed.validation.verdict.baseline import Baseline

COLUMNS = ["version", "date", "simulator", "verdict", "metric", "gate", "z", "metric_verdict"]


class Version(NamedTuple):
    """A version of a baseline."""

    name: str
    """Abbreviated hash of the commit, or name of the file."""
    date: str
    """Date of the commit, ISO 8601; empty for a file."""
    baseline: Baseline


def history(paths: Sequence[Path]) -> pd.DataFrame:
    """Return the history of a baseline, oldest first.

    Args:
        paths: a file whose versions are those committed to its Git repository; or several files in their order.

    Returns:
        A row per version, simulator and metric: `version`, `date`, `simulator`, its `verdict`, `metric`, `gate`
        (whether the verdict depends on the metric), `z` (mean error over the cases, in margins), and `metric_verdict`.

    Raises:
        InputError: a version is not a baseline, or the file is not in a Git repository.
    """
    if len(paths) == 1:
        versions = list(_committed(paths[0]))
    else:
        versions = [Version(path.stem, "", Baseline.load(path)) for path in paths]
    rows = [
        (name, date, simulator, found.verdict, metric, each.gate, each.z, each.verdict)
        for name, date, baseline in versions
        for simulator, found in baseline.simulators.items()
        for metric, each in found.metrics.items()
    ]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"z": "float64"})


def _committed(path: Path) -> Iterator[Version]:
    """Yield the committed versions of a file, oldest first, and the file itself if it has changed since."""
    lines = _git(path, "log", "--reverse", "--format=%h %cI", "--", path.name).splitlines()
    last = ""
    for line in lines:
        name, date = line.split()
        if _git(path, "ls-tree", name, "--", f"./{path.name}"):  # the file may be deleted in this commit
            last = _git(path, "show", f"{name}:./{path.name}")
            yield Version(name, date, Baseline.parse(last, f"{path} at {name}"))
    if path.exists() and path.read_text(encoding="utf-8") != last:
        yield Version("now" if lines else path.stem, "", Baseline.load(path))


def _git(path: Path, *command: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(path.resolve().parent), *command], capture_output=True, encoding="utf-8", check=False
        )
    except OSError as error:
        raise InputError(f"git: {error.strerror}", hint="install Git, or give several files") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()  # an advice may follow the error
        reason = next((line for line in lines if line.startswith(("fatal: ", "error: "))), (lines or ["failed"])[-1])
        raise InputError(f"git {command[0]}: {reason}", where=str(path), hint="give several files in their order")
    return done.stdout
