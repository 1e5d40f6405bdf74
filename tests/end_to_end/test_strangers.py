"""Three paths of a stranger, with the wheel in a clean environment: an own policy, an own simulator, an own cluster.

The commands are those of the pages. Lines that a page prints as output come out. Last, the CI jobs in a fresh clone.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests import packages
from tests.documented import VERDICTS, blocks, provide
from tests.oracles.validations import make_validation, write_suite
from tests.validation.test_ci_reports import ROOT, github, gitlab
from tracebed.orchestrator.testbeds.wheelhouse import wheel
from tracebed.validation.verdict.baseline import Baseline

pytestmark = pytest.mark.slow

OUTPUT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(import tracebed.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an environment `tracebed`, made by the action; the workers of pytest share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "runner"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            install = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"][0]["run"]
            # Commands compile the modules that they import; pip would compile all modules of all packages.
            more = {"INSTALL": str(wheel(folder)), "PIP_COMPILE": "false"}
            shell(install, folder, RUNNER_TEMP=str(folder), **more)
            (folder / "installed").touch()
    return folder


def shell(script: str, folder: Path, **more: str) -> str:
    """Run a script as a CI server does, without the paths of this environment, and return its output."""
    done = run("bash", "-eo", "pipefail", "-c", script, folder=folder, **more)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


def run(*command: str | Path, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the variables of this environment that change imports."""
    own = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in own} | more
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def follow(page: Path, runner: Path, folder: Path, until: str | None = None) -> str:
    """Run the commands and scripts of a page up to a heading; return what they print, among it what the page prints."""
    text = page.read_text(encoding="utf-8")
    if until is not None:
        assert until in text
        text = text.partition(until)[0]
    for name, content in packages.files_of(page).items():
        (folder / name).write_text(content)
    printed = []
    program = runner / "tracebed/bin"
    for command in [command for block in blocks(text) if not block.reason for command in block.commands]:
        for before, word in itertools.pairwise(command):
            if before not in ("-o", "--output"):
                provide(word, folder)
        done = run(program / "tracebed", *command[1:], folder=folder)
        accepted = {int(status) for status in VERDICTS} if command[1] in ("compare", "validate") else {0}
        assert done.returncode in accepted, f"{command}\n{done.stdout}{done.stderr}"
        printed.append(done.stdout)
    for script in PYTHON.findall(text):
        (folder / "script.py").write_text(script.replace("range(5)", "range(2)"))  # replays of nine seconds each
        printed.append(shell(f'"{program}/python" script.py', folder))
    found = " ".join("\n".join(printed).split())
    for line in [line for block in OUTPUT.findall(text) for line in block.splitlines()]:
        assert " ".join(line.split()) in found
    return found


def test_an_own_policy(runner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = follow(ROOT / "docs/how-to/write-a-policy.md", runner, tmp_path)
    assert "bestfit.py:BestFit against easy" in found


def test_an_own_simulator(runner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    follow(ROOT / "docs/how-to/validate-your-simulator.md", runner, tmp_path)
    assert {path.name for path in (tmp_path / "validation").iterdir()} >= {"verdict.md", "verdict.json", "mine.html"}


def test_an_own_cluster(runner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs/how-to/operator.md"
    found = follow(page, runner, tmp_path, until="## Is the answer accurate?")
    assert (tmp_path / "whatif/index.html").is_file()
    assert "waits of all jobs: inconclusive: chance exceeds the effect" in found
    assert "wait, mean (s) 116,987 116,987 78,563" in found


@pytest.mark.parametrize("server", ["github", "gitlab"])
def test_ci_in_a_fresh_clone(server: str, runner: Path, tmp_path: Path) -> None:
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    write_suite(origin)
    Baseline.of([make_validation().to_json()]).save(origin / "baseline.yaml")
    git = "git -c user.name=t -c user.email=t@example.org"
    shell(f"{git} init -q && git add -A && {git} commit -qm suite && git clone -q . '{clone}'", origin)
    commands, variables = github() if server == "github" else gitlab()
    if server == "gitlab":  # its installation is that of the action, in another folder
        before = yaml.safe_load((ROOT / "docs/ci/gitlab.yaml").read_text())["accuracy"]["before_script"]
        assert before == ["python3 -m venv .tracebed", '.tracebed/bin/pip install --quiet "$TRACEBED"']
        (clone / ".tracebed").symlink_to(runner / "tracebed")
    more = {**variables, "RUNNER_TEMP": str(runner), "GITHUB_STEP_SUMMARY": str(clone / "summary.md")}
    shell("\n".join(commands), clone, **more)
    assert (clone / "out/junit.xml").is_file()
    shutil.rmtree(clone / "out")
    recorded = next((clone / "mine").rglob("jobs.parquet")).parent
    shutil.rmtree(recorded)
    with pytest.raises(AssertionError, match="mine"):
        shell("\n".join(commands), clone, **more)
