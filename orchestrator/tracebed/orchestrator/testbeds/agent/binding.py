"""The check of the kernel's view: every thread of a rank may use the CPUs of its rank only.

A program may change its affinity, or ignore a mask that was set from outside. Such threads are bound again and
reported. A thread is reported only if it stays outside its mask for `CONFIRM_S`: the message of a rank about its CPUs
arrives after its threads have moved.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping

from tracebed.benchmarks.affinity import strays
from tracebed.ground import system as world
from tracebed.ground.cpus import format_cpus
from tracebed.orchestrator.testbeds.agent.outbox import Outbox
from tracebed.orchestrator.testbeds.agent.processes import RankProcess

CHECK_S = 5.0
"""Time between two checks of all ranks, and shortest time between two reports on a rank, s."""
CONFIRM_S = 0.2
"""Time between the first sight of a thread outside its mask and its return, s."""


class Binding:
    """The masks of the threads of all ranks on a computing node.

    Args:
        outbox: the events of the agent.
        ranks: job -> its rank on this node.

    Attributes:
        due: time at which `tick` must be called, `world.monotonic()`.
    """

    def __init__(self, outbox: Outbox, ranks: Mapping[str, RankProcess]) -> None:
        self.outbox, self.ranks = outbox, ranks
        self.due = world.monotonic() + CHECK_S
        self._masks: dict[int, frozenset[int]] = {}
        """PID of a rank whose CPUs have changed -> its CPUs."""
        self._suspects: dict[int, dict[int, float]] = {}
        """PID of a rank -> its threads outside its mask -> time at which they were first seen there."""
        self._last_report: dict[int, float] = {}
        """PID of a rank -> time of the last report."""

    def changed(self, rank: RankProcess, cpus: Collection[int]) -> None:
        """Check a rank that has changed its CPUs."""
        mask = frozenset(cpus)
        if _command(rank) == "rigid":
            mask |= frozenset(rank.launch.cpus)
        self._masks[rank.pid] = mask
        self._check(rank, world.monotonic())

    def forget(self, pid: int) -> None:
        """Forget a rank that has ended."""
        for known in (self._masks, self._suspects, self._last_report):
            known.pop(pid, None)

    def tick(self) -> None:
        """Check all ranks, if it is time."""
        now = world.monotonic()
        if now >= self.due:
            self.due = now + CHECK_S
            for rank in self.ranks.values():
                self._check(rank, now)

    def _check(self, rank: RankProcess, now: float) -> None:
        mask = self._masks.get(rank.pid, frozenset(rank.launch.cpus))
        if not mask:  # a rank without CPUs waits
            return
        found = strays(rank.pid, mask, descendants=_command(rank) is not None)
        before = self._suspects.get(rank.pid, {})
        suspects = {thread: before.get(thread, now) for thread in found}
        confirmed = [thread for thread, since in suspects.items() if now >= since + CONFIRM_S]
        if confirmed:
            held = _rebind(confirmed, mask)
            if now >= self._last_report.get(rank.pid, 0.0) + CHECK_S:
                self._last_report[rank.pid] = now
                self.outbox.send(
                    "stray",
                    job=rank.launch.job,
                    rank=rank.launch.rank,
                    threads=len(confirmed),
                    cpus=format_cpus(sorted(mask)),
                    used=format_cpus(sorted(frozenset[int]().union(*(found[thread] for thread in confirmed)))),
                    put_back=held,
                )
        self._suspects[rank.pid] = {thread: since for thread, since in suspects.items() if thread not in confirmed}
        if self._suspects[rank.pid]:
            self.due = min(self.due, now + CONFIRM_S)


def _command(rank: RankProcess) -> str | None:
    """Return the backend of the command of a rank; None: the rank runs no command."""
    program = rank.launch.program
    return str(program.parameters.get("backend", "rigid")) if program.command else None


def _rebind(threads: Iterable[int], mask: frozenset[int]) -> bool:
    """Bind threads to a mask, and return whether all of them are bound or have ended."""
    done = True
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            try:
                os.sched_setaffinity(thread, mask)
            except PermissionError:  # a program that runs as another user
                done = False
    return done
