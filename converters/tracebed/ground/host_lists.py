"""Slurm's lists of hosts, such as `n[1-3,07],login`."""

from __future__ import annotations

import re

MOST_HOSTS = 100_000
"""Largest accepted number of hosts in a list."""


def host_names(text: str) -> list[str]:
    """Return the hosts of a list, in its order. Raises ValueError if the text is not a list of hosts, or too long."""
    hosts: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        if not re.fullmatch(r"(?:[\w.-]+|\[[0-9,-]+\])+", part):
            raise ValueError(f"{text[:80]!r} is not a list of hosts")
        names = [""]
        for plain, ranges in re.findall(r"([\w.-]+)|\[([0-9,-]+)\]", part):
            choices = [plain] if plain else [number for item in ranges.split(",") for number in _numbers(item, text)]
            if len(hosts) + len(names) * len(choices) > MOST_HOSTS:
                raise ValueError(_too_long(text))
            names = [name + choice for name in names for choice in choices]
        hosts += names
    return hosts


def _numbers(item: str, text: str) -> list[str]:
    """Return the numbers of `07` or `07-12`, with leading zeros."""
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", item)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(f"{text[:80]!r} is not a list of hosts")
    first, last = match[1], match[2] or match[1]
    if int(last) - int(first) >= MOST_HOSTS:
        raise ValueError(_too_long(text))
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def _too_long(text: str) -> str:
    return f"the list of hosts {text[:40]!r} has more than {MOST_HOSTS:,} hosts"
