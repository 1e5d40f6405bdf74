"""Suites: their files and errors, predictions that are kept, replays that are resumed, verdicts and exit statuses."""

from __future__ import annotations

import io
import json
import runpy
import shlex
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import Result

import tracebed.api as tb
from tests.commands import call
from tests.executables import write_program
from tests.pages import without_pictures
from tests.recorders import packing
from tests.runs import fcfs_run
from tests.suites import suite_of
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.files import locked_folder
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.validation.experiments import cell as cells
from tracebed.validation.experiments import runner
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.simulators import DrivenSimulator
from tracebed.validation.recorded import RecordedSuite, recorded_runs, recorded_suite, recorded_suites, unpack
from tracebed.validation.verdict.comparison import compare

SUITE = """\
workloads: {w: w.csv}
policies: [easy, fcfs]
testbed: {inventory: emulated-4, speed: 1e6}
repetitions: 2
settle_s: 0
simulators:
  tracebed: {}
"""
RECORDED = """\
workloads: [tiny]
policies: [fcfs, easy]
recorded: "real/{workload}-{policy}/rep-*"
simulators:
  right: {runs: "right/{workload}-{policy}"}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a suite that is replayed, and its workload."""
    tb.write(tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4), tmp_path / "w.csv")
    (tmp_path / "s.yaml").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a suite of recorded runs: two cases with five repetitions, a right and a wrong simulator."""
    for policy in ("fcfs", "easy"):
        for number in range(1, 6):
            fcfs_run(40, stretch=1 + 0.001 * number, policy=policy).save(tmp_path / f"real/tiny-{policy}/rep-0{number}")
        fcfs_run(40, stretch=1.003, policy=policy, real=False).save(tmp_path / f"right/tiny-{policy}")
        fcfs_run(40, stretch=2.0, policy=policy, real=False).save(tmp_path / f"wrong/tiny-{policy}")
    (tmp_path / "s.yaml").write_text(RECORDED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@without_pictures()
def validate(*arguments: str, case_pages: bool = False) -> Result:
    """Validate; without the pages of cases, which take most of the time."""
    pages = [] if case_pages else ["--no-case-pages"]
    return call("validate", *arguments, *pages)


def times(folder: Path, pattern: str) -> dict[str, int]:
    """Return the times at which the files of a pattern were written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.glob(pattern)}


def verdicts(folder: Path) -> dict[str, str]:
    """Return simulator -> verdict in the folder of a validation."""
    document = json.loads((folder / "verdict.json").read_text())
    return {item["simulator"]["name"]: item["verdict"] for item in document["simulators"]}


@pytest.mark.slow
def test_a_suite_is_predicted_replayed_and_decided(folder: Path) -> None:
    result = validate("s.yaml", "-o", "out", case_pages=True)
    assert result.return_value in (ExitCode.INCONCLUSIVE, ExitCode.UNHEALTHY, ExitCode.INACCURATE)
    assert "cases: 2, repetitions: 4" in result.output
    assert "replays to make: 4, at least" in result.output
    out = folder / "out"
    runs = sorted(path.parent.relative_to(out).as_posix() for path in out.rglob("run.json"))
    assert runs == [
        *("predicted/tracebed/w-easy", "predicted/tracebed/w-fcfs"),
        *("real/w-easy/rep-01", "real/w-easy/rep-02", "real/w-fcfs/rep-01", "real/w-fcfs/rep-02"),
    ]
    assert (out / "experiment.yaml").read_text() == SUITE
    assert verdicts(out).keys() == {"tracebed"}
    assert "tracebed" in (out / "verdict.md").read_text()
    assert ElementTree.parse(out / "junit.xml").getroot().tag == "testsuites"
    for page in ("tracebed.html", "tracebed/w-easy.html", "tracebed/w-fcfs.html"):
        assert (out / page).read_text().startswith("<!doctype html>"), page
    plan = json.loads((out / "real" / "campaign.json").read_text())
    assert plan["repetitions"] == {"w-easy": 2, "w-fcfs": 2}
    predicted = tb.Run.load(out / "predicted/tracebed/w-easy")
    assert predicted.jobs.equals(tb.simulate(tb.read("w.csv"), "easy", "emulated-4").jobs)


@pytest.mark.slow
def test_what_is_done_is_not_repeated(folder: Path) -> None:
    validate("s.yaml", "-o", "out")
    before = times(folder / "out", "real/*/*/run.json"), times(folder / "out", "predicted/*/*/run.json")
    result = validate("s.yaml", "-o", "out")
    assert "predictions to make" not in result.output and "replays to make" not in result.output
    assert (times(folder / "out", "real/*/*/run.json"), times(folder / "out", "predicted/*/*/run.json")) == before
    (folder / "s.yaml").write_text(SUITE.replace("tracebed: {}", "tracebed: {runtime_model: worst-case}"))
    assert "predictions to make: 2 by tracebed" in validate("s.yaml", "-o", "out").output
    assert times(folder / "out", "real/*/*/run.json") == before[0]
    assert times(folder / "out", "predicted/*/*/run.json") != before[1]


def test_a_dry_run_writes_nothing(folder: Path) -> None:
    result = validate("s.yaml", "-o", "out", "--dry-run")
    assert result.return_value == ExitCode.OK
    assert "predictions to make: 2 by tracebed" in result.output
    assert "replays to make: 4, at least" in result.output
    assert not (folder / "out").exists()


def test_a_folder_with_other_content_is_refused(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "mine.txt").touch()
    assert "is not the folder of an experiment" in str(validate("s.yaml", "-o", "out").exception)
    with locked_folder(folder / "other", "experiment"):
        assert "another experiment is running" in str(validate("s.yaml", "-o", "other").exception)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("workloads: {w: w.csv}", "workloads: {w: v.csv}", 1, "v.csv"),
        ("workloads: {w: w.csv}", "workloads: [w]", 1, "the source of the workload is missing"),
        ("workloads: {w: w.csv}", "workloads: {}", 1, "workloads: must not be empty"),
        ("[easy, fcfs]", "[easy, easy]", 2, "two policies have the name 'easy'"),
        ("[easy, fcfs]", "[easy, easyy]", 2, "did you mean easy?"),
        ("[easy, fcfs]", "[{policy: easy, parameters: {depth: 1}}]", 2, "depth"),
        ("[easy, fcfs]", "[{policy: easy, label: a/b}]", 2, "'a/b' is not a name of folders"),
        ("emulated-4", "nowhere", 3, "nowhere"),
        ("inventory: emulated-4", "priority: fcfs", 3, "inventory is missing"),
        ("speed: 1e6", "sped: 1e6", 3, "unknown key"),
        ("speed: 1e6", "work_rate: c.yaml", 3, "c.yaml"),
        ("speed: 1e6", "priority: best", 3, "best"),
        ("repetitions: 2", "repetitions: 0", 4, "repetitions: must be at least 1"),
        ("repetitions: 2", "sessions: 7", 1, "7 sessions need at least as many repetitions"),
        ("settle_s: 0", 'recorded: "x"', 1, "only one of `testbed`, `testbeds` and `recorded`"),
        ("settle_s: 0", "tolerances: t.yaml", 5, "t.yaml"),
        ("settle_s: 0", "noise: n.yaml", 5, "n.yaml"),
        ("settle_s: 0", "no: 1", 5, "unknown key"),
        ("tracebed: {}", "tracebed: {calibration: c.yaml}", 7, "c.yaml"),
        ("tracebed: {}", "tracebed: {runtime_model: good}", 7, "one of ideal, worst-case"),
        ("tracebed: {}", "tracebed: {options: {a: b}}", 7, "`options` does not apply to a simulator by the built-in"),
        ("tracebed: {}", "elastisim: {}", 7, "add `with: elastisim`"),
        ("tracebed: {}", "mine: {with: nosim}", 7, "unknown simulator 'nosim'"),
        ("tracebed: {}", "mine: {with: csv}", 7, "only read its output"),
        ("tracebed: {}", 'mine: {runs: x, command: "y {output}"}', 7, "one of the keys"),
        ("tracebed: {}", "mine: {runs: x, seeds: 2}", 7, "`seeds` does not apply to a simulator by `runs`"),
        ("tracebed: {}", 'mine: {runs: "{workloads}"}', 7, "unknown placeholder {workloads}"),
        ("tracebed: {}", "mine: {command: sim}", 7, "no {output}"),
        ("tracebed: {}", 'mine: {command: "sim \' {output}"}', 7, "not a command"),
        ("tracebed: {}", "mine: {runs: x, columns: {a: b}}", 7, "`columns` requires `from`"),
        ("tracebed: {}", "mine: {runs: x, from: nosim}", 7, "unknown importer 'nosim'"),
    ],
)
def test_an_invalid_file_is_an_error_with_its_line(folder: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in SUITE
    (folder / "s.yaml").write_text(SUITE.replace(old, new))
    with pytest.raises(InputError) as found:
        suite_of("s.yaml")
    assert message in str(found.value)
    assert str(found.value).startswith(f"s.yaml:{line}: ")


def test_the_logs_of_a_campaign_beside_its_runs_are_no_runs(recorded: Path) -> None:
    (recorded / "real/tiny-fcfs/rep-01.log").write_text("a message\n")
    assert len(suite_of(recorded / "s.yaml").cases["tiny-fcfs"].recorded) == 5


def test_the_pattern_of_recorded_runs_may_be_an_absolute_path(recorded: Path) -> None:
    (recorded / "suite").mkdir()
    text = RECORDED.replace('"real/', f'"{recorded}/real*/').replace("right/", "../right/")
    (recorded / "suite" / "s.yaml").write_text(text)
    (recorded / "real").rename(recorded / "real-1")
    fcfs_run(40, stretch=1.006, policy="fcfs").save(recorded / "real-2/tiny-fcfs/rep-01")
    case = suite_of(recorded / "suite" / "s.yaml").cases["tiny-fcfs"]
    assert list(case.recorded)[0::5] == ["../real-1/tiny-fcfs/rep-01", "../real-2/tiny-fcfs/rep-01"]


def test_two_cases_with_one_name_are_refused(recorded: Path) -> None:
    (recorded / "s.yaml").write_text(RECORDED.replace("[tiny]", "[a, a-b]").replace("[fcfs, easy]", "[b-c, c]"))
    with pytest.raises(InputError, match="two cases have the same name"):
        suite_of("s.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("real/{workload}-{policy}/rep-*", "nothing/{workload}-*", r"s.yaml:3: case tiny-fcfs: .*no path matches"),
        ("real/{workload}-{policy}/rep-*", "real", r"s.yaml:3: case tiny-fcfs: .*run.json is missing"),
        ("workloads: [tiny]", "workloads: {tiny: w.csv}", r"s.yaml:3: .*the recorded run is not of the workload"),
        ("[fcfs, easy]", "[fcfs, easy]\nrepetitions: 3", r"`repetitions` requires a `testbed`"),
    ],
)
def test_recorded_runs_that_do_not_fit_are_refused(recorded: Path, old: str, new: str, message: str) -> None:
    tb.write(tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4), recorded / "w.csv")
    assert old in RECORDED
    (recorded / "s.yaml").write_text(RECORDED.replace(old, new))
    with pytest.raises(InputError, match=message):
        suite_of("s.yaml")


def add(path: Path, simulator: str) -> None:
    """Add a simulator to a suite file."""
    path.write_text(path.read_text() + f"  {simulator}\n")


@pytest.mark.slow
def test_the_exit_status_is_that_of_the_worst_simulator(recorded: Path) -> None:
    assert validate("s.yaml", "-o", "out").return_value == ExitCode.OK
    assert verdicts(recorded / "out") == {"right": "accurate"}
    add(recorded / "s.yaml", 'wrong: {runs: "wrong/{workload}-{policy}", version: "0.1"}')
    result = validate("s.yaml", "-o", "out")
    assert result.return_value == ExitCode.INACCURATE
    assert verdicts(recorded / "out") == {"right": "accurate", "wrong": "inaccurate"}
    assert "simulator: wrong 0.1, 2 runs" in result.output
    assert validate("s.yaml", "-o", "out", "--only", "simulator=right").return_value == ExitCode.OK
    assert verdicts(recorded / "out") == {"right": "accurate"}
    assert "did you mean wrong" in str(validate("s.yaml", "-o", "out", "--only", "simulator=wron").exception)


def test_an_inconclusive_verdict_may_fail_warn_or_pass(recorded: Path) -> None:
    (recorded / "s.yaml").write_text(RECORDED.replace("rep-*", "rep-01"))
    assert validate("s.yaml", "-o", "out").return_value == ExitCode.INCONCLUSIVE
    result = validate("s.yaml", "-o", "out", "--inconclusive", "warn")
    assert result.return_value == ExitCode.OK
    assert "a verdict is inconclusive" in result.stderr
    result = validate("s.yaml", "-o", "out", "--inconclusive", "pass")
    assert (result.return_value, "a verdict is inconclusive" in result.stderr) == (ExitCode.OK, False)


def test_unhealthy_runs_end_with_4_and_one_line_per_case(recorded: Path) -> None:
    cause = {"signal": "rank_late_s", "value": 9.0, "limit": 1.0, "state": "unhealthy", "text": "a rank was late"}
    health = {"state": "unhealthy", "causes": [cause], "signals": {}, "thresholds": "0" * 64}
    for number in range(1, 4):
        run = fcfs_run(40, stretch=1 + 0.001 * number, health=health)
        run.save(recorded / f"real/tiny-fcfs/rep-0{number}", replace=True)
    result = validate("s.yaml", "-o", "out", "--inconclusive", "pass")
    assert result.return_value == ExitCode.UNHEALTHY
    lines = [line for line in result.stderr.splitlines() if "tiny-fcfs: " in line]
    assert lines == [
        "tracebed: warning: tiny-fcfs: 3 of 5 repetitions are excluded (rep-01, and others: health: a rank was late)"
    ]


def test_the_pages_of_cases_can_be_omitted(recorded: Path) -> None:
    validate("s.yaml", "-o", "out", case_pages=False)
    page = (recorded / "out" / "right.html").read_text(encoding="utf-8")
    assert not (recorded / "out" / "right").exists()
    assert "tiny-fcfs" in page and 'href="right/' not in page


def test_a_calibration_workload_is_shown_and_not_gated(recorded: Path) -> None:
    (recorded / "s.yaml").write_text(RECORDED.replace("[tiny]", "{tiny: {calibration: true}}"))
    assert validate("s.yaml", "-o", "out").return_value == ExitCode.INCONCLUSIVE
    document = json.loads((recorded / "out" / "verdict.json").read_text())
    assert [case["calibration"] for case in document["simulators"][0]["cases"]] == [True, True]
    assert "calibration" in document["simulators"][0]["headline"]


def test_a_simulator_that_fails_does_not_stop_the_others(recorded: Path) -> None:
    add(recorded / "s.yaml", 'gone: {runs: "gone/{workload}-{policy}"}')
    result = validate("s.yaml", "-o", "out")
    assert result.return_value == ExitCode.USAGE
    assert "gone failed: tiny-fcfs: " in result.stderr and "no path matches" in result.stderr
    document = json.loads((recorded / "out" / "verdict.json").read_text())
    assert document["failed"].keys() == {"gone"}
    assert document["verdict"] == "inconclusive"
    assert verdicts(recorded / "out") == {"right": "accurate"}
    line = "failed: gone has no verdict; to repeat it alone: tracebed validate s.yaml -o out --only simulator=gone"
    assert line in result.stdout.splitlines()
    alone = shlex.split(line.partition("tracebed ")[2])
    assert call(*alone).return_value == ExitCode.USAGE
    with pytest.raises(InputError, match="simulator gone failed: tiny-fcfs"):
        tb.validate("s.yaml", "out")


@pytest.mark.slow
def test_a_baseline_and_annotations(recorded: Path) -> None:
    validate("s.yaml", "-o", "out")
    validate("s.yaml", "-o", "out", "--baseline", "baseline.yaml", "--update-baseline", "better")
    assert validate("s.yaml", "-o", "out", "--baseline", "baseline.yaml").return_value == ExitCode.OK
    (recorded / "s.yaml").write_text(RECORDED.replace("right/{", "wrong/{") + "baseline: baseline.yaml\n")
    result = validate("s.yaml", "-o", "out", "--annotate")
    assert result.return_value == ExitCode.INACCURATE
    assert "worse than the baseline: right" in result.stderr
    assert "::error " in result.stderr


def test_the_json_document_is_that_of_the_file(recorded: Path) -> None:
    result = validate("s.yaml", "-o", "out", "--json")
    printed, kept = json.loads(result.stdout), json.loads((recorded / "out" / "verdict.json").read_text())
    assert printed == kept
    assert (kept["schema"], kept["suite"], kept["verdict"], kept["exit_code"]) == (
        *("tracebed-verdicts/2", "s", "accurate", 0),
    )
    assert kept["simulators"][0]["schema"] == "tracebed-verdict/2"


PROGRAM = """\
import sys
from pathlib import Path
import tracebed.api as tb
workload, policy, seed, output = sys.argv[1:]
print("simulating", policy)
if policy == "fcfs" and Path("fail").exists():
    sys.exit(3)
if not Path("silent").exists():
    tb.simulate(tb.read(workload), policy, 4, overheads={"launch_s": float(seed)}).save(output)
"""
COMMAND = f"{sys.executable} mine.py {{workload}} {{policy}} {{seed}} {{output}}"


def test_a_command_predicts_with_seeds_and_is_repeated_only_if_it_changes(folder: Path) -> None:
    (folder / "mine.py").write_text(PROGRAM)
    suite = SUITE.replace("tracebed: {}", f'mine: {{command: "{COMMAND}", seeds: 2}}')
    (folder / "s.yaml").write_text(suite.replace("[easy, fcfs]", "[fcfs]"))
    (folder / "out").mkdir()
    loaded = suite_of("s.yaml")
    found, failed = runner.predict_suite(loaded, folder / "out")
    assert failed == {}
    plain = tb.simulate(tb.read("w.csv"), "fcfs", 4).jobs
    assert found["mine"]["w-fcfs"][0].jobs["end"].equals(plain["end"])
    assert found["mine"]["w-fcfs"][1].jobs["end"].max() > plain["end"].max()
    place = folder / "out" / "predicted" / "mine" / "w-fcfs"
    assert (place / "run-01.log").read_text() == "simulating fcfs\n"
    assert runner.forecast_suite(suite_of("s.yaml"), folder / "out").to_predict == {"mine": 0}
    (folder / "mine.py").write_text(PROGRAM + "# another version\n")
    assert runner.forecast_suite(suite_of("s.yaml"), folder / "out").to_predict == {"mine": 2}
    (place / "run-01.json").write_text("[]")
    (folder / "mine.py").write_text(PROGRAM)
    assert runner.forecast_suite(suite_of("s.yaml"), folder / "out").to_predict == {"mine": 1}


@pytest.mark.parametrize(
    ("file", "timeout", "message"),
    [("fail", 60, "ended with status 3"), ("silent", 60, "wrote nothing"), ("", 0.01, "took longer than 0.01 s")],
)
def test_a_command_that_fails_is_an_error_with_its_log(folder: Path, file: str, timeout: float, message: str) -> None:
    (folder / "mine.py").write_text(PROGRAM)
    if file:
        (folder / file).touch()
    suite = SUITE.replace("tracebed: {}", f'mine: {{command: "{COMMAND}", timeout_s: {timeout}}}')
    (folder / "s.yaml").write_text(suite.replace("[easy, fcfs]", "[fcfs]"))
    found, failed = runner.predict_suite(suite_of("s.yaml"), folder / "out")
    assert found == {}
    assert message in failed["mine"]
    assert "out/predicted/mine/w-fcfs.log" in failed["mine"]


@pytest.fixture
def simulated_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tracebed predict in place of the programs of others."""
    monkeypatch.setattr(
        DrivenSimulator, "predict", lambda self, cell, seed, log: tb.simulate(cell.workload, cell.setup, 4)
    )


@pytest.mark.usefixtures("simulated_here")
def test_predictions_of_an_installed_simulator_are_made_again_with_another_program(folder: Path) -> None:
    program = write_program(folder / "elastisim", "#!/bin/sh\n")
    file = folder / "s.yaml"
    file.write_text(SUITE.replace("tracebed: {}", f'other: {{with: elastisim, options: {{program: "{program}"}}}}'))
    assert runner.predict_suite(suite_of(file), folder / "out")[1] == {}
    assert runner.forecast_suite(suite_of(file), folder / "out").to_predict == {"other": 0}
    program.write_text("#!/bin/sh\n# another version\n")
    assert runner.forecast_suite(suite_of(file), folder / "out").to_predict == {"other": 2}


@pytest.mark.usefixtures("simulated_here")
@pytest.mark.parametrize("simulator", ["tracebed: {}", "other: {with: elastisim}"])
def test_predictions_depend_on_the_code_of_the_policy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, simulator: str
) -> None:
    file = folder / "s.yaml"
    file.write_text(SUITE.replace("tracebed: {}", simulator))
    assert runner.predict_suite(suite_of(file), folder / "out")[1] == {}
    maker = cells.maker_of
    changed = registry.POLICIES.entries["easy"]
    monkeypatch.setattr(cells, "maker_of", lambda entry: ["changed"] if entry == changed else maker(entry))
    assert list(runner.forecast_suite(suite_of(file), folder / "out").to_predict.values()) == [1]


@pytest.mark.parametrize("kind", ["", "with: elastisim, "])
def test_a_simulator_has_a_policy_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def simulated(name: str, workload: Any, nodes: Any, setup: tb.Setup, options: Any) -> tb.Run:
        return tb.simulate(workload, setup, 4)

    monkeypatch.setattr("tracebed.validation.experiments.simulators.simulate", simulated)
    own = f"other: {{{kind}policy: min, policy_parameters: {{promise: direct}}, interval_s: 7}}"
    (folder / "s.yaml").write_text(SUITE.replace("tracebed: {}", own))
    found, failed = runner.predict_suite(suite_of("s.yaml"), folder / "out")
    assert failed == {}
    for run in (run for case in found["other"].values() for run in case):
        scheduling = run.info.setup.scheduling
        assert (scheduling.policy, scheduling.interval_s) == ("min", 7.0)
        assert scheduling.policy_parameters["promise"] == "direct"
    assert runner.forecast_suite(suite_of("s.yaml"), folder / "out").to_predict == {"other": 0}
    (folder / "s.yaml").write_text(SUITE.replace("tracebed: {}", own.replace("interval_s: 7", "interval_s: 8")))
    assert runner.forecast_suite(suite_of("s.yaml"), folder / "out").to_predict == {"other": 2}


def test_a_command_is_read_by_an_importer(folder: Path) -> None:
    run = tb.simulate(tb.read("w.csv"), "easy", 4)
    run.jobs[["job_id", "submit", "start", "end"]].to_csv("jobs.csv", index=False)
    simulators = 'mine: {command: "cp jobs.csv {output}.csv", from: csv}\n  given: {runs: jobs.csv, from: csv}'
    (folder / "s.yaml").write_text(SUITE.replace("tracebed: {}", simulators).replace("[easy, fcfs]", "[easy]"))
    (folder / "out").mkdir()
    found, failed = runner.predict_suite(suite_of("s.yaml"), folder / "out")
    assert failed == {}
    for predicted in (found["mine"]["w-easy"][0], found["given"]["w-easy"][0]):
        assert predicted.jobs["end"].to_list() == pytest.approx(run.jobs["end"].to_list())
        assert (predicted.info.policy, predicted.info.is_real, predicted.total_nodes) == ("easy", False, 4)


def test_the_task_of_a_recorded_run_has_the_options_of_the_run(folder: Path) -> None:
    tb.replay(tb.read("w.csv"), "easy", "emulated-4", speed=1e6, interval_s=5, output="real/rep-01")
    recorded = SUITE.partition("testbed")[0].replace("[easy, fcfs]", "[easy]") + "recorded: real/rep-*\n"
    (folder / "s.yaml").write_text(recorded + "simulators: {tracebed: {}}\n")
    suite = suite_of("s.yaml")
    task = suite.cases["w-easy"]
    scheduling = task.setup.scheduling
    assert (task.setup.timing.speed, scheduling.interval_s, scheduling.policy) == (1e6, 5, "easy")
    assert len(task.nodes) == 4
    found, _ = runner.predict_suite(suite, folder / "out")
    assert found["tracebed"]["w-easy"][0].info.settings["interval_s"] == 5


def test_predictions_are_on_the_partitions_of_the_testbed(folder: Path) -> None:
    """Also under a policy of the simulator, and of recorded runs. A program of others has equal nodes only."""
    inventory = """\
partitions:
  - {name: a, nodes: ["n[1-3]"], default: true}
  - {name: b, nodes: [n4]}
nodes:
  - {name: "n[1-4]", cores: 8, emulated: true}
"""
    (folder / "i.yaml").write_text(inventory)
    suite = SUITE.replace("emulated-4", "i.yaml").replace("[easy, fcfs]", "[easy]")
    simulators = "tracebed: {}\n  own: {policy: min}\n  other: {with: elastisim}"
    (folder / "s.yaml").write_text(suite.replace("tracebed: {}", simulators))
    found, failed = runner.predict_suite(suite_of("s.yaml"), folder / "out")
    assert "the testbed has partitions or resources, which elastisim does not simulate" in failed["other"]
    machine = tb.read_machine("i.yaml")
    for name in ("tracebed", "own"):
        ((run,),) = found[name].values()
        assert run.info.machine is not None and run.info.machine.digest == machine.digest
        assert run.allocations["node"].max() <= 2

    (folder / "i.yaml").write_text(inventory.replace("[n4]", "[n3, n4]"))
    (folder / "s.yaml").write_text(suite)
    assert runner.forecast_suite(suite_of("s.yaml"), folder / "out").to_predict == {"tracebed": 1}

    tb.replay(tb.read("w.csv"), "easy", "i.yaml", speed=1e6, output="real/rep-01")
    recorded = suite.partition("testbed")[0] + "recorded: real/rep-*\nsimulators: {tracebed: {}}\n"
    (folder / "s.yaml").write_text(recorded)
    ((run,),) = runner.predict_suite(suite_of("s.yaml"), folder / "out")[0]["tracebed"].values()
    assert run.info.machine is not None and run.info.machine.digest == tb.read_machine("i.yaml").digest
    real, plain = Run.load("real/rep-01"), tb.simulate(tb.read("w.csv"), "easy", 4)
    assert not any("machine differs" in text for text in compare(real, run).warnings)
    warned = [text for text in compare(real, plain).warnings if text.startswith("machine differs: real ")]
    assert [text.endswith("predicted has no partitions and no resources") for text in warned] == [True]


@pytest.mark.slow
def test_in_python(recorded: Path) -> None:
    found = tb.validate("s.yaml", "out")
    assert [type(item) for item in found.values()] == [tb.Validation]
    validation = found["right"]
    assert validation.verdict == "accurate"
    frame = validation.to_frame()
    assert frame.index.names == ["metric", "case"]
    assert frame.loc[("makespan_s", "tiny-fcfs"), "verdict"] == "accurate"
    assert validation.to_markdown("v.md") == Path("v.md").read_text()
    assert validation.to_junit("v.xml") == Path("v.xml").read_text()
    with pytest.raises(InputError, match="unknown inconclusive 'never'"):
        invalid: Any = "never"
        validation.to_junit(inconclusive=invalid)


def test_compare_takes_several_runs_folders_of_repetitions_and_margins(recorded: Path) -> None:
    cell, predicted = Path("real/tiny-fcfs"), Path("right/tiny-fcfs")
    whole = tb.compare(cell, predicted)
    assert whole.verdict == "accurate"
    assert [item.name for item in whole.cases[0].repetitions] == [f"rep-0{number}" for number in range(1, 6)]
    each = tb.compare([cell / f"rep-0{number}" for number in range(1, 6)], tb.Run.load(predicted))
    assert each.to_frame().equals(whole.to_frame())
    assert tb.compare(cell, predicted, margins={"makespan": "0.0001%"}).verdict == "inconclusive"
    with pytest.raises(InputError, match="unknown metric 'weight'"):
        tb.compare(cell, predicted, margins={"weight": "15%"})
    with pytest.raises(InputError, match="neither a run nor a folder of repetitions"):
        tb.compare("real", predicted)


@pytest.mark.slow
def test_the_options_of_compare(recorded: Path) -> None:
    sides = ("--real", "real/tiny-fcfs", "--predicted", "right/tiny-fcfs")

    def compare(*options: str) -> Result:
        return call("compare", *sides, *options)

    result = compare("--report", "r.html", "--report", "r.md", "--report", "r.xml")
    assert result.return_value == ExitCode.OK, result.output
    assert [Path(name).exists() for name in ("r.html", "r.md", "r.xml")] == [True] * 3
    assert compare("--margin", "makespan=0.0001%").return_value == ExitCode.INCONCLUSIVE
    assert "--margin makespan: not of the form METRIC=MARGIN" in str(compare("--margin", "makespan").exception)
    (recorded / "t.yaml").write_text("margins: {makespan: 0.0001%}\n")
    result = compare("--tolerances", "t.yaml", "--annotate")
    assert result.return_value == ExitCode.INCONCLUSIVE
    assert "::error file=t.yaml,line=1" in result.stderr
    assert "two results under one name" in str(compare("--report", "r.md", "--report", "r.md").exception)
    one = ["compare", "--real", "real/tiny-fcfs/rep-01", *sides[2:], "--inconclusive"]
    assert call(*one, "fail").return_value == ExitCode.INCONCLUSIVE
    assert call(*one, "pass").return_value == ExitCode.OK


# -- imported runs


IMPORTED = """\
workloads: "*"
policies: [easy]
recorded:
  runs: "log-{workload}.csv"
  planned: "sim-{workload}.csv"
  from: csv
  nodes: {"*4": 4, "*": 2}
interval_s: 5
simulators:
  theirs: {runs: "sim-{workload}.csv", from: csv}
  easy: {}
"""
ON_NINE = IMPORTED.replace('{"*4": 4, "*": 2}', "9")


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with logs of two workloads as a stranger has them, with planned run times, and no workload file."""
    for name, nodes in (("on2", 2), ("on4", 4)):
        rows = [(f"j{n}", 10 * n, 10 * n + n % 2, 10 * n + 25 + n % 2, 1 + n % nodes) for n in range(1, 21)]
        real = [f"{job},{submit},{start},{end + 3},{size},60" for job, submit, start, end, size in rows]
        planned = [f"{job},{submit},{start},{end},{size},60" for job, submit, start, end, size in rows]
        for side, lines in (("log", real), ("sim", planned)):
            text = "\n".join(["id,submit,start,end,requested_number_of_processors,walltime", *lines])
            (tmp_path / f"{side}-{name}.csv").write_text(text + "\n")
    (tmp_path / "s.yaml").write_text(IMPORTED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_logs_become_cases_without_a_workload_file(logs: Path) -> None:
    (logs / "s.yaml").write_text(ON_NINE)
    suite = suite_of("s.yaml")
    assert list(suite.cases) == ["on2-easy", "on4-easy"]
    task = suite.cases["on2-easy"]
    assert task.workload is not None
    assert task.workload.table["run_time"].tolist() == [25.0] * 20
    assert task.workload.sha256 == next(iter(suite.cases["on2-easy"].recorded.values())).info.workload["sha256"]
    assert (len(task.nodes), task.setup.scheduling.interval_s) == (9, 5.0)
    (logs / "s.yaml").write_text(ON_NINE.replace('  planned: "sim', '  # "sim'))
    task = suite_of("s.yaml").cases["on2-easy"]
    assert task.workload is not None
    assert task.workload.table["run_time"].tolist() == [28.0] * 20


def test_the_machine_of_imported_runs_may_depend_on_the_workload(logs: Path) -> None:
    for path in logs.glob("*.csv"):  # one job at a time
        lines = path.read_text().splitlines()
        path.write_text("\n".join([lines[0], *lines[1::4]]) + "\n")
    cases = suite_of("s.yaml").cases
    assert {name: len(case.nodes) for name, case in cases.items()} == {"on2-easy": 2, "on4-easy": 4}
    (logs / "s.yaml").write_text(IMPORTED.replace(', "*": 2', ""))
    with pytest.raises(InputError, match="no pattern of `nodes` matches on2"):
        suite_of("s.yaml")


@pytest.mark.slow
def test_a_command_gets_the_workload_of_imported_runs_as_a_file(logs: Path) -> None:
    command = "test -s {workload} && cp sim-on2.csv {output}.csv"
    text = ON_NINE.replace('"*"', "[on2]", 1).partition("  theirs")[0]
    (logs / "s.yaml").write_text(text + f'  copied: {{command: "{command}", from: csv}}\n  easy: {{}}\n')
    result = validate("s.yaml", "-o", "out")
    assert result.return_value == ExitCode.INCONCLUSIVE, result.output
    assert verdicts(logs / "out") == {"copied": "inconclusive", "easy": "inconclusive"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('workloads: "*"', 'workloads: "z*"', r"s.yaml:1: no recorded run is of a workload z\*"),
        ("log-{workload}.csv", "log-on2.csv", r"s.yaml:1: `workloads` is a pattern of names"),
        ("interval_s: 5", "interval_s: [5, 6]", "`interval_s` has one value with recorded runs"),
        ("interval_s: 5", "speed: 5", "`speed` requires a `testbed`"),
        ("  from: csv\n", "", "`nodes` requires `from`"),
        ('planned: "sim-', 'planned: "*-', "2 files have planned run times"),
    ],
)
def test_keys_of_imported_runs_that_do_not_fit_are_refused(logs: Path, old: str, new: str, message: str) -> None:
    assert old in IMPORTED
    (logs / "s.yaml").write_text(IMPORTED.replace(old, new, 1).replace('{"*4": 4, "*": 2}', "9"))
    with pytest.raises(InputError, match=message):
        suite_of("s.yaml")


def test_a_replay_has_its_settings(recorded: Path) -> None:
    (recorded / "s.yaml").write_text(RECORDED + "interval_s: 5\n")
    with pytest.raises(InputError, match=r"s.yaml:6: `interval_s` is 5, but the run was recorded with 0"):
        suite_of("s.yaml")


def test_a_policy_has_the_parameters_of_a_slurm_conf(logs: Path) -> None:
    (logs / "slurm.conf").write_text("SchedulerType=sched/backfill\nSchedulerParameters=bf_interval=7,bf_window=99\n")
    policies = "[{label: easy, policy: slurm, conf: slurm.conf, parameters: {bf_window: 50}}]"
    text = ON_NINE.replace("[easy]", policies)
    (logs / "s.yaml").write_text(text)
    with pytest.warns(UserWarning):  # settings that are not modeled
        parameters = suite_of("s.yaml").cases["on2-easy"].setup.scheduling.policy_parameters
    assert (parameters["bf_interval"], parameters["bf_window"]) == (7, 50)
    (logs / "s.yaml").write_text(text.replace("conf: slurm.conf", "conf: none.conf"))
    with pytest.raises(InputError, match=r"s\.yaml:2: none\.conf: .*cannot read"):
        suite_of("s.yaml")


def test_a_simulator_with_a_policy_of_its_own_has_its_own_interval(logs: Path) -> None:
    (logs / "s.yaml").write_text(ON_NINE + "  seldom: {policy: easy, interval_s: 60}\n  as-given: {policy: fcfs}\n")
    (logs / "out").mkdir()
    found, failed = runner.predict_suite(suite_of("s.yaml"), logs / "out")
    assert failed == {}
    own = {name: found[name]["on2-easy"][0] for name in ("easy", "seldom", "as-given")}
    intervals = {name: run.info.settings["interval_s"] for name, run in own.items()}
    assert intervals == {"easy": 5, "seldom": 60, "as-given": 5}
    starts = own["seldom"].jobs["start"].to_numpy()
    assert (starts % 60 == starts[0] % 60).all()
    (logs / "s.yaml").write_text(IMPORTED + "  seldom: {interval_s: 60}\n")
    with pytest.raises(InputError, match="`interval_s` requires `policy`"):
        suite_of("s.yaml")


def test_a_file_without_policy_parameters_is_not_compared_in_them(logs: Path) -> None:
    (logs / "s.yaml").write_text(ON_NINE)
    done = call("validate", "s.yaml", "-o", "v", "--no-case-pages")
    assert done.return_value in (ExitCode.INCONCLUSIVE, ExitCode.INACCURATE, ExitCode.UNHEALTHY), done.output
    assert "policy parameters differs" not in done.output


# Recorded suites of the package: complete, small, and read back.

ROOT = Path(__file__).resolve().parents[2]
SUITES = list(recorded_suites())


@pytest.mark.parametrize("name", SUITES)
def test_a_recorded_suite_is_complete_and_small(name: str, tmp_path: Path) -> None:
    suite = recorded_suite(name)
    assert len(suite.data) < 2_000_000
    file = unpack(name, tmp_path / "suite")
    runs = recorded_runs(name)
    assert (len(runs), sum(map(len, runs.values()))) == (suite.cases, suite.runs)
    for case, repetitions in runs.items():
        workload, _, policy = case.rpartition("-")
        jobs = tb.read(tmp_path / "suite" / "workloads" / f"{workload}.csv")
        for run in repetitions:
            assert (run.info.policy, run.info.workload["sha256"]) == (policy, jobs.sha256)
            assert run.info.is_real
            assert not len(run.nodes)
    experiment = load_experiment(str(file)).experiment
    assert {experiment.case_name(point) for point in experiment.points()} == set(runs)
    assert experiment.recorded is not None


def test_the_commands_list_and_copy(tmp_path: Path) -> None:
    listed = json.loads(call("experiment", "--list", "--json").stdout)
    assert [suite["name"] for suite in listed["recorded"]] == SUITES
    shown = call("experiment", "--list").stdout
    assert all(f"\n{name} " in f"\n{shown}" for name in [*SUITES, *listed["experiments"]])
    copy = ("validate", "--recorded", SUITES[0], "-o")
    result = call(*copy, tmp_path / "copy")
    assert str(tmp_path / "copy" / "suite.yaml") in result.stdout
    facts = json.loads(call(*copy, tmp_path / "second", "--json").stdout)
    assert (facts["name"], facts["file"]) == (SUITES[0], str(tmp_path / "second" / "suite.yaml"))
    (tmp_path / "copy" / "mine").mkdir()
    other = tmp_path / "other"
    for words, message in (
        ((*copy, tmp_path / "copy"), "exists and is not empty"),
        (("validate", "--recorded", "emulatde", "-o", other), "unknown recorded suite 'emulatde'"),
        ((*copy, other, tmp_path / "copy" / "suite.yaml"), "FILE does not apply with --recorded"),
        ((*copy, other, "--baseline", tmp_path / "b.yaml"), "--baseline does not apply with --recorded"),
        (("validate", "-o", other), "no experiment file"),
    ):
        failed = call(*words)
        assert isinstance(failed.exception, InputError)
        assert message in str(failed.exception)
    assert (tmp_path / "copy" / "mine").is_dir()
    assert not other.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_the_page_on_accuracy_has_the_verdict_of_today(name: str, tmp_path: Path) -> None:
    """The runs are recorded and the predictions are deterministic: another figure is a change of tracebed."""
    unpack(name, tmp_path / "suite")
    call("validate", tmp_path / "suite/suite.yaml", "-o", tmp_path / "found", "--no-case-pages")
    (verdict,) = json.loads((tmp_path / "found/verdict.json").read_text())["simulators"]
    tables = runpy.run_path(str(ROOT / "tests/performance/accuracy/tables.py"))
    head = f"**{verdict['verdict'].capitalize()}**: {verdict['headline']}"
    expected = "\n\n".join([head, tables["by_metric"](verdict), tables["by_case"](verdict)])
    page = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    printed = page.partition(f"<!-- {name.upper()} -->\n")[2].partition("<!-- end -->")[0]
    assert printed.split() == expected.split()


@pytest.mark.slow
def test_no_command_on_a_recorded_suite_warns_of_what_its_user_cannot_mend(tmp_path: Path) -> None:
    """The suites have no journals and compressed workloads: both are said once, beside the evidence."""
    call("validate", "--recorded", "emulated", "-o", tmp_path / "suite")
    result = call("validate", tmp_path / "suite/suite.yaml", "--no-case-pages", "-o", tmp_path / "out")
    noise = call("metrics", tmp_path / "suite/real", "--noise", tmp_path / "n.yaml")
    run = tmp_path / "suite/real/sd-5-easy/rep-01"
    one = call("compare", "--real", run, "--predicted", tmp_path / "out/predicted/tracebed/sd-5-easy")
    for each in (result, noise, one):
        warned = [line for line in each.stderr.splitlines() if "warning" in line]
        assert not [line for line in warned if "journal" in line or "multiplied" in line], warned
    assert result.stdout.count("journal") == one.stdout.count("journal") == 1
    assert "health without a journal (50 of 50 real runs): judged by" in result.stdout
    assert result.stdout.count("margins in seconds are multiplied by 0.00445") == 1


def test_a_changed_suite_is_detected() -> None:
    facts = vars(recorded_suite(SUITES[0])) | {"sha256": "0" * 64}
    with pytest.raises(InputError, match="is missing or was changed"):
        _ = RecordedSuite(**facts).data


def test_the_runs_of_an_experiment_are_packed(tmp_path: Path) -> None:
    tb.write(tb.generate("cirne", jobs=10, nodes=16, seed=1), tmp_path / "w.csv")
    for number in (1, 2):
        run = fcfs_run(10, seed=number, created="2024-05-06T07:08:09+00:00")
        run.save(tmp_path / f"out/real/tiny-fcfs/rep-0{number}")
    file = tmp_path / "experiment.yaml"
    file.write_text("workloads: {tiny: w.csv}\npolicies: [fcfs]\ntestbed: {inventory: emulated-4}\n")
    data, facts = packing.pack(file, tmp_path / "out", "a tiny one")
    assert (data, facts) == packing.pack(file, tmp_path / "out", "a tiny one")
    assert facts == {"title": "a tiny one", "cases": 1, "runs": 2, "jobs": 10, "recorded": "2024-05-06"} | {
        "sha256": facts["sha256"]
    }
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(tmp_path / "suite")
    loaded = load_experiment(str(tmp_path / "suite" / "suite.yaml"))
    assert loaded.experiment.recorded is not None
    assert [policy.name for policy in loaded.experiment.policies] == ["fcfs"]
    for text, message in (
        ("workloads: {none: w.csv}\npolicies: [fcfs]\n", "case none-fcfs has no runs"),
        ("workloads: {tiny: {model: cirne}}\npolicies: [fcfs]\n", "workload tiny is not a file"),
    ):
        file.write_text(text + "testbed: {inventory: emulated-4}\n")
        with pytest.raises(InputError, match=message):
            packing.pack(file, tmp_path / "out", "")


def test_new_columns_of_workloads_do_not_change_the_hashes_of_stored_runs(tmp_path: Path) -> None:
    unpack("emulated", tmp_path)
    stored = recorded_runs("emulated")["cirne-easy"][0].info.workload["sha256"]
    assert tb.read(tmp_path / "workloads/cirne.csv").sha256 == stored
