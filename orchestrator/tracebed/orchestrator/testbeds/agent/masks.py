"""The CPU masks of the ranks of a node in the agent: changes of its CPU table, and the check of the kernel's view."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tracebed.benchmarks.affinity import strays
from tracebed.benchmarks.clock import SteadyClock
from tracebed.benchmarks.drom import Administrator, CpuMasks
from tracebed.benchmarks.node_table import NodeTable, TableLostError, start_of
from tracebed.benchmarks.ownership import DromResult, Flags
from tracebed.ground import system
from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds.agent.messages import Outbox
from tracebed.orchestrator.testbeds.agent.processes import PendingMask, RankProcess

# Only the agent changes the table, and the controller assigns a CPU to a job before it takes the CPU from another.
CHANGE = Flags.STEAL | Flags.REPLACE
Report = Callable[[RankProcess, dict[str, Any]], None]
DOORBELL: Mapping[str, Any] = {"type": "poll"}
CHECK_S = 5.0  # time between two checks of all ranks, and shortest time between two reports on a rank, s
CONFIRM_S = 0.2  # time between the first sight of a thread outside its mask and its return, s


class Masks:
    """The CPU table of a node: changes of the table, and doorbells for the ranks that must apply them.

    `report` reports the CPUs of a rank, given the rank and the event `resized`.
    """

    def __init__(
        self, outbox: Outbox, path: Path, cpus: tuple[int, ...], ranks: Mapping[str, RankProcess], report: Report
    ) -> None:
        self.outbox, self.first, self.cpus, self.ranks, self.send = outbox, path, cpus, ranks, report
        self.administrator = Administrator(NodeTable.create(path, cpus))
        self.replacements = 0  # number of tables that were lost so far
        self._known: dict[int, CpuMasks] = {}  # PID -> its CPUs after the last change by this agent

    @property
    def path(self) -> Path:
        """The path of the table."""
        return self.administrator.table.path

    # Changes.

    def prepare(self, pid: int, cpus: tuple[int, ...]) -> None:
        """Reserve CPUs for the process of a rank. Raises TestbedError if the table is full."""
        result = self._call(lambda: self.administrator.prepare(pid, cpus, CHANGE)[0])
        if result.error and result is not DromResult.NO_PROCESS:  # the end of the process is reported anyway
            raise TestbedError(f"the table of CPUs is full: {result.name}")

    def change(self, rank: RankProcess, request: int, cpus: tuple[int, ...]) -> None:
        """Set the CPUs of a rank, which answers by `resized`. A request that is repeated is ignored."""
        if (request, cpus) == rank.last_mask:
            return
        pending = PendingMask(request, cpus, _now(rank))
        result = self._call(lambda: self.administrator.set_mask(rank.pid, cpus, CHANGE))
        if result.error and result is not DromResult.NO_PROCESS:  # the end of the process is reported anyway
            raise TestbedError(f"the mask of the rank cannot be set: {result.name}")
        asked_before, rank.last_mask = rank.last_mask, (request, cpus)
        rank.pending_masks.append(pending)
        if result is DromResult.SUCCESS:  # the rank holds these CPUs already, or has not started
            at = pending.time
            if rank.first_mask and rank.first_mask[0] == cpus and not asked_before:
                # Another rank had taken the other CPUs before this rank began, and before this request was here.
                at = rank.first_mask[1]
            message = {"type": "resized", "time": system.monotonic(), "cpus": format_cpus(cpus), "iteration": None}
            message |= {"seen": at, "decided": at, "applied": at}
            self.send(rank, self.answer(rank, message))
        self.ring()

    def begin(self, rank: RankProcess) -> None:
        """Note the CPUs that a rank has when it begins: only this agent has changed them."""
        if rank.first_mask is None:
            rank.first_mask = self._known.get(rank.pid, CpuMasks()).held, _now(rank)

    def answer(self, rank: RankProcess, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message `resized` of a rank with the request that it answers; null: it answers no request.

        A rank that takes its CPUs in several polls answers when it holds all of them. The answer also applies to
        earlier requests, which were replaced.
        """
        for number, pending in reversed([*enumerate(rank.pending_masks)]):
            if format_cpus(pending.cpus) == message["cpus"]:
                del rank.pending_masks[: number + 1]
                return {**message, "request": pending.request, "asked": pending.time}
        return {**message, "request": None, "asked": None}

    def ended(self, pid: int) -> None:
        """Return the CPUs of a process that has ended to the ranks from which they were taken."""
        self._call(lambda: self.administrator.finalize(pid, Flags.RETURN_STOLEN))
        self.ring()

    def ring(self) -> None:
        """Ring the doorbell of each rank with a posted change."""
        self._call(self._refresh)
        for rank in self.ranks.values():
            share = self._known.get(rank.pid)
            if share is not None and share.posts != rank.last_doorbell:
                rank.last_doorbell = share.posts
                rank.lines.send(DOORBELL)

    # A table that is lost.

    def check(self, rank: RankProcess) -> None:
        """Make a rank that lost the table open it again, or replace the table."""
        self._call(self._refresh)
        if rank.pid in self._known:
            rank.lines.send({**DOORBELL, "table": str(self.path)})
        elif start_of(rank.pid) is not None:
            self._replace("lacks a process")

    def _refresh(self) -> DromResult:
        try:
            self._known = self.administrator.shares()
        except TableLostError:
            return DromResult.NO_TABLE
        return DromResult.SUCCESS

    def _call(self, change: Callable[[], DromResult]) -> DromResult:
        """Make a change, if need be in another table."""
        result = change()
        if result is DromResult.NO_TABLE:
            self._replace("was removed or damaged")
            result = change()
        return result

    def _replace(self, reason: str) -> None:
        """Replace the table. Ranks keep the CPUs that they hold, and open the other table at their next poll."""
        self.replacements += 1
        path = self.first.with_name(f"{self.first.name}-{self.replacements}")
        self.outbox.send("warning", what=f"the table of CPUs {reason}; the ranks continue with another table")
        try:
            administrator = Administrator(NodeTable.create(path, self.cpus))
            administrator.restore({rank.pid: self._known.get(rank.pid, CpuMasks()) for rank in self.ranks.values()})
        except TableLostError as error:  # ranks keep their CPUs
            self.outbox.send("error", what=error.what, hint=error.hint)
            return
        former, self.administrator = self.administrator.table, administrator
        for rank in self.ranks.values():
            if rank.pid not in self._known:
                administrator.set_mask(rank.pid, rank.launch.cpus, CHANGE)
        for rank in sorted(
            filter(lambda rank: rank.pending_masks, self.ranks.values()), key=lambda rank: rank.pending_masks[-1].time
        ):
            administrator.set_mask(rank.pid, rank.pending_masks[-1].cpus, CHANGE)
        for rank in self.ranks.values():
            rank.lines.send({**DOORBELL, "table": str(path)})
        former.close()
        former.path.unlink(missing_ok=True)


def _now(rank: RankProcess) -> float:
    """Return the time of the clock by which the rank reports times."""
    if rank.launch.clock is None:
        return system.monotonic()
    with contextlib.closing(SteadyClock(rank.launch.clock)) as clock:
        return clock.now()


class Binding:
    """The check of the kernel's view on a computing node: a thread of a rank may use the CPUs of its rank only.

    A program may change its affinity, or ignore a mask that was set from outside. Such threads are bound again and
    reported. A thread is reported only if it stays outside its mask for `CONFIRM_S`: the message of a rank about its
    CPUs arrives after its threads have moved.
    """

    def __init__(self, outbox: Outbox, ranks: Mapping[str, RankProcess]) -> None:
        self.outbox, self.ranks = outbox, ranks
        self.due = system.monotonic() + CHECK_S  # time at which `tick` must be called, `system.monotonic()`
        self._masks: dict[int, frozenset[int]] = {}  # PID of a rank whose CPUs have changed -> its CPUs
        # PID of a rank -> its threads outside its mask -> time at which they were first seen there.
        self._suspects: dict[int, dict[int, float]] = {}
        self._last_report: dict[int, float] = {}  # PID of a rank -> time of the last report

    def changed(self, rank: RankProcess, cpus: Collection[int]) -> None:
        """Check a rank that has changed its CPUs."""
        mask = frozenset(cpus)
        if _command(rank) == "rigid":
            mask |= frozenset(rank.launch.cpus)
        self._masks[rank.pid] = mask
        self._check(rank, system.monotonic())

    def forget(self, pid: int) -> None:
        """Forget a rank that has ended."""
        for known in (self._masks, self._suspects, self._last_report):
            known.pop(pid, None)

    def tick(self) -> None:
        """Check all ranks, if it is time."""
        now = system.monotonic()
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
