"""Scenarios of replays on a batch system in which a policy decides, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cached_property

from tests.faults.batch import NODES, BatchFault
from tests.faults.batch_scenario import FAULTS, JOBS, SECONDS, BatchPlay, BatchScenario
from tests.faults.resizing_batch import RESIZE_FAULTS, ResizingBatch
from tracebed.converters.workload import Workload
from tracebed.ground.states import JobState
from tracebed.orchestrator.setup import Setup

POLICIES = ("pref", "min", "avg", "keep-pref", "dmr")


@dataclass(frozen=True)
class ResizingScenario(BatchScenario):
    """A scenario in which every other job is malleable.

    Attributes:
        policy: the policy that decides.
    """

    policy: str = "pref"

    @classmethod
    def drawn(cls, seed: int, *, jobs: int = JOBS, faults: int = FAULTS) -> ResizingScenario:
        """Return the scenario of a seed."""
        base = BatchScenario.drawn(seed, jobs=jobs, faults=faults)
        draw = random.Random(seed + 1_000_003)
        lasts = base.jobs[-1][0] / 10.0 + 30.0
        more = tuple(
            BatchFault(
                draw.choice(RESIZE_FAULTS),
                round(draw.random() * lasts, 3),
                draw.choice(SECONDS),
                round(draw.random(), 3),
            )
            for _ in range(draw.randint(0, faults))
        )
        faulty = tuple(fault for fault in (*base.faults, *more) if fault.kind != "node_requeue")
        return cls(seed, base.jobs, faulty, accounting=base.accounting, policy=draw.choice(POLICIES))

    @cached_property
    def workload(self) -> Workload:
        """The workload."""
        base = BatchScenario(self.seed, self.jobs).workload
        table = base.table.copy()
        malleable = table.index % 2 == 0
        nodes = table["nodes"]
        table["kind"] = ["malleable" if each else "rigid" for each in malleable]
        table["nodes_min"] = nodes.where(~malleable, (nodes // 2).clip(lower=1))
        table["nodes_max"] = nodes.where(~malleable, (nodes * 2).clip(upper=NODES))
        table["nodes_pref"] = nodes
        table["speedup"] = ["amdahl" if each else "" for each in malleable]
        table["speedup_parameters"] = ["0.95" if each else "" for each in malleable]
        return Workload(table, base.provenance)


class ResizingPlay(BatchPlay):
    """The replay of a scenario in which a policy decides."""

    def __init__(self, scenario: ResizingScenario) -> None:
        super().__init__(scenario)
        policy = Setup.of(scenario.policy)
        self.options = replace(self.options, batch=self.system, setup=policy)

    def _make_system(self) -> ResizingBatch:
        scenario = self.scenario
        return ResizingBatch(self.world, scenario.faults, accounting=scenario.accounting, seed=scenario.seed + 2)

    def check(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        super().check()
        assert isinstance(self.system, ResizingBatch)
        self.system.check()

    def _possible(self) -> set[JobState]:
        return super()._possible()
