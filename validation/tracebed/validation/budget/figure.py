"""The waterfall of an error budget: from the error of the nominal prediction to the remainder, cause by cause."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tracebed.validation.budget.budget import LABELS, ErrorBudget, records
from tracebed.validation.budget.steps import NOMINAL, REMAINDER
from tracebed.validation.metrics import all_metrics
from tracebed.validation.pictures import Picture
from tracebed.validation.report.sections import Section
from tracebed.validation.report.style import NARROW, PREDICTED, REAL, SOFT, scale, small

ROW = 0.24  # height of a bar with its gap, inches
MARGIN = 1.8  # width of the names of the causes, inches
GAP = 0.24  # gap between panels side by side, inches
PANEL = 2.0  # smallest width of a panel beside others, inches: room for its title and its numbers
HEAD, FOOT = 0.32, 0.5  # height above and below a panel, inches
LEAST = 0.5  # shortest range of a panel, percent of the real value
ROOM = 0.45  # free space at each side of a panel for the numbers beside the bars, as a share of the range


def waterfall(budget: ErrorBudget, width: float) -> Figure:
    """Return the waterfall, one panel for each gated metric: as many side by side as fit. `width` is in inches."""
    frame = budget.frame
    names = [str(name) for name in frame.index[frame["gate"] & frame["error"].notna()]]
    rows = [NOMINAL, *budget.causes]
    margin, gap, head, foot, least, height = (
        scale() * each for each in (MARGIN, GAP, HEAD, FOOT, PANEL, ROW * len(rows))
    )
    columns = max(1, min(len(names), int((width - margin) / (least + gap)))) if width > NARROW else 1
    each = (width - margin - 0.1 - gap * (columns - 1)) / columns
    step = head + height + foot
    lines = max(1, -(-len(names) // columns))
    up = step * lines
    figure = Figure(figsize=(width, up))
    for number, name in enumerate(names):
        line, column = divmod(number, columns)
        left, bottom = margin + (each + gap) * column, up - step * (line + 1) + foot
        axes = figure.add_axes((left / width, bottom / up, each / width, height / up))
        _panel(axes, budget, name, rows)
        axes.tick_params(axis="y", length=0, labelleft=column == 0)
    return figure


def _panel(axes: Axes, budget: ErrorBudget, name: str, rows: Sequence[str]) -> None:
    """Draw the waterfall of one metric: the error, the share of each cause, and the remainder."""
    row, spread = records(budget.frame)[name], budget.spread
    unit = abs(row["real"]) / 100 if row["real"] else 1.0
    shares = np.array([row[cause] for cause in budget.causes[:-1]], dtype=np.float64) / unit
    begins = row["error"] / unit - np.concatenate(([0.0], np.cumsum(shares)))
    first = np.concatenate(([0.0], begins[:-1], [0.0]))
    last = np.concatenate(([begins[0]], begins[1:], [row[REMAINDER] / unit]))
    places = np.arange(len(rows))
    colors = [PREDICTED, *[REAL] * len(shares), PREDICTED]
    axes.axvspan(-row["margin"] / unit, row["margin"] / unit, color=SOFT, alpha=0.13, linewidth=0)
    axes.axvline(0.0, color=SOFT, linewidth=0.7)
    axes.barh(places, last - first, left=first, height=0.62, color=colors, linewidth=0)
    for place, at in zip(places[:-1], last[:-1], strict=True):
        axes.plot([at, at], [place, place + 1], color=SOFT, linewidth=0.7)
    deviations = np.zeros(len(rows))
    if spread is not None:
        deviations = np.array([spread.loc[name, column] for column in ("error", *budget.causes)]) / unit
        axes.errorbar(last, places, xerr=deviations, fmt="none", ecolor=SOFT, elinewidth=0.8, capsize=1.5)
    low, high = np.minimum(first, last - deviations), np.maximum(first, last + deviations)
    span = max(high.max() - low.min(), LEAST if row["real"] else 1e-9)
    axes.set_xlim(low.min() - ROOM * span, high.max() + ROOM * span)
    values = [row[column] / unit for column in ("error", *budget.causes)]
    for place, left, right, value in zip(places, low, high, values, strict=True):
        side, edge = ("right", left) if value < 0 else ("left", right)
        offset = (-3 if value < 0 else 3, 0)
        text = f"{value:+.2f}" if abs(value) >= 5e-3 else "0"
        axes.annotate(text, (edge, place), offset, textcoords="offset points", ha=side, va="center", fontsize=small())
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(places, [LABELS[cause] for cause in rows])
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.set_xlabel("predicted - real (%)" if row["real"] else "predicted - real")
    axes.set_title(all_metrics()[name].label, loc="left", fontsize=small(), fontweight="bold", color=SOFT, pad=4)


def picture(budget: ErrorBudget) -> Picture:
    """Return the waterfall with its caption."""
    caption = (
        "Why the prediction differs from the real run. First bar: error of the nominal prediction, in percent of the "
        "real value. Each further bar: the share of one cause, which disappears when the cause is taken from the real "
        "run, in addition to the causes above. Last bar: the error that remains. Band: margin of the metric. "
        f"{budget.headline}"
    )
    if len(budget.runs) > 1:
        caption += f" Means of {len(budget.runs)} real runs; whiskers: one standard deviation."
    caption += "".join(f" Note: {note}." for note in budget.notes)
    alt = "Waterfall of the error, metric by metric"
    return Picture(lambda width: waterfall(budget, width), caption, alt, data=lambda: budget.frame.reset_index())


def section(budget: ErrorBudget) -> Section:
    """Return the report section of an error budget."""
    return Section("Error budget", 50, lambda comparison: picture(budget))
