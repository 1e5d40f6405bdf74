"""The real run of the SD-Policy paper (section 4.4, workload 5): static backfill against SD-Policy on 49 nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Any

from tracebed.converters.applications import PARALLEL_SHARES, with_parallel_shares
from tracebed.converters.malleability import to_malleable
from tracebed.converters.models.papers import sd_5
from tracebed.converters.workload import Workload
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.experiments.papers.base import Findings, FindingsTable, Replay, Settings, percent, study
from tracebed.validation.experiments.papers.replays import emulated, inventory_of, repeated, replayed
from tracebed.validation.experiments.views.ledger import Measured
from tracebed.validation.metrics.summary import metrics

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
FIGURES = ("makespan_s", "mean_response_s", "mean_slowdown", "modelled_energy_j")
GUESTS = ("guests", "guests_better")
SEEDS = range(3)
"""Seeds of the simulated workloads. The first one is replayed."""
SIMULATIONS = ("coreneuron", "nest", "alya")
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
"""Parallel shares of the simulations in the sweep."""
LIMITS = ("5", "10", "50", "inf", "dynamic")
"""The limits of the slowdown in the paper."""
LINEAR: Mapping[str, float] = dict.fromkeys(PARALLEL_SHARES, 1.0)


def _cases() -> Iterator[tuple[str, Mapping[str, float], Mapping[str, Any]]]:
    """Yield label, parallel shares by application, and parameters of `sd` in place of the study's own."""
    for limit in ("5", "dynamic"):
        for share in SHARES:
            shares = {**PARALLEL_SHARES, **dict.fromkeys(SIMULATIONS, share)}
            yield f"MAXSD {limit}, share {share:g}", shares, {"max_slowdown": limit}
        yield f"MAXSD {limit}, all linear", LINEAR, {"max_slowdown": limit}
        yield f"MAXSD {limit}, stream linear", {**PARALLEL_SHARES, "stream": 1.0}, {"max_slowdown": limit}
    for limit in LIMITS[1:-1]:
        yield f"MAXSD {limit}, share 0.9", PARALLEL_SHARES, {"max_slowdown": limit}


def _replays(settings: Settings) -> Iterator[Replay]:
    inventory = inventory_of(settings, lambda: emulated(NODES, CORES, SOCKETS, GRAIN_S))
    cores = min(node.cores for node in inventory.nodes)
    workload = with_parallel_shares(_workload(len(inventory.nodes), cores, SEEDS[0]), PARALLEL_SHARES)
    speed = settings.speed or SPEED
    for label, (policy, parameters) in POLICIES.items():
        yield from repeated(settings, label, workload, inventory, policy, parameters, name="sd-5", speed=speed)


@study(_replays, SPEED)
def sd_5_real(settings: Settings) -> Findings:
    """2,000 jobs on 49 nodes of 48 cores: static backfill against SD-Policy (SD-Policy paper, section 4.4)."""
    wanted = [*_replays(settings)]
    inventory, workload = wanted[0].inventory, wanted[0].workload
    nodes, cores = len(inventory.nodes), min(node.cores for node in inventory.nodes)
    figures: list[dict[str, Any]] = []
    for label, (policy, parameters) in POLICIES.items():
        simulated = predict(workload, inventory.facts, policy, policy_parameters=parameters)
        figures.append({"policy": label, "by": "simulation", **metrics(simulated, window="full")})
        runs = (replayed(settings, each) for each in wanted if each.policy == policy)
        for repetition, run in enumerate(runs, 1):
            figures.append({"policy": label, "by": "replay", "repetition": repetition, **metrics(run, window="full")})
    replays = []
    for metric in (*FIGURES, *GUESTS):
        means = {
            by: [_mean(figures, metric, policy=label, by=by) for label in POLICIES] for by in ("replay", "simulation")
        }
        changes = (percent(*means[by]) if metric in FIGURES else f"{means[by][1]:.4g}" for by in means)
        replays.append([metric, *(f"{value:,.6g}" for value in means["replay"]), *changes])
    swept, sweep = _sweep(settings, nodes, cores)
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
    ]
    tables = [
        FindingsTable(
            f"static backfill and SD-Policy, {settings.repetitions} replays",
            ("metric", "static", "sd", "change", "change, simulated"),
            replays,
        ),
        FindingsTable(
            f"SD-Policy against static backfill, simulated, means of {len(SEEDS)} seeds",
            ("assumption", *FIGURES, "guests", "guests better than static"),
            sweep,
        ),
    ]
    measured = Measured.of([*figures, *swept], ("policy", "by", "assumption"))
    return Findings("SD-Policy, the real run", tables, notes, measured)


def _workload(nodes: int, cores: int, seed: int) -> Workload:
    return to_malleable(sd_5(nodes=nodes, cores_per_node=cores, seed=seed), 1.0, nodes=nodes)


def _sweep(settings: Settings, nodes: int, cores: int) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """Return the figures of the simulated cases for each seed, and the rows of their table."""
    figures: list[dict[str, Any]] = []
    for seed in SEEDS:
        workload = _workload(nodes, cores, seed)
        for case, shares, given in _cases():
            settings.on_step(f"simulated, {case}: seed {seed}")
            adapted = with_parallel_shares(workload, shares)
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
        changes = (percent(static[name], shared[name]) for name in FIGURES)
        yield [case, *changes, f"{shared['guests']:,.0f}", f"{shared['guests_better']:.0%}"]


def _mean(figures: list[dict[str, Any]], metric: str, **point: Any) -> float:
    return mean(float(row[metric]) for row in figures if all(row.get(key) == value for key, value in point.items()))
