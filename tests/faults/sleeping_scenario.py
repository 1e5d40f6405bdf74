"""Scenarios on nodes that sleep, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from functools import cached_property

from tests.faults.partitioned_scenario import PartitionedScenario
from tests.faults.scenario import FAULTS, JOBS, NODES, Scenario
from tracebed.machine.power import NodePower, Sleep
from tracebed.orchestrator.testbeds.nodes import Inventory

MOMENTS = ("power", "power", "power", "asleep", "back", "start")
"""Kinds of entries of the journal upon which drawn faults strike: a state of a node, an agent that has ended or is up,
a job that may wait for nodes."""


@dataclass(frozen=True)
class SleepingScenario(Scenario):
    """A scenario in which a node that is idle sleeps, and boots for a job; or in which nodes are off in a window.

    Attributes:
        window: begin and end of the window of each day, minutes of the trace; None: nodes sleep when they are idle.
        share: share of the nodes that is off in the window.
        shrink: whether malleable jobs leave these.
        idle_s: time for which a node is idle before it sleeps, trace s.
        keep: number of idle nodes that stay on.
        boot_s: duration of a boot, trace s.
        shutdown_s: duration of a shutdown, trace s.
    """

    idle_s: float = 50.0
    keep: int = 0
    boot_s: float = 30.0
    shutdown_s: float = 10.0
    window: tuple[int, int] | None = None
    share: float = 0.5
    shrink: bool = True

    @classmethod
    def drawn(cls, seed: int, *, jobs: int = JOBS, nodes: int = NODES, faults: int = FAULTS) -> SleepingScenario:
        """Return the scenario of a seed. Half of its faults strike when the state of a node changes."""
        base = Scenario.drawn(seed, jobs=jobs, nodes=nodes, faults=faults)
        draw = random.Random(f"sleep of {seed}")
        policy = base.policy if base.policy != "sd" else "dmr"  # whose jobs share nodes
        found = []
        for fault in base.faults:
            if draw.random() < 0.5:
                name = f"v{draw.randint(1, nodes)}"
                kind = draw.choice(MOMENTS)
                name = f"j{draw.randint(1, jobs)}" if kind == "start" else name
                found.append(fault._replace(after=f"{kind} {name}"))
            else:
                found.append(fault)
        scenario = cls(seed, policy, base.on_node_failure, base.over_limit, nodes, base.jobs, tuple(found))
        scenario = replace(
            scenario,
            idle_s=draw.choice((0.0, 0.0, 20.0, 100.0)),
            keep=draw.choice((0, 0, 1, 3)),
            boot_s=draw.choice((0.0, 5.0, 60.0, 300.0)),
            shutdown_s=draw.choice((0.0, 5.0, 60.0)),
        )
        if draw.random() < 0.5:
            return scenario
        begin = draw.randint(-5, 40)
        window = begin, begin + draw.choice((1, 5, 10, 30))
        return replace(scenario, window=window, share=draw.choice((0.2, 0.5, 0.5, 1.0)), shrink=draw.random() < 0.8)

    @cached_property
    def inventory(self) -> Inventory:
        """The nodes."""
        power = NodePower(busy_w=300.0, idle_w=100.0, boot_s=self.boot_s, shutdown_s=self.shutdown_s)
        base = super().inventory
        nodes = tuple(replace(node, power=power) for node in base.nodes)
        groups = tuple(replace(group, nodes=nodes) for group in base.groups)
        sleep = Sleep(rule="idle", idle_s=self.idle_s, keep=self.keep)
        if self.window is not None:
            start, end = (f"{minute // 60 % 24:02}:{minute % 60:02}" for minute in self.window)
            sleep = Sleep(rule="windows", start=start, end=end, share=self.share, shrink=self.shrink)
        return replace(base, nodes=nodes, groups=groups, sleep=sleep)


@dataclass(frozen=True)
class SleepingPools(SleepingScenario, PartitionedScenario):
    """A scenario in which the nodes of partitions sleep."""

    @classmethod
    def drawn(cls, seed: int, *, jobs: int = JOBS, nodes: int = NODES, faults: int = FAULTS) -> SleepingPools:
        """Return the scenario of a seed: the jobs and partitions of the one, the sleep and faults of the other."""
        pools = PartitionedScenario.drawn(seed, jobs=jobs, nodes=nodes, faults=faults)
        asleep = SleepingScenario.drawn(seed, jobs=jobs, nodes=nodes, faults=faults)
        own = {field.name: getattr(pools, field.name) for field in fields(pools)}
        own |= {name: getattr(asleep, name) for name in ("faults", *SleepingScenario.__annotations__)}
        own["policy"] = pools.policy if pools.policy != "sd" else "dmr"
        return cls(**own)
