"""The report of a comparison as one HTML file that needs nothing else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jinja2

from tracebed.display import cell
from tracebed.errors import InputError
from tracebed.files import replacing
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import all_metrics
from tracebed.validation.report.figures import pictures
from tracebed.validation.report.words import execution, percent, real_side
from tracebed.validation.statistics import BATCHES, LEVEL, batch_means
from tracebed.validation.verdict import REASONS, Comparison

WORST = 10
"""Jobs in the table of the largest differences."""


def write(comparison: Comparison, path: Path | str) -> Path:
    """Write the report to `path`, whole or not at all. Raises InputError where that cannot be."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):  # a slip of the hand must not cost a workload or a run.json
        raise InputError("not a report's name", where=str(path), hint="end it in .html")
    text = render(comparison)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), hint="name another file") from error
    with replacing(path) as file:
        file.write(text.encode())
    return path


def render(comparison: Comparison) -> str:
    """Return the report as the text of one HTML document; the same comparison gives the same text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = cell
    environment.filters["percent"] = percent
    real = real_side(comparison.real.info)
    return environment.get_template("report.html.j2").render(
        c=comparison,
        name=comparison.real.info.workload.get("name") or "a workload",
        real_side=real,
        facts=_facts(comparison),
        rows=[_row(item.to_json()) for item in comparison.metrics],
        reasons=REASONS,
        figures=pictures(comparison, real),
        metrics=_metrics(comparison),
        reconfigurations=_reconfigurations(comparison),
        differences=[(name, d) for name, d in comparison.differences.items() if d],
        worst=_worst(comparison),
        provenance=[
            ("real", _provenance(comparison.real)),
            ("predicted", _provenance(comparison.predicted)),
        ],
        level=f"{100 * LEVEL:g} %",
        batches=BATCHES,
    )


def _facts(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return what a reader must know of the two sides before any figure: (what, real, predicted)."""
    sides = (comparison.real, comparison.predicted)

    def both(what: str, of: Any) -> tuple[str, str, str]:
        return (what, of(sides[0]), of(sides[1]))

    return [
        both("source", lambda run: run.info.source),
        both("jobs were", lambda run: execution(run.info)),
        both("policy", lambda run: " ".join([run.info.policy, *_pairs(run.info.policy_parameters)])),
        both("other parameters", lambda run: ", ".join(_pairs(run.info.parameters)) or "-"),
        both("machine", _machine),
        both("speed", lambda run: f"{run.info.speed:g} trace seconds a wall second"),
        both("lateness of submissions", _lateness),
        (
            "mean wait, within-run stability",
            _stable(comparison, "wait_real"),
            _stable(comparison, "wait_predicted"),
        ),
        both("began", lambda run: run.info.created or "-"),
    ]


def _pairs(values: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in sorted(values.items())]


def _machine(run: Run) -> str:
    cores = sorted({node.cores for node in run.info.nodes})
    each = f"{cores[0]}" if len(cores) == 1 else f"{cores[0]} to {cores[-1]}" if cores else "0"
    return f"{len(run.info.nodes):,} nodes of {each} core{'' if cores == [1] else 's'}"


def _lateness(run: Run) -> str:
    late = run.info.lateness_ms
    if not late:
        return "none (virtual time)" if not run.info.is_real else "not recorded"
    parts = [f"{name} {late[name]:.3g} ms" for name in ("p50", "p99", "max") if name in late]
    trace = late.get("p99", math.nan) * run.info.speed / 1000
    return ", ".join(parts) + (f" on the wall clock (p99: {trace:.3g} trace s)" if trace == trace else "")


def _stable(comparison: Comparison, column: str) -> str:
    interval = batch_means(comparison.jobs[column].to_numpy(dtype=float))
    if interval is None:
        return "too few jobs to say"
    return f"{cell(interval.mean)} ± {cell(interval.half_width)} s"


def _row(item: dict[str, Any]) -> dict[str, Any]:
    """Return a metric's row with where its point, margin and stability lie on the strip of 120 x 14."""
    z, margin, stability = item["z"], item["margin"], item["within_run_stability"]

    def place(value: float) -> float:
        return round(60 + 18 * min(max(value, -3.1), 3.1), 1)

    drawn = not math.isnan(z)
    return item | {
        "x": place(z) if drawn else None,
        "beyond": drawn and abs(z) > 3.1,
        "whisker": [place(end / margin) for end in stability] if drawn and stability else None,
        "inside": drawn and abs(z) <= 1,
    }


def _metrics(comparison: Comparison) -> list[tuple[str, str, Any, Any]]:
    ours, theirs = comparison.real_metrics, comparison.predicted_metrics
    rows = [(metric.label, metric.unit, ours[name], theirs[name]) for name, metric in all_metrics().items()]
    states = list(ours["jobs_by_state"] | theirs["jobs_by_state"])
    rows += [
        (f"jobs {state}", "", ours["jobs_by_state"].get(state, 0), theirs["jobs_by_state"].get(state, 0))
        for state in states
    ]
    trimmed = (("mean_wait_s", "wait"), ("mean_response_s", "response"))
    rows += [
        (
            f"{label}, mean without the first and last 5 % of arrivals",
            "s",
            ours["trimmed"][key],
            theirs["trimmed"][key],
        )
        for key, label in trimmed
    ]
    return [row for row in rows if not (_missing(row[2]) and _missing(row[3]))]


def _missing(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _reconfigurations(comparison: Comparison) -> list[tuple[str, str, Any, Any]]:
    """Return (operation, stage, real, predicted) with each side's count, median, p95 and sum."""
    ours, theirs = (m["reconfiguration_s"] for m in (comparison.real_metrics, comparison.predicted_metrics))
    rows = []
    for kind in ("expand", "shrink"):
        stages = list(ours.get(kind, {}) | theirs.get(kind, {}))
        rows += [(kind, stage, ours.get(kind, {}).get(stage), theirs.get(kind, {}).get(stage)) for stage in stages]
    return rows


def _worst(comparison: Comparison) -> list[dict[str, Any]]:
    jobs = comparison.jobs
    off = (jobs["wait_predicted"] - jobs["wait_real"]).abs()
    chosen = jobs.loc[off[off > 0].sort_values(ascending=False, kind="stable").index[:WORST]]
    return [{str(key): value for key, value in row.items()} for row in chosen.to_dict("records")]


def _provenance(run: Run) -> dict[str, Any]:
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
