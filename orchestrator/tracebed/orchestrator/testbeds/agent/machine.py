"""The machine of an agent: the processes of ranks, the private folder and its socket, and the samples of the node.

An agent reaches its machine only through this class and through `tracebed.ground.system`. The virtual testbed
overrides it.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

from tracebed.benchmarks.program import Launch
from tracebed.orchestrator.testbeds.agent.attaching import Listener
from tracebed.orchestrator.testbeds.agent.connection_test import ConnectionTest
from tracebed.orchestrator.testbeds.agent.facts import machine_facts
from tracebed.orchestrator.testbeds.agent.outbox import Outbox
from tracebed.orchestrator.testbeds.agent.processes import RankProcess, any_changed, fork_rank
from tracebed.orchestrator.testbeds.agent.sampling import Sampler
from tracebed.orchestrator.testbeds.agent.spool import (
    make_spool,
    private_folder,
    remove_leftovers,
    remove_tables,
    table_path,
)


class Change(NamedTuple):
    """The end, the stop or the continuation of a process."""

    status: int
    """As `os.wait` returns it."""
    cpu_s: float
    """CPU time of the process and its descendants, s."""


class Samples(Protocol):
    """The counters of a node."""

    def sample(self, ranks: Iterable[int] = (), commands: Iterable[int] = ()) -> dict[str, Any]:
        """Return the current figures (`Sampler.sample`)."""


class Reach(Protocol):
    """The test of the network of the node (`ConnectionTest`)."""

    def test(self, message: dict[str, Any]) -> None:
        """Process a message `reach`."""


class Machine:
    """The machine on which this process runs."""

    def wake_by_signals(self, selector: selectors.BaseSelector, terminate: Callable[[], None]) -> None:
        """Wake `selector` at the end of a child and at SIGTERM, which also calls `terminate`. Ignore other signals."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        selector.register(reader, selectors.EVENT_READ, lambda: os.read(reader, 4096))

        def on_terminate(number: int, frame: FrameType | None) -> None:
            terminate()

        signal.signal(signal.SIGTERM, on_terminate)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # a handler is needed to wake the selector
        for number in (signal.SIGINT, signal.SIGHUP):  # the controller handles Ctrl-C and the end of a session
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(writer)

    # The private folder.

    def private_folder(self) -> Path:
        """Create the private folder of the agent, locked while the agent lives (`spool.private_folder`)."""
        folder, self._lock = private_folder()
        return folder

    def table_path(self, folder: Path) -> Path:
        """Return the path of the table of the CPUs of the agent with this private folder."""
        return table_path(folder)

    def remove_private_folder(self, folder: Path) -> None:
        """Remove the private folder, and the tables of CPUs that belong to it."""
        remove_tables(folder)
        shutil.rmtree(folder, ignore_errors=True)

    def remove_leftovers(self, folder: Path) -> None:
        """Remove the files that killed agents left beside the private folder `folder`."""
        remove_leftovers(folder.parent)

    def listen(self, folder: Path) -> Listener:
        """Return the socket in the private folder on which other controllers attach to the agent."""
        return Listener(folder)

    # Processes.

    def fork(self, launch: Launch, pinned: tuple[int, ...] | None, prepare: Callable[[int], None]) -> RankProcess:
        """Start a rank (`processes.fork_rank`)."""
        return fork_rank(launch, pinned, prepare)

    def any_changed(self) -> bool:
        """Return whether a rank has ended, stopped or continued and `change_of` has not returned it."""
        return any_changed()

    def change_of(self, pid: int) -> Change | None:
        """Return the next change of a rank; None: it has not changed."""
        found, status, usage = os.wait4(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        return Change(status, usage.ru_utime + usage.ru_stime) if found else None

    # The node.

    def make_spool(self, spool: Path) -> None:
        """Create the folder for the files of jobs (`spool.make_spool`)."""
        make_spool(spool)

    def touch(self, spool: Path) -> None:
        """Use the disk of the jobs. Raises OSError; blocks if the disk hangs."""
        os.utime(spool)

    def sampler(self, cpus: Sequence[int], *, host: bool) -> Samples:
        """Return the counters of a node with `cpus`; with `host`, also of the whole machine."""
        return Sampler(cpus, host=host)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the machine."""
        return machine_facts()

    def connection_test(self, selector: selectors.BaseSelector, outbox: Outbox) -> Reach:
        """Return the test of the network."""
        return ConnectionTest(selector, outbox)
