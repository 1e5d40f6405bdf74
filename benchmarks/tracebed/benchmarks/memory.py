"""The memory of this node."""

from __future__ import annotations

import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
KIB = 1024
MIB = 2**20


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
