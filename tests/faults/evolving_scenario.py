"""Scenarios of evolving jobs, which ask for nodes themselves, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tests.faults.scenario import FAULTS, JOBS, NODES, Scenario
from tracebed.converters.workload import Workload


@dataclass(frozen=True)
class EvolvingScenario(Scenario):
    """A scenario in which each job that would be malleable asks for its largest size, its smallest, and its own."""

    policy: str = "leak"

    @classmethod
    def drawn(cls, seed: int, *, jobs: int = JOBS, nodes: int = NODES, faults: int = FAULTS) -> EvolvingScenario:
        """Return the scenario of a seed."""
        base = Scenario.drawn(seed, jobs=jobs, nodes=nodes, faults=faults)
        return cls(seed, "leak", base.on_node_failure, base.over_limit, nodes, base.jobs, base.faults)

    @cached_property
    def workload(self) -> Workload:
        """The workload."""
        base = super().workload
        asks = [f"0.2:{job.high} 0.5:{job.low} 0.8:{job.nodes}" if job.low < job.high else "" for job in self.jobs]
        kinds = ["evolving" if text else "rigid" for text in asks]
        return Workload(base.table.assign(kind=kinds, requests=asks), base.provenance)
