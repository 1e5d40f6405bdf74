"""Conversions of the files of data sets whose form is their own to tables of jobs.

A conversion gets the contents of the files of a data set by name, and words that name a run of several.
"""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import yaml

from tracebed.converters.formats.amte import logged_jobs
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import Kind
from tracebed.ground.bounds import MAX_SECONDS
from tracebed.ground.errors import Tolerated

DAY_S = 86400
REQUESTS = [
    *("job_id", "submit_time", "run_time", "time_limit", "nodes", "cores_per_node", "fewest_nodes", "user", "group"),
    *("partition", "features", "gres", "memory_mib"),
]


def slurm_model_cores(files: Mapping[str, bytes]) -> bytes:
    """Return the workload of slurm_model for a machine whose nodes are its cores."""
    # A job without a planned run time (-1) runs until its limit. Features, memory, GPUs, accounts and the boundaries of
    # the nodes are left out.
    rows = ["job_id,submit_time,run_time,time_limit,nodes,user"]
    for row in _rows(files["jobs500.csv"], ";"):
        limit = 60 * int(row["wall_limit"])
        run = limit if int(row["wall_time"]) < 0 else int(row["wall_time"])
        rows.append(f"{row['job_id']},{row['dt']},{run},{limit},{row['n_tasks']},{row['user']}")
    return _table(rows)


def slurm_model_nodes(files: Mapping[str, bytes]) -> bytes:
    """Return the workload of slurm_model with all requests, as the format `ub-slurm` reads it."""
    # A job without a planned run time (-1) runs for a day longer than its limit, at which it is killed.
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


def mallob_plan(files: Mapping[str, bytes], run: str) -> bytes:
    """Return the workload of a run of Mallob, with the work that its jobs had in the default run."""
    from tracebed.studies import mallob  # with a policy, which few data sets need

    table = mallob.plan(mallob.jobs_in(files, "default"), mallob.jobs_in(files, run))
    return table.to_csv(index=False).encode()


def mallob_run(files: Mapping[str, bytes], run: str) -> bytes:
    """Return the times of a run of Mallob."""
    from tracebed.studies import mallob

    return mallob.observed(mallob.jobs_in(files, run)).to_csv(index=False).encode()


def slurm_model_notebook(files: Mapping[str, bytes], run: str) -> bytes:
    """Return one of the two real runs in the notebook of slurm_model: its table of all runs ends after 1,000 rows."""
    runs = next(each for each in notebook_tables(files) if {"run_id", "launch_job", "job_epilog_complete"} <= {*each})
    columns = {"job_id": "job_id", "submit_job": "submit", "launch_job": "start", "job_epilog_complete": "end"}
    return runs[runs["run_id"] == run][[*columns]].rename(columns=columns).to_csv(index=False).encode()


def slurm_model_simulated(files: Mapping[str, bytes]) -> bytes:
    """Return the run `sim_10_1` of the simulator of the authors in the notebook of slurm_model.

    The notebook has all starts, the first submissions and the median run times of 47 such runs.
    """
    tables = notebook_tables(files)
    _, starts = (each.set_index("job_id")["dt2"] for each in tables if [*each] == ["job_id", "value", "dt2"])
    events = next(each for each in tables if "metric" in each and "sim" in set(each["slurm_mode"]))
    submitted = events[events["metric"] == "submit_job"].set_index("job_id")["dt2"].astype(float)
    ran = next(each for each in tables if "sim_median_walltime" in each).set_index("job_id")["sim_median_walltime"]
    jobs = pd.DataFrame(_rows(files["jobs500.csv"], ";")).set_index("job_id")
    planned = jobs["dt"].astype(float)
    start = starts.astype(float).reindex(jobs.index)
    table = {
        "submit": planned + (submitted - planned).median(),
        "start": start,
        "end": start + ran.astype(float).reindex(jobs.index),
    }
    return pd.DataFrame(table).round(4).to_csv(index_label="job_id").encode()


def notebook_tables(files: Mapping[str, bytes]) -> list[pd.DataFrame]:
    """Return the tables of a notebook of R in HTML, as texts."""
    text = next(content for name, content in files.items() if name.endswith(".nb.html")).decode()
    tables = [
        json.loads(found) for found in re.findall(r"data-pagedtable-source[^>]*>\s*(\{.*?\})\s*</script>", text, re.S)
    ]
    return [
        pd.DataFrame(each["data"]).rename(columns={str(c["name"][0]): c["label"][0] for c in each["columns"]})
        for each in tables
    ]


AMTE_BOUNDS = {
    **dict.fromkeys((2, 5, 13, 25), (4, 8)),
    **dict.fromkeys((4, 23), (2, 12)),
    **dict.fromkeys((8, 29), (6, 10)),
    **dict.fromkeys((10, 19), (6, 12)),
    **dict.fromkeys((15, 28), (2, 8)),
    16: (4, 12),
    22: (4, 10),
}
"""Malleable job of the batch of AMTE -> least and most nodes in its script `malleable.sh`."""
AMTE_QUARTER = (15, 28)  # jobs that search a tree of depth 15 with branching factor 4; the others' trees have depth 16


def amte_plan(files: Mapping[str, bytes]) -> bytes:
    """Return the batch of AMTE with its malleable jobs, whose run times c + W / n on n nodes fit their rigid run."""
    jobs = logged_jobs(Input.of(files["fixedSchedule.csv"], "fixedSchedule.csv"))
    sizes, ran = [len(job.hosts) for job in jobs], np.array([job.end - job.start for job in jobs])
    malleable = np.isin(range(len(jobs)), [*AMTE_BOUNDS])
    parts = np.where(np.isin(range(len(jobs)), AMTE_QUARTER), 0.25, 1.0)  # of the work W
    terms = np.column_stack([np.ones(len(jobs)), parts / sizes])
    (startup, work), *_ = np.linalg.lstsq(terms[malleable], ran[malleable])
    bounds = [AMTE_BOUNDS.get(job, (size, size)) for job, size in enumerate(sizes)]
    table = pd.DataFrame(
        {
            "submit_time": 0,
            "run_time": np.where(malleable, terms @ (startup, work), ran),
            "nodes": sizes,
            "kind": np.where(malleable, Kind.MALLEABLE.value, Kind.RIGID.value),
            "nodes_min": [least for least, _ in bounds],
            "nodes_max": [most for _, most in bounds],
            "nodes_pref": sizes,
            "speedup": np.where(malleable, "amdahl", ""),
            "speedup_parameters": np.where(
                malleable, (work * parts / (startup + work * parts)).round(6).astype(str), ""
            ),
        }
    )
    return table.round({"run_time": 6}).to_csv(index_label="job_id").encode()


BATSIM_NODES = 32
BATSCHED_DELAY_S = 5.0  # the default of batsched, which its recorded loads confirm: a job of 149 s counts as 154 s


def batsim_machine(files: Mapping[str, bytes], run: str) -> bytes:
    """Return the machine of one of Batsim's runs with shutdowns: nodes of its platform, and the rule of its options.

    All jobs are delays, which do not compute: busy nodes have the power of idle ones.
    """
    from tracebed.machine.simgrid import classes_of

    power = classes_of(files["platform.xml"].decode(), "platform.xml")[0].power
    assert power is not None
    options = json.loads(files[f"{run}.sched_input.json"])
    idle_s = options["idle_time_to_sedate"]
    sleep = {
        "rule": "subpart",
        "period_s": options["monitoring_period"],
        "idle_s": None if idle_s > MAX_SECONDS else idle_s,
        "margin_s": BATSCHED_DELAY_S,
        "planned_boot_s": options["time_switch_on"],
    }
    if "inertial_alteration" in options:
        factor = float(options["inertial_alteration"].removeprefix("x"))
        sleep |= {"rule": "inertial", "factor": factor, "delay_s": options["upper_llh_threshold"]}
    else:
        sleep["share"] = 1 - options["fraction_of_machines_to_let_awake"]
    nodes = {"count": BATSIM_NODES, "power": asdict(power) | {"busy_w": power.idle_w}}
    return yaml.safe_dump({"classes": [nodes], "sleep": sleep}, sort_keys=False).encode()


def _rows(content: bytes, delimiter: str) -> csv.DictReader[str]:
    return csv.DictReader(io.StringIO(content.decode()), delimiter=delimiter)


def _table(rows: list[str]) -> bytes:
    return ("\n".join(rows) + "\n").encode()


CONVERSIONS: dict[str, Callable[..., bytes]] = {
    "slurm-model-cores": slurm_model_cores,
    "slurm-model-nodes": slurm_model_nodes,
    "slurm-model-run": slurm_model_run,
    "slurm-model-notebook": slurm_model_notebook,
    "slurm-model-simulated": slurm_model_simulated,
    "mallob-plan": mallob_plan,
    "mallob-run": mallob_run,
    "batsim-machine": batsim_machine,
    "amte-plan": amte_plan,
}
"""Name -> function from the contents of the files of a data set, and further arguments, to the table."""
