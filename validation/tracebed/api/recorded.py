"""Recorded real runs of small workloads that are part of tracebed, for the validation of simulators."""

from tracebed.validation.recorded import recorded_suite, recorded_suites, unpack

__all__ = ["recorded_suite", "recorded_suites", "unpack"]
