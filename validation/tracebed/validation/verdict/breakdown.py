"""Breakdown of the differences between prediction and real run by classes of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from tracebed.converters.description import local_dates
from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.table import rows_of
from tracebed.orchestrator.run import Run

QUANTITIES = ("wait", "run", "response", "bounded_slowdown")
"""Quantities whose differences are broken down: s, s, s, 1."""
USERS = 8
"""Number of users with a class of their own: those with the most jobs."""
SIZES = 2 ** np.arange(62)
"""Largest size of each class of sizes, nodes."""
DECADES_S = 10.0 ** np.arange(16)
"""Smallest run time of each class of run times except the first, s."""


def breakdown(jobs: pd.DataFrame, real: Run) -> pd.DataFrame:
    """Return the differences predicted - real by classes of jobs.

    Args:
        jobs: table of matched jobs, as in `Comparison.jobs`.
        real: the real run, for the run times and users of the workload.

    Returns:
        A row per classification, class and quantity. Times are in s.

        - `by`: `size` (requested nodes, by powers of two), `run time` (dedicated, in the workload, by decades; that of
          the real run if unknown), `user` (the `USERS` users with the most jobs, and the others; only if users are
          known), `behaviour` (only if known), `hour` (of the day of the planned submission, in the time zone of the
          workload; hours since time 0 modulo 24 if the date is unknown), `kind`
        - `class`, `quantity` (of `QUANTITIES`), `jobs`
        - `real`, `predicted`, `difference`: means over the class
        - `contribution`: the part of the difference of the mean over all jobs that is due to the class: difference x
          jobs of the class / all jobs. The contributions of a classification add up to the difference
        - `share`: contribution / difference of the mean over all jobs; negative if the class differs the other way,
          NaN if the means do not differ
    """
    rows = rows_of(jobs["job_id"], real.jobs["job_id"])
    facts = real.jobs.iloc[rows]
    tables = [_by_class(by, codes, labels, jobs) for by, codes, labels in _classifications(jobs, facts, real)]
    return pd.concat(tables, ignore_index=True)


def _by_class(by: str, codes: IntArray, labels: list[str], jobs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one classification: `codes` (a class per job) index `labels`."""
    count = np.bincount(codes, minlength=len(labels))

    def mean(column: str) -> FloatArray:
        values = jobs[column].to_numpy(dtype=np.float64)
        return np.bincount(codes, weights=values, minlength=len(labels)) / count

    found = []
    for quantity in QUANTITIES:
        real, predicted = mean(f"{quantity}_real"), mean(f"{quantity}_predicted")
        contribution = (predicted - real) * count / max(len(jobs), 1)
        total = contribution.sum()
        table = {"class": labels, "quantity": quantity, "jobs": count, "real": real, "predicted": predicted}
        table |= {"difference": predicted - real, "contribution": contribution}
        found.append(pd.DataFrame(table | {"share": contribution / total if total else np.nan}))
    return pd.concat(found).assign(by=by)[["by", *found[0].columns]]


def _classifications(jobs: pd.DataFrame, facts: pd.DataFrame, real: Run) -> Iterator[tuple[str, IntArray, list[str]]]:
    """Yield name, class of each job, and labels of each classification."""
    sizes = np.searchsorted(SIZES, jobs["nodes"].to_numpy(), side="left")
    yield "size", *numbered(np.where(jobs["nodes"] > 0, sizes, -1), size_label)
    planned = facts["run_time"].to_numpy(dtype=np.float64)
    run_time = np.where(np.isfinite(planned), planned, jobs["run_real"].to_numpy(dtype=np.float64))
    yield "run time", *numbered(np.searchsorted(DECADES_S, run_time, side="right"), _decade)
    if facts["user"].ne("").any():
        yield "user", *most_frequent(facts["user"])
    if facts["behaviour"].ne("").any():
        codes, behaviours = pd.factorize(facts["behaviour"].replace("", "unknown"), sort=True)
        yield "behaviour", codes, behaviours.tolist()
    yield "hour", *numbered(_hours(facts, real), lambda hour: f"{hour:02d}")
    codes, kinds = pd.factorize(jobs["kind"], sort=True)
    yield "kind", codes, kinds.tolist()


def numbered(classes: IntArray, label: Callable[[int], str]) -> tuple[IntArray, list[str]]:
    """Return the class of each job as an index, and the labels of the classes in ascending order."""
    numbers, codes = np.unique(classes, return_inverse=True)
    return codes, [label(int(number)) for number in numbers]


def size_label(number: int) -> str:
    """Return the name of a class of sizes; -1: unknown."""
    high = 2**number if number >= 0 else 0
    return (f"{high}" if high <= 2 else f"{high // 2 + 1:,} to {high:,}") if high else "unknown"


def _decade(number: int) -> str:
    return f"{10 ** (number - 1):,} to {10**number:,} s" if number else "below 1 s"


def most_frequent(names: pd.Series[str]) -> tuple[IntArray, list[str]]:
    """Return the class of each job and the labels: the names with the most jobs, then the others."""
    largest = names.value_counts().index[:USERS]
    codes = largest.get_indexer(pd.Index(names))
    labels = [name or "unknown" for name in largest]
    if (codes < 0).any():
        codes, labels = np.where(codes < 0, len(labels), codes), [*labels, "others"]
    return codes, labels


def _hours(facts: pd.DataFrame, real: Run) -> IntArray:
    """Return the hour of the day of the planned submission of each job, from 0 to 23."""
    planned = facts["submit_planned"].to_numpy(dtype=np.float64)
    seconds = np.where(np.isfinite(planned), planned, facts["submit"].to_numpy(dtype=np.float64))
    provenance = real.info.workload.get("provenance") or {}
    start, zone = provenance.get("unix_start"), provenance.get("time_zone")
    known = isinstance(start, (int, float)) and isinstance(zone, str | None)  # run.json may have been edited
    dates = local_dates(seconds, start, zone) if known else None
    return (seconds // 3600 % 24 if dates is None else np.asarray(dates.hour)).astype(np.int64)
