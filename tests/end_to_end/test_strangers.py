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
from tests.servers.forge import TOKEN, Forge
from tests.validation.test_ci_reports import JOBS, ROOT, github, github_action, gitlab, variables_of, worse
from tests.validation.test_publish import BRANCH, SERVERS, variables
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


@pytest.mark.parametrize("server", SERVERS)
def test_ci_in_a_fresh_clone(server: str, runner: Path, tmp_path: Path) -> None:
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    write_suite(origin)
    Baseline.of([make_validation().to_json()]).save(origin / "baseline.yaml")
    git = "git -c user.name=t -c user.email=t@example.org"
    shell(f"{git} init -q && git add -A && {git} commit -qm suite && git clone -q . '{clone}'", origin)
    commands, variables = github() if server == "github" else gitlab()
    if server == "gitlab":  # its installation is that of the action, in another folder
        before = yaml.safe_load((JOBS / "gitlab.yaml").read_text())["accuracy"]["before_script"]
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


@pytest.mark.parametrize("server", SERVERS)
def test_a_history_and_the_comment_on_a_pull_request_in_fresh_clones(server: str, runner: Path, tmp_path: Path) -> None:
    """The default branch is recorded; a pull request that is worse, then mended, has one comment; a fork has none."""
    origin = tmp_path / "origin"
    write_suite(origin)
    Baseline.of([make_validation().to_json()]).save(origin / "baseline.yaml")
    git = "git -c user.name=t -c user.email=t@example.org -c commit.gpgsign=false"
    shell(f"{git} init -qb main && {git} add -A && {git} commit -qm suite", origin)

    def job(forge: Forge, clone: Path, *, pull: bool, fork: bool = False, token: str = TOKEN) -> tuple[int, str]:
        """Run the job in a clone as the server does; return the status of the verdict, and what is published."""
        own = variables(forge, clone, pull=pull, fork=fork) | {"RUNNER_TEMP": str(runner)}
        for name in ("GITHUB_TOKEN", "TRACEBED_TOKEN"):
            own.setdefault(name, "")
        if server == "github":
            (_, validate, publish), inputs = github_action()
            assert publish["if"] == "always() && (inputs.token != '' || inputs.history != '')"
            inputs |= {"token": token, "inconclusive": "warn", "page": "https://lab.example.org/simulator"}
            scripts = [(step["run"], variables_of(step, inputs)) for step in (validate, publish)]
        else:
            (clone / ".tracebed").unlink(missing_ok=True)
            (clone / ".tracebed").symlink_to(runner / "tracebed")
            found = yaml.safe_load((JOBS / "gitlab.yaml").read_text())["accuracy"]
            own |= {"CI_PAGES_URL": "https://lab.example.org/simulator", **found["variables"], "HISTORY": BRANCH}
            own |= {"TRACEBED_TOKEN": token, "INCONCLUSIVE": "warn"}
            scripts = [("\n".join(found[part]), {}) for part in ("script", "after_script")]
        done = [run("bash", "-eo", "pipefail", "-c", script, folder=clone, **(own | more)) for script, more in scripts]
        assert done[1].returncode == 0, done[1].stderr
        return done[0].returncode, done[1].stderr

    with Forge(server) as forge:
        shell(f"git clone -q --depth=1 'file://{origin}' first", tmp_path)
        status, said = job(forge, tmp_path / "first", pull=False)
        assert (status, forge.methods) == (0, [])
        assert f"is added to the branch {BRANCH}" in said
        shell(f"git clone -qb {BRANCH} '{origin}' site", tmp_path)
        assert "Accuracy over 1 results" in (tmp_path / "site/index.html").read_text()
        shell(f"git clone -q --depth=1 'file://{origin}' change", tmp_path)
        change = tmp_path / "change"
        worse(change, 1.02)
        status, said = job(forge, change, pull=True)
        assert status == 1 and "is created" in said
        (comment,) = forge.own.values()
        assert "### mine: worse than the baseline" in comment
        assert "Base: the commit " in comment
        assert "[history](https://lab.example.org/simulator)" in comment
        worse(change, 1.0)
        status, said = job(forge, change, pull=True)
        assert status == 0 and "is updated" in said
        assert [body.splitlines()[1] for body in forge.own.values()] == ["### mine: accurate"]
        forge.writable = False
        status, said = job(forge, change, pull=True, fork=True, token=TOKEN if server == "github" else "")
        assert status == 0 and "the pull request comes from a fork" in said
    if server == "gitlab":
        pages = yaml.safe_load((JOBS / "gitlab.yaml").read_text())["pages"]
        shell("\n".join(pages["script"]), tmp_path / "first", HISTORY=BRANCH)
        assert (tmp_path / "first/public/index.html").is_file()
