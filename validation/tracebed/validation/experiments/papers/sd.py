"""The real run of the SD-Policy paper (section 4.4, workload 5): static backfill against SD-Policy on 49 nodes."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

from tracebed.converters.malleability import to_malleable
from tracebed.converters.models.papers import sd_5
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.experiments.papers.base import Findings, FindingsTable, Settings, percent
from tracebed.validation.experiments.papers.replays import emulated, inventory_of, replayed
from tracebed.validation.experiments.views.ledger import Measured
from tracebed.validation.metrics.summary import metrics

SPEED = 400.0
NODES, CORES, SOCKETS = 49, 48, 2
GRAIN_S = 0.1
POLICIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "static": ("conservative", {"backfill_depth": 50, "backfill_interval_s": 30.0}),
    "sd": ("sd", {"depth": 50, "backfill_interval_s": 30.0}),
}
"""Label -> policy and parameters: Slurm's backfill, and SD-Policy (DynAVGSD) in its passes."""
FIGURES = ("makespan_s", "mean_response_s", "mean_slowdown", "modelled_energy_j")


def sd_5_real(settings: Settings) -> Findings:
    """2,000 jobs on 49 nodes of 48 cores: static backfill against SD-Policy (SD-Policy paper, section 4.4)."""
    inventory = inventory_of(settings, lambda: emulated(NODES, CORES, SOCKETS, GRAIN_S))
    nodes, cores = len(inventory.nodes), min(node.cores for node in inventory.nodes)
    workload = to_malleable(sd_5(nodes=nodes, cores_per_node=cores), 1.0, nodes=nodes)
    speed = settings.speed or SPEED
    figures: list[dict[str, Any]] = []
    shared: dict[str, list[int]] = {}
    for label, (policy, parameters) in POLICIES.items():
        simulated = metrics(predict(workload, inventory.facts, policy, policy_parameters=parameters))
        figures.append({"policy": label, "by": "simulation", **simulated})
        shared[label] = []
        for repetition in range(1, settings.repetitions + 1):
            settings.on_step(f"{label}: {repetition} of {settings.repetitions}")
            folder = f"{label}-{repetition}"
            run = replayed(settings, folder, workload, inventory, policy, parameters, name="sd-5", speed=speed)
            figures.append({"policy": label, "by": "replay", "repetition": repetition, **metrics(run)})
            shared[label].append(run.jobs_on_shared_nodes)
    rows = []
    for metric in FIGURES:
        means = {
            by: [
                mean(row[metric] for row in figures if (row["policy"], row["by"]) == (label, by)) for label in POLICIES
            ]
            for by in ("replay", "simulation")
        }
        changes = (percent(*means[by]) for by in means)
        rows.append([metric, *(f"{value:,.6g}" for value in means["replay"]), *changes])
    counts = [", ".join(str(count) for count in shared[label]) for label in POLICIES]
    rows.append(["jobs on shared nodes", *counts, "", ""])
    columns = ("metric", "static", "sd", "change", "change, simulated")
    notes = [
        f"Replayed on {inventory.name}: {len(inventory.nodes)} nodes, {inventory.execution}. The paper ran its"
        " applications on MareNostrum 4.",
        "The applications of the paper use cores better when two jobs share a node. Emulated jobs do so only in the"
        " part that runs on one core.",
        "Energy is modelled from busy cores. The jobs are drawn from Cirne's model: the paper's own workload is not"
        " public.",
    ]
    tables = [FindingsTable("static backfill and SD-Policy", columns, rows)]
    return Findings("SD-Policy, the real run", tables, notes, Measured.of(figures, ("policy", "by")))
