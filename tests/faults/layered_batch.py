"""A batch system in virtual time that starts all jobs, and gives nodes to second jobs when some are left.

A layer beside it resizes jobs. Its decisions are drawn from what is possible, and not those of a policy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.faults.batch import BatchFault, VirtualJob
from tests.faults.batch_scenario import BatchPlay
from tests.faults.resizing_batch import ResizingBatch, ResizingPlay, ResizingScenario
from tracebed.converters.workload import Workload
from tracebed.ground.errors import TestbedError
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.batch.base import (
    BatchSettings,
    Demands,
    JobRequest,
    LayerFacts,
    LayerJob,
    LayerPass,
    Phase,
)

LAYER_FAULTS = ("layer_pass_error", "ask_error", "ask_refused", "ask_lost", "set_limit_error", "set_limit_lost")
"""Faults of the calls that only a layer makes, as `resizing_batch.RESIZE_FAULTS`."""
INTERVAL_S = 20.0
"""Time between two passes, trace s: 2 s at 10 times the speed."""


class LayeredBatch(ResizingBatch):
    """A batch system that starts jobs, with a layer beside it."""

    def __init__(self, scenario: LayerScenario, play: LayerPlay) -> None:
        super().__init__(play.world, scenario.faults, accounting=scenario.accounting, seed=scenario.seed + 2)
        self.faults += [fault for fault in scenario.faults if fault.kind in LAYER_FAULTS]
        self._most: dict[str, int] = {}  # ID of a second job -> the most nodes for which it asks
        self._until: dict[str, float] = {}  # ID of a job -> end of its time limit

    def demands(self, workload: Workload, folder: Path) -> Demands:
        """Return that jobs demand whole nodes."""
        return Demands([(f"--nodes={nodes}",) for nodes in workload.runnable()[0].ints("nodes").tolist()], {})

    def check_layer(self, policy: str) -> LayerFacts:
        """Permit resizes."""
        return LayerFacts(sets_limits=True)

    def layer_pass(self, policy: str, jobs: Sequence[LayerJob], released: Collection[tuple[str, str]]) -> LayerPass:
        """Shrink the first job that can shrink if a job waits, and let the others ask for nodes."""
        self._command("layer_pass", lambda: None)
        waits = any(job.id not in self._first for job in self._queue)
        shrinks, expansions = dict[str, tuple[str, ...]](), dict[str, int]()
        for job in jobs:
            if waits and not shrinks and len(job.nodes) > job.least:
                shrinks[job.id] = job.nodes[job.least :]
            elif len(job.nodes) < job.most and not job.waits:
                expansions[job.id] = job.most - len(job.nodes)
        return LayerPass(shrinks, expansions, {}, {job.id: self._until[job.id] - self._started(job.id) for job in jobs})

    def _started(self, id: str) -> float:
        return next(job.began for job in self.jobs if job.id == id)

    def ask(self, id: str, name: str, most: int, wait_s: float) -> tuple[str, tuple[str, ...]]:
        """Wait for nodes by a second job. It goes on waiting if the process that waits for it is killed."""
        made: list[VirtualJob] = []

        def act() -> None:
            limit_s = self._until[self._find(id, Phase.RUNNING).id] - self.world.now
            made.append(VirtualJob(str(len(self.jobs) + 1), JobRequest(name, 1, limit_s, Path(), (), Path())))
            self.jobs.append(made[0])
            self._first[made[0].id], self._most[made[0].id] = id, most
            self._queue.append(made[0])
            self._set(made[0], Phase.WAITING, "PENDING", reason="Priority")
            self._after(0.0, self._schedule)

        self._command("ask", act)
        second, until = made[0], self.world.now + wait_s
        while second.now.phase is Phase.WAITING and self.world.now < until:
            self._pause(0.2)
        if second.now.phase is Phase.WAITING:
            self._cancel(second)
            raise TestbedError("connection timed out", transient=True)
        if self._fault("second_cancelled") is not None and second.now.phase is Phase.RUNNING:
            self._end(second, "CANCELLED", JobState.CANCELLED)
        if second.now.phase is not Phase.RUNNING:
            raise TestbedError("the second job has ended", transient=True)
        return second.id, tuple(f"n{node}" for node in second.nodes)

    def set_limit(self, id: str, limit_s: float) -> None:
        """Set a time limit, in whole minutes."""

        def act() -> None:
            self._limit(self._find(id, Phase.RUNNING), math.ceil(limit_s / 60.0) * 60.0)

        self._command("set_limit", act)

    def _limit(self, job: VirtualJob, limit_s: float) -> None:
        until = self._until[job.id] = job.began + limit_s
        self._for(job, max(0.0, until - self.world.now), lambda: self._expire(job, until))

    def _expire(self, job: VirtualJob, until: float) -> None:
        if self._until[job.id] == until:
            self._end(job, "TIMEOUT", JobState.KILLED)

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _hold(self, job: VirtualJob) -> None:
        """Hold no job: the batch system starts all."""

    def _schedule(self) -> None:
        """Start the jobs of the queue in their order, and the second jobs on what is left."""
        for job in [job for job in self._queue if job.id not in self._first]:
            up = self._up()
            if len(up) < job.request.nodes:
                break
            self._begin_on(job, up[: job.request.nodes])
        for job in [job for job in self._queue if job.id in self._first]:
            owner = next(each for each in self.jobs if each.id == self._first[job.id])
            if up := [node for node in self._up() if node not in owner.nodes]:
                self._begin_on(job, up[: self._most[job.id]])

    def _up(self) -> list[int]:
        return [node for node in self._idle if node not in self._down | self._taken]

    def _begin_on(self, job: VirtualJob, nodes: Sequence[int]) -> None:
        self._queue.remove(job)
        job.nodes = tuple(nodes)
        self._idle = [node for node in self._idle if node not in nodes]
        self._start(job)

    def _start(self, job: VirtualJob) -> None:
        limit_s = job.request.limit_s or math.inf
        if job.id in self._first or len(job.request.arguments) > 3:
            job.request = replace(job.request, limit_s=None)  # which can be changed
        super()._start(job)
        if limit_s < math.inf:
            self._limit(job, limit_s)

    def _launch(self, job: VirtualJob) -> None:
        """Begin to work, as `job.sh` does: on the nodes that the batch system has chosen."""
        path = Path(job.request.arguments[0], f"{job.request.name}.size")
        if path.parent.is_dir() and not path.exists():
            path.write_text(f"1 1000000 {' '.join(f'n{node}' for node in job.nodes)}\n")
        super()._launch(job)


@dataclass(frozen=True)
class LayerScenario(ResizingScenario):
    """A scenario in which every other job is malleable, and a layer resizes jobs beside the batch system."""

    @classmethod
    def drawn(cls, seed: int, **sizes: int) -> LayerScenario:
        """Return the scenario of a seed."""
        base, draw = ResizingScenario.drawn(seed, **sizes), random.Random(seed + 2_000_003)
        lasts = base.jobs[-1][0] / 10.0 + 30.0
        more = tuple(
            BatchFault(draw.choice(LAYER_FAULTS), round(draw.random() * lasts, 3), 2.0, round(draw.random(), 3))
            for _ in range(draw.randint(0, 3))
        )
        faults = tuple(fault for fault in base.faults if not fault.kind.startswith(("start_", "hold_", "request_")))
        return cls(seed, base.jobs, (*faults, *more), accounting=base.accounting, waits=base.waits)


class LayerPlay(ResizingPlay):
    """The replay of such a scenario."""

    def __init__(self, scenario: LayerScenario) -> None:
        BatchPlay.__init__(self, scenario)
        self.options = replace(
            self.options,
            batch=self.system,
            settings=BatchSettings(demands=True),
            resizes="dmr",
            resize_interval_s=INTERVAL_S,
        )

    def _make_system(self) -> LayeredBatch:
        assert isinstance(self.scenario, LayerScenario)
        return LayeredBatch(self.scenario, self)

    def check(self) -> None:
        """Raise AssertionError if an invariant does not hold, or a second job is left."""
        super().check()
        left = [job.request.name for job in self.system.jobs if "+" in job.request.name and not job.over]
        assert not left, f"left: second jobs {left}"
