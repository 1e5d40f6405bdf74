"""The CI jobs of the documentation: their files are valid, and their commands gate a simulator on recorded runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.oracles.validations import make_validation, predicted_run, write_suite
from tracebed.validation.verdict.baseline import Baseline

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "docs" / "ci"


def github(inconclusive: str = "fail") -> tuple[list[str], dict[str, str]]:
    """Return the shell commands of the action without the installation, and their variables, as in the workflow."""
    steps = yaml.safe_load((JOBS / "github.yaml").read_text())["jobs"]["validate"]["steps"]
    (given,) = (step["with"] for step in steps if step.get("uses") == "./tracebed")
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    install, validate = action["runs"]["steps"]
    assert "pip" in install["run"] and "pip" not in validate["run"]
    defaults = {name: each.get("default") for name, each in action["inputs"].items()}
    assert set(given) <= set(defaults)
    inputs = {**defaults, **given, "inconclusive": inconclusive}
    return [validate["run"]], {
        name: inputs[text.removeprefix("${{ inputs.").removesuffix(" }}")] for name, text in validate["env"].items()
    }


def gitlab() -> tuple[list[str], dict[str, str]]:
    """Return the shell commands of the job, without the installation, and its variables."""
    job = yaml.safe_load((JOBS / "gitlab.yaml").read_text())["accuracy"]
    assert [command for command in job["script"] if "pip" in command] == []
    return job["script"], job["variables"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a suite, its recorded runs, and the baseline of an exact simulator."""
    folder = tmp_path_factory.mktemp("repository")
    write_suite(folder)
    validation = make_validation()
    Baseline.of([validation.to_json()]).save(folder / "baseline.yaml")
    return folder


def run(commands: list[str], variables: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run commands as a CI server does: in one shell that ends at the first failure. No case has a page of its own."""
    commands = [command.replace('validate "$SUITE"', 'validate --no-case-pages "$SUITE"') for command in commands]
    for environment in (folder / "runner/tracebed", folder / ".tracebed"):
        environment.mkdir(parents=True, exist_ok=True)
        (environment / "bin").unlink(missing_ok=True)
        (environment / "bin").symlink_to(Path(sys.executable).parent)
    of_runner = {"GITHUB_STEP_SUMMARY": str(folder / "step-summary.md"), "RUNNER_TEMP": str(folder / "runner")}
    shell = ["bash", "-eo", "pipefail", "-c", "\n".join(commands)]
    return subprocess.run(
        shell, cwd=folder, env={**os.environ, **of_runner, **variables}, capture_output=True, text=True, check=False
    )


def worse(folder: Path, stretch: float) -> None:
    """Replace the predictions in a copy of the repository."""
    for seed in (1, 2):
        path = folder / "mine" / f"w{seed}-fcfs"
        shutil.rmtree(path)
        predicted_run(seed, stretch).save(path)


def schema(document: dict[str, Any]) -> str:
    return str(document["schema"])


def test_the_github_job_passes_with_an_exact_simulator(repository: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(repository, tmp_path / "r"))
    done = run(*github(), folder)
    assert done.returncode == 0, done.stderr
    assert "::error" not in done.stderr + done.stdout
    summary = (folder / "step-summary.md").read_text()
    assert summary == (folder / "out" / "verdict.md").read_text()
    assert summary.startswith("## mine")
    assert schema(json.loads((folder / "out" / "verdict.json").read_text())) == "tracebed-verdicts/2"


def test_the_github_job_fails_and_annotates_if_the_simulator_gets_worse(repository: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(repository, tmp_path / "r"))
    worse(folder, 1.02)  # still accurate: only the ratchet notices
    done = run(*github(), folder)
    assert done.returncode == 1, done.stderr
    annotations = [line for line in done.stderr.splitlines() if line.startswith("::error file=suite.yaml,line=1,")]
    assert any("response%2C mean (s)%2C baseline::" in line for line in annotations)
    assert "**worse than the baseline**" in (folder / "step-summary.md").read_text()


def test_the_gitlab_job_reports_a_worse_simulator(repository: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(repository, tmp_path / "r"))
    worse(folder, 1.02)
    done = run(*gitlab(), folder)
    assert done.returncode == 1, done.stderr
    assert not (folder / "step-summary.md").exists()  # only --annotate writes it
    job = yaml.safe_load((JOBS / "gitlab.yaml").read_text())["accuracy"]["artifacts"]["reports"]
    entries = json.loads((folder / job["codequality"]).read_text())
    assert {entry["location"]["path"] for entry in entries} == {"suite.yaml"}
    failures = ElementTree.parse(folder / job["junit"]).getroot().iter("failure")
    assert any("the error grew from" in (failure.get("message") or "") for failure in failures)


def test_the_variable_of_a_job_decides_on_an_inconclusive_verdict(tmp_path: Path) -> None:
    write_suite(tmp_path, repetitions=2)
    Baseline.of([make_validation(repetitions=2).to_json()]).save(tmp_path / "baseline.yaml")
    commands, variables = gitlab()
    assert run(commands, variables, tmp_path).returncode == 3
    shutil.rmtree(tmp_path / "out")
    done = run(commands, {**variables, "INCONCLUSIVE": "warn"}, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "inconclusive" in done.stderr


def test_other_tolerances_than_those_of_the_baseline_are_wrong_usage(repository: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(repository, tmp_path / "r"))
    (folder / "t.yaml").write_text("margins: {wait: 50%}\n")
    (folder / "suite.yaml").write_text((folder / "suite.yaml").read_text() + "tolerances: t.yaml\n")
    done = run(*gitlab(), folder)
    assert done.returncode == 2
    assert "the tolerances differ from those of the baseline: wait, mean (s)" in done.stderr
