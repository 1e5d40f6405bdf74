"""Verdict on a simulator: validation over cases, and comparison of two runs (docs/explanation/verdict.md)."""

from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.comparison import Comparison, Matching, compare
from tracebed.validation.verdict.rule import REASONS, Reason, Verdict, combine
from tracebed.validation.verdict.tolerances import Tolerances
from tracebed.validation.verdict.validate import validate
from tracebed.validation.verdict.validation import SCHEMA, MetricVerdict, SimulatorFacts, Validation

__all__ = [
    "REASONS",
    "SCHEMA",
    "Case",
    "Comparison",
    "Matching",
    "MetricVerdict",
    "Reason",
    "SimulatorFacts",
    "Tolerances",
    "Validation",
    "Verdict",
    "combine",
    "compare",
    "validate",
]
