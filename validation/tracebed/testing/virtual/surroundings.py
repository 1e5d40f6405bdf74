"""What a modelled rank sees of its machine: the times of processes, its node and its agent."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tracebed.testing.virtual.descriptors import Process
from tracebed.testing.virtual.kernel import VirtualWorld


class Times(NamedTuple):
    """The times of processes, s: medians that `tests/performance/scale/rank_times.py` measures on emulated nodes."""

    launch_s: float = 0.012
    """From the fork of a rank until it listens or joins."""
    join_s: float = 0.012
    """Connection of a follower to its leader."""
    exit_s: float = 0.002
    """From the last message of a rank until its process has ended."""
    resize_s: float = 0.0009
    """Application of a change of members."""
    grain_s: float = 0.05
    """An iteration."""


class RankNode(Protocol):
    """A node, as ranks see it (`machine.VirtualNode`)."""

    name: str
    times: Times
    latency_s: float
    offset_s: float
    rate: float


class RankAgent(Protocol):
    """The agent of a rank (`machine.VirtualAgent`)."""

    world: VirtualWorld
    process: Process

    @property
    def node(self) -> RankNode:
        """Its node."""

    @property
    def alive(self) -> bool:
        """Whether it runs."""

    def changed(self, pid: int, status: int) -> None:
        """Note that a rank has ended, stopped or continued."""
