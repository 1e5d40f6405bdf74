"""Interference: kernels measured beside each other, and simulations of jobs that share nodes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tracebed.api as tb
from tests.oracles.redecided import virtual
from tests.runs import replaying
from tests.scheduling.test_cores import case, workload_of
from tests.servers.agents import Agent
from tests.testbeds.test_calibrate import calibration, estimate
from tracebed.benchmarks.kernels import compute
from tracebed.converters.workload import Workload
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.calibrating.procedure import interference
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.interference import Interference, kernel_of
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.testbeds.agent.node import core_rates
from tracebed.orchestrator.testbeds.base import TESTBEDS
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

CPUS = sorted(os.sched_getaffinity(0))[:2]
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="this process may use one CPU only")


# -- the measurement


@two_cpus
def test_the_kernel_beside_runs_on_the_other_cpus_during_the_measurement() -> None:
    seen: set[tuple[int, ...]] = set()

    def beside(first: int, count: int) -> int:
        seen.add((threading.get_ident(), *sorted(os.sched_getaffinity(0))))
        return compute(first, count)

    measured: set[tuple[int, ...]] = set()

    def kernel(first: int, count: int) -> int:
        measured.add((threading.get_ident(), *sorted(os.sched_getaffinity(0))))
        return compute(first, count)

    [windows] = core_rates(CPUS[:1], 3, 0.01, kernel, others=CPUS[1:], beside=beside)
    assert len(windows) == 3 and min(rate for rate, _ in windows) > 0
    assert {tuple(mask) for _, *mask in measured} == {(CPUS[0],)}
    assert {tuple(mask) for _, *mask in seen} == {(CPUS[1],)}


def test_an_error_of_the_kernel_beside_is_not_hidden() -> None:
    def failing(first: int, count: int) -> int:
        raise MemoryError("no memory")

    with pytest.raises(MemoryError, match="no memory"):
        core_rates(CPUS[:1], 1, 0.005, compute, others=CPUS[:1], beside=failing)


@two_cpus
@pytest.mark.parametrize("cores", [1, 2, None])
def test_an_agent_measures_a_kernel_beside_another_one(tmp_path: Path, cores: int | None) -> None:
    node = {"name": "n1", "cores": 2, "cpus": ",".join(map(str, CPUS)), "emulated": False}
    request = {"type": "measure", "windows": 2, "seconds": 0.01, "kernel": "pils", "beside": "stream"}
    with Agent(tmp_path, node=node) as agent:
        agent.greet()
        agent.tell(request | {"cores": cores})
        answer = agent.hear("measured" if cores == 1 else "error")
    if cores == 1:
        [[(rate, _), _]] = answer["rates"]
        assert rate > 100
    else:
        assert "no core is left" in answer["what"]


@pytest.mark.slow
@two_cpus
@pytest.mark.usefixtures("no_process_is_left")
def test_pils_and_stream_are_measured_beside_each_other_on_two_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The factors depend on the machine and its load, so they are only bounded. No process of the nodes is left."""
    monkeypatch.setattr(sys.modules[interference.__module__], "INTERFERENCE_WINDOW_S", 0.03)
    nodes = (Node("n1", 2, 1, tuple(CPUS), False, 1.0),)
    inventory = Inventory("two", "agents", nodes)
    testbed = TESTBEDS.load(inventory.testbed)(inventory, tmp_path / "cores")
    try:
        testbed.start()
        table = interference(testbed)
    finally:
        testbed.stop()
    assert {kernel: [*row] for kernel, row in table.items()} == {
        "pils": ["pils", "stream"],
        "stream": ["pils", "stream"],
    }
    for row in table.values():
        for one in row.values():
            assert 0 < one.low <= one.value == one.median <= one.high < 10
            assert one.count == 15 and len(one.repetitions) == 3


# -- the table


TABLE = {"pils": {"pils": 0.9, "stream": 0.72}, "stream": {"pils": 0.9, "stream": 0.6}}


def calibrated(table: Mapping[str, Mapping[str, float]], **changes: object) -> tb.Calibration:
    rows = {kernel: {other: estimate(value) for other, value in row.items()} for kernel, row in table.items()}
    return calibration(**{"interference": rows, "overheads": {}, "grain_s": 1e-6, "duty": 1.0} | changes)


def test_a_calibration_with_a_table_survives_saving_and_loading(tmp_path: Path) -> None:
    made = calibrated(TABLE)
    assert tb.Calibration.load(made.save(tmp_path / "c.yaml")) == made
    assert made.facts()["interference"] == TABLE
    assert "interference" not in calibration().facts()


def test_a_factor_is_relative_to_the_kernel_beside_itself() -> None:
    found = Interference.of(calibrated(TABLE).facts())
    assert found is not None
    assert found.beside("pils", "pils") == found.beside("stream", "stream") == 1.0
    assert found.beside("pils", "stream") == pytest.approx(0.8)
    assert found.beside("stream", "pils") == pytest.approx(1.5)
    assert found.beside("pils", "") == found.beside("", "pils") == found.beside("pils", "fft") == 1.0


def test_a_duty_hides_what_fits_into_the_plan() -> None:
    half, most = Interference(TABLE, 0.5), Interference(TABLE, 0.9)
    assert half.beside("pils", "stream") == 1.0 and half.beside("stream", "pils") == 1.0
    assert most.beside("pils", "stream") == pytest.approx(0.8 / 0.9)


def test_emulated_nodes_have_no_interference() -> None:
    assert Interference.of(calibrated(TABLE, duty=0.0).facts()) is None
    assert Interference.of(calibration().facts()) is None
    assert Interference.of({}) is None


@pytest.mark.parametrize(
    ("application", "kernel"),
    [("pils", "pils"), ("stream", "stream"), ("nest", "pils"), ("command", ""), ("nothing", "")],
)
def test_the_kernel_of_a_job_is_the_first_one_of_its_application(application: str, kernel: str) -> None:
    assert kernel_of(application, "") == kernel


# -- simulations


GRAIN = Overheads(grain_s=1e-6)
"""The overheads of `calibrated`."""
NODE = [NodeFacts("n1", 4)]


def pair(owner: str, guest: str, kind: str = "malleable", *, guest_s: float = 100.0) -> Workload:
    """Return two jobs that share one node with 4 cores: `drom-share` gives each 2 of them."""
    table = {
        "job_id": ["owner", "guest"],
        "submit_time": [0.0, 0.0],
        "run_time": [200.0, guest_s],
        "time_limit": [2000.0, 2000.0],
        "nodes": [1, 1],
        "cores_per_node": [4, 4],
        "kind": ["malleable", kind],
        "application": [owner, guest],
    }
    return Workload(pd.DataFrame(table))


def ends(workload: Workload, table: Mapping[str, Mapping[str, float]] | None) -> dict[str, float]:
    given = {"calibration": calibrated(table)} if table is not None else {"overheads": GRAIN}
    run = predict(workload, NODE, "drom-share", **given)
    return dict(zip(run.jobs["job_id"], run.jobs["end"], strict=True))


def test_jobs_on_one_node_slow_each_other_down() -> None:
    work = pair("pils", "stream")
    assert ends(work, None) == pytest.approx({"guest": 200, "owner": 300})
    # the guest needs 100 / (0.5 x 1.5) s; then the owner has 200 - 0.4 x 133.33 s of work left
    assert ends(work, TABLE) == pytest.approx({"guest": 100 / 0.75, "owner": 100 / 0.75 + 200 - 0.4 * 100 / 0.75})
    assert ends(pair("pils", "pils"), TABLE) == ends(pair("pils", "pils"), None)
    assert ends(pair("pils", "command"), TABLE) == ends(work, None)


def test_a_moldable_guest_keeps_its_cores_but_recovers_when_its_owner_ends() -> None:
    table = {"pils": {"pils": 1.0, "stream": 0.8}, "stream": {"pils": 0.5, "stream": 1.0}}
    work = pair("pils", "stream", "moldable", guest_s=400.0)
    assert ends(work, None) == pytest.approx({"owner": 400, "guest": 800})
    # the owner ends after 200 / (0.5 x 0.8) s; the guest has done 0.25 x 500 s of work by then, and goes on at 0.5
    assert ends(work, table) == pytest.approx({"owner": 500, "guest": 500 + (400 - 125) / 0.5})


@pytest.mark.parametrize("policy", ["sd", "drom-share"])
@pytest.mark.parametrize("table", ["equal", "unknown"])
def test_factors_of_one_change_nothing_to_the_bit(policy: str, table: str) -> None:
    """Factors that are 1, or of other kernels than those of the jobs, give the tables of a run without them."""
    same = {"pils": {"pils": 0.7, "stream": 0.7}, "stream": {"pils": 0.6, "stream": 0.6}}
    factors = same if table == "equal" else {"fft": {"fft": 0.3}}
    shared = 0
    for seed in range(12):
        jobs, machine, parameters = case(seed, policy)
        work = workload_of(jobs)
        applications = [["pils", "stream"][job.id % 2] for job in jobs]
        work = Workload(work.table.assign(application=applications))
        nodes = [NodeFacts(f"n{node}", machine["cores"], machine["sockets"]) for node in range(machine["nodes"])]
        arguments: dict[str, Any] = {
            "policy_parameters": parameters,
            "runtime_model": RuntimeModel(machine["model"]),
            "over_limit": machine["over_limit"],
            "overheads": GRAIN,
        }
        plain = predict(work, nodes, policy, **arguments)
        other = predict(work, nodes, policy, calibration=calibrated(factors), **arguments)
        for name in ("jobs", "allocations", "reconfigurations"):
            pd.testing.assert_frame_equal(getattr(other, name), getattr(plain, name), check_exact=True)
        shared += (plain.allocations["cores"] < machine["cores"]).any()
    assert shared > 1


# -- error budgets


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
def test_the_budget_has_a_step_of_the_interference_of_shared_nodes(tmp_path: Path) -> None:
    work = pair("pils", "stream")
    replay(work, virtual(1, 4), "drom-share", tmp_path / "shared", **replaying(1000.0))
    found = tb.error_budget(work, tmp_path / "shared", calibration=calibrated(TABLE))
    assert found.causes == ["overheads", "interference", "submissions", "delays", "work", "calls", "remainder"]
    assert found.decisions == 0
    assert abs(found.frame.loc["makespan_s", "interference"]) > 1
    steps = found.runs[0].steps
    nodes = Run.load(tmp_path / "shared").info.nodes
    predicted = predict(work, nodes, "drom-share", calibration=calibrated(TABLE), speed=1000)
    pd.testing.assert_frame_equal(steps["interference"].jobs, predicted.jobs)
    again = tb.error_budget(work, tmp_path / "shared", predicted=predicted)
    assert again.frame["interference"].equals(found.frame["interference"])
    for known in (calibrated({}), None):
        assert "interference" not in tb.error_budget(work, tmp_path / "shared", calibration=known).causes


@pytest.mark.usefixtures("no_process_is_left")
def test_the_budget_of_a_policy_that_shares_no_nodes_has_no_such_step(tmp_path: Path) -> None:
    work = pair("pils", "stream")
    replay(work, virtual(1, 4), "fcfs", tmp_path / "alone", **replaying(1000.0))
    assert "interference" not in tb.error_budget(work, tmp_path / "alone", calibration=calibrated(TABLE)).causes
