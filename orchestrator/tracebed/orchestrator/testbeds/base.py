"""The contract of testbeds: nodes that take messages, and events that come from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tracebed.orchestrator.testbeds.nodes import Node

EMULATED_RATE = 1e6
"""Units of work that an emulated core does in a second: a unit is a microsecond."""


class Event(NamedTuple):
    """A message of a node's agent, or `{"type": "lost", "reason": ...}` if the agent is gone."""

    node: int
    """Index into the testbed's nodes."""
    message: dict[str, Any]
    """See the wire protocol in the documentation of testbeds."""
    time: float
    """`time.monotonic()` of its arrival; the message's own `time` is when the agent sent it."""


class Testbed(Protocol):
    """Agents on nodes, and the connection to them.

    `tracebed.testing.check_testbed` checks what a testbed must fulfil.
    """

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes, by index."""

    @property
    def family(self) -> str:
        """Address family of the connections between the ranks of a job: `AF_UNIX` on one machine, or `AF_INET`."""

    @property
    def units_per_core_second(self) -> float:
        """Units of work a core does in a second of CPU time: the median of the computing nodes."""

    @property
    def hosts(self) -> list[dict[str, Any]]:
        """Facts of the machines that take part, one dictionary a machine. Empty before the start."""

    def start(self) -> None:
        """Start the agents. Raises TestbedError, naming node and reason, and leaves nothing behind."""

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        """Send a message to the agent of a node, without ever waiting for the agent."""

    def receive(self, until: float | None) -> list[Event]:
        """Return the events that have come, in order; wait for one until `time.monotonic()` is `until`."""

    def stop(self) -> None:
        """End all agents and all jobs; may be called again, and before the start. No process of either is left."""
