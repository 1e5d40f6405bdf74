"""What a job of CI publishes: a comment on its pull request, or a record in the history of the default branch.

The job runs on GitHub or GitLab, whose variables name the pull request, the commits and the address of the interface.
The comment is created once, and updated by later jobs: its first line is a mark that names the job. The documentation
of the interfaces: REST API endpoints for issue comments (GitHub), Notes API (GitLab).

A record is a baseline with the results of one commit, in the folder `history` of a branch of its own. The page of the
history is `index.html` beside it. Jobs that push at the same time repeat the push.
"""

from __future__ import annotations

import http.client
import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracebed.ground.errors import InputError
from tracebed.validation.report.comment import Base, comment
from tracebed.validation.report.history import render
from tracebed.validation.report.html import write_page
from tracebed.validation.verdict.baseline import Baseline
from tracebed.validation.verdict.history import COMMIT_DIGITS, commit_of, history, run_git, steps

RECORDS = "history"  # folder of the records in the branch of the history
TOKEN = "TRACEBED_TOKEN"
TIMEOUT_S = 30.0
PAGE = 100  # comments of one answer, the most that both interfaces accept
PUSHES = 5  # attempts to push a record while other jobs push theirs
DENIED = (401, 403, 404)  # 404: GitHub and GitLab hide what a token may not see


@dataclass(frozen=True)
class Job:
    """A job of CI."""

    name: str
    """By which its comment is recognized."""
    page: str
    """Address of its page."""
    default: str
    """The default branch, if the job tests a commit of it; else empty."""
    comments: str
    """Address of the comments of the pull request; empty: the job is not that of one."""
    comment: str
    """Address of one comment, with `{id}`."""
    update: str
    """Method of HTTP that replaces a comment."""
    headers: Mapping[str, str]
    """Headers of a request, without those of the token."""
    authorization: tuple[str, str]
    """Header of the token, and its value; an empty value: the job has no token."""
    permission: str
    """What lets a job write comments."""
    fork: bool
    """Whether the pull request comes from another repository."""
    base: str
    """Hash of the commit with which the pull request is compared; empty if unknown."""


def job_of(env: Mapping[str, str]) -> Job:
    """Return the job whose variables are in `env`.

    Raises:
        InputError: the variables are not those of a job of GitHub or GitLab.
    """
    try:
        if env.get("GITHUB_ACTIONS") == "true":
            return _github(env)
        if env.get("GITLAB_CI") == "true":
            return _gitlab(env)
    except KeyError as error:
        raise InputError(f"the variable {error} of the CI server is missing", hint="run this in a job") from error
    hint = "run this in a job of GitHub or GitLab, which set GITHUB_ACTIONS or GITLAB_CI to true"
    raise InputError("this is not a job of GitHub or GitLab", hint=hint)


def _github(env: Mapping[str, str]) -> Job:
    event = json.loads(Path(env["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    pull = event.get("pull_request")
    repository = env["GITHUB_REPOSITORY"]
    api = f"{env['GITHUB_API_URL']}/repos/{repository}/issues"
    token = env.get(TOKEN) or env.get("GITHUB_TOKEN")
    branch = event.get("repository", {}).get("default_branch", "")
    source = ((pull or {}).get("head", {}).get("repo") or {}).get("full_name")  # null: the fork was deleted
    return Job(
        name=f"{env['GITHUB_WORKFLOW']}/{env['GITHUB_JOB']}",
        page=f"{env['GITHUB_SERVER_URL']}/{repository}/actions/runs/{env['GITHUB_RUN_ID']}",
        default=branch if env["GITHUB_REF"] == f"refs/heads/{branch}" else "",
        comments=f"{api}/{pull['number']}/comments" if pull else "",
        comment=f"{api}/comments/{{id}}",
        update="PATCH",
        headers={"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"},
        authorization=("Authorization", f"Bearer {token}" if token else ""),
        permission="give the job `permissions: {contents: read, pull-requests: write}`",
        fork=pull is not None and source != repository,
        base=pull["base"]["sha"] if pull else "",
    )


def _gitlab(env: Mapping[str, str]) -> Job:
    request = env.get("CI_MERGE_REQUEST_IID", "")
    project = env.get("CI_MERGE_REQUEST_PROJECT_ID", "")
    notes = f"{env['CI_API_V4_URL']}/projects/{project}/merge_requests/{request}/notes"
    return Job(
        name=env["CI_JOB_NAME"],
        page=env["CI_JOB_URL"],
        default=env["CI_DEFAULT_BRANCH"] if env.get("CI_COMMIT_BRANCH") == env["CI_DEFAULT_BRANCH"] else "",
        comments=notes if request else "",
        comment=f"{notes}/{{id}}",
        update="PUT",
        headers={},
        authorization=("PRIVATE-TOKEN", env.get(TOKEN, "")),
        permission=f"{TOKEN} must be an access token of the project with the scope api and the role Reporter or higher",
        fork=bool(request) and env.get("CI_MERGE_REQUEST_SOURCE_PROJECT_ID") != project,
        base=env.get("CI_MERGE_REQUEST_DIFF_BASE_SHA", ""),
    )


OF_VALIDATE = ("experiment.yaml", "baseline.json")
"""Files that `tracebed validate` writes, also before a verdict."""


def publish(folder: Path | str, baseline: Path | str | None = None, *, branch: str = "", page: str = "") -> str:
    """Publish the results of `tracebed validate` from a job of GitHub or GitLab; return a sentence about what was done.

    A job of a pull request writes a comment, or updates its earlier one, that of the same job and folder. A job of the
    default branch adds a record to the history. Without a token that may write, as a pull request from a fork has none,
    no comment is written.

    Args:
        folder: the output folder of `tracebed validate`.
        baseline: the baseline in the repository, the base of a comment if the history has no record.
        branch: the branch of the history; empty: no history is kept.
        page: address of the page of the history, for the comment; empty: unknown.

    Raises:
        InputError: this is no job of a known server; the folder has no output of `tracebed validate`; the server
            refuses the comment, or Git the push.
    """
    job, folder = job_of(os.environ), Path(folder)
    if job.comments:
        document = folder / "verdict.json"
        links = ({"history": page} if page else {}) | {"job, with log and reports": job.page}
        if document.exists():
            base = _base(job, branch, baseline)
            text = comment(json.loads(document.read_text(encoding="utf-8")), base, links)
        elif not any((folder / name).exists() for name in OF_VALIDATE):
            what = f"neither {document.name} nor another file of `tracebed validate`"
            raise InputError(f"has {what}", where=str(folder), hint="name its output folder, that of `-o`")
        else:
            text = f"### No verdict\n\ntracebed ended before a verdict: [the log]({job.page}) has the reason.\n"
        name = f"{job.name}/{folder}".replace("--", "- -")  # which would end the remark of the mark
        return _comment(job, f"<!-- tracebed: {name} -->\n{text}")
    if not (branch and job.default):
        return "nothing is published: the job is not that of a pull request, or of the default branch with a history"
    if branch == job.default:
        raise InputError(f"{branch} is the default branch", hint="name a branch that has the history only")
    results = folder / "baseline.json"
    if not results.exists():
        return f"no record is added to the history: {results} is missing, since there is no verdict"
    return _record(results, branch)


def _comment(job: Job, text: str) -> str:
    """Create or update the comment of a job, whose first line is its mark; return what was done."""
    without = "no comment is written: the pull request comes from a fork, whose job has no token that may write"
    if not job.authorization[1]:
        return without if job.fork else f"no comment is written: the job has no token ({job.permission})"
    mark = text.partition("\n")[0]
    try:
        number = 1
        while True:
            found = _request(job, "GET", f"{job.comments}?per_page={PAGE}&page={number}")
            for each in found:
                if str(each["body"]).startswith(mark):
                    _request(job, job.update, job.comment.format(id=each["id"]), text)
                    return f"comment {each['id']} is updated"
            if len(found) < PAGE:
                return f"comment {_request(job, 'POST', job.comments, text)['id']} is created"
            number += 1
    except urllib.error.HTTPError as error:
        with error:
            reason = _reason(error.read())
        if error.code in DENIED and job.fork:
            return without
        what = f"the server answers {error.code} {error.reason}{reason}"
        hint = job.permission if error.code in DENIED else "run the job again"
        raise InputError(what, where=job.comments, hint=hint) from error
    except (OSError, http.client.HTTPException) as error:
        what = f"no comment is written: {getattr(error, 'reason', None) or error or type(error).__name__}"
        raise InputError(what, where=job.comments, hint="run the job again") from error


def _request(job: Job, method: str, address: str, text: str | None = None) -> Any:
    """Return the answer to a request, which has the text of a comment."""
    content = None if text is None else json.dumps({"body": text}).encode()
    headers = {**job.headers, "Content-Type": "application/json", "User-Agent": "tracebed"}
    request = urllib.request.Request(address, content, headers, method=method)
    request.add_unredirected_header(*job.authorization)  # another server must not have the token
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def _reason(answer: bytes) -> str:
    """Return the message in the answer of a server that refuses a request, if it has one."""
    try:
        found = json.loads(answer)
    except ValueError:
        return ""
    text = (found.get("message") or found.get("error")) if isinstance(found, dict) else None
    return f": {text}" if text else ""


def _base(job: Job, branch: str, baseline: Path | str | None) -> Base | None:
    """Return the record of the base of a pull request; else the newest one, else the baseline at the base."""
    if branch and _git("fetch", "--quiet", "--depth=1", "origin", f"refs/heads/{branch}", check=False) is not None:
        names = (_git("ls-tree", "-r", "--full-tree", "--name-only", "FETCH_HEAD", f"{RECORDS}/") or "").splitlines()
        if names:
            chosen = next((name for name in names if job.base and f"-{job.base}." in name), max(names))
            commit, day = commit_of(Path(chosen))
            what = "the commit" if commit == job.base else "the newest record, commit"
            content = _git("show", f"FETCH_HEAD:{chosen}") or ""
            return Base(f"{what} {commit[:COMMIT_DIGITS]} of {day}", Baseline.parse(content, chosen))
    if baseline is None or not job.base:
        return None
    _git("fetch", "--quiet", "--depth=1", "origin", job.base, check=False)  # else it may be here already
    text = _git("show", f"{job.base}:./{baseline}", check=False)
    return (
        None if text is None else Base(f"{baseline} at {job.base[:COMMIT_DIGITS]}", Baseline.parse(text, str(baseline)))
    )


def _record(results: Path, branch: str) -> str:
    """Add the results of the commit that is checked out to the history, push it, and return what was done."""
    commit, date = (_git("show", "-s", "--format=%H %cd", "--date=format-local:%Y%m%dT%H%M%SZ", "HEAD") or "").split()
    name = f"{RECORDS}/{date}-{commit}.json"
    own = ("-c", "user.name=tracebed", "-c", "user.email=tracebed@localhost", "-c", "commit.gpgsign=false")
    reference = f"refs/heads/{branch}"
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        for attempt in range(1, PUSHES + 1):
            if _git("fetch", "--quiet", "--depth=1", "origin", reference, check=False) is not None:
                start = "FETCH_HEAD"
            elif _git("ls-remote", "--heads", "origin", reference):  # it exists, but cannot be fetched
                raise InputError(f"git fetch origin {branch}: failed", hint="the log has the reason of Git")
            else:
                empty = _git("mktree", "--missing") or ""
                start = (_git(*own, "commit-tree", "-m", "The history of the results", empty.strip()) or "").strip()
            _git("worktree", "add", "--quiet", "--force", "--detach", str(tree), start)
            try:
                (tree / RECORDS).mkdir(exist_ok=True)
                (tree / ".nojekyll").touch()  # the pages of GitHub are served as they are
                (tree / name).write_bytes(results.read_bytes())
                table = history(sorted((tree / RECORDS).glob("*.json")))
                write_page(render(table, steps(table)), tree / "index.html")
                _git("-C", str(tree), "add", "--all")
                if not _git("-C", str(tree), "status", "--porcelain"):
                    return f"the history has the record {name} already"
                _git("-C", str(tree), *own, "commit", "--quiet", "--message", f"Results of {commit}")
                last = attempt == PUSHES
                if _git("-C", str(tree), "push", "--quiet", "origin", f"HEAD:{reference}", check=last) is not None:
                    return f"the record {name} is added to the branch {branch}"
            finally:
                _git("worktree", "remove", "--force", str(tree))
    raise AssertionError("the last push has failed with an error")


def _git(*command: str, check: bool = True) -> str | None:
    """Return the output of Git; None if it fails and not `check`. Times are those of UTC."""
    done = run_git(*command, env={**os.environ, "TZ": "UTC", "GIT_TERMINAL_PROMPT": "0"})
    if done.returncode and check:
        reason = " ".join(done.stderr.split())
        hint = (
            "a job that pushes needs the permission: `contents: write` on GitHub; on GitLab, job tokens that may push"
        )
        raise InputError(f"git {command[0]}: {reason}", hint=hint if "push" in command else None)
    return None if done.returncode else done.stdout
