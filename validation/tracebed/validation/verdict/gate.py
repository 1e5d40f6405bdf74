"""Gate: the exit status of a command or a test for the verdicts on one or several simulators.

The commands `compare` and `validate`, the JUnit report, the annotations and the pytest plugin all use this policy.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from tracebed.errors import ExitCode
from tracebed.validation.verdict.validation import Validation


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


def gate(validations: Iterable[Validation], inconclusive: OnInconclusive, findings: Iterable[Finding] = ()) -> ExitCode:
    """Return the exit code for the verdicts on all simulators.

    The most severe result decides: inaccurate or worse than the baseline (1), unhealthy real runs (4), inconclusive
    (3, only with `OnInconclusive.FAIL`), otherwise accurate (0). Unhealthy real runs fail under each policy, since a
    later run of the same command on the same data cannot change them.
    """
    codes = {validation.exit_code for validation in validations}
    if any(finding.failed for finding in findings):
        codes.add(ExitCode.INACCURATE)
    if inconclusive is not OnInconclusive.FAIL:
        codes.discard(ExitCode.INCONCLUSIVE)
    severe = (ExitCode.INACCURATE, ExitCode.UNHEALTHY, ExitCode.INCONCLUSIVE)
    return next((code for code in severe if code in codes), ExitCode.OK)
