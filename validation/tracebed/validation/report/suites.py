"""Report sections of a validation over several cases: the cases with their errors, and the ranking of policies."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from tracebed.validation.report.sections import Section
from tracebed.validation.report.templates import fill
from tracebed.validation.verdict.case_metric import CaseMetric
from tracebed.validation.verdict.validation import CaseResult, Validation

CLASSES = ((1.0, "inside"), (math.inf, "outside"))
"""Largest difference in margins -> CSS class of a cell."""


def cases(folder: str) -> Section:
    """Return the section with the table of cases and gated metrics. The pages of the cases are in `folder`, if any."""

    def content(validation: Validation) -> Markup:
        gated = [item for item in validation.metrics if item.gate]
        found = {(item.metric.name, case.case): case for item in gated for case in item.cases}
        rows = [
            _row(folder, result, [found.get((item.metric.name, result.case.name)) for item in gated])
            for result in validation.cases
        ]
        return fill("cases", labels=[item.metric.label for item in gated], rows=rows)

    return Section("Cases", 120, content, scope="validation")


def _ranking(validation: Validation) -> Markup | None:
    """Return the orders of the policies, or None if no workload has several policies."""
    return None if validation.ranking is None else fill("ranking", ranking=validation.ranking)


def _row(folder: str, result: CaseResult, metrics: list[CaseMetric | None]) -> dict[str, Any]:
    wait = result.per_job
    return {
        "name": result.case.name,
        "page": quote(f"{folder}/{result.case.name}.html") if folder else "",
        "calibration": result.calibration,
        "included": sum(not one.excluded for one in result.repetitions),
        "repetitions": len(result.repetitions),
        "cells": [(math.nan, "") if one is None else (one.z, _class(one.z)) for one in metrics],
        "noise_ratio": wait.noise_ratio if wait else math.nan,
    }


def _class(z: float) -> str:
    return "" if math.isnan(z) else next(name for most, name in CLASSES if abs(z) <= most)


RANKING = Section("Ranking of policies", 380, _ranking, scope="validation")
