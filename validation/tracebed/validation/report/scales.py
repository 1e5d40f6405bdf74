"""Scales of axes for skewed values: linear, or linear up to a threshold and logarithmic beyond."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator, SymmetricalLogLocator

from tracebed.converters.workload import FloatArray
from tracebed.validation.report.style import MARKS

DWARFED = 100.0
"""Ratio of the largest to the median absolute value above which an axis is partly logarithmic."""
GRID = 300
"""Number of columns and rows of the grid of a scatter plot with many points."""


def threshold(*samples: FloatArray) -> float | None:
    """Return the absolute value up to which the axis of these values is linear, or None for a linear axis.

    The threshold is a power of ten near a tenth of the median of the nonzero absolute values.
    """
    amounts = np.abs(np.concatenate(samples))
    amounts = amounts[np.isfinite(amounts) & (amounts > 0)]
    if not len(amounts) or amounts.max() < DWARFED * np.median(amounts):
        return None
    return float(max(10.0 ** np.floor(np.log10(np.median(amounts) / 10)), amounts.max() * 1e-7, 1.0))


def decades(*samples: FloatArray) -> float | None:
    """Return the threshold of a logarithmic axis: a power of ten near the 10th percentile of the positive values.

    Below the threshold, the axis is linear, so that 0 can be drawn. None if no value is positive.
    """
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
    """Draw a mark for each point. More than `MARKS` points are drawn as an image: one mark per occupied cell of a grid.

    Args:
        x, y: shape (points,).
        color: color of the marks. The marks of cells with more points are darker.
        linear: threshold of each axis (`x`, `y`), as in `apply`.
    """
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
