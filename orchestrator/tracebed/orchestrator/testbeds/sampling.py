"""Samples of a node: CPU time of its processes and of its CPUs, and the pressure on its machine.

All figures are cumulative, so the difference of any two samples describes the time between them. A sample takes about
30 microseconds, because its files stay open and the CPU time of a process is read from the CPU clock of the process.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterable, Sequence
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
FIELDS = 9
"""Number of fields of a line of `/proc/stat` up to the stolen time."""
RESOURCES = ("cpu", "io", "memory")
"""The resources for which the kernel reports pressure."""


class Sampler:
    """The counters of a node on this machine.

    Args:
        cpus: the CPUs of the node; empty for an emulated node.
        host: whether to sample the whole machine as well.
    """

    def __init__(self, cpus: Sequence[int] = (), *, host: bool = False) -> None:
        """Open the files of the kernel. A file that does not exist leaves its figures unknown."""
        self._cpus = {b"cpu%d" % cpu for cpu in cpus}
        self._host = host
        self._stat = _opened("/proc/stat") if cpus or host else None
        self._pressure = {name: _opened(f"/proc/pressure/{name}") for name in RESOURCES} if host else {}

    def sample(self, ranks: Iterable[int] = ()) -> dict[str, Any]:
        """Return the current figures.

        Args:
            ranks: IDs of the child processes that have not been reaped.

        Returns:
            `cpu_s`: CPU time of this process and of all its ranks, s. `busy_s`, `steal_s`: time in which the CPUs of
            the node were busy or taken by the hypervisor, summed over the CPUs, s. `host`: the same of the machine,
            with its number of CPUs, and the time in which some task waited for a resource (`cpu`, `io`, `memory`), s.
            An unknown figure is missing or None.
        """
        own = resource.getrusage(resource.RUSAGE_SELF)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + sum(map(_cpu_s, ranks))
        figures: dict[str, Any] = {"cpu_s": round(cpu_s, 6)}
        lines = _lines(self._stat)
        of_node = [line for line in lines if line[0] in self._cpus]
        if of_node and len(of_node) == len(self._cpus):  # a container may number its CPUs otherwise
            figures["busy_s"], figures["steal_s"] = _busy(of_node)
        if self._host:
            busy_s, steal_s = _busy(lines[:1]) if lines else (None, None)
            host = {"cpus": max(1, len(lines) - 1), "busy_s": busy_s, "steal_s": steal_s}
            figures["host"] = host | {name: _waited(file) for name, file in self._pressure.items()}
        return figures


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process, s; 0 for a process that has ended."""
    with contextlib.suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2)  # the clock of the process, see clock_getcpuclockid(3)
    return 0.0


def _lines(file: int | None) -> list[list[bytes]]:
    """Return the fields of the CPU lines of `/proc/stat`: first the sum over all CPUs, then one line per CPU.

    The list is empty if the file cannot be read or lacks fields, as in some containers.
    """
    if file is None:
        return []
    lines = []
    with contextlib.suppress(OSError):
        for line in os.pread(file, 2**20, 0).split(b"\n"):
            fields = line.split()
            if not line.startswith(b"cpu") or len(fields) < FIELDS:
                break
            lines.append(fields)
    return lines


def _busy(lines: Iterable[list[bytes]]) -> tuple[float, float]:
    """Return the busy time and the stolen time of lines of `/proc/stat`, s.

    The fields after the name are user, nice, system, idle, iowait, irq, softirq, steal, and guests (part of user).
    """
    busy = steal = 0
    for fields in lines:
        user, nice, system, _, _, irq, softirq, stolen = map(int, fields[1:9])
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
