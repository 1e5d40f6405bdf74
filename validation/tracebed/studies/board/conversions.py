"""Conversions of data sets whose form is their own, to tables that `tracebed import` reads."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tracebed.converters.formats.reading import read_workload
from tracebed.ground.errors import Tolerated

DAY_S = 86400
REQUESTS = [
    *("job_id", "submit_time", "run_time", "time_limit", "nodes", "cores_per_node", "fewest_nodes", "user", "group"),
    *("partition", "features", "gres", "memory_mib"),
]


def slurm_model_cores(files: Mapping[str, bytes]) -> bytes:
    """Return the workload of slurm_model for a machine whose nodes are its cores.

    A job without a planned run time (-1) runs until its limit. Features, memory, GPUs, accounts and the boundaries of
    the nodes are left out.
    """
    rows = ["job_id,submit_time,run_time,time_limit,nodes,user"]
    for row in _rows(files["jobs500.csv"], ";"):
        limit = 60 * int(row["wall_limit"])
        run = limit if int(row["wall_time"]) < 0 else int(row["wall_time"])
        rows.append(f"{row['job_id']},{row['dt']},{run},{limit},{row['n_tasks']},{row['user']}")
    return _table(rows)


def slurm_model_nodes(files: Mapping[str, bytes]) -> bytes:
    """Return the workload of slurm_model with all requests, as the format `ub-slurm` reads it.

    A job without a planned run time (-1) runs for a day longer than its limit, at which it is killed.
    """
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", Tolerated)
        path = Path(folder) / "jobs500.csv"
        path.write_bytes(files[path.name])
        table = read_workload(path, "ub-slurm", keep_names=True).table
    unplanned = [int(row["wall_time"]) < 0 for row in _rows(files["jobs500.csv"], ";")]
    run = table["run_time"] + np.where(unplanned, DAY_S, 0)
    whole = {name: table[name].astype("Int64") for name in ("submit_time", "time_limit", "memory_mib")}
    return table[REQUESTS].assign(run_time=run.astype(int), **whole).to_csv(index=False).encode()


def slurm_model_run(files: Mapping[str, bytes], run: str) -> bytes:
    """Return one of the real runs of slurm_model. A job ends with its epilog, which releases its cores."""
    rows = [
        f"{row['job_id']},{row['submit_job']},{row['launch_job']},{row['job_epilog_complete']}"
        for row in _rows(files["two-runs.csv"], ",")
        if row["run_id"] == run
    ]
    return _table(["job_id,submit,start,end", *rows])


def _rows(content: bytes, delimiter: str) -> csv.DictReader[str]:
    return csv.DictReader(io.StringIO(content.decode()), delimiter=delimiter)


def _table(rows: list[str]) -> bytes:
    return ("\n".join(rows) + "\n").encode()


CONVERSIONS: dict[str, Callable[[Mapping[str, bytes]], bytes]] = {
    "slurm-model-cores": slurm_model_cores,
    "slurm-model-nodes": slurm_model_nodes,
    "slurm-model-run-1": partial(slurm_model_run, run="1"),
    "slurm-model-run-2": partial(slurm_model_run, run="2"),
}
"""Name -> function from the contents of the files of a data set to the table."""
