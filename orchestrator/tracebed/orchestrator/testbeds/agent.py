"""The agent of a node: `python -m tracebed.orchestrator.testbeds.agent`.

The agent reads requests as JSON lines from its standard input, and writes events as JSON lines to its standard output
(protocol: docs/reference/protocol.md). It launches the ranks of jobs by forking, so a launch takes milliseconds and no
interpreter has to start. At the end of its input, it ends its jobs and exits. If it is killed, the kernel kills its
ranks. It imports few modules, so that many agents start fast.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import selectors
import shutil
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from tracebed.benchmarks.clock import SteadyClock
from tracebed.benchmarks.kernels import calibrate, kernel_name
from tracebed.benchmarks.lines import Lines, decode, wait
from tracebed.benchmarks.program import Address, Launch, Program
from tracebed.benchmarks.rank import Mailbox
from tracebed.cpus import format_cpus, parse_cpus
from tracebed.errors import InputError, TestbedError, TracebedError
from tracebed.orchestrator.testbeds.claims import claim_cpus
from tracebed.orchestrator.testbeds.host import host_facts
from tracebed.orchestrator.testbeds.measuring import core_rates
from tracebed.orchestrator.testbeds.processes import BENCHMARKS, RankProcess, folder_name, fork_rank
from tracebed.orchestrator.testbeds.sampling import Sampler

PROTOCOL = 1
"""Version of the wire protocol, which must be the same for agent and testbed."""


class Agent:
    """The agent of a node, which processes the requests of a testbed in order."""

    def __init__(self, reader: int, writer: int) -> None:
        """Read requests from the descriptor `reader`, and write events to `writer`."""
        self.selector = selectors.PollSelector()  # unlike epoll, it also supports files and /dev/null
        self.lines = Lines(self.selector, reader, writer, self._listen)
        self.ranks: dict[str, RankProcess] = {}
        """Job -> its rank on this node."""
        self.name: str | None = None
        self.cpus: tuple[int, ...] = ()
        self.emulated = False
        self.spool = Path()
        self.claims: list[socket.socket] = []
        self.sampler = Sampler()
        self.heartbeat_s: float | None = None
        self.heartbeat_due: float | None = None
        short = len(tempfile.gettempdir()) < 80  # the path of a socket has at most 107 bytes
        self.sockets = Path(tempfile.mkdtemp(prefix="tracebed-", dir=None if short else "/tmp"))
        self.launches = 0
        self.ending = False

    def run(self) -> None:
        """Process requests until the end of the input, a `bye` message or SIGTERM; then end all ranks."""
        wake_reader, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.selector.register(wake_reader, selectors.EVENT_READ, lambda: os.read(wake_reader, 4096))
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # a handler is needed to wake the selector
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the replayer handles Ctrl-C
        signal.set_wakeup_fd(wake_writer)
        importlib.import_module("hmac")  # ranks need it to join; forked ranks inherit the import
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
            late = now - self.heartbeat_due
            self.heartbeat_due = now + self.heartbeat_s
            self._beat(late_s=round(late, 6))

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self.ending = True

    def tell(self, type: str, **fields: Any) -> None:
        """Send an event to the testbed."""
        self.lines.send({"type": type, "time": time.monotonic(), **fields})

    def _beat(self, **fields: Any) -> None:
        sample = self.sampler.sample(rank.pid for rank in self.ranks.values())
        self.tell("heartbeat", jobs=list(self.ranks), sample=sample, **fields)

    # Requests.

    def _listen(self) -> None:
        self.lines.flush()
        for line in self.lines.receive():
            self._obey(line)
        if self.lines.closed:
            self.ending = True

    def _obey(self, line: bytes) -> None:
        """Process one request. Report an invalid request as an error event."""
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
                "measure": self._measure,
                "sample": self._sample,
                "bye": self._bye,
            }
            if kind not in handlers:
                raise InputError(f"unknown message type {kind!r}")
            if self.name is None and kind not in ("hello", "bye"):
                raise InputError(f"{kind!r} arrived before hello")
            handlers[kind](message)
        except KeyError as error:
            self.tell("error", what=f"message lacks {error}: {_shown(line)}", **context)
        except TestbedError as error:  # a defect of the node, not of the message
            self.tell("error", what=error.what, hint=error.hint, **context)
        except (ValueError, TypeError, OSError, TracebedError) as error:
            self.tell("error", what=f"{error}: {_shown(line)}", **context)

    def _hello(self, message: dict[str, Any]) -> None:
        if message["protocol"] != PROTOCOL:
            raise InputError(f"protocol is {message['protocol']!r}, but this agent supports {PROTOCOL}")
        if self.name is not None:
            raise InputError("hello arrived twice")
        node = message["node"]
        cores = int(node["cores"])
        self.emulated = bool(node["emulated"])
        self.cpus = tuple(range(cores)) if self.emulated else parse_cpus(node["cpus"])
        self.spool = Path(message["spool"])
        self.heartbeat_s = float(message["heartbeat_s"])
        host = bool(message.get("host", True))
        if not self.emulated:
            self.claims = claim_cpus(self.cpus)
            os.sched_setaffinity(0, self.cpus)
        rate = self._rate() if message["calibrate"] and not self.emulated else None
        self.sampler = Sampler(() if self.emulated else self.cpus, host=host)
        self.name = str(node["name"])
        self.heartbeat_due = time.monotonic() + self.heartbeat_s
        self.tell(
            "hello",
            protocol=PROTOCOL,
            version=_version(),
            pid=os.getpid(),
            sockets=str(self.sockets),
            host=(host_facts() if host else {}) | ({} if self.emulated else {"kernel_of_jobs": kernel_name()}),
            units_per_core_second=rate,
        )

    def _rate(self) -> float:
        """Measure the rate of a CPU of the jobs, in units of work per second of CPU time."""
        os.sched_setaffinity(0, self.cpus[:1])
        rate = calibrate()
        os.sched_setaffinity(0, self.cpus)
        return rate

    def _sample(self, message: dict[str, Any]) -> None:
        """Answer with a heartbeat. With `calibrate`, one more heartbeat has the rate of a CPU; no job may run then."""
        self._beat()  # before the calibration, whose CPU time is not that of a job
        if message["calibrate"] and self.ranks:
            raise InputError("a node with running jobs cannot be calibrated")
        if message["calibrate"]:
            self.tell("calibrated", units_per_core_second=None if self.emulated else self._rate())
            assert self.heartbeat_s is not None
            self.heartbeat_due = time.monotonic() + self.heartbeat_s  # a calibration makes no heartbeat late

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
            raise InputError("an earlier rank of the job has not ended on this node yet")
        if message["rank"] != self.name:
            raise InputError(f"rank {message['rank']!r} does not belong to node {self.name!r}")
        if family not in ("AF_UNIX", "AF_INET"):
            raise InputError(f"family is {family!r}, not AF_UNIX or AF_INET")
        program = Program.from_message(message["program"])
        if program.benchmark not in BENCHMARKS:
            raise InputError(f"unknown benchmark {program.benchmark!r}")
        duty = message["duty"]
        if type(duty) not in (int, float) or not 0 <= duty <= 1 or self.emulated != (duty == 0):
            raise InputError(f"duty is {duty!r}, not 0 (emulated nodes) or above 0 and up to 1 (other nodes)")
        clock = message.get("clock")
        if clock is not None:
            if not isinstance(clock, str):
                raise InputError(f"clock is {clock!r}, not the file of a steady clock")
            Path(clock).stat()
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
            raise InputError(f"cores is {cores}, but the mask has {len(cpus)} of the node's {len(self.cpus)} CPUs")
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
            duty=float(duty),
            folder=self.spool / folder_name(job),
            clock=clock,
        )

    def _mask(self, text: str) -> tuple[int, ...]:
        """Return the CPUs of a mask. Raises InputError if the mask is empty or has CPUs outside this node."""
        cpus = parse_cpus(text)
        if not cpus or not set(cpus) <= set(self.cpus):
            raise InputError(f"mask {text!r} is not a subset of the node's CPUs {format_cpus(self.cpus)}")
        return cpus

    def _resize(self, message: dict[str, Any]) -> None:
        rank = self._rank(message["job"])
        request: dict[str, Any] = {"request": int(message["request"])}
        if "members" in message:
            members = [str(member) for member in message["members"]]
            if not rank.launch.leader:
                raise InputError("a change of members must be sent to the leader, which is not on this node")
            if len(set(members)) < len(members):
                raise InputError("a member is listed twice")
            request["members"] = members
        else:
            request["cpus"] = self._mask(message["cpus"])
        rank.lines.send(request)

    def _kill(self, message: dict[str, Any]) -> None:
        self._rank(message["job"]).kill(str(message["reason"]))

    def _measure(self, message: dict[str, Any]) -> None:
        """Measure the work rate of cores of the node, all at once, in the background. The event `measured` has it."""
        windows, seconds, cores = int(message["windows"]), float(message["seconds"]), message.get("cores")
        if self.emulated or self.ranks:
            raise InputError("only a computing node without ranks can be measured")
        mailbox = Mailbox(self.selector)

        def measure() -> None:
            rates = core_rates(self.cpus[:cores], windows, seconds)
            mailbox.post(lambda: self.tell("measured", rates=rates))

        threading.Thread(target=measure, daemon=True).start()

    def _bye(self, message: dict[str, Any]) -> None:
        self.ending = True

    def _rank(self, job: str) -> RankProcess:
        if job not in self.ranks:
            raise InputError(f"job {job!r} has no rank on this node")
        return self.ranks[job]

    # Ranks.

    def _fork(self, launch: Launch) -> None:
        rank = fork_rank(launch, None if self.emulated else self.cpus)
        control = rank.control.fileno()
        rank.lines = Lines(self.selector, control, control, lambda: self._from_rank(rank))
        self.ranks[launch.job] = rank

    def _from_rank(self, rank: RankProcess) -> None:
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
            self._from_rank(rank)  # the last messages may not have been read yet
            rank.lines.forget()
            rank.control.close()
            del self.ranks[job]
            if rank.launch.clock:
                with contextlib.closing(SteadyClock(rank.launch.clock)) as clock:
                    clock.forget(pid)
            code = os.waitstatus_to_exitcode(status)
            state, reason = rank.outcome(code)
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
                units_done=rank.units_done(),
                cpu_s=usage.ru_utime + usage.ru_stime,
                planned_s=rank.finished.get("planned_s"),
                late_s=rank.finished.get("late_s"),
                overruns=rank.finished.get("overruns"),
                residual_s=rank.finished.get("residual_s"),
            )


def _shown(line: bytes) -> str:
    """Return a line as quoted in messages, at most about 200 characters."""
    text = repr(line.decode(errors="replace"))
    return text if len(text) <= 200 else f"{text[:200]}..."


def _version() -> str:
    from importlib.metadata import version

    return version("tracebed")


def main() -> None:
    """Run the agent on standard input and output. All other output goes to standard error."""
    os.umask(0o077)  # only the user may read the output and heartbeats of jobs
    reader, writer = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # forking is safer without threads of OpenBLAS
    Agent(reader, writer).run()


if __name__ == "__main__":
    main()
