"""The plots of an experiment: bars with boxes of quartiles, normalized bars, heat maps by category, lines by day.

The plots follow the papers: bars over the share of malleable jobs (figures 6 to 9 of the Kassel paper); bars normalized
to a baseline, heat maps of ratios by requested nodes and run time, and daily lines (figures 1 to 8 of the SD-Policy
paper). The printed figures are marks on the bars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tracebed.converters.workload import FloatArray
from tracebed.validation.experiments.claims import Claim, Rule
from tracebed.validation.experiments.experiment import Point
from tracebed.validation.experiments.file import ExperimentFile
from tracebed.validation.experiments.parts import Plot
from tracebed.validation.experiments.views.averages import GROUP, chosen, means
from tracebed.validation.experiments.views.job_plots import daily, heat_maps
from tracebed.validation.experiments.views.ledger import reference
from tracebed.validation.experiments.views.pictures import (
    COLORS,
    HATCHES,
    STYLE,
    characters,
    legend,
    panels,
    save,
    wrapped,
)
from tracebed.validation.experiments.views.workload_plots import OF_WORKLOADS
from tracebed.validation.metrics import all_metrics

BOX = "#222222"
PERCENT = {"utilization", "utilization_full", "loss_of_capacity"}
MANY = 24
"""Number of bars from which a single panel is as wide as a page."""
MARKS: Mapping[tuple[Rule, bool], tuple[str, str, str]] = {
    (Rule.NUMBER, False): ("D", "#000000", "printed"),
    (Rule.NUMBER, True): ("D", "#ffffff", "printed, by our baseline"),
    (Rule.AT_MOST, False): ("v", "#000000", "printed: at most"),
    (Rule.AT_MOST, True): ("v", "#ffffff", "printed: at most, by our baseline"),
    (Rule.AT_LEAST, False): ("^", "#000000", "printed: at least"),
    (Rule.AT_LEAST, True): ("^", "#ffffff", "printed: at least, by our baseline"),
}
"""Rule, and whether the mark depends on a baseline of ours -> marker, its color, and its label."""

Jobs = Callable[[Point], pd.DataFrame | None]
"""Function that returns the jobs of the cell of a point, or None if they were not kept."""


class Mark(NamedTuple):
    """A printed value on a bar."""

    figure: str
    bar: int
    """Index of the bar in the table of means."""
    value: float
    kind: tuple[Rule, bool]
    element: str


def draw(file: ExperimentFile, table: pd.DataFrame, jobs: Jobs, folder: Path) -> tuple[list[Path], list[str]]:
    """Draw the plots of an experiment as PNG and SVG files, each with a CSV file of what is drawn.

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
    found = []
    for where in (plot.at, plot.relative_to or {}):
        points = [point for point in file.experiment.points() if point.fits({**where, "workload": workload})]
        tables = [table for point in points if (table := jobs(point)) is not None]
        if not tables:
            return None
        found.append(pd.concat(tables, ignore_index=True).assign(weight=1.0 / len(tables)))  # averages jobs over seeds
    names = [_named(where) for where in (plot.at, plot.relative_to or {})]
    return (heat_maps if plot.kind == "heatmap" else daily)(plot, found[0], found[1], names, title)


def _named(where: Mapping[str, Any]) -> str:
    return ", ".join(str(value) if key == "policy" else f"{key} {value}" for key, value in where.items())


def bars(
    plot: Plot, rows: pd.DataFrame, title: str, claims: Iterable[Claim] = ()
) -> tuple[Figure, pd.DataFrame] | None:
    """Draw a panel per figure: groups (shares or workloads) on the x axis, a bar per policy and varying setting.

    Args:
        plot: the plot.
        rows: the rows of its window.
        title: title of the picture.
        claims: printed figures. Each is a mark on the bars that it describes.

    Returns:
        The picture, and a row per bar and mark; None if no point was computed.
    """
    absolute = means(rows) if len(rows) else rows
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
    marks = [mark for claim in claims for mark in _marks(claim, plot, averaged, absolute)]
    wide = len(plot.figures) == 1 and len(averaged) > MANY
    figure, axes_of = panels(len(plot.figures), title, height=2.2 if len(plot.figures) == 1 else 2.0, wide=wide)
    width = 0.84 / len(series)
    boxes: dict[str, list[str]] = {}
    data: list[list[Any]] = []
    for axes, name in zip(axes_of, plot.figures, strict=True):
        scale = 100.0 if name in PERCENT and plot.relative_to is None else 1.0
        place: dict[Any, tuple[float, str, Any]] = {}
        for index, values in enumerate(series):
            mine = averaged[(averaged[varying] == pd.Series(values, varying)).all(axis=1)]
            label = ", ".join(map(str, values))
            at = np.array([groups.index(group) for group in mine[x]]) + (index - (len(series) - 1) / 2) * width
            color, hatch = COLORS[index % len(COLORS)], HATCHES[index // len(COLORS) % len(HATCHES)]
            axes.bar(at, mine[name] * scale, width * 0.94, color=color, hatch=hatch, edgecolor="#ffffff", label=label)
            quartiles = np.full((2, len(mine)), np.nan)
            if plot.relative_to is None:
                of_all = rows[(rows[varying] == pd.Series(values, varying)).all(axis=1)]
                by_seed = of_all.groupby(x, sort=False)[name]
                quartiles, what = _quartiles(plot, by_seed, mine.set_index(x), name)
                if _draw_boxes(axes, at, quartiles * scale, width) and name not in boxes.setdefault(what, []):
                    boxes[what].append(name)
            drawn = zip(mine.index, at, mine[x], mine[name] * scale, *(quartiles * scale), strict=True)
            for bar, where, group, height, low, high in drawn:
                place[bar] = where, label, group
                data.append([name, "bar", group, label, height, low, high, ""])
        for mark in (mark for mark in marks if mark.figure == name):
            where, label, group = place[mark.bar]
            shape, color, text = MARKS[mark.kind]
            axes.plot(
                where, mark.value * scale, shape, color=color, label=text, markersize=3.5, markeredgecolor="#000000",
                markeredgewidth=0.6, zorder=4,
            )  # fmt: skip
            data.append([name, text, group, label, mark.value * scale, np.nan, np.nan, mark.element])
        _label(axes, name, x, groups, plot, figure.get_figwidth() / (1 if len(plot.figures) == 1 else 2))
    legend(figure, axes_of, _legend(boxes, len(plot.figures)) if boxes else "")
    return figure, pd.DataFrame(data, columns=["figure", "what", x, "series", "value", "p25", "p75", "element"])


def _marks(claim: Claim, plot: Plot, averaged: pd.DataFrame, absolute: pd.DataFrame) -> Iterator[Mark]:
    """Yield the marks of a printed value.

    A claim about the least or the greatest of several points is a mark on that bar only. A printed change is a mark at
    the changed baseline of ours, and in a normalized plot an absolute value is divided by our baseline.

    Args:
        claim: the claim.
        plot: the plot.
        averaged: a row per bar, normalized if the plot is.
        absolute: a row per point of the window, not normalized.
    """
    if claim.value is None or claim.figure not in plot.figures or claim.rule is Rule.SIGN:
        return
    if claim.window not in (None, averaged["window"].iloc[0]) or not set(claim.at) <= set(averaged):
        return
    absolute = absolute.dropna(subset=claim.figure)
    points = {_key(point): point for point in chosen(absolute, claim.at).to_dict("records")}
    bases = {key: _base(claim.relative_to, absolute, point, claim.figure) for key, point in points.items()}
    if claim.take != "mean" and points:
        least_or_greatest = min if claim.take == "least" else max
        key = least_or_greatest(points, key=lambda key: points[key][claim.figure] / bases[key])
        points = {key: points[key]}
    drawn = {_key(point): bar for bar, point in zip(averaged.index, averaged.to_dict("records"), strict=True)}
    kind = (claim.rule, claim.relative_to != plot.relative_to)
    for key, point in points.items():
        value = claim.value if claim.relative_to is None else (1.0 + claim.value) * bases[key]
        value /= _base(plot.relative_to, absolute, point, claim.figure)
        if key in drawn and np.isfinite(value):
            yield Mark(claim.figure, drawn[key], value, kind, claim.element)


def _key(point: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Return the values that name a point; a missing one, NaN, as None."""
    return tuple(None if point[key] != point[key] else point[key] for key in GROUP)


def _base(relative_to: Mapping[str, Any] | None, absolute: pd.DataFrame, point: Mapping[Any, Any], name: str) -> float:
    """Return the figure of the baseline of a point, NaN if it is 0 or unknown; 1 without a baseline."""
    if relative_to is None:
        return 1.0
    keys = [key for key in GROUP if key not in relative_to]
    return reference(chosen(absolute, relative_to).to_dict("records"), point, keys, name) or np.nan


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
        of = "" if len(names) == figures else f" ({' / '.join(all_metrics()[name].label for name in names)})"
        parts.append(f"quartiles over {over}{of}")
    return "bar: mean over seeds; box: " + "; ".join(parts)


def _label(axes: Axes, name: str, x: str, groups: list[Any], plot: Plot, width: float) -> None:
    """Label the axes of a panel that is `width` inches wide."""
    metric = all_metrics()[name]
    if plot.relative_to is not None:
        axes.axhline(1.0, color="#222222", linewidth=0.8, linestyle="--")
        base = f"/ {', '.join(map(str, plot.relative_to.values()))}"
        axes.set_ylabel("\n".join(wrapped(text, 1.6) for text in (metric.label, base)))
    else:
        axes.set_ylabel(wrapped(f"{metric.label} (%)" if name in PERCENT else metric.title, 1.6))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axes.set_xlim(-0.5, len(groups) - 0.5)
    ticks = [f"{100 * group:g}" if x == "share" else str(group) for group in groups]
    shared = _shared_start(ticks)
    ticks = [tick.removeprefix(shared) for tick in ticks]
    crowded = sum(len(tick) + 2 for tick in ticks) > characters(width - 0.6)
    axes.set_xticks(range(len(groups)), ticks, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    workload = f"workload {shared}..." if shared else "workload" if len(groups) > 1 else ""
    axes.set_xlabel("malleable jobs (%)" if x == "share" else workload)
    axes.grid(axis="y", linewidth=0.4, color="#cccccc")


def _shared_start(names: list[str]) -> str:
    """Return the words, each with its hyphen, with which all of several names begin: `very-heavy-`."""
    found = ""
    for words in zip(*(name.split("-")[:-1] for name in names), strict=False):
        if len(names) < 2 or len(set(words)) > 1:
            break
        found += f"{words[0]}-"
    return found
