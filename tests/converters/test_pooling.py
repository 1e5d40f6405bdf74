"""Logs with partitions, GPUs and shared nodes, as an operator exports them: what is counted, refused, and described."""

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
from tracebed.converters.formats.format import FORMATS, OF_LOGS, named
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.workload import Workload
from tracebed.ground.errors import ExitCode, InputError
from tracebed.orchestrator.run import Run
from tracebed.slurm.conf import read_machine

LOG = str(Path(__file__).parents[1] / "operator_logs" / "sacct.txt")
POOLED = (
    "jobs in 3 partitions (cpu 5, gpu 2, debug 1), which count as jobs of one machine of equal nodes "
    "(clean --only partition=NAME, or simulate --machine FILE) (8 times)",
    "jobs with GPUs, which count as jobs of nodes without GPUs "
    "(clean: drop_gpu, --only partition=NAME, or simulate --machine FILE) (2 times)",
    "jobs on a part of a node, which count as jobs of the whole node (convert --by core) (4 times)",
    "jobs with more than the 48 cores per node of the machine (1 time)",
)


def test_no_partitions_gpus_or_shared_nodes_are_pooled_in_silence(call: Callable[..., Any]) -> None:
    status, _, error = call("clean", LOG, "--recipe", "sacct", "--system", "71x48", "-o", "w.parquet")
    assert status == ExitCode.OK
    for warning in POOLED:
        assert warning in error
    status, out, _ = call("describe", "w.parquet")
    assert status == ExitCode.OK
    for row in ("cpu 5, gpu 2, debug 1; they count as one machine", "2 jobs; they count as jobs without GPUs"):
        assert row in out
    assert "4 jobs on parts of nodes count as whole nodes" in out
    status, _, error = call("convert", LOG, "-o", "c.parquet")
    assert "jobs in 3 partitions (cpu 7, gpu 2, debug 1)" in error
    assert "jobs with GPUs" in error


def test_nothing_is_pooled_on_a_machine_with_partitions(call: Callable[..., Any]) -> None:
    parts = ", ".join(f"{{name: {name}}}" for name in ("cpu", "gpu", "debug"))
    kind = "{count: 71, cores: 128, memory_mib: 1000000, gres: {gpu: 8}}"
    Path("m.yaml").write_text(f"classes: [{kind}]\npartitions: [{parts}]\n")
    for log in (LOG, "w.parquet"):
        as_it_is = ["--policy", "slurm", "--machine", "m.yaml", "-o", f"run-{log[-3:]}"]
        status, _, error = call("simulate", log, *as_it_is)
        assert status == ExitCode.OK, error
        assert "count as" not in error
        call("clean", LOG, "--recipe", "sacct", "-o", "w.parquet", "--replace")
    error = call("simulate", "w.parquet", "--policy", "easy", "--nodes", "71", "-o", "pooled")[2]
    assert error.count("jobs in 3 partitions") == 1
    out = call("describe", LOG, "--machine", "m.yaml")[1]
    assert "count as" not in out
    assert "partitions        cpu" in out


def test_formats_of_logs_are_those_with_records_of_a_machine() -> None:
    logs = {name for name in FORMATS.names() if named(name).read_log is not None}
    assert logs | {"swf"} == OF_LOGS


@pytest.mark.parametrize(
    "command",
    [
        ["clean", LOG, "--recipe", "sacct", "--system", "64x48"],
        ["convert", LOG, "--system", "64x48"],
        ["convert", LOG, "--system", "64x48", "--to", "run"],
    ],
)
def test_no_machine_is_smaller_than_the_nodes_held_at_once(command: list[str], call: Callable[..., Any]) -> None:
    status, _, error = call(*command, "-o", "out.parquet")
    assert status == ExitCode.USAGE
    assert not Path("out.parquet").exists()
    last = error.splitlines()[-1]
    assert "held up to 71 nodes at once, but the machine has 64: the log has jobs of 3 partitions" in last
    for remedy in ("--only partition=NAME", "--by core --system 3072x1", "--system 71x48"):
        assert remedy in last


@pytest.mark.parametrize(
    ("remedy", "jobs"),
    [
        (["--only", "partition=cpu", "--system", "64x48"], 5),
        (["--by", "core", "--system", "3072x1"], 8),
        (["--system", "71x48"], 8),
    ],
)
def test_no_remedy_is_named_that_does_not_work(remedy: list[str], jobs: int, call: Callable[..., Any]) -> None:
    status, _, error = call("clean", LOG, "--recipe", "sacct", *remedy, "-o", "w.parquet")
    assert status == ExitCode.OK, error
    assert "nodes held at once" not in error
    assert len(read_workload("w.parquet")) == jobs
    status, _, error = call("convert", "w.parquet", "--to", "run", "-o", "run")
    assert status == ExitCode.OK, error
    assert Run.load(Path("run")).total_nodes == int(remedy[-1].split("x")[0])


SMALL = """JobID|User|Partition|State|Submit|Start|End|NNodes|NCPUS|Timelimit
1|a|{}|COMPLETED|2024-01-01T00:00:00|2024-01-01T00:00:10|2024-01-01T01:00:00|2|8|02:00:00
2|b|{}|COMPLETED|2024-01-01T00:01:00|2024-01-01T00:01:10|2024-01-01T01:00:00|1|{}|02:00:00
"""


@pytest.mark.parametrize(
    ("partitions", "cores", "remedies"),
    [
        (("cpu", "cpu"), 4, {"--system 3x4"}),  # 12 cores were held at once, and the machine has 8
        (("cpu", "gpu"), 4, {"--system 3x4", "--only"}),
        (("gpu", "gpu"), 1, {"--system 3x4"}),  # 9 of 8
    ],
)
def test_no_remedy_is_named_that_is_refused_in_turn(
    partitions: tuple[str, str], cores: int, remedies: set[str], call: Callable[..., Any]
) -> None:
    Path("log.txt").write_text(SMALL.format(*partitions, cores))
    status, _, error = call("convert", "log.txt", "--from", "sacct", "--system", "2x4", "-o", "w.parquet")
    assert status == ExitCode.USAGE
    named = {remedy for remedy in ("--by core", "--only", "--system 3x4") if remedy in error.splitlines()[-1]}
    assert named == remedies


def test_no_partition_is_a_remedy_if_each_is_too_large(call: Callable[..., Any]) -> None:
    more = "3|b|{0}|COMPLETED|2024-01-01T00:01:00|2024-01-01T00:01:10|2024-01-01T01:00:00|3|12|02:00:00\n"
    Path("log.txt").write_text(SMALL.format("a", "a", 4) + more.format("b"))
    status, _, error = call("convert", "log.txt", "--from", "sacct", "--system", "2x4", "-o", "w.parquet")
    assert status == ExitCode.USAGE
    assert "jobs of 2 partitions" in error
    assert "keep a partition" not in error


def test_no_shared_node_is_a_whole_one_by_core(call: Callable[..., Any]) -> None:
    status, _, _ = call("convert", LOG, "--by", "core", "-o", "w.parquet")
    assert status == ExitCode.OK
    cores, nodes = read_workload("w.parquet"), read_workload(LOG)
    assert set(cores.ints("cores_per_node")) == {1}
    np.testing.assert_array_equal(cores.ints("nodes"), nodes.ints("nodes") * nodes.ints("cores_per_node"))
    memory = nodes.floats("memory_mib") * nodes.ints("nodes")
    np.testing.assert_allclose(cores.floats("memory_mib") * cores.ints("nodes"), memory)


def test_an_swf_is_not_pooled_in_silence(call: Callable[..., Any]) -> None:
    line = "{} {} 0 100 2 -1 -1 2 200 -1 1 1 1 1 1 {} -1 -1\n"
    text = "; MaxNodes: 4\n; MaxProcs: 16\n" + "".join(line.format(i, i, 1 + i % 2) for i in range(1, 7))
    Path("w.swf").write_text(text)
    status, _, error = call("convert", "w.swf", "-o", "w.parquet")
    assert status == ExitCode.OK
    for warning in ("jobs in 2 partitions (", "up to 6 nodes held at once, more than the 4", "part of a node"):
        assert warning in error
    status, _, error = call("convert", "w.swf", "--to", "run", "-o", "run")
    assert status == ExitCode.USAGE
    assert "--by core --system 16x1" in error
    assert call("convert", "w.swf", "--by", "core", "--to", "run", "-o", "run")[0] == ExitCode.OK


@pytest.mark.parametrize("number", ["0x10", "0X10", " 0x1F", "-0x1"])
def test_no_hexadecimal_number_is_read(number: str, call: Callable[..., Any]) -> None:
    Path("w.csv").write_text(f"job_id,submit_time,run_time,nodes\n0x1,0,5,1\n\n2,0,5,{number}\n")
    status, _, error = call("convert", "w.csv", "-o", "w.parquet")
    assert status == ExitCode.USAGE
    assert "w.csv:4: nodes" in error
    Path("w.csv").write_text("job_id,submit_time,run_time,nodes\n0x1,0,5,1\n")
    assert call("convert", "w.csv", "-o", "w.parquet")[0] == ExitCode.OK
    assert list(read_workload("w.parquet").column("job_id")) == ["0x1"]


@pytest.mark.parametrize("number", ["1_0", "٤"])
def test_no_number_of_python_alone_is_read_from_an_swf(number: str, call: Callable[..., Any]) -> None:
    Path("w.swf").write_text(f"1 0 0 {number} 1 -1 -1 1 20 -1 1 1 1 1 1 1 -1 -1\n", encoding="utf-8")
    status, _, error = call("convert", "w.swf", "-o", "w.parquet")
    assert status == ExitCode.USAGE
    assert "w.swf:1: field 4" in error


def test_no_time_zone_of_a_log_is_assumed_in_silence(call: Callable[..., Any]) -> None:
    says = "records with times without a time zone, taken as UTC (convert --time-zone ZONE sets the zone) (10 times)"
    assert says in call("convert", LOG, "-o", "w.parquet")[2]
    assert read_workload("w.parquet").provenance.time_zone == "UTC"
    assert "UTC" not in call("convert", LOG, "--time-zone", "Europe/Berlin", "--replace", "-o", "w.parquet")[2]
    assert read_workload("w.parquet").provenance.time_zone == "Europe/Berlin"
    status, _, error = call("convert", LOG, "--time-zone", "abc", "--replace", "-o", "w.parquet")
    assert (status, "unknown time zone 'abc'" in error) == (ExitCode.USAGE, True)


def test_no_machine_is_called_not_installed(call: Callable[..., Any]) -> None:
    """Machines of a log are not installed."""
    Path("log.txt").write_text(SMALL.format("a", "a", 4))
    status, _, error = call("describe", "log.txt", "--from", "sacct", "--machine", "x")
    assert status == ExitCode.USAGE
    assert "log.txt: the records name no machine (leave out the name of the machine)" in error


def test_no_shared_node_is_a_whole_one_in_a_simulation_in_silence(call: Callable[..., Any]) -> None:
    assert call("clean", LOG, "--recipe", "sacct", "-o", "w.parquet")[0] == ExitCode.OK
    status, _, error = call("simulate", "w.parquet", "--policy", "easy", "--nodes", "71", "-o", "run")
    assert status == ExitCode.OK, error
    for warning in ("jobs in 3 partitions (", "jobs with GPUs", "jobs on a part of a node, which count as jobs of the"):
        assert warning in error
    assert call("clean", LOG, "--recipe", "sacct", "--by", "core", "--only", "partition=cpu", "-o", "c.parquet")[0] == 0
    error = call("simulate", "c.parquet", "--policy", "easy", "--nodes", "3072", "-o", "cores")[2]
    assert "count as" not in error


def test_partitions_are_kept_by_name(call: Callable[..., Any]) -> None:
    status, _, error = call("clean", LOG, "--recipe", "slurm", "--only", "partition=gpu,debug", "-o", "w.csv")
    assert status == ExitCode.OK, error
    assert set(read_workload("w.csv").column("partition")) == {"gpu", "debug"}
    status, _, error = call("clean", LOG, "--recipe", "sacct", "--only", "partition=long", "-o", "x.csv")
    assert (status, "no job has the partition 'long' (one of " in error) == (ExitCode.USAGE, True)
    Path("short.yaml").write_text("steps: [{drop_short: {shorter: 1}}, unique_ids]")
    assert call("clean", LOG, "--recipe", "short.yaml", "--only", "partition=gpu", "-o", "y.csv")[0] == ExitCode.OK
    assert set(read_workload("y.csv").column("partition")) == {"gpu"}
    Path("gpu.yaml").write_text("steps: [{keep_partitions: {partitions: [gpu]}}, unique_ids]")
    status, _, error = call("clean", LOG, "--recipe", "gpu.yaml", "--only", "partition=cpu", "-o", "z.csv")
    assert (status, "already keeps some partitions" in error) == (ExitCode.USAGE, True)
    status, _, error = call("clean", LOG, "--recipe", "sacct", "--only", "user=ann", "-o", "z.csv")
    assert (status, "partition, queue" in error) == (ExitCode.USAGE, True)
    assert call("clean", LOG, "--recipe", "slurm", "--only", "queue=normal", "-o", "q.csv")[0] == ExitCode.OK


# Descriptions of partitions and of classes of nodes, without and with the slurm.conf of the cluster.

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
    has = {"names": "g1", "nodes": 1, "cpus": 4, "memory_mib": 1000, "gres": {"gpu": 2}, "features": []}
    assert facts["node_classes"][1].items() >= (has | {"partitions": ["gpu", "both"]}).items()
    out = call("describe", "w.parquet", "--system", "@slurm.conf")[1]
    assert "demand above 100 %: the jobs of partition gpu need 720 % of its GPUs" in out
    assert "demand above 100 %: the jobs of all partitions need 218 % of its CPUs" in out
    assert "no class can serve 1 job (first: 4): partition old is not on the machine" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("c[1-2]", "g1"))] == ["c[1-2]", "g1"] * 2
    assert "demand" not in call("describe", "w.parquet")[1]
    assert "3.625; more than the system can do" in call("describe", "w.parquet", "--system", "4x4")[1]


def test_a_file_without_nodes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("ClusterName=x\nSchedulerType=sched/backfill\n")
    with pytest.raises(InputError, match="names no nodes with a known number of CPUs"):
        read_machine(path)
