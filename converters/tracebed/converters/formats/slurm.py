"""Slurm: a bash script that submits a workload to a real cluster, as jobs that sleep or run a program of the user.

Options are those of sbatch(1). The script waits for times since its start, not between jobs, so that a late
submission does not delay the following ones.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, BinaryIO

import numpy as np

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.unsupported_columns import NOT_RIGID, simulated_jobs, warn_of_losses
from tracebed.converters.workload import FloatArray, Kind, Workload
from tracebed.ground.errors import InputError

HELD = {
    *("job_id", "submit_time", "run_time", "time_limit", "nodes", "cores_per_node"),
    *("application", "application_parameters"),
}
DEMANDS = {
    **{"partition": "--partition=", "queue": "--qos=", "features": "--constraint=", "gres": "--gres="},
    **{"licenses": "--licenses=", "reservation": "--reservation="},
}
"""Columns of what a job demands of its cluster -> option."""
CONTROL = re.compile(r"[\0-\x1f\x7f]")
SCRIPT = """#!/bin/bash
# Submits {jobs} jobs in {span:.0f} s: bash THIS [further options of every sbatch, such as --partition=debug]
# Each job runs `sleep SECONDS`; with JOB=PROGRAM in the environment, `PROGRAM SECONDS APPLICATION PARAMETERS`.
# Times are divided by the speed, {speed:g}. Needs bash 5 and GNU sleep.
set -u
declare -i failed=0
now() {{ echo "${{EPOCHREALTIME/[.,]/}}"; }}
start=$(now)
at() {{ # wait until $1 microseconds after the start
    local -i left=$((start + $1 - $(now)))
    if ((left > 0)); then sleep "$((left / 1000000)).$(printf %06d $((left % 1000000)))"; fi
}}
job() {{ # print the command of a job of $1 seconds; $2, $3: application and parameters
    if [[ ${{JOB-}} ]]; then echo "$JOB ${{*@Q}}"; else echo "sleep $1"; fi
}}

"""
END = """
if ((failed > 0)); then echo "$failed of {jobs} jobs were rejected" >&2; exit 1; fi
"""


def recognizes(file: Input) -> bool:
    """Return False, since the format is write-only."""
    return False


def write(workload: Workload, file: BinaryIO, *, speed: float = 1.0, demands: bool = False) -> None:
    """Write the submission script. The first job is submitted at once; all times are divided by `speed`.

    `demands` writes `DEMANDS` and the memory of a node, too, for the cluster of the workload or one like it.
    """
    if not 0 < speed < np.inf:
        raise InputError(f"invalid speed {speed}", hint="use a number above 0")
    workload, counts = simulated_jobs(workload, "Slurm")
    submit, run, limit = (workload.floats(name) / speed for name in ("submit_time", "run_time", "time_limit"))
    minutes = np.maximum(1.0, np.ceil(limit / 60.0))
    held = HELD | {*DEMANDS, "memory_mib"} if demands else HELD
    warn_of_losses(workload, counts | _losses(workload, limit), "the script", held, "left out")
    more = _demands(workload) if demands else [[]] * len(workload)
    file.write(SCRIPT.format(jobs=f"{len(workload):,}", span=submit[-1], speed=speed).encode())
    names = ("job_id", "nodes", "cores_per_node", "application", "application_parameters")
    rows = zip(*(workload.column(name).tolist() for name in names), submit, minutes, run, strict=True)
    for (job_id, nodes, cores, *what, instant, most, seconds), demanded in zip(rows, more, strict=True):
        options = [
            f"--job-name={CONTROL.sub('_', job_id)}",
            f"--nodes={nodes}",
            f"--ntasks-per-node={cores}",
            *([] if most != most else [f"--time={most:.0f}"]),
            *demanded,
            "--output=/dev/null",
        ]
        words = " ".join(map(shlex.quote, options))
        command = " ".join(map(shlex.quote, [_plain(seconds), *what]))
        line = f'at {instant * 1e6:.0f}; sbatch {words} "$@" --wrap="$(job {command})" || failed+=1\n'
        file.write(line.encode("utf-8", "replace"))
    file.write(END.format(jobs=f"{len(workload):,}").encode())


def _demands(workload: Workload) -> list[list[str]]:
    """Return the options of sbatch for what each job demands of its cluster."""
    columns = [[option + text if text else "" for text in workload.texts(name)] for name, option in DEMANDS.items()]
    memory = [f"--mem={np.ceil(mib):.0f}M" if mib > 0 else "" for mib in workload.floats("memory_mib").tolist()]
    return [[CONTROL.sub("_", option) for option in of if option] for of in zip(*columns, memory, strict=True)]


def _plain(seconds: float) -> str:
    """Return a time in s for sleep(1), rounded to milliseconds."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def _losses(workload: Workload, limit: FloatArray) -> dict[str, Any]:
    """Return information that is lost or changed in the script -> number of occurrences, or the jobs."""
    over = workload.floats("run_time") > workload.floats("time_limit")
    return {
        NOT_RIGID: workload.column("kind") != Kind.RIGID,
        "time limits rounded up to whole minutes": (limit % 60 != 0) & ~np.isnan(limit),
        "jobs that run longer than their limit, which Slurm kills": over,
        "job ids with control characters, written as _": sum(
            bool(CONTROL.search(job_id)) for job_id in workload.column("job_id")
        ),
    }


FORMAT = Format(
    "slurm",
    "a script of sbatch lines",
    recognizes,
    suffixes=(".sh",),
    write=write,
)
