"""The facts of a node and its machine, from /proc and /sys: nodes have no psutil."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tracebed.ground import system
from tracebed.ground.cpus import format_cpus, parse_cpus
from tracebed.ground.errors import TracebedError
from tracebed.ground.version import version

# Identity of the running kernel. All containers of a machine have the same.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CPUS = Path("/sys/devices/system/cpu")
CGROUPS = Path("/sys/fs/cgroup")
CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
UNLIMITED = 2**60  # values of cgroup version 1 from here on mean no limit


def host_facts() -> dict[str, Any]:
    """Return the facts of this machine for `run.json`."""
    uname = os.uname()
    shape = topology()
    return {
        "name": uname.nodename,
        "machine": uname.machine,
        "kernel": uname.release,
        "cpu": _cpu_model() or uname.machine,
        "cores": shape["cores"],
        "cpus": shape["cpus"],
        "memory_mib": memory()["total_mib"],
        "python": sys.version.split()[0],
    }


def machine_facts() -> dict[str, Any]:
    """Return the facts of this machine, with the identity of its kernel, by which nodes of one machine are found."""
    return host_facts() | {"boot_id": _text(BOOT_ID)}


def node_facts(spool: Path) -> dict[str, Any]:
    """Return the current facts of the node, as defined by the wire protocol, with the disk of the folder `spool`."""
    import platform  # slow to import, and an agent must start fast

    return {
        "host": machine_facts(),
        "topology": topology(),
        "cpus": format_cpus(os.sched_getaffinity(0)),
        "cpus_by_socket": by_socket(os.sched_getaffinity(0)),
        "governor": sorted({text for path in CPUS.glob("cpu[0-9]*/cpufreq/scaling_governor") if (text := _text(path))}),
        "clock_source": _text(CLOCK_SOURCE),
        "tracebed": version(),
        "python": sys.version.split()[0],
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "kernel_of_jobs": _kernel_of_jobs(),
        "user": _user(),
        "memory": memory(),
        "disk": {"path": str(spool), **_disk(spool), "shared_free_mib": _disk(Path("/dev/shm"))["free_mib"]},
        "cgroup": cgroup(),
        "load": list(os.getloadavg()),
        "pressure": {name: _pressure(name) for name in ("cpu", "io", "memory")},
        "uptime_s": time.clock_gettime(time.CLOCK_BOOTTIME),
        "clock_s": system.time(),
    }


def topology(cpus: Path = CPUS) -> dict[str, Any]:
    """Return the numbers of sockets, cores, CPUs and NUMA nodes of this machine, and of CPUs per core."""
    online = parse_cpus(_text(cpus / "online") or f"0-{(os.cpu_count() or 1) - 1}")
    packages, cores = set(), set()
    for cpu in online:
        folder = cpus / f"cpu{cpu}" / "topology"
        package = _text(folder / "physical_package_id")
        packages.add(package)
        cores.add((package, _text(folder / "die_id"), _text(folder / "core_id") or cpu))
    return {
        "sockets": len(packages),
        "cores": len(cores),
        "cpus": len(online),
        "threads_per_core": len(online) / len(cores),
        "numa_nodes": len(list((cpus.parent / "node").glob("node[0-9]*"))) or None,
    }


def by_socket(usable: Iterable[int], cpus: Path = CPUS) -> list[str]:
    """Return the CPU list of each socket, ordered by the number of the socket."""
    sockets: dict[int, list[int]] = {}
    for cpu in usable:
        package = _text(cpus / f"cpu{cpu}" / "topology" / "physical_package_id") or "0"
        sockets.setdefault(int(package) if package.isdecimal() else 0, []).append(cpu)
    return [format_cpus(sockets[socket]) for socket in sorted(sockets)]


def memory(meminfo: Path = Path("/proc/meminfo")) -> dict[str, Any]:
    """Return the memory of this machine, and the part that is free, MiB."""
    lines = (_text(meminfo) or "").splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if rest.split()}

    def mib(name: str) -> int | None:
        return kib[name] // 1024 if name in kib else None

    used = kib["SwapTotal"] - kib["SwapFree"] if {"SwapTotal", "SwapFree"} <= kib.keys() else None
    return {
        "total_mib": mib("MemTotal"),
        "free_mib": mib("MemAvailable"),
        "swap_mib": None if used is None else used // 1024,
    }


def cgroup(root: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> dict[str, Any]:
    """Return the limits that the control groups of this process set on it. A limit that is not set is None."""
    groups = dict(line.split(":", 2)[1:] for line in (_text(own) or "").splitlines() if line.count(":") >= 2)
    if (root / "cgroup.controllers").exists():
        folder = root / groups.get("", "/").strip("/")
        levels = [level for level in (folder, *folder.parents) if level.is_relative_to(root)]
        quotas = [_quota(*(_text(level / "cpu.max") or "max 1").split()) for level in levels]
        memories = [_limit(_text(level / "memory.max")) for level in levels]
        processes = [_limit(_text(level / "pids.max")) for level in levels]
        return _limits(2, quotas, memories, processes)

    def levels_of(controller: str) -> list[Path]:
        name = next((names for names in groups if controller in names.split(",")), controller)
        top = root / name if (root / name).exists() else root / controller
        folder = top / groups.get(name, "/").strip("/")
        return [level for level in (folder, *folder.parents) if level.is_relative_to(top)]

    quotas = [
        _quota(_text(level / "cpu.cfs_quota_us") or "-1", _text(level / "cpu.cfs_period_us") or "1")
        for level in levels_of("cpu")
    ]
    memories = [_limit(_text(level / "memory.limit_in_bytes")) for level in levels_of("memory")]
    processes = [_limit(_text(level / "pids.max")) for level in levels_of("pids")]
    return _limits(1 if groups else None, quotas, memories, processes)


def _limits(
    version: int | None, cpus: list[float | None], memory: list[int | None], processes: list[int | None]
) -> dict[str, Any]:
    """Return the smallest limits of all levels of the control groups."""
    least_memory = min((limit for limit in memory if limit is not None), default=None)
    return {
        "version": version,
        "cpus": min((limit for limit in cpus if limit is not None), default=None),
        "memory_mib": None if least_memory is None else least_memory // 2**20,
        "processes": min((limit for limit in processes if limit is not None), default=None),
    }


def _quota(quota: str, period: str = "100000") -> float | None:
    """Return a quota of CPU time in CPUs; None: no quota."""
    with contextlib.suppress(ValueError, ZeroDivisionError):
        if int(quota) > 0:
            return int(quota) / int(period)
    return None


def _limit(text: str | None) -> int | None:
    """Return a limit; None: no limit."""
    with contextlib.suppress(ValueError):
        limit = int(text or "max")
        return limit if limit < UNLIMITED else None
    return None


def _text(path: Path) -> str | None:
    """Return the content of a file of the kernel; None: it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _cpu_model() -> str | None:
    """Return the model of the CPU; None: unknown."""
    lines = (_text(Path("/proc/cpuinfo")) or "").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _kernel_of_jobs() -> str | None:
    from tracebed.benchmarks.kernels import kernel_name

    try:
        return kernel_name()
    except TracebedError:  # neither the library nor NumPy is installed
        return None


def _user() -> str:
    """Return the name of the user of this process, or its number if it has no name, as in some containers."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _disk(path: Path) -> dict[str, int | None]:
    """Return the size and the free space of the disk of `path` or of its nearest existing parent, MiB."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            usage = shutil.disk_usage(folder)
            return {"total_mib": usage.total // 2**20, "free_mib": usage.free // 2**20}
    return {"total_mib": None, "free_mib": None}


def _pressure(name: str) -> float | None:
    """Return the share of the last 10 s in which some task waited for a resource; None: unknown."""
    words = (_text(Path(f"/proc/pressure/{name}")) or "").split()
    return next((float(word.partition("=")[2]) / 100 for word in words if word.startswith("avg10=")), None)
