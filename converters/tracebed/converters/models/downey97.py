"""A. B. Downey, "A parallel workload model and its implications for processor allocation", HPDC 1997: moldable jobs.

A job has an amount of work, an average parallelism, and a variance of its parallelism. Its run time follows from its
allocation by Downey's speedup model. The distributions are the paper's. The paper fits their ranges and the arrival
rates to single sites; these values were not available. The defaults are round numbers, **not verified**, which give
an offered load near 0.7 on 128 nodes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.models import require, require_sizes
from tracebed.converters.speedup import downey_speedup, downey_useful_nodes
from tracebed.converters.workload import FloatArray, Kind, Provenance, Step, System, Workload

DAY, HALF = 86_400.0, 43_200.0


@dataclass(frozen=True)
class Downey97Parameters:
    """Constants of the model. The distributions are the paper's; ranges and arrival rates are not verified."""

    work_min: float = 10.0
    """Log-uniform distribution of the work of a job, node-seconds."""
    work_max: float = 1e6
    parallelism_max: float = 0.0
    """Upper end of the log-uniform distribution of the average parallelism, from 1; 0: the nodes of the machine."""
    sigma_max: float = 2.0
    """Upper end of the uniform distribution of the variance of parallelism, from 0 (as in the paper)."""
    day_gap: float = 900.0
    """Mean time between arrivals in the half of the day that begins at `day_begins`, s."""
    night_gap: float = 2700.0
    """Mean time between arrivals in the other half of the day, s."""
    day_begins: float = 28_800.0
    """Start of the busy half of the day, s since midnight. Time 0 is a midnight."""

    def __post_init__(self) -> None:
        for name in ("work_min", "day_gap", "night_gap"):
            require(1e-6 <= getattr(self, name) <= 1e12, f"{name} {getattr(self, name)}", "from 1e-6 to 1e12")
        require(self.work_min <= self.work_max <= 1e12, f"work_max {self.work_max}", "at least work_min, at most 1e12")
        a = self.parallelism_max
        require(a == 0.0 or 1.0 <= a <= 1e9, f"parallelism_max {a}", "from 1 to 1e9, or 0 for the machine's nodes")
        require(0.0 <= self.sigma_max <= 1e6, f"sigma_max {self.sigma_max}", "from 0 to 1e6")
        require(0.0 <= self.day_begins < DAY, f"day_begins {self.day_begins}", "from 0 up to 86400 s")


class Downey97Draws(NamedTuple):
    """Draws of the model, one value per job: submit time (s), work (node-seconds), A and sigma."""

    submit: FloatArray
    work: FloatArray
    parallelism: FloatArray
    sigma: FloatArray


def downey97(
    jobs: int,
    *,
    nodes: int | None = None,
    cores_per_node: int = 1,
    seed: int = 0,
    parameters: Downey97Parameters | None = None,
) -> Workload:
    """Draw moldable jobs with Downey's speedup model (Downey 1997; ranges not verified).

    The model does not define requested sizes. Here a job requests ceil(A) nodes, at most the machine, because at the
    average parallelism A speedup and efficiency are in balance. A job can run on 1 to `nodes_max` nodes; more nodes
    do not add to its speedup. Its run time is work / S(nodes). Jobs have no time limits.
    """
    p, machine = parameters or Downey97Parameters(), nodes or 128
    require_sizes(jobs, nodes, cores_per_node)
    draws = draw(jobs, machine, seed, p)
    size = np.minimum(np.ceil(draws.parallelism), machine)
    columns = {
        "job_id": pd.Series(np.arange(1, jobs + 1)).astype("str"),
        "submit_time": draws.submit,
        "run_time": draws.work / downey_speedup(size, draws.parallelism, draws.sigma),
        "nodes": size.astype(np.int64),
        "cores_per_node": np.full(jobs, cores_per_node),
        "kind": Kind.MOLDABLE.value,
        "nodes_min": np.ones(jobs, dtype=np.int64),
        "nodes_max": np.minimum(downey_useful_nodes(draws.parallelism, draws.sigma), machine).astype(np.int64),
        "speedup": "downey",
        "speedup_parameters": [f"{a:.9g} {s:.9g}" for a, s in zip(draws.parallelism, draws.sigma, strict=True)],
    }
    step = Step("downey97", {"jobs": jobs, "nodes": machine, **asdict(p)}, {"jobs": jobs}, seed)
    system = System(machine, cores_per_node, "Downey 1997")
    return Workload(pd.DataFrame(columns), Provenance(system=system, steps=(step,)))


def draw(jobs: int, machine: int, seed: int, p: Downey97Parameters) -> Downey97Draws:
    """Draw `jobs` jobs: log-uniform work and parallelism, uniform sigma, Poisson arrivals with two rates per day."""
    rng = np.random.default_rng(seed)
    work = p.work_min * (p.work_max / p.work_min) ** rng.random(jobs)
    parallelism = (p.parallelism_max or machine) ** rng.random(jobs)
    sigma = p.sigma_max * rng.random(jobs)
    return Downey97Draws(arrivals(np.cumsum(rng.exponential(size=jobs)), p), work, parallelism, sigma)


def arrivals(units: FloatArray, p: Downey97Parameters) -> FloatArray:
    """Return the times (s since midnight) at which the cumulative arrival rate reaches each of `units`.

    If `units` are cumulative sums of unit exponentials, these times are the arrivals of a Poisson process.
    """
    ends = np.array([0.0, *sorted([p.day_begins, (p.day_begins + HALF) % DAY]), DAY])
    by_day = (ends[:-1] + np.diff(ends) / 2 - p.day_begins) % DAY < HALF
    reached = np.concatenate([[0.0], np.cumsum(np.diff(ends) / np.where(by_day, p.day_gap, p.night_gap))])
    days, rest = np.divmod(units, reached[-1])
    arrival: FloatArray = days * DAY + np.interp(rest, reached, ends)
    return arrival
