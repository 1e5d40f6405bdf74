"""The facts of nodes, from an agent on each node, and inventories completed by these facts."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracebed.ground import system
from tracebed.ground.cpus import parse_cpus
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds.base import Event, Testbed, made_testbed
from tracebed.orchestrator.testbeds.inventory import inventory
from tracebed.orchestrator.testbeds.nodes import AGENTS, Inventory, Node
from tracebed.orchestrator.testbeds.testbed import AgentTestbed

ANSWER_S = 15.0  # time in which an agent must answer, s, plus 0.05 s per agent


@dataclass
class NodeReport:
    """The report of the agent of a node.

    Attributes:
        group: the name of the group of the node.
        error: why the agent did not start or did not answer; None: no error.
        facts: the facts, as defined by the wire protocol; empty if there is an error.
        units_per_core_second: measured work rate of a core; None: not measured, or emulated.
        clock: `offset_s` and `round_trip_s` of the agent's monotonic clock; empty: the clock of this machine.
        wall_offset_s: time of day of the node minus time of day of this machine, s.
        samples: the counters of the node at the start and at the end of the survey.
    """

    node: Node
    group: str
    error: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    units_per_core_second: float | None = None
    clock: Mapping[str, Any] = field(default_factory=dict)
    wall_offset_s: float | None = None
    samples: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, without the samples."""
        return {
            "node": self.node.name,
            "group": self.group,
            "provider": self.node.provider,
            "error": self.error,
            "units_per_core_second": self.units_per_core_second,
            "clock": dict(self.clock),
            "wall_offset_s": self.wall_offset_s,
            "facts": self.facts,
        }


def survey(
    nodes: Inventory | Path | str,
    *,
    measure: bool = False,
    seconds: float = 0.0,
    on_step: Callable[[str], None] = lambda step: None,
) -> list[NodeReport]:
    """Return the facts of the nodes of an inventory, from an agent on each node.

    Nodes that are not up are brought up, and taken down at the end.

    Args:
        nodes: an inventory, its name, or its file. The numbers of cores of its nodes may be unknown.
        measure: whether to claim the CPUs of computing nodes and measure their work rate. A node on which a replay is
            running then has an error.
        seconds: time between the two samples of the counters of the nodes, wall s; 0: one sample.
        on_step: called with each step of the providers.

    Raises:
        InputError: the inventory is invalid.

    Example:
        >>> import tracebed.api as tb
        >>> tb.nodes_facts("emulated-4")[0].facts["topology"]["cpus"] >= 1
        True
    """
    own = inventory(nodes, facts_follow=True)
    reports = {node.name: NodeReport(node, group.name) for group in own.groups for node in group.nodes}
    probed = {
        node.name: node if measure and node.cores else replace(node, cores=node.cores or 1, cpus=None, emulated=True)
        for node in own.nodes
    }
    with tempfile.TemporaryDirectory(prefix="tracebed-nodes-") as folder:
        chosen = own.with_nodes(probed)
        spool = Path(folder) / "spool"
        testbed: Testbed
        if chosen.testbed == AGENTS:
            testbed = AgentTestbed(chosen, spool, drain=True, on_step=on_step)
        else:
            testbed = made_testbed(chosen.testbed, chosen, spool)
        try:
            testbed.start()
            _Survey(testbed, [reports[node.name] for node in testbed.nodes]).run(seconds)
        except TestbedError as error:
            for name, report in reports.items():
                report.error = report.error or _reason(name, testbed.out.get(name) or str(error))
        finally:
            testbed.stop()
    return list(reports.values())


class _Survey:
    """The requests to the agents of a started testbed, and their answers, which complete the reports by index."""

    def __init__(self, testbed: Testbed, reports: list[NodeReport]) -> None:
        self.testbed, self.reports = testbed, reports
        for report in reports:
            reason = testbed.out.get(report.node.name)
            report.error = None if reason is None else _reason(report.node.name, reason)

    def run(self, seconds: float) -> None:
        """Collect the facts, and two samples that are `seconds` apart."""
        self._request({"type": "facts"}, lambda report: bool(report.facts))
        self._sample(1)
        if seconds:
            self._listen(system.monotonic() + seconds)
            self._sample(2)
        for host in self.testbed.hosts:
            for report in self.reports:
                report.units_per_core_second = host["units_per_core_second"].get(
                    report.node.name, report.units_per_core_second
                )
                report.clock = host.get("clocks", {}).get(report.node.name, report.clock)

    def _sample(self, count: int) -> None:
        """Wait until each node has `count` samples. Heartbeats, which come without a request, have samples too."""
        for report in self.reports:
            del report.samples[count - 1 :]
        self._request({"type": "sample", "calibrate": False}, lambda report: len(report.samples) >= count)

    def _request(self, message: Mapping[str, Any], answered: Callable[[NodeReport], bool]) -> None:
        """Send a message to each agent, and wait for the answers."""
        for index, report in enumerate(self.reports):
            if report.error is None:
                self.testbed.send(index, message)
        until = system.monotonic() + ANSWER_S + 0.05 * len(self.reports)
        while waiting := [report for report in self.reports if report.error is None and not answered(report)]:
            if system.monotonic() >= until:
                for report in waiting:
                    report.error = f"the agent did not answer within {ANSWER_S:g} s"
                return
            self._take(self.testbed.receive(until))

    def _listen(self, until: float) -> None:
        while system.monotonic() < until:
            self._take(self.testbed.receive(until))

    def _take(self, events: Sequence[Event]) -> None:
        """Add the answers of the agents to the reports."""
        for event in events:
            report, message = self.reports[event.node], event.message
            if message["type"] == "facts":
                report.facts = message["facts"]
                # The time of an event is converted to the monotonic clock of this machine.
                here = system.time() - system.monotonic() + message["time"]
                report.wall_offset_s = message["facts"]["clock_s"] - here
            elif message["type"] == "heartbeat":
                report.samples.append((message["time"], message["sample"]))
            elif message["type"] in ("lost", "error"):
                report.error = str(message.get("reason") or message.get("what"))


def _reason(node: str, error: str) -> str:
    """Return why the agent of a node did not start, without the name of the node, which stands beside it."""
    return error.removeprefix(f"node {node}: ")


def load_with_facts(nodes: Inventory | Path | str, *, on_step: Callable[[str], None] = lambda step: None) -> Inventory:
    """Return an inventory: itself, or that of a file or name, with the CPUs of nodes whose number of cores is unknown.

    Args:
        nodes: an inventory, a file, or the name of an inventory that tracebed provides.
        on_step: function that reports the steps of providers to the user.

    Raises:
        InputError: the inventory is invalid.
        TestbedError: the agent of a node whose number of cores is unknown does not start.
    """
    if isinstance(nodes, Inventory):
        return nodes
    own = inventory(nodes, facts_follow=True)
    unknown = {node.name: node for node in own.nodes if not node.cores}
    return described(own, survey(own.with_nodes(unknown), on_step=on_step)) if unknown else own


def described(nodes: Inventory | Path | str, reports: Iterable[NodeReport]) -> Inventory:
    """Return an inventory with the CPUs that agents found on nodes whose number of cores is unknown.

    Args:
        nodes: an inventory, its name, or its file.
        reports: the facts of its nodes, as from `nodes_facts`.

    Raises:
        InputError: the inventory is invalid.
        TestbedError: the agent of such a node did not start.

    Example:
        >>> import tracebed.api as tb
        >>> tb.with_facts("emulated-4", []).name
        'emulated-4'
    """
    own = inventory(nodes, facts_follow=True)
    of_name = {report.node.name: report for report in reports}
    known = {node.name: node for node in own.nodes}
    for name in own.unknown:
        if of_name[name].error is not None:
            what = f"the number of cores is unknown, and the agent did not start: {of_name[name].error}"
            raise TestbedError(what, where=f"node {name}", hint="set `cores`, or remove the node from the inventory")
        known[name] = with_facts(known[name], of_name[name].facts)
    return own.with_nodes(known)


def with_facts(node: Node, facts: Mapping[str, Any]) -> Node:
    """Return a node with all CPUs that its agent may use, ordered by socket."""
    by_socket = [parse_cpus(text) for text in facts["cpus_by_socket"]]
    cpus = tuple(cpu for socket in by_socket for cpu in socket)
    equal = len({len(socket) for socket in by_socket}) == 1
    return replace(node, cores=len(cpus), sockets=len(by_socket) if equal else 1, cpus=cpus)


def work_rates(reports: Iterable[NodeReport]) -> dict[str, float]:
    """Return the median work rate of the nodes of each group, in units per second of CPU time of a core."""
    by_group: dict[str, list[float]] = {}
    for report in reports:
        if report.units_per_core_second is not None:
            by_group.setdefault(report.group, []).append(report.units_per_core_second)
    return {group: statistics.median(rates) for group, rates in by_group.items()}
