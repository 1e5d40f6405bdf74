"""The switches of a cluster: topology.conf beside a slurm.conf, as Slurm reads it (topology.conf(5))."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NoReturn

from tracebed.ground.display import listed
from tracebed.ground.errors import InputError
from tracebed.ground.host_lists import host_names
from tracebed.slurm.conf_lines import Line, hosts_of, lines_of
from tracebed.slurm.values import Fact

TREE = "topology/tree"
OPTIONAL = "topooptional"
"""Item of `TopologyParam` with which only jobs with `--switches` use the switches."""
NEWER_FILE = "topology.yaml"
MOST_SHOWN = 12


class Switch(Fact):
    """A switch, with the nodes that are attached to it, as a list of hosts, and the names of the switches below it."""

    name: str
    nodes: str = ""
    below: tuple[str, ...] = ()


def read(values: Mapping[str, str], path: Path, nodes: Sequence[str]) -> tuple[tuple[Switch, ...], list[str]]:
    """Return the switches of a cluster, in their order, and sentences about what they leave out.

    `values`: key of slurm.conf, in lower case -> value. `path`: the slurm.conf, or the folder of topology.conf.
    """
    folder = path if path.is_dir() else path.parent
    sentences = []
    if (folder / NEWER_FILE).is_file():
        sentences.append(f"{NEWER_FILE}, with which Slurm 25.05 and newer ignore TopologyPlugin, is not read")
    if values.get("topologyplugin", "").lower() != TREE:
        return (), sentences
    if OPTIONAL in values.get("topologyparam", "").lower():
        return (), sentences
    file = folder / "topology.conf"
    lines = lines_of(file) if file.is_file() else []
    if not lines:
        state = "is empty" if file.is_file() else "is missing"
        return (), [*sentences, f"TopologyPlugin={TREE}, but {file} {state}: no switches are assumed"]
    switches = _switches(lines, frozenset(nodes))
    return switches, [*sentences, *_gaps(lines, switches, nodes)]


def _switches(lines: Sequence[Line], nodes: frozenset[str]) -> tuple[Switch, ...]:
    """Return the switches with those of their hosts that are nodes."""
    below: dict[str, list[str]] = {}
    found = []
    for line in lines:
        if line.key.lower() != "switchname" or line.unknown:
            _refuse(f"{line.unknown[0] if line.unknown else line.key} is not a setting of a switch", line)
        if line.value in below:
            _refuse(f"switch {line.value} has two lines", line)
        if bool(line.of("Nodes")) == bool(line.of("Switches")):
            both = "both" if line.of("Nodes") else "neither"
            _refuse(f"switch {line.value} has {both} Nodes {'and' if line.of('Nodes') else 'nor'} Switches", line)
        names = [name for name in _hosts(line) if name in nodes]
        below[line.value] = hosts_of(line.of("Switches"), line.where) if line.of("Switches") else []
        found.append(Switch(name=line.value, nodes=",".join(names), below=tuple(below[line.value])))
    for line in lines:
        for name in below[line.value]:
            if name not in below or name == line.value:
                _refuse(f"switch {line.value} is above {name}, which is no other switch of the file", line)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        _refuse(f"the switches are no tree: {' above '.join(error.args[1])}", lines[0])
    return tuple(found)


def _hosts(line: Line) -> list[str]:
    return hosts_of(line.of("Nodes"), line.where) if line.of("Nodes") else []


def _refuse(what: str, line: Line) -> NoReturn:
    raise InputError(what, where=line.where, hint="correct the line, with which Slurm does not start")


def _gaps(lines: Sequence[Line], switches: Sequence[Switch], nodes: Sequence[str]) -> list[str]:
    """Return sentences about hosts that are no nodes, nodes without a switch, and several trees."""
    attached = Counter(name for switch in switches if switch.nodes for name in host_names(switch.nodes))
    strange = [name for line in lines for name in _hosts(line) if name not in attached]
    lost = [name for name in nodes if name not in attached]
    twice = [name for name, count in attached.items() if count > 1]
    below = {name for switch in switches for name in switch.below}
    tops = [switch.name for switch in switches if switch.name not in below]
    return [
        *([f"hosts of topology.conf that slurm.conf does not name: {_names(strange)}"] if strange else []),
        *([f"nodes without a switch in topology.conf, which no job gets: {_names(lost)}"] if lost else []),
        *([f"nodes of several switches of topology.conf: {_names(twice)}"] if twice else []),
        *(
            [f"no switch of topology.conf reaches all nodes: no job gets nodes of two of {_names(tops)}"]
            if len(tops) > 1
            else []
        ),
    ]


def _names(names: Sequence[str]) -> str:
    return listed([*dict.fromkeys(names)], MOST_SHOWN)
