"""The lines of a slurm.conf, with included files, as Slurm reads them (checked against the parser of Slurm 22.05.8)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, NoReturn

from tracebed.ground.errors import InputError
from tracebed.ground.host_lists import host_names
from tracebed.ground.input_files import read_file
from tracebed.slurm.conf_keys import KNOWN, LINES

MAX_BYTES = 2**22
"""Largest accepted size, with all included files. A log or a device given by mistake must not fill the memory."""
MOST_INCLUDED = 200
PAIR = re.compile(r"\s*([A-Za-z0-9_.]+)\s*[-+*/]?=\s*(?:\"([^\"]*)\"|(\S+))(?=\s|$)")
INCLUDE = re.compile(r"include\s+(.+)", re.IGNORECASE)
COMMENT = re.compile(r"(?<!\\)#.*")
HINT = "give the file slurm.conf of a cluster, not the output of scontrol"
UNAVAILABLE = ("DOWN", "DRAIN", "FAIL", "FUTURE")
"""States of a NodeName line in which no job starts on its nodes."""
AVAILABLE = ("UNKNOWN", "IDLE", "ALLOCATED", "MIXED", "CLOUD")
PREFIXES = ("DRAIN", "FAIL", "CLOUD")
"""States of which Slurm reads the first letters only, so that DRAINED and DRAINING are DRAIN."""


@dataclass(frozen=True)
class Line:
    """A line of settings.

    Attributes:
        key, value: the first setting, as in the file.
        settings: the other settings of the line, keys in lower case; only lines such as NodeName have any.
        where: `file:line`.
        unknown: settings with a key that is not in `conf_keys`, as `key=value`.
    """

    key: str
    value: str
    settings: Mapping[str, str]
    where: str
    unknown: tuple[str, ...] = ()

    def of(self, key: str) -> str:
        """Return a further setting of the line; empty if the line lacks the setting."""
        return self.settings.get(key.lower(), "")


def lines_of(path: Path) -> list[Line]:
    """Return the lines of a slurm.conf and of the files that it includes, in the order in which Slurm reads them."""
    found: list[Line] = []
    stack, room, included = [_logical(path, None, MAX_BYTES)], MAX_BYTES, 0
    while stack:
        where, text = next(stack[-1], ("", None))
        if text is None:
            stack.pop()
            continue
        if include := INCLUDE.fullmatch(text):
            included += 1
            if included > MOST_INCLUDED:
                raise InputError(f"more than {MOST_INCLUDED} files are included", where=where, hint="remove the loop")
            cluster = next((line.value for line in found if line.key.lower() == "clustername"), "")
            file = path.parent / include[1].strip().replace("%c", cluster)
            stack.append(_logical(file, where, room))
            continue
        room -= len(text)
        found.append(parsed(text, where))
    return found


def _logical(path: Path, where: str | None, room: int) -> Iterator[tuple[str, str]]:
    """Yield `file:line` and text of each line without comments, with continued lines joined."""
    try:
        data = read_file(path, "slurm.conf", most=room)
    except InputError as error:
        if where is None:
            raise
        hint = "copy the included file to this place, or remove the line from a copy"
        raise InputError(f"the included file {path}: {error.what}", where=where, hint=hint) from error
    if b"\0" in data:
        raise InputError("binary data, not a slurm.conf", where=str(path), hint=HINT)
    begun, whole = 0, ""
    for number, raw in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        begun = begun or number
        part = COMMENT.sub("", raw.rstrip("\r")).replace("\\#", "#")
        if part.rstrip().endswith("\\"):
            whole += part.rstrip()[:-1]
            continue
        whole += part
        if whole.strip():
            yield f"{path}:{begun}", whole.rstrip()
        begun, whole = 0, ""
    if whole.strip():
        yield f"{path}:{begun}", whole.rstrip()


def parsed(text: str, where: str) -> Line:
    """Return a line of settings. Raise InputError if no version of Slurm reads the line."""
    pairs, end = [], 0
    while (pair := PAIR.match(text, end)) is not None:
        pairs.append((pair[1], pair[3] if pair[2] is None else pair[2]))
        end = pair.end()
    if not pairs or text[end:].strip():
        _refuse(f"{text[end:].strip()[:60]!r} is not KEY=VALUE", where)
    (key, value), *more = pairs
    if key.lower() not in KNOWN:
        return Line(key, value, {}, where, (f"{key}={value}",))
    others = LINES.get(key.lower())
    if others is None and more:
        _refuse(f"{more[0][0][:60]!r} is a second setting in the line of {key}", where)
    unknown = tuple(f"{name}={setting}" for name, setting in more if others and name.lower() not in others)
    return Line(key, value, {name.lower(): setting for name, setting in more}, where, unknown)


def _refuse(what: str, where: str) -> NoReturn:
    raise InputError(f"{what}: not a slurm.conf", where=where, hint=f"{HINT}; or correct the line in a copy")


def hosts(text: str) -> int:
    """Return the number of names in a list of hosts; 0 if the list is invalid."""
    try:
        return len(host_names(text))
    except ValueError:
        return 0


def hosts_of(text: str, where: str) -> list[str]:
    """Return the names in a list of hosts."""
    try:
        return host_names(text)
    except ValueError as error:
        raise InputError(str(error), where=where, hint="write the hosts as n[1-4,7],login") from error


def entries(lines: Sequence[Line], key: str) -> list[Line]:
    """Return the lines with this first key; each has the settings of the DEFAULT lines above it, too."""
    default: Mapping[str, str] = {}
    found = []
    for line in lines:
        if line.key.lower() == key.lower():
            settings = {**default, **line.settings}
            if "features" in line.settings and "feature" not in line.settings:
                settings.pop("feature", None)  # two names of one setting
            if line.value.upper() == "DEFAULT":
                default = settings
            else:
                found.append(Line(line.key, line.value, settings, line.where))
    return found


def node_lines(lines: Sequence[Line]) -> list[Line]:
    """Return the NodeName lines. Raise InputError if a node has two lines, which Slurm refuses."""
    found = entries(lines, "NodeName")
    seen: dict[str, str] = {}
    for line in found:
        if line.value.upper() == "ALL":
            raise InputError("ALL is not the name of a node", where=line.where, hint="name the nodes, as n[1-4]")
        for name in hosts_of(line.value, line.where):
            if name in seen:
                hint = "remove it from one of the two lines"
                raise InputError(f"node {name} is also in {seen[name]}", where=line.where, hint=hint)
            seen[name] = line.where
    return found


def partition_lines(lines: Sequence[Line]) -> list[Line]:
    """Return the PartitionName lines. Of two lines of one partition, Slurm takes the second."""
    return [*{line.value: line for line in entries(lines, "PartitionName")}.values()]


def state_of(line: Line) -> str:
    """Return the state of the nodes of a NodeName line in capitals. With another state, slurmctld does not start."""
    given = line.of("State").upper() or "UNKNOWN"
    found = next((state for state in PREFIXES if given.startswith(state)), given)
    if found not in UNAVAILABLE + AVAILABLE:
        hint = f"write one of {', '.join(UNAVAILABLE + AVAILABLE)}, without a suffix"
        raise InputError(f"State={line.of('State')} is not a state of a NodeName line", where=line.where, hint=hint)
    return found


def available(line: Line) -> bool:
    """Return whether jobs may start on the nodes of a NodeName line."""
    return state_of(line) not in UNAVAILABLE


def features_of(line: Line) -> tuple[str, ...]:
    """Return the features of the nodes of a NodeName line."""
    return tuple(filter(None, re.split(r"[,\s]+", line.of("Feature") or line.of("Features"))))


def without_node_sets(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with the nodes of NodeSet lines in place of the names of the sets in partitions."""
    nodes = node_lines(lines)
    sets: dict[str, str] = {}
    for line in entries(lines, "NodeSet"):
        names = hosts_of(line.of("Nodes"), line.where) if line.of("Nodes") else []
        for node in nodes:
            names += hosts_of(node.value, node.where) if line.of("Feature") in features_of(node) else []
        if not names:
            hint = "name nodes, or a feature of a NodeName line"
            raise InputError(f"NodeSet {line.value} has no nodes", where=line.where, hint=hint)
        sets[line.value] = ",".join(dict.fromkeys(names))

    def resolved(line: Line) -> Line:
        listed = line.of("Nodes")
        if line.key.lower() != "partitionname" or not listed:
            return line
        names = hosts_of(listed, line.where)
        if sets.keys().isdisjoint(names):
            return line
        return replace(line, settings={**line.settings, "nodes": ",".join(sets.get(name, name) for name in names)})

    return [resolved(line) for line in lines] if sets else [*lines]


class Layout(NamedTuple):
    """The CPUs of each node of a NodeName line, the CPUs of a core (1: they are the cores), the cores of a socket."""

    cpus: int
    threads: int
    socket_cores: int


def layout_of(line: Line) -> Layout:
    """Return the layout of a node. Slurm replaces CPUs that contradict the other settings by their product."""
    cores, threads = _count(line, "CoresPerSocket") or 1, _count(line, "ThreadsPerCore") or 1
    boards, of_board = _count(line, "Boards") or 1, _count(line, "SocketsPerBoard")
    given = _count(line, "CPUs" if line.of("CPUs") else "Procs")
    if of_board is not None:
        sockets = boards * (of_board or 1)
    elif (of_node := _count(line, "Sockets")) is not None:
        sockets = of_node or 1
    else:
        sockets = given // (cores * threads) if given and given % (cores * threads) == 0 else boards
    cpus = sockets * cores * threads if given is None else given or 1
    if cpus not in (sockets, sockets * cores):
        return Layout(sockets * cores * threads, threads, cores)
    return Layout(cpus, 1, 1 if cpus == sockets else cores)


def _count(line: Line, key: str) -> int | None:
    """Return a number of a line; None if the line lacks the setting."""
    text = line.of(key)
    if text and whole(text, -1) < 0:
        raise InputError(f"{key}={text} is not a number", where=line.where, hint="write the number, as Slurm demands")
    return whole(text, 0) if text else None


def whole(text: str, default: int) -> int:
    """Return a number without sign; `default` if the text is not a number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else default
