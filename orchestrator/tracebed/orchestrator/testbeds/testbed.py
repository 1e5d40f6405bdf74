"""The testbed of tracebed: an agent on each node, started by the provider of the node."""

from __future__ import annotations

import contextlib
import statistics
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from tracebed.ground import system
from tracebed.ground.errors import TestbedError, TracebedError
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Event
from tracebed.orchestrator.testbeds.group_lock import GroupLock
from tracebed.orchestrator.testbeds.launcher import Launcher, concurrently, joined
from tracebed.orchestrator.testbeds.link import Link
from tracebed.orchestrator.testbeds.links import Links
from tracebed.orchestrator.testbeds.nodes import Group, Inventory
from tracebed.orchestrator.testbeds.provider import PROVIDERS
from tracebed.orchestrator.testbeds.replay_folder import MADE, groups_made, note_made

END_S = 4.0  # Time in which agents must end after `bye`, s, plus 0.05 s per agent. A rank has 2 s to end after SIGTERM.
ANSWER_S = 60.0  # Time in which the agents must answer, s. They answer within 5 s unless the machine is overloaded.


class AgentTestbed:
    """Agents on the nodes of an inventory. Each group has a provider, whose steps `on_step` reports to the user.

    The folder `spool` is created for the files of jobs and agents: `job-ID/NODE.out`, `job-ID/NODE.heartbeat.jsonl`,
    `agents/NODE.log`. At the end, files of other machines are copied to it. With `drain`, the testbed runs without the
    nodes whose agents do not start, unless no agent starts.
    """

    def __init__(
        self,
        inventory: Inventory,
        spool: Path,
        *,
        drain: bool = False,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.inventory, self.drain, self.on_step = inventory, drain, on_step
        self.nodes = inventory.nodes
        self.spool = Path(spool).absolute()
        self.family = "AF_UNIX"
        self.units_per_core_second = EMULATED_RATE
        self._launchers: list[Launcher] = []
        self._locks: dict[str, GroupLock] = {}
        self._links = Links(inventory)
        self._bind: dict[int, str] = {}
        self._returned: list[Event] = []

    def start(self, adopt: Mapping[str, Mapping[str, Any]] | None = None, asleep: Collection[str] = ()) -> None:
        """Bring the nodes up, start or adopt all agents concurrently, and calibrate the computing nodes.

        The nodes `asleep`, by name, get no agent until `wake`.
        """
        self.inventory.check_here()
        self._links, self._returned, self._bind = Links(self.inventory), [], {}
        try:
            self.spool.mkdir(mode=0o700, parents=True, exist_ok=True)
            by_node: dict[str, Launcher] = {}
            for group in self.inventory.groups:
                provider = PROVIDERS.load(group.provider)(group, self.spool, self.on_step)
                launcher = Launcher(provider, self._links.post)
                self._launchers.append(launcher)
                self._locks[group.name] = GroupLock(group)
                if not provider.shared:
                    self._locks[group.name].lock_shared()
                by_node |= {node.name: launcher for node in group.nodes}
            self._check_network()
            self._bring_up()
            self.family = self._choose_family(by_node)
            self._links.connect(by_node, adopt or {}, asleep)
            self._links.await_all(drain=self.drain)
            self._check_reach(adopt or {})
        except OSError as error:
            self.stop()
            raise TestbedError(f"cannot start agents: {error.strerror}", where=error.filename) from error
        except BaseException:
            self.stop()
            raise
        rates = [rate for host in self.hosts for rate in host["units_per_core_second"].values()]
        if rates:
            self.units_per_core_second = statistics.median(rates)
        if any(host.get("kernel_of_jobs") == "numpy" for host in self.hosts):
            warnings.warn("jobs compute with the slower NumPy kernel (no C compiler at installation)", stacklevel=2)

    def _check_network(self) -> None:
        """Raise TestbedError if ranks of different groups cannot reach each other by TCP."""
        if self.inventory.network != "tcp" or len(self._launchers) == 1:
            return
        for launcher, group in zip(self._launchers, self.inventory.groups, strict=True):
            if getattr(launcher.provider, "isolated", False):
                what = "`network: tcp` connects no other groups with the nodes, which have a network of their own"
                hint = "use `network: auto` or `network: agents`"
                raise TestbedError(what, where=f"group {group.name}", hint=hint)

    @property
    def left_s(self) -> float | None:
        """Time until the end of the first allocation of nodes, s; None: unlimited or unknown."""
        left = [getattr(launcher.provider, "left_s", None) for launcher in self._launchers]
        return min((left_s for left_s in left if left_s is not None), default=None)

    def _bring_up(self) -> None:
        """Bring up the nodes of all providers concurrently. With `drain`, nodes that are not ready fail later."""
        errors = concurrently([launcher.make_ready for launcher in self._launchers], len(self._launchers))
        self._note_made()
        if errors and not self.drain:
            raise joined(errors)

    def _note_made(self) -> None:
        """Record the groups that were brought up, for providers that do not record them."""
        for launcher, group in zip(self._launchers, self.inventory.groups, strict=False):  # a provider may be missing
            if launcher.provider.made:
                note_made(self.spool, group)

    def _choose_family(self, launchers: Mapping[str, Launcher]) -> str:
        """Return the family of the connections between ranks."""
        network = self.inventory.network
        if network == "auto" and all(launcher.provider.shared for launcher in self._launchers):
            return "AF_UNIX"
        if network == "agents" or (network == "auto" and len(self._launchers) > 1):
            return "agents"  # the addresses of different groups may be in networks that are not connected
        closed = []
        for index, node in enumerate(self.nodes):
            try:
                address = launchers[node.name].provider.bind(node)
            except TestbedError:  # the node is left out, unless its agent starts after all
                if not self.drain:
                    raise
                continue
            if address is None:
                closed.append(node.name)
            else:
                self._bind[index] = address
        if not closed:
            return "AF_INET"
        if network == "auto":
            return "agents"
        what = "`network: tcp` needs an address on which ranks may listen"
        raise TestbedError(what, where=f"node {closed[0]}", hint="use `network: auto` or `network: agents`")

    def _check_reach(self, adopt: Mapping[str, Mapping[str, Any]]) -> None:
        """Use the channels of the agents if the network does not carry connections between ranks.

        Agents that are taken over have ranks that are connected already, so the family stays as it was. With `network:
        tcp`, nodes that cannot reach each other are a TestbedError.
        """
        if self.family != "AF_INET":
            return
        known = {facts["family"] for facts in adopt.values() if "family" in facts}
        reason = None if known else blocked(self._links, self._bind)
        if reason is not None and self.inventory.network == "tcp":
            what = f"the nodes cannot reach each other by TCP: {reason}"
            hint = "let the firewall pass connections between the nodes, or use `network: agents`"
            raise TestbedError(what, where=f"inventory {self.inventory.name}", hint=hint)
        if reason is not None:
            what = "the nodes cannot reach each other by TCP, so connections between ranks go through the agents"
            warnings.warn(f"{what}: {reason}", stacklevel=3)
        if reason is not None or known == {"agents"}:
            self.family, self._bind = "agents", {}

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def out(self) -> dict[str, str]:
        """The nodes that were left out at the start and are not back, with the reasons, by name."""
        return self._links.out

    @property
    def adopted(self) -> dict[str, list[str]]:
        """The jobs with a rank on each agent that was taken over at the start, by node name."""
        return self._links.adopted

    @property
    def held(self) -> dict[str, float]:
        """Time since which the ranks of the agents that were taken over are stopped, by node name; monotonic s."""
        return self._links.held

    @property
    def hosts(self) -> list[dict[str, Any]]:
        """The facts of each machine with agents, and the rates and the clocks of its nodes, by name."""
        machines: dict[str, dict[str, Any]] = {}
        for link in self._links:
            if not link.hello:
                continue
            facts = {name: value for name, value in link.hello["host"].items() if name != "boot_id"}
            rate = link.hello["units_per_core_second"]
            host = machines.setdefault(link.machine, {})
            host |= {name: value for name, value in facts.items() if name not in host}
            host.setdefault("tracebed", link.hello["version"])
            host.setdefault("units_per_core_second", {}).update({} if rate is None else {link.node.name: rate})
            if link.clock.round_trip_s is not None:
                host.setdefault("clocks", {})[link.node.name] = link.clock.facts()
        if len(machines) > 1:
            for link in self._links:
                if link.hello:
                    machines[link.machine].setdefault("nodes", []).append(link.node.name)
        return list(machines.values())

    @property
    def agents(self) -> dict[str, dict[str, Any]]:
        """The facts by which another testbed can take over the agents (see `start`), by node name."""
        return {link.node.name: {**link.facts(), "family": self.family} for link in self._links if link.up}

    # -- messages --------------------------------------------------------------------------------------------------

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        """Send a message to the agent of a node without blocking. A message to a lost node is discarded."""
        if self.family == "AF_INET" and message.get("type") == "launch":
            message = {**message, **self._listening(node)}
        self._links.send(node, message)

    def _listening(self, node: int) -> dict[str, str]:
        """Return the address on which a rank may listen. That of a node that was out at the start is found now."""
        if node not in self._bind:
            link = self._links[node]
            with contextlib.suppress(TestbedError):  # without an address, the agent refuses the launch
                if address := link.provider.bind(link.node):
                    self._bind[node] = address
        return {"bind": self._bind[node]} if node in self._bind else {}

    def receive(self, until: float | None, *, recorded: bool = True) -> list[Event]:
        """Return the events that have arrived, in order of arrival. Times in events are times of this machine."""
        links = self._links
        if recorded:
            for event in self._returned:
                if "n" in event.message:
                    links[event.node].seen = event.message["n"]
            self._returned = []
        while True:
            links.turn(0.0 if links.events else until)
            if links.events or (until is not None and system.monotonic() >= until):
                events, links.events = links.events, []
                self._returned += events
                return events

    def drop(self, node: int, reason: str) -> None:
        """Give up the agent of a node, which is yielded as `lost`, and start another one in the background."""
        self._links.drop(node, reason)

    def sleep(self, node: int) -> None:
        """End the agent of a node, which is yielded as `asleep`, and start no other one until `wake`."""
        self._links.sleep(node)

    def wake(self, node: int) -> None:
        """Start an agent on a node that sleeps. The node is yielded as `back`, or as `lost` if that fails."""
        self._links.wake(node)

    # -- stop ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End all agents and their jobs, copy their files here, and take down the nodes that `start` brought up."""
        launchers, links = self._launchers, self._links
        if not launchers:
            return
        for launcher in launchers:
            launcher.close()
        reachable = {link for link in links if link.up or link.asleep}
        links.send_bye(system.monotonic() + END_S + len(links) / 20)
        for launcher in launchers:
            own = [link for link in links if link.launcher is launcher]
            self._warn(concurrently([link.disconnect() for link in own], launcher.provider.fan_out))
        links.close()
        incomplete: set[Launcher] = set()  # those with files of jobs that could not be copied

        def fetch(link: Link) -> None:
            try:
                link.provider.fetch(link.node, self.spool)
            except BaseException:
                if link in reachable:  # the files of a node that was lost may not exist any more
                    incomplete.add(link.launcher)
                raise

        for launcher in launchers:
            own = [link for link in links if link.launcher is launcher and link.hello]
            fetches = [] if launcher.provider.shared else [partial(fetch, link) for link in own]
            self._warn(concurrently(fetches, launcher.provider.fan_out))
        self._note_made()  # an interrupt may have come while nodes were made ready
        made = groups_made(self.spool)
        groups = zip(launchers, self.inventory.groups, strict=False)
        downs = [
            partial(self._take_down, launcher, group, launcher not in incomplete)
            for launcher, group in groups
            if group.name in made
        ]
        errors = concurrently(downs, len(downs))
        self._warn(errors)
        if made and not errors:
            (self.spool / MADE).unlink()
        for launcher in launchers:
            launcher.provider.close()
        for use in self._locks.values():
            use.release()
        self._launchers, self._locks = [], {}

    def _take_down(self, launcher: Launcher, group: Group, complete: bool) -> None:
        """Take a group down, or raise TestbedError. If `complete`, the files of all its jobs were copied here."""
        if not complete:
            hint = "copy the files, then run `tracebed nodes down` with the inventory"
            what = "stays up: files of jobs on its nodes could not be copied here"
            raise TestbedError(what, where=f"group {group.name}", hint=hint)
        use = self._locks[group.name]
        if not launcher.provider.shared and not use.lock_exclusive():
            raise use.in_use("stays up")
        launcher.provider.down()

    def _warn(self, errors: Iterable[TracebedError]) -> None:
        for error in errors:
            warnings.warn(str(error), stacklevel=3)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def blocked(links: Links, addresses: Mapping[int, str]) -> str | None:
    """Return why a node cannot connect to the next node; None: all nodes can connect, or there is only one.

    A firewall, or a rule that another program left on the machine of the nodes, may discard the packets between them.
    Each job of several nodes would then fail. Each node listens on its address, and the node before it connects: the
    nodes form a ring, so each direction of each node is tested with two messages per node.
    """
    ring = [link.index for link in links if link.up and link.index in addresses]
    if len(ring) < 2:
        return None
    before = {target: source for source, target in pairwise([*ring, ring[0]])}
    awaited, others = dict.fromkeys(ring), []
    reason: str | None = None
    until = system.monotonic() + ANSWER_S
    for node in ring:
        links.send(node, {"type": "reach", "bind": addresses[node]})
    while awaited and reason is None and system.monotonic() < until:
        links.turn(until)
        events, links.events = links.events, []
        for event in events:
            kind, node = event.message["type"], event.node
            if kind == "reachable":
                links.send(before[node], {"type": "reach", "address": event.message["address"]})
            elif kind == "reached":
                awaited.pop(node, None)
                if event.message["reason"] is not None:
                    reason = f"{links[node].node.name}: {event.message['reason']}"
            elif kind == "error" and "job" not in event.message:
                reason = f"{links[node].node.name}: {event.message['what']}"
            else:
                others.append(event)
                _forget_lost(event, awaited, before)
    links.events = others + links.events
    for node in ring:
        links.send(node, {"type": "reach"})
    if reason is None and awaited:
        reason = f"{links[next(iter(awaited))].node.name}: no answer within {ANSWER_S:g} s"
    return reason


def _forget_lost(event: Event, awaited: dict[int, None], before: Mapping[int, int]) -> None:
    """Remove a lost node, and the node that was to connect to it, from the expected answers."""
    if event.message["type"] == "lost":
        awaited.pop(event.node, None)
        if event.node in before:
            awaited.pop(before[event.node], None)
