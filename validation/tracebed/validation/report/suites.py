"""Report sections of a validation over several cases: the cases with their errors."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from tracebed.validation.report.sections import Section
from tracebed.validation.report.templates import fill
from tracebed.validation.verdict.validation import CaseMetric, CaseResult, Validation

CLASSES = ((1.0, "inside"), (math.inf, "outside"))
"""Largest difference in margins -> CSS class of a cell."""


def case_page(validation: Validation, name: str) -> str:
    """Return the path of the page of a case, relative to the page of the suite: `tracebed/cirne-easy.html`."""
    return f"{validation.simulator.name}/{name}.html"


def _cases(validation: Validation) -> Markup | None:
    """Return the table of cases and gated metrics with links to the pages of the cases, or None for a single case."""
    if len(validation.cases) == 1:
        return None
    gated = [item for item in validation.metrics if item.gate]
    found = {(item.metric.name, case.case): case for item in gated for case in item.cases}
    rows = [
        _row(validation, result, [found.get((item.metric.name, result.case.name)) for item in gated])
        for result in validation.cases
    ]
    return fill("cases", labels=[item.metric.label for item in gated], rows=rows)


def _row(validation: Validation, result: CaseResult, metrics: list[CaseMetric | None]) -> dict[str, Any]:
    wait = result.per_job
    return {
        "name": result.case.name,
        "page": quote(case_page(validation, result.case.name)),
        "calibration": result.calibration,
        "included": sum(not one.excluded for one in result.repetitions),
        "repetitions": len(result.repetitions),
        "cells": [(math.nan, "") if one is None else (one.z, _class(one.z)) for one in metrics],
        "noise_ratio": wait.noise_ratio if wait else math.nan,
    }


def _class(z: float) -> str:
    return "" if math.isnan(z) else next(name for most, name in CLASSES if abs(z) <= most)


CASES = Section("Cases", 120, _cases, scope="validation")
