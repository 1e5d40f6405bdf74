"""Descriptions of partitions and of classes of nodes, without and with the slurm.conf of the cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tracebed.converters.description import ALL_PARTITIONS, Capacity, gpus_of, partition_facts
from tracebed.converters.workload import Workload
from tracebed.ground.errors import ExitCode, InputError
from tracebed.slurm.conf import cluster_of, node_classes

CONF = """NodeName=c[1-2] CPUs=8 Sockets=1 CoresPerSocket=4 ThreadsPerCore=2 Feature=ib
NodeName=g1 CPUs=4 Gres=gpu:a100:2 RealMemory=1000
PartitionName=cpu Nodes=c[1-2] Default=YES
PartitionName=gpu Nodes=g1
PartitionName=both Nodes=ALL
"""


def jobs(**columns: Any) -> Workload:
    table = {
        "job_id": ["1", "2", "3", "4"],
        "submit_time": [0.0, 100.0, 200.0, 1000.0],
        "run_time": [3600.0, 7200.0, np.nan, 100.0],
        "nodes": [2, 1, 1, 1],
        "cores_per_node": [4, 2, 1, 4],
        "partition": ["cpu", "gpu", "gpu", "cpu"],
        "logged_start": [50.0, 100.0, np.nan, 1030.0],
    }
    return Workload(pd.DataFrame(table | columns))


def test_each_partition_has_a_demand_and_waits() -> None:
    sizes = {"cpu": Capacity(2, 8, 0), "gpu": Capacity(1, 4, 2), ALL_PARTITIONS: Capacity(3, 12, 2)}
    cpu, gpu, every = partition_facts(jobs(extra_gpus=[np.nan, 2.0, 1.0, 0.0]), sizes)
    assert [row["partition"] for row in (cpu, gpu, every)] == ["cpu", "gpu", ALL_PARTITIONS]
    assert (cpu["jobs"], gpu["jobs"], every["jobs"]) == (2, 2, 4)
    assert (cpu["gpu_jobs"], gpu["gpu_jobs"]) == (0, 2)
    assert cpu["core_hours"] == pytest.approx(8 + 400 / 3600)
    assert cpu["core_demand"] == pytest.approx((8 * 3600 + 400) / (8 * 1000))
    assert (gpu["core_hours"], gpu["gpu_hours"]) == (4.0, 4.0)
    assert gpu["gpu_demand"] == pytest.approx(2 * 7200 / (2 * 1000))
    assert every["core_demand"] == pytest.approx((8 * 3600 + 400 + 2 * 7200) / (12 * 1000))
    assert cpu["wait_s"]["mean"] == 40.0
    assert gpu["wait_s"]["mean"] == 0.0
    assert cpu["largest_job_nodes"] == 2


def test_a_share_of_a_node_is_no_whole_node() -> None:
    cpu, *_ = partition_facts(jobs(extra_node_share=[0.5, np.nan, np.nan, np.nan]))
    assert cpu["core_hours"] == pytest.approx(4 + 400 / 3600)


def test_no_demand_is_known_without_sizes() -> None:
    for row in partition_facts(jobs()):
        assert row["core_demand"] is None and row["gpu_demand"] is None and row["nodes"] is None


def test_gpus_are_those_of_the_log_or_of_the_request() -> None:
    assert gpus_of(jobs(extra_gpus=[np.nan, 2.0, 1.0, 0.0])).tolist() == [0.0, 2.0, 1.0, 0.0]
    assert gpus_of(jobs(gres=["gpu:2,nvme:1", "gpu:a100:1", "gpu", "nvme:4"])).tolist() == [4.0, 1.0, 1.0, 0.0]
    assert gpus_of(jobs()).tolist() == [0.0] * 4


def test_sizes_and_classes_come_from_the_slurm_conf(call: Callable[..., Any]) -> None:
    Path("slurm.conf").write_text(CONF)
    tb.write(jobs(partition=["cpu", "gpu", "gpu", "old"], extra_gpus=[0.0, 2.0, 1.0, 0.0]), "w.parquet")
    status, out, _ = call("describe", "w.parquet", "--system", "@slurm.conf", "--json")
    assert status == ExitCode.OK
    facts = json.loads(out)
    rows = {row["partition"]: row for row in facts["by_partition"]}
    assert (rows["cpu"]["nodes"], rows["cpu"]["cores"], rows["cpu"]["gpus"]) == (2, 16, 0)
    assert (rows[ALL_PARTITIONS]["nodes"], rows[ALL_PARTITIONS]["cores"], rows[ALL_PARTITIONS]["gpus"]) == (3, 20, 2)
    assert rows["old"]["nodes"] is None
    assert facts["node_classes"][1] == {
        **{"names": "g1", "nodes": 1, "cpus": 4, "memory_mib": 1000, "gres": {"gpu": 2}, "features": []},
        "partitions": ["gpu", "both"],
    }
    out = call("describe", "w.parquet", "--system", "@slurm.conf")[1]
    assert "demand above 100 %: the jobs of partition gpu need 720 % of its GPUs" in out
    assert "demand above 100 %: the jobs of all partitions need 218 % of its CPUs" in out
    assert "partition old is not in the slurm.conf" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("c[1-2]", "g1"))] == ["c[1-2]", "g1"]
    assert "demand" not in call("describe", "w.parquet")[1]
    assert "3.625; more than the system can do" in call("describe", "w.parquet", "--system", "4x4")[1]


def test_a_file_without_nodes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("ClusterName=x\nSchedulerType=sched/backfill\n")
    with pytest.raises(InputError, match="names no nodes with a known number of CPUs"):
        cluster_of(path)
    path.write_text(CONF)
    assert [kind["cpus"] for kind in node_classes(cluster_of(path))] == [8, 4]
