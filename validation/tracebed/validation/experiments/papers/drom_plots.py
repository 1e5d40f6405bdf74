"""Figures 5, 13 and 14 of the DROM paper as ours: tasks of threads, masks over time, work a core second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tracebed.orchestrator.run import Run
from tracebed.validation.pictures import COLORS, COLUMN, PAGE, STYLE, save


def plot_tasks(shares: Sequence[int], task: int, folder: Path) -> Path:
    """Draw the tasks of each thread after the removal of one thread (figure 5).

    Args:
        shares: units of each thread.
        task: units of a task.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 2.6), layout="constrained")
        axes = figure.subplots()
        threads = np.arange(1, len(shares) + 1)
        axes.barh(threads, np.array(shares) / task, color=COLORS[0])
        axes.set_xlabel("Tasks; the rest of the time is idle")
        axes.set_ylabel("Thread")
        axes.invert_yaxis()
        data = pd.DataFrame({"thread": threads, "tasks": np.array(shares) / task})
        return save(figure, data, folder, "figure-5")


def plot_masks(runs: Mapping[str, Run], folder: Path) -> Path:
    """Draw the cores of each job on the first node over time, a panel for each mode (figure 13)."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 3.4), layout="constrained")
        panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
        rows = []
        for axes, (mode, run) in zip(panels, runs.items(), strict=True):
            held = run.allocations[run.allocations["node"] == 0]
            whole = run.info.nodes[0].cores
            for number, job in enumerate(run.jobs["job_id"]):
                for row in held[held["job_id"] == job].itertuples():
                    first = number * (whole - row.cores)  # the second job is drawn above the first
                    axes.broken_barh([(row.start, row.end - row.start)], (first, row.cores), color=COLORS[number])
                    rows.append({"mode": mode, "job": job, "start_s": row.start, "end_s": row.end, "cores": row.cores})
                axes.plot([], [], color=COLORS[number], linewidth=5, label=job)
            axes.set_ylabel(f"Cores, {mode}")
        panels[-1].set_xlabel("Time, s")
        panels[0].legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
        return save(figure, pd.DataFrame(rows), folder, "figure-13")


def work_per_core_second(run: Run) -> dict[str, float]:
    """Return the work of each job for each core second that it held, relative to all cores: 1 without sharing."""
    held = run.allocations
    spent = (held["cores"] * held["count"] * (held["end"] - held["start"])).groupby(held["job_id"]).sum()
    cores = run.info.nodes[0].cores
    jobs = run.jobs.set_index("job_id")
    work = jobs["run_time"] * jobs["nodes"] * cores
    return {str(job): float(work[job] / spent[job]) for job in jobs.index}


def plot_work(runs: Mapping[str, Run], folder: Path) -> Path:
    """Draw the work a core second of each job, serial and shared (in place of the counters of figure 14)."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 2.6), layout="constrained")
        axes = figure.subplots()
        found = {mode: work_per_core_second(run) for mode, run in runs.items()}
        for number, (mode, work) in enumerate(found.items()):
            at = np.arange(len(work)) + (number - 0.5) * 0.4
            axes.bar(at, list(work.values()), 0.38, color=COLORS[number], label=mode)
            axes.set_xticks(np.arange(len(work)), list(work))
        axes.set_ylabel("Work a core second, relative")
        axes.set_ylim(top=1.3 * max(max(work.values()) for work in found.values()))
        axes.legend(frameon=False, ncols=2)
        data = pd.DataFrame(
            [{"mode": mode, "job": job, "work": w} for mode, work in found.items() for job, w in work.items()]
        )
        return save(figure, data, folder, "figure-14")
