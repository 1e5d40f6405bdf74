"""Changes of a slurm.conf: single settings, and more nodes of the kind of a partition.

A setting is one of

    bf_max_job_test=1000          a parameter of SchedulerParameters
    PriorityWeightAge=5000        a key of a line of its own
    Partition.gpu.MaxTime=1-00    a setting of the PartitionName line gpu
    Node.n[1-4].Weight=5          a setting of nodes; the line of other nodes, too, is divided

Keys are not case-sensitive. Names of partitions and nodes are.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from tracebed import bounds
from tracebed.errors import InputError
from tracebed.orchestrator.scheduling.policies.slurm import OF_CONF
from tracebed.orchestrator.slurm.keys import (
    GROUPS,
    KNOWN,
    LINES,
    NODE_GROUPS,
    OF_NODES,
    OF_PARTITIONS,
    PARTITION_GROUPS,
    SCHEDULER_OF_CLUSTER,
    SCHEDULER_OF_WHOLE_NODES,
    SCHEDULER_WITHOUT_EFFECT,
)
from tracebed.orchestrator.slurm.lines import Line, hosts_of, node_lines, parsed, partition_lines, without_node_sets

SPELLED = {
    key.lower(): key
    for groups in (GROUPS, PARTITION_GROUPS, NODE_GROUPS, {"": OF_PARTITIONS}, {"": OF_NODES})
    for keys in groups.values()
    for key in keys
}
"""Key in lower case -> as the manual spells it."""
PARAMETERS = SCHEDULER_OF_CLUSTER | OF_CONF
"""Parameters of SchedulerParameters that the policy `slurm` or the simulation of a cluster has."""
WITHOUT_EFFECT = SCHEDULER_WITHOUT_EFFECT | SCHEDULER_OF_WHOLE_NODES | {"sched_min_interval"}
"""Other parameters of SchedulerParameters."""
OF = {"partition": "PartitionName", "node": "NodeName"}
"""First word of a setting -> key of the lines that it changes."""
WHOLE = frozenset(
    (
        *("cpus", "procs", "sockets", "corespersocket", "threadspercore", "realmemory", "weight", "defmempercpu"),
        *("prioritytier", "priorityjobfactor", "priorityweightage", "priorityweightfairshare", "killwait"),
        *("priorityweightjobsize", "priorityweightpartition", "priorityweightqos"),
    )
)
"""Keys, in lower case, whose values are whole numbers."""
GRAMMAR = "write KEY=VALUE, Partition.NAME.KEY=VALUE or Node.NAME.KEY=VALUE"
OWN = ("port", "nodeaddr", "nodehostname", "bcastaddr")
"""Settings of a NodeName line, in lower case, of which each node has its own."""


def with_settings(lines: Sequence[Line], settings: Iterable[str]) -> list[Line]:
    """Return the lines with changed settings; the grammar is that of this module.

    Raises:
        InputError: a setting has another form or an unknown key, a partition or node does not exist, a value is no
            number where a number is needed, or the setting has this value already.
    """
    found = list(lines)
    for text in settings:
        changed = _changed(found, text)
        if changed == found:
            raise InputError(f"{text!r} changes nothing: the slurm.conf has this value", hint="give another value")
        found = changed
    return found


def _changed(lines: list[Line], text: str) -> list[Line]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key and equals and value):
        raise InputError(f"{text!r} is not a setting", hint=GRAMMAR)
    first, *middle = key.split(".")
    if middle:
        if first.lower() not in OF or len(middle) < 2:
            raise InputError(f"{text!r} is not a setting of a partition or node", hint=GRAMMAR)
        *names, setting = middle
        return _in_entries(lines, OF[first.lower()], ".".join(names), setting, value, text)
    if key.lower() in LINES:
        raise InputError(f"{key} is the key of a line with several settings", hint=GRAMMAR)
    if key.lower() in PARAMETERS | WITHOUT_EFFECT:
        return _with_parameter(lines, key.lower(), value, text)
    if key.lower() not in KNOWN:
        what = f"{key} is neither a key of slurm.conf nor a parameter of SchedulerParameters that is modeled"
        raise _unknown(what, key, [*sorted(PARAMETERS), *(SPELLED[name] for name in sorted(KNOWN & {*SPELLED}))])
    _check(key, value, text)
    line = parsed(f'{key}="{value}"', text)
    given = [each for each in lines if each.key.lower() == key.lower()]
    if given:  # the last value counts
        return [replace(each, value=line.value) if each is given[-1] else each for each in lines]
    return [*lines, line]


def _with_parameter(lines: list[Line], name: str, value: str, text: str) -> list[Line]:
    """Return the lines with a parameter of SchedulerParameters."""
    given = [line for line in lines if line.key.lower() == "schedulerparameters"]
    old = [part.strip() for part in given[-1].value.split(",")] if given else []
    others = [part for part in old if part.partition("=")[0].strip().lower() != name]
    same = [part for part in old if part not in others][:1] == [f"{name}={value}"]  # Slurm takes the first
    if same:
        return lines
    line = Line("SchedulerParameters", ",".join([*filter(None, others), f"{name}={value}"]), {}, text)
    return [*(each for each in lines if each not in given[-1:]), line]


def _in_entries(lines: list[Line], kind: str, name: str, key: str, value: str, text: str) -> list[Line]:
    """Return the lines with a setting of a partition or of nodes."""
    if key.lower() not in LINES[kind.lower()]:
        known = [SPELLED.get(each, each) for each in sorted(LINES[kind.lower()])]
        raise _unknown(f"{key} is no setting of a {kind} line", key, known)
    _check(key, value, text)
    if kind == "PartitionName":
        wanted, members = {name}, {line.value: [line.value] for line in lines if line.key.lower() == kind.lower()}
    else:
        wanted = set(hosts_of(name, text))
        members = {line.value: hosts_of(line.value, line.where) for line in lines if line.key.lower() == kind.lower()}
    if missing := wanted - {each for listed in members.values() for each in listed}:
        raise _unknown(f"the slurm.conf has no {kind[:-4].lower()} {min(missing)}", name, list(members))
    found: list[Line] = []
    for line in lines:
        if line.key.lower() != kind.lower():
            found.append(line)
            continue
        whole = wanted.issuperset(members[line.value])
        for chosen, names in groupby(members[line.value], key=wanted.__contains__):
            listed = line.value if whole or wanted.isdisjoint(members[line.value]) else ",".join(names)
            if chosen and line.of(key) != value:
                found.append(Line(line.key, listed, {**line.settings, key.lower(): value}, text))
            else:
                found.append(replace(line, value=listed))
    return found


def with_nodes(lines: Sequence[Line], more: Mapping[str, int]) -> list[Line]:
    """Return the lines with more nodes: of the kind of most nodes of a partition, in this partition.

    Args:
        more: partition -> number of additional nodes.

    Raises:
        InputError: a partition does not exist or has no nodes, or a number is out of range.
    """
    found = list(lines)
    for name, count in more.items():
        where = f"{name}={count}"
        bounds.check("number of additional nodes", count, 1, bounds.MAX_MACHINE)
        partitions, nodes = partition_lines(without_node_sets(found)), node_lines(found)
        own = next((line for line in partitions if line.value == name), None)
        if own is None:
            raise _unknown(f"the slurm.conf has no partition {name}", name, [line.value for line in partitions])
        everything = own.of("Nodes").upper() == "ALL"
        members = None if everything else set(hosts_of(own.of("Nodes"), own.where) if own.of("Nodes") else ())
        sizes = {
            line.value: sum(members is None or host in members for host in hosts_of(line.value, line.where))
            for line in nodes
        }
        kind = max(sizes, key=sizes.__getitem__, default="")
        if not sizes.get(kind):
            raise InputError(f"partition {name} has no nodes", where=where, hint="add nodes to another partition")
        added = f"{name}-added[1-{count}]"
        made: list[Line] = []
        for line in found:
            if line.key.lower() == "partitionname" and line.value == name and not everything:
                line = replace(line, settings={**line.settings, "nodes": f"{own.of('Nodes')},{added}"})
            made.append(line)
            if line.key.lower() == "nodename" and line.value == kind:
                settings = {key: value for key, value in line.settings.items() if key not in OWN}
                made.append(replace(line, value=added, settings=settings))
        found = made
    return found


def _check(key: str, value: str, text: str) -> None:
    if key.lower() in WHOLE and not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise InputError(f"{key} is {value!r}, not a whole number", where=text, hint="give a number of at least 0")


def _unknown(what: str, name: str, known: Sequence[str]) -> InputError:
    """Return the error for an unknown name, with the most similar names as a hint."""
    lower = {each.lower(): each for each in known}
    near = [lower[each] for each in difflib.get_close_matches(name.lower(), lower, 3)]
    if near:
        return InputError(what, hint=f"did you mean {' or '.join(near)}?")
    return InputError(what, hint=f"known: {', '.join(known)}" if len(known) <= 12 else GRAMMAR)
