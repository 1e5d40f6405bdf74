"""Report sections about the runs: warnings, execution and parameters, provenance, and all metrics of both runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

from tracebed.ground.display import cell
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import all_metrics
from tracebed.validation.report.sections import Section
from tracebed.validation.report.templates import fill
from tracebed.validation.report.words import execution
from tracebed.validation.significance import with_interval
from tracebed.validation.statistics import batch_means
from tracebed.validation.verdict import Comparison, Validation


def _warnings(validation: Validation) -> Markup | None:
    return fill("warnings", warnings=validation.warnings) if validation.warnings else None


def _sides(comparison: Comparison) -> Markup:
    """Return the table of the execution and parameters of both runs."""
    sides = (comparison.real, comparison.predicted)

    def both(what: str, of: Callable[[Run], str]) -> tuple[str, str, str]:
        return (what, of(sides[0]), of(sides[1]))

    rows = [
        both("source", lambda run: run.info.source),
        both("execution", lambda run: execution(run.info)),
        both("policy", lambda run: " ".join([run.info.policy, *_pairs(run.info.policy_parameters)])),
        both("other parameters", lambda run: ", ".join(_pairs(_without_zero_overheads(run.info.settings))) or "-"),
        both("machine", _machine),
        both("speed", lambda run: f"{run.info.speed:g} trace seconds per wall second"),
        both("lateness of submissions", _lateness),
        (
            "mean wait, within-run stability",
            _stable(comparison, "wait_real"),
            _stable(comparison, "wait_predicted"),
        ),
        both("start of the run", lambda run: run.info.created or "-"),
    ]
    return fill("sides", rows=rows)


def _provenance(comparison: Comparison) -> Markup:
    """Return the origin of both runs: workload, steps, seeds, versions, hosts."""
    sides = (("real", comparison.real), ("predicted", comparison.predicted))
    return fill("provenance", provenance=[(name, _origins(run)) for name, run in sides])


def _origins(run: Run) -> dict[str, Any]:
    info = run.info
    provenance = info.workload.get("provenance") or {}
    return {
        "workload": {key: value for key, value in info.workload.items() if key != "provenance"},
        "sources": provenance.get("sources", []),
        "steps": provenance.get("steps", []),
        "seed": info.seed,
        "versions": info.versions,
        "hosts": info.hosts,
        "warnings": info.warnings,
        "interruptions": info.interruptions,
        "counts": info.counts,
    }


def _pairs(values: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in sorted(values.items())]


def _without_zero_overheads(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters without the overheads that are 0."""
    return {key: value for key, value in parameters.items() if value or not key.startswith("overhead_")}


def _machine(run: Run) -> str:
    cores = sorted({node.cores for node in run.info.nodes})
    each = f"{cores[0]}" if len(cores) == 1 else f"{cores[0]} to {cores[-1]}" if cores else "0"
    return f"{len(run.info.nodes):,} nodes of {each} core{'' if cores == [1] else 's'}"


def _lateness(run: Run) -> str:
    late = run.info.lateness_ms
    if not late:
        return "0 (virtual time)" if not run.info.is_real else "not recorded"
    parts = [f"{name} {late[name]:.3g} ms" for name in ("p50", "p99", "max") if name in late]
    trace = late.get("p99", math.nan) * run.info.speed / 1000
    return ", ".join(parts) + (f" of wall time (p99: {trace:.3g} trace s)" if trace == trace else "")


def _stable(comparison: Comparison, column: str) -> str:
    interval = batch_means(comparison.jobs[column].to_numpy(dtype=float))
    if interval is None:
        return "too few jobs"
    return f"{cell(interval.mean)} ± {cell(interval.half_width)} s"


WARNINGS = Section("Warnings", 150, _warnings, scope="validation")
SIDES = Section("The two runs", 450, _sides, folded=True)
PROVENANCE = Section("Provenance", 1300, _provenance)


def _all_metrics(validation: Validation) -> Markup | None:
    """Return the table of all metrics that are defined for at least one run, or None for several cases."""
    if len(validation.cases) > 1:
        return None
    comparison, perturbed = validation.pair, validation.perturbed_intervals or {}
    ours, theirs = comparison.real_metrics, comparison.predicted_metrics
    rows = [
        (metric.label, metric.unit, ours[name], with_interval(theirs[name], perturbed.get(name)))
        for name, metric in all_metrics().items()
    ]
    rows += [
        (f"jobs {state}", "", ours["jobs_by_state"].get(state, 0), theirs["jobs_by_state"].get(state, 0))
        for state in ours["jobs_by_state"] | theirs["jobs_by_state"]
    ]
    rows += [
        (f"{label}, mean without the first and last 5 % of arrivals", "s", ours["trimmed"][key], theirs["trimmed"][key])
        for key, label in (("mean_wait_s", "wait"), ("mean_response_s", "response"))
    ]
    known = [row for row in rows if not (_missing(row[2]) and _missing(row[3]))]
    return fill("metrics", c=comparison, rows=known, perturbed=bool(perturbed))


def _missing(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


ALL_METRICS = Section("All metrics of the pair", 1000, _all_metrics, scope="validation", folded=True)
