"""Plots of the jobs of cells: distributions, heat maps by size (or class) and run time, lines by day, queues.

Heat maps and lines by day follow figures 4 to 7 of the SD-Policy paper; numbers of jobs up to a size, and utilization
and queue over time with the marks of a window, figures 2 to 5 of the Kassel paper. Each function returns the picture
and the drawn values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.errors import InputError
from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.experiments.experiment import Experiment
from tracebed.validation.experiments.experiment_schema import Claim, JobsSpec, Plot
from tracebed.validation.experiments.views.averages import LEVEL, interval_text
from tracebed.validation.metrics.classes import PLURALS, most_frequent
from tracebed.validation.pictures import COLORS, FONT, PAGE, SeriesStyle, legend, panels, wrapped
from tracebed.validation.report import scales
from tracebed.validation.report.style import SOFT
from tracebed.validation.statistics import half_width

DAY = 86_400.0
BARS = "#cccccc"  # color of the bars behind daily lines
NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper bounds of the categories of requested nodes. The last category has no upper bound."""
RUN_TIMES: Mapping[str, float] = {
    "1 min": 60.0,
    "10 min": 600.0,
    "30 min": 1800.0,
    "1 h": 3600.0,
    "4 h": 14_400.0,
    "12 h": 43_200.0,
    "1 d": DAY,
}
"""Upper bounds of the categories of run time, s. The last category has no upper bound."""
ROWS = {"size": "requested nodes", "partition": "partition", "class": "class of nodes"}
"""Rows of a heat map -> label of the axis."""
POINTS = 200  # largest number of points of a line of a distribution
OF_JOBS = {"slowdown_ref": "slowdown", "wait": "wait", "run": "run time", "response": "response"}


def heat_maps(
    plot: Plot, ours: pd.DataFrame, base: pd.DataFrame, names: list[str], title: str
) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel per figure: baseline mean / our mean by run time and requested nodes, partition or class of nodes.

    Above 1, ours is better. Raises InputError if the partitions or the nodes of the jobs are unknown.
    """
    figure, axes_of = panels(len(plot.figures), title, height=3.4, wide=True)
    data = []
    rows, labels = _rows(plot, [ours, base])
    times = [*(f"≤{end}" for end in RUN_TIMES), f">{list(RUN_TIMES)[-1]}"]
    for axes, name in zip(axes_of, plot.figures, strict=True):
        (mean, count), (mean_base, _) = (
            _by_category(table, name, row, len(labels)) for table, row in zip((ours, base), rows, strict=True)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(mean > 0, mean_base / mean, np.where(mean_base > 0, np.inf, np.nan))
        shades = np.log2(np.clip(ratio, 1 / 8, 8))
        highest = int(np.flatnonzero(count.any(axis=1)).max(initial=0)) + 1
        norm = TwoSlopeNorm(0.0, -3.0, 3.0)
        image = axes.imshow(shades[:highest], origin="lower", aspect="auto", cmap="PuOr", norm=norm)
        for (row, column), value in np.ndenumerate(ratio[:highest]):
            jobs = count[row, column]  # averaged over seeds
            if jobs and not np.isnan(value):
                text = f"{value:.2f}" if value < 100 else f"{value:,.0f}" if np.isfinite(value) else "∞"
                color = "#fefefe" if abs(shades[row, column]) > 2 else "black"  # the same in the dark
                text += f" ({jobs:,.0f})" if jobs >= 1 else f" ({jobs:.1f})"
                axes.text(column, row, text, ha="center", va="center", size=FONT - 1, color=color)
                data.append([name, labels[row], times[column], value, jobs])
        axes.set_yticks(range(highest), labels[:highest])
        longest = int(np.flatnonzero(count.any(axis=0)).max(initial=0)) + 1  # further categories have no jobs
        axes.set_xticks(range(longest), times[:longest])
        axes.set_xlim(-0.5, longest - 0.5)
        axes.set_ylabel(ROWS[plot.by])
        axes.set_xlabel("run time on the requested nodes")
        axes.set_title(wrapped(f"{OF_JOBS[name]}: {names[1]} / {names[0]} (jobs)", PAGE))
        bar = figure.colorbar(image, ax=axes, ticks=range(-3, 4))
        bar.ax.set_yticklabels(["≤⅛", "¼", "½", "1", "2", "4", "≥8"])
        bar.set_label(wrapped(f"{names[1]} / {names[0]}; above 1, {names[0]} is better", 3.0))
    of = "nodes" if plot.by == "size" else plot.by
    return figure, pd.DataFrame(data, columns=["figure", of, "run_time", "ratio", "jobs"])


def _rows(plot: Plot, sides: list[pd.DataFrame]) -> tuple[list[IntArray], list[str]]:
    """Return the row of each job of each side in a heat map, and the labels of the rows."""
    if plot.by == "size":
        sizes = [f"{low + 1}-{high}" if high > low + 1 else f"{high}" for low, high in pairwise((0, *NODES))]
        return [np.searchsorted(NODES, side["nodes"].to_numpy()) for side in sides], [*sizes, f">{NODES[-1]}"]
    if any(plot.by not in side for side in sides):
        what = f"the {PLURALS[plot.by]} of the jobs of a heat map are unknown"
        hint = "use `by: size`, or another output folder if an earlier version of tracebed made the cells"
        raise InputError(what, hint=hint)
    codes, labels = most_frequent(pd.concat([side[plot.by] for side in sides], ignore_index=True))
    return [*np.split(codes, [len(sides[0])])], labels


def _by_category(jobs: pd.DataFrame, name: str, row: IntArray, rows: int) -> tuple[Any, Any]:
    """Return means of a figure (NaN without jobs) and numbers of jobs, each of shape (`rows`, run times).

    `row`: row of each job, shape (jobs,).
    """
    column = np.searchsorted(list(RUN_TIMES.values()), jobs["run_time"].to_numpy())
    values, weight = (jobs[column].to_numpy(dtype=np.float64) for column in (name, "weight"))
    known = ~np.isnan(values)
    total, count = np.zeros((2, rows, len(RUN_TIMES) + 1))
    np.add.at(total, (row[known], column[known]), (weight * values)[known])
    np.add.at(count, (row[known], column[known]), weight[known])
    with np.errstate(invalid="ignore"):
        return total / count, count


def ecdf(
    plot: Plot,
    tables: Mapping[str, list[pd.DataFrame]],
    title: str,
    width: float | None = None,
    numbers: Mapping[str, int] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel per figure: the share of the jobs with at most a value, a line per series, its mean over seeds.

    `tables`: label of a series -> jobs of each seed. `width` and `numbers` as for `bars`. Returns the picture, and a
    row per point of a line, with the 95 % interval of the mean over seeds.
    """
    figure, axes_of = panels(len(plot.figures), title, width=width)
    data = []
    styles = _styles(tables, numbers)
    sizes = {len(seeds) for seeds in tables.values() if len(seeds) > 1}
    for axes, name in zip(axes_of, plot.figures, strict=True):
        samples = {
            label: [np.sort(jobs[name].dropna().to_numpy(dtype=np.float64)) for jobs in seeds]
            for label, seeds in tables.items()
        }
        linear = scales.threshold(*(sample for seeds in samples.values() for sample in seeds))
        reach = max(float(sample.max(initial=0.0)) for seeds in samples.values() for sample in seeds)
        for label, seeds in samples.items():
            values = np.unique(np.concatenate([np.zeros(1), *seeds]))
            if len(values) > POINTS:
                values = np.quantile(values, np.linspace(0, 1, POINTS), method="inverted_cdf")
            values = np.append(values, reach)
            shares = np.array([np.searchsorted(sample, values, side="right") / max(len(sample), 1) for sample in seeds])
            mean, half = shares.mean(axis=0), np.full(len(values), np.nan)
            color, line = styles[label].color, styles[label].line
            axes.step(values, mean, where="post", color=color, linestyle=line, linewidth=1.1, label=label)
            if len(seeds) > 1:
                half = np.array([half_width(column, LEVEL) for column in shares.T])
            low, high = np.clip(mean - half, 0, 1), np.clip(mean + half, 0, 1)
            axes.fill_between(values, low, high, step="post", color=color, alpha=0.16, linewidth=0)
            data += [[name, label, *row, len(seeds), color] for row in zip(values, mean, low, high, strict=True)]
        scales.apply(axes, "x", linear)
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.03)
        axes.set_xlabel(OF_JOBS[name] + ("" if name == "slowdown_ref" else " (s)"))
        axes.set_ylabel("share of the jobs")
        axes.grid(linewidth=0.5, color=SOFT, alpha=0.3)
    band = Patch(facecolor="#bbbbbb", alpha=0.6)
    legend(figure, axes_of, {interval_text(sizes, "seed", plot): band} if sizes else None)
    return figure, pd.DataFrame(data, columns=["figure", "series", "value", "share", "low", "high", "runs", "color"])


def _styles(names: Iterable[str], numbers: Mapping[str, int] | None) -> dict[str, SeriesStyle]:
    """Return the style of each series: by its number on the page or, by default, in their order."""
    return {
        name: SeriesStyle.of(number if numbers is None else numbers[name])
        for number, name in enumerate(dict.fromkeys(names))
    }


def daily(
    plot: Plot,
    ours: pd.DataFrame,
    base: pd.DataFrame,
    names: list[str],
    title: str,
    numbers: Mapping[str, int] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel per figure: its mean by day of submission, and bars of jobs started below their requested size."""
    figure, axes_of = panels(len(plot.figures), title, height=2.4, wide=True)
    days = int(max(table["submit"].max() for table in (ours, base)) // DAY) + 1
    started = ours[ours["started_smaller"]]
    columns = np.bincount((started["submit"] // DAY).astype(int), started["weight"], minlength=days)
    data = [["jobs started smaller", names[0], day, value, BARS] for day, value in enumerate(columns)]
    styles = _styles(names, numbers)
    drawn: list[Axes] = []
    for axes, name in zip(axes_of, plot.figures, strict=True):
        label = f"jobs started on fewer cores than requested ({names[0]})"
        axes.bar(range(days), columns, 1.0, color=BARS, label=label)
        axes.set_ylabel("jobs started on fewer cores")
        axes.set_xlabel("day of submission")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        lines = axes.twinx()
        lines.spines["right"].set_visible(True)
        for table, label, dashes in ((base, names[1], "--"), (ours, names[0], "-")):
            color = styles[label].color
            mean = table.groupby((table["submit"] // DAY).astype(int))[name].mean().reindex(range(days))
            marker = "." if days < 40 else None
            lines.plot(range(days), mean, color=color, linestyle=dashes, linewidth=1.0, marker=marker, label=label)
            data += [[name, label, day, value, color] for day, value in mean.items()]
        lines.set_ylabel(f"mean {OF_JOBS[name]}" + ("" if name == "slowdown_ref" else " (s)"))
        for each in (axes, lines):
            each.set_ylim(bottom=0)
            each.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
        drawn += [axes, lines]
    legend(figure, drawn)
    return figure, pd.DataFrame(data, columns=["figure", "series", "day", "value", "color"])


HEIGHT = 2.3  # height of a panel, inches
OURS, MARK, QUEUE, PRINTED = COLORS[0], COLORS[1], COLORS[2], "#000000"
AXES = {"nodes": "required nodes", "run_time": "run time (h)"}
SCALE = {"nodes": 1.0, "run_time": 1 / 3600.0}  # column of the jobs -> factor from its unit to that of the axis
INSTANTS = 2000  # largest number of drawn instants of a line over time


def distribution(experiment: Experiment, plot: Plot, jobs: pd.DataFrame, title: str) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel per column (nodes, run_time in s): the number of jobs up to a value, printed shares as marks."""
    figure, axes_of = panels(len(plot.figures), title, height=HEIGHT)
    drawn = []
    for axes, name in zip(axes_of, plot.figures, strict=True):
        values, counts = _cumulative(jobs[name].to_numpy(dtype=np.float64) * SCALE[name])
        axes.step(values, counts / 1000.0, where="post", color=OURS, label="jobs")
        drawn += [(name, "jobs", value, count) for value, count in zip(values, counts, strict=True)]
        for claim, spec in _printed(experiment, name):
            low, high = (bound * SCALE[name] for bound in spec.bounds[name])
            below = float((jobs[name] * SCALE[name] < low).sum())
            printed = below + (claim.value or 0.0) * len(jobs)
            axes.plot(high, printed / 1000.0, "D", color=PRINTED, markersize=3.5, label="printed share", zorder=4)
            ours = float((jobs[name] * SCALE[name] <= high).sum()) - below
            text = f"{100 * (claim.value or 0.0):g} %, ours {100 * ours / len(jobs):.1f} %"
            beside = "right" if high > np.sqrt(values[0] * values[-1]) else "left"
            offset = (-7, -9) if beside == "right" else (7, -9)
            axes.annotate(
                text,
                (high, printed / 1000.0),
                offset,
                textcoords="offset points",
                size=FONT - 1,
                ha=beside,
                va="center",
            )
            drawn.append((name, f"printed: {claim.figure}", high, printed))
        _label_cumulative(axes, name, len(jobs))
    return figure, pd.DataFrame(drawn, columns=["figure", "what", "value", "jobs"])


def _cumulative(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the distinct values, ascending, and the numbers of jobs up to each."""
    distinct, counts = np.unique(values[values > 0], return_counts=True)
    return distinct, np.cumsum(counts).astype(np.float64)


def _printed(experiment: Experiment, column: str) -> list[tuple[Claim, JobsSpec]]:
    """Return the claims about shares of jobs that are bounded in a column."""
    shares = experiment.shares_of_jobs
    claims = [claim for claim in experiment.published if claim.figure in shares and claim.value is not None]
    return [(claim, shares[claim.figure]) for claim in claims if column in shares[claim.figure].bounds]


def _label_cumulative(axes: Axes, name: str, jobs: int) -> None:
    axes.set_xscale("log", base=4 if name == "nodes" else 10)
    if name == "nodes":
        axes.xaxis.set_major_locator(LogLocator(base=4, numticks=12))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axes.set_xlabel(AXES[name])
    axes.set_ylabel("jobs (×1000), cumulative")
    axes.set_ylim(0, 1.06 * jobs / 1000.0)
    axes.grid(linewidth=0.5, color=SOFT, alpha=0.3)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(list(handles.values()), list(handles), loc="lower right", frameon=False)


def queue(experiment: Experiment, plot: Plot, jobs: pd.DataFrame, title: str) -> tuple[Figure, pd.DataFrame]:
    """Draw busy nodes and waiting jobs over time; lines mark the end of the warm-up and the last submission."""
    # A row per job: submit (s after the first), wait, run (s), nodes; machine (nodes). All jobs are rigid.
    submit = jobs["submit"].to_numpy(dtype=np.float64)
    start = submit + jobs["wait"].to_numpy(dtype=np.float64)
    end = start + jobs["run"].to_numpy(dtype=np.float64)
    marks = {
        "end of the warm-up": max(window.after_s for window in experiment.windows.values()),
        "last submission": float(submit.max()),
    }
    times = np.linspace(0.0, min(float(end.max()), 1.5 * marks["last submission"]), INSTANTS)
    held = Steps.count(start, end, jobs["nodes"].to_numpy(dtype=np.float64))
    lines = {
        "utilization": 100.0 * held.means(times) / float(jobs["machine"].iloc[0]),
        "queue": Steps.count(submit, start).means(times),
    }
    figure, (axes,) = panels(1, title, height=HEIGHT, wide=True)
    axes.set_xlabel("time after the first submission (s)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    middle = (times[1:] + times[:-1]) / 2
    if "queue" in plot.figures:
        behind = axes.twinx() if "utilization" in plot.figures else axes
        behind.fill_between(middle, lines["queue"], color=QUEUE, alpha=0.45, linewidth=0, label="jobs in the queue")
        behind.set_ylabel("jobs in the queue")
        behind.set_ylim(bottom=0)
        behind.spines["right"].set_visible(True)
    if "utilization" in plot.figures:
        axes.plot(middle, lines["utilization"], color=OURS, linewidth=0.9, label="node utilization")
        axes.set_ylabel("node utilization (%)")
        axes.set_ylim(0, 102)
    for text, at in marks.items():
        axes.axvline(at, color=MARK, linewidth=1.1, linestyle="--" if text == "last submission" else "-", label=text)
    found = {
        label: handle for each in figure.axes for handle, label in zip(*each.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=4, frameon=False)
    rows = [(name, time, value) for name in plot.figures for time, value in zip(middle, lines[name], strict=True)]
    rows += [(text, at, np.nan) for text, at in marks.items()]
    return figure, pd.DataFrame(rows, columns=["figure", "time_s", "value"])


OF_WORKLOADS: Mapping[str, Callable[[Experiment, Plot, pd.DataFrame, str], tuple[Figure, pd.DataFrame]]] = {
    "distribution": distribution,
    "queue": queue,
}
"""Kind of plot -> function that draws it."""
