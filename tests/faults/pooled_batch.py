"""A batch system in virtual time with partitions, in which jobs with demands start on nodes that a policy chooses."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tests.faults.batch import NODES, VirtualJob
from tests.faults.resizing_batch import ResizingBatch, ResizingPlay, ResizingScenario
from tracebed.converters.workload import Workload
from tracebed.ground.states import JobState
from tracebed.machine.machine import Machine, NodeClass, Partition
from tracebed.orchestrator.replay.batch.base import BatchSettings, Demands, JobRequest


def demands_of(partition: str, gres: str) -> tuple[str, ...]:
    """Return the demands of a job, in the form of the batch system."""
    return (f"--partition={partition}", *([f"--gres={gres}"] if gres else []))


class PooledBatch(ResizingBatch):
    """A batch system that starts jobs in their partitions only, and does not expand jobs with a GPU.

    A node that cannot serve a job is a defect of the replay, since the simulation would not choose it.
    """

    def __init__(self, scenario: PooledScenario, play: PooledPlay) -> None:
        super().__init__(play.world, scenario.faults, accounting=scenario.accounting, seed=scenario.seed + 2)
        self.scenario = scenario
        self.longest_s: dict[str, float] = {}  # partition -> longest time limit, s

    def machine(self, nodes: Collection[str]) -> Machine:
        """Return the machine with some of the nodes."""
        return self.scenario.machine_of([number for number in range(NODES) if f"n{number}" in nodes])

    def held_demands(
        self, workload: Workload, folder: Path, speed: float, cores: Sequence[int], malleable: Sequence[bool]
    ) -> Demands:
        """Return the partition and the GPU of each job."""
        assert [*cores] == [1] * len(workload)
        names, gres = (workload.texts(name).tolist() for name in ("partition", "gres"))
        options = [demands_of(name, own) for name, own in zip(names, gres, strict=True)]
        return Demands(
            options,
            {},
            longest_s=tuple(self.longest_s.get(name, 1e9) for name in names),
            shrink_only=frozenset(job for job, own in enumerate(gres) if own and malleable[job]),
        )

    def start(self, id: str, nodes: Sequence[str]) -> None:
        """Let a held job wait for its nodes."""
        self._check_nodes(id, nodes)
        super().start(id, nodes)

    def request(self, id: str, name: str, nodes: Sequence[str]) -> str:
        """Take nodes by a second job. None can take those of a job with a GPU."""
        self._check_nodes(id, nodes)
        assert "--gres=gpu:1" not in self._request_for(id).demands, "expand: a job with a GPU asks for more nodes"
        return super().request(id, name, nodes)

    def _request_for(self, id: str) -> JobRequest:
        return next(job for job in self.jobs if job.id == id).request

    def _check_nodes(self, id: str, nodes: Sequence[str]) -> None:
        served = self.scenario.eligible(self._request_for(id).demands)
        assert {*nodes} <= served, f"eligible: job {id} starts on {nodes}, and {sorted(served)} serve it"

    def _accept(self, request: JobRequest) -> VirtualJob:
        assert request.held and len(request.demands) >= 1
        return super()._accept(request)


@dataclass(frozen=True)
class PooledScenario(ResizingScenario):
    """A scenario in which each job is in a partition, and some jobs demand a GPU.

    Attributes:
        partitions: the nodes of the partitions p0, p1, ..., by number.
        gpus: the nodes with a GPU.
        asks: the number of the partition of each job, and whether it demands a GPU.
    """

    partitions: tuple[tuple[int, ...], ...] = (tuple(range(NODES)),)
    gpus: tuple[int, ...] = ()
    asks: tuple[tuple[int, bool], ...] = ()

    @classmethod
    def drawn(cls, seed: int, **sizes: int) -> PooledScenario:
        """Return the scenario of a seed."""
        base, draw = ResizingScenario.drawn(seed, **sizes), random.Random(seed + 3_000_003)
        if draw.random() < 0.4:
            at = draw.randint(1, NODES - 1)
            own = [tuple(range(at)), tuple(range(at, NODES))]
        else:
            own = [tuple(sorted(draw.sample(range(NODES), draw.randint(1, NODES)))) for _ in range(draw.randint(2, 3))]
        gpus = tuple(sorted(draw.sample(range(NODES), draw.randint(1, NODES // 2))))
        asks = tuple((draw.randrange(len(own)), draw.random() < 0.3) for _ in base.jobs)
        return replace(cls(**vars(base)), partitions=tuple(own), gpus=gpus, asks=asks)

    def eligible(self, demands: Sequence[str]) -> set[str]:
        """Return the names of the nodes that serve a job with these options."""
        nodes = {*self.partitions[int(demands[0].removeprefix("--partition=p"))]}
        return {f"n{node}" for node in (nodes & {*self.gpus} if len(demands) > 1 else nodes)}

    def machine_of(self, nodes: Sequence[int]) -> Machine:
        """Return the machine with some of the nodes."""
        kept = {*nodes}
        return Machine(
            classes=tuple(
                NodeClass(names=(f"n{node}",), gres={"gpu": 1} if node in self.gpus else {}) for node in sorted(kept)
            ),
            partitions=tuple(
                Partition(name=f"p{number}", nodes=tuple(f"n{node}" for node in own if node in kept))
                for number, own in enumerate(self.partitions)
                if kept & {*own}
            ),
        )

    @cached_property
    def workload(self) -> Workload:
        """The workload, without the jobs that the scenario has no longer."""
        base = super().workload
        asks = [(self.asks + ((0, False),) * len(base))[number] for number in range(len(base))]
        table = base.table.assign(
            partition=[f"p{number}" for number, _ in asks], gres=["gpu:1" if gpu else "" for _, gpu in asks]
        )
        return Workload(table, base.provenance)


class PooledPlay(ResizingPlay):
    """The replay of such a scenario."""

    def __init__(self, scenario: PooledScenario) -> None:
        super().__init__(scenario)
        self.options = replace(self.options, settings=BatchSettings(demands=True))

    def _make_system(self) -> PooledBatch:
        assert isinstance(self.scenario, PooledScenario)
        return PooledBatch(self.scenario, self)

    def _possible(self) -> set[JobState]:
        return super()._possible() | {JobState.REJECTED}  # more nodes than serve the job

    def check(self) -> None:
        """Raise AssertionError if an invariant does not hold, or a job was on a node that cannot serve it."""
        super().check()
        if self.run is None:
            return
        names = [node.name for node in self.run.info.nodes]
        demands = {job_id: self._demands(number) for number, job_id in enumerate(self.run.jobs["job_id"])}
        for row in self.run.allocations.to_dict("records"):
            held = {*names[row["node"] : row["node"] + row["count"]]}
            served = self.scenario.eligible(demands[row["job_id"]])  # type: ignore[attr-defined]
            assert held <= served, f"eligible: job {row['job_id']} held {sorted(held)}"

    def _demands(self, number: int) -> tuple[str, ...]:
        assert isinstance(self.scenario, PooledScenario)
        table = self.scenario.workload.table
        return demands_of(table["partition"].iloc[number], table["gres"].iloc[number])
