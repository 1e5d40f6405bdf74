"""Ansible inventories in YAML: hosts, groups, inherited variables, `group_vars` and `host_vars`.

Each host is a node of provider `ssh`. The variables that name the connection are used, and variables named after the
keys of an inventory of tracebed (`tracebed_cores: 16`). Other variables are ignored. Templates are not evaluated.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from tracebed.errors import InputError, tolerate
from tracebed.orchestrator.testbeds.distinct import Distinct
from tracebed.orchestrator.testbeds.inventory_keys import LARGEST, NodeItem, NodeKeys
from tracebed.orchestrator.testbeds.nodes import Group, Node
from tracebed.orchestrator.testbeds.provider import PROVIDERS
from tracebed.orchestrator.testbeds.variables import BELONGS, SECRET, Keys, Place, refuse_templates
from tracebed.yaml_file import YamlFile, shown

SECTIONS = {"hosts", "children", "vars"}
PREFIX = "tracebed_"
"""Prefix of variables that set a key of a node, or a setting of the provider `ssh`."""
DEEPEST = 100
"""Largest accepted depth of groups."""
USED = {
    "ansible_host": "address",
    "ansible_ssh_host": "address",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_ssh_private_key_file": "identity_file",
    "ansible_private_key_file": "identity_file",
    "ansible_python_interpreter": "python",
}
"""Variable of Ansible -> key of a node, or setting of the provider `ssh`."""
IGNORED = {"ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_become"}
"""Ignored variables of the connection. Each is reported."""
OVER_SSH = {"ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh", "ansible.builtin.paramiko_ssh"}
"""Values of `ansible_connection` that reach a host over SSH."""
HINT = "groups of an Ansible inventory have the keys hosts, children and vars"


def is_ansible(raw: Any) -> bool:
    """Return whether the content of a YAML file is an Ansible inventory."""
    if not isinstance(raw, dict) or not raw or {"nodes", "groups"} & raw.keys():
        return False
    if "all" in raw:
        return True
    groups = [{} if value is None else value for value in raw.values()]
    return any(groups) and all(isinstance(group, dict) and group.keys() <= SECTIONS for group in groups)


@dataclass
class _AnsibleGroup:
    """A group of hosts.

    Attributes:
        variables: its variables, for each place where the group occurs.
        parents: names of the groups that it is a child of.
    """

    name: str
    variables: list[Keys] = field(default_factory=list)
    parents: set[str] = field(default_factory=set)


@dataclass
class _Host:
    """A host, its variables for each place where the host occurs, and the names of its groups."""

    name: str
    place: Place
    port: int | None
    variables: list[Keys] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)


class _Inventory:
    """The groups and hosts of an Ansible inventory.

    Args:
        yaml: the file.
    """

    def __init__(self, yaml: YamlFile) -> None:
        self.folder = Path(yaml.where).parent
        self.groups: dict[str, _AnsibleGroup] = {"all": _AnsibleGroup("all")}
        self.hosts: dict[str, _Host] = {}
        for name, content in Keys.at(Place(yaml), yaml.raw).values.items():
            self._read(name, content, Place(yaml, (name,)), parent=None if name == "all" else "all", depth=0)

    def _read(self, name: str, content: Any, place: Place, *, parent: str | None, depth: int) -> None:
        """Read a group, the groups inside it, and its hosts."""
        if depth > DEEPEST:
            raise place.error(f"groups are nested more than {DEEPEST} deep")
        group = self.groups.setdefault(name, _AnsibleGroup(name))
        group.parents |= {parent} if parent else set()
        keys = Keys.at(place, content or {})
        for key in keys.values:
            if key not in SECTIONS:
                raise keys.unknown(key, SECTIONS)
        sections = {key: _section(keys.places[key], value) for key, value in keys.values.items()}
        if "vars" in sections:
            group.variables.append(sections["vars"])
        for pattern, variables in sections["hosts"].values.items() if "hosts" in sections else ():
            self._add_hosts(pattern, _section(sections["hosts"].places[pattern], variables), name)
        for child, inner in sections["children"].values.items() if "children" in sections else ():
            self._read(child, inner, sections["children"].places[child], parent=name, depth=depth + 1)

    def _add_hosts(self, pattern: str, variables: Keys, group: str) -> None:
        with variables.place.of():
            for name, port in expand(pattern, most=LARGEST):
                host = self.hosts.setdefault(name, _Host(name, variables.place, port))
                host.groups.add(group)
                if variables.values:
                    host.variables.append(variables)
        if len(self.hosts) > LARGEST:
            raise variables.place.error(f"the inventory has more than {LARGEST:,} hosts")

    def depths(self) -> dict[str, int]:
        """Return the length of the longest path from the group `all` to each group, parents first.

        Raises:
            InputError: groups form a cycle.
        """
        found: dict[str, int] = {}
        try:
            for name in TopologicalSorter({name: group.parents for name, group in self.groups.items()}).static_order():
                found[name] = max((1 + found[parent] for parent in self.groups[name].parents), default=0)
        except CycleError as error:
            name = min(error.args[1])
            raise InputError(f"group {name!r} is a child of itself", where=str(self.folder), hint=HINT) from error
        return found

    def variables(self) -> Callable[[_Host], Keys]:
        """Return a function of a host that returns the variables of the host, with those of its groups."""
        depths = self.depths()
        ancestors: dict[str, set[str]] = {}
        for name in depths:
            parents = self.groups[name].parents
            ancestors[name] = {name, *parents, *(found for parent in parents for found in ancestors[parent])}
        merged: dict[str, Keys] = {}
        for name, group in self.groups.items():
            own = _merged(Place(YamlFile(str(self.folder), "", {}, None, HINT)), group.variables)
            merged[name] = _merged(own.place, [own, *self._beside("group_vars", name)])

        def rank(name: str) -> tuple[int, int, str]:
            priority = merged[name].values.get("ansible_group_priority", 1)
            return depths[name], priority if isinstance(priority, int) else 1, name

        orders: dict[frozenset[str], Keys] = {}

        def of(host: _Host) -> Keys:
            member_of = frozenset(host.groups)
            if member_of not in orders:
                names = {"all"}.union(*(ancestors[name] for name in member_of))
                orders[member_of] = _merged(host.place, [merged[name] for name in sorted(names, key=rank)])
            return _merged(host.place, [orders[member_of], *host.variables, *self._beside("host_vars", host.name)])

        return of

    def _beside(self, folder: str, name: str) -> Iterator[Keys]:
        """Yield the variables in the files of a group or host in the folder `group_vars` or `host_vars`."""
        base = self.folder / folder
        if not base.is_dir() or "/" in name or name.startswith("."):
            return
        for path in (base / name, base / f"{name}.yml", base / f"{name}.yaml"):
            files = sorted(path.glob("*")) if path.is_dir() else [path]
            for file in files:
                if file.is_file() and file.suffix in ("", ".yml", ".yaml", ".json"):
                    yaml = YamlFile.read(file, "file of variables", hint=HINT, unreadable="check its permissions")
                    yield Keys.at(Place(yaml), yaml.raw or {})


def _section(place: Place, value: Any) -> Keys:
    """Return a part of a group, or the variables of a host. A name alone stands for a mapping with this key."""
    if isinstance(value, str):
        value = {value: None}
    return Keys.at(place, value or {})


def _merged(place: Place, layers: list[Keys]) -> Keys:
    """Return the variables of several places. The last place has precedence."""
    merged = Keys(place, {}, {})
    for layer in layers:
        merged = layer.over(merged)
    return merged


def groups_of(yaml: YamlFile, mark: str) -> Iterator[Group]:
    """Yield the groups of an Ansible inventory: the hosts with the same connection, in the order of the file.

    Args:
        yaml: the file.
        mark: first part of the marks of the groups.

    Raises:
        InputError: the inventory is invalid; the message has the file and the line.
    """
    inventory = _Inventory(yaml)
    if not inventory.hosts:
        raise yaml.error("the Ansible inventory has no hosts", hint=HINT)
    model = PROVIDERS.load("ssh").Settings
    distinct, ignored = Distinct(), dict[str, int]()
    found: dict[str, tuple[Any, list[Node]]] = {}
    variables = inventory.variables()
    for host in inventory.hosts.values():
        keys = _used(host, variables(host), model.model_fields, ignored)
        settings = keys.only(model.model_fields).checked(model)
        item = Keys(host.place, {"name": host.name}, {"name": host.place}).over(keys.only(NodeKeys.model_fields))
        spec = item.checked(NodeItem)
        with distinct.at(host.place, host.name):
            nodes = tuple(distinct.of(spec.nodes("ssh", splits_this_machine=False), settings))
        name = min(host.groups - {"all", "ungrouped"}, default="all")
        found.setdefault(f"{name} {settings.model_dump_json()}", (settings, []))[1].extend(nodes)
    tolerate(ignored, where=yaml.where)
    taken: set[str] = set()
    for label, (settings, nodes_of_group) in found.items():
        name = base = re.sub(r"[^\w.-]", "_", label.partition(" ")[0])
        for number in range(2, len(found) + 2):
            if name not in taken:
                break
            name = f"{base}-{number}"
        taken.add(name)
        yield Group(name, "ssh", settings, tuple(nodes_of_group), f"{mark}-{name}")


def _used(host: _Host, variables: Keys, settings: Mapping[str, Any], ignored: dict[str, int]) -> Keys:
    """Return the keys of a node and the settings of its group, from the variables of a host.

    Args:
        host: the host.
        variables: its variables.
        settings: the names of the settings of the provider.
        ignored: message about an ignored variable -> number of hosts. The function adds to it.
    """
    values: dict[str, Any] = {} if host.port is None else {"port": host.port}
    places = {"port": host.place}
    for name, value in variables.values.items():
        place = variables.places[name]
        if name.startswith("ansible_") and SECRET.search(name):
            raise place.error(f"variable {name} is for a credential", BELONGS)
        if name in IGNORED and value:
            what = f"variable {name} is ignored: set options of connections in ~/.ssh/config"
            ignored[what] = ignored.get(what, 0) + 1
        if name == "ansible_connection" and value not in OVER_SSH:
            hint = "use an inventory of tracebed for hosts that are not reached over SSH"
            raise place.error(f"host {host.name!r} has connection {shown(value)}", hint)
        key = USED.get(name) or (name.removeprefix(PREFIX) if name.startswith(PREFIX) else None)
        if key is None:
            continue
        if key not in NodeKeys.model_fields and key not in settings:
            raise variables.unknown(name, [*USED, *(PREFIX + known for known in (*NodeKeys.model_fields, *settings))])
        if isinstance(value, str):
            with place.of(name):
                refuse_templates(value)
        if key == "python" and isinstance(value, str) and value.startswith("auto"):
            continue  # Ansible chooses among the interpreters of the host; tracebed uses its default
        if key == "port" and isinstance(value, str) and value.isdecimal():
            value = int(value)
        values[key], places[key] = value, place
    cpus = next((key for key in ("cpus", "sockets") if key in values and not isinstance(values[key], int)), None)
    if cpus and "cores" in values and places["cores"].path[:-1] != places[cpus].path[:-1]:
        del values["cores"]  # the CPUs of the host replace the cores of its group
    return Keys(host.place, values, places)


def expand(pattern: str, *, most: int) -> Iterator[tuple[str, int | None]]:
    """Yield the names of hosts, and the port, of a pattern such as `web[01:20:2].example:2222` or `db-[a:c]`.

    Raises:
        InputError: the pattern is invalid, or has more than `most` names.
    """
    found = re.fullmatch(r"([^\[\]:]*(?:\[[^\]]*\][^\[\]:]*)*)(?::([0-9]{1,5}))?", pattern)
    if found is None or not found[1]:
        raise InputError(f"host {shown(pattern)} is invalid", hint="a host is a name, with ranges such as [01:20]")
    names = [""]
    for part in re.split(r"(\[[^\]]*\])", found[1]):
        choices = _range(part) if part.startswith("[") else [part]
        if len(names) * len(choices) > most:
            raise InputError(f"host range {shown(pattern)} has more than {most:,} names", hint="use a shorter range")
        names = [name + choice for name in names for choice in choices]
    for name in names:
        yield name, int(found[2]) if found[2] else None


def _range(text: str) -> list[str]:
    """Return the values of a range of numbers (`[01:20:2]`) or of letters (`[a:f]`)."""
    invalid = InputError(f"host range {shown(text)} is invalid", hint="write a range of hosts as [01:20] or [a:f]")
    first, colon, rest = text[1:-1].partition(":")
    last, _, step_text = rest.partition(":")
    step = int(step_text) if step_text.isdecimal() and len(step_text) < 9 else 1
    if not colon or not last or step < 1 or (step_text and not step_text.isdecimal()):
        raise invalid
    letters = string.ascii_letters
    if len(first) == len(last) == 1 and first in letters and last in letters:
        chosen = letters[letters.index(first) : letters.index(last) + 1 : step]
        if not chosen:
            raise invalid
        return list(chosen)
    first = first or "0"
    if not (first.isdecimal() and last.isdecimal() and len(last) < 9 and int(first) <= int(last)):
        raise invalid
    if first != "0" and first.startswith("0") and len(first) != len(last):
        raise invalid
    if (int(last) - int(first)) // step >= LARGEST:
        raise InputError(f"host range {shown(text)} has more than {LARGEST:,} names", hint="use a shorter range")
    width = len(first) if first.startswith("0") and len(first) > 1 else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1, step)]
