"""A rank of a malleable job: its workers, its mask, its share of a part, and the connection to its agent.

Messages to the agent:     started, listening, progress, work, asks, resized, table_lost, error, finished
Messages from the agent:   members, table, and the doorbell: the table of the CPUs has changed
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tracebed.benchmarks.application_data import DataKernel
from tracebed.benchmarks.clock import Clock, SteadyClock
from tracebed.benchmarks.drom import DromProcess
from tracebed.benchmarks.kernels import Kernel, compute
from tracebed.benchmarks.lines import Lines, Mailbox, decode, encode
from tracebed.benchmarks.node_table import NodeTable, TableLostError
from tracebed.benchmarks.ownership import DromResult
from tracebed.benchmarks.program import TASKS, Launch, deal
from tracebed.benchmarks.state import DistributedState
from tracebed.benchmarks.workers import PacedThreads, Sample, Sleeper, Threads, Workers
from tracebed.ground import system
from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import TestbedError, print_traceback

MOST_SAMPLES = 10_000  # largest number of samples in a message `work`, which has some 100 bytes for each
HEARTBEAT_S = 0.1  # shortest time between two records of an unchanged rank in its heartbeat file, s

Control = socket.socket  # the rank's end of the connection to its agent
Adopt = Callable[[tuple[int, ...]], None]  # a function that binds the threads of this process to the given CPUs


def heartbeat_name(rank: str) -> str:
    """Return the name of the heartbeat file of a rank."""
    return f"{rank}.heartbeat.jsonl"


def _for_all_units(kernel: Kernel, launch: Launch) -> Kernel:
    """Return the function that does the work by `kernel`, and the overhead without the data of the application."""
    program = launch.program
    if not program.overhead or not isinstance(kernel, DataKernel):
        return kernel
    end = int(launch.duty * (program.serial_units + program.parallel_units))
    return lambda first, count: (compute if first >= end else kernel)(first, count)


class Heartbeat:
    """The heartbeat file of a rank: a line of JSON after each change, otherwise at most one per `HEARTBEAT_S`."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._due = 0.0

    def beat(self, record: Callable[[], dict[str, Any]], *, changed: bool) -> None:
        """Write `record()` if the rank has `changed` or `HEARTBEAT_S` has passed."""
        now = system.monotonic()
        if changed or now >= self._due:
            self._due = now + HEARTBEAT_S
            with contextlib.suppress(OSError):  # a full disk costs the record, not the job
                os.write(self._file, encode({"time": now, **record()}))


class BenchmarkRank:
    """The common part of leaders and followers: workers, a mask that can change, the connection to the agent."""

    # Checksum of the units of the job so far; None: not known to this rank, or the units are emulated.
    checksum: int | None = None

    # Whether the time of the work follows from its units. That of a user's program is unknown.
    PLANNED: ClassVar[bool] = True

    def __init__(self, launch: Launch, control: Control, kernel: Kernel) -> None:
        """Start the workers, pinned to the mask. Raises OSError if this process may not use a CPU of the mask."""
        self.launch, self.name, self.program = launch, launch.rank, launch.program
        self.selector = selectors.DefaultSelector()
        self.control = Lines(self.selector, control.fileno(), control.fileno(), self._from_agent)
        self.mailbox = Mailbox(self.selector)
        self.heartbeat = Heartbeat(launch.folder / heartbeat_name(launch.rank))
        self.clock = SteadyClock(launch.clock, launch.pauses) if launch.clock else Clock(launch.pauses)
        self.workers = self._make_workers(_for_all_units(kernel, launch))
        # The CPUs of the rank. The workers are idle while it holds no CPU.
        self.holding = HeldCpus(launch.table, launch.cpus)
        self.began = False  # whether the rank has held all CPUs with which it was to start
        # Time of the first doorbell since the last poll, as it is reported; None: there was no doorbell.
        self.seen: float | None = None
        # The call that is made once this rank holds CPUs; None: the rank does not wait for CPUs.
        self._next: Callable[[], None] | None = None
        self.loss_reported = False  # whether the loss of the table has been reported to the agent
        # Times at which this rank read its latest CPUs in the table, and at which the workers used them.
        self.decided = self.adopted = 0.0
        self._without_cpus: float | None = None  # time since when this rank holds no CPU; None: it holds CPUs
        # Number of parts into which the data of the rank are divided at its start; 0: they are not divided.
        self.partitions = TASKS * len(launch.cpus) if launch.program.partition == "static" else 0
        self.state = DistributedState(self.program.state_mib)
        # The own data of the application; None for emulated ranks.
        self.data = kernel if isinstance(kernel, DataKernel) and launch.duty else None
        self.samples: list[Sample] = []
        self.work_due = system.monotonic() + self.launch.work_s
        self.iteration = 0
        self.units_done = 0
        self.in_part = False  # whether a part is being computed; CPUs change only after the part
        self.part_units = 0
        self.draws = 0  # number of unanswered requests for chunks
        self.exhausted = False  # whether the pool of the part is empty
        self.request: dict[str, Any] = {}  # the last request for a change of members
        self.left: float | None = None  # monotonic time at which the leader released this rank, s
        self.outcome: tuple[str, str] | None = None
        # Leader only: planned time of the parts so far, each by its slowest rank, plus reconfigurations, s.
        self.planned_s = 0.0
        self.residual_s: float | None = None  # leader only: delay behind the plan at the end of the job, s
        self.reconfiguring_s = 0.0  # time spent in mask and member changes that is not yet part of the plan, s

    def _make_workers(self, kernel: Kernel) -> Workers:
        """Return the workers for the duty of the rank. A steady clock needs deadlines at every duty."""
        plan = (self.launch.cpus, self.program.rate, self._worked, self.clock)
        if self.launch.duty == 0:
            return Sleeper(*plan)
        if self.launch.duty == 1 and self.launch.clock is None:
            return Threads(*plan, kernel, self.mailbox.post)
        return PacedThreads(*plan, kernel, self.mailbox.post, self.launch.duty)

    def run(self) -> int:
        """Run the rank until it ends, report the outcome to the agent, and return the exit status."""
        try:
            self.when_holding(self._begin)
            while self.outcome is None:
                due = self.workers.deadline
                for key, _ in system.current().wait(self.selector, None if due is None else self.clock.monotonic(due)):
                    key.data()
                self.workers.tick()
        except Exception as error:  # noqa: BLE001  every error is reported to the agent
            with contextlib.suppress(OSError):  # a full disk costs the output, not the job or the reason
                print_traceback(error)
            self.outcome = ("failed", f"{type(error).__name__}: {error}")
        state, reason = self.outcome
        self.beat(state, changed=True)
        self._send_work()
        self.send_event(
            "finished",
            state=state,
            reason=reason,
            units_done=self.units_done,
            planned_s=self.planned_s if self.launch.leader and self.PLANNED else None,
            late_s=None if type(self.workers) is Threads else self.workers.late_s,
            overruns=self.workers.overruns,
            residual_s=self.residual_s,
            checksum=None if self.checksum is None else f"{self.checksum:016x}",
            left=self.left,
        )
        self.control.drain()
        detail = f" ({reason})" if reason else ""
        with contextlib.suppress(OSError):
            sys.stdout.write(
                f"{self.name}: {state}{detail}: {self.units_done} units in {self.iteration} iterations,"
                f" mask {format_cpus(self.workers.cpus)}, {time.process_time():.3f} CPU seconds\n"
            )
        return 0 if state == "completed" else 1

    def _begin(self) -> None:
        self.began = True
        self.begin()

    def begin(self) -> None:
        """Connect to the other ranks."""
        raise NotImplementedError

    def draw(self, cores: int) -> None:
        """Request chunks from the leader, one for each of `cores`. The reply is passed to `granted`."""
        raise NotImplementedError

    def part_ended(self, units: int, seconds: float) -> None:
        """Process the end of this rank's share of a part: `units` units in `seconds` s of planned time."""
        raise NotImplementedError

    def send_event(self, type: str, **fields: Any) -> None:
        """Send a message to the agent."""
        self.control.send({"type": type, "time": system.monotonic(), **fields})

    def sample_work(self) -> None:
        """Take a sample of the iteration that this rank has ended, and send the samples if a message is due."""
        if self.launch.duty:  # an emulated rank takes one sample per message instead
            self.samples.append(self.workers.sample())
        if system.monotonic() >= self.work_due or len(self.samples) == MOST_SAMPLES:
            self._send_work()

    def _send_work(self) -> None:
        if not self.launch.duty:
            self.samples.append(self.workers.sample())
        if self.samples:
            self.send_event("work", samples=self.samples)
        self.samples = []
        self.work_due = system.monotonic() + self.launch.work_s

    def beat(self, state: str, *, changed: bool = False) -> None:
        """Write a record to the heartbeat file, if one is due."""
        self.heartbeat.beat(
            lambda: {
                "pid": os.getpid(),
                "job": self.launch.job,
                "rank": self.name,
                "iteration": self.iteration,
                "work_done": self.units_done,
                "mask": format_cpus(self.holding.cpus),
                "cpu_s": time.process_time(),
                "state": state,
            },
            changed=changed,
        )

    def finish(self, reason: str = "") -> None:
        """End the rank as completed."""
        self.outcome = self.outcome or ("completed", reason)

    def fail(self, reason: str) -> None:
        """End the rank as failed."""
        self.outcome = self.outcome or ("failed", reason)

    # A part: static shares, or chunks drawn until the pool is empty.

    def start_part(self, shares: Sequence[range] | None, behind: float) -> None:
        """Begin a part with the units of each core (None: draw chunks), `behind` seconds after the plan of the job."""
        self.in_part, self.part_units, self.exhausted = True, 0, shares is not None
        self.workers.begin(behind)
        if shares is None:
            self._draw(len(self.workers.cpus))
        else:
            self.workers.start(shares)

    def shares(self, units: range | None) -> list[range] | None:
        """Deal `units` to the cores of this rank. None (draw chunks) stays None."""
        return None if units is None else deal(units, len(self.workers.cpus), self.partitions)

    def granted(self, shares: Sequence[Sequence[int]], last: bool) -> None:
        """Start the drawn chunks `shares`, each (first unit, end). `last` means that the pool is empty now."""
        self.draws -= 1
        self.exhausted = self.exhausted or last
        if shares:
            self.workers.start([range(*share) for share in shares])
        self._part_over()

    def _draw(self, cores: int) -> None:
        self.draws += 1
        self.draw(cores)

    def _worked(self, units: int, cores: int) -> None:
        self.units_done += units
        self.part_units += units
        if not self.exhausted:
            self._draw(cores)
        self._part_over()

    def _part_over(self) -> None:
        if self.in_part and self.exhausted and not self.draws and not self.workers.busy:
            self.in_part = False
            self.part_ended(self.part_units, self.workers.end())

    # The CPUs: read from the table of the node at malleability points.

    def _from_agent(self) -> None:
        self.control.flush()
        for line in self.control.receive():
            request = decode(line)
            if "members" in request:
                if request != self.request:  # another controller repeats requests
                    self.request = dict(request)
                    self.resize(request)
            elif "table" in request:
                self.holding.replacement = Path(request["table"])
            elif self.seen is None:
                self.seen = self.clock.stamp(self.clock.now())
        if not self.in_part:
            self.follow_table()
        if self.control.closed:
            self.fail("lost the connection to its agent")

    def resize(self, message: dict[str, Any]) -> None:
        """Process a request for a change of members. Only a leader receives it."""
        raise NotImplementedError

    def refuse(self, message: dict[str, Any], what: str) -> None:
        """Report to the agent that a request is rejected."""
        self.send_event("error", what=what, request=message["request"])

    def when_holding(self, then: Callable[[], None]) -> None:
        """Follow the table, then call `then`: at once, or as soon as this rank holds CPUs. No worker may be busy."""
        self._next = then
        self.follow_table()

    def follow_table(self) -> None:
        """Release and take CPUs according to the table. No worker may be busy."""
        if self.holding.due and self.holding.poll(self._adopt) and (self.began or self._ready):
            self._send_cpu_masks()
        self.seen = None
        if self.holding.lost and not self.loss_reported:
            self.send_event("table_lost")
        self.loss_reported = self.holding.lost
        if self._next is not None and self._ready:
            if self.workers.cpus != self.holding.cpus:  # they changed before this rank registered: the agent answered
                self.workers.set_mask(self.holding.cpus)
            then, self._next = self._next, None
            then()

    @property
    def _ready(self) -> bool:
        """Whether this rank can compute. It starts with all its CPUs, and continues with the CPUs that it holds."""
        return bool(self.holding.cpus) and (self.began or self.holding.complete)

    def _adopt(self, cpus: tuple[int, ...]) -> None:
        """Pin the workers to the new CPUs of this rank. The table is locked."""
        self.decided = self.clock.now()  # not before the lock: the change may have been made while this rank waited
        if cpus:
            self.workers.set_mask(cpus)
        else:
            self.workers.suspend()
        self.adopted = self.clock.now()

    def _send_cpu_masks(self) -> None:
        """Report the CPUs that this rank holds now, after a poll."""
        begun, cpus, now = self.decided, self.holding.cpus, self.adopted
        decided = self.clock.stamp(begun)
        if self._without_cpus is not None:
            begun, self._without_cpus = self._without_cpus, None
        if not cpus:
            self._without_cpus = begun
        elif self.began:
            self.reconfiguring_s += now - begun
        self.send_event(
            "resized",
            cpus=format_cpus(cpus),
            seen=decided if self.seen is None else self.seen,
            decided=decided,
            applied=self.clock.stamp(now),
            iteration=self.iteration,
        )
        self.beat("running" if cpus else "waiting", changed=True)

    def reconfigured(self) -> float:
        """Return the time of mask and member changes since the last call, s. The slack of a deadline would hide it."""
        seconds, self.reconfiguring_s = self.reconfiguring_s, 0.0
        return seconds


class HeldCpus:
    """The CPUs of this process. Without a table, in which they were prepared, they never change."""

    def __init__(self, table: Path | None, cpus: tuple[int, ...]) -> None:
        """Register. Raises TestbedError if the table is full, or no CPUs were prepared."""
        self._process: DromProcess | None = None
        self.replacement: Path | None = None  # the table to open at the next poll
        self.cpus = cpus
        self.complete = True  # the process holds all its CPUs, so that no change is pending
        self.lost = False  # the table, until it is replaced; the process keeps the CPUs that it holds
        if table is not None:
            self.cpus, self.complete = (), False
            self._register(table)

    def _register(self, path: Path) -> None:
        try:
            self._process = DromProcess(NodeTable(path))
        except TableLostError:
            self.lost = True
            return
        result = self._process.register()
        self.lost = result is DromResult.NO_TABLE
        if result.error and not self.lost:
            raise TestbedError(f"cannot register at the table of CPUs: {result.name}", where=str(path))
        self._note(self._process)

    @property
    def due(self) -> bool:
        """Whether a poll is due: the table has a post for this process, or was replaced."""
        if self.replacement is not None:
            return True
        return self._process is not None and not self.lost and self._process.posted

    def poll(self, adopt: Adopt) -> bool:
        """Release and take CPUs, and return whether the CPUs have changed. No thread may be computing.

        `adopt` is called with changed CPUs, before other processes can take the released ones.
        """
        if self.replacement is not None:
            return self._reopen(self.replacement, adopt)
        if self._process is None or self.lost:
            return False
        before = self.cpus
        result = self._process.poll(adopt)[0]
        self.lost = result.error
        self._note(self._process)
        return self.cpus != before

    def _reopen(self, path: Path, adopt: Adopt) -> bool:
        """Continue with another table, in which this process was restored; otherwise like `poll`."""
        before, self.replacement = self.cpus, None
        try:
            table = NodeTable(path)
        except TableLostError:
            self.lost = True
            return False
        self._process = self._process or DromProcess(table)
        self.lost = self._process.reopen(table, adopt).error
        self._note(self._process)
        return self.cpus != before

    def close(self) -> None:
        """Close the table. The process keeps its CPUs."""
        if self._process is not None:
            self._process.table.close()
            self._process = None

    def _note(self, process: DromProcess) -> None:
        if not self.lost:
            self.cpus, self.complete = process.cpus, not process.pending
