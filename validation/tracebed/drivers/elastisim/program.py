"""The program of ElastiSim: its location, its input folder, its process, and the protocol between it and its scheduler.

The protocol is JSON over a ZeroMQ PAIR socket, to which ElastiSim binds. ElastiSim sends a message at each submission,
end and scheduling point, and continues when it has received the reply. The reply lists jobs with the nodes that they
get, or with a kill flag. Source: the documentation of ElastiSim (elastisim.github.io), and the messages of commit
26c03fb.
"""

from __future__ import annotations

import enum
import json
import os
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.converters.formats import elastisim as format
from tracebed.converters.formats.tools.elastisim_models import NANO
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, Tolerated
from tracebed.ground.files import sha256_of
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.validation.simulators.messages import reason_in

VARIABLE = "TRACEBED_ELASTISIM"  # environment variable with the path of the program
LOG = "elastisim.log"  # file with the output of the program
DEADLOCK = "Deadlock detected"  # message of SimGrid, with exit code 0, if a job can never start

INVOKED = 0xFFEC4400  # code of a message that expects a reply
SCHEDULED = 0xFFEC4401  # code of a reply
FINISHED = 0xFFEC44FF  # code of the last message, after the last job
WAIT_MS = 100  # longest time for which a receiver blocks before it checks the process, ms
LAST_MS = 2000  # longest time for which the receiver waits for messages of a process that has ended, ms


def find(given: str | None) -> Path:
    """Return the path of the program: `given`, that of the variable TRACEBED_ELASTISIM, or `elastisim` on the PATH."""
    chosen = given or os.environ.get(VARIABLE) or "elastisim"
    path = shutil.which(chosen)
    if path is None:
        hint = f"install ElastiSim, and give program=FILE with --with, set {VARIABLE}, or put it on the PATH"
        raise InputError(f"the program of ElastiSim is not found: {chosen}", hint=hint)
    return Path(path).resolve()


def version(options: Mapping[str, str]) -> str:
    """Return the hash of the program of the option `program`, in place of a version number; empty if it is missing."""
    with suppress(InputError):
        return f"sha256 {sha256_of(find(options.get('program')))[:12]}"
    return ""


# -- input -----------------------------------------------------------------------------------------------------------


def write_input(
    workload: Workload,
    folder: Path,
    *,
    address: str,
    iterations: Sequence[int],
    overheads: Overheads,
    shift_s: float = 0.0,
    interval_s: float = 0.0,
) -> None:
    """Write the input files of ElastiSim with the exporter of `tracebed convert`, and set what a simulation needs."""
    # `shift_s` is added to the submit times. `interval_s` is that of periodic messages; 0: none.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Tolerated)  # the exporter counts again what the run already has as warnings
        format.write_folder(workload, folder)

    def change(path: Path, **values: Any) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | values) + "\n")

    change(folder / "configuration.json", zmq_url=address, scheduling_interval=interval_s)
    jobs = json.loads((folder / "jobs.json").read_text())["jobs"]
    for job, count in zip(jobs, iterations, strict=True):
        job["submit_time"] += shift_s
        job["arguments"]["iterations"] = count
    change(folder / "jobs.json", jobs=jobs)
    before, after, resize = _phases(overheads)
    for path in folder.glob("application*.json"):
        (work,) = json.loads(path.read_text())["phases"]
        change(path, on_init=before, on_reconfiguration=resize, phases=[work, *after])


def _phases(overheads: Overheads) -> tuple[Any, list[Any], Any]:
    """Return the phases before the work, after the work, and at a reconfiguration; None or empty without overhead."""

    def phase(name: str, formula: str) -> dict[str, Any]:
        return {"tasks": [{"type": "busy_wait", "name": name, "delay": f"({formula}) / {NANO}", "pattern": "uniform"}]}

    def ns(seconds: float) -> int:
        return round(seconds * NANO)

    join, rank = ns(overheads.launch_join_s), ns(overheads.launch_rank_s)
    before = f"{ns(overheads.launch_s)} + min(num_nodes - 1, 1) * ({join} + {rank} * (num_nodes - 2))"
    after = f"{ns(overheads.end_s)} + {ns(overheads.end_rank_s)} * (num_nodes - 1)"
    ends = phase("end", after) | {"iterations": 1, "scheduling_point": False, "barrier": True}
    return (
        phase("launch", before) if overheads.launch_s or join or rank else None,
        [ends] if overheads.end_s or overheads.end_rank_s else [],
        phase("reconfiguration", f"{ns(overheads.reconfiguration_s)}") if overheads.reconfiguration_s else None,
    )


# -- process ---------------------------------------------------------------------------------------------------------


class Process:
    """A running ElastiSim, in a process group of its own, which `stop` kills."""

    def __init__(self, program: Path, folder: Path) -> None:
        """Start the program in `folder`."""
        self.log = folder / LOG
        self._program = program
        with_parent = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []  # if this process is killed
        command = [*with_parent, str(program), "configuration.json", "--log=root.thresh:warning"]
        try:
            with self.log.open("wb") as output:
                self._process = subprocess.Popen(
                    command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
        except OSError as error:
            hint = "name the program of ElastiSim by --with elastisim,program=FILE"
            raise InputError(f"cannot be started: {error.strerror}", where=str(program), hint=hint) from error

    def runs(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process. Return whether it has ended in time."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, timeout_s))
        return not self.runs()

    def stop(self) -> None:
        """Kill the process group, and wait for its end."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def failure(self) -> InputError:
        """Return the error for a process that ended before the simulation was finished."""
        text = self.log.read_text(errors="replace").strip()
        if DEADLOCK in text:
            what = "ElastiSim detected a deadlock: a job can never start, or never reaches its end"
            return InputError(what, hint="--with elastisim,keep=FOLDER keeps its files")
        hint = "--with elastisim,keep=FOLDER keeps its files"
        if "shared librar" in text:
            hint = "install the libraries: apt-get install libsimgrid3.32 libzmq5"
        said = f": {reason_in(text)}" if text else ", without a message"
        what = f"ElastiSim ended early with status {self._process.poll()}{said}"
        return InputError(what, where=str(self._program), hint=hint)


class MessageReason(enum.IntEnum):
    """Reason of a message."""

    PERIODIC = 0
    """A multiple of the scheduling interval."""
    SUBMITTED = 1
    COMPLETED = 2
    KILLED = 3
    """ElastiSim killed the job at its walltime."""
    SCHEDULING_POINT = 4
    """The job is between two iterations, and can be reconfigured."""
    EVOLVING_REQUEST = 5
    RECONFIGURED = 6


class Invocation(NamedTuple):
    """A message of ElastiSim."""

    occasion: MessageReason
    time: float  # simulated time, s
    job: int  # number of the job in ElastiSim; -1 if periodic


@dataclass
class Reply:
    """The reply to a message."""

    kills: list[int] = field(default_factory=list)  # numbers of the jobs to kill
    # Number of a job that starts or is reconfigured -> all its nodes, numbered from 0.
    nodes: dict[int, list[int]] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """Return the reply as JSON. Kills come first, so that the nodes are free for the jobs that start."""

        def entry(job: int, nodes: list[int], kill: bool) -> dict[str, Any]:
            return {
                "id": job,
                "assigned_node_ids": nodes,
                "assigned_num_gpus_per_node": 0,
                "kill_flag": kill,
                "modified_runtime_args": False,
            }

        jobs = [entry(job, [], True) for job in self.kills]
        jobs += [entry(job, nodes, False) for job, nodes in self.nodes.items() if job not in self.kills]
        return json.dumps({"code": SCHEDULED, "jobs": jobs}).encode()


def decoded(message: bytes) -> Invocation | None:
    """Return a message of ElastiSim; None: the simulation is finished."""
    try:
        content = json.loads(message)
        if content["code"] == FINISHED:
            return None
        if content["code"] == INVOKED:
            occasion = MessageReason(content["invocation_type"])
            return Invocation(occasion, float(content["time"]), int(content.get("job_id", -1)))
    except (ValueError, KeyError, TypeError):
        pass
    text = message[:80].decode(errors="replace")
    raise InputError(f"ElastiSim sent an unknown message: {text}", hint="use ElastiSim of commit 26c03fb")


class Connection:
    """The connection to ElastiSim, which may start later. `receive` gives up at `deadline` (monotonic time)."""

    def __init__(self, socket_file: Path, deadline: float, alive: Callable[[], bool]) -> None:
        """Connect to the socket, if pyzmq is installed and the path is short enough for a socket."""
        try:
            import zmq
        except ImportError as error:
            what = "pyzmq, which connects tracebed with ElastiSim, is not installed"
            raise InputError(what, hint="pip install pyzmq") from error
        self.address = f"ipc://{socket_file}"
        if len(os.fsencode(socket_file)) > zmq.IPC_PATH_MAX_LEN:
            raise InputError(
                "the path of the temporary folder is too long for a socket", hint="set TMPDIR to a shorter one"
            )
        self._deadline, self._alive = deadline, alive
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 5)  # ms; ElastiSim binds later than this process connects
        self._socket.connect(self.address)
        self.last = time.monotonic()
        """Time of the last message, `time.monotonic()`."""

    def receive(self) -> Invocation | None:
        """Return the next message; None: the simulation is finished. NoMessageError: ended or too late."""
        alive = True
        while not self._socket.poll(WAIT_MS if alive else LAST_MS):
            if not alive:
                raise NoMessageError(timeout=False)
            alive = self._alive()  # a last message may still be on its way when the process has ended: poll once more
            if time.monotonic() > self._deadline:
                raise NoMessageError(timeout=True)
        if time.monotonic() > self._deadline:
            raise NoMessageError(timeout=True)
        self.last = time.monotonic()
        return decoded(self._socket.recv())

    def send(self, orders: Reply) -> None:
        """Reply to the last message."""
        self._socket.send(orders.encoded())

    def close(self) -> None:
        """Close the connection; messages that are not sent are dropped."""
        self._socket.close(linger=0)
        self._context.term()


class NoMessageError(Exception):
    """ElastiSim sent no further message."""

    def __init__(self, *, timeout: bool) -> None:
        super().__init__(timeout)
        self.timeout = timeout
        """Whether the deadline has passed; else the process has ended."""
