"""Inventories: their content, and errors of invalid ones."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tracebed.ground.cpus import format_cpus, parse_cpus
from tracebed.ground.errors import InputError
from tracebed.ground.ranges import parse_names
from tracebed.orchestrator.testbeds import inventory_keys
from tracebed.orchestrator.testbeds.inventory import load_inventory
from tracebed.orchestrator.testbeds.nodes import Inventory, Node, shipped

ROOT = Path(__file__).resolve().parents[2]


def load(tmp_path: Path, text: str) -> Inventory:
    path = tmp_path / "nodes.yaml"
    path.write_text(text, encoding="utf-8")
    return load_inventory(path)


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
    assert read.nodes[:3] == (
        Node("a", 4, 2, (0, 1, 2, 3)),
        Node("b", 4, 2, (4, 5, 6, 8)),
        Node("c", 1, 1, (900,)),
    )
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
        (
            "testbed: cloud\nnodes:\n  - {name: a, cpus: 0}\n",
            1,
            r"unknown testbed 'cloud' \(one of agents",
        ),
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
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'nodes.yaml'}:{line}: "), caught.value
    assert caught.value.hint


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
