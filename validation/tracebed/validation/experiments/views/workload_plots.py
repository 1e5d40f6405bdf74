"""Plots of one workload: distributions of its jobs, and utilization and queue over time with the marks of a window.

They follow figures 2 to 5 of the Kassel paper. Printed shares are marks on the distributions. Each function returns the
picture and the drawn values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.experiments.claims import Claim
from tracebed.validation.experiments.experiment import Experiment
from tracebed.validation.experiments.parts import JobsSpec, Plot
from tracebed.validation.pictures import COLORS, FONT, panels
from tracebed.validation.report.style import SOFT

HEIGHT = 2.3
"""Height of a panel, inches."""
OURS, MARK, QUEUE, PRINTED = COLORS[0], COLORS[1], COLORS[2], "#000000"
AXES = {"nodes": "required nodes", "run_time": "run time (h)"}
SCALE = {"nodes": 1.0, "run_time": 1 / 3600.0}
"""Column of the jobs -> factor from its unit to that of the axis."""
INSTANTS = 2000
"""Largest number of drawn instants of a line over time."""


def distribution(experiment: Experiment, plot: Plot, jobs: pd.DataFrame, title: str) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel per column: the number of jobs up to a value, and the printed shares of jobs as marks.

    Args:
        experiment: the experiment, with the printed shares.
        jobs: a row per job: nodes, run_time (s).
        title: title of the picture.
    """
    figure, axes_of = panels(len(plot.figures), title, height=HEIGHT)
    drawn = []
    for axes, name in zip(axes_of, plot.figures, strict=True):
        values, counts = _cumulative(jobs[name].to_numpy(dtype=np.float64) * SCALE[name])
        axes.step(values, counts / 1000.0, where="post", color=OURS, label="jobs")
        drawn += [(name, "jobs", value, count) for value, count in zip(values, counts, strict=True)]
        for claim, spec in _printed(experiment, name):
            low, high = (bound * SCALE[name] for bound in spec.bounds[name])
            below = float((jobs[name] * SCALE[name] < low).sum())
            printed = below + (claim.value or 0.0) * len(jobs)
            axes.plot(high, printed / 1000.0, "D", color=PRINTED, markersize=3.5, label="printed share", zorder=4)
            ours = float((jobs[name] * SCALE[name] <= high).sum()) - below
            text = f"{100 * (claim.value or 0.0):g} %, ours {100 * ours / len(jobs):.1f} %"
            beside = "right" if high > np.sqrt(values[0] * values[-1]) else "left"
            offset = (-7, -9) if beside == "right" else (7, -9)
            axes.annotate(
                text,
                (high, printed / 1000.0),
                offset,
                textcoords="offset points",
                size=FONT - 1,
                ha=beside,
                va="center",
            )
            drawn.append((name, f"printed: {claim.figure}", high, printed))
        _label_cumulative(axes, name, len(jobs))
    return figure, pd.DataFrame(drawn, columns=["figure", "what", "value", "jobs"])


def _cumulative(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the distinct values, ascending, and the numbers of jobs up to each."""
    distinct, counts = np.unique(values[values > 0], return_counts=True)
    return distinct, np.cumsum(counts).astype(np.float64)


def _printed(experiment: Experiment, column: str) -> list[tuple[Claim, JobsSpec]]:
    """Return the claims about shares of jobs that are bounded in a column."""
    shares = experiment.shares_of_jobs
    claims = [claim for claim in experiment.published if claim.figure in shares and claim.value is not None]
    return [(claim, shares[claim.figure]) for claim in claims if column in shares[claim.figure].bounds]


def _label_cumulative(axes: Axes, name: str, jobs: int) -> None:
    axes.set_xscale("log", base=4 if name == "nodes" else 10)
    if name == "nodes":
        axes.xaxis.set_major_locator(LogLocator(base=4, numticks=12))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axes.set_xlabel(AXES[name])
    axes.set_ylabel("jobs (×1000), cumulative")
    axes.set_ylim(0, 1.06 * jobs / 1000.0)
    axes.grid(linewidth=0.5, color=SOFT, alpha=0.3)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(list(handles.values()), list(handles), loc="lower right", frameon=False)


def queue(experiment: Experiment, plot: Plot, jobs: pd.DataFrame, title: str) -> tuple[Figure, pd.DataFrame]:
    """Draw the share of busy nodes and the number of waiting jobs over time, of a run of rigid jobs.

    Vertical lines mark the end of the warm-up and the last submission.

    Args:
        experiment: the experiment; the longest warm-up of its windows is marked.
        jobs: a row per job: submit (s after the first), wait, run (s), nodes; machine (nodes).
        title: title of the picture.
    """
    submit = jobs["submit"].to_numpy(dtype=np.float64)
    start = submit + jobs["wait"].to_numpy(dtype=np.float64)
    end = start + jobs["run"].to_numpy(dtype=np.float64)
    marks = {
        "end of the warm-up": max(window.after_s for window in experiment.windows.values()),
        "last submission": float(submit.max()),
    }
    times = np.linspace(0.0, min(float(end.max()), 1.5 * marks["last submission"]), INSTANTS)
    held = Steps.count(start, end, jobs["nodes"].to_numpy(dtype=np.float64))
    lines = {
        "utilization": 100.0 * held.means(times) / float(jobs["machine"].iloc[0]),
        "queue": Steps.count(submit, start).means(times),
    }
    figure, (axes,) = panels(1, title, height=HEIGHT, wide=True)
    axes.set_xlabel("time after the first submission (s)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    middle = (times[1:] + times[:-1]) / 2
    if "queue" in plot.figures:
        behind = axes.twinx() if "utilization" in plot.figures else axes
        behind.fill_between(middle, lines["queue"], color=QUEUE, alpha=0.45, linewidth=0, label="jobs in the queue")
        behind.set_ylabel("jobs in the queue")
        behind.set_ylim(bottom=0)
        behind.spines["right"].set_visible(True)
    if "utilization" in plot.figures:
        axes.plot(middle, lines["utilization"], color=OURS, linewidth=0.9, label="node utilization")
        axes.set_ylabel("node utilization (%)")
        axes.set_ylim(0, 102)
    for text, at in marks.items():
        axes.axvline(at, color=MARK, linewidth=1.1, linestyle="--" if text == "last submission" else "-", label=text)
    found = {
        label: handle for each in figure.axes for handle, label in zip(*each.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=4, frameon=False)
    rows = [(name, time, value) for name in plot.figures for time, value in zip(middle, lines[name], strict=True)]
    rows += [(text, at, np.nan) for text, at in marks.items()]
    return figure, pd.DataFrame(rows, columns=["figure", "time_s", "value"])


OF_WORKLOADS: Mapping[str, Callable[[Experiment, Plot, pd.DataFrame, str], tuple[Figure, pd.DataFrame]]] = {
    "distribution": distribution,
    "queue": queue,
}
"""Kind of plot -> function that draws it."""
