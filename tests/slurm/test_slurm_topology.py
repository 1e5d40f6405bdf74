"""Slurm's choice of nodes with topology/tree: the allocations of Slurm 22.05.8, and which files are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.oracles.slurm_simulation.nodes import Nodes
from tracebed.cli import tracebed
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.slurm.conf import SlurmConf, read
from tracebed.slurm.simulation.feasibility import fits
from tracebed.slurm.simulation.prediction import resources_of
from tracebed.slurm.simulation.resources import Request

ONE_TREE = (
    "SwitchName=s0 Nodes=n[1-3]\nSwitchName=s1 Nodes=n[4-5]\nSwitchName=s2 Nodes=n6\nSwitchName=top Switches=s[0-2]\n"
)
DEEP = """SwitchName=top Switches=m[0-1]
SwitchName=m0 Switches=a,b
SwitchName=m1 Switches=c,d
SwitchName=a Nodes=n[1-2]
SwitchName=b Nodes=n3
SwitchName=c Nodes=n[4-5]
SwitchName=d Nodes=n[6-8]
"""
TWO_TREES = "SwitchName=s0 Nodes=n[1-3],x[19-20]\nSwitchName=s1 Nodes=n[4-5]\n"
SIX, EIGHT = "NodeName=n[1-6] CPUs=4\n", "NodeName=n[1-8] CPUs=4\n"
WEIGHTS = "NodeName=n[1-2] CPUs=4 Weight=5\nNodeName=n[3-6] CPUs=4 Weight=1\n"
TRES, LINEAR = "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n", "SelectType=select/linear\n"
RES = TRES.replace("cons_tres", "cons_res")
# Options of sbatch: node x cores of each, "-" a job that waits, "!" one that sbatch refuses. "|": all jobs have ended.
RECORDED = [
    (TRES, SIX, ONE_TREE, "-N1: 6x1; -N2: 4x1 5x1; -n5: 4x2 6x3; -n13: 1x4 2x4 3x1 4x1 5x3; -N4: -"),
    (TRES, SIX, ONE_TREE, "-n1: 6x1; -n2: 6x2; -N2 -n6: 4x4 5x2; -n9: 1x4 2x2 5x2 6x1; -N3: -"),
    (TRES, SIX, ONE_TREE, "-n14: 1x2 4x4 5x4 6x4; -N4: - | -N5: 1x1 2x1 3x1 4x1 5x1; -n3: 6x3"),
    (TRES, EIGHT, DEEP, "-N1: 3x1; -N2: 1x1 2x1; -n5: 1x2 3x3; -n13: 1x1 2x3 4x4 5x4 6x1; -N4: -"),
    (TRES, EIGHT, DEEP, "-n1: 3x1; -n2: 3x2; -N2 -n6: 1x4 2x2; -n9: 2x2 3x1 4x4 5x2; -N3: 6x1 7x1 8x1"),
    (TRES, EIGHT, DEEP, "-n14: 1x4 2x4 3x4 4x2; -N4: 4x1 6x1 7x1 8x1; -N2: 4x1 5x1 | -N5: 4x1 5x1 6x1 7x1 8x1"),
    (TRES, EIGHT, DEEP, "-N6: 1x1 2x1 3x1 6x1 7x1 8x1; -N1: 3x1; -N7: 1x1 2x1 4x1 5x1 6x1 7x1 8x1"),
    (TRES, WEIGHTS, ONE_TREE, "-N1: 3x1; -N2: 4x1 5x1; -N5: 1x1 3x1 4x1 5x1 6x1; -n18: -"),
    (TRES, WEIGHTS, ONE_TREE, "-N4 -n8: 3x1 4x4 5x2 6x1; -n5: 3x3 5x2 | -N5: 1x1 3x1 4x1 5x1 6x1"),
    (TRES, WEIGHTS, ONE_TREE, "-N5: 1x1 3x1 4x1 5x1 6x1; -n17: 1x3 2x2 3x3 4x3 5x3 6x3 | -n20: 1x4 3x4 4x4 5x4 6x4"),
    (TRES, SIX, TWO_TREES, "-N4: !; -N2: 4x1 5x1; -N3: 1x1 2x1 3x1; -N1: 4x1 | -n5: 4x4 5x1; -n9: !"),
    (LINEAR, SIX, TWO_TREES, "-N4: !; -N2: 4x4 5x4; -N3: 1x4 2x4 3x4; -N1: - | -N1: 4x4; -N1: 5x4; -N1: 1x4"),
    (LINEAR, SIX, TWO_TREES, "-n13: !; -n5: 4x4 5x4; -n9: 1x4 2x4 3x4"),
    (LINEAR, SIX, ONE_TREE, "-N1: 6x4; -N2: 4x4 5x4; -n5: 1x4 2x4; -n13: - | -n1: 6x4; -n2: 4x4; -N2 -n6: 1x4 2x4"),
    (LINEAR, SIX, ONE_TREE, "-n14: 1x4 4x4 5x4 6x4; -N4: -; -N2: 2x4 3x4 | -N5: 1x4 2x4 4x4 5x4 6x4; -n3: 3x4"),
    (LINEAR, EIGHT, DEEP, "-N1: 3x4; -N2: 1x4 2x4; -n5: 4x4 5x4; -n13: - | -n1: 3x4; -n2: 1x4; -N2 -n6: 4x4 5x4"),
    (LINEAR, EIGHT, DEEP, "-n14: 4x4 5x4 6x4 7x4; -N4: 1x4 2x4 3x4 8x4; -N2: - | -N6: 1x4 2x4 3x4 4x4 5x4 6x4"),
    (LINEAR, WEIGHTS, ONE_TREE, "-N1: 3x4; -N2: 4x4 5x4; -N5: - | -N4 -n8: 3x4 4x4 5x4 6x4; -n5: 1x4 2x4"),
    (LINEAR, WEIGHTS, ONE_TREE, "-N5: 1x4 2x4 4x4 5x4 6x4; -n17: - | -n20: 1x4 2x4 4x4 5x4 6x4; -N1: 3x4"),
    (RES, SIX, ONE_TREE, "-N1: 6x1; -N2: 4x1 5x1; -n5: 4x3 5x2; -n13: 1x4 2x4 3x4 5x1; -N4: -"),
    (RES, SIX, ONE_TREE, "-n1: 6x1; -n2: 6x2; -N2 -n6: 4x4 5x2; -n9: 1x4 2x4 3x1; -N3: 3x1 5x1 6x1"),
    (RES, SIX, ONE_TREE, "-n14: 1x4 2x4 3x4 6x2; -N4: -; -N2: 4x1 5x1 | -N5: 1x1 2x1 3x1 4x1 5x1; -n3: 6x3"),
    (RES, EIGHT, DEEP, "-N1: 3x1; -N2: 1x1 2x1; -n5: 1x3 2x2; -n13: 4x1 6x4 7x4 8x4; -N4: 2x1 3x1 4x1 5x1"),
    (RES, EIGHT, DEEP, "-n1: 3x1; -n2: 3x2; -N2 -n6: 1x4 2x2; -n9: 6x4 7x4 8x1; -N3: 4x1 5x1 8x1"),
    (RES, EIGHT, DEEP, "-n14: 4x2 6x4 7x4 8x4; -N4: 1x1 2x1 4x1 5x1; -N2: 1x1 2x1 | -N5: 4x1 5x1 6x1 7x1 8x1"),
    (RES, EIGHT, DEEP, "-N6: 1x1 2x1 3x1 6x1 7x1 8x1; -N1: 3x1; -N7: 1x1 2x1 4x1 5x1 6x1 7x1 8x1"),
    (RES, WEIGHTS, ONE_TREE, "-N1: 3x1; -N2: 4x1 5x1; -N5: 1x1 2x1 3x1 4x1 5x1"),
    (RES, SIX, TWO_TREES, "-N4: !; -N2: 4x1 5x1; -N3: 1x1 2x1 3x1; -N1: 4x1 | -n13: !; -n5: 4x4 5x1; -n9: 1x4 2x4 3x1"),
]  # fmt: skip


def conf_of(folder: Path, lines: str, topology: str | None) -> SlurmConf:
    text = f"ClusterName=c\n{lines}TopologyPlugin=topology/tree\nPartitionName=main Nodes=ALL Default=YES\n"
    (folder / "slurm.conf").write_text(text)
    if topology is not None:
        (folder / "topology.conf").write_text(topology)
    return read(folder / "slurm.conf")


@pytest.mark.parametrize(("select", "nodes", "topology", "recorded"), RECORDED)
def test_jobs_get_the_nodes_that_slurm_gave_them(
    select: str, nodes: str, topology: str, recorded: str, tmp_path: Path
) -> None:
    machine = conf_of(tmp_path, select + nodes, topology).cluster
    assert machine is not None
    every = (1 << len(machine.nodes)) - 1
    for jobs in recorded.split("|"):
        idle = Nodes.of(resources_of(machine, ()))
        free = Nodes.of(idle)
        for job in jobs.split(";"):
            options, _, allocated = job.strip().partition(": ")
            asked = {name: int(number) for name, number in re.findall(r"-([nN])(\d+)", options)}
            fewest = asked.get("N", 1)
            request = Request(cores=asked.get("n", fewest), fewest=fewest, whole=select == LINEAR)
            assert (idle.choose(request, every) is None) == (allocated == "!"), job
            assert fits(idle, request._replace(eligible=every)) == (allocated != "!"), job
            if allocated == "!":
                continue
            parts = free.choose(request, every)
            text = " ".join(f"{node + 1}x{cores}" for node, cores in sorted((parts or {}).items()))
            assert text == allocated.strip("-"), job
            free.take(request, parts or {})


def test_no_job_runs_on_nodes_of_two_trees(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, TRES + SIX, TWO_TREES)
    assert conf.differences[-3:] == (
        "hosts of topology.conf that slurm.conf does not name: x19, x20",
        "nodes without a switch in topology.conf, which no job gets: n6",
        "no switch of topology.conf reaches all nodes: no job gets nodes of two of s0, s1",
    )
    log = tmp_path / "log.csv"
    log.write_text(
        "job_id,submit_time,run_time,time_limit,nodes,cores_per_node\n"
        "1,0,8,600,2,4\n2,2,8,600,3,4\n3,4,8,600,4,4\n4,20,8,600,1,4\n5,21,8,600,6,4\n"
    )
    arguments = ["simulate", str(log), "--policy", "slurm", "-P", f"@{conf.where}", "-o", str(tmp_path / "run")]
    result = CliRunner().invoke(tracebed, arguments)
    assert result.exit_code == 0, result.output
    run = Run.load(tmp_path / "run")
    rows = run.allocations[["job_id", "node", "count"]].itertuples(index=False)
    by_job = {job: {*range(node, node + count)} for job, node, count in rows}
    assert by_job == {"1": {3, 4}, "2": {0, 1, 2}, "4": {3}}
    refused = run.jobs[run.jobs["state"] == "rejected"]
    assert refused["job_id"].tolist() == ["3", "5"]
    says = "no nodes of its partition can ever run it: no switch of topology.conf reaches enough nodes"
    assert all(reason.startswith(says) for reason in refused["reason"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", r"topology\.conf:2: switch a has two lines"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2 Switches=a\n", "2: switch b has both Nodes and Switches"),
        ("SwitchName=a Nodes=n1\nSwitchName=b LinkSpeed=3\n", "2: switch b has neither Nodes nor Switches"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Switches=a,c\n", "2: switch b is above c, which is no other switch"),
        ("SwitchName=a Switches=a\n", "1: switch a is above a, which is no other switch"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "the switches are no tree: [ab] above [ab] above [ab]"),
        ("SwitchName=a Nodes=n1 Colour=red\n", "1: Colour=red is not a setting of a switch"),
        ("SwitchName=a Nodes=n1\nDebugFlags=Route\n", "2: DebugFlags is not a setting of a switch"),
        ("SwitchName=a Nodes=n[1-\n", r"1: 'n\[1-' is not a list of hosts"),
        ("SwitchName\n", "1: 'SwitchName' is not KEY=VALUE"),
    ],
)
def test_a_topology_conf_with_which_slurm_does_not_start_is_an_error(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        conf_of(tmp_path, TRES + SIX, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "topology.conf is missing: no switches are assumed"),
        ("# none\n", "topology.conf is empty: no switches are assumed"),
        ("SwitchName=a Nodes=n[1-6]\nSwitchName=b Nodes=n6\n", "nodes of several switches of topology.conf: n6"),
        ("SwitchName=a Nodes=ALL\n", "hosts of topology.conf that slurm.conf does not name: ALL"),
        ("SwitchName=a Nodes=x1\n", "nodes without a switch in topology.conf, which no job gets: n1, n2, n3, n4"),
    ],
)  # fmt: skip
def test_what_a_topology_conf_leaves_out_is_said(text: str | None, says: str, tmp_path: Path) -> None:
    assert any(says in each for each in conf_of(tmp_path, TRES + SIX, text).differences)


def test_one_tree_of_all_nodes_is_not_worth_a_word(tmp_path: Path) -> None:
    assert conf_of(tmp_path, TRES + SIX, ONE_TREE).differences == conf_of(tmp_path, TRES + EIGHT, DEEP).differences
    assert not any(
        "topology" in text or "switch" in text for text in conf_of(tmp_path, TRES + SIX, ONE_TREE).differences
    )
    future = conf_of(tmp_path, f"{TRES}{SIX}NodeName=f1 CPUs=4 State=FUTURE\n", f"{ONE_TREE}SwitchName=f Nodes=f1\n")
    assert not any("f1" in text for text in future.differences)


def test_with_topo_optional_the_switches_are_for_jobs_that_name_a_number_of_them(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, f"{TRES}{SIX}TopologyParam=NoInAddrAny,TopoOptional\n", TWO_TREES)
    assert conf.cluster is not None and not conf.cluster.switches
    assert not any("opology" in text or "switch" in text for text in conf.differences)


def test_a_topology_yaml_is_not_ignored_in_silence(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text("---\n")
    says = "topology.yaml, with which Slurm 25.05 and newer ignore TopologyPlugin, is not read"
    assert says in conf_of(tmp_path, TRES + SIX, ONE_TREE).differences
