"""A log as a real run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.runs import by_node
from tracebed.cli import tracebed
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.scaling import scale
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError
from tracebed.machine.nodes import nodes_of
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.metrics import metrics
from tracebed.validation.simulators.history import assign_nodes, run_of_log


def log(nodes: int = 4) -> Workload:
    table = pd.DataFrame(
        {
            "job_id": ["a", "b", "c", "d"],
            "submit_time": [0.0, 1.0, 2.0, 3.0],
            "run_time": [10.0, 20.0, 0.0, np.nan],
            "nodes": [2, 2, 4, 1],
            "cores_per_node": 8,
            "status": ["completed", "killed", "strange", "cancelled"],
            "logged_start": [0.0, 5.0, 40.0, np.nan],
            "logged_end": [10.0, 25.0, 40.0, np.nan],
        }
    )
    return Workload(table, Provenance(system=System(nodes, 8, "toy")))


def test_a_log_becomes_a_run(tmp_path: Path) -> None:
    run_of_log(log()).save(tmp_path / "run")
    run = Run.load(tmp_path / "run")
    assert run.info.is_real
    assert run.info.execution == "logged"
    assert run.info.counts == {"jobs": 4, "completed": 1, "killed": 1, "unknown": 1, "cancelled": 1}
    assert list(run.jobs["start"].iloc[:3]) == [0.0, 5.0, 40.0]
    assert np.isnan(run.jobs["start"].iloc[3])
    assert by_node(run).groupby("job_id")["node"].nunique().to_dict() == {"a": 2, "b": 2, "c": 4}
    assert set(run.allocations["cores"]) == {8}
    assert metrics(run)["mean_wait_s"] == pytest.approx((0 + 4 + 38) / 3)


def test_no_machine_grows_to_hold_the_jobs_of_a_log() -> None:
    with pytest.raises(InputError, match="held up to 4 nodes at once, but the machine has 3") as error:
        run_of_log(log(nodes=3))
    assert "--system 4x8" in str(error.value)


def test_a_scaled_log_is_refused_as_a_run() -> None:
    with pytest.raises(InputError, match="not a log, or was scaled"):
        run_of_log(scale(log(), nodes=2))


@given(
    jobs=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=25),
)
def test_no_node_has_two_jobs_and_no_node_is_added_in_vain(jobs: list[tuple[int, int, int]]) -> None:
    start = np.array([s for s, _, _ in jobs], dtype=float)
    end = start + [d for _, d, _ in jobs]
    nodes = np.array([n for _, _, n in jobs])
    owner, first, count, busiest = assign_nodes(start, end, nodes)
    node = np.concatenate([np.arange(low, low + many) for low, many in zip(first, count, strict=True)])
    owner = np.repeat(owner, count)
    assert np.array_equal(np.bincount(owner, minlength=len(jobs)), nodes)
    for job in range(len(jobs)):
        assert len(set(node[owner == job])) == nodes[job]
        for other in range(job):
            if start[job] < end[other] and start[other] < end[job]:
                assert not set(node[owner == job]) & set(node[owner == other])
    peak = max(nodes[(start <= t) & ((t < end) | (start == end) & (t == start))].sum() for t in start)
    alone = max(nodes[(start <= t) & (t < end)].sum() for t in start)
    assert max(alone, nodes.max()) <= busiest <= peak


def test_a_prediction_that_became_a_log_gives_the_same_metrics(tmp_path: Path) -> None:
    """Simulate, write the schedule as a log, and read the log as a run: the metrics are the same."""
    table = pd.DataFrame({"job_id": [str(i) for i in range(30)], "submit_time": np.arange(30) * 7.0})
    table["run_time"] = 20.0 + np.arange(30) % 5
    table["nodes"] = 1 + np.arange(30) % 4
    workload = Workload(table, Provenance(system=System(4, 8)))
    predicted = predict(workload, nodes_of(workload.provenance.system), "easy")
    logged = workload.table.assign(logged_start=predicted.jobs["start"], logged_end=predicted.jobs["end"])
    real = run_of_log(Workload(logged, workload.provenance))
    ours, theirs = metrics(real), metrics(predicted)
    for name in ("makespan_s", "mean_wait_s", "mean_response_s", "utilization"):
        assert ours[name] == pytest.approx(theirs[name]), name


def test_the_command(tmp_path: Path) -> None:
    write_workload(log(), tmp_path / "log.parquet")
    command = ["convert", str(tmp_path / "log.parquet"), "--to", "run", "-o"]
    said = CliRunner().invoke(tracebed, [*command, str(tmp_path / "run")])
    assert said.exit_code == 0, said.output
    assert Run.load(tmp_path / "run").info.workload["name"] == "log"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    said = CliRunner().invoke(tracebed, [*command, str(tmp_path / "full")])
    assert isinstance(said.exception, InputError)
    assert (tmp_path / "full" / "x").read_text() == "mine"


def test_knl_as_a_run(reference_data: Callable[[str], Path]) -> None:
    from tracebed.converters.cleaning.audit import clean
    from tracebed.converters.cleaning.recipes import load_recipe
    from tracebed.converters.formats.reading import read_raw

    recipe = load_recipe("cori-knl")
    cleaned = clean(read_raw([reference_data("logs/cori-knl")]), recipe.steps, system=recipe.system).workload
    run = run_of_log(cleaned)
    assert run.total_nodes == 9688, "never more busy than there are"
    assert run.info.warnings == []
    assert run.allocations["count"].sum() == cleaned.ints("nodes").sum()
