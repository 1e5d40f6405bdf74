"""Slurm's power saving: what a slurm.conf and a file of the power of nodes say, and what the simulation does."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import slurm_cases
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError
from tracebed.machine.calendar import Calendar, Outage
from tracebed.machine.power import NodePower
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.slurm.conf import read
from tracebed.slurm.machine import SlurmMachine
from tracebed.slurm.power_saving import NEVER, PowerRules, recognized
from tracebed.slurm.simulation.inputs import Associations, Inputs, Outcome, PowerSaving, Preemption
from tracebed.slurm.simulation.resources import Request, Resources

CONF = """ClusterName=c
SelectType=select/linear
PriorityType=priority/basic
SuspendProgram=/usr/sbin/off
ResumeProgram=/usr/sbin/on
SuspendTime=600
NodeName=n[1-8] CPUs=2
PartitionName=main Nodes=ALL Default=YES
"""
POWER = "power:\n  n[1-8]: {busy_w: 300, idle_w: 150, off_w: 10, boot_s: 20, shutdown_s: 5}\n"


@pytest.fixture
def files(tmp_path: Path) -> Any:
    """Return a function that writes a slurm.conf and a file of the power of nodes, and returns their paths."""

    def write(more: str = "", power: str = POWER, conf: str = CONF) -> tuple[Path, Path]:
        paths = tmp_path / "slurm.conf", tmp_path / "power.yaml"
        for path, text in zip(paths, (conf + more, power), strict=True):
            path.write_text(text)
        return paths

    return write


# -- what the files say ------------------------------------------------------------------------------------------------


def test_a_slurm_conf_and_the_power_of_the_nodes_are_the_rules(files: Any) -> None:
    more = "SuspendTimeout=40\nResumeTimeout=90\nSuspendRate=6\nResumeRate=0\nSuspendExcNodes=n[1-4]:2,n5:1\n"
    more += "SuspendExcParts=main,x\nSlurmctldParameters=enable_configless,power_save_interval=3\n"
    conf = read(*files(more))
    assert conf.cluster
    assert conf.cluster.saving == PowerRules(
        suspend_s=600,
        suspend_timeout_s=40,
        resume_timeout_s=90,
        suspend_rate=6,
        resume_rate=0,
        kept={"n[1-4]": 2, "n5": 1},
        spared_partitions=("main", "x"),
        interval_s=3,
    )
    assert conf.cluster.kinds[0].power == NodePower(busy_w=300, idle_w=150, off_w=10, boot_s=20, shutdown_s=5)
    assert not any("Suspend" in text or "Resume" in text for text in conf.differences)
    machine = conf.known_machine()
    assert machine.classes[0].power == conf.cluster.kinds[0].power
    assert SlurmMachine.from_json(machine.to_json()) == machine


def test_without_the_power_of_the_nodes_a_warning_says_what_to_give(files: Any) -> None:
    conf = read(files()[0], plain=True)
    assert conf.cluster and conf.cluster.saving is None
    assert any("give a file of their power" in text for text in conf.differences)
    assert any("SuspendTime=600" in text for text in conf.differences)


@pytest.mark.parametrize("more", ["SuspendTime=-1", "SuspendTime=INFINITE", "SuspendTime=NONE", 'ResumeProgram=""'])
def test_slurm_switches_no_node_off(more: str, files: Any) -> None:
    conf = read(*files(f"{more}\n"), plain=True)
    assert conf.cluster and conf.cluster.saving is None


def test_of_the_partitions_of_a_node_the_largest_time_counts_and_else_that_of_the_cluster(files: Any) -> None:
    """As tried (experiment *partitions* of docs/explanation/power-saving-of-slurm.md)."""
    more = "PartitionName=a Nodes=n[1-4] SuspendTime=10 SuspendTimeout=7\n"
    more += "PartitionName=b Nodes=n[3-6] SuspendTime=25\nPartitionName=c Nodes=n6 SuspendTime=INFINITE\n"
    cluster = read(*files(more)).cluster
    assert cluster
    times = cluster.power_times()
    assert [suspend for suspend, _, _ in times] == [10, 10, 25, 25, 25, NEVER, 600, 600]
    assert [down for _, down, _ in times] == [7, 7, 7, 7, 30, 30, 30, 30]
    assert {up for _, _, up in times} == {60}


def test_a_number_of_nodes_that_stay_on_belongs_to_all_lists_before_it(files: Any) -> None:
    cluster = read(*files("SuspendExcNodes=n1,n[2-4]:2,n[7-8]\n")).cluster
    assert cluster and cluster.saving
    assert cluster.saving.kept == {"n1,n[2-4]": 2, "n[7-8]": 0}


def test_a_line_whose_nodes_differ_in_power_is_of_several_kinds(files: Any) -> None:
    cluster = read(*files(power="power:\n  n[1-2]: {busy_w: 9, idle_w: 5}\n  n8: {busy_w: 9, idle_w: 6}\n")).cluster
    assert cluster
    assert [(kind.names, kind.power and kind.power.idle_w) for kind in cluster.kinds] == [
        ("n1,n2", 5),
        ("n3,n4,n5,n6,n7", None),
        ("n8", 6),
    ]


@pytest.mark.parametrize(
    ("power", "says"),
    [
        ("power:\n  n9: {busy_w: 1, idle_w: 1}\n", "slurm.conf: has no node n9, whose power is given"),
        ("power:\n  n1: {busy_w: 1, idle_w: 1}\n  n[1-2]: {busy_w: 2, idle_w: 1}\n", "yaml:3: node n1 has its power"),
        ("power:\n  n1: {idle_w: 1}\n", "busy_w: required key is missing"),
        ("power:\n  n1: {busy_w: 1, idle_w: 2}\n", "less than idle_w"),
        ("power:\n  n1: {busy_w: 1, idle_w: 1, watts: 3}\n", "watts: unknown key"),
        ("power:\n  n[1: {busy_w: 1, idle_w: 1}\n", "power.yaml"),
    ],
)
def test_an_invalid_file_of_the_power_of_nodes_is_refused(power: str, says: str, files: Any) -> None:
    with pytest.raises(InputError) as raised:
        read(*files(power=power))
    assert says in str(raised.value)
    assert raised.value.hint


# -- the two simulators ------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**9))
def test_nodes_sleep_between_jobs_only_and_both_simulators_agree(seed: int) -> None:
    inputs, policy = slurm_cases.drawn(seed)
    if not inputs.requests:
        return
    inputs = slurm_cases.with_saving(seed, replace(inputs, watched=0))
    saving = inputs.saving
    assert saving
    outcome = slurm_cases.both(inputs, policy)
    for node, off in enumerate(saving.off):
        changes = [each for each in outcome.switched if each.node == node]
        assert [each.on for each in changes] == [bool((at + off) % 2) for at in range(len(changes))]
        assert not changes or off or saving.suspend_s[node] >= 0
        if not saving.spared >> node & 1:
            continue
        assert all(each.on for each in changes)  # a spared node is off at the begin at most
    first = inputs.submit[0]
    held = [
        (parts, begin, end)
        for parts, begin, launched, end in zip(
            outcome.parts, outcome.active, outcome.launched, outcome.end, strict=True
        )
        if math.isfinite(launched)  # not one that was preempted while its nodes booted
    ]
    for node in range(len(saving.off)):
        for since, until in asleep(outcome, saving, node, first):
            assert not any(begin < until and end > since and end > begin for parts, begin, end in held if node in parts)


def asleep(outcome: Outcome, saving: PowerSaving, node: int, first: float) -> list[tuple[float, float]]:
    """Return the times in which a node is not on: from the decision to switch it off until it has booted."""
    since = first if saving.off[node] else math.nan
    found = []
    for each in outcome.switched:
        if each.node == node and each.on:
            found.append((since, each.at + saving.boot_s[node]))
        elif each.node == node:
            since = each.at
    return found


def case(*jobs: tuple[float, float, int], nodes: int = 4, **saving: Any) -> tuple[Inputs, Slurm]:
    """Return inputs of jobs (submit time, run time, nodes) on whole nodes. Boots are noticed each 30 s."""
    every = range(len(jobs))
    plain: dict[str, Any] = {"suspend_s": [10] * nodes, "suspend_timeout_s": [4] * nodes, "boot_s": [5.0] * nodes}
    plain |= {"off": [False] * nodes, "suspend_rate": 0, "resume_rate": 0, "phase_s": 0.25}
    inputs = Inputs(
        submit=[submit for submit, _, _ in jobs],
        run_time=[run for _, run, _ in jobs],
        limit=[60 for _ in every],
        launch_s=[0.0 for _ in every],
        overrun_s=[math.nan for _ in every],
        over_limit_s=[0.0 for _ in every],
        end_s=[0.0 for _ in every],
        requests=[
            Request(cores=count, per_node=1, fewest=count, whole=True, gres=(), eligible=(1 << nodes) - 1)
            for _, _, count in jobs
        ],
        partition=[0 for _ in every],
        user=[0 for _ in every],
        fixed=[0.0 for _ in every],
        tier=[1],
        free=Resources([1] * nodes, [1] * nodes, [()] * nodes, [1] * nodes, [1] * nodes, None, [1] * nodes),
        associations=Associations([0], [1.0], [False]),
        association=[-1 for _ in every],
        usage_factor=[1.0 for _ in every],
        billing=[[1.0, 0.0, 0.0, 0.0]],
        reserve=[True for _ in every],
        age=0.0,
        max_age_s=1.0,
        fairshare=0.0,
        period_s=300.0,
        first_period_s=0.0,
        saving=PowerSaving(**plain | saving),
    )
    return inputs, Slurm(batch_sched_delay=0, sched_loop_s=1.0, bf_interval=1)


def outcome_of(*jobs: tuple[float, float, int], nodes: int = 4, **saving: Any) -> Outcome:
    return slurm_cases.both(*case(*jobs, nodes=nodes, **saving))


def seconds(outcome: Outcome) -> list[tuple[int, int, bool]]:
    """Return the node and the whole second of each change."""
    return [(each.node, int(each.at), each.on) for each in outcome.switched]


def test_a_job_begins_at_the_check_after_the_boot_and_its_limit_counts_from_then() -> None:
    """Worked out by hand: jobs on n0 and n1 end at 3 s; all have been idle for more than 10 s at 11 s and 14 s.

    The thread looks each second after a change, else each 10 s: at 0, 1 (n0 and n1 are allocated), 4 and then 14 s. A
    job of all nodes at 40 s: the pass at 40 s allocates, the thread switches on at 40.27 s, the nodes have booted at
    45.27 s, and slurmctld looks at 60 s. It is killed 60 s later, at the check at 120 s.
    """
    outcome = outcome_of((0.0, 3.0, 2), (40.0, 100.0, 4))
    assert seconds(outcome)[:8] == [*((node, 14, False) for node in range(4)), *((node, 40, True) for node in range(4))]
    assert outcome.start == [0.0, 60.0]
    assert outcome.end == [3.0, 120.0]


def test_a_node_that_is_on_comes_first_and_one_that_is_switched_off_is_not_allocated() -> None:
    """n0 ran until 12 s and is on; n1 to n3 are switched off. They may be allocated again some seconds later."""
    outcome = outcome_of((0.0, 12.0, 1), (13.0, 5.0, 1), (13.0, 5.0, 1))
    first, second, third = (min(parts) for parts in outcome.parts)
    assert (first, second) == (0, 0)
    assert third == 0  # not n1: it is falling until the look at 23 s, of which no scheduler is told
    assert outcome.start[2] >= outcome.end[1]


@pytest.mark.parametrize(("linear", "nodes"), [(False, [0, 3]), (True, [0, 1])])
def test_select_linear_leaves_a_node_that_is_on_idle(linear: bool, nodes: list[int]) -> None:
    """As tried (n4 is on, n1 to n3 are off): a job of 1 node gets n4; one of 2 gets n1 and n2 with `select/linear`."""
    outcome = outcome_of((0.0, 1.0, 1), (50.0, 1.0, 2), spared=0b1000, off=[True] * 3 + [False], linear=linear)
    assert [sorted(parts) for parts in outcome.parts] == [[3], nodes]


def test_rates_limit_how_many_nodes_are_switched_in_a_minute() -> None:
    """Two in the first look; a third when the decayed count is below 1.5: 2 x (50/60)^2 = 1.39 after 20 s."""
    at = [at for _, at, on in seconds(outcome_of((0.0, 0.5, 1), (200.0, 1.0, 1), nodes=5, suspend_rate=2)) if not on]
    assert at[:2] == [at[0]] * 2
    assert at[2] - at[1] == 20


def test_some_idle_nodes_stay_on_and_others_replace_those_that_have_jobs() -> None:
    outcome = outcome_of((0.0, 0.5, 1), (50.0, 100.0, 1), (300.0, 1.0, 1), kept=[(0b0111, 2)])
    assert {each.node for each in outcome.switched} == {2, 3}


def test_cloud_nodes_are_off_at_the_begin() -> None:
    outcome = outcome_of((0.0, 3.0, 1), nodes=1, off=[True])
    assert seconds(outcome)[0] == (0, 0, True)
    assert outcome.start == [30.0]


def test_a_node_is_never_switched_off_without_an_end_of_its_idle_time() -> None:
    assert not outcome_of((0.0, 1.0, 1), (500.0, 1.0, 1), suspend_s=[NEVER] * 4).switched
    assert not outcome_of((0.0, 1.0, 1), (500.0, 1.0, 1), spared=0b1111).switched


def test_a_job_that_is_killed_while_its_node_boots_never_begins() -> None:
    inputs, policy = case((0.0, 50.0, 1), (8.0, 5.0, 1), nodes=1, off=[True], boot_s=[45.0])
    preemption = Preemption([0, 1], [0, 1], [0, 1], [0, 0], [0, 0], [0.0, 0.0])
    outcome = slurm_cases.both(replace(inputs, preemption=preemption), policy)
    assert math.isnan(outcome.launched[0])
    assert outcome.start[1] == 60.0  # the node has booted for the first job at 45 s


# -- runs --------------------------------------------------------------------------------------------------------------


def workload(*jobs: tuple[float, float, int]) -> Workload:
    """Return jobs: submit time, run time, nodes."""
    table = pd.DataFrame(jobs, columns=["submit_time", "run_time", "nodes"]).assign(time_limit=60.0, cores_per_node=2)
    table.insert(0, "job_id", [str(job) for job in range(1, len(table) + 1)])
    return Workload(table, Provenance(system=System(8, 2)))


def test_a_run_has_the_states_of_power_of_its_nodes(files: Any) -> None:
    machine = read(*files("SuspendTime=60\nSuspendExcNodes=n[3-8]\n")).known_machine()
    run = predict(workload((0.0, 5.0, 8), (300.0, 5.0, 8)), machine, "slurm", over_limit=OverLimit.KILL)
    states = run.nodes[run.nodes["power_state"] != ""]
    assert {*states["node"]} == {0, 1}
    for _, own in states.groupby("node"):
        assert own["power_state"].tolist() == ["shutdown", "off", "boot", "on"]
        off, down, boot, on = own["time"]
        assert (down - off, on - boot) == pytest.approx((5.0, 20.0))
        assert 65.0 <= off <= 80.0
    begin = run.jobs["start"].iloc[1]
    assert on <= begin <= on + 31.0  # slurmctld looks for booted nodes every 30 s
    assert run.info.machine == machine


def test_nodes_in_the_cloud_are_off_when_the_run_begins(files: Any) -> None:
    conf = CONF.replace("CPUs=2", "CPUs=2 State=CLOUD")
    run = predict(workload((100.0, 5.0, 2)), read(*files(conf=conf)).known_machine(), "slurm")
    begins = run.nodes[(run.nodes["power_state"] == "off") & (run.nodes["time"] == 100.0)]
    assert begins["node"].tolist() == list(range(8))
    assert (run.nodes["power_state"] == "boot").sum() == 2
    assert run.jobs["start"].iloc[0] >= 120.0


@pytest.mark.parametrize(
    ("more", "power", "says"),
    [
        ("ResumeTimeout=19\n", POWER, "node n1 boots for 20 s: ResumeTimeout is 19 s"),
        ("SuspendTimeout=4\n", POWER, "node n1 is switched off for 5 s: SuspendTimeout is 4 s"),
    ],
)
def test_a_node_that_boots_or_is_switched_off_for_too_long_is_refused(
    more: str, power: str, says: str, files: Any
) -> None:
    with pytest.raises(InputError, match=says):
        predict(workload((0.0, 5.0, 1)), read(*files(more, power)).known_machine(), "slurm")


def test_what_is_not_modeled_beside_power_saving_is_refused(files: Any) -> None:
    machine, jobs = read(*files()).known_machine(), workload((0.0, 5.0, 1))
    with pytest.raises(InputError, match="a layer that resizes jobs: not modeled beside"):
        predict(jobs, machine, Slurm(resizes="dmr"))
    outages = Calendar(outages=(Outage(node="n1", start=0.0, end=9.0),))
    with pytest.raises(InputError, match="outages: not modeled beside"):
        predict(jobs, machine, "slurm", outages=outages)
    preempting = (
        "PreemptType=preempt/partition_prio\nPreemptMode=SUSPEND,GANG\nPartitionName=b Nodes=ALL PriorityTier=5\n"
    )
    with pytest.raises(InputError, match="jobs that are suspended"):
        predict(jobs, read(*files(preempting)).known_machine(), "slurm")


def test_on_nodes_that_are_on_jobs_start_as_without_power_saving() -> None:
    inputs, policy = case((0.0, 3.0, 2), (4.0, 3.0, 4))
    plain, saved = (slurm_cases.both(each, policy) for each in (replace(inputs, saving=None), inputs))
    assert (plain.start, plain.end) == (saved.start, saved.end)
    assert saved.switched == [] or min(each.at for each in saved.switched) > max(saved.end)
    assert not plain.switched


def test_a_file_of_power_is_recognized_by_its_first_line_without_a_search() -> None:
    """A search over the blank lines and comments at the head of a slurm.conf took for ever."""
    head = "#\n\n \n" * 200
    assert recognized(f"{head}power:\n  n1: {{busy_w: 2, idle_w: 1}}\n")
    assert not recognized(f"{head}ClusterName=trial\npower: 3\n")
