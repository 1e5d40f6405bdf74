"""Inventories with groups: inheritance, variables, settings of providers, credentials, the JSON schema, and as text."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing.fuzz import mutated
from tracebed.ground.errors import InputError
from tracebed.orchestrator.testbeds.inventory import as_yaml, load_inventory
from tracebed.orchestrator.testbeds.inventory_keys import inventory_schema
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node, shipped
from tracebed.orchestrator.testbeds.provider import PROVIDERS

ROOT = Path(__file__).resolve().parents[2]
GROUPS = """
name: spare
linger_s: 5
network: agents
vars: {domain: cluster.example, size: 4}
defaults: {cores: "{size}", duty: 1, user: me}
groups:
  here:
    nodes:
      - {name: c, cpus: 0-1}
      - {name: "e[01-03]", cores: 48, sockets: 2, emulated: true}
  rack:
    provider: ssh
    address: "{node}.{rack}.{domain}"
    vars: {rack: r1}
    port: 2222
    memory_mib: 1024
    nodes:
      - node[01-02]
      - {name: x, cpus: 0-7, vars: {rack: r2}}
      - {name: y, sockets: [0-1, 4-5], address: 10.0.0.1}
"""


def load(tmp_path: Path, text: str, **options: Any) -> Inventory:
    path = tmp_path / "nodes.yaml"
    path.write_text(text, encoding="utf-8")
    return load_inventory(path, **options)


def read_or_refuse(path: Path, data: bytes) -> None:
    """Read an inventory with this content, and check that an error is one line."""
    path.write_bytes(data)
    try:
        load_inventory(path, facts_follow=True)
    except InputError as error:
        assert "\n" not in str(error)


def test_groups_defaults_and_variables(tmp_path: Path) -> None:
    read = load(tmp_path, GROUPS)
    assert (read.name, read.kind, read.execution) == ("spare", "local+ssh", "computed+emulated")
    assert (read.linger_s, read.network) == (5.0, "agents")
    here, rack = read.groups
    assert read.nodes == here.nodes + rack.nodes
    assert here.nodes[0] == Node("c", 2, 1, (0, 1), duty=1.0)  # its own CPUs replace the cores of `defaults`
    assert here.nodes[3] == Node("e03", 48, 2, None, True)  # an emulated node inherits no duty
    assert (rack.name, rack.provider) == ("rack", "ssh")
    assert rack.settings.model_dump(exclude_unset=True) == {"user": "me", "port": 2222}
    common = {"duty": 1.0, "memory_mib": 1024, "provider": "ssh"}
    assert rack.nodes == (
        Node("node01", 4, 1, (0, 1, 2, 3), address="node01.r1.cluster.example", **common),
        Node("node02", 4, 1, (0, 1, 2, 3), address="node02.r1.cluster.example", **common),
        Node("x", 8, 1, tuple(range(8)), address="x.r2.cluster.example", **common),
        Node("y", 4, 2, (0, 1, 4, 5), address="10.0.0.1", **common),
    )


def test_marks_tell_the_groups_of_files_apart(tmp_path: Path) -> None:
    marks = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        marks += [group.mark for group in load(tmp_path / folder, GROUPS).groups]
    assert len(set(marks)) == 4
    assert marks[:2] == [group.mark for group in load(tmp_path / "a", GROUPS).groups]


def test_an_inventory_without_groups_is_one_group_of_local_nodes() -> None:
    read = load_inventory("emulated-4")
    (group,) = read.groups
    assert (group.name, group.provider, group.nodes, read.kind) == ("nodes", "local", read.nodes, "local")
    assert read.testbed == "agents"
    direct = Inventory("i", "agents", (Node("a", 1), Node("b", 1, provider="ssh"), Node("c", 1)))
    assert [(group.provider, len(group.nodes)) for group in direct.groups] == [("local", 1), ("ssh", 1), ("local", 1)]
    assert direct.kind == "local+ssh"
    assert direct.with_nodes({"b": Node("b", 4, provider="ssh")}).groups[0].nodes == (Node("b", 4, provider="ssh"),)


def test_unknown_cores_are_an_error_unless_facts_follow(tmp_path: Path) -> None:
    text = "groups:\n  far: {provider: ssh, nodes: 'n[1-2]', cpus: auto}\n"
    with pytest.raises(InputError, match=r"cores of node 'n1' is unknown.*tracebed nodes facts .*nodes\.yaml -o"):
        load(tmp_path, text)
    read = load(tmp_path, text, facts_follow=True)
    assert (read.unknown, read.nodes[0].cores, read.nodes[0].cpus) == (["n1", "n2"], 0, None)


BAD = {
    "nodes and groups": ("nodes: [a]\ngroups: {a: {nodes: a}}\n", 1, "either `nodes` or `groups`"),
    "neither": ("name: a\n", 1, "either `nodes` or `groups`"),
    "no group": ("groups: {}\n", 1, "groups"),
    "group of nothing": ("groups:\n  a:\n", 2, "mapping of keys"),
    "group is a list": ("groups:\n  a: [b]\n", 2, "mapping of keys"),
    "group without nodes": ("groups:\n  a:\n    cores: 2\n", 2, "nodes: required key"),
    "empty nodes": ("groups:\n  a:\n    nodes: []\n", 3, "nodes"),
    "nodes is a number": ("groups:\n  a:\n    nodes: 3\n", 3, "nodes"),
    "node is a number": (
        "groups:\n  a:\n    emulated: true\n    cores: 1\n    nodes:\n      - b\n      - 3\n",
        7,
        "mapping",
    ),
    "name of a group": ("groups:\n  a b:\n    nodes: c\n", 2, "group 'a b'"),
    "misspelled key": ("groups:\n  a:\n    provder: ssh\n    nodes: c\n", 3, "unknown key 'provder'.*mean provider"),
    "misspelled node key": ("nodes:\n  - {name: a, cpu: 0}\n", 2, "unknown key 'cpu'.*mean cpus"),
    "misspelled file key": ("grains_s: 1\nnodes: [a]\n", 1, "unknown key 'grains_s'.*mean grain_s"),
    "misspelled default": ("defaults:\n  dury: 1\nnodes: [{name: a, cpus: 0}]\n", 2, "unknown key 'dury'.*mean duty"),
    "default of no provider": ("defaults:\n  port: 1\nnodes: [{name: a, cpus: 0}]\n", 2, "unknown key 'port'"),
    "setting of another provider": ("groups:\n  a:\n    port: 22\n    nodes: [{name: b, cpus: 0}]\n", 3, "unknown key"),
    "setting of a node": (
        "groups:\n  a:\n    provider: ssh\n    nodes:\n      - {name: b, cores: 1, port: 22}\n",
        5,
        "setting of a group",
    ),
    "invalid setting": ("groups:\n  a:\n    provider: ssh\n    port: many\n    nodes: b\n", 4, "port: "),
    "invalid default": ("defaults:\n  cores: 0\nnodes:\n  - {name: a, emulated: true}\n", 2, "cores: "),
    "provider": ("groups:\n  a:\n    provider: cloud\n    nodes: b\n", 3, "unknown provider 'cloud' .one of .*local"),
    "network": ("network: udp\nnodes: [{name: a, cpus: 0}]\n", 1, "network"),
    "linger": ("linger_s: -1\nnodes: [{name: a, cpus: 0}]\n", 1, "linger_s"),
    "memory": ("nodes:\n  - {name: a, cpus: 0, memory_mib: 0}\n", 2, "memory_mib"),
    "twice in groups": (
        "groups:\n  a: {nodes: n, cores: 1, emulated: true}\n  b: {nodes: n, cores: 1, emulated: true}\n",
        3,
        "two nodes have the name 'n'",
    ),
    "CPUs of a host": (
        "groups:\n  a:\n    provider: ssh\n    address: h\n    cores: 2\n    nodes:\n      - b\n      - c\n",
        8,
        "nodes 'b' and 'c' share CPU 0",
    ),
    "range without end far away": (
        "groups:\n  a:\n    provider: ssh\n    nodes:\n      - {name: 'n[1-*]', cpus: auto}\n",
        5,
        "not possible with provider ssh",
    ),
    "cpus and sockets": ("nodes:\n  - {name: a, cpus: 0-1, sockets: [0, 1]}\n", 2, "not both"),
    "unknown variable": (
        "vars: {cores: 2}\nnodes:\n  - {name: 'a{cpres}', cores: 1, emulated: true}\n",
        3,
        "mean cores",
    ),
    "variable without vars": ("nodes:\n  - {name: 'a{b}', cores: 1, emulated: true}\n", 2, "unknown variable 'b'"),
    "variable of a list": ("vars: {a: [1]}\nnodes: [{name: a, cpus: 0}]\n", 1, "vars.a"),
    "variable of a wrong type": (
        "vars: {c: two}\nnodes:\n  - {name: a, cores: '{c}', emulated: true}\n",
        3,
        "cores: ",
    ),
    "variables as a list": ("groups:\n  a:\n    vars: [1]\n    nodes: b\n", 3, "vars"),
    "template": ("nodes:\n  - {name: a, address: '{{ host }}', cpus: 0}\n", 2, "template .* is not evaluated"),
    "statement": ("nodes:\n  - {name: '{% raw %}', cpus: 0}\n", 2, "template .* is not evaluated"),
    "bomb": (
        f"vars: {{a: {'x' * 5000}}}\nnodes:\n  - {{name: '{'{a}' * 500}-', cpus: 0}}\n",
        3,
        "longer than 10,000 characters",
    ),
    "too deep": ("[" * 5000, 1, "nested too deeply|expected node content"),
    "python object": ("nodes: !!python/object/apply:os.system ['true']\n", 1, "YAML"),
    "surrogate": ('nodes:\n  - {name: "\\ud800", cpus: 0}\n', 2, "."),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_inventory_is_refused_by_line(tmp_path: Path, case: str) -> None:
    text, line, message = BAD[case]
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, text)
    place = f"{tmp_path / 'nodes.yaml'}:{line}: " if line else f"{tmp_path / 'nodes.yaml'}: "
    assert str(caught.value).startswith(place), caught.value
    assert caught.value.hint


@pytest.mark.parametrize(
    "key",
    ["password", "ssh_pass", "passphrase", "private_key", "token", "api_key", "become_password", "secret", "ssh_key"],
)
@pytest.mark.parametrize(
    "text",
    [
        "{key}: x\nnodes: [{{name: a, cpus: 0}}]\n",
        "nodes: [{{name: a, cpus: 0, {key}: x}}]\n",
        "groups:\n  a: {{provider: ssh, nodes: b, cores: 1, {key}: x}}\n",
        "groups:\n  a: {{provider: ssh, nodes: b, cores: 1, vars: {{{key}: x}}}}\n",
    ],
)
def test_keys_for_credentials_are_refused(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(InputError, match=r"is for a credential.*ssh-agent") as caught:
        load(tmp_path, text.format(key=key))
    assert "'x'" not in str(caught.value)


def test_the_content_of_a_key_is_refused(tmp_path: Path) -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----"
    text = f"groups:\n  a:\n    provider: ssh\n    identity_file: '{key}'\n    nodes: b\n"
    with pytest.raises(InputError, match=r"nodes\.yaml:4: identity_file: the value is a credential") as caught:
        load(tmp_path, text)
    assert "BEGIN" not in str(caught.value)


def test_the_name_of_a_key_file_is_no_credential(tmp_path: Path) -> None:
    text = "groups:\n  a: {provider: ssh, identity_file: ~/.ssh/spare, known_hosts: known, nodes: b, cores: 1}\n"
    assert load(tmp_path, text).groups[0].settings.model_dump(exclude_unset=True)["identity_file"] == "~/.ssh/spare"


# As text.


def test_an_inventory_as_text_is_the_same(tmp_path: Path) -> None:
    for source in (*shipped(), None):
        first = load(tmp_path, GROUPS) if source is None else load_inventory(source)
        again = load(tmp_path, as_yaml(first))
        assert again.nodes == first.nodes
        assert [(group.name, group.settings) for group in again.groups] == [
            (group.name, group.settings) for group in first.groups
        ]
        assert (again.grain_s, again.linger_s, again.network) == (first.grain_s, first.linger_s, first.network)


NAMES = st.from_regex(r"[A-Za-z_.-][A-Za-z0-9_.-]{0,8}", fullmatch=True)


@st.composite
def drawn_nodes(draw: st.DrawFn) -> tuple[Node, ...]:
    """Nodes of provider ssh, each on a machine of its own."""
    found = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=5, unique=True)):
        sockets, size = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        cpus = draw(st.lists(st.integers(0, 99), min_size=sockets * size, max_size=sockets * size, unique=True))
        by_socket = [tuple(sorted(cpus[start : start + size])) for start in range(0, len(cpus), size)]
        emulated = draw(st.booleans())
        found.append(
            Node(
                name,
                len(cpus),
                sockets,
                None if emulated else tuple(cpu for socket in by_socket for cpu in socket),
                emulated,
                None if emulated else draw(st.none() | st.floats(0.01, 1)),
                draw(st.none() | st.integers(1, 2**20)),
                "ssh",
                draw(st.none() | NAMES),
            )
        )
    return tuple(found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nodes=drawn_nodes(), port=st.none() | st.integers(1, 65535))
def test_drawn_inventories_as_text_are_the_same(tmp_path: Path, nodes: tuple[Node, ...], port: int | None) -> None:
    model = PROVIDERS.load("ssh").Settings
    group = Group("g", "ssh", model.model_validate({} if port is None else {"port": port}), nodes)
    inventory = Inventory("i", "agents", nodes, groups=(group,))
    try:
        again = load(tmp_path, as_yaml(inventory))
    except InputError as error:
        assert "share CPU" in error.what  # two names with one drawn address
        return
    assert (again.nodes, again.groups[0].settings) == (nodes, group.settings)


@given(data=mutated(GROUPS.encode()))
def test_a_damaged_inventory_is_read_or_refused_in_one_line(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "nodes.yaml"
    read_or_refuse(path, data)


# The JSON schema.

SCHEMA: dict[str, Any] = json.loads(
    (files("tracebed.validation") / "schemas" / "tracebed-inventory-1.json").read_text(encoding="utf-8")
)
OURS = [name for name, entry in PROVIDERS.entries.items() if entry.value.startswith("tracebed.")]


def test_the_published_schema_is_that_of_the_models() -> None:
    hint = "tracebed nodes schema > validation/tracebed/validation/schemas/tracebed-inventory-1.json"
    assert inventory_schema(OURS) == SCHEMA, hint


def violations(text: str) -> list[str]:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(yaml.safe_load(text))]


def test_valid_inventories_satisfy_the_schema(tmp_path: Path) -> None:
    assert violations(GROUPS) == []
    assert violations(as_yaml(load(tmp_path, GROUPS))) == []
    for name in shipped():
        assert violations((ROOT / "inventory" / f"{name}.yaml").read_text()) == []


SEEN_BY_EDITORS = ("nodes and groups", "neither", "no group", "group without nodes", "empty nodes", "nodes is a number",
                   "misspelled key", "misspelled node key", "misspelled file key", "misspelled default",
                   "invalid setting", "invalid default", "provider", "network", "linger", "memory")  # fmt: skip


@pytest.mark.parametrize("case", SEEN_BY_EDITORS)
def test_editors_see_mistakes_in_keys_and_values(case: str) -> None:
    assert violations(BAD[case][0])
