"""Jobs that exceed their time limit: their ends, and their expected ends in the scheduler."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.oracles.reference_scheduler import RefJob, reference_schedule
from tests.scheduling.test_scheduling import workload_of
from tracebed.cli import tracebed
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.machine.nodes import NodeFacts, nodes_of
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.simulation.engine import _library
from tracebed.orchestrator.simulation.prediction import EngineChoice, predict

ENGINES = ["python", pytest.param("compiled", marks=pytest.mark.skipif(_library() is None, reason="no C compiler"))]
# On 4 nodes, job 1 holds 3 from 0 to 100, with a limit of 10. Job 2, the head, needs all 4 at 20. Jobs 3 to 5 need 1.
OUTLIVES = [
    RefJob(1, 0.0, 100.0, 10.0, 3),
    RefJob(2, 20.0, 5.0, 5.0, 4),
    RefJob(3, 21.0, 30.0, 30.0, 1),
    RefJob(4, 22.0, 85.0, 85.0, 1),
    RefJob(5, 52.0, 8.0, 8.0, 1),
]
SPANS = {
    # The head is reserved for 100: job 3 ends before, job 4 does not.
    OverLimit.EXTEND: [(0, 100), (100, 105), (21, 51), (105, 190), (52, 60)],
    # Job 1 has ended when job 2 comes.
    OverLimit.KILL: [(0, 10), (20, 25), (25, 55), (25, 110), (52, 60)],
    # At 20 job 1 is expected to end at 30, at 52 at 62: job 3 would end too late, job 5 does not.
    OverLimit.AGAIN: [(0, 100), (100, 105), (105, 135), (105, 190), (52, 60)],
    # Only job 1 keeps the head from starting now: any other start would delay the head.
    OverLimit.NOW: [(0, 100), (100, 105), (105, 135), (105, 190), (105, 113)],
}


@pytest.mark.parametrize("over_limit", OverLimit)
@pytest.mark.parametrize("engine", ENGINES)
def test_easy_reserves_by_the_expected_ends_of_jobs_past_their_limit(
    engine: EngineChoice, over_limit: OverLimit
) -> None:
    nodes = [NodeFacts(f"n{number}", 1) for number in range(4)]
    run = predict(workload_of(OUTLIVES), nodes, "easy", over_limit=over_limit, engine=engine)
    assert list(zip(run.jobs["start"], run.jobs["end"], strict=True)) == SPANS[over_limit]
    expected = reference_schedule(OUTLIVES, 4, "easy", over_limit=over_limit)
    assert [(expected[job.id].start, expected[job.id].end) for job in OUTLIVES] == SPANS[over_limit]
    killed = over_limit is OverLimit.KILL
    assert run.jobs["state"].tolist() == ["killed" if killed else "completed", *["completed"] * 4]
    assert run.jobs["reason"][0] == ("time limit" if killed else "")
    assert run.info.settings["over_limit"] == over_limit
    assert run.info.warnings == [f"1 jobs exceed their limit: {over_limit.consequence}"]


@pytest.mark.parametrize("over_limit", OverLimit)
def test_only_an_extended_limit_differs_from_the_workload(over_limit: OverLimit) -> None:
    jobs = [RefJob(1, 0.0, 100.0, 10.0, 1), RefJob(2, 0.0, 100.0, 200.0, 1), RefJob(3, 0.0, 100.0, None, 1)]
    read = Jobs.of(workload_of(jobs), over_limit=over_limit)
    assert read.limit == [100.0 if over_limit is OverLimit.EXTEND else 10.0, 200.0, 100.0]
    assert read.work == [10.0 if over_limit is OverLimit.KILL else 100.0, 100.0, 100.0]
    assert read.counts == {
        "jobs without a time limit: run time used as limit": 1,
        f"jobs exceed their limit: {over_limit.consequence}": 1,
    }


def test_a_limit_of_zero_is_one_second_when_it_is_expected_again() -> None:
    """Job 1, past its limit of 0, is expected to end a second after each call: at 1, when job 2 comes, at 2."""
    jobs = [RefJob(1, 0.0, 100.0, 0.0, 1), RefJob(2, 1.0, 5.0, 5.0, 2), RefJob(3, 1.0, 0.5, 0.5, 1)]
    nodes = [NodeFacts("a", 1), NodeFacts("b", 1)]
    for engine in ("python", "auto"):
        run = predict(workload_of(jobs), nodes, "easy", over_limit=OverLimit.AGAIN, engine=engine)
        assert run.jobs["start"].tolist() == [0.0, 100.0, 1.0]


def test_simulate_reports_the_number_of_jobs_over_their_limit(tmp_path: Path) -> None:
    write_workload(workload_of(OUTLIVES), tmp_path / "w.parquet")
    command = ["simulate", str(tmp_path / "w.parquet"), "--policy", "easy", "--nodes", "4", "-o", str(tmp_path / "run")]
    for options, says in (
        ([], "limit extended to the run time"),
        (["--over-limit", "kill"], "killed at their limit"),
        (["--over-limit", "again"], "expected to run for another limit each time it has passed"),
        (["--over-limit", "now"], "expected to end at any moment after it"),
    ):
        done = CliRunner().invoke(tracebed, [*command, *options, "--replace", "--json"])
        assert done.exit_code == 0, done.output
        assert f"tracebed: warning: 1 jobs exceed their limit: {says}\n" in done.stderr
        assert json.loads(done.stdout)["completed"] == (4 if "kill" in options else 5)
    assert Run.load(tmp_path / "run").info.settings["over_limit"] == "now"


@pytest.mark.parametrize("command", ["simulate", "replay"])
def test_the_commands_offer_all_options(command: str) -> None:
    found = tracebed.get_command(click.Context(tracebed), command)
    assert found is not None
    (offered,) = (option.type for option in found.params if option.name == "over_limit")
    assert isinstance(offered, click.Choice) and list(offered.choices) == list(OverLimit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over_limit", "mean_wait_s"), [("extend", 36_862.6), ("kill", 22_182.5), ("again", 67_653.2), ("now", 57_338.3)]
)
@pytest.mark.skipif(_library() is None, reason="no C compiler")
def test_ricc_by_core(reference_data: Callable[[str], Path], over_limit: str, mean_wait_s: float) -> None:
    """The table of docs/reference/policies.md; 36,862.6 s is also what an independent program gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        workload = read_workload(reference_data("logs/RICC-2010-2.swf.gz"), by="core")
    run = predict(workload, nodes_of(workload.provenance.system), "easy", over_limit=OverLimit(over_limit))
    assert (run.jobs["start"] - run.jobs["submit"]).mean() == pytest.approx(mean_wait_s, abs=0.1)
