"""Validations as JUnit XML: a test case for each metric and case, as CI servers show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from xml.etree import ElementTree

from tracebed.ground.display import cell
from tracebed.ground.errors import ExitCode
from tracebed.validation.report.markdown import number, reasons_text
from tracebed.validation.verdict.case_metric import CaseMetric
from tracebed.validation.verdict.gate import FAILED, Finding, OnInconclusive, gate, of_simulator, outcome
from tracebed.validation.verdict.rule import Verdict
from tracebed.validation.verdict.validation import MetricVerdict, Validation

BASELINE = "baseline"
"""Last part of the class name of the findings against the baseline."""
INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain."""


def junit(
    validations: Sequence[Validation],
    inconclusive: OnInconclusive,
    findings: Iterable[Finding] = (),
    failures: Mapping[str, str] | None = None,
) -> bytes:
    """Return the validations of one or several simulators as JUnit XML.

    A simulator is a test suite, and a metric in a case is a test case. A case fails if its metric is gated and
    inaccurate, and the error in the case is larger than the margin: at least one case of an inaccurate metric fails. A
    case is skipped if its metric is inconclusive (with `OnInconclusive.FAIL`, the case fails), if its metric is
    advisory and not accurate, or if the simulator was calibrated on its workload. A failed finding is a failed test
    case. A suite whose gate fails for no metric of a case, and no finding, has a failed test case `verdict`. A
    simulator without a verdict is a test suite with one error.

    Args:
        validations: one per simulator.
        inconclusive: consequence of an inconclusive verdict.
        findings: differences from the baseline.
        failures: simulator without a verdict -> why.
    """
    found = list(findings)
    root = ElementTree.Element("testsuites", name="tracebed")
    for name, why in (failures or {}).items():
        suite = _element("testsuite", name=name, tests="1", failures="0", errors="1", skipped="0")
        suite.append(_properties({"outcome": FAILED}))
        case = _element("testcase", classname=name, name="prediction")
        case.append(_element("error", message=why))
        suite.append(case)
        root.append(suite)
    for validation in validations:
        root.append(_suite(validation, inconclusive, of_simulator(validation, found)))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, 0)) for suite in root)))
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _suite(validation: Validation, inconclusive: OnInconclusive, findings: Sequence[Finding]) -> ElementTree.Element:
    """Return the test suite of one simulator."""
    simulator = validation.simulator
    suite = _element("testsuite", name=simulator.name)
    facts = {
        "verdict": validation.verdict.value,
        "outcome": outcome(validation, inconclusive, findings),
        "headline": validation.headline,
        "version": simulator.version,
        "tolerances": validation.tolerances.sha256,
    }
    suite.append(_properties(facts))
    calibration = {result.case.name for result in validation.cases if result.calibration}
    if validation.exit_code is ExitCode.UNHEALTHY:
        inconclusive = OnInconclusive.FAIL
    for metric in validation.metrics:
        for item in metric.cases:
            name = {"classname": f"{simulator.name}.{item.case}", "name": metric.metric.title}
            suite.append(_case(name, metric, item, item.case in calibration, inconclusive))
    for finding in findings:
        case = _element("testcase", classname=f"{simulator.name}.{BASELINE}", name=finding.title)
        case.append(_element("failure" if finding.failed else "skipped", message=finding.text))
        suite.append(case)
    if suite.find("testcase/failure") is None and gate([validation], inconclusive, findings) is not ExitCode.OK:
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
