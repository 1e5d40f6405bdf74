"""Reading of a slurm.conf: what the policy `slurm` takes, what it does not model, and which files are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from tracebed.cli import tracebed
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run
from tracebed.slurm.conf import SlurmConf, read
from tracebed.slurm.conf_lines import MAX_BYTES, hosts
from tracebed.slurm.machine import SlurmMachine, Weights

OPERATOR = Path(__file__).parents[1] / "operator_logs" / "slurm.conf"
CONF = """# a cluster
ClusterName=c
SchedulerType=sched/backfill
schedulerparameters=bf_interval=5,BF_window=2880,defer,\\
batch_sched_delay=1,preempt_youngest_first,speed=7 # not by age
SelectType=select/cons_tres
"""


def conf_of(tmp_path: Path, text: str) -> SlurmConf:
    path = tmp_path / "slurm.conf"
    path.write_text(text)
    return read(path)


def workload_of(nodes: int, path: Path) -> Path:
    table = pd.DataFrame(
        {"job_id": ["1", "2"], "submit_time": [0.0, 1.0], "run_time": [10.0, 10.0], "time_limit": [60.0, 60.0]}
    ).assign(nodes=np.array([1, 2]))
    write_workload(Workload(table, Provenance(system=System(nodes, 48))), path)
    return path


def test_no_parameter_of_the_simulated_clock_is_taken_from_a_slurm_conf(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, CONF)
    assert conf.parameters == {"bf_interval": "5", "bf_window": "2880", "batch_sched_delay": "1"}
    says = "2 settings of the scheduler are not modeled: SchedulerParameters preempt_youngest_first, "
    assert conf.differences[0] == f"{says}SchedulerParameters speed=7"


def test_no_included_file_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "c.nodes").write_text("NodeName=n[1-8] CPUs=4\n")
    conf = conf_of(tmp_path, f"{CONF}Include %c.nodes\n")
    assert conf.sizes == {4: 8}


def test_no_setting_of_an_operators_slurm_conf_is_ignored_without_a_warning() -> None:
    conf = read(OPERATOR)
    said = "\n".join(conf.differences)
    for setting in (
        *("OverSubscribe=YES (debug)", "limits of accounts and users (`sacctmgr dump CLUSTER`)"),
        "the shares of accounts and users are not in a slurm.conf",
    ):
        assert setting in said
    assert len(conf.differences) == 3
    assert conf.machine is not None
    machine = SlurmMachine.from_json(json.loads(json.dumps(conf.machine.to_json()))).cluster
    assert machine == conf.cluster
    assert [(kind.names, kind.cores, kind.gres, kind.weight) for kind in machine.kinds] == [
        ("cpu[01-48]", 48, {}, 1),
        ("gpu[01-15,20]", 64, {"gpu": 4, "gpu:a100": 4}, 10),
    ]
    assert [
        (part.name, len(machine.members(at)), part.tier, part.limit_s) for at, part in enumerate(machine.partitions)
    ] == [
        ("cpu", 48, 10, 2 * 86400),
        ("gpu", 16, 10, 86400),
        ("debug", 64, 100, 1800),
    ]
    assert machine.shared
    assert machine.memory
    assert machine.weights == Weights(age=1000, fairshare=10000, job_size=500, partition=2000)
    assert machine.kill_wait_s == 30


def test_no_key_of_a_newer_slurm_is_ignored_without_a_warning(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, f"{CONF}NodeName=n1 CPUs=4 Colour=red\nFuture=yes\n")
    assert "2 settings of an unknown kind are not modeled: Colour=red, Future=yes" in conf.differences


@pytest.mark.parametrize(
    ("select", "memory"),
    [
        ("SelectType=select/cons_tres", True),  # `scontrol show config` of Slurm 22.05 then says CR_CORE_MEMORY
        ("SelectType=select/cons_tres\nSelectTypeParameters=CR_Core", False),
        ("SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU_Memory,CR_LLN", True),
        ("SelectType=select/linear", False),
    ],
)
def test_memory_is_consumed_as_slurm_consumes_it(select: str, memory: bool, tmp_path: Path) -> None:
    nodes = "NodeName=n[1-2] CPUs=4\nPartitionName=a Nodes=n1\nPartitionName=b Nodes=n2\n"
    machine = conf_of(tmp_path, f"ClusterName=c\n{select}\n{nodes}").cluster
    assert machine is not None and machine.memory == memory


def test_a_partition_that_has_a_default_of_memory_ignores_those_of_the_cluster(tmp_path: Path) -> None:
    text = """ClusterName=c
SelectType=select/cons_tres
DefMemPerNode=700
NodeName=n[1-3] CPUs=4
PartitionName=a Nodes=n1 DefMemPerCPU=20
PartitionName=b Nodes=n2 DefMemPerNode=UNLIMITED
PartitionName=c Nodes=n3
"""
    conf = conf_of(tmp_path, text)
    assert conf.cluster is not None and not any("DefMem" in text for text in conf.differences)
    found = [(each.memory_per_core_mib, each.memory_per_node_mib) for each in conf.cluster.partitions]
    assert found == [(20, 0), (0, 0), (0, 700)]


def test_settings_of_slurm_26_05_are_known(tmp_path: Path) -> None:
    """The partitions of this version say Exclusive=NODE in place of OverSubscribe=EXCLUSIVE."""
    text = f"""{CONF}HealthCheckTimeout=60
LicenseParameters=RemoteFuzzyMatch
PowerAction=up Location=slurmctld Program="/bin/up -f"
NodeName=n[1-4] CPUs=4 SuspendTime=INFINITE
PartitionName=a Nodes=n1 Exclusive=NODE
PartitionName=b Nodes=n2 Exclusive=NO
PartitionName=c Nodes=n3 Exclusive=USER
PartitionName=d Nodes=n4 Exclusive=TOPO
"""
    conf = conf_of(tmp_path, text)
    assert conf.cluster is not None
    assert [each.exclusive for each in conf.cluster.partitions] == [True, False, False, True]
    assert not any("unknown kind" in text for text in conf.differences)
    [partitions] = [text for text in conf.differences if "by partition" in text]
    assert partitions.endswith(": Exclusive=USER (c), Exclusive=TOPO (d)")


def test_weights_without_effect_give_no_warning(tmp_path: Path) -> None:
    text = "SelectType=select/linear\nPriorityWeightAge=5\nPriorityType=priority/{}\n"
    assert conf_of(tmp_path, text.format("basic")).differences == ()
    assert "PriorityWeightAge=5" in "".join(conf_of(tmp_path, text.format("multifactor")).differences)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x7fELF\0\0\1" * 100, "slurm.conf: binary data, not a slurm.conf"),
        (b"<!DOCTYPE html>\n<html><body>Slurm</body></html>\n", "slurm.conf:1: '<!DOCTYPE html>' is not KEY=VALUE"),
        (b"# log\n\nname = value\n", "slurm.conf:3: unknown key, such as 'name=value': not a slurm.conf"),
        (b"ClusterName=a\nname=b\nNodeName=n1\nkind=c\n", "slurm.conf:2: unknown keys, such as 'name=b'"),
        (b"PriorityWeightAge=1 PriorityWeightQOS=2\n", "slurm.conf:1: 'PriorityWeightQOS' is a second setting"),
        (b"SlurmUser=\n", "slurm.conf:1: 'SlurmUser=' is not KEY=VALUE"),
        (b"ClusterName=a\\\n\nhello\n", "slurm.conf:3: 'hello' is not KEY=VALUE"),
        (b"# nothing but a comment\n", "slurm.conf: contains no settings"),
        (b"Include slurm.conf\n", "slurm.conf:1: more than 200 files are included"),
        (b"ClusterName=a\ninclude nodes.conf\n", "slurm.conf:2: the included file"),
        (b"#" * (MAX_BYTES + 1), "slurm.conf: is larger than 4 MiB"),
        (b"NodeName=n1 CPUs=two\n", "slurm.conf:1: CPUs=two is not a number"),
        (b"NodeName=n[1-2]\nNodeName=n2\n", "slurm.conf:2: node n2 is also in"),
        (b"NodeName=ALL CPUs=2\n", "slurm.conf:1: ALL is not the name of a node"),
        (b"ClusterName=a\nSchedulerParameters=bf_interval=x\n", "slurm.conf:2: slurm.bf_interval cannot be 'x'"),
    ],
)
def test_no_other_file_is_taken_for_a_slurm_conf(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read(path)
    assert says in str(error.value)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/null"])
def test_no_device_is_read_to_its_end(device: str) -> None:
    with pytest.raises(InputError):
        read(Path(device))


def test_no_node_of_another_machine_is_used(tmp_path: Path) -> None:
    workload = workload_of(48, tmp_path / "w.parquet")
    arguments = ["simulate", str(workload), "--policy", "slurm", "-P", f"@{OPERATOR}", "-o"]
    result = CliRunner().invoke(tracebed, [*arguments, str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    run = Run.load(tmp_path / "run")
    assert (run.total_nodes, run.info.nodes[48]) == (64, NodeFacts("gpu01", 64))
    held = run.allocations
    assert (held["node"] + held["count"]).max() <= 48  # not those of weight 10
    result = CliRunner().invoke(tracebed, [*arguments, str(tmp_path / "other"), "--nodes", "48"])
    assert "the machine has 64 nodes, but 48 are given" in str(result.exception)
    result = CliRunner().invoke(tracebed, [*arguments, str(tmp_path / "other"), "--machine", "emulated-64x48"])
    assert "both -P @slurm.conf and another machine are given" in str(result.exception)


@pytest.mark.parametrize(
    ("layer", "noted"), [([], False), (["-P", "resizes=none"], False), (["-P", "resizes=dmr"], True)]
)
def test_settings_that_do_not_suit_a_layer_are_noted(tmp_path: Path, layer: list[str], noted: bool) -> None:
    workload, conf = workload_of(4, tmp_path / "w.parquet"), tmp_path / "slurm.conf"
    conf.write_text(
        "AccountingStorageType=accounting_storage/slurmdbd\nNodeName=n[1-4] CPUs=64\nPartitionName=p Nodes=ALL\n"
    )
    arguments = ["simulate", str(workload), "--policy", "slurm", "-P", f"@{conf}", *layer, "--over-limit", "kill"]
    result = CliRunner().invoke(tracebed, [*arguments, "-o", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert ("lacks SchedulerParameters=permit_job_expansion" in result.output) == noted
    assert "AccountingStorageType" not in result.output


def test_no_testbed_has_the_machine_of_a_slurm_conf(tmp_path: Path) -> None:
    workload = workload_of(4, tmp_path / "w.parquet")
    options = ["--policy", "slurm", "-P", f"@{OPERATOR}", "--inventory", "emulated-4", "-o", str(tmp_path / "run")]
    result = CliRunner().invoke(tracebed, ["replay", str(workload), *options])
    assert "a cluster of a slurm.conf can be simulated only" in str(result.exception)


def test_no_later_option_is_lost_and_no_warning_is_repeated(tmp_path: Path) -> None:
    workload, output = workload_of(4, tmp_path / "w.parquet"), tmp_path / "run"
    conf_of(tmp_path, CONF)
    options = ["-P", f"@{tmp_path / 'slurm.conf'}", "-P", "bf_resolution=1", "--perturb", "2", "-o", str(output)]
    result = CliRunner().invoke(tracebed, ["simulate", str(workload), "--policy", "slurm", *options])
    assert result.exit_code == 0, result.output
    assert result.output.count("select/linear is assumed") == 1
    parameters = Run.load(output).info.policy_parameters
    assert (parameters["bf_interval"], parameters["bf_resolution"], parameters["batch_sched_delay"]) == (5, 1, 1)


@pytest.mark.parametrize(
    ("names", "count"),
    [("n1", 1), ("n[01-16,20],login", 18), ("r[1-2]n[1-3]", 6), ("a,b,c", 3), ("n[3-1]", 0), ("n[x]", 0), ("", 0)],
)
def test_names_of_hosts_are_counted(names: str, count: int) -> None:
    assert hosts(names) == count


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="needs scontrol")
def test_no_line_is_read_that_slurm_rejects_and_none_is_rejected_that_slurm_reads(tmp_path: Path) -> None:
    base = "ClusterName=c\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=ALL\n"

    def accepted(number: int, text: str) -> bool:
        path = tmp_path / f"{number}.conf"
        path.write_text(base + text)
        environment = {**os.environ, "SLURM_CONF": str(path)}
        done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, env=environment)
        return "fatal: " not in done.stderr + done.stdout

    (tmp_path / "more.conf").write_text("TmpFS=/x\n")
    texts = (
        *("TmpFS=/x # a \\\nhello\n", "TmpFS = /x\n", "tmpfs=/x\n", "TmpFS=/x\\\n/y\n", "TmpFS=/x \\ \ny\n"),
        *('JobCompLoc="a b"\n', "JobCompLoc=a b\n", "include more.conf\n", "  include more.conf\n", "TmpFS=\n"),
        *("NodeName = n2 CPUs = 2\n", "NodeName=n2 CPUs=2 Foo=1\n", "PriorityWeightAge=1\nPriorityWeightAge=2\n"),
        *("NodeName=n2 CPUs=two\n", "NodeName=ALL\n", "NodeName=n2 \\  \n CPUs=4\n", "NodeName=n2 \\\n# x\nCPUs=4\n"),
        *("TmpFS=a\\#b\n", "Foo=1\n", "hello\n", "PartitionName=q Nodes=n1 \\\n MaxTime=5\n", "TmpFS+=/x\n"),
    )
    with ThreadPoolExecutor(len(texts)) as pool:  # each call waits 5 s for a controller
        slurm_reads = [*pool.map(accepted, range(len(texts)), texts)]
    for text, expected in zip(texts, slurm_reads, strict=True):
        try:
            read_is = "unknown" not in "".join(conf_of(tmp_path, base + text).differences)
        except InputError:
            read_is = False
        assert read_is == expected, text


def test_different_threads_of_cores_are_named(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    nodes = "NodeName=a CPUs=8 ThreadsPerCore=2\nNodeName=b CPUs=4 ThreadsPerCore={}\nPartitionName=x Nodes=ALL\n"
    path.write_text(f"SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n{nodes.format(1)}")
    assert any(each.startswith("ThreadsPerCore=1, 2: ") for each in read(path).differences)
    path.write_text(f"SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n{nodes.format(2)}")
    assert not any("ThreadsPerCore" in each for each in read(path).differences)


@pytest.mark.parametrize(
    ("settings", "cpus", "cores"),
    [
        ("CPUs=4", 4, 4),
        ("CPUs=0", 1, 1),
        ("Sockets=2 CoresPerSocket=12 ThreadsPerCore=2", 48, 24),
        ("CPUs=24 Sockets=2 CoresPerSocket=12 ThreadsPerCore=2", 24, 24),
        ("CPUs=20 Sockets=2 CoresPerSocket=12 ThreadsPerCore=2", 48, 24),
        ("Boards=2 SocketsPerBoard=2 Sockets=1 CoresPerSocket=3", 12, 12),
        ("CPUs=64 CoresPerSocket=16 ThreadsPerCore=2", 64, 32),
        ("Procs=8 ThreadsPerCore=2 CoreSpecCount=9", 8, 3),
    ],
)
def test_the_cpus_of_a_node_are_those_that_slurm_takes(settings: str, cpus: int, cores: int, tmp_path: Path) -> None:
    conf = conf_of(tmp_path, f"{CONF}PriorityType=priority/basic\nNodeName=n[1-4] {settings}\n")
    assert conf.sizes == {cpus: 4}
    assert conf.cluster is not None
    assert conf.cluster.kinds[0].cores == cores


def test_a_later_line_of_a_partition_and_another_name_of_features_replace_the_earlier_ones(tmp_path: Path) -> None:
    nodes = "NodeName=DEFAULT Feature=old CPUs=2\nNodeName=n[1-2] Features=new\nNodeName=n3\n"
    conf = conf_of(tmp_path, f"{CONF}{nodes}PartitionName=p Nodes=n1 MaxTime=5\nPartitionName=p Nodes=ALL\n")
    machine = conf.cluster
    assert machine is not None
    assert [kind.features for kind in machine.kinds] == [("new",), ("old",)]
    assert [(each.name, each.limit_s, machine.members(0)) for each in machine.partitions] == [("p", 0, [0, 1, 2])]


def test_a_partition_without_nodes_runs_no_job(tmp_path: Path) -> None:
    conf_of(tmp_path, f"{CONF}NodeName=n[1-4] CPUs=48\nPartitionName=p Default=YES\nPartitionName=q Nodes=ALL\n")
    table = pd.DataFrame({"job_id": ["1", "2"], "submit_time": [0.0, 1.0], "run_time": [10.0, 10.0], "nodes": [1, 1]})
    write_workload(Workload(table.assign(partition=["p", "q"]), Provenance()), tmp_path / "w.parquet")
    options = ["--policy", "slurm", "-P", f"@{tmp_path / 'slurm.conf'}", "-o", str(tmp_path / "run")]
    result = CliRunner().invoke(tracebed, ["simulate", str(tmp_path / "w.parquet"), *options])
    assert result.exit_code == 0, result.output
    jobs = Run.load(tmp_path / "run").jobs
    assert jobs["state"].tolist() == ["rejected", "completed"]
    assert jobs["reason"].tolist()[0] == "partition p has no nodes"


def test_the_nodes_of_a_slurm_conf_are_the_machine_of_a_workload_without_one(tmp_path: Path) -> None:
    """Also equal nodes in one partition."""
    conf_of(tmp_path, "SelectType=select/linear\nPriorityType=priority/basic\nNodeName=n[1-8] CPUs=2\n")
    table = pd.DataFrame({"job_id": ["1"], "submit_time": [0.0], "run_time": [10.0], "nodes": [1]})
    write_workload(Workload(table, Provenance()), tmp_path / "w.parquet")
    options = ["--policy", "slurm", "-P", f"@{tmp_path / 'slurm.conf'}", "-o", str(tmp_path / "run")]
    result = CliRunner().invoke(tracebed, ["simulate", str(tmp_path / "w.parquet"), *options])
    assert result.exit_code == 0, result.output
    assert Run.load(tmp_path / "run").total_nodes == 8


def test_a_speed_with_equal_nodes_needs_their_number_and_not_another_speed(tmp_path: Path) -> None:
    """The hint says --nodes, with which the run has the intervals of Slurm in wall seconds."""
    conf, log = tmp_path / "slurm.conf", tmp_path / "w.csv"
    text = "SelectType=select/linear\nPriorityType=priority/basic\nNodeName=n[1-8] CPUs=4\n"
    conf.write_text(f"{text}PartitionName=p Nodes=ALL Default=YES\n")
    log.write_text("job_id,submit_time,run_time,time_limit,nodes\n1,0,100,600,2\n2,5,100,600,3\n3,6,50,600,1\n")
    options = [
        "simulate",
        str(log),
        "--policy",
        "slurm",
        "-P",
        f"@{conf}",
        "--speed",
        "20",
        "-o",
        str(tmp_path / "run"),
    ]
    error = CliRunner().invoke(tracebed, options).exception
    assert isinstance(error, InputError)
    assert error.hint == "give --nodes 8: equal nodes in one partition need no cluster"
    assert CliRunner().invoke(tracebed, [*options, "--nodes", "8"]).exit_code == 0
    assert Run.load(tmp_path / "run").jobs["start"].tolist() == [0.0, 10.0, 10.0]  # a pass after 0.5 wall seconds
    conf.write_text(f"{conf.read_text()}PartitionName=q Nodes=n1\n")
    error = CliRunner().invoke(tracebed, [*options, "--replace"]).exception
    assert isinstance(error, InputError)
    assert error.hint == "without the speed, the intervals of Slurm last 20 times as long as in the run"
