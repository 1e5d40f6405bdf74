"""Data of the interactive charts: the jobs of both runs, their bars in the Gantt charts, and the curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.metrics import busy_cores, origin, total_cores, waiting
from tracebed.validation.report import scales
from tracebed.validation.report.gantt import blocks
from tracebed.validation.report.interactive.columns import MISSING, PackedColumn, pack, ticks
from tracebed.validation.report.time_axis import TimeAxis
from tracebed.validation.verdict import Comparison

BARS = 400_000
"""Largest number of bars of a chart. The bars with the smallest areas are omitted."""
STEPS = 200_000
"""Largest number of steps of a curve. A curve with more steps is averaged over half as many bins."""
NAMES = 20_000
"""Number of nodes above which their names are omitted."""
PARTS = 1000
"""Parts of the row of a node in a Gantt chart, in which the edges of bars are given."""
SIDES = ("real", "predicted")


def data(comparison: Comparison, about: str = "") -> str:
    """Return the data of a comparison, packed. Times are ticks after the first submission of each run.

    Args:
        about: text about the runs, shown above the charts.
    """
    runs = (comparison.real, comparison.predicted)
    time = TimeAxis.of(*runs)
    last = max(time.end, *(_last(run) for run in runs))
    tick = 10.0 ** max(np.ceil(np.log10(last / 2**30)), -3)
    ids = pd.Index(comparison.real.jobs["job_id"]).union(comparison.predicted.jobs["job_id"], sort=False)
    tables = [run.jobs.set_index("job_id").reindex(ids) for run in runs]
    kind, user, nodes = (tables[0][name].fillna(tables[1][name]) for name in ("kind", "user", "nodes"))
    wait, response = (
        [comparison.jobs[f"{name}_{side}"].to_numpy(dtype=np.float64) for side in SIDES]
        for name in ("wait", "response")
    )
    window = comparison.real_metrics["utilization_window"]
    agreement = comparison.differences["wait"]
    facts: dict[str, Any] = {
        "about": about,
        "tick": tick,
        "home": time.end,
        "last": last,
        "missing": MISSING,
        "ids": ids.tolist(),
        "nodes": _names(runs),
        "linear": scales.threshold(wait[1] - wait[0]),
        "decades": {"wait": scales.decades(*wait), "response": scales.decades(*response)},
        "agreement": [agreement.bias, *agreement.limits] if agreement else None,
        "arrivals": window["end_s"] if window["name"] == "arrivals" else None,
        "omitted": [0, 0],
        "parts": PARTS,
    }
    columns = {"nodes_requested": PackedColumn(nodes.to_numpy(dtype=np.int64))}
    words = {"kind": kind, "user": user, "real": tables[0]["state"], "predicted": tables[1]["state"]}
    for name, values in words.items():
        codes, names = pd.factorize(values.fillna(""))
        facts[f"{name}_names"], columns[name] = names.tolist(), PackedColumn(codes)
    for place, (side, run, table) in enumerate(zip(SIDES, runs, tables, strict=True)):
        for name, before in (("submit", ""), ("start", "submit_real"), ("end", "start_real")):
            base = f"{name}_real" if side == "predicted" else before
            columns[f"{name}_{side}"] = PackedColumn(
                ticks(table[name].to_numpy(dtype=np.float64) - origin(run), tick), base
            )
        bars, facts["omitted"][place] = _bars(run, ids)
        for name, base in (("job", ""), ("low", ""), ("high", f"bar_low_{side}")):
            columns[f"bar_{name}_{side}"] = PackedColumn(bars[name].to_numpy(dtype=np.int64), base)
        for name in ("upper", "lower"):
            columns[f"bar_{name}_{side}"] = PackedColumn(np.rint(bars[name] * PARTS).astype(np.int64))
        for name in ("start", "end"):
            times = ticks(bars[name].to_numpy(dtype=np.float64), tick)
            columns[f"bar_{name}_{side}"] = PackedColumn(times, f"{name}_{side}", f"bar_job_{side}")
        facts[f"cores_{side}"] = total_cores(run)
        for name, steps in (("busy", busy_cores(run)), ("queue", waiting(run))):
            instants, amounts = _thinned(steps)
            columns[f"{name}_time_{side}"] = PackedColumn(ticks(instants, tick))
            columns[f"{name}_{side}"] = PackedColumn(np.rint(amounts).astype(np.int64))
    return pack(facts, columns)


def _bars(run: Run, ids: pd.Index[Any]) -> tuple[pd.DataFrame, int]:
    """Return the largest `BARS` bars of a run in the order of their starts, and the number of omitted bars."""
    bars = blocks(run, ids)
    omitted = max(len(bars) - BARS, 0)
    if omitted:
        area = ((bars["end"] - bars["start"]) * (bars["high"] - bars["low"] + 1)).to_numpy()
        bars = bars.iloc[np.sort(np.argsort(area, kind="stable")[omitted:])]
    return bars.sort_values(["start", "job", "low"], ignore_index=True), omitted


def _thinned(steps: Steps) -> tuple[FloatArray, FloatArray]:
    if len(steps.times) <= STEPS:
        return steps.times, steps.values
    edges = np.linspace(steps.times[0], steps.times[-1], STEPS // 2 + 1)
    return edges, np.append(steps.means(edges), 0.0)


def _names(runs: tuple[Run, Run]) -> list[str] | int:
    """Return the names of the nodes of the larger run, or their number if there are many."""
    largest = max(runs, key=lambda run: run.total_nodes)
    return largest.total_nodes if largest.total_nodes > NAMES else [node.name for node in largest.info.nodes]


def _last(run: Run) -> float:
    times = np.concatenate([run.jobs[name].to_numpy(dtype=np.float64) for name in ("submit", "start", "end")])
    times = np.append(times, run.allocations["end"].to_numpy(dtype=np.float64))
    return float(np.max(times[np.isfinite(times)], initial=origin(run)) - origin(run))
