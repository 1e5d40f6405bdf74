"""The rank processes of an agent: forked from the agent, each in its own session, killed if the agent dies."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tracebed.benchmarks.lines import Lines, decode, encode
from tracebed.benchmarks.program import Launch, Program
from tracebed.benchmarks.rank import heartbeat_name
from tracebed.ground import system
from tracebed.ground.errors import TracebedError, print_traceback

if TYPE_CHECKING:
    from tracebed.benchmarks.applications.base import Application

GRACE_S = 2.0  # time between SIGTERM and SIGKILL to a rank, s
TAIL = 65536  # number of bytes at the end of a heartbeat file that are read: longer than any record
NAME_BYTES = 255  # maximum length of a folder name on Linux, bytes

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class PendingMask(NamedTuple):
    """A request for a mask that the rank has not answered."""

    request: int
    cpus: tuple[int, ...]
    time: float  # time at which the agent set the mask, as the rank reports times


class RankProcess:
    """A rank process of an agent. Times are those of `system.monotonic()`."""

    lines: Lines  # the connection to the rank

    def __init__(self, pid: int, launch: Launch, control: socket.socket, output: Path) -> None:
        self.pid, self.launch, self.control, self.output = pid, launch, control, output
        self.pending_masks: list[PendingMask] = []  # requests that the rank has not answered, in order
        self.last_mask: tuple[int, tuple[int, ...]] | None = None  # number and mask of the last request
        # CPUs and time of the first message; None: the rank has not begun
        self.first_mask: tuple[tuple[int, ...], float] | None = None
        self.last_doorbell = 0  # last posted change for which the doorbell rang
        self.finished: dict[str, Any] = {}  # its message `finished`; empty: not sent
        self.killed: str | None = None  # reason for which the agent killed the rank
        self.kill_at: float | None = None  # SIGKILL is due
        self.halted_at: float | None = None  # the rank was stopped from outside; None: it runs
        self.continue_at: float | None = None  # a rank that was stopped from outside is due to continue

    def signal(self, number: int) -> None:
        """Send a signal to the process group of the rank."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # the rank has not created its group yet, or is a zombie
            os.kill(self.pid, number)

    def kill(self, reason: str) -> None:
        """Send SIGTERM; SIGKILL follows after `GRACE_S`."""
        if self.killed is None:
            self.killed = reason
            self.kill_at = system.monotonic() + GRACE_S
            self.signal(signal.SIGTERM)

    def outcome(self, code: int) -> tuple[str, str]:
        """Return the state and the reason of the end of the rank, given the exit code of its process."""
        # A rank that has completed its work may be killed before its process has ended.
        if self.finished.get("state") == "completed" and (code == 0 or self.killed is not None):
            return "completed", self.finished["reason"]
        if self.killed is not None:
            return "killed", self.killed
        if self.finished.get("state") == "failed":
            return "failed", self.finished["reason"]
        if code < 0:
            return "failed", f"was killed by signal {-code} ({signal.strsignal(-code)})"
        return "failed", f"ended with status {code}; see {self.output}"

    def termination_s(self) -> float | None:
        """Return the time since the leader released the rank, whose process has just ended, s; None: not released."""
        left = self.finished.get("left")
        return None if left is None else system.monotonic() - left

    def units_done(self) -> int:
        """Return the units that the rank did, from its message `finished` or else from its last heartbeat."""
        if "units_done" in self.finished:
            return int(self.finished["units_done"])
        try:
            with (self.launch.folder / heartbeat_name(self.launch.rank)).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
                *_, last, _ = [b"", *file.read(TAIL).split(b"\n")]
            record = decode(last)
            return int(record["work_done"]) if record["pid"] == self.pid else 0
        except (OSError, ValueError):  # the rank ended before its first heartbeat
            return 0


def fork_rank(launch: Launch, node_cpus: tuple[int, ...] | None, prepare: Callable[[int], None]) -> RankProcess:
    """Start a rank by forking this process. Return when the kernel will kill the rank at the death of this process.

    A rank that was stopped before that, when the agent loses its controller, could outlive the agent. An emulated node
    has no `node_cpus`. `prepare` is called with the PID of the rank before the rank starts its application; after its
    TestbedError, the process has been killed.
    """
    launch.folder.mkdir(parents=True, exist_ok=True)
    output = launch.folder / f"{launch.rank}.out"
    ours, theirs = socket.socketpair()
    bound, bind = socket.socketpair()
    agent = os.getpid()
    # Until the child has its own signal handlers, a signal to the child would wake the agent.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    try:
        if node_cpus is not None:
            os.sched_setaffinity(0, launch.cpus)  # inherited by the child; another job may use the other CPUs
        pid = os.fork()
        if pid == 0:
            _become_rank(launch, theirs, output, agent, bind)
    except OSError:
        ours.close()
        bound.close()
        raise
    finally:
        if node_cpus is not None:
            os.sched_setaffinity(0, node_cpus)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        theirs.close()
        bind.close()
    with bound:
        bound.recv(1)  # the end of the input: the rank is bound to this process, or has ended
        try:
            prepare(pid)
        except TracebedError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            ours.close()
            raise
        with contextlib.suppress(BrokenPipeError):  # the rank has ended
            bound.sendall(b"p")
    return RankProcess(pid, launch, ours, output)


def any_changed() -> bool:
    """Return whether a child of this process has ended, stopped or continued and has not been waited for."""
    kinds = os.WEXITED | os.WSTOPPED | os.WCONTINUED
    try:
        return os.waitid(os.P_ALL, 0, kinds | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _become_rank(launch: Launch, control: socket.socket, output: Path, agent: int, bind: socket.socket) -> NoReturn:
    """Turn the forked child into the rank, which shares only the socket with the agent and dies with the agent.

    The rank ends its output to the socket `bind` once the kernel kills the rank at the death of the agent. Then it
    waits for a byte, until its CPUs are prepared.

    No destructor of the agent's objects may run in the child, because it would close descriptors that have been reused.
    Therefore the child ends with `os._exit`, from within the frames that hold these objects.
    """
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        bind.shutdown(socket.SHUT_WR)
        if os.getppid() == agent and bind.recv(1):  # otherwise, the agent died before prctl took effect
            bind.close()
            pipe = _only_descriptors(control, output)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})
            status = _run(launch, pipe)
        with contextlib.suppress(OSError):  # a full disk costs the output, not the job
            sys.stdout.flush()
    except BaseException as error:
        print_traceback(error)
        raise
    finally:
        os._exit(status)


def application_of(program: Program) -> Application:
    """Return the application of a program, with what its ranks run imported: forked ranks inherit the imports.

    Raises:
        InputError: the application or its parameters are invalid.
    """
    from tracebed.benchmarks.applications.base import load_application

    application = load_application(program.application, program.parameters)
    application.import_ranks()
    return application


def _run(launch: Launch, pipe: socket.socket) -> int:
    """Run the application of the rank, and return the exit status."""
    try:
        return application_of(launch.program).run(launch, pipe)
    except Exception as error:  # noqa: BLE001  every error is reported to the agent
        reason = str(error) if isinstance(error, TracebedError) else f"{type(error).__name__}: {error}"
        pipe.sendall(encode({"type": "finished", "state": "failed", "reason": reason}))
        with contextlib.suppress(OSError):  # a full disk costs the output, not the reason
            print_traceback(error)
        return 1


def _only_descriptors(control: socket.socket, output: Path) -> socket.socket:
    """Close all descriptors but /dev/null, the output file and the socket to the agent, and return the socket."""
    null = os.open(os.devnull, os.O_RDONLY)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (written, 1), (written, 2), (control.fileno(), 3)):
        os.dup2(source, target)  # the agent has 0 to 3 open, so no source is among the targets
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > 3:
            os.closerange(descriptor, descriptor + 1)
    return socket.socket(fileno=3)


def folder_name(job: str) -> str:
    """Return a valid folder name for a job of any name."""
    name = "job-" + "".join(char if char.isalnum() or char in "._-" else f"%{ord(char):x}" for char in job)
    if len(name.encode()) <= NAME_BYTES:
        return name
    mark = hashlib.sha256(job.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{name.encode()[: NAME_BYTES - 17].decode(errors='ignore')}-{mark}"
