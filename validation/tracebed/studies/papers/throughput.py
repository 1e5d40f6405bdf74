"""The throughput of DMR (malleable HPG-aligner, figures 8 to 16): fixed against malleable jobs on 49 nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Any, Literal, NamedTuple

from tracebed.converters.models.papers import dmr
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.studies.papers.base import Findings, FindingsTable, Replay, Settings, percent, study
from tracebed.studies.papers.replays import emulated, inventory_of, repeated, replayed
from tracebed.studies.papers.throughput_plots import Averages, Curves, draw, parting
from tracebed.validation.experiments.views.ledger import Measured
from tracebed.validation.metrics.summary import metrics

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


def _replays(settings: Settings) -> Iterator[Replay]:
    inventory = inventory_of(settings, lambda: emulated(NODES, CORES, 1, GRAIN_S))
    speed = settings.speed or SPEED
    for rigid in (True, False):
        label, (policy, parameters) = ("fixed", ("easy", None)) if rigid else ("malleable", ("dmr", SIZES))
        workload = dmr(WINDOW, fixed=rigid)
        yield from repeated(settings, label, workload, inventory, policy, parameters, name=f"dmr-{label}", speed=speed)


@study(_replays, SPEED)
def dmr_throughput(settings: Settings) -> Findings:
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
        FindingsTable(f"Malleable against fixed jobs, simulated, {len(SEEDS)} seeds", ("workload", *FIGURES), sizes),
        FindingsTable(
            f"{max(JOBS):,} jobs of production, one assumption changed at a time", ("assumption", *FIGURES), changed
        ),
        FindingsTable(
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
    return Findings("Throughput of malleable jobs", tables, notes, measured)


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


def _changes(pair: Pair) -> list[str]:
    return [percent(*pair.means(metric)) for metric in FIGURES]


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


def _window(settings: Settings) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Return the rows of the table of replayed jobs, and those of the ledger."""
    wanted = [*_replays(settings)]
    found: dict[bool, list[dict[str, Any]]] = {}
    predicted = {}
    for rigid in (True, False):
        mine = [each for each in wanted if (each.policy == "easy") is rigid]
        first = mine[0]
        run = predict(first.workload, first.inventory.facts, first.policy, policy_parameters=first.parameters)
        predicted[rigid] = metrics(run)
        found[rigid] = [metrics(replayed(settings, each)) for each in mine]
    rows = []
    for metric in FIGURES:
        fixed, malleable = (mean(one[metric] for one in found[rigid]) for rigid in (True, False))
        change = percent(predicted[True][metric], predicted[False][metric])
        rows.append([metric, f"{fixed:,.6g}", f"{malleable:,.6g}", percent(fixed, malleable), change])
    pair = Pair(found[True], found[False])
    return rows, [*pair.rows(by="replay", dataset="production", jobs=WINDOW, assumption="")]
