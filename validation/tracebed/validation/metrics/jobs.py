"""Measures of each job of a run: wait, run and response times, slowdowns, reconfigurations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracebed.converters.workload import BoolArray, Kind
from tracebed.ground.errors import InputError
from tracebed.ground.states import ChangeCause, JobState
from tracebed.ground.table import IntArray, Table, expanded
from tracebed.orchestrator.run import Run

if TYPE_CHECKING:
    import pandas as pd

TAU = 10.0  # default threshold of the bounded slowdown, s
ROUNDING_S = 1e-6  # default resolution of the times of a run, s: the rounding error of exact times


def origin(run: Run) -> float:
    """Return the first submission of the run, trace s, from which metrics count time; 0 without submissions."""
    submits = run.table("jobs")["submit"]
    return float(np.nanmin(submits)) if np.isfinite(submits).any() else 0.0


def resolution(run: Run) -> float:
    """Return the resolution of the times of a run, s."""
    return run.info.resolution_s or ROUNDING_S


def per_job(run: Run, tau: float = TAU) -> pd.DataFrame:
    """Return the measures of each job as a frame; arguments and errors as of `measures`."""
    return measures(run, tau).frame()


def measures(run: Run, tau: float = TAU) -> Table:
    """Return the measures of each job.

    Args:
        run: the run.
        tau: threshold of the bounded slowdown, s; above 0.

    Returns:
        A row per job, in the order of the run: job_id, kind, state, nodes (requested); finished; submit (s after
        the first submission); wait, run, response, slowdown, bounded_slowdown, slowdown_ref and
        bounded_slowdown_ref (relative to the dedicated run time on the requested nodes); expands, shrinks (executed),
        expands_requested, shrinks_requested. Times are in s. Times and slowdowns of unfinished jobs are NaN, as is
        the slowdown of a job with a run time of 0.

    Raises:
        InputError: `tau` is not above 0.
    """
    if not tau > 0:
        raise InputError(f"tau {tau:g} is not above 0", hint="the usual threshold is 10 (seconds)")
    jobs = run.table("jobs")
    submit, start, end = (jobs[name] for name in ("submit", "start", "end"))
    cut = jobs.among("state", (JobState.REJECTED, JobState.INTERRUPTED))
    finished = np.isfinite(submit + start + end) & ~cut
    never = np.where(finished, 0.0, np.nan)
    wait = start - submit + never
    wait[(wait < 0) & (wait > -resolution(run))] = 0.0
    ran = end - start + never
    response = end - submit + never
    reference = jobs["run_time"]
    return Table(
        {
            **{name: jobs.kept(name) for name in ("job_id", "kind", "state", "nodes")},
            "finished": finished,
            "submit": submit - origin(run),
            "wait": wait,
            "run": ran,
            "response": response,
            "slowdown": np.divide(response, ran, out=np.full(len(jobs), np.nan), where=ran > 0),
            "bounded_slowdown": np.maximum(1.0, response / np.maximum(ran, tau)),
            "slowdown_ref": np.divide(response, reference, out=np.full(len(jobs), np.nan), where=reference > 0),
            "bounded_slowdown_ref": np.maximum(1.0, response / np.maximum(reference, tau)),
            **_resizes(run),
        }
    ).packed()


def _resizes(run: Run) -> dict[str, IntArray]:
    """Return the numbers of executed and requested reconfigurations of each job, as columns of `per_job`."""
    asked, jobs = run.table("reconfigurations").take(run.are_resizes), run.table("jobs")
    row = asked.rows_in("job_id", jobs) if len(asked) else np.empty(0, dtype=np.int64)
    executed = asked.equal("state", "applied") & (row >= 0)
    counts = {}
    for kind in ("expand", "shrink"):
        of_kind = asked.equal("kind", kind) & (row >= 0)
        counts[f"{kind}s"] = np.bincount(row[of_kind & executed], minlength=len(jobs))
        counts[f"{kind}s_requested"] = np.bincount(row[of_kind], minlength=len(jobs))
    return counts


def since_last_start(held: Table, jobs: Table) -> tuple[Table, IntArray]:
    """Return the rows of allocations `held` since the last start of their jobs, and the row of the job of each."""
    job = held.rows_in("job_id", jobs)
    last = held["start"] >= jobs["start"][job]
    return held.take(last), job[last]


def guests_and_mates(run: Run) -> tuple[BoolArray, BoolArray]:
    """Return whether each job of the run was a guest, and whether it was a mate; shape (jobs,) each."""
    # While two jobs share a node, each holds a part of its cores. The guest is the one that started later (of two that
    # started at one instant, the one that lent no core then), the other one is the mate, which is malleable: jobs that
    # share nodes by the rules of a batch system are neither. Of a job that was requeued, the last run counts.
    jobs, held = run.table("jobs"), run.table("allocations")
    guests, mates = np.zeros(len(jobs), dtype=bool), np.zeros(len(jobs), dtype=bool)
    malleable = jobs.equal("kind", Kind.MALLEABLE)
    if not malleable.any():  # most runs: no look at each of a million nodes
        return guests, mates
    sizes = np.array([node.cores for node in run.info.nodes])
    held = held.take(held["cores"] < sizes[held["node"]])
    if not len(held):
        return guests, mates
    held, job = since_last_start(held, jobs)
    row, node = expanded(held["node"], held["count"])
    changes = run.table("reconfigurations")
    lent = changes.take(changes.equal("cause", ChangeCause.LEND))
    lender = lent.rows_in("job_id", jobs)
    alone = np.ones(len(jobs), dtype=bool)  # the job lent no core at its start
    alone[lender[lent["asked"] <= jobs["start"][lender]]] = False
    order = np.lexsort((held["start"][row], node))
    node, row = node[order], row[order]
    begin, end, job = held["start"][row], np.nan_to_num(held["end"], nan=np.inf)[row], job[row]
    one, distance = np.arange(len(row)), 1
    while len(one):  # of each row, the rows of its node that begin before it ends follow it
        one = one[one + distance < len(row)]
        one = one[(node[one + distance] == node[one]) & (begin[one + distance] < end[one])]
        pair = np.stack((job[one], job[one + distance]))
        pair = pair[:, pair[0] != pair[1]]
        swapped = np.lexsort((pair, alone[pair], jobs["start"][pair]), axis=0)
        mate, guest = np.take_along_axis(pair, swapped, axis=0)
        shared = malleable[mate]
        mates[mate[shared]] = True
        guests[guest[shared]] = True
        distance += 1
    return guests, mates
