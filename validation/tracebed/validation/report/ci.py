"""Validations for CI servers: JUnit XML, workflow commands of GitHub, and a code-quality report of GitLab.

In JUnit XML, a test case is a metric in a case. Workflow commands and the code-quality report annotate files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tracebed.ground.display import cell
from tracebed.ground.errors import ExitCode
from tracebed.validation.report.markdown import number, reasons_text
from tracebed.validation.verdict.gate import FAILED, Gate, OnInconclusive, gate, outcome
from tracebed.validation.verdict.rule import Verdict
from tracebed.validation.verdict.validation import CaseMetric, MetricVerdict, Validation

BASELINE = "baseline"  # last part of the class name of the findings against the baseline
INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML 1.0 cannot contain

MOST = 10  # largest number of annotations of one kind that GitHub shows for a step


def junit(judgment: Gate) -> bytes:
    """Return the validations of one or several simulators as JUnit XML.

    A simulator is a test suite, and a metric in a case is a test case. A case fails if its metric is gated and
    inaccurate, and the error in the case is larger than the margin: at least one case of an inaccurate metric fails. A
    case is skipped if its metric is inconclusive (with `OnInconclusive.FAIL`, the case fails), if its metric is
    advisory and not accurate, or if the simulator was calibrated on its workload. A failed finding is a failed test
    case. A suite whose gate fails for no metric of a case, and no finding, has a failed test case `verdict`. A
    simulator without a verdict is a test suite with one error.

    Args:
        judgment: the verdicts, and what decides whether they pass.
    """
    root = ElementTree.Element("testsuites", name="tracebed")
    for name, why in judgment.failures.items():
        suite = _element("testsuite", name=name, tests="1", failures="0", errors="1", skipped="0")
        suite.append(_properties({"outcome": FAILED}))
        case = _element("testcase", classname=name, name="prediction")
        case.append(_element("error", message=why))
        suite.append(case)
        root.append(suite)
    for validation in judgment.validations:
        root.append(_suite(judgment.of(validation), validation))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, 0)) for suite in root)))
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _suite(own: Gate, validation: Validation) -> ElementTree.Element:
    """Return the test suite of one simulator, whose gate is `own`."""
    simulator = validation.simulator
    suite = _element("testsuite", name=simulator.name)
    facts = {
        "verdict": validation.verdict.value,
        "outcome": outcome(own, validation),
        "headline": validation.headline,
        "version": simulator.version,
        "tolerances": validation.tolerances.sha256,
    }
    suite.append(_properties(facts))
    calibration = {result.case.name for result in validation.cases if result.calibration}
    inconclusive = OnInconclusive.FAIL if validation.exit_code is ExitCode.UNHEALTHY else own.inconclusive
    for metric in validation.metrics:
        for item in metric.cases:
            name = {"classname": f"{simulator.name}.{item.case}", "name": metric.metric.title}
            suite.append(_case(name, metric, item, item.case in calibration, inconclusive))
    for finding in own.findings:
        case = _element("testcase", classname=f"{simulator.name}.{BASELINE}", name=finding.title)
        case.append(_element("failure" if finding.failed else "skipped", message=finding.text))
        suite.append(case)
    if suite.find("testcase/failure") is None and gate(own) is not ExitCode.OK:
        case = _element("testcase", classname=simulator.name, name="verdict")
        case.append(_element("failure", message=f"{facts['outcome']}: {validation.headline}"))
        suite.append(case)
    parts = {"tests": "", "failures": "/failure", "errors": "/error", "skipped": "/skipped"}
    for count, part in parts.items():
        suite.set(count, str(len(suite.findall(f"testcase{part}"))))
    return suite


def _case(
    name: dict[str, str], metric: MetricVerdict, item: CaseMetric, calibration: bool, inconclusive: OnInconclusive
) -> ElementTree.Element:
    """Return the test case of one metric in one case."""
    case = _element("testcase", **name)
    figures = {
        "z": f"{item.z:.6g}",
        "margin": f"{item.margin:.6g}",
        "real": f"{item.real_mean:.6g}",
        "predicted": f"{item.predicted:.6g}",
        "repeats": str(item.repeats),
        "gate": str(metric.gate).lower(),
        "metric_verdict": metric.verdict.value,
        "metric_z": f"{metric.z:.6g}",
        "metric_mean_absolute_z": f"{metric.mean_absolute:.6g}",
    }
    case.append(_properties(figures))
    kind = _outcome(metric, item, calibration, inconclusive)
    if kind:
        message = "calibration workload: not gated" if calibration else metric.verdict.value
        if not metric.gate:
            message = f"advisory: {message}"
        unit = f" {metric.metric.unit}" if metric.metric.unit else ""
        values = f"real {cell(item.real_mean)}{unit}, predicted {cell(item.predicted)}{unit}"
        error = f"{number(item.z)} margins ({metric.margin.words(metric.metric.unit)})"
        reason = f"; {reasons_text(metric)}" if metric.reasons else ""
        case.append(_element(kind, message=f"{message}: {values}; error {error}{reason}"))
    return case


def _outcome(metric: MetricVerdict, item: CaseMetric, calibration: bool, inconclusive: OnInconclusive) -> str:
    """Return `failure`, `skipped`, or an empty text for a test that passes."""
    if metric.verdict is Verdict.ACCURATE and not calibration:
        return ""
    if not metric.gate or calibration:
        return "skipped"
    if metric.verdict is Verdict.INCONCLUSIVE:
        return "failure" if inconclusive is OnInconclusive.FAIL else "skipped"
    return "failure" if abs(item.z) > 1 else ""


def _properties(values: dict[str, str]) -> ElementTree.Element:
    properties = ElementTree.Element("properties")
    properties.extend(_element("property", name=name, value=value) for name, value in values.items())
    return properties


def _element(tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.Element(tag, {name: INVALID.sub("\ufffd", text) for name, text in attributes.items()})


@dataclass(frozen=True)
class Annotation:
    """A message at a line of a file."""

    level: str  # `error` or `warning`
    title: str
    text: str
    file: str  # Empty: no file
    line: int


def annotate(judgment: Gate, files: Sequence[Path | str] = ()) -> list[str]:
    """Return the workflow commands that annotate files on GitHub: one per failed metric, at most `MOST` of a kind.

    Args:
        judgment: the verdicts, and what decides whether they pass. `OnInconclusive.PASS` gives no annotation.
        files: the tolerances file, the suite file, ...: a metric is annotated at the line that sets its margin, else
            at the first line of the last file. A simulator is annotated at the line with its name, in any file.
    """
    every = list(annotations_of(judgment, files))
    lines = []
    for level in ("error", "warning"):
        chosen = [item for item in every if item.level == level]
        if len(chosen) > MOST:
            rest = len(chosen) - MOST + 1
            chosen = chosen[: MOST - 1]
            chosen.append(Annotation(level, "tracebed", f"{rest} more: see the summary", chosen[0].file, 1))
        lines += [_command(item) for item in chosen]
    return lines


def code_quality(judgment: Gate, files: Sequence[Path | str] = ()) -> str:
    """Return the annotations as a code-quality report of GitLab (JSON). The arguments are those of `annotate`."""
    entries = [
        {
            "description": f"{item.title}: {item.text}",
            "check_name": "tracebed",
            "fingerprint": hashlib.sha256(f"{item.file} {item.title}".encode()).hexdigest(),
            "severity": "major" if item.level == "error" else "minor",
            "location": {"path": item.file, "lines": {"begin": item.line}},
        }
        for item in annotations_of(judgment, files)
    ]
    return json.dumps(entries, indent=2) + "\n"


def annotations_of(judgment: Gate, files: Sequence[Path | str]) -> Iterator[Annotation]:
    """Yield an annotation per simulator without a verdict, per gated metric that fails or is inconclusive, per finding.

    A simulator whose gate fails without any of these has an annotation of its own.
    """
    for name, why in judgment.failures.items():
        yield Annotation("error", f"{name}: {FAILED}", why, *place_of(name, files))
    for validation in judgment.validations:
        name, own = validation.simulator.name, judgment.of(validation)
        policy = OnInconclusive.FAIL if validation.exit_code is ExitCode.UNHEALTHY else judgment.inconclusive
        levels = [(metric, _level(metric, policy)) for metric in validation.metrics]
        for metric, level in levels:
            if level:
                title = f"{name}: {metric.metric.title} is {metric.verdict}"
                yield Annotation(level, title, _text(metric), *place(metric.metric.name, files))
        shown = any(level == "error" for _, level in levels) or any(finding.failed for finding in own.findings)
        if not shown and gate(own) is not ExitCode.OK:
            title = f"{name}: {outcome(own, validation)}"
            yield Annotation("error", title, validation.headline, *place_of(name, files))
    for finding in judgment.findings:
        file, line = place(finding.metric, files)
        title = f"{finding.simulator}: {finding.title}, baseline"
        yield Annotation("error" if finding.failed else "warning", title, finding.text, file, line)


def _level(metric: MetricVerdict, inconclusive: OnInconclusive) -> str:
    """Return the level of the annotation of a metric; empty: no annotation."""
    if not metric.gate or metric.verdict is Verdict.ACCURATE:
        return ""
    if metric.verdict is Verdict.INACCURATE:
        return "error"
    return {OnInconclusive.FAIL: "error", OnInconclusive.WARN: "warning", OnInconclusive.PASS: ""}[inconclusive]


def _text(metric: MetricVerdict) -> str:
    """Return the error of a metric, its worst case and the reasons as a sentence."""
    text = f"error {number(metric.z)} margins, interval {number(metric.low)} to {number(metric.high)}"
    if len(metric.deciding) > 1:
        text = f"{metric.spread}; mean {text}"
    text += f"; margin {metric.margin.words(metric.metric.unit)}"
    return text + (f"; {reasons_text(metric)}" if metric.reasons else "")


def place(metric: str, files: Sequence[Path | str]) -> tuple[str, int]:
    """Return the file and the line that set the margin of a metric; else the last file and line 1."""
    from tracebed.validation.metrics import all_metrics

    known = all_metrics().get(metric)
    names = "|".join(re.escape(name) for name in (metric, known.short if known else "") if name)
    for path in files if names else ():
        for line, text in enumerate(_lines(path), 1):
            if re.match(rf"\s*({names})\s*:", text):
                return str(path), line
    return _first_line(files)


def place_of(simulator: str, files: Sequence[Path | str]) -> tuple[str, int]:
    """Return the file and the line that name a simulator, below `simulators`; else the last file and line 1."""
    for path in files:
        below = False
        for line, text in enumerate(_lines(path), 1):
            below = below or re.match(r"\s*simulators\s*:", text) is not None
            if below and re.match(rf"\s*(simulators\s*:.*[\s{{])?[\"']?{re.escape(simulator)}[\"']?\s*:", text):
                return str(path), line
    return _first_line(files)


def _lines(path: Path | str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def _first_line(files: Sequence[Path | str]) -> tuple[str, int]:
    return (str(files[-1]), 1) if files else ("", 1)


def _command(item: Annotation) -> str:
    """Return the workflow command of an annotation."""
    where = f"file={_property(item.file)},line={item.line}," if item.file else ""
    return f"::{item.level} {where}title={_property(item.title)}::{_data(item.text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
