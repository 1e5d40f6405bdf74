"""The interface of providers: a provider prepares the nodes of a group, and runs commands on them.

Providers are registered as entry points of the group `tracebed.providers`. An entry point refers to a class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from pydantic import BaseModel

from tracebed.ground import system
from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.registry import Registry

if TYPE_CHECKING:
    from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node

# The module that `Provider.run` runs, as `PYTHON -P -m MODULE ARGUMENTS`.
AGENT_MODULE = "tracebed.orchestrator.testbeds.agent"


class Channel(Protocol):
    """A running command on a node, with its standard input and output carried to this machine.

    All methods may be called repeatedly, in any order, and after the command has ended.
    """

    reader: int
    """File descriptor of the output of the command. It ends when the output ends or the connection is lost."""
    writer: int
    """File descriptor of the input of the command. It may be the same as `reader`."""

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal. None: the command is running, or its status is unknown."""

    def exit_reason(self) -> str:
        """Return how the command ended, and the last line of its standard error: `ended with status 1: no space`."""

    def close(self) -> None:
        """Close the input of the command. An agent then ends its jobs and itself."""

    def kill(self) -> None:
        """Kill the command and its process group on the node, if the node can be reached; release the descriptors.

        This is the last call for every channel. If the command has ended, it only releases the descriptors.
        """


class NotReadyError(TestbedError):
    """A node is missing that `up` makes: it has no container, or no allocation.

    If the last `up` failed, a testbed names its reason in place of this error.
    """

    def __init__(self, what: str, node: Node, hint: str) -> None:
        super().__init__(what, where=f"node {node.name}", hint=hint, transient=True)


class Provider(Protocol):
    """The nodes of a group. `tracebed.testing.check_provider` checks the requirements on a provider."""

    name: ClassVar[str]
    """The name of the entry point."""
    Settings: ClassVar[type[BaseModel]]
    """The keys of a group that only this provider has. The model is strict, and forbids other keys."""
    shared: bool
    """Whether the nodes share the memory and the file system of this machine."""
    fan_out: int
    """Largest number of channels that are opened at once."""
    made: bool
    """Whether `up` of this object has made anything that `down` removes. Then a replay calls `down` at its end."""

    def __init__(self, group: Group, folder: Path, on_step: Callable[[str], None]) -> None:
        """Prepare the provider without touching a node.

        Args:
            group: the nodes, and the settings of the group.
            folder: existing folder of this replay on this machine, shared with other providers. It contains the
                standard error of an agent as `agents/NODE.log`, and files of a job as `job-ID/NODE.*`.
            on_step: function that reports a step of a long operation to the user.
        """

    def up(self) -> None:
        """Prepare the nodes, for example containers or an allocation, and mark what was made.

        Nodes that are ready are left unchanged. A node that cannot be prepared does not prevent the preparation of
        the others. A provider that may wait for many minutes here, as for an allocation, has a method
        `interrupt` without arguments. Another thread calls it, possibly repeatedly, to end the wait with an error.

        Before anything is made, the provider calls `replay_folder.note_making`, so that a replay that is killed
        meanwhile takes the nodes down after it is resumed.

        Raises:
            TestbedError: a node cannot be prepared. `transient` indicates whether a retry may succeed.
        """

    def down(self) -> None:
        """Remove exactly what `up` made, including what a killed controller made. May be called repeatedly."""

    def close(self) -> None:
        """Release the connections to the nodes, which stay up. This is the last call."""

    def run(self, node: Node, arguments: Sequence[str]) -> Channel:
        """Run `PYTHON -P -m AGENT_MODULE ARGUMENTS` on the node. May be called from several threads.

        A node that is no longer ready, for example a stopped container, is prepared again.

        Raises:
            NotReadyError: the node is missing because `up` has not made it.
            TestbedError: the command cannot be started. `transient` indicates whether a retry may succeed.
        """

    def spool(self, node: Node) -> str:
        """Return the folder for the files of jobs and agents on the node."""

    def fetch(self, node: Node, target: Path) -> None:
        """Copy the files of the agent and of the jobs of the node from its spool to the folder `target` here.

        The layout is that of the folder of the replay. If the spool is in this folder, there is nothing to copy.

        Raises:
            TestbedError: the node cannot be reached.
        """

    def bind(self, node: Node) -> str | None:
        """Return the address of the node in the network of the testbed, on which ranks may listen.

        None: ranks may not listen on a port of the node.
        """


PROVIDERS: Registry[type[Provider]] = Registry("tracebed.providers", "provider", type)  # the installed providers


def world_of(inventory: Inventory, speed: float, lasts_s: float) -> system.World:
    """Return the world of the nodes of `inventory`: the present one, unless their provider has a method `make_world`.

    `lasts_s` is the shortest wall time of the replay. Nodes in different worlds are an InputError.
    """
    names = {group.provider for group in inventory.groups}
    makers = [getattr(PROVIDERS.load(name), "make_world", None) for name in names]
    if not any(makers):
        return system.current()
    if len(makers) > 1:
        what = f"nodes of the providers {', '.join(sorted(names))} are not in one world"
        raise InputError(what, where=inventory.where, hint="replay on virtual nodes only, or without them")
    found: system.World = makers[0](inventory, speed, lasts_s)  # type: ignore[misc]
    return found
