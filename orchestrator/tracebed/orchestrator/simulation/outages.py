"""The outages of a simulation, and outages that are drawn from a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from tracebed.converters.workload import Workload
from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.machine.calendar import Calendar, Clock, NodeChange, Outage, read_outages
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.simulation.checkpoints import Checkpoints

MOST_OUTAGES = 1_000_000
"""Largest number of outages that are drawn."""


@dataclass(frozen=True)
class Outages:
    """The changes of the availability of nodes, for the simulator.

    Attributes:
        changes: the changes, in the order of time.
        names: names of the nodes.
        on_node_failure: one of `scheduling.names.NODE_FAILURES`, or `SHRINK`.
        checkpoints: the checkpoints from which requeued jobs continue; None: they begin again.
    """

    changes: Sequence[NodeChange]
    names: Sequence[str]
    on_node_failure: str
    checkpoints: Checkpoints | None = None


@dataclass(frozen=True, kw_only=True)
class OutageModel:
    """A model of failures: each node is up and down in turn, independently of the others.

    The times up are Weibull distributed, with the shape 1 exponentially. Schroeder and Gibson (A Large-Scale Study of
    Failures in High-Performance Computing Systems, 2006) fit shapes of 0.7 to 0.8 to the failures of 22 systems. The
    times down are exponential, an addition: the study fits lognormal ones. Each node is new at time 0.

    Attributes:
        mtbf_s: mean time up of a node, s.
        repair_s: mean time down of a node, s.
        shape: shape of the Weibull distribution.
        seed: seed of the draws. A node has the same outages on each machine on which it has the same number.
    """

    mtbf_s: float
    repair_s: float
    shape: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError if a number is out of its range."""
        for name in ("mtbf_s", "repair_s"):
            bounds.check(f"{name} of outages", getattr(self, name), 1.0, bounds.MAX_SECONDS)
        bounds.check("shape of outages", self.shape, 0.1, 100)
        if type(self.seed) is not int or self.seed < 0:
            raise InputError(f"seed of outages is {self.seed!r}", hint="give a whole number of at least 0")

    def calendar(self, nodes: Sequence[NodeFacts], lasts_s: float) -> Calendar:
        """Return the outages that begin in the first `lasts_s` trace seconds.

        Raises:
            InputError: there are more than `MOST_OUTAGES`.
        """
        expected = len(nodes) * lasts_s / (self.mtbf_s + self.repair_s)
        if expected > MOST_OUTAGES:
            what = f"the model of outages gives about {expected:,.0f} outages in {lasts_s:g} s"
            raise InputError(what, hint=f"at most {MOST_OUTAGES:,} are drawn: give a longer mtbf")
        scale = self.mtbf_s / math.gamma(1 + 1 / self.shape)
        outages = []
        for number, node in enumerate(nodes):
            draw = np.random.default_rng([self.seed, number])
            at = scale * float(draw.weibull(self.shape))
            while at < lasts_s:
                end = at + max(1.0, float(draw.exponential(self.repair_s)))
                outages.append(Outage(node=node.name, start=at, end=end, reason="drawn"))
                at = end + scale * float(draw.weibull(self.shape))
        return Calendar(tuple(outages))

    @classmethod
    def of(cls, values: dict[str, Any]) -> OutageModel:
        """Return the model with fields by name. Raises InputError if one is missing or unknown."""
        known = {field.name for field in fields(cls)}
        if not {"mtbf_s", "repair_s"} <= values.keys() <= known:
            raise InputError("a model of outages has mtbf_s, repair_s, and may have shape and seed")
        return cls(**values)


def outages_of(
    outages: Calendar | OutageModel | Path | str | Mapping[str, Any] | None, workload: Workload
) -> Calendar | OutageModel | None:
    """Return the outages of a simulation.

    Args:
        outages: a calendar, its file, or a model or its fields; None: no outages.
        workload: the workload, whose clock the dates of a file are on.

    Raises:
        InputError: the file or a field is invalid.
    """
    if isinstance(outages, Path | str):
        return read_outages(outages, Clock.of(workload.provenance))
    return OutageModel.of(dict(outages)) if isinstance(outages, Mapping) else outages


def horizon_s(workload: Workload, nodes: int) -> float:
    """Return the time in which outages are drawn for a workload, trace s.

    This is the last submission plus three times what `nodes` nodes need for all jobs, or for the longest one.
    """
    table = workload.table
    run_time = np.nan_to_num(table["run_time"].to_numpy(dtype=float))
    work = float((run_time * np.nan_to_num(table["nodes"].to_numpy(dtype=float))).sum()) / nodes
    submit = np.nan_to_num(table["submit_time"].to_numpy(dtype=float))
    return float(submit.max(initial=0.0)) + 3 * max(work, float(run_time.max(initial=0.0)))
