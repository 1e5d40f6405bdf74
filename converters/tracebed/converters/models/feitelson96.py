"""A model after D. G. Feitelson, "Packing schemes for gang scheduling", JSSPP 1996: rigid jobs that are run
repeatedly.

Sizes follow a harmonic distribution with an emphasis on small sizes and powers of two. Run times are hyperexponential
and longer for larger jobs. A job is run several times. Only the form of the distributions was available. The weights
of the sizes, the means of the run times and the dependence of p on the size are **not verified**, and conformance with
the original program is not claimed. Every constant is a parameter.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from tracebed.converters.models import require, require_sizes
from tracebed.converters.workload import FloatArray, IntArray, Provenance, Step, System, Workload

Repeats = Literal["arrival", "end"]
"""When a job that is run several times is submitted again: two interpretations of the model.

`arrival`: every run is an arrival of the Poisson process. `end`: a run is submitted when the previous run ends; only
first runs are arrivals of the Poisson process. Only `end` agrees with the lengths of the deadline study's traces of
1000 requests (65 days at factor 1, 74 days at factor 1500).
"""
Gaps = Literal["exponential", "poisson"]
"""Two interpretations of "modeled using a Poisson distribution with factor f" in the DMR paper.

`exponential`: arrivals are a Poisson process, with exponential times between arrivals of mean f. `poisson`: the times
between arrivals are Poisson-distributed whole seconds of mean f, which avoids bursts.
"""


@dataclass(frozen=True)
class Feitelson96Parameters:
    """Constants of the model. "Not verified": the published value was not available."""

    factor: float = 1500.0
    """Mean time between arrivals, s. 1500 is the normal load of the deadline study (`deadline-normal`)."""
    size_order: float = 1.5
    """P(n) is proportional to n^-order, before the weights."""
    power_of_two: float = 3.0
    """Weight of the powers of two. Not verified. With 3, 86 % of the sizes on 128 nodes are powers of two."""
    small: float = 1.5
    """Weight of the small sizes. Not verified."""
    small_up_to: int = 8
    """Largest small size, nodes. Not verified."""
    short: float = 0.95
    """Probability of the short branch of the run times is short - slope * n / N. Not verified."""
    short_slope: float = 0.20
    """Decrease of that probability with the size. Not verified."""
    short_mean: float = 30_000.0
    """Mean of the short branch, s. Not verified. With 30,000, 1000 runs at factor 1, repeated at their ends, span about
    65 days, as in the deadline study; at factor 1500 the offered load on 128 nodes is about 1."""
    long_ratio: float = 7.0
    """Mean of the long branch / mean of the short one. Not verified."""
    repetition_order: float = 2.5
    """P(r runs of a job) is proportional to r^-order, r = 1, 2, ... Not verified."""

    def __post_init__(self) -> None:
        for name in ("factor", "power_of_two", "small", "short_mean", "long_ratio"):
            require(0.0 < getattr(self, name) <= 1e12, f"{name} {getattr(self, name)}", "above 0, at most 1e12")
        for name in ("short", "short_slope"):
            require(0.0 <= getattr(self, name) <= 1.0, f"{name} {getattr(self, name)}", "from 0 to 1")
        require(self.short_slope <= self.short, f"short_slope {self.short_slope}", f"at most short, {self.short}")
        require(0.0 <= self.size_order <= 100.0, f"size_order {self.size_order}", "from 0 to 100")
        require(self.small_up_to >= 0, f"small_up_to {self.small_up_to}", "at least 0")
        require(1.01 <= self.repetition_order <= 100.0, f"repetition_order {self.repetition_order}", "from 1.01 to 100")


class Feitelson96Draws(NamedTuple):
    """Draws of the model, one value per run: submit time (s), nodes, run time (s), job, and run of the job."""

    submit: FloatArray
    nodes: IntArray
    run: FloatArray
    job: IntArray
    turn: IntArray


def feitelson96(
    jobs: int,
    *,
    nodes: int | None = None,
    cores_per_node: int = 1,
    seed: int = 0,
    parameters: Feitelson96Parameters | None = None,
    repeats: Repeats = "arrival",
    gaps: Gaps = "exponential",
) -> Workload:
    """Draw rigid jobs that are run repeatedly (like Feitelson 1996; conformance not claimed).

    The runs of a job have the same size, run time and `extra_executable`. With `repeats="end"`, each later run names
    the previous run in `after` and has a `think_time` of 0; its submit time assumes that no job waits. Jobs have no
    time limits.

    Args:
        nodes: nodes of the machine, 128 by default; no job is larger.
        repeats: when a job is submitted again: at the next arrival, or at the end of its previous run.
        gaps: distribution of the times between arrivals.
    """
    parameters, machine = parameters or Feitelson96Parameters(), nodes or 128
    require_sizes(jobs, nodes, cores_per_node)
    require(repeats in get_args(Repeats), f"repeats {repeats!r}", f"one of {', '.join(get_args(Repeats))}")
    require(gaps in get_args(Gaps), f"gaps {gaps!r}", f"one of {', '.join(get_args(Gaps))}")
    draws = draw(jobs, machine, seed, parameters, repeats, gaps)
    ids = pd.Series(np.arange(1, jobs + 1)).astype("str")
    columns = {
        "job_id": ids,
        "submit_time": draws.submit,
        "run_time": draws.run,
        "nodes": draws.nodes,
        "cores_per_node": np.full(jobs, cores_per_node),
        "extra_executable": pd.Series(draws.job + 1).astype("str"),
    }
    again = draws.turn > 0
    if repeats == "end":
        before = predecessor(draws)
        columns["after"] = pd.Series(np.where(again, ids.to_numpy(dtype=object)[before], "")).astype("str")
        columns["think_time"] = np.where(again, 0.0, np.nan)
    step = Step(
        "feitelson96",
        {"jobs": jobs, "nodes": machine, "repeats": repeats, "gaps": gaps, **asdict(parameters)},
        {"jobs": jobs, "runs of a job that had run before": int(again.sum())},
        seed,
    )
    system = System(machine, cores_per_node, "like Feitelson 1996")
    return Workload(pd.DataFrame(columns), Provenance(system=system, steps=(step,)))


def draw(
    jobs: int, machine: int, seed: int, p: Feitelson96Parameters, repeats: Repeats, gaps: Gaps
) -> Feitelson96Draws:
    """Draw jobs until they have `jobs` runs, sorted by submit time. The last job may lose some of its runs."""
    rng = np.random.default_rng(seed)
    runs = np.minimum(rng.zipf(p.repetition_order, jobs), jobs)
    runs = runs[: int(np.searchsorted(np.cumsum(runs), jobs)) + 1]
    job = np.repeat(np.arange(len(runs)), runs)[:jobs]
    turn = np.arange(jobs) - (np.cumsum(runs) - runs)[job]
    size = rng.choice(machine, len(runs), p=size_law(machine, p)) + 1
    run = rng.exponential(p.short_mean, len(runs))
    run *= np.where(rng.random(len(runs)) < short_branch(size, machine, p), 1.0, p.long_ratio)
    arrivals = jobs if repeats == "arrival" else len(runs)
    gap = rng.poisson(p.factor, arrivals) if gaps == "poisson" else rng.exponential(p.factor, arrivals)
    submit = np.cumsum(gap, dtype=np.float64)
    if repeats == "end":
        submit = submit[job] + turn * run[job]
        order = np.argsort(submit, kind="stable")
        submit, job, turn = submit[order], job[order], turn[order]
    return Feitelson96Draws(submit, size[job], run[job], job, turn)


def size_law(machine: int, p: Feitelson96Parameters) -> FloatArray:
    """Return P(n) for n = 1 ... machine: harmonic, weighted for small sizes and powers of two."""
    n = np.arange(1, machine + 1)
    weight = n**-p.size_order
    weight = np.where(n & (n - 1) == 0, p.power_of_two, 1.0) * np.where(n <= p.small_up_to, p.small, 1.0) * weight
    return np.asarray(weight / weight.sum(), dtype=np.float64)


def short_branch(size: IntArray, machine: int, p: Feitelson96Parameters) -> FloatArray:
    """Return the probability of the short branch, short - slope * n / N. It decreases with the size n."""
    return p.short - p.short_slope * (size / machine)


def predecessor(draws: Feitelson96Draws) -> IntArray:
    """Return for each run the index of the job's previous run, or its own index for a first run."""
    order = np.lexsort((draws.turn, draws.job))
    before = np.empty(len(order), dtype=np.int64)
    before[order[1:]], before[order[0]] = order[:-1], order[0]
    return np.where(draws.turn > 0, before, np.arange(len(order)))
