"""Gate: the exit status of a command or a test for the verdicts on one or several simulators.

The commands `compare` and `validate`, the JUnit report, the annotations and the pytest plugin all use this policy.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tracebed.ground.errors import ExitCode
from tracebed.validation.verdict.rule import Verdict
from tracebed.validation.verdict.validation import Validation

FAILED = "failed"  # outcome of a simulator without a verdict
WORSE = "worse than the baseline"  # outcome of a simulator that is not inaccurate


class OnInconclusive(enum.StrEnum):
    """Consequence of an inconclusive verdict (`--inconclusive`)."""

    FAIL = "fail"
    """Exit status 3; a failure in JUnit; an error in annotations."""
    WARN = "warn"
    """Exit status 0 and a warning; skipped in JUnit."""
    PASS = "pass"
    """Exit status 0; skipped in JUnit."""


@dataclass(frozen=True)
class Finding:
    """A difference between a validation and its baseline."""

    simulator: str
    metric: str
    """Name of the metric; empty if the finding is about the whole validation."""
    title: str
    """The metric in tables, or the subject of the finding."""
    text: str
    """The finding as a sentence, with its subject."""
    failed: bool
    """Whether the gate fails; False: a warning."""


def gate(
    validations: Iterable[Validation],
    inconclusive: OnInconclusive,
    findings: Iterable[Finding] = (),
    failures: Mapping[str, str] | None = None,
) -> ExitCode:
    """Return the exit code for the verdicts on all simulators.

    The most severe result decides: a simulator that failed (2), inaccurate or worse than the baseline (1), unhealthy
    real runs (4), inconclusive (3, only with `OnInconclusive.FAIL`), otherwise accurate (0). Unhealthy real runs fail
    under each policy, since a later run of the same command on the same data cannot change them.

    Args:
        failures: simulator without a verdict -> why.
    """
    if failures:
        return ExitCode.USAGE
    codes = {validation.exit_code for validation in validations}
    if any(finding.failed for finding in findings):
        codes.add(ExitCode.INACCURATE)
    if inconclusive is not OnInconclusive.FAIL:
        codes.discard(ExitCode.INCONCLUSIVE)
    severe = (ExitCode.INACCURATE, ExitCode.UNHEALTHY, ExitCode.INCONCLUSIVE)
    return next((code for code in severe if code in codes), ExitCode.OK)


def of_simulator(validation: Validation, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings about the simulator of a validation."""
    return [finding for finding in findings if finding.simulator == validation.simulator.name]


def outcome(validation: Validation, inconclusive: OnInconclusive, findings: Iterable[Finding] = ()) -> str:
    """Return the result for one simulator, in words that agree with the exit status of its gate.

    Args:
        findings: differences from the baseline, of any simulator.
    """
    own = of_simulator(validation, findings)
    code = gate([validation], inconclusive, own)
    if validation.verdict is Verdict.INCONCLUSIVE and code is ExitCode.OK:
        return "inconclusive, which passes"
    if code is ExitCode.UNHEALTHY:
        return "inconclusive, unhealthy real runs"
    if any(finding.failed for finding in own) and validation.verdict is not Verdict.INACCURATE:
        return WORSE
    return validation.verdict.value


def judged(validation: Validation, inconclusive: OnInconclusive, findings: Iterable[Finding] = ()) -> dict[str, Any]:
    """Return a validation as JSON values, with the result of its gate: exit code, outcome and findings."""
    own = of_simulator(validation, findings)
    return validation.to_json() | {
        "exit_code": int(gate([validation], inconclusive, own)),
        "outcome": outcome(validation, inconclusive, own),
        "findings": [asdict(finding) for finding in own],
    }
