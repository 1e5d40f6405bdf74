"""The ranks of the jobs on a node: launched, resized, stopped, continued, killed, and reported at their end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracebed.benchmarks.clock import Pauses, SteadyClock
from tracebed.benchmarks.lines import Lines, decode
from tracebed.benchmarks.program import Launch
from tracebed.ground import system
from tracebed.ground.cpus import parse_cpus
from tracebed.ground.errors import InputError, TracebedError
from tracebed.orchestrator.testbeds.agent.launching import RELAYED, NodeDescription, read_launch
from tracebed.orchestrator.testbeds.agent.machine import Machine
from tracebed.orchestrator.testbeds.agent.masks import Binding, Masks
from tracebed.orchestrator.testbeds.agent.messages import LONGEST_S, MessageFields, Outbox
from tracebed.orchestrator.testbeds.agent.processes import RankProcess
from tracebed.orchestrator.testbeds.agent.relay import Relays

HALT_S = 60.0
"""Time after which a rank that was stopped from outside is continued, s: other ranks may wait for its CPUs."""
OF_RANK = ("planned_s", "late_s", "overruns", "residual_s", "checksum")
"""Fields of the message `finished` that the event `ended` repeats."""


class RankManager:
    """The ranks on the node of an agent. Their sockets are in the private folder of the agent."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        outbox: Outbox,
        node: NodeDescription,
        sockets: Path,
        machine: Machine,
    ) -> None:
        """Start without ranks, and create the table of the CPUs. Raises TestbedError if it cannot be created."""
        self.selector, self.outbox, self.node, self.sockets = selector, outbox, node, sockets
        self.machine = machine
        self.ranks: dict[str, RankProcess] = {}  # job -> its rank on this node
        self.binding = None if node.emulated else Binding(outbox, self.ranks)
        self.masks = Masks(outbox, machine.table_path(sockets), node.cpus, self.ranks, self._report_resized)
        self.relays = Relays(selector, outbox, node.name)
        self.pauses = Pauses()
        # Time at which the ranks were stopped, `system.monotonic()`; None: they run.
        self.stopped_at: float | None = None
        self.launches = 0  # number of launches so far

    def due(self) -> Iterator[float]:
        """Yield the times at which `tick` must be called, `system.monotonic()`."""
        for rank in self.ranks.values():
            if rank.kill_at is not None:
                yield rank.kill_at
            if rank.continue_at is not None:
                yield rank.continue_at
        if self.binding and self.ranks:
            yield self.binding.due

    def tick(self) -> None:
        """Report the ranks that have ended or stopped, and kill the ranks that ignored SIGTERM."""
        self._reap()
        now = system.monotonic()
        for rank in self.ranks.values():
            if rank.continue_at is not None and now >= rank.continue_at:
                rank.continue_at = None
                rank.signal(signal.SIGCONT)
            if rank.kill_at is not None and now >= rank.kill_at:
                rank.kill_at = None
                rank.signal(signal.SIGKILL)
        if self.binding:
            self.binding.tick()

    # Requests.

    def launch(self, message: dict[str, Any]) -> None:
        """Start a rank. Report a rank that cannot be started as ended."""
        fields = MessageFields(message)
        job, name, leader = fields.text("job"), fields.text("rank"), fields.flag("leader")
        try:
            if job in self.ranks:
                raise InputError("an earlier rank of the job has not ended on this node yet")
            self.launches += 1
            own = self.sockets / f"{self.launches}.socket"
            launch = read_launch(message, self.node, own, self.pauses, self.masks.path)
            if fields.text("family") == RELAYED:
                self.relays.add_leader(job, str(own)) if leader else self.relays.add_follower(
                    job, str(own), fields.text("address")
                )
            self._fork(launch)
        except (KeyError, ValueError, TypeError, OSError, TracebedError) as error:
            if job not in self.ranks:
                self.relays.forget(job)
            reason = f"message lacks {error}" if isinstance(error, KeyError) else str(error)
            self._report_end(job, name, leader=leader, state="failed", reason=f"cannot be launched: {reason}")

    def resize(self, message: dict[str, Any]) -> None:
        """Change the mask of the rank of the job, or pass a change of members on to it."""
        fields = MessageFields(message)
        rank = self._rank(fields)
        request = fields.whole("request", 0)
        if "members" not in fields:
            self.masks.change(rank, request, self.node.mask(fields.text("cpus")))
        elif rank.launch.leader:
            rank.lines.send({"request": request, "members": fields.names("members")})
        else:
            raise InputError("a change of members must be sent to the leader, which is not on this node")

    def kill(self, message: dict[str, Any]) -> None:
        """End the rank of a job."""
        fields = MessageFields(message)
        self._rank(fields).kill(fields.text("reason"))

    def end(self, reason: str) -> None:
        """End all ranks."""
        for rank in self.ranks.values():
            rank.kill(reason)
        self.resume()  # a stopped process receives SIGTERM only when it continues

    def _rank(self, fields: MessageFields) -> RankProcess:
        job = fields.text("job")
        if job not in self.ranks:
            raise InputError(f"job {job!r} has no rank on this node")
        return self.ranks[job]

    # Pauses.

    @property
    def stopped_s(self) -> float:
        """The time for which the ranks have been stopped, s; 0: they run."""
        return 0.0 if self.stopped_at is None else system.monotonic() - self.stopped_at

    def stop(self) -> None:
        """Stop the processes of all ranks, unless they are stopped."""
        if self.stopped_at is None:
            self.stopped_at = system.monotonic()
            for rank in self.ranks.values():
                rank.signal(signal.SIGSTOP)

    def continue_ranks(self, message: dict[str, Any]) -> None:
        """Continue the ranks that were held for a controller, which sets the pauses that their clocks leave out."""
        total = MessageFields(message).number("left_out_s", 0.0, LONGEST_S)
        if self.stopped_at is not None:
            self.pauses.set(total)
            self._continue()

    def resume(self) -> None:
        """Continue the processes of all ranks, whose clocks leave out the pause."""
        if self.stopped_at is not None:
            self.pauses.add(self.stopped_s)
            self._continue()

    def _continue(self) -> None:
        self.stopped_at = None
        for rank in self.ranks.values():
            rank.signal(signal.SIGCONT)

    # Processes.

    def _fork(self, launch: Launch) -> None:
        pinned = None if self.node.emulated else self.node.cpus
        rank = self.machine.fork(launch, pinned, lambda pid: self.masks.prepare(pid, launch.cpus))
        control = rank.control.fileno()
        rank.lines = Lines(self.selector, control, control, lambda: self._from_rank(rank))
        self.ranks[launch.job] = rank
        self.masks.ring()  # ranks whose CPUs this rank is to have

    def _from_rank(self, rank: RankProcess) -> None:
        rank.lines.flush()
        for line in rank.lines.receive():
            message = decode(line)
            self.masks.begin(rank)
            if message["type"] == "finished":
                rank.finished = message
            elif message["type"] == "table_lost":
                self.masks.check(rank)
            elif message["type"] == "resized" and "cpus" in message:
                self._report_resized(rank, self.masks.answer(rank, message))
                self.masks.ring()  # ranks that take the CPUs which this rank has released
            else:
                if message["type"] == "listening" and self.relays.has_leader(rank.launch.job):
                    message["address"] = self.node.name
                self.outbox.forward({"job": rank.launch.job, "rank": rank.launch.rank, **message})

    def _report_resized(self, rank: RankProcess, message: dict[str, Any]) -> None:
        """Report the CPUs that a rank holds."""
        if self.binding:
            self.binding.changed(rank, parse_cpus(message["cpus"]))
        self.outbox.forward({"job": rank.launch.job, "rank": rank.launch.rank, **message})

    def _reap(self) -> None:
        """Report each rank whose process has ended, or was stopped or continued from outside."""
        if not self.machine.any_changed():  # one call, however many ranks run
            return
        for job, rank in list(self.ranks.items()):
            if (change := self.machine.change_of(rank.pid)) is None:
                continue
            status = change.status
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                self._note_halt(rank, stopped=os.WIFSTOPPED(status))
                continue
            self._from_rank(rank)  # the last messages may not have been read yet
            rank.lines.forget()
            rank.control.close()
            del self.ranks[job]
            if self.binding:
                self.binding.forget(rank.pid)
            self.relays.forget(job)
            if rank.launch.clock:
                with contextlib.closing(SteadyClock(rank.launch.clock)) as clock:
                    clock.forget(rank.pid)
            if rank.launch.leader and isinstance(rank.launch.address, str):
                Path(rank.launch.address).unlink(missing_ok=True)
            code = os.waitstatus_to_exitcode(status)
            state, reason = rank.outcome(code)
            self._report_end(
                job,
                rank.launch.rank,
                leader=rank.launch.leader,
                state=state,
                reason=reason,
                exit_code=code,
                units_done=rank.units_done(),
                cpu_s=change.cpu_s,
                termination_s=rank.termination_s(),
                done=rank.finished.get("time"),
                **{name: rank.finished.get(name) for name in OF_RANK},
            )
            self.masks.ended(rank.pid)

    def _note_halt(self, rank: RankProcess, *, stopped: bool) -> None:
        """Report that a rank was stopped, or continued, unless this agent has stopped it."""
        now = system.monotonic()
        if stopped and rank.halted_at is None and self.stopped_at is None:
            rank.halted_at, rank.continue_at = now, now + HALT_S
            self.outbox.send("halted", job=rank.launch.job, rank=rank.launch.rank, halted_s=None)
        elif not stopped and rank.halted_at is not None:
            halted_s, rank.halted_at, rank.continue_at = now - rank.halted_at, None, None
            self.outbox.send("halted", job=rank.launch.job, rank=rank.launch.rank, halted_s=halted_s)

    def _report_end(self, job: str, name: str, **fields: Any) -> None:
        start = {"exit_code": None, "units_done": 0, "cpu_s": 0.0}  # of a rank that was not launched
        self.outbox.send("ended", job=job, rank=name, **start | fields)
