"""Error budgets: the shares add up to the error, and nothing remains unless a policy or a journal is wrong."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import psutil
import pytest
from matplotlib.text import Text

import tracebed.api as tb
from tests.commands import call
from tests.journals import forge
from tests.oracles.redecided import complete_budget, emulated, virtual, virtual_nodes, workload
from tests.pages import without_pictures
from tests.patience import GUARD_S
from tests.runs import fcfs_run, replaying
from tests.servers.agents import agents_of
from tests.testbeds.test_calibrate import calibration
from tests.validation.test_schemas import problems
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Cancel, Decision, Start, State
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.observed import ALL, ObservedResize, ObservedSimulator, ObservedTimes
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.simulation.simulator import Simulator
from tracebed.validation.budget import error_budget

SPEED = 400.0
CAUSES = ("submissions", "delays", "work", "calls", "remainder")
pytestmark = pytest.mark.usefixtures("no_process_is_left")


@pytest.fixture(scope="module")
def work() -> Workload:
    return workload(12, seed=7)


@pytest.fixture(scope="module")
def real(work: Workload, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("budget") / "real"
    replay(work, emulated(4), "pref", folder, **replaying(SPEED))
    return folder


@pytest.mark.slow
def test_the_first_steps_are_the_predictions_of_simulate(work: Workload, real: Path) -> None:
    overheads = Overheads(launch_s=0.03, end_s=0.01, reconfiguration_s=0.02)
    steps = error_budget(work, real, overheads=overheads).runs[0].steps
    nodes = Run.load(real).info.nodes
    for name, chosen in (("nominal", None), ("overheads", overheads)):
        predicted = predict(work, nodes, "pref", overheads=chosen, speed=SPEED)
        pd.testing.assert_frame_equal(steps[name].jobs, predicted.jobs)
        pd.testing.assert_frame_equal(steps[name].allocations, predicted.allocations)
        pd.testing.assert_frame_equal(steps[name].reconfigurations, predicted.reconfigurations)


def test_each_step_takes_its_cause_from_the_real_run(work: Workload, real: Path) -> None:
    budget = complete_budget(work, real)
    run, steps = budget.runs[0].real.jobs, {name: step.jobs for name, step in budget.runs[0].steps.items()}
    assert list(steps) == ["nominal", "submissions", "delays", "work", "calls"]
    assert steps["nominal"]["submit"].equals(run["submit_planned"])
    assert not steps["nominal"]["submit"].equals(run["submit"])
    assert steps["submissions"]["submit"].equals(run["submit"])
    assert (steps["submissions"]["launched"] == steps["submissions"]["start"]).all()
    delay = (run["launched"] - run["start"]).to_numpy()
    assert delay.min() > 0
    np.testing.assert_allclose(steps["delays"]["launched"] - steps["delays"]["start"], delay, atol=1e-6)
    pd.testing.assert_frame_equal(steps["work"], run, check_exact=True)  # no interval: the calls follow from the events


@pytest.mark.slow
def test_rigid_jobs_keep_the_observed_durations_in_another_schedule(tmp_path: Path, work: Workload) -> None:
    replay(work, virtual(4), "easy", tmp_path / "run", **replaying(SPEED, interval_s=60.0))
    budget = complete_budget(work, tmp_path / "run")
    jobs, before = budget.runs[0].real.jobs, budget.runs[0].steps["work"].jobs
    assert not before["start"].equals(jobs["start"])  # the policy was called late
    np.testing.assert_allclose(before["end"] - before["start"], jobs["end"] - jobs["start"], atol=1e-6)
    assert budget.frame["calls"].abs().max() > 0


class Disturbance(threading.Thread):
    """Waits until a replay of this process has a rank, and then disturbs this rank."""

    def __init__(self, disturb: Callable[[psutil.Process], None]) -> None:
        super().__init__(daemon=True)
        self.disturb = disturb
        self.found = False

    def run(self) -> None:
        deadline = time.monotonic() + GUARD_S
        while not self.found and time.monotonic() < deadline:
            for agent in agents_of(psutil.Process()):
                with contextlib.suppress(psutil.Error):
                    for rank in agent.children():
                        self.found = True
                        return self.disturb(rank)
            time.sleep(0.005)
        return None


def stop_for_a_moment(rank: psutil.Process) -> None:
    rank.suspend()
    time.sleep(1.0)
    rank.resume()


def disturbed_replay(
    disturb: Callable[[psutil.Process], None], work: Workload, policy: str, folder: Path, clock: str = "wall"
) -> Run:
    disturbance = Disturbance(disturb)
    disturbance.start()
    run = replay(work, emulated(4), policy, folder, **replaying(SPEED, clock=clock))
    disturbance.join()
    assert disturbance.found
    return run


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "share"), [("easy", 0.9), ("pref", 0.9), ("sd", 0.5)])
def test_a_disturbed_run_is_explained_by_the_times_of_its_jobs(
    tmp_path: Path, policy: str, share: float, work: Workload
) -> None:
    disturbed_replay(stop_for_a_moment, work, policy, tmp_path / "run")
    frame = complete_budget(work, tmp_path / "run").frame
    disturbed = frame.loc["makespan_s"]
    assert disturbed["error"] < 0
    explained = abs(disturbed["delays"] + disturbed["work"])
    assert explained > share * abs(disturbed["error"])  # on a busy machine, late starts change what `sd` decides later


@pytest.mark.parametrize("policy", [pytest.param("easy", marks=pytest.mark.slow), "pref"])
def test_a_clock_that_stood_still_leaves_no_remainder(tmp_path: Path, policy: str, work: Workload) -> None:
    disturbed_replay(stop_for_a_moment, work, policy, tmp_path / "run", clock="steady")
    complete_budget(work, tmp_path / "run")
    calls = [entry for entry in journal.read(tmp_path / "run" / JOURNAL)[1] if entry.kind == "call"]
    assert len({entry.time for entry in calls}) == len({entry.round for entry in calls})


@dataclass(frozen=True)
class Cancelling:
    """First fit that cancels the oldest running job when no job fits."""

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        for job in state.queue.jobs():
            if state.jobs.nodes[job] <= state.idle:
                yield Start(job, state.jobs.nodes[job])
        if state.queue.head is not None and state.idle == 0 and state.arrived:
            yield Cancel(next(iter(state.size)), "has had its time")


@pytest.mark.slow
def test_canceled_and_killed_jobs_end_as_observed(tmp_path: Path) -> None:
    work = workload(14, seed=7)
    work.table["time_limit"] *= [0.4, 1.0] * 7  # the limits were 1.5 run times
    options = replaying(SPEED, over_limit=OverLimit.KILL)
    replay(work, virtual(4), Cancelling, tmp_path / "run", **options)
    budget = complete_budget(work, tmp_path / "run", Cancelling)
    states = set(budget.runs[0].real.jobs["state"])
    assert states == {"completed", "killed", "cancelled"}
    pd.testing.assert_frame_equal(budget.runs[0].steps["work"].jobs, budget.runs[0].real.jobs, check_exact=True)


@pytest.mark.slow
def test_a_rank_that_is_killed_fails_its_job_in_the_budget_too(tmp_path: Path, work: Workload) -> None:
    disturbed_replay(psutil.Process.kill, work, "pref", tmp_path / "run")
    budget = complete_budget(work, tmp_path / "run")
    assert (budget.runs[0].steps["calls"].jobs["state"] == "failed").sum() == 1


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["easy", "pref"])
def test_an_interrupted_run_is_explained_until_its_interruption(tmp_path: Path, policy: str, work: Workload) -> None:
    ended = 0

    def interrupt(count: int) -> None:
        nonlocal ended
        if count >= 4 and not ended:
            ended = count
            os.kill(os.getpid(), signal.SIGINT)

    run = replay(work, virtual(4), policy, tmp_path / "run", **replaying(SPEED), on_progress=interrupt)
    assert run.info.state == "interrupted"
    budget = complete_budget(work, tmp_path / "run")
    assert "interrupted" in set(budget.runs[0].steps["nominal"].jobs["state"])
    assert budget.notes == ["the real run was interrupted: the predictions also end at the time of the interruption"]


def test_a_resize_that_the_interruption_prevented_does_not_take_effect_at_its_instant() -> None:
    """2 nodes. Job 0 is to give one to job 1 at 10 s, and still holds both when the run is interrupted at 50 s."""
    table = {
        "job_id": ["wide", "waits"],
        "submit_time": [0.0, 10.0],
        "run_time": [1000.0, 5.0],
        "nodes": [2, 1],
        "kind": ["malleable", "rigid"],
        "nodes_min": 1,
        "nodes_max": [2, 1],
        "nodes_pref": [2, 1],
        "speedup": "amdahl",
        "speedup_parameters": "1.0",
    }
    jobs = Jobs.of(Workload(pd.DataFrame(table)))
    never = math.nan
    observed = ObservedTimes(
        submit=[0.0, 10.0],
        start=[0.0, never],
        launched=[0.0, never],
        end=[50.0, never],
        state=[JobState.INTERRUPTED, JobState.INTERRUPTED],
        reason=["", ""],
        cancelled={},
        resizes={0: [ObservedResize(-1, 10.0, never, never, never)]},
        calls=[0.0, 10.0],
        until=50.0,
        interrupted="Ctrl-C",
    )
    names, policy = ["n1", "n2"], registry.load("pref", {"calls": "event"})
    simulator = ObservedSimulator(observed, ALL, names, jobs=jobs, cores=[1, 1], policy=policy)
    simulator.run()
    assert [(each.time, each.kind, each.job) for each in simulator.log.decisions if each.kind != "call"] == [
        (0.0, "start", "wide"),
        (10.0, "resize", "wide"),
    ]


@pytest.mark.slow
def test_uneven_nodes(tmp_path: Path, work: Workload) -> None:
    replay(work, virtual_nodes(1, 2, 2, 1), "pref", tmp_path / "run", **replaying(SPEED))
    complete_budget(work, tmp_path / "run")


@dataclass(frozen=True)
class Moody:
    """First fit that considers the first jobs first in its first run, and the last jobs first in later runs."""

    malleable: ClassVar[bool] = False
    runs: ClassVar[int] = 0
    reverse: bool = False

    def __init__(self) -> None:
        object.__setattr__(self, "reverse", Moody.runs > 0)  # the class is frozen, as policies are
        Moody.runs += 1

    def decide(self, state: State) -> Iterator[Decision]:
        for job in sorted(state.queue.jobs(), reverse=self.reverse):
            if state.jobs.nodes[job] <= state.idle:
                yield Start(job, state.jobs.nodes[job])


@pytest.mark.slow
def test_a_policy_that_is_not_deterministic_leaves_a_remainder(tmp_path: Path, work: Workload) -> None:
    replay(work, virtual(4), Moody, tmp_path / "run", **replaying(SPEED))
    budget = error_budget(work, tmp_path / "run", make_policy=Moody)
    assert budget.decisions > 0
    assert "it is not deterministic" in budget.headline
    frame = budget.frame
    np.testing.assert_allclose(frame[budget.causes].sum(axis=1), frame["error"], rtol=1e-9, atol=1e-9)


def altered(real: Path, folder: Path, statement: str) -> Path:
    """Return a copy of a run whose journal was changed by a statement."""
    shutil.copytree(real, folder)
    (folder / JOURNAL).chmod(0o600)
    assert forge(folder / JOURNAL, statement) > 0
    return folder


FIRST = "(SELECT min(number) FROM entries WHERE kind = '{}')"


@pytest.mark.parametrize("kind", ["start", "resize", "call"])
def test_a_journal_with_another_decision_leaves_a_remainder(
    tmp_path: Path, work: Workload, real: Path, kind: str
) -> None:
    folder = altered(real, tmp_path / "run", f"DELETE FROM entries WHERE number = {FIRST.format(kind)}")
    remainder = error_budget(work, folder).runs[0].remainder
    assert remainder.decisions >= 1
    assert remainder.first.startswith("real: ")
    assert "the journal was changed" in remainder.cause


def test_a_wrong_simulator_is_told_from_a_wrong_policy(
    tmp_path: Path, work: Workload, real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator ends each job late."""
    end_at = Simulator._end_at
    monkeypatch.setattr(Simulator, "_end_at", lambda self, job, end: end_at(self, job, end + 5.0))
    remainder = error_budget(work, real).runs[0].remainder
    assert remainder.decisions > 0
    assert "the simulator is wrong" in remainder.cause


@pytest.mark.slow
def test_repetitions_are_averaged_and_their_spread_is_shown(tmp_path: Path, work: Workload, real: Path) -> None:
    replay(work, emulated(4), "pref", tmp_path / "again", **replaying(SPEED))
    one, other = (error_budget(work, folder).frame for folder in (real, tmp_path / "again"))
    both = error_budget(work, [real, tmp_path / "again"])
    np.testing.assert_allclose(both.frame[both.causes], (one[both.causes] + other[both.causes]) / 2, atol=1e-9)
    assert both.spread is not None
    np.testing.assert_allclose(both.spread["error"], (one["error"] - other["error"]).abs() / 2**0.5, atol=1e-9)
    assert list(both.spread.index) == list(both.frame.index)
    assert "±" in both.rows()[0][3]
    np.testing.assert_allclose(both.frame[both.causes].sum(axis=1), both.frame["error"], atol=1e-9)


@pytest.mark.slow
def test_runs_that_have_no_budget(tmp_path: Path, work: Workload, real: Path) -> None:
    with pytest.raises(InputError, match="different workload"):
        error_budget(workload(12, seed=8), real)
    with pytest.raises(InputError, match="no real run is given"):
        error_budget(work, [])
    fcfs_run(20, real=False).save(tmp_path / "sim")
    with pytest.raises(InputError, match="not a replay"):
        error_budget(work, tmp_path / "sim")
    replay(work, emulated(4), "easy", tmp_path / "easy", **replaying(1e5))
    with pytest.raises(InputError, match="another policy"):
        error_budget(work, [real, tmp_path / "easy"])
    replay(work, emulated(4), "pref", tmp_path / "fast", **replaying(2 * SPEED))
    with pytest.raises(InputError, match="another speed"):
        error_budget(work, [real, tmp_path / "fast"])
    (tmp_path / "easy" / JOURNAL).unlink()
    with pytest.raises(InputError, match="the journal is missing"):
        error_budget(work, tmp_path / "easy")


@pytest.fixture(scope="module")
def file(work: Workload, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workload") / "w.parquet"
    tb.write(work, path)
    return path


def test_no_infinity_of_run_json_is_explained(file: Path, real: Path, tmp_path: Path) -> None:
    folder = tmp_path / "real"
    shutil.copytree(real, folder)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"resolution_s": math.inf}))
    refused = call("explain", file, "--real", folder).exception
    assert isinstance(refused, InputError)
    assert "run.json: is not JSON: Infinity is not a JSON number" in str(refused)


@pytest.mark.parametrize(
    "changed", ["time = 9e999 WHERE kind = 'call'", "data = '{\"at\": Infinity}' WHERE kind = 'launched'"]
)
def test_no_infinity_of_a_journal_is_explained(file: Path, real: Path, tmp_path: Path, changed: str) -> None:
    folder = altered(real, tmp_path / "real", f"UPDATE entries SET {changed}")
    refused = call("explain", file, "--real", folder).exception
    assert isinstance(refused, InputError)
    assert re.search(r"journal.sqlite: .*(inf|Infinity is not a JSON number)", str(refused))


def test_explain_prints_the_shares(file: Path, real: Path, tmp_path: Path) -> None:
    with without_pictures():
        result = call("explain", file, "--real", real, "--report", tmp_path / "report.html")
    head, *rows = result.stdout.splitlines()[:6]
    assert head.split() == ["metric", "real", "predicted", "error", *CAUSES]
    assert all(row.endswith(" 0 %") for row in rows)
    assert "no error is left" in result.stdout
    assert "First divergences" in result.stdout
    page = (tmp_path / "report.html").read_text()
    assert page.index("<h2>Error budget</h2>") < page.index("<h2>Differences in margins</h2>")
    refused = call("explain", file, "--real", real, "--report", tmp_path / "report.txt").exception
    assert isinstance(refused, InputError)
    assert "does not end like" in str(refused)


@pytest.mark.parametrize("count", [1, 2])
def test_explain_as_json(file: Path, real: Path, count: int) -> None:
    document: dict[str, Any] = json.loads(call("explain", file, *["--real", real] * count, "--json").stdout)
    assert problems(document, "tracebed-error-budget-1.json") == []
    assert document["schema"] == "tracebed-error-budget/1"
    for metric in document["metrics"]:
        assert sum(metric["shares"].values()) == pytest.approx(metric["error"], abs=1e-9)
        assert (metric["spread"] is None) == (count == 1)
    assert [run["remainder"]["decisions"] for run in document["runs"]] == [0] * count
    del document["metrics"][0]["shares"]
    assert len(problems(document, "tracebed-error-budget-1.json")) == 1


def test_a_calibration_gives_the_overheads_a_share(work: Workload, real: Path) -> None:
    made = calibration(workloads=[work.sha256])
    budget = tb.error_budget(work, real, calibration=made)
    assert budget.causes == ["overheads", *CAUSES]
    assert budget.frame["overheads"].abs().max() > 0
    assert budget.notes[0].startswith("the calibration was made from this workload")
    assert budget.notes[1].startswith("the calibration is of local (computed), the real run used test (emulated)")
    nodes = Run.load(real).info.nodes
    predicted = predict(work, nodes, "pref", overheads=Overheads(**made.constants), speed=SPEED)
    pd.testing.assert_frame_equal(budget.comparison().predicted.jobs, predicted.jobs)


def test_the_overheads_of_a_prediction_have_a_share(work: Workload, real: Path) -> None:
    nodes, overheads = Run.load(real).info.nodes, Overheads(launch_s=0.03, end_s=0.01, grain_s=0.05)
    predicted = predict(work, nodes, "pref", overheads=overheads, speed=SPEED)
    budget = tb.error_budget(work, real, predicted=predicted)
    assert budget.causes == ["overheads", *CAUSES]
    pd.testing.assert_frame_equal(budget.comparison().predicted.jobs, predicted.jobs)
    nominal = predict(work, nodes, "pref", speed=SPEED, runtime_model=RuntimeModel.WORST_CASE)
    budget = tb.error_budget(work, real, predicted=nominal)
    assert budget.causes == [*CAUSES]
    assert budget.comparison().predicted.info.settings["runtime_model"] == "worst-case"
    with pytest.raises(InputError, match="both a calibration and a prediction"):
        tb.error_budget(work, real, predicted=predicted, calibration=calibration())


def test_the_python_interface(work: Workload, real: Path, tmp_path: Path) -> None:
    budget = tb.error_budget(work, real)
    assert budget.decisions == 0
    assert repr(budget).startswith("<ErrorBudget of workload, pref: 1 real run")
    assert "work rates and run times" in budget._repr_html_()
    figure = budget.plot()
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [row[0].partition(" (")[0] for row in budget.rows(gated=True)]
    assert any("launch and resize delays" in text.get_text() for text in figure.findobj(Text))
    assert len(budget.plot(width=4.0).axes) == len(titles)
    assert budget.save(tmp_path / "waterfall.png").stat().st_size > 5_000


def of_slurm(run: Run, folder: Path) -> Path:
    """Save a prediction as a run of Slurm, which has its own names of parameters and no journal."""
    config = {"SchedulerParameters": "bf_interval=1,bf_resolution=1", "CompleteWait": "0"}
    batch = {"system": "slurm", "version": "22.05.8"}
    setup = Setup.of(run.info.setup, policy_parameters=config)
    run.info = replace(run.info, source="replay", batch=batch, setup=setup, created="2026-01-01")
    return run.save(folder)


def test_the_budget_of_a_batch_system_leaves_its_decisions(work: Workload, real: Path, tmp_path: Path) -> None:
    rigid = Workload(work.table.assign(nodes_min=work.table["nodes"], nodes_max=work.table["nodes"]), work.provenance)
    parameters = {"bf_interval": 1, "bf_resolution": 1}
    slow = Overheads(launch_s=0.5, end_s=0.3)
    options: dict[str, Any] = {"policy_parameters": parameters, "overheads": slow, "speed": SPEED}
    made = predict(rigid, Run.load(real).info.nodes, "slurm", **options, dispatched=False)  # slow scripts, late ends
    budget = error_budget(rigid, of_slurm(made, tmp_path / "real"))
    assert budget.causes == ["submissions", "delays", "work", "remainder"]
    assert "slurm decided in the real run" in budget.headline
    for row in budget.tables[0].itertuples():
        shares = (row.submissions, row.delays, row.work, row.remainder)
        assert sum(shares) == pytest.approx(row.error, abs=1e-9)
    response = budget.tables[0].loc["mean_response_s"]
    assert response["error"] < 0 and response["delays"] < 0 and response["work"] < 0
    # The same policy decided: with the delays and the work of the run, only the times of its calls differ.
    assert abs(response["remainder"]) < 0.2 * abs(response["error"])


def test_an_interrupted_run_of_a_batch_system_has_no_budget(work: Workload, real: Path, tmp_path: Path) -> None:
    made = predict(work, Run.load(real).info.nodes, "slurm", policy_parameters={"speed": SPEED}, speed=SPEED)
    made.info = replace(made.info, state="interrupted", interruptions=["SIGTERM"])
    with pytest.raises(InputError, match="complete run of the batch system without resizes"):
        error_budget(work, of_slurm(made, tmp_path / "real"))
