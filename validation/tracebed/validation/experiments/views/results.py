"""The files of a validation: the verdicts as JSON, Markdown, JUnit XML and a baseline, and the reports.

OUTPUT/verdict.json
OUTPUT/verdict.md
OUTPUT/junit.xml
OUTPUT/baseline.json
OUTPUT/SIMULATOR.html
OUTPUT/SIMULATOR/CASE.html
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tracebed.ground.display import json_values
from tracebed.ground.files import replacing
from tracebed.validation.experiments.suite import Suite
from tracebed.validation.report import html
from tracebed.validation.report.ci import junit
from tracebed.validation.report.markdown import markdown
from tracebed.validation.verdict.baseline import Baseline
from tracebed.validation.verdict.gate import FAILED, Gate, gate, judged, outcome
from tracebed.validation.verdict.rule import Verdict, combine
from tracebed.validation.verdict.validation import SUITE_SCHEMA

VERDICT, SUMMARY, JUNIT, BASELINE = "verdict.json", "verdict.md", "junit.xml", "baseline.json"


def write(suite: Suite, judgment: Gate, folder: Path, *, case_pages: bool = True) -> dict[str, Any]:
    """Write the files of a validation, and return the content of verdict.json.

    Args:
        suite: the suite.
        judgment: the verdicts on its simulators, and what decides whether they pass.
        folder: the output folder.
        case_pages: whether to write a report for each case.
    """
    failed, found = judgment.failures, {each.simulator.name: each for each in judgment.validations}
    outcomes = {name: outcome(judgment, validation) for name, validation in found.items()}
    verdicts = [*(each.verdict for each in judgment.validations), *(Verdict.INCONCLUSIVE for _ in failed)]
    document: dict[str, Any] = {
        "schema": SUITE_SCHEMA,
        "suite": suite.file.name,
        "verdict": combine(verdicts).value,
        "exit_code": int(gate(judgment)),
        "outcomes": outcomes | dict.fromkeys(failed, FAILED),
        "simulators": [judged(judgment, validation) for validation in judgment.validations],
        "failed": dict(failed),
    }
    texts = {
        VERDICT: (json.dumps(json_values(document), indent=1) + "\n").encode(),
        SUMMARY: markdown(judgment).encode(),
        JUNIT: junit(judgment),
        BASELINE: Baseline.of(document["simulators"]).json_text.encode(),
    }
    for name, text in texts.items():
        with replacing(folder / name) as stream:
            stream.write(text)
    for name, validation in found.items():
        page = folder / f"{name}.html"
        html.write(validation, page, profile=suite.noise, case_pages=case_pages, outcome=outcomes[name])
    return document


def clear(folder: Path, simulators: Iterable[str]) -> None:
    """Remove the verdicts of an earlier call, which must not be taken for those of a call that fails."""
    for name in (VERDICT, SUMMARY, JUNIT, BASELINE, *(f"{simulator}.html" for simulator in simulators)):
        (folder / name).unlink(missing_ok=True)
