"""Recorded suites: real runs of small workloads that are part of the package, for the validation of simulators.

A suite is a zip file: `suite.yaml` for `tracebed validate`, the workloads, and the runs of each case without journal
and node samples. `index.yaml` lists the suites.
"""

from tracebed.validation.recorded.store import RecordedSuite, recorded_runs, recorded_suite, recorded_suites, unpack

__all__ = ["RecordedSuite", "recorded_runs", "recorded_suite", "recorded_suites", "unpack"]
