"""Comparison of a prediction with a real run, and its verdict (docs/explanation/verdict.md)."""

from tracebed.validation.verdict.comparison import SCHEMA, Comparison, compare
from tracebed.validation.verdict.matching import Matching
from tracebed.validation.verdict.metric import MetricComparison
from tracebed.validation.verdict.rule import REASONS, Reason, Verdict, combine

__all__ = ["REASONS", "SCHEMA", "Comparison", "Matching", "MetricComparison", "Reason", "Verdict", "combine", "compare"]
