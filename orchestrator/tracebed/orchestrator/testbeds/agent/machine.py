"""The machine of an agent: the processes of ranks, the private folder and its socket, and the samples of the node.

An agent reaches its machine only through this class and through `tracebed.ground.system`. The virtual testbed
overrides it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

from tracebed.benchmarks.affinity import processes_of
from tracebed.benchmarks.lines import Mailbox
from tracebed.benchmarks.program import Launch
from tracebed.orchestrator.testbeds.agent.attaching import Listener
from tracebed.orchestrator.testbeds.agent.facts import machine_facts
from tracebed.orchestrator.testbeds.agent.launching import bindable, connectable
from tracebed.orchestrator.testbeds.agent.messages import MessageFields, Outbox
from tracebed.orchestrator.testbeds.agent.processes import RankProcess, any_changed, fork_rank
from tracebed.orchestrator.testbeds.agent.spool import (
    make_spool,
    private_folder,
    remove_leftovers,
    remove_tables,
    table_path,
)

CONNECT_S = 5.0  # time in which a connection must be made, s
TICKS = os.sysconf("SC_CLK_TCK")
FIELDS = 9  # number of fields of a line of `/proc/stat` up to the stolen time
RESOURCES = ("cpu", "io", "memory")  # the resources for which the kernel reports pressure
# The folder with the energy counters of the machine (RAPL, for CPUs of Intel and AMD).
POWERCAP = Path("/sys/class/powercap")


class Change(NamedTuple):
    """The end, the stop or the continuation of a process."""

    status: int  # as `os.wait` returns it
    cpu_s: float  # CPU time of the process and its descendants, s


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


class ConnectionTest:
    """The test of the network: the port that other nodes try to reach, and the attempts of this node."""

    def __init__(self, selector: selectors.BaseSelector, outbox: Outbox) -> None:
        self._selector, self._outbox = selector, outbox
        self._server: socket.socket | None = None
        self._mailbox: Mailbox | None = None

    def test(self, message: dict[str, Any]) -> None:
        """Listen on the address `bind`, or connect to `address`. Without either, stop listening."""
        fields = MessageFields(message)
        if "address" in fields:
            self._connect(connectable(fields.value("address")))
            return
        if self._server is not None:
            self._server.close()
            self._server = None
        if "bind" in fields:
            self._listen(bindable(fields))

    def _listen(self, host: str) -> None:
        """Listen on a free port. The kernel completes connections, so none has to be accepted."""
        self._server = socket.socket()
        try:
            self._server.bind((host, 0))
            self._server.listen()
        except OSError as error:
            self._outbox.send_unnumbered("reached", reason=f"no rank can listen on {host}: {error.strerror}")
        else:
            self._outbox.send_unnumbered("reachable", address=list(self._server.getsockname()))

    def _connect(self, address: tuple[str, int]) -> None:
        """Connect in the background. The event `reached` has the reason of a failure."""
        mailbox = self._mailbox = self._mailbox or Mailbox(self._selector)

        def connect() -> None:
            reason = None
            try:
                with socket.socket() as peer:
                    peer.settimeout(CONNECT_S)
                    peer.connect(address)
            except OSError as error:
                reason = f"no connection to {address[0]} port {address[1]}: {error.strerror or error}"
            mailbox.post(lambda: self._outbox.send_unnumbered("reached", reason=reason))

        threading.Thread(target=connect, daemon=True).start()


class Sampler:
    """The counters of a node: CPU time of its processes and of its CPUs, and the pressure on its machine.

    All figures are cumulative, so the difference of any two samples describes the time between them. A sample takes
    about 30 microseconds, because its files stay open and the CPU time of a process is read from the CPU clock of the
    process. An emulated node has no CPUs. If the whole machine (`host`) is sampled as well, its energy is only if there
    are CPUs, because it is not related to emulated nodes.
    """

    def __init__(self, cpus: Sequence[int] = (), *, host: bool = False, powercap: Path = POWERCAP) -> None:
        """Open the files of the kernel. A file that does not exist leaves its figures unknown."""
        self._cpus = {b"cpu%d" % cpu for cpu in cpus}
        self._host = host
        self._stat = _opened("/proc/stat") if cpus or host else None
        self._pressure = {name: _opened(f"/proc/pressure/{name}") for name in RESOURCES} if host else {}
        self._energy = [EnergyCounter(zone) for zone in energy_zones(powercap)] if host and cpus else []

    def sample(self, ranks: Iterable[int] = (), commands: Iterable[int] = ()) -> dict[str, Any]:
        """Return the current figures. `ranks` are the child processes that have not been reaped.

        The descendants of `commands`, the ranks that run a command, count as well. `cpu_s` is the CPU time of this
        process and of all its ranks, s. `busy_s` and `steal_s` are the times in which the CPUs of the node were busy or
        taken by the hypervisor, summed over the CPUs, s. `host` is the same of the machine, with its number of CPUs,
        the time in which some task waited for a resource (`cpu`, `io`, `memory`), s, and the energy since the first
        sample (`energy_j`), J. An unknown figure is missing or None.
        """
        own = resource.getrusage(resource.RUSAGE_SELF)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + sum(map(_cpu_s, ranks))
        cpu_s += sum(map(_descendants_cpu_s, commands))
        figures: dict[str, Any] = {"cpu_s": round(cpu_s, 6)}
        lines = _lines(self._stat)
        of_node = [line for line in lines if line[0] in self._cpus]
        if of_node and len(of_node) == len(self._cpus):  # a container may number its CPUs otherwise
            figures["busy_s"], figures["steal_s"] = _busy(of_node)
        if self._host:
            busy_s, steal_s = _busy(lines[:1]) if lines else (None, None)
            host = {"cpus": max(1, len(lines) - 1), "busy_s": busy_s, "steal_s": steal_s}
            figures["host"] = host | {name: _waited(file) for name, file in self._pressure.items()}
        if self._energy:
            figures["host"]["energy_j"] = self._energy_j()
        return figures

    def _energy_j(self) -> float | None:
        """Return the energy of all zones, J; None: a counter cannot be read, or no counter has advanced yet."""
        found = [counter.read() for counter in self._energy]
        total = sum(energy for energy in found if energy is not None)
        return None if None in found or not total else round(total, 6)  # counters of some virtual machines stand still


class EnergyCounter:
    """The energy counter of a zone, from 0 at the first reading, without the wrap-around of the counter.

    A counter of 32 bits wraps around after 262 kJ, which is about 20 minutes at 200 W. Readings must be more frequent.
    """

    def __init__(self, zone: Path) -> None:
        self._file = _opened(str(zone / "energy_uj"))
        self._range = _number(_opened(str(zone / "max_energy_range_uj")), close=True)
        self._last = _number(self._file)
        self._total = 0

    def read(self) -> float | None:
        """Return the energy since the first reading, J; None: the counter cannot be read."""
        now = _number(self._file)
        if now is None or self._last is None:
            return None
        grown = now - self._last
        if grown < 0:
            if self._range is None:
                return None
            grown += self._range
        self._last = now
        self._total += grown
        return self._total / 1e6


def energy_zones(powercap: Path = POWERCAP) -> list[Path]:
    """Return the folders of the zones that add up to the energy of the machine, in the order of their names.

    These are the packages (CPU sockets) and the memory of each package. Other zones are parts of a package (`core`,
    `uncore`), contain the packages (`psys`), or repeat a package through another interface (`intel-rapl-mmio`).
    """
    zones = []
    for zone in sorted(powercap.glob("intel-rapl:*")):
        with contextlib.suppress(OSError):
            name = (zone / "name").read_text(encoding="ascii", errors="replace").strip()
            if name.startswith("package") or name == "dram":
                zones.append(zone)
    return zones


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _number(file: int | None, *, close: bool = False) -> int | None:
    """Return the whole number in an open file of the kernel; None: it cannot be read."""
    if file is None:
        return None
    try:
        return int(os.pread(file, 64, 0))
    except (OSError, ValueError):
        return None
    finally:
        if close:
            os.close(file)


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process, s; 0 for a process that has ended."""
    with contextlib.suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2)  # the clock of the process, see clock_getcpuclockid(3)
    return 0.0


def _descendants_cpu_s(pid: int) -> float:
    """Return the CPU time of the descendants of a process, including reaped descendants, s."""
    ticks = 0
    for process in processes_of(pid)[1:]:
        with contextlib.suppress(OSError):  # it has ended
            text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
            fields = text.rpartition(")")[2].split()  # the name of the program may contain anything
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks / TICKS


def _lines(file: int | None) -> list[list[bytes]]:
    """Return the fields of the CPU lines of `/proc/stat`, first the sum; an empty list if some are missing."""
    if file is None:
        return []
    lines = []
    with contextlib.suppress(OSError):
        for line in os.pread(file, 2**20, 0).split(b"\n"):
            fields = line.split()
            if not line.startswith(b"cpu") or len(fields) < FIELDS:
                break  # as in some containers
            lines.append(fields)
    return lines


def _busy(lines: Iterable[list[bytes]]) -> tuple[float, float]:
    """Return the busy time and the stolen time of lines of `/proc/stat`, s."""
    busy = steal = 0
    for fields in lines:
        user, nice, system, _, _, irq, softirq, stolen = map(int, fields[1:9])  # guest time is part of user
        busy += user + nice + system + irq + softirq
        steal += stolen
    return busy / TICKS, steal / TICKS


def _waited(file: int | None) -> float | None:
    """Return the time in which some task waited for the resource of a pressure file, s; None: unknown."""
    if file is None:
        return None
    try:
        some = os.pread(file, 512, 0).split(b"\n", 1)[0]
        return int(some.rpartition(b"total=")[2]) / 1e6
    except (OSError, ValueError):  # pressure may be disabled in the kernel
        return None
