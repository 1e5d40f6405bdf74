"""Changes of a slurm.conf: single settings, and more nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracebed.errors import InputError
from tracebed.orchestrator.slurm.changes import with_nodes, with_settings
from tracebed.orchestrator.slurm.conf import of_lines
from tracebed.orchestrator.slurm.lines import Line, lines_of
from tracebed.orchestrator.slurm.machine import Machine

CONF = Path(__file__).parent / "operator_logs" / "slurm.conf"


@pytest.fixture
def lines() -> list[Line]:
    return lines_of(CONF)


def machine(lines: list[Line]) -> Machine:
    found = of_lines(lines, CONF).machine
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
    before, after = machine(lines), machine(with_nodes(lines, {"gpu": 10}))
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
        with_nodes(lines, more)
