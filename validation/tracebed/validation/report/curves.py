"""Report sections with curves: utilization and queue length over time, and differences and distributions of waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.metrics import busy_cores, total_cores, waiting
from tracebed.validation.pictures import Picture
from tracebed.validation.report import scales
from tracebed.validation.report.scales import TimeAxis
from tracebed.validation.report.sections import Section
from tracebed.validation.report.style import DASHED, NARROW, PREDICTED, REAL, SOFT, above, beside, heading, panels
from tracebed.validation.report.words import real_side
from tracebed.validation.verdict import Comparison

BINS = 800  # number of bins of a curve with too many steps to distinguish

WAIT_BINS = 40
LEVELS = 400  # largest number of points of the curve of a distribution


def _utilization(comparison: Comparison) -> Picture | None:
    """Return curves of the share of cores held by jobs, or None if neither run has allocations."""
    if not any(len(run.table("allocations")) for run in (comparison.real, comparison.predicted)):
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
    """Return a figure with a step curve per run; `of` returns the steps, and the value that is drawn as 1."""
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


def _differences(comparison: Comparison) -> Picture | None:
    """Return the plot of the difference of waits of each job with a histogram, or None for fewer than two jobs."""
    jobs, agreement = comparison.jobs, comparison.differences["wait"]
    if agreement is None:
        return None
    off = (jobs["wait_predicted"] - jobs["wait_real"]).to_numpy(dtype=np.float64)
    time = TimeAxis.of(comparison.real, comparison.predicted)
    submit = jobs["submit_real"].to_numpy(dtype=np.float64) / time.unit
    linear = scales.threshold(off)

    def draw(width: float) -> Figure:
        figure, (axes,) = panels(1, 2.3, width)
        box = axes.get_position()
        share = 0.80 if width > NARROW else 0.72
        axes.set_position((box.x0, box.y0, box.width * share, box.height))
        place = (box.x0 + box.width * (share + 0.03), box.y0, box.width * (0.97 - share), box.height)
        histogram = figure.add_axes(place, sharey=axes)
        axes.axhspan(*agreement.limits, color=REAL, alpha=0.10, linewidth=0)
        axes.axhline(0.0, color=SOFT, linewidth=0.7)
        scales.scatter(axes, submit, off, PREDICTED, linear={"y": linear})
        bins = scales.edges(off, WAIT_BINS, linear).tolist()
        histogram.hist(off, bins=bins, orientation="horizontal", color=PREDICTED, alpha=0.7)
        for each in (axes, histogram):
            each.axhline(agreement.bias, color=REAL, linewidth=0.9, linestyle=DASHED)
        scales.apply(axes, "y", linear)
        axes.set_ylabel("predicted - real wait (s)" if width > NARROW else "difference (s)")
        last = max(float(submit.max()), 1e-9)
        axes.set_xlim(-0.01 * last, 1.01 * last)
        axes.xaxis.set_major_locator(MaxNLocator(12 if width > NARROW else 5))
        axes.set_xlabel(f"submission ({time.name} after the first)")
        histogram.tick_params(labelleft=False)
        histogram.xaxis.set_major_locator(MaxNLocator(2, integer=True))
        scales.apply(histogram, "x", None)
        histogram.set_xlabel("jobs")
        return figure

    caption = (
        "Difference of the wait of each job, predicted - real, over its submit time, and the distribution of the "
        "differences. Dashed: mean difference (bias). Band: limits of agreement, bias ± 1.96 standard deviations. "
        "Positive: the job waits longer in the prediction than in the real run "
        f"({real_side(comparison.real.info)}).{scales.note(linear)}"
    )
    return Picture(draw, caption, "Difference of the wait of each job, and a histogram", chart="differences")


def _distributions(comparison: Comparison) -> Picture | None:
    """Return the plot of the distributions of waits and responses, or None without matched jobs."""
    jobs = comparison.jobs
    if not len(jobs):
        return None
    samples = {
        name: [jobs[f"{name}_{side}"].to_numpy(dtype=np.float64) for side in ("real", "predicted")]
        for name in ("wait", "response")
    }
    linear = {name: scales.threshold(*both) for name, both in samples.items()}

    def draw(width: float) -> Figure:
        figure, both = beside(1.9, width, sharey=True)
        for axes, (name, pair) in zip(both, samples.items(), strict=True):
            sides = zip(pair, ("real", "predicted"), (REAL, PREDICTED), ("-", DASHED), strict=True)
            for sample, side, color, line in sides:
                draw_distribution(axes, sample, side, color, line)
            scales.apply(axes, "x", linear[name])
            axes.set_xlim(left=0)
            axes.set_ylim(0, 1.04)
            axes.set_xlabel(f"{name} (s)")
            axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False, borderaxespad=0.1)
            heading(axes, name, SOFT)
        both[0].set_ylabel("share of the jobs")
        return figure

    notes = {name: scales.note(each).strip() for name, each in linear.items()}
    caption = (
        f"Share of the matched jobs with at most this wait and at most this response, real "
        f"({real_side(comparison.real.info)}) and predicted."
    ) + "".join(f" {name.capitalize()}: {text[0].lower()}{text[1:]}" for name, text in notes.items() if text)
    return Picture(draw, caption, "Distributions of waits and responses, real and predicted overlaid")


def draw_distribution(axes: Axes, sample: FloatArray, label: str, color: str, line: Any) -> None:
    """Draw the share of the values that are at most a value; NaN are left out."""
    values = np.sort(sample[np.isfinite(sample)])
    if len(values) > LEVELS:
        values = np.quantile(values, np.linspace(0, 1, LEVELS), method="inverted_cdf")
    share = np.arange(1, len(values) + 1) / max(len(values), 1)
    x, y = np.concatenate(([0.0], values)), np.concatenate(([0.0], share))
    axes.step(x, y, where="post", color=color, linewidth=1.1, linestyle=line, label=label)


DIFFERENCES = Section("Differences of waits", 710, _differences)
DISTRIBUTIONS = Section("Distributions of waits and responses", 800, _distributions)
