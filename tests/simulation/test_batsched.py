"""The executor `batsched`: nodes switched by plan, beside the runs that Batsim published, and on drawn jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracebed.api as tb
from tracebed.converters.provenance import Provenance, System
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.machine.machine import Machine, NodeClass
from tracebed.machine.power import NodePower, PowerState, Sleep
from tracebed.machine.sources import read_machine
from tracebed.orchestrator.executors import Options, execute
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.scheduling.sleeping import Sleeping
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.batsched import Simulation
from tracebed.orchestrator.simulation.prediction import PredictionOptions, predict
from tracebed.studies.board.datasets import fetch

POWER = NodePower(busy_w=3.0, idle_w=2.0, boot_s=100.0, shutdown_s=10.0)
AT_ONCE = Sleep(rule="subpart", idle_s=0, period_s=300, margin_s=5)


def machine(nodes: int, sleep: Sleep) -> Machine:
    return Machine(classes=(NodeClass(count=nodes, cores=1, power=POWER),), sleep=sleep)


def workload(*jobs: tuple[float, int, float, float], nodes: int = 4) -> Workload:
    """Return a workload of jobs: submission, nodes, run time and limit."""
    columns = zip(*jobs, strict=True)
    table = pd.DataFrame(dict(zip(("submit_time", "nodes", "run_time", "time_limit"), columns, strict=True)))
    return Workload(table.assign(job_id=[str(job) for job in range(len(jobs))]), Provenance(system=System(nodes, 1)))


def states(run: Run) -> list[tuple[float, int, str]]:
    """Return the changes of the states of the nodes: time, node, state."""
    rows = run.table("nodes").frame()
    rows = rows[rows["power_state"].fillna("") != ""]
    return list(zip(rows["time"], rows["node"], rows["power_state"], strict=True))


def allocations(run: Run) -> pd.DataFrame:
    return run.table("allocations").frame()


def held(ranges: Iterable[tuple[str, int, int]]) -> set[tuple[str, int]]:
    """Return the pairs of job and node of ranges of nodes: job, first node, number of nodes."""
    return {(job, node) for job, first, number in ranges for node in range(first, first + number)}


# -- the published runs

# Run -> which of simultaneous ends of jobs was told first, where that is another one than the first that began: number
# of the instant -> place in the order of the starts. A search found them, one instant after the other.
ORDERS: dict[str, dict[int, int]] = {
    "opportunistic_shutdown": {6: 1, 7: 1, 10: 2, 11: 1, 13: 1},
    "easy_subpart5": dict.fromkeys((3, 4, 11, 25, 26, 40, 41, 47, 49, 50, 58, 59, 60, 61, 70, 78, 81, 89), 1)
    | {9: 2, 18: 2, 22: 2},
    "inertial_shutdown": dict.fromkeys((11, 16, 18, 25, 27, 28, 34, 43, 49), 1) | {10: 2, 44: 4},
    "inertial_opportunistic_shutdown": dict.fromkeys((2, 9, 11, 12, 16, 17, 19, 21, 26, 28, 34), 1),
}


@pytest.fixture(scope="module")
def published(reference_data: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batsim") / "shutdown"
    fetch("batsim-shutdown", folder, reference_data("evalys"))
    return folder


@pytest.mark.parametrize("name", ORDERS)
def test_each_start_and_each_state_of_batsim_is_repeated_in_its_order_of_ends(published: Path, name: str) -> None:
    work, on = tb.read(published / "medium_late.json"), read_machine(published / f"{name}.machine.yaml")
    batsim = tb.import_run(published / f"{name}.out_jobs.csv", side="predicted", workload=work)
    jobs, cluster, sleeping = Jobs.of(work, cores_per_node=1), Cluster([1] * 32), Sleeping.of(on)
    assert sleeping is not None
    record, instants, order = ScheduleRecord(jobs), count(), ORDERS[name]
    Simulation(jobs, sleeping, record, cluster, lambda ends: min(order.get(next(instants), 0), ends - 1)).run()

    theirs = batsim.jobs.set_index("job_id")["start"]
    ours = pd.Series(record.start, index=jobs.ids)
    assert (ours - theirs.reindex(ours.index)).abs().max() < 1e-5
    ledger = cluster.ledger.complete()
    nodes = held(zip(map(jobs.ids.__getitem__, ledger.jobs), ledger.firsts, ledger.counts, strict=True))
    assert nodes == held(allocations(batsim)[["job_id", "node", "count"]].itertuples(index=False))
    codes = list(PowerState)
    changes = zip(record.power.time, record.power.node, record.power.state, strict=True)
    by_node = sorted([(at, node, codes[code]) for at, node, code in changes], key=lambda row: row[1])
    recorded = sorted([row for row in states(batsim) if row[0] > 0 or row[2] != "on"], key=lambda row: row[1])
    assert [row[1:] for row in by_node] == [row[1:] for row in recorded]
    assert [row[0] for row in by_node] == pytest.approx([row[0] for row in recorded], abs=0.06)  # six digits there


def test_the_mean_wait_of_batsim_is_within_that_of_other_orders(published: Path) -> None:
    work = tb.read(published / "medium_late.json")
    for name, wait_s in {"opportunistic_shutdown": 41.53, "inertial_shutdown": 284.9}.items():
        on = read_machine(published / f"{name}.machine.yaml")
        runs = [predict(work, on, "easy", member=member) for member in range(5)]
        waits = [float((run.jobs["start"] - run.jobs["submit"]).mean()) for run in runs]
        assert min(waits) < wait_s < max(waits)


# -- the rules on a few jobs


def test_nodes_boot_for_the_queue_and_another_job_may_take_them() -> None:
    run = predict(workload((50, 2, 60, 60)), machine(4, AT_ONCE), "easy")
    off = [(0.0, node, "shutdown") for node in range(4)] + [(10.0, node, "off") for node in range(4)]
    # The first job counts twice: two nodes boot since it fits nowhere, and two others for the queue.
    boots = [(50.0, node, "boot") for node in range(4)] + [(150.0, node, "on") for node in range(4)]
    assert [each for each in states(run) if each[0] < 160 and (each[0] < 150 or each[2] == "on")] == off + boots
    (row,) = allocations(run)[["node", "count", "start", "end"]].values.tolist()
    assert tuple(row) == (0, 2, 150.0, 210.0)  # only when the nodes are on


def test_no_idle_node_is_switched_off_while_a_node_boots() -> None:
    jobs = workload((50, 2, 60, 60), (140, 1, 20, 20))
    changes = states(predict(jobs, machine(4, AT_ONCE), "easy"))
    booting = [(at, until) for at, _, state in changes if state == "boot" for until in (at + POWER.boot_s,)]
    for at, _, state in changes:
        assert state != "shutdown" or not any(begin <= at < end for begin, end in booting)


def test_a_part_is_switched_off_each_period_and_the_first_job_wakes_it() -> None:
    on = machine(4, replace(AT_ONCE, share=0.5, idle_s=None))
    run = predict(workload((0, 1, 10, 10), (400, 3, 10, 10)), on, "easy")
    changes = states(run)
    assert [each for each in changes if each[2] == "shutdown"][:2] == [(300.0, 0, "shutdown"), (300.0, 1, "shutdown")]
    assert [each for each in changes if each[2] == "boot"] == [(400.0, 0, "boot")]
    assert run.jobs["start"].tolist() == [0.0, 500.0]


def test_ever_more_nodes_are_switched_off_while_the_load_does_not_grow() -> None:
    on = machine(16, Sleep(rule="inertial", idle_s=None, period_s=60, margin_s=5))
    changes = states(predict(workload((0, 1, 600, 600), nodes=16), on, "easy"))
    begun = pd.Series([at for at, _, state in changes if state == "shutdown"]).value_counts().sort_index()
    assert begun.index.tolist()[:4] == [180, 240, 300, 360]  # the first look, the change of the trend, 1, 2, 4, ...
    assert begun.tolist()[:4] == [1, 2, 4, 8]


DRAWN = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(1, 8), st.integers(1, 400), st.integers(1, 400)),
    min_size=1,
    max_size=12,
)
RULES = st.builds(
    Sleep,
    rule=st.sampled_from(["subpart", "inertial"]),
    share=st.sampled_from([0.0, 0.5, 1.0]),
    idle_s=st.sampled_from([None, 0.0, 100.0]),
    period_s=st.sampled_from([60.0, 300.0]),
    factor=st.sampled_from([1.0, 2.0]),
    margin_s=st.sampled_from([0.0, 5.0]),
)


@settings(deadline=None, max_examples=60)
@given(jobs=DRAWN, sleep=RULES, limits=st.sampled_from(["extend", "kill", "again", "now"]))
def test_jobs_hold_nodes_that_are_on_and_no_two_jobs_hold_one(
    jobs: list[tuple[float, int, float, float]], sleep: Sleep, limits: str
) -> None:
    setup = Setup.of("easy", over_limit=limits)
    run = execute(workload(*jobs, nodes=8), machine(8, sleep), setup)
    assert set(run.jobs["state"]) <= {"completed", "killed"}
    rows, changes = allocations(run), states(run)
    for node in range(8):
        on_it = rows[(rows["node"] <= node) & (node < rows["node"] + rows["count"])]
        own = sorted(zip(on_it["start"], on_it["end"], strict=True))
        assert all(end <= begin for (_, end), (begin, _) in pairwise(own))
        steps = [(0.0, "on"), *((at, state) for at, each, state in changes if each == node)]
        for (at, state), (until, _) in zip(steps, [*steps[1:], (float("inf"), "")], strict=True):
            assert state == "on" or not any(start < until and at < end for start, end in own)


def test_a_member_draws_the_order_of_simultaneous_ends_only() -> None:
    jobs = workload(*[(10.0 * job, 1 + job % 3, 100, 150) for job in range(40)])
    on = machine(4, AT_ONCE)
    first, again, plain = (predict(jobs, on, "easy", member=member) for member in (3, 3, None))
    assert allocations(first).equals(allocations(again)) and first.info.parameters == {
        "executor": "batsched",
        "member": 3,
    }
    assert plain.info.parameters == {"executor": "batsched"}


@pytest.mark.parametrize(
    ("policy", "given", "text"),
    [
        ("fcfs", {}, "does not accept this machine with the policy fcfs"),
        ("easy", {"interval_s": 5}, "does not support a scheduling interval"),
        ("easy", {"overheads": {"launch_s": 3}}, "does not support overheads"),
    ],
)
def test_what_the_rules_do_not_have_is_refused(policy: str, given: Mapping[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        predict(workload((0, 1, 10, 10)), machine(4, AT_ONCE), policy, **given)


def test_other_executors_refuse_the_rule() -> None:
    with pytest.raises(InputError, match="the rule subpart is that of the executor batsched"):
        execute(
            workload((0, 1, 10, 10)), machine(4, AT_ONCE), Setup.of("easy"), PredictionOptions(), executor="simulator"
        )
    with pytest.raises(InputError, match="the executor nights does not accept"):
        execute(workload((0, 1, 10, 10)), machine(4, AT_ONCE), Setup.of("firstfit"), Options(), executor="nights")
    with pytest.raises(InputError, match="the rule idle has no idle_s"):
        Sleep(rule="idle", idle_s=None)
