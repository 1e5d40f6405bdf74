"""Changes of a slurm.conf: single settings, and more nodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tracebed.ground.errors import InputError
from tracebed.slurm.changes import Addition, class_of, with_nodes, with_settings
from tracebed.slurm.conf import of_lines
from tracebed.slurm.conf_lines import Line, hosts_of, lines_of
from tracebed.slurm.machine import SlurmCluster

CONF = Path(__file__).parents[1] / "operator_logs" / "slurm.conf"


@pytest.fixture
def lines() -> list[Line]:
    return lines_of(CONF)


def machine(lines: list[Line]) -> SlurmCluster:
    found = of_lines(lines, CONF).cluster
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        ("bf_max_job_test=2000", "bf_max_job_test", "2000"),
        ("BF_Max_Job_Test = 2000", "bf_max_job_test", "2000"),
        ("default_queue_depth=5", "default_queue_depth", "5"),
        ("SchedulerType=sched/builtin", "bf_interval", "-1"),
        ("SchedulerParameters=bf_interval=10,bf_window=60", "bf_window", "60"),
    ],
)
def test_a_parameter_of_the_scheduler_is_changed(lines: list[Line], setting: str, name: str, value: str) -> None:
    assert of_lines(lines, CONF).parameters.get(name) != value
    assert of_lines(with_settings(lines, [setting]), CONF).parameters[name] == value


def test_other_parameters_of_the_scheduler_stay(lines: list[Line]) -> None:
    before, after = (of_lines(each, CONF).parameters for each in (lines, with_settings(lines, ["bf_interval=7"])))
    assert after == before | {"bf_interval": "7"}


def test_settings_of_whole_lines_partitions_and_nodes_are_changed(lines: list[Line]) -> None:
    changed = machine(
        with_settings(
            lines,
            ["PriorityWeightAge=7", "Partition.gpu.MaxTime=2-00:00", "partition.debug.prioritytier=3",
             "Node.gpu[01-15,20].Weight=4"],
        )
    )  # fmt: skip
    before = machine(lines)
    assert (before.weights.age, changed.weights.age) == (1000, 7)
    assert [partition.limit_s for partition in changed.partitions] == [172800.0, 172800.0, 1800.0]
    assert [partition.tier for partition in changed.partitions] == [10, 10, 3]
    assert [kind.weight for kind in changed.kinds] == [1, 4]
    assert changed.partitions[0] == before.partitions[0]


def test_a_setting_of_some_nodes_divides_their_line_and_keeps_the_order_of_the_nodes(lines: list[Line]) -> None:
    changed = machine(with_settings(lines, ["Node.cpu[03-04].RealMemory=1000"]))
    assert [name for name, _ in changed.nodes] == [name for name, _ in machine(lines).nodes]
    assert {name for name, kind in changed.nodes if kind.memory_mib == 1000} == {"cpu03", "cpu04"}


def test_a_setting_of_the_default_partition_counts_for_those_after_it(lines: list[Line]) -> None:
    changed = machine(with_settings(lines, ["Partition.DEFAULT.PriorityJobFactor=9"]))
    assert [partition.factor for partition in changed.partitions] == [9, 9, 9]


def test_more_nodes_are_like_most_nodes_of_the_partition(lines: list[Line]) -> None:
    before, after = machine(lines), machine(with_nodes(lines, {"gpu": Addition(10)}))
    assert len(after.nodes) == len(before.nodes) + 10
    new = [kind for name, kind in after.nodes if name.startswith("gpu-added")]
    assert {(kind.cores, kind.memory_mib, kind.weight, kind.gres["gpu"]) for kind in new} == {(64, 512000, 10, 4)}
    sizes = [[len(each.members(number)) for number in range(3)] for each in (before, after)]
    assert sizes == [[48, 16, 64], [48, 26, 74]]  # debug has all nodes


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("bf_max_job_tst=1", "did you mean bf_max_job_test"),
        ("bf_max_job_assoc=9", "nor a parameter of SchedulerParameters that is modeled"),
        ("PriorityWeightAgee=1", "did you mean PriorityWeightAge"),
        ("Partition.gpux.MaxTime=1", "no partition gpux .did you mean gpu"),
        ("Partition.gpu.MaxTim=1", "MaxTim is no setting of a PartitionName line .did you mean MaxTime"),
        ("Node.cpu49.Weight=1", "no node cpu49"),
        ("Node.cpu[.Weight=1", "Node.cpu"),
        ("PriorityWeightAge=much", "'much', not a whole number"),
        ("bf_interval=60", "changes nothing: the slurm.conf has this value"),
        ("Partition.gpu.MaxTime=1-00:00:00", "changes nothing"),
        ("PartitionName=new", "key of a line with several settings"),
        ("Partition.gpu=1", "not a setting of a partition or node"),
        ("Queue.gpu.MaxTime=1", "not a setting of a partition or node"),
        ("bf_interval", "not a setting"),
        ("=3", "not a setting"),
    ],
)
def test_an_invalid_change_is_an_error_with_a_mend(lines: list[Line], setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as found:
        with_settings(lines, [setting])
    assert found.value.hint


def test_an_invalid_value_names_the_setting(lines: list[Line]) -> None:
    changed = with_settings(lines, ["Partition.gpu.MaxTime=soon"])
    with pytest.raises(InputError, match=r"Partition.gpu.MaxTime=soon: 'soon' is not a time"):
        machine(changed)


@pytest.mark.parametrize(
    ("more", "message"), [({"gpux": 1}, "did you mean gpu"), ({"gpu": 0}, "additional nodes is 0")]
)
def test_no_nodes_are_added_to_an_unknown_partition(lines: list[Line], more: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_nodes(lines, {name: Addition(count) for name, count in more.items()})


# -- states of nodes, as Slurm 22.05.8 with ReturnToService=0 treats them


@pytest.mark.parametrize("state", ["DOWN", "down", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE"])
@pytest.mark.parametrize("names", ["cpu01", "cpu[03-04]", "cpu[01-48]"])
def test_a_node_on_which_no_job_starts_is_as_good_as_removed(lines: list[Line], state: str, names: str) -> None:
    """Whether the node is in a host list or on a line of its own."""
    hosts = {*hosts_of(names, "")}
    kept = [name for name, _ in machine(lines).nodes if name not in hosts]
    changed = machine(with_settings(lines, [f"Node.{names}.State={state}"]))
    assert [name for name, _ in changed.nodes] == kept
    alone = with_settings(lines, [f"Node.{names}.Weight=9"])  # the nodes have a line of their own
    assert machine(with_settings(alone, [f"Node.{names}.State={state}"])).nodes == changed.nodes


@pytest.mark.parametrize("state", ["unknown", "IDLE", "ALLOCATED", "MIXED", "CLOUD"])
def test_a_node_with_another_state_has_its_capacity(lines: list[Line], state: str) -> None:
    changed = with_settings(lines, [f"Node.cpu01.State={state}"])
    assert [name for name, _ in machine(changed).nodes] == [name for name, _ in machine(lines).nodes]


@pytest.mark.parametrize("state", ["DOWN*", "IDLE+DRAIN", "MAINT", "RESERVED", "ERROR", "BUSY", "UP"])
def test_a_state_with_which_slurmctld_does_not_start_is_an_error(lines: list[Line], state: str) -> None:
    with pytest.raises(InputError, match=rf"State={re.escape(state)} is not a state of a NodeName line") as found:
        machine(with_settings(lines, [f"Node.cpu01.State={state}"]))
    assert "DOWN, DRAIN, FAIL, FUTURE" in str(found.value.hint)


def test_nodes_that_are_down_in_the_file_are_named(lines: list[Line]) -> None:
    conf = of_lines(with_settings(lines, ["Node.gpu[01-02].State=DRAINED"]), CONF)
    assert "nodes gpu01,gpu02 have State=DRAINED in the slurm.conf: no job starts on them" in conf.differences
    with pytest.raises(InputError, match="no job can start: each node is DOWN, DRAIN, FAIL or FUTURE"):
        machine(with_settings(lines, ["Node.cpu[01-48],gpu[01-15,20].State=DOWN"]))


# -- classes of additional nodes

UNLIKE = """NodeName=n[1-2] CPUs=8 Gres=gpu:4
NodeName=n[3-4] CPUs=32
NodeName=n5 CPUs=32 State=DOWN
PartitionName=gpu Nodes=n[1-4]
PartitionName=most Nodes=n[1-5]
PartitionName=all Nodes=ALL
"""


@pytest.fixture
def unlike(tmp_path: Path) -> list[Line]:
    (tmp_path / "slurm.conf").write_text(UNLIKE)
    return lines_of(tmp_path / "slurm.conf")


def test_two_classes_with_most_nodes_of_a_partition_are_an_error(unlike: list[Line]) -> None:
    what = r"most nodes of partition gpu are of 2 classes, 2 nodes each: n\[1-2\] \(CPUs=8 Gres=gpu:4\) and n\[3-4\]"
    with pytest.raises(InputError, match=what) as found:
        with_nodes(unlike, {"gpu": Addition(4)})
    assert "gpu=4,like=n1 or gpu=4,like=n3" in str(found.value.hint)


@pytest.mark.parametrize(("like", "cores", "hosts"), [("n2", 8, ["n[1-2]"]), ("n5", 32, ["n[3-4]", "n5"])])
def test_a_node_names_the_class_of_additional_nodes(
    unlike: list[Line], like: str, cores: int, hosts: list[str]
) -> None:
    added = Addition(4, like)
    assert class_of(unlike, "gpu", added) == hosts
    new = [kind for name, kind in machine(with_nodes(unlike, {"gpu": added})).nodes if "added" in name]
    assert [kind.cores for kind in new] == [cores] * 4


def test_lines_of_one_class_count_together_and_new_nodes_run(unlike: list[Line]) -> None:
    for name in ("most", "all"):
        assert class_of(unlike, name, Addition(1)) == ["n[3-4]", "n5"]
    down = with_settings(unlike, ["Node.n[3-4].State=DOWN"])
    assert len(machine(with_nodes(down, {"most": Addition(3)})).nodes) == 2 + 3
    with pytest.raises(InputError, match=r"the slurm\.conf has no node n9"):
        with_nodes(unlike, {"gpu": Addition(4, "n9")})


# -- changes of nothing

DEFAULTS = """NodeName=DEFAULT CPUs=8 Weight=3
NodeName=n[1-4]
PartitionName=DEFAULT MaxTime=1-00:00 PriorityTier=2
PartitionName=a Nodes=n[1-2]
PartitionName=b Nodes=n[3-4] MaxTime=60
"""


@pytest.mark.parametrize(
    "setting",
    ["Partition.a.MaxTime=1-00:00", "Partition.b.PriorityTier=2", "Node.n[2-3].Weight=3", "Node.n1.CPUs=8"],
)
def test_a_value_of_the_default_line_changes_nothing(setting: str, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(DEFAULTS)
    with pytest.raises(InputError, match=r"changes nothing: the slurm\.conf has this value"):
        with_settings(lines_of(tmp_path / "slurm.conf"), [setting])


def test_a_value_of_the_default_line_may_replace_one_of_a_partition(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(DEFAULTS)
    changed = with_settings(lines_of(tmp_path / "slurm.conf"), ["Partition.b.MaxTime=1-00:00"])
    assert [partition.limit_s for partition in machine(changed).partitions] == [86400, 86400]
