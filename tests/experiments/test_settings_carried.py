"""Settings of a run, and whether each command carries them to the runs that it makes for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tracebed.api as tb
from tests.oracles.slurm_accuracy import POLICIES, read
from tests.oracles.slurm_replayed import FOLDER, NODES
from tests.suites import run_suite, suite_of
from tracebed.cli import tracebed
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError, TracebedError
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.setup import SETUP_PARTS, Setup
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.testbeds.calibration import Calibration
from tracebed.validation.budget.budget import error_budget
from tracebed.validation.experiments import runner as sweeping
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.fitting import cases as fitted
from tracebed.validation.fitting import cases_of
from tracebed.validation.metrics import metrics

SPEED = 1e6
SET: dict[str, Any] = {
    "policy": "slurm",
    "policy_parameters": {"bf_interval": 7, "batch_sched_delay": 0, "sched_loop_s": 0.01},
    "speed": SPEED,
    "placement": "hilbert",
    "grid": "2x2",
    "priority": "shortest-first",
    "interval_s": 30.0,
    "over_limit": "again",
    "dependencies": "ignore",
}
"""Setting of a replay -> its value in each run; none is a default. A new setting needs a value here."""
COMMANDS = ("simulate", "replay", "experiment: replayed", "experiment: predicted", "experiment: recorded")
COMMANDS += ("experiment: simulated", "calibrate RUN", "explain")
NOT_APPLICABLE = {("experiment: simulated", "grid"): "4x1"}
"""(Command, setting) -> its value there. Without a testbed, the grid is that of the workload's system."""
PLACED = {"placement": "hilbert", "priority": "shortest-first", "interval_s": 30, "over_limit": "again"}
PLACED |= {"dependencies": "ignore", "speed": SPEED}
INVENTORY = {"grid": "2x2", "nodes": [{"name": "n[1-4]", "cores": 8, "emulated": True}]}


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(tracebed, [*arguments], standalone_mode=False)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def write(path: Path, document: Any) -> str:
    """Write a document as JSON, which is YAML."""
    path.write_text(json.dumps(document))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of `infos`."""
    return tmp_path_factory.mktemp("settings")


@pytest.fixture(scope="module")
def infos(folder: Path) -> dict[str, RunInfo]:
    """Command -> metadata of the run that it makes with the settings `SET`, or for such a run."""
    work = tb.scale(tb.generate("cirne", jobs=4, nodes=16, seed=3), nodes=4)
    work = Workload(work.table, replace(work.provenance, system=replace(work.provenance.system, grid="4x1")))
    tb.write(work, folder / "w.parquet")
    inventory, parameters = write(folder / "nodes.yaml", INVENTORY), SET["policy_parameters"]
    options = ["--policy", "slurm", "--inventory", inventory, "--placement", "hilbert", "--speed", str(SPEED)]
    options += ["--priority", "shortest-first", "--interval", "30", "--over-limit", "again"]
    options += ["--dependencies", "ignore"]
    options += [text for name, value in parameters.items() for text in ("-P", f"{name}={value}")]
    for command in ("simulate", "replay"):
        run(command, str(folder / "w.parquet"), *options, "-o", str(folder / command))
    replayed = PLACED | {"inventory": "nodes.yaml"}
    suite = {"workloads": {"w": "w.parquet"}, "simulators": {"tracebed": {}}}
    policy = {"policy": "slurm", "parameters": parameters, "label": "slurm"}
    tested = {"policies": [policy], "repetitions": 1, "settle_s": 0, "testbed": replayed}
    recorded = {"policies": ["slurm"], "recorded": "replay"}
    for name, document in (("replayed", tested), ("recorded", recorded)):
        run_suite(write(folder / f"{name}.yaml", suite | document), folder / name)
    places = {
        "simulate": "simulate",
        "replay": "replay",
        "experiment: replayed": "replayed/real/w-slurm/rep-01",
        "experiment: predicted": "replayed/predicted/tracebed/w-slurm",
        "experiment: recorded": "recorded/predicted/tracebed/w-slurm",
    }
    found = {command: Run.load(folder / place).info for command, place in places.items()}
    return found | _of_other_commands(folder, work)


def _of_other_commands(folder: Path, work: Workload) -> dict[str, RunInfo]:
    """Return the metadata of the runs that simulated cells, a fit and an explanation do not keep."""
    real = Run.load(folder / "replay")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitted, "UNHEALTHY", "accepted here: the speed is too high for a healthy run")
        (case,) = cases_of({"w": work}, {"replay": real})
    step = error_budget(work, folder / "replay").runs[0].steps["nominal"]
    spec = {"policy": "slurm", "parameters": SET["policy_parameters"], "placement": "hilbert"}
    study = {key: value for key, value in PLACED.items() if key != "placement"} | {"policies": [spec]}
    write(folder / "study.yaml", study | {"workloads": {"w": {"file": "w.parquet"}}})
    file = load_experiment(str(folder / "study.yaml"))
    swept: list[Run] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sweeping, "predict", lambda *args, **options: swept.append(predict(*args, **options)) or swept[-1]
        )
        (cell,) = sweeping.plan(file, file.experiment.points(), folder / "sweep", {}).todo
        sweeping.simulate(cell)
    return {
        "calibrate RUN": case.predict(Overheads()).info,
        "explain": step.info,
        "experiment: simulated": swept[0].info,
    }


@pytest.mark.parametrize("setting", SET)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_setting_of_a_run_is_lost(infos: dict[str, RunInfo], command: str, setting: str) -> None:
    parts = infos[command].setup.as_dict()
    found = parts["scheduling"] | parts["timing"]
    assert found["policy_parameters"].pop("speed") == SPEED
    found["policy_parameters"] = {name: found["policy_parameters"][name] for name in SET["policy_parameters"]}
    assert found[setting] == NOT_APPLICABLE.get((command, setting), SET[setting])


def test_the_tables_lack_no_command_and_no_setting(infos: dict[str, RunInfo]) -> None:
    assert set(infos) == set(COMMANDS)
    assert {*SET} == {*SETUP_PARTS["scheduling"], "speed"}
    plain = Setup().as_dict()
    assert not [name for room in plain.values() for name, value in room.items() if name in SET and SET[name] == value]


# -- placement --------------------------------------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path: Path) -> Workload:
    """A workload for four nodes, in the file `w.parquet`."""
    made = tb.scale(tb.generate("cirne", jobs=20, nodes=16, seed=3), nodes=4)
    tb.write(made, tmp_path / "w.parquet")
    return made


def on_testbed(policy: str | dict[str, Any], testbed: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment of one cell."""
    return {"workloads": {"w": "w.parquet"}, "policies": [policy], "testbed": testbed, "repetitions": 1}


@pytest.mark.parametrize(
    ("keys", "placement"),
    [
        ({}, "first@2x2"),
        ({"placement": "hilbert"}, "hilbert@2x2"),
        ({"placement": "hilbert", "grid": "1x4"}, "hilbert@1x4"),
    ],
)
def test_repetitions_do_not_lose_the_grid(tmp_path: Path, work: Workload, keys: dict[str, str], placement: str) -> None:
    write(tmp_path / "c.yaml", on_testbed("easy", {"inventory": INVENTORY} | keys))
    campaign = suite_of(tmp_path / "c.yaml").campaign
    assert campaign is not None and campaign.cells["w-easy"].setup.scheduling.placed == placement


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"placement": "hilbert", "grid": "3x3"}, "case w-easy: .*3x3"),
        ({"placement": "spiral"}, "case w-easy: .*spiral"),
        ({"placement": "hilbert@2x2", "grid": "4x1"}, r"testbed\.placement: .*; give placement hilbert and grid 2x2"),
    ],
)
def test_no_replay_begins_with_an_invalid_placement(
    tmp_path: Path, work: Workload, keys: dict[str, str], what: str
) -> None:
    write(tmp_path / "c.yaml", on_testbed("easy", {"inventory": INVENTORY} | keys))
    with pytest.raises(InputError, match=what):
        suite_of(tmp_path / "c.yaml")


def replayed(work: Workload, placement: str) -> Run:
    """Return a run like that of a replay with a placement."""
    made = predict(work, 4, "easy", placement=placement, grid="2x2")
    own = {"grain_s": 0.05, "inventory": "nodes", "testbed": "local", "duty": 0.0}
    made.info = replace(made.info, source="replay", execution="emulated", parameters=own)
    return made


def test_a_fit_does_not_leave_the_placement_out(work: Workload) -> None:
    runs = {name: replayed(work, name) for name in ("hilbert", "first")}
    held = [run.allocations["node"].tolist() for run in runs.values()]
    assert held[0] != held[1]
    (case,) = cases_of({"w": work}, {"real": runs["hilbert"]})
    assert case.predict(Overheads()).allocations["node"].tolist() == held[0]
    with pytest.raises(InputError, match="placement differs"):
        cases_of({"w": work}, runs)


def test_no_error_budget_mixes_placements(infos: dict[str, RunInfo], folder: Path, tmp_path: Path) -> None:
    work = tb.read(folder / "w.parquet")
    shutil.copytree(folder / "replay", tmp_path / "other")
    facts = json.loads((tmp_path / "other/run.json").read_text())
    facts["setup"]["scheduling"]["placement"] = "median"
    (tmp_path / "other/run.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match="another placement than the first real run"):
        error_budget(work, [folder / "replay", tmp_path / "other"])


# -- one speed --------------------------------------------------------------------------------------------------------

SLOW = 900.0
CONF = ",".join(f"{name}={value}" for name, value in POLICIES["slurm"].items())


@pytest.fixture
def of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a workload and a real run of Slurm, `real`, at 900 trace seconds per wall second."""
    recorded = read(FOLDER / "drawn" / "drawn-04.run-1.csv")
    times = ("submit_time", "run_time", "time_limit", "logged_start", "logged_end")
    table = recorded.assign(cores_per_node=1, **{name: recorded[name] * SLOW for name in times})
    log = Workload(table, Provenance(system=System(NODES, 1)))
    tb.write(Workload(table.drop(columns=["logged_start", "logged_end"]), log.provenance), tmp_path / "w.parquet")
    made = tb.as_run(log)
    made.info = replace(
        made.info,
        source="replay",
        execution="emulated",
        setup=Setup.of("slurm", policy_parameters={"SchedulerParameters": CONF}, over_limit="kill", speed=SLOW),
        batch={"system": "slurm", "version": "22.05.8"},
        parameters={"grain_s": 0.0, "duty": 0.0, "testbed": "slurm", "inventory": "c"},
        workload=made.info.workload | {"sha256": tb.read(tmp_path / "w.parquet").sha256},
    )
    made.jobs["launched"] = made.jobs["start"]
    made.save(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("parameters", [{}, {"speed": SLOW}])
def test_the_speed_of_a_real_run_is_not_lost_on_the_policy_slurm(of_slurm: Path, parameters: dict[str, Any]) -> None:
    suite = {
        "workloads": {"w": "w.parquet"},
        "policies": [{"policy": "slurm", "parameters": parameters, "label": "slurm"}],
    }
    run_suite(write(of_slurm / "s.yaml", suite | {"recorded": "real", "simulators": {"tracebed": {}}}), of_slurm / "v")
    predicted = Run.load(of_slurm / "v/predicted/tracebed/w-slurm")
    assert predicted.info.policy_parameters["speed"] == SLOW
    real = metrics(Run.load(of_slurm / "real"))
    assert metrics(predicted)["makespan_s"] == pytest.approx(real["makespan_s"], rel=0.01)  # -10.9 % at speed 1


def test_no_run_has_two_speeds(of_slurm: Path) -> None:
    work, speeds = tb.read(of_slurm / "w.parquet"), {"speed": SLOW}
    assert registry.resolve("slurm", speeds, speed=SLOW)[1] == Slurm(speed=SLOW)
    for policy, parameters in (("slurm", speeds), (Slurm(speed=SLOW), None)):
        with pytest.raises(InputError, match=r"slurm\.speed is 900, but the speed of the run is 20"):
            tb.simulate(work, policy, policy_parameters=parameters, speed=20)
    policy = {"policy": "slurm", "parameters": speeds, "label": "slurm"}
    real = on_testbed(policy, {"inventory": "emulated-4", "speed": 20})
    simulated = {"workloads": {"w": {"file": "w.parquet"}}, "policies": [policy], "speed": 20}
    for name, document in (("real", real), ("simulated", simulated)):
        with pytest.raises(TracebedError, match="the speed of the run is 20"):
            run("experiment", write(of_slurm / f"{name}.yaml", document), "-o", "out")


def test_no_policy_of_an_explanation_loses_the_speed(of_slurm: Path) -> None:
    work = tb.read(of_slurm / "w.parquet")
    named = tb.error_budget(work, of_slurm / "real").frame
    of_class = tb.error_budget(work, of_slurm / "real", policy=Slurm, policy_parameters=POLICIES["slurm"]).frame
    assert of_class.loc["makespan_s", "predicted"] == named.loc["makespan_s", "predicted"]


# -- latencies --------------------------------------------------------------------------------------------------------

LATENCIES = ("--overhead", "launch_s=0.035", "--overhead", "end_s=0.018")


def simulated(of_slurm: Path, output: str, *options: str, policy: str = "slurm") -> Run:
    own = [f"-P{name}={value}" for name, value in POLICIES[policy].items()]
    run("simulate", "w.parquet", "--policy", policy, *own, "--speed", str(SLOW), *options, "-o", output)
    return Run.load(of_slurm / output)  # checks that jobs hold nodes only while they run


def durations(made: Run) -> Any:
    """Return end - start of each job, s."""
    return (made.jobs["end"] - made.jobs["start"]).to_numpy()


def test_latencies_of_slurm_do_not_prolong_run_times(of_slurm: Path) -> None:
    without, late = simulated(of_slurm, "a"), simulated(of_slurm, "b", *LATENCIES)
    before, after = without.jobs, late.jobs
    assert durations(late) == pytest.approx(after["run_time"].to_numpy())
    assert after["launched"].to_numpy() == pytest.approx(after["start"].to_numpy())
    assert after["start"][0] - before["start"][0] == pytest.approx(0.035 * SLOW)
    assert metrics(late)["mean_wait_s"] > metrics(without)["mean_wait_s"]
    held = late.allocations.merge(after, on="job_id", suffixes=("_held", ""))
    assert held["start_held"].to_numpy() == pytest.approx(held["start"].to_numpy())
    assert held["end_held"].to_numpy() == pytest.approx(held["end"].to_numpy())
    assert np.diff(np.sort(held[held["node"] == 0]["start"])).min() > 0
    real = metrics(Run.load(of_slurm / "real"))
    assert metrics(late)["mean_bounded_slowdown"] == pytest.approx(real["mean_bounded_slowdown"], rel=0.03)


def test_overheads_of_jobs_that_tracebed_launches_do_not_delay_starts(of_slurm: Path) -> None:
    easy = simulated(of_slurm, "easy", *LATENCIES, policy="easy")
    assert durations(easy) == pytest.approx(easy.jobs["run_time"].to_numpy() + 0.053 * SLOW)
    work = tb.read(of_slurm / "w.parquet")
    replayed = predict(work, None, "slurm", overheads=Overheads(launch_s=0.035), dispatched=False, speed=SLOW)
    assert durations(replayed) == pytest.approx(replayed.jobs["run_time"].to_numpy() + 0.035 * SLOW)


def test_a_fit_to_a_run_of_slurm_does_not_prolong_run_times(of_slurm: Path) -> None:
    run("nodes", "calibrate", "real", "--workload", "w.parquet", "--budget", "40", "-o", "fit.yaml")
    assert Calibration.load(of_slurm / "fit.yaml").batch == "slurm"
    late = simulated(of_slurm, "late", "--calibration", "fit.yaml")
    assert durations(late) == pytest.approx(late.jobs["run_time"].to_numpy())


def test_no_cause_takes_the_latencies_from_an_explanation(of_slurm: Path) -> None:
    work = tb.read(of_slurm / "w.parquet")
    overheads = Overheads(launch_s=0.035, end_s=0.018)
    steps = error_budget(work, of_slurm / "real", overheads=overheads).runs[0].steps
    first = {name: step.jobs["start"][0] for name, step in steps.items()}
    assert first["overheads"] - first["nominal"] == pytest.approx(31.5)
    assert first["work"] == pytest.approx(first["overheads"])
    for step in steps.values():
        assert durations(step) == pytest.approx(step.jobs["run_time"].to_numpy(), rel=0.02)
