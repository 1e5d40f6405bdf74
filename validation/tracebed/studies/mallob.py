"""Predictions of the runs of Mallob on SuperMUC-NG (Euro-Par 2022): the work of each job from one run, for all others.

No parameter is fitted. The volumes of a job in the base run follow from the published rule, the real introductions and
the real ends. Its work is the integral of the speedup of these volumes. The speedup is that of Mallob alone on one
formula, published a year before on another machine. A job that its limit ended has unknown work: it is drawn from the
works of the jobs with the same formula, given that it is larger (Kaplan and Meier 1958).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from tracebed.converters.speedup import SpeedupFunction, speedup_function
from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.validation.simulators.mallob import logged_jobs, ruled_volumes

RANKS = 1536
"""MPI ranks, each a worker with four cores."""
END_S = 3600.0
"""The end of each run (`-T=3600`), s since its start."""
CORES = 4
MEASURED = {1: 0.1105, 20: 1.0, 40: 1.6456, 160: 2.7883, 640: 4.6286, 2560: 5.1710}
"""Cores -> geometric mean of the run time on 20 cores divided by that on this number, of the 35 formulas that Mallob
solved on 20 cores. One core is the sequential Lingeling. Source: the files `runtimes` of the configurations
`mallob_mono_cbdf0.875_mlbd00_mcl0_n1` to `n128` (Schreiber and Sanders, "Scalable SAT solving in the cloud", SAT 2021).
"""
SIZES = (1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 57, 80, 113, 160, 226, 320, 452, 640, 1536)
"""Workers at which the curve is given; it is constant beyond 640, the largest size that was measured."""
CENSORED = ("formula", "never", "at once")
"""Treatments of jobs of unknown work: drawn among the jobs of the same formula; larger than any run can do; or that of
the base run, as if a little more had solved them. The last two are bounds."""


def curve() -> str:
    """Return the measured speedup as parameters of the model `table`: workers and seconds, log-linear in between."""
    cores, speedup = np.log([*MEASURED]), np.log([*MEASURED.values()])
    seconds = np.exp(-np.interp(np.log(np.array(SIZES) * CORES), cores, speedup))
    return " ".join(f"{size}:{value:.5g}" for size, value in zip(SIZES, seconds / seconds[0], strict=True))


def work_of(jobs: pd.DataFrame, speedup: SpeedupFunction) -> FloatArray:
    """Return what each job did until its end, or that of the run, in s on one worker, shape (jobs,).

    `jobs` is the table of `logged_jobs`; jobs that never started did nothing.
    """
    held = ruled_volumes(jobs, RANKS, END_S)
    assert held is not None  # a client has at most 180 jobs at once
    rates = np.array([speedup(size) for size in range(1, RANKS + 1)])
    return np.bincount(held.row, rates[held.workers - 1] * (held.end - held.start), len(jobs)).astype(np.float64)


def completed(work: FloatArray, solved: BoolArray, formula: list[str], treatment: str, seed: int = 0) -> FloatArray:
    """Return the work of each job, infinite if no run is expected to do it, with that of censored jobs by `treatment`.

    Args:
        work: work in the base run, shape (jobs,): that of the job if `solved`, else a lower bound.
        solved: shape (jobs,).
        formula: shape (jobs,).
        treatment: of `CENSORED`.
        seed: of the draws.
    """
    if treatment == "at once":
        return work.copy()
    whole = np.where(solved, work, math.inf)
    if treatment == "never":
        return whole
    random = np.random.default_rng(seed)
    for _, rows in pd.Series(np.arange(len(work))).groupby(pd.Series(formula), sort=True):
        order = rows.to_numpy()[np.argsort(work[rows.to_numpy()], kind="stable")]
        at_risk = len(order) - np.arange(len(order))
        survival = np.cumprod(np.where(solved[order], 1 - 1 / at_risk, 1.0))  # just after each work
        for place in np.flatnonzero(~solved[order]).tolist():
            below = survival <= random.random() * survival[place]
            below[: place + 1] = False
            # The survival does not reach 0 if the largest work is censored: the rest is beyond all that was seen.
            later = np.flatnonzero(below & solved[order])
            whole[order[place]] = work[order[later[0]]] if len(later) else math.inf
    return whole


def plan(base: pd.DataFrame, own: pd.DataFrame, treatment: str = CENSORED[0], model: str = "table") -> pd.DataFrame:
    """Return the workload of a run for `mallob`, whose jobs have the work that they had, or needed, in the base run.

    The size 1 is the requested one, so that `run_time` is the work. The deadline is the limit after the introduction,
    at most the end of the run. Jobs of `own` that are not in `base` are left out.

    Args:
        base: `logged_jobs` of the base run.
        own: `logged_jobs` of the run to predict, of which only the introductions are read.
        treatment: of jobs whose work is unknown, of `CENSORED`.
        model: `table`, the measured speedup, or `linear`.
    """
    parameters = curve() if model == "table" else ""
    speedup = speedup_function(model, parameters)
    solved = (base["state"] == "solved").to_numpy()
    work = completed(work_of(base, speedup), solved, base["formula"].tolist(), treatment)
    jobs = own.loc[own.index.isin(base.index)]
    submit, limit = jobs["submit"].to_numpy(), jobs["limit"].to_numpy()
    most = speedup(RANKS) * limit * 2  # more than any number of workers can do until the limit
    return pd.DataFrame(
        {
            "job_id": jobs.index.astype(str),
            "submit_time": submit,
            "run_time": np.minimum(pd.Series(work, base.index).loc[jobs.index].to_numpy(), most).round(6),
            "nodes": 1,
            "cores_per_node": CORES,
            "kind": "malleable",
            "nodes_min": 1,
            "nodes_max": np.minimum(jobs["demand"].to_numpy(), RANKS),
            "nodes_pref": 1,
            "speedup": model,
            "speedup_parameters": parameters,
            "priority": jobs["priority"].to_numpy(),
            "deadline": np.minimum(submit + limit, END_S).round(6),
        }
    )


def observed(own: pd.DataFrame) -> pd.DataFrame:
    """Return the jobs of a run. Its end is that of the jobs that run, as their deadline in the plan."""
    table = own.assign(end=own["end"].fillna(END_S).where(own["start"].notna())).drop(columns="formula")
    table["state"] = own["state"].map({"solved": "completed", "timeout": "timeout", "running": "timeout"})
    return table.rename_axis("job_id").reset_index()


def jobs_in(contents: Mapping[str, bytes], run: str) -> pd.DataFrame:
    """Return `logged_jobs` of one of several runs, whose logs begin with the name of the run: `default.log.1532`."""
    logs = {name.removeprefix(f"{run}."): data for name, data in contents.items() if name.startswith(f"{run}.")}
    return logged_jobs(logs, run)
