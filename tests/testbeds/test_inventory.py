"""Inventories: their content, and errors of invalid ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracebed.api as tb
from tests.executables import write_program
from tests.fuzzing.fuzz import mutated
from tracebed.ground.cpus import format_cpus, parse_cpus
from tracebed.ground.errors import InputError, Tolerated
from tracebed.ground.ranges import parse_names
from tracebed.machine.machine import Machine
from tracebed.orchestrator.testbeds import inventory_keys
from tracebed.orchestrator.testbeds.docker.provider import DockerSettings, container_options
from tracebed.orchestrator.testbeds.inventory import as_yaml, load_inventory
from tracebed.orchestrator.testbeds.inventory_keys import inventory_schema
from tracebed.orchestrator.testbeds.machine import InventoryMachine
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node, shipped
from tracebed.orchestrator.testbeds.provider import PROVIDERS
from tracebed.orchestrator.testbeds.ssh import ssh_config
from tracebed.orchestrator.testbeds.ssh_config import lines_of

ROOT = Path(__file__).resolve().parents[2]


def load(folder: Path, text: str, *, name: str = "nodes.yaml", facts_follow: bool = False) -> Inventory:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return load_inventory(path, facts_follow=facts_follow)


def check_refused(path: Path, text: str, line: int | None, message: str, *, facts_follow: bool = False) -> None:
    """Check that an inventory is refused with one line that names the place, and with a hint.

    line: 0 where the file is the place, None where there is no place.
    """
    with pytest.raises(InputError, match=message) as caught:
        load(path.parent, text, name=path.name, facts_follow=facts_follow)
    place = "" if line is None else f"{path}:{line}: " if line else f"{path}: "
    assert str(caught.value).startswith(place), caught.value
    assert "\n" not in str(caught.value) and caught.value.hint


@given(st.sets(st.integers(0, 300)))
def test_a_cpu_list_read_again_is_the_same_set(cpus: set[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == tuple(sorted(cpus))


def test_cpu_lists_are_those_of_linux() -> None:
    assert format_cpus([7, 0, 1, 2, 3]) == "0-3,7"
    assert parse_cpus("7,0-3") == (0, 1, 2, 3, 7)
    here = next(line for line in Path("/proc/self/status").read_text().splitlines() if "Cpus_allowed_list" in line)
    assert parse_cpus(here.split()[1]) == tuple(sorted(os.sched_getaffinity(0)))


@pytest.mark.parametrize("text", ["a", "3-1", "1,,2", "-1", "0-", "1,0-2"])
def test_an_invalid_cpu_list_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="CPU"):
        parse_cpus(text)


def test_inventories_of_tracebed_are_found_by_name_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "emulated-4").mkdir()  # a folder is not an inventory
    for name in shipped():
        assert load_inventory(name).nodes == load_inventory(ROOT / "inventory" / f"{name}.yaml").nodes
    assert set(shipped()) == {path.stem for path in (ROOT / "inventory").glob("*.yaml")} >= {"local", "emulated-4"}
    (tmp_path / "local").write_text("nodes:\n  - {name: own, cores: 1, emulated: true}\n")
    assert [node.name for node in load_inventory("local").nodes] == ["own"]  # a file of the user takes precedence
    with pytest.raises(InputError, match=r"unknown inventory 'emulated-5'.*did you mean emulated-4.*, or a file"):
        load_inventory("emulated-5")


def test_shipped_inventories() -> None:
    local = load_inventory("local")
    local.check_here()
    assert [node.cpus for node in local.nodes] == [(cpu,) for cpu in sorted(os.sched_getaffinity(0))]
    assert (local.nodes[0].name, local.execution) == ("n1", "computed")
    small = load_inventory(ROOT / "inventory" / "emulated-4.yaml")
    assert small.nodes == tuple(Node(f"n{i}", 8, 1, None, True) for i in range(1, 5))


@pytest.mark.parametrize(
    ("name", "nodes", "cores", "sockets", "providers"),
    [
        ("emulated-64x48", 64, 48, 2, ["local"]),
        ("mn4-49x48", 49, 48, 2, ["local"]),
        ("mn3-2x16", 2, 16, 2, ["local"]),
        ("mixed", 6, 8, 1, ["local", "docker", "ssh"]),
        ("ssh", 16, 48, 2, ["ssh"]),
        ("slurm", 4, 48, 2, ["slurm"]),
    ],
)
def test_shipped_inventories_of_clusters(name: str, nodes: int, cores: int, sockets: int, providers: list[str]) -> None:
    found = load_inventory(name)
    assert len(found.nodes) == nodes
    assert {(node.cores, node.sockets, node.emulated) for node in found.nodes} == {
        (cores, sockets, name not in ("ssh", "slurm"))
    }
    assert [group.provider for group in found.groups] == providers
    assert tb.simulate(tb.generate("cirne", jobs=5, nodes=2, seed=1), "easy", name).total_nodes == nodes


def test_the_shipped_machine_with_partitions_has_containers_of_two_sizes() -> None:
    found = load_inventory("partitions")
    assert [group.provider for group in found.groups] == ["docker"]
    made = {
        (options["mem_limit"], options["memswap_limit"])
        for node in found.nodes
        for options in [container_options(DockerSettings(), node, "t", "image")]
    }
    assert made == {("512m", "512m"), ("1024m", "1024m")}
    machine = InventoryMachine.of(found)
    assert (len(machine.classes), len(machine.partitions)) == (3, 4)
    assert [kind.gres for kind in machine.classes] == [{}, {}, {"gpu": 2}]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_shipped_inventory_of_containers_has_all_pairs_of_cpus() -> None:
    found = load_inventory("docker")
    assert {node.cores for node in found.nodes} == {2} and found.groups[0].provider == "docker"
    assert len(found.nodes) == len(os.sched_getaffinity(0)) // 2


def test_names_of_nodes_are_one_name_or_a_range() -> None:
    assert list(parse_names("login", most=1)) == ["login"]
    assert list(parse_names("n[8-11]-ib", most=4)) == ["n8-ib", "n9-ib", "n10-ib", "n11-ib"]
    assert list(parse_names("n[08-10]", most=4)) == ["n08", "n09", "n10"]
    assert len(parse_names("n[1-64]", most=64)) == 64
    assert list(islice(parse_names("n[1-*]", most=1), 2)) == ["n1", "n2"]
    for text in ("", "a b", "n[1]", "n[1-2", "n[1-2][3-4]", "n[-1-2]", "n[1-9999999999999999999]"):
        with pytest.raises(InputError, match="name"):
            parse_names(text, most=10)


@given(before=st.from_regex(r"[a-z._-]{0,5}", fullmatch=True), after=st.from_regex(r"[a-z._-]{0,5}", fullmatch=True),
       first=st.integers(0, 2000), count=st.integers(1, 300), padded=st.integers(0, 6))  # fmt: skip
def test_a_range_has_one_name_for_each_number(before: str, after: str, first: int, count: int, padded: int) -> None:
    start = f"{first:0{padded}d}"
    names = list(parse_names(f"{before}[{start}-{first + count - 1}]{after}", most=300))
    assert len(set(names)) == count == len(parse_names(f"{before}[{start}-{first + count - 1}]{after}", most=300))
    width = len(start) if start.startswith("0") else 0
    for name, number in zip(names, range(first, first + count), strict=True):
        assert name == f"{before}{number:0{width}d}{after}"
        assert list(parse_names(name, most=1)) == [name]


def test_named_cpus_and_sockets(tmp_path: Path) -> None:
    read = load(
        tmp_path,
        "nodes:\n  - {name: a, cpus: 0-3, sockets: 2}\n  - {name: b, sockets: [4-5, '6,8']}\n"
        "  - {name: c, cpus: 900}\n"
        "  - {name: 'e[08-10]', cores: 2, emulated: true}\n",
    )
    assert read.nodes[:3] == (Node("a", 4, 2, (0, 1, 2, 3)), Node("b", 4, 2, (4, 5, 6, 8)), Node("c", 1, 1, (900,)))
    assert [node.name for node in read.nodes[3:]] == ["e08", "e09", "e10"]
    assert (read.name, read.kind, read.execution) == ("nodes", "local", "computed+emulated")
    # Such an inventory can be read but not used.
    with pytest.raises(InputError, match="that this process may not use: "):
        read.check_here()


def test_auto_keeps_a_node_in_one_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(10)))
    monkeypatch.setattr(inventory_keys, "_socket", lambda cpu: cpu % 2)
    read = load(tmp_path, "nodes:\n  - {name: 'n[1-*]', cpus: auto, cores: 2}\n")
    assert [node.cpus for node in read.nodes] == [(0, 2), (4, 6), (1, 3), (5, 7)]
    assert {node.sockets for node in read.nodes} == {1}
    whole = load(tmp_path, "nodes:\n  - {name: n, cpus: auto, cores: 10}\n")
    assert whole.nodes == (Node("n", 10, 2, (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)),)
    with pytest.raises(InputError, match="suffice for only 4 nodes"):
        load(tmp_path, "nodes:\n  - {name: 'n[1-5]', cpus: auto, cores: 2}\n")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "a mapping of keys to values"),
        ("nodes: []\n", 1, "nodes"),
        ("nodes: [\n", 2, "YAML"),
        ("grain_s: 0\nnodes:\n  - {name: a, cpus: 0}\n", 1, "grain_s"),
        ("nodes:\n  - {name: a, cpus: 0}\nheartbeats: 3\n", 3, "heartbeats"),
        ("testbed: cloud\nnodes:\n  - {name: a, cpus: 0}\n", 1, r"unknown testbed 'cloud' \(one of agents"),
        ("nodes:\n  - name: a\n    cores: many\n    emulated: true\n", 3, "cores"),
        ("nodes:\n  - {name: a, cpus: 0}\n  - {name: b, cpus: 0-1}\n", 3, "share CPU 0"),
        ("nodes:\n  - {name: a, cpus: 0}\n  - {name: a, cpus: 1}\n", 3, "two nodes have the name 'a'"),
        ("nodes:\n  - {name: a, cores: 2}\n", 2, "needs either"),
        ("nodes:\n  - {name: a, cpus: 0, emulated: true, cores: 1}\n", 2, "emulated"),
        ("nodes:\n  - {name: a, cpus: 0-1, cores: 3}\n", 2, "the node has 2 CPUs"),
        ("nodes:\n  - {name: a, cpus: 0}\n  - {name: b, cpus: 1, duty: 0}\n", 3, "duty"),
        ("nodes:\n  - {name: a, cpus: 0, duty: 1.1}\n", 2, "duty"),
        ("nodes:\n  - {name: a, cpus: 0, duty: .nan}\n", 2, "duty"),
        ("nodes:\n  - {name: a, cores: 1, emulated: true, duty: 0.5}\n", 2, "an emulated node has no duty"),
        ("nodes:\n  - {name: a, cpus: 0-2, sockets: 2}\n", 2, "equal sockets"),
        ("nodes:\n  - {name: a, sockets: [0-1, 2]}\n", 2, "equally many"),
        ("nodes:\n  - {name: 'a[3-1]', cpus: 0}\n", 2, "empty"),
        ("nodes:\n  - {name: 'a[1-*]', cpus: 0}\n", 2, "requires `cpus: auto`"),
        ("nodes:\n  - {name: 'a b', cpus: 0}\n", 2, "letters"),
        ("nodes:\n  - {name: a, cpus: 3-1}\n", 2, "CPU list"),
        ("nodes:\n  - {name: 'a[1-99999999999]', cores: 1, emulated: true}\n", 2, "more than 1,000,000 names"),
        ("nodes:\n  - {name: 'a[1-99999999999]', cpus: auto}\n", 2, "more than 1,000,000 names"),
        (f"nodes:\n  - {{name: 'a[1-{'9' * 5000}]', cores: 1, emulated: true}}\n", 2, "longer than 200 bytes"),
        (f"nodes:\n  - {{name: {'a' * 5000}, cores: 1, emulated: true}}\n", 2, "longer than 200 bytes"),
        ("nodes:\n  - {name: a, cores: 99999999999999999999, emulated: true}\n", 2, "100000"),
        ("nodes:\n  - {name: a, cores: 1, sockets: 99999999999999999999, emulated: true}\n", 2, "equal sockets"),
        ("nodes:\n  - {name: a, cpus: 0-99999999999}\n", 2, "exceeds CPU 99999"),
        ("nodes:\n  - {name: a, cpus: 99999999999999999999}\n", 2, "exceeds CPU 99999"),
        ("nodes:\n  - {name: a, sockets: [0-99999999999]}\n", 2, "exceeds CPU 99999"),
    ],
)
def test_a_wrong_inventory_is_refused_by_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    check_refused(tmp_path / "nodes.yaml", text, line, message)


def test_an_inventory_with_too_many_nodes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert inventory_keys.LARGEST == 1_000_000
    monkeypatch.setattr(inventory_keys, "LARGEST", 1_000)
    nodes = "nodes:\n  - {name: 'a[1-1000]', cores: 1, emulated: true}\n"
    assert len(load(tmp_path, nodes).nodes) == 1_000
    with pytest.raises(InputError, match=r"yaml:3: .*the inventory has more than 1,000 nodes"):
        load(tmp_path, nodes + "  - {name: b, cores: 1, emulated: true}\n")


def test_an_unreadable_inventory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.yaml: cannot read"):
        load_inventory(tmp_path / "absent.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        load_inventory(tmp_path / "binary")


def test_the_nodes_of_a_group_have_its_duty(tmp_path: Path) -> None:
    read = load(
        tmp_path,
        "nodes:\n  - {name: a, cpus: 900, duty: 1}\n  - {name: 'n[1-*]', cpus: auto, duty: 0.7}\n"
        "  - {name: b, cpus: 901}\n  - {name: e, cores: 1, emulated: true}\n",
    )
    assert [node.duty for node in read.nodes] == [1.0, *[0.7] * (len(read.nodes) - 3), None, None]


# -- groups: inheritance, variables, settings of providers, credentials, the JSON schema, and as text ------------------

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
    "gres": ("nodes:\n  - {name: a, cpus: 0, gres: {gpu: -1}}\n", 2, "gres.gpu: must be at least 0"),
    "partition": ("partitions:\n  - {name: p, limits: 3}\nnodes: [{name: a, cpus: 0}]\n", 2, "limits: unknown key"),
    "tier": ("partitions:\n  - {name: p, tier: -1}\nnodes: [{name: a, cpus: 0}]\n", 1, "tier"),
    "two partitions": ("partitions:\n  - name: p\n  - name: p\nnodes: [{name: a, cpus: 0}]\n", 3, "have this name"),
    "node of a partition": (
        "partitions:\n  - name: p\n    nodes: [a, 'b[1-2]']\nnodes: [{name: a, cpus: 0}]\n",
        2,
        "partition 'p': node 'b1' is not in the inventory",
    ),
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
    "variable of a wrong type": ("vars: {c: two}\nnodes:\n  - {name: a, cores: '{c}', emulated: true}\n", 3, "cores: "),
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
def test_a_wrong_inventory_of_groups_is_refused_by_line(tmp_path: Path, case: str) -> None:
    check_refused(tmp_path / "nodes.yaml", *BAD[case])


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
        assert (again.grid, again.partitions) == (first.grid, first.partitions)


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


# The partitions.

UNLIKE = """
name: unlike
grid: 2x2
partitions:
  - {name: batch, nodes: ["c[1-2]", m1], default: true, limit_s: 3600}
  - {name: gpu, nodes: [g1], tier: 2}
  - {name: all, most_nodes: 3}
nodes:
  - {name: "c[1-2]", cores: 2, emulated: true, memory_mib: 512}
  - {name: m1, cores: 4, emulated: true, memory_mib: 1024, features: [big, fast]}
  - {name: g1, cores: 4, emulated: true, memory_mib: 1024, gres: {gpu: 2}}
"""


def test_an_inventory_has_the_classes_and_partitions_of_a_machine(tmp_path: Path) -> None:
    read = load(tmp_path, UNLIKE)
    machine = InventoryMachine.of(read)
    assert not machine.plain
    assert [(kind.names, kind.cores, kind.memory_mib, kind.gres, kind.features) for kind in machine.classes] == [
        (("c1", "c2"), 2, 512, {}, ()),
        (("m1",), 4, 1024, {}, ("big", "fast")),
        (("g1",), 4, 1024, {"gpu": 2}, ()),
    ]
    assert machine.partitions == read.partitions
    assert [(part.name, part.names, part.tier, part.most_nodes) for part in read.partitions] == [
        ("batch", ["c1", "c2", "m1"], 1, 0),
        ("gpu", ["g1"], 2, 0),
        ("all", [], 1, 3),
    ]
    again = load(tmp_path, as_yaml(read))
    assert (again.nodes, again.partitions, again.grid) == (read.nodes, read.partitions, "2x2")
    facts = json.loads(json.dumps(read.as_dict()))
    assert facts["partitions"][1] == {"name": "gpu", "nodes": ["g1"], "tier": 2}
    assert "gres" not in facts["nodes"][0] and facts["nodes"][3]["gres"] == {"gpu": 2}
    assert Machine.from_json(json.loads(json.dumps(machine.to_json()))).digest == machine.digest


def test_partitions_keep_the_nodes_that_are_left(tmp_path: Path) -> None:
    read = load(tmp_path, UNLIKE)
    left = read.with_nodes({node.name: node for node in read.nodes if node.name in ("c2", "m1")})
    assert [(part.name, part.names) for part in left.partitions] == [("batch", ["c2", "m1"]), ("all", [])]
    assert [node.name for node in InventoryMachine.of(replace(left, grid="")).nodes] == ["c2", "m1"]


def test_an_inventory_of_nodes_with_equal_memory_is_plain(tmp_path: Path) -> None:
    equal = "nodes:\n  - {name: 'n[1-2]', cores: 2, emulated: true, memory_mib: 512}\n"
    assert InventoryMachine.of(load(tmp_path, equal)).plain
    unlike = InventoryMachine.of(load(tmp_path, equal + "  - {name: m, cores: 2, emulated: true, memory_mib: 1024}\n"))
    assert [kind.memory_mib for kind in unlike.classes] == [512, 1024] and not unlike.plain


def test_nodes_have_power_and_a_rule_by_which_they_sleep(tmp_path: Path) -> None:
    text = """\
sleep: {rule: idle, idle_s: 300, keep: 1}
tariff: {grid_price: 0.2, currency: EUR}
defaults: {cores: 4, emulated: true, power: {busy_w: 300, idle_w: 100, boot_s: 60}}
nodes: ["n[1-2]", {name: n3, power: {busy_w: 90, idle_w: 30}}]
"""
    read = load(tmp_path, text)
    assert violations(text) == [] and violations(as_yaml(read)) == []
    assert load(tmp_path, as_yaml(read)).as_dict() == read.as_dict()
    machine = InventoryMachine.of(read)
    assert machine.plain
    assert machine.to_json() == {
        "classes": [
            {"names": ["n1", "n2"], "cores": 4, "power": {"busy_w": 300.0, "idle_w": 100.0, "boot_s": 60.0}},
            {"names": ["n3"], "cores": 4, "power": {"busy_w": 90.0, "idle_w": 30.0}},
        ],
        "sleep": {"rule": "idle", "idle_s": 300.0, "keep": 1},
        "tariff": {"grid_price": 0.2, "currency": "EUR"},
    }
    assert Machine.from_json(machine.to_json()).to_json() == machine.to_json()
    with pytest.raises(InputError, match="sleep.rule") as error:
        load(tmp_path, text.replace("rule: idle", "rule: never"))
    assert (error.value.where or "").endswith(":1")


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


# -- inventories of other programs: Ansible inventories, and SSH configurations ----------------------------------------

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


def load_other(folder: Path, text: str, *, name: str = "hosts.yaml", facts_follow: bool = True) -> Inventory:
    return load(folder, text, name=name, facts_follow=facts_follow)


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
    found = of(load_other(tmp_path, text))
    assert list(found) == ["lone", "node01.example", "node02.example", "node03.example", "db-a", "db-c", "web"]
    assert found["lone"] == (Node("lone", 2, 1, (0, 1), provider="ssh"), {"user": "root"})
    spare = {"user": "ops", "identity_file": "~/.ssh/spare"}
    assert found["node02.example"][1] == {**spare, "port": 2200}
    emulated = Node("db-c", 2, emulated=True, provider="ssh", address="10.0.0.7")
    assert found["db-c"] == (emulated, {**spare, "user": "own"})
    assert found["web"][0].cores == 8
    assert found["web"][1] == {"user": "rest", "python": "/opt/python/bin/python3", "port": 2022}
    read = load_other(tmp_path, "[web]\nn[8:11] ansible_port=22\n", name="hosts")
    assert [node.name for node in read.nodes] == ["n8", "n9", "n10", "n11"]


@pytest.mark.usefixtures("ansible")
def test_an_inventory_that_ansible_rejects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hosts.yaml: ansible-inventory rejects .*recursive dependency loop"):
        load_other(tmp_path, "a: {children: {b: }}\nb: {children: {a: }, hosts: {h: }}\n")
    with pytest.raises(InputError, match=r"hosts.yaml: host 'a': port: "):
        load_other(tmp_path, "all: {hosts: {a: {ansible_port: many}}}\n")


@pytest.mark.parametrize("text", [HOSTS, "# hosts\n[web]\nhost1\n"])
def test_without_ansible_the_error_says_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"is not installed here .*--list > hosts\.json; then give hosts\.json"):
        load_other(tmp_path, text)


def test_a_failure_of_ansible_is_not_called_one_of_the_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "#!/bin/sh\nprintf 'Traceback:\\n  line 1\\nAttributeError: no attribute\\n' >&2; exit 1\n"
    write_program(tmp_path / "ansible-inventory", text)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(InputError, match=r"ansible-inventory failed: AttributeError: no attribute \(see: ansible-inv"):
        load_other(tmp_path, HOSTS)


def test_hosts_with_one_connection_are_one_group(tmp_path: Path) -> None:
    spare = {"ansible_user": "ops", "ansible_python_interpreter": "auto_silent"}
    text = listing(
        {"ungrouped": ["lone"], "spare": ["n2", "n10", "db"], "rack": ["db"], "rest": ["web"]},
        lone={"http_port": "{{ port }}"},
        n2=spare,
        n10=spare,
        db={"ansible_user": "own", "tracebed_sockets": ["0-1", "2-3"], "tracebed_cores": 2, "tracebed_duty": 1},
    )
    groups = load_other(tmp_path, text, name="hosts.json").groups
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
        inventory = load_other(tmp_path, one(tracebed_cores=2, tracebed_emulated=text, tracebed_listen=text))
        ((node, settings),) = of(inventory).values()
        assert node.emulated and settings["listen"] is True
    (node,) = load_other(tmp_path, one(tracebed_cores=2, tracebed_emulated="false")).nodes
    assert not node.emulated
    with pytest.raises(InputError, match="must be true or false"):
        load_other(tmp_path, one(tracebed_cores=2, tracebed_emulated="perhaps"))


def test_cores_are_given_or_follow(tmp_path: Path) -> None:
    text = listing({"web": ["a", "b"]}, a={"tracebed_cores": 2})
    assert load_other(tmp_path, text, name="hosts.json").unknown == ["b"]
    with pytest.raises(InputError, match="cores of node 'b' is unknown"):
        load_other(tmp_path, text, name="hosts.json", facts_follow=False)


def test_options_of_the_connection_are_reported(tmp_path: Path) -> None:
    option = {"ansible_ssh_common_args": "-J jump"}
    with pytest.warns(Tolerated, match=r"ansible_ssh_common_args is ignored.*\(2 times\)"):
        load_other(tmp_path, listing({"web": ["a", "b"]}, a=option, b=option), name="hosts.json")


BAD_LISTINGS = {
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
    "name": (listing({"ungrouped": ["a b"]}), None, "node 'a b'"),
    "vars of a host": (listing({"ungrouped": ["a"]}, a=[1]), 4, "mapping of keys"),
    "shared CPUs": (
        listing({"web": ["a", "b"]}, **{host: {"ansible_host": "h", "tracebed_cores": 2} for host in "ab"}),
        8,
        "nodes 'a' and 'b' share CPU 0",
    ),
}


@pytest.mark.parametrize("case", BAD_LISTINGS)
def test_a_wrong_ansible_inventory_is_refused_by_line(tmp_path: Path, case: str) -> None:
    check_refused(tmp_path / "hosts.json", *BAD_LISTINGS[case], facts_follow=True)


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
    read = load_other(tmp_path, CONFIG.replace('"node 05" ', ""), name="rack.conf")
    assert [node.name for node in read.nodes] == read.unknown == ["node01", "node02.example", "node04"]
    (group,) = read.groups
    assert (read.kind, group.provider) == ("ssh", "ssh")
    assert group.settings.model_dump(exclude_unset=True) == {"config": str(tmp_path / "rack.conf")}


def test_the_configuration_of_the_user_needs_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    read = load_other(tmp_path / ".ssh", "Host a\n", name="config")
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
    read = load_other(folder, main, name="config")
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
    check_refused(tmp_path / "config", text, line, message, facts_follow=True)


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"Include {path}\nHost a\n")
    with pytest.raises(InputError, match="included more than 16 deep"):
        list(lines_of(path))


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
            load_other(tmp_path, text, name=name)
        except InputError as error:
            assert re.search(r"YAML|invalid|ansible-inventory (is not installed|failed)", str(error))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config", "hosts.yaml", "nodes.yaml", "python.yaml"]


LISTED = listing({"web": ["a", "b"]}, a={"ansible_port": 1, "tracebed_sockets": ["0-1"]})


@pytest.mark.parametrize(
    ("name", "text"),
    [("nodes.yaml", GROUPS), ("hosts.json", LISTED), ("config", CONFIG)],
    ids=["own", "Ansible", "SSH"],
)
@given(data=st.data())
def test_a_damaged_inventory_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, name: str, text: str, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(data.draw(mutated(text.encode())))
    try:
        load_inventory(path, facts_follow=True)
    except InputError as error:
        assert "\n" not in str(error)
