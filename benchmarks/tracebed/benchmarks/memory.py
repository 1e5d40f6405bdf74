"""The memory of this node."""

from __future__ import annotations

import os
from pathlib import Path

from tracebed.ground.errors import TestbedError

MEMINFO = Path("/proc/meminfo")
KIB = 1024
MIB = 2**20


def require(size_mib: int) -> None:
    """Raise TestbedError if the node lacks free memory: otherwise the kernel would kill other processes."""
    free = free_mib()
    if free is not None and size_mib > free:
        raise TestbedError(f"the rank needs {size_mib} MiB, and the node has {free} MiB of free memory")


def free_mib(meminfo: Path = MEMINFO) -> int | None:
    """Return the memory that processes can take without swapping, MiB; None: unknown."""
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * KIB // MIB
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB
    except (OSError, ValueError):
        return None
