"""A rank of a malleable job: its workers, its mask, its share of a part, and the pipe to its agent.

To the agent:     started, listening, progress, resized, error, finished
From the agent:   resize
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tracebed.benchmarks.lines import Lines, decode, encode, wait
from tracebed.benchmarks.program import Launch, split
from tracebed.benchmarks.workers import Sleeper, Threads
from tracebed.cpus import format_cpus

HEARTBEAT_S = 0.1
"""Least time between two records of an unchanged rank in its heartbeat file, s."""

Control = socket.socket
"""The rank's end of the pipe to its agent."""


def heartbeat_name(rank: str) -> str:
    """Return the name of the file that a rank writes its heartbeat to."""
    return f"{rank}.heartbeat.jsonl"


class Mailbox:
    """Calls that other threads post and the main thread makes."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Wake `selector` whenever something is posted."""
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake = os.eventfd(0)
        selector.register(self._wake, selectors.EVENT_READ, self._empty)

    def post(self, call: Callable[[], None]) -> None:
        """Have the main thread make `call`."""
        self._calls.put(call)
        os.eventfd_write(self._wake, 1)

    def _empty(self) -> None:
        os.eventfd_read(self._wake)
        while not self._calls.empty():
            self._calls.get()()


class Heartbeat:
    """The rank's own record: a line of JSON on each change, and ten a second at most otherwise."""

    def __init__(self, path: Path) -> None:
        """Append to `path`."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._due = 0.0

    def beat(self, record: Callable[[], dict[str, Any]], *, changed: bool) -> None:
        """Write `record()`, if something `changed` or enough time has passed."""
        now = time.monotonic()
        if changed or now >= self._due:
            self._due = now + HEARTBEAT_S
            os.write(self._file, encode({"time": now, **record()}))


class BenchmarkRank:
    """What leader and followers have in common: workers, a mask that can change, the pipe to the agent."""

    def __init__(self, launch: Launch, control: Control, kernel: Callable[[int], int]) -> None:
        """Pin, start the workers. Raises OSError where a CPU of the mask is not ours."""
        self.launch, self.name, self.program = launch, launch.rank, launch.program
        self.selector = selectors.DefaultSelector()
        self.control = Lines(self.selector, control.fileno(), control.fileno(), self._from_agent)
        self.mailbox = Mailbox(self.selector)
        self.heartbeat = Heartbeat(launch.folder / heartbeat_name(launch.rank))
        rate = self.program.emulated_rate
        self.workers: Threads | Sleeper = (
            Threads(launch.cpus, kernel, self.mailbox.post, self._worked)
            if rate is None
            else Sleeper(launch.cpus, rate, self._worked)
        )
        self.iteration = 0
        self.units_done = 0
        self.in_part = False
        """Whether a part is under way: then a new mask waits for its end."""
        self.part_units = 0
        self.draws = 0
        """Draws that were not answered yet."""
        self.exhausted = False
        """Whether there is nothing left to draw."""
        self.pending_mask: tuple[int, tuple[int, ...]] | None = None
        self.outcome: tuple[str, str] | None = None
        self.planned_s = 0.0
        """Of a leader: sum over the parts of how long the slowest rank took (emulated: should have taken)."""

    def run(self) -> int:
        """Do what the leader says until the end, and tell the agent how it ended."""
        try:
            self.begin()
            while self.outcome is None:
                for key, _ in wait(self.selector, self.workers.deadline):
                    key.data()
                self.workers.tick()
        except Exception as error:  # noqa: BLE001  the agent shall hear of whatever it is
            traceback.print_exc()
            self.outcome = ("failed", f"{type(error).__name__}: {error}")
        state, reason = self.outcome
        self.beat(state, changed=True)
        self.tell(
            "finished",
            state=state,
            reason=reason,
            units_done=self.units_done,
            planned_s=self.planned_s if self.launch.leader else None,
            late_s=self.workers.late_s if self.program.emulated_rate else None,
        )
        self.control.drain()
        why = f" ({reason})" if reason else ""
        sys.stdout.write(
            f"{self.name}: {state}{why}: {self.units_done} units in {self.iteration} iterations,"
            f" mask {format_cpus(self.workers.cpus)}, {time.process_time():.3f} CPU seconds\n"
        )
        return 0 if state == "completed" else 1

    def begin(self) -> None:
        """Meet the other ranks."""
        raise NotImplementedError

    def draw(self, cores: int) -> None:
        """Ask the leader for chunks, one for each of `cores`; `granted` has the answer."""
        raise NotImplementedError

    def part_ended(self, units: int, seconds: float) -> None:
        """Take note that this rank's share of a part is done."""
        raise NotImplementedError

    def tell(self, type: str, **fields: Any) -> None:
        """Tell the agent."""
        self.control.send({"type": type, "time": time.monotonic(), **fields})

    def beat(self, state: str, *, changed: bool = False) -> None:
        """Write the heartbeat."""
        self.heartbeat.beat(
            lambda: {
                "pid": os.getpid(),
                "job": self.launch.job,
                "rank": self.name,
                "iteration": self.iteration,
                "work_done": self.units_done,
                "mask": format_cpus(self.workers.cpus),
                "cpu_s": time.process_time(),
                "state": state,
            },
            changed=changed,
        )

    def finish(self, reason: str = "") -> None:
        """End well."""
        self.outcome = self.outcome or ("completed", reason)

    def fail(self, reason: str) -> None:
        """End badly."""
        self.outcome = self.outcome or ("failed", reason)

    # A part: static shares, or chunks drawn until there are none.

    def start_part(self, shares: Sequence[int] | None, behind: float) -> None:
        """Begin a part: `shares` are units a core; None: draw them. `behind`: how late the job is, s."""
        self.in_part, self.part_units, self.exhausted = True, 0, shares is not None
        self.workers.begin(behind)
        if shares is None:
            self._draw(len(self.workers.cpus))
        else:
            self.workers.start(shares)

    def shares(self, units: int | None) -> list[int] | None:
        """Return this rank's units as equal shares of its cores; None (draw them) stays None."""
        cores = len(self.workers.cpus)
        return None if units is None else [split(units, cores, core) for core in range(cores)]

    def granted(self, shares: Sequence[int], last: bool) -> None:
        """Take the chunks that were drawn; `last`: the pool is empty now."""
        self.draws -= 1
        self.exhausted = self.exhausted or last
        if shares:
            self.workers.start(shares)
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
            self.part_ended(self.part_units, self.workers.elapsed())

    # The mask: pending until the next malleability point, then applied.

    def _from_agent(self) -> None:
        self.control.flush()
        for line in self.control.receive():
            self.resize(decode(line))
        if self.control.closed:
            self.fail("lost its agent")

    def resize(self, message: dict[str, Any]) -> None:
        """Take note of a new mask; only one may be pending."""
        if self.pending_mask is not None:
            self.refuse(message, f"mask change {self.pending_mask[0]} is still pending")
            return
        self.pending_mask = (message["request"], tuple(message["cpus"]))
        if not self.in_part:
            self.apply_mask()

    def refuse(self, message: dict[str, Any], what: str) -> None:
        """Tell that a request will not be followed."""
        self.tell("error", what=what, request=message["request"])

    def apply_mask(self) -> None:
        """Work on the pending mask, if any, from now on."""
        if self.pending_mask is None:
            return
        decided = time.monotonic()
        request, cpus = self.pending_mask
        self.pending_mask = None
        self.workers.set_mask(cpus)
        self.tell(
            "resized",
            request=request,
            cpus=format_cpus(cpus),
            decided=decided,
            applied=time.monotonic(),
            iteration=self.iteration,
        )
        self.beat("running", changed=True)
