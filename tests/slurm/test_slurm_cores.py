"""The nodes and cores that Slurm gives to jobs: unlike cores, whole sockets, least loaded nodes, generic resources.

What is expected is what a real Slurm 22.05.8 did with the same settings and demands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.oracles import slurm_cases
from tracebed.converters.formats.reading import read_workload
from tracebed.ground.errors import InputError
from tracebed.ground.host_lists import host_names
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.slurm.conf import read
from tracebed.slurm.simulation import engine
from tracebed.slurm.state import read_folder, state_of

pytestmark = pytest.mark.filterwarnings("ignore::tracebed.ground.errors.Tolerated")
HEAD = """SelectType=select/cons_tres
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5
PriorityType=priority/basic
GresTypes=bw,gpu
SelectTypeParameters={}
"""
ALL = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE\n"
UNLIKE = "NodeName=n1 CoresPerSocket=2 ThreadsPerCore=2\nNodeName=n2 CoresPerSocket=4\n"
SOCKETS = "NodeName=n[1-2] Sockets=2 CoresPerSocket=4 ThreadsPerCore=1\n"
Held = dict[str, dict[str, int]]


@pytest.fixture(autouse=True)
def _as_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare each compiled simulation with the one in Python."""
    monkeypatch.setattr(engine, "simulate", slurm_cases.both)


def log(folder: Path, *jobs: tuple[int, str]) -> tb.Workload:
    """Return a log of sacct: CPUs and further trackable resources of jobs of one node, one job each second."""
    rows = [
        f"{number}|u|{more.partition(' ')[2] or 'all'}|2024-03-01T08:00:{number:02}|2024-03-01T08:00:{number:02}|"
        f"2024-03-01T08:02:00|00:02:00|00:10:00|COMPLETED|1|{cpus}|cpu={cpus},node=1{more.partition(' ')[0]}"
        for number, (cpus, more) in enumerate(jobs, 1)
    ]
    head = "JobID|User|Partition|Submit|Start|End|Elapsed|Timelimit|State|NNodes|NCPUS|AllocTRES"
    path = folder / "log.txt"
    path.write_text("\n".join([head, *rows]) + "\n")
    return read_workload(path)


def tasks(*cores: int, **columns: Any) -> tb.Workload:
    """Return jobs of some cores that may lie on any number of nodes, one job each second."""
    count = len(cores)
    table = {"job_id": [str(number) for number in range(1, count + 1)], "submit_time": np.arange(count) * 1.0}
    table |= {"run_time": 120.0, "time_limit": 600.0, "nodes": 1, "cores_per_node": cores, "fewest_nodes": 1}
    return tb.Workload(pd.DataFrame(table | {"spread": 1} | columns))


def simulated(folder: Path, workload: tb.Workload, conf: str) -> Run:
    path = folder / "slurm.conf"
    path.write_text(conf)
    return predict(workload, read(path).machine, "slurm")


def held(run: Run) -> Held:
    """Return the cores of each node that each job held which started within 10 s."""
    table, names = run.table("allocations"), [node.name for node in run.info.nodes]
    early = set(run.jobs["job_id"][run.jobs["start"] < 10.0])
    found: Held = {}
    columns = [table[name].tolist() for name in ("job_id", "node", "count", "cores")]
    for job, first, count, cores in zip(*columns, strict=True):
        if job in early:
            found.setdefault(job, {}).update(dict.fromkeys(names[first : first + count], cores))
    return found


def test_the_threads_of_a_core_are_those_of_its_node(tmp_path: Path) -> None:
    conf = HEAD.format("CR_Core") + UNLIKE + ALL
    assert held(simulated(tmp_path, log(tmp_path, (4, ""), (4, "")), conf)) == {"1": {"n1": 4}, "2": {"n2": 4}}
    one = simulated(tmp_path, log(tmp_path, *[(1, "")] * 6), conf)  # a job holds both CPUs of a core of n1
    assert held(one) == {**{key: {"n1": 2} for key in "12"}, **{key: {"n2": 1} for key in "3456"}}
    cores = simulated(tmp_path, tasks(3, 2), conf)  # cores are cores, whatever their threads
    assert held(cores) == {"1": {"n2": 3}, "2": {"n1": 4}}
    spread = log(tmp_path, (6, ""))
    spread = tb.Workload(spread.table.assign(spread=1, fewest_nodes=1), spread.provenance)
    assert held(simulated(tmp_path, spread, conf)) == {"1": {"n1": 4, "n2": 2}}


def test_cpus_that_are_cores_and_cores_of_the_system_do_not_count_as_threads(tmp_path: Path) -> None:
    nodes = "NodeName=DEFAULT Sockets=1 CoresPerSocket=4 ThreadsPerCore=2\n"
    nodes += "NodeName=n1 CPUs=4\nNodeName=n2 CoreSpecCount=1\n"
    run = simulated(tmp_path, log(tmp_path, *[(1, "")] * 7, (1, "")), HEAD.format("CR_Core") + nodes + ALL)
    assert [(node.name, node.cores) for node in run.info.nodes] == [("n1", 4), ("n2", 6)]
    assert held(run) == {**{key: {"n1": 1} for key in "1234"}, **{key: {"n2": 2} for key in "567"}}


def test_memory_of_each_cpu_is_that_of_all_cpus_of_a_core(tmp_path: Path) -> None:
    nodes = UNLIKE.replace("\n", " RealMemory=700\n")
    conf = HEAD.format("CR_Core_Memory") + "DefMemPerCPU=200\n" + nodes + ALL
    run = simulated(tmp_path, log(tmp_path, (1, ""), (1, ""), (1, ""), (1, "")), conf)
    assert held(run) == {"1": {"n1": 2}, "2": {"n2": 1}, "3": {"n2": 1}, "4": {"n2": 1}}  # 400 MiB of n1


@pytest.mark.parametrize(("selection", "partition"), [("CR_Core,CR_LLN", ALL), ("CR_Core", f"{ALL.strip()} LLN=YES\n")])
def test_the_least_loaded_nodes_come_first(selection: str, partition: str, tmp_path: Path) -> None:
    conf = HEAD.format(selection) + "NodeName=n[1-2] CPUs=4\n" + partition
    run = simulated(tmp_path, log(tmp_path, *[(1, "")] * 4), conf)
    assert held(run) == {"1": {"n1": 1}, "2": {"n2": 1}, "3": {"n1": 1}, "4": {"n2": 1}}
    assert not any("LLN" in each for each in read(tmp_path / "slurm.conf").differences)


@pytest.mark.parametrize(
    ("selection", "partition"), [("CR_Socket", ALL), ("CR_Core", f"{ALL.strip()} SelectTypeParameters=CR_Socket\n")]
)
def test_jobs_get_whole_sockets(selection: str, partition: str, tmp_path: Path) -> None:
    """Slurm deals the tasks of a job out to the free sockets of a node, and gives it these sockets."""
    conf = HEAD.format(selection) + SOCKETS + partition
    run = simulated(tmp_path, tasks(1, 1, 1, 2, 2), conf)
    assert held(run) == {"1": {"n1": 4}, "2": {"n1": 4}, "3": {"n2": 4}, "4": {"n2": 4}}
    assert held(simulated(tmp_path, tasks(2, 2, 1), conf)) == {"1": {"n1": 8}, "2": {"n2": 8}}
    got = log(tmp_path, (4, ""), (4, ""), (8, ""))  # the CPUs of a log are those of whole sockets
    assert held(simulated(tmp_path, got, conf)) == {"1": {"n1": 4}, "2": {"n1": 4}, "3": {"n2": 8}}


def test_memory_of_each_cpu_is_that_of_whole_sockets(tmp_path: Path) -> None:
    nodes = "NodeName=n1 Sockets=2 CoresPerSocket=2 RealMemory=500\n"
    conf = HEAD.format("CR_Socket_Memory") + "DefMemPerCPU=100\n" + nodes + ALL
    assert held(simulated(tmp_path, tasks(1, 1, 1), conf)) == {"1": {"n1": 2}, "2": {"n1": 2}}
    assert held(simulated(tmp_path, tasks(2, 1), conf.replace("CoresPerSocket=2", "CoresPerSocket=1"))) == {
        "1": {"n1": 2}
    }
    many = conf.replace("Sockets=2", "Sockets=4")  # memory of two sockets: three tasks would get three
    assert held(simulated(tmp_path, tasks(2), many)) == {"1": {"n1": 4}}
    with pytest.raises(InputError, match="3 cores with these resources are demanded, of 2"):
        simulated(tmp_path, tasks(3), many)
    less = conf.replace("RealMemory=500", "RealMemory=300")
    assert held(simulated(tmp_path, tasks(1, 1), less)) == {"1": {"n1": 2}}


def test_what_is_assumed_about_cores_is_said(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    sockets = "PartitionName=s Nodes=n1 SelectTypeParameters=CR_Socket\n"
    for text, said in (
        (HEAD.format("CR_Core") + UNLIKE + ALL, "ThreadsPerCore=1, 2: the cores of the run are CPUs"),
        (
            HEAD.format("CR_CPU") + UNLIKE + ALL,
            "CR_CPU: memory for each CPU and billing are those of all CPUs of a core",
        ),
        (HEAD.format("CR_Core") + SOCKETS + ALL + sockets, "CR_Socket: jobs of the partitions all share sockets"),
        (HEAD.format("CR_Core,CR_Pack_Nodes") + SOCKETS + ALL, "not modeled: SelectTypeParameters=CR_Pack_Nodes"),
        (HEAD.format("CR_Core") + "NodeName=n1 CPUs=4 Gres=gpu:2,shard:8\n" + ALL, "shard are counted beside the GPUs"),
    ):
        path.write_text(text)
        assert any(said in each for each in read(path).differences), said
    path.write_text(HEAD.format("CR_Socket") + SOCKETS + ALL)
    assert not any("ocket" in each or "CR_" in each for each in read(path).differences)


# -- generic resources


def test_a_resource_that_is_not_consumed_is_there_for_all(tmp_path: Path) -> None:
    conf = HEAD.format("CR_Core") + "NodeName=n[1-2] CPUs=4 Gres=bw:no_consume:1\n" + ALL
    run = simulated(tmp_path, log(tmp_path, *[(1, ",gres/bw=1")] * 3), conf)
    assert held(run) == {key: {"n1": 1} for key in "123"}
    both = conf.replace(
        "n[1-2] CPUs=4 Gres=bw:no_consume:1", "n1 CPUs=4 Gres=bw:no_consume:1\nNodeName=n2 CPUs=4 Gres=bw:2"
    )
    run = simulated(tmp_path, log(tmp_path, *[(1, ",gres/bw=2")] * 2, *[(1, ",gres/bw=1")] * 2), both)
    assert held(run) == {"1": {"n2": 1}, "3": {"n1": 1}, "4": {"n1": 1}}  # each node has its own flag


def test_counts_have_suffixes_of_1024(tmp_path: Path) -> None:
    conf = HEAD.format("CR_Core") + "NodeName=n[1-2] CPUs=4 Gres=bw:4K\n" + ALL
    run = simulated(tmp_path, log(tmp_path, *[(1, ",gres/bw=2000")] * 3, (1, ",gres/bw=2K"), (1, ",gres/bw=2K")), conf)
    assert held(run) == {"1": {"n1": 1}, "2": {"n1": 1}, "3": {"n2": 1}, "4": {"n2": 1}}
    more = conf.replace("4K", "4G")  # more than 2^32
    assert held(simulated(tmp_path, tasks(1, 1, 1, gres="bw:2G"), more)) == {
        "1": {"n1": 1},
        "2": {"n1": 1},
        "3": {"n2": 1},
    }


def test_a_type_is_on_its_nodes(tmp_path: Path) -> None:
    nodes = "NodeName=n1 CPUs=4 Gres=gpu:v100:2\nNodeName=n2 CPUs=4 Gres=gpu:a100:2\n"
    run = simulated(
        tmp_path,
        tasks(1, 1, 1, 1, gres=["gpu:a100:1", "gpu:2", "gpu:1", "gpu:v100:1"]),
        HEAD.format("CR_Core") + nodes + ALL,
    )
    assert held(run) == {"1": {"n2": 1}, "2": {"n1": 1}, "3": {"n2": 1}}
    logs = ",gres/gpu=1,gres/gpu:a100=1"
    assert log(tmp_path, (1, logs)).table["gres"].tolist() == ["gpu:a100:1"]


def test_a_type_that_a_job_did_not_request_is_not_its_demand(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(
        "JobID|Submit|Start|End|Timelimit|State|NNodes|NCPUS|ReqTRES|AllocTRES\n"
        "1|2024-03-01T08:00:00|2024-03-01T08:00:00|2024-03-01T08:02:00|00:10:00|COMPLETED|1|1|cpu=1,gres/gpu=1|"
        "cpu=1,gres/gpu=1,gres/gpu:a100=1\n"
        "2|2024-03-01T08:00:00|2024-03-01T08:00:00|2024-03-01T08:02:00|00:10:00|COMPLETED|1|1|cpu=1,gres/bw=1024|"
        "cpu=1,gres/bw=0\n"
    )
    assert read_workload(path).texts("gres").tolist() == ["gpu:1", "bw:1024"]  # of no_consume, nothing is allocated


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"gres": "bw:3K"}, "3,072 of the generic resource bw on a node are demanded, and a node has 2,048 at most"),
        ({"gres": "fpga:1"}, "the cluster has no generic resource fpga"),
        ({"features": "big"}, "no node has the features big"),
        ({"memory_mib": 900.0}, "900 MiB of memory on a node are demanded, and a node has 500 at most"),
        ({"spread": 0, "cores_per_node": 5}, "5 cores on a node are demanded, and a node has 4 at most"),
        ({"cores_per_node": 9}, "9 cores with these resources are demanded, of 8"),
        ({"fewest_nodes": 3, "cores_per_node": 3}, "3 nodes with these resources are demanded, of 2"),
        ({"partition": "gone"}, "the cluster has no partition gone"),
    ],
)
def test_a_job_that_never_runs_says_which_resource_is_lacking(
    columns: dict[str, Any], said: str, tmp_path: Path
) -> None:
    conf = HEAD.format("CR_Core_Memory") + "NodeName=n[1-2] CPUs=4 RealMemory=500 Gres=bw:2K\n" + ALL
    run = simulated(tmp_path, tasks(1, 1, memory_mib=100.0), conf)
    assert set(run.jobs["state"]) == {"completed"}
    with pytest.raises(InputError) as error:
        simulated(tmp_path, tasks(1, 1, **columns), conf)
    assert said in error.value.what
    assert "partitions of the workload" not in str(error.value)


def test_the_reason_of_a_rejected_job_is_told(tmp_path: Path) -> None:
    run = simulated(tmp_path, tasks(1, 9, 10, 9), HEAD.format("CR_Core") + "NodeName=n[1-2] CPUs=4\n" + ALL)
    told = [each for each in run.info.warnings if "rejected" in each]
    assert told[0].startswith(
        "3 jobs rejected by the policy: such as 2 jobs: no nodes of its partition can ever run it: "
    )
    assert "9 cores with these resources are demanded, of 8; the table jobs has the reasons" in told[0]


# -- a live cluster


def test_a_forecast_counts_the_threads_of_each_node(tmp_path: Path) -> None:
    node = "NodeName={} CPUTot=4 Sockets=1 CoresPerSocket={} ThreadsPerCore={} RealMemory=1000 State=IDLE Gres=bw:2"
    texts = {
        "config": "Configuration data as of 2026-01-31T12:00:00\nSelectType = select/cons_tres\n"
        "SelectTypeParameters = CR_CORE\nSLURM_VERSION = 22.05.8\n",
        "partition": "PartitionName=main Default=YES Nodes=n[1-2] State=UP LLN=NO SelectTypeParameters=NONE",
        "node": "\n".join([node.format("n1", 2, 2), node.format("n2", 4, 1)]),
        "job": "JobId=1 JobName=w UserId=ann(7) Priority=9 Account=a JobState=RUNNING Reason=None TimeLimit=01:00:00 "
        "SubmitTime=2026-01-31T11:00:00 EligibleTime=2026-01-31T11:00:00 StartTime=2026-01-31T11:50:00 Partition=main "
        "NodeList=n1 NumNodes=1 NumCPUs=4 CPUs/Task=1 TRES=cpu=4,node=1 NtasksPerN:B:S:C=0:0:*:* "
        "  Nodes=n1 CPU_IDs=0-3 Mem=0 GRES=bw(CNT:0) TresPerNode=gres:bw:1 MinMemoryNode=0 OverSubscribe=OK",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(f"{text}\n")
    state = state_of(read_folder(tmp_path), tmp_path)
    assert [job.held for job in state.jobs] == [{"n1": 4}]
    assert [state.machine.cores_of(kind) for kind in state.machine.kinds] == [4, 4]
    assert [kind.kept for kind in state.machine.kinds] == [("bw",), ()]  # what scontrol shows of a job of no_consume
    assert host_names(state.machine.kinds[0].names) == ["n1"]
    assert not any("SelectTypeParameters" in note for note in state.notes)
