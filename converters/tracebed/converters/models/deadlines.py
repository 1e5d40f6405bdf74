"""Deadlines, earliest starts and runtime behaviour for a workload, after the deadline study (see `papers`).

The study extends a trace by the type of each program's runtime behaviour, an earliest start and a deadline that
leaves some slack, more of it for larger jobs. It does not say how these times are drawn: the laws and the numbers
here are ours, **not verified**, and every number is a parameter.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd

from tracebed.converters.models import require
from tracebed.converters.workload import Step, Workload

Behaviour = Literal["uniform", "independent", "bsp", "local-forks", "forks"]
"""Types 0 to 3 of the study's table 1, or all four with equal probability.

`independent`: a fixed number of processes that do not communicate (Monte Carlo). `bsp`: as many, in a regular
pattern. `local-forks`: processes are created on the job's nodes. `forks`: there and on other nodes.
"""
TYPES = get_args(Behaviour)[1:]


@dataclass(frozen=True)
class Parameters:
    """The constants; none of them verified."""

    ahead: float = 3600.0
    """Mean of the exponential time from submission to earliest start, s; 0: a job may start at once."""
    slack: float = 0.5
    """The slack of a job of one node, as a share of its run time."""
    slack_largest: float = 2.0
    """The slack of a job of the whole machine; in between it grows in proportion to the nodes."""

    def __post_init__(self) -> None:
        """Raise InputError where a constant is out of its range."""
        for name, value in asdict(self).items():
            require(0.0 <= value <= 1e12, f"{name} {value}", "from 0 to 1e12")


def with_deadlines(
    workload: Workload,
    nodes: int,
    *,
    seed: int = 0,
    parameters: Parameters | None = None,
    behaviour: Behaviour = "uniform",
) -> Workload:
    """Give each job a `behaviour`, an `earliest_start` and a `deadline`.

    deadline = earliest start + run time x (1 + slack): on an empty machine every job meets it.

    Args:
        workload: any whose run times and sizes are known.
        nodes: of the machine, the size with the greatest slack.
        seed: of the numpy Generator.
        parameters: the constants.
        behaviour: one of `TYPES` for all jobs, or "uniform".

    Raises:
        InputError: `behaviour` is none.
    """
    p = parameters or Parameters()
    require(behaviour in get_args(Behaviour), f"behaviour {behaviour!r}", f"one of {', '.join(get_args(Behaviour))}")
    rng = np.random.default_rng([seed, 1])  # apart from the draws of the workload itself, which began with `seed`
    count = len(workload)
    types = rng.choice(TYPES, count) if behaviour == "uniform" else np.full(count, behaviour)
    start = workload.floats("submit_time") + p.ahead * rng.exponential(size=count)
    size = np.clip((workload.floats("nodes") - 1) / max(1, nodes - 1), 0.0, 1.0)
    slack = p.slack + (p.slack_largest - p.slack) * size
    table = workload.table.assign(
        behaviour=pd.Series(types).astype("str"),
        earliest_start=start,
        deadline=start + workload.floats("run_time") * (1.0 + slack),
    )
    return workload.with_step(Step("deadlines", {"behaviour": behaviour, "nodes": nodes, **asdict(p)}, {}, seed), table)
