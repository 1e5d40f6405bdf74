"""The plots of an experiment: bars with boxes of quartiles, normalized bars, heat maps by category, lines by day.

The plots follow the papers: bars over the share of malleable jobs (figures 6 to 9 of the Kassel paper); bars normalized
to a baseline, heat maps of ratios by requested nodes and run time, and daily lines (figures 1 to 8 of the SD-Policy
paper). The colors are from Paul Tol's color-blind safe schemes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tracebed.converters.workload import FloatArray
from tracebed.files import replacing
from tracebed.validation.experiments.experiment import Point
from tracebed.validation.experiments.file import ExperimentFile
from tracebed.validation.experiments.parts import Plot
from tracebed.validation.experiments.views.averages import GROUP, chosen, means
from tracebed.validation.metrics import all_metrics

COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222")
BOX = "#222222"
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.parse_math": False,  # a name in a user's file may contain $
    "pdf.fonttype": 42,
}
DAY = 86_400.0
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
OF_JOBS = {"slowdown_ref": "slowdown", "wait": "wait", "run": "run time", "response": "response"}
PERCENT = {"utilization", "utilization_full", "loss_of_capacity"}

Jobs = Callable[[Point], pd.DataFrame | None]
"""Function that returns the jobs of the cell of a point, or None if they were not kept."""


def draw(file: ExperimentFile, table: pd.DataFrame, jobs: Jobs, folder: Path) -> tuple[list[Path], list[str]]:
    """Draw the plots of an experiment as PNG and PDF files.

    Args:
        file: the experiment.
        table: the table of `compute_grid`.
        jobs: source of the jobs for heat maps and daily lines.
        folder: the output folder.

    Returns:
        The PNG files written, and a message for each plot that could not be drawn.
    """
    written: list[Path] = []
    left_out: list[str] = []
    for name, plot in file.experiment.plots.items():
        window = plot.window or next(iter(file.experiment.windows))
        rows = table[table["window"] == window]
        for workload in _pages(file, plot):
            title = plot.title or (file.name if workload is None else f"{file.name}, {workload}")
            here = rows if workload is None else rows[rows["workload"] == workload]
            with mpl.rc_context(STYLE):
                figure = _drawn(file, plot, here, jobs, workload, title)
            stem = name if workload is None or len(file.experiment.workloads) == 1 else f"{name}-{workload}"
            if figure is None:
                left_out.append(f"plot {stem}: its points were not computed")
                continue
            folder.mkdir(parents=True, exist_ok=True)
            for suffix in ("png", "pdf"):
                with replacing(folder / f"{stem}.{suffix}") as stream, mpl.rc_context(STYLE):
                    figure.savefig(stream, format=suffix, dpi=150)
            written.append(folder / f"{stem}.png")
    return written, left_out


def _pages(file: ExperimentFile, plot: Plot) -> list[str | None]:
    """Return the workloads with a plot of their own; [None] for bars of a single share, which show all workloads."""
    shares = file.experiment.malleable.shares if file.experiment.malleable else []
    several = plot.of_jobs or len(shares) > 1
    return list(file.experiment.workloads) if several else [None]


def _drawn(
    file: ExperimentFile, plot: Plot, rows: pd.DataFrame, jobs: Jobs, workload: str | None, title: str
) -> Figure | None:
    if not plot.of_jobs:
        return _bars(plot, rows, title)
    found = []
    for where in (plot.at, plot.relative_to or {}):
        points = [point for point in file.experiment.points() if point.fits({**where, "workload": workload})]
        tables = [table for point in points if (table := jobs(point)) is not None]
        if not tables:
            return None
        found.append(pd.concat(tables, ignore_index=True).assign(weight=1.0 / len(tables)))  # averages jobs over seeds
    names = [_named(where) for where in (plot.at, plot.relative_to or {})]
    return (_heat_maps if plot.kind == "heatmap" else _daily)(plot, found[0], found[1], names, title)


def _named(where: Mapping[str, Any]) -> str:
    return ", ".join(str(value) if key == "policy" else f"{key} {value}" for key, value in where.items())


def _bars(plot: Plot, rows: pd.DataFrame, title: str) -> Figure | None:
    """Draw a panel per figure: groups (shares or workloads) on the x axis, a bar per policy and varying setting."""
    if plot.relative_to is not None:
        rows = _normalized(rows, plot.figures, plot.relative_to)
    rows = chosen(rows, plot.at)
    if not len(rows):
        return None
    averaged = means(rows)
    averaged = averaged[averaged[plot.figures].notna().any(axis=1)]  # omit labels without bars
    if not len(averaged):
        return None
    x = "share" if averaged["share"].nunique() > 1 else "workload"
    varying = [key for key in GROUP if key != x and (key == "policy" or averaged[key].nunique() > 1)]
    series = list(averaged[varying].drop_duplicates().itertuples(index=False, name=None))
    groups = list(dict.fromkeys(averaged[x]))
    figure, panels = _panels(len(plot.figures), title, legend=True)
    width = 0.84 / len(series)
    boxes: dict[str, list[str]] = {}
    for axes, name in zip(panels, plot.figures, strict=True):
        scale = 100.0 if name in PERCENT and plot.relative_to is None else 1.0
        for index, values in enumerate(series):
            mine = averaged[(averaged[varying] == pd.Series(values, varying)).all(axis=1)].set_index(x)
            at = np.array([groups.index(group) for group in mine.index]) + (index - (len(series) - 1) / 2) * width
            label = ", ".join(map(str, values))
            axes.bar(at, mine[name] * scale, width * 0.94, color=COLORS[index % len(COLORS)], label=label)
            if plot.relative_to is None:
                of_all = rows[(rows[varying] == pd.Series(values, varying)).all(axis=1)]
                quartiles, what = _quartiles(plot, of_all.groupby(x, sort=False)[name], mine, name)
                if _draw_boxes(axes, at, quartiles * scale, width) and name not in boxes.setdefault(what, []):
                    boxes[what].append(name)
        _label(axes, name, x, groups, plot)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(len(labels), 6),
        frameon=False,
        title=_legend(boxes, len(plot.figures)) if boxes else None,
        title_fontsize=8,
    )
    return figure


def _normalized(rows: pd.DataFrame, figures: list[str], relative_to: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows except the baseline, with figures divided by the mean of the baseline at the same point."""
    same = [key for key in GROUP if key not in relative_to]
    same = [key for key in same if rows[key].notna().all()]  # without malleable jobs, the share is missing
    base = chosen(rows, relative_to).groupby(same)[figures].mean()
    joined = rows.merge(base, left_on=same, right_index=True, suffixes=("", "_base"))
    for name in figures:
        joined[name] = joined[name] / joined[f"{name}_base"]
    return joined.drop(index=chosen(joined, relative_to).index)


def _quartiles(plot: Plot, seeds: Any, mine: pd.DataFrame, name: str) -> tuple[FloatArray, str]:
    """Return the first and third quartile of each bar, shape (2, bars), and their population: jobs, time or seeds.

    Args:
        plot: the plot.
        seeds: values of the figure for each seed, grouped like the bars.
        mine: a row per bar, averaged over seeds.
        name: the figure.
    """
    if plot.spread == "jobs" and f"{name}_p25" in mine and mine[f"{name}_p25"].notna().any():
        over = "time" if all_metrics()[name].mean_over_time is not None else "jobs"
        return mine[[f"{name}_p25", f"{name}_p75"]].to_numpy(dtype=np.float64).T, over
    several = (seeds.count() > 1).reindex(mine.index).to_numpy()  # no quartiles of a single value
    found = np.array([seeds.quantile(share).reindex(mine.index) for share in (0.25, 0.75)], dtype=np.float64)
    return np.where(several, found, np.nan), "seeds"


def _draw_boxes(axes: Axes, at: FloatArray, quartiles: FloatArray, width: float) -> bool:
    """Draw a translucent box from the first to the third quartile on each bar. Return whether any box was drawn.

    A line with caps would look like a confidence interval of the mean. A skewed figure may have its mean outside.
    """
    known = np.isfinite(quartiles).all(axis=0)
    left, right = at[known] - width * 0.22, at[known] + width * 0.22
    low, high = quartiles[:, known]
    corners = [np.column_stack(corner) for corner in ((left, low), (right, low), (right, high), (left, high))]
    boxes = PolyCollection(list(np.stack(corners, axis=1)), facecolors=(1, 1, 1, 0.45), edgecolors=BOX, linewidths=0.8)
    axes.add_collection(boxes)
    axes.autoscale_view()
    return bool(known.any())


def _legend(boxes: Mapping[str, list[str]], figures: int) -> str:
    """Return the legend title that explains bars and boxes, with figure names if the boxes differ."""
    parts = []
    for over, names in boxes.items():
        of = "" if len(names) == figures else f" ({' and '.join(all_metrics()[name].label for name in names)})"
        parts.append(f"quartiles over {over}{of}")
    return "bar: mean over seeds; box: " + "; ".join(parts)


def _label(axes: Axes, name: str, x: str, groups: list[Any], plot: Plot) -> None:
    metric = all_metrics()[name]
    if plot.relative_to is not None:
        axes.axhline(1.0, color="#222222", linewidth=0.8, linestyle="--")
        axes.set_ylabel(f"{metric.label}\n/ {_named(plot.relative_to)}")
    else:
        axes.set_ylabel(f"{metric.label} (%)" if name in PERCENT else metric.title)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axes.set_xlim(-0.5, len(groups) - 0.5)
    ticks = [f"{100 * group:g}" if x == "share" else str(group) for group in groups]
    axes.set_xticks(range(len(groups)), ticks)
    axes.set_xlabel("malleable jobs (%)" if x == "share" else "workload")
    axes.grid(axis="y", linewidth=0.4, color="#cccccc")


def _heat_maps(plot: Plot, ours: pd.DataFrame, base: pd.DataFrame, names: list[str], title: str) -> Figure:
    """Draw a panel per figure: baseline mean / our mean by requested nodes and run time; above 1, ours is better."""
    figure, panels = _panels(len(plot.figures), title, wide=True)
    for axes, name in zip(panels, plot.figures, strict=True):
        (mean, count), (mean_base, _) = (_by_category(table, name) for table in (ours, base))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(mean > 0, mean_base / mean, np.where(mean_base > 0, np.inf, np.nan))
        shades = np.log2(np.clip(ratio, 1 / 8, 8))
        highest = int(np.flatnonzero(count.any(axis=1)).max(initial=0)) + 1
        norm = TwoSlopeNorm(0.0, -3.0, 3.0)
        image = axes.imshow(shades[:highest], origin="lower", aspect="auto", cmap="PuOr", norm=norm)
        for (row, column), value in np.ndenumerate(ratio[:highest]):
            if count[row, column] and not np.isnan(value):
                text = f"{value:.2f}" if value < 100 else f"{value:.0f}" if np.isfinite(value) else "∞"
                color = "white" if abs(shades[row, column]) > 2 else "black"
                jobs = count[row, column]  # averaged over seeds
                text += f"\n({jobs:,.0f})" if jobs >= 1 else f"\n({jobs:.1f})"
                axes.text(column, row, text, ha="center", va="center", size=6, color=color)
        ranges = [f"{low + 1}-{high}" if high > low + 1 else f"{high}" for low, high in pairwise((0, *NODES))]
        axes.set_yticks(range(highest), [*ranges, f">{NODES[-1]}"][:highest])
        longest = int(np.flatnonzero(count.any(axis=0)).max(initial=0)) + 1  # further categories have no jobs
        times = [*(f"≤{end}" for end in RUN_TIMES), f">{list(RUN_TIMES)[-1]}"]
        axes.set_xticks(range(longest), times[:longest])
        axes.set_xlim(-0.5, longest - 0.5)
        axes.set_ylabel("requested nodes")
        axes.set_xlabel("run time on the requested nodes")
        axes.set_title(f"{OF_JOBS[name]}: {names[1]} / {names[0]} (jobs)", fontsize=9)
        bar = figure.colorbar(image, ax=axes, ticks=range(-3, 4))
        bar.ax.set_yticklabels(["≤⅛", "¼", "½", "1", "2", "4", "≥8"])
    return figure


def _by_category(jobs: pd.DataFrame, name: str) -> tuple[Any, Any]:
    """Return means of a figure (NaN without jobs) and numbers of jobs, each of shape (sizes, run times)."""
    row = np.searchsorted(NODES, jobs["nodes"].to_numpy())
    column = np.searchsorted(list(RUN_TIMES.values()), jobs["run_time"].to_numpy())
    values, weight = (jobs[column].to_numpy(dtype=np.float64) for column in (name, "weight"))
    known = ~np.isnan(values)
    total, count = np.zeros((2, len(NODES) + 1, len(RUN_TIMES) + 1))
    np.add.at(total, (row[known], column[known]), (weight * values)[known])
    np.add.at(count, (row[known], column[known]), weight[known])
    with np.errstate(invalid="ignore"):
        return total / count, count


def _daily(plot: Plot, ours: pd.DataFrame, base: pd.DataFrame, names: list[str], title: str) -> Figure:
    """Draw a panel per figure: its mean by day of submission, and bars of jobs started below their requested size."""
    figure, panels = _panels(len(plot.figures), title, wide=True)
    days = int(max(table["submit"].max() for table in (ours, base)) // DAY) + 1
    for axes, name in zip(panels, plot.figures, strict=True):
        started = ours[ours["started_smaller"]]
        columns = np.bincount((started["submit"] // DAY).astype(int), started["weight"], minlength=days)
        axes.bar(
            range(days), columns, 1.0, color="#cccccc", label=f"jobs started on fewer cores than requested ({names[0]})"
        )
        axes.set_ylabel("jobs started on fewer cores")
        axes.set_xlabel("day of submission")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        lines = axes.twinx()
        lines.spines["right"].set_visible(True)
        for table, label, color in ((base, names[1], COLORS[1]), (ours, names[0], COLORS[0])):
            mean = table.groupby((table["submit"] // DAY).astype(int))[name].mean().reindex(range(days))
            lines.plot(range(days), mean, color=color, linewidth=1.2, marker="." if days < 40 else None, label=label)
        lines.set_ylabel(f"mean {OF_JOBS[name]}" + ("" if name == "slowdown_ref" else " (s)"))
        lines.set_ylim(bottom=0)
        drawn = [axes.get_legend_handles_labels(), lines.get_legend_handles_labels()]
        axes.legend(
            [handle for handles, _ in drawn for handle in handles],
            [label for _, labels in drawn for label in labels],
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=3,
            frameon=False,
        )
    return figure


def _panels(count: int, title: str, *, legend: bool = False, wide: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure of `count` panels, in one column if `wide`, otherwise in two."""
    columns = 1 if wide or count == 1 else 2
    rows = -(-count // columns)
    size = (8.6, 4.2 * rows + 0.5) if columns == 1 else (11.0, 2.9 * rows + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[count:]:
        axes.remove()
    figure.suptitle(title, fontsize=10)
    return figure, list(grid[:count])
