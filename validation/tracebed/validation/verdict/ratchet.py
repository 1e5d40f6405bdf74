"""The ratchet: comparison of the results of a simulator with earlier results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tracebed.ground.display import cell
from tracebed.validation.verdict.acceptance import CaseInputs, MetricBaseline, SimulatorBaseline, title
from tracebed.validation.verdict.gate import Finding
from tracebed.validation.verdict.rule import Verdict


def compare(name: str, old: SimulatorBaseline, new: SimulatorBaseline, growth: float) -> Iterator[Finding]:
    """Yield the results in `new` that are worse than in `old`, and the results that cannot be compared.

    Args:
        name: the simulator.
        old, new: results with the same margins.
        growth: largest accepted growth of the mean error of a metric, in margins.
    """
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
    """Return in which way a metric is worse than before, as text; empty if it is not worse.

    The mean of |z| counts beside the mean error, in which errors of opposite sign cancel.

    Args:
        before, after: the metric in the baseline, and now with the same cases.
        kappa: largest accepted error of one case, in margins.
        growth: largest accepted growth of the mean error, in margins.
        other: cases with other real runs than in the baseline, for which its limits do not hold.
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
