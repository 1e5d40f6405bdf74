"""The plots of an experiment: bars, lines, distributions, heat maps by category, lines by day.

Many follow the papers: bars over the share of malleable jobs (figures 6 to 9 of the Kassel paper); bars normalized
to a baseline, heat maps of ratios by requested nodes and run time, and daily lines (figures 1 to 8 of the SD-Policy
paper). The printed figures are marks on the bars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from tracebed.ground.errors import TracebedError
from tracebed.validation.experiments.experiment import Experiment, Point
from tracebed.validation.experiments.experiment_schema import Plot
from tracebed.validation.experiments.file import ExperimentFile
from tracebed.validation.experiments.pools import LocalPool, Pool
from tracebed.validation.experiments.views.averages import GROUP, means, named
from tracebed.validation.experiments.views.bars import bars, layout
from tracebed.validation.experiments.views.job_plots import OF_WORKLOADS, daily, ecdf, heat_maps
from tracebed.validation.metrics import all_metrics
from tracebed.validation.pictures import COLORS, COLUMN, HATCHES, PAGE, STYLE, WIDTHS, Picture, save
from tracebed.validation.report.html import write_page
from tracebed.validation.report.interactive import scripts
from tracebed.validation.report.sections import Section, figure_html, rendered_sections
from tracebed.validation.report.templates import fill

Drawn = tuple[Figure, pd.DataFrame]  # a picture, and what it shows

OVERVIEW = Plot(kind="bars", figures=["mean_response_s", "mean_wait_s", "mean_bounded_slowdown", "utilization"])
"""The plot of an experiment without `plots`."""
Jobs = Callable[[Point], pd.DataFrame | None]
"""Function that returns the jobs of the cell of a point, or None if they were not kept."""


@dataclass(frozen=True)
class Drawing:
    """A picture of an experiment to be drawn by a worker; `jobs` can be pickled."""

    experiment: Experiment
    plot: Plot
    rows: pd.DataFrame  # the rows of its window and workload
    jobs: Jobs
    workload: str | None  # the workload of the picture; None: all of them
    title: str
    folder: Path
    stem: str  # name of the files without suffix
    # Series -> number of its style on the page (`SeriesStyle`).
    numbers: Mapping[str, int] = field(default_factory=dict)


def draw(
    file: ExperimentFile, table: pd.DataFrame, jobs: Jobs, folder: Path, pool: Pool | None = None
) -> tuple[list[Path], list[str]]:
    """Draw the plots of an experiment as SVG, PNG and PDF, each with a CSV file of what is drawn, and their page.

    Args:
        table: the table of `runner.run`.
        jobs: source of the jobs, for the kinds that need them.
        folder: the output folder. The page is beside it: `index.html`.
        pool: the workers; by default, this process draws.

    Returns:
        The PNG files written, and a message for each plot that could not be drawn.
    """
    drawings = list(_drawings(file, table, jobs, folder))
    numbers = _numbers([policy.name for policy in file.experiment.policies], drawings)
    drawings = [replace(each, numbers=numbers) for each in drawings]
    drawn = {}
    for drawing, painted in (pool or LocalPool(1)).map(paint, drawings):
        if isinstance(painted, TracebedError):
            raise painted
        drawn[drawing.stem] = painted
    pictures = {each.stem: html for each in drawings if (html := drawn[each.stem]) is not None}
    write_page(_page(file, table, pictures), folder.parent / "index.html")
    left_out = [f"plot {each.stem}: its points were not computed" for each in drawings if each.stem not in pictures]
    return [folder / f"{stem}.png" for stem in pictures], left_out


def _drawings(file: ExperimentFile, table: pd.DataFrame, jobs: Jobs, folder: Path) -> Iterator[Drawing]:
    """Yield the pictures of an experiment."""
    experiment = file.experiment
    for name, plot in (experiment.plots or {"overview": OVERVIEW}).items():
        window = plot.window or next(iter(experiment.windows))
        rows = table[table["window"] == window]
        for workload in _pages(file, plot):
            title = plot.title or (file.name if workload is None else f"{file.name}, {workload}")
            here = rows if workload is None else rows[rows["workload"] == workload]
            stem = name if workload is None or len(experiment.workloads) == 1 else f"{name}-{workload}"
            yield Drawing(experiment, plot, here, jobs, workload, title, folder, stem)


def _numbers(policies: Iterable[str], drawings: Iterable[Drawing]) -> dict[str, int]:
    """Return the number of the style of each series of a page: one assignment for all of its figures."""
    # A policy has the number of its place in the experiment. So has its only series with values of further keys, such
    # as `pref, share 1` in a figure of one share. Several such series of a policy keep its color: their numbers are
    # whole rounds of the colors apart, a round for each of the other values. There are as many rounds as hatches;
    # further values have further numbers.
    further: dict[str, list[str]] = {policy: [] for policy in policies}
    for label, policy in dict.fromkeys(pair for each in drawings for pair in _series(each).items()):
        if label != policy:
            further.setdefault(policy, []).append(label)
    numbers = {policy: number for number, policy in enumerate(further)}
    apart = len(COLORS) * math.ceil(len(numbers) / len(COLORS))
    rounds: dict[tuple[str, ...], int] = {}
    for policy, labels in further.items():
        for label in labels:
            values = tuple(part for part in label.split(", ") if part != policy)
            own = 0 if len(labels) == 1 else apart * rounds.setdefault(values, len(rounds))
            known = own < len(COLORS) * len(HATCHES)
            numbers[label] = numbers[policy] + own if known else max(numbers.values()) + 1
    return numbers


def _series(drawing: Drawing) -> dict[str, str]:
    """Return the name of each series of a picture -> its policy."""
    plot = drawing.plot
    if not plot.of_jobs:
        made = layout(plot, drawing.rows) if len(drawing.rows) else None
        return made.series if made else {}
    if plot.kind == "ecdf":
        return {named(where): str(where["policy"]) for where in _points_by_series(drawing).values()}
    if plot.kind == "daily":
        return {named(where): str(where.get("policy", "")) for where in (plot.at, plot.relative_to or {})}
    return {}


def paint(drawing: Drawing) -> Markup | None:
    """Write the files of a picture, and return it for a page, or None if no point was computed."""
    with mpl.rc_context(STYLE):
        own = _drawn(drawing, WIDTHS.get(drawing.plot.width))
        if own is None:
            return None
        figure, data = own
        save(figure, data, drawing.folder, drawing.stem)
        # A page has it in the widths of a page and of a column of a paper, for phones. The figure of the files is one
        # of these, so it is drawn and laid out once. Some kinds have one width.
        sizes = {"any": figure}
        if not drawing.plot.of_jobs or drawing.plot.kind == "ecdf":
            sizes = {}
            for size, width in (("wide", PAGE), ("narrow", COLUMN)):
                other = None if figure.get_figwidth() == width else _drawn(drawing, width)
                sizes[size] = figure if other is None else other[0]
        for each in sizes.values():
            each.set_facecolor("none")
        picture = Picture(lambda _: figure, data=lambda: data)
        return figure_html(picture, sizes, drawing.stem, drawing.stem)


def _page(file: ExperimentFile, table: pd.DataFrame, pictures: Mapping[str, Markup]) -> str:
    """Return the page of the plots, with a table of the means."""
    averaged = means(table)
    keys = [key for key in [*GROUP, "window"] if key == "policy" or averaged[key].nunique() > 1]
    figures = [name for name in all_metrics() if name in averaged and averaged[name].notna().any()]
    rows = averaged[[*keys, *figures]].astype(object).to_numpy().tolist()
    heads = [*keys, *(all_metrics()[name].title for name in figures)]
    runs = table.groupby([*GROUP, "window"], dropna=False).size()
    over = "-".join(dict.fromkeys(f"{each:,}" for each in (runs.min(), runs.max())))
    content = fill("grid_means", heads=heads, rows=rows, over=over, perturbed=table["perturbation"].nunique() > 1)
    own = {
        name: Section(name, order, partial(_constant, html), scope="grid")
        for order, (name, html) in enumerate(pictures.items())
    }
    own["table"] = Section("Means over seeds", len(own), partial(_constant, content), scope="grid")
    return str(fill("grid", file=file, sections=list(rendered_sections({"grid": file}, own)), scripts=scripts()))


def _constant(html: Markup, _: Any) -> Markup:
    return html


def _pages(file: ExperimentFile, plot: Plot) -> list[str | None]:
    """Return the workloads with a plot of their own; [None] for bars of a single share, which show all workloads."""
    shares = file.experiment.malleable.shares if file.experiment.malleable else []
    several = plot.of_jobs or len(shares) > 1
    return list(file.experiment.workloads) if several else [None]


def _drawn(drawing: Drawing, width: float | None) -> Drawn | None:
    """Return the picture in a width (None: its own) and what it shows, or None if no point was computed."""
    experiment, plot, title = drawing.experiment, drawing.plot, drawing.title
    if not plot.of_jobs:
        return bars(plot, drawing.rows, title, experiment.published, width=width, numbers=drawing.numbers)
    if plot.kind in OF_WORKLOADS:
        table = next((table for _, table in _jobs_at(drawing, plot.at)), None)
        return None if table is None else OF_WORKLOADS[plot.kind](experiment, plot, table, title)
    if plot.kind == "ecdf":
        series = _jobs_by_series(drawing)
        return ecdf(plot, series, title, width, drawing.numbers) if series else None
    sides = []
    for where in (plot.at, plot.relative_to or {}):
        tables = [table for _, table in _jobs_at(drawing, where)]
        if not tables:
            return None
        sides.append(pd.concat(tables, ignore_index=True).assign(weight=1.0 / len(tables)))  # averages jobs over seeds
    names = [named(where) for where in (plot.at, plot.relative_to or {})]
    if plot.kind == "heatmap":
        return heat_maps(plot, sides[0], sides[1], names, title)
    return daily(plot, sides[0], sides[1], names, title, drawing.numbers)


def _jobs_at(drawing: Drawing, where: Mapping[str, Any]) -> Iterator[tuple[Point, pd.DataFrame]]:
    """Yield the points of the workload that match `where`, with their jobs, if these were kept."""
    for point in _points(drawing, where):
        if (table := drawing.jobs(point)) is not None:
            yield point, table


def _points(drawing: Drawing, where: Mapping[str, Any]) -> list[Point]:
    return [point for point in drawing.experiment.points() if point.fits({**where, "workload": drawing.workload})]


def _points_by_series(drawing: Drawing) -> dict[Point, dict[str, Any]]:
    """Return the points of a distribution -> policy and the settings that vary."""
    points = _points(drawing, drawing.plot.at)
    known = {key: [asdict(point)[key] for point in points] for key in GROUP}
    varying = [key for key in GROUP if key == "policy" or len(set(known[key])) > 1]
    return {point: {key: asdict(point)[key] for key in varying} for point in points}


def _jobs_by_series(drawing: Drawing) -> dict[str, list[pd.DataFrame]]:
    """Return the jobs of each seed by the name of their series."""
    names = _points_by_series(drawing)
    jobs: dict[str, list[pd.DataFrame]] = {}
    for point, table in _jobs_at(drawing, drawing.plot.at):
        jobs.setdefault(named(names[point]), []).append(table)
    return jobs
