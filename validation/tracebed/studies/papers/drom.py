"""The DROM paper: its use cases (sections 6.1 and 6.2), one job after the other against sharing; its overhead.

Figures 4 to 15 are drawn as ours: times of jobs, tasks of threads, masks over time, work a core second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tracebed.converters.applications import PARALLEL_SHARES, with_parallel_shares
from tracebed.converters.provenance import Provenance, System
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.calibrating.drom_overhead import MODES as OVERHEAD_MODES
from tracebed.orchestrator.calibrating.drom_overhead import pairs
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.cores_in_use import tasks_of_threads
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.studies.ledger.ledger import Measured
from tracebed.studies.papers import base
from tracebed.validation.pictures import COLORS, COLUMN, PAGE, STYLE, save

Panels = Mapping[str, Sequence[str]]  # label of the y-axis of a panel -> its figures; the second one is hatched
TOTAL: Panels = {"Run time of the workload, s": ("total_s",)}
RESPONSES: Panels = {"Response time, s": ("first_response_s", "second_response_s")}
AVERAGE: Panels = {"Average response time, s": ("average_response_s",)}
JOBS = {"first_response_s": ", simulation job", "second_response_s": ", analytics job"}  # figure -> its job, in legends
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
    """Draw figures 4 and 6 to 12: serial and shared, by the configurations of both jobs."""
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
    """Draw simulated times as bars, serial and shared, and the means of replays as marks; `places`: label -> point."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 2.8), layout="constrained")
        rows: list[dict[str, Any]] = []
        for axes, (label, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            width = 0.8 / (2 * len(names))
            for number, (mode, name) in enumerate((mode, name) for mode in ("serial", "share") for name in names):
                for at, (place, point) in enumerate(places.items()):
                    left = at - 0.4 + (number + 0.5) * width
                    means = {}
                    for by in ("simulation", "replay"):
                        wanted = {**point, "by": by, "mode": mode}.items()
                        if found := [row[name] for row in figures if all(row.get(key) == v for key, v in wanted)]:
                            means[by] = mean(found)
                    axes.bar(
                        left,
                        means["simulation"],
                        0.95 * width,
                        color=COLORS[mode == "share"],
                        hatch="////" if name != names[0] else "",
                        edgecolor="white",
                        label=f"{mode}{JOBS.get(name, '')}, simulated" if not at else None,
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


def plot_tasks(shares: Sequence[int], task: int, folder: Path) -> Path:
    """Draw the tasks, of `task` units, of each thread after the removal of one thread (figure 5)."""
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
        work_by_mode = {mode: work_per_core_second(run) for mode, run in runs.items()}
        for number, (mode, work) in enumerate(work_by_mode.items()):
            at = np.arange(len(work)) + (number - 0.5) * 0.4
            axes.bar(at, list(work.values()), 0.38, color=COLORS[number], label=mode)
            axes.set_xticks(np.arange(len(work)), list(work))
        axes.set_ylabel("Work a core second, relative")
        axes.set_ylim(top=1.3 * max(max(work.values()) for work in work_by_mode.values()))
        axes.legend(frameon=False, ncols=2)
        data = pd.DataFrame(
            [{"mode": mode, "job": job, "work": w} for mode, work in work_by_mode.items() for job, w in work.items()]
        )
        return save(figure, data, folder, "figure-14")


SPEED = 100.0
SIMULATION_S = 2000.0  # run time of a simulation on all cores, trace s
ANALYTICS_S: Mapping[str, float] = {"pils": 80.0, "stream": 155.0}
"""Run time of an analytics job, trace s: with a tenth of the simulation before it, its response falls by up to 96 %
(PILS) or 92 % (STREAM), as in the paper."""
ANALYTICS_AT_S = 200.0
PRIORITY_AT_S = 1000.0
SHORT_S, SHORT_AT_S = 670.0, 370.0
"""A second simulation that ends first, and its arrival: with them, both printed figures of section 6.2 come out."""
PRIORITY_PAIRS = {"long": (SIMULATION_S, PRIORITY_AT_S), "short": (SHORT_S, SHORT_AT_S)}
"""Label -> run time and arrival of the second simulation, s."""
GRAIN_S = 0.02
SIMULATIONS = ("nest", "coreneuron")
MODES = ("serial", "share")
COLUMNS = ("total", "simulation", "second job", "average response")
SWEPT_SHARES = (1.0, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2, 0.0)
SWEPT_INSTANTS = (100.0, 500.0, 1000.0, 1500.0, 1900.0)
CORES = 16  # cores of a node of the paper
MACHINES: Mapping[int, Sequence[NodeFacts]] = {
    1: NodeFacts.alike(("n1", "n2"), CORES, 2),
    2: NodeFacts.alike(("n1-1", "n2-1", "n1-2", "n2-2"), 8),
}
"""Configuration of the simulations -> the two nodes of the paper; for two ranks on a node, its four sockets."""
ASSUMED: Mapping[str, tuple[float, float]] = {
    "malleability points each 20 s": (0.9, 20.0),
    "linear simulations": (1.0, 0.0),
    "linear simulations, malleability points each 20 s": (1.0, 20.0),
}
"""Assumption -> parallel share of the simulations, and time between malleability points, s."""
PARTS = 100  # units of a task in the plot of figure 5


class Analytics(NamedTuple):
    """An analytics job of table 1."""

    label: str
    application: str
    share: float  # share of the cores of a node of 16 cores on which it runs

    def cores(self, node: int) -> int:
        """Return the cores that it asks for on nodes of `node` cores."""
        return max(1, round(self.share * node))


ANALYTICS = {
    each.label: each
    for each in (
        Analytics("pils 1", "pils", 1.0),
        Analytics("pils 2", "pils", 1 / 16),
        Analytics("pils 3", "pils", 4 / 16),
        Analytics("stream", "stream", 2 / 16),
    )
}
"""The analytics jobs of table 1, by label."""


class Job(NamedTuple):
    """A job of a use case."""

    name: str
    application: str
    submit_s: float
    run_time_s: float
    cores: int
    parameters: str = ""
    nodes: int | None = None  # number of nodes; None: all


class Outcome(NamedTuple):
    """Figures of a run, s."""

    total: float
    responses: tuple[float, float]

    @property
    def average(self) -> float:
        """Average response of the two jobs, s."""
        return mean(self.responses)


def _in_situ_replays(settings: base.Settings) -> Iterator[base.Replay]:
    inventory = _inventory(settings)
    for _, name, pair in _in_situ_pairs(min(node.cores for node in inventory.nodes)):
        for _, replay in _replays(settings, inventory, name, pair):
            yield replay


def _in_situ_pairs(cores: int) -> Iterator[tuple[tuple[str, Analytics], str, tuple[Job, Job]]]:
    """Yield the simulation and the analytics job, the name and the jobs of each pair on nodes of `cores` cores."""
    for simulation in SIMULATIONS:
        for label, analytics in _distinct(cores).items():
            pair = _in_situ_pair(simulation, analytics, cores)
            yield (simulation, analytics), f"{simulation} + {label}", pair


@base.study(_in_situ_replays, SPEED)
def in_situ(settings: base.Settings) -> base.Findings:
    """A simulation, then an analytics job: one after the other against DROM (DROM paper, section 6.1)."""
    inventory = _inventory(settings)
    cores = min(node.cores for node in inventory.nodes)
    figures: list[dict[str, Any]] = []
    tables: dict[str, list[list[str]]] = {"simulation": [], "assumed": [], "replay": []}
    for simulation in SIMULATIONS:
        for configuration, machine in MACHINES.items():
            for analytics in ANALYTICS.values():
                pair = _in_situ_pair(simulation, analytics, CORES, ranks=configuration)
                point = {"simulation": simulation, "configuration": configuration, "analytics": analytics.label}
                outcomes = {mode: [_simulated(pair, machine, mode)] for mode in MODES}
                figures += _points(outcomes, by="simulation", **point)
                name = f"{simulation} Conf. {configuration} + {analytics.label}"
                tables["simulation"].append([name, *_changes(outcomes)])
    for (simulation, analytics), name, pair in _in_situ_pairs(cores):
        outcomes = _replayed(settings, inventory, name, pair)
        point = {"simulation": simulation, "configuration": 1, "analytics": analytics.label}
        figures += _points(outcomes, by="replay", **point)
        tables["replay"].append([name, *_changes(outcomes)])
    for simulation in SIMULATIONS:
        for assumption, (share, grain_s) in ASSUMED.items():
            pair = _in_situ_pair(simulation, ANALYTICS["pils 1"], CORES)
            outcomes = {mode: [_simulated(pair, MACHINES[1], mode, share, grain_s)] for mode in MODES}
            figures += _points(outcomes, by="assumed", simulation=simulation, assumption=assumption)
            tables["assumed"].append([f"{simulation}, {assumption}", *_changes(outcomes)])
    figures += _variations(figures)
    shares = [PARTS * tasks for tasks in tasks_of_threads(CORES, CORES - 1)]
    figures.append({"by": "tasks", "threads_with_more": sum(share > min(shares) for share in shares)})
    folder = settings.folder / "plots"
    plots = [plot_tasks(shares, PARTS, folder), *plot_in_situ(figures, inventory.execution, folder)]
    notes = (
        *_notes(inventory),
        "Simulated are two nodes of 16 cores. For Conf. 2 of the simulations, with two ranks on a node, they are four"
        " nodes of 8 cores, because a rank has a node of its own here. The analytics job takes as many cores from each"
        " rank, as the node manager of the paper does.",
        f"The paper prints no run times. A simulation takes {SIMULATION_S:g} s, and the analytics job as long as its"
        " printed response says: PILS -96 %, STREAM -92 %. It comes after a tenth of the simulation.",
        "The paper prints no time between malleability points: simulated changes of cores are immediate, except in the"
        " table of other assumptions.",
        "Data of the simulations are divided by the first cores, as in figure 5 of the paper.",
        f"Plots of figures 4 to 12: {', '.join(map(str, plots))}.",
    )
    columns = ("workload", *COLUMNS)
    return base.Findings(
        "In situ analytics",
        [
            base.FindingsTable("DROM against serial, simulated", columns, tables["simulation"]),
            base.FindingsTable("PILS Conf. 1 under other assumptions, simulated", columns, tables["assumed"]),
            base.FindingsTable(f"DROM against serial, {settings.repetitions} replays", columns, tables["replay"]),
        ],
        notes,
        Measured.of(figures, ("by", "simulation", "configuration", "analytics", "assumption", "mode")),
    )


def _priority_replays(settings: base.Settings) -> Iterator[base.Replay]:
    inventory = _inventory(settings)
    cores = min(node.cores for node in inventory.nodes)
    for second_s, at_s in PRIORITY_PAIRS.values():
        for _, replay in _replays(
            settings, inventory, _priority_name(second_s, at_s), _priority_pair(cores, second_s, at_s)
        ):
            yield replay


def _priority_name(second_s: float, at_s: float) -> str:
    return f"CoreNeuron of {second_s:g} s at {at_s:g} s"


@base.study(_priority_replays, SPEED)
def high_priority(settings: base.Settings) -> base.Findings:
    """Two long simulations, equipartition: one after the other against DROM (DROM paper, section 6.2)."""
    inventory = _inventory(settings)
    cores = min(node.cores for node in inventory.nodes)
    machine = MACHINES[1]
    figures: list[dict[str, Any]] = []
    simulated, replays, sweep = [], [], []
    for label, (second_s, at_s) in PRIORITY_PAIRS.items():
        name = _priority_name(second_s, at_s)
        pair = _priority_pair(machine[0].cores, second_s, at_s)
        outcomes = {mode: [_simulated(pair, machine, mode)] for mode in MODES}
        figures += _points(outcomes, by="simulation", second=label)
        simulated.append([name, *_changes(outcomes)])
        outcomes = _replayed(settings, inventory, name, _priority_pair(cores, second_s, at_s))
        figures += _points(outcomes, by="replay", second=label)
        replays.append([name, *_changes(outcomes)])
    for share in SWEPT_SHARES:
        best: dict[str, list[float]] = {"total": [], "average": []}
        for at_s in SWEPT_INSTANTS:
            pair = _priority_pair(machine[0].cores, SIMULATION_S, at_s)
            serial, shared = (_simulated(pair, machine, mode, share) for mode in MODES)
            best["total"].append(shared.total / serial.total - 1)
            best["average"].append(shared.average / serial.average - 1)
            point = {"by": "sweep", "second": f"share {share:g}, at {at_s:g} s"}
            figures += _points({"serial": [serial], "share": [shared]}, **point)
        found_shares = [f"{100 * min(values):+.1f} to {100 * max(values):+.1f} %" for values in best.values()]
        sweep.append([f"{share:g}", f"{1 / (1 + share):.3f}", *found_shares])
    runs = {mode: _prediction(_priority_pair(CORES, SIMULATION_S, PRIORITY_AT_S), machine, mode) for mode in MODES}
    folder = settings.folder / "plots"
    places = {_priority_name(*second): {"second": label} for label, second in PRIORITY_PAIRS.items()}
    plots = [
        plot_masks(runs, folder),
        plot_work(runs, folder),
        plot_times(figures, places, AVERAGE, inventory.execution, folder, "figure-15"),
    ]
    for mode, run in runs.items():
        figures += [
            {"by": "simulation", "second": name, "mode": mode, "work_per_core_second": work}
            for name, work in work_per_core_second(run).items()
        ]
    notes = (
        *_notes(inventory),
        f"The paper prints no run times and no arrival: both simulations take {SIMULATION_S:g} s, and the second one"
        f" comes after {PRIORITY_AT_S:g} s.",
        "The parallel share of both simulations is fitted to the printed total of -2.5 %.",
        "The printed total and average exclude each other, if both jobs are equally efficient, get half of the cores,"
        " and the first one ends first, as in figure 13: with x the rest of the first job as the second one comes, and"
        " 1/u the speed on half of the cores, the total falls by x (2 - u), and the sum of the responses by x (3 - 2u),"
        " which is never four times as much, relative to the serial sum. The sweep shows it.",
        f"If the second job is shorter and ends first, both come out: see CoreNeuron of {SHORT_S:g} s.",
        f"Plots of figures 13 to 15: {', '.join(map(str, plots))}.",
    )
    columns = ("workload", *COLUMNS)
    tables = [
        base.FindingsTable("DROM against serial, simulated", columns, simulated),
        base.FindingsTable(
            f"the parallel share, over arrivals of the second job after {SWEPT_INSTANTS[0]:g} to"
            f" {SWEPT_INSTANTS[-1]:g} s",
            ("share", "speed on half of the cores", "total", "average response"),
            sweep,
        ),
        base.FindingsTable(f"DROM against serial, {settings.repetitions} replays", columns, replays),
    ]
    measured = Measured.of(figures, ("by", "second", "mode"))
    return base.Findings("High-priority job", tables, notes, measured)


def _in_situ_pair(simulation: str, analytics: Analytics, cores: int, *, ranks: int = 1) -> tuple[Job, Job]:
    """Return a simulation with `ranks` ranks on a node of `cores` cores, and an analytics job on two of these nodes."""
    # A rank has a part of the node as a node of its own. The analytics job takes as many cores from each rank, because
    # the node manager keeps ranks balanced (section 5); a single core comes from one rank.
    asked = analytics.cores(cores)
    parts = min(ranks, asked)
    nodes = None if analytics.share == 1.0 else 2 * parts
    seconds = ANALYTICS_S[analytics.application]
    return (
        Job("simulation", simulation, 0.0, SIMULATION_S, cores // ranks, "data=static"),
        Job("analytics", analytics.application, ANALYTICS_AT_S, seconds, asked // parts, nodes=nodes),
    )


def _priority_pair(cores: int, second_s: float, at_s: float) -> tuple[Job, Job]:
    return (
        Job("nest", "nest", 0.0, SIMULATION_S, cores),
        Job("coreneuron", "coreneuron", at_s, second_s, cores),
    )


def _distinct(cores: int) -> dict[str, Analytics]:
    """Return the analytics jobs of table 1, scaled from 16 to `cores` cores a node; on few cores, two are the same."""
    by_size: dict[tuple[str, int], Analytics] = {}
    for analytics in ANALYTICS.values():
        by_size.setdefault((analytics.application, analytics.cores(cores)), analytics)
    return {f"{each.label}, {asked} of {cores} cores": each for (_, asked), each in by_size.items()}


def _prediction(
    pair: tuple[Job, Job], machine: Sequence[NodeFacts], mode: str, share: float | None = None, grain_s: float = 0.0
) -> Run:
    """Return the simulation of a pair, with another parallel share of the simulations than the fitted one if given."""
    workload = _workload(pair, len(machine), {} if share is None else dict.fromkeys(SIMULATIONS, share))
    return predict(
        workload,
        machine,
        "drom-share",
        policy_parameters={"mode": mode, "split": "even"},
        runtime_model="worst-case",
        overheads=Overheads(grain_s=grain_s),
    )


def _simulated(
    pair: tuple[Job, Job], machine: Sequence[NodeFacts], mode: str, share: float | None = None, grain_s: float = 0.0
) -> Outcome:
    return _outcome(_prediction(pair, machine, mode, share, grain_s), pair[1].name)


def _replayed(
    settings: base.Settings, inventory: Inventory, name: str, pair: tuple[Job, Job]
) -> dict[str, list[Outcome]]:
    """Return the outcomes of the replays of a pair, by mode."""
    outcomes: dict[str, list[Outcome]] = {mode: [] for mode in MODES}
    for mode, wanted in _replays(settings, inventory, name, pair):
        outcomes[mode].append(_outcome(base.replayed(settings, wanted), name))
    return outcomes


def _replays(
    settings: base.Settings, inventory: Inventory, name: str, pair: tuple[Job, Job]
) -> Iterator[tuple[str, base.Replay]]:
    """Yield the mode and the replay of each repetition of a pair."""
    workload, speed = _workload(pair, len(inventory.nodes), {}), settings.speed or SPEED
    slug = "".join(char if char.isalnum() else "-" for char in name)
    for repetition in range(1, settings.repetitions + 1):
        for mode in MODES:
            parameters = {"mode": mode, "split": "even"}
            folder = f"{slug}-{mode}-{repetition}"
            yield mode, base.Replay(folder, workload, inventory, "drom-share", parameters, name, speed)


def _changes(found: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Return the changes by DROM, of means over repetitions, in the order of `COLUMNS`."""
    serial, shared = (
        [
            mean(column)
            for column in zip(*((each.total, *each.responses, each.average) for each in found[mode]), strict=True)
        ]
        for mode in MODES
    )
    return [base.percent(before, after) for before, after in zip(serial, shared, strict=True)]


def _points(found: Mapping[str, Sequence[Outcome]], **point: Any) -> list[dict[str, Any]]:
    """Return the figures of outcomes for the ledger."""
    return [
        {
            **point,
            "mode": mode,
            "repetition": repetition,
            "total_s": each.total,
            "first_response_s": each.responses[0],
            "second_response_s": each.responses[1],
            "average_response_s": each.average,
        }
        for mode, outcomes in found.items()
        for repetition, each in enumerate(outcomes, 1)
    ]


def _variations(figures: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the range of the changes of the total over the configurations with PILS, for each simulation."""
    variations = []
    for simulation in SIMULATIONS:
        total = {
            (row["configuration"], row["analytics"], row["mode"]): row["total_s"]
            for row in figures
            if row["by"] == "simulation" and row["simulation"] == simulation and row["analytics"] != "stream"
        }
        changes = [total[(*key, "share")] / total[(*key, "serial")] for key in {place[:2] for place in total}]
        variations.append({"by": "variation", "simulation": simulation, "variation": max(changes) - min(changes)})
    return variations


def _workload(pair: tuple[Job, Job], nodes: int, shares: Mapping[str, float]) -> Workload:
    """Return the workload of a pair on `nodes` nodes. `shares`: parallel shares in place of the usual ones."""
    sizes = [min(job.nodes or nodes, nodes) for job in pair]
    table = pd.DataFrame(
        {
            "job_id": [job.name for job in pair],
            "submit_time": [job.submit_s for job in pair],
            "run_time": [job.run_time_s for job in pair],
            "time_limit": [10 * job.run_time_s for job in pair],
            "nodes": sizes,
            "cores_per_node": [job.cores for job in pair],
            "kind": "malleable",
            "nodes_min": sizes,
            "nodes_max": sizes,
            "application": [job.application for job in pair],
            "application_parameters": [job.parameters for job in pair],
        }
    )
    workload = Workload(table, Provenance(System(nodes, max(job.cores for job in pair), "DROM paper")))
    return with_parallel_shares(workload, {**PARALLEL_SHARES, **shares})


def _outcome(run: Run, name: str) -> Outcome:
    """Return the outcome of a run. Raises InputError if a job has not completed."""
    if set(run.jobs["state"]) != {"completed"}:
        what = "a job has not completed"
        raise InputError(what, where=name, hint="remove its runs, and start the experiment again")
    first, second = (run.jobs["end"] - run.jobs["submit"]).tolist()
    return Outcome(float(run.jobs["end"].max() - run.jobs["submit"].min()), (first, second))


def _inventory(settings: base.Settings) -> Inventory:
    """Return the inventory of the settings, or one node of all cores of this machine; a job shares two or more."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    own = Inventory("this machine", "agents", (Node("n1", len(cpus), 1, cpus),), grain_s=GRAIN_S)
    inventory = base.inventory_of(settings, lambda: own)
    if min(node.cores for node in inventory.nodes) < 2:
        what = "a node has one core, which two jobs cannot share"
        raise InputError(what, where=inventory.where, hint="give --inventory with larger nodes, or emulated nodes")
    return inventory


def _notes(inventory: Inventory) -> tuple[str, ...]:
    cores = min(node.cores for node in inventory.nodes)
    size = f"{len(inventory.nodes)} x {cores} cores, {inventory.execution}"
    note = f"Measured on {inventory.name} ({size}). The paper measured on two nodes of 16 cores of MareNostrum 3."
    if inventory.execution == "emulated":
        return (note, "Emulated cores have no memory bandwidth: memory-bound phases gain nothing from a second job.")
    return (note,)


FIGURES = {"run_time_s": "run time", "cpu_s": "CPU time"}
ITERATIONS = 200


def overhead(settings: base.Settings) -> base.Findings:
    """Run time of a DROM-enabled program beside the same without DROM (DROM paper, section 6)."""
    if settings.inventory or settings.speed:
        what = "drom-overhead runs a program on this machine, without a replay"
        raise InputError(what, hint="leave out --inventory and --speed of tracebed experiment")
    figures = []
    for row in pairs(settings.repetitions, ITERATIONS):
        figures.append(row)
        if len(figures) % 2 == 0:
            settings.on_step(f"pair {row['repetition']} of {settings.repetitions}")
    rows = []
    for name, label in FIGURES.items():
        plain, drom = (
            [row[name] for row in figures if row["mode"] == mode] for mode in OVERHEAD_MODES
        )  # in order of the pairs
        ratios = [with_drom / alone for alone, with_drom in zip(plain, drom, strict=True)]
        medians = (f"{median(plain):.3f} s", f"{median(drom):.3f} s", f"{median(ratios):.4f}")
        rows.append([label, *medians, f"{min(ratios):.4f} to {max(ratios):.4f}"])
    columns = ("", "plain, median", "with DROM, median", "ratio, median of pairs", "ratio, range")
    notes = (
        f"PILS on all CPUs of this machine: {ITERATIONS} iterations of 5 ms, a poll in each. The paper compared on two"
        " nodes of MareNostrum 3, and prints no figure.",
        "Run times depend on other programs of this machine, CPU times hardly.",
    )
    table = base.FindingsTable(f"The same work with and without DROM, {settings.repetitions} pairs", columns, rows)
    return base.Findings("Overhead of DROM", [table], notes, Measured.of(figures, ("mode",)))
