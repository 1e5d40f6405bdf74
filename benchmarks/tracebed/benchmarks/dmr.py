"""The decision of DMR at a check of the status: expand, shrink, or no action.

At a malleability point, an application with a least, a preferred and a largest size checks whether to change its size
(`dmr_check_status` of the DMR API). The answer is throughput-aware: the application shrinks if this allows another
job to start, and expands if no other job can use the idle processors (S. Iserte et al., the paper on the malleable
HPG-aligner and the DMR API, "Overview of the DMR API" and "Experimental results").

The policy `dmr` decides by the same functions. The functions count in processors of any kind: nodes, CPUs, processes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from tracebed.ground.errors import InputError


class Action(enum.Enum):
    """The answer to a check."""

    NONE = "none"
    EXPAND = "expand"
    SHRINK = "shrink"


class SizeRange(NamedTuple):
    """The sizes of an application, in processors."""

    least: int
    preferred: int
    most: int

    def checked(self) -> SizeRange:
        """Return the sizes. Raises InputError unless 1 <= least <= preferred <= most."""
        if not all(type(size) is int for size in self) or not 1 <= self.least <= self.preferred <= self.most:
            raise InputError(
                f"the sizes {self.least!r}, {self.preferred!r}, {self.most!r} are invalid",
                hint="give 1 <= least <= preferred <= largest size",
            )
        return self


class Answer(NamedTuple):
    """The answer to a check: the action, and the size after it."""

    action: Action
    size: int

    @classmethod
    def between(cls, size: int, after: int) -> Answer:
        """Return the answer that changes `size` to `after`."""
        return cls(Action.EXPAND if after > size else Action.SHRINK if after < size else Action.NONE, after)


def check_status(size: int, sizes: SizeRange, idle: int, waiting: Sequence[int]) -> Answer:
    """Return the answer to an application at a malleability point.

    `idle` is the number of idle processors, `waiting` the least size of each waiting job, in the order of the queue.
    """
    found = shrunk(size, (sizes.preferred, sizes.least), idle, waiting)
    if found is not None:
        return Answer.between(size, found[0])
    if any(need <= idle for need in waiting):
        return Answer.between(size, size)
    return Answer.between(size, expanded(size, sizes.most, idle))


def shrunk(size: int, targets: Sequence[int], idle: int, waiting: Sequence[int]) -> tuple[int, int] | None:
    """Return the size to which an application shrinks, and the index of the waiting job that this allows to start.

    The application shrinks to the first of `targets`, in descending order, that is small enough. None: no waiting job
    would be able to start, or a job can start without a shrink.
    """
    for target in targets:
        room = idle + size - target
        for index, need in enumerate(waiting):
            if idle < need <= room:
                return target, index
    return None


def halved(most: int, least: int, room: int) -> int:
    """Return the largest of `most`, its half, its quarter, ... (at least `least`) of at most `room`, or `least`."""
    size = most
    while size > room and size // 2 >= least:
        size //= 2
    return size if size <= room else least


def expanded(size: int, most: int, idle: int) -> int:
    """Return the size to which an application expands, if no waiting job can use the idle processors."""
    return max(size, min(most, size + idle))
