"""Artifacts of experiments: the script inside rebuilds the same results, and a changed input is noticed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tracebed.api as tb
from tracebed.api.experiments import load_experiment, write_artifact
from tracebed.errors import InputError
from validations import write_suite

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
testbed: {inventory: emulated-4, speed: 1e6}
repetitions: 2
settle_s: 0
simulators: {tracebed: {}}
"""


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
    status, _, said = call("experiment", "grid.yaml", "-o", "out", "--report", "artifact")
    assert status == 0, said
    artifact = tmp_path / "artifact"
    done = rebuild(artifact, tmp_path / "clean")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^(\d+) of \1 results are equal$", done.stdout, re.MULTILINE)
    page = (artifact / "README.md").read_text()
    assert "| table 1 mean_wait_s, policy easy, share 0 |" in page
    assert "results/grid/plots/waits-drawn.svg" in page
    assert f"numpy=={__import__('numpy').__version__}\n" in (artifact / "requirements.txt").read_text()
    assert len(list(artifact.glob("tracebed-*.whl"))) == 1

    file = artifact / "inputs/grid.yaml"
    file.write_text(file.read_text().replace("jobs: 30", "jobs: 31"))
    changed = rebuild(artifact, tmp_path / "changed")
    assert changed.returncode == 1
    assert "inputs/grid.yaml: FAILED" in changed.stdout
    sums = artifact / "SHA256SUMS"  # with the hash of the changed input, the results tell
    lines = [line for line in sums.read_text().splitlines(keepends=True) if "inputs/grid.yaml" not in line]
    sums.write_text("".join(lines))
    other = rebuild(artifact, tmp_path / "other")
    assert other.returncode == 1
    assert "differs: results/grid/table.csv" in other.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
def test_a_verdict_is_rebuilt_from_the_real_runs(call: Callable[..., Any], tmp_path: Path) -> None:
    tb.write(tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4), "w.parquet")
    Path("real.yaml").write_text(REAL)
    status, _, said = call("validate", "real.yaml", "-o", "out", "--no-case-pages", "--report", "artifact")
    assert status in (1, 3, 4), said
    done = rebuild(tmp_path / "artifact", tmp_path / "clean")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^(\d+) of \1 results are equal$", done.stdout, re.MULTILINE)


def test_inputs_are_found_in_paths_patterns_and_commands(tmp_path: Path) -> None:
    write_suite(tmp_path)
    (tmp_path / "mine.py").write_text("")
    suite = tmp_path / "suite.yaml"
    suite.write_text(suite.read_text() + '  other: {command: "python3 mine.py {workload} {output}", from: csv}\n')
    (tmp_path / "out").mkdir()
    for name in ("verdict.md", "junit.xml"):
        (tmp_path / "out" / name).write_text("")
    write_artifact(load_experiment(str(suite)), tmp_path / "out", tmp_path / "artifact", "tracebed validate", 0.0, {})
    inputs = tmp_path / "artifact/inputs"
    assert {path.name for path in inputs.iterdir()} == {"suite.yaml", "mine.py", "real", "mine"}
    assert len(list(inputs.glob("real/w1-fcfs/rep-*/run.json"))) == 5


def test_an_input_elsewhere_is_refused(call: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    tb.write(tb.generate("cirne", jobs=5, nodes=16, seed=1), "w.parquet")
    Path("study/grid.yaml").write_text("workloads: {kept: ../w.parquet}\npolicies: [easy]\n")
    file = load_experiment("study/grid.yaml")
    with pytest.raises(InputError, match=r"\.\./w\.parquet is outside the folder"):
        write_artifact(file, tmp_path / "out", tmp_path / "artifact", "", 0.0, {})
    assert not (tmp_path / "artifact").exists()


def test_the_option_is_of_what_makes_results(call: Callable[..., Any]) -> None:
    Path("real.yaml").write_text(REAL)
    status, _, said = call("experiment", "real.yaml", "--report", "artifact")
    assert status == 2
    assert "tracebed validate --report" in said
