"""Figures 8 to 16 of the DMR paper as plots of ours, with what the paper prints as marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.metrics.jobs import origin
from tracebed.validation.metrics.measured import busy_cores, total_cores
from tracebed.validation.pictures import COLORS, COLUMN, PAGE, STYLE, save

Averages = Mapping[str, Mapping[int, Mapping[str, tuple[float, float]]]]
"""Data set -> number of jobs -> metric -> averages of fixed and of malleable jobs."""
KINDS = ("fixed", "malleable")
BARS: Mapping[int, tuple[str, str, float, float | None, str]] = {
    8: ("utilization_full", "Average utilization, %", 100.0, None, ""),
    9: ("mean_run_s", "Average run time, s", 1.0, 1.60, "printed: up to +60 %"),
    10: ("mean_wait_s", "Average wait, s", 1.0, 0.23, "printed: up to -77 %"),
    11: ("mean_response_s", "Average completion, s", 1.0, 1 / 20, "printed: up to 20 times shorter"),
    12: ("makespan_s", "Completion of the workload, s", 1.0, 0.84, "printed: up to -16 %"),
}
"""Figure -> metric, label, scale, printed limit relative to fixed jobs, and its text."""


@dataclass(frozen=True)
class Curves:
    """The curves of a run in figures 13 and 14.

    Attributes:
        nodes: allocated nodes over time, s.
        running: number of running jobs over time, s.
        completed: number of completed jobs over time, s.
        completion: wait and run time of each job in the order of submission, s.
        usual_size: the number of nodes on which most jobs are seen, by time.
    """

    nodes: Steps
    running: Steps
    completed: Steps
    completion: FloatArray
    usual_size: int

    @classmethod
    def of(cls, run: Run, nodes: int) -> Self:
        """Return the curves of a run on `nodes` nodes."""
        zero, jobs = origin(run), run.jobs
        starts, ends = (jobs[name].to_numpy(np.float64) - zero for name in ("start", "end"))
        busy = busy_cores(run)
        held = run.allocations.groupby(["job_id", "start", "end"], as_index=False)["count"].sum()
        times = (held["end"] - held["start"]).groupby(held["count"]).sum()
        return cls(
            Steps(busy.times, busy.values * nodes / total_cores(run)),
            Steps.count(starts, ends),
            Steps.count(ends, np.full(len(ends), ends.max() + 1.0)),
            (jobs["end"] - jobs["submit"]).to_numpy(np.float64),
            int(times.idxmax()),
        )

    def share_running(self, count: int) -> float:
        """Return the share of the time in which `count` jobs run."""
        spans = np.diff(self.running.times)
        return float(spans[self.running.values[:-1] == count].sum() / spans.sum())

    def usual_running(self) -> int:
        """Return the number of running jobs that is seen for the longest time."""
        spans = np.bincount(self.running.values[:-1].astype(int), np.diff(self.running.times))
        return int(spans.argmax())

    @property
    def growth(self) -> float:
        """Average completion of the last tenth of the jobs over that of the first tenth."""
        tenth = max(1, len(self.completion) // 10)
        return float(self.completion[-tenth:].mean() / self.completion[:tenth].mean())


def parting(first: Steps, second: Steps) -> float:
    """Return the last time at which the second curve of completed jobs is not ahead by 5 jobs, s."""
    times = np.arange(0.0, min(first.times[-2], second.times[-2]), 10.0)
    behind = times[second.at(times) - first.at(times) < 5]
    return float(behind[-1]) if len(behind) else 0.0


def draw(averages: Averages, fixed: Curves, malleable: Curves, folder: Path) -> list[Path]:
    """Draw the figures, and return the pictures."""
    with mpl.rc_context(STYLE):
        production, large = averages["production"], averages["large"]
        paths = [_bars(number, production, folder) for number in BARS]
        return [
            *paths,
            _evolution(fixed, malleable, folder),
            _completions(fixed, malleable, folder),
            _stacked(large, folder),
            _speedups(large, folder),
        ]


def _bars(number: int, sizes: Mapping[int, Mapping[str, tuple[float, float]]], folder: Path) -> Path:
    metric, label, scale, limit, text = BARS[number]
    values = np.array([sizes[jobs][metric] for jobs in sizes]) * scale
    figure, axes = _panel()
    for kind, name in enumerate(KINDS):
        axes.bar(np.arange(len(sizes)) + (kind - 0.5) * 0.4, values[:, kind], 0.38, color=COLORS[kind], label=name)
    if limit is not None:
        at, level = np.arange(len(sizes)) + 0.2, values[:, 0] * limit
        axes.plot(at, level, linestyle="", marker="_", markersize=14, color=COLORS[-1], label=text)
    _by_jobs(axes, list(sizes), label)
    data = pd.DataFrame(values, columns=[f"{kind}: {label}" for kind in KINDS], index=pd.Index(sizes, name="jobs"))
    return save(figure, data.reset_index(), folder, f"figure-{number}")


def _evolution(fixed: Curves, malleable: Curves, folder: Path) -> Path:
    figure = Figure(figsize=(PAGE, 4.6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    jobs = top.twinx()
    rows = []
    for kind, curves in enumerate((fixed, malleable)):
        for axes, name, style in ((top, "nodes", "-"), (jobs, "running", ":"), (bottom, "completed", "-")):
            steps: Steps = getattr(curves, name)
            x, y = steps.times, steps.values
            if name == "completed":
                x, y = x[:-1], y[:-1]
            axes.step(
                x, y, where="post", linestyle=style, linewidth=0.9, color=COLORS[kind], label=f"{KINDS[kind]}, {name}"
            )
            rows.append(pd.DataFrame({"workload": KINDS[kind], "curve": name, "time_s": x, "value": y}))
    top.set_ylabel("Allocated nodes")
    jobs.set_ylabel("Running jobs (dotted)")
    jobs.set_ylim(bottom=0)
    jobs.spines["right"].set_visible(True)
    bottom.axvline(1000.0, color=COLORS[-2], linewidth=0.8, linestyle="--", label="printed: overlap until 1,000 s")
    bottom.set_ylabel("Completed jobs")
    bottom.set_xlabel("Time, s")
    bottom.legend(frameon=False)
    return save(figure, pd.concat(rows), folder, "figure-13")


def _completions(fixed: Curves, malleable: Curves, folder: Path) -> Path:
    figure, axes = _panel()
    for kind, curves in enumerate((fixed, malleable)):
        axes.plot(curves.completion, linestyle="", marker=".", markersize=2, color=COLORS[kind], label=KINDS[kind])
    axes.set_xlabel("Job, in the order of submission")
    axes.set_ylabel("Completion, s")
    axes.legend(frameon=False, markerscale=4)
    data = pd.DataFrame({f"{KINDS[0]}_s": fixed.completion, f"{KINDS[1]}_s": malleable.completion})
    return save(figure, data, folder, "figure-14")


def _stacked(sizes: Mapping[int, Mapping[str, tuple[float, float]]], folder: Path) -> Path:
    shown = [jobs for jobs in sizes if jobs <= 500] or list(sizes)
    figure, axes = _panel()
    at = np.arange(len(shown))
    columns: dict[str, Any] = {"jobs": shown}
    for kind, name in enumerate(KINDS):
        below = np.zeros(len(shown))
        for part, (metric, what) in enumerate((("mean_wait_s", "wait"), ("mean_run_s", "run"))):
            values = np.array([sizes[jobs][metric][kind] for jobs in shown])
            hatch = "//" if part else None
            axes.bar(
                at + (kind - 0.5) * 0.4, values, 0.38, below, color=COLORS[kind], hatch=hatch, label=f"{name}, {what}"
            )
            columns[f"{name}_{what}_s"] = values
            below = below + values
    _by_jobs(axes, shown, "Average completion, s")
    return save(figure, pd.DataFrame(columns), folder, "figure-15")


def _speedups(sizes: Mapping[int, Mapping[str, tuple[float, float]]], folder: Path) -> Path:
    figure, axes = _panel()
    columns: dict[str, Any] = {"jobs": list(sizes)}
    labels = (("completion", "mean_response_s"), ("run", "mean_run_s"), ("wait", "mean_wait_s"))
    for number, (name, metric) in enumerate(labels):
        columns[name] = [sizes[jobs][metric][0] / sizes[jobs][metric][1] for jobs in sizes]
        axes.bar(np.arange(len(sizes)) + (number - 1) * 0.28, columns[name], 0.26, color=COLORS[number], label=name)
    axes.axhline(2.0, color=COLORS[-1], linewidth=0.8, linestyle="--", label="printed: completion around 2")
    axes.axhline(1.0, color=COLORS[-2], linewidth=0.8)
    _by_jobs(axes, list(sizes), "Speedup over fixed jobs")
    return save(figure, pd.DataFrame(columns), folder, "figure-16")


def _panel() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(COLUMN, 2.6), layout="constrained")
    return figure, figure.subplots()


def _by_jobs(axes: Axes, sizes: Sequence[int], label: str) -> None:
    axes.set_xticks(np.arange(len(sizes)), [f"{jobs:,}" for jobs in sizes])
    axes.set_xlabel("Number of jobs")
    axes.set_ylabel(label)
    axes.margins(y=0.12)
    axes.figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=7.5)
