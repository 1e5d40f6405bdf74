"""What a job does, and what each of its ranks is told when it is born."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.errors import InputError

Address = str | tuple[str, int]


class Program(NamedTuple):
    """What a job does. Units are those of the kernel; totals are over the whole job."""

    benchmark: str
    serial_units: int
    parallel_units: int
    iterations: int
    balance: str = "static"
    """`static`: every rank an equal share, the slowest decides; `dynamic`: ranks draw chunks from a pool."""
    chunks: int = 4
    """Of `dynamic`: chunks a core and iteration."""
    emulated_rate: float | None = None
    """Units that an emulated core does in a second; None: compute."""

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
        benchmark: str = "pils",
        emulated: bool = False,
    ) -> Program:
        """Return the program that runs for `seconds` on `nodes` nodes of `cores` cores, by Amdahl's law.

        On n nodes it takes T(n) = T(1) (1 - f + f/n), with f the parallel fraction of the time on one node
        (Amdahl 1967): the serial part occupies one core, the parallel part all of them.

        Args:
            seconds: wall time on `nodes`.
            nodes: the number of nodes for which `seconds` holds.
            cores: cores of each of them.
            rate: units a core does in a second.
            parallel_fraction: f, 0 to 1.
            grain_s: wall time of an iteration on `nodes` to aim at.
            balance: as in `Program`.
            benchmark: what computes.
            emulated: whether to sleep at `rate` in place of computing.
        """
        alone = seconds / (1 - parallel_fraction + parallel_fraction / nodes)
        return cls(
            benchmark,
            serial_units=round(alone * (1 - parallel_fraction) * rate),
            parallel_units=round(alone * parallel_fraction * cores * rate),
            iterations=max(1, round(seconds / grain_s)),
            balance=balance,
            emulated_rate=rate if emulated else None,
        )

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Program:
        """Read the `program` of a launch message. Raises InputError where it is none."""
        given = {field: message[field] for field in cls._fields if field in message}
        lacking = [field for field in cls._fields if field not in given and field not in cls._field_defaults]
        if lacking:
            raise InputError(f"the program lacks {lacking[0]!r}")
        program = cls(**given)
        for field, least in (("serial_units", 0), ("parallel_units", 0), ("iterations", 1), ("chunks", 1)):
            value = getattr(program, field)
            if type(value) is not int or value < least:
                raise InputError(f"{field} is {value!r}, not a whole number from {least}")
        if program.balance not in ("static", "dynamic"):
            raise InputError(f"balance is {program.balance!r}, neither static nor dynamic")
        rate = program.emulated_rate
        if rate is not None and not (isinstance(rate, (int, float)) and rate > 0):
            raise InputError(f"emulated_rate is {rate!r}, not a positive number")
        return program


class Launch(NamedTuple):
    """What a rank is told when it is born."""

    job: str
    rank: str
    leader: bool
    members: tuple[str, ...]
    """The ranks that begin the job, its leader among them."""
    family: str
    """AF_UNIX or AF_INET."""
    address: Address
    """Where the leader listens: of the leader, where to (port 0: any)."""
    authkey: bytes
    cpus: tuple[int, ...]
    """The mask; of an emulated rank, virtual."""
    program: Program
    folder: Path
    """Where output and heartbeat go."""


def split(total: int, parts: int, index: int) -> int:
    """Return share `index` of `total` in `parts` whole shares: they add up, and differ by 1 at most."""
    return total * (index + 1) // parts - total * index // parts
