"""What every testbed is to the replayer: nodes that are told things, and events that come from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from tracebed.orchestrator.testbeds.inventory import Node

EMULATED_RATE = 1e6
"""Units that an emulated core does in a second: a unit is a microsecond."""


class Event(NamedTuple):
    """A message of a node's agent, or `{"type": "lost", "reason": ...}` where there is no agent any more."""

    node: int
    """Index into the testbed's nodes."""
    message: dict[str, Any]
    """See docs/testbeds.md."""
    time: float
    """`time.monotonic()` of its arrival; the message's own `time` is when the agent sent it."""


class Testbed(Protocol):
    """Agents on nodes, and the conversation with them; a context manager that starts and stops them."""

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes, by index."""

    @property
    def units_per_core_second(self) -> float:
        """Units of work a core does in a second of CPU time: the median of computing nodes."""

    @property
    def hosts(self) -> list[dict[str, Any]]:
        """Facts of the machines that take part, one a machine."""

    def start(self) -> None:
        """Start the agents. Raises TestbedError, naming node and reason, and leaves nothing behind."""

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        """Send a message to a node's agent, without ever waiting for it."""

    def receive(self, until: float | None) -> list[Event]:
        """Return the events that have come, in order; wait for one until `time.monotonic()` is `until`."""

    def stop(self) -> None:
        """End all agents and all jobs; may be called again. Afterwards no process of ours is left."""

    def __enter__(self) -> Self:
        """Start."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
