"""Recorded real runs for the validation of simulators: those of tracebed, and data sets of other people."""

from tracebed.studies.board.datasets import Dataset, dataset, datasets, fetch, fetch_from
from tracebed.validation.recorded import recorded_suite, recorded_suites, unpack

__all__ = ["Dataset", "dataset", "datasets", "fetch", "fetch_from", "recorded_suite", "recorded_suites", "unpack"]
