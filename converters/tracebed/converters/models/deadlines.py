"""Deadlines, earliest starts and runtime behavior of jobs, following the deadline study (see `papers`).

The study adds three attributes to each job of a trace: the type of its runtime behavior, an earliest start, and a
deadline that leaves some slack. Larger and more important jobs have more slack. The study does not publish the
distributions of these times. The distributions and constants here are tracebed's own and **not verified**; every
constant is a parameter.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd

from tracebed.converters.models import require
from tracebed.converters.workload import Step, Workload

Behaviour = Literal["uniform", "independent", "bsp", "local-forks", "forks"]
"""Types 0 to 3 of the study's table 1; `uniform`: all four with equal probability.

`independent`: a fixed number of processes that do not communicate (Monte Carlo). `bsp`: a fixed number of processes
that communicate in a regular pattern. `local-forks`: processes create others on the job's nodes. `forks`: processes
create others on the job's nodes and on other nodes.
"""
TYPES = get_args(Behaviour)[1:]


@dataclass(frozen=True)
class DeadlineParameters:
    """Constants of the distributions, all of them not verified."""

    ahead: float = 3600.0
    """Mean of the exponential time from submission to earliest start, s; 0: jobs may start immediately."""
    slack: float = 0.5
    """Slack of a job on one node, as a fraction of its run time."""
    slack_largest: float = 2.0
    """Slack of a job on the whole machine. Between the two sizes, the slack is linear in the nodes."""
    importance: float = 0.0
    """Effect of the importance of a job, from 0 to 1: its slack is multiplied by a factor that is uniform between 1 -
    importance and 1 + importance. 0: slack by size only."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            high = 1.0 if name == "importance" else 1e12
            require(0.0 <= value <= high, f"{name} {value}", f"from 0 to {high:g}")


def with_deadlines(
    workload: Workload,
    nodes: int,
    *,
    seed: int = 0,
    parameters: DeadlineParameters | None = None,
    behaviour: Behaviour = "uniform",
) -> Workload:
    """Give each job a `behaviour` (one of `TYPES`, or uniformly drawn), an `earliest_start` and a `deadline`.

    The deadline is earliest start + run time x (1 + slack), which every job meets on an empty machine. Jobs with all
    `nodes` of the machine have the greatest slack.
    """
    p = parameters or DeadlineParameters()
    require(behaviour in get_args(Behaviour), f"behaviour {behaviour!r}", f"one of {', '.join(get_args(Behaviour))}")
    rng = np.random.default_rng([seed, 1])  # independent of the draws of the workload, which used `seed`
    count = len(workload)
    types = rng.choice(TYPES, count) if behaviour == "uniform" else np.full(count, behaviour)
    start = workload.floats("submit_time") + p.ahead * rng.exponential(size=count)
    size = np.clip((workload.floats("nodes") - 1) / max(1, nodes - 1), 0.0, 1.0)
    slack = (p.slack + (p.slack_largest - p.slack) * size) * (1.0 + p.importance * rng.uniform(-1.0, 1.0, count))
    table = workload.table.assign(
        behaviour=pd.Series(types).astype("str"),
        earliest_start=start,
        deadline=start + workload.floats("run_time") * (1.0 + slack),
    )
    return workload.with_step(Step("deadlines", {"behaviour": behaviour, "nodes": nodes, **asdict(p)}, {}, seed), table)
