"""The statistics of repeated replays: mean, variation, health, drift, and errors of the predictions.

Repetitions on a machine whose speed changes are not independent. Drift and correlation over the sequence of repetitions
use the deviations of the repetitions from the mean of their cell, in the order of execution. Under independence all
orders of the values of a cell are equally likely, so the distribution of both statistics follows from random
permutations within each cell. Neither a normal distribution nor equal variances of the cells are assumed.

In the slope, cells that vary more than the median cell are weighted by the inverse of their variance. Otherwise one
noisy cell would hide the drift of all others. For one cell of n repetitions the lag-1 correlation has the mean -1/n and
a standard deviation of about 1/sqrt(n) (Moran, Some theorems on time series II, Biometrika 1948).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.run import Run
from tracebed.validation.experiments import store
from tracebed.validation.experiments.cell import Slot
from tracebed.validation.experiments.store import Attempt
from tracebed.validation.metrics import metrics
from tracebed.validation.verdict import screening
from tracebed.validation.verdict.health import Health

IntArray: TypeAlias = NDArray[np.intp]

PERMUTATIONS = 2000
LEVEL = 0.95  # probability of the interval in which the correlation of independent repetitions lies
_AT_ONCE = 2_000_000  # largest number of values that are permuted at once, which bounds the memory


@dataclass(frozen=True)
class Dependence:
    """Drift and lag-1 correlation of one metric."""

    runs: int  # number of repetitions used: those of cells with at least two different values
    drift_percent: float  # slope over the sequence, in percent of the mean of the cell per run
    drift_p: float  # probability of a slope of at least this size, in either direction, under independence
    correlation: float  # Lag-1 correlation of the deviations, in standard deviations of their cell
    expected: float  # mean of the correlation under independence
    low: float  # lower end of the interval of the correlation under independence
    high: float  # upper end


def dependence(values: FloatArray, cells: Sequence[str], *, seed: int = 0) -> Dependence | None:
    """Return drift and lag-1 correlation of values in the order of execution, pooled over the cells, or None."""
    # Cells need two different values, and three runs in all. A repetition without a value is NaN.
    names = np.asarray(cells)
    relative, standard, time, spread = (np.zeros(len(values)) for _ in range(4))
    groups: list[IntArray] = []
    for name in dict.fromkeys(cells):
        index = np.flatnonzero((names == name) & ~np.isnan(values))
        sample = values[index]
        if len(index) < 2 or np.ptp(sample) == 0 or sample.mean() == 0:
            continue
        deviation = sample - sample.mean()
        relative[index] = deviation / abs(sample.mean())
        spread[index] = relative[index].std()
        standard[index] = deviation / sample.std()
        time[index] = index - index.mean()
        groups.append(index)
    runs = sum(map(len, groups))
    if runs < 3:
        return None
    weight = np.maximum(spread, np.median([spread[index[0]] for index in groups])) ** -2
    slope, correlation = _slope(relative[None], time, weight)[0], _lag1(standard[None])[0]
    slopes, correlations = _permuted(relative, standard, time, weight, groups, seed)
    exceed = int((np.abs(slopes) >= abs(slope) * (1 - 1e-9)).sum())
    low, high = np.quantile(correlations, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Dependence(
        runs=runs,
        drift_percent=100 * float(slope),
        drift_p=(1 + exceed) / (1 + PERMUTATIONS),
        correlation=float(correlation),
        expected=float(correlations.mean()),
        low=float(low),
        high=float(high),
    )


def _slope(relative: FloatArray, time: FloatArray, weight: FloatArray) -> FloatArray:
    """Return the weighted least-squares slopes with a constant per cell; `relative` has shape (samples, runs)."""
    return np.asarray(relative @ (weight * time) / (weight * time @ time))


def _lag1(standard: FloatArray) -> FloatArray:
    """Return the lag-1 correlations; `standard` has shape (samples, runs). A run without a value is 0."""
    return np.asarray((standard[:, 1:] * standard[:, :-1]).sum(axis=1) / (standard**2).sum(axis=1))


def _permuted(
    relative: FloatArray,
    standard: FloatArray,
    time: FloatArray,
    weight: FloatArray,
    groups: Sequence[IntArray],
    seed: int,
) -> tuple[FloatArray, FloatArray]:
    """Return slopes and correlations, shape (PERMUTATIONS,), of permutations within the groups of positions."""
    rng = np.random.default_rng(seed)
    slopes, correlations = [], []
    left = PERMUTATIONS
    while left:
        count = min(left, max(1, _AT_ONCE // len(time)))
        left -= count
        order = np.tile(np.arange(len(time)), (count, 1))
        for index in groups:
            order[:, index] = rng.permuted(order[:, index], axis=1)
        slopes.append(_slope(relative[order], time, weight))
        correlations.append(_lag1(standard[order]))
    return np.concatenate(slopes), np.concatenate(correlations)


METRICS = ("makespan_s", "mean_wait_s", "mean_response_s", "mean_bounded_slowdown", "utilization")
SIGNALS = ("mean_run_s", "loss_of_capacity")
STATES = ("healthy", "degraded", "unhealthy", "unknown")  # health of a run; `unknown` if the run has no record of it


@dataclass(frozen=True)
class Figures:
    """The figures of one metric over the repetitions of a cell."""

    mean: float
    sd: float  # standard deviation of the sample; NaN for fewer than two repetitions
    cv: float  # coefficient of variation: sd / mean
    # Simulator -> relative error of its prediction (the mean, if it is stochastic) against the mean.
    errors: dict[str, float]


@dataclass(frozen=True)
class CellFigures:
    """The figures of a selection of the repetitions of a cell."""

    cell: str
    selection: str  # `all`, `without unhealthy`, or `without H4, H5` (signals of the outcome)
    n: int
    metrics: dict[str, Figures]


@dataclass(frozen=True)
class Statistics:
    """The statistics of the replays of an experiment."""

    runs: pd.DataFrame
    """A row per repetition with a run, in the order of their starts: `cell`, `repetition`, `session`, `started`,
    `seconds`, `state` (completed or interrupted), `health`, `causes`, `signals` (H4, H5), and the metrics. The metrics
    of interrupted runs are NaN."""
    figures: list[CellFigures]
    """For each cell, the figures of all repetitions, then those of selections with fewer repetitions."""
    dependences: dict[str, Dependence]
    """Metric -> drift and lag-1 correlation."""
    failed: list[Attempt]
    """The last attempts at the repetitions without a completed run."""
    missing: int
    """Number of repetitions without an attempt."""

    @cached_property
    def states(self) -> dict[str, dict[str, int]]:
        """Cell -> state of health -> number of repetitions."""
        counts = pd.crosstab(self.runs["cell"], self.runs["health"]).reindex(columns=list(STATES), fill_value=0)
        return {str(cell): {str(key): int(count) for key, count in row.items()} for cell, row in counts.iterrows()}

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON values."""
        return {
            "cells": [
                {"cell": item.cell, "selection": item.selection, "n": item.n, "health": self.states.get(item.cell, {})}
                | {"metrics": {name: asdict(figures) for name, figures in item.metrics.items()}}
                for item in self.figures
            ],
            "dependence": {name: asdict(found) for name, found in self.dependences.items()},
            "runs": self.runs.astype(object).where(self.runs.notna(), None).to_dict("records"),
            "failed": [asdict(attempt) for attempt in self.failed],
            "missing": self.missing,
        }


def summarize(folder: Path) -> Statistics:
    """Return the statistics of the replays in `folder`, the output folder of an experiment, which may be unfinished.

    Raises:
        InputError: `folder` has no replays, or a run is damaged.
    """
    predicted, folder = folder / store.PREDICTED, folder / store.REAL
    plan = store.read_plan(folder)
    last = {(attempt.cell, attempt.number): attempt for attempt in store.attempts(folder)}
    rows, failed, missing = [], [], 0
    for slot in plan["order"]:
        run = store.run_of(slot, folder)
        attempt = last.get((slot.cell, slot.number))
        if attempt is None and run is not None:
            attempt = _unnoted(slot, run)
        if attempt is None:
            missing += 1
        elif run is None or run.info.state != "completed":
            failed.append(attempt)
        if run is not None and attempt is not None:
            rows.append(_row(attempt, run))
    runs = pd.DataFrame(rows, columns=_COLUMNS).sort_values("started", kind="stable", ignore_index=True)
    runs["signals"] = ""
    for index in runs[runs["state"] == "completed"].groupby("cell").groups.values():
        runs.loc[index, "signals"] = screening.signals(runs.loc[index])
    figures = [item for cell in plan["cells"] for item in _figures(cell, runs, _predictions(predicted, cell))]
    dependences = {name: dependence(runs[name].to_numpy(dtype=float), runs["cell"].tolist()) for name in METRICS}
    return Statistics(runs, figures, {name: item for name, item in dependences.items() if item}, failed, missing)


def _unnoted(slot: Slot, run: Run) -> Attempt:
    """Return the attempt of a run that is not in the log, since the campaign was killed after the run was saved."""
    return Attempt(slot.cell, slot.number, slot.session, run.info.created or "", float("nan"))


_COLUMNS = ["cell", "repetition", "session", "started", "seconds", "state", "health", "causes", *METRICS, *SIGNALS]


def _row(attempt: Attempt, run: Run) -> list[Any]:
    """Return the row of a repetition, with the columns `_COLUMNS`."""
    health = Health.of(run, 0)
    causes = "; ".join(str(cause["text"]) for cause in health.causes)
    complete = run.info.state == "completed"
    measured = metrics(run) if complete else dict.fromkeys((*METRICS, *SIGNALS), float("nan"))
    about = [attempt.cell, attempt.number, attempt.session, attempt.started, attempt.seconds, run.info.state]
    return [*about, health.state, causes, *(measured[name] for name in (*METRICS, *SIGNALS))]


def _predictions(folder: Path, cell: str) -> dict[str, list[dict[str, Any]]]:
    """Return simulator -> metrics of its predictions of a cell, one or, of a stochastic simulator, several."""
    metrics_by_simulator: dict[str, list[dict[str, Any]]] = {}
    for simulator in sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []:
        runs = [simulator / cell / "run.json", *sorted((simulator / cell).glob("run-*/run.json"))]
        if made := [metrics(Run.load(path.parent)) for path in runs if path.is_file()]:
            metrics_by_simulator[simulator.name] = made
    return metrics_by_simulator


def _figures(cell: str, runs: pd.DataFrame, predicted: Mapping[str, list[dict[str, Any]]]) -> list[CellFigures]:
    """Return the figures of a cell: of all repetitions, and of the selections with fewer repetitions."""
    whole = runs[(runs["cell"] == cell) & (runs["state"] == "completed")]
    selected = {
        "all": whole,
        "without unhealthy": whole[whole["health"] != "unhealthy"],
        "without H4, H5": whole[whole["signals"] == ""],
    }
    return [
        CellFigures(cell, name, len(part), {metric: _of(metric, part[metric], predicted) for metric in METRICS})
        for name, part in selected.items()
        if name == "all" or len(part) < len(whole)
    ]


def _of(metric: str, sample: pd.Series, predicted: Mapping[str, list[dict[str, Any]]]) -> Figures:
    """Return the figures of one metric."""
    mean, sd = float(sample.mean()), float(sample.std())
    means = {name: fmean(found[metric] for found in runs) for name, runs in predicted.items()}
    errors = {name: each / mean - 1 if mean else float("nan") for name, each in means.items()}
    return Figures(mean, sd, sd / mean if mean else float("nan"), errors)
