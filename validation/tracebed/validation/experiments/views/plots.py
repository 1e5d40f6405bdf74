"""The plots of an experiment: bars, lines, distributions, heat maps by category, lines by day.

Many follow the papers: bars over the share of malleable jobs (figures 6 to 9 of the Kassel paper); bars normalized
to a baseline, heat maps of ratios by requested nodes and run time, and daily lines (figures 1 to 8 of the SD-Policy
paper). The printed figures are marks on the bars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from tracebed.validation.experiments.experiment import Point
from tracebed.validation.experiments.file import ExperimentFile
from tracebed.validation.experiments.parts import Plot
from tracebed.validation.experiments.views.averages import GROUP, means
from tracebed.validation.experiments.views.bars import bars
from tracebed.validation.experiments.views.job_plots import daily, ecdf, heat_maps
from tracebed.validation.experiments.views.workload_plots import OF_WORKLOADS
from tracebed.validation.metrics import all_metrics
from tracebed.validation.pictures import COLUMN, PAGE, STYLE, WIDTHS, Picture, save
from tracebed.validation.report.html import write_page
from tracebed.validation.report.interactive import scripts
from tracebed.validation.report.sections import Section, rendered_sections
from tracebed.validation.report.style import NARROW
from tracebed.validation.report.templates import fill

Drawn = tuple[Figure, pd.DataFrame]
"""A picture, and what it shows."""

OVERVIEW = Plot(kind="bars", figures=["mean_response_s", "mean_wait_s", "mean_bounded_slowdown", "utilization"])
"""The plot of an experiment without `plots`."""
Jobs = Callable[[Point], pd.DataFrame | None]
"""Function that returns the jobs of the cell of a point, or None if they were not kept."""


def draw(file: ExperimentFile, table: pd.DataFrame, jobs: Jobs, folder: Path) -> tuple[list[Path], list[str]]:
    """Draw the plots of an experiment as SVG, PNG and PDF, each with a CSV file of what is drawn, and their page.

    Args:
        table: the table of `compute_grid`.
        jobs: source of the jobs, for the kinds that need them.
        folder: the output folder. The page is beside it: `index.html`.

    Returns:
        The PNG files written, and a message for each plot that could not be drawn.
    """
    written: list[Path] = []
    left_out: list[str] = []
    sections: dict[str, Section] = {}
    for name, plot in (file.experiment.plots or {"overview": OVERVIEW}).items():
        window = plot.window or next(iter(file.experiment.windows))
        rows = table[table["window"] == window]
        for workload in _pages(file, plot):
            title = plot.title or (file.name if workload is None else f"{file.name}, {workload}")
            here = rows if workload is None else rows[rows["workload"] == workload]
            drawer = partial(_drawn, file, plot, here, jobs, workload, title)
            with mpl.rc_context(STYLE):
                drawn = drawer(WIDTHS.get(plot.width))
            stem = name if workload is None or len(file.experiment.workloads) == 1 else f"{name}-{workload}"
            if drawn is None:
                left_out.append(f"plot {stem}: its points were not computed")
                continue
            written.append(save(*drawn, folder, stem))
            sections[stem] = Section(stem, len(sections), partial(_in_page, drawer, drawn[1]), scope="grid")
    write_page(_page(file, table, sections), folder.parent / "index.html")
    return written, left_out


def _page(file: ExperimentFile, table: pd.DataFrame, sections: Mapping[str, Section]) -> str:
    """Return the page of the plots, with a table of the means."""
    averaged = means(table)
    keys = [key for key in [*GROUP, "window"] if key == "policy" or averaged[key].nunique() > 1]
    figures = [name for name in all_metrics() if name in averaged and averaged[name].notna().any()]
    rows = averaged[[*keys, *figures]].astype(object).to_numpy().tolist()
    heads = [*keys, *(all_metrics()[name].title for name in figures)]
    content = fill("grid_means", heads=heads, rows=rows)
    own = {**sections, "table": Section("Means over seeds", len(sections), lambda grid: content, scope="grid")}
    return str(fill("grid", file=file, sections=list(rendered_sections({"grid": file}, own)), scripts=scripts()))


def _in_page(drawer: Callable[[float | None], Drawn | None], data: pd.DataFrame, _: Any) -> Picture:
    """Return the picture of a plot for a page: as in a paper, of one column for phones."""

    def draw_one(width: float) -> Figure:
        with mpl.rc_context({**STYLE, "figure.facecolor": "none"}):
            drawn = drawer(PAGE if width > NARROW else COLUMN)
        assert drawn is not None
        return drawn[0]

    return Picture(draw_one, data=lambda: data)


def _pages(file: ExperimentFile, plot: Plot) -> list[str | None]:
    """Return the workloads with a plot of their own; [None] for bars of a single share, which show all workloads."""
    shares = file.experiment.malleable.shares if file.experiment.malleable else []
    several = plot.of_jobs or len(shares) > 1
    return list(file.experiment.workloads) if several else [None]


def _drawn(
    file: ExperimentFile,
    plot: Plot,
    rows: pd.DataFrame,
    jobs: Jobs,
    workload: str | None,
    title: str,
    width: float | None,
) -> Drawn | None:
    """Return the picture in a width (None: its own) and what it shows, or None if no point was computed."""
    if not plot.of_jobs:
        return bars(plot, rows, title, file.experiment.published, width=width)
    if plot.kind in OF_WORKLOADS:
        points = [point for point in file.experiment.points() if point.fits({**plot.at, "workload": workload})]
        table = next((table for point in points if (table := jobs(point)) is not None), None)
        return None if table is None else OF_WORKLOADS[plot.kind](file.experiment, plot, table, title)
    if plot.kind == "ecdf":
        series = _jobs_by_series(file, plot, jobs, workload)
        return ecdf(plot, series, title, width) if series else None
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
    return ", ".join(
        str(value) if key == "policy" else f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in where.items()
    )
