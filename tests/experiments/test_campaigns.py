"""The experiments in tests/performance/campaigns: their files, their workload, and the tools that they use."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from click.testing import CliRunner

import tracebed.api as tb
from tests.suites import suite_of
from tracebed.cli import tracebed
from tracebed.ground.errors import ExitCode
from tracebed.validation.experiments.experiment import Experiment
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.views.statistics import CellFigures, Dependence, Figures, Statistics

FOLDER = Path(__file__).parents[1] / "performance" / "campaigns"


def load(name: str) -> ModuleType:
    """Import a tool of the folder."""
    spec = importlib.util.spec_from_file_location(f"campaigns_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, which is the current one."""
    for path in FOLDER.glob("*.*"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spec_of(name: str) -> Experiment:
    return load_experiment(str(FOLDER / name)).experiment


def test_pace_has_all_nodes_and_neighbors_and_two_clocks() -> None:
    spec, tables = spec_of("pace.yaml"), load("tables")
    paces = [(kind, "wall") for kind in tables.KINDS if kind != "slow"] + [("full", "steady"), ("half", "steady")]
    assert set(spec.beds) == {f"{kind}-{clock}-{neighbor}" for kind, clock in paces for neighbor in tables.NEIGHBORS}
    for name, bed in spec.beds.items():
        kind, clock, neighbor = name.split("-")
        assert (bed.inventory, bed.work_rate) == (f"{kind}.yaml", f"{kind}.calibration.yaml")
        assert bed.clock == clock
        loops = {"quiet": "", "one": "stress-ng --cpu 1 --taskset 0,1", "two": "stress-ng --cpu 2 --taskset 0,1"}
        assert bed.beside == loops[neighbor]
        assert spec.repetitions_on(name) == (3 if (kind, clock) == ("half", "steady") else 10)


def test_injection_disturbs_as_many_runs_as_it_leaves_quiet() -> None:
    campaign = suite_of(FOLDER / "injection.yaml").campaign
    assert campaign is not None
    counts = {name.removeprefix("jobs-pref-"): count for name, count in campaign.counts.items()}
    cells = {name.removeprefix("jobs-pref-"): cell for name, cell in campaign.cells.items()}
    for kind, least in {"half": 30, "emulated": 30}.items():
        own = {name: count for name, count in counts.items() if name.startswith(f"{kind}-")}
        quiet = own.pop(f"{kind}-quiet")
        assert (quiet, sum(own.values())) == (least, least)
        assert cells[f"{kind}-quiet"].replay.beside == ""
        assert all(cells[name].replay.beside for name in own)
        assert cells[f"{kind}-quiet"].replay.inventory.duty() == {"half": 0.5, "emulated": 0}[kind]


def test_the_held_out_workloads_are_predicted_under_two_policies_on_both_kinds_of_nodes() -> None:
    spec = spec_of("held-out.yaml")
    held = {(point.policy, spec.beds[point.testbed].inventory) for point in spec.points()}
    assert held == {(policy, nodes) for policy in ("easy", "pref") for nodes in ("emulated-4", "own.yaml")}
    assert spec.repetitions == 5 and len(spec.points()) == 8


def test_the_workload_is_that_of_the_documented_commands(folder: Path) -> None:
    text = (folder / "pace.yaml").read_text().replace("\\\n#", "")
    commands = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#   tracebed")]
    (folder / "jobs.csv").rename(folder / "kept.csv")
    for command in commands:
        if command.split()[1] in ("generate", "malleable"):
            assert CliRunner().invoke(tracebed, command.split()[1:]).exit_code == ExitCode.OK, command
    assert tb.read("jobs.csv").sha256 == tb.read("kept.csv").sha256


def test_no_decision_depends_on_the_launch_overhead() -> None:
    """The comment in pace.yaml says so."""
    jobs, found = tb.read(FOLDER / "jobs.csv"), set()
    for overhead in range(0, 41, 4):
        run = tb.simulate(jobs, "pref", overheads={"launch_s": overhead / 1000}, speed=4000)
        order = run.jobs.sort_values(["start", "job_id"])["job_id"]
        sizes = run.allocations.groupby("job_id")["count"].apply(tuple)
        found.add((tuple(order), tuple(sizes.items())))
    assert len(found) == 1


def summary(runs: pd.DataFrame, figures: list[CellFigures]) -> Statistics:
    return Statistics(runs, figures, dict[str, Dependence](), [], 0)


def test_the_table_of_the_injections_counts_what_was_found_by_how_much_the_response_moved() -> None:
    rows = [
        ("jobs-pref-half-quiet", 100.0, "healthy", "completed"),
        ("jobs-pref-half-quiet", 101.0, "healthy", "completed"),
        ("jobs-pref-half-quiet", 99.0, "degraded", "completed"),
        ("jobs-pref-half-loop-25", 102.0, "healthy", "completed"),
        ("jobs-pref-half-loop-25", 110.0, "degraded", "completed"),
        ("jobs-pref-half-stop-rank", 90.0, "unhealthy", "completed"),
        ("jobs-pref-half-stop-rank", float("nan"), "unhealthy", "interrupted"),
        ("jobs-pref-half-stop-rank", 120.0, "healthy", "completed"),
    ]
    runs = pd.DataFrame(rows, columns=["cell", "mean_response_s", "health", "state"])
    text = load("tables").injection(summary(runs, []))
    assert "| duty 0.5 | quiet | 3 | 1.0 % | 1.0 % | 1 of 3 (33 %) | 0 of 3 (0 %) |" in text
    assert "| duty 0.5 | loop-25 | 2 | 6.0 % | 10.0 % | 1 of 2 (50 %) | 0 of 2 (0 %) |" in text
    assert "| duty 0.5 | disturbed, response moved by more than 5 % | 4 | 3 of 4 (75 %) | 2 of 4 (50 %) |" in text
    assert "| duty 0.5 | disturbed, moved less | 1 | 0 of 1 (0 %) | 0 of 1 (0 %) |" in text


def test_the_table_of_the_pace_has_variation_and_error() -> None:
    figures = {name: Figures(10.0, 0.1, 0.01, {"tracebed": -0.002}) for name in load("tables").METRICS}
    runs = pd.DataFrame({"cell": ["jobs-pref-half-steady-one"] * 2, "health": ["healthy", "degraded"]})
    text = load("tables").pace(summary(runs, [CellFigures("jobs-pref-half-steady-one", "all", 2, figures)]))
    assert text.splitlines()[-1] == (
        "| duty 0.5 | steady | one busy loop | 2 | 1 healthy, 1 degraded "
        "| 1.00 % | 1.00 % | 1.00 % | -0.20 % | -0.20 % | -0.20 % |"
    )


@pytest.mark.parametrize("kind", ["rank", "agent", "replayer"])
def test_a_process_of_the_replay_is_stopped_and_continues(folder: Path, kind: str) -> None:
    (folder / "c.yaml").write_text(
        "workloads: {jobs: jobs.csv}\npolicies: [pref]\nrepetitions: 1\nsettle_s: 0\n"
        "testbed: {inventory: emulated.yaml, speed: 20000, "
        f"beside: {sys.executable} stop.py {kind} --after 0.1 --for 0.5}}\n"
    )
    (run,) = tb.experiment("c.yaml", "out").to_dict("records")
    assert run["state"] == "completed"
    assert (folder / "out" / "real" / "jobs-pref" / "rep-01.log").read_text().startswith(f"stopped the {kind} ")
    jobs = tb.Run.load("out/real/jobs-pref/rep-01").jobs
    if kind == "rank":  # its job cannot end while it is stopped
        assert (jobs["end"] - jobs["start"]).max() >= 0.5 * 20000


@pytest.mark.slow
def test_the_witness_finds_the_disturbed_repetition(folder: Path) -> None:
    (folder / "c.yaml").write_text(
        "workloads: {jobs: jobs.csv}\npolicies: [pref]\nrepetitions: 1\nsettle_s: 0\n"
        f"testbed: {{inventory: emulated.yaml, speed: 4000, beside: {sys.executable} stop.py rank --after 1 --for 2}}\n"
    )
    (run,) = tb.experiment("c.yaml", "out").to_dict("records")
    assert run["health"] == "unhealthy"
    assert run["causes"]


def test_a_process_outside_an_experiment_is_not_stopped(folder: Path) -> None:
    with pytest.raises(SystemExit, match="does not run beside a repetition"):
        load("stop").experiment()
