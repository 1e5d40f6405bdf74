"""The gate of CI jobs: baselines, findings, and the verdicts for the pages and reports of CI servers."""

from tracebed.validation.report.ci import annotate, code_quality, junit
from tracebed.validation.report.markdown import markdown
from tracebed.validation.verdict.baseline import Baseline, SimulatorBaseline, title
from tracebed.validation.verdict.gate import Finding, OnInconclusive, gate, judged, outcome
from tracebed.validation.verdict.rule import Verdict

__all__ = [
    "Baseline",
    "Finding",
    "OnInconclusive",
    "SimulatorBaseline",
    "Verdict",
    "annotate",
    "code_quality",
    "gate",
    "judged",
    "junit",
    "markdown",
    "outcome",
    "title",
]
