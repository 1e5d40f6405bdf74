"""Differences job by job between predictions and all repetitions of a real run: for diagnosis, never a gate.

The jobs of a run are not repetitions of an experiment, so none of these figures is a test. The distances between runs
show whether a prediction is as close to the real runs as these are to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.table import Table, concatenated, encoded
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import MeasuredRun
from tracebed.validation.metrics.jobs import ROUNDING_S, resolution
from tracebed.validation.statistics import Differences, apart, differences, harrell_davis, kendall_tau

if TYPE_CHECKING:
    import pandas as pd

DECILES = tuple(percent / 100 for percent in range(10, 100, 10))
PLACED_S = 15.0  # largest difference of a job that counts as placed, s
DECIMALS = 6  # decimals of a second to which values are rounded where equal values count


@dataclass(frozen=True)
class Shift:
    """Shift function: the deciles of both distributions (Doksum 1974), by the estimator of Harrell and Davis (1982)."""

    probabilities: tuple[float, ...]
    real: tuple[float, ...]  # mean over the real runs of each decile, in the unit of the quantity
    low: tuple[float, ...]  # smallest value of each decile among the real runs
    high: tuple[float, ...]  # largest value of each decile among the real runs
    predicted: tuple[float, ...]  # mean over the predictions of each decile

    @property
    def difference(self) -> tuple[float, ...]:
        """Predicted - real, for each decile."""
        return tuple(b - a for a, b in zip(self.real, self.predicted, strict=True))


@dataclass(frozen=True)
class PerJob(Differences):
    """Differences of one quantity job by job: d = mean over the predictions - mean over the real repetitions.

    `wasserstein` and `kendall_tau` are means over all pairs of a prediction and a real run. Figures that need two real
    runs are NaN for one.
    """

    quantity: str  # a column of `metrics.per_job`: `wait`, `run`, `response` (s) or `bounded_slowdown`
    repeats: int  # number of real runs
    runs: int  # number of predictions
    unmatched: int  # Jobs that ended in some of the runs only. These jobs are not part of the figures.
    # Share of the jobs whose predicted value lies between the smallest and the largest real value.
    inside_envelope: float
    inside_expected: float  # this share for one more real run, in the mean: (repeats - 1) / (repeats + 1)
    placed: float  # share of the jobs that are placed: within `PLACED_S` of a real run, mean over the pairs
    shift: Shift
    wasserstein_real: float  # Wasserstein-1 distance, mean over the pairs of real runs
    # Kolmogorov-Smirnov distance of the two distributions, mean over the pairs. It is not an accuracy test.
    ks_d: float
    # Root mean square of the differences job by job between any two runs: first the real runs, then the predictions, in
    # the order in which they were given.
    distances: tuple[tuple[float, ...], ...]
    # A row per job: job_id, kind, nodes, submit (s), real (mean), low, high (smallest and largest real value),
    # predicted (mean).
    jobs_facts: Table = field(repr=False, compare=False)

    @property
    def jobs_table(self) -> pd.DataFrame:
        """`jobs_facts` as a frame, made for each call."""
        return self.jobs_facts.frame()

    @property
    def noise_ratio(self) -> float:
        """Mean distance of predictions from real runs / mean distance between real runs; NaN if unknown or 0."""
        # One more real run has a ratio of 1 in the mean. A prediction of the mean wait of every job has a ratio of
        # 0.71.
        between = self.distance_real
        return self.distance / between if between > 0 else float("nan")

    @property
    def distance(self) -> float:
        """Mean distance of a prediction from a real run."""
        return float(np.mean([row[self.repeats :] for row in self.distances[: self.repeats]]))

    @property
    def distance_real(self) -> float:
        """Mean distance between two real runs; NaN for one real run."""
        pairs = [self.distances[i][k] for i in range(self.repeats) for k in range(i)]
        return float(np.mean(pairs)) if pairs else float("nan")

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values, without the table of the jobs."""
        shown = {name: value for name, value in vars(self).items() if name not in ("jobs_facts", "shift")}
        return shown | {
            "limits": list(self.limits),
            "shift": {name: list(values) for name, values in asdict(self.shift).items()},
            "distances": [list(row) for row in self.distances],
            "noise_ratio": self.noise_ratio,
        }


def per_job(
    real: Sequence[MeasuredRun | Run], predicted: Sequence[MeasuredRun | Run], quantity: str = "wait"
) -> PerJob | None:
    """Return the differences of a column of `metrics.per_job` over two or more jobs that ended in all runs, or None."""
    sides = [run if isinstance(run, MeasuredRun) else MeasuredRun(run) for run in (*real, *predicted)]
    ended = [side.finished for side in sides]
    ids = [table.raw("job_id") for table in ended]
    if all(own.equals(ids[0]) for own in ids[1:]):  # in the same order, which needs no dictionary of all ids
        codes = np.tile(np.arange(len(ended[0])), len(sides))
    else:
        codes, _ = encoded(concatenated(ids))
    in_all = np.bincount(codes) == len(sides)
    if in_all.sum() < 2:
        return None
    numbers = np.split(codes, np.cumsum([len(table) for table in ended])[:-1])
    common = numbers[0][in_all[numbers[0]]]
    values = np.empty((len(sides), len(common)))
    for row, table, own in zip(values, ended, numbers, strict=True):
        place = np.empty(len(in_all), dtype=np.int64)
        place[own] = np.arange(len(own))
        row[:] = table[quantity][place[common]]
    count = len(real)
    truth, found = values[:count], values[count:]
    of_means = differences(found.mean(axis=0), truth.mean(axis=0))
    assert of_means is not None  # there are at least two jobs
    ordered = np.sort(values, axis=1)
    pairs = [(count + s, r) for r in range(count) for s in range(len(found))]
    low, high = truth.min(axis=0), truth.max(axis=0)
    rounding = max(resolution(side.run) for side in sides)
    inside = (found >= low - rounding) & (found <= high + rounding)
    facts = ended[0].take(in_all[numbers[0]])
    facts = Table({name: facts.raw(name) for name in ("job_id", "kind", "nodes", "submit")})
    of_pairs = asdict(of_means) | {
        "wasserstein": _mean([np.abs(ordered[i] - ordered[k]).mean() for i, k in pairs]),
        "kendall_tau": _mean([kendall_tau(values[i], values[k]) for i, k in pairs]),
    }
    return PerJob(
        **of_pairs,
        quantity=quantity,
        repeats=count,
        runs=len(found),
        unmatched=int((~in_all).sum()),
        inside_envelope=float(inside.mean()),
        inside_expected=(count - 1) / (count + 1) if count > 1 else float("nan"),
        placed=_mean([float((np.abs(values[i] - values[k]) <= PLACED_S + ROUNDING_S).mean()) for i, k in pairs]),
        shift=_shift(ordered, count),
        wasserstein_real=_mean([np.abs(ordered[i] - ordered[k]).mean() for i in range(count) for k in range(i)]),
        ks_d=_mean([_ks_distance(ordered[i], ordered[k]) for i, k in pairs]),
        distances=tuple(tuple(float(np.sqrt(((a - b) ** 2).mean())) for b in values) for a in values),
        jobs_facts=facts.assign(real=truth.mean(axis=0), low=low, high=high, predicted=found.mean(axis=0)),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _shift(ordered: FloatArray, count: int) -> Shift:
    """Return the shift function of runs with ascending values, shape (runs, jobs); the first `count` runs are real."""
    deciles = harrell_davis(ordered, DECILES)
    real = deciles[:count]
    parts = (real.mean(axis=0), real.min(axis=0), real.max(axis=0), deciles[count:].mean(axis=0))
    return Shift(DECILES, *(tuple(part.tolist()) for part in parts))


def _ks_distance(a: FloatArray, b: FloatArray) -> float:
    """Return the largest difference of two empirical distribution functions; `a` and `b` are ascending."""
    # Values are rounded to microseconds: differences of times have rounding errors, so that equal values would differ.
    a, b = np.round(a, DECIMALS), np.round(b, DECIMALS)
    return float(apart(a, b, np.concatenate((a, b))).max())
