"""The demand of a workload by class of a machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tracebed.converters.description import ALL_PARTITIONS, Capacity
from tracebed.converters.workload import Workload
from tracebed.ground.errors import ExitCode
from tracebed.ground.ranges import as_ranges
from tracebed.machine.demand import capacities, class_demand, gres_of, has_features
from tracebed.machine.machine import Machine, NodeClass, Partition, expanded

THIN = NodeClass(names=("c[1-4]",), cores=8, memory_mib=1000, features=("ib",))
FAT = NodeClass(names=("f1", "f2"), cores=16, memory_mib=4000, features=("ib", "bigmem"))
GPU = NodeClass(names=("g[1-2]",), cores=8, memory_mib=2000, gres={"gpu:a100": 4})
CPU = Partition(name="cpu", nodes=("c[1-4]", "f1", "f2"), default=True, limit_s=7200.0)
MACHINE = Machine(
    classes=(THIN, FAT, GPU),
    partitions=(
        CPU,
        Partition(name="gpu", nodes=("g[1-2]",), shared=True),
        Partition(name="one", nodes=("c1", "g1"), most_nodes=1),
    ),
)
YAML = """classes:
  - {names: ["c[1-4]"], cores: 8, memory_mib: 1000}
  - {names: ["g[1-2]"], cores: 8, memory_mib: 2000, gres: {gpu: 4}}
partitions: [{name: cpu, nodes: ["c[1-4]"], default: true}, {name: gpu, nodes: ["g[1-2]"]}]
"""


def workload(*jobs: dict[str, Any]) -> Workload:
    """Return jobs that run for an hour on a node, submitted within an hour."""
    usual = {"run_time": 3600.0, "nodes": 1, "cores_per_node": 8}
    rows = [
        {"job_id": str(number), "submit_time": 3600.0 * number / max(len(jobs) - 1, 1), **usual, **job}
        for number, job in enumerate(jobs)
    ]
    return Workload(pd.DataFrame(rows).fillna(dict.fromkeys(("partition", "gres", "features"), "")))


def demand(*jobs: dict[str, Any], machine: Machine = MACHINE) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the classes, and reason -> jobs that cannot run."""
    classes, unserved = class_demand(workload(*jobs), machine)
    return classes, {row["reason"]: row["jobs"] for row in unserved}


def test_capacities() -> None:
    assert capacities(MACHINE) == {
        **{"cpu": Capacity(6, 64, 0), "gpu": Capacity(2, 16, 8), "one": Capacity(2, 16, 4)},
        ALL_PARTITIONS: Capacity(8, 80, 8),
    }


def test_jobs_are_spread_over_the_classes_that_can_serve_them() -> None:
    classes, unserved = demand({"nodes": 6}, {"partition": "cpu", "memory_mib": 2000.0}, {"features": "bigmem"})
    assert unserved == {}
    assert [row["names"] for row in classes] == ["c[1-4]", "f[1-2]", "g[1-2]"]
    assert [row["jobs"] for row in classes] == [1, 3, 0]
    assert [row["jobs_only"] for row in classes] == [0, 2, 0]
    assert [row["node_hours"] for row in classes] == pytest.approx([4, 2 + 2, 0])
    assert [row["node_demand"] for row in classes] == pytest.approx([1, 2, 0])
    assert [row["memory_demand"] for row in classes] == pytest.approx([0, 2000 / 8000, 0])
    assert [row["gpu_demand"] for row in classes] == [None, None, 0]
    assert [row["partitions"] for row in classes] == [["cpu", "one"], ["cpu"], ["gpu", "one"]]


def test_a_shared_job_needs_its_largest_share_of_a_node() -> None:
    shared = {"partition": "gpu", "cores_per_node": 1}
    classes, unserved = demand(shared | {"gres": "gpu:3"}, shared | {"memory_mib": 1000.0}, shared)
    assert unserved == {}
    assert classes[2]["node_hours"] == pytest.approx(3 / 4 + 1 / 2 + 1 / 8)
    assert classes[2]["gpu_hours"] == pytest.approx(3)
    assert classes[2]["gpu_demand"] == pytest.approx(3 / 8)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"partition": "old"}, "partition old is not on the machine"),
        ({"nodes": 7}, "nodes: up to 7, partition cpu has 6"),
        ({"cores_per_node": 32}, "cores of a node: up to 32, partition cpu has 16"),
        ({"cores_per_node": 16, "nodes": 3}, "cores of a node: up to 16, partition cpu has too few such nodes"),
        ({"memory_mib": 4001.0}, "MiB of a node: up to 4,001, partition cpu has 4,000"),
        ({"gres": "gpu:1"}, "gres of a node: gpu:1, partition cpu has none"),
        ({"gres": "gpu:5", "partition": "gpu"}, "gres of a node: gpu:5, partition gpu has gpu:a100:4"),
        ({"gres": "gpu:v100:1", "partition": "gpu"}, "gres of a node: gpu:v100:1, partition gpu has gpu:a100:4"),
        ({"features": "nvme"}, "features: nvme, partition cpu has ib, bigmem"),
        ({"features": "bigmem", "nodes": 3}, "features: bigmem, partition cpu has too few such nodes"),
        ({"partition": "one", "nodes": 2}, "nodes of a job: up to 2, partition one allows 1"),
        ({"time_limit": 7201.0}, "time limit: up to 7,201 s, partition cpu allows 7,200 s"),
    ],
)
def test_a_job_that_no_class_can_serve_has_a_reason(job: dict[str, Any], reason: str) -> None:
    classes, unserved = demand(job, {})
    assert unserved == {reason: 1}
    assert sum(row["node_hours"] for row in classes) == pytest.approx(1)


@pytest.mark.parametrize(
    "job",
    [
        {"partition": "gpu", "gres": "gpu:4"},
        {"partition": "gpu", "gres": "GPU:A100:2"},
        {"partition": "old,gpu"},
        {"partition": "one", "nodes": 1, "gres": "gpu"},
        {"memory_mib": float("nan")},
        {"nodes": 0},
        {"features": "bigmem&ib|nvme"},
        {"time_limit": 7200.0},
    ],
)
def test_other_jobs_have_none(job: dict[str, Any]) -> None:
    assert demand(job, {})[1] == {}


def test_a_machine_without_partitions_lets_jobs_run_anywhere() -> None:
    machine = Machine(classes=(NodeClass(count=3, cores=8), NodeClass(count=1, cores=8, gres={"gpu": 2})))
    classes, unserved = demand({"partition": "any", "nodes": 4}, {"gres": "gpu:2"}, {"gres": "gpu:3"}, machine=machine)
    assert unserved == {"gres of a node: gpu:3, the machine has none; gpu:2": 1}
    assert [row["names"] for row in classes] == ["n[1-3]", "n4"]
    assert [row["node_hours"] for row in classes] == pytest.approx([3, 2])


@pytest.mark.parametrize(
    ("demand", "met"),
    [
        *(("", True), ("a", True), ("a&b", True), ("a&c", False), ("c|b", True), ("[a|c]", True), ("a*4&b*2", True)),
        *(("c|(a&b)", True), ("c&(a|b)", False), ("[a&c]", True), ("a&", False)),
    ],
)
def test_features(demand: str, met: bool) -> None:
    assert has_features(["a", "b"], demand) == met


def test_types_of_gres_count_together() -> None:
    assert gres_of(NodeClass(count=1, gres={"gpu:a": 2, "GPU:b": 1, "nvme": 1})) == {
        **{"gpu:a": 2, "gpu:b": 1, "nvme": 1, "gpu": 3}
    }


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "partition": st.sampled_from(["", "cpu", "gpu", "one", "cpu,one", "old"]),
                "nodes": st.integers(1, 8),
                "cores_per_node": st.sampled_from([1, 8, 9, 16, 17]),
                "memory_mib": st.sampled_from([float("nan"), 1.0, 1000.0, 1001.0, 4000.0, 4001.0]),
                "gres": st.sampled_from(["", "gpu:1", "gpu:a100:4", "gpu:5", "nvme:1"]),
                "features": st.sampled_from(["", "ib", "bigmem", "ib&bigmem", "nvme"]),
                "time_limit": st.sampled_from([float("nan"), 7200.0, 7201.0]),
            }
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_job_is_served_as_a_count_of_nodes_says(jobs: list[dict[str, Any]]) -> None:
    classes, unserved = class_demand(workload(*jobs), MACHINE)
    fits = [_fitting_nodes(job) for job in jobs]
    assert sum(row["jobs"] for row in unserved) == sum(nodes is None for nodes in fits)
    for row, kind in zip(classes, MACHINE.classes, strict=True):
        own = {*expanded(kind.names)}
        assert row["jobs"] == sum(bool(nodes and own & nodes) for nodes in fits)
        assert row["jobs_only"] == sum(bool(nodes and nodes <= own) for nodes in fits)
    assert sum(row["jobs"] for row in unserved) + max(row["jobs"] for row in classes) <= len(jobs)


def _fitting_nodes(job: dict[str, Any]) -> set[str] | None:
    """Return the nodes on which a job can run, one after the other; None: they are too few."""
    parts = [part for part in MACHINE.partitions if part.name in (job["partition"] or "cpu").split(",")]
    nodes = set()
    for part in parts:
        for kind in MACHINE.classes:
            for node in {*expanded(kind.names)} & {*expanded(part.nodes)}:
                gpus = {"": 0, "gpu:1": 1, "gpu:a100:4": 4}.get(job["gres"], 99)
                enough = kind.cores >= job["cores_per_node"] and not job["memory_mib"] > (kind.memory_mib or 0)
                featured = {*job["features"].split("&")} - {""} <= {*kind.features}
                if enough and featured and gpus <= sum(kind.gres.values()):
                    nodes.add(node)
    allowed = any(not part.limit_s or not job["time_limit"] > part.limit_s for part in parts)
    small = any(not part.most_nodes or job["nodes"] <= part.most_nodes for part in parts)
    return nodes if len(nodes) >= job["nodes"] and allowed and small else None


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n1", "n2", "n3"], "n[1-3]"),
        (["n09", "n10", "n12"], "n[09-10],n12"),
        (["a", "b1", "b1", "c"], "a,b1,b1,c"),
        (["n9", "n10"], "n[9-10]"),
        ([], ""),
    ],
)
def test_names_as_ranges(names: list[str], text: str) -> None:
    assert as_ranges(names) == text
    assert expanded(text.split(",") if text else []) == names


def test_describe_shows_the_demand_by_class(call: Callable[..., Any]) -> None:
    Path("m.yaml").write_text(YAML)
    jobs = workload({"partition": "cpu"}, {"partition": "gpu", "gres": "gpu:4"}, {"partition": "gpu", "gres": "gpu:8"})
    tb.write(jobs, "w.parquet")
    status, out, error = call("describe", "w.parquet", "--machine", "m.yaml")
    assert status == ExitCode.OK, error
    assert "no class can serve 1 job (first: 2): gres of a node: gpu:8, partition gpu has gpu:4" in out
    assert "count as" not in out + error
    rows = [line.split() for line in out.splitlines() if line.startswith(("c[1-4]", "g[1-2]"))]
    assert rows[2:] == [
        ["c[1-4]", "1", "1", "1", "0", "25", "%", "-", "0", "%"],
        ["g[1-2]", "1", "1", "1", "4", "50", "%", "50", "%", "0", "%"],
    ]
    assert call("describe", "w.parquet", "--system", "@m.yaml")[1] == out
    assert "they count as one machine" in call("describe", "w.parquet")[1]
    assert tb.describe(jobs, tb.read_machine("m.yaml"))["node_classes"][1]["jobs"] == 1
    status, _, error = call("describe", "w.parquet", "--machine", "m.yaml", "--system", "6x8")
    assert status == ExitCode.USAGE
    status, _, error = call("describe", "w.parquet", "--machine", "a", "--machine", "b")
    assert status == ExitCode.USAGE
    assert "'a' and 'b' are no files" in error
