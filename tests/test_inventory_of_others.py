"""Inventories of other programs: Ansible inventories in YAML, and SSH configurations."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz import mutated
from test_inventory_groups import read_or_refuse
from tracebed.errors import InputError, Tolerated
from tracebed.orchestrator.testbeds.ansible import expand
from tracebed.orchestrator.testbeds.inventory import load_inventory
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.orchestrator.testbeds.ssh_config import lines_of
from tracebed.orchestrator.testbeds.ssh_host import ssh_config

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


def test_hosts_inherit_the_variables_of_their_groups(tmp_path: Path) -> None:
    text = HOSTS.replace("tracebed_sockets: [0-1, 2-3]", "tracebed_emulated: true")
    found = of(load(tmp_path, text))
    assert list(found) == ["lone", "node01.example", "node02.example", "node03.example", "db-a", "db-c", "web"]
    assert found["lone"] == (Node("lone", 2, 1, (0, 1), provider="ssh"), {"user": "root"})
    spare = {"user": "ops", "identity_file": "~/.ssh/spare"}
    assert found["node02.example"][1] == {**spare, "port": 2200}
    emulated = Node("db-c", 2, emulated=True, provider="ssh", address="10.0.0.7")
    assert found["db-c"] == (emulated, {**spare, "user": "own"})
    assert found["web"][1] == {"user": "rest", "python": "/opt/python/bin/python3", "port": 2022}


def test_hosts_with_one_connection_are_one_group(tmp_path: Path) -> None:
    groups = load(tmp_path, HOSTS.replace("[a:c:2]", "a").replace("tracebed_cores: 2", "tracebed_duty: 1")).groups
    assert [(group.name, len(group.nodes)) for group in groups] == [
        ("all", 1),
        ("spare", 3),
        ("spare-2", 1),
        ("rest", 1),
    ]
    assert len({group.mark for group in groups}) == 4
    (node,) = groups[2].nodes
    assert (node.cpus, node.sockets, node.duty) == ((0, 1, 2, 3), 2, 1.0)


def test_cores_are_given_or_follow(tmp_path: Path) -> None:
    text = "all:\n  hosts:\n    a: {tracebed_cores: 2}\n    b:\n"
    assert load(tmp_path, text).unknown == ["b"]
    with pytest.raises(InputError, match="cores of node 'b' is unknown"):
        load(tmp_path, text, facts_follow=False)


def test_groups_beside_all_and_groups_in_two_places(tmp_path: Path) -> None:
    text = (
        "web: {hosts: {a: }, vars: {ansible_port: 1}}\ndb: {children: {web: {hosts: {b: }}}, vars: {ansible_port: 2}}\n"
    )
    found = of(load(tmp_path, text))
    assert {name: settings["port"] for name, (_, settings) in found.items()} == {"a": 1, "b": 1}


def test_deeper_groups_then_priority_then_name_decide(tmp_path: Path) -> None:
    text = """
all:
  children:
    b: {hosts: {h: }, vars: {ansible_port: 2}}
    a: {hosts: {h: }, vars: {ansible_port: 1, ansible_group_priority: 10, ansible_user: a}}
    c: {hosts: {h: }, vars: {ansible_user: c}}
    top: {children: {deep: {hosts: {g: }, vars: {ansible_port: 4}}}, vars: {ansible_port: 3, ansible_group_priority: 9}}
"""
    found = of(load(tmp_path, text))
    assert found["h"][1] == {"port": 1, "user": "a"}
    assert found["g"][1] == {"port": 4}


def test_variables_of_files_beside_the_inventory(tmp_path: Path) -> None:
    for folder, name, text in (
        ("group_vars", "all.yml", "ansible_user: everyone\nansible_port: 1\n"),
        ("group_vars", "web.yaml", "ansible_port: 2\n"),
        ("host_vars", "a", "ansible_port: 3\n"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    folder = tmp_path / "group_vars" / "db"
    folder.mkdir()
    (folder / "x.yml").write_text("ansible_port: 4\n")
    found = of(load(tmp_path, "web: {hosts: {a: , b: }, vars: {ansible_port: 9}}\ndb: {hosts: {c: }}\n"))
    assert {name: (settings["user"], settings["port"]) for name, (_, settings) in found.items()} == {
        "a": ("everyone", 3),
        "b": ("everyone", 2),
        "c": ("everyone", 4),
    }
    (folder / "x.yml").write_text("\nansible_port: many\n")
    with pytest.raises(InputError, match=r"x\.yml:2: port: "):
        load(tmp_path, "db: {hosts: {c: }}\n")


def test_options_of_the_connection_are_reported(tmp_path: Path) -> None:
    text = HOSTS.replace("[a:c:2]", "a").replace("ansible_user: ops", "ansible_ssh_common_args: -J jump")
    with pytest.warns(Tolerated, match=r"ansible_ssh_common_args is ignored.*\(5 times\)"):
        load(tmp_path, text)


BAD = {
    "no hosts": ("all:\n  children: {}\n", 1, "has no hosts"),
    "unknown section": ("all:\n  host:\n    a:\n", 2, "unknown key 'host'.*mean hosts"),
    "hosts is a list": ("all:\n  hosts:\n    - a\n", 2, "mapping of keys"),
    "template": ("all:\n  hosts:\n    a:\n      ansible_host: '{{ ip }}'\n", 4, "template .* is not evaluated"),
    "template in a group": (
        "all:\n  vars:\n    ansible_user: \"{{ lookup('pipe', 'id') }}\"\n  hosts: {a: }\n",
        3,
        "template .* is not evaluated",
    ),
    "password": ("all:\n  hosts:\n    a:\n      ansible_password: x\n", 4, "ansible_password is for a credential"),
    "ssh password": (
        "all:\n  vars: {ansible_ssh_pass: x}\n  hosts: {a: }\n",
        2,
        "ansible_ssh_pass is for a credential",
    ),
    "vault": (
        "all:\n  hosts:\n    a:\n      ansible_become_password: !vault |\n        $ANSIBLE_VAULT;1.1\n        1\n",
        4,
        "is for a credential",
    ),
    "vault as a user": (
        "all:\n  hosts:\n    a:\n      ansible_user: !vault |\n        $ANSIBLE_VAULT;1.1;AES256\n        1\n",
        4,
        "ansible_user: the value is a credential",
    ),
    "connection": ("all:\n  hosts:\n    a: {ansible_connection: docker}\n", 3, "host 'a' has connection 'docker'"),
    "port": ("all:\n  hosts:\n    a:\n      ansible_port: many\n", 4, "port: "),
    "unknown variable": ("all:\n  hosts:\n    a:\n      tracebed_core: 2\n", 4, "mean tracebed_cores"),
    "cores": ("all:\n  hosts:\n    a:\n      tracebed_cores: 0\n", 4, "cores: "),
    "range": ("all:\n  hosts:\n    a[3:1]:\n", 3, "host range .* is invalid"),
    "open range": ("all:\n  hosts:\n    a[1:]:\n", 3, "host range .* is invalid"),
    "step": ("all:\n  hosts:\n    'a[1:9:0]':\n", 3, "host range .* is invalid"),
    "large range": ("all:\n  hosts:\n    a[1:99999999]:\n", 3, "more than 1,000,000 names"),
    "product of ranges": ("all:\n  hosts:\n    'a[1:9999][1:9999]':\n", 3, "more than 1,000,000 names"),
    "name": ("all:\n  hosts:\n    'a b':\n", 3, "node 'a b'"),
    "address as a name": ("all:\n  hosts:\n    '::1':\n", 3, "host '::1' is invalid"),
    "cycle": ("a: {children: {b: }}\nb: {children: {a: }, hosts: {h: }}\n", 0, "child of itself"),
    "vars of a host": ("all:\n  hosts:\n    a: [1]\n", 3, "mapping of keys"),
    "shared CPUs": (
        "all:\n  vars: {ansible_host: h, tracebed_cores: 2}\n  hosts:\n    a:\n    b:\n",
        5,
        "nodes 'a' and 'b' share CPU 0",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_ansible_inventory_is_refused_by_line(tmp_path: Path, case: str) -> None:
    text, line, message = BAD[case]
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, text)
    if line:
        assert str(caught.value).startswith(f"{tmp_path / 'hosts.yaml'}:{line}: "), caught.value
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(("width", "length"), [(2, 40), (1, 1500)])
def test_groups_with_many_paths_are_read_at_once(tmp_path: Path, width: int, length: int) -> None:
    """Each group of a level is a child of all groups of the level above: there are 2**40 paths, or one long path."""
    levels = [[f"g{level}_{number}" for number in range(width)] for level in range(length)]
    text = "".join(
        f"{group}: {{children: {{{', '.join(f'{child}: ' for child in below)}}}}}\n"
        for above, below in pairwise(levels)
        for group in above
    )
    found = load(tmp_path, f"{text}{levels[-1][0]}: {{hosts: {{h: }}, vars: {{tracebed_cores: 3}}}}\n")
    assert [(node.name, node.cores) for node in found.nodes] == [("h", 3)]


def test_ranges_of_hosts() -> None:
    def names(pattern: str) -> list[str]:
        return [name for name, _ in expand(pattern, most=1000)]

    assert names("www[01:03].example") == ["www01.example", "www02.example", "www03.example"]
    assert names("[1:9:4]") == ["1", "5", "9"]
    assert names("db-[a:c]") == ["db-a", "db-b", "db-c"]
    assert names("r[1:2]n[0:1]") == ["r1n0", "r1n1", "r2n0", "r2n1"]
    assert names("[:2]") == ["0", "1", "2"]
    assert list(expand("a[8:9]:22", most=9)) == [("a8", 22), ("a9", 22)]


@given(first=st.integers(0, 500), count=st.integers(1, 50), width=st.integers(1, 5), step=st.integers(1, 7))
def test_a_range_has_each_number_once(first: int, count: int, width: int, step: int) -> None:
    last = first + count - 1
    start, end = (f"{first:0{width}d}", f"{last:0{width}d}") if width > 1 else (str(first), str(last))
    if start.startswith("0") and len(start) != len(end):
        return
    found = [name for name, _ in expand(f"n[{start}:{end}:{step}]x", most=1000)]
    padded = width if start.startswith("0") and width > 1 else 0
    assert found == [f"n{number:0{padded}d}x" for number in range(first, last + 1, step)]


@given(data=mutated(HOSTS.encode()))
def test_a_damaged_ansible_inventory_is_read_or_refused_in_one_line(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "hosts.yaml"
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
            assert re.search(r"YAML|invalid", str(error))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config", "hosts.yaml", "nodes.yaml", "python.yaml"]
