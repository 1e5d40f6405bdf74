"""The driver of ElastiSim: the same schedules as the simulator of tracebed, and clear errors when ElastiSim fails."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import elastisim_programs as programs
import tracebed.api as tb
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.orchestrator.run import Run, nodes_of
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.simulator import Overheads
from tracebed.validation.simulators.simulator import SimulateOptions, simulate

needs_zmq = pytest.mark.skipif(importlib.util.find_spec("zmq") is None, reason="pyzmq is not installed")
OVERHEADS = Overheads(
    launch_s=3.5, launch_join_s=2.25, launch_rank_s=0.5, end_s=1.125, end_rank_s=0.25, reconfiguration_s=4.0,
    expand_s=7.0, expand_rank_s=1.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the real program."""
    return programs.real(tmp_path_factory.mktemp("elastisim"))


def workload_of(*jobs: dict[str, Any], nodes: int = 4) -> Workload:
    """Return jobs with defaults: submitted at 0 s, 100 s on 2 nodes."""
    rows = [
        {"job_id": f"j{number}", "submit_time": 0.0, "run_time": 100.0, "nodes": 2, **job}
        for number, job in enumerate(jobs)
    ]
    table = pd.DataFrame(rows)
    for name, usual in {"kind": "rigid", "nodes_min": None, "nodes_max": None, "nodes_pref": None}.items():
        column = table[name] if name in table else pd.Series([None] * len(table))
        table[name] = column.fillna(usual) if usual else column.astype(float).fillna(table["nodes"]).astype(int)
    return Workload(table, Provenance(system=System(nodes, 1)))


def both(
    workload: Workload, policy: str, program: Path, *, nodes: int, overheads: Overheads | None = None, **options: Any
) -> tuple[Run, Run]:
    """Return the runs of tracebed's simulator and of ElastiSim."""
    overheads = overheads or Overheads()
    ours = predict(workload, nodes, policy, overheads=overheads, **options)
    machine = nodes_of(System(nodes, workload.provenance.system.cores_per_node))
    given = SimulateOptions(overheads=overheads, timeout_s=300, options={"program": str(program)}, **options)
    return ours, simulate("elastisim", workload, machine, policy, given)


def assert_same(ours: Run, theirs: Run) -> None:
    """Check that both runs have the same times, to 10 us, and the same states and allocations."""
    for name in ("submit", "start", "launched", "end"):
        assert np.allclose(ours.jobs[name], theirs.jobs[name], rtol=0, atol=1e-5, equal_nan=True), name
    assert ours.jobs["state"].tolist() == theirs.jobs["state"].tolist()
    assert ours.jobs["reason"].tolist() == theirs.jobs["reason"].tolist()
    assert ours.allocations[["job_id", "node", "count"]].equals(theirs.allocations[["job_id", "node", "count"]])
    columns = ["job_id", "kind", "nodes_from", "nodes_to", "state"]
    assert ours.reconfigurations[columns].equals(theirs.reconfigurations[columns])
    for name in ("asked", "decided", "applied"):
        mine, other = ours.reconfigurations[name], theirs.reconfigurations[name]
        assert np.allclose(mine, other, rtol=0, atol=1e-5, equal_nan=True), name


# -- conformance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_job_alone_takes_exactly_its_run_time(program: Path, nodes: int) -> None:
    workload = workload_of({"submit_time": 12.0, "run_time": 1234.5678912, "nodes": nodes})
    _, run = both(workload, "fcfs", program, nodes=4)
    assert (run.jobs["end"] - run.jobs["start"]).tolist() == pytest.approx([1234.5678912], abs=1e-8)
    assert run.jobs["start"].tolist() == [12.0]


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
@pytest.mark.parametrize(("model", "nodes"), [("cirne", 128), ("lublin99", 64)])
def test_rigid_jobs_start_when_they_start_in_our_simulator(program: Path, policy: str, model: str, nodes: int) -> None:
    workload = tb.generate(model, jobs=300, nodes=nodes, seed=2, load=0.95)
    assert_same(*both(workload, policy, program, nodes=nodes))
