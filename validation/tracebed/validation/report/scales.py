"""Axes of the pictures of a report: the common time axis, and scales for skewed values.

A scale for skewed values is linear, or linear up to a threshold and logarithmic beyond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, SymmetricalLogLocator

from tracebed.converters.workload import FloatArray
from tracebed.ground.table import Table
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import origin
from tracebed.validation.report.style import MARKS, NARROW

DRAINED = 0.95  # share of the jobs that end before the end of a cropped axis
TAIL = 0.5  # share of the axis above which the tail after that instant is cropped
UNITS = ((86400.0, "days", 4.0), (3600.0, "h", 3.0), (60.0, "min", 10.0))
"""Units of time: seconds, name, and smallest length of the axis in this unit."""

DWARFED = 100.0  # ratio of the largest to the median absolute value above which an axis is partly logarithmic
GRID = 300  # number of columns and rows of the grid of a scatter plot with many points


@dataclass(frozen=True)
class TimeAxis:
    """Trace time after the first submission of each run, from 0 to `end`.

    The axis covers its runs completely, unless all arrivals and `DRAINED` of the job ends lie in its first half. Then
    the axis is cropped, and `note` describes the rest.
    """

    end: float  # end of the axis, s
    unit: float  # length of the unit, s
    name: str  # name of the unit: days, h, min or s
    later: tuple[int, ...]  # for each run, the number of jobs that end after `end`
    last: tuple[float, ...]  # for each run, the last end of a job, s; 0 if no job ended

    @classmethod
    def of(cls, *runs: Run) -> TimeAxis:
        """Return the axis for all of `runs`."""
        ends = [_instants(run, run.table("jobs"), "end") for run in runs]
        last = tuple(float(each.max(initial=0.0)) for each in ends)
        held = ((run, block) for run in runs for block in run.table("allocations").blocks())
        full = max([*last, *(float(_instants(run, block, "end").max(initial=0.0)) for run, block in held), 1.0])
        drained = [float(np.quantile(each, DRAINED, method="higher")) for each in ends if len(each)]
        submits = (_instants(run, run.table("jobs"), "submit") for run in runs)
        end = max([*drained, *(float(each.max(initial=0.0)) for each in submits), 1.0])
        if end >= (1 - TAIL) * full:
            end = full
        unit, name = next(((unit, name) for unit, name, least in UNITS if end >= least * unit), (1.0, "s"))
        return cls(end, unit, name, tuple(int((each > end).sum()) for each in ends), last)

    def apply(self, axes: Axes, *, label: bool = True) -> None:
        """Set limits, ticks and label of an x axis in the unit of this axis."""
        axes.set_xlim(0.0, 1.01 * self.end / self.unit)
        wide = axes.get_figure(root=True).get_figwidth() > NARROW  # type: ignore[union-attr]
        steps = [1, 2, 3, 5, 6, 10] if self.name in ("h", "min") else [1, 2, 5, 10]
        axes.xaxis.set_major_locator(MaxNLocator(12 if wide else 6, steps=steps))
        if label:
            axes.set_xlabel(f"time after the first submission ({self.name})")
        else:
            axes.tick_params(labelbottom=False)

    def show(self, instant: float) -> str:
        """Return an instant (s) in the unit of this axis: `6.9 days`."""
        return f"{instant / self.unit:,.4g} {self.name}"

    def note(self, *sides: str) -> str:
        """Return a sentence about jobs of the `sides` that end after the axis; empty if there are none."""
        beyond = [
            f"{count:,} {side} jobs end later, the last at {self.show(last)}"
            for side, count, last in zip(sides, self.later, self.last, strict=True)
            if count
        ]
        if not beyond:
            return ""
        return f" The time axis ends at {self.show(self.end)}, when {100 * DRAINED:.0f} % of the jobs have ended: " + (
            "; ".join(beyond) + "."
        )


def _instants(run: Run, table: Table, column: str) -> FloatArray:
    """Return the known instants of a column of a table of a run, s after the first submission."""
    instants: FloatArray = table[column] - origin(run)
    return instants[np.isfinite(instants)]


def threshold(*samples: FloatArray) -> float | None:
    """Return the value up to which the axis of these values is linear, or None for a linear axis."""
    amounts = np.abs(np.concatenate(samples))
    amounts = amounts[np.isfinite(amounts) & (amounts > 0)]
    if not len(amounts) or amounts.max() < DWARFED * np.median(amounts):
        return None
    # A power of ten near a tenth of the median of the nonzero absolute values.
    return float(max(10.0 ** np.floor(np.log10(np.median(amounts) / 10)), amounts.max() * 1e-7, 1.0))


def decades(*samples: FloatArray) -> float | None:
    """Return the threshold of a logarithmic axis: a power of ten near the 10th percentile of the positive values."""
    # Below the threshold, the axis is linear, so that 0 can be drawn.
    values = np.concatenate(samples)
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return None
    least = max(float(np.percentile(values, 10)), 1e-4 * float(values.max()))
    return float(10.0 ** np.floor(np.log10(least)))


def apply(axes: Axes, name: str, linear: float | None) -> None:
    """Set the scale of the axis `name` (`x` or `y`), with `linear` from `threshold`, and plain numbers at its ticks."""
    axis = axes.xaxis if name == "x" else axes.yaxis
    if linear is not None:
        (axes.set_xscale if name == "x" else axes.set_yscale)("symlog", linthresh=linear)
        locator = SymmetricalLogLocator(base=10, linthresh=linear)
        locator.set_params(numticks=7)
        axis.set_major_locator(locator)
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(_number))


def edges(values: FloatArray, count: int, linear: float | None) -> FloatArray:
    """Return the edges of `count` bins of equal width on the axis, shape (count + 1,)."""
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    if linear is None:
        return np.linspace(low, high, count + 1)
    first, last = _log(np.array([low, high]), linear).tolist()
    return _unlog(np.linspace(first, last, count + 1), linear)


def note(linear: float | None) -> str:
    """Return the sentence about the scale for a caption; empty for a linear scale."""
    return f" The scale is linear up to {linear:,.0f} s and logarithmic beyond." if linear is not None else ""


def scatter(
    axes: Axes, x: FloatArray, y: FloatArray, color: str, *, linear: Mapping[str, float | None] | None = None
) -> None:
    """Draw a mark per point. More than `MARKS` points are an image: a mark per cell, darker with more points."""
    if len(x) <= MARKS:
        axes.scatter(x, y, color=color, linewidths=0, s=9.0, alpha=0.6)
        return
    cells = np.zeros(len(x), dtype=np.int64)
    for values, name in ((x, "x"), (y, "y")):
        logarithmic = (linear or {}).get(name)
        placed = values if logarithmic is None else _log(values, logarithmic)
        low, high = float(placed.min()), float(placed.max())
        cells = cells * GRID + ((placed - low) / max(high - low, 1e-12) * (GRID - 1)).astype(np.int64)
    _, first, count = np.unique(cells, return_index=True, return_counts=True)
    colors = np.tile(mpl.colors.to_rgba(color), (len(first), 1))
    colors[:, 3] = np.clip(0.2 + 0.25 * np.log10(count), 0.2, 0.95)
    axes.scatter(x[first], y[first], facecolors=colors, linewidths=0, s=3.0, rasterized=True)


def _log(values: FloatArray, linear: float) -> FloatArray:
    amounts = np.abs(values) / linear
    return np.sign(values) * np.where(amounts <= 1, amounts, 1 + np.log10(np.maximum(amounts, 1)))


def _unlog(values: FloatArray, linear: float) -> FloatArray:
    amounts = np.abs(values)
    return np.sign(values) * linear * np.where(amounts <= 1, amounts, 10.0 ** (np.maximum(amounts, 1) - 1))


def _number(value: float, _: int) -> str:
    """Return the label of a tick: 300, 10 k, 2.5 M."""
    for size, suffix in ((1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            return f"{value / (1e6 if size == 1e6 else 1e3):,.4g}{suffix}".replace("-", "−")
    return f"{value:,.4g}".replace("-", "−")
