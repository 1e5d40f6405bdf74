"""The interface of testbeds: messages to nodes, and events from nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tracebed.orchestrator.testbeds.nodes import Node

EMULATED_RATE = 1e6
"""Units of work per second of an emulated core: a unit takes a microsecond."""


class Event(NamedTuple):
    """A message from the agent of a node, or `{"type": "lost", "reason": ...}` if the agent has ended."""

    node: int
    """Index into the nodes of the testbed."""
    message: dict[str, Any]
    """The message, as defined by the wire protocol in the documentation of testbeds."""
    time: float
    """`time.monotonic()` at arrival. The field `time` of the message is the time at which the agent sent it."""


class Testbed(Protocol):
    """Agents on nodes, and the connections to them.

    `tracebed.testing.check_testbed` checks the requirements on a testbed.
    """

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes, by index."""

    @property
    def family(self) -> str:
        """Address family of the connections between the ranks of a job: `AF_UNIX` on one machine, or `AF_INET`."""

    @property
    def units_per_core_second(self) -> float:
        """Units of work per second of CPU time of a core: the median over the computing nodes."""

    @property
    def hosts(self) -> list[dict[str, Any]]:
        """The facts of each machine of the testbed. Empty before the start."""

    def start(self) -> None:
        """Start the agents. If that fails, end all processes and raise TestbedError with the node and the reason."""

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        """Send a message to the agent of a node without blocking."""

    def receive(self, until: float | None) -> list[Event]:
        """Return the events that have arrived, in order. If none has, wait until `time.monotonic()` is `until`."""

    def stop(self) -> None:
        """End all processes of agents and jobs. It may be called repeatedly, and before the start."""
