"""Acceptance limits: the predicted values with which a metric is accurate, given the recorded real runs.

The real runs of a CI job are recorded, so the noise and the margins of each metric are constants, and the decision
depends on the predicted values only. Let z_w be the error of a metric in case w of W cases in margins, and h the
half-width of the interval of the mean error with its reserve. The prediction of a deterministic simulator is accurate
exactly if

    |mean of z_w| < 1 - h    and    |z_w| <= kappa in each case,

by the rule of `tracebed.validation.verdict.decision`. A baseline stores 1 - h, kappa, and the real mean and the margin
of each case, so that a prediction can be judged without the real runs. The acceptance limits of a case are the range of
its predicted value for which the metric is accurate while the other cases keep their values of the baseline; with one
case, they are the whole rule. For a stochastic simulator, h includes the spread of its runs in the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from tracebed.converters.workload import FloatArray
from tracebed.ground.stored import Part
from tracebed.validation.metrics import Margin, all_metrics
from tracebed.validation.verdict.tolerances import MANY

DIGITS = 10
"""Significant digits of the stored figures: differences of rounding between machines do not change the file."""

Number = Annotated[float, Field(allow_inf_nan=False)]


class CaseBaseline(Part):
    """One metric of one simulator in one case. A value is null if it is undefined."""

    predicted: Number | None
    """Mean over the predictions, unit of the metric."""
    real: Number | None
    """Mean over the real repetitions, unit of the metric."""
    margin: Number | None
    """Margin, unit of the metric."""
    z: Number | None
    """(predicted - real) / margin."""
    limits: Annotated[list[Number], Field(min_length=2, max_length=2)] | None
    """Lowest and highest predicted value with which the metric is accurate, the values of the other cases unchanged.
    Null: no value."""


class MetricBaseline(Part):
    """One metric of one simulator."""

    gate: bool
    margin: str
    """The margin as in a tolerances file."""
    verdict: str
    z: Number | None
    """Mean error over the cases, in margins."""
    reach: Number | None
    """Largest mean error with which the metric is accurate, in margins. Null: no error is accurate."""
    cases: dict[str, CaseBaseline]

    def accepts(self, predicted: Mapping[str, float], kappa: float) -> bool:
        """Return whether the metric is accurate with these predicted values, one for each case."""
        if self.reach is None:
            return False
        z = np.array([_error(predicted.get(name, math.nan), case) for name, case in self.cases.items()])
        return bool(np.abs(z.mean()) < self.reach and (np.abs(z) <= kappa).all())


class CaseInputs(Part):
    """Hashes of the inputs of one case."""

    workload: str
    """SHA-256 of the workload."""
    real: list[str]
    """SHA-256 of the jobs of each real repetition that is part of the verdict."""
    predictions: int
    """Number of predictions: more than one for a stochastic simulator."""


class SimulatorBaseline(Part):
    """The results of one simulator."""

    version: str
    runs: int
    """Number of predictions over all cases."""
    verdict: str
    tolerances: str
    """SHA-256 of the tolerances."""
    kappa: Number
    """Largest accepted error of one case, in margins."""
    ratchet: Number
    """Largest accepted growth of an error, in margins."""
    inputs: dict[str, CaseInputs]
    metrics: dict[str, MetricBaseline]


def title(metric: str) -> str:
    """Return the name of a metric in tables."""
    known = all_metrics().get(metric)
    return known.title if known else metric


def reach_of(half: float) -> float | None:
    """Return the largest mean error, in margins, whose interval fits into (-1, 1).

    Args:
        half: half-width of the interval with its reserve.
    """
    return 1 - half if half < 1 else None  # NaN: the noise is unknown


def ranges(z: FloatArray, reach: float | None, kappa: float) -> FloatArray:
    """Return the range of the error of each case for which a metric is accurate, the other cases unchanged.

    The ends come from the rule: the mean error is smaller than `reach`, and no case is off by more than `kappa`.

    Args:
        z: error of each case in margins, shape (cases,).
        reach: largest mean error, in margins; None: no error is accepted.
        kappa: largest error of a case, in margins.

    Returns:
        Shape (cases, 2): lower and upper end; NaN for a case without a range.
    """
    empty = np.full((len(z), 2), np.nan)
    if reach is None:
        return empty
    others = z.sum() - z
    sides = np.stack((np.full(len(z), -1.0), np.full(len(z), 1.0)), axis=1)
    found = np.clip(sides * len(z) * reach - others[:, None], -kappa, kappa)
    beyond = np.abs(z) > kappa
    possible = (beyond.sum() - beyond == 0) & (found[:, 0] < found[:, 1])
    return np.where(possible[:, None], found, empty)


def simulator_baseline(document: Mapping[str, Any]) -> SimulatorBaseline:
    """Return the baseline of one simulator from the JSON values of its validation.

    Cases on which the simulator was calibrated, and metrics of imposed run times, are excluded.
    """
    tolerances, facts = document["tolerances"], document["simulator"]
    cases = [case for case in document["cases"] if not case["calibration"]]
    return SimulatorBaseline(
        version=facts["version"],
        runs=facts["runs"],
        verdict=document["verdict"],
        tolerances=tolerances["sha256"],
        kappa=float(tolerances["kappa"]),
        ratchet=float(tolerances["ratchet"]),
        inputs={case["name"]: _inputs(case) for case in cases},
        metrics={item["name"]: _metric(item, cases, tolerances) for item in document["metrics"] if item["evidence"]},
    )


def _inputs(case: Mapping[str, Any]) -> CaseInputs:
    real = sorted(item["sha256"] for item in case["repetitions"] if not item["excluded"])
    return CaseInputs(workload=case["workload_sha256"], real=real, predictions=len(case["predictions"]))


def _metric(
    item: Mapping[str, Any], cases: Sequence[Mapping[str, Any]], tolerances: Mapping[str, Any]
) -> MetricBaseline:
    """Return the baseline of one metric in these cases."""
    matching = {case["name"]: case["matching"] for case in cases}
    found = [case for case in item["cases"] if case["case"] in matching]
    of_case = {case["name"]: case["real_run"] for case in cases}
    real_runs = len({of_case[case["case"]] for case in found})  # cases with the same real runs are one observation
    needed = tolerances["repeats_many" if real_runs >= MANY else "repeats_few"]
    decidable = item["profile_based"] or min((case["repeats"] for case in found), default=0) >= needed
    decidable &= all(
        matching[case["case"]]["unmatched_share"] <= matching[case["case"]]["unmatched_limit"] for case in found
    )
    half = (_number(item["high"]) - _number(item["low"])) / 2 + _number(item["reserve"])
    reach = reach_of(half) if decidable else None
    z = np.array([_number(case["z"]) for case in found])
    return MetricBaseline(
        gate=item["gate"],
        margin=Margin(item["delta"], item["delta_abs"], gate=item["gate"]).text(item["unit"]),
        verdict=item["verdict"],
        z=_stored(_number(item["z"])),
        reach=None if reach is None else _stored(reach),
        cases={
            case["case"]: _case(case, span)
            for case, span in zip(found, ranges(z, reach, float(tolerances["kappa"])), strict=True)
        },
    )


def _case(case: Mapping[str, Any], span: FloatArray) -> CaseBaseline:
    """Return the baseline of one case; `span` is the range of its error with which the metric is accurate."""
    real, margin = _number(case["real_mean"]), _number(case["margin"])
    limits = [_stored(real + float(end) * margin) for end in span]
    return CaseBaseline(
        predicted=_stored(_number(case["predicted"])),
        real=_stored(real),
        margin=_stored(margin),
        z=_stored(_number(case["z"])),
        limits=None if None in limits else [limit for limit in limits if limit is not None],
    )


def _number(value: float | None) -> float:
    """Return a figure of a document, in which null is an undefined figure, as a number or NaN."""
    return math.nan if value is None else float(value)


def _stored(value: float) -> float | None:
    """Return a figure as it is stored: `DIGITS` significant digits, None if undefined."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def _error(predicted: float, case: CaseBaseline) -> float:
    """Return the error of a predicted value in margins; NaN if undefined."""
    if case.real is None or not case.margin:
        return math.nan
    return (predicted - case.real) / case.margin
