"""The history of a simulator: its results over the versions of a baseline, and the steps of its errors.

The versions are those of a file in Git, or several files. A record of a CI job is named by its commit and when that
was made, so that the history of records needs no repository.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import InputError
from tracebed.validation.verdict.baseline import GROWTH, Baseline

COLUMNS = ["version", "date", "simulator", "verdict", "metric", "gate", "z", "metric_verdict"]
STEP_COLUMNS = ["simulator", "metric", "version", "date", "previous", "before", "after"]
RECORD = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z-(?P<commit>[0-9a-f]{7,64})")
"""Name of a file without its ending: when its commit was made (UTC), and the hash of the commit."""
COMMIT_DIGITS = 8  # of a hash in a table
PENALTY = 6.0  # cost of a step is this times the variance of the noise times log n: see `breaks`
MAD = 0.6745 * 2**0.5  # median absolute difference of two normal values, in standard deviations


class Version(NamedTuple):
    """A version of a baseline."""

    name: str  # abbreviated hash of the commit, or name of the file
    date: str  # date of the commit, ISO 8601; empty for a file
    baseline: Baseline


def history(paths: Sequence[Path]) -> pd.DataFrame:
    """Return the history of a baseline, oldest first: of one file in its Git repository, or of several in their order.

    A row per version, simulator and metric: `version`, `date`, `simulator`, its `verdict`, `metric`, `gate` (whether
    the verdict depends on the metric), `z` (mean error over the cases, in margins), and `metric_verdict`.
    """
    one = len(paths) == 1 and not RECORD.fullmatch(paths[0].stem)
    versions = list(_committed(paths[0])) if one else [_version(path) for path in paths]
    rows = [
        (name, date, simulator, found.verdict, metric, each.gate, each.z, each.verdict)
        for name, date, baseline in versions
        for simulator, found in baseline.simulators.items()
        for metric, each in found.metrics.items()
    ]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"z": "float64"})


def _version(path: Path) -> Version:
    """Return the version in a file."""
    if found := RECORD.fullmatch(path.stem):
        return Version(found["commit"][:COMMIT_DIGITS], _date(found), Baseline.load(path))
    return Version(path.stem, "", Baseline.load(path))


def commit_of(path: Path) -> tuple[str, str]:
    """Return the hash of the commit of a record, and its day; both are empty if the file is not a record."""
    found = RECORD.fullmatch(path.stem)
    return (found["commit"], _date(found)[:10]) if found else ("", "")


def _date(found: re.Match[str]) -> str:
    return "{}-{}-{}T{}:{}:{}Z".format(*found.groups())


def steps(table: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of the errors of a history (as from `history`), in the order of the versions.

    A row per step: `simulator`, `metric`; `version`, the first one with the new level, and its `date`; `previous`, the
    last version with the old level; `before` and `after`, the levels: mean errors in margins.
    """
    order = {name: number for number, name in enumerate(dict.fromkeys(table["version"]))}
    rows: list[tuple[Any, ...]] = []
    for (simulator, metric), own in table[table["z"].notna()].groupby(["simulator", "metric"], sort=False):
        z, names, dates = own["z"].to_numpy(np.float64), list(own["version"]), list(own["date"])
        edges = [0, *breaks(z), len(z)]
        levels = [float(z[begin:end].mean()) for begin, end in pairwise(edges)]
        rows += [
            (simulator, metric, names[at], dates[at], names[at - 1], *levels[number : number + 2])
            for number, at in enumerate(edges[1:-1])
        ]
    rows.sort(key=lambda row: order[row[2]])
    return pd.DataFrame(rows, columns=STEP_COLUMNS)


def breaks(values: FloatArray) -> list[int]:
    """Return where a series steps: the index of the first value of each level but the first.

    The levels are those of the least sum of squared deviations with a penalty for each step, found exactly (Jackson et
    al. 2005). The penalty is a multiple of the variance of the noise times log n (Yao 1988 has the multiple 2, for a
    known variance and long series). The noise is the median absolute difference of neighbors. A deterministic simulator
    has none: each change of at least `GROWTH` margins is then a step, from four values on. With white noise, a series
    of ten or more has a false step in at most 5 % of the cases, one of four to eight in about 10 %; a step of three
    standard deviations in the middle is found to one value in 65 % of series of 10, 89 % of 20, and 97 % of 40.

    References: Jackson et al., IEEE Signal Processing Letters 12, 2005. Yao, Statistics & Probability Letters 6, 1988.

    Args:
        values: finite values, shape (n,).
    """
    n = len(values)
    if n < 2:
        return []
    noise = float(np.median(np.abs(np.diff(values)))) / MAD
    penalty = max(PENALTY * noise**2 * np.log(n), GROWTH**2 / 2)
    sums, squares = (np.concatenate(([0.0], np.cumsum(each))) for each in (values, values**2))
    least, last = np.zeros(n + 1), np.zeros(n + 1, dtype=int)  # of the first values: cost, and begin of the last level
    for end in range(1, n + 1):
        within = squares[end] - squares[:end] - (sums[end] - sums[:end]) ** 2 / (end - np.arange(end))
        costs = least[:end] + within + penalty
        last[end] = int(costs.argmin())
        least[end] = costs[last[end]]
    found, end = [], int(last[n])
    while end:
        found.append(end)
        end = int(last[end])
    return found[::-1]


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


def run_git(
    *command: str, hint: str = "install Git", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of Git, and return its status and output. Raises InputError with `hint` if there is no Git."""
    try:
        return subprocess.run(
            ["git", *command], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", env=env, check=False
        )
    except OSError as error:
        raise InputError(f"git: {error.strerror}", hint=hint) from error


def _git(path: Path, *command: str) -> str:
    done = run_git("-C", str(path.resolve().parent), *command, hint="install Git, or give several files")
    if done.returncode:
        lines = done.stderr.strip().splitlines()  # an advice may follow the error
        reason = next((line for line in lines if line.startswith(("fatal: ", "error: "))), (lines or ["failed"])[-1])
        raise InputError(f"git {command[0]}: {reason}", where=str(path), hint="give several files in their order")
    return done.stdout
