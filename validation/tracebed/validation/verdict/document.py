"""The JSON of a verdict as a baseline reads it: a file that may have been changed since it was written."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tracebed.errors import InputError
from tracebed.validation.verdict.rule import Verdict
from tracebed.yaml_file import invalid

Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    """A part of the document; keys that a baseline does not need are ignored."""

    model_config = ConfigDict(extra="ignore")


class _Simulator(_Part):
    name: str
    version: str
    runs: Count


class _Tolerances(_Part):
    sha256: str
    kappa: Number = Field(gt=0)
    ratchet: Number = Field(ge=0)
    repeats_few: Count
    repeats_many: Count
    unmatched: Number = Field(ge=0, le=1)


class _Repetition(_Part):
    sha256: str
    excluded: str | None


class _Matching(_Part):
    unmatched_share: Number = Field(ge=0, le=1)


class _Case(_Part):
    name: str
    calibration: bool
    workload_sha256: str
    repetitions: list[_Repetition]
    predictions: list[dict[str, Any]]
    matching: _Matching


class _MetricCase(_Part):
    case: str
    repeats: Count
    predicted: Number | None
    real_mean: Number | None
    margin: Number | None
    z: Number | None


class _Metric(_Part):
    name: str
    unit: str
    verdict: Verdict
    gate: bool
    evidence: bool
    profile_based: bool
    delta: Number = Field(ge=0)
    delta_abs: Number = Field(ge=0)
    z: Number | None
    low: Number | None
    high: Number | None
    cases: list[_MetricCase]


class _Document(_Part):
    verdict: Verdict
    simulator: _Simulator
    tolerances: _Tolerances
    metrics: list[_Metric]
    cases: list[_Case]


def check_document(document: Any, *, where: str, hint: str) -> None:
    """Check the part of the JSON of a verdict from which a baseline is made.

    Raises:
        InputError: a key is missing, or a value is invalid.
    """
    try:
        found = _Document.model_validate(document, strict=False)
    except ValidationError as error:
        raise InputError(invalid(error, document).what, where=where, hint=hint) from None
    for kind, names in (
        ("case", [case.name for case in found.cases]),
        ("metric", [item.name for item in found.metrics]),
    ):
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"the {kind} {twice[:40]!r} occurs twice", where=where, hint=hint)
