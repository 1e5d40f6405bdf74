"""Changes of a slurm.conf: single settings, and more nodes of the kind of a partition.

A setting is one of

    bf_max_job_test=1000          a parameter of SchedulerParameters
    PriorityWeightAge=5000        a key of a line of its own
    Partition.gpu.MaxTime=1-00    a setting of the PartitionName line gpu
    Node.n[1-4].Weight=5          a setting of nodes; the line of other nodes, too, is divided
    QOS.normal.MaxJobsPU=4        a setting of a QOS in the database of Slurm
    Account.phys.GrpTRES=cpu=64   a setting of an account; User.NAME: of a user in each of the user's accounts

Keys are not case-sensitive. Names of partitions, nodes, QOS, accounts and users are.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.policies.slurm import OF_CONF
from tracebed.slurm.conf_keys import (
    GROUPS,
    KNOWN,
    LINES,
    MODELED_WITH_CLUSTER,
    NODE_GROUPS,
    OF_CLUSTER,
    OF_NODES,
    OF_PARTITIONS,
    PARTITION_GROUPS,
    SCHEDULER_OF_CLUSTER,
    SCHEDULER_OF_WHOLE_NODES,
    SCHEDULER_WITHOUT_EFFECT,
)
from tracebed.slurm.conf_lines import (
    Line,
    entries,
    hosts_of,
    node_lines,
    parsed,
    partition_lines,
    state_of,
    without_node_sets,
)
from tracebed.slurm.database import LIMITS, SETTINGS, Association, Database, Qos, with_setting
from tracebed.slurm.machine import kind_of

SPELLED = {
    key.lower(): key
    for groups in (GROUPS, PARTITION_GROUPS, NODE_GROUPS, {"": OF_PARTITIONS}, {"": OF_NODES})
    for keys in groups.values()
    for key in keys
}
"""Key in lower case -> as the manual spells it."""
PARAMETERS = SCHEDULER_OF_CLUSTER | OF_CONF
"""Parameters of SchedulerParameters that the policy `slurm` or the simulation of a cluster has."""
MODELED_KEYS = (
    OF_CLUSTER
    | PARAMETERS
    | MODELED_WITH_CLUSTER.keys()
    | {"boards", "corespersocket", "cpus", "default", "defmempercpu", "defmempernode", "exclusive", "nodes"}
    | {"oversubscribe", "procs", "realmemory", "schedulerparameters", "shared", "sockets", "socketsperboard"}
    | {"state", "threadspercore", "tresbillingweights"}
)
"""Keys, in lower case, on which a prediction of a cluster may depend."""
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
GRAMMAR = "write KEY=VALUE, or Partition.NAME.KEY=VALUE; instead of Partition: Node, QOS, Account or User"
OF_DATABASE: Mapping[str, Callable[[Any, str], bool]] = {
    "qos": lambda row, name: row.name == name,
    "account": lambda row, name: row.account == name and not row.user,
    "user": lambda row, name: row.user == name,
}
"""First word of a setting of the database -> whether a QOS or an association is the named one."""
OWN = ("port", "nodeaddr", "nodehostname", "bcastaddr", "reason", "state")
"""Settings of a NodeName line, in lower case, that say nothing about the class of its nodes."""


@dataclass(frozen=True)
class Addition:
    """Nodes for a partition: their number, and a node whose class they have; empty: that of most of its nodes."""

    count: int
    like: str = ""


def with_settings(lines: Sequence[Line], settings: Iterable[str]) -> list[Line]:
    """Return the lines with changed settings, in the grammar of this module; one that changes nothing is an error."""
    found = list(lines)
    for text in settings:
        changed = _changed(found, text)
        if _effective(changed) == _effective(found):
            raise InputError(f"{text!r} changes nothing: the slurm.conf has this value", hint="give another value")
        found = changed
    return found


def of_database(setting: str) -> bool:
    """Return whether a setting is one of a QOS, an account or a user."""
    return setting.partition("=")[0].strip().partition(".")[0].lower() in OF_DATABASE


def with_database(database: Database, settings: Iterable[str]) -> Database:
    """Return the database with changed settings; one that changes nothing is an error."""
    for text in settings:
        key, _, value = (part.strip() for part in text.partition("="))
        first, *names, setting = key.split(".")
        if not (names and value):
            raise InputError(f"{text!r} is not a setting of a QOS, an account or a user", hint=GRAMMAR)
        kind, name, chosen = first.lower(), ".".join(names), OF_DATABASE[first.lower()]
        known = [*(each for group in LIMITS.values() for each in group)]
        known += SETTINGS["QOS" if kind == "qos" else "association"]
        spelled = {each.lower(): each for each in known}.get(setting.lower())
        if spelled is None:
            raise _unknown(f"{setting} is no setting of {first} that is modeled", setting, known)
        rows: Sequence[Qos | Association] = database.qos if kind == "qos" else database.associations
        if not any(chosen(row, name) for row in rows):
            if not rows:
                file = "`sacctmgr -P show qos`" if kind == "qos" else "`sacctmgr dump CLUSTER`"
                raise InputError(f"{text}: no file has settings of {first}", hint=f"give the output of {file}, too")
            names = sorted({getattr(row, "name" if kind == "qos" else kind) for row in rows} - {""})
            raise _unknown(f"Slurm's database has no {first} {name}", name, names)
        changed = tuple(with_setting(row, spelled, value, text) if chosen(row, name) else row for row in rows)
        if changed == tuple(rows):
            raise InputError(f"{text!r} changes nothing: the database has this value", hint="give another value")
        database = database.model_copy(update={"qos" if kind == "qos" else "associations": changed})
    return database


def modeled(setting: str) -> bool:
    """Return whether a prediction of a cluster may depend on the key of a setting."""
    if of_database(setting):
        return True  # `with_database` refuses others
    *first, key = setting.partition("=")[0].strip().lower().split(".")
    return key in MODELED_KEYS and not (key == "state" and first[0] == "partition")


def _effective(lines: Sequence[Line]) -> dict[str, object]:
    """Return what counts of each key: the last value, or the entries with the settings of the DEFAULT lines."""
    keys = {line.key.lower(): line.key for line in lines}
    return {
        key: {
            name: (line.settings, line.unknown)
            for line in entries(lines, spelled)
            for name in (hosts_of(line.value, line.where) if key == "nodename" else [line.value])
        }
        if key in LINES
        else [line.value for line in lines if line.key.lower() == key][-1]
        for key, spelled in keys.items()
    }


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


def with_nodes(lines: Sequence[Line], more: Mapping[str, Addition]) -> list[Line]:
    """Return the lines with more nodes in partitions (`more`), each of the class that `class_of` returns."""
    found = list(lines)
    for name, addition in more.items():
        bounds.check("number of additional nodes", addition.count, 1, bounds.MAX_MACHINE)
        alike = class_of(lines, name, addition)[0]
        own = next(line for line in partition_lines(without_node_sets(found)) if line.value == name)
        added = f"{name}-added[1-{addition.count}]"
        made: list[Line] = []
        for line in found:
            if line.key.lower() == "partitionname" and line.value == name and own.of("Nodes").upper() != "ALL":
                line = replace(line, settings={**line.settings, "nodes": f"{own.of('Nodes')},{added}"})
            made.append(line)
            if line.key.lower() == "nodename" and line.value == alike:
                settings = {key: value for key, value in line.settings.items() if key not in OWN}
                made.append(replace(line, value=added, settings=settings | {"state": "UNKNOWN"}))
        found = made
    return found


def class_of(lines: Sequence[Line], name: str, addition: Addition) -> list[str]:
    """Return the class of nodes that are added to a partition, as the lists of hosts of its NodeName lines.

    Lines are of one class if their nodes are alike for the scheduler. Two classes with most nodes are an error.
    """
    where = f"{name}={addition.count}"
    partitions = partition_lines(without_node_sets(lines))
    nodes = [line for line in node_lines(lines) if state_of(line) != "FUTURE"]
    own = next((line for line in partitions if line.value == name), None)
    if own is None:
        raise _unknown(f"the slurm.conf has no partition {name}", name, [line.value for line in partitions])
    everything = own.of("Nodes").upper() == "ALL"
    members = set(hosts_of(own.of("Nodes"), own.where)) if own.of("Nodes") and not everything else set[str]()
    classes: dict[str, list[Line]] = {}
    for line in nodes:
        classes.setdefault(kind_of(line).model_dump_json(exclude={"names"}), []).append(line)
    names = {kind: [host for line in alike for host in hosts_of(line.value, "")] for kind, alike in classes.items()}
    if addition.like:
        chosen = [kind for kind, hosts in names.items() if addition.like in hosts]
        if not chosen:
            raise _unknown(f"the slurm.conf has no node {addition.like}", addition.like, [line.value for line in nodes])
    else:
        sizes = {kind: sum(everything or host in members for host in hosts) for kind, hosts in names.items()}
        most = max(sizes.values(), default=0)
        if not most:
            raise InputError(f"partition {name} has no nodes", where=where, hint="add nodes to another partition")
        chosen = [kind for kind, size in sizes.items() if size == most]
    if len(chosen) > 1:
        what = f"most nodes of partition {name} are of {len(chosen)} classes, {most:,} nodes each: "
        firsts = [names[kind][0] for kind in chosen]
        hint = f"name a node of the class: {' or '.join(f'{where},like={first}' for first in firsts)}"
        raise InputError(what + " and ".join(_described([classes[kind] for kind in chosen])), where=where, hint=hint)
    return [line.value for line in classes[chosen[0]]]


def _described(classes: Sequence[Sequence[Line]]) -> list[str]:
    """Return the hosts of each class, and the settings in which the classes differ."""
    settings = [{(key, value) for key, value in alike[0].settings.items() if key not in OWN} for alike in classes]
    common = set.intersection(*settings)
    own = (" ".join(f"{SPELLED.get(key, key)}={value}" for key, value in sorted(each - common)) for each in settings)
    hosts = (",".join(line.value for line in alike) for alike in classes)
    return [f"{names} ({differing})" if differing else names for names, differing in zip(hosts, own, strict=True)]


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
