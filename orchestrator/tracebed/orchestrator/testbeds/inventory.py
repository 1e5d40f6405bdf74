"""The inventory: a file that describes the nodes of a testbed.

    name: spare              # default: the name of the file
    vars: {domain: cluster.example}
    defaults: {cores: 16}    # keys of all groups
    groups:
      here:                  # nodes of this machine
        nodes:
          - {name: "n[1-*]", cpus: auto, cores: 2}                        # as many nodes as this machine has CPUs for
          - {name: dual, sockets: [8-11, 12-15], duty: 1}                 # by socket; jobs compute all the time
          - {name: "e[01-64]", cores: 48, sockets: 2, emulated: true}     # jobs sleep instead of computing
      rack:
        provider: ssh
        address: "{node}.{domain}"
        nodes: node[01-16]

A file with `nodes` in place of `groups` has one group, named `nodes`. An Ansible inventory and an SSH config are read
too. An inventory is read independently of this machine (except for `auto`), so a simulation can use the inventory of
another machine. `Inventory.check_here` checks whether this process may use its CPUs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from yaml import safe_dump

from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import InputError
from tracebed.ground.input_files import read_text
from tracebed.ground.ranges import parse_names
from tracebed.ground.registry import one_of, unknown
from tracebed.ground.topology import Grid
from tracebed.ground.yaml_file import YamlFile, abbreviated
from tracebed.machine.machine import given
from tracebed.orchestrator.testbeds.base import TESTBEDS
from tracebed.orchestrator.testbeds.inventory_keys import (
    DistinctNodes,
    FileKeys,
    GroupKeys,
    NodeItem,
    NodeKeys,
    settings_of,
)
from tracebed.orchestrator.testbeds.nodes import AGENTS, SHIPPED, Group, Inventory, Node, shipped
from tracebed.orchestrator.testbeds.variables import Keys, Place, refuse_credentials

FIELDS = f"keys: {', '.join(FileKeys.model_fields)}"
SECTIONS = {"hosts", "children", "vars"}  # keys of a group of an Ansible inventory
ONLY_GROUP = "nodes"  # the name of the group of an inventory without groups


def inventory(nodes: Inventory | Path | str, *, facts_follow: bool = False) -> Inventory:
    """Return an inventory: itself, or that of a name or path.

    Args:
        nodes: an inventory, the name of one that tracebed ships (`local`, `emulated-4`), or the path of a file: an
            inventory of tracebed or of Ansible in YAML, or an SSH configuration.
        facts_follow: whether nodes may have an unknown number of cores, because their facts will be collected.

    Raises:
        InputError: there is no such inventory, or the file is not valid.

    Example:
        >>> import tracebed.api as tb
        >>> len(tb.inventory("emulated-4").nodes)
        4
    """
    return nodes if isinstance(nodes, Inventory) else load_inventory(nodes, facts_follow=facts_follow)


def load_inventory(source: Path | str, *, facts_follow: bool = False) -> Inventory:
    """Read an inventory: a file of tracebed, an Ansible inventory, an SSH config, or the name of a shipped one.

    With `facts_follow`, nodes may have an unknown number of cores, because their facts will be collected. The message
    of an error has the line.
    """
    path = Path(source)
    if not path.is_file() and path.name == str(source) and path.suffix not in (".yaml", ".yml"):
        if path.name not in shipped():
            raise unknown("inventory", path.name, [*shipped(), "or a file"])
        path = SHIPPED / f"{path.name}.yaml"
    text = read_text(path, "inventory", hint=f"give a file, or one of {', '.join(shipped())}")
    if _is_ssh_config(text):
        from tracebed.orchestrator.testbeds import ssh_config

        groups = ssh_config.groups_of(path, _mark(path.stem, path))
        return _inventory(path.stem, groups, str(path), facts_follow)
    if _is_ini(text):
        from tracebed.orchestrator.testbeds import ansible

        yaml = ansible.listed(path, "ini")
    else:
        yaml = YamlFile.parse(text, str(path), hint=FIELDS)
        if _is_ansible(yaml.raw):
            from tracebed.orchestrator.testbeds import ansible

            yaml = ansible.listed(path, "yaml")
    return inventory_of(yaml, path.stem, facts_follow=facts_follow)


def inventory_of(yaml: YamlFile, name: str, *, facts_follow: bool = False) -> Inventory:
    """Return the inventory in `yaml`, a file or a part of one. Its name is `name`, if the content does not set it.

    With `facts_follow`, nodes may have an unknown number of cores. The message of an error has the line.
    """
    if _is_list(yaml.raw):
        from tracebed.orchestrator.testbeds import ansible

        return _inventory(name, ansible.groups_of(yaml, _mark(name, yaml.where)), yaml.where, facts_follow)
    refuse_credentials(yaml)
    file = Keys.at(Place(yaml), yaml.raw).checked(FileKeys)
    with Place(yaml, ("testbed",)).of():
        one_of("testbed", file.testbed, TESTBEDS.names())
    name = file.name or name
    parameters = file.model_dump(include={"testbed", "grain_s", "heartbeat_s", "linger_s", "network", "grid"})
    groups = _Groups(Place(yaml), file, _mark(name, yaml.where))
    parameters |= {"partitions": tuple(file.partitions), "sleep": file.sleep, "tariff": file.tariff}
    inventory = _inventory(name, groups, yaml.where, facts_follow, **parameters)
    _check_partitions(Place(yaml, ("partitions",)), inventory)
    if file.grid:
        with Place(yaml, ("grid",)).of():
            Grid.parse(file.grid, len(inventory.nodes))
    return inventory


def _inventory(
    name: str, groups: Iterable[Group], where: str, facts_follow: bool, *, testbed: str = AGENTS, **parameters: Any
) -> Inventory:
    """Return the inventory of `groups`. Raise InputError if cores are unknown, unless facts follow."""
    found = tuple(groups)
    nodes = tuple(node for group in found for node in group.nodes)
    inventory = Inventory(name, testbed, nodes, where=where, groups=found, **parameters)
    if not facts_follow:
        check_known(inventory)
    return inventory


def _check_partitions(place: Place, inventory: Inventory) -> None:
    """Raise InputError if two partitions have the same name, or one has a node that is not in the inventory."""
    known, names = {node.name for node in inventory.nodes} if inventory.partitions else set(), set[str]()
    for index, part in enumerate(inventory.partitions):
        with place.at(index).of(f"partition {abbreviated(part.name)}"):
            if part.name in names:
                raise InputError("two partitions have this name", hint="give each a name of its own")
            names.add(part.name)
            if absent := {*part.names} - known:
                raise InputError(f"node {min(absent)!r} is not in the inventory", hint="correct the nodes")


def _mark(name: str, file: Path | str) -> str:
    """Return the first part of the marks of the groups of a file."""
    return f"{name}-{hashlib.sha256(str(Path(file).resolve()).encode()).hexdigest()[:8]}"


def check_known(inventory: Inventory) -> None:
    """Raise InputError if the number of cores of a node is unknown."""
    if inventory.unknown:
        raise InputError(
            f"the number of cores of node {inventory.unknown[0]!r} is unknown",
            where=inventory.where,
            hint="set `cores`, or write an inventory with the facts of the nodes: "
            f"tracebed nodes facts {inventory.where} -o nodes.yaml",
        )


def _is_ssh_config(text: str) -> bool:
    """Return whether a text is an SSH configuration: keywords with arguments, one of which names hosts."""
    lines = [line.strip() for line in text.splitlines()]
    content = [line for line in lines if line and not line.startswith("#")]
    if not content or not re.match(r"[A-Za-z]+[ \t=]", content[0]):
        return False
    return any(re.match(r"(host|include)[ \t=]+\S", line, re.IGNORECASE) for line in content)


def _is_ini(text: str) -> bool:
    """Return whether a file is an Ansible inventory in INI format."""
    return re.match(r"(\s*[#;].*\n|\s*\n)*\s*\[[^\]\n]*\]\s*(\n|$)", text) is not None


def _is_ansible(raw: Any) -> bool:
    """Return whether the content of a YAML file is an Ansible inventory."""
    if not isinstance(raw, dict) or not raw or {"nodes", "groups", "_meta"} & raw.keys():
        return False
    groups = [{} if value is None else value for value in raw.values()]
    return "all" in raw or (
        any(groups) and all(isinstance(group, dict) and group.keys() <= SECTIONS for group in groups)
    )


def _is_list(raw: Any) -> bool:
    """Return whether the content of a file is an output of `ansible-inventory --list`."""
    return isinstance(raw, dict) and isinstance(raw.get("_meta"), dict) and "hostvars" in raw["_meta"]


class _Groups:
    """The groups of a file. Their marks begin with `mark`."""

    def __init__(self, place: Place, file: FileKeys, mark: str) -> None:
        self.place, self.file, self.mark = place, file, mark
        self.defaults = Keys.at(place.at("defaults"), file.defaults)
        self.known = {*NodeKeys.model_fields, "provider"}
        """Keys that `defaults` may have. The settings of a provider are added when a group has this provider."""
        self.distinct = DistinctNodes()

    def __iter__(self) -> Iterator[Group]:
        if self.file.groups is None:
            yield self.group(ONLY_GROUP, Keys.at(self.place, {"nodes": self.file.nodes}))
        for name, raw in (self.file.groups or {}).items():
            place = self.place.at("groups", name)
            with place.of(f"group {abbreviated(name)}"):
                parse_names(name, most=1)
            yield self.group(name, Keys.at(place, raw))
        for key in self.defaults.values.keys() - self.known:
            raise self.defaults.unknown(key, self.known)

    def group(self, name: str, own: Keys) -> Group:
        """Return the group `name` with the keys `own`."""
        scope = {**self.file.vars, **_vars(own), "group": name}
        keys = inherit(own, self.defaults).without(["nodes", "vars"])
        common = own.only(["nodes", "vars"]).over(keys.only(["provider"]).filled(scope)).checked(GroupKeys)
        with keys.places.get("provider", own.place).of():
            model = settings_of(common.provider)
        for key in own.values:
            if key not in GroupKeys.model_fields and key not in model.model_fields:
                raise own.unknown(key, [*GroupKeys.model_fields, *model.model_fields])
        self.known |= model.model_fields.keys()
        settings = keys.only(model.model_fields).filled(scope).checked(model)
        splits = common.provider == "local" or bool(getattr(model, "splits_this_machine", False))
        nodes: list[Node] = []
        for index, raw in enumerate([common.nodes] if isinstance(common.nodes, str) else common.nodes):
            place = own.place.at("nodes") if isinstance(common.nodes, str) else own.place.at("nodes", index)
            item = Keys(place, {"name": raw}, {"name": place}) if isinstance(raw, str) else Keys.at(place, raw)
            for key in item.values.keys() & model.model_fields.keys() - NodeItem.model_fields.keys():
                raise item.places[key].error(
                    f"key {key!r} is a setting of a group, not of a node", "set it for the group"
                )
            inherited = inherit(item, keys.only(NodeKeys.model_fields)).without(["vars"])
            # The name of each node is inserted when the nodes are made.
            filled = inherited.filled({**scope, **_vars(item), "node": "{node}"})
            spec = item.only(["vars"]).over(filled).checked(NodeItem)
            with self.distinct.at(place, spec.name):
                nodes += self.distinct.of(spec.nodes(common.provider, splits_this_machine=splits), settings)
        return Group(name, common.provider, settings, tuple(nodes), f"{self.mark}-{name}")


def _vars(keys: Keys) -> Mapping[str, Any]:
    """Return the variables in the keys of a group or node. They are checked later."""
    found = keys.values.get("vars")
    return found if isinstance(found, dict) else {}


def inherit(own: Keys, inherited: Keys) -> Keys:
    """Return the keys `own`, and the keys of `inherited` that are missing in `own` and do not contradict it."""
    replaced: set[str] = set()
    by_socket = isinstance(inherited.values.get("sockets"), list)
    if own.values.get("emulated") is True:
        replaced |= {"cpus", "duty"} | ({"sockets"} if by_socket else set())
    if own.values.get("cpus", "auto") != "auto":
        replaced |= {"cores"} | ({"sockets"} if by_socket else set())
    if isinstance(own.values.get("sockets"), list):
        replaced |= {"cores", "cpus"}
    return own.over(inherited.without(replaced))


def as_yaml(inventory: Inventory) -> str:
    """Return an inventory as YAML, which `load_inventory` reads as the same nodes, groups and settings."""
    content: dict[str, Any] = {"name": inventory.name}
    defaults = Inventory("", AGENTS, ())
    for key in ("testbed", "grain_s", "heartbeat_s", "linger_s", "network", "grid"):
        if getattr(inventory, key) != getattr(defaults, key):
            content[key] = getattr(inventory, key)
    if inventory.partitions:
        content["partitions"] = [part.to_json() for part in inventory.partitions]
    content |= {key: given(of) for key, of in (("sleep", inventory.sleep), ("tariff", inventory.tariff)) if of}
    content["groups"] = {
        group.name: {
            "provider": group.provider,
            **group.settings.model_dump(mode="json", exclude_unset=True),
            "nodes": [_item(node) for node in group.nodes],
        }
        for group in inventory.groups
    }
    return safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)


def _item(node: Node) -> dict[str, Any]:
    """Return the keys of a node."""
    item: dict[str, Any] = {"name": node.name}
    if node.emulated:
        item |= {"cores": node.cores, "sockets": node.sockets, "emulated": True}
    elif node.cpus is not None and node.sockets == 1:
        item["cpus"] = format_cpus(node.cpus)
    elif node.cpus is not None:
        size = node.cores // node.sockets
        item["sockets"] = [format_cpus(node.cpus[first : first + size]) for first in range(0, node.cores, size)]
    for key in ("duty", "memory_mib", "address"):
        if getattr(node, key) is not None:
            item[key] = getattr(node, key)
    if node.gres:
        item["gres"] = dict(node.gres)
    if node.features:
        item["features"] = list(node.features)
    if node.power:
        item["power"] = given(node.power)
    return item
