"""The view of a replay under a policy of tracebed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.states import JobState
from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay.health import health
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.monitor import Monitor
from tracebed.orchestrator.replay.recovery import Reconstruction
from tracebed.orchestrator.run import RunInfo
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import cut_short
from tracebed.orchestrator.watching.view import FAULTS, HeldNodes, View, damage


class ReplayView(View):
    """The state of a replay under a policy of tracebed."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        with damage():
            info = RunInfo.from_json(facts["info"])
            jobs = Jobs.of_facts(facts["jobs"])
            super().__init__(facts, info, jobs)
            self._reconstruction = Reconstruction(jobs, info)
            self._monitor = Monitor(jobs, info.nodes, info.speed)

    def _apply(self, entry: Entry) -> None:
        self._reconstruction.apply(entry)
        self._monitor.apply(entry)
        self.core_changes.update(map(str, self._reconstruction.record.cores.cause[self.core_changes.total() :]))
        if entry.kind in FAULTS and not (entry.kind == "error" and entry.job):  # such a job had just ended
            reason = entry.data.get("reason") or entry.data.get("what") or entry.data.get("used")
            self._count_fault(entry.kind, entry.time, node=entry.node, job=entry.job, reason=reason)

    def _cut_short(self, now: float, interrupted: str | None) -> None:
        cut_short(
            self._reconstruction.record, self._reconstruction.cluster, self._reconstruction.running, now, interrupted
        )
        self._reconstruction.running.clear()

    @property
    def states(self) -> Sequence[JobState | None]:
        """The final state of each job; None: the job has not ended."""
        return [None if state is JobState.UNKNOWN else state for state in self._reconstruction.record.state]

    @property
    def submitted(self) -> Sequence[float]:
        """The submit time of each job, trace s; NaN: not submitted."""
        return self._reconstruction.record.submit

    @property
    def running(self) -> Mapping[int, int]:
        """Running job -> its number of nodes, in the order of the starts."""
        return self._reconstruction.running

    @property
    def resizes(self) -> int:
        """The number of resizes that took effect."""
        return int(np.isfinite(self._reconstruction.record.resizes.applied).sum())

    def handovers(self) -> dict[str, Any]:
        """Return the longest overlap and gap of two masks on a CPU so far, as in `run.json`."""
        return self._monitor.handovers.worst(self.info.speed, [node.name for node in self.info.nodes])

    def late_s(self) -> FloatArray:
        """Return the time by which each job was submitted too late, trace s; NaN: not submitted."""
        return self._reconstruction.record.late_s()

    def start_of(self, job: int) -> float:
        """Return the start of a running job, trace s."""
        return self._reconstruction.record.start[job]

    @property
    def nodes_out(self) -> Sequence[int]:
        """The nodes that were lost and have not returned."""
        return sorted(self._reconstruction.cluster.lost)

    @property
    def nodes_busy(self) -> int:
        """The number of nodes that jobs hold."""
        cluster = self._reconstruction.cluster
        return len({node for job in self.running for node in cluster.owned(job)})

    @property
    def nodes_asleep(self) -> int | None:
        """The number of nodes that are off, being switched off or booting, without a job; None: nodes stay on."""
        if self.info.machine is None or self.info.machine.sleep is None:
            return None
        cluster, power = self._reconstruction.cluster, self._reconstruction.power
        return sum(power.get(node, PowerState.ON) is not PowerState.ON for node in cluster.idle)

    def holdings(self, since: float) -> Iterator[HeldNodes]:
        """Yield the periods after `since` in which jobs hold nodes. A period that has not ended ends now."""
        cluster = self._reconstruction.cluster
        for job in self.running:
            for held_since, nodes in cluster.periods(job):
                for node in nodes:
                    part = cluster.part(job, node) if node in cluster.loans else None
                    yield HeldNodes(job, node, 1, held_since, self.now, part)
        for node, loan in cluster.loans.items():
            yield HeldNodes(loan.guest, node, 1, loan.since, self.now, cluster.part(loan.guest, node))
        ledger = cluster.ledger
        for row in range(len(ledger.jobs) - 1, -1, -1):
            if ledger.ends[row] < since:
                break
            span = (ledger.starts[row], ledger.ends[row], ledger.parts.get(row))
            yield HeldNodes(ledger.jobs[row], ledger.firsts[row], ledger.counts[row], *span)

    def health(self) -> dict[str, Any]:
        """Return the health of the replay so far, as in `run.json`."""
        info = replace(self._info(), pauses=self._reconstruction.record.pauses, handovers=self.handovers())
        return health(self._monitor, info, self._reconstruction.record, self._thresholds)
