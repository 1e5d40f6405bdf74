"""Report sections with curves over time: utilization and queue length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.metrics import busy_cores, total_cores, waiting
from tracebed.validation.pictures import Picture
from tracebed.validation.report.sections import Section
from tracebed.validation.report.style import DASHED, PREDICTED, REAL, SOFT, above, panels
from tracebed.validation.report.time_axis import TimeAxis
from tracebed.validation.report.words import real_side
from tracebed.validation.verdict import Comparison

BINS = 800
"""Number of bins of a curve with too many steps to distinguish."""


def _utilization(comparison: Comparison) -> Picture | None:
    """Return curves of the share of cores held by jobs, or None if neither run has allocations."""
    if not any(len(run.allocations) for run in (comparison.real, comparison.predicted)):
        return None
    time = TimeAxis.of(comparison.real, comparison.predicted)
    window = comparison.real_metrics["utilization_window"]

    def draw(width: float) -> Figure:
        figure = _both(comparison, time, lambda run: (busy_cores(run), max(total_cores(run), 1)), width)
        (axes,) = figure.axes
        axes.set_ylim(0, 1.04)
        axes.set_ylabel("utilization")
        if window["name"] == "arrivals" and window["end_s"] < time.end:
            end = window["end_s"] / time.unit
            axes.axvspan(end, 1.01 * time.end / time.unit, color=SOFT, alpha=0.13, linewidth=0)
        return figure

    caption = (
        f"Share of all cores held by jobs, real ({real_side(comparison.real.info)}) and predicted. Shaded: after the "
        "last submission, outside the window of the utilization in the verdict."
    )
    alt = "Utilization over time, real and predicted overlaid"
    return Picture(draw, caption, alt, chart="utilization", about_figure=_averaged(comparison, busy_cores))


def _queue(comparison: Comparison) -> Picture:
    """Return curves of the number of waiting jobs."""
    time = TimeAxis.of(comparison.real, comparison.predicted)

    def draw(width: float) -> Figure:
        figure = _both(comparison, time, lambda run: (waiting(run), 1.0), width)
        (axes,) = figure.axes
        axes.set_ylabel("waiting jobs")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        return figure

    side = real_side(comparison.real.info)
    caption = f"Number of waiting jobs, real ({side}) and predicted."
    alt = "Queue length over time, real and predicted overlaid"
    return Picture(draw, caption, alt, chart="queue", about_figure=_averaged(comparison, waiting))


UTILIZATION = Section("Utilization", 500, _utilization)
QUEUE = Section("Queue", 600, _queue)


def _both(comparison: Comparison, time: TimeAxis, of: Callable[[Run], tuple[Steps, float]], width: float) -> Figure:
    sides = {"real": (comparison.real, REAL, "-"), "predicted": (comparison.predicted, PREDICTED, DASHED)}
    return curves(sides, time, of, width)


def curves(
    runs: Mapping[str, tuple[Run, str, Any]], time: TimeAxis, of: Callable[[Run], tuple[Steps, float]], width: float
) -> Figure:
    """Return a figure with a step curve per run.

    Args:
        runs: name -> run, color, and line style.
        of: function that returns the steps of a run, and the value that is drawn as 1.
        width: of the figure, inches.
    """
    figure, (axes,) = panels(1, 1.9, width)
    for name, (run, color, line) in runs.items():
        steps, unit = of(run)
        x, y = _points(steps, time.end)
        x, y = x / time.unit, y / unit
        axes.step(x, y, where="post", color=color, linewidth=1.1, linestyle=line, label=name)
        if color == REAL:
            axes.fill_between(x, y, step="post", color=color, alpha=0.10, linewidth=0)
    axes.set_ylim(bottom=0)
    above(axes)
    time.apply(axes)
    return figure


def _points(steps: Steps, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a step function from 0 to `end` (s): its steps or, if these are too many, averages over `BINS` bins."""
    if len(steps.times) > 2 * BINS:
        edges = np.linspace(0.0, end, BINS + 1)
        means = steps.means(edges)
        return edges, np.append(means, means[-1])
    inside = steps.times < end
    x = np.concatenate(([0.0], steps.times[inside], [end]))
    return x, np.concatenate((steps.at(np.zeros(1)), steps.values[inside], steps.at(np.array([end]))))


def _averaged(comparison: Comparison, of: Callable[[Run], Steps]) -> str:
    many = [len(of(run).times) > 2 * BINS for run in (comparison.real, comparison.predicted)]
    return f" The curves are averages over {BINS} bins." if any(many) else ""
