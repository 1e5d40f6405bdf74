"""The executor of a replay: sends starts, resizes and ends of jobs as messages to their ranks."""

from __future__ import annotations

import hashlib
import hmac

from tracebed.ground.cpus import format_cpus
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.commands import command_of
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.programs import application_of, program_of
from tracebed.orchestrator.replay.ranks import Ranks, RunningJob
from tracebed.orchestrator.replay.rounds import Rounds
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Testbed
from tracebed.orchestrator.testbeds.nodes import Inventory


class ReplayExecutor:
    """The executor of a scheduler on a testbed.

    Args:
        jobs: the workload.
        testbed: the nodes.
        inventory: the description of the nodes.
        ranks: the ranks of the running jobs.
        record: the times and states of the jobs.
        rounds: the journal entries.
        secret: the secret from which the keys of the connections between ranks are derived.

    Attributes:
        rates: kernel -> units per second of a core, by which the work of jobs is sized. A missing rate is taken
            from the measurement at the start of the testbed.
    """

    def __init__(
        self,
        jobs: Jobs,
        testbed: Testbed,
        inventory: Inventory,
        speed: float,
        options: Options,
        ranks: Ranks,
        record: ScheduleRecord,
        rounds: Rounds,
        secret: bytes,
    ) -> None:
        """Start without running jobs."""
        self.jobs, self.testbed, self.inventory = jobs, testbed, inventory
        self.speed, self.options = speed, options
        self.ranks, self.record, self.rounds = ranks, record, rounds
        self._secret = secret
        self.rates: dict[str, float] = {}

    def start(self, job: int, nodes: list[int]) -> None:
        """Launch the leader. The other ranks are launched once the leader is listening."""
        self.record.start[job] = self.rounds.now
        cores, kernels = self.ranks.cores(job, nodes), application_of(self.jobs, job).kernels
        emulated = self.testbed.nodes[nodes[0]].emulated
        measured = dict.fromkeys(kernels, self.testbed.units_per_core_second)
        program = program_of(
            self.jobs,
            job,
            dict.fromkeys(kernels, EMULATED_RATE) if emulated else measured | self.rates,
            speed=self.speed,
            grain_s=self.inventory.grain_s,
            balance=self.options.balance,
        )._replace(command=command_of(self.jobs, job, self.options.commands))
        self.record.cores.begin(job, self.ranks.cluster, self.jobs.cores[job])
        self.ranks.running[job] = RunningJob(nodes, program, self._key(job), cores, nodes, list(nodes))
        self.rounds.note("start", job, nodes=self.ranks.names(nodes), **self._of_shared(job))
        self.ranks.launch(job)

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Launch ranks on the new nodes, and send the new members of the job to the leader."""
        self.record.resize_requested(job, before, len(nodes), self.rounds.now)
        active = self.ranks.running[job]
        old, active.nodes = active.nodes, nodes
        active.request += 1
        active.pending = True
        active.dropped = set(old) - set(nodes)
        self.rounds.note("resize", job, nodes=self.ranks.names(nodes), request=active.request)
        active.cores |= self.ranks.cores(job, nodes)
        new = [node for node in nodes if node not in old]
        active.to_launch += new
        active.since |= dict.fromkeys(new, self.rounds.now)
        self.ranks.launch(job)
        if active.started:
            self.ranks.send_members(job)
        return False

    def deny(self, job: int, requested: int) -> None:
        """Record that the job does not get `requested` nodes. The job has not waited for an answer."""
        self.record.deny(job, len(self.ranks.running[job].nodes), requested, self.rounds.now)
        self.rounds.note("deny", job, reason=f"{requested} nodes")

    def change_cores(self, job: int) -> None:
        """Change the masks of the ranks of the job, each once no other job uses these cores."""
        active = self.ranks.running[job]
        active.cores |= self.ranks.cores(job, active.nodes)
        changes = self.record.cores.differences(job, self.ranks.cluster, self.jobs.cores[job])
        self.record.cores.requested(job, len(active.nodes), changes, self.rounds.now)
        named = {self.testbed.nodes[node].name: [*map(format_cpus, change)] for node, change in changes.items()}
        self.rounds.note("cores", job, changes=named, **self._of_shared(job))
        self.ranks.change_masks(job)

    def reject(self, job: int, reason: str) -> None:
        """Record that the job is rejected."""
        self.rounds.note("reject", job, reason=reason)
        self.record.refuse(job, JobState.REJECTED, reason)

    def cancel(self, job: int, reason: str) -> None:
        """End all processes of the job. The job does not return to the queue, even if a node is lost."""
        active = self.ranks.running[job]
        self.rounds.note("cancel", job, reason=reason)
        if active.outcome is None or active.outcome[0] == "requeued":
            active.outcome = ("cancelled", reason)
        self.kill(job, reason)

    def kill(self, job: int, reason: str) -> None:
        """Kill all ranks of the job."""
        self.rounds.note("kill", job, reason=reason)
        self.ranks.kill(job, reason)

    def _key(self, job: int) -> str:
        """Return the key of the connections between the ranks of the job. A restarted job gets another key."""
        run = f"{self.record.restarts[job]} {self.jobs.ids[job]}"
        return hmac.new(self._secret, run.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()[:32]

    def _of_shared(self, job: int) -> dict[str, dict[str, str]]:
        """Return the journal fields for the cores of the job on its shared nodes; empty if it shares no nodes."""
        cluster = self.ranks.cluster
        shared = [node for node in cluster.nodes_of(job) if node in cluster.loans]
        parts = {self.testbed.nodes[node].name: format_cpus(cluster.part(job, node)) for node in shared}
        return {"cores": parts} if parts else {}
