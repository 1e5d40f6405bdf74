"""Reports for CI jobs: the summary in Markdown, JUnit XML, annotations, and the policy for exit statuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.oracles.validations import make_validation, predicted_run, write_suite
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.outputs import CODE_QUALITY
from tracebed.validation.recorded import unpack
from tracebed.validation.report.ci import MOST, annotate, code_quality, junit
from tracebed.validation.report.markdown import LIMIT, markdown, table
from tracebed.validation.simulators.messages import reason_in
from tracebed.validation.verdict import Reason, Validation, Verdict
from tracebed.validation.verdict.baseline import Baseline
from tracebed.validation.verdict.gate import Finding, Gate, OnInconclusive, gate, judged, outcome
from tracebed.validation.verdict.tolerances import SHIPPED

FAIL, WARN, PASS = OnInconclusive
WORSE = Finding("mine", "mean_wait_s", "wait, mean (s)", "wait, mean (s): the error grew", True)
NEW = Finding("mine", "", "w9-fcfs", "the case is not in the baseline", False)


@pytest.fixture(scope="module")
def accurate() -> Validation:
    return make_validation()


@pytest.fixture(scope="module")
def inaccurate() -> Validation:
    return make_validation({"w1-fcfs": 1.0, "w2-fcfs": 1.3})


@pytest.fixture(scope="module")
def inconclusive() -> Validation:
    return make_validation(repetitions=2)


def unhealthy(validation: Validation) -> Validation:
    return replace(validation, verdict=Verdict.INCONCLUSIVE, reasons=(Reason.UNHEALTHY,))


def test_one_policy_gives_the_exit_code(accurate: Validation, inaccurate: Validation, inconclusive: Validation) -> None:
    def codes(validations: Sequence[Validation], findings: Sequence[Finding] = ()) -> list[int]:
        return [gate(Gate(validations, policy, findings)) for policy in (FAIL, WARN, PASS)]

    assert codes([accurate]) == [0, 0, 0]
    assert codes([inaccurate]) == [1, 1, 1]
    assert codes([inconclusive]) == [3, 0, 0]
    assert codes([unhealthy(inconclusive)]) == [4, 4, 4]
    assert codes([accurate, inconclusive]) == [3, 0, 0]
    assert codes([unhealthy(inconclusive), inconclusive, inaccurate]) == [1, 1, 1]
    assert codes([inconclusive, unhealthy(inconclusive)]) == [4, 4, 4]
    assert codes([accurate], [WORSE]) == [1, 1, 1]
    assert codes([accurate], [NEW]) == [0, 0, 0]
    assert gate(Gate([inaccurate], PASS)) is ExitCode.INACCURATE


def test_the_summary_has_the_table_first_and_details_folded(inaccurate: Validation) -> None:
    text = markdown(Gate([inaccurate], findings=[WORSE, NEW]))
    lines = text.splitlines()
    assert lines[0] == "## mine 1.2: inaccurate"
    assert inaccurate.headline in text
    assert "- **worse than the baseline**: wait, mean (s): the error grew" in lines
    assert "- the case is not in the baseline" in lines
    head, _, details = text.partition("<details>")
    for metric in inaccurate.metrics:
        assert metric.metric.title in head
        assert f"<summary>mine: {metric.metric.title}, 2 cases</summary>" in details
    wrong = [item.metric.title for item in inaccurate.metrics if item.gate and item.verdict is Verdict.INACCURATE]
    bold = re.findall(r"^\| (.+?) +\| \*\*inaccurate\*\*", head, re.MULTILINE)
    assert bold == wrong != []
    assert text.count("<details>") == text.count("</details>")
    assert "w2-fcfs" in details
    assert not re.search(r"^\| w2-fcfs", head, re.MULTILINE)


def test_the_tables_of_a_summary_are_aligned_in_plain_text(inaccurate: Validation) -> None:
    rows = [line for line in markdown(Gate([inaccurate])).splitlines() if line.startswith("|")]
    tables = [list(map(len, rows[: 2 + len(inaccurate.metrics)]))]
    assert all(len(set(widths)) == 1 for widths in tables)
    assert table(("a", "b"), [("1", "x|y"), ("two", "")]) == [
        "| a   | b    |",
        "|-----|------|",
        "| 1   | x\\|y |",
        "| two |      |",
    ]


def test_a_summary_shows_why_a_verdict_is_inconclusive(inconclusive: Validation) -> None:
    text = markdown(Gate([inconclusive]))
    assert text.startswith("## mine 1.2: inconclusive")
    assert all(item.reasons for item in inconclusive.metrics if item.gate)
    assert text.count("**inconclusive**") == len(inconclusive.gated)


def test_the_summary_of_a_large_suite_stays_below_the_limit(accurate: Validation) -> None:
    def enlarged(validation: Validation) -> Validation:
        metrics = tuple(
            replace(item, cases=tuple(replace(item.cases[0], case=f"workload-{n}-easy") for n in range(4000)))
            for item in validation.metrics
        )
        return replace(validation, metrics=metrics, warnings=["x" * 100] * 50)

    text = markdown(Gate([enlarged(accurate)]))
    assert LIMIT - 600_000 < len(text.encode()) <= LIMIT
    assert re.search(r"Too long for this summary: \d+ tables", text)
    assert text.count("<details>") == text.count("</details>")
    assert all(item.metric.title in text for item in accurate.metrics)


def cases_of(document: bytes) -> dict[tuple[str, str], ElementTree.Element]:
    root = ElementTree.fromstring(document)
    return {(case.get("classname", ""), case.get("name", "")): case for case in root.iter("testcase")}


def result_of(case: ElementTree.Element) -> str:
    found = [child.tag for child in case if child.tag in ("failure", "skipped")]
    return found[0] if found else "passed"


def test_junit_has_a_test_case_per_metric_and_case(inaccurate: Validation) -> None:
    found = cases_of(junit(Gate([inaccurate])))
    assert set(found) == {
        (f"mine.{case.case}", item.metric.title) for item in inaccurate.metrics for case in item.cases
    }
    for item in inaccurate.metrics:
        for case in item.cases:
            element = found[f"mine.{case.case}", item.metric.title]
            properties = {each.get("name"): each.get("value") for each in element.iter("property")}
            assert float(properties["z"] or "") == pytest.approx(case.z, rel=1e-4)
            assert float(properties["margin"] or "") == pytest.approx(case.margin, rel=1e-4)
            failed = item.gate and item.verdict is Verdict.INACCURATE and abs(case.z) > 1
            assert (result_of(element) == "failure") is failed
    for item in inaccurate.metrics:
        if item.gate and item.verdict is Verdict.INACCURATE:
            outcomes = [result_of(found[f"mine.{case.case}", item.metric.title]) for case in item.cases]
            assert "failure" in outcomes, item.name


def test_the_counts_of_junit_are_those_of_its_test_cases(inaccurate: Validation, inconclusive: Validation) -> None:
    root = ElementTree.fromstring(junit(Gate([inaccurate, replace(inconclusive)], FAIL, [WORSE, NEW])))
    for element in (root, *root.iter("testsuite")):
        assert int(element.get("tests", "")) == len(list(element.iter("testcase")))
        assert int(element.get("failures", "")) == len(list(element.iter("failure")))
        assert int(element.get("skipped", "")) == len(list(element.iter("skipped")))


@pytest.mark.parametrize(("policy", "expected"), [(FAIL, "failure"), (WARN, "skipped"), (PASS, "skipped")])
def test_an_inconclusive_metric_is_skipped_or_fails(
    policy: OnInconclusive, expected: str, inconclusive: Validation
) -> None:
    found = cases_of(junit(Gate([inconclusive], policy)))
    for item in inconclusive.gated:
        for case in item.cases:
            element = found[f"mine.{case.case}", item.metric.title]
            assert result_of(element) == expected
            message = element.find(expected)
            assert message is not None
            assert "inconclusive: real " in (message.get("message") or "")


@pytest.mark.slow
def test_advisory_metrics_and_calibration_cases_never_fail() -> None:
    wrong = make_validation({"w1-fcfs": 1.0, "w2-fcfs": 1.5}, calibration=["w2-fcfs"])
    found = cases_of(junit(Gate([wrong])))
    assert {result_of(case) for (name, _), case in found.items() if name == "mine.w2-fcfs"} == {"skipped"}
    off = make_validation({"w1-fcfs": 1.5, "w2-fcfs": 1.5})
    advisory = [item for item in off.metrics if not item.gate and item.verdict is not Verdict.ACCURATE]
    found = cases_of(junit(Gate([off])))
    assert {result_of(found[f"mine.{case.case}", item.metric.title]) for item in advisory for case in item.cases} == {
        "skipped"
    }


def test_findings_against_the_baseline_are_test_cases(accurate: Validation) -> None:
    found = cases_of(junit(Gate([accurate], FAIL, [WORSE, NEW, replace(WORSE, simulator="other")])))
    assert result_of(found["mine.baseline", "wait, mean (s)"]) == "failure"
    assert result_of(found["mine.baseline", "w9-fcfs"]) == "skipped"
    assert len([name for name, _ in found if name.endswith("baseline")]) == 2


def test_junit_replaces_characters_that_xml_cannot_contain(accurate: Validation) -> None:
    odd = replace(accurate, headline='a\x00b\x1b<&>"é', simulator=replace(accurate.simulator, name="x\x08y"))
    root = ElementTree.fromstring(junit(Gate([odd])))
    suite = root.find("testsuite")
    assert suite is not None
    assert suite.get("name") == "x\ufffdy"
    assert {each.get("name"): each.get("value") for each in suite.iter("property")}["headline"] == 'a\ufffdb\ufffd<&>"é'


def write_tolerances(path: Path) -> Path:
    path.write_text(SHIPPED.read_text(encoding="utf-8"))
    return path


def test_annotations_point_at_the_margin_of_each_failed_metric(inaccurate: Validation, tmp_path: Path) -> None:
    file = write_tolerances(tmp_path / "tolerances.yaml")
    lines = annotate(Gate([inaccurate]), [file])
    wrong = [item for item in inaccurate.gated if item.verdict is Verdict.INACCURATE]
    assert len(lines) == len(wrong) > 0
    rows = file.read_text().splitlines()
    for item, line in zip(wrong, lines, strict=True):
        match = re.fullmatch(r"::error file=(.+),line=(\d+),title=mine%3A (.+) is inaccurate::(.+)", line)
        assert match, line
        assert rows[int(match[2]) - 1].strip().startswith(f"{item.name}:")
        worst = item.worst
        assert worst is not None
        assert f"worst case {worst.z:+.2g} ({worst.case})" in match[4]
        assert "\n" not in line


def test_annotations_without_a_line_for_the_metric_name_the_last_file(inaccurate: Validation, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("workloads: {}\n")
    assert all(f"file={suite},line=1," in line for line in annotate(Gate([inaccurate]), [suite]))
    assert all(line.startswith("::error title=mine") for line in annotate(Gate([inaccurate])))


def test_a_short_name_of_a_metric_is_found_in_a_suite_file(inaccurate: Validation, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("margins:\n  response: 5%\n")
    found = [line for line in annotate(Gate([inaccurate]), [file]) if "response%2C mean" in line]
    assert len(found) == 1
    assert ",line=2," in found[0]


@pytest.mark.parametrize(("policy", "level"), [(FAIL, "error"), (WARN, "warning"), (PASS, "")])
def test_the_policy_decides_on_annotations_of_inconclusive_metrics(
    policy: OnInconclusive, level: str, inconclusive: Validation
) -> None:
    lines = annotate(Gate([inconclusive], policy))
    assert len(lines) == (len(inconclusive.gated) if level else 0)
    assert all(line.startswith(f"::{level} ") for line in lines)


def test_annotations_are_escaped_and_at_most_ten_of_a_kind(accurate: Validation) -> None:
    many = [replace(WORSE, text=f"50 % worse\nin case {n}") for n in range(25)] + [NEW]
    lines = annotate(Gate([accurate], FAIL, many))
    errors = [line for line in lines if line.startswith("::error")]
    assert len(errors) == MOST
    assert errors[0].endswith("::50 %25 worse%0Ain case 0")
    assert errors[-1].endswith("::16 more: see the summary")
    assert [line for line in lines if line.startswith("::warning")] == [
        "::warning title=mine%3A w9-fcfs%2C baseline::the case is not in the baseline"
    ]


def test_a_code_quality_report_without_entries_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "code-quality.json"
    for text in (b"[]\n", b"[]\n"):
        with CODE_QUALITY.file(path) as stream:
            stream.write(text)
    path.write_bytes(b"[]\n[]\n")
    with pytest.raises(InputError, match="not a code-quality report"):
        CODE_QUALITY.check(path)


def test_a_code_quality_report_has_the_keys_of_gitlab(inaccurate: Validation, tmp_path: Path) -> None:
    file = write_tolerances(tmp_path / "tolerances.yaml")
    entries = json.loads(code_quality(Gate([inaccurate], FAIL, [WORSE, NEW]), [file]))
    lines = annotate(Gate([inaccurate], FAIL, [WORSE, NEW]), [file])
    assert len(entries) == len(lines)
    assert len({entry["fingerprint"] for entry in entries}) == len(entries)
    assert {entry["severity"] for entry in entries} == {"major", "minor"}
    for entry in entries:
        assert set(entry) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert entry["location"]["path"] == str(file)
        assert entry["location"]["lines"]["begin"] >= 1


NODE = """reading workload
/w/mine.js:3
function f(){ throw new Error("no nodes"); } f();
              ^

Error: no nodes
    at f (/w/mine.js:3:21)
    at Object.<anonymous> (/w/mine.js:3:40)

Node.js v20.20.2
(node:7) [DEP0005] DeprecationWarning: Buffer() is deprecated
"""
PYTHON = """Traceback (most recent call last):
  File "mine.py", line 3, in <module>
    int("a")
ValueError: handled before
going on: 0 failed
Traceback (most recent call last):
  File "mine.py", line 8, in <module>
    raise KeyError("nodes")
KeyError: 'nodes'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "mine.py", line 11, in <module>
    raise RuntimeError("cannot read\\nall of it") from e
RuntimeError: cannot read
all of it
"""
RUST = """start
thread 'main' panicked at src/main.rs:1:128:
reading failed: "no jobs"
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
"""
JAVA = """start
Exception in thread "main" java.lang.IllegalStateException: bad column
\tat A.main(A.java:1)
Caused by: java.lang.NumberFormatException: For input string: "x"
\t... 1 more
"""
CPP = "terminate called after throwing an instance of 'E'\n  what():  bad workload\nAborted (core dumped)\n"
CHILD = (
    NODE + "Traceback (most recent call last):\n  File \"b.py\", line 2\nsubprocess.CalledProcessError: Command 'x'\n"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (NODE, "Error: no nodes"),
        (PYTHON, "RuntimeError: cannot read"),
        (CHILD, "Error: no nodes"),
        (RUST, "thread 'main' panicked at src/main.rs:1:128: reading failed: \"no jobs\""),
        (JAVA, 'Exception in thread "main" java.lang.IllegalStateException: bad column'),
        (CPP, "what():  bad workload"),
        (
            "/w/a.js:1\nthrow 'text';\n^\ntext\n(Use `node --trace-uncaught ...` to show where)\n\nNode.js v20.20.2\n",
            "text",
        ),
        ('  File "mine.py", line 1\n    x = (1\n        ^\nSyntaxError: never closed\n', "SyntaxError: never closed"),
        ("usage: mine.py [-h] file\nmine.py: error: file is required\n", "mine.py: error: file is required"),
        ("start\nmine.sh: 3: foo: not found\n", "mine.sh: 3: foo: not found"),
        ("mean error: 0.02\nsimulated 30 jobs, 0 failed\nno policy named foo\n", "no policy named foo"),
        ("sh: 1: mine: not found\n", "sh: 1: mine: not found"),
        ("Segmentation fault (core dumped)\n", "Segmentation fault (core dumped)"),
        ("panic: index out of range\n\ngoroutine 1 [running]:\nexit status 2\n", "panic: index out of range"),
        ("Error: cannot read\n\nCaused by:\n    No such file\n", "Error: cannot read"),
        ("[0.0] [ker_engine/CRITICAL] Oops! Deadlock\n", "[0.0] [ker_engine/CRITICAL] Oops! Deadlock"),
        ("2026-11-28 09:00 WARNING slow\n2026-11-28 09:00 ERROR no nodes\nbye\n", "2026-11-28 09:00 ERROR no nodes"),
        ("\x1b[31mError: red\x1b[0m\n", "Error: red"),
        ("", ""),
    ],
)
def test_the_reason_of_a_crash_is_the_line_that_states_it(text: str, reason: str) -> None:
    assert reason_in(text) == reason


def test_a_simulator_without_a_verdict_is_as_loud_as_an_inaccurate_one(
    call: Callable[..., Any], tmp_path: Path
) -> None:
    """The program ends with a status; the predictions are missing, or those of another workload."""
    unpack("emulated", tmp_path / "s")
    (tmp_path / "s/node.txt").write_text(NODE)
    suite = tmp_path / "s/mine.yaml"
    suite.write_text(
        "workloads: {cirne: workloads/cirne.csv}\npolicies: [easy]\nrecorded: 'real/{case}/rep-*'\nsimulators:\n"
        "  tracebed: {}\n"
        "  crash: {command: 'cat node.txt; : {output}; exit 1'}\n"
        "  gone: {runs: 'gone/{case}'}\n"
        "  other: {runs: 'real/lublin99-easy/rep-01'}\n"
    )
    status, _, said = call("-q", "validate", "s/mine.yaml", "-o", "out", "--no-case-pages", "--annotate")
    assert status == 2
    reasons = {
        "crash": "ended with status 1: Error: no nodes",
        "gone": "no path matches",
        "other": "its predictions cannot be compared: ",
    }
    for line, (name, why) in enumerate(reasons.items(), 6):
        assert re.search(rf"^tracebed: {name} failed: .*{why}", said, re.MULTILINE)
        assert re.search(rf"^::error file=s/mine.yaml,line={line},title={name}%3A failed::.*{why}", said, re.MULTILINE)
    root = ElementTree.parse(tmp_path / "out/junit.xml").getroot()
    assert (root.get("errors"), int(root.get("tests", 0)) > 3) == ("3", True)
    errors = {suite.get("name"): suite.find("testcase/error") for suite in root}
    found = {name: str(error.get("message")) for name, error in errors.items() if error is not None}
    assert found.keys() == reasons.keys() and all(why in found[name] for name, why in reasons.items())
    text = (tmp_path / "out/verdict.md").read_text()
    assert re.findall(r"^## (\S+): failed$", text, re.MULTILINE) == ["crash", "gone", "other"]
    assert "Error: no nodes" in text
    document = json.loads((tmp_path / "out/verdict.json").read_text())
    assert document["exit_code"] == 2
    assert {name for name, outcome in document["outcomes"].items() if outcome == "failed"} == reasons.keys()
    suite.write_text(suite.read_text().replace("real/{case}/rep-*", "nowhere/{case}"))
    assert call("validate", "s/mine.yaml", "-o", "out", "--no-case-pages")[0] == 2
    quality = json.loads(code_quality(Gate([], failures={"crash": "ended"}), [suite]))
    assert quality[0]["location"]["lines"]["begin"] == 6


def test_every_output_agrees_with_the_exit_status(accurate: Validation, inconclusive: Validation) -> None:
    ill = unhealthy(inconclusive)
    bare = replace(inconclusive, metrics=tuple(replace(item, gate=False) for item in inconclusive.metrics))
    for validation, policy, findings, words in (
        (accurate, FAIL, [WORSE], "worse than the baseline"),
        (accurate, FAIL, [NEW], "accurate"),
        (accurate, FAIL, [replace(WORSE, simulator="other")], "accurate"),
        (inconclusive, FAIL, [], "inconclusive"),
        (inconclusive, WARN, [], "inconclusive, which passes"),
        (inconclusive, PASS, [WORSE], "worse than the baseline"),
        (ill, PASS, [], "inconclusive, unhealthy real runs"),
        (ill, WARN, [], "inconclusive, unhealthy real runs"),
        (bare, FAIL, [], "inconclusive"),
    ):
        judgment = Gate([validation], policy, findings)
        own = judgment.of(validation)
        fails = gate(own) is not ExitCode.OK
        assert outcome(judgment, validation) == words
        assert markdown(judgment).startswith(f"## mine 1.2: {words}\n")
        (suite,) = ElementTree.fromstring(junit(judgment))
        assert (int(suite.get("failures", 0)) > 0) is fails
        assert suite.find(f"properties/property[@name='outcome'][@value='{words}']") is not None
        assert any(line.startswith("::error") for line in annotate(own)) is fails
        document = judged(judgment, validation)
        assert (document["exit_code"] != 0, document["outcome"]) == (fails, words)


def worsen(folder: Path, stretch: float) -> None:
    for seed in (1, 2):
        predicted_run(seed, stretch).save(folder / f"mine/w{seed}-fcfs", replace=True)


@pytest.mark.slow
def test_a_baseline_that_fails_is_in_the_title_and_on_standard_error(call: Callable[..., Any], tmp_path: Path) -> None:
    run = ("validate", "suite.yaml", "-o", "out", "--no-case-pages", "--baseline", "b.yaml")
    write_suite(tmp_path)
    assert call(*run, "--update-baseline", "better")[0] == 0
    worsen(tmp_path, 1.012)
    status, _, said = call("-q", *run)
    assert status == 1
    assert said.startswith("tracebed: worse than the baseline: mine: ")
    assert (tmp_path / "out/verdict.md").read_text().splitlines()[0].endswith(": worse than the baseline")
    assert "<title>worse than the baseline: 2 cases</title>" in (tmp_path / "out/mine.html").read_text()
    document = json.loads((tmp_path / "out/verdict.json").read_text())
    assert (document["exit_code"], document["outcomes"]) == (1, {"mine": "worse than the baseline"})
    assert document["simulators"][0]["exit_code"] == 1
    compared = ("compare", "--real", "real/w1-fcfs", "--predicted", "mine/w1-fcfs", "--baseline", "c.json", "--json")
    assert call(*compared, "--update-baseline", "better")[0] == 0
    worsen(tmp_path, 1.02)
    status, out, _ = call(*compared, "--report", "r.html", "--report", "r.md")
    assert (status, json.loads(out)["exit_code"]) == (1, 1)
    assert "<title>worse than the baseline" in (tmp_path / "r.html").read_text()
    assert "worse than the baseline" in (tmp_path / "r.md").read_text().splitlines()[0]


# The CI jobs of the documentation: their files are valid, and their commands gate a simulator on recorded runs.


ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "docs" / "ci"


def github(inconclusive: str = "fail") -> tuple[list[str], dict[str, str]]:
    """Return the shell commands of the step that validates, and their variables, as in the workflow."""
    (_, validate, _), inputs = github_action()
    return [validate["run"]], variables_of(validate, {**inputs, "inconclusive": inconclusive})


def github_action() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the steps of the action, and its inputs as in the workflow."""
    steps = yaml.safe_load((JOBS / "github.yaml").read_text())["jobs"]["validate"]["steps"]
    (given,) = (step["with"] for step in steps if step.get("uses") == "./tracebed")
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    install, *others = action["runs"]["steps"]
    assert "pip" in install["run"] and not any("pip" in step["run"] for step in others)
    defaults = {name: each.get("default") for name, each in action["inputs"].items()}
    assert set(given) <= set(defaults)
    return [install, *others], {**defaults, **given}


def variables_of(step: dict[str, Any], inputs: dict[str, str]) -> dict[str, str]:
    """Return the variables of a step of the action."""
    return {name: inputs[text.removeprefix("${{ inputs.").removesuffix(" }}")] for name, text in step["env"].items()}


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


@pytest.mark.slow
def test_the_github_job_passes_with_an_exact_simulator(repository: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(repository, tmp_path / "r"))
    done = run(*github(), folder)
    assert done.returncode == 0, done.stderr
    assert "::error" not in done.stderr + done.stdout
    summary = (folder / "step-summary.md").read_text()
    assert summary == (folder / "out" / "verdict.md").read_text()
    assert summary.startswith("## mine")
    assert schema(json.loads((folder / "out" / "verdict.json").read_text())) == "tracebed-verdicts/2"


@pytest.mark.slow
def test_the_github_job_fails_and_annotates_if_the_simulator_gets_worse(repository: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(repository, tmp_path / "r"))
    worse(folder, 1.02)  # still accurate: only the ratchet notices
    done = run(*github(), folder)
    assert done.returncode == 1, done.stderr
    annotations = [line for line in done.stderr.splitlines() if line.startswith("::error file=suite.yaml,line=1,")]
    assert any("response%2C mean (s)%2C baseline::" in line for line in annotations)
    assert "**worse than the baseline**" in (folder / "step-summary.md").read_text()


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_variable_of_a_job_decides_on_an_inconclusive_verdict(tmp_path: Path) -> None:
    write_suite(tmp_path, repetitions=2)
    Baseline.of([make_validation(repetitions=2).to_json()]).save(tmp_path / "baseline.yaml")
    commands, variables = gitlab()
    assert run(commands, variables, tmp_path).returncode == 3
    shutil.rmtree(tmp_path / "out")
    done = run(commands, {**variables, "INCONCLUSIVE": "warn"}, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "inconclusive" in done.stderr


@pytest.mark.slow
def test_other_tolerances_than_those_of_the_baseline_are_wrong_usage(repository: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(repository, tmp_path / "r"))
    (folder / "t.yaml").write_text("margins: {wait: 50%}\n")
    (folder / "suite.yaml").write_text((folder / "suite.yaml").read_text() + "tolerances: t.yaml\n")
    done = run(*gitlab(), folder)
    assert done.returncode == 2
    assert "the tolerances differ from those of the baseline: wait, mean (s)" in done.stderr
