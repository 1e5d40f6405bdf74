"""Licences of a cluster: how many are free, and in a plan how many will be.

Source: slurm.conf(5) (`Licenses`, `bf_licenses`), and the recordings `licenses*` and `bf_licenses*` of Slurm 22.05.8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tracebed.ground.errors import InputError

Counts = Sequence[int]
"""Licences by kind."""


@dataclass(frozen=True)
class Licenses:
    """The licences of the cluster and the jobs.

    Attributes:
        total: licences of the cluster, by kind.
        wanted: licences of each job, by kind.
        planned: whether a backfill pass reserves licences (`bf_licenses`).
    """

    total: Counts
    wanted: Sequence[Counts]
    planned: bool = False

    @classmethod
    def none(cls, count: int) -> Licenses:
        """Return the licences of `count` jobs that want none."""
        return cls((), [()] * count)


class Held(NamedTuple):
    """Licences that a job holds or will hold, from `begin` to `end`, s."""

    begin: int
    end: int
    job: int


@dataclass
class LicensePlan:
    """The licences in a backfill pass.

    Attributes:
        of: the licences of the cluster and the jobs.
        free: the free licences, by kind. The caller keeps them up to date.
        held: in a plan with licences, those that jobs hold or will hold.
    """

    of: Licenses
    free: Counts
    held: list[Held] = field(default_factory=list)

    def considered(self, job: int) -> bool:
        """Return whether a pass considers a job: its licences are free, or the pass reserves licences."""
        return self.of.planned or suffice(self.free, self.of.wanted[job])

    def usable(self, job: int, start: int, end: int, now: int) -> bool:
        """Return whether the licences of a job are free from `start` to `end`, which counts, as in a plan of nodes."""
        wanted = self.of.wanted[job]
        if not any(wanted):
            return True
        if start <= now and not suffice(self.free, wanted):
            return False
        if not self.of.planned:
            return True
        instants = [start, *(each.begin for each in self.held if start < each.begin <= end)]
        return all(self._suffice(wanted, instant) for instant in instants)

    def _suffice(self, wanted: Counts, instant: int) -> bool:
        left = [*self.of.total]
        for each in self.held:
            if each.begin <= instant < each.end:
                left = [have - some for have, some in zip(left, self.of.wanted[each.job], strict=True)]
        return suffice(left, wanted)

    def next_release(self, job: int, after: int) -> int:
        """Return the next end of another job with licences; 0: there is none, or the job wants no licences."""
        if not self.of.planned or not any(self.of.wanted[job]):
            return 0
        return min((each.end for each in self.held if each.end > after), default=0)

    def hold(self, job: int, begin: int, end: int) -> None:
        """Record that a job holds its licences from `begin` to `end`."""
        if self.of.planned and any(self.of.wanted[job]):
            self.held.append(Held(begin, end, job))


def suffice(free: Counts, wanted: Counts) -> bool:
    """Return whether the free licences suffice for those that a job wants."""
    return all(have >= some for have, some in zip(free, wanted, strict=True))


def licenses_of(text: str, where: str) -> dict[str, int]:
    """Return the licences of a text such as `matlab:2,abaqus`: name -> count.

    Raises:
        InputError: the text is not a list of licences.
    """
    found: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in re.split("[,;]", text))):
        own = re.fullmatch(r"([^:*|]+)(?:[:*](\d{1,9}))?", item)
        if own is None:
            raise InputError(f"licences {text[:60]!r} are invalid", where=where, hint="write them as matlab:2,abaqus:1")
        found[own[1]] = found.get(own[1], 0) + int(own[2] or 1)
    return found


def counts(wanted: Mapping[str, int], kinds: Sequence[str]) -> tuple[int, ...]:
    """Return the licences by kind, in the order of `kinds`."""
    return tuple(wanted.get(kind, 0) for kind in kinds)
