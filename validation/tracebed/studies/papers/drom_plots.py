"""Figures 4 to 15 of the DROM paper as ours: times of jobs, tasks of threads, masks over time, work a core second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tracebed.orchestrator.run import Run
from tracebed.validation.pictures import COLORS, COLUMN, PAGE, STYLE, save

Panels = Mapping[str, Sequence[str]]
"""Label of the y-axis of a panel -> its figures; the second one is hatched."""
TOTAL: Panels = {"Run time of the workload, s": ("total_s",)}
RESPONSES: Panels = {"Response time, s": ("first_response_s", "second_response_s")}
AVERAGE: Panels = {"Average response time, s": ("average_response_s",)}
PILS = ("pils 1", "pils 2", "pils 3")
IN_SITU: Mapping[int, tuple[str, Sequence[str], Panels]] = {
    4: ("nest", PILS, TOTAL),
    6: ("nest", PILS, RESPONSES),
    7: ("nest", ("stream",), {**TOTAL, **RESPONSES}),
    8: ("nest", (*PILS, "stream"), AVERAGE),
    9: ("coreneuron", PILS, TOTAL),
    10: ("coreneuron", PILS, RESPONSES),
    11: ("coreneuron", ("stream",), {**TOTAL, **RESPONSES}),
    12: ("coreneuron", (*PILS, "stream"), AVERAGE),
}
"""Figure -> simulation, analytics jobs, and panels."""


def plot_in_situ(figures: Sequence[Mapping[str, Any]], execution: str, folder: Path) -> list[Path]:
    """Draw figures 4 and 6 to 12: serial and shared, by the configurations of both jobs.

    Args:
        figures: the figures of the study.
        execution: how the replays were executed.
    """
    paths = []
    for number, (simulation, analytics, panels) in IN_SITU.items():
        places = {
            f"{number_of_ranks}, {each}": {"simulation": simulation, "configuration": configuration, "analytics": each}
            for configuration, number_of_ranks in ((1, "2 x 16"), (2, "4 x 8"))
            for each in analytics
        }
        paths.append(plot_times(figures, places, panels, execution, folder, f"figure-{number}"))
    return paths


def plot_times(
    figures: Sequence[Mapping[str, Any]],
    places: Mapping[str, Mapping[str, Any]],
    panels: Panels,
    execution: str,
    folder: Path,
    stem: str,
) -> Path:
    """Draw simulated times as bars, serial and shared, and the means of replays as marks.

    Args:
        figures: the figures of a study.
        places: label on the x-axis -> the point.
        panels: the panels.
        execution: how the replays were executed.
        folder: the folder of the files.
        stem: name of the files.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 2.8), layout="constrained")
        rows: list[dict[str, Any]] = []
        for axes, (label, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            width = 0.8 / (2 * len(names))
            for number, (mode, name) in enumerate((mode, name) for mode in ("serial", "share") for name in names):
                for at, (place, point) in enumerate(places.items()):
                    left = at - 0.4 + (number + 0.5) * width
                    means = {
                        by: mean(found)
                        for by in ("simulation", "replay")
                        if (found := _values(figures, {**point, "by": by, "mode": mode}, name))
                    }
                    axes.bar(
                        left,
                        means["simulation"],
                        0.95 * width,
                        color=COLORS[mode == "share"],
                        hatch="////" if name != names[0] else "",
                        edgecolor="white",
                        label=f"{mode}{_job(name)}, simulated" if not at else None,
                    )
                    if "replay" in means:
                        axes.plot(left, means["replay"], "o", markersize=4, color="black", markerfacecolor="white")
                    rows += [
                        {"place": place, "mode": mode, "by": by, "figure": name, "seconds": value}
                        for by, value in means.items()
                    ]
            if any(row["by"] == "replay" for row in rows):
                axes.plot(
                    [], [], "o", markersize=4, color="black", markerfacecolor="white", label=f"replay, {execution}"
                )
            axes.set_xticks(range(len(places)), [place.replace(", ", "\n") for place in places])
            axes.set_ylabel(label)
            axes.set_ylim(
                top=(1.9 if len(panels) > 1 else 1.45) * max(row["seconds"] for row in rows if row["figure"] in names)
            )
            axes.legend(frameon=False, ncols=1 if len(panels) > 1 else 3, loc="upper left")
        return save(figure, pd.DataFrame(rows), folder, stem)


def _values(figures: Sequence[Mapping[str, Any]], point: Mapping[str, Any], name: str) -> list[float]:
    return [row[name] for row in figures if all(row.get(key) == value for key, value in point.items())]


def _job(name: str) -> str:
    return {"first_response_s": ", simulation job", "second_response_s": ", analytics job"}.get(name, "")


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
