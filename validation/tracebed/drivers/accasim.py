"""AccaSim: reader of its dispatching plan (`sched-*`), and driver of the package `accasim` of PyPI.

AccaSim 1.1.3 needs the name `collections.Mapping` of Python before 3.10; the driver supplies it. AccaSim simulates in
whole seconds, and rigid jobs. A node of the workload is a node with one core there. Dates are local times, so that
the driver runs AccaSim in UTC.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.columns import utc
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import FloatArray, Kind, Workload
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.setup import Setup
from tracebed.validation.simulators.assembly import run_of
from tracebed.validation.simulators.messages import output_of, reason_in, status_text
from tracebed.validation.simulators.observed import Observed
from tracebed.validation.simulators.simulator import ExternalSimulator, ReadOptions, SimulateOptions

POLICIES = {"fcfs": "FirstInFirstOut", "easy": "EASYBackfilling"}
"""Policy of tracebed -> class of `accasim.base.scheduler_class` that implements it."""
CAUTION = {"easy": "EASYBackfilling of AccaSim does not protect the head of the queue: it is close to first fit"}
"""Policy -> how AccaSim's policy of this name differs."""
LINE = re.compile(
    r"(?P<job_id>[^;]*);(?P<user>[^;]*);(?P<submit>[^_;]+)__(?P<held>[\d;#]*)__(?P<start>[^;]+);(?P<end>[^;]+);"
    r"(?P<nodes>\d+|NA);(?P<cores>\d+|NA);(?P<memory>-?\d+|NA);(?P<limit>-?\d+|NA);"
)
"""A line of the dispatching plan in the default format of AccaSim."""
DATE = "%Y-%m-%d %H:%M:%S"
PROGRAM = "tracebed.drivers.accasim_process"  # module that the process of AccaSim runs


# -- reading


def recognizes(path: Path) -> bool:
    """Return whether a file is a dispatching plan of AccaSim, or a folder has one."""
    file = _plan(path)
    return file is not None and LINE.match(Input.at(file).header) is not None


def _plan(path: Path) -> Path | None:
    if path.is_dir():
        return next((file for file in sorted(path.glob("sched-*")) if file.stat().st_size), None)
    return path if path.is_file() and path.stat().st_size else None


def read(path: Path, workload: Workload | None, options: ReadOptions) -> Run:
    """Read a dispatching plan, or a folder with one (`sched-*`), in the default format of AccaSim."""
    plan = _plan(path)
    if plan is None:
        raise InputError("has no dispatching plan", where=str(path), hint="give the file sched-... of AccaSim")
    return run_of(observed(plan, options), workload, options)


def observed(plan: Path, options: ReadOptions) -> Observed:
    """Return the jobs of a dispatching plan; dates are in the time zone of the options, by default UTC."""
    file = Input.at(plan)
    fields_of_jobs, places = [], []
    for number, line in file.lines():
        if not line.strip():
            continue
        fields = LINE.match(line)
        if fields is None:
            hint = "write the plan in the default format of AccaSim, or convert it to CSV"
            raise InputError("is not a line of a dispatching plan", where=f"{file.where}:{number}", hint=hint)
        fields_of_jobs.append(fields.groupdict())
        places.append(number)
    table = pd.DataFrame(fields_of_jobs).replace("NA", "")
    if not len(table):
        raise InputError("contains no jobs", where=file.where, hint="check that AccaSim ended without an error")
    jobs = pd.DataFrame(
        {
            **{name: _dates(table[name], file, places, options.time_zone) for name in ("submit", "start", "end")},
            "job_id": table["job_id"].astype("str"),
            "user": table["user"].astype("str"),
            "cores": pd.to_numeric(table["cores"]),
            "time_limit": pd.to_numeric(table["limit"]).where(lambda limit: limit > 0),
        }
    )
    return Observed(
        jobs=jobs,
        source=file.source,
        where=file.where,
        place=lambda row: f"{file.where}:{places[row]}",
        format="accasim",
        program="accasim",
        resolution_s=1.0,
        unix=float(jobs["submit"].min()) > 5e8,
    )


def _dates(texts: pd.Series[str], file: Input, places: Sequence[int], zone: str) -> FloatArray:
    dates = pd.to_datetime(texts, format=DATE, errors="coerce")
    if dates.isna().any():
        row = int(dates.isna().to_numpy().argmax())
        hint = "correct or remove the line"
        raise InputError(f"{texts.iloc[row][:40]!r} is not a date", where=f"{file.where}:{places[row]}", hint=hint)
    seconds = dates.to_numpy().astype("datetime64[s]").astype(np.float64)
    return utc(seconds, zone or "UTC")


# -- driving


def simulate(workload: Workload, nodes: Sequence[NodeFacts], setup: Setup, options: SimulateOptions) -> Run:
    """Run AccaSim in a separate process. Times are whole seconds, and each job has its requested size."""
    scheduling = setup.scheduling
    policy, over_limit = scheduling.policy, scheduling.over_limit
    if policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise InputError(f"AccaSim has no policy {policy!r}", hint=f"use {known}, or another simulator")
    defaults = registry.parameters(registry.resolve(policy, {})[1])
    if given := [name for name, value in scheduling.policy_parameters.items() if value != defaults.get(name)]:
        raise InputError(f"policies of AccaSim have no parameter {given[0]}", hint="remove --policy-option")
    if over_limit not in (OverLimit.EXTEND, OverLimit.NOW):
        raise InputError("AccaSim does not end jobs at their limit", hint="use --over-limit extend")
    if find_spec("accasim") is None:
        raise InputError("AccaSim is not installed", hint="pip install accasim==1.1.3")
    jobs, counts = workload.runnable()
    if not len(jobs):
        raise InputError("no job has a run time and a size", hint="check the workload")
    with ExitStack() as stack:
        folder = options.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tracebed-accasim-")))
        folder.mkdir(parents=True, exist_ok=True)
        changes = _write_input(jobs, len(nodes), folder, over_limit)
        tolerate({**counts, **changes}, where="AccaSim")
        _start(folder, POLICIES[policy], options)
        plan = folder / "output" / "sched-workload.swf"
        fitting = int((jobs.ints("nodes") <= len(nodes)).sum())
        seen = observed(plan, ReadOptions()) if plan.is_file() and plan.stat().st_size else None
        if seen is None or len(seen.jobs) != fitting:
            ended = 0 if seen is None else len(seen.jobs)
            what = f"AccaSim ended {ended:,} of the {fitting:,} jobs that fit on the machine"
            raise InputError(what, where=str(folder), hint="give --with accasim,keep=FOLDER to see its files")
        return _run(seen, jobs, nodes, setup, options)


def _write_input(jobs: Workload, nodes: int, folder: Path, over_limit: OverLimit) -> dict[str, int]:
    """Write the workload as SWF and the system; return what is changed -> number of occurrences."""
    submit, run = jobs.floats("submit_time") - jobs.floats("submit_time")[0], jobs.floats("run_time")
    limit = jobs.floats("time_limit")
    limit = np.where(np.isnan(limit), run, limit)
    if over_limit is OverLimit.EXTEND:
        limit = np.maximum(limit, run)
    whole = [np.rint(submit), np.maximum(np.rint(run), 1), np.maximum(np.ceil(limit - 1e-9), 1)]
    rows = zip(*(times.astype(np.int64).tolist() for times in whole), jobs.ints("nodes").tolist(), strict=True)
    lines = [
        f"{number} {at} -1 {time} {size} -1 -1 {size} {most} -1 1 1 1 -1 1 1 -1 -1\n"
        for number, (at, time, most, size) in enumerate(rows, 1)
    ]
    (folder / "workload.swf").write_text("".join(lines))
    system = {"groups": {"node": {"core": 1}}, "resources": {"node": nodes}, "start_time": 0}
    (folder / "system.json").write_text(json.dumps(system | {"equivalence": {"processor": {"core": 1}}}))
    rounded = (whole[0] != submit) | (whole[1] != run)
    rigid = jobs.column("kind") == Kind.RIGID
    return {
        "submit times and run times rounded to whole seconds": int(rounded.sum()),
        "jobs that are not rigid, simulated at their requested size": int((~rigid).sum()),
    }


def _start(folder: Path, policy: str, options: SimulateOptions) -> None:
    """Run AccaSim in `folder`; its processes are killed at the time-out."""
    command = [sys.executable, "-m", PROGRAM, policy]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(options.timeout_s)
        except subprocess.TimeoutExpired:
            hint = "give a longer timeout: --with accasim,timeout=2h"
            raise InputError(f"AccaSim did not end within {options.timeout_s:g} s", hint=hint) from None
        finally:
            _end(process)
    if status:
        why = reason_in(output_of(folder / "log.txt")) or "no message"
        hint = "give --with accasim,keep=FOLDER to see its files"
        raise InputError(f"AccaSim ended with {status_text(status)}: {why}", hint=hint)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the remaining processes of AccaSim."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of them ended
    process.wait()


def _run(seen: Observed, jobs: Workload, nodes: Sequence[NodeFacts], setup: Setup, options: SimulateOptions) -> Run:
    """Return the run of a plan with the numbers of `jobs`, from 1, as job ids."""
    numbers = pd.to_numeric(seen.jobs["job_id"]).to_numpy() - 1
    named = seen.jobs.assign(
        job_id=jobs.column("job_id")[numbers],
        submit=jobs.floats("submit_time")[numbers],
        start=seen.jobs["start"] + jobs.floats("submit_time")[0],
        end=seen.jobs["end"] + jobs.floats("submit_time")[0],
        cores=np.nan,
    )
    policy = setup.scheduling.policy
    reading = ReadOptions(policy=policy, name=options.name)
    run = run_of(replace(seen, jobs=named, nodes=nodes, version=installed(), match="id", unix=False), jobs, reading)
    large = (run.jobs["nodes"] > len(nodes)).to_numpy()
    run.jobs.loc[large, "state"] = JobState.REJECTED.value
    run.jobs.loc[large, "reason"] = "larger than the machine"
    info = run.info
    info.counts = {"jobs": len(run.jobs)} | {str(k): int(v) for k, v in run.jobs["state"].value_counts().items()}
    info.warnings = [warning for warning in info.warnings if "not in the file" not in warning]
    if policy in CAUTION:
        info.warnings.append(CAUTION[policy])
    if large.any():
        info.warnings.append(f"{int(large.sum()):,} jobs rejected: they need more than {len(nodes):,} nodes")
    info.setup = setup
    info.imported = {}
    return run


def installed(options: Mapping[str, str] | None = None) -> str:
    """Return the version of the installed package, which `options` do not change; empty if it is missing."""
    with suppress(PackageNotFoundError):
        return version("accasim")
    return ""


SIMULATOR = ExternalSimulator(
    name="accasim",
    title="AccaSim: its dispatching plan sched-*, and the package accasim",
    read=read,
    recognizes=recognizes,
    simulate=simulate,
    version=installed,
    supports=frozenset({"over_limit"}),
)
"""AccaSim: its dispatching plan sched-*, and the package accasim."""
