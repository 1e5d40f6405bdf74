"""Nodes that sleep: the states of their power in the run, and the rule `idle`."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.drawn import draw
from tests.oracles.engines import SLEEPING, compared
from tests.oracles.reference_sleep import POLICIES, reference_sleep
from tests.scheduling.test_scheduling import POLICY_PARAMETERS, workload_of
from tracebed.ground.errors import InputError
from tracebed.machine.machine import Machine, NodeClass
from tracebed.machine.power import NodePower, PowerState, Sleep
from tracebed.machine.sources import read_machine
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.tables import make_run

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
        got = [row for row in changes_of(run) if not row[0] > run.jobs["end"].max()]
        assert [row[1:] for row in got] == [row[1:] for row in rows]
        assert [row[0] for row in got] == pytest.approx([row[0] for row in rows], abs=1e-6)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), policy=st.sampled_from(SLEEPING))
def test_both_simulators_give_the_same_run_to_the_bit(seed: int, policy: str) -> None:
    assert not compared(seed, policy, sleep=True), (
        f"python -m tests.oracles.engines 1 --sleep --seed {seed} --policy {policy}"
    )


@pytest.mark.parametrize("policy", ["easy", "keep-pref"])
def test_both_simulators_agree_with_hundreds_of_nodes(policy: str) -> None:
    assert not compared(3, policy, large=True, sleep=True)
