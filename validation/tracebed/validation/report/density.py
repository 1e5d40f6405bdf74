"""Density charts: the share of busy cores by node and time, for runs with more bars than a picture can show."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import origin
from tracebed.validation.report.style import small
from tracebed.validation.report.time_axis import TimeAxis

COLUMNS, ROWS = 240, 64
"""Largest number of bins of time and of groups of nodes."""
COLORS = "Blues"
"""Color map: from light to dark, in print and for the color blind, too."""


def density(run: Run, end: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the share of busy cores of groups of nodes over time.

    Args:
        end: end of the last bin, s after the first submission.

    Returns:
        Edges of the groups (nodes), edges of the bins (s after the first submission), and the shares, shape
        (groups, bins).
    """
    held, nodes = run.allocations, run.total_nodes
    rows = min(nodes, ROWS)
    cores = np.array([node.cores for node in run.info.nodes], dtype=np.float64)
    start, until = (held[name].to_numpy(dtype=np.float64) - origin(run) for name in ("start", "end"))
    weight = held["cores"].to_numpy(dtype=np.float64) / cores[held["node"].to_numpy()]
    low = held["node"].to_numpy(dtype=np.float64)
    there = (until > start) & (start < end)
    area = np.zeros((rows + 3, COLUMNS + 3))
    # A rectangle is the signed sum of four quadrants, each from a corner to the right and down. The differences of a
    # quadrant between neighboring cells are not 0 in the four cells at its corner only.
    for y, sign_y in ((low, 1.0), (low + held["count"].to_numpy(dtype=np.float64), -1.0)):
        for x, sign_x in ((start, 1.0), (np.minimum(until, end), -1.0)):
            at = (y[there] * rows / nodes, x[there] * COLUMNS / end)
            cell = [np.floor(each).astype(np.int64) for each in at]
            rest = [each - whole for each, whole in zip(at, cell, strict=True)]
            for up in (0, 1):
                for right in (0, 1):
                    share = (rest[0] if up else 1.0 - rest[0]) * (rest[1] if right else 1.0 - rest[1])
                    np.add.at(area, (cell[0] + up, cell[1] + right), sign_y * sign_x * share * weight[there])
    shares = area.cumsum(axis=0).cumsum(axis=1)[:rows, :COLUMNS]
    return np.linspace(0.0, nodes, rows + 1), np.linspace(0.0, end, COLUMNS + 1), np.clip(shares, 0.0, 1.0)


def draw(axes: Axes, run: Run, time: TimeAxis) -> None:
    """Draw the density chart of a run with its color bar."""
    nodes, times, shares = density(run, time.end)
    image = axes.pcolormesh(times / time.unit, nodes, 100.0 * shares, cmap=COLORS, vmin=0, vmax=100, rasterized=True)
    figure = axes.get_figure(root=True)
    assert figure is not None
    box = axes.get_position()
    inch = 1.0 / figure.get_figwidth()
    axes.set_position((box.x0, box.y0, box.width - 0.42 * inch, box.height))
    place = figure.add_axes((box.x1 - 0.3 * inch, box.y0, 0.09 * inch, box.height))
    bar = figure.colorbar(image, cax=place, ticks=[0, 50, 100])
    bar.set_label("busy cores (%)", size=small(), labelpad=1)
    bar.ax.tick_params(labelsize=small(), pad=1, length=2)
    bar.outline.set_visible(False)
