"""Inventories of other programs: Ansible inventories, and SSH configurations."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from tests.executables import write_program
from tests.fuzzing.fuzz import mutated
from tests.testbeds.test_inventory_groups import read_or_refuse
from tracebed.ground.errors import InputError, Tolerated
from tracebed.orchestrator.testbeds.inventory import load_inventory
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.orchestrator.testbeds.ssh import ssh_config
from tracebed.orchestrator.testbeds.ssh_config import lines_of

HOSTS = """
all:
  hosts:
    lone:
      http_port: "{{ port }}"
  vars:
    ansible_user: root
    tracebed_cores: 2
    db_password: !vault |
      $ANSIBLE_VAULT;1.1;AES256
      6638
  children:
    site:
      children:
        spare:
          hosts:
            node[01:03].example:
              ansible_port: 2200
            db-[a:c:2]:
              ansible_host: 10.0.0.7
              ansible_user: own
              tracebed_sockets: [0-1, 2-3]
          vars:
            ansible_ssh_private_key_file: ~/.ssh/spare
            ansible_python_interpreter: auto_silent
        rest:
          hosts: web:2022
          vars: {ansible_python_interpreter: /opt/python/bin/python3, ansible_user: rest}
      vars:
        ansible_user: ops
"""


@pytest.fixture(scope="module")
def ansible() -> None:
    """Skip where ansible-inventory is not installed, or ends with a traceback: on a Python newer than it knows."""
    program = shutil.which("ansible-inventory")
    if program is None or subprocess.run([program, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("ansible-core is not installed, or does not run on this Python")


def listing(groups: dict[str, list[str]], **hosts: Any) -> str:
    """Return what `ansible-inventory --list` prints of groups with these hosts and their variables."""
    found: dict[str, Any] = {"_meta": {"hostvars": hosts}, "all": {"children": ["ungrouped", *groups]}}
    return json.dumps({**found, **{name: {"hosts": members} for name, members in groups.items()}}, indent=1)


def one(**variables: Any) -> str:
    """Return the listing of the host `a` with these variables."""
    return listing({"ungrouped": ["a"]}, a=variables)


def load(folder: Path, text: str, *, name: str = "hosts.yaml", facts_follow: bool = True) -> Inventory:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return load_inventory(path, facts_follow=facts_follow)


def of(inventory: Inventory) -> dict[str, tuple[Node, dict[str, object]]]:
    """Return each node with the settings of its group that are set."""
    return {
        node.name: (node, group.settings.model_dump(exclude_unset=True))
        for group in inventory.groups
        for node in group.nodes
    }


@pytest.mark.usefixtures("ansible")
def test_hosts_inherit_the_variables_of_their_groups(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "rest.yml").write_text("tracebed_cores: 8\n")
    text = HOSTS.replace("tracebed_sockets: [0-1, 2-3]", "tracebed_emulated: true")
    found = of(load(tmp_path, text))
    assert list(found) == ["lone", "node01.example", "node02.example", "node03.example", "db-a", "db-c", "web"]
    assert found["lone"] == (Node("lone", 2, 1, (0, 1), provider="ssh"), {"user": "root"})
    spare = {"user": "ops", "identity_file": "~/.ssh/spare"}
    assert found["node02.example"][1] == {**spare, "port": 2200}
    emulated = Node("db-c", 2, emulated=True, provider="ssh", address="10.0.0.7")
    assert found["db-c"] == (emulated, {**spare, "user": "own"})
    assert found["web"][0].cores == 8
    assert found["web"][1] == {"user": "rest", "python": "/opt/python/bin/python3", "port": 2022}
    read = load(tmp_path, "[web]\nn[8:11] ansible_port=22\n", name="hosts")
    assert [node.name for node in read.nodes] == ["n8", "n9", "n10", "n11"]


@pytest.mark.usefixtures("ansible")
def test_an_inventory_that_ansible_rejects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hosts.yaml: ansible-inventory rejects .*recursive dependency loop"):
        load(tmp_path, "a: {children: {b: }}\nb: {children: {a: }, hosts: {h: }}\n")
    with pytest.raises(InputError, match=r"hosts.yaml: host 'a': port: "):
        load(tmp_path, "all: {hosts: {a: {ansible_port: many}}}\n")


@pytest.mark.parametrize("text", [HOSTS, "# hosts\n[web]\nhost1\n"])
def test_without_ansible_the_error_says_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"is not installed here .*--list > hosts\.json; then give hosts\.json"):
        load(tmp_path, text)


def test_a_failure_of_ansible_is_not_called_one_of_the_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "#!/bin/sh\nprintf 'Traceback:\\n  line 1\\nAttributeError: no attribute\\n' >&2; exit 1\n"
    write_program(tmp_path / "ansible-inventory", text)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(InputError, match=r"ansible-inventory failed: AttributeError: no attribute \(see: ansible-inv"):
        load(tmp_path, HOSTS)


def test_hosts_with_one_connection_are_one_group(tmp_path: Path) -> None:
    spare = {"ansible_user": "ops", "ansible_python_interpreter": "auto_silent"}
    text = listing(
        {"ungrouped": ["lone"], "spare": ["n2", "n10", "db"], "rack": ["db"], "rest": ["web"]},
        lone={"http_port": "{{ port }}"},
        n2=spare,
        n10=spare,
        db={"ansible_user": "own", "tracebed_sockets": ["0-1", "2-3"], "tracebed_cores": 2, "tracebed_duty": 1},
    )
    groups = load(tmp_path, text, name="hosts.json").groups
    assert [(group.name, [node.name for node in group.nodes]) for group in groups] == [
        ("all", ["lone"]),
        ("spare", ["n2", "n10"]),
        ("rack", ["db"]),
        ("rest", ["web"]),
    ]
    assert len({group.mark for group in groups}) == 4
    (node,) = groups[2].nodes
    assert (node.cpus, node.sockets, node.duty) == ((0, 1, 2, 3), 2, 1.0)


def test_switches_may_be_the_texts_that_ansible_makes_of_ini(tmp_path: Path) -> None:
    for text in ("true", True):
        inventory = load(tmp_path, one(tracebed_cores=2, tracebed_emulated=text, tracebed_listen=text))
        ((node, settings),) = of(inventory).values()
        assert node.emulated and settings["listen"] is True
    (node,) = load(tmp_path, one(tracebed_cores=2, tracebed_emulated="false")).nodes
    assert not node.emulated
    with pytest.raises(InputError, match="must be true or false"):
        load(tmp_path, one(tracebed_cores=2, tracebed_emulated="perhaps"))


def test_cores_are_given_or_follow(tmp_path: Path) -> None:
    text = listing({"web": ["a", "b"]}, a={"tracebed_cores": 2})
    assert load(tmp_path, text, name="hosts.json").unknown == ["b"]
    with pytest.raises(InputError, match="cores of node 'b' is unknown"):
        load(tmp_path, text, name="hosts.json", facts_follow=False)


def test_options_of_the_connection_are_reported(tmp_path: Path) -> None:
    option = {"ansible_ssh_common_args": "-J jump"}
    with pytest.warns(Tolerated, match=r"ansible_ssh_common_args is ignored.*\(2 times\)"):
        load(tmp_path, listing({"web": ["a", "b"]}, a=option, b=option), name="hosts.json")


BAD = {
    "no hosts": (listing({}), 1, "has no hosts"),
    "hosts is a mapping": (listing({"ungrouped": ["a"]}).replace('"a"', '{"a": 1}'), 11, "lists of names"),
    "template": (one(ansible_host="{{ ip }}"), 5, "template .* is not evaluated"),
    "password": (one(ansible_password="x"), 5, "ansible_password is for a credential"),
    "ssh password": (one(ansible_ssh_pass="x"), 5, "ansible_ssh_pass is for a credential"),
    "vault": (one(ansible_become_password={"__ansible_vault": "$ANSIBLE_VAULT;1.1"}), 5, "is for a credential"),
    "vault as a user": (one(ansible_user="$ANSIBLE_VAULT;1.1;AES256"), 5, "ansible_user: the value is a credential"),
    "connection": (one(ansible_connection="docker"), 5, "host 'a' has connection 'docker'"),
    "port": (one(ansible_port="many"), 5, "port: "),
    "unknown variable": (one(tracebed_core=2), 5, "mean tracebed_cores"),
    "cores": (one(tracebed_cores=0), 5, "cores: "),
    "name": (listing({"ungrouped": ["a b"]}), 0, "node 'a b'"),
    "vars of a host": (listing({"ungrouped": ["a"]}, a=[1]), 4, "mapping of keys"),
    "shared CPUs": (
        listing({"web": ["a", "b"]}, **{host: {"ansible_host": "h", "tracebed_cores": 2} for host in "ab"}),
        8,
        "nodes 'a' and 'b' share CPU 0",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_ansible_inventory_is_refused_by_line(tmp_path: Path, case: str) -> None:
    text, line, message = BAD[case]
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, text, name="hosts.json")
    if line:
        assert str(caught.value).startswith(f"{tmp_path / 'hosts.json'}:{line}: "), caught.value
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@given(data=mutated(listing({"web": ["a", "b"]}, a={"ansible_port": 1, "tracebed_sockets": ["0-1"]}).encode()))
def test_a_damaged_ansible_inventory_is_read_or_refused_in_one_line(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "hosts.json"
    read_or_refuse(path, data)


# SSH configurations.

CONFIG = """
# Hosts of the rack.
ServerAliveInterval 60
Host node01 node02.example *.other !node03
    HostName 10.0.0.1
    User me
Host=node04
    Port = 2200
Match host foo user "a b"
    User x
host "node 05" node?
Host *
    IdentityFile ~/.ssh/rack
"""


def test_hosts_of_an_ssh_configuration_are_nodes(tmp_path: Path) -> None:
    read = load(tmp_path, CONFIG.replace('"node 05" ', ""), name="rack.conf")
    assert [node.name for node in read.nodes] == read.unknown == ["node01", "node02.example", "node04"]
    (group,) = read.groups
    assert (read.kind, group.provider) == ("ssh", "ssh")
    assert group.settings.model_dump(exclude_unset=True) == {"config": str(tmp_path / "rack.conf")}


def test_the_configuration_of_the_user_needs_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    read = load(tmp_path / ".ssh", "Host a\n", name="config")
    assert read.groups[0].settings.model_dump(exclude_unset=True) == {}


def test_included_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".ssh"
    (folder / "conf.d").mkdir(parents=True)
    (folder / "conf.d" / "1.conf").write_text("Host one\n  Port 1\nHost two\n  Port 2\n")
    (folder / "conf.d" / "2.conf").write_text("User included\n")
    absolute = tmp_path / "absolute"
    absolute.write_text("Host hidden\n  Port 7\n")
    main = f"Include conf.d/*.conf missing\nPort 22\nHost three\n  Include {absolute}\n  Port 3\nHost four\n"
    read = load(folder, main, name="config")
    # A block that is included inside a block would apply only to hosts of both.
    assert [node.name for node in read.nodes] == ["one", "two", "three", "four"]
    config = ssh_config(folder / "config").base_ssh_config
    found = {alias: (config.lookup(alias).get("port"), config.lookup(alias).get("user")) for alias in read.unknown}
    assert found == {
        "one": ("1", "included"),
        "two": ("2", "included"),
        "three": ("22", "included"),
        "four": ("22", "included"),
    }


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("Host *\n  User x\n", 0, "names no host"),
        ("Host a\n  User\n", 2, "line 'User' is invalid"),
        ('Host a\n  User "b\n', 2, "is invalid"),
        ('Host "a b"\n', 1, "host 'a b'"),
        (f"Host {'a' * 300}\n", 1, "longer than 200 bytes"),
        ("Host a\n  =\n", 2, "is invalid"),
    ],
)
def test_a_wrong_ssh_configuration_is_refused_by_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, text, name="config")
    place = f"{tmp_path / 'config'}:{line}: " if line else f"{tmp_path / 'config'}: "
    assert str(caught.value).startswith(place), caught.value
    assert caught.value.hint


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"Include {path}\nHost a\n")
    with pytest.raises(InputError, match="included more than 16 deep"):
        list(lines_of(path))


@given(data=mutated(CONFIG.encode()))
def test_a_damaged_ssh_configuration_is_read_or_refused_in_one_line(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "config"
    read_or_refuse(path, data)


def test_no_reader_runs_a_command(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    command = f"touch {trap}"
    for name, text in {
        "hosts.yaml": f"all:\n  hosts: {{a: }}\n  vars:\n    x: \"{{{{ lookup('pipe', '{command}') }}}}\"\n",
        "python.yaml": f"nodes: !!python/object/apply:os.system ['{command}']\n",
        "config": f'Host a\n  ProxyCommand {command}\nMatch exec "{command}"\n  User x\n',
        "nodes.yaml": f"nodes:\n  - {{name: '$({command})', cpus: 0}}\n  - {{name: '`{command}`', cpus: 1}}\n",
    }.items():
        try:
            load(tmp_path, text, name=name)
        except InputError as error:
            assert re.search(r"YAML|invalid|ansible-inventory (is not installed|failed)", str(error))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config", "hosts.yaml", "nodes.yaml", "python.yaml"]
