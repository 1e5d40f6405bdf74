"""A batch system in virtual time that starts jobs on chosen nodes and resizes them, with faults of these commands.

Its malleable jobs follow the file of their size as `batch/job.sh` does. Second jobs have no script.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from tests.faults.batch import NODES, TIMEOUT_S, BatchFault, VirtualBatch, VirtualJob
from tests.faults.batch_scenario import FAULTS, JOBS, SECONDS, BatchPlay, BatchScenario
from tracebed.converters.workload import Workload
from tracebed.ground.errors import TestbedError
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.batch.base import JobRequest, NodeState, Phase, Refused
from tracebed.orchestrator.replay.batch.records import NS
from tracebed.orchestrator.setup import Setup
from tracebed.testing.virtual.kernel import VirtualWorld

GRANT_S = 5.0
"""Time after which a request for nodes is withdrawn, s."""
SECOND_S = 60.0
"""Time limit of a second job, s."""
SPAWN_S = 0.3
"""Longest time in which ranks start or end on nodes, s."""
VERBS = ("start", "hold", "request", "merge", "shrink")
RESIZE_FAULTS = (
    *(f"{verb}_{how}" for verb in VERBS for how in ("lost", "error", "refused")),
    *("second_cancelled", "other_job"),
)
"""Faults of the commands: the answer is lost, the command is not carried out, or it is refused. `other_job`: a job of
another user takes an idle node for a time."""
HELD = "JobHeldUser"


class ResizingBatch(VirtualBatch):
    """A batch system whose jobs start and are resized on command."""

    def __init__(self, world: VirtualWorld, faults: Sequence[BatchFault], *, accounting: bool, seed: int) -> None:
        super().__init__(world, faults, accounting=accounting, seed=seed)
        self.faults += [fault for fault in faults if fault.kind in RESIZE_FAULTS]
        self._wanted: dict[str, tuple[int, ...]] = {}  # ID of a job that is not held -> the nodes for which it waits
        self._first: dict[str, str] = {}  # ID of a second job -> ID of the job that it expands
        self._request_of: dict[str, tuple[int, float]] = {}  # ID of a malleable job -> its last request, and its rate
        self._work: dict[str, float] = {}  # ID of a malleable job -> work that is left, s at the rate 1
        self._taken: set[int] = set()  # nodes of jobs of other users; no job of the replay starts there
        for fault in faults:
            if fault.kind == "other_job":
                self._after(fault.at, partial(self._take_node, fault))

    # -- the verbs -------------------------------------------------------------------------------------------------

    def check_resizing(self) -> None:
        """Permit resizes."""

    def node_states(self) -> dict[str, NodeState]:
        """Return the states of the nodes."""
        idle = {*self._idle} - self._taken
        states = (("down" if node in self._down else "idle" if node in idle else "allocated") for node in range(NODES))
        return {f"n{node}": NodeState(word, word != "down", word == "allocated") for node, word in enumerate(states)}

    def start(self, id: str, nodes: Sequence[str]) -> None:
        """Let a held job wait for its nodes."""

        def act() -> None:
            job = self._find(id, Phase.WAITING)
            self._wanted[id] = tuple(sorted(int(name[1:]) for name in nodes))
            if job not in self._queue:
                self._queue.append(job)
                self._set(job, Phase.WAITING, "PENDING", reason="Resources")
            self._after(0.0, self._schedule)

        self._command("start", act)

    def hold(self, id: str) -> None:
        """Hold a waiting job."""
        self._command("hold", lambda: self._hold(self._find(id, Phase.WAITING)))

    def request(self, id: str, name: str, nodes: Sequence[str]) -> str:
        """Take nodes by a second job, which is withdrawn after `GRANT_S`."""
        made: list[VirtualJob] = []

        def act() -> None:
            self._find(id, Phase.RUNNING)
            second = VirtualJob(str(len(self.jobs) + 1), JobRequest(name, len(nodes), SECOND_S, Path(), (), Path()))
            self.jobs.append(second)
            made.append(second)
            self._first[second.id] = id
            self._wanted[second.id] = tuple(sorted(int(node[1:]) for node in nodes))
            self._queue.append(second)
            self._set(second, Phase.WAITING, "PENDING", reason="Resources")
            self._after(0.0, self._schedule)

        self._command("request", act)
        waited = 0.0
        while made[0].now.phase is Phase.WAITING and waited < GRANT_S:
            self._pause(0.1)
            waited += 0.1
        if made[0].now.phase is Phase.WAITING:
            self._cancel(made[0])
            raise Refused("the nodes are not granted")
        if self._fault("second_cancelled") is not None and made[0].now.phase is Phase.RUNNING:
            self._end(made[0], "CANCELLED", JobState.CANCELLED)
        return made[0].id

    def merge(self, id: str, second: str) -> None:
        """Move the nodes of a second job to the job that it expands."""

        def act() -> None:
            source = self._find(second, Phase.RUNNING)
            job = self._find(id, Phase.RUNNING)
            assert self._first[second] == id, "merge: the second job is of another job"
            nodes, source.nodes = source.nodes, ()
            source.life += 1
            self._set(source, Phase.ENDED, "COMPLETED", state=JobState.COMPLETED)
            self._change(job, (*job.nodes, *nodes))

        self._command("merge", act)

    def shrink(self, id: str, nodes: Sequence[str]) -> None:
        """Release the other nodes of a running job."""

        def act() -> None:
            job = self._find(id, Phase.RUNNING)
            kept = {int(name[1:]) for name in nodes}
            if not kept < {*job.nodes}:
                raise Refused("no such nodes")
            released = {*job.nodes} - kept
            self._change(job, tuple(node for node in job.nodes if node in kept))
            self._idle = sorted({*self._idle, *released})
            self._after(0.0, self._schedule)

        self._command("shrink", act)

    def _command(self, verb: str, act: Callable[[], None]) -> None:
        """Carry out a command, with its fault."""
        fault = self._fault(verb)
        how = fault.kind.partition("_")[2] if fault is not None else ""
        self._pause(0.01 + 0.3 * self._draw.random())
        if how == "error":
            raise TestbedError("try again", transient=True)
        if how == "refused":
            raise Refused("refused: it is Monday")
        act()
        if how == "lost":
            self._pause(TIMEOUT_S if fault is not None and fault.draw < 0.3 else 1.0)
            raise TestbedError("socket timed out", transient=True)

    def _find(self, id: str, phase: Phase) -> VirtualJob:
        """Return the job with an ID. Raise Refused unless it is in a phase."""
        job = next((job for job in self.jobs if job.id == id), None)
        if job is None or job.now.phase is not phase:
            raise Refused("Invalid job id specified")
        return job

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _accept(self, request: JobRequest) -> VirtualJob:
        job = super()._accept(request)
        self._hold(job)
        return job

    def _hold(self, job: VirtualJob) -> None:
        if job in self._queue:
            self._queue.remove(job)
        self._wanted.pop(job.id, None)
        self._set(job, Phase.WAITING, "PENDING", reason=HELD)

    def _set(self, job: VirtualJob, phase: Phase, word: str, *, state: JobState = JobState.UNKNOWN, reason: str = "",
             start: float | None = None) -> None:  # fmt: skip
        super()._set(job, phase, word, state=state, reason=reason, start=start)
        if reason == HELD:
            at, seen = job.states[-1]
            job.states[-1] = at, replace(seen, hopeless=True)

    def _cancel(self, job: VirtualJob) -> None:
        if job.now.phase is Phase.WAITING and job not in self._queue:
            self._queue.append(job)
        super()._cancel(job)

    def _schedule(self) -> None:
        """Start each job whose nodes are idle."""
        for job in list(self._queue):
            nodes = self._wanted[job.id]
            if all(node in self._idle and node not in self._down | self._taken for node in nodes):
                self._queue.remove(job)
                self._idle = [node for node in self._idle if node not in nodes]
                job.nodes = nodes
                self._start(job)

    def _start(self, job: VirtualJob) -> None:
        if job.id in self._first:
            job.life += 1
            self._set(job, Phase.RUNNING, "RUNNING", start=float(math.floor(self.world.time())))
            self._for(job, SECOND_S, lambda: self._end(job, "TIMEOUT", JobState.KILLED))
        elif len(job.request.arguments) > 3:
            job.life += 1
            job.launched = math.nan
            self._request_of[job.id], self._work[job.id] = (0, 0.0), int(job.request.arguments[2]) * NS
            self._set(job, Phase.RUNNING, "RUNNING", start=float(math.floor(self.world.time())))
            self._for(job, self._draw.random() * SPAWN_S, lambda: self._launch(job))
            self._for(job, job.request.limit_s or math.inf, lambda: self._end(job, "TIMEOUT", JobState.KILLED))
        else:
            super()._start(job)

    def _launch(self, job: VirtualJob) -> None:
        self._begin(job)
        self._work_on(job)

    def _work_on(self, job: VirtualJob) -> None:
        """Read the size of a job at a malleability point, resize it, and work until the next point."""
        folder, (_, grain) = Path(job.request.arguments[0]), (0, int(job.request.arguments[3]) * NS)
        path = folder / f"{job.request.name}.size"
        if not path.exists():
            return  # the replay has ended
        words = path.read_text().split()
        number, rate, names = int(words[0]), int(words[1]) * 1e-6, words[2:]
        pause_s = 0.0
        if number != self._request_of[job.id][0]:
            assert {int(name[1:]) for name in names} <= {*job.nodes}, (
                "nodes: a job works on nodes that it does not hold"
            )
            pause_s, seen = self._pause_of(job, names), self.world.time()
            self._request_of[job.id] = number, rate
            self._for(job, pause_s, lambda: self._note_size(job, number, seen))
        left_s = min(grain, self._work[job.id] / rate)
        self._work[job.id] -= left_s * rate
        done = self._work[job.id] <= 1e-9
        end = partial(self._end, job, "COMPLETED", JobState.COMPLETED)
        self._for(job, pause_s + left_s, end if done else partial(self._work_on, job))

    def _pause_of(self, job: VirtualJob, names: Sequence[str]) -> float:
        """Return how long a job pauses to work on the nodes `names`, s."""
        return self._draw.random() * SPAWN_S

    def _note_size(self, job: VirtualJob, number: int, seen: float) -> None:
        folder = Path(job.request.arguments[0])
        if folder.is_dir():
            text = f"request={number}\nseen={round(seen / NS)}\napplied={round(self.world.time() / NS)}\n"
            (folder / f"{job.request.name}.{job.id}.resized").write_text(text)

    def _change(self, job: VirtualJob, nodes: tuple[int, ...]) -> None:
        """Change the nodes of a running job."""
        job.nodes = tuple(sorted(nodes))
        self._set(job, Phase.RUNNING, "RUNNING", start=job.now.start)

    def _lose_node(self, fault: BatchFault) -> None:
        """Let a node go down for a time. Its job fails: jobs of a policy do not return to the queue."""
        super()._lose_node(fault._replace(kind="node_fail"))

    def _take_node(self, fault: BatchFault) -> None:
        """Give an idle node to a job of another user for a time."""
        free = [node for node in self._idle if node not in self._down | self._taken]
        if free:
            node = free[min(int(fault.draw * len(free)), len(free) - 1)]  # a draw is rounded, up to 1
            self._taken.add(node)
            self._after(fault.seconds, partial(self._give_back, node))

    def _give_back(self, node: int) -> None:
        self._taken.discard(node)
        self._schedule()

    def check(self) -> None:
        """Raise AssertionError if nodes are lost, or a second job is left."""
        held = [node for job in self.jobs for node in job.nodes if job.now.phase in (Phase.RUNNING, Phase.ENDING)]
        assert sorted([*held, *self._idle]) == list(range(NODES)), f"nodes: held {held}, idle {self._idle}"


# -- scenarios of replays in which a policy decides, drawn from a seed -------------------------------------------------

POLICIES = ("pref", "min", "avg", "keep-pref", "dmr")


@dataclass(frozen=True)
class ResizingScenario(BatchScenario):
    """A scenario in which every other job is malleable, and `policy` decides."""

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
        policy = draw.choice(POLICIES)
        return cls(seed, base.jobs, faulty, accounting=base.accounting, waits=base.waits, policy=policy)

    @cached_property
    def workload(self) -> Workload:
        """The workload."""
        base = BatchScenario(self.seed, self.jobs, waits=self.waits).workload
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
