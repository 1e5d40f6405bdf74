"""Terms of the report and the console for the execution of runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracebed.orchestrator.run import RunInfo
from tracebed.orchestrator.setup import UNKNOWN_POLICY

if TYPE_CHECKING:
    from tracebed.validation.verdict.rule import Reason
    from tracebed.validation.verdict.validation import CaseMetric, MetricVerdict

EXECUTION = {
    "computed": "computed: real processes that used CPU time",
    "emulated": "emulated: real processes that slept for the duration of their work, without CPU load",
    "virtual": "virtual: a replay in virtual time; its nodes, their network and the processes of jobs are models",
    "simulated": "simulated: virtual time, no processes",
    "logged": "logged: read from a log",
}
SHORT = {
    "computed": "jobs computed",
    "emulated": "jobs emulated, not computed",
    "logged": "jobs of a log",
}

LEAST = 0.0005  # smallest number, or error in margins, that is not shown as 0


def execution(info: RunInfo) -> str:
    """Return how the jobs of a run were executed: all kinds of a mixed run."""
    return "; ".join(EXECUTION.get(part, part) for part in info.execution.split("+"))


def policy_name(info: RunInfo) -> str:
    """Return the policy of a run, or that it is unknown."""
    return "policy unknown" if info.policy == UNKNOWN_POLICY else info.policy


def real_side(info: RunInfo) -> str:
    """Return how the jobs of the real run were executed, for a caption."""
    return " and ".join(SHORT.get(part, part) for part in info.execution.split("+"))


def percent(share: float) -> str:
    """Return a signed share in percent, a dash if missing."""
    if math.isnan(share):
        return "-"
    text = f"{100 * share:+.1f} %"
    return "0 %" if text in ("+0.0 %", "-0.0 %") else text


def percentage(share: float) -> str:
    """Return a share without a sign in percent, a dash if missing."""
    return "-" if math.isnan(share) else "0 %" if abs(share) < 5e-6 else f"{100 * share:.3g} %"


def reason_text(reason: Reason) -> str:
    """Return the name of a reason as words: `too few repeats`."""
    return reason.value.replace("_", " ")


def error(item: MetricVerdict, case: CaseMetric | None = None) -> str:
    """Return the error of a metric, predicted - real mean, with its interval: `+1.2 % [+0.8, +1.6]`."""
    # The unit is percent of the real mean, or the unit of the metric if the absolute amount of the margin applies. The
    # unit of the mean over several cases is the margin, since their margins differ.
    if case is None and len(item.cases) == 1:
        (case,) = item.cases
    if case is not None:
        scale, unit = _scale(item, case)
        values = [scale * z for z in (case.z, case.low, case.high)]
        least = LEAST * scale
    else:
        values, unit, least = [item.z, item.low, item.high], " margins", LEAST
    mean, low, high = values
    if math.isnan(mean):
        return "not defined"
    return f"{signed(mean, least)}{unit}" + (
        "" if math.isnan(low) else f" [{signed(low, least)}, {signed(high, least)}]"
    )


def size(item: MetricVerdict) -> str:
    """Return the size of the error of a metric: of one case the error, of several the mean of |error| in margins."""
    if len(item.cases) == 1:
        return error(item).partition(" [")[0]
    return "not defined" if math.isnan(item.mean_absolute) else f"{item.mean_absolute:.2g} margins"


def extent(item: MetricVerdict) -> str:
    """Return the margin of a metric; over several cases, what `size` is, the worst case and the margin."""
    if len(item.cases) == 1 or item.worst is None:
        return margin(item)
    return f"mean |error|, worst {signed(item.worst.z)}; margin {margin(item)}"


def margin(item: MetricVerdict, case: CaseMetric | None = None) -> str:
    """Return the margin of a metric that applies to one case, or its relative part for several: `±3 %`, `±10 s`."""
    if case is None and len(item.cases) == 1:
        (case,) = item.cases
    if case is None:
        relative = item.margin.relative
        return f"±{100 * relative:g} %" if relative else f"±{item.margin.absolute:g} {item.metric.unit}".rstrip()
    scale, unit = _scale(item, case)
    return "" if math.isnan(scale) else f"±{scale:.3g}{unit}"


def _scale(item: MetricVerdict, case: CaseMetric) -> tuple[float, str]:
    """Return the factor from multiples of the margin of a case to the unit of its error, and this unit."""
    share = item.margin.relative
    if share and math.isclose(case.margin, share * abs(case.real_mean), rel_tol=1e-6):
        return 100 * share, " %"
    return case.margin, f" {item.metric.unit}".rstrip()


def signed(value: float, least: float = LEAST) -> str:
    """Return a number with its sign and two or three digits: `+0.42`, `-12.3`; `0` below `least`, a dash if missing."""
    if math.isnan(value):
        return "-"
    if abs(value) < least:
        return "0"
    text = f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.2g}" if abs(value) < 10 else f"{value:+.3g}"
    return text.replace("-", "\N{MINUS SIGN}")
