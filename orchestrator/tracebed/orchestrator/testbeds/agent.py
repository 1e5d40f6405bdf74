"""The resident program on a node: `python -m tracebed.orchestrator.testbeds.agent`.

It is told what to do in JSON lines on its standard input, and answers in JSON lines on its standard output;
docs/reference/protocol.md has the protocol. It starts the ranks of jobs by forking itself, which is warm by then:
a launch costs milliseconds, no interpreter has to start. When its input ends, it ends its jobs and itself;
when it is killed, the kernel kills its ranks. It imports little, so that many agents start fast.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tracebed.benchmarks import pils
from tracebed.benchmarks.kernels import calibrate, kernel_name
from tracebed.benchmarks.lines import Lines, decode, wait
from tracebed.benchmarks.program import Address, Launch, Program
from tracebed.benchmarks.rank import heartbeat_name
from tracebed.cpus import format_cpus, parse_cpus
from tracebed.errors import InputError, TracebedError

PROTOCOL = 1
"""Version of the wire protocol; agent and testbed must agree."""
GRACE_S = 2.0
"""Time between asking a rank to end and killing it, s."""
NAME_BYTES = 255
"""Length of the longest name that Linux gives a folder."""
BENCHMARKS: dict[str, Callable[[Launch, socket.socket], int]] = {"pils": pils.run}

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Rank:
    """A rank process of ours."""

    def __init__(self, pid: int, launch: Launch, control: socket.socket, output: Path) -> None:
        """Remember it."""
        self.pid, self.launch, self.control, self.output = pid, launch, control, output
        self.lines: Lines
        self.finished: dict[str, Any] = {}
        """Its last words, if it had the time for any."""
        self.killed: str | None = None
        """Why it was killed."""
        self.kill_at: float | None = None

    def signal(self, number: int) -> None:
        """Signal its process group."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # it has not made its group yet, or is dead and will be reaped
            os.kill(self.pid, number)

    def kill(self, reason: str) -> None:
        """Ask it to end, and see to it that it does."""
        if self.killed is None:
            self.killed = reason
            self.kill_at = time.monotonic() + GRACE_S
            self.signal(signal.SIGTERM)


class Agent:
    """Does what it is told, one line after the other."""

    def __init__(self, reader: int, writer: int) -> None:
        """Talk over these file descriptors."""
        self.selector = selectors.PollSelector()  # which, unlike epoll, takes files and /dev/null as well
        self.lines = Lines(self.selector, reader, writer, self._listen)
        self.ranks: dict[str, Rank] = {}
        """By job: a node has one rank of a job."""
        self.name: str | None = None
        self.cpus: tuple[int, ...] = ()
        self.emulated = False
        self.spool = Path()
        self.heartbeat_s: float | None = None
        self.heartbeat_due: float | None = None
        short = len(tempfile.gettempdir()) < 80  # a socket's path has 107 bytes at most
        self.sockets = Path(tempfile.mkdtemp(prefix="tracebed-", dir=None if short else "/tmp"))
        self.launches = 0
        self.ending = False

    def run(self) -> None:
        """Serve until the input ends or somebody says bye or SIGTERM, then end all ranks."""
        wake_reader, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.selector.register(wake_reader, selectors.EVENT_READ, lambda: os.read(wake_reader, 4096))
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # it wakes the selector, no more
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the replayer to answer
        signal.set_wakeup_fd(wake_writer)
        importlib.import_module("hmac")  # what a rank needs to join: better once here than in each of them
        gc.freeze()
        try:
            while not self.ending:
                self._turn()
            for rank in self.ranks.values():
                rank.kill("the agent ends")
            while self.ranks:
                self._turn()
            self.lines.flush()
        finally:
            shutil.rmtree(self.sockets, ignore_errors=True)

    def _turn(self) -> None:
        due = [rank.kill_at for rank in self.ranks.values() if rank.kill_at is not None]
        due += [self.heartbeat_due] if self.heartbeat_due is not None else []
        for key, _ in wait(self.selector, min(due, default=None)):
            key.data()
        self._reap()
        now = time.monotonic()
        for rank in self.ranks.values():
            if rank.kill_at is not None and now >= rank.kill_at:
                rank.kill_at = None
                rank.signal(signal.SIGKILL)
        if self.heartbeat_due is not None and self.heartbeat_s is not None and now >= self.heartbeat_due:
            self.heartbeat_due = now + self.heartbeat_s
            self.tell("heartbeat", jobs=list(self.ranks))

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self.ending = True

    def tell(self, type: str, **fields: Any) -> None:
        """Send an event."""
        self.lines.send({"type": type, "time": time.monotonic(), **fields})

    # What it is told.

    def _listen(self) -> None:
        self.lines.flush()
        for line in self.lines.receive():
            self._obey(line)
        if self.lines.closed:
            self.ending = True

    def _obey(self, line: bytes) -> None:
        """Follow one message; what is wrong with it is told, and harms nothing."""
        context: dict[str, Any] = {}
        try:
            message = decode(line)
            context = {key: message[key] for key in ("job", "request") if key in message}
            kind = message.get("type")
            handlers = {
                "hello": self._hello,
                "launch": self._launch,
                "resize": self._resize,
                "kill": self._kill,
                "bye": self._bye,
            }
            if kind not in handlers:
                raise InputError(f"unknown message type {kind!r}")
            if self.name is None and kind not in ("hello", "bye"):
                raise InputError(f"{kind!r} came before hello")
            handlers[kind](message)
        except KeyError as error:
            self.tell("error", what=f"message lacks {error}: {_shown(line)}", **context)
        except (ValueError, TypeError, OSError, TracebedError) as error:
            self.tell("error", what=f"{error}: {_shown(line)}", **context)

    def _hello(self, message: dict[str, Any]) -> None:
        if message["protocol"] != PROTOCOL:
            raise InputError(f"protocol {message['protocol']!r} is asked for, this agent speaks {PROTOCOL}")
        if self.name is not None:
            raise InputError("hello came twice")
        node = message["node"]
        cores = int(node["cores"])
        self.emulated = bool(node["emulated"])
        self.cpus = tuple(range(cores)) if self.emulated else parse_cpus(node["cpus"])
        self.spool = Path(message["spool"])
        self.heartbeat_s = float(message["heartbeat_s"])
        rate = None
        if not self.emulated:
            os.sched_setaffinity(0, self.cpus[:1])  # calibrate where the jobs will compute
            rate = calibrate() if message["calibrate"] else None
            os.sched_setaffinity(0, self.cpus)
        self.name = str(node["name"])
        self.heartbeat_due = time.monotonic() + self.heartbeat_s
        self.tell(
            "hello",
            protocol=PROTOCOL,
            version=_version(),
            pid=os.getpid(),
            sockets=str(self.sockets),
            host=_host_facts() | ({} if self.emulated else {"kernel_of_jobs": kernel_name()}),
            units_per_core_second=rate,
        )

    def _launch(self, message: dict[str, Any]) -> None:
        job, name, leader = str(message["job"]), str(message["rank"]), bool(message["leader"])
        try:
            self._fork(self._read_launch(message))
        except (KeyError, ValueError, TypeError, OSError, TracebedError) as error:
            reason = f"message lacks {error}" if isinstance(error, KeyError) else str(error)
            self.tell(
                "ended",
                job=job,
                rank=name,
                leader=leader,
                state="failed",
                reason=f"cannot be launched: {reason}",
                exit_code=None,
                units_done=0,
                cpu_s=0.0,
            )

    def _read_launch(self, message: dict[str, Any]) -> Launch:
        job, family, address = message["job"], message["family"], message["address"]
        if not isinstance(job, str):
            raise InputError(f"job is {job!r}, not a string")
        if job in self.ranks:
            raise InputError("an earlier rank of the job has not ended here yet")
        if message["rank"] != self.name:
            raise InputError(f"rank {message['rank']!r} does not belong on node {self.name!r}")
        if family not in ("AF_UNIX", "AF_INET"):
            raise InputError(f"family is {family!r}, neither AF_UNIX nor AF_INET")
        program = Program.from_message(message["program"])
        if program.benchmark not in BENCHMARKS:
            raise InputError(f"unknown benchmark {program.benchmark!r}")
        if self.emulated != (program.emulated_rate is not None):
            raise InputError("emulated_rate goes with emulated nodes, and with no others")
        self.launches += 1
        where: Address
        if address is not None:
            where = address if isinstance(address, str) else (str(address[0]), int(address[1]))
        elif not message["leader"]:
            raise InputError("a follower needs the address of its leader")
        elif family == "AF_UNIX":
            where = str(self.sockets / f"{self.launches}.socket")
        else:
            where = (os.uname().nodename, 0)
        cores = int(message["cores"])
        cpus = self.cpus[:cores] if message["cpus"] is None else self._mask(message["cpus"])
        if cores < 1 or len(cpus) != cores:
            raise InputError(f"cores is {cores}, but the mask has {len(cpus)} of {len(self.cpus)} cores")
        return Launch(
            job=job,
            rank=message["rank"],
            leader=bool(message["leader"]),
            members=tuple(message["members"]),
            family=family,
            address=where,
            authkey=bytes.fromhex(message["authkey"]),
            cpus=cpus,
            program=program,
            folder=self.spool / _folder_name(job),
        )

    def _mask(self, text: str) -> tuple[int, ...]:
        """Return a mask of this node. Raises InputError where it is empty or not the node's."""
        cpus = parse_cpus(text)
        if not cpus or not set(cpus) <= set(self.cpus):
            raise InputError(f"mask {text!r} is no part of the node's CPUs {format_cpus(self.cpus)}")
        return cpus

    def _resize(self, message: dict[str, Any]) -> None:
        rank = self._rank(message["job"])
        request: dict[str, Any] = {"request": int(message["request"])}
        if "members" in message:
            members = [str(member) for member in message["members"]]
            if not rank.launch.leader:
                raise InputError("the members of a job change with its leader, who is not on this node")
            if len(set(members)) < len(members):
                raise InputError("a member is named twice")
            request["members"] = members
        else:
            request["cpus"] = self._mask(message["cpus"])
        rank.lines.send(request)

    def _kill(self, message: dict[str, Any]) -> None:
        self._rank(message["job"]).kill(str(message["reason"]))

    def _bye(self, message: dict[str, Any]) -> None:
        self.ending = True

    def _rank(self, job: str) -> Rank:
        if job not in self.ranks:
            raise InputError(f"job {job!r} has no rank on this node")
        return self.ranks[job]

    # Its ranks.

    def _fork(self, launch: Launch) -> None:
        launch.folder.mkdir(parents=True, exist_ok=True)
        output = launch.folder / f"{launch.rank}.out"
        ours, theirs = socket.socketpair()
        agent = os.getpid()
        # Until the child has handlers of its own, a signal to it would wake us.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
        try:
            if not self.emulated:
                os.sched_setaffinity(0, launch.cpus)  # for the child: the node's other CPUs may be another job's
            pid = os.fork()
            if pid == 0:
                _become_rank(launch, theirs, output, agent)
        except OSError:
            ours.close()
            raise
        finally:
            if not self.emulated:
                os.sched_setaffinity(0, self.cpus)
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            theirs.close()
        rank = Rank(pid, launch, ours, output)
        rank.lines = Lines(self.selector, ours.fileno(), ours.fileno(), lambda: self._from_rank(rank))
        self.ranks[launch.job] = rank

    def _from_rank(self, rank: Rank) -> None:
        rank.lines.flush()
        for line in rank.lines.receive():
            message = decode(line)
            if message["type"] == "finished":
                rank.finished = message
            else:
                self.lines.send({"job": rank.launch.job, "rank": rank.launch.rank, **message})

    def _reap(self) -> None:
        """Report each rank whose process has ended."""
        for job, rank in list(self.ranks.items()):
            pid, status, usage = os.wait4(rank.pid, os.WNOHANG)
            if not pid:
                continue
            self._from_rank(rank)  # its last words
            rank.lines.forget()
            rank.control.close()
            del self.ranks[job]
            code = os.waitstatus_to_exitcode(status)
            state, reason = _verdict(rank, code)
            if rank.launch.leader and isinstance(rank.launch.address, str):
                Path(rank.launch.address).unlink(missing_ok=True)
            self.tell(
                "ended",
                job=job,
                rank=rank.launch.rank,
                leader=rank.launch.leader,
                state=state,
                reason=reason,
                exit_code=code,
                units_done=_units_done(rank),
                cpu_s=usage.ru_utime + usage.ru_stime,
                planned_s=rank.finished.get("planned_s"),
                late_s=rank.finished.get("late_s"),
            )


def _verdict(rank: Rank, code: int) -> tuple[str, str]:
    """Return how a rank ended, and why."""
    if rank.finished.get("state") == "completed" and code == 0:
        return "completed", rank.finished["reason"]
    if rank.killed is not None:
        return "killed", rank.killed
    if rank.finished.get("state") == "failed":
        return "failed", rank.finished["reason"]
    if code < 0:
        return "failed", f"was killed by signal {-code} ({signal.strsignal(-code)})"
    return "failed", f"ended with status {code}; see {rank.output}"


def _units_done(rank: Rank) -> int:
    """Return the work that a rank did: by its last words or, where it had none, by its last heartbeat."""
    if "units_done" in rank.finished:
        return int(rank.finished["units_done"])
    try:
        with (rank.launch.folder / heartbeat_name(rank.launch.rank)).open("rb") as file:
            *_, last, _ = [b"", *file.read().split(b"\n")]
        record = decode(last)
        return int(record["work_done"]) if record["pid"] == rank.pid else 0
    except (OSError, ValueError):  # it did not come so far as to have one
        return 0


def _become_rank(launch: Launch, control: socket.socket, output: Path, agent: int) -> NoReturn:
    """Turn the forked child into the rank: cut off from the agent but for the pipe, and gone when it is gone.

    No destructor of the agent's objects may run here, for it would close descriptors that are others' by now:
    hence `os._exit`, from within the frames that hold them.
    """
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == agent:  # else it died before we could ask to be told
            pipe = _only_descriptors(control, output)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})
            status = BENCHMARKS[launch.program.benchmark](launch, pipe)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)


def _only_descriptors(control: socket.socket, output: Path) -> socket.socket:
    """Keep nothing open but /dev/null, the output file and the pipe to the agent, which is returned."""
    null = os.open(os.devnull, os.O_RDONLY)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (written, 1), (written, 2), (control.fileno(), 3)):
        os.dup2(source, target)  # the agent has 0 to 3 open, so that none of the sources is among them
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > 3:
            os.closerange(descriptor, descriptor + 1)
    return socket.socket(fileno=3)


def _folder_name(job: str) -> str:
    """Return a folder's name for a job of any name."""
    name = "job-" + "".join(char if char.isalnum() or char in "._-" else f"%{ord(char):x}" for char in job)
    if len(name.encode()) <= NAME_BYTES:
        return name
    mark = hashlib.sha256(job.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{name.encode()[: NAME_BYTES - 17].decode(errors='ignore')}-{mark}"


def _shown(line: bytes) -> str:
    """Return a line as a message may quote it."""
    text = repr(line.decode(errors="replace"))
    return text if len(text) <= 200 else f"{text[:200]}..."


def _version() -> str:
    from importlib.metadata import version

    return version("tracebed")


def _host_facts() -> dict[str, Any]:
    """Return what a reader of a run may ask about this machine."""
    system = os.uname()
    with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        models = (line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
        model = next(models, system.machine)
    return {
        "name": system.nodename,
        "machine": system.machine,
        "kernel": system.release,
        "cpu": model,
        "cpus": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
        "python": sys.version.split()[0],
    }


def main() -> None:
    """Serve on standard input and output; what anybody else prints goes to standard error."""
    os.umask(0o077)  # output and heartbeats of jobs are for their user only
    reader, writer = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the NumPy kernel needs none; forking is safer without
    Agent(reader, writer).run()


if __name__ == "__main__":
    main()
