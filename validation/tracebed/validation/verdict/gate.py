"""Gate: the exit status of a command or a test for the verdicts on one or several simulators.

The commands `compare` and `validate`, the JUnit report, the annotations and the pytest plugin all use this policy.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
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


@dataclass(frozen=True)
class Gate:
    """The verdicts on simulators, with what decides whether they pass."""

    validations: Sequence[Validation]
    """One per simulator."""
    inconclusive: OnInconclusive = OnInconclusive.FAIL
    """Consequence of an inconclusive verdict."""
    findings: Sequence[Finding] = ()
    """Differences from the baseline, of any simulator."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Simulator without a verdict -> why."""

    def of(self, validation: Validation) -> Gate:
        """Return the gate of one simulator, with its own findings."""
        own = [finding for finding in self.findings if finding.simulator == validation.simulator.name]
        return Gate([validation], self.inconclusive, own)


def gate(judgment: Gate) -> ExitCode:
    """Return the exit code for the verdicts on all simulators.

    The most severe result decides: a simulator that failed (2), inaccurate or worse than the baseline (1), unhealthy
    real runs (4), inconclusive (3, only with `OnInconclusive.FAIL`), otherwise accurate (0). Unhealthy real runs fail
    under each policy, since a later run of the same command on the same data cannot change them.

    Args:
        judgment: the verdicts, and what decides whether they pass.
    """
    if judgment.failures:
        return ExitCode.USAGE
    codes = {validation.exit_code for validation in judgment.validations}
    if any(finding.failed for finding in judgment.findings):
        codes.add(ExitCode.INACCURATE)
    if judgment.inconclusive is not OnInconclusive.FAIL:
        codes.discard(ExitCode.INCONCLUSIVE)
    severe = (ExitCode.INACCURATE, ExitCode.UNHEALTHY, ExitCode.INCONCLUSIVE)
    return next((code for code in severe if code in codes), ExitCode.OK)


def outcome(judgment: Gate, validation: Validation) -> str:
    """Return the result for one simulator, in words that agree with the exit status of its gate.

    Args:
        judgment: the verdicts, and what decides whether they pass.
        validation: the one of the simulator.
    """
    own = judgment.of(validation)
    code = gate(own)
    if validation.verdict is Verdict.INCONCLUSIVE and code is ExitCode.OK:
        return "inconclusive, which passes"
    if code is ExitCode.UNHEALTHY:
        return "inconclusive, unhealthy real runs"
    if any(finding.failed for finding in own.findings) and validation.verdict is not Verdict.INACCURATE:
        return WORSE
    return validation.verdict.value


def judged(judgment: Gate, validation: Validation) -> dict[str, Any]:
    """Return a validation as JSON values, with the result of its gate: exit code, outcome and findings.

    Args:
        judgment: the verdicts, and what decides whether they pass.
        validation: the one of the simulator.
    """
    own = judgment.of(validation)
    return validation.to_json() | {
        "exit_code": int(gate(own)),
        "outcome": outcome(own, validation),
        "findings": [asdict(finding) for finding in own.findings],
    }
