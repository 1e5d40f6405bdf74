"""The plots of an experiment: bars, lines, distributions, heat maps by category, lines by day.

Many follow the papers: bars over the share of malleable jobs (figures 6 to 9 of the Kassel paper); bars normalized
to a baseline, heat maps of ratios by requested nodes and run time, and daily lines (figures 1 to 8 of the SD-Policy
paper). The printed figures are marks on the bars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from tracebed.validation.experiments.experiment import Point
from tracebed.validation.experiments.file import ExperimentFile
from tracebed.validation.experiments.parts import Plot
from tracebed.validation.experiments.views.averages import GROUP
from tracebed.validation.experiments.views.bars import bars
from tracebed.validation.experiments.views.job_plots import daily, ecdf, heat_maps
from tracebed.validation.experiments.views.workload_plots import OF_WORKLOADS
from tracebed.validation.pictures import STYLE, save

OVERVIEW = Plot(kind="bars", figures=["mean_response_s", "mean_wait_s", "mean_bounded_slowdown", "utilization"])
"""The plot of an experiment without `plots`."""
Jobs = Callable[[Point], pd.DataFrame | None]
"""Function that returns the jobs of the cell of a point, or None if they were not kept."""


def draw(file: ExperimentFile, table: pd.DataFrame, jobs: Jobs, folder: Path) -> tuple[list[Path], list[str]]:
    """Draw the plots of an experiment as SVG, PNG and PDF, each with a CSV file of what is drawn.

    Args:
        file: the experiment.
        table: the table of `compute_grid`.
        jobs: source of the jobs, for the kinds that need them.
        folder: the output folder.

    Returns:
        The PNG files written, and a message for each plot that could not be drawn.
    """
    written: list[Path] = []
    left_out: list[str] = []
    for name, plot in (file.experiment.plots or {"overview": OVERVIEW}).items():
        window = plot.window or next(iter(file.experiment.windows))
        rows = table[table["window"] == window]
        for workload in _pages(file, plot):
            title = plot.title or (file.name if workload is None else f"{file.name}, {workload}")
            here = rows if workload is None else rows[rows["workload"] == workload]
            with mpl.rc_context(STYLE):
                drawn = _drawn(file, plot, here, jobs, workload, title)
            stem = name if workload is None or len(file.experiment.workloads) == 1 else f"{name}-{workload}"
            if drawn is None:
                left_out.append(f"plot {stem}: its points were not computed")
                continue
            written.append(save(*drawn, folder, stem))
    return written, left_out


def _pages(file: ExperimentFile, plot: Plot) -> list[str | None]:
    """Return the workloads with a plot of their own; [None] for bars of a single share, which show all workloads."""
    shares = file.experiment.malleable.shares if file.experiment.malleable else []
    several = plot.of_jobs or len(shares) > 1
    return list(file.experiment.workloads) if several else [None]


def _drawn(
    file: ExperimentFile, plot: Plot, rows: pd.DataFrame, jobs: Jobs, workload: str | None, title: str
) -> tuple[Figure, pd.DataFrame] | None:
    """Return the picture and what it shows, or None if no point was computed."""
    if not plot.of_jobs:
        return bars(plot, rows, title, file.experiment.published)
    if plot.kind in OF_WORKLOADS:
        points = [point for point in file.experiment.points() if point.fits({**plot.at, "workload": workload})]
        table = next((table for point in points if (table := jobs(point)) is not None), None)
        return None if table is None else OF_WORKLOADS[plot.kind](file.experiment, plot, table, title)
    if plot.kind == "ecdf":
        series = _jobs_by_series(file, plot, jobs, workload)
        return ecdf(plot, series, title) if series else None
    found = []
    for where in (plot.at, plot.relative_to or {}):
        points = [point for point in file.experiment.points() if point.fits({**where, "workload": workload})]
        tables = [table for point in points if (table := jobs(point)) is not None]
        if not tables:
            return None
        found.append(pd.concat(tables, ignore_index=True).assign(weight=1.0 / len(tables)))  # averages jobs over seeds
    names = [_named(where) for where in (plot.at, plot.relative_to or {})]
    return (heat_maps if plot.kind == "heatmap" else daily)(plot, found[0], found[1], names, title)


def _jobs_by_series(
    file: ExperimentFile, plot: Plot, jobs: Jobs, workload: str | None
) -> dict[str, list[pd.DataFrame]]:
    """Return the jobs of each seed by the policy and the settings that vary."""
    points = [point for point in file.experiment.points() if point.fits({**plot.at, "workload": workload})]
    known = {key: [asdict(point)[key] for point in points] for key in GROUP}
    varying = [key for key in GROUP if key == "policy" or len(set(known[key])) > 1]
    found: dict[str, list[pd.DataFrame]] = {}
    for point in points:
        if (table := jobs(point)) is not None:
            where = asdict(point)
            found.setdefault(_named({key: where[key] for key in varying}), []).append(table)
    return found


def _named(where: Mapping[str, Any]) -> str:
    return ", ".join(str(value) if key == "policy" else f"{key} {value}" for key, value in where.items())
