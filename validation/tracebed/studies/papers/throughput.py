"""The throughput of DMR (malleable HPG-aligner, figures 8 to 16): fixed against malleable jobs on 49 nodes.

Figures 8 to 16 are drawn with what the paper prints as marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple, Self

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tracebed.converters.models.papers import dmr
from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.studies.ledger.ledger import Measured
from tracebed.studies.papers import base
from tracebed.validation.metrics.jobs import origin
from tracebed.validation.metrics.measured import busy_cores, total_cores
from tracebed.validation.metrics.summary import metrics
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
    """The curves of a run in figures 13 and 14; times in s."""

    nodes: Steps  # allocated nodes over time, s
    running: Steps  # number of running jobs over time, s
    completed: Steps  # number of completed jobs over time, s
    completion: FloatArray  # wait and run time of each job in the order of submission, s
    usual_size: int  # the number of nodes on which most jobs are seen, by time

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


JOBS = (100, 250, 500, 1000, 2000)
SEEDS = range(5)  # Seeds of the arrivals. Figures are means over them.
OF_CURVES = 1000  # number of jobs in figures 13 and 14
RESIZE_S = 4.387  # Table 2: time of a resize, scheduling included
LAUNCH_S = 8.0
"""Time of a launch, s. It is the only fitted constant: with it, the makespan of 2,000 jobs (figure 12) is the printed
one. The paper prints no launch time."""
SIZES: Mapping[str, Any] = {"sizes": "halved"}
"""Parameters of `dmr`: jobs have the sizes of table 1 that lie within their range, 3, 6 and 12."""
WINDOW = 100  # number of jobs that are also replayed
SPEED = 50.0
NODES, CORES = 49, 48
GRAIN_S = 0.05
FIGURES = ("mean_wait_s", "mean_run_s", "mean_response_s", "makespan_s", "utilization_full")
ASSUMPTIONS: Mapping[str, Mapping[str, Any]] = {
    "any size": {"sizes": "any"},
    "floor=min": {"floor": "min"},
    "resize 0 s": {"reconfiguration_s": 0.0},
    **{f"launch {seconds:g} s": {"launch_s": seconds} for seconds in (0.0, 4.0, 6.0, 10.0)},
}
"""Label -> what is assumed in place of the study's own: jobs start and expand on any number of nodes, shrink to their
minimum, or have other costs."""
Dataset = Literal["production", "large"]
DATASETS: tuple[Dataset, ...] = ("production", "large")


class Pair(NamedTuple):
    """The figures of the fixed and of the malleable workload, for each seed."""

    fixed: list[dict[str, Any]]
    malleable: list[dict[str, Any]]

    def means(self, metric: str) -> tuple[float, float]:
        """Return the means over the seeds, of fixed and of malleable jobs."""
        return mean(each[metric] for each in self.fixed), mean(each[metric] for each in self.malleable)

    def rows(self, **point: Any) -> Iterator[dict[str, Any]]:
        """Yield the figures of each seed at a point, for the ledger."""
        for seed, (before, after) in enumerate(zip(*self, strict=True)):
            ratios = {f"speedup_{metric}": before[metric] / after[metric] for metric in FIGURES}
            waits = {"wait_over_run": after["mean_wait_s"] / after["mean_run_s"]}
            yield {**point, "kind": "fixed", "repetition": seed, **before}
            yield {**point, "kind": "malleable", "repetition": seed, **after, **ratios, **waits}


def _replays(settings: base.Settings) -> Iterator[base.Replay]:
    inventory = base.inventory_of(settings, lambda: base.emulated(NODES, CORES, 1, GRAIN_S))
    speed = settings.speed or SPEED
    for rigid in (True, False):
        label, (policy, parameters) = ("fixed", ("easy", None)) if rigid else ("malleable", ("dmr", SIZES))
        workload = dmr(WINDOW, fixed=rigid)
        yield from base.repeated(
            settings, label, workload, inventory, policy, parameters, name=f"dmr-{label}", speed=speed
        )


@base.study(_replays, SPEED)
def dmr_throughput(settings: base.Settings) -> base.Findings:
    """100 to 2,000 jobs of HPG-aligner, fixed against malleable: simulated, and 100 of them replayed (DMR paper)."""
    results = {dataset: {jobs: _pair(settings, dataset, jobs) for jobs in JOBS} for dataset in DATASETS}
    assumed = {label: _pair(settings, "production", max(JOBS), **given) for label, given in ASSUMPTIONS.items()}
    curves = {rigid: _curves(rigid) for rigid in (True, False)}
    averages: Averages = {
        dataset: {jobs: {name: pair.means(name) for name in FIGURES} for jobs, pair in sizes.items()}
        for dataset, sizes in results.items()
    }
    settings.on_step("plots of figures 8 to 16")
    plots = draw(averages, curves[True], curves[False], settings.folder / "plots")
    window, replays = _window(settings)
    sizes = [
        [f"{dataset}, {jobs:,} jobs", *_changes(pair)]
        for dataset, found in results.items()
        for jobs, pair in found.items()
    ]
    changed = [[label, *_changes(pair)] for label, pair in assumed.items()]
    tables = [
        base.FindingsTable(
            f"Malleable against fixed jobs, simulated, {len(SEEDS)} seeds", ("workload", *FIGURES), sizes
        ),
        base.FindingsTable(
            f"{max(JOBS):,} jobs of production, one assumption changed at a time", ("assumption", *FIGURES), changed
        ),
        base.FindingsTable(
            f"{WINDOW} jobs of production under dmr, replayed, means of {settings.repetitions}",
            ("metric", "fixed", "malleable", "change", "change, simulated"),
            window,
        ),
    ]
    notes = (
        "The paper prints neither its arrival times nor the rules of its backfill. The arrivals are Feitelson's with a"
        " mean of 10 s, and fixed jobs run under EASY.",
        "Run times and sizes are those measured in tables 1 and 3, and a resize takes the time of table 2. One constant"
        f" is fitted: a launch takes {LAUNCH_S:g} s, by the makespan of figure 12.",
        "The wait of figure 10 and the response of figure 11 exclude each other: if the wait falls by at most 77 %, the"
        " response is at most 1 / 0.23 = 4.3 times shorter, not 20 times. A wait 77 times shorter would fit: with 20"
        " times and runs 1.6 times as long, the fixed jobs then wait 42 run times on average, 2,000 s, as here.",
        "The sizes 3, 6 and 12 are chosen by the sign of figure 8: if jobs can have any size, they also use the last"
        " node, and the utilization grows.",
        "The replay has the launches and resizes of the agents. Its simulation has none.",
        f"Plots of figures 8 to 16, with their data as CSV: {plots[0].parent}.",
    )
    rows = [
        *(
            row
            for dataset, found in results.items()
            for jobs, pair in found.items()
            for row in pair.rows(by="simulation", dataset=dataset, jobs=jobs, assumption="")
        ),
        *(
            row
            for label, pair in assumed.items()
            for row in pair.rows(by="simulation", dataset="production", jobs=max(JOBS), assumption=label)
        ),
        *_figures_of_curves(curves),
        *replays,
    ]
    measured = Measured.of(rows, ("by", "dataset", "jobs", "kind", "assumption"))
    return base.Findings("Throughput of malleable jobs", tables, notes, measured)


def _predicted(jobs: int, seed: int, *, fixed: bool, dataset: Dataset = "production", **given: Any) -> Run:
    """Return the simulation of a workload. `given`: assumptions in place of those of the study."""
    workload = dmr(jobs, fixed=fixed, dataset=dataset, seed=seed)
    costs = {name: given.pop(name, usual) for name, usual in (("launch_s", LAUNCH_S), ("reconfiguration_s", RESIZE_S))}
    if fixed:
        return predict(workload, NODES, "easy", overheads=costs)
    return predict(workload, NODES, "dmr", policy_parameters={**SIZES, **given}, overheads=costs)


def _pair(settings: base.Settings, dataset: Dataset, jobs: int, **given: Any) -> Pair:
    settings.on_step(f"{dataset}, {jobs:,} jobs")
    fixed, malleable = (
        [metrics(_predicted(jobs, seed, fixed=rigid, dataset=dataset, **given)) for seed in SEEDS]
        for rigid in (True, False)
    )
    return Pair(fixed, malleable)


def _changes(pair: Pair) -> list[str]:
    return [base.percent(*pair.means(metric)) for metric in FIGURES]


def _curves(rigid: bool) -> Curves:
    """Return the curves of figures 13 and 14 for the first seed."""
    return Curves.of(_predicted(OF_CURVES, SEEDS[0], fixed=rigid), NODES)


def _figures_of_curves(curves: Mapping[bool, Curves]) -> Iterator[dict[str, Any]]:
    """Yield the figures of the curves of fixed and malleable jobs, for the ledger."""
    point = {"by": "curves", "dataset": "production", "jobs": OF_CURVES, "assumption": ""}
    for rigid, each in curves.items():
        yield {
            **point,
            "kind": "fixed" if rigid else "malleable",
            "share_with_4_jobs": each.share_running(4),
            "usual_running_jobs": each.usual_running(),
            "usual_nodes": each.usual_size,
            "last_tenth_over_first": each.growth,
            "overlap_until_s": parting(curves[True].completed, curves[False].completed),
        }


def _window(settings: base.Settings) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Return the rows of the table of replayed jobs, and those of the ledger."""
    wanted = [*_replays(settings)]
    figures: dict[bool, list[dict[str, Any]]] = {}
    predicted = {}
    for rigid in (True, False):
        mine = [each for each in wanted if (each.policy == "easy") is rigid]
        first = mine[0]
        run = predict(first.workload, first.inventory.facts, first.policy, policy_parameters=first.parameters)
        predicted[rigid] = metrics(run)
        figures[rigid] = [metrics(base.replayed(settings, each)) for each in mine]
    rows = []
    for metric in FIGURES:
        fixed, malleable = (mean(one[metric] for one in figures[rigid]) for rigid in (True, False))
        change = base.percent(predicted[True][metric], predicted[False][metric])
        rows.append([metric, f"{fixed:,.6g}", f"{malleable:,.6g}", base.percent(fixed, malleable), change])
    pair = Pair(figures[True], figures[False])
    return rows, [*pair.rows(by="replay", dataset="production", jobs=WINDOW, assumption="")]
