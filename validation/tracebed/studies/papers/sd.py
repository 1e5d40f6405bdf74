"""The real run of the SD-Policy paper (section 4.4, workload 5): static backfill against SD-Policy on 49 nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tracebed.converters.applications import PARALLEL_SHARES, with_parallel_shares
from tracebed.converters.malleability import to_malleable
from tracebed.converters.models.papers import sd_5
from tracebed.converters.scaling import scale
from tracebed.converters.workload import Step, Workload
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.studies.ledger.ledger import Measured
from tracebed.studies.papers import base
from tracebed.validation.metrics.summary import metrics
from tracebed.validation.pictures import COLORS, COLUMN, STYLE, save

SPEED = 400.0
NODES, CORES, SOCKETS = 49, 48, 2
GRAIN_S = 0.1
POLICIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "static": ("conservative", {"backfill_depth": 50, "backfill_interval_s": 30.0}),
    "sd": ("sd", {"depth": 50, "backfill_interval_s": 30.0, "max_slowdown": "5"}),
}
"""Label -> policy and parameters: Slurm's backfill, and SD-Policy in its passes.

The paper does not print the limit of its real run. Of its limits, 5 gives the number of guests nearest to the printed
539."""
PRINTED = {"makespan_s": -7.0, "mean_response_s": -16.0, "mean_slowdown": -16.0, "modelled_energy_j": -6.0}
"""Metric -> printed change, % (section 4.4; response and slowdown "about")."""
FIGURES = tuple(PRINTED)
GUESTS = ("guests", "guests_better")
SEEDS = range(3)  # Seeds of the simulated workloads. The first one is replayed.
SIMULATIONS = ("coreneuron", "nest", "alya")
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)  # parallel shares of the simulations in the sweep
LIMITS = ("5", "10", "50", "inf", "dynamic")  # the limits of the slowdown in the paper
LINEAR: Mapping[str, float] = dict.fromkeys(PARALLEL_SHARES, 1.0)
CHOSEN = "MAXSD 5, share 0.9"  # the case of the sweep that counts
ARRIVALS, SHORTEST_S = 0.4, 3.0
"""Of the cases with faster arrivals: their time relative to that of Cirne's model, and the shortest run time, s.

With both, response, slowdown and makespan under static backfill are those of table 1 within 7 %."""


def _cases() -> Iterator[tuple[str, Mapping[str, float], Mapping[str, Any], bool]]:
    """Yield label, parallel shares by application, parameters of `sd`, and whether the jobs arrive faster."""
    for limit in ("5", "dynamic"):
        for share in SHARES:
            shares = {**PARALLEL_SHARES, **dict.fromkeys(SIMULATIONS, share)}
            yield f"MAXSD {limit}, share {share:g}", shares, {"max_slowdown": limit}, False
        yield f"MAXSD {limit}, all linear", LINEAR, {"max_slowdown": limit}, False
        yield f"MAXSD {limit}, stream linear", {**PARALLEL_SHARES, "stream": 1.0}, {"max_slowdown": limit}, False
    for limit in LIMITS[1:-1]:
        yield f"MAXSD {limit}, share 0.9", PARALLEL_SHARES, {"max_slowdown": limit}, False
    for limit in LIMITS:
        yield f"MAXSD {limit}, faster arrivals", PARALLEL_SHARES, {"max_slowdown": limit}, True


def _replays(settings: base.Settings) -> Iterator[base.Replay]:
    inventory = base.inventory_of(settings, lambda: base.emulated(NODES, CORES, SOCKETS, GRAIN_S))
    cores = min(node.cores for node in inventory.nodes)
    workload = with_parallel_shares(_workload(len(inventory.nodes), cores, SEEDS[0]), PARALLEL_SHARES)
    speed = settings.speed or SPEED
    for label, (policy, parameters) in POLICIES.items():
        yield from base.repeated(settings, label, workload, inventory, policy, parameters, name="sd-5", speed=speed)


@base.study(_replays, SPEED)
def sd_5_real(settings: base.Settings) -> base.Findings:
    """2,000 jobs on 49 nodes of 48 cores: static backfill against SD-Policy (SD-Policy paper, section 4.4)."""
    wanted = [*_replays(settings)]
    inventory, workload = wanted[0].inventory, wanted[0].workload
    nodes, cores = len(inventory.nodes), min(node.cores for node in inventory.nodes)
    figures: list[dict[str, Any]] = []
    healths: set[str] = set()
    for label, (policy, parameters) in POLICIES.items():
        simulated = predict(workload, inventory.facts, policy, policy_parameters=parameters)
        figures.append({"policy": label, "by": "simulation", **metrics(simulated, window="full")})
        runs = (base.replayed(settings, each) for each in wanted if each.policy == policy)
        for repetition, run in enumerate(runs, 1):
            figures.append({"policy": label, "by": "replay", "repetition": repetition, **metrics(run, window="full")})
            healths.add(str(run.info.health.get("state", "healthy")))
    replays = []
    for metric in (*FIGURES, *GUESTS):
        means = {
            by: [_mean(figures, metric, policy=label, by=by) for label in POLICIES] for by in ("replay", "simulation")
        }
        changes = (base.percent(*means[by]) if metric in FIGURES else f"{means[by][1]:.4g}" for by in means)
        replays.append([metric, *(f"{value:,.6g}" for value in means["replay"]), *changes])
    swept, sweep = _sweep(settings, nodes, cores)
    bars = {
        "printed": [*PRINTED.values()],
        ", ".join(["replayed", inventory.execution, *sorted(healths)]): _changes(figures, by="replay"),
        f"simulated, {len(SEEDS)} draws": _changes(swept, assumption=CHOSEN),
    }
    notes = [
        f"Replayed on {inventory.name}: {len(inventory.nodes)} nodes, {inventory.execution}. The paper ran its"
        " applications on MareNostrum 4.",
        "A job makes of fewer cores what the parallel share of its application says. The share of the simulations is"
        " fitted to the total run time of the DROM paper (section 6.2), not to this paper.",
        "PILS scales linearly. STREAM is as fast on half of a node, also beside another STREAM, which is too much: with"
        " `stream linear` it gains nothing, which is too little.",
        "The limit of the slowdown is chosen by the number of guests, of which the paper prints 539.",
        "Energy is modelled: 100 W a node and 5 W a busy core, over the whole workload.",
        "The jobs are drawn from Cirne's model: the paper's own workload is not public.",
        f"With faster arrivals, the jobs arrive in {ARRIVALS:g} of the time, and run for {SHORTEST_S:g} s or more.",
        f"Health of the replays: {', '.join(sorted(healths))}.",
        f"Plot of figure 9: {plot_changes(bars, settings.folder / 'plots')}.",
    ]
    tables = [
        base.FindingsTable(
            f"static backfill and SD-Policy, {settings.repetitions} replays",
            ("metric", "static", "sd", "change", "change, simulated"),
            replays,
        ),
        base.FindingsTable(
            f"SD-Policy against static backfill, simulated, means of {len(SEEDS)} seeds",
            ("assumption", *FIGURES, "guests", "guests better than static"),
            sweep,
        ),
    ]
    measured = Measured.of([*figures, *swept], ("policy", "by", "assumption"))
    return base.Findings("SD-Policy, the real run", tables, notes, measured)


def _workload(nodes: int, cores: int, seed: int) -> Workload:
    return to_malleable(sd_5(nodes=nodes, cores_per_node=cores, seed=seed), 1.0, nodes=nodes)


def _faster(workload: Workload) -> Workload:
    """Return the workload with its jobs arriving in `ARRIVALS` of the time, each of at least `SHORTEST_S`."""
    times = {name: np.maximum(workload.floats(name), SHORTEST_S) for name in ("run_time", "time_limit")}
    step = Step("shortest", {"seconds": SHORTEST_S}, {"jobs": int((workload.floats("run_time") < SHORTEST_S).sum())})
    return scale(workload.with_step(step, workload.columns.assign(**times)), arrivals=ARRIVALS)


def plot_changes(changes: Mapping[str, Sequence[float]], folder: Path) -> Path:
    """Draw the changes by SD-Policy, % (figure 9): bars of each source for each of `FIGURES`."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 2.8), layout="constrained")
        axes = figure.subplots()
        at, width = np.arange(len(FIGURES)), 0.8 / len(changes)
        for number, (source, values) in enumerate(changes.items()):
            left = at - 0.4 + (number + 0.5) * width
            axes.bar(left, values, 0.9 * width, color=COLORS[number], label=source)
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_xticks(at, ["Makespan", "Response", "Slowdown", "Energy"])
        axes.set_ylabel("Change by SD-Policy, %")
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0))
        data = pd.DataFrame(
            [(source, *row) for source, values in changes.items() for row in zip(FIGURES, values, strict=True)],
            columns=["source", "metric", "change_percent"],
        )
        return save(figure, data, folder, "figure-9")


def _changes(figures: list[dict[str, Any]], **point: Any) -> list[float]:
    """Return the change of each of `FIGURES` from static backfill to `sd`, %."""
    static, shared = ([_mean(figures, name, policy=label, **point) for name in FIGURES] for label in POLICIES)
    return [100.0 * (after / before - 1.0) for before, after in zip(static, shared, strict=True)]


def _sweep(settings: base.Settings, nodes: int, cores: int) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """Return the figures of the simulated cases for each seed, and the rows of their table."""
    figures: list[dict[str, Any]] = []
    for seed in SEEDS:
        workload = _workload(nodes, cores, seed)
        for case, shares, given, faster in _cases():
            settings.on_step(f"simulated, {case}: seed {seed}")
            adapted = with_parallel_shares(_faster(workload) if faster else workload, shares)
            for label, (policy, parameters) in POLICIES.items():
                parameters = {**parameters, **given} if label == "sd" else parameters
                run = predict(adapted, nodes, policy, policy_parameters=parameters)
                point = {"policy": label, "by": "sweep", "assumption": case, "repetition": seed}
                figures.append({**point, **metrics(run, window="full")})
    return figures, [*_rows(figures)]


def _rows(figures: list[dict[str, Any]]) -> Iterator[list[str]]:
    for case, *_ in _cases():
        static, shared = (
            {name: _mean(figures, name, assumption=case, policy=label) for name in (*FIGURES, *GUESTS)}
            for label in POLICIES
        )
        changes = (base.percent(static[name], shared[name]) for name in FIGURES)
        yield [case, *changes, f"{shared['guests']:,.0f}", f"{shared['guests_better']:.0%}"]


def _mean(figures: list[dict[str, Any]], metric: str, **point: Any) -> float:
    return mean(float(row[metric]) for row in figures if all(row.get(key) == value for key, value in point.items()))
