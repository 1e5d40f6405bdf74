"""Simulations of jobs as processes and messages: `simulate --processes`, and the axis `processes` of studies."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

import tracebed.api as tb
from tracebed.cli import tracebed as cli
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.processes import Processes, as_processes
from tracebed.studies.ledger.ledger import Ledger
from tracebed.studies.ledger.sensitivity import single_point
from tracebed.validation.experiments import runner as grid
from tracebed.validation.experiments.file import load_experiment


def tracebed(*words: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, words)])


GRID = System(16, 2, "a grid", grid="4x4")


def jobs_of(**columns: object) -> Workload:
    table = {"job_id": ["a", "b", "c"], "submit_time": [0.0, 1000.0, 2000.0], "run_time": [100.0, 200.0, 50.0]}
    table |= {"nodes": [4, 16, 1], "cores_per_node": 2, "behaviour": ["bsp", "forks", "local-forks"]}
    return Workload(pd.DataFrame(table | columns), Provenance(system=GRID))


SCATTERED = [0, 1, 6, 7, 8, 9, 14, 15]
OTHERS = [node for node in range(16) if node not in SCATTERED]


def allocations(**held: Iterable[int]) -> pd.DataFrame:
    """Return the allocations of jobs that hold both cores of these nodes."""
    rows = [{"job_id": job, "node": node} for job, nodes in held.items() for node in nodes]
    return pd.DataFrame(rows).assign(count=1, cores=2, cpus="")


@pytest.mark.parametrize("communication", ["asynchronous", "synchronous"])
def test_jobs_that_run_alone_on_compact_nodes_take_their_run_times(communication: str) -> None:
    run = tb.simulate(jobs_of(), "easy", placement="median", processes=communication)
    assert run.jobs["state"].tolist() == ["completed"] * 3
    assert (run.jobs["end"] - run.jobs["start"]).tolist() == pytest.approx([100.0, 200.0, 50.0], rel=1e-9)
    assert run.info.parameters["processes"] == communication
    assert run.info.counts == {"jobs": 3, "completed": 3}
    assert np.isnan(run.metrics()["utilization"])  # the cores that processes hold are not recorded


def test_jobs_on_scattered_nodes_may_last_longer_and_are_cancelled_at_their_deadline() -> None:
    pair = jobs_of(submit_time=0.0, run_time=100.0, nodes=[8, 8, 1], behaviour="bsp", deadline=[100.5, np.nan, 100.0])
    planned = predict(pair, None, "easy", placement="first", grid="4x4")
    planned.allocations = allocations(a=SCATTERED, b=OTHERS).assign(start=0.0, end=100.0)
    planned.jobs.loc[2, ["start", "state"]] = [np.nan, "rejected"]
    run = as_processes(planned, pair)
    assert run.jobs["state"].tolist() == ["cancelled", "completed", "rejected"]
    assert run.jobs["reason"].tolist()[0] == "deadline"
    assert run.jobs["end"].tolist()[0] == 100.5
    assert run.jobs["end"][1] != 100.0  # its nodes are not compact either


def test_a_reservation_ends_when_the_next_job_starts_on_its_nodes() -> None:
    """Jobs a and b follow each other. On scattered nodes, a lasts 1 % longer than planned."""
    work = jobs_of(submit_time=0.0, run_time=100.0, nodes=[8, 16, 8], behaviour="bsp", deadline=1000.0)
    planned = tb.simulate(work, "deadline", placement="first")
    assert planned.jobs["start"].tolist() == [0.0, 100.0, 0.0]
    table = allocations(a=SCATTERED, c=OTHERS, b=range(16)).assign(end=1e3)
    planned.allocations = table.assign(start=np.where(table["job_id"] == "b", 100.0, 0.0))
    run = as_processes(planned, work)
    assert run.jobs["state"].tolist() == ["cancelled", "completed", "completed"]
    assert run.jobs["reason"][0] == "its reservation ended"
    assert run.jobs["end"].tolist()[0] == pytest.approx(100.0, rel=1e-5)
    planned.info.setup = Setup.of("easy")  # without reservations, jobs share the cores
    assert as_processes(planned, work).jobs["state"].tolist() == ["completed"] * 3


def test_a_job_that_would_start_after_its_deadline_does_not_start() -> None:
    late = jobs_of(submit_time=0.0, nodes=16, deadline=[1e9, 50.0, 1e9])
    run = tb.simulate(late, "fcfs", processes="asynchronous")
    assert run.jobs["state"].tolist() == ["completed", str(JobState.CANCELLED), "completed"]
    assert np.isnan(run.jobs["start"][1])


def test_runs_that_processes_cannot_carry_out_are_refused() -> None:
    with pytest.raises(InputError, match="lacks the column behaviour"):
        tb.simulate(tb.generate("cirne", jobs=5, nodes=16, seed=1), "easy", processes="asynchronous")
    unlike = [NodeFacts("a", 2), NodeFacts("b", 4)]
    with pytest.raises(InputError, match="nodes that are alike"):
        as_processes(predict(jobs_of(nodes=1), unlike, "easy"), jobs_of(nodes=1))
    flexible = jobs_of(kind="malleable", nodes=4, nodes_min=1, nodes_max=16, speedup="linear")
    with pytest.raises(InputError, match="resizes jobs"):
        tb.simulate(flexible, "pref", processes="asynchronous")
    with pytest.raises(InputError, match="overheads do not apply"):
        tb.simulate(jobs_of(), "easy", processes="asynchronous", overheads={"launch_s": 1.0})


def test_the_command_simulates_processes(tmp_path: Path) -> None:
    work, out = tmp_path / "d.parquet", tmp_path / "run"
    tracebed("generate", "deadline-heavy", "--jobs", "40", "--seed", "1", "-o", str(work))
    command = ["simulate", work, "--policy", "easy", "--processes", "synchronous", "-o", out]
    done = tracebed(*command, "--placement", "hilbert")
    assert "completed" in done.output
    figures = json.loads(tracebed("metrics", out, "--json").stdout)["runs"][0]["metrics"]
    assert 0.0 < figures["guarantee_rate"] <= 1.0
    assert figures["utilization"] is None
    again = tracebed(*command, "--replace", "--with", "elastisim")
    assert "processes is an option of tracebed's simulator" in str(again.exception or again.output)


STUDY = """
workloads:
  d: {model: deadline-heavy, options: {jobs: 30}}
policies:
  - {policy: easy, placement: hilbert}
  - {policy: easy, placement: median}
seeds: 2
processes: [none, asynchronous, synchronous]
"""


@pytest.mark.usefixtures("without_pictures")
def test_a_study_has_the_axis_processes_and_policies_have_placements(tmp_path: Path) -> None:
    study = tmp_path / "s.yaml"
    study.write_text(STUDY)
    command = ["experiment", study, "-o", tmp_path / "out", "--workers", "1"]
    done = tracebed(*command)
    assert done.exit_code == 0, done.output
    table = pd.read_parquet(tmp_path / "out" / "s" / "table.parquet")
    assert table["policy"].unique().tolist() == ["easy hilbert", "easy median"]
    assert table.groupby("processes").size().to_dict() == {"asynchronous": 4, "none": 4, "synchronous": 4}
    assert table["cell"].nunique() == 12
    by_job = table[table["processes"] == "none"]
    assert by_job["utilization"].notna().all() and by_job["mean_distance"].nunique() == 4
    assert table[table["processes"] != "none"]["guarantee_rate"].notna().all()
    assert "acceptance rate" in done.output
    assert json.loads(tracebed(*command, "--json").stdout)["computed"] == 0


# -- the free choices of the paper -------------------------------------------------------------------------------------


def test_a_job_may_be_cancelled_at_the_end_of_its_reservation() -> None:
    """Job a lasts 1 % longer than planned on scattered nodes. No other job starts on its nodes."""
    work = jobs_of(submit_time=0.0, run_time=100.0, nodes=[8, 8, 1], behaviour="bsp", deadline=[1000.0, 1000.0, 90.0])
    planned = tb.simulate(work, "deadline", placement="first", policy_parameters={"margin_s": 0.25})
    assert planned.jobs["start"].tolist()[:2] == [0.0, 0.0]
    planned.allocations = allocations(a=SCATTERED, b=OTHERS).assign(start=0.0, end=100.0)
    assert as_processes(planned, work).jobs["state"].tolist() == ["completed", "completed", "rejected"]
    run = as_processes(planned, work, Processes(cancel="reserved"))
    assert run.jobs["state"][0] == "cancelled"
    assert run.jobs["end"][0] == pytest.approx(100.25, rel=1e-5)
    assert run.info.parameters["processes_options"] == {"cancel": "reserved"}


def test_a_job_may_wait_for_a_core_until_its_deadline() -> None:
    """Job b finds no idle core at its submission, and one when job a has ended. Job c finds none by its deadline."""
    work = jobs_of(
        submit_time=[0.0, 1.0, 2.0],
        run_time=[100.0, 10.0, 10.0],
        nodes=[16, 1, 1],
        behaviour="independent",
        deadline=[1000.0, 1000.0, 50.0],
    )
    found = {
        waits: tb.simulate(
            work, "leak", grid="4x4", processes="asynchronous", processes_options={"waits": waits, "imbalance": 0}
        )
        for waits in ("no", "yes")
    }
    assert found["no"].jobs["state"].tolist() == ["completed", "rejected", "rejected"]
    assert found["yes"].jobs["state"].tolist() == ["completed", "completed", "rejected"]
    assert found["yes"].jobs["start"][1] == pytest.approx(100.0, rel=0.1)
    assert found["yes"].info.parameters["processes_options"] == {"imbalance": 0.0, "waits": True}


def test_leak_with_advance_reservation_begins_accepted_jobs_at_their_reserved_starts() -> None:
    """By number, job b fits after job a, and job c not before its deadline. Cores are searched at these starts."""
    times = {"submit_time": [0.0, 1.0, 2.0], "run_time": [100.0, 10.0, 10.0], "deadline": [1000.0, 1000.0, 50.0]}
    work = jobs_of(**times, nodes=[16, 8, 1], behaviour="independent")
    options = {"grid": "4x4", "processes": "asynchronous", "processes_options": {"per_node": 1, "imbalance": 0}}
    found = {
        reserve: tb.simulate(work, "leak", policy_parameters={"reserve": reserve}, **options).jobs
        for reserve in ("no", "yes")
    }
    assert found["no"]["start"].tolist() == [0.0, 1.0, 2.0]
    assert found["yes"]["state"].tolist() == ["completed", "completed", "rejected"]
    assert found["yes"]["start"].tolist()[:2] == [0.0, 100.0]


def test_a_forked_process_may_keep_its_core_until_its_parent_joins_it() -> None:
    """The children of job a take all cores. Job b starts when the first child has ended, or has been joined."""
    work = jobs_of(submit_time=[0.0, 1.0, 2.0], nodes=[16, 1, 1], behaviour=["local-forks", "bsp", "bsp"])
    starts = {
        release: tb.simulate(
            work,
            "leak",
            grid="4x4",
            processes="asynchronous",
            processes_options={"waits": True, "overload": 20, "release": release},
        ).jobs["start"][1]
        for release in ("end", "join")
    }
    assert 1.0 < starts["end"] < starts["join"] < 100.0


def test_messages_are_what_makes_scattered_jobs_slower() -> None:
    pair = jobs_of(submit_time=0.0, run_time=100.0, nodes=[8, 8, 1], behaviour="bsp")
    planned = predict(pair, None, "easy", placement="first", grid="4x4")
    planned.allocations = allocations(a=SCATTERED, b=OTHERS).assign(start=0.0, end=100.0)
    planned.jobs.loc[2, ["start", "state"]] = [np.nan, "rejected"]
    ends = [as_processes(planned, pair, Processes(message=size)).jobs["end"][0] for size in (0.0, 0.05, 0.8)]
    assert ends[0] == pytest.approx(100.0)
    assert 100.0 < ends[1] < ends[2]


def test_options_of_processes_are_checked(tmp_path: Path) -> None:
    work, out = tmp_path / "d.parquet", tmp_path / "run"
    tracebed("generate", "deadline-heavy", "--jobs", "20", "--seed", "1", "-o", str(work))
    command = ["simulate", work, "--policy", "easy", "--placement", "hilbert", "-o", out]
    for option, says in {
        "messages=1": "has no parameter 'messages'",
        "waits=perhaps": "processes.waits cannot be 'perhaps'",
        "message=-1": "invalid message -1",
        "cancel=never": "processes.cancel cannot be 'never'",
    }.items():
        done = tracebed(*command, "--processes", f"asynchronous,{option}")
        assert isinstance(done.exception, InputError) and says in str(done.exception)
    done = tracebed(*command, "--processes", "waits=yes")
    assert done.exit_code == ExitCode.USAGE and "'waits=yes' is not one of" in done.output
    tracebed(*command, "--processes", "asynchronous,message=0.2")
    assert json.loads((out / "run.json").read_text())["parameters"]["processes_options"] == {"message": 0.2}


@pytest.mark.slow
def test_a_study_compares_options_of_processes(tmp_path: Path) -> None:
    study = tmp_path / "s.yaml"
    options = "[{communication: asynchronous, options: {message: 0.8}, label: large}, asynchronous]"
    study.write_text(STUDY.replace("[none, asynchronous, synchronous]", options).replace("seeds: 2", "seeds: 1"))
    command = ["experiment", study, "-o", tmp_path / "out", "--workers", "1"]
    done = tracebed(*command)
    assert done.exit_code == 0, done.output
    table = pd.read_parquet(tmp_path / "out" / "s" / "table.parquet")
    assert table.groupby("processes").size().to_dict() == {"asynchronous": 2, "large": 2}
    runs = table.groupby("processes")["mean_run_s"].mean()
    assert runs["large"] > runs["asynchronous"]


@pytest.mark.parametrize(
    ("processes", "says"),
    [
        ("{communication: asynchronous, options: {mesage: 1}}", "has no parameter 'mesage'"),
        ("{communication: none, options: {message: 1}}", "jobs without processes have no options"),
        ("[asynchronous, {communication: asynchronous}]", "'asynchronous' is listed twice"),
        ("sometimes", "processes"),
    ],
)
def test_a_study_refuses_invalid_processes(tmp_path: Path, processes: str, says: str) -> None:
    study = tmp_path / "s.yaml"
    study.write_text(STUDY.replace("[none, asynchronous, synchronous]", processes))
    done = tracebed("experiment", str(study), "-o", str(tmp_path / "out"))
    assert isinstance(done.exception, InputError) and says in str(done.exception)
    assert "s.yaml:8" in str(done.exception)


def test_a_study_changes_constants_of_a_model(tmp_path: Path) -> None:
    late = tb.generate("deadline-heavy", jobs=30, seed=1, parameters={"ahead": 0})
    assert (late.floats("earliest_start") == late.floats("submit_time")).all()
    study = tmp_path / "s.yaml"
    study.write_text(STUDY.replace("{jobs: 30}", "{jobs: 30, parameters: {ahed: 0}}"))
    done = tracebed("experiment", str(study), "-o", str(tmp_path / "out"))
    assert isinstance(done.exception, InputError) and "has no parameter 'ahed'" in str(done.exception)


def test_the_processes_of_a_study_are_a_free_choice(tmp_path: Path) -> None:
    study = tmp_path / "s.yaml"
    large = "{communication: asynchronous, options: {message: 0.8}, label: large}"
    study.write_text(STUDY.replace("[none, asynchronous, synchronous]", f"[{large}, synchronous]"))
    file = load_experiment(str(study))
    first, other = (single_point(file, changes) for changes in ({}, {"processes": "synchronous"}))
    assert first.file.experiment.processes_of(first.point) == Processes(message=0.8)
    assert other.file.experiment.processes_of(other.point) == Processes(communication="synchronous")
    study.write_text(STUDY.replace("[none, asynchronous, synchronous]", "synchronous"))
    assert single_point(load_experiment(str(study)), {}).point.processes == "synchronous"
    with pytest.raises(InputError, match="processes"):
        single_point(file, {"processes": "sometimes"})


@pytest.mark.slow
def test_a_change_relative_to_zero_is_undefined(tmp_path: Path) -> None:
    study = tmp_path / "s.yaml"
    none = "{figure: cancel_rate, value: -0.5, at: {policy: easy median}, relative_to: {policy: easy hilbert}}"
    study.write_text(STUDY.replace("[none, asynchronous, synchronous]", f"none\npublished:\n  - {none}"))
    done = tracebed("experiment", str(study), "-o", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert (pd.read_parquet(tmp_path / "out" / "s" / "table.parquet")["cancel_rate"] == 0).all()
    (row,) = Ledger.load(tmp_path / "out" / "s" / "ledger.json").rows
    assert (row.ours, row.matches) == ([], None)


def test_cells_that_share_the_simulation_of_their_nodes_are_those_of_cells_that_do_not(tmp_path: Path) -> None:
    """The jobs of four behaviors have equal schedules, in both communications; those of `uniform` have others."""
    study = tmp_path / "shares.yaml"
    study.write_text(
        "workloads:\n"
        "  bsp: {model: deadline-heavy, options: {jobs: 20, behaviour: bsp}}\n"
        "  forks: {model: deadline-heavy, options: {jobs: 20, behaviour: forks}}\n"
        "  uniform: {model: deadline-heavy, options: {jobs: 20}}\n"
        "policies: [{label: reserved, policy: deadline}, {label: leak, policy: leak}]\n"
        "processes: [asynchronous, synchronous]\nseeds: 1\n"
    )
    file = load_experiment(str(study))
    todo = grid.plan(file, file.selected({}), tmp_path, {}).todo

    def results(*, shared: bool) -> list[tuple[str, list[str]]]:
        found = []
        for cell in todo:
            if not shared:
                grid._simulated.cache_clear()
            result = grid.simulate(cell)
            found.append((json.dumps(result.rows), result.warnings))
        return found

    alone = results(shared=False)
    assert len({rows for rows, _ in alone}) > 6
    grid._simulated.cache_clear()
    assert results(shared=True) == alone
    assert grid._simulated.cache_info().misses == 4  # of 12 cells: two policies, two schedules
