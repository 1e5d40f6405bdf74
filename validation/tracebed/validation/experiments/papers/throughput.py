"""The throughput of DMR (malleable HPG-aligner, figures 8 to 13): fixed against malleable jobs on 49 nodes."""

from __future__ import annotations

from typing import Any, Literal

from tracebed.converters.models.papers import dmr
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.experiments.papers.base import Findings, FindingsTable, Settings, percent
from tracebed.validation.experiments.papers.replays import emulated, inventory_of, replayed
from tracebed.validation.metrics.summary import metrics

JOBS = (100, 250, 500, 1000, 2000)
WINDOW = 100
"""Number of jobs that are also replayed."""
SPEED = 50.0
NODES, CORES = 49, 48
GRAIN_S = 0.05
FIGURES = ("mean_wait_s", "mean_run_s", "mean_response_s", "makespan_s")
CASES: dict[Literal["production", "large"], tuple[str, ...]] = {"production": ("dmr", "keep-pref"), "large": ("dmr",)}
"""Data set -> policies of the malleable jobs."""
REPLAYED = "keep-pref"
PRINTED = {
    "production": ("up to -77 %", "up to +60 %", "up to 20 times shorter", "up to -16 %"),
    "large": ("", "slower", "about half", ""),
}
"""Data set -> changes that figures 9 to 12, 15 and 16 of the paper print, in the order of `FIGURES`."""


def dmr_throughput(settings: Settings) -> Findings:
    """100 to 2,000 jobs of HPG-aligner, fixed against malleable: simulated, and 100 of them replayed (DMR paper)."""
    rows = []
    for dataset, policies in CASES.items():
        for jobs in JOBS:
            fixed = metrics(predict(dmr(jobs, fixed=True, dataset=dataset), NODES, "easy"))
            for policy in policies:
                malleable = metrics(predict(dmr(jobs, dataset=dataset), NODES, policy))
                rows.append([f"{dataset}, {jobs:,} jobs", policy, *_changes(fixed, malleable)])
        rows.append([f"{dataset}, paper", "", *PRINTED[dataset]])
    columns = ("workload", "policy", *FIGURES)
    simulated = FindingsTable("Malleable against fixed jobs, simulated", columns, rows)
    replayed = FindingsTable(
        f"{WINDOW} jobs of production under {REPLAYED}, replayed, means of {settings.repetitions}",
        ("metric", "fixed", "malleable", "change", "change, simulated"),
        _window(settings),
    )
    notes = (
        "The paper prints neither its arrival times nor the rules of its backfill. The arrivals are Feitelson's with a"
        " mean of 10 s, and fixed jobs run under EASY.",
        "Run times and sizes are the measured ones of the paper's tables 1 and 3.",
        "With the data set production, dmr shrinks jobs to 3 processes, on which they run six times as long as on 12."
        " The paper says that jobs usually shrink to 6, as under keep-pref, whose changes have the paper's signs.",
    )
    return Findings("Throughput of malleable jobs", [simulated, replayed], notes)


def _window(settings: Settings) -> list[list[str]]:
    """Return the rows of the replayed jobs."""
    inventory = inventory_of(settings, lambda: emulated(NODES, CORES, 1, GRAIN_S))
    found: dict[bool, list[dict[str, Any]]] = {}
    predicted = {}
    for rigid, policy in ((True, "easy"), (False, REPLAYED)):
        workload, label = dmr(WINDOW, fixed=rigid), "fixed" if rigid else "malleable"
        predicted[rigid] = metrics(predict(workload, inventory.facts, policy))
        found[rigid] = []
        for repetition in range(1, settings.repetitions + 1):
            settings.on_step(f"{label}: {repetition} of {settings.repetitions}")
            run = replayed(
                settings,
                f"{label}-{repetition}",
                workload,
                inventory,
                policy,
                name=f"dmr-{label}",
                speed=settings.speed or SPEED,
            )
            found[rigid].append(metrics(run))
    rows = []
    for metric in FIGURES:
        fixed, malleable = (sum(one[metric] for one in found[rigid]) / len(found[rigid]) for rigid in (True, False))
        change = percent(predicted[True][metric], predicted[False][metric])
        rows.append([metric, f"{fixed:,.6g}", f"{malleable:,.6g}", percent(fixed, malleable), change])
    return rows


def _changes(fixed: dict[str, Any], malleable: dict[str, Any]) -> list[str]:
    return [percent(fixed[metric], malleable[metric]) for metric in FIGURES]
