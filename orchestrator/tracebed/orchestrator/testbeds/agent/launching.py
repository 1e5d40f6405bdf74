"""The check of a `launch` message: the rank must be possible on this node, and its files must be in the spool."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.benchmarks.clock import Pauses
from tracebed.benchmarks.program import WORK_S, Address, Launch, Program
from tracebed.ground import system
from tracebed.ground.cpus import format_cpus, parse_cpus
from tracebed.ground.errors import InputError
from tracebed.orchestrator.testbeds.agent.messages import LONGEST_S, MessageFields
from tracebed.orchestrator.testbeds.agent.processes import application_of, folder_name

RELAYED = "agents"  # the family of connections that go through the agents and the controller
FAMILIES = ("AF_UNIX", "AF_INET", RELAYED)


class NodeDescription(NamedTuple):
    """The node of an agent."""

    name: str
    cpus: tuple[int, ...]  # The CPUs of the node. The CPUs of an emulated node are virtual.
    emulated: bool
    spool: Path  # folder for the files of jobs

    def mask(self, text: str) -> tuple[int, ...]:
        """Return the CPUs of a mask. Raises InputError if the mask is empty or has CPUs outside this node."""
        cpus = parse_cpus(text)
        if not cpus or not set(cpus) <= set(self.cpus):
            raise InputError(f"mask {text[:40]!r} is not a subset of the node's CPUs {format_cpus(self.cpus)}")
        return cpus


def read_launch(message: Mapping[str, Any], node: NodeDescription, own: Path, pauses: Pauses, table: Path) -> Launch:
    """Return the launch parameters of a rank, from the message `launch`. A missing field is a KeyError.

    This rank (leader), or its agent (follower in the family `agents`), listens on the socket `own`. An OSError means
    that the file of the clock cannot be used.
    """
    fields = MessageFields(message)
    job, rank, leader = fields.text("job"), fields.text("rank"), fields.flag("leader")
    if rank != node.name:
        raise InputError(f"rank {rank!r} does not belong to node {node.name!r}")
    family = fields.text("family")
    if family not in FAMILIES:
        raise InputError(f"family is {family!r}, not one of {', '.join(FAMILIES)}")
    program = Program.from_message(fields.object("program"))
    application_of(program)
    duty = fields.value("duty")
    if type(duty) not in (int, float) or not 0 <= duty <= 1 or node.emulated != (duty == 0):
        raise InputError(f"duty is {duty!r}, not 0 (emulated nodes) or above 0 and up to 1 (other nodes)")
    clock = fields.text("clock") if "clock" in fields else None
    if clock is not None:
        Path(clock).stat()
    cores = fields.whole("cores", 1)
    cpus = node.mask(fields.text("cpus")) if "cpus" in fields else node.cpus[:cores]
    if len(cpus) != cores:
        raise InputError(f"cores is {cores}, but the mask has {len(cpus)} of the node's {len(node.cpus)} CPUs")
    return Launch(
        job=job,
        rank=rank,
        leader=leader,
        members=fields.names("members"),
        family="AF_UNIX" if family == RELAYED else family,
        address=_address(fields, family, own, leader=leader),
        authkey=bytes.fromhex(fields.text("authkey")),
        cpus=cpus,
        program=program,
        duty=float(duty),
        folder=node.spool / folder_name(job),
        clock=clock,
        table=table,
        pauses=pauses,
        received=system.monotonic(),
        work_s=fields.number("work_s", WORK_S, LONGEST_S) if "work_s" in fields else WORK_S,
    )


def _address(fields: MessageFields, family: str, own: Path, *, leader: bool) -> Address:
    """Return the address on which the leader listens, or to which a follower connects."""
    address = fields.value("address")
    if leader:
        return (bindable(fields), 0) if family == "AF_INET" else str(own)
    if address is None:
        raise InputError("a follower needs the address of its leader")
    if family == "AF_INET":
        return connectable(address)
    path = fields.text("address")
    return str(own) if family == RELAYED else path


def connectable(address: Any) -> tuple[str, int]:
    """Return an IPv4 address and a port, given as a list. Raises InputError if they are invalid."""
    host, port = address if isinstance(address, list) and len(address) == 2 else (None, None)
    if not isinstance(host, str) or type(port) is not int or not 0 < port < 65536:
        raise InputError(f"address is {str(address)[:200]!r}, not an IPv4 address and a port")
    return _ipv4(host), port


def bindable(fields: MessageFields) -> str:
    """Return the address on which a leader listens: an address in one network, never in all networks of the machine."""
    if "bind" not in fields:
        raise InputError("a leader in the family AF_INET needs an address to listen on: bind")
    address = _ipv4(fields.text("bind"))
    if address == "0.0.0.0":
        raise InputError("bind is 0.0.0.0, which every network can reach")
    return address


def _ipv4(address: str) -> str:
    """Return a numeric IPv4 address. Raises InputError for host names, so that names are never resolved."""
    try:
        return socket.inet_ntop(socket.AF_INET, socket.inet_pton(socket.AF_INET, address))
    except (OSError, ValueError) as error:
        raise InputError(f"{address[:200]!r} is not a numeric IPv4 address") from error
