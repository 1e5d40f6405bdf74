"""Energy: counters of the machine, samples of power in a run, and the metrics of both kinds."""

from __future__ import annotations

import json
import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tracebed.api as tb
from tests.commands import call
from tests.oracles.redecided import virtual
from tests.replay.test_replay_sharing import MATE_AND_GUEST
from tests.runs import by_node, lending_run, make_run, replaying
from tracebed.ground.errors import InputError
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.monitor import Monitor
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.testbeds.agent.machine import EnergyCounter, Sampler, energy_zones
from tracebed.validation.metrics import MeasuredRun, PowerModel, metrics
from tracebed.validation.metrics.energy import recorded_power

RANGE = 1_000_000
ZONES = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "dram",
    "intel-rapl:1": "package-1",
    "intel-rapl:2": "psys",
    "intel-rapl-mmio:0": "package-0",
}


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Return a folder as the kernel shows it for two packages, one of them with memory."""
    for zone, name in ZONES.items():
        folder = tmp_path / "powercap" / zone
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
        (folder / "energy_uj").write_text("0\n")
    return tmp_path / "powercap"


def advance(powercap: Path, **energies: int) -> None:
    """Set counters, in uJ; `_` in a name is `:`."""
    for zone, value in energies.items():
        (powercap / f"intel-rapl:{zone.strip('z').replace('_', ':')}" / "energy_uj").write_text(f"{value}\n")


def energy(sampler: Sampler) -> Any:
    return sampler.sample()["host"].get("energy_j", "not sampled")


def test_packages_and_memory_are_added_and_their_parts_are_not(powercap: Path) -> None:
    assert [zone.name for zone in energy_zones(powercap)] == ["intel-rapl:0", "intel-rapl:0:1", "intel-rapl:1"]
    sampler = Sampler([0], host=True, powercap=powercap)
    assert energy(sampler) is None  # no counter has advanced
    advance(powercap, z0=300_000, z0_0=250_000, z0_1=20_000, z1=100_000, z2=500_000)
    assert energy(sampler) == pytest.approx(0.42)


def test_a_counter_wraps_around_several_times(powercap: Path) -> None:
    counter = EnergyCounter(powercap / "intel-rapl:1")
    total = 0
    for _ in range(7):
        total += 400_000
        advance(powercap, z1=total % RANGE)
        assert counter.read() == pytest.approx(total / 1e6)


def test_a_counter_that_goes_back_without_a_known_range_is_unknown(powercap: Path) -> None:
    (powercap / "intel-rapl:1" / "max_energy_range_uj").unlink()
    counter = EnergyCounter(powercap / "intel-rapl:1")
    advance(powercap, z1=10)
    assert counter.read() == 1e-5
    advance(powercap, z1=5)
    assert counter.read() is None


def test_energy_is_unknown_without_permission_and_not_sampled_without_counters(powercap: Path, tmp_path: Path) -> None:
    sampler = Sampler([0], host=True, powercap=powercap)
    advance(powercap, z0=10, z0_1=10, z1=10)
    assert energy(sampler) == pytest.approx(3e-5)
    (powercap / "intel-rapl:0" / "energy_uj").unlink()  # root may read any file, so chmod is no test
    assert energy(Sampler([0], host=True, powercap=powercap)) is None
    assert energy(Sampler([0], host=True, powercap=tmp_path / "missing")) == "not sampled"
    assert energy(Sampler(host=True, powercap=powercap)) == "not sampled"  # an emulated node


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read any file")
def test_energy_is_unknown_without_permission(powercap: Path) -> None:
    (powercap / "intel-rapl:0" / "energy_uj").chmod(0)
    assert energy(Sampler([0], host=True, powercap=powercap)) is None


def test_samples_become_the_power_of_a_node() -> None:
    workload = tb.Workload(pd.DataFrame({"job_id": ["a"], "submit_time": [0.0], "run_time": [9.0], "nodes": [1]}))
    monitor = Monitor(Jobs.of(workload), [NodeFacts("n1", 2)], speed=10.0)
    for number, joules in enumerate((None, 5.0, 65.0, 95.0)):
        host = {"cpus": 2, "busy_s": 0.0, "steal_s": 0.0, "energy_j": joules}
        data = {"time": 0.5 * number, "cpu_s": 0.0, "host": host}
        monitor.apply(Entry(number, 5.0 * number, "sample", None, "n1", data))
    power = monitor.table()["power_w"]
    assert math.isnan(power[0])
    assert power[1:].tolist() == [120.0, 60.0]


def test_what_a_node_takes_while_it_sleeps_is_not_measured() -> None:
    """The counters of another agent begin again: no row is about the time in which there was none."""
    workload = tb.Workload(pd.DataFrame({"job_id": ["a"], "submit_time": [0.0], "run_time": [9.0], "nodes": [1]}))
    monitor = Monitor(Jobs.of(workload), [NodeFacts("n1", 2)], speed=10.0)

    def sample(second: float, cpu_s: float, joules: float) -> None:
        host = {"cpus": 2, "busy_s": cpu_s, "steal_s": 0.0, "energy_j": joules}
        data = {"time": second, "cpu_s": cpu_s, "busy_s": cpu_s, "steal_s": 0.0, "host": host}
        monitor.apply(Entry(0, 10 * second, "sample", None, "n1", data))

    for second in (0.0, 1.0, 2.0):
        sample(second, second, 100.0 * second)
    monitor.apply(Entry(0, 25.0, "asleep", None, "n1", {}))
    for second in (9.0, 10.0):
        sample(second, 0.5 * (second - 9.0), 40.0 * (second - 9.0))
    table = monitor.table()
    assert table["time"].tolist() == [10.0, 20.0, 90.0, 100.0]
    assert table["power_w"].fillna(-1).tolist() == [100.0, 100.0, -1.0, 40.0]
    assert monitor.nodes[0].mean("busy_s") == pytest.approx((2 * 1.0 + 1 * 0.5) / 3)


def run_with(samples: list[tuple[float, int, float]], **info: Any) -> Run:
    """Return a run of 100 s on two nodes with 4 cores, one of which is busy for 50 s, and these samples of power."""
    jobs = [(0.0, 0.0, 50.0, 1), (100.0, 100.0, 101.0, 1)]
    run = make_run(jobs, machine=2, cores=4, **info)
    table = pd.DataFrame(samples, columns=["time", "node", "power_w"])
    return Run(run.info, run.jobs, run.allocations, run.reconfigurations, table)


ONE_HOST: dict[str, Any] = {"hosts": [{"name": "a"}]}
STEADY = [(10.0 * n, 0, 200.0 if n <= 5 else 100.0) for n in range(11)]


def test_recorded_energy_is_the_exact_integral_of_the_means() -> None:
    found = metrics(run_with(STEADY, **ONE_HOST))
    assert found["energy_j"] == pytest.approx(50 * 200 + 50 * 100)
    assert found["energy_above_idle_j"] == pytest.approx(50 * 100)
    recorded = found["energy"]["recorded"]
    assert recorded == {"mean_w": pytest.approx(150), "idle_w": 100, "nodes": 1, "covered": pytest.approx(1), "gaps": 0}


def test_the_power_of_several_machines_is_added() -> None:
    both = [*STEADY, *((time, 1, 50.0) for time, _, _ in STEADY)]
    found = metrics(run_with(both, hosts=[{"name": "a"}, {"name": "b"}]))
    assert found["energy_j"] == pytest.approx(50 * 250 + 50 * 150)
    assert found["energy"]["recorded"]["idle_w"] == 150


def test_gaps_are_counted_and_a_sample_after_a_gap_is_its_mean() -> None:
    gappy = [sample for sample in STEADY if sample[0] <= 50 or sample[0] >= 100]
    found = metrics(run_with(gappy, **ONE_HOST))
    assert found["energy"]["recorded"]["gaps"] == 1
    assert found["energy_j"] == pytest.approx(50 * 200 + 50 * 100)


@pytest.mark.parametrize(
    ("samples", "hosts", "reason"),
    [
        ([], 1, "the run has no samples of power"),
        ([(10.0, 0, math.nan)], 1, "the run has no samples of power"),
        (STEADY[:8], 1, "the samples of power cover 70 % of the window"),
        (STEADY, 2, "power was recorded on 1 of 2 machines"),
    ],
)
def test_incomplete_power_is_no_energy(samples: list[Any], hosts: int, reason: str) -> None:
    found = metrics(run_with(samples, hosts=[{"name": str(n)} for n in range(hosts)]))
    assert math.isnan(found["energy_j"])
    assert found["undefined"]["energy_j"] == reason
    assert found["energy"]["recorded"] is None


def test_modelled_energy_is_that_of_busy_cores() -> None:
    run = run_with([])
    found = metrics(run)
    assert found["modelled_energy_j"] == pytest.approx(2 * 100 * 100 + 5 * 4 * 50)
    assert found["modelled_energy_above_idle_j"] == pytest.approx(5 * 4 * 50)
    assert found["energy"]["model"] == {"idle_w": 100, "busy_core_w": 5}
    other = metrics(run, power=PowerModel(idle_w=0, busy_core_w=2))
    assert other["modelled_energy_j"] == pytest.approx(2 * 4 * 50)
    for wrong in ((-1, 1), (1, math.inf), (math.nan, 1)):
        with pytest.raises(InputError, match="are invalid"):
            PowerModel(*wrong)


def slow_energy(run: Run, idle_w: float, core_w: float, start: float, end: float) -> float:
    """Return the sum of P_idle + (P_max - P_idle) x busy share over all nodes and spans between two instants, in J."""
    held, changes = by_node(run), run.core_changes[run.core_changes["state"] == "applied"].sort_values("applied")
    instants = {start, end, *held["start"], *held["end"], *changes["applied"]}
    total = 0.0
    for begin, stop in pairwise(sorted(each for each in instants if start <= each <= end)):
        for number, node in enumerate(run.info.nodes):
            busy = 0
            for row in held[(held["node"] == number) & (held["start"] <= begin) & (begin < held["end"])].itertuples():
                busy += row.cores
                mine = (changes["job_id"] == row.job_id) & (changes["node"] == number) & (changes["applied"] <= begin)
                for change in changes[mine].iloc[::-1].itertuples():
                    if change.cause != "operator":
                        break
                    busy += change.cores_to - change.cores_from
            full_w = idle_w + core_w * node.cores
            total += (idle_w + (full_w - idle_w) * busy / node.cores) * (stop - begin)
    return total


def test_modelled_energy_has_the_changes_of_cores_within_a_node() -> None:
    """Both jobs hold the same cores together; from 80 to 100 s, two cores that an operator took are idle."""
    run = lending_run()
    found = metrics(run, window=(0, 100))
    assert found["modelled_energy_j"] == pytest.approx(5 * 100 * 100 + 5 * (8 * 100 - 2 * 20))
    assert found["modelled_energy_j"] == pytest.approx(slow_energy(run, 100, 5, 0, 100))
    assert found["utilization"] == pytest.approx(8 / 20)  # the job still holds its nodes
    more = run.core_changes.iloc[[-1]].assign(cores_from=2, cores_to=3, applied=85.0)
    decided = more.assign(cores_from=4, cores_to=4, asked=90.0, applied=90.0, cause="return")
    changed = Run(run.info, run.jobs, run.allocations, pd.concat([run.reconfigurations, more, decided]))
    found = metrics(changed, window=(0, 100))
    assert found["modelled_energy_above_idle_j"] == pytest.approx(5 * (8 * 100 - 2 * 5 - 1 * 5))
    assert found["modelled_energy_j"] == pytest.approx(slow_energy(changed, 100, 5, 0, 100))


def test_modelled_energy_of_shared_nodes_is_that_of_a_slow_reference(tmp_path: Path) -> None:
    """A replay of a job that lends a core to a guest, and its simulation."""
    work, endless = tb.Workload(pd.DataFrame(MATE_AND_GUEST)), {"max_slowdown": "inf"}
    real = replay(work, virtual(1), "sd", tmp_path / "run", policy_parameters=endless, **replaying(speed=400))
    simulated = tb.simulate(work, "sd", virtual(1), policy_parameters=endless)
    for run in (real, simulated):
        assert {*run.core_changes["cause"]} == {"lend", "return"}
        assert run.jobs_on_shared_nodes == 2
        zero = float(run.jobs["submit"].min())
        end = float(run.jobs["end"].max()) - zero
        expected = slow_energy(run, 90, 4, zero, zero + end)
        found = metrics(run, window=(0.0, end), power=PowerModel(90, 4))
        assert found["modelled_energy_j"] == pytest.approx(expected, rel=1e-9)
        assert found["modelled_energy_j"] > 90 * end


def test_recorded_and_modelled_energy_never_meet() -> None:
    """A real run with samples and a prediction without: the recorded energy is undefined on one side."""
    real, predicted = run_with(STEADY, **ONE_HOST), run_with([], real=False)
    assert recorded_power(MeasuredRun(real)).nodes == 1
    assert "energy_j" in metrics(predicted)["undefined"]
    assert metrics(real)["modelled_energy_j"] == metrics(predicted)["modelled_energy_j"]


def test_the_command_takes_the_parameters_of_the_model(tmp_path: Path) -> None:
    run_with(STEADY, **ONE_HOST).save(tmp_path / "run")
    found = json.loads(call("metrics", tmp_path / "run", "--power", "10:1", "--json").stdout)
    figures = found["runs"][0]["metrics"]
    assert figures["modelled_energy_j"] == pytest.approx(2 * 10 * 100 + 4 * 50)
    assert figures["energy_j"] == pytest.approx(15_000)
    assert "energy in the window, modelled (J)" in call("metrics", tmp_path / "run").stdout
    wrong = call("metrics", tmp_path / "run", "--power", "much")
    assert "is not IDLE:CORE" in str(wrong.exception)
