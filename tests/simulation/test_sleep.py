"""Nodes that sleep: the states of their power in the run, and the rule `idle`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.oracles.drawn import draw
from tests.scheduling.test_scheduling import workload_of
from tracebed.ground.errors import InputError
from tracebed.machine.machine import Machine
from tracebed.machine.power import PowerState
from tracebed.machine.sources import read_machine
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
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
