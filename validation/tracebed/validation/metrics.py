"""What a run amounts to: one set of definitions, one code, for real runs and predictions alike.

For a job with submit a, start s, end c: wait s - a, run c - s, response c - a, slowdown (c - a) / (c - s),
bounded slowdown max(1, (c - a) / max(c - s, tau)) (Feitelson et al. 1997). Times are trace seconds after the
run's own first submission. Only finished jobs enter means; the others are counted. docs/metrics.md has all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray
from tracebed.errors import InputError, tolerate
from tracebed.orchestrator.run import STATES, Run
from tracebed.validation.steps import Steps

TAU = 10.0
"""Default threshold of the bounded slowdown, s."""
TRIM = 0.05
"""Share of the arrival span that is cut at either end for the trimmed means (warm-up and cool-down)."""
EXACT = 1e-6
"""Resolution of the times of a run that declares none, s: what rounding may do to exact times."""
STAGES = {
    "decision": ("asked", "decided"),
    "adaptation": ("decided", "applied"),
    "total": ("asked", "applied"),
    "release": ("applied", "ended"),
}
"""Stages of a reconfiguration by their first and last instant; total: until the new size is effective."""

Window = str | tuple[float, float]


class Shown(NamedTuple):
    """How a figure is shown to people: its name and its unit."""

    label: str
    unit: str = ""

    def __str__(self) -> str:
        """Return both: `makespan (s)`."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


FIGURES: dict[str, Shown] = {
    "makespan_s": Shown("makespan", "s"),
    "mean_wait_s": Shown("wait, mean", "s"),
    "median_wait_s": Shown("wait, median", "s"),
    "p95_wait_s": Shown("wait, p95", "s"),
    "mean_response_s": Shown("response, mean", "s"),
    "median_response_s": Shown("response, median", "s"),
    "p95_response_s": Shown("response, p95", "s"),
    "mean_run_s": Shown("run, mean", "s"),
    "median_run_s": Shown("run, median", "s"),
    "p95_run_s": Shown("run, p95", "s"),
    "mean_slowdown": Shown("slowdown, mean"),
    "mean_bounded_slowdown": Shown("bounded slowdown, mean"),
    "median_bounded_slowdown": Shown("bounded slowdown, median"),
    "p95_bounded_slowdown": Shown("bounded slowdown, p95"),
    "geo_bounded_slowdown": Shown("bounded slowdown, geometric mean"),
    "mean_bounded_slowdown_ref": Shown("bounded slowdown by dedicated run time, mean"),
    "mean_slowdown_ref": Shown("slowdown by dedicated run time, mean"),
    "utilization": Shown("utilisation in the window"),
    "utilization_full": Shown("utilisation, full span"),
    "throughput": Shown("throughput in the window", "jobs/s"),
    "loss_of_capacity": Shown("loss of capacity in the window"),
    "jobs": Shown("jobs"),
    "jobs_finished": Shown("jobs finished"),
    "expand_operations_per_job": Shown("expand operations a job"),
    "shrink_operations_per_job": Shown("shrink operations a job"),
    "expand_operations_per_malleable_job": Shown("expand operations a malleable job"),
    "shrink_operations_per_malleable_job": Shown("shrink operations a malleable job"),
    "median_reconfiguration_s": Shown("reconfiguration, median", "s"),
    "p95_reconfiguration_s": Shown("reconfiguration, p95", "s"),
}
"""The figures of `metrics` that are single numbers, in the order in which tables show them."""


def origin(run: Run) -> float:
    """Return the run's own first submission, trace s: the origin of all its times; 0 where there is none."""
    submits = run.jobs["submit"].to_numpy(dtype=np.float64)
    return float(np.nanmin(submits)) if np.isfinite(submits).any() else 0.0


def per_job(run: Run, tau: float = TAU) -> pd.DataFrame:
    """Measure each job.

    Args:
        run: the run.
        tau: threshold of the bounded slowdown, s; above 0.

    Returns:
        A row a job, in the run's order: job_id, kind, state, nodes (requested); finished; submit (s after
        the first one); wait, run, response, slowdown, bounded_slowdown, slowdown_ref and bounded_slowdown_ref
        (by the dedicated run time on the requested nodes); expands, shrinks (executed), expands_requested,
        shrinks_requested. What an unfinished job does not have is NaN, as is the plain slowdown of a job that
        ran for no time.

    Raises:
        InputError: `tau` is not above 0.
    """
    if not tau > 0:
        raise InputError(f"tau {tau:g} is not above 0", hint="the field's habit is 10 (seconds)")
    jobs = run.jobs
    submit, start, end = (jobs[name].to_numpy(dtype=np.float64) for name in ("submit", "start", "end"))
    finished = np.isfinite(submit + start + end) & ~jobs["state"].isin(("rejected", "interrupted")).to_numpy()
    never = np.where(finished, 0.0, np.nan)
    wait = start - submit + never
    wait[(wait < 0) & (wait > -_resolution(run))] = 0.0
    ran = end - start + never
    response = end - submit + never
    reference = jobs["run_time"].to_numpy(dtype=np.float64)
    table = pd.DataFrame(
        {
            "job_id": jobs["job_id"],
            "kind": jobs["kind"],
            "state": jobs["state"],
            "nodes": jobs["nodes"],
            "finished": finished,
            "submit": submit - origin(run),
            "wait": wait,
            "run": ran,
            "response": response,
            "slowdown": np.divide(response, ran, out=np.full(len(jobs), np.nan), where=ran > 0),
            "bounded_slowdown": np.maximum(1.0, response / np.maximum(ran, tau)),
            "slowdown_ref": np.divide(response, reference, out=np.full(len(jobs), np.nan), where=reference > 0),
            "bounded_slowdown_ref": np.maximum(1.0, response / np.maximum(reference, tau)),
        }
    )
    asked = run.reconfigurations
    row = pd.Index(jobs["job_id"]).get_indexer(pd.Index(asked["job_id"])) if len(asked) else np.empty(0, int)
    executed = (asked["state"] == "applied").to_numpy() & (row >= 0)
    for kind in ("expand", "shrink"):
        of_kind = (asked["kind"] == kind).to_numpy() & (row >= 0)
        table[f"{kind}s"] = np.bincount(row[of_kind & executed], minlength=len(jobs))
        table[f"{kind}s_requested"] = np.bincount(row[of_kind], minlength=len(jobs))
    return table


def busy_cores(run: Run) -> Steps:
    """Return the cores that jobs hold, over s after the first submission."""
    rows, zero = run.allocations, origin(run)
    ends = rows["end"].to_numpy(dtype=np.float64) - zero
    ends = np.where(np.isfinite(ends), ends, _last_instant(run))  # held until the run broke off
    held = (rows["cores"] * rows["count"]).to_numpy(dtype=np.float64)
    return Steps.count(rows["start"].to_numpy(dtype=np.float64) - zero, ends, held)


def waiting(run: Run, *, cores: bool = False) -> Steps:
    """Return the jobs that wait, or the cores that they wait for, over s after the first submission.

    A job that never starts waits until it is cancelled or the run ends; a rejected one never waits.
    """
    jobs, zero = run.jobs, origin(run)
    submit, start, end = (jobs[name].to_numpy(dtype=np.float64) - zero for name in ("submit", "start", "end"))
    until = np.where(np.isfinite(start), start, np.where(np.isfinite(end), end, _last_instant(run)))
    queued = np.isfinite(submit) & (jobs["state"] != "rejected").to_numpy()
    nodes = jobs["nodes"].to_numpy(dtype=np.float64)
    weights = nodes[queued] * total_cores(run) / max(run.total_nodes, 1) if cores else None
    return Steps.count(submit[queued], until[queued], weights)


def total_cores(run: Run) -> int:
    """Return the cores of all the run's nodes."""
    return sum(node.cores for node in run.info.nodes)


def metrics(
    run: Run, tau: float = TAU, window: Window = "arrivals", *, after: float = 0.0, ended: bool = False
) -> dict[str, Any]:
    """Measure a run.

    Args:
        run: the run.
        tau: threshold of the bounded slowdown, s.
        window: where utilisation, throughput and loss of capacity are taken: `arrivals` (first to last
            submission; the full span where all jobs came at once), `full` (first submission to last end), or
            two instants in s after the first submission.
        after: a warm-up, s after the first submission: jobs submitted before it enter no figure but those of
            the machine, and `arrivals` begins there.
        ended: nor do jobs that have not ended by the last submission.

    Returns:
        The figures of `FIGURES`, in s, jobs/s or without a unit, NaN where a figure is not defined; and
        `undefined` (figure -> why), `quartiles` (figure -> the first and the third, over jobs; of utilisation
        over time), `jobs_by_state`, `jobs_malleable`, `jobs_unfinished`, `clock_skew_jobs`,
        `zero_run_jobs`, `operations` (expand and shrink: requested, executed), `reconfiguration_s` (kind ->
        stage -> count, median, p95, sum), `trimmed` (means without the first and last 5 % of the arrivals),
        `utilization_window`, `tau`.

    Raises:
        InputError: `tau` or `window` is impossible, or no job is submitted after the warm-up.
    """
    everything = per_job(run, tau)
    table = _sample(everything, after, ended)
    done = table[table["finished"]]
    values: dict[str, Any] = {}
    undefined: dict[str, str] = {}

    def put(name: str, value: float, why: str) -> None:
        values[name] = value
        if np.isnan(value):
            undefined[name] = why

    span = float((done["submit"] + done["response"]).max()) if len(done) else float("nan")
    put("makespan_s", span, "no job ended")
    columns = {
        "wait": "wait_s",
        "response": "response_s",
        "run": "run_s",
        "bounded_slowdown": "bounded_slowdown",
    }
    for column, name in columns.items():
        sample = done[column].to_numpy()
        put(f"mean_{name}", _mean(sample), "no job ended")
        put(f"median_{name}", _percentile(sample, 50), "no job ended")
        put(f"p95_{name}", _percentile(sample, 95), "no job ended")
    bounded = done["bounded_slowdown"].to_numpy()
    put("geo_bounded_slowdown", float(np.exp(_mean(np.log(bounded)))), "no job ended")
    put("mean_slowdown", _mean(done["slowdown"].to_numpy()), "no job that ran for any time ended")
    for name in ("slowdown_ref", "bounded_slowdown_ref"):
        put(f"mean_{name}", _mean(done[name].to_numpy()), "no job with a known dedicated run time ended")

    named = _window(everything, span, window, after)
    values["utilization_window"] = named
    busy, capacity = busy_cores(run), total_cores(run)
    unknown = _no_utilization(run, capacity)
    start, end = named["start_s"], named["end_s"]
    for name, until in (("utilization", (start, end)), ("utilization_full", (0.0, span))):
        value = float("nan") if unknown else busy.mean(*until) / capacity
        put(name, value, unknown or "the window has no length")
    values["quartiles"] = _quartiles(done) | (
        {} if unknown else {"utilization": _over_time(busy, capacity, start, end)}
    )
    lost = float("nan") if unknown else _lost(busy, waiting(run, cores=True), capacity, start, end)
    put("loss_of_capacity", lost, unknown or "the window has no length")
    ends = (done["submit"] + done["response"]).to_numpy()
    within = int(((ends >= start) & (ends <= end)).sum())
    put("throughput", within / (end - start) if end > start else float("nan"), "the window has no length")

    values |= _operations(done, put)
    values["reconfiguration_s"] = _stages(run)
    times = _stage(run, "total", np.ones(len(run.reconfigurations), dtype=bool))
    put("median_reconfiguration_s", _percentile(times, 50), "no reconfiguration was applied")
    put("p95_reconfiguration_s", _percentile(times, 95), "no reconfiguration was applied")
    values["trimmed"] = _trimmed(done, float(table["submit"].max()) if len(table) else 0.0)

    skewed = int(((done["wait"] < 0) | (done["run"] < -_resolution(run))).sum())
    tolerate({"job begins before it was submitted, or ends before it began (clock skew)": skewed}, where=_name(run))
    states = table["state"].value_counts()
    return values | {
        "jobs": len(table),
        "jobs_finished": len(done),
        "jobs_unfinished": len(table) - len(done),
        "jobs_malleable": int((table["kind"] == "malleable").sum()),
        "jobs_by_state": {state: int(states[state]) for state in STATES if state in states},
        "clock_skew_jobs": skewed,
        "zero_run_jobs": int((done["run"] <= 0).sum()),
        "tau": tau,
        "undefined": undefined,
    }


def _resolution(run: Run) -> float:
    return run.info.resolution_s or EXACT


def _name(run: Run) -> str:
    return f"{run.info.source} run of {run.info.workload.get('name') or 'a workload'}"


def _mean(sample: FloatArray) -> float:
    known = sample[~np.isnan(sample)]
    return float(known.mean()) if len(known) else float("nan")


def _percentile(sample: FloatArray, percent: float) -> float:
    known = sample[~np.isnan(sample)]
    return float(np.percentile(known, percent)) if len(known) else float("nan")


def _last_instant(run: Run) -> float:
    """Return the last thing that is known to have happened, s after the first submission."""
    jobs, rows = run.jobs, run.allocations
    times = [jobs["submit"], jobs["start"], jobs["end"], rows["start"], rows["end"]]
    last = max((float(np.nanmax(t)) for t in times if t.notna().any()), default=0.0)
    return last - origin(run)


def _sample(table: pd.DataFrame, after: float, ended: bool) -> pd.DataFrame:
    """Return the jobs submitted at least `after` s after the first one, and (`ended`) over by the last submission."""
    if not after and not ended:
        return table
    kept = table["submit"] >= after
    if not kept.any():
        hint = "take a shorter one, or a longer workload"
        raise InputError(f"no job is submitted after a warm-up of {after:g} s", hint=hint)
    if ended:
        kept &= table["submit"] + table["response"] <= table["submit"].max()
    return table[kept]


def _quartiles(done: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return the first and the third quartile over finished jobs, by the name of the mean that they go with."""
    malleable = done[done["kind"] == "malleable"]
    samples = {f"mean_{name}_s": done[name] for name in ("wait", "response", "run")}
    samples |= {f"mean_{name}": done[name] for name in ("slowdown_ref", "bounded_slowdown")}
    samples |= {f"{kind}_operations_per_malleable_job": malleable[f"{kind}s"] for kind in ("expand", "shrink")}
    arrays = {name: sample.to_numpy(dtype=np.float64) for name, sample in samples.items()}
    return {name: (_percentile(array, 25), _percentile(array, 75)) for name, array in arrays.items()}


def _over_time(busy: Steps, capacity: int, start: float, end: float) -> tuple[float, float]:
    """Return the first and the third quartile of the utilisation over the instants from `start` to `end`."""
    if not end > start:
        return float("nan"), float("nan")
    edges = np.concatenate(([start], busy.times[(busy.times > start) & (busy.times < end)], [end]))
    values = busy.at(edges[:-1]) / capacity
    order = np.argsort(values, kind="stable")
    passed = np.cumsum(np.diff(edges)[order]) / (end - start)
    low, high = (values[order][min(int(np.searchsorted(passed, share)), len(order) - 1)] for share in (0.25, 0.75))
    return float(low), float(high)


def _window(table: pd.DataFrame, span: float, window: Window, after: float) -> dict[str, Any]:
    """Return the window's name and its two instants, s after the first submission."""
    if isinstance(window, tuple):
        start, end = window
        if not 0 <= start < end:
            raise InputError(
                f"window {start:g}:{end:g} is none", hint="START:END are seconds after the first submission"
            )
        return {"name": f"{start:g}:{end:g}", "start_s": float(start), "end_s": float(end)}
    if window not in ("arrivals", "full"):
        raise InputError(f"unknown window {window!r}", hint="take arrivals, full or START:END in seconds")
    last = float(table["submit"].max()) if table["submit"].notna().any() else 0.0
    if window == "arrivals" and last > after:
        return {"name": "arrivals", "start_s": after, "end_s": last}
    name = "full" if window == "full" else "full (all jobs were submitted at once)"
    return {"name": name, "start_s": 0.0, "end_s": 0.0 if np.isnan(span) else span}


def _no_utilization(run: Run, capacity: int) -> str:
    """Return why the run's utilisation cannot be known; nothing where it can."""
    if not capacity:
        return "the run does not know its nodes"
    if not len(run.allocations) and run.jobs["start"].notna().any():
        return "the run does not say who held which nodes"
    return ""


def _lost(busy: Steps, demand: Steps, capacity: int, start: float, end: float) -> float:
    """Return the share of the capacity that was idle while a job waited that could have had it."""
    if not end > start:
        return float("nan")
    inside = np.concatenate((busy.times, demand.times))
    edges = np.unique(np.concatenate(([start], inside[(inside > start) & (inside < end)], [end])))
    idle = np.maximum(capacity - busy.at(edges[:-1]), 0.0)
    return float(np.minimum(idle, demand.at(edges[:-1])) @ np.diff(edges)) / (capacity * (end - start))


def _operations(done: pd.DataFrame, put: Any) -> dict[str, Any]:
    """Count expand and shrink operations of finished jobs, in all, per job and per malleable job."""
    malleable = int((done["kind"] == "malleable").sum())
    counts: dict[str, Any] = {}
    for kind in ("expand", "shrink"):
        executed, requested = int(done[f"{kind}s"].sum()), int(done[f"{kind}s_requested"].sum())
        counts[kind] = {"requested": requested, "executed": executed}
        put(f"{kind}_operations_per_job", executed / len(done) if len(done) else float("nan"), "no job ended")
        put(
            f"{kind}_operations_per_malleable_job",
            executed / malleable if malleable else float("nan"),
            "no malleable job ended",
        )
    return {"operations": counts}


def _stage(run: Run, stage: str, rows: Any) -> FloatArray:
    """Return how long a stage of the applied reconfigurations among `rows` took, s, where it was observed."""
    table = run.reconfigurations[(run.reconfigurations["state"] == "applied").to_numpy() & rows]
    first, last = STAGES[stage]
    times = (table[last] - table[first]).to_numpy(dtype=np.float64)
    return np.asarray(times[~np.isnan(times)], dtype=np.float64)


def _stages(run: Run) -> dict[str, dict[str, dict[str, float]]]:
    table: dict[str, dict[str, dict[str, float]]] = {}
    for kind in ("expand", "shrink"):
        rows = (run.reconfigurations["kind"] == kind).to_numpy()
        for stage in STAGES:
            times = _stage(run, stage, rows)
            if len(times):
                table.setdefault(kind, {})[stage] = {
                    "count": len(times),
                    "median": _percentile(times, 50),
                    "p95": _percentile(times, 95),
                    "sum": float(times.sum()),
                }
    return table


def _trimmed(done: pd.DataFrame, span: float) -> dict[str, float]:
    """Return means over the jobs that came neither in the first nor in the last 5 % of the arrival span."""
    kept = done[done["submit"].between(TRIM * span, (1 - TRIM) * span)] if span > 0 else done
    return {
        "share": TRIM if span > 0 else 0.0,
        "jobs": len(kept),
        "mean_wait_s": _mean(kept["wait"].to_numpy()),
        "mean_response_s": _mean(kept["response"].to_numpy()),
        "mean_bounded_slowdown": _mean(kept["bounded_slowdown"].to_numpy()),
    }
