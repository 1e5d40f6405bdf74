"""A batch system in virtual time: jobs first come, first served on some nodes, and faults of the answers and the jobs.

The jobs write the records of `batch/job.sh`. What truly happened stays in `VirtualBatch.jobs`, for the invariants.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import ClassVar, NamedTuple

from tracebed.ground.errors import TestbedError
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay.batch.base import JobObservation, JobRequest, Phase, Refused, SystemFacts
from tracebed.orchestrator.replay.batch.records import NS
from tracebed.testing.virtual.kernel import VirtualWorld

NODES = 8
TIMEOUT_S = 60.0
"""Time after which a command without an answer fails, s."""
LAUNCH_S = 0.2
"""Longest time from the allocation of nodes to the beginning of a script, and from its end to the release, s."""
KEPT_S = 300.0
"""Time for which the batch system lists a job that has ended, s."""
SUBMIT_FAULTS = ("submit_late", "submit_lost", "submit_twice", "submit_error", "submit_refused", "submit_silent")
POLL_FAULTS = (
    *("poll_late", "poll_empty", "poll_partial", "poll_stale", "poll_unknown", "poll_error", "poll_fatal"),
    "poll_silent",
)
CANCEL_FAULTS = ("cancel_error", "cancel_late")
CALL_FAULTS = (*SUBMIT_FAULTS, *POLL_FAULTS, *CANCEL_FAULTS)
JOB_FAULTS = ("no_record", "torn_record", "vanish", "node_requeue", "node_fail")


class BatchFault(NamedTuple):
    """A fault, of all calls of a kind from `at` on, of a job, or of the controller.

    `at` is a virtual time, s, or the number of a call of the controller. `seconds` is the duration, or how late an
    answer is. The fault derives its details from `draw`, a number from 0 to 1.
    """

    kind: str
    at: float
    seconds: float = 0.0
    draw: float = 0.0


class Life(NamedTuple):
    """An execution of a job on nodes. Virtual times, s."""

    start: float
    launched: float
    """Beginning of the script; NaN: the job ended before it."""
    end: float


@dataclass
class VirtualJob:
    """A job that the batch system has accepted.

    `states` are (virtual time, observation) of each change, `lives` the executions that have ended. `life` changes with
    each execution and at its end: events of an earlier life are ignored.
    """

    id: str
    request: JobRequest
    states: list[tuple[float, JobObservation]] = field(default_factory=list)
    nodes: tuple[int, ...] = ()
    lives: list[Life] = field(default_factory=list)
    life: int = 0
    restarts: int = 0
    """Number of times that the job was queued again."""
    began: float = math.nan
    """Virtual time at which the nodes of the current execution were allocated."""
    script_start: float | None = None
    """Wall time at which the script of the current execution began."""
    launched: float = math.nan
    """Virtual time of the same instant."""
    vanished: bool = False

    @property
    def now(self) -> JobObservation:
        """The current state."""
        return self.states[-1][1]

    @property
    def now_phase(self) -> Phase | None:
        """The current phase; None: the job has just been submitted."""
        return self.states[-1][1].phase if self.states else None

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.now.phase is Phase.ENDED

    def at(self, time: float) -> JobObservation | None:
        """Return the state at a virtual time; None: not submitted yet, or forgotten."""
        index = bisect_right(self.states, time, key=itemgetter(0))
        if not index:
            return None
        since, state = self.states[index - 1]
        forgotten = state.phase is Phase.ENDED and (self.vanished or time > since + KEPT_S)
        return None if forgotten else state


class VirtualBatch:
    """A batch system. Its calls may come from several threads of the controller.

    `accounting`: whether it also answers about the jobs that it no longer lists.
    """

    name: ClassVar[str] = "virtual"

    def __init__(self, world: VirtualWorld, faults: Sequence[BatchFault], *, accounting: bool, seed: int) -> None:
        self.world, self.accounting = world, accounting
        self.faults = [fault for fault in faults if fault.kind in CALL_FAULTS]
        self.jobs: list[VirtualJob] = []
        self._draw = random.Random(seed)
        self._idle = list(range(NODES))
        self._down: set[int] = set()
        self._queue: list[VirtualJob] = []
        self._doomed: list[BatchFault] = [fault for fault in faults if fault.kind in JOB_FAULTS[:3]]
        for fault in faults:
            if fault.kind.startswith("node"):
                self._after(fault.at, partial(self._lose_node, fault))

    # -- the verbs -------------------------------------------------------------------------------------------------

    def facts(self) -> SystemFacts:
        """Return the description of the system."""
        nodes = tuple(NodeFacts(f"n{number}", 1) for number in range(NODES))
        return SystemFacts(self.name, "1", nodes, {}, 1.0, 60.0, {"accounting": self.accounting})

    def submit(self, request: JobRequest) -> str:
        """Submit a job."""
        fault = self._fault("submit")
        kind = fault.kind if fault else ""
        self._pause(0.01 + 0.05 * self._draw.random())
        if kind == "submit_error":
            raise TestbedError("try again", transient=True)
        if kind == "submit_refused" and fault is not None and fault.draw < 0.5:
            raise Refused("the job was refused: it is Monday")
        late_s = fault.seconds if fault is not None else 0.0
        accepted: list[VirtualJob] = []
        arrives_s = late_s * fault.draw if fault is not None else 0.0
        for number in range(2 if kind == "submit_twice" else 1):
            self._after(arrives_s * (1 + number), lambda: accepted.append(self._accept(request)))
        if kind in ("submit_silent", "submit_lost") or late_s > TIMEOUT_S:
            self._pause(TIMEOUT_S if kind != "submit_lost" else min(TIMEOUT_S, late_s))
            raise TestbedError("sbatch took longer than 60 s", transient=True)
        self._pause(late_s + 0.01)
        while not accepted:
            self._pause(0.1)
        return accepted[int(fault.draw * len(accepted)) if fault is not None else 0].id

    def poll(self, prefix: str, known: Collection[str]) -> dict[str, JobObservation]:
        """Return the jobs whose names begin with `prefix`."""
        fault = self._fault("poll")
        kind = fault.kind if fault else ""
        self._pause(0.005 + 0.02 * self._draw.random())
        at = self.world.now - (fault.seconds if fault is not None and kind == "poll_stale" else 0.0)
        if kind == "poll_error":
            raise TestbedError("socket timed out", transient=True)
        if kind == "poll_fatal":
            raise TestbedError("permission denied")
        if kind == "poll_silent" or (kind == "poll_late" and fault is not None and fault.seconds > TIMEOUT_S):
            self._pause(TIMEOUT_S)
            raise TestbedError("squeue took longer than 60 s", transient=True)
        found = {}
        for job in self.jobs:
            state = job.at(at)
            if state is None and self.accounting and job.id in known and job.states[0][0] <= at:
                state = job.now
            if state is None or not state.name.startswith(prefix) or kind == "poll_empty":
                continue
            if kind == "poll_partial" and self._draw.random() < 0.5:
                continue
            if kind == "poll_unknown" and self._draw.random() < 0.5:
                state = JobObservation(job.id, state.name, Phase.UNKNOWN, "DREAMING")
            found[job.id] = state
        self._pause(0.005 if kind != "poll_late" or fault is None else fault.seconds)
        return found

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs."""
        fault = self._fault("cancel")
        self._pause(0.01)
        if fault is not None and fault.kind == "cancel_error":
            raise TestbedError("socket timed out", transient=True)
        for job in [job for job in self.jobs if job.id in ids]:
            self._after(fault.seconds if fault is not None else 0.0, partial(self._cancel, job))

    def _fault(self, verb: str) -> BatchFault | None:
        now = self.world.now
        found = (fault for fault in self.faults if fault.kind.startswith(verb) and _struck(fault, now))
        return next(found, None)

    def _pause(self, seconds: float) -> None:
        self.world.sleep(seconds)

    def _after(self, seconds: float, call: Callable[[], object]) -> None:
        def event() -> None:
            call()

        self.world.after(seconds, event)

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _accept(self, request: JobRequest) -> VirtualJob:
        job = VirtualJob(str(len(self.jobs) + 1), request)
        self.jobs.append(job)
        self._queue.append(job)
        self._set(job, Phase.WAITING, "PENDING", reason="Resources")
        self._after(0.0, self._schedule)
        return job

    def _set(self, job: VirtualJob, phase: Phase, word: str, *, state: JobState = JobState.UNKNOWN, reason: str = "",
             start: float | None = None) -> None:  # fmt: skip
        ended = phase is Phase.ENDED
        end = float(math.floor(self.world.time())) if ended else None
        if phase is Phase.RUNNING and job.now_phase is not Phase.RUNNING:
            job.began = self.world.now
        nodes = tuple(f"n{number}" for number in job.nodes)
        seen = JobObservation(job.id, job.request.name, phase, word, state, reason, start, end, nodes)
        job.states.append((self.world.now, seen))

    def _schedule(self) -> None:
        """Start jobs in the order of the queue as long as there are idle nodes."""
        while self._queue:
            up = [node for node in self._idle if node not in self._down]
            if len(up) < self._queue[0].request.nodes:
                return
            job = self._queue.pop(0)
            job.nodes = tuple(up[: job.request.nodes])
            self._idle = [node for node in self._idle if node not in job.nodes]
            self._start(job)

    def _start(self, job: VirtualJob) -> None:
        job.life += 1
        job.launched = math.nan
        self._set(job, Phase.RUNNING, "RUNNING", start=float(math.floor(self.world.time())))
        launch_s = self._draw.random() * LAUNCH_S
        run_s = int(job.request.arguments[2]) * NS
        limit_s = job.request.limit_s or math.inf
        self._for(job, launch_s, lambda: self._begin(job))
        if launch_s + run_s < limit_s:
            self._for(job, launch_s + run_s, lambda: self._end(job, "COMPLETED", JobState.COMPLETED))
        else:
            self._for(job, limit_s, lambda: self._end(job, "TIMEOUT", JobState.KILLED))

    def _for(self, job: VirtualJob, seconds: float, call: Callable[[], None]) -> None:
        """Schedule an event of the current life of a job."""
        life = job.life
        self._after(seconds, lambda: call() if job.life == life and not job.over else None)

    def _begin(self, job: VirtualJob) -> None:
        job.script_start, job.launched = self.world.time(), self.world.now
        self._record(job, "start", "")

    def _record(self, job: VirtualJob, kind: str, fields: str) -> None:
        """Write a record as `job.sh` does, unless a fault of the job prevents that."""
        start = round((job.script_start or 0.0) / NS)
        text = f"job={job.id}\nhost=n\nnodes=n\nrestarts={job.restarts}\nstart={start}\n{fields}"
        doom = next((each for each in self._doomed if self.world.now >= each.at), None)
        if kind == "end" and doom is not None:
            self._doomed.remove(doom)
            job.vanished = doom.kind == "vanish"
            if doom.kind == "no_record" or (job.vanished and doom.draw < 0.5):
                return
            if doom.kind == "torn_record":
                text = text[: int(doom.draw * len(text))]
        folder = Path(job.request.arguments[0])
        if folder.is_dir():  # or the replay has ended
            (folder / f"{job.request.name}.{job.id}.{kind}").write_text(text)

    def _end(self, job: VirtualJob, word: str, state: JobState) -> None:
        """End the script of a job; its nodes are released later."""
        start = job.now.start
        status = "completed" if state is JobState.COMPLETED else "terminated"
        if job.script_start is not None:
            self._record(job, "end", f"end={round(self.world.time() / NS)}\nstatus={status}\n")
        self._set(job, Phase.ENDING, "COMPLETING", start=start)
        job.life += 1
        self._for(job, self._draw.random() * LAUNCH_S, lambda: self._release(job, word, state, start))

    def _release(self, job: VirtualJob, word: str, state: JobState, start: float | None) -> None:
        began = job.began
        job.lives.append(Life(began, job.launched, self.world.now))
        self._set(job, Phase.ENDED, word, state=state, start=start)
        self._free(job)

    def _free(self, job: VirtualJob) -> None:
        self._idle = sorted({*self._idle, *job.nodes})
        self._after(0.0, self._schedule)

    def _cancel(self, job: VirtualJob) -> None:
        if job.now.phase is Phase.WAITING:
            self._queue.remove(job)
            self._set(job, Phase.ENDED, "CANCELLED", state=JobState.CANCELLED)
        elif job.now.phase is Phase.RUNNING:
            self._end(job, "CANCELLED", JobState.CANCELLED)

    def _lose_node(self, fault: BatchFault) -> None:
        """Let a node go down for a time. Its job is queued again, or fails."""
        node = int(fault.draw * NODES)
        self._down.add(node)
        self._after(fault.seconds, partial(self._return_node, node))
        for job in [job for job in self.jobs if node in job.nodes and job.now.phase is Phase.RUNNING]:
            start = job.now.start
            job.script_start = None
            if fault.kind == "node_fail":
                self._release(job, "NODE_FAIL", JobState.FAILED, start)
                continue
            job.lives.append(Life(job.states[-1][0], job.launched, self.world.now))
            job.life += 1
            job.restarts += 1
            self._idle, job.nodes = sorted({*self._idle, *job.nodes}), ()
            self._set(job, Phase.WAITING, "PENDING", reason="BeginTime")
            self._queue.insert(0, job)
            self._after(0.0, self._schedule)

    def _return_node(self, node: int) -> None:
        self._down.discard(node)
        self._schedule()


class DependingBatch(VirtualBatch):
    """A batch system whose jobs may depend on each other. A job that never can start is cancelled."""

    def dependency(self, conditions: Sequence[tuple[str, str, float]], *, any_of: bool) -> str | None:
        """Return conditions as in `JobRequest.dependency`; no condition has a delay."""
        if any(delay_s for _, _, delay_s in conditions):
            return None
        return ("?" if any_of else ",").join(f"{kind}:{id}" for kind, id, _ in conditions)

    def _start(self, job: VirtualJob) -> None:
        super()._start(job)
        self._after(0.0, self._schedule)

    def _cancel(self, job: VirtualJob) -> None:
        super()._cancel(job)
        self._after(0.0, self._schedule)

    def _schedule(self) -> None:
        """Start the first job that waits for no other one, as long as there are idle nodes."""
        while True:
            met = {job.id: self._met(job.request.dependency) for job in self._queue}
            if impossible := [job for job in self._queue if met[job.id] is False]:
                self._cancel(impossible[0])
                continue
            free = next((job for job in self._queue if met[job.id]), None)
            up = [node for node in self._idle if node not in self._down]
            if free is None or len(up) < free.request.nodes:
                return
            self._queue.remove(free)
            free.nodes = tuple(up[: free.request.nodes])
            self._idle = [node for node in self._idle if node not in free.nodes]
            self._start(free)

    def _met(self, text: str) -> bool | None:
        """Return whether conditions are met; None: not yet."""
        found = [self._is_met(*each.split(":")) for each in text.replace("?", ",").split(",") if each]
        if "?" in text:
            return True if True in found else None if None in found else False
        return False if False in found else None if None in found else True

    def _is_met(self, kind: str, id: str) -> bool | None:
        other = next(job for job in self.jobs if job.id == id)
        if kind == "after":
            return True if other.lives or other.now.phase is not Phase.WAITING else None
        if not other.over:
            return None
        return kind == "afterany" or (other.now.state is JobState.COMPLETED) == (kind == "afterok")


def _struck(fault: BatchFault, now: float) -> bool:
    """Return whether calls at `now` have a fault: for a few seconds, or as long as the system is not reached."""
    lasts = fault.seconds if fault.kind.endswith(("silent", "cancel_error")) else 2.0 + 3.0 * fault.draw
    return fault.at <= now and (now < fault.at + lasts or fault.kind == "cancel_late")
