"""Report sections about waits and responses: difference of each job, and distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tracebed.converters.workload import FloatArray
from tracebed.validation.pictures import Picture
from tracebed.validation.report import scales
from tracebed.validation.report.sections import Section
from tracebed.validation.report.style import DASHED, NARROW, PREDICTED, REAL, SOFT, beside, heading, panels
from tracebed.validation.report.time_axis import TimeAxis
from tracebed.validation.report.words import real_side
from tracebed.validation.verdict import Comparison

BINS = 40
LEVELS = 400
"""Largest number of points of the curve of a distribution."""


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
        bins = scales.edges(off, BINS, linear).tolist()
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
