"""Ansible inventories, as `ansible-inventory --list` prints them.

Ansible itself resolves groups, ranges of hosts, `group_vars` and `host_vars`, in every form of inventory that it reads.
Each host is a node of provider `ssh`. The variables that name the connection are used, and variables named after the
keys of an inventory of tracebed (`tracebed_cores: 16`). Other variables are ignored. Templates are not evaluated.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.yaml_file import YamlFile, abbreviated
from tracebed.orchestrator.testbeds.inventory_keys import DistinctNodes, NodeItem, NodeKeys
from tracebed.orchestrator.testbeds.nodes import Group, Node
from tracebed.orchestrator.testbeds.provider import PROVIDERS
from tracebed.orchestrator.testbeds.variables import BELONGS, SECRET, Keys, Place, refuse_templates

PROGRAM = "ansible-inventory"
TIMEOUT_S = 60.0
SETTINGS = {"ANSIBLE_INVENTORY_UNPARSED_FAILED": "true", "ANSIBLE_NOCOLOR": "true"}
PREFIX = "tracebed_"
"""Prefix of variables that set a key of a node, or a setting of the provider `ssh`."""
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
SWITCHES = {"emulated", "listen"}
"""Keys that are true or false. In INI, Ansible takes `true` for a text, and only `True` for a truth value."""
IGNORED = {"ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_become"}
"""Ignored variables of the connection. Each is reported."""
OVER_SSH = {"ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh", "ansible.builtin.paramiko_ssh"}
"""Values of `ansible_connection` that reach a host over SSH."""
HINT = "write the file with: ansible-inventory -i INVENTORY --list > hosts.json"


def listed(path: Path, form: str) -> YamlFile:
    """Return what `ansible-inventory --list` prints of an inventory in `form` (yaml or ini), without lines."""
    command = f"ansible-inventory -i {path} --list > hosts.json"
    program = shutil.which(PROGRAM)
    if program is None:
        what = f"is an Ansible inventory, and {PROGRAM} is not installed here"
        raise InputError(what, where=str(path), hint=f"where Ansible is installed: {command}; then give hosts.json")
    try:
        found = subprocess.run(
            [program, "-i", str(path), "--list"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            env={**os.environ, **SETTINGS, "ANSIBLE_INVENTORY_ENABLED": form},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{PROGRAM} failed: {error}", where=str(path), hint=f"see: {command}") from None
    if found.returncode:
        text = found.stderr.decode("utf-8", "replace")
        reason = text.partition("plugin: ")[2].partition("\n")[0]
        last = (text.strip() or f"exit status {found.returncode}").splitlines()[-1]  # its own failure, not the file's
        what = f"{PROGRAM} rejects the inventory: {reason[:400]}" if reason else f"{PROGRAM} failed: {last[:400]}"
        raise InputError(what, where=str(path), hint=f"see: {command}")
    yaml = YamlFile.parse(found.stdout.decode("utf-8", "replace"), str(path), hint=HINT)
    return replace(yaml, tree=None)


def _hosts(yaml: YamlFile) -> dict[str, str]:
    """Return host -> the first of its groups by name (`all` if it is in no other), in the order of the inventory."""
    found: dict[str, str] = {}
    todo, done = ["all"], set[str]()
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        group = Keys.at(Place(yaml, (name,)), yaml.raw.get(name) or {}).values
        hosts, children = group.get("hosts") or [], group.get("children") or []
        if not all(isinstance(one, str) for values in (hosts, children) for one in values):
            raise Place(yaml, (name,)).error("hosts and children of a group must be lists of names")
        for host in hosts:
            known = found.get(host, "all")
            found[host] = known if name in ("all", "ungrouped") else name if known == "all" else min(known, name)
        todo.extend(reversed(children))
    return found


def groups_of(yaml: YamlFile, mark: str) -> Iterator[Group]:
    """Yield the groups of hosts with the same connection in the output of `ansible-inventory --list`."""
    yaml = replace(yaml, hint=HINT)
    hosts = _hosts(yaml)
    if not hosts:
        raise yaml.error("the Ansible inventory has no hosts", hint=HINT)
    model = PROVIDERS.load("ssh").Settings
    distinct, ignored = DistinctNodes(), dict[str, int]()
    found: dict[str, tuple[Any, list[Node]]] = {}
    variables = Keys.at(Place(yaml, ("_meta", "hostvars")), yaml.raw["_meta"]["hostvars"] or {})
    for host, name in hosts.items():
        place = variables.places.get(host, variables.place)
        with place.of(f"host {host!r}") if yaml.tree is None else contextlib.nullcontext():
            keys = _used(host, Keys.at(place, variables.values.get(host) or {}), model.model_fields, ignored)
            settings = keys.only(model.model_fields).checked(model)
            item = Keys(place, {"name": host}, {"name": place}).over(keys.only(NodeKeys.model_fields))
            spec = item.checked(NodeItem)
        with distinct.at(place, host):
            nodes = tuple(distinct.of(spec.nodes("ssh", splits_this_machine=False), settings))
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


def _used(host: str, variables: Keys, settings: Mapping[str, Any], ignored: dict[str, int]) -> Keys:
    """Return the keys of a node and the settings of its group, from the variables of a host; count the others."""
    values: dict[str, Any] = {}
    places: dict[str, Place] = {}
    for name, value in variables.values.items():
        place = variables.places[name]
        if name.startswith("ansible_") and SECRET.search(name):
            raise place.error(f"variable {name} is for a credential", BELONGS)
        if name in IGNORED and value:
            what = f"variable {name} is ignored: set options of connections in ~/.ssh/config"
            ignored[what] = ignored.get(what, 0) + 1
        if name == "ansible_connection" and value not in OVER_SSH:
            hint = "use an inventory of tracebed for hosts that are not reached over SSH"
            raise place.error(f"host {host!r} has connection {abbreviated(value)}", hint)
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
        if key in SWITCHES and value in ("true", "false"):
            value = value == "true"
        values[key], places[key] = value, place
    if any(key in values and not isinstance(values[key], int) for key in ("cpus", "sockets")):
        values.pop("cores", None)  # a list of CPUs says how many cores there are
    return Keys(variables.place, values, places)
