"""The caches of this node, as Linux describes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def last_level_cache(cpus: Iterable[int], folder: Path = CPUS) -> int | None:
    """Return the total size of the last-level caches of `cpus`, bytes. CPUs may share a cache. None: unknown.

    Args:
        cpus: CPUs of this node.
        folder: the folder of the CPUs in sysfs.
    """
    sizes: dict[str, int] = {}  # CPUs that share the cache -> its size
    for cpu in cpus:
        found: list[tuple[int, str, int]] = []
        for index in (folder / f"cpu{cpu}" / "cache").glob("index*"):
            with contextlib.suppress(OSError, ValueError, IndexError):  # not all files exist on all machines
                level, shared, size = (_line(index / name) for name in ("level", "shared_cpu_list", "size"))
                unit = UNITS.get(size[-1], 1)
                found.append((int(level), shared, int(size.rstrip("KMG")) * unit))
        if not found:
            return None
        _, shared, size_bytes = max(found)
        sizes[shared] = size_bytes
    return sum(sizes.values()) or None


def _line(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
