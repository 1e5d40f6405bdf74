"""The files of a validation: the verdicts as JSON, Markdown and JUnit XML, and the reports.

OUTPUT/verdict.json
OUTPUT/verdict.md
OUTPUT/junit.xml
OUTPUT/SIMULATOR.html
OUTPUT/SIMULATOR/CASE.html
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracebed.ground.display import json_values
from tracebed.ground.files import replacing
from tracebed.validation.experiments.suite import Suite
from tracebed.validation.report import html
from tracebed.validation.report.ci import junit
from tracebed.validation.report.markdown import markdown
from tracebed.validation.verdict.gate import FAILED, Finding, OnInconclusive, gate, judged, outcome
from tracebed.validation.verdict.rule import Verdict, combine
from tracebed.validation.verdict.validation import SUITE_SCHEMA, Validation

VERDICT, SUMMARY, JUNIT = "verdict.json", "verdict.md", "junit.xml"


def write(
    suite: Suite,
    validations: Mapping[str, Validation],
    failed: Mapping[str, str],
    folder: Path,
    inconclusive: OnInconclusive = OnInconclusive.FAIL,
    findings: Sequence[Finding] = (),
    *,
    case_pages: bool = True,
) -> dict[str, Any]:
    """Write the files of a validation, and return the content of verdict.json. `failed`: simulator -> its failure."""
    made = list(validations.values())
    outcomes = {name: outcome(validation, inconclusive, findings) for name, validation in validations.items()}
    document = {
        "schema": SUITE_SCHEMA,
        "suite": suite.file.name,
        "verdict": combine([*(item.verdict for item in made), *(Verdict.INCONCLUSIVE for _ in failed)]).value,
        "exit_code": int(gate(made, inconclusive, findings, failed)),
        "outcomes": outcomes | dict.fromkeys(failed, FAILED),
        "simulators": [judged(validation, inconclusive, findings) for validation in made],
        "failed": dict(failed),
    }
    texts = {
        VERDICT: (json.dumps(json_values(document), indent=1) + "\n").encode(),
        SUMMARY: markdown(made, findings, inconclusive, failed).encode(),
        JUNIT: junit(made, inconclusive, findings, failed),
    }
    for name, text in texts.items():
        with replacing(folder / name) as stream:
            stream.write(text)
    for name, validation in validations.items():
        page = folder / f"{name}.html"
        html.write(validation, page, profile=suite.noise, case_pages=case_pages, outcome=outcomes[name])
    return document


def clear(folder: Path, simulators: Iterable[str]) -> None:
    """Remove the verdicts of an earlier call, which must not be taken for those of a call that fails."""
    for name in (VERDICT, SUMMARY, JUNIT, *(f"{simulator}.html" for simulator in simulators)):
        (folder / name).unlink(missing_ok=True)
