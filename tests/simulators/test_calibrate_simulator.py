"""Calibrations of simulators that a command runs. The real runs are those of a toy simulator with known parameters."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracebed.api as tb
from tests.commands import call
from tests.oracles.elastisim_programs import real as elastisim
from tests.patience import GUARD_S
from tests.servers.toy_simulator import LIMIT, main, schedule
from tests.validation.test_schemas import problems
from tracebed.api.calibrations import fit_simulator
from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.files import locked_folder
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.experiments import simulators
from tracebed.validation.experiments.simulators import SimulatorCalibration
from tracebed.validation.fitting import FitCase
from tracebed.validation.fitting.evaluation import Evaluator, Parameter, Problem, Space
from tracebed.validation.fitting.fit import random_sets
from tracebed.validation.fitting.loss import Target
from tracebed.validation.fitting.search import Search
from tracebed.validation.metrics import MeasuredRun

NODES = 8
TRUTH = {"launch": 5.0, "end": 2.0, "slow": 1.1}
TOY = Path(__file__).parents[1] / "servers" / "toy_simulator.py"
SUITE = """\
workloads: {{{workloads}}}
policies: [fcfs]
recorded: {{runs: "real/{{workload}}-*.csv", from: csv, nodes: {nodes}}}
simulators:
  toy:
    command: "{python} -S {toy} {{workload}} {{nodes}} {{output}}.csv {arguments}"
    from: csv
    {keys}
"""


def prepare(*workloads: int, truth: dict[str, float] | None = None, noise: float = 0.01, jobs: int = 20) -> None:
    """Write workloads, and three real runs of each, whose overheads vary."""
    Path("real").mkdir()
    for seed in workloads:
        made = tb.scale(tb.generate("cirne", jobs=jobs, nodes=32, seed=seed), nodes=NODES)
        shorter = made.table.assign(submit_time=made.table["submit_time"] / 400, run_time=made.table["run_time"] / 200)
        tb.write(tb.Workload(shorter, made.provenance), f"w{seed}.csv")
        rows = shorter.astype({"job_id": str, "submit_time": str, "run_time": str, "nodes": str}).to_dict("records")
        for number, factor in enumerate((1.0, 1 + noise, 1 - noise)):
            values = dict(truth or TRUTH)
            values |= {name: values[name] * factor for name in ("launch", "end") if name in values}
            lines = [f"{job},{start!r},{end!r}" for job, start, end in schedule(rows, NODES, values)]
            Path(f"real/w{seed}-{number}.csv").write_text("\n".join(["job_id,start,end", *lines]) + "\n")


def suite(parameters: str, *workloads: str, fixed: str = "", keys: str = "") -> None:
    """Write the experiment `s.yaml` with the `parameters` of the toy, a YAML mapping."""
    import yaml

    names = yaml.safe_load(parameters)
    arguments = " ".join([f"{name}={{{name}}}" for name in names] + ([fixed] if fixed else []))
    listed = ", ".join(workloads or ("w3: w3.csv", "w4: w4.csv"))
    text = SUITE.format(
        workloads=listed,
        nodes=NODES,
        python=sys.executable,
        toy=TOY,
        arguments=arguments,
        keys=f"parameters: {parameters}\n    {keys}",
    )
    Path("s.yaml").write_text(text)


class InProcess:
    """A stand-in for a running command: the toy, in this process. A hanging one is at its time limit at once."""

    calls = 0
    interrupt_at = 0

    def __init__(self, command: str, log: Path, folder: Path) -> None:
        self.words, self.log = shlex.split(command)[3:], log

    def __enter__(self) -> InProcess:
        InProcess.calls += 1
        if InProcess.calls == InProcess.interrupt_at:
            raise KeyboardInterrupt
        self.log.write_text("the toy\n")
        self.status = main(self.words)
        return self

    def wait(self, timeout_s: float) -> int | None:
        return None if self.status < 0 else self.status

    def __exit__(self, *error: object) -> None: ...


@pytest.fixture(autouse=True)
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(InProcess, "calls", 0)
    monkeypatch.setattr(InProcess, "interrupt_at", 0)
    monkeypatch.setattr(simulators, "BackgroundCommand", InProcess)


def calibrated(output: str = "out", budget: int = 60, **options: Any) -> SimulatorCalibration:
    return fit_simulator("s.yaml", output, budget=budget, workers=1, **options)


RANGES = "{launch: [0.01, 100], end: [0.01, 100], slow: {low: 0.5, high: 2, scale: linear}}"


@pytest.mark.slow
def test_parameters_are_recovered_and_those_that_cannot_be_told_apart_are_named() -> None:
    prepare(3, 4, jobs=30)
    suite(RANGES)
    made = calibrated(budget=80)
    fitted = {name: each.value for name, each in made.parameters.items()}
    assert fitted["slow"] == pytest.approx(1.1, rel=0.01)
    assert made.parameters["slow"].identified
    # Launches and ends both delay the next jobs by the same time.
    assert fitted["launch"] + fitted["end"] == pytest.approx(7.0, rel=0.05)
    assert made.value == min(made.search_value, made.random_value or 1)
    assert made.search_value < 0.5 * (made.random_value or 1)
    assert all(each.low <= each.value <= each.high for each in made.parameters.values())
    assert [each.parameters for each in made.tied] == [["launch", "end"]]
    assert made.tied[0].correlation < -0.9
    assert not made.parameters["launch"].identified
    assert [fold.workload for fold in made.cross_validation] == ["w3", "w4"]
    for fold in made.cross_validation:
        assert fold.loss_out is not None and fold.loss_out_random is not None
        assert fold.loss_out < fold.loss_out_random
    assert made.cloud[0] == made.values
    assert len(made.cloud) <= min(made.cloud_sets, 50)


def test_each_set_of_the_cloud_fits() -> None:
    prepare(3)
    suite("{launch: [0.01, 100], end: 2.0}", "w3: w3.csv", fixed="slow=1.1")
    made = calibrated(budget=16)
    assert made.known == {"end": 2.0}
    assert made.parameters.keys() == {"launch"}
    assert made.parameters["launch"].value == pytest.approx(5.0, rel=0.02)
    lines = map(json.loads, filter(None, Path("out/calibrated/toy.evaluations.jsonl").read_text().splitlines()))
    figures = {each["parameters"]["launch"]: each["quantities"] for each in lines}
    real = np.mean([figures_of(Path(f"real/w3-{number}.csv")) for number in range(3)], axis=0)
    for member in made.cloud:
        loss = np.mean(np.abs(np.array(figures[member["launch"]]) - real) / np.maximum(real, FLOORS))
        assert loss <= made.value + made.tolerance + 1e-12


FLOORS = np.array([0.0, 10.0, 10.0, 0.1, 0.01])
"""Absolute margins of the gated metrics."""
GATED = ("makespan_s", "mean_wait_s", "mean_response_s", "mean_bounded_slowdown", "utilization")


def figures_of(path: Path) -> list[float]:
    run = tb.import_run(path, side="real", form="csv", workload=tb.read("w3.csv"), nodes=NODES)
    return [run.metrics()[name] for name in GATED]


def test_an_integer_parameter_and_one_without_effect() -> None:
    prepare(3, truth=TRUTH | {"tick": 7.0})
    suite(
        "{tick: {low: 1, high: 12, scale: linear, integer: true}, unused: [1, 10]}",
        "w3: w3.csv",
        fixed="slow=1.1 launch=5 end=2",
    )
    made = calibrated(budget=24)
    assert made.parameters["tick"].value == 7.0
    assert made.without_effect == {"unused": 1.0}
    assert "tick=7 unused=1 " in made.fitted
    for line in filter(None, Path("out/calibrated/toy.evaluations.jsonl").read_text().splitlines()):
        assert json.loads(line)["parameters"]["tick"].is_integer()


def test_an_optimum_at_the_end_of_a_range_is_named() -> None:
    prepare(3)
    suite("{launch: [0.01, 2]}", "w3: w3.csv", fixed="slow=1.1 end=2")
    assert calibrated(budget=8).parameters["launch"].at_end == "upper"
    suite("{launch: [8, 20]}", "w3: w3.csv", fixed="slow=1.1 end=2")
    result = call("validate", "s.yaml", "--fit", "-o", "other", "--budget", "8", "--workers", "1")
    assert "launch is at the lower end of its range, 8: a wider range may fit better" in result.output


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("status", "ended with status 3: the toy"),
        ("hangs", "took longer than"),
        pytest.param("garbage", "output.csv", marks=pytest.mark.slow),
        pytest.param("empty", "contains no jobs", marks=pytest.mark.slow),
        pytest.param("others", "ids of the file are not those of the workload", marks=pytest.mark.slow),
        ("half", "10 of 20 jobs do not end"),
    ],
)
def test_sets_with_which_the_simulator_fails_are_left_out(fails: str, message: str) -> None:
    prepare(3)
    suite("{launch: [0.01, 100], end: [0.01, 100]}", "w3: w3.csv", fixed=f"slow=1.1 fails={fails}")
    made = calibrated(budget=24)
    assert made.parameters["launch"].value + made.parameters["end"].value == pytest.approx(7.0, rel=0.1)
    assert made.failures.simulations > 5
    assert message in made.failures.first
    assert all(member["launch"] <= LIMIT for member in made.cloud)
    failed = [json.loads(line) for line in Path("out/calibrated/toy.evaluations.jsonl").read_text().splitlines()]
    failed = [each for each in failed if each["quantities"] is None]
    assert len(failed) == made.failures.simulations == len(list(Path("out/calibrated/toy.logs").iterdir()))
    assert all(each["parameters"]["launch"] > LIMIT and message in each["failure"] for each in failed)


def test_a_simulator_that_always_fails_is_an_error_with_the_reason() -> None:
    prepare(3)
    suite("{launch: [30, 100]}", "w3: w3.csv", fixed="fails=status")
    with pytest.raises(InputError, match=r"fails with all \d+ parameter sets: out/calibrated/toy.logs/.*status 3"):
        calibrated(budget=8)
    assert not Path("out/calibrated/toy.yaml").exists()


def contents(made: SimulatorCalibration) -> dict[str, Any]:
    return made.model_dump(exclude={"created"})


def test_an_interrupted_calibration_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(3, jobs=5)
    suite("{launch: [0.01, 100], end: [0.01, 100]}", "w3: w3.csv", fixed="slow=1.1")
    whole = calibrated("whole", budget=12)
    count = InProcess.calls
    assert count == whole.simulations > 16
    monkeypatch.setattr(InProcess, "interrupt_at", count + 16)
    with pytest.raises(KeyboardInterrupt):
        calibrated(budget=12)
    evaluations = Path("out/calibrated/toy.evaluations.jsonl")
    with evaluations.open("a") as stream:
        stream.write('{"id": "torn')
    monkeypatch.setattr(InProcess, "calls", 0)
    monkeypatch.setattr(InProcess, "interrupt_at", 0)
    assert contents(calibrated(budget=12)) == contents(whole)
    assert InProcess.calls == count - 15
    monkeypatch.setattr(InProcess, "calls", 0)
    assert contents(calibrated(budget=12)) == contents(whole)
    assert InProcess.calls == 0
    other = calibrated(seed=1, budget=12)
    assert contents(other) != contents(whole)
    suite("{launch: [0.01, 100], end: [0.01, 100]}", "w3: w3.csv", fixed="slow=1.2")
    monkeypatch.setattr(InProcess, "calls", 0)
    assert InProcess.calls < calibrated(budget=12).simulations == InProcess.calls


def test_failed_simulations_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(3)
    suite("{launch: [0.01, 100]}", "w3: w3.csv", fixed="slow=1.1 end=2 fails=status")
    made = calibrated(budget=8)
    monkeypatch.setattr(InProcess, "calls", 0)
    assert contents(calibrated(budget=8)) == contents(made)
    assert InProcess.calls == made.failures.simulations > 0


@pytest.mark.parametrize("loss", ["metrics", "jobs"])
def test_quantities_are_means_over_the_seeds_of_a_stochastic_simulator(loss: Any) -> None:
    prepare(3, jobs=5)
    suite("{launch: [0.01, 100]}", "w3: w3.csv", fixed="slow=1.1 end=2", keys="seeds: 2")
    made = calibrated(budget=12, loss=loss)
    assert made.loss == loss
    assert InProcess.calls == 2 * made.simulations == 2 * 24
    assert made.values["launch"] == pytest.approx(5.0, rel=0.1)


def test_two_processes_do_not_share_a_folder() -> None:
    prepare(3)
    suite("{launch: [0.01, 100]}", "w3: w3.csv")
    with locked_folder(Path("out"), "experiment"), pytest.raises(InputError, match="another experiment is running"):
        calibrated()


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(3, 4, jobs=10)
    suite("{launch: [0.01, 100], end: [0.01, 100]}", fixed="fails=status")
    alone = calibrated("one", budget=12)
    place = Path.cwd()
    monkeypatch.undo()
    monkeypatch.chdir(place)
    several = fit_simulator("s.yaml", "several", budget=12, workers=2)
    assert json.loads(json.dumps(contents(several)).replace("several/", "one/")) == contents(alone)
    assert several.failures.simulations > 0


@pytest.mark.slow
def test_an_interruption_ends_the_running_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(3, 4, jobs=10)
    suite("{launch: [0.01, 100]}")
    text = Path("s.yaml").read_text().replace('command: "', 'command: "echo $$ >> pids; exec sleep 1000; ')
    Path("s.yaml").write_text(text)
    command = [sys.executable, "-c", "from tracebed.cli import main; main()"]
    words = ["validate", "s.yaml", "--fit", "-o", "out", "--workers", "2"]
    with subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + GUARD_S
        while not Path("pids").exists() or len(Path("pids").read_text().split()) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=GUARD_S)[1]
    assert process.returncode == ExitCode.INTERRUPTED
    assert "the same command continues the fit" in errors
    while any(Path(f"/proc/{pid}").exists() for pid in Path("pids").read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.usefixtures("without_pictures")
def test_validate_uses_the_calibration_and_bases_no_verdict_on_its_workloads() -> None:
    prepare(3, 4, 5)
    workloads = ("w3: {file: w3.csv, calibration: true}", "w4: {file: w4.csv, calibration: true}", "w5: w5.csv")
    ranges, fixed = "{launch: [0.01, 100], end: [0.01, 100]}", "slow=1.1"
    suite(ranges, *workloads, fixed=fixed)
    assert "parameter launch of toy has a range, but no value" in str(call("validate", "s.yaml", "-o", "v").exception)
    made = calibrated("v", budget=12)
    assert [case.case for case in made.cases] == ["w3-fcfs", "w4-fcfs"]
    plain = ("w3: w3.csv", "w4: w4.csv", "w5: w5.csv")
    suite(ranges, *plain, fixed=fixed, keys="calibration: v/calibrated/toy.yaml")
    result = call("validate", "s.yaml", "-o", "v", "--no-case-pages", "--json")
    document = json.loads(result.stdout)
    (found,) = document["simulators"]
    assert {case["name"]: case["calibration"] for case in found["cases"]} == {
        "w3-fcfs": True,
        "w4-fcfs": True,
        "w5-fcfs": False,
    }
    run = tb.Run.load("v/predicted/toy/w5-fcfs")
    assert run.info.calibration["parameters"] == made.values
    assert run.info.calibration["workloads"] == made.workloads
    error = found["cases"][-1]["metrics"]["mean_wait_s"]["relative_error"] if "metrics" in found["cases"][-1] else 0
    assert abs(error) < 0.05
    # the same file is calibrated again, and another command has no calibration
    assert fit_simulator("s.yaml", "w", budget=12, workers=1).name == "toy"
    suite(ranges, *plain, fixed="slow=1.2", keys="calibration: v/calibrated/toy.yaml")
    error = call("validate", "s.yaml", "-o", "v").exception
    assert "s.yaml:5" in str(error) and "is the calibration of another command" in str(error)


@pytest.mark.usefixtures("without_pictures")
def test_values_in_the_file_need_no_calibration() -> None:
    prepare(3)
    suite("{launch: 5, end: 0.00002}", "w3: w3.csv", fixed="slow=1.1")
    call("validate", "s.yaml", "-o", "v", "--no-case-pages")
    assert tb.Run.load("v/predicted/toy/w3-fcfs").info.calibration == {}
    with pytest.raises(InputError, match="no simulator has a parameter with a range"):
        calibrated()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("launch: [0.01, 100]", "launch: [1, 0.5]", "give the lower end first"),
        ("launch: [0.01, 100]", "launch: [0, 1]", "write `scale: linear`"),
        ("launch: [0.01, 100]", "launch: {low: 0.5, high: 2, integer: true}", "are not integers"),
        ("launch: [0.01, 100]", "launch: {low: 0.5}", "high"),
        ("launch: [0.01, 100]", "launch: [.nan, 1]", "finite"),
        ("launch: [0.01, 100]", "launch: [0.01, 100], other: 1", "the command has no {other}, one of its parameters"),
        ("{launch: [0.01, 100]}", "{launch: [0.01, 100], seed: 1}", "{seed} has another meaning"),
        ("launch={launch}", "launch={lunch}", "the command has no {launch}"),
        ("parameters: {launch: [0.01, 100]}", "version: '1'", "unknown placeholder {launch}"),
        (
            "{launch: [0.01, 100]}",
            "{launch: [0.01, 100]}\n    calibration: true",
            "calibration of a command is one file",
        ),
        ("{launch: [0.01, 100]}", "{launch: [0.01, 100]}\n    calibration: c.yaml", "c.yaml"),
    ],
)
def test_invalid_parameters_are_errors_with_their_line(old: str, new: str, message: str) -> None:
    prepare(3, jobs=5)
    suite("{launch: [0.01, 100]}", "w3: w3.csv")
    text = Path("s.yaml").read_text()
    assert old in text
    Path("s.yaml").write_text(text.replace(old, new))
    error = str(call("validate", "s.yaml", "-o", "v").exception)
    assert message in error
    assert error.startswith("s.yaml:")


def test_what_cannot_be_calibrated_is_an_error() -> None:
    prepare(3, jobs=5)
    suite("{launch: [0.01, 100]}", "w3: w3.csv")
    text = Path("s.yaml").read_text()
    errors = {
        ("--only", "simulator=other"): "unknown simulator of the experiment",
        ("--budget", "3"): "budget is 3",
        ("--only", "workload=w9"): "w9",
    }
    for arguments, message in errors.items():
        assert message in str(call("validate", "s.yaml", "--fit", "-o", "out", *arguments).exception)
    Path("s.yaml").write_text(text.replace("  toy:", "  easy: {}\n  toy:"))
    assert "no simulator has a parameter" in str(
        call("validate", "s.yaml", "--fit", "-o", "o", "--only", "simulator=easy").exception
    )
    second = text[text.index("  toy:") :].replace("toy:", "toy-2:", 1)
    Path("s.yaml").write_text(text + second)
    assert "several simulators have parameters: toy, toy-2" in str(
        call("validate", "s.yaml", "--fit", "-o", "o").exception
    )
    bed = text[: text.index("recorded")] + "testbed: {inventory: emulated-4}\n" + text[text.index("simulators") :]
    Path("s.yaml").write_text(bed)
    assert "case w3-fcfs has no real run" in str(call("validate", "s.yaml", "--fit", "-o", "o").exception)
    tb.simulate(tb.read("w3.csv"), "fcfs", NODES).save("sim/w3-fcfs")
    recorded = f'recorded: "sim/{{workload}}-{{policy}}"\n{text[text.index("simulators") :]}'
    Path("s.yaml").write_text(text[: text.index("recorded")] + recorded)
    assert "the run is a prediction" in str(call("validate", "s.yaml", "--fit", "-o", "p").exception)


def test_the_command_prints_a_table_and_a_document_with_a_published_schema() -> None:
    prepare(3, 4)
    suite("{launch: [0.01, 100], end: [0.01, 100]}", fixed="slow=1.1 fails=status")
    options = ("s.yaml", "-o", "out", "--budget", "60", "--workers", "1")
    result = call("validate", "--fit", *options)
    assert result.exit_code == 0
    for text in ("range over the cloud", "without w3", "random, left out", "launch and end cannot be told apart"):
        assert text in result.output, text
    assert "simulations failed, such as: out/calibrated/toy.logs/" in result.output
    made = SimulatorCalibration.load("out/calibrated/toy.yaml")
    assert f"launch={np.format_float_positional(made.values['launch'], trim='-')} " in made.fitted
    assert made.fitted in result.output
    document = json.loads(call("validate", "--fit", *options, "--json").stdout)
    name = "tracebed-simulator-calibration-1.json"
    assert document["schema"] == "tracebed-simulator-calibration/1"
    assert document["parameters"]["launch"]["value"] == made.values["launch"]
    assert problems(document, name) == []
    published = json.loads((files("tracebed.validation") / "schemas" / name).read_text(encoding="utf-8"))
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": name}
    assert published == about | SimulatorCalibration.model_json_schema(by_alias=True)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_the_search_beats_random_search_on_three_overheads_of_malleable_jobs(seed: int) -> None:
    names, truth = ("launch_s", "end_s", "reconfiguration_s"), np.array([20.0, 5.0, 30.0])
    space = Space(tuple(Parameter(name, 0.001, 1000.0) for name in names))
    scaled = [tb.scale(tb.generate("cirne", jobs=40, nodes=64, seed=number), nodes=NODES) for number in (3, 4)]
    workloads = [tb.make_malleable(each, share=0.7, seed=1) for each in scaled]

    def simulated(of: tb.Workload, values: Sequence[float]) -> tb.Run:
        return predict(of, NODES, "pref", overheads=Overheads(**dict(zip(names, values, strict=True))), speed=1.0)

    def quantities(case: int, values: Sequence[float]) -> FloatArray:
        return targets[case].measure(MeasuredRun(simulated(workloads[case], values)))

    cases = [
        FitCase(f"w{at}", of, {str(factor): simulated(of, factor * truth) for factor in (1.0, 1.02, 0.98)})
        for at, of in enumerate(workloads)
    ]
    targets = [Target.of(case, "metrics") for case in cases]
    evaluator = Evaluator(targets, lambda keys: ((key, quantities(*key)) for key in keys))
    problem = Problem(evaluator, (0, 1), space)
    found = Search(problem, 48, seed, problem.tolerance).run()
    launch, end, reconfiguration = found.best
    assert reconfiguration == pytest.approx(30, rel=0.05)
    assert launch + end == pytest.approx(25, rel=0.05)
    assert found.loss(found.best) < 0.05 * min(map(problem.loss, random_sets(space, 48, seed)))


def test_a_space_has_scales_integers_and_rounded_values() -> None:
    space = Space(
        (
            Parameter("log", 1e-3, 10.0),
            Parameter("linear", -5.0, 5.0, log=False),
            Parameter("integer", 1.0, 1000.0, integer=True),
            Parameter("known", -2.0, -2.0),
        )
    )
    assert space.at(np.full(4, 0.5)).tolist() == pytest.approx([0.1, 0.0, 31.6227766, -2.0])
    assert space.shares(space.at(np.full(4, 0.25))).tolist() == pytest.approx([0.25, 0.25, 0.25, 0.0])
    sets = random_sets(space, 200, seed=0)
    assert all(map(space.contains, sets))
    assert np.median(sets[:, 0]) == pytest.approx(0.1, rel=0.5)
    assert abs(np.median(sets[:, 1])) < 0.8
    assert np.array_equal(sets[:, 2], np.rint(sets[:, 2]))
    assert set(sets[:, 3]) == {-2.0}
    assert np.array_equal(sets, random_sets(space, 200, seed=0))
    assert not np.array_equal(sets, random_sets(space, 200, seed=1))


class TracebedInProcess(InProcess):
    """A stand-in for a running command: the command `tracebed`, in this process."""

    def __enter__(self) -> InProcess:
        self.log.write_text("tracebed\n")
        self.status = call(*self.words).exit_code
        return self


@pytest.mark.slow
def test_the_overheads_of_elastisim_are_recovered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = elastisim(tmp_path)
    monkeypatch.setattr(simulators, "BackgroundCommand", TracebedInProcess)
    of = tb.scale(tb.generate("cirne", jobs=20, nodes=64, seed=3), nodes=NODES)
    tb.write(of, "w.parquet")
    tracebed_command = shlex.join([sys.executable, "-c", "from tracebed.cli import main; main()"])
    command = (
        f"{tracebed_command} simulate {{workload}} --with elastisim,program={program} --policy {{policy}}"
        " --nodes {nodes} --overhead launch_s={launch_s} --overhead end_s={end_s} -o {output}"
    )
    for number, factor in enumerate((1.0, 1.02, 0.98)):
        truth = {"launch_s": 20 * factor, "end_s": 5 * factor}
        run = tb.simulate(
            of, "easy", NODES, simulator="elastisim", overheads=truth, simulator_options={"program": str(program)}
        )
        run.info.source, run.info.execution = "replay", "emulated"
        run.save(f"real/rep-{number}")
    text = {
        "workloads": {"w": "w.parquet"},
        "policies": ["easy"],
        "recorded": "real/rep-*",
        "simulators": {"elastisim": {"command": command, "parameters": {name: [0.1, 1000] for name in truth}}},
    }
    Path("s.yaml").write_text(json.dumps(text))
    made = calibrated(budget=16)
    assert made.values["launch_s"] + made.values["end_s"] == pytest.approx(25, rel=0.1)
    assert made.search_value < 0.5 * (made.random_value or 1)
    assert made.failures.simulations == 0
