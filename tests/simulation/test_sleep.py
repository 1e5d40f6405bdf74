"""Nodes that sleep: the states of their power in the run, and the rule `idle`."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tracebed.api as tb
from tests.oracles.drawn import draw
from tests.oracles.engines import POOLED, SLEEPING, case, compared
from tests.oracles.reference_scheduler import RefJob
from tests.oracles.reference_sleep import POLICIES, reference_sleep
from tests.scheduling.test_scheduling import POLICY_PARAMETERS, workload_of
from tracebed.cli import tracebed
from tracebed.ground.errors import InputError
from tracebed.machine.machine import Machine, NodeClass, Partition
from tracebed.machine.power import NodePower, PowerState, Sleep
from tracebed.machine.sources import read_machine
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.simulation.outages import OutageModel
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.tables import make_run

EVERY = (*SLEEPING, "fcfs-malleable", "deadline", "leak", "oar")
"""The policies of whole nodes."""
MACHINE = """\
classes:
  - {count: 16, cores: 4, power: {busy_w: 200, idle_w: 100, off_w: 5, boot_s: 30, shutdown_s: 10}}
tariff: {grid_price: 0.3, currency: EUR}
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "machine.yaml").write_text(MACHINE)
    return read_machine(tmp_path / "machine.yaml")


def test_changes_of_power_are_rows_of_the_table_nodes(machine: Machine, tmp_path: Path) -> None:
    """Sorted by time and node; the states of one instant stay in their order."""
    record, cluster = ScheduleRecord(Jobs.of(workload_of(draw(1).jobs))), Cluster([4] * 16)
    record.close("unknown", "")  # type: ignore[arg-type]
    changes = [(7, 10.0, "shutdown"), (3, 10.0, "shutdown"), (3, 10.0, "off"), (7, 20.0, "off"), (3, 12.0, "boot")]
    for node, time, state in changes:
        record.power.add(node, time, PowerState(state))
    info = RunInfo("simulator", "simulated", list(machine.nodes), {"name": "w"}, machine=machine)
    make_run(record, cluster, info).save(tmp_path / "run")
    rows = Run.load(tmp_path / "run").nodes
    told = list(rows[["node", "time", "power_state"]].itertuples(index=False, name=None))
    assert told == [(3, 10.0, "shutdown"), (3, 10.0, "off"), (7, 10.0, "shutdown"), (3, 12.0, "boot"), (7, 20.0, "off")]
    assert rows["power_w"].isna().all()


def test_an_unknown_state_of_power_is_refused(machine: Machine, tmp_path: Path) -> None:
    run = predict(workload_of(draw(1).jobs), machine, "easy")
    columns = {"time": [1.0, 2.0], "node": [0, 0], "power_state": ["off", "asleep"]}
    Run(run.info, run.jobs, run.allocations, None, pd.DataFrame(columns)).save(tmp_path / "run")
    with pytest.raises(InputError, match="power_state is 'asleep', not one of on, shutdown, off, boot"):
        Run.load(tmp_path / "run")


def test_a_run_records_a_machine_of_which_the_power_is_known(machine: Machine, tmp_path: Path) -> None:
    """It is simulated as its nodes are, since any job may have any of them."""
    workload = workload_of(draw(1).jobs)
    run = predict(workload, machine, "easy")
    assert run.info.machine == machine and machine.plain
    run.save(tmp_path / "run")
    assert Run.load(tmp_path / "run").info.machine == machine
    plain = predict(workload, 16, "easy")
    assert plain.info.machine is None
    assert plain.jobs["end"].equals(run.jobs["end"])


def sleeping(count: int, sleep: Sleep, boot_s: float = 30.0, shutdown_s: float = 10.0) -> Machine:
    power = NodePower(busy_w=200, idle_w=100, boot_s=boot_s, shutdown_s=shutdown_s)
    return Machine(classes=(NodeClass(count=count, power=power),), sleep=sleep)


def changes_of(run: Run) -> list[tuple[float, int, str]]:
    """Return time, node and state of each change of power."""
    return list(run.nodes[["time", "node", "power_state"]].itertuples(index=False, name=None))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), policy=st.sampled_from(POLICIES))
def test_both_simulators_do_as_the_slow_reference(seed: int, policy: str) -> None:
    """Rigid jobs on nodes of several classes: each start and end, and each change of power until the last end."""
    drawn, rng = draw(seed, policy), random.Random(f"reference of sleep {seed}")
    options = {
        name: value for name, value in drawn.options.items() if name not in ("reserve", "malleability_interval_s")
    }
    own = {"idle_s": rng.choice([0.0, 1.0, 3.0, 10.0, 40.0]), "keep": rng.choice([0, 0, 1, 3])}
    times = [(rng.choice([0.0, 1.0, 5.0, 12.0]), rng.choice([0.0, 1.0, 4.0, 15.0])) for _ in range(rng.choice([1, 2]))]
    power = [rng.choice(times) for _ in range(drawn.machine)]
    want, rows = reference_sleep(
        drawn.jobs,
        drawn.machine,
        policy,
        boot_s=[boot_s for boot_s, _ in power],
        shutdown_s=[shutdown_s for _, shutdown_s in power],
        **own,  # type: ignore[arg-type]
        **options,
    )
    classes = [
        NodeClass(count=1, power=NodePower(busy_w=2, idle_w=1, boot_s=boot_s, shutdown_s=shutdown_s))
        for boot_s, shutdown_s in power
    ]
    machine = Machine(classes=tuple(classes), sleep=Sleep(rule="idle", **own))  # type: ignore[arg-type]
    parameters = {name: options.pop(name) for name in [*options] if name in POLICY_PARAMETERS}
    options["over_limit"] = OverLimit(options["over_limit"])
    for engine in ("python", "compiled"):
        run = predict(workload_of(drawn.jobs), machine, policy, engine=engine, policy_parameters=parameters, **options)
        for id, start, end in run.jobs[["job_id", "start", "end"]].itertuples(index=False):
            expected = want[int(id)]
            if expected.state == "rejected":
                assert math.isnan(start)
            else:
                assert (start, end) == pytest.approx((expected.start, expected.end), abs=1e-6)
        last = run.jobs["end"].max()  # NaN if all are rejected
        got = [row for row in changes_of(run) if row[0] <= (0.0 if math.isnan(last) else last)]
        assert [row[1:] for row in got] == [row[1:] for row in rows]
        assert [row[0] for row in got] == pytest.approx([row[0] for row in rows], abs=1e-6)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), policy=st.sampled_from(SLEEPING))
def test_both_simulators_give_the_same_run_to_the_bit(seed: int, policy: str) -> None:
    assert not compared(seed, policy, sleep=True), (
        f"python -m tests.oracles.engines 1 --sleep --seed {seed} --policy {policy}"
    )


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), policy=st.sampled_from([name for name in SLEEPING if name in POOLED]))
def test_both_simulators_give_the_same_run_to_the_bit_on_pools(seed: int, policy: str) -> None:
    """Also the changes of nodes whose pool has no job any more, and of nodes of no pool."""
    assert not compared(seed, policy, pools=True, sleep=True), f"--pools --sleep --seed {seed} --policy {policy}"


@pytest.mark.parametrize("policy", ["easy", "keep-pref"])
def test_both_simulators_agree_with_hundreds_of_nodes(policy: str) -> None:
    assert not compared(3, policy, large=True, sleep=True)


def first_job(run: Run) -> dict[str, float]:
    return run.jobs.set_index("job_id").loc["0", ["start", "launched", "end"]].to_dict()


def test_a_job_holds_its_nodes_while_they_boot() -> None:
    """The nodes are off from 60 + 10 s on. The job of 100 s is submitted at 200 s, and ends 30 s later than without."""
    jobs = [RefJob(0, 200.0, 100.0, 100.0, 3)]
    run = predict(workload_of(jobs), sleeping(4, Sleep(rule="idle", idle_s=60.0, keep=1)), "easy")
    assert first_job(run) == {"start": 200.0, "launched": 230.0, "end": 330.0}
    off = [(at, node, state) for at, state in ((60.0, "shutdown"), (70.0, "off")) for node in (1, 2, 3)]
    boot = [(at, node, state) for at, state in ((200.0, "boot"), (230.0, "on")) for node in (1, 2)]
    assert changes_of(run) == [*off, *boot]  # node 0 was kept; the highest numbers are switched off first
    assert run.allocations[["node", "count", "start", "end"]].to_numpy().tolist() == [[0, 3, 200.0, 330.0]]


def test_no_job_gets_a_node_that_is_being_switched_off() -> None:
    """At 65 s, both nodes are being switched off until 70 s."""
    jobs = [RefJob(0, 65.0, 100.0, 100.0, 1)]
    run = predict(workload_of(jobs), sleeping(2, Sleep(rule="idle", idle_s=60.0)), "fcfs")
    assert first_job(run) == {"start": 70.0, "launched": 100.0, "end": 200.0}


def test_a_job_that_is_submitted_when_nodes_are_due_gets_them() -> None:
    jobs = [RefJob(0, 60.0, 100.0, 100.0, 2)]
    run = predict(workload_of(jobs), sleeping(2, Sleep(rule="idle", idle_s=60.0)), "fcfs")
    assert first_job(run) == {"start": 60.0, "launched": 60.0, "end": 160.0}


def test_an_expansion_waits_for_the_boot_and_the_job_works_on() -> None:
    """Job 1 ends at 100 s; its node sleeps from 110 s on. Job 0 expands to it when it is called again, at 300 s.

    By 330 s, job 0 has done 330 of its 1,000 s on one node. On two, the other 670 s take 335 s.
    """
    jobs = [
        RefJob(0, 0.0, 1000.0, 1000.0, 1, True, 1, 2, 1),
        RefJob(1, 0.0, 100.0, 100.0, 1),
        RefJob(2, 300.0, 0.0, 0.0, 3),  # is rejected
    ]
    machine = sleeping(2, Sleep(rule="idle", idle_s=10.0))
    run = predict(workload_of(jobs), machine, "pref", interval_s=300.0)
    assert changes_of(run)[:4] == [(110.0, 1, "shutdown"), (120.0, 1, "off"), (300.0, 1, "boot"), (330.0, 1, "on")]
    assert first_job(run)["end"] == pytest.approx(665.0)
    steps = run.reconfigurations[["asked", "decided", "applied"]].to_numpy().tolist()
    assert steps == [[300.0, 330.0, 330.0]]


@pytest.mark.parametrize(("limit", "starts"), [(125.0, [200.0, 360.0, 205.0]), (126.0, [200.0, 330.0, 410.0])])
def test_the_limit_of_a_job_counts_from_when_its_nodes_are_on(limit: float, starts: list[float]) -> None:
    """EASY expects job 0 to end at 330 s, by when a job of 125 s, submitted at 205 s, ends. The plan counts no boot of
    this job itself, which delays the head by 30 s.
    """
    jobs = [RefJob(0, 200.0, 100.0, 100.0, 3), RefJob(1, 201.0, 50.0, 50.0, 4), RefJob(2, 205.0, limit, limit, 1)]
    run = predict(workload_of(jobs), sleeping(4, Sleep(rule="idle", idle_s=60.0, keep=1)), "easy")
    assert run.jobs["start"].tolist() == starts


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), policy=st.sampled_from(SLEEPING))
def test_sleep_that_takes_no_time_changes_no_time(seed: int, policy: str) -> None:
    """Equal nodes that are switched off at once, and boot at once: each job starts and ends as without sleep."""
    arguments = case(seed, policy)
    count = len(arguments["nodes"])
    arguments["workload"].table["cores_per_node"] = 1
    plain = predict(**(arguments | {"nodes": count}))
    run = predict(**(arguments | {"nodes": sleeping(count, Sleep(rule="idle"), 0.0, 0.0)}))
    for name in ("start", "launched", "end"):
        assert run.jobs[name].equals(plain.jobs[name])


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), policy=st.sampled_from(EVERY))
def test_nodes_are_off_only_without_jobs_under_every_policy(seed: int, policy: str) -> None:
    """A node of a job is on, or boots until the job begins. States alternate, after the idle time."""
    rng, drawn = random.Random(f"every policy {seed}"), draw(seed)
    sleep = Sleep(rule="idle", idle_s=rng.choice([0.0, 2.0, 10.0]), keep=rng.choice([0, 1, 2]))
    machine = sleeping(drawn.machine, sleep, rng.choice([0.0, 1.0, 7.0]), rng.choice([0.0, 1.0, 7.0]))
    run = predict(workload_of(drawn.jobs), machine, policy, engine="python")
    held: dict[int, list[tuple[float, float]]] = {}
    for first, count, start, end in run.allocations[["node", "count", "start", "end"]].itertuples(index=False):
        for node in range(first, first + count):
            held.setdefault(node, []).append((start, end))
    by_node: dict[int, list[tuple[float, str]]] = {}
    for at, node, state in changes_of(run):
        by_node.setdefault(node, []).append((at, state))
    following = {"on": "shutdown", "shutdown": "off", "off": "boot", "boot": "on"}
    for node, steps in by_node.items():
        assert [state for _, state in steps] == [*itertools.islice(states_after_on(following), len(steps))]
        for (at, state), (until, _) in zip(steps, [*steps[1:], (math.inf, "")], strict=True):
            for start, end in held.get(node, []):
                if state in ("shutdown", "off"):
                    assert not (start < until and at < end), (node, state, at, until, start, end)
            if state == "shutdown":
                assert not any(end <= at < end + sleep.idle_s for _, end in held.get(node, []))
    jobs, resized = run.jobs.set_index("job_id"), {*run.reconfigurations["job_id"]}
    for id, first, count, since in run.allocations[["job_id", "node", "count", "start"]].itertuples(index=False):
        if id not in resized:
            boots = [step for node in range(first, first + count) for step in pairs(by_node.get(node, []))]
            assert all(jobs["launched"][id] >= on for begun, on in boots if begun == since)


def pairs(steps: list[tuple[float, str]]) -> list[tuple[float, float]]:
    """Return the begin and the end of each boot of a node."""
    return [(begun, on) for (begun, state), (on, _) in itertools.pairwise(steps) if state == "boot"]


def states_after_on(following: dict[str, str]) -> Iterator[str]:
    state = "on"
    while True:
        state = following[state]
        yield state


@pytest.mark.parametrize(
    ("machine", "policy", "options", "what"),
    [
        ({}, "sd", {}, "lets jobs share nodes"),
        ({"memory_mib": 1000}, "easy", {"engine": "compiled", "priority": "aging"}, "pools with the priority aging"),
        ({"power": None}, "easy", {}, "class 1 of the machine has no `power`"),
        ({}, "easy", {"outages": OutageModel(mtbf_s=100.0, repair_s=10.0), "engine": "compiled"}, "outages"),
    ],
)
def test_what_cannot_sleep_is_refused(machine: dict[str, Any], policy: str, options: dict[str, Any], what: str) -> None:
    power = NodePower(busy_w=2, idle_w=1)
    kind = NodeClass(**({"count": 16, "power": power} | machine))
    with pytest.raises(InputError, match=what):
        predict(workload_of(draw(1).jobs), Machine(classes=(kind,), sleep=Sleep(rule="idle")), policy, **options)


def test_nodes_of_unlike_weights_sleep_in_the_python_simulator() -> None:
    power = NodePower(busy_w=2, idle_w=1)
    classes = tuple(NodeClass(count=8, power=power, weight=weight) for weight in (1, 2))
    machine, workload = Machine(classes=classes, sleep=Sleep(rule="idle")), workload_of(draw(1).jobs)
    assert predict(workload, machine, "easy").info.engine == "python"
    with pytest.raises(InputError, match="nodes of unlike weights that sleep"):
        predict(workload, machine, "easy", engine="compiled")


@pytest.mark.parametrize("engine", ["python", "compiled"])
def test_nodes_that_can_serve_no_job_sleep(engine: str) -> None:
    """Without a pool, no node stays on. Nothing happens after the submission at 65 s, when they are switched off."""
    machine = sleeping(2, Sleep(rule="idle", idle_s=60.0, keep=1))
    workload = workload_of([RefJob(0, 65.0, 100.0, 100.0, 1)])
    workload.table["partition"] = ["absent"]
    machine = dataclasses.replace(machine, partitions=(Partition(name="batch", nodes=()),))
    run = predict(workload, machine, "easy", engine=engine)
    rows = [(at, node, state) for at, state in ((60.0, "shutdown"), (70.0, "off")) for node in (0, 1)]
    assert changes_of(run) == rows and math.isnan(run.jobs["start"][0])


def test_an_experiment_has_machines_with_sleep_and_without(tmp_path: Path) -> None:
    """The same workload by several names, each on a machine of its own: cells side by side."""
    jobs = [RefJob(0, 200.0, 100.0, 100.0, 16)]
    tb.write(workload_of(jobs), tmp_path / "w.parquet")
    for name, sleep in {"f0": "", "f30": "sleep: {rule: idle, idle_s: 60}\n"}.items():
        (tmp_path / f"{name}.yaml").write_text(MACHINE + sleep)
    cells = "{f0: {file: w.parquet, machine: f0.yaml}, f30: {file: w.parquet, machine: f30.yaml}}"
    (tmp_path / "trial.yaml").write_text(f"workloads: {cells}\npolicies: [easy, fcfs]\n")
    done = CliRunner().invoke(tracebed, ["experiment", str(tmp_path / "trial.yaml"), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    table = pd.read_parquet(tmp_path / "out" / "trial" / "table.parquet")
    assert table.groupby("workload")["makespan_s"].unique().map(list).to_dict() == {"f0": [100], "f30": [130]}
