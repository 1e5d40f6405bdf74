"""Ranks that run a command in place of a kernel: one copy of the command for each rank, on the CPUs of the rank."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from tracebed.benchmarks.affinity import set_affinity, signal_descendants
from tracebed.benchmarks.follower import Follower
from tracebed.benchmarks.kernels import Kernel
from tracebed.benchmarks.malleable import Leader
from tracebed.benchmarks.program import Launch
from tracebed.benchmarks.rank import BenchmarkRank, Control
from tracebed.benchmarks.watchdog import Watchdog
from tracebed.benchmarks.workers import Workers

INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR")
"""Environment variables of the agent that commands inherit."""


NOT_STARTED = 127
"""Exit status of a command that cannot be started."""


def run(
    launch: Launch,
    control: Control,
    kernel: Kernel,
    ranks: tuple[type[CommandLeader], type[CommandFollower]],
    *,
    moves: bool,
    given: Mapping[str, str],
) -> int:
    """Run the command of one rank until it ends, and return the exit status of the process.

    Args:
        launch: the launch parameters of the rank.
        control: the connection to the agent.
        kernel: the kernel of the application, which is not used.
        ranks: the classes of the leader and of the other ranks.
        moves: whether the command follows changes of the CPUs of the rank.
        given: environment variables of the command, beside its own.
    """
    watchdog = Watchdog()  # before this process has threads
    try:
        rank = ranks[0 if launch.leader else 1](launch, control, kernel)
        rank.supervise(watchdog, moves=moves, given=given)
        return rank.run()
    finally:
        watchdog.close()


class CommandCpus(Workers):
    """The CPUs of a command. They compute no units."""

    watchdog: Watchdog | None = None
    """The watchdog of a command that follows changes of the CPUs; None: the command keeps its CPUs."""

    @property
    def busy(self) -> bool:
        """Whether a core computes a unit."""
        return False

    def start(self, shares: Sequence[range]) -> None:
        """Raise an error: a command has no units."""
        raise NotImplementedError

    def set_mask(self, cpus: Sequence[int]) -> None:
        """Replace the mask by `cpus`, and move all threads of the command to them."""
        super().set_mask(cpus)
        os.sched_setaffinity(0, cpus)
        if self.watchdog is not None:
            set_affinity(self.watchdog.pid, cpus, descendants=True)
            signal_descendants(self.watchdog.pid, signal.SIGCONT)

    def suspend(self) -> None:
        """Stop all processes of the command until the next mask."""
        if self.watchdog is not None:
            signal_descendants(self.watchdog.pid, signal.SIGSTOP)


class CommandRank(BenchmarkRank):
    """The common part of the ranks of a command."""

    PLANNED = False
    watchdog: Watchdog
    given: Mapping[str, str]
    running = False
    terminated = False

    def _make_workers(self, kernel: Kernel) -> Workers:
        return CommandCpus(self.launch.cpus, self.program.rate, self._worked, self.clock)

    def supervise(self, watchdog: Watchdog, *, moves: bool, given: Mapping[str, str]) -> None:
        """Use the watchdog. A SIGTERM of the agent is left to the command, so that it can shut down cleanly."""
        assert isinstance(self.workers, CommandCpus)
        self.watchdog, self.given, self.checksum = watchdog, given, None
        set_affinity(watchdog.pid, self.workers.cpus)
        self.workers.watchdog = watchdog if moves else None
        self.selector.register(watchdog.link, selectors.EVENT_READ, self._from_watchdog)
        signal.signal(signal.SIGTERM, self._terminate)

    def start_part(self, shares: Sequence[range] | None, behind: float) -> None:
        """Start the command."""
        command, members = self.program.command, self.launch.members
        variables: Mapping[str, str] = command["environment"]
        own = {name: os.environ[name] for name in INHERITED if name in os.environ}
        ranks = {
            "TRACEBED_JOB": self.launch.job,
            "TRACEBED_RANK": str(members.index(self.name)),
            "TRACEBED_RANKS": str(len(members)),
            "TRACEBED_NODES": ",".join(members),
            "TRACEBED_CORES": str(len(self.workers.cpus)),
        }
        self.running = True
        self.watchdog.start(
            {
                "arguments": command["arguments"],
                "environment": {**own, **ranks, **self.given, **variables},
                "folder": command["folder"] or str(self.launch.folder),
                "memory_mib": self.program.memory_mib,
            }
        )

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        # At once: the same signal ends the command, whose end the selector may report before a call in the mailbox.
        self.terminated = True
        self.mailbox.post(self._fail_unless_running)

    def _fail_unless_running(self) -> None:
        if not self.running:
            self.fail("was terminated")

    def _from_watchdog(self) -> None:
        message = self.watchdog.receive()
        if message is None:
            self.fail("the watchdog of the command was killed")
        elif message["type"] == "started":
            self.beat("running", changed=True)
        else:
            self.selector.unregister(self.watchdog.link)
            self.running = False
            status = NOT_STARTED if message["status"] is None else message["status"]
            self.command_ended(status, "was terminated" if self.terminated else message["reason"] or _reason(status))

    def command_ended(self, status: int, reason: str) -> None:
        """Process the end of the command of this rank.

        Args:
            status: exit status, negative for a signal.
            reason: why the rank has failed; empty: no failure.
        """
        raise NotImplementedError


def _reason(status: int) -> str:
    """Return why a command with this exit status has failed; empty: it has succeeded."""
    if status < 0:
        return f"the command was killed by signal {-status} ({signal.strsignal(-status)})"
    return f"the command ended with status {status}" if status else ""


class CommandFollower(CommandRank, Follower):
    """A rank that starts its command at the message `go` of the leader."""

    def command_ended(self, status: int, reason: str) -> None:
        """Report the exit status to the leader, which waits for all ranks."""
        self.part_ended(status, 0.0)
        if reason:
            self.fail(reason)


class CommandLeader(CommandRank, Leader):
    """The rank that starts the commands of all ranks, and waits for their ends."""

    def _iterate(self) -> None:
        self.awaited = set(self.members)
        for member in self.members:
            if member != self.name:
                self._send(member, type="go", iteration=0, units=(0, 0), behind=0.0)
        self.start_part(None, 0.0)

    def command_ended(self, status: int, reason: str) -> None:
        """Wait for the other ranks."""
        if reason:
            self.fail(reason)
        self._rank_done(self.name, status, None, 0.0)

    def _rank_done(self, rank: str, units: int, checksum: int | None, seconds: float) -> None:
        """Process the end of a command, whose exit status is `units`."""
        self.awaited.discard(rank)
        if reason := _reason(units):
            self.fail(f"on {rank}: {reason}")
        elif not self.awaited:
            for other in self.links:
                self._send(other, type="end")
            self.finish()

    def resize(self, message: dict[str, Any]) -> None:
        """Reject a change of nodes."""
        self.refuse(message, "a command keeps its nodes")
