"""How long tests wait for real processes: seconds of a reference machine, more of them on a slower or busier one."""

from __future__ import annotations

import contextlib
import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SAMPLES = 5
REFERENCE_S = 0.025
"""Median time of a sample on an idle core of 2.6 GHz, s."""


def _sample() -> float:
    """Return the time to start and end a process and to compute a little, s."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-ISc", "pass"], check=True)
    sum(number * number for number in range(300_000))
    return time.perf_counter() - begun


@functools.cache
def slowness() -> float:
    """Return how many times slower than the reference the machine was at the start of the session; at least 1."""
    return max(1.0, statistics.median(_sample() for _ in range(SAMPLES)) / REFERENCE_S)


def patience(seconds: float) -> float:
    """Return the time after which a test gives up that would wait `seconds` on the reference machine, s."""
    return seconds * slowness()


GUARD_S = patience(120.0)
"""Time after which a test gives up waiting for real processes, s. Only a failure takes that long."""


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files that match a pattern, for a test that waits for them; none if a folder vanishes meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return list(folder.glob(pattern))
    return []


def until(condition: Callable[[], object], seconds: float = GUARD_S, pause_s: float = 0.005) -> bool:
    """Wait until `condition` holds, and return whether it does in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause_s)
    return True
