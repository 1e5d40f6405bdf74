"""Plots of means over seeds: bars or lines with 95 % intervals, quartiles of jobs as boxes, printed values as marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from tracebed.converters.workload import FloatArray, IntArray
from tracebed.orchestrator.setup import TYPES
from tracebed.validation import setups
from tracebed.validation.experiments.experiment_schema import Claim, Plot, Rule
from tracebed.validation.experiments.views.averages import (
    GROUP,
    chosen,
    interval,
    interval_text,
    means,
    named,
    normalized,
    records,
    reference,
)
from tracebed.validation.metrics import all_metrics
from tracebed.validation.pictures import FONT, SeriesStyle, characters, legend, panels, wrapped
from tracebed.validation.report.style import INK, SOFT

BOX = INK
PERCENT = {"utilization", "utilization_full", "loss_of_capacity"}
MANY = 24  # number of bars from which a single panel is as wide as a page
NUMBERS, LETTER = FONT - 1.5, 0.64
"""Size of the values on bars, points; width of a digit, in this size: that of the widest font of the style."""
DWARFED = 30.0  # ratio of the largest to the smallest value above which an axis is logarithmic
NUMERIC = ("share", *(name for name in setups.AXES if TYPES[name] in (int, float)))
"""Keys with values that can be the x axis of lines, the first one that varies."""
AXES = {
    "share": "malleable jobs (%)",
    "interval_s": "interval (s)",
    "malleability_interval_s": "malleability interval (s)",
}
MARKS: Mapping[tuple[Rule, bool], tuple[str, str, str]] = {
    (Rule.NUMBER, False): ("D", "#000000", "printed"),
    (Rule.NUMBER, True): ("D", "#ffffff", "printed, by our baseline"),
    (Rule.AT_MOST, False): ("v", "#000000", "printed: at most"),
    (Rule.AT_MOST, True): ("v", "#ffffff", "printed: at most, by our baseline"),
    (Rule.AT_LEAST, False): ("^", "#000000", "printed: at least"),
    (Rule.AT_LEAST, True): ("^", "#ffffff", "printed: at least, by our baseline"),
}
"""Rule, and whether the mark depends on our baseline -> marker, its color, and its label."""


class Mark(NamedTuple):
    """A printed value on a bar."""

    figure: str
    bar: int  # index of the bar in the table of means
    value: float
    kind: tuple[Rule, bool]
    element: str


class Series(NamedTuple):
    """The values of one policy and setting in a panel, in the order of the x axis; arrays of shape (points,)."""

    label: str
    at: FloatArray
    bars: Any  # index of each point in the table of means
    groups: list[Any]
    values: FloatArray
    half: FloatArray  # half-width of the 95 % interval of the mean or, of a ratio, over the pairs; NaN for one value
    runs: IntArray  # number of runs, or of pairs, behind each value
    quartiles: FloatArray  # shape (2, points); NaN if there are none
    style: SeriesStyle

    @property
    def top(self) -> float:
        """Largest value that is drawn."""
        ends = (self.values, self.values + self.half, self.quartiles[1])
        return float(np.nanmax(np.concatenate([*ends, [0.0]])))


class Layout(NamedTuple):
    """What a plot of means shows."""

    rows: pd.DataFrame  # the rows of its points, divided by those of the baseline if the plot has one
    averaged: pd.DataFrame  # their means, a row per point
    x: str  # key on the x axis
    varying: list[str]  # keys that differ between the series

    @property
    def series(self) -> dict[str, str]:
        """Name of each series -> its policy."""
        values = self.averaged[self.varying].drop_duplicates().to_dict("records")
        return {named({str(key): value for key, value in each.items()}): each["policy"] for each in values}


def layout(plot: Plot, rows: pd.DataFrame) -> Layout | None:
    """Return what a plot shows of the rows of its window, or None if no point was computed."""
    if plot.relative_to is not None:
        rows = normalized(rows, plot.figures, plot.relative_to)
    rows = chosen(rows, plot.at)
    averaged = means(rows) if len(rows) else rows
    averaged = averaged[averaged[plot.figures].notna().any(axis=1)]  # omit labels without bars
    if not len(averaged):
        return None
    numeric = NUMERIC if plot.kind == "lines" else NUMERIC[:1]
    x = next((key for key in numeric if averaged[key].nunique() > 1), "workload")
    varying = [key for key in GROUP if key != x and (key == "policy" or averaged[key].nunique() > 1)]
    return Layout(rows, averaged, x, varying)


def bars(
    plot: Plot,
    rows: pd.DataFrame,
    title: str,
    claims: Iterable[Claim] = (),
    *,
    width: float | None = None,
    numbers: Mapping[str, int] | None = None,
) -> tuple[Figure, pd.DataFrame] | None:
    """Draw a panel per figure with values: groups on the x axis, a bar or line per policy and varying setting.

    A claim is a mark at the means that it describes. `width` is in inches; `numbers`: series -> number of its style on
    the page. Returns the picture, and a row per mean and mark; None if no point was computed.
    """
    absolute = means(rows) if len(rows) else rows
    made = layout(plot, rows)
    if made is None:
        return None
    rows, averaged, x, varying = made
    shown = [name for name in plot.figures if averaged[name].notna().any()]
    numbers = numbers or {label: number for number, label in enumerate(made.series)}
    groups = list(dict.fromkeys(averaged[x]))
    divided = sorted(_divided(averaged, rows, varying), key=lambda each: numbers[each[0]])
    marks = [mark for claim in claims for mark in _marks(claim, plot, averaged, absolute)]
    wide = len(shown) == 1 and len(averaged) > MANY
    figure, axes_of = panels(len(shown), title, height=2.2 if len(shown) == 1 else 2.0, wide=wide, width=width)
    data: list[list[Any]] = []
    what: dict[str, list[str]] = {}
    sizes: set[int] = set()
    for axes, name in zip(axes_of, shown, strict=True):
        scale = 100.0 if name in PERCENT and plot.relative_to is None else 1.0
        found, over = _series(plot, divided, name, x, groups, scale, numbers)
        mine = [mark for mark in marks if mark.figure == name]
        each = (figure.get_figwidth() / columns_in(axes) - 0.6) / len(groups)
        _scale(axes, found, [mark.value * scale for mark in mine], labeled=plot.kind != "lines")
        draw = _draw_lines if plot.kind == "lines" else _draw_bars
        draw(axes, found, each)
        sizes |= {int(runs) for one in found for runs in one.runs[np.isfinite(one.half)]}
        if any(np.isfinite(one.quartiles).any() for one in found):
            what.setdefault(over, []).append(name)
        data += [row for one in found for row in _rows(name, one, lines=plot.kind == "lines")]
        data += _draw_marks(axes, mine, found, scale)
        _label(axes, name, x, groups, plot, figure.get_figwidth() / columns_in(axes))
    replicated = "seed and perturbation" if rows["perturbation"].nunique() > 1 else "seed"
    legend(figure, axes_of, _about(what, len(shown), interval_text(sizes, replicated, plot) if sizes else "", plot))
    columns = ["figure", "what", x, "series", "value", "low", "high", "p25", "p75", "element"]
    return figure, pd.DataFrame(data, columns=[*columns, "runs", "color", "marker"])


def columns_in(axes: Axes) -> int:
    """Return the number of panels side by side in the figure of a panel."""
    place = axes.get_subplotspec()
    assert place is not None
    return int(place.get_gridspec().ncols)


def _divided(
    averaged: pd.DataFrame, rows: pd.DataFrame, varying: list[str]
) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Return the label of each series, its means, and its rows."""
    parts = []
    for values in averaged[varying].drop_duplicates().itertuples(index=False, name=None):
        mine, of_all = (table[(table[varying] == pd.Series(values, varying)).all(axis=1)] for table in (averaged, rows))
        parts.append((named(dict(zip(varying, values, strict=True))), mine, of_all))
    return parts


def _series(
    plot: Plot,
    divided: list[tuple[str, pd.DataFrame, pd.DataFrame]],
    name: str,
    x: str,
    groups: list[Any],
    scale: float,
    numbers: Mapping[str, int],
) -> tuple[list[Series], str]:
    """Return the series of a panel, and the population of the quartiles: jobs or time."""
    width = 0.84 / len(divided)
    found = []
    for index, (label, mine, of_all) in enumerate(divided):
        points = of_all.groupby(x, sort=False, dropna=False)
        intervals = [interval(points.get_group(key), name) for key in mine[x]]
        half, runs = np.array([each[0] for each in intervals]), np.array([each[1] for each in intervals])
        quartiles = np.full((2, len(mine)), np.nan)
        if plot.spread == "jobs" and plot.relative_to is None and f"{name}_p25" in mine:
            quartiles = mine[[f"{name}_p25", f"{name}_p75"]].to_numpy(dtype=np.float64).T
        at = np.array([groups.index(group) for group in mine[x]], dtype=np.float64)
        if plot.kind != "lines":
            at += (index - (len(divided) - 1) / 2) * width
        elif x != "workload":
            at = mine[x].to_numpy(dtype=np.float64) * (100.0 if x == "share" else 1.0)
        heights: FloatArray = scale * np.asarray(mine[name], dtype=np.float64)
        style = SeriesStyle.of(numbers[label])
        found.append(
            Series(label, at, mine.index, list(mine[x]), heights, scale * half, runs, scale * quartiles, style)
        )
    return found, "time" if all_metrics()[name].mean_over_time is not None else "jobs"


def _rows(name: str, series: Series, *, lines: bool) -> Iterator[list[Any]]:
    """Yield a row of the data of a plot for each mean."""
    low, high = series.values - series.half, series.values + series.half
    for row in zip(series.groups, series.values, low, high, *series.quartiles, series.runs, strict=True):
        group, *values, runs = row
        marker = series.style.marker if lines else ""
        yield [name, "mean", group, series.label, *values, "", runs, series.style.color, marker]


def _scale(axes: Axes, found: list[Series], marks: list[float], *, labeled: bool) -> None:
    """Set the scale and the limits of the y axis: logarithmic if a bar would be too small to be read."""
    values = np.concatenate([*(one.values for one in found), marks])
    top = max([one.top for one in found] + marks)
    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive) and positive.max() > DWARFED * positive.min():
        low = 10.0 ** np.floor(np.log10(positive.min()))
        axes.set_yscale("log")
        axes.set_ylim(low if positive.min() > 1.5 * low else low / 2, top * (2.5 if labeled else 1.3))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, (1.16 if labeled else 1.06) * top or 1.0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))


def _draw_bars(axes: Axes, found: list[Series], each: float) -> None:
    """Draw bars with intervals, boxes and values; a group is `each` inches wide."""
    width = 0.84 / len(found)
    points = 72 * each * width
    bottom = axes.get_ylim()[0]
    for one in found:
        color, hatch = one.style.color, one.style.hatch
        axes.bar(one.at, one.values, width * 0.94, color=color, hatch=hatch, edgecolor="#ffffff", label=one.label)
        _draw_boxes(axes, one, width)
        if np.isfinite(one.half).any():
            axes.errorbar(
                one.at, one.values, one.half, fmt="none", ecolor=BOX, elinewidth=0.7, capsize=min(2, points / 4)
            )
        tops = np.fmax(np.fmax(one.values, one.values + np.nan_to_num(one.half)), np.nan_to_num(one.quartiles[1]))
        for at, value, top in zip(one.at, one.values, tops, strict=True):
            if np.isfinite(value):
                text = _number(value)
                turned = points < LETTER * NUMBERS * (len(text) + 1)  # a letter more, as the gap to the next one
                if turned and points < 1.25 * NUMBERS:
                    continue  # not even a turned number fits
                axes.annotate(
                    text, (at, max(top, bottom)), (0, 1.5), textcoords="offset points", ha="center", va="bottom",
                    fontsize=NUMBERS, rotation=90 if turned else 0,
                )  # fmt: skip


def _number(value: float) -> str:
    """Return a value in at most five characters, such as 46.2k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _draw_lines(axes: Axes, found: list[Series], each: float) -> None:
    """Draw a line with marks for each series, and its interval as a band."""
    for one in found:
        order = np.argsort(one.at, kind="stable")
        x, y, half = one.at[order], one.values[order], one.half[order]
        axes.plot(
            x, y, color=one.style.color, label=one.label, linewidth=1.1, linestyle=one.style.line,
            marker=one.style.marker, markersize=3.5,
        )  # fmt: skip
        axes.fill_between(x, y - half, y + half, color=one.style.color, alpha=0.16, linewidth=0)


def _draw_marks(axes: Axes, marks: list[Mark], found: list[Series], scale: float) -> Iterator[list[Any]]:
    """Draw the printed values, and yield a row of the data for each."""
    places = {
        bar: (where, one.label, group)
        for one in found
        for bar, where, group in zip(one.bars, one.at, one.groups, strict=True)
    }
    for mark in marks:
        where, label, group = places[mark.bar]
        shape, color, text = MARKS[mark.kind]
        axes.plot(
            where, mark.value * scale, shape, color=color, label=text, markersize=3.5, markeredgecolor="#000000",
            markeredgewidth=0.6, zorder=4,
        )  # fmt: skip
        yield [mark.figure, text, group, label, mark.value * scale, *[np.nan] * 4, mark.element, np.nan, color, shape]


def _draw_boxes(axes: Axes, one: Series, width: float) -> None:
    """Draw a translucent box between the quartiles of each bar. The mean of a skewed figure may be outside."""
    known = np.isfinite(one.quartiles).all(axis=0)
    left, right = one.at[known] - width * 0.22, one.at[known] + width * 0.22
    low, high = np.maximum(one.quartiles[:, known], axes.get_ylim()[0])
    corners = [np.column_stack(corner) for corner in ((left, low), (right, low), (right, high), (left, high))]
    boxes = PolyCollection(list(np.stack(corners, axis=1)), facecolors=(1, 1, 1, 0.45), edgecolors=BOX, linewidths=0.8)
    axes.add_collection(boxes, autolim=False)


def _about(boxes: Mapping[str, list[str]], figures: int, interval: str, plot: Plot) -> dict[str, Artist]:
    """Return the entries of the legend that explain boxes and intervals, with figure names if the boxes differ."""
    entries: dict[str, Artist] = {}
    for over, names in boxes.items():
        of = "" if len(names) == figures else f" ({' / '.join(all_metrics()[name].label for name in names)})"
        entries[f"box: quartiles over {over}{of}"] = Patch(facecolor="#ffffff", edgecolor=BOX, linewidth=0.8)
    if interval and plot.kind == "lines":
        entries[interval] = Patch(facecolor="#bbbbbb", alpha=0.6)
    elif interval:
        entries[interval] = Line2D([], [], color=BOX, linewidth=0.8, linestyle="", marker="|", markersize=7)
    return entries


def _marks(claim: Claim, plot: Plot, averaged: pd.DataFrame, absolute: pd.DataFrame) -> Iterator[Mark]:
    """Yield the marks of a printed value.

    A claim about the least or the greatest of several points is a mark on that bar only. A printed change is a mark at
    our changed baseline, and in a normalized plot an absolute value is divided by our baseline. A change of a mean over
    several values of a key against the mean over other values has no mark, because it is about none of the bars alone.

    Args:
        averaged: a row per bar, normalized if the plot is.
        absolute: a row per point of the window, not normalized.
    """
    if claim.value is None or claim.figure not in plot.figures or claim.rule is Rule.SIGN:
        return
    if claim.window not in (None, averaged["window"].iloc[0]) or not set(claim.at) <= set(averaged):
        return
    against = claim.relative_to or {}
    if any(isinstance(values, list) and isinstance(against.get(key), list) for key, values in claim.at.items()):
        return
    absolute = absolute[[*GROUP, claim.figure]].dropna(subset=claim.figure)
    points = {_key(point): point for point in chosen(absolute, claim.at).to_dict("records")}
    bases = _bases(claim.relative_to, absolute, points, claim.figure)
    if claim.take != "mean" and points:
        least_or_greatest = min if claim.take == "least" else max
        key = least_or_greatest(points, key=lambda key: points[key][claim.figure] / bases[key])
        points = {key: points[key]}
    drawn = {_key(point): bar for bar, point in zip(averaged.index, averaged[GROUP].to_dict("records"), strict=True)}
    of_plot = _bases(plot.relative_to, absolute, points, claim.figure)
    kind = (claim.rule, claim.relative_to != plot.relative_to)
    for key in points:
        value = claim.value if claim.relative_to is None else (1.0 + claim.value) * bases[key]
        value /= of_plot[key]
        if key in drawn and np.isfinite(value):
            yield Mark(claim.figure, drawn[key], value, kind, claim.element)


def _key(point: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Return the values that name a point; a missing one, NaN, as None."""
    return tuple(None if point[key] != point[key] else point[key] for key in GROUP)


def _bases(
    relative_to: Mapping[str, Any] | None,
    absolute: pd.DataFrame,
    points: Iterable[tuple[Any, ...]],
    name: str,
) -> dict[tuple[Any, ...], float]:
    """Return the figure of the baseline of each point, NaN if it is 0 or unknown; 1 without a baseline."""
    if relative_to is None:
        return dict.fromkeys(points, 1.0)
    keys = [key for key in GROUP if key not in relative_to]
    rows = records(chosen(absolute, relative_to))
    return {key: reference(rows, dict(zip(GROUP, key, strict=True)), keys, name) or np.nan for key in points}


def _label(axes: Axes, name: str, x: str, groups: list[Any], plot: Plot, width: float) -> None:
    """Label the axes of a panel that is `width` inches wide."""
    metric = all_metrics()[name]
    if plot.relative_to is not None:
        axes.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
        base = f"ratio to {named(plot.relative_to)}"
        axes.set_ylabel("\n".join(wrapped(text, 1.6) for text in (f"{metric.label},", base)))
    else:
        axes.set_ylabel(wrapped(f"{metric.label} (%)" if name in PERCENT else metric.title, 1.6))
    axes.grid(axis="y", linewidth=0.5, color=SOFT, alpha=0.3)
    if plot.kind == "lines" and x != "workload":
        axes.set_xlabel(AXES.get(x, x))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
        return
    axes.set_xlim(-0.5, len(groups) - 0.5)
    ticks = [f"{100 * group:g}" if x == "share" else str(group) for group in groups]
    shared = _shared_start(ticks)
    ticks = [tick.removeprefix(shared) for tick in ticks]
    crowded = sum(len(tick) + 2 for tick in ticks) > characters(width - 0.6)
    axes.set_xticks(range(len(groups)), ticks, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    workload = f"workload {shared}..." if shared else "workload" if len(groups) > 1 else ""
    axes.set_xlabel(AXES.get(x, workload))


def _shared_start(names: list[str]) -> str:
    """Return the words, each with its hyphen, with which all of several names begin: `very-heavy-`."""
    start = ""
    for words in zip(*(name.split("-")[:-1] for name in names), strict=False):
        if len(names) < 2 or len(set(words)) > 1:
            break
        start += f"{words[0]}-"
    return start
