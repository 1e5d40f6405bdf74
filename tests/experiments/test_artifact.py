"""Artifacts of experiments: the script inside rebuilds the same results, and a changed input is noticed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tracebed.api as tb
from tests.oracles.validations import write_suite
from tracebed.api import ArtifactFacts, load_experiment, load_suite, predict_suite, write_artifact
from tracebed.ground.errors import InputError
from tracebed.validation.experiments.views import artifact
from tracebed.validation.recorded import unpack

GRID = """about: waits of two policies
workloads: {drawn: {model: cirne, options: {jobs: 30, nodes: 16}}, kept: w.parquet}
malleable: {shares: [0, 0.2]}
policies: [easy, pref]
seeds: 1
plots:
  waits: {kind: normalized, element: figure 1, figures: [mean_wait_s], at: {policy: pref}, relative_to: {policy: easy}}
published:
  - {element: table 1, figure: mean_wait_s, rule: at-least, value: 1, at: {policy: easy, share: 0}}
"""
REAL = """workloads: {small: w.parquet}
policies: [easy]
testbed: {inventory: emulated-4, speed: 1e6, work_rate: calibration.yaml}
repetitions: 2
settle_s: 0
simulators: {tracebed: {calibration: true}}
"""
RECORDED = """workloads: {cirne: workloads/cirne.csv}
policies: [easy]
recorded: {runs: 'real/{case}/rep-*'}
"""
AXES = """workloads: {small: w.parquet}
policies: [easy, {policy: pref, label: mine}]
priority: [fcfs, shortest-first]
malleable: {shares: [0, 0.5]}
exclude: [{policy: easy, share: [0.5]}, {priority: shortest-first, policy: mine}]
testbeds:
  quiet: {inventory: emulated-4, speed: 1e6, work_rate: calibration.yaml}
  killing: {inventory: emulated-4, speed: 1e6, work_rate: calibration.yaml, over_limit: kill}
repetitions: 2
settle_s: 0
baseline: old.yaml
simulators: {tracebed: {calibration: true}, plain: {}}
"""


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration of emulated nodes."""
    folder = tmp_path_factory.mktemp("recorded") / "suite"
    unpack("emulated", folder)
    return folder / "calibration.yaml"


def rebuild(artifact: Path, clean: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of a copy of an artifact in a clean folder, with the installed command."""
    subprocess.run(["cp", "-r", str(artifact), str(clean)], check=True)
    environment = {**os.environ, "TRACEBED": str(Path(sys.executable).with_name("tracebed"))}
    return subprocess.run(
        [str(clean / "rebuild.sh")], env=environment, cwd="/", capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_simulated_figures_are_rebuilt_and_a_changed_input_is_noticed(call: Callable[..., Any], tmp_path: Path) -> None:
    tb.write(tb.generate("cirne", jobs=20, nodes=16, seed=1), "w.parquet")
    Path("grid.yaml").write_text(GRID)
    status, _, said = call("experiment", "grid.yaml", "-o", "out", "--only", "policy=easy,pref", "--report", "artifact")
    assert status == 0, said
    folder = tmp_path / "artifact"
    done = rebuild(folder, tmp_path / "clean")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^(\d+) of \1 results are equal$", done.stdout, re.MULTILINE)
    page = (folder / "README.md").read_text()
    assert "| table 1 mean_wait_s, policy easy, share 0 |" in page
    assert "results/grid/plots/waits-drawn.svg" in page
    assert f"numpy=={__import__('numpy').__version__}\n" in (folder / "requirements.txt").read_text()
    assert len(list(folder.glob("tracebed-*.whl"))) == 1
    assert "    tracebed experiment grid.yaml --only policy=easy,pref -o ../rebuilt/out\n" in page

    file = folder / "inputs/grid.yaml"
    file.write_text(file.read_text().replace("jobs: 30", "jobs: 31"))
    changed = rebuild(folder, tmp_path / "changed")
    assert changed.returncode == 1
    assert "inputs/grid.yaml: FAILED" in changed.stdout
    sums = folder / "SHA256SUMS"  # with the hash of the changed input, the results tell
    lines = [line for line in sums.read_text().splitlines(keepends=True) if "inputs/grid.yaml" not in line]
    sums.write_text("".join(lines))
    other = rebuild(folder, tmp_path / "other")
    assert other.returncode == 1
    assert "differs: results/grid/table.csv" in other.stdout


def small_workload() -> None:
    tb.write(tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4), "w.parquet")


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
def test_a_verdict_is_rebuilt_from_the_real_runs(call: Callable[..., Any], tmp_path: Path, calibration: Path) -> None:
    small_workload()
    Path("calibration.yaml").write_bytes(calibration.read_bytes())
    Path("real.yaml").write_text(REAL)
    words = ("validate", "real.yaml", "-o", "out", "--no-case-pages", "--inconclusive", "warn", "--report", "artifact")
    status, _, said = call(*words)
    assert status in (0, 1, 4), said
    done = rebuild(tmp_path / "artifact", tmp_path / "clean")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^(\d+) of \1 results are equal$", done.stdout, re.MULTILINE)
    page = (tmp_path / "artifact/README.md").read_text()
    assert re.search(r"^\| small-easy \| emulated-4 \| local \| 4 +\| 1e\+06 \| [0-9a-f]{64} \|$", page, re.MULTILINE)
    (named,) = re.findall(r"^    tracebed (.*)$", page, re.MULTILINE)
    os.chdir(tmp_path / "clean/inputs")
    assert call(*named.split())[0] == status
    assert Path("real-replayed.yaml").read_text() == REAL


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
def test_axes_testbeds_and_a_baseline_are_rebuilt(call: Callable[..., Any], calibration: Path) -> None:
    """The artifact checks itself: it is only written if its script finds equal results."""
    small_workload()
    Path("calibration.yaml").write_bytes(calibration.read_bytes())
    Path("axes.yaml").write_text(AXES)
    run = ("validate", "axes.yaml", "-o", "out", "--no-case-pages")
    status, _, said = call(*run, "--baseline", "old.yaml", "--update-baseline", "better")
    assert status in (1, 3, 4), said
    status, _, said = call(*run, "--only", "testbed=quiet", "--only", "simulator=plain", "--report", "part")
    assert status in (1, 3, 4), said
    status, _, said = call(*run, "--report", "whole")
    assert status in (1, 3, 4), said
    cases = {path.name for path in Path("whole/inputs/real").iterdir() if path.is_dir()}
    assert len(cases) == 8
    assert {path.name for path in Path("part/inputs/real").iterdir() if path.is_dir()} == {
        case for case in cases if "quiet" in case
    }
    assert not Path("part/results/predicted/tracebed").exists()
    status, _, said = call(*run, "--update-baseline", "any", "--baseline", "old.yaml", "--report", "other")
    assert status == 2
    assert "--report does not apply with --update-baseline" in said


def test_a_difference_names_the_rows(call: Callable[..., Any], tmp_path: Path) -> None:
    Path("grid.yaml").write_text(
        "workloads: {drawn: {model: cirne, options: {jobs: 30, nodes: 16}}}\npolicies: [easy]\n"
    )
    assert call("experiment", "grid.yaml", "-o", "out")[0] == 0
    table = tmp_path / "out/grid/table.csv"
    head, row = table.read_text().splitlines()
    changed = row.replace(",easy,", ",fcfs,")
    assert changed != row
    table.write_text(f"{head}\n{changed}\n")
    file = load_experiment("grid.yaml")
    made = ArtifactFacts(file.experiment.points())
    with pytest.raises(
        InputError, match=r"results/grid/table.csv: row 1: {'policy': 'fcfs'} became {'policy': 'easy'}"
    ):
        write_artifact(file, tmp_path / "out", tmp_path / "artifact", made)
    assert not (tmp_path / "artifact").exists()


def test_predictions_that_differ_name_a_job(call: Callable[..., Any], tmp_path: Path) -> None:
    unpack("emulated", tmp_path / "suite")
    Path("suite/mine.yaml").write_text(RECORDED + "simulators: {tracebed: {}}\n")
    assert call("validate", "suite/mine.yaml", "-o", "out")[0] in (1, 3)
    (jobs,) = (tmp_path / "out/predicted").rglob("jobs.parquet")
    table = pd.read_parquet(jobs)
    table["end"] += [0.0, 0.0, 0.0, 1.0, *[0.0] * (len(table) - 4)]
    table.to_parquet(jobs)
    file = load_experiment("suite/mine.yaml")
    made = ArtifactFacts(file.experiment.points(), ["tracebed"])
    with pytest.raises(InputError, match=r"cirne-easy/jobs.parquet: job 4, end: [\d.]+ became [\d.]+"):
        write_artifact(file, tmp_path / "out", tmp_path / "artifact", made)


def test_recorded_runs_bring_their_calibration_or_it_is_refused(tmp_path: Path) -> None:
    unpack("emulated", tmp_path / "suite")
    suite = tmp_path / "suite/mine.yaml"
    suite.write_text(RECORDED + "simulators: {tracebed: {calibration: true}}\n")
    with pytest.raises(
        InputError, match=r"`calibration: true` stands for the file `work_rate`.*`recorded` has none"
    ) as e:
        load_experiment(str(suite))
    assert str(e.value).startswith(f"{suite}:4: ")
    suite.write_text(suite.read_text().replace("rep-*'", "rep-*', work_rate: calibration.yaml"))
    file = load_experiment(str(suite))
    loaded = load_suite(file, file.experiment.points(), tmp_path / "out", {})
    (tmp_path / "out").mkdir()
    found, failed = predict_suite(loaded, tmp_path / "out")
    assert not failed
    assert found["tracebed"]["cirne-easy"][0].info.calibration
    suite.write_text(REAL.replace(", work_rate: calibration.yaml", ""))
    with pytest.raises(InputError, match="but `testbed` has none"):
        load_experiment(str(suite))
    suite.write_text(AXES.replace(", work_rate: calibration.yaml, over", ", over"))
    with pytest.raises(InputError, match="but testbed killing has none"):
        load_experiment(str(suite))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "policies: [fcfs]",
            "policies: [fcfs]\npriority: aging",
            "`priority` is aging, but the run was recorded with fcfs",
        ),
        (
            "[fcfs]",
            "[{policy: fcfs, placement: hilbert, label: fcfs}]",
            "`placement` is hilbert, but the run was recorded with first",
        ),
        ("[w1]", "{w1: {limits: exact}}", "`limits` requires the source of the workload"),
        ("[fcfs]", "[fcfs]\nseeds: 2", "`seeds` requires a `testbed`, or {case} in the path"),
        (
            "'real/{workload}-{policy}/rep-*'",
            "{runs: 'real/{workload}-{policy}/rep-*', testbeds: {a: {}}}",
            "`testbeds` req",
        ),
        ("tracebed: {}", "tracebed: {calibration: {a: c.yaml}}", "the only testbed has no name: give one file"),
    ],
)
def test_no_setting_of_recorded_runs_is_ignored(old: str, new: str, message: str, tmp_path: Path) -> None:
    write_suite(tmp_path, repetitions=1)
    suite = tmp_path / "suite.yaml"
    text = "workloads: [w1]\npolicies: [fcfs]\nrecorded: 'real/{workload}-{policy}/rep-*'\nsimulators: {tracebed: {}}\n"
    assert old in text
    suite.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=re.escape(message)):
        load_suite(file := load_experiment(str(suite)), file.experiment.points(), tmp_path / "out", {})


def test_inputs_are_found_in_paths_patterns_and_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_suite(tmp_path)
    (tmp_path / "mine.py").write_text("")
    suite = tmp_path / "suite.yaml"
    suite.write_text(suite.read_text() + '  other: {command: "python3 mine.py {workload} {output}", from: csv}\n')
    (tmp_path / "out").mkdir()
    for name in ("verdict.md", "junit.xml"):
        (tmp_path / "out" / name).write_text("")
    (tmp_path / "out/verdict.json").write_text('{"simulators": []}')
    monkeypatch.setattr(artifact, "_check", lambda *_: None)
    file = load_experiment(str(suite))
    write_artifact(file, tmp_path / "out", tmp_path / "artifact", ArtifactFacts(file.experiment.points(), ["mine"]))
    inputs = tmp_path / "artifact/inputs"
    assert {path.name for path in inputs.iterdir()} == {"suite.yaml", "mine.py", "real", "mine"}
    assert len(list(inputs.glob("real/w1-fcfs/rep-*/run.json"))) == 5


def test_an_input_elsewhere_is_refused(call: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    tb.write(tb.generate("cirne", jobs=5, nodes=16, seed=1), "w.parquet")
    Path("study/grid.yaml").write_text("workloads: {kept: ../w.parquet}\npolicies: [easy]\n")
    file = load_experiment("study/grid.yaml")
    with pytest.raises(InputError, match=r"\.\./w\.parquet is outside the folder"):
        write_artifact(file, tmp_path / "out", tmp_path / "artifact", ArtifactFacts(file.experiment.points()))
    assert not (tmp_path / "artifact").exists()


def test_the_option_is_of_what_makes_results(call: Callable[..., Any]) -> None:
    Path("real.yaml").write_text(REAL)
    status, _, said = call("experiment", "real.yaml", "--report", "artifact")
    assert status == 2
    assert "tracebed validate --report" in said
