"""The throughput of DMR (malleable HPG-aligner, figures 8 to 16): fixed against malleable jobs on 49 nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal, NamedTuple

import numpy as np

from tracebed.converters.models.papers import dmr
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.experiments.papers.base import Findings, FindingsTable, Settings, percent
from tracebed.validation.experiments.papers.replays import emulated, inventory_of, replayed
from tracebed.validation.experiments.papers.throughput_plots import Curves, draw
from tracebed.validation.metrics.summary import metrics
from tracebed.validation.steps import Steps

JOBS = (100, 250, 500, 1000, 2000)
SEEDS = range(5)
"""Seeds of the arrivals. Figures are means over them."""
OF_CURVES = 1000
"""Number of jobs in figures 13 and 14."""
RESIZE_S = 4.387
"""Table 2: time of a resize, scheduling included."""
LAUNCH_S = 8.0
"""Time of a launch, s. It is the only fitted constant: with it, the makespan of 2,000 jobs (figure 12) is the printed
one. The paper prints no launch time."""
SIZES: Mapping[str, Any] = {"sizes": "halved"}
"""Parameters of `dmr`: jobs have the sizes of table 1 that lie within their range, 3, 6 and 12."""
WINDOW = 100
"""Number of jobs that are also replayed."""
SPEED = 50.0
NODES, CORES = 49, 48
GRAIN_S = 0.05
FIGURES = ("mean_wait_s", "mean_run_s", "mean_response_s", "makespan_s", "utilization_full")
Dataset = Literal["production", "large"]
Results = Mapping[str, Mapping[int, "Pair"]]
"""Data set -> number of jobs -> both workloads."""


class Pair(NamedTuple):
    """The figures of the fixed and of the malleable workload, for each seed."""

    fixed: list[dict[str, Any]]
    malleable: list[dict[str, Any]]

    def change(self, metric: str) -> list[float]:
        """Return the relative change by malleability, for each seed."""
        return [after[metric] / before[metric] - 1 for before, after in zip(*self, strict=True)]

    def speedup(self, metric: str) -> list[float]:
        """Return the figure of the fixed jobs over that of the malleable ones, for each seed."""
        return [before[metric] / after[metric] for before, after in zip(*self, strict=True)]

    def means(self, metric: str) -> tuple[float, float]:
        """Return the means over the seeds, of fixed and of malleable jobs."""
        return mean(each[metric] for each in self.fixed), mean(each[metric] for each in self.malleable)


@dataclass(frozen=True)
class Printed:
    """What the paper prints, and our values of it.

    Attributes:
        element: figure or table.
        words: the claim.
        printed: the printed value; a relative change if `change` is set.
        ours: our value for each seed.
        change: whether the values are relative changes.
        remark: what is fitted, or the reason for a distance.
    """

    element: str
    words: str
    printed: str
    ours: list[float]
    change: bool = False
    remark: str = ""

    @property
    def row(self) -> list[str]:
        """The cells of a table: our mean, with its least and greatest value."""
        texts = [f"{100 * v:+.1f} %" if self.change else f"{v:.3g}" for v in (*_spread(self.ours),)]
        ours = texts[0] if len(self.ours) == 1 else f"{texts[0]} ({texts[1]} to {texts[2]})"
        return [self.element, self.words, self.printed, ours, self.remark]


def dmr_throughput(settings: Settings) -> Findings:
    """100 to 2,000 jobs of HPG-aligner, fixed against malleable: simulated, and 100 of them replayed (DMR paper)."""
    results = {dataset: {jobs: _pair(settings, dataset, jobs) for jobs in JOBS} for dataset in ("production", "large")}
    curves = {rigid: _curves(rigid) for rigid in (True, False)}
    averages = {
        dataset: {jobs: {name: pair.means(name) for name in FIGURES} for jobs, pair in sizes.items()}
        for dataset, sizes in results.items()
    }
    settings.on_step("plots of figures 8 to 16")
    plots = draw(averages, curves[True], curves[False], settings.folder / "plots")
    tables = [
        FindingsTable(
            f"Printed, and ours as means of {len(SEEDS)} seeds (least to greatest)",
            ("element", "claim", "printed", "ours", "remark"),
            [each.row for each in _claims(results, curves)],
        ),
        FindingsTable("Malleable against fixed jobs, simulated", ("workload", *FIGURES), _sizes(results)),
        FindingsTable(
            f"The assumptions, one at a time: changes of {max(JOBS):,} jobs of production",
            ("assumption", *FIGURES),
            _assumptions(settings),
        ),
        FindingsTable(
            f"{WINDOW} jobs of production under dmr, replayed, means of {settings.repetitions}",
            ("metric", "fixed", "malleable", "change", "change, simulated"),
            _window(settings),
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
    return Findings("Throughput of malleable jobs", tables, notes)


def _predicted(jobs: int, seed: int, *, fixed: bool, dataset: Dataset = "production", **given: Any) -> Run:
    """Return the simulation of a workload.

    Args:
        jobs: number of jobs.
        seed: seed of the arrivals.
        fixed: whether the jobs are fixed.
        dataset: input of the jobs.
        given: assumptions in place of those of the study: `launch_s`, `reconfiguration_s`, or parameters of `dmr`.
    """
    workload = dmr(jobs, fixed=fixed, dataset=dataset, seed=seed)
    costs = {name: given.pop(name, usual) for name, usual in (("launch_s", LAUNCH_S), ("reconfiguration_s", RESIZE_S))}
    if fixed:
        return predict(workload, NODES, "easy", overheads=costs)
    return predict(workload, NODES, "dmr", policy_parameters={**SIZES, **given}, overheads=costs)


def _pair(settings: Settings, dataset: Dataset, jobs: int, **given: Any) -> Pair:
    settings.on_step(f"{dataset}, {jobs:,} jobs")
    fixed, malleable = (
        [metrics(_predicted(jobs, seed, fixed=rigid, dataset=dataset, **given)) for seed in SEEDS]
        for rigid in (True, False)
    )
    return Pair(fixed, malleable)


def _curves(rigid: bool) -> Curves:
    """Return the curves of figures 13 and 14 for the first seed."""
    return Curves.of(_predicted(OF_CURVES, SEEDS[0], fixed=rigid), NODES)


def _sizes(results: Results) -> Iterator[list[str]]:
    for dataset, sizes in results.items():
        for jobs, pair in sizes.items():
            yield [f"{dataset}, {jobs:,} jobs", *(percent(*pair.means(metric)) for metric in FIGURES)]


def _assumptions(settings: Settings) -> Iterator[list[str]]:
    """Yield the changes at the largest workload with one assumption changed at a time."""
    cases: dict[str, dict[str, Any]] = {
        "as above": {},
        "sizes=any: jobs start and expand on any number of nodes": {"sizes": "any"},
        "floor=min: jobs shrink to 3 nodes": {"floor": "min"},
        "a resize costs nothing": {"reconfiguration_s": 0.0},
        **{f"a launch takes {seconds:g} s": {"launch_s": seconds} for seconds in (0.0, 4.0, 6.0, 10.0)},
    }
    for label, given in cases.items():
        pair = _pair(settings, "production", max(JOBS), **given)
        yield [label, *(percent(*pair.means(metric)) for metric in FIGURES)]


def _claims(results: Results, curves: Mapping[bool, Curves]) -> Iterator[Printed]:
    """Yield what the figures print."""
    production, large, most = results["production"], results["large"], max(JOBS)
    for jobs, pair in production.items():
        words = f"{jobs:,} jobs: malleable workloads present a lower average utilization"
        yield Printed("figure 8", words, "lower", pair.change("utilization_full"), True, "chosen: sizes=halved")
    top = production[most]
    yield Printed("figure 9", "average run up to 60 % longer", "+60 %", top.change("mean_run_s"), True)
    contradiction = "the printed wait and response exclude each other, see the notes"
    yield Printed("figure 10", "average wait up to 77 % lower", "-77 %", top.change("mean_wait_s"), True, contradiction)
    yield Printed("figure 10", "read as 77 times shorter", "77 (our reading)", top.speedup("mean_wait_s"))
    yield Printed("figure 11", "average completion up to 20 times faster", "20", top.speedup("mean_response_s"))
    yield Printed(
        "figure 12", "workload up to 16 % faster", "-16 %", top.change("makespan_s"), True, "fitted: a launch"
    )
    fixed, malleable = curves[True], curves[False]
    yield Printed("figure 13", "fixed: share of the time with 4 jobs", "almost always", [fixed.share_running(4)])
    yield Printed("figure 13", "malleable: most seen number of jobs", "8", [malleable.usual_running()])
    yield Printed(
        "figure 13",
        "malleable: nodes of most jobs",
        "3, or 6 by the text",
        [malleable.usual_size],
        remark="8 jobs of 3 nodes are half of the machine, which the text calls almost full",
    )
    yield Printed(
        "figure 13", "completed jobs overlap until, s", "1,000", [_parting(fixed.completed, malleable.completed)]
    )
    yield Printed(
        "figure 13", "the malleable workload ends earlier", "earlier", production[OF_CURVES].change("makespan_s"), True
    )
    yield Printed("figure 14", "fixed: last tenth of the jobs over the first", "grows", [fixed.growth])
    yield Printed("figure 14", "malleable: the same", "almost constant", [malleable.growth])
    for jobs, pair in large.items():
        if jobs <= 500:
            words = f"large, {jobs:,} jobs: average completion around half"
            yield Printed("figure 15", words, "-50 %", pair.change("mean_response_s"), True)
    waits = [
        figures["mean_wait_s"] > figures["mean_run_s"] for pair in large.values() for each in pair for figures in each
    ]
    yield Printed("figure 15", "large: share of workloads in which the wait predominates", "1", [mean(waits)])
    for jobs, pair in large.items():
        words = f"large, {jobs:,} jobs: speedup of the completion around 2"
        yield Printed("figure 16", words, "2", pair.speedup("mean_response_s"))
    runs = [max(pair.speedup("mean_run_s")) for pair in large.values()]
    yield Printed("figure 16", "large: greatest speedup of the run, under 1", "below 1", [max(runs)])
    yield Printed("conclusions", "large: throughput can be doubled", "2", large[most].speedup("makespan_s"))


def _parting(first: Steps, second: Steps) -> float:
    """Return the last time at which the second curve of completed jobs is not ahead by 5 jobs, s."""
    times = np.arange(0.0, min(first.times[-2], second.times[-2]), 10.0)
    behind = times[second.at(times) - first.at(times) < 5]
    return float(behind[-1]) if len(behind) else 0.0


def _window(settings: Settings) -> list[list[str]]:
    """Return the rows of the replayed jobs."""
    inventory = inventory_of(settings, lambda: emulated(NODES, CORES, 1, GRAIN_S))
    found: dict[bool, list[dict[str, Any]]] = {}
    predicted = {}
    for rigid in (True, False):
        workload, label = dmr(WINDOW, fixed=rigid), "fixed" if rigid else "malleable"
        policy, parameters = ("easy", None) if rigid else ("dmr", SIZES)
        predicted[rigid] = metrics(predict(workload, inventory.facts, policy, policy_parameters=parameters))
        found[rigid] = []
        for repetition in range(1, settings.repetitions + 1):
            settings.on_step(f"{label}: {repetition} of {settings.repetitions}")
            run = replayed(
                settings,
                f"{label}-{repetition}",
                workload,
                inventory,
                policy,
                parameters,
                name=f"dmr-{label}",
                speed=settings.speed or SPEED,
            )
            found[rigid].append(metrics(run))
    rows = []
    for metric in FIGURES:
        fixed, malleable = (mean(one[metric] for one in found[rigid]) for rigid in (True, False))
        change = percent(predicted[True][metric], predicted[False][metric])
        rows.append([metric, f"{fixed:,.6g}", f"{malleable:,.6g}", percent(fixed, malleable), change])
    return rows


def _spread(values: list[float]) -> tuple[float, float, float]:
    return mean(values), min(values), max(values)
