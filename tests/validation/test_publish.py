"""What a job of CI publishes: the comment on a pull request, and the records of the default branch."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tracebed.api as tb
from tests.oracles.validations import make_validation
from tests.servers.forge import NUMBER, PROJECT, REPOSITORY, TOKEN, Forge
from tracebed.cli.publish import publish
from tracebed.validation.report import forges
from tracebed.validation.report.comment import LIMIT, Base, comment, differences
from tracebed.validation.verdict.baseline import Baseline
from tracebed.validation.verdict.gate import FAILED, Finding, Gate, judged

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ("github", "gitlab")
BRANCH = "accuracy-history"
EXACT, SLIGHT, WRONG = ({"w1-fcfs": factor, "w2-fcfs": factor} for factor in (1.0, 1.01, 1.3))


def document(*validations: tb.Validation, findings: tuple[Finding, ...] = (), **failed: str) -> dict[str, Any]:
    """Return the content of verdict.json."""
    gate = Gate(validations, findings=findings, failures=failed)
    simulators = [judged(gate, each) for each in validations]
    outcomes = {each["simulator"]["name"]: each["outcome"] for each in simulators} | dict.fromkeys(failed, FAILED)
    return {"simulators": simulators, "outcomes": outcomes, "failed": failed}


def base(stretches: dict[str, float], **more: Any) -> Base:
    return Base("abc of 2026-11-28", Baseline.of([make_validation(stretches, **more).to_json()]))


def rows(text: str) -> dict[str, list[str]]:
    """Return metric -> cells of the table of a comment."""
    lines = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return {cells[0]: cells[1:] for cells in lines[2:]}


def test_a_comment_has_the_verdict_the_change_against_the_base_and_links() -> None:
    found = make_validation(SLIGHT)
    text = comment(document(found), base(EXACT), {"history": "https://example.org/h", "job": "https://example.org/j"})
    assert text.startswith("### mine: accurate\n")
    verdict, before, now, difference, interval = rows(text)["wait, mean"]
    was = make_validation(EXACT)
    (old,), (new,) = ([m for m in each.metrics if m.name == "mean_wait_s"] for each in (was, found))
    assert verdict == "accurate"
    assert (before, now, difference) == (f"{old.z:+.2f}", f"{new.z:+.2f}", f"{new.z - old.z:+.2f}")
    low, high = map(float, interval.split(" to "))
    assert low < float(difference) < high
    assert "Base: abc of 2026-11-28." in text and "2 cases of 2 workloads" in text
    assert text.rstrip().endswith("[history](https://example.org/h) · [job](https://example.org/j)")
    text = comment(document(make_validation(WRONG)), base(EXACT), {})
    assert text.startswith("### mine: inaccurate\n") and rows(text)["wait, mean"][0] == "accurate → inaccurate"
    assert "wait, p95*" in rows(text)  # advisory metrics are shown if they changed
    same = rows(comment(document(found), base(SLIGHT), {}))
    assert "wait, p95*" not in same and same["wait, mean"][3:] == ["0", "-"]


def test_the_interval_of_a_difference_is_that_over_the_workloads() -> None:
    """Against a table of Student's t: two workloads, 95 %, the factor 12.706."""
    now, was = (
        Baseline.of([make_validation(each).to_json()]).simulators["mine"]
        for each in ({"w1-fcfs": 1.0, "w2-fcfs": 1.02}, EXACT)
    )
    changes = differences(now, was, "mean_wait_s")
    assert changes[0] == 0 and changes[1] > 0
    text = comment(document(make_validation({"w1-fcfs": 1.0, "w2-fcfs": 1.02})), base(EXACT), {})
    low, high = map(float, rows(text)["wait, mean"][4].split(" to "))
    half = 12.706 * np.std(changes, ddof=1) / 2**0.5
    assert (high - low) / 2 == pytest.approx(half, abs=0.011)
    one = comment(document(make_validation({"w1-fcfs": 1.02})), base({"w1-fcfs": 1.0}), {})
    assert rows(one)["wait, mean"][3:] != ["-", "-"] and rows(one)["wait, mean"][4] == "-"


def test_a_comment_names_what_weakens_the_comparison() -> None:
    found = document(make_validation(SLIGHT))
    assert "Only on one side: w2-fcfs." in comment(found, base({"w1-fcfs": 1.0}), {})
    assert "The real runs of 2 cases are not those of the base." in comment(found, base(EXACT, noise=0.003), {})
    other = replace(tb.Tolerances.default(), kappa=3.0)
    assert "tolerances are not those of the base" in comment(found, base(EXACT, tolerances=other), {})
    assert "No results of mine at the base" in comment(found, base(EXACT, name="other"), {})
    assert "No results of mine at the base" in comment(found, None, {})


def test_a_comment_names_failures_and_results_worse_than_the_baseline() -> None:
    worse = Finding("mine", "mean_wait_s", "wait, mean (s)", "wait, mean (s): the error grew", True)
    text = comment(document(make_validation(SLIGHT), findings=(worse,), crash="ended: <b>"), base(EXACT), {})
    assert re.findall(r"^### (.*)$", text, re.MULTILINE) == ["crash: failed", "mine: worse than the baseline"]
    assert "- **worse than the baseline**: wait, mean (s): the error grew" in text
    assert "ended: \\<b>" in text


def test_a_long_comment_is_cut_at_a_line() -> None:
    text = comment(document(make_validation(SLIGHT), crash="x " * LIMIT), None, {"job": "https://example.org/j"})
    assert len(text) < 65_536 and "Too long for a comment" in text and "[job](https://example.org/j)" in text


# The command, in a clone of a repository and the environment of a job.


def git(folder: Path, *command: str) -> str:
    own = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *own, *command], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a shallow clone of a repository with a baseline, the current folder, without variables of a CI server."""
    for name in [name for name in os.environ if name.startswith(("GITHUB_", "GITLAB_", "CI_", "TRACEBED_TOKEN"))]:
        monkeypatch.delenv(name)
    origin, folder = tmp_path / "origin", tmp_path / "clone"
    subprocess.run(["git", "init", "-q", "-b", "main", str(origin)], check=True)
    Baseline.of([make_validation(EXACT).to_json()]).save(origin / "baseline.yaml")
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "suite")
    subprocess.run(["git", "clone", "-q", "--depth=1", origin.as_uri(), str(folder)], check=True)  # as servers do
    monkeypatch.chdir(folder)
    results(EXACT)
    return folder


def results(stretches: dict[str, float]) -> None:
    """Write what `tracebed validate` writes to the folder `out`."""
    found = make_validation(stretches)
    Path("out").mkdir(exist_ok=True)
    Path("out/verdict.json").write_text(json.dumps(document(found)))
    Path("out/baseline.json").write_text(Baseline.of([found.to_json()]).json_text)


@pytest.fixture(params=SERVERS)
def forge(request: pytest.FixtureRequest) -> Iterator[Forge]:
    with Forge(request.param) as found:
        yield found


def variables(forge: Forge, folder: Path, *, pull: bool, fork: bool = False) -> dict[str, str]:
    """Return the variables that the CI server sets in a job, by its documentation."""
    head = git(folder, "rev-parse", "HEAD")
    if forge.name == "github":
        source = {"full_name": "guest/simulator" if fork else REPOSITORY}
        change = {"number": int(NUMBER), "base": {"sha": head}, "head": {"repo": source}}
        event = {"repository": {"default_branch": "main"}, **({"pull_request": change} if pull else {})}
        path = folder.parent / "event.json"
        path.write_text(json.dumps(event))
        return {
            "GITHUB_ACTIONS": "true",
            "GITHUB_API_URL": forge.address,
            "GITHUB_SERVER_URL": "https://github.example.org",
            "GITHUB_REPOSITORY": REPOSITORY,
            "GITHUB_EVENT_NAME": "pull_request" if pull else "push",
            "GITHUB_EVENT_PATH": str(path),
            "GITHUB_REF": f"refs/pull/{NUMBER}/merge" if pull else "refs/heads/main",
            "GITHUB_WORKFLOW": "accuracy",
            "GITHUB_JOB": "validate",
            "GITHUB_RUN_ID": "99",
            "GITHUB_STEP_SUMMARY": str(folder.parent / "summary.md"),
        }
    found = {
        "GITLAB_CI": "true",
        "CI_API_V4_URL": forge.address,
        "CI_JOB_NAME": "accuracy",
        "CI_JOB_URL": "https://gitlab.example.org/lab/simulator/-/jobs/99",
        "CI_DEFAULT_BRANCH": "main",
    }
    if not pull:
        return found | {"CI_COMMIT_BRANCH": "main"}
    return found | {
        "CI_MERGE_REQUEST_IID": NUMBER,
        "CI_MERGE_REQUEST_PROJECT_ID": PROJECT,
        "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "43" if fork else PROJECT,
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": head,
    }


def call(env: dict[str, str], *more: str) -> Result:
    return CliRunner().invoke(publish, ["out", "--baseline", "baseline.yaml", *more], env=env)


def test_the_comment_is_created_once_and_then_updated(forge: Forge, clone: Path) -> None:
    """The base is the baseline of the base commit, not that of the branch."""
    env = variables(forge, clone, pull=True) | {"TRACEBED_TOKEN": TOKEN}
    Path("baseline.yaml").write_text("no baseline")
    done = call(env)
    assert (done.exit_code, done.stderr) == (0, "tracebed: comment 131 is created\n")
    (first,) = forge.own.values()
    job = "accuracy/validate/out" if forge.name == "github" else "accuracy/out"
    assert first.startswith(f"<!-- tracebed: {job} -->\n### mine: accurate\n")
    assert f"Base: baseline.yaml at {git(clone, 'rev-parse', 'HEAD')[:8]}." in first
    address = "https://github.example.org/lab/simulator/actions/runs/99" if forge.name == "github" else "/-/jobs/99)"
    assert address in first
    results(WRONG)
    done = call(env)
    assert (done.exit_code, done.stderr) == (0, "tracebed: comment 131 is updated\n")
    assert [body.splitlines()[1] for body in forge.own.values()] == ["### mine: inaccurate"]
    assert forge.bodies[130] == "remark 130"
    more = {"GITHUB_JOB": "other", "CI_JOB_NAME": "other"}
    assert "comment 132 is created" in call(env | more).stderr
    Path("out/verdict.json").unlink()
    assert call(env).exit_code == 0
    assert "No verdict" in forge.own[131]
    wrong = CliRunner().invoke(publish, ["elsewhere"], env=env)
    assert wrong.exit_code == 2 and "elsewhere: has neither verdict.json nor another file" in wrong.stderr


def test_the_command_of_the_documentation_comments_with_a_link_to_the_page(forge: Forge, clone: Path) -> None:
    page = (ROOT / "docs/how-to/ci.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^python -m tracebed\.cli\.publish (.*)$", page, re.MULTILINE)
    env = variables(forge, clone, pull=True) | {"TRACEBED_TOKEN": TOKEN}
    done = CliRunner().invoke(publish, text.replace("URL", "https://example.org/page").split(), env=env)
    assert done.exit_code == 0, done.stderr
    assert "[history](https://example.org/page)" in forge.own[131]


@pytest.mark.parametrize("token", ["", TOKEN])
def test_a_fork_is_told_and_does_not_fail(forge: Forge, clone: Path, token: str) -> None:
    """GitHub gives a token that may read only, GitLab none."""
    forge.writable = False
    done = call(variables(forge, clone, pull=True, fork=True) | {"TRACEBED_TOKEN": token})
    assert done.exit_code == 0
    assert "no comment is written: the pull request comes from a fork" in done.stderr
    assert not forge.own
    if forge.name == "github":
        assert "No comment is written: the pull request" in (clone.parent / "summary.md").read_text()


def test_without_a_token_there_is_no_comment_and_no_request(forge: Forge, clone: Path) -> None:
    done = call(variables(forge, clone, pull=True))
    assert done.exit_code == 0
    assert "the job has no token (" in done.stderr
    assert forge.methods == []


def test_an_answer_that_refuses_is_an_error_with_its_mend(forge: Forge, clone: Path) -> None:
    env = variables(forge, clone, pull=True)
    forge.writable = False
    done = call(env | {"TRACEBED_TOKEN": TOKEN})
    assert done.exit_code == 2
    mend = "pull-requests: write" if forge.name == "github" else "scope api"
    assert "403 Forbidden" in done.stderr and mend in done.stderr and TOKEN not in done.stderr
    wrong = call(env | {"TRACEBED_TOKEN": "wrong"})
    assert wrong.exit_code == 2 and "401 Unauthorized" in wrong.stderr and mend in wrong.stderr
    forge.broken = True
    assert "502 Bad Gateway: Server Error (run the job again)" in call(env | {"TRACEBED_TOKEN": TOKEN}).stderr


def test_a_server_that_does_not_answer_is_an_error(clone: Path) -> None:
    with Forge("github") as forge:
        env = variables(forge, clone, pull=True) | {"TRACEBED_TOKEN": TOKEN}
    done = call(env)
    assert done.exit_code == 2
    assert "no comment is written: " in done.stderr and "run the job again" in done.stderr


def test_outside_of_a_job_the_command_says_so(clone: Path) -> None:
    done = call({})
    assert done.exit_code == 2 and "not a job of GitHub or GitLab" in done.stderr
    done = call({"GITLAB_CI": "true"})
    assert done.exit_code == 2 and "'CI_API_V4_URL' of the CI server is missing" in done.stderr


def test_jobs_of_the_default_branch_record_their_commits(forge: Forge, clone: Path) -> None:
    """The first job makes the branch. A job whose clone is older than the last push repeats its push."""
    origin = clone.parent / "origin"
    env = variables(forge, clone, pull=False)
    commits = []
    for number, stretches in enumerate((EXACT, EXACT, EXACT, SLIGHT)):
        if number:
            git(clone, "commit", "-q", "--allow-empty", "-m", f"change {number}", "--date", f"2026-11-0{number} 12:00")
        commits.append(git(clone, "rev-parse", "HEAD"))
        results(stretches)
        done = call(env, "--branch", BRANCH)
        assert done.exit_code == 0, done.stderr
        assert f"is added to the branch {BRANCH}" in done.stderr
    assert "has the record" in call(env, "--branch", BRANCH).stderr
    files = git(origin, "ls-tree", "-r", "--name-only", BRANCH).splitlines()
    assert [name for name in files if not name.startswith("history/")] == [".nojekyll", "index.html"]
    assert {name.rpartition("-")[2] for name in files if name.startswith("history/")} == {f"{c}.json" for c in commits}
    assert len(git(origin, "log", "--format=%h", BRANCH).splitlines()) == 5  # the empty one, and one of each commit
    page = git(origin, "show", f"{BRANCH}:index.html")
    assert "Accuracy over 4 results" in page and page.count('class="step"') == 1
    assert git(clone, "status", "--porcelain", "--untracked-files=no") == ""
    assert len(git(clone, "worktree", "list").splitlines()) == 1
    # The comment of a pull request compares with the record of its base.
    results(WRONG)
    pull = variables(forge, clone, pull=True) | {"TRACEBED_TOKEN": TOKEN}
    assert call(pull, "--branch", BRANCH).exit_code == 0
    assert f"Base: the commit {commits[-1][:8]} of 20" in forge.own[131]
    git(clone, "commit", "-q", "--allow-empty", "-m", "without a record")
    pull = variables(forge, clone, pull=True) | {"TRACEBED_TOKEN": TOKEN}
    assert call(pull, "--branch", BRANCH).exit_code == 0
    assert "Base: the newest record, commit " in forge.own[131]


def test_two_jobs_that_push_at_once_both_add_their_records(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other job pushes between the fetch and the push of this one."""
    with Forge("gitlab") as forge:
        env = variables(forge, clone, pull=False)
        assert call(env, "--branch", BRANCH).exit_code == 0
        git(clone, "commit", "-q", "--allow-empty", "-m", "a change")
        run, raced = forges._git, []

        def other_first(*command: str, check: bool = True) -> str | None:
            if "push" in command and not raced:
                raced.append(True)
                other = clone.parent / "other"
                subprocess.run(["git", "clone", "-qb", BRANCH, str(clone.parent / "origin"), str(other)], check=True)
                (other / "history/20200101T000000Z-0123abcd.json").write_bytes(Path("out/baseline.json").read_bytes())
                git(other, "add", "-A")
                git(other, "commit", "-qm", "another")
                git(other, "push", "-q")
            return run(*command, check=check)

        monkeypatch.setattr(forges, "_git", other_first)
        done = call(env, "--branch", BRANCH)
        assert raced and done.exit_code == 0, done.stderr
    files = git(clone.parent / "origin", "ls-tree", "-r", "--name-only", BRANCH).splitlines()
    assert len([name for name in files if name.startswith("history/")]) == 3


def test_what_is_not_published_is_said(forge: Forge, clone: Path) -> None:
    env = variables(forge, clone, pull=False)
    assert "nothing is published" in call(env).stderr
    branch = {"GITHUB_REF": "refs/heads/topic", "CI_COMMIT_BRANCH": "topic"}
    done = call(env | branch, "--branch", BRANCH)
    assert done.exit_code == 0 and "nothing is published" in done.stderr
    refused = call(env, "--branch", "main")
    assert refused.exit_code == 2 and "main is the default branch" in refused.stderr
    Path("out/baseline.json").unlink()
    done = call(env, "--branch", BRANCH)
    assert done.exit_code == 0 and "no record is added to the history" in done.stderr
    results(EXACT)
    git(clone, "remote", "set-url", "origin", str(clone / "nowhere"))
    done = call(env, "--branch", BRANCH)
    assert done.exit_code == 2 and "git ls-remote" in done.stderr
