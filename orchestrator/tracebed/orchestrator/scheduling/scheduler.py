"""The scheduler, used by the simulator and the replayer.

An executor, the simulator or the replayer, reports events to the scheduler: `submit`, `end`, `resized`, `request` (of
an evolving job), and of nodes `node_lost`, `node_drained`, `requeue` and `node_back`. It then calls `serve` for the
promises and, when the policy is `due`, `decide`. The scheduler maintains the state, calls the policy, checks its
decisions, and passes them to the executor.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Protocol

from tracebed.converters.workload import Kind
from tracebed.ground.display import cell
from tracebed.ground.errors import TracebedError
from tracebed.ground.extension_errors import VERBOSE, extension_error, in_words, line_of, place_of
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import SHORTEST_S, Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.names import FCFS
from tracebed.orchestrator.scheduling.queue import queue_by
from tracebed.orchestrator.scheduling.reservations import Hold
from tracebed.orchestrator.scheduling.state import (
    Cancel,
    Decision,
    Note,
    Policy,
    Reject,
    Reserve,
    Resize,
    Share,
    Start,
    State,
    Suspend,
    Wake,
    decision_in_words,
    next_multiple,
    shares,
    visible_jobs,
)


class Executor(Protocol):
    """Executor of the decisions: the simulator or the replayer."""

    def start(self, job: int, nodes: list[int]) -> None:
        """Start `job` on `nodes`, which are allocated to it."""

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Resize `job` from `before` nodes to `nodes`. Return whether the resize takes effect immediately.

        Otherwise the executor calls `Scheduler.resized` when the resize takes effect. `nodes` begins with the nodes
        that the job keeps. Added nodes are allocated now; dropped nodes are released when the resize takes effect.
        """
        ...

    def deny(self, job: int, requested: int) -> None:
        """Record that the running evolving `job` does not get the `requested` nodes. Here: nothing."""
        return

    def change_cores(self, job: int) -> None:
        """Continue the running `job` on its new cores; see `Cluster.cores_of`. Here: nothing."""
        return

    def reject(self, job: int, reason: str) -> None:
        """Record that the waiting `job` is rejected."""

    def cancel(self, job: int, reason: str) -> None:
        """End the running `job`; the executor calls `Scheduler.end` when the job has ended."""

    # Optional: `suspend(job)`, which stops the running `job`. Its next `start` continues its work.


Progress = tuple[float, float, float]
"""Progress at an instant in s of static run time, the instant, and the rate since then."""


class Sharing:
    """The part of the scheduler that manages shared nodes.

    Rates follow the worst-case model: the node with the fewest cores determines the rate (SD-Policy paper, equation 6).
    As in the simulator, fewer cores do not slow down the part of a job that runs on one core: an addition to the paper.

    Args:
        state: the state, whose expected ends this class updates.
        progress: running job whose cores may change -> its progress.
        limit: progress of each job at which its limit ends, s, shape (jobs,).
    """

    def __init__(
        self, jobs: Jobs, cluster: Cluster, state: State, progress: dict[int, Progress], limit: list[float]
    ) -> None:
        """Start without shared nodes."""
        self.jobs, self.cluster, self.state, self.progress, self.limit = jobs, cluster, state, progress, limit

    def violation(self, decision: Share) -> str | None:
        """Return the reason why `decision` is impossible, or None if it is possible."""
        jobs, cluster, state = self.jobs, self.cluster, self.state
        job, free, loans = decision
        nodes = [node for loan in loans for node in loan.nodes]
        if job not in state.queue:
            return "is not waiting"
        if jobs.kind[job] not in (Kind.MALLEABLE, Kind.MOLDABLE):
            return f"is {jobs.kind[job]} and cannot be a guest"
        if not nodes or free + len(nodes) != jobs.nodes[job] or len(set(nodes)) < len(nodes):
            return f"needs {jobs.nodes[job]} different nodes, at least one of them shared"
        if not 0 <= free <= state.idle:
            return f"would start on {free} idle nodes, {state.idle} are idle"
        for owner, shared, cores in loans:
            name = jobs.ids[owner]
            if owner not in state.size or jobs.kind[owner] != Kind.MALLEABLE or owner in state.resizing:
                return f"would share with {name}, which is not a running malleable job, or has a pending resize"
            if any(node in cluster.loans for node in shared) or not set(shared) <= set(cluster.owned(owner)):
                return f"would share nodes that {name} does not hold or already shares"
            if not all(1 <= cores < cluster.cores[node] for node in shared):
                return f"or {name} would have no core on a shared node"
        return None

    def started(self, job: int) -> None:
        """Record the start of `job` on its allocated nodes."""
        self.state.started[job] = self.state.now
        self.note_host(job)

    def note_host(self, job: int) -> None:
        """Update whether `job` can lend cores, and how many cores its nodes have."""
        cluster = self.cluster
        kinds = {(cluster.cores[node], cluster.sockets[node]) for node in cluster.owned(job)}
        state = self.state
        able = self.jobs.kind[job] == Kind.MALLEABLE and job not in state.failing and job not in state.draining
        can = able and not cluster.shares(job) and len(kinds) == 1
        self.state.can_host[job], self.state.can_host_sockets[job] = kinds.pop() if can else (0, 1)

    def begin(self, decision: Share) -> None:
        """Start the job of `decision` on its idle and shared nodes."""
        job, free, loans = decision
        now = self.state.now
        self.state.size[job] = self.jobs.nodes[job]
        if free:
            self.cluster.take(job, free, now)
        for owner, nodes, cores in loans:
            self.cluster.lend(owner, job, nodes, cores, now)
        self.progress[job] = (0.0, now, self._rate(job))
        self.state.expected_end[job] = now
        self.started(job)
        self.state.releases.add(job, now, 0)
        self._adapt([loan.owner for loan in loans])
        self.expect([job])

    def changed(self, others: Iterable[int]) -> list[int]:
        """Update the expected ends of `others`, whose cores changed, and return the jobs that adapt to the change.

        A moldable job may inherit nodes, but continues on the cores on which it started.
        """
        others = list(others)
        adapting = [job for job in others if self.jobs.kind[job] == Kind.MALLEABLE]
        self._adapt(adapting)
        self.expect(others)
        return adapting

    def _adapt(self, jobs: Iterable[int]) -> None:
        """Update the progress of `jobs` and continue at the rate of their current cores."""
        now = self.state.now
        for job in jobs:
            self.note_host(job)
            done, since, rate = self.progress[job]
            self.progress[job] = (done + (now - since) * rate, now, self._rate(job))

    def _rate(self, job: int, without: Collection[int] = ()) -> float:
        """Return the rate of `job` on its current cores; cores lent to the guests `without` count as returned."""
        jobs, cluster = self.jobs, self.cluster
        share = 1.0
        if cluster.shares(job):
            for node in cluster.nodes_of(job):
                loan = cluster.loans.get(node)
                if loan is not None and loan.guest not in without:
                    requested = min(jobs.cores[job], cluster.cores[node])
                    share = min(share, len(cluster.part(job, node)) / requested)
        return jobs.rate(job, self.state.size[job], share)

    def end(self, job: int) -> float:
        """Return the time at which the limit of `job` ends if its guests end at their expected ends, s."""
        done, since, rate = self.progress[job]
        now, left = self.state.now, self.limit[job] - done - (self.state.now - since) * rate
        ends = self.state.expected_end
        ended: set[int] = set()
        for guest in sorted(self.cluster.guests(job), key=ends.__getitem__):
            while_shared = max(0.0, ends[guest] - now) * rate
            if left <= while_shared:
                break
            left -= while_shared
            now = max(now, ends[guest])
            ended.add(guest)
            rate = self._rate(job, ended)
        return now + left / rate

    def expect(self, jobs: Iterable[int]) -> None:
        """Recompute the expected ends of `jobs` and of the jobs hosting them."""
        state, cluster = self.state, self.cluster
        entered: dict[int, float] = {}
        todo = list(jobs)
        for job in todo:  # the list grows: a host may be a guest elsewhere, but never of its own guests
            entered.setdefault(job, state.expected_end[job])
            state.expected_end[job] = self.end(job)
            todo += cluster.hosts(job)
        for job in list(entered):
            for guest in cluster.guests(job):
                entered.setdefault(guest, state.expected_end[guest])
        for job, end in entered.items():
            state.releases.remove(job, end)
            state.releases.add(job, state.expected_end[job], self._frees(job))

    def _frees(self, job: int) -> int:
        """Return the number of nodes released at the expected end of `job`. The later job releases a shared node."""
        cluster, ends = self.cluster, self.state.expected_end
        count = 0
        for node in cluster.nodes_of(job):
            loan = cluster.loans.get(node)
            if node in self.state.drained:
                continue
            if loan is None:
                count += 1
            elif loan.owner == job:
                count += ends[loan.guest] <= ends[job]
            else:
                count += ends[loan.owner] < ends[job]
        return count


@dataclass
class Earmarked:
    """Nodes reserved for certain promises."""

    idle: int = 0
    """Number of these nodes that are already idle."""
    coming: dict[int, int] = field(default_factory=dict)
    """Shrinking job -> number of its nodes that it has yet to release, in the order of the decisions."""


class Promises:
    """The waiting jobs that were promised nodes, and the nodes reserved for them.

    A promise is served from nodes reserved for one job (`direct` in the Kassel study), from nodes reserved for all jobs
    with exchange (`steal`), or from any released nodes (`pool`). Promises are numbers of nodes; the cluster chooses the
    idle nodes on which the job starts.
    """

    def __init__(self) -> None:
        """Start without promises."""
        self.nodes: dict[int, int] = {}  # promised job -> nodes, in the order of the promises
        self._served_from: dict[int, Earmarked] = {}  # promised job -> its reserved nodes; without an entry: any
        self._common = Earmarked()
        self._shrinking: dict[int, int] = {}  # job -> number of nodes that its pending shrink will release

    def __contains__(self, job: int) -> bool:
        """Return whether `job` waits for promised nodes."""
        return job in self.nodes

    def shrinking(self, job: int, nodes: int) -> None:
        """Record that `job` will release `nodes` nodes."""
        self._shrinking[job] = nodes

    def is_shrinking(self, job: int) -> bool:
        """Return whether `job` still has nodes to release."""
        return job in self._shrinking

    def released(self, job: int) -> int:
        """Record that `job` has released the nodes of its shrink, and return their number (0: no pending shrink)."""
        nodes = self._shrinking.pop(job, 0)
        if nodes and (self._served_from or self._common.coming):
            for earmarked in self._distinct():
                earmarked.idle += earmarked.coming.pop(job, 0)
        return nodes

    def make(self, job: int, nodes: int, coming: Mapping[int, int] | None, *, exchange: bool) -> None:
        """Promise `nodes` nodes to the waiting `job`.

        Args:
            coming: shrinking job -> number of its nodes; the other nodes are idle nodes. None: any released nodes.
            exchange: whether the nodes may be exchanged with other promises that have `exchange`.
        """
        self.nodes[job] = nodes
        if coming is None:
            return
        earmarked = self._served_from[job] = self._common if exchange else Earmarked()
        earmarked.idle += nodes - sum(coming.values())
        for source, count in coming.items():
            earmarked.coming[source] = earmarked.coming.get(source, 0) + count

    def drop(self, job: int) -> bool:
        """Drop the promise to `job`, and return whether there was one. Idle common nodes are dropped first."""
        nodes = self.nodes.pop(job, 0)
        earmarked = self._served_from.pop(job, None)
        if earmarked is self._common:
            idle = min(nodes, earmarked.idle)
            earmarked.idle -= idle
            rest = nodes - idle
            for source in reversed(earmarked.coming):
                fewer = min(rest, earmarked.coming[source])
                earmarked.coming[source] -= fewer
                rest -= fewer
        return nodes > 0

    @property
    def last(self) -> int | None:
        """The job with the most recent promise; None: there are no promises."""
        return next(reversed(self.nodes), None)

    def serve(self, idle: int) -> list[tuple[int, int]]:
        """Remove the promises that `idle` idle nodes can serve, and return (job, nodes) in the order of the promises.

        A promise that cannot be served yet does not delay later ones.
        """
        served: list[tuple[int, int]] = []
        for job, nodes in list(self.nodes.items()):
            earmarked = self._served_from.get(job)
            if nodes <= (idle - self._earmarked_idle() if earmarked is None else earmarked.idle):
                if earmarked is not None:
                    earmarked.idle -= nodes
                    del self._served_from[job]
                del self.nodes[job]
                idle -= nodes
                served.append((job, nodes))
        return served

    def left_over(self, idle: int) -> tuple[int, int]:
        """Return the numbers of idle nodes (of `idle`) and of nodes being released that are not promised."""
        if not (self.nodes or self._shrinking):
            return idle, 0
        outstanding = sum(nodes for job, nodes in self.nodes.items() if job not in self._served_from)
        coming = sum(self._shrinking.values()) - sum(sum(earmarked.coming.values()) for earmarked in self._distinct())
        return idle - self._earmarked_idle() - max(0, outstanding - coming), max(0, coming - outstanding)

    def _distinct(self) -> list[Earmarked]:
        own = [earmarked for earmarked in self._served_from.values() if earmarked is not self._common]
        return [*own, self._common]

    def _earmarked_idle(self) -> int:
        return sum(earmarked.idle for earmarked in self._distinct())


DECISIONS = (Start, Resize, Share, Reject, Cancel, Suspend, Reserve, Wake, Note)
MOST_DECISIONS = 1_000_000
"""Number of decisions in a call, beside ten for each job, after which a policy counts as one that decides for ever."""
DEFECT = "this is a defect of the policy"


class PolicyError(TracebedError):
    """A policy has yielded an impossible decision, or its code has failed."""


class Call:
    """A call of a policy: errors of the policy get its line.

    Attributes:
        most: a policy that decides more often in one call counts as `endless`.
    """

    def __init__(self, policy: Policy, state: State, jobs: int) -> None:
        """Prepare the call. `jobs`: number of jobs."""
        self._policy, self._state, self.most = policy, state, MOST_DECISIONS + 10 * jobs
        self._steps: Any = ()

    def begin(self) -> Iterator[Decision]:
        """Call the policy and return its decisions. Raises PolicyError if `decide` fails, or returns something else."""
        try:
            self._steps = self._policy.decide(self._state)
        except (Exception, SystemExit) as error:
            if (failure := self._failed(error)) is not None:
                raise failure from error
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            what = f"policy {self._name}: decide cannot be called: {in_words(error)}"  # no line of the policy was run
            raise PolicyError(
                what, where=line_of(type(_own(self._policy))), hint="write `def decide(self, state)`"
            ) from error
        if not hasattr(self._steps, "__iter__"):
            if hasattr(self._steps, "close"):
                self._steps.close()  # a coroutine
            code = getattr(_own(self._policy).decide, "__code__", None)
            what = f"policy {self._name}: decide returns {type(self._steps).__name__}, not decisions"
            hint = "`decide` is a generator: it yields each decision, and contains at least one `yield`"
            raise PolicyError(what, where=place_of(code) if isinstance(code, CodeType) else None, hint=hint)
        steps: Iterator[Decision] = self._steps
        return steps

    def failed(self, error: Exception | SystemExit) -> None:
        """Raise an error of the policy while its decisions are carried out as a PolicyError with its line.

        A PolicyError gets the line. Other errors remain as they are.
        """
        if isinstance(error, PolicyError):
            error.where = f"{line}: {error.where}" if (line := self._line()) else error.where
        elif not isinstance(error, TracebedError):
            if (failure := self._failed(error)) is not None:
                raise failure from error
            if (line := self._line()) and _is_in_scheduling(error):
                what = f"the decision has invalid values: {in_words(error)}"
                raise PolicyError(what, where=f"{line}: {self._when}", hint=DEFECT) from error

    def unknown(self, decision: Any) -> PolicyError:
        """Return the error of an object that is not a decision."""
        kinds = ", ".join(kind.__name__ for kind in DECISIONS)
        what = f"yields {repr(decision)[:60]}, not a decision"
        return PolicyError(what, where=self._when, hint=f"yield one of {kinds}")

    def endless(self, decision: Any) -> PolicyError:
        """Return the error of a policy whose `decision` is one more than `most`."""
        what = f"decides {self.most:,} times in one call, and goes on, with {repr(decision)[:60]}"
        return PolicyError(what, where=self._when, hint=f"{DEFECT}: its `decide` does not end")

    @property
    def _name(self) -> str:
        return name_of(self._policy)

    @property
    def _when(self) -> str:
        return f"policy {self._name} at t = {cell(self._state.now)} s"

    def _failed(self, error: BaseException) -> PolicyError | None:
        """Return the error of a policy whose code has raised `error`; None: it has not, or is one of tracebed."""
        if isinstance(error, TracebedError) or (place := extension_error(error)) is None:
            return None
        return PolicyError(f"{self._when} failed: {in_words(error)}", where=place.where, hint=f"{DEFECT}; {VERBOSE}")

    def _line(self) -> str:
        """Return the line at which the policy has yielded its last decision; empty: unknown, or of tracebed."""
        steps = self._steps
        while getattr(inner := getattr(steps, "gi_yieldfrom", None), "gi_frame", None) is not None:
            steps = inner
        frame: FrameType | None = getattr(steps, "gi_frame", None)
        if frame is None or str(frame.f_globals.get("__name__", "")).startswith("tracebed."):
            return ""
        return place_of(frame)


def name_of(policy: Policy) -> str:
    """Return the name of the class of a policy, for messages."""
    return type(_own(policy)).__name__


def _own(policy: Policy) -> Policy:
    """Return the policy, in place of the one by which `check_policy` observes it."""
    own: Policy = getattr(policy, "observed", policy)
    return own


def _is_in_scheduling(error: BaseException) -> bool:
    """Return whether the scheduler, and not its executor, has raised `error`: for a decision with invalid values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = str(trace.tb_frame.f_globals.get("__name__", "")) if trace is not None else ""
    return module.startswith(__name__.rpartition(".")[0])


MOST_CALLS = 100_000
"""Largest number of calls at one instant that a policy may request."""


class Scheduler:
    """A scheduler: a policy, the state that it reads, and the executor of its decisions.

    Args:
        interval_s: > 0: the policy is called only at multiples of it; 0: on every event.
        priority: the order in which waiting jobs are considered, a name of `names.PRIORITIES`.
    """

    def __init__(
        self,
        jobs: Jobs,
        cluster: Cluster,
        policy: Policy,
        executor: Executor,
        *,
        interval_s: float = 0.0,
        priority: str = FCFS,
        visible: Jobs | None = None,
    ) -> None:
        """Start with an idle cluster and an empty queue. `visible`: the jobs as the policy sees them, if known."""
        jobs = (visible_jobs(policy, jobs) if visible is None else visible).listed()
        self._moves = jobs.waits is not None and jobs.waits.thinks
        if self._moves:
            jobs = jobs.with_columns(submit=[*jobs.submit])  # its own: submissions follow from the ends of other jobs
        self.jobs = jobs
        self.cluster = cluster
        self.policy, self.executor, self.interval_s = policy, executor, interval_s
        self.state = State(jobs, cluster, queue_by(priority, jobs, len(cluster)))
        cluster.expected_end = self.state.expected_end
        self._call = Call(policy, self.state, len(jobs))
        self._promises = Promises()
        self._progress: dict[int, Progress] = {}
        # Progress at which the limit of each job ends, s. `OverLimit.AGAIN` moves it.
        self._limit = list(jobs.limit)
        self._extends_limits = jobs.over_limit is OverLimit.AGAIN
        self._sharing = Sharing(jobs, cluster, self.state, self._progress, self._limit)
        self._shares = shares(policy)
        self._resized_in_call = False
        self._ends_later = False  # whether a job waits for the boot of its nodes since the last call
        self._resizes: set[int] = set()  # jobs with a pending resize
        self._leaving: dict[int, int] = {}  # job -> number of drained nodes that its pending resize will release
        self._held: set[int] = set()  # submitted jobs that wait for other jobs
        self._wake = math.inf
        self._calls_at_instant = (-math.inf, 0)  # an instant, and the number of calls that the policy requested at it

    @property
    def waiting(self) -> int:
        """Number of waiting jobs, without those that were promised nodes."""
        return len(self.state.queue)

    @property
    def running(self) -> list[int]:
        """The running jobs, in the order of start."""
        return [*self.state.size]

    @property
    def expected_ends(self) -> Iterable[tuple[float, int]]:
        """The expected ends of running and promised jobs in ascending order, s, with the jobs."""
        return self.state.releases

    def overdue(self, now: float) -> list[int]:
        """Return the running and promised jobs with an expected end at or before `now`, by these ends."""
        return self.state.releases.due(now)

    @property
    def needs(self) -> tuple[float, int]:
        """The first job that waits, or was promised nodes (infinity: none), and the nodes that all these jobs need.

        Of the waiting jobs, the first one counts.
        """
        head, promised = self.state.queue.head, self._promises.nodes
        if not promised:
            return (math.inf, 0) if head is None else (head, self.jobs.low[head])
        nodes = sum(promised.values()) + (0 if head is None else self.jobs.low[head])
        return min((*promised, math.inf if head is None else head), default=math.inf), nodes

    @property
    def promised(self) -> Collection[int]:
        """The jobs that were promised nodes, in the order of the promises."""
        return self._promises.nodes

    @property
    def set_aside(self) -> int:
        """Number of idle nodes that promises count on, in addition to the nodes that are being released for them."""
        return -self._promises.left_over(0)[0]

    def needed(self, now: float) -> list[int]:
        """Return how many idle nodes are set aside for promised jobs, or needed by the first waiting job: one number.

        With pools, there is one for each pool.
        """
        self.state.queue.arrange(now)
        head = self.state.queue.head
        return [len(self.cluster.idle) - self.state.idle + (0 if head is None else self.jobs.low[head])]

    def size_of(self, job: int) -> int:
        """Return the number of nodes of the running `job`; during a resize the new number."""
        return self.state.size[job]

    def state_of(self, job: int) -> State:
        """Return the state in which the policy sees `job`."""
        return self.state

    def is_free(self, job: int, nodes: Iterable[int]) -> bool:
        """Return whether `job` could start on `nodes` now: they are idle, and can serve it."""
        return {*nodes} <= {*self.cluster.idle}

    # -- events ---------------------------------------------------------------------------------------------------

    def hold(self, job: int, now: float) -> None:
        """Handle the submission of `job`, which waits for other jobs until `submit` hands it to the policy."""
        if self._is_possible(job, now):
            self._held.add(job)

    def submit(self, job: int, now: float) -> None:
        """Handle the submission of `job`, or that it waits for no other job any more.

        A job larger than the cluster is rejected. In the queue, the place of a job follows from its submission.
        """
        state = self.state
        if job in self._held:
            self._held.remove(job)
            state.now = now
            state.freed, state.settled = True, False  # the job may be before jobs that were tried
            state.wait(job)
        elif self._is_possible(job, now):
            state.wait(job)

    def is_held(self, job: int) -> bool:
        """Return whether `job` is submitted and waits for other jobs."""
        return job in self._held

    def _is_possible(self, job: int, now: float) -> bool:
        """Return whether `job`, which is submitted now, is not larger than the cluster. Else the job is rejected."""
        state, low = self.state, self.jobs.low[job]
        state.now = now
        if self._moves:
            self.jobs.submit[job] = self.jobs.arrays.submit[job] = now
        if low > state.total:
            self.executor.reject(job, f"needs {low} nodes, the machine has {state.total}")
        return low <= state.total

    def end(self, job: int, now: float) -> None:
        """Handle the end of the running `job`, whatever its final state."""
        state = self.state
        state.now = now
        gaining = self.cluster.release(job, now)
        state.releases.remove(job, state.expected_end.pop(job))
        del state.size[job]
        state.since.pop(job, None)
        # Most policies use none of these, and a call costs ten times as much as a test.
        if state.cancelling:
            state.cancelling.discard(job)
        if state.ran:
            state.ran.pop(job, None)
        if state.requested:
            state.requested.pop(job, None)
        if state.reservations.holds:
            state.reservations.remove(job)
        if job in state.failing:
            state.failing.remove(job)
            state.resizing.discard(job)
            state.reserved.clear()  # reservations counted on the lost nodes of the job
        if state.draining and state.draining.pop(job, 0):
            state.resizing.discard(job)
            state.reserved.clear()
        if self._resizes:
            self._resizes.discard(job)
            self._leaving.pop(job, None)
        if self._shares:
            state.can_host[job] = 0
        if gaining:
            for other in self._sharing.changed(gaining):
                self.executor.change_cores(other)
        if job in self._progress:
            del self._progress[job]
            self._promises.released(job)
            state.resizable.pop(job, None)
            state.resizing.discard(job)
        self._nodes_freed()
        if state.idle < 0:
            self._withdraw_promises()

    def requeue(self, job: int, now: float) -> None:
        """Return `job`, which ended because a node was lost, to the queue with its original submit time."""
        self.end(job, now)
        self._limit[job] = self.jobs.limit[job]
        self.state.wait(job)

    def node_lost(self, node: int, now: float) -> list[int]:
        """Handle the loss of `node`, and return the running jobs that hold it.

        The executor must end these jobs and call `end` or `requeue` when their processes on the other nodes have ended.
        Promises that the remaining nodes cannot keep are withdrawn, the last one first; their jobs return to the queue.
        """
        state = self.state
        state.now = now
        self.cluster.lose(node)
        failing = [job for job in self.cluster.jobs_on(node) if job in state.size]
        for job in failing:
            state.failing.add(job)
            state.resizing.add(job)
            state.resizable.pop(job, None)
            state.can_host[job] = 0
        self.nodes_changed()
        return failing

    def give_up(self, job: int, node: int, now: float) -> bool:
        """Handle that the running malleable `job` may continue without its lost `node`, instead of `end` or `requeue`.

        Return whether it continues: not on fewer nodes than its minimum, during a resize, while it holds a drained node
        or shares nodes, or after its cancellation.
        """
        state, jobs = self.state, self.jobs
        state.now = now
        nodes = state.size[job] - 1
        if not jobs.malleable[job] or nodes < jobs.low[job] or self.cluster.shares(job):
            return False
        if job in self._resizes or job in state.draining or job in state.cancelling:
            return False
        self.cluster.give_up(job, node, now)
        state.failing.remove(job)
        state.resizing.discard(job)
        able = {job, *state.resizable}
        state.resizable = {running: None for running in state.size if running in able}  # in the order of start
        state.size[job] = nodes
        state.requested.pop(job, None)
        self._continue(job)
        if self._shares:
            self._sharing.note_host(job)
        return True

    def node_drained(self, node: int, now: float) -> None:
        """Handle that no other job may start on `node`. The jobs on the node continue."""
        self.nodes_drained([node], now)

    def nodes_drained(self, nodes: Collection[int], now: float) -> None:
        """Handle that no other job may start on `nodes`, as `node_drained`."""
        self.state.now = now
        for node in nodes:
            self.cluster.lose(node)
        self.state.drained.update(nodes)
        self._count_drained(self._holders(nodes))
        self.nodes_changed()

    def node_back(self, node: int, now: float) -> None:
        """Handle the return of the lost or drained `node`."""
        self.nodes_back([node], now)

    def nodes_back(self, nodes: Collection[int], now: float) -> None:
        """Handle the return of the lost or drained `nodes`."""
        self.state.now = now
        for node in nodes:
            self.cluster.restore(node)
        if drained := self.state.drained.intersection(nodes):
            self.state.drained -= drained
            self._count_drained(self._holders(drained))
        self.nodes_changed()

    def leave(self, job: int, below: int, now: float) -> bool:
        """Shrink the running malleable `job` off nodes with numbers `below` a number, as far as possible.

        The job keeps its first node and its minimum. No promise counts on the nodes that it releases. Return False if
        it has a pending resize, so that this is to be done later.
        """
        state, jobs, cluster = self.state, self.jobs, self.cluster
        state.now = now
        if job not in state.size or not jobs.malleable[job] or job in state.cancelling or job in state.failing:
            return True
        if job in self._resizes:
            return False
        held, before = cluster.owned(job), state.size[job]
        leaving = [node for node in held[1:] if node < below][: max(0, before - jobs.low[job])]
        if not leaving:
            return True
        cluster.put_last(job, leaving)
        self._leaving[job] = len(leaving)
        state.size[job] = before - len(leaving)
        state.requested.pop(job, None)
        state.resizing.add(job)
        self._resizes.add(job)
        self._expect(job, state.expected_end[job])
        if self.executor.resize(job, before, cluster.owned(job)[: -len(leaving)]):
            self.resized(job, now)
        return True

    def _holders(self, nodes: Collection[int]) -> list[int]:
        """Return the running jobs that hold some of `nodes`."""
        chosen = {*nodes}
        return [job for job in self.state.size if not chosen.isdisjoint(self.cluster.nodes_of(job))]

    def _count_drained(self, jobs: Iterable[int]) -> None:
        """Count the drained nodes of running jobs, which are not idle after the ends of these jobs.

        Such a job is not resized: a policy would count on the nodes that the job releases.
        """
        state = self.state
        for job in jobs:
            state.draining.pop(job, None)
            count = len(state.drained.intersection(self.cluster.nodes_of(job)))
            if count := max(0, count - self._leaving.get(job, 0)):
                state.draining[job] = count
                state.resizing.add(job)
            elif job not in self._resizes and job not in state.failing:
                state.resizing.discard(job)
            if self._shares:
                self._sharing.note_host(job)
                self._sharing.expect([job])
            else:
                self._expect(job, state.expected_end[job])

    def resized(self, job: int, now: float) -> None:
        """Handle that the pending resize of `job` took effect: release dropped nodes and update the expected end."""
        state = self.state
        state.now = now
        self._resizes.discard(job)
        if job not in state.failing and job not in state.draining:
            state.resizing.discard(job)
        if released := self._promises.released(job) + (self._leaving.pop(job, 0) if self._leaving else 0):
            self.cluster.shrink(job, released, now)
            if job in state.draining:
                self._count_drained([job])
        self._continue(job)
        if state.idle < 0:
            self._withdraw_promises()  # a node that the job releases may be lost

    def _continue(self, job: int) -> None:
        """Continue the running `job` at the rate of its new number of nodes; the nodes that it gave up are released."""
        now = self.state.now
        done, since, rate = self._progress[job]
        done += max(0.0, now - since) * rate  # 0 while its nodes boot
        begin, rate = max(now, since), self.jobs.rate(job, self.state.size[job])
        self._progress[job] = (done, begin, rate)
        self._expect(job, begin + (self._limit[job] - done) / rate)
        self._nodes_freed()

    def refused(self, job: int, nodes: int, now: float) -> None:
        """Handle that the pending expansion of `job` is impossible: it keeps `nodes` nodes, and the others are idle."""
        self._promises.shrinking(job, self.state.size[job] - nodes)
        self.state.size[job] = nodes
        self.resized(job, now)

    def stopping(self, number: int, nodes: int, until: float, now: float, *, calls: bool = False) -> None:
        """Handle that idle nodes are being switched off until `until`, s; `number` holds them in the cluster.

        `calls`: whether the policy is called, since other jobs may need these nodes.
        """
        state = self.state
        state.now = now
        state.stopping[number] = until
        state.releases.add(number, until, nodes)
        self._plans_changed()
        if calls:
            self._withdraw_promises()

    def stopped(self, number: int, now: float) -> None:
        """Handle that the nodes which `number` has held are off. They are idle."""
        state = self.state
        state.now = now
        state.releases.remove(number, state.stopping.pop(number))
        self._nodes_freed()

    def began(self, job: int, now: float) -> None:
        """Handle that the nodes of the running `job` have booted now, not earlier: its limit counts from now on."""
        state = self.state
        state.now = now
        rate = self.jobs.rate(job, state.size[job])
        if job in self._progress:
            rate = self._progress[job][2]
            self._progress[job] = (0.0, now, rate)
        self._expect(job, now + self._limit[job] / rate)
        self._ends_later = True

    def withdraw(self, job: int, now: float) -> None:
        """Handle that the waiting or promised `job` has left the queue without a decision of the policy."""
        state = self.state
        state.now = now
        if job in state.queue:
            self._leave_queue(job)
        elif self._promises.drop(job):
            state.releases.remove(job, state.expected_end.pop(job))
        self._held.discard(job)
        state.reservations.remove(job)
        self._nodes_freed()

    def adopt(self, job: int, nodes: Sequence[int], now: float) -> None:
        """Handle that `job` runs on the idle `nodes`, its first node first. The executor is called as for a start."""
        self.submit(job, now)
        self._start(Start(job, len(nodes), on=tuple(nodes)))
        self.cluster.order(job, nodes)

    def request(self, job: int, nodes: int, now: float) -> bool:
        """Handle the request of the running evolving `job` for `nodes` nodes. It replaces an unanswered one.

        Return whether the policy must answer: not if the job has, or will have, this number of nodes.
        """
        state = self.state
        state.now, state.settled = now, False
        state.requested.pop(job, None)
        if nodes != state.size[job]:
            state.requested[job] = nodes
        return job in state.requested

    def limit_end(self, job: int, now: float) -> float:
        """Return the time at which the limit of the running `job` ends, s. Overdue guests may delay it."""
        end = self.state.expected_end[job]
        if end <= now and self.cluster.guests(job):
            self.state.now = now
            return self._sharing.end(job)
        return end

    # -- decisions ------------------------------------------------------------------------------------------------

    def due(self, now: float) -> float:
        """Return the time of the call of the policy for an event at `now`, s."""
        return next_multiple(self.interval_s, now) if self.interval_s else now

    def decide(self, now: float) -> float:
        """Call the policy, execute each decision, and return the time of the next call without an event, s.

        This time is infinite unless the policy decided `Wake`. For a `Wake` at or before `now`, it is `now`.

        Raises:
            PolicyError: a decision is impossible, or the policy has failed.
        """
        state = self.state
        state.now = now
        state.woken = now >= self._wake
        self._wake = math.inf
        if not state.queue.by_submission:
            state.queue.arrange(now)
        if self._extends_limits:
            self._extend_limits()
        if self._ends_later:
            self._ends_later = False
            self._plans_changed()
        open_requests = [job for job in state.requested if job not in state.resizing] if state.requested else ()
        decided, call = 0, self._call
        decisions = call.begin()
        try:
            for decided, decision in enumerate(decisions, 1):
                if decided > call.most:
                    raise call.endless(decision)
                if type(decision) is Start:
                    self._start(decision)
                elif type(decision) is Resize:
                    self._resize(decision)
                elif type(decision) is Share:
                    self._share(decision)
                elif type(decision) is Reject:
                    self._check(decision.job in state.queue, decision, "is not waiting")
                    self._leave_queue(decision.job)
                    state.reservations.remove(decision.job)
                    self.executor.reject(decision.job, decision.reason)
                elif type(decision) is Cancel:
                    self._check(decision.job in state.size, decision, "is not running")
                    state.cancelling.add(decision.job)
                    self.executor.cancel(decision.job, decision.reason)
                elif type(decision) is Suspend:
                    self._suspend(decision)
                elif type(decision) is Reserve:
                    self._reserve(decision)
                elif type(decision) is Wake and decision.at == decision.at:
                    self._wake = self._called_again(now) if decision.at <= now else self.due(decision.at)
                elif type(decision) is Note:
                    state.notes[decision.name] = decision.value
                else:
                    raise call.unknown(decision)
        except (Exception, SystemExit) as error:
            call.failed(error)
            raise
        for job in open_requests:
            if job in state.requested:  # no resize has answered it
                self.executor.deny(job, state.requested.pop(job))
        state.arrived.clear()
        if self._resized_in_call:
            # Nodes being released count as available, even if the job they were requested for started on idle nodes.
            self._update_idle()
        state.freed = self._resized_in_call
        state.settled = not decided
        self._resized_in_call = False
        return self._wake

    def _called_again(self, now: float) -> float:
        """Return `now`, the time of the next call. Raises PolicyError after `MOST_CALLS` calls at one instant."""
        instant, times = self._calls_at_instant
        self._calls_at_instant = (now, times + 1 if instant == now else 1)
        if self._calls_at_instant[1] > MOST_CALLS:
            what = f"policy {name_of(self.policy)} requested a call at {now:g} s {MOST_CALLS:,} times"
            raise PolicyError(what, hint=f"{DEFECT}: it decides at the same instant for ever")
        return now

    def _start(self, decision: Start) -> None:
        state, jobs = self.state, self.jobs
        job, nodes, taken = decision.job, decision.nodes, decision.taken
        if not (jobs.low[job] <= nodes <= jobs.high[job] or nodes == jobs.nodes[job]):
            self._check(job in state.queue, decision, "is not waiting")
            self._check(False, decision, f"runs on {jobs.low[job]} to {jobs.high[job]} nodes")
        if not self._leave_queue(job):
            self._check(False, decision, "is not waiting")
        if decision.on:
            self._check_chosen(decision, nodes)
            self._check(nodes <= state.idle and not taken, decision, "would start on promised nodes")
        end = state.now + jobs.limit[job] / jobs.rate(job, nodes)
        if state.ran:
            end -= state.ran.get(job, 0.0)
        state.expected_end[job] = end
        state.releases.add(job, end, nodes)
        coming = {source: count for source, count in taken if self._promises.is_shrinking(source)} if taken else None
        if nodes <= state.idle and not coming:
            state.idle -= nodes
            self._launch(job, nodes, decision.on)
        else:
            self._promises.make(job, nodes, coming, exchange=decision.exchange)
            self._update_idle()
            self._check(state.idle >= 0, decision, f"lacks nodes: {nodes + state.idle} are idle or being released")
            self.serve()

    def _suspend(self, decision: Suspend) -> None:
        state, job = self.state, decision.job
        self._check(job in state.size, decision, "is not running")
        self._check(self.jobs.low[job] == self.jobs.high[job], decision, "may be resized")
        self._check(not self._shares, decision, "may share nodes")
        self._check(job not in state.failing and job not in state.cancelling, decision, "is ending")
        self._check(hasattr(self.executor, "suspend"), decision, "can be suspended in a simulation only")
        ran = state.service(job)
        self.executor.suspend(job)  # type: ignore[attr-defined]  # optional, see `Executor`
        self.end(job, state.now)
        state.ran[job] = ran
        state.wait(job)

    def _reserve(self, decision: Reserve) -> None:
        state, (job, at, on, until) = self.state, decision
        self._check(job in state.queue or (job in state.size and bool(on)), decision, "is not waiting")
        state.reservations.remove(job)
        if on:
            free = at < until < math.inf and state.reservations.free(at, until)[list(on)].all()
            self._check(bool(free), decision, "would hold nodes that another job holds, or for ever")
            state.reservations.add(job, Hold(at, until, on))
        if job in state.queue and at < math.inf:
            state.reserved[job] = at
        else:
            state.reserved.pop(job, None)

    def _share(self, decision: Share) -> None:
        violation = self._sharing.violation(decision) if self._shares else "would share nodes, but `shares` is not set"
        self._check(violation is None, decision, violation or "")
        self._leave_queue(decision.job)
        self._sharing.begin(decision)
        if self.jobs.low[decision.job] < self.jobs.high[decision.job]:
            self.state.resizable[decision.job] = None
        self._update_idle()
        self.executor.start(decision.job, self.cluster.nodes_of(decision.job))
        for owner in self.cluster.hosts(decision.job):
            self.executor.change_cores(owner)

    def _leave_queue(self, job: int) -> bool:
        """Remove `job` from the queue, and return whether it waited."""
        if self.state.reserved:
            self.state.reserved.pop(job, None)
        return self.state.queue.remove(job)

    def _launch(self, job: int, nodes: int, on: Sequence[int] = ()) -> None:
        state, jobs = self.state, self.jobs
        now = state.now
        state.size[job] = nodes
        if jobs.low[job] < jobs.high[job]:
            state.resizable[job] = None
        if jobs.malleable[job] or self._shares:
            self._progress[job] = (0.0, now, jobs.rate(job, nodes))
        state.since[job] = now
        taken = self.cluster.take(job, nodes, now, on)
        if (begin := self.cluster.on_from(taken, now)) > now:
            # The limit counts from when the nodes have booted.
            if job in self._progress:
                self._progress[job] = (0.0, begin, self._progress[job][2])
            self._expect(job, begin + jobs.limit[job] / jobs.rate(job, nodes))
            self._ends_later = True
        if self._shares:
            self._sharing.started(job)
        self.executor.start(job, taken)

    def _resize(self, decision: Resize) -> None:
        state, jobs = self.state, self.jobs
        job, nodes, on = decision
        before = state.size.get(job, 0)
        added = nodes - before
        possible = before and jobs.malleable[job] and job not in state.resizing and 0 != added <= state.idle
        if not (possible and jobs.low[job] <= nodes <= jobs.high[job]) or self.cluster.shares(job):
            self._check(False, decision, self._obstacle(job, nodes, added))
        if on:
            self._check_chosen(decision, added)
        self._resized_in_call = True
        if state.requested:
            state.requested.pop(job, None)
        held = self.cluster.nodes_of(job)
        if added > 0:
            state.idle -= added
            held += self.cluster.take(job, added, state.now, on)
        else:
            self._promises.shrinking(job, -added)
            del held[nodes:]
        state.size[job] = nodes
        state.resizing.add(job)
        self._resizes.add(job)
        if self.executor.resize(job, before, held):
            self.resized(job, state.now)
        else:
            self._expect(job, state.expected_end[job])

    def _obstacle(self, job: int, nodes: int, added: int) -> str:
        """Return why `job` cannot be resized to `nodes` nodes, of which it lacks `added`."""
        state, low, high = self.state, self.jobs.low[job], self.jobs.high[job]
        if job not in state.size or not self.jobs.malleable[job]:
            return "is not a running malleable job"
        if job in state.draining:
            return "holds a drained node"
        if job in state.resizing:
            return "has a pending resize"
        if self.cluster.shares(job):
            return "shares nodes"
        if not low <= nodes <= high:
            return f"runs on {low} to {high} nodes"
        return f"lacks nodes: {state.idle} are idle" if added else "already has that size"

    def _expect(self, job: int, end: float) -> None:
        """Set the expected end of a running job, s, and update its number of nodes in the releases."""
        state = self.state
        state.releases.remove(job, state.expected_end[job])
        state.releases.add(job, end, max(0, state.size[job] - state.draining.get(job, 0)))
        state.expected_end[job] = end

    def _extend_limits(self) -> None:
        """Expect every running job whose limit has passed to run for another full limit from now on.

        All reservations are deleted, because they assume that these jobs have ended.
        """
        state, passed = self.state, False
        for job in state.releases.due(state.now):
            if job not in state.size or state.expected_end[job] > state.now:
                continue  # promised and not started, or the host of a guest whose expected end moved
            passed = True
            done, since, rate = self._progress.get(job, (0.0, state.now, 1.0))
            limit = max(self.jobs.limit[job], SHORTEST_S)
            self._limit[job] = done + (state.now - since) * rate + limit
            if self._shares:
                self._sharing.expect([job])
            else:
                self._expect(job, state.now + limit / rate)
        if passed:
            self._plans_changed()

    def serve(self) -> None:
        """Start every promised job for which enough nodes are idle, in the order of the promises.

        The executor must call this method after all events of an instant.
        """
        if not self._promises.nodes:
            return
        served = self._promises.serve(len(self.cluster.idle))
        for job, nodes in served:
            # The expected end counts from the start.
            end = self.state.now + self.jobs.limit[job] / self.jobs.rate(job, nodes)
            self.state.size[job] = nodes
            self._expect(job, end)
            self._launch(job, nodes)
        if served:
            self._update_idle()

    def nodes_changed(self, nodes: Collection[int] = ()) -> None:
        """Re-plan after `nodes` were lost or returned. All reservations are deleted: they assumed other nodes."""
        self._plans_changed()
        self._withdraw_promises()

    def _plans_changed(self) -> None:
        """Delete all reservations, and let all jobs be tried again: with later expected ends, others may start."""
        self.state.reserved.clear()
        self._nodes_freed()

    def _withdraw_promises(self) -> None:
        """Withdraw the promises that cannot be kept because nodes were lost, the last one first."""
        state = self.state
        while state.idle < 0 and (job := self._promises.last) is not None:
            self._promises.drop(job)
            state.releases.remove(job, state.expected_end.pop(job))
            self.state.wait(job)
            self._update_idle()

    def _nodes_freed(self) -> None:
        self.state.freed, self.state.settled = True, False
        self._update_idle()

    def _update_idle(self) -> None:
        """Recompute the idle nodes that are not reserved by promises."""
        self.state.idle, self.state.returning = self._promises.left_over(len(self.cluster.idle))

    def _check_chosen(self, decision: Start | Resize, count: int) -> None:
        chosen = set(decision.on)
        self._check(len(chosen) == len(decision.on) == count, decision, f"would get {len(chosen)} nodes")
        self._check(chosen.issubset(self.cluster.idle), decision, "would get nodes that are not idle")

    def _check(
        self, good: bool, decision: Start | Resize | Share | Reject | Cancel | Suspend | Reserve, what: str
    ) -> None:
        if not good:
            where = f"policy {name_of(self.policy)} at t = {cell(self.state.now)} s"
            what = f"cannot {decision_in_words(decision, self.jobs.ids)}: the job {what}"
            raise PolicyError(what, where=where, hint=DEFECT)
