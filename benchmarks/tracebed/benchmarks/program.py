"""The program of a job, and the launch parameters of a rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.benchmarks.clock import Pauses
from tracebed.ground.errors import InputError

Address = str | tuple[str, int]
# Parts into which static data are divided for each of the first cores. In figure 5 of the DROM paper, the data of one
# removed thread are computed by the first four threads.
TASKS = 4


class Program(NamedTuple):
    """The work of a job, in total over all iterations and ranks. Units are units of the kernel."""

    application: str
    serial_units: int
    parallel_units: int
    iterations: int
    rate: float
    """Planned units per second of a core, by which the work was sized."""
    balance: str = "static"
    """`static`: all ranks have equal shares; `dynamic`: ranks draw chunks from a pool."""
    chunks: int = 4
    """With `dynamic`: number of chunks per core and iteration."""
    partition: str = "free"
    """`free`: the cores of a rank have equal shares; `static`: the data of a rank are divided by its first cores."""
    parameters: Mapping[str, str] = {}
    """Parameters of the application."""
    memory_mib: int = 0
    """Memory that each rank holds, MiB."""
    ratios: Mapping[str, float] = {}
    """Kernel -> units of this kernel that take as long as a unit of the program. Missing: 1."""
    state_mib: float = 0.0
    """Data that the computing ranks hold and that moves between them when ranks join and leave, MiB."""
    command: Mapping[str, Any] = {}
    """Application `command`: the `arguments`, the `environment` and the `folder` (or None) of the program to run."""
    requests: Mapping[str, int] = {}
    """Number of completed iterations -> number of nodes that an evolving job then requests."""
    overhead: Mapping[str, int] = {}
    """Number of nodes -> units that the leader does on one core before its serial part, in total over all iterations.
    They model a lower speedup on this number of nodes, and are not part of the work or its checksum. Missing: 0."""

    @classmethod
    def lasting(
        cls,
        seconds: float,
        nodes: int,
        cores: int,
        rate: float,
        *,
        parallel_fraction: float = 1.0,
        grain_s: float = 0.05,
        balance: str = "static",
        application: str = "pils",
    ) -> Program:
        """Return the program that runs for `seconds` on `nodes` nodes of `cores` cores, by Amdahl's law.

        The run time on n nodes is T(n) = T(1) (1 - f + f/n), where f is the parallel fraction of the time on one node
        (Amdahl 1967). The serial part uses one core, the parallel part all cores. `rate` is units per second of a core,
        and `grain_s` the target wall time of an iteration on `nodes` nodes.
        """
        alone = seconds / (1 - parallel_fraction + parallel_fraction / nodes)
        return cls(
            application,
            serial_units=round(alone * (1 - parallel_fraction) * rate),
            parallel_units=round(alone * parallel_fraction * cores * rate),
            iterations=max(1, round(seconds / grain_s)),
            rate=rate,
            balance=balance,
        )

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Program:
        """Return the program of a launch message. Raises InputError if the program is invalid."""
        given = {field: message[field] for field in cls._fields if field in message}
        lacking = [field for field in cls._fields if field not in given and field not in cls._field_defaults]
        if lacking:
            raise InputError(f"the program lacks {lacking[0]!r}")
        return cls(**given).checked()

    def checked(self) -> Program:
        """Return this program. Raises InputError if it is invalid."""
        wholes = {"serial_units": 0, "parallel_units": 0, "iterations": 1, "chunks": 1, "memory_mib": 0}
        for field, least in wholes.items():
            value = getattr(self, field)
            if type(value) is not int or value < least:
                raise InputError(f"{field} is {value!r}, not an integer of at least {least}")
        if self.balance not in ("static", "dynamic"):
            raise InputError(f"balance is {self.balance!r}, not static or dynamic")
        if not isinstance(self.application, str):
            raise InputError(f"application is {self.application!r}, not a string")
        for field, kind in (("parameters", str), ("ratios", (int, float)), ("overhead", int), ("requests", int)):
            values = getattr(self, field)
            if not isinstance(values, dict) or not all(_valid(value, kind) for value in values.values()):
                raise InputError(f"{field} is {values!r}, not an object with valid values")
        _check_command(self.command)
        if self.partition not in ("free", "static"):
            raise InputError(f"partition is {self.partition!r}, not free or static")
        if type(self.rate) not in (int, float) or not 0 < self.rate < math.inf:
            raise InputError(f"rate is {self.rate!r}, not a positive number")
        if type(self.state_mib) not in (int, float) or not 0 <= self.state_mib < math.inf:
            raise InputError(f"state_mib is {self.state_mib!r}, not a number of at least 0")
        return self


def _valid(value: Any, kind: Any) -> bool:
    """Return whether a value is of a kind, and not NaN or infinite."""
    return isinstance(value, kind) and (isinstance(value, str) or math.isfinite(value))


def _check_command(command: Any) -> None:
    """Raise InputError unless a command is empty, or has its three parts."""
    match command:
        case {"arguments": [str(), *_] as arguments, "environment": dict() as environment, "folder": str() | None}:
            texts = [*arguments, *environment, *environment.values()]
            if all(isinstance(text, str) and "\0" not in text for text in texts):
                return
        case {} if not command:
            return
    raise InputError("the command is invalid")  # its environment may be secret


WORK_S = 1.0  # shortest time between two messages `work` of a rank, s, unless its launch has a longer one


class Launch(NamedTuple):
    """The launch parameters of a rank."""

    job: str
    rank: str
    leader: bool
    members: tuple[str, ...]
    """The ranks that the job starts with, including its leader."""
    family: str
    """AF_UNIX or AF_INET."""
    address: Address
    """The address of the leader. In the launch of the leader, port 0 means any port."""
    authkey: bytes
    cpus: tuple[int, ...]
    """The CPU mask of the rank. The CPUs of an emulated rank are virtual."""
    program: Program
    duty: float
    """The share of the planned time in which the rank computes. 1: it computes all the time; 0: it is emulated."""
    folder: Path
    """The folder of the output and the heartbeat file."""
    clock: str | None = None
    """The file of the steady clock; None: deadlines refer to the monotonic clock."""
    table: Path | None = None
    """The table of the CPUs of the node, in which the CPUs of the rank are prepared; None: its CPUs never change."""
    pauses: Pauses | None = None
    """The pauses of the ranks of the node; None: they are never stopped."""
    received: float | None = None
    """Monotonic time at which the agent received the message `launch`, s; None: unknown."""
    work_s: float = WORK_S
    """Shortest time between two messages `work` of the rank, s. The last message comes before `finished`."""


def split(units: range, parts: int, index: int) -> range:
    """Return share `index` of the consecutive `units` split into `parts` shares, whose lengths differ by at most 1."""
    total = len(units)
    return units[total * index // parts : total * (index + 1) // parts]


def deal(units: range, cores: int, partitions: int = 0) -> list[range]:
    """Return the share of each core of the consecutive `units`.

    The data are divided into `partitions` parts; 0: as many as there are cores. A core has whole parts: with more parts
    than cores, some cores have one part more (figure 5 of the DROM paper).
    """
    parts, total = partitions or cores, len(units)
    least, more = divmod(parts, cores)
    ends = [core * least + min(core, more) for core in range(cores + 1)]
    return [units[total * first // parts : total * end // parts] for first, end in pairwise(ends)]
