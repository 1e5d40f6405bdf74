"""Terms of the report and the console for the execution of runs."""

from __future__ import annotations

import math

from tracebed.orchestrator.run import RunInfo

EXECUTION = {
    "computed": "computed: real processes that used CPU time",
    "emulated": "emulated: real processes that slept for the duration of their work, without CPU load",
    "simulated": "simulated: virtual time, no processes",
    "logged": "logged: read from a public log",
}
SHORT = {
    "computed": "jobs computed",
    "emulated": "jobs emulated, not computed",
    "logged": "jobs of a public log",
}


def execution(info: RunInfo) -> str:
    """Return how the jobs of a run were executed: all kinds of a mixed run."""
    return "; ".join(EXECUTION.get(part, part) for part in info.execution.split("+"))


def real_side(info: RunInfo) -> str:
    """Return how the jobs of the real run were executed, for a caption."""
    return " and ".join(SHORT.get(part, part) for part in info.execution.split("+"))


def percent(share: float) -> str:
    """Return a signed share in percent, a dash if missing."""
    if math.isnan(share):
        return "-"
    text = f"{100 * share:+.1f} %"
    return "0 %" if text in ("+0.0 %", "-0.0 %") else text
