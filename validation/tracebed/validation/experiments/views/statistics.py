"""The statistics of repeated replays: mean, variation, health, drift, and errors of the predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from tracebed.orchestrator.run import Run
from tracebed.validation.experiments.real import store
from tracebed.validation.experiments.real.campaign import Slot
from tracebed.validation.experiments.real.store import Attempt
from tracebed.validation.experiments.views.dependence import Dependence, dependence
from tracebed.validation.experiments.views.judging import PREDICTED
from tracebed.validation.metrics import metrics
from tracebed.validation.verdict import screening
from tracebed.validation.verdict.health import Health

METRICS = ("makespan_s", "mean_wait_s", "mean_response_s", "mean_bounded_slowdown", "utilization")
SIGNALS = ("mean_run_s", "loss_of_capacity")
STATES = ("healthy", "degraded", "unhealthy", "unknown")
"""Health of a run; `unknown` if the run has no record of it."""


@dataclass(frozen=True)
class Figures:
    """The figures of one metric over the repetitions of a cell."""

    mean: float
    sd: float
    """Standard deviation of the sample; NaN for fewer than two repetitions."""
    cv: float
    """Coefficient of variation: sd / mean."""
    errors: dict[str, float]
    """Simulator -> relative error of its prediction (the mean, if it is stochastic) against the mean."""


@dataclass(frozen=True)
class CellFigures:
    """The figures of a selection of the repetitions of a cell."""

    cell: str
    selection: str
    """`all`, `without unhealthy`, or `without H4, H5` (signals of the outcome)."""
    n: int
    metrics: dict[str, Figures]


@dataclass(frozen=True)
class Statistics:
    """The statistics of the replays of an experiment."""

    runs: pd.DataFrame
    """A row per repetition with a run, in the order of execution: `cell`, `repetition`, `session`, `started`,
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
    predicted, folder = folder / PREDICTED, folder / store.REAL
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
    found = {name: dependence(runs[name].to_numpy(dtype=float), runs["cell"].tolist()) for name in METRICS}
    return Statistics(runs, figures, {name: item for name, item in found.items() if item}, failed, missing)


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
    found: dict[str, list[dict[str, Any]]] = {}
    for simulator in sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []:
        runs = [simulator / cell / "run.json", *sorted((simulator / cell).glob("run-*/run.json"))]
        if made := [metrics(Run.load(path.parent)) for path in runs if path.is_file()]:
            found[simulator.name] = made
    return found


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
