"""CPU lists in the text format of Linux (`0-3,7`)."""

from __future__ import annotations

from collections.abc import Iterable

from tracebed.ground.errors import InputError

LARGEST_NODE = 100_000
"""Largest accepted number of cores per node. CPU numbers are smaller. Linux supports at most 8,192 CPUs."""


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the CPU numbers of a list such as `0-3,7`, ascending. Raises InputError if the list is invalid."""
    cpus: list[int] = []
    for part in text.split(",") if text.strip() else ():
        low, dash, high = part.strip().partition("-")
        if not (low.isdecimal() and (not dash or high.isdecimal())):
            raise InputError(f"{text[:40]!r} is not a CPU list", hint="write it like 0-3,7")
        if max(len(low), len(high)) > 9 or max(int(low), int(high or low)) >= LARGEST_NODE:
            raise InputError(f"CPU list {text[:40]!r} exceeds CPU {LARGEST_NODE - 1}", hint="write it like 0-3,7")
        if dash and int(high) < int(low):
            raise InputError(f"{text[:40]!r} is not a CPU list", hint="write it like 0-3,7")
        cpus += range(int(low), int(high or low) + 1)
    if len(set(cpus)) < len(cpus):
        raise InputError(f"CPU list {text[:40]!r} names a CPU twice", hint="write it like 0-3,7")
    return tuple(sorted(cpus))


def format_cpus(cpus: Iterable[int]) -> str:
    """Return the shortest CPU list for `cpus`; the inverse of `parse_cpus`."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ranges)
