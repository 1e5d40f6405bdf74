"""Recorded real runs for the validation of simulators: those of tracebed, and data sets of other people."""

from tracebed.validation.board import Dataset, dataset, datasets, fetch
from tracebed.validation.recorded import recorded_suite, recorded_suites, unpack

__all__ = ["Dataset", "dataset", "datasets", "fetch", "recorded_suite", "recorded_suites", "unpack"]
