"""Ranks that run a command in place of a kernel: one copy of the command for each rank, on the CPUs of the rank.

The number of nodes may change while a command runs. With `elastic`, a copy of the command starts on each node that the
job gets, and is terminated on each node that the job releases, as launchers such as torchrun and workers such as those
of Dask expect it. With `dmr`, only the first node has a copy: the command changes its own processes, and learns its
size by the checks of DMR (`dmr_check_status`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tracebed.benchmarks.affinity import processes_of, set_affinity, signal_descendants
from tracebed.benchmarks.dmr import Answer, SizeRange
from tracebed.benchmarks.dmr_manager import ResourceManager
from tracebed.benchmarks.follower import Follower
from tracebed.benchmarks.kernels import Kernel, compute
from tracebed.benchmarks.leader import Leader
from tracebed.benchmarks.lines import decode, encode
from tracebed.benchmarks.memory import MIB
from tracebed.benchmarks.program import Launch
from tracebed.benchmarks.rank import BenchmarkRank, Control
from tracebed.benchmarks.workers import Workers
from tracebed.ground.errors import print_traceback

# Environment variables of the agent that commands inherit.
INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR")
NOT_STARTED = 127  # exit status of a command that cannot be started
TERMINATION_S = 5.0  # Time that a copy on a released node has after SIGTERM, s. Then it is killed.
MEMORY_S = 0.1  # time between two checks of the memory of a command, s
LINE = 2**22  # longest message of a rank and its watchdog, bytes
_PR_SET_CHILD_SUBREAPER = 36


def run(
    launch: Launch,
    control: Control,
    ranks: tuple[type[CommandLeader], type[CommandFollower]],
    *,
    moves: bool,
    given: Mapping[str, str],
) -> int:
    """Run the command of one rank until it ends, and return the exit status of the process.

    `ranks` are the classes of the leader and of the other ranks. With `moves`, the command follows changes of the CPUs
    of the rank. `given` are environment variables of the command, beside its own.
    """
    watchdog = Watchdog()  # before this process has threads
    try:
        rank = ranks[0 if launch.leader else 1](launch, control, compute)
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
        """Process the end of the command of this rank. A signal is a negative status; `reason` is that of a failure."""
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


class ElasticFollower(CommandFollower):
    """A rank whose copy of the command is terminated when its node is released."""

    def leave(self) -> None:
        """Terminate the copy. This rank ends with it."""
        self.left = time.monotonic()
        if not self.running:
            self.finish("released")
            return
        signal_descendants(self.watchdog.pid, signal.SIGTERM)
        late = threading.Timer(TERMINATION_S, self.mailbox.post, [partial(self.finish, "released")])
        late.daemon = True
        late.start()  # the end of the rank kills what is left of the copy

    def command_ended(self, status: int, reason: str) -> None:
        """Report the exit status, unless the copy was terminated."""
        if self.left is not None:
            self.finish("released")
        else:
            super().command_ended(status, reason)

    def _lost_leader(self) -> None:
        if self.left is None:
            super()._lost_leader()


class ElasticLeader(CommandLeader):
    """The rank on the first node, which the job never releases."""

    def resize(self, message: dict[str, Any]) -> None:
        """Change the members once all new ones have joined."""
        super(CommandLeader, self).resize(message)
        self._resize_if_ready()

    def _join(self, rank: str, cores: int, message: dict[str, Any], end: socket.socket) -> None:
        super()._join(rank, cores, message, end)
        self._resize_if_ready()

    def _iterate(self) -> None:
        super()._iterate()
        self._resize_if_ready()

    def _resize_if_ready(self) -> None:
        if self.pending is not None and self.running:
            self._apply_members()

    def _continue(self) -> None:
        """Do nothing: the copies of the command go on during a change."""

    def _resized(self) -> None:
        before = self.members
        super()._resized()
        self.awaited &= {*self.members}
        for member in self.members:
            if member not in before:
                self._start_copy(member)

    def _start_copy(self, member: str) -> None:
        self.awaited.add(member)
        self._send(member, type="go", iteration=0, units=(0, 0), behind=0.0)


class DmrLeader(ElasticLeader):
    """The rank whose command changes its own processes. The other ranks only hold their nodes."""

    size = 0  # number of nodes with which checks are answered

    def run(self) -> int:
        """Answer the checks of the command until the rank ends."""
        with ResourceManager(self._decide) as manager:
            self.given = {**self.given, **manager.variables}
            return super().run()

    def _iterate(self) -> None:
        self.size = len(self.members)
        self.awaited = {self.name}
        self.start_part(None, 0.0)
        self._resize_if_ready()

    def _start_copy(self, member: str) -> None:
        """Do nothing: the command starts its processes itself."""

    def _decide(self, pid: int, size: int, sizes: SizeRange) -> Answer:
        """Answer a check, in a thread. The check after a change has the new size, which completes the change."""
        self.mailbox.post(partial(self._checked, size))
        return Answer.between(size, self.size)

    def _move(self) -> None:
        """Leave the change to the command: its next checks are answered with the new number of nodes."""
        assert self.pending is not None
        self.holders, self.pending["held"] = self._holding(self.pending["members"]), False
        self.size = len(self.pending["members"])

    def _checked(self, size: int) -> None:
        if self.pending is not None and "held" in self.pending and size == self.size:
            self._resized()


class Watchdog:
    """The watchdog of one command: a process that starts the command, and ends all processes of the command.

    The watchdog is a child of the rank, and the parent of the command and of its orphaned processes. The watchdog ends
    these processes when the command has ended, when the rank closes the connection, and when the rank is killed. The
    command is in the process group of the rank, so that it receives the signals of the agent to the rank. The watchdog
    is not in this group. The messages to it are `start` (arguments, environment, folder, memory_mib), and from it
    `started` (pid) and `ended` (status, reason).
    """

    def __init__(self) -> None:
        """Fork the watchdog. No other thread may run."""
        group = os.getpgrp()
        _become_subreaper()  # the watchdog may be killed
        # The watchdog closes its end after the end of the command.
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            _become_watchdog(theirs, group)
        theirs.close()

    def start(self, command: Mapping[str, Any]) -> None:
        """Start a command. Its messages follow."""
        with contextlib.suppress(BrokenPipeError):  # the watchdog was killed: `receive` returns None
            self.link.send(encode(command))

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None: the watchdog has ended."""
        try:
            line = self.link.recv(LINE)
        except OSError:
            return None
        return decode(line) if line else None

    def close(self) -> None:
        """End all processes of the command, and wait until they have ended."""
        self.link.close()
        os.waitpid(self.pid, 0)
        end_children()


def _become_watchdog(link: socket.socket, group: int) -> NoReturn:
    """Turn the forked child into the watchdog. It ends with `os._exit`, because the outer frames belong to the rank."""
    try:
        os.setpgid(0, 0)
        for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if descriptor > 2 and descriptor != link.fileno():
                os.closerange(descriptor, descriptor + 1)
        _become_subreaper()
        _watch_command(link, group)
    except BaseException as error:
        print_traceback(error)
        raise
    finally:
        end_children()
        os._exit(0)


def _become_subreaper() -> None:
    """Make this process the parent of orphaned descendants."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _watch_command(link: socket.socket, group: int) -> None:
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken)
    line = link.recv(LINE)
    if not line:
        return
    command = decode(line)
    killed = _kills()
    try:
        process = subprocess.Popen(
            command["arguments"],
            env=command["environment"],
            cwd=command["folder"],
            stdin=subprocess.DEVNULL,
            process_group=group,
        )
    except (OSError, ValueError) as error:
        link.send(encode({"type": "ended", "status": None, "reason": f"the command cannot be started: {error}"}))
        return
    link.send(encode({"type": "started", "pid": process.pid}))
    limit, reason = command["memory_mib"], None
    while True:
        ready = select.select([link.fileno(), wake], [], [], MEMORY_S if limit else None)[0]
        if link.fileno() in ready:  # the rank has closed the connection, or was killed
            return
        if wake in ready:
            os.read(wake, 4096)
        if process.poll() is not None:
            break
        if limit and (used := memory_mib()) > limit:
            reason = f"out of memory: the command used {used:.0f} MiB of {limit} MiB"
            break
    end_children()
    status = process.wait()
    if reason is None and status == -signal.SIGKILL and _kills() > killed:
        reason = "out of memory: the kernel of the node has killed the command"
    link.send(encode({"type": "ended", "status": status, "reason": reason}))


def end_children() -> None:
    """Kill all descendants of this process, which is a subreaper, and wait for their end."""
    signal.set_wakeup_fd(-1)
    while True:
        for process in processes_of(os.getpid())[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def memory_mib() -> float:
    """Return the memory of all descendants of this process, MiB. Shared memory is counted for each of them."""
    pages = 0
    for process in processes_of(os.getpid())[1:]:
        with contextlib.suppress(OSError):  # it has ended
            pages += int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def _kills() -> int:
    """Return the number of processes that the kernel has killed for lack of memory."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
