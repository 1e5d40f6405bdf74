"""Figures of the workloads of an experiment: shares of their jobs, rates, and what cleaning did. Claims may name them.

They are columns of the table of the experiment beside the metrics, equal in all windows of a point.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.workload import Workload
from tracebed.validation.experiments.experiment import Experiment
from tracebed.validation.experiments.parts import OF_WORKLOADS, JobsSpec

OF_SELECTION = ("drop_copies",)
"""Steps of cleaning named `drop_` that choose records, and lose no run time."""


def asked(experiment: Experiment) -> bool:
    """Return whether a claim of an experiment is about its workloads."""
    names = {*OF_WORKLOADS, *experiment.shares_of_jobs}
    return any(claim.figure in names for claim in experiment.published)


def with_characteristics(experiment: Experiment, table: pd.DataFrame, workloads: Mapping[str, Path]) -> pd.DataFrame:
    """Return the table of an experiment with the figures of the workloads.

    Args:
        table: a row per point and window, with the column `cell`.
        workloads: cell -> path of its workload.
    """
    paths = [workloads[cell] for cell in table["cell"]]
    figures = {path: of_workload(read_workload(path), experiment.shares_of_jobs) for path in dict.fromkeys(paths)}
    return table.join(pd.DataFrame([figures[path] for path in paths], index=table.index))


def of_workload(workload: Workload, shares: Mapping[str, JobsSpec]) -> dict[str, float]:
    """Return the figures of a workload, NaN if one is undefined: `OF_WORKLOADS`, and the shares of its jobs by name."""
    submit = workload.floats("submit_time")
    hours = float(np.ptp(submit)) / 3600.0 if len(workload) else 0.0
    cleaning = [step for step in workload.provenance.steps if step.name.startswith("clean ")]
    records = float(cleaning[0].counts["jobs before"]) if cleaning else float(len(workload))
    kept = 1.0
    for step in cleaning:
        name = step.name.removeprefix("clean ")
        if name.startswith("drop_") and name not in OF_SELECTION:
            kept *= step.parameters["node_hours_after"] / step.parameters["node_hours_before"]
    return {
        "workload_jobs": float(len(workload)),
        "workload_jobs_per_hour": len(workload) / hours if hours else np.nan,
        "workload_records": records,
        "workload_removed": records - len(workload),
        "workload_run_time_lost": 1.0 - kept,
        **{name: share(workload, spec) for name, spec in shares.items()},
    }


def share(workload: Workload, spec: JobsSpec) -> float:
    """Return the share of the jobs within the bounds of `spec`, NaN without jobs."""
    inside = np.ones(len(workload), bool)
    for name, (low, high) in spec.bounds.items():
        values = workload.floats(name)
        inside &= (values >= low) & (values <= high)
    return float(inside.mean()) if len(workload) else np.nan
