"""Words of reports for the values of runs and verdicts."""

from __future__ import annotations

from tracebed.validation.report.words import execution, percent, policy_name
from tracebed.validation.verdict.rule import REASONS, Reason

__all__ = ["REASONS", "Reason", "execution", "percent", "policy_name"]
