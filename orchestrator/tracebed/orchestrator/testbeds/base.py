"""The interface of testbeds: messages to nodes, and events from nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tracebed.ground.extension_errors import checked_members
from tracebed.ground.registry import Registry
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

EMULATED_RATE = 1e6
"""Units of work per second of an emulated core: a unit takes a microsecond."""


class Event(NamedTuple):
    """A message from the agent of a node, or an event of the testbed.

    `{"type": "lost", "reason": ...}`: the agent has ended, or was dropped, and its jobs end. The
    testbed tries to start another agent. `{"type": "back"}`: another agent has started on the node, without jobs.
    `{"type": "asleep"}`: the agent has ended, as `sleep` ordered.
    """

    node: int
    """Index into the nodes of the testbed."""
    message: dict[str, Any]
    """The message, as defined by the wire protocol in the documentation of testbeds. Its times are converted to the
    monotonic clock of this machine, except for times of a steady clock."""
    time: float
    """`system.monotonic()` at arrival. The field `time` of the message is the time at which the agent sent it."""


class Testbed(Protocol):
    """Agents on nodes, and the connections to them.

    `tracebed.testing.check_testbed` checks the requirements on a testbed.
    """

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes, by index."""

    @property
    def family(self) -> str:
        """Family of the connections between the ranks of a job: `AF_UNIX`, `AF_INET` or `agents`. Known after `start`.

        `AF_UNIX`: on this machine. `AF_INET`: over the network of the nodes. `agents`: through agents and the testbed.
        """

    @property
    def units_per_core_second(self) -> float:
        """Units of work per second of CPU time of a core: the median over the computing nodes."""

    @property
    def hosts(self) -> list[dict[str, Any]]:
        """The facts of each machine of the testbed. Empty before the start."""

    @property
    def out(self) -> Mapping[str, str]:
        """The nodes that were left out at the start, with the reasons, by name. A node may return later."""

    @property
    def agents(self) -> Mapping[str, Mapping[str, Any]]:
        """The facts by which another testbed can take over the agents (see `start`), by node name."""

    @property
    def adopted(self) -> Mapping[str, Sequence[str]]:
        """The jobs with a rank on each agent that was taken over at the start, by node name."""

    @property
    def held(self) -> Mapping[str, float]:
        """Time since which the ranks of these agents are stopped, by node name; monotonic s.

        The ranks continue at the message `continue`. A testbed that takes over no agents needs no such property.
        """

    def start(self, adopt: Mapping[str, Mapping[str, Any]] | None = None, asleep: Collection[str] = ()) -> None:
        """Start the agents. If that fails, end all processes and raise TestbedError with the node and the reason.

        Args:
            adopt: agents of another testbed that may still be running: node name -> facts, as `agents` had them, and
                `seen`, the number of the last recorded event of the agent. A testbed need not take over agents.
            asleep: the nodes that get no agent until `wake`, by name. A testbed without `sleep` needs no such argument.
        """

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        """Send a message to the agent of a node without blocking. A message to a lost node is discarded."""

    def receive(self, until: float | None, *, recorded: bool = True) -> list[Event]:
        """Return the events that have arrived, in order. If none has, wait until `system.monotonic()` is `until`.

        Args:
            until: time until which to wait, monotonic s; None: no timeout.
            recorded: whether the events of earlier calls have been recorded, so that their agents may forget them. A
                testbed that takes over no agents needs no such argument.
        """

    def drop(self, node: int, reason: str) -> None:
        """Give up the agent of a node, for example because it is silent. The event `lost` follows."""

    def sleep(self, node: int) -> None:
        """End the agent of a node on which no rank runs, and start no other one until `wake`. `asleep` follows.

        If there is no agent, because it was lost or is being started again, `asleep` follows too. A testbed whose nodes
        never sleep needs neither this method nor `wake`.
        """

    def wake(self, node: int) -> None:
        """Start an agent on a node that sleeps. `back` follows, or `lost` if the agent does not start."""

    def stop(self) -> None:
        """End all processes of agents and jobs. It may be called repeatedly, and before the start."""


Factory = Callable[..., Testbed]
"""A function of an inventory and a folder for the files of agents and jobs. It returns a testbed, not started. It may
be called with `drain=True`, to leave out nodes whose agent does not start."""
TESTBEDS: Registry[Factory] = Registry("tracebed.testbeds", "testbed", Callable)
"""Testbeds by name: the entry points of the group `tracebed.testbeds`."""


def made_testbed(name: str, inventory: Inventory, folder: Path, **options: Any) -> Testbed:
    """Return the testbed `name` of an inventory, not started.

    Raises:
        InputError: the testbed is not installed, or what its entry point names makes no testbed.
    """
    factory = TESTBEDS.load(name)
    made = factory(inventory, folder, **options)
    testbed: Testbed = checked_members(made, ("start", "receive", "stop"), f"testbed {name}", factory)
    return testbed
