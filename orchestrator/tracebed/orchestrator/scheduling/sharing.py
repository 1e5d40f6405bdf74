"""Rates and expected ends of jobs that share nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tracebed.converters.workload import Kind
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.state import Share, State

Progress = tuple[float, float, float]
"""Progress at an instant in s of static run time, the instant, and the rate since then."""


class Sharing:
    """The part of the scheduler that manages shared nodes.

    Rates follow the worst-case model: the node with the fewest cores determines the rate (SD-Policy paper, equation 6).
    As in the simulator, fewer cores do not slow down the part of a job that runs on one core: an addition to the paper.

    Args:
        jobs: the workload.
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
        self._note_host(job)

    def _note_host(self, job: int) -> None:
        cluster = self.cluster
        kinds = {(cluster.cores[node], cluster.sockets[node]) for node in cluster.owned(job)}
        able = self.jobs.kind[job] == Kind.MALLEABLE and job not in self.state.failing
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
            self._note_host(job)
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
            if loan is None:
                count += 1
            elif loan.owner == job:
                count += ends[loan.guest] <= ends[job]
            else:
                count += ends[loan.owner] < ends[job]
        return count
