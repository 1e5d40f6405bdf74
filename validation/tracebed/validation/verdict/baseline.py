"""Baselines: files with results of simulators, with which later validations are compared (a ratchet).

The real runs of a CI job are recorded, so the noise and the margins of each metric are constants, and the decision
depends on the predicted values only. Let z_w be the error of a metric in case w of W cases in margins, and h the
half-width of the interval of the mean error with its reserve. The prediction of a deterministic simulator is accurate
exactly if

    |mean of z_w| < 1 - h    and    |z_w| <= kappa in each case,

by the rule of `tracebed.validation.verdict.decision`. A baseline stores 1 - h, kappa, and the real mean and the margin
of each case, so that a prediction can be judged without the real runs, and the gate of a CI job is deterministic. The
acceptance limits of a case are the range of its predicted value for which the metric is accurate while the other cases
keep their values of the baseline; with one case, they are the whole rule. For a stochastic simulator, h includes the
spread of its runs in the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from tracebed.converters.workload import FloatArray
from tracebed.ground.display import cell
from tracebed.ground.errors import InputError
from tracebed.ground.stored import Part, StoredFile
from tracebed.ground.version import version
from tracebed.validation.metrics import Margin, all_metrics
from tracebed.validation.verdict.gate import Finding
from tracebed.validation.verdict.rule import Verdict
from tracebed.validation.verdict.tolerances import MANY
from tracebed.validation.verdict.validation import Validation

STORED_DIGITS = 10  # significant digits of stored figures: rounding on other machines does not change the file

Number = Annotated[float, Field(allow_inf_nan=False)]

LEAST_SEEDS = 5  # smallest number of runs of a stochastic simulator in each case
GROWTH = 0.01  # growth of an error, in margins, above which an update of a baseline is worse than before


class CaseBaseline(Part):
    """One metric of one simulator in one case. A value is null if it is undefined."""

    predicted: Number | None  # mean over the predictions, unit of the metric
    real: Number | None  # mean over the real repetitions, unit of the metric
    margin: Number | None  # Margin, unit of the metric
    z: Number | None  # (predicted - real) / margin
    # Lowest and highest predicted value with which the metric is accurate, the values of the other cases unchanged.
    # Null: no value.
    limits: Annotated[list[Number], Field(min_length=2, max_length=2)] | None


class MetricBaseline(Part):
    """One metric of one simulator."""

    gate: bool
    margin: str  # the margin as in a tolerances file
    verdict: str
    z: Number | None  # mean error over the cases, in margins
    # Largest mean error with which the metric is accurate, in margins. Null: no error is accurate.
    reach: Number | None
    cases: dict[str, CaseBaseline]

    def accepts(self, predicted: Mapping[str, float], kappa: float) -> bool:
        """Return whether the metric is accurate with these predicted values, one for each case."""
        if self.reach is None:
            return False
        z = np.array([_error(predicted.get(name, math.nan), case) for name, case in self.cases.items()])
        return bool(np.abs(z.mean()) < self.reach and (np.abs(z) <= kappa).all())


class CaseInputs(Part):
    """Hashes of the inputs of one case."""

    workload: str  # SHA-256 of the workload
    real: list[str]  # SHA-256 of the jobs of each real repetition that is part of the verdict
    predictions: int  # number of predictions: more than one for a stochastic simulator


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
    """Return the largest mean error, in margins, whose interval of this half-width (with reserve) fits into (-1, 1)."""
    return 1 - half if half < 1 else None  # NaN: the noise is unknown


def ranges(z: FloatArray, reach: float | None, kappa: float) -> FloatArray:
    """Return the range of the error of each case for which a metric is accurate, the other cases unchanged.

    The ends come from the rule: the mean error is smaller than `reach` (None: no error is accepted), and no case is off
    by more than `kappa`. All are in margins. Returns shape (cases, 2): lower and upper end; NaN for a case without a
    range.
    """
    empty = np.full((len(z), 2), np.nan)
    if reach is None:
        return empty
    others = z.sum() - z
    sides = np.stack((np.full(len(z), -1.0), np.full(len(z), 1.0)), axis=1)
    ends = np.clip(sides * len(z) * reach - others[:, None], -kappa, kappa)
    beyond = np.abs(z) > kappa
    possible = (beyond.sum() - beyond == 0) & (ends[:, 0] < ends[:, 1])
    return np.where(possible[:, None], ends, empty)


def simulator_baseline(document: Mapping[str, Any]) -> SimulatorBaseline:
    """Return the baseline of one simulator from the JSON values of its validation."""
    # Cases on which the simulator was calibrated, and metrics of imposed run times, are excluded.
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
    deciding = [case for case in item["cases"] if case["case"] in matching]
    of_case = {case["name"]: case["real_run"] for case in cases}
    real_runs = len({of_case[case["case"]] for case in deciding})  # cases with the same real runs are one observation
    needed = tolerances["repeats_many" if real_runs >= MANY else "repeats_few"]
    decidable = item["profile_based"] or min((case["repeats"] for case in deciding), default=0) >= needed
    decidable |= item["verdict"] == Verdict.ACCURATE  # few unhealthy runs leave the verdict to the others
    decidable &= all(
        matching[case["case"]]["unmatched_share"] <= matching[case["case"]]["unmatched_limit"] for case in deciding
    )
    half = (_number(item["high"]) - _number(item["low"])) / 2 + _number(item["reserve"])
    reach = reach_of(half) if decidable else None
    z = np.array([_number(case["z"]) for case in deciding])
    return MetricBaseline(
        gate=item["gate"],
        margin=Margin(item["delta"], item["delta_abs"], gate=item["gate"]).text(item["unit"]),
        verdict=item["verdict"],
        z=_stored(_number(item["z"])),
        reach=None if reach is None else _stored(reach),
        cases={
            case["case"]: _case(case, span)
            for case, span in zip(deciding, ranges(z, reach, float(tolerances["kappa"])), strict=True)
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
    """Return a figure as it is stored: `STORED_DIGITS` significant digits, None if undefined."""
    return float(f"{value:.{STORED_DIGITS}g}") if math.isfinite(value) else None


def _error(predicted: float, case: CaseBaseline) -> float:
    """Return the error of a predicted value in margins; NaN if undefined."""
    if case.real is None or not case.margin:
        return math.nan
    return (predicted - case.real) / case.margin


def _ratchet(name: str, old: SimulatorBaseline, new: SimulatorBaseline, growth: float) -> Iterator[Finding]:
    """Yield what is worse in `new`, by more than `growth` margins for a mean error, or cannot be compared."""
    both = [case for case in old.inputs if case in new.inputs]
    other = [case for case in both if _real_side(old.inputs[case]) != _real_side(new.inputs[case])]
    for case in other:
        yield Finding(name, "", case, f"{case}: the real runs or the workload differ from those of the baseline", False)
    for case in [case for case in old.inputs if case not in new.inputs]:
        yield Finding(name, "", case, f"the case {case} is in the baseline, but is missing in the validation", True)
    for case in [case for case in new.inputs if case not in old.inputs]:
        yield Finding(name, "", case, f"the case {case} is not in the baseline", False)
    for metric, before in old.metrics.items():
        after = new.metrics.get(metric)
        if after is None:
            yield Finding(name, metric, title(metric), f"{title(metric)}: missing in the validation", before.gate)
        elif before.cases.keys() <= after.cases.keys() and (text := worse(before, after, old.kappa, growth, other)):
            yield Finding(name, metric, title(metric), f"{title(metric)}: {text}", True)


def _real_side(inputs: CaseInputs) -> tuple[str, list[str]]:
    return inputs.workload, inputs.real


def worse(before: MetricBaseline, after: MetricBaseline, kappa: float, growth: float, other: Sequence[str] = ()) -> str:
    """Return in which way a metric is worse than before with the same cases, as text; empty if it is not worse.

    The mean of |z| counts beside the mean error, in which errors of opposite sign cancel. `kappa` and `growth` are the
    largest accepted error of one case and growth of the mean error, in margins. The limits of the baseline do not hold
    for `other`: cases with other real runs.
    """
    if before.z is None:
        return ""
    now = [after.cases[case].z for case in before.cases]
    if any(z is None for z in now):
        return "was defined in the baseline, but is undefined"
    mean = float(np.mean([z for z in now if z is not None]))
    sizes = [float(np.mean([abs(each.cases[case].z or 0.0) for case in before.cases])) for each in (before, after)]
    grown = [(before.z, mean, "error", "+.2f"), (sizes[0], sizes[1], "mean absolute error", ".2f")]
    texts = []
    for old, new, what, form in [each for each in grown if abs(each[1]) > abs(each[0]) + growth][:1]:
        case = max(before.cases, key=lambda name: abs(after.cases[name].z or 0) - abs(before.cases[name].z or 0))
        was, found = before.cases[case].z or 0.0, after.cases[case].z or 0.0
        texts.append(
            f"the {what} grew from {old:{form}} to {new:{form}} margins (accepted growth: {growth:g}); "
            f"most in the case {case}, from {was:+.2f} to {found:+.2f}"
        )
    if before.verdict == Verdict.ACCURATE and not before.cases.keys() & set(other):
        values = {case: after.cases[case].predicted for case in before.cases}
        known = {case: value for case, value in values.items() if value is not None}
        if not before.accepts(known, kappa):
            outside = [
                f"{case} {cell(known[case])} (limits {cell(limits[0])} to {cell(limits[1])})"
                for case, item in before.cases.items()
                if (limits := item.limits) and not limits[0] <= known[case] <= limits[1]
            ]
            joint = f"mean error {mean:+.2f} margins, limit {before.reach or 0:.2f}"
            texts.append(f"no longer accurate: {', '.join(outside) or joint}")
    return "; ".join(texts)


def changed_tolerances(old: SimulatorBaseline, new: SimulatorBaseline) -> str:
    """Return the differences between the tolerances of two results as text; empty if they are equal."""
    margins = [
        f"{title(metric)}: {item.margin} became {after.margin}"
        for metric, item in old.metrics.items()
        if (after := new.metrics.get(metric)) and after.margin != item.margin
    ]
    if old.tolerances != new.tolerances:
        margins = margins or ["a constant of the decision or a margin"]
    return "; ".join(margins)


class Baseline(StoredFile):
    """The results of one or several simulators: acceptance limits and errors."""

    KIND: ClassVar[str] = "baseline"
    HINT: ClassVar[str] = "`tracebed validate --baseline FILE --update-baseline better` writes baselines"

    file_schema: Annotated[Literal["tracebed-baseline/1"], Field(alias="schema")] = "tracebed-baseline/1"
    tracebed: str
    """Version of tracebed."""
    simulators: dict[str, SimulatorBaseline]

    @classmethod
    def of(cls, documents: Iterable[Mapping[str, Any]]) -> Baseline:
        """Return the baseline of validations, one per simulator, each as the JSON values of `Validation.to_json`."""
        simulators = {str(document["simulator"]["name"]): simulator_baseline(document) for document in documents}
        return cls(tracebed=version(), simulators=simulators)

    def updated(self, new: Baseline) -> Baseline:
        """Return this baseline with the simulators of `new` added or replaced."""
        return new.model_copy(update={"simulators": {**self.simulators, **new.simulators}})

    def check(self, validation: Validation) -> list[Finding]:
        """Return the results of one simulator that are worse than the baseline, or cannot be compared.

        A finding fails the gate if a metric was accurate and is outside its acceptance limits, if its error grew by
        more than `Tolerances.ratchet`, or if a case or a gated metric of the baseline is missing.

        Raises:
            InputError: the tolerances differ from those of the baseline, so that the errors have other units.
        """
        name = validation.simulator.name
        if name not in self.simulators:
            return [Finding(name, "", "simulator", f"the baseline does not contain the simulator {name}", False)]
        old, new = self.simulators[name], Baseline.of([validation.to_json()]).simulators[name]
        if changed := changed_tolerances(old, new):
            hint = "restore the tolerances, or review the change and give --update-baseline any"
            raise InputError(f"the tolerances differ from those of the baseline: {changed}", hint=hint)
        return list(_ratchet(name, old, new, old.ratchet))

    def changes(self, new: Baseline) -> Iterator[Finding]:
        """Yield the differences of `new` from this baseline; those that weaken the gate have failed."""
        for name, after in new.simulators.items():
            before = self.simulators.get(name)
            if few := [case for case, inputs in after.inputs.items() if 1 < inputs.predictions < LEAST_SEEDS]:
                text = f"{', '.join(few)}: fewer than {LEAST_SEEDS} runs of a stochastic simulator"
                yield Finding(name, "", "seeds", text, False)
            if before is None:
                yield Finding(name, "", "simulator", "new in the baseline", False)
                continue
            if changed := changed_tolerances(before, after):
                yield Finding(name, "", "tolerances", f"the tolerances changed: {changed}", True)
            if before.verdict != after.verdict:
                yield Finding(name, "", "verdict", f"{before.verdict} became {after.verdict}", False)
            yield from _ratchet(name, before, after, GROWTH)
            yield from _improvements(name, before, after)


def _improvements(name: str, before: SimulatorBaseline, after: SimulatorBaseline) -> Iterator[Finding]:
    """Yield the metrics whose error is smaller than before."""
    for metric, now in after.metrics.items():
        was = before.metrics.get(metric)
        if was is not None and was.z is not None and now.z is not None and abs(now.z) < abs(was.z) - GROWTH:
            text = f"{title(metric)}: the error fell from {was.z:+.2f} to {now.z:+.2f} margins"
            yield Finding(name, metric, title(metric), text, False)
