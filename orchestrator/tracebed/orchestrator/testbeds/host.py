"""The facts of a machine that are recorded in a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def host_facts() -> dict[str, Any]:
    """Return the facts of this machine for `run.json`."""
    import psutil  # slower than the start of an agent, and most agents do not report host facts

    system = os.uname()
    return {
        "name": system.nodename,
        "machine": system.machine,
        "kernel": system.release,
        "cpu": _cpu_model() or system.machine,
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "cpus": psutil.cpu_count(),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "python": sys.version.split()[0],
    }


def _cpu_model() -> str | None:
    """Return the model of the CPU, which psutil does not provide; None: unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)
