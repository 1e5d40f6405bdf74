"""Policies in files: `FILE.py:CLASS` wherever a policy is named."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import tracebed.api as tb
from tests import packages
from tests.scheduling.test_policies import GUIDE
from tracebed.cli import tracebed
from tracebed.ground.errors import ExitCode, InputError
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.testing import check_policy


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the policy of the how-to page to `best/bestfit.py`, with the current folder beside."""
    (tmp_path / "best").mkdir()
    path = tmp_path / "best" / "bestfit.py"
    path.write_text(packages.files_of(GUIDE)["bestfit.py"])
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def workload() -> tb.Workload:
    return tb.scale(tb.generate("cirne", jobs=20, nodes=16, seed=3), nodes=4, arrivals=0.01)


def test_a_policy_of_a_file_simulates_as_its_class(file: Path, workload: tb.Workload) -> None:
    run = tb.simulate(workload, "best/bestfit.py:BestFit", policy_parameters={"patience_s": "60"})
    policy = registry.load(f"{file}:BestFit", {"patience_s": 60})
    check_policy(type(policy), cases=12)
    file.with_name("admit.py").write_text(packages.files_of(GUIDE)["admit.py"])
    check_policy(type(registry.load("best/admit.py:Admit", {})), cases=12)
    assert run.jobs.equals(tb.simulate(workload, policy).jobs)
    assert re.fullmatch(r"BestFit@[0-9a-f]{12}", run.info.policy)
    assert run.info.policy_parameters == {"patience_s": 60.0}


def test_another_version_of_the_file_is_another_policy(file: Path) -> None:
    first = tb.Setup.of("best/bestfit.py:BestFit")
    assert first == tb.Setup.of(f"{file}:BestFit")
    file.write_text(file.read_text() + "# another version\n")
    second = tb.Setup.of("best/bestfit.py:BestFit")
    assert first.digest != second.digest and first.scheduling.policy != second.scheduling.policy
    with pytest.raises(InputError, match="the file of the policy has changed"):
        first.policy()
    assert second.policy().malleable is False


def test_run_json_has_the_name_and_the_hash_and_no_path(file: Path, workload: tb.Workload, tmp_path: Path) -> None:
    tb.simulate(workload, "best/bestfit.py:BestFit").save(tmp_path / "run")
    text = (tmp_path / "run" / "run.json").read_text()
    name = json.loads(text)["setup"]["scheduling"]["policy"]
    assert name == tb.Setup.of("best/bestfit.py:BestFit").scheduling.policy
    assert str(file) not in text
    setup = tb.Run.load(tmp_path / "run").info.setup
    with pytest.raises(InputError, match=r"the file is unknown \(give it as FILE.py:BestFit\)"):
        setup.policy()
    assert tb.Setup.of(setup, policy="best/bestfit.py:BestFit") == setup
    assert tb.Setup.of(tb.Setup.of("best/bestfit.py:BestFit"), policy="easy").scheduling.file == ""


def test_a_setup_reaches_another_process(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = tb.Setup.of("best/bestfit.py:BestFit", policy_parameters={"patience_s": 5})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert registry.parameters(pickle.loads(pickle.dumps(setup)).policy()) == {"patience_s": 5.0}


def test_a_relative_path_belongs_to_the_folder_of_the_yaml_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = file.parent
    monkeypatch.chdir("/")
    assert registry.located("bestfit.py:BestFit", folder) == f"{file}:BestFit"
    assert registry.located("easy", folder) == "easy"


@pytest.mark.parametrize(
    ("text", "policy", "what"),
    [
        ("def decide(:", "mine.py:Mine", "mine.py:1: is not valid Python: invalid syntax (correct the file)"),
        ("x = 1\nimport missing_package", "mine.py:Mine", "mine.py:2: cannot be imported: ModuleNotFoundError"),
        ("x = 1\n\ny = 1 / 0", "mine.py:Mine", "mine.py:3: cannot be imported: ZeroDivisionError"),
        ("class Other: pass", "mine.py:Mine", "mine.py: has no class Mine (it has Other)"),
        ("class Mine: pass", "mine.py:Mine", "mine.py:Mine: Mine is not a policy (a policy is a dataclass with"),
        ("class Mine: decide = malleable = 1", "mine.py:Mine", "`decide`; `@dataclass(frozen=True)` missing)"),
        ("Mine = 3", "mine.py:Mine", "mine.py:Mine: Mine is not a policy"),
        ("class Mine: pass", "mine.py", "policy 'mine.py' is a file without a class (write mine.py:CLASS)"),
        ("class Mine: pass", "gone.py:Mine", "gone.py: cannot read the file of a policy: No such file"),
    ],
)
def test_an_error_says_what_where_and_the_mend(
    text: str, policy: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: tb.Workload
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(text)
    tb.write(workload, "w.parquet")
    done = CliRunner().invoke(tracebed, ["simulate", "w.parquet", "--policy", policy, "-o", "run"])
    assert isinstance(done.exception, InputError)
    assert what in str(done.exception)
    assert not Path("run").exists()


def test_jobs_that_a_policy_never_starts_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: tb.Workload
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Mine:\n    malleable = False\n\n"
        "    def decide(self, state):\n        yield from ()\n"
    )
    warned = tb.simulate(workload, "mine.py:Mine").info.warnings
    assert f"{len(workload)} jobs never started by the policy" in warned
    assert not [each for each in tb.simulate(workload, "fcfs").info.warnings if "never started" in each]


@pytest.mark.usefixtures("no_process_is_left")
def test_the_commands_take_a_policy_of_a_file(file: Path, workload: tb.Workload) -> None:
    tb.write(workload, "w.parquet")

    def call(*words: str) -> str:
        done = CliRunner().invoke(tracebed, [*words], catch_exceptions=False)
        assert done.exit_code == ExitCode.OK, done.output
        return done.output

    policy = ["--policy", "best/bestfit.py:BestFit", "-P", "patience_s=60"]
    call("simulate", "w.parquet", *policy, "-o", "sim")
    call("replay", "w.parquet", *policy, "--inventory", "emulated-4", "--speed", "20000", "-o", "real")
    call("explain", "w.parquet", "--real", "real", "--policy", "best/bestfit.py:BestFit", "--json")
    real, sim = tb.Run.load("real").info, tb.Run.load("sim").info
    assert (real.policy, real.policy_parameters) == (sim.policy, sim.policy_parameters)
    file.write_text(file.read_text() + "# another version\n")
    with pytest.raises(InputError, match="give the file of the policy as it was"):
        tb.error_budget(workload, "real", policy="best/bestfit.py:BestFit")
