"""The run of a file of another program: its jobs matched with a workload, on the clock of the workload."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracebed.converters.provenance import Provenance, Step, System
from tracebed.converters.workload import MAX_SIZE, BoolArray, Kind, Workload
from tracebed.ground.display import counted
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.states import JobState
from tracebed.ground.table import Table, texts
from tracebed.orchestrator.run import Run, RunInfo, workload_facts
from tracebed.orchestrator.scheduling.policies.registry import POLICIES
from tracebed.orchestrator.setup import UNKNOWN_POLICY, Setup
from tracebed.validation.simulators.allocations import RESIZABLE, allocations_of, reconfigurations_of
from tracebed.validation.simulators.observed import SEVERAL_RUNS, Observed, states_of
from tracebed.validation.simulators.pairing import Pairing, check_placeholder, check_unit, pair
from tracebed.validation.simulators.simulator import ReadOptions
from tracebed.validation.simulators.times import Times, check_times, first_of, relative, times_of

MISSING = "not in the file"
UNRECORDED = "malleable jobs without a record of their resizes, whose run times are taken to be those on their sizes"


def run_of(observed: Observed, workload: Workload | None, options: ReadOptions) -> Run:
    """Return the run in a file.

    Args:
        observed: the jobs of the file.
        workload: the workload that the jobs belong to. None: it is made from the file.
        options: the options of the import.

    Raises:
        InputError: the jobs cannot be matched, times are missing or contradict each other, or the jobs need more nodes
            than there are.
    """
    if not len(observed.jobs):
        raise InputError("contains no jobs", where=observed.where, hint="check that the file is complete")
    policy, facts, own = options.policy or observed.policy, options.workload_facts, list[str]()
    if workload is None:
        workload, pairing = workload_in(observed, options)
        facts = workload_facts(workload, options.name)
        own = _own_run_times(observed, workload)
    else:
        facts = facts or workload_facts(workload, options.name)
        workload = _as_scheduled(workload, policy)
        pairing = pair(observed, workload, options)
    times = times_of(observed, workload, pairing)
    if not options.unit and pairing.by != "itself":
        check_unit(observed, workload, pairing, times.end - times.start)
    check_times(observed, pairing, times)
    states, reasons, warnings = _states(observed, pairing, times)
    never = (states == JobState.CANCELLED) & (times.start == times.end)
    if never.any():  # older versions of Slurm set the start of a job that never started to its end
        times = replace(times, start=np.where(never, np.nan, times.start), end=np.where(never, np.nan, times.end))
        warnings.append(f"{int(never.sum()):,} jobs cancelled with a run time of 0 count as not started")
    warnings += [*own, *_counts(observed, workload, pairing, options), *_partial_nodes(observed, workload, options)]
    nodes, allocations, unknown, more = allocations_of(observed, workload, pairing, times, options)
    jobs = Table(
        {
            "job_id": workload.arrow("job_id"),
            "kind": workload.arrow("kind"),
            "submit_planned": workload.floats("submit_time"),
            "submit": times.submit,
            "start": times.start,
            "end": times.end,
            "state": states,
            "reason": texts(reasons),
            "nodes": workload.ints("nodes"),
            "run_time": workload.floats("run_time"),
            "time_limit": workload.floats("time_limit"),
            "user": workload.arrow("user"),
        }
    )
    real = options.side == "real"
    version = {observed.program: observed.version} if observed.program and observed.version else {}
    info = RunInfo(
        source="log" if real else observed.program or observed.format,
        execution="logged" if real else "simulated",
        nodes=nodes,
        workload=dict(facts),
        setup=Setup.of(policy or UNKNOWN_POLICY),
        resolution_s=observed.resolution,
        counts={"jobs": len(workload), **Counter(states.tolist())},
        warnings=[*observed.warnings, *warnings, *more],
        imported=_origin(observed, pairing) | {"nodes_of_jobs": _origin_of_nodes(observed, allocations)},
        unknown=unknown,
    )
    info.versions |= version
    return Run(info, jobs, allocations, reconfigurations_of(observed, workload, pairing))


def _as_scheduled(workload: Workload, policy: str) -> Workload:
    """Return the workload with rigid jobs only if `policy` is an installed policy that resizes no job."""
    if policy not in POLICIES.entries or POLICIES.load(policy).malleable:
        return workload
    if (workload.column("kind") == Kind.RIGID.value).all():
        return workload
    return Workload(workload.table.assign(kind=Kind.RIGID.value), workload.provenance)


def workload_in(observed: Observed, options: ReadOptions) -> tuple[Workload, Pairing]:
    """Return the workload made from the jobs of a file, and the row of each job.

    Run times are those of the file; that of a job that was resized is unknown, since it holds for no single size. Time
    0 is the first submission.

    Raises:
        InputError: submit times are missing, or a job id occurs twice.
    """
    submit, start, end = (observed.floats(name) for name in ("submit", "start", "end"))
    wait, run, response = (observed.floats(name) for name in ("wait", "run", "response"))
    submit = first_of(submit, start - wait, end - response)
    if not np.isfinite(submit).all():
        row = int((~np.isfinite(submit)).argmax())
        hint = "name the column of submit times (--columns submit=NAME), or give the --workload"
        raise observed.error(row, "has no submit time, so no workload can be made from the file", hint)
    offset = float(submit.min())
    start = first_of(start, submit + wait)
    ran = np.where(_resized(observed), np.nan, first_of(run, end - start, response - (start - submit)))
    cores = observed.floats("cores")
    per_node = options.cores_per_node or 1
    nodes = first_of(observed.floats("nodes"), np.ceil(cores / per_node))
    ids = observed.texts("job_id")
    if not observed.is_known("job_id"):
        ids = pd.Series([str(number) for number in range(1, len(submit) + 1)], dtype="str")
    twice = ids.duplicated().to_numpy()
    if twice.any():
        check_placeholder(observed, ids, int(twice.argmax()))
        what = f"occurs twice ({int(twice.sum()):,} rows are repeated)"
        raise observed.error(int(twice.argmax()), what, f"correct or remove the line; {SEVERAL_RUNS}")
    kind = observed.texts("kind").str.lower()
    kinds = kind.where(kind.isin([*Kind]), Kind.RIGID.value)
    if (
        bad := (np.isfinite(nodes) & ((nodes < 1) | (nodes > MAX_SIZE) | (nodes != np.floor(nodes))))
        .nonzero()[0]
        .tolist()
    ):
        raise observed.error(bad[0], f"has {nodes[bad[0]]:g} nodes")
    table = pd.DataFrame(
        {
            "job_id": ids,
            "submit_time": relative(submit, offset),
            "run_time": np.where(observed.is_known("run_time"), observed.floats("run_time"), ran),
            "time_limit": observed.floats("time_limit"),
            "nodes": np.nan_to_num(nodes).astype(np.int64),
            "cores_per_node": per_node,
            "kind": kinds,
            "user": observed.texts("user"),
            "row": np.arange(len(submit)),
        }
    )
    table = table.iloc[np.argsort(table["submit_time"].to_numpy(), kind="stable")]
    total = options.nodes or (len(observed.nodes) if observed.nodes else None)
    provenance = Provenance(
        system=System(total, options.cores_per_node or (observed.nodes[0].cores if observed.nodes else None)),
        unix_start=offset if observed.unix else None,
        sources=(observed.source,),
        steps=(Step("import", {"from": observed.format}),),
    )
    rows = table.pop("row").to_numpy()
    workload = Workload(table, provenance, where=observed.where)
    return workload, Pairing(rows, "itself", offset, np.empty(0, dtype=np.int64))


def _resized(observed: Observed) -> BoolArray:
    """Return whether the file has a resize of each job, shape (rows,)."""
    resizes = observed.reconfigurations
    return np.isin(np.arange(len(observed.jobs)), [] if resizes is None else resizes["row"].to_numpy())


def _own_run_times(observed: Observed, workload: Workload) -> list[str]:
    """Return warnings about the run times of malleable jobs of a workload that was made from the file."""
    resized = int((_resized(observed) & np.isnan(workload.floats("run_time"))).sum())
    others = int(np.isin(workload.column("kind"), RESIZABLE).sum()) - resized
    counts = {
        "resized jobs, whose run times hold for no single size, and are unknown": resized,
        UNRECORDED: 0 if observed.reconfigurations is not None or observed.is_known("run_time") else others,
    }
    return [
        f"{what}: {counted(count, 'job')} (--workload FILE names the workload)"
        for what, count in counts.items()
        if count
    ]


# -- states and counts


def _states(observed: Observed, pairing: Pairing, times: Times) -> tuple[npt.NDArray[np.object_], list[str], list[str]]:
    """Return the state of each job, its reason, and warnings."""
    words = observed.texts("state")
    known, strange = states_of(words)
    warnings = []
    if strange:
        shown = ", ".join(repr(word[:30]) for word in strange[:5])
        count = int(words.isin(strange).sum())
        warnings.append(f"{count:,} jobs have a state with an unknown meaning: {shown}")
    ended = np.isfinite(times.start) & np.isfinite(times.end)
    states, reasons = [], []
    for row, done in zip(pairing.rows.tolist(), ended.tolist(), strict=True):
        state = known[row] if row >= 0 else JobState.UNKNOWN
        reason = "" if row >= 0 else MISSING
        if state is None:
            state = JobState.COMPLETED if done else JobState.UNKNOWN
        if not done and state in (JobState.COMPLETED, JobState.KILLED):
            state, reason = JobState.UNKNOWN, "no start or end in the file"
        states.append(str(state))
        reasons.append(reason)
    return np.array(states, dtype=object), reasons, warnings


def _counts(observed: Observed, workload: Workload, pairing: Pairing, options: ReadOptions) -> list[str]:
    """Return warnings about jobs and rows without a counterpart.

    Raises:
        InputError: a prediction has jobs that are not in the workload.
    """
    found = []
    absent = int((pairing.rows < 0).sum())
    if absent:
        first = workload.column("job_id")[int((pairing.rows < 0).argmax())]
        found.append(
            f"{absent:,} of {len(workload):,} jobs are not in the file, and count as not ended (first: {first})"
        )
    strangers = pairing.unmatched_rows
    if len(strangers):
        what = f"{len(strangers):,} of {len(observed.jobs):,} rows match no job of the workload"
        place = observed.place(int(strangers[0]))
        if options.side == "predicted":
            hint = "check --workload, or match jobs by --match FILE, id, order or shape"
            raise InputError(what, where=place, hint=hint)
        found.append(f"{what}, and are ignored (first: {place})")
    return found


def _partial_nodes(observed: Observed, workload: Workload, options: ReadOptions) -> list[str]:
    """Return a warning if jobs hold a part of the cores of a node: a scheduler of nodes gives them the whole node.

    Cores count as nodes, with a warning, if the number of cores of a node is unknown.
    """
    if observed.is_known("nodes") or not observed.is_known("cores"):
        return []
    cores, whole = observed.floats("cores"), max(workload.ints("cores_per_node").max(initial=1), 1)
    if not (options.cores_per_node or workload.provenance.system.cores_per_node) and whole == 1:
        many = counted(int((cores > 1).sum()), "job")
        return (
            [
                f"{many} on several cores, and the cores of a node are unknown: each core counts as a node "
                "(import --cores-per-node sets them)"
            ]
            if (cores > 1).any()
            else []
        )
    part = int((np.isfinite(cores) & (cores % whole > 0)).sum())
    if not part:
        return []
    return [f"{part:,} of {len(cores):,} jobs hold a part of a node of {whole} cores: the node counts whole for each"]


def _origin_of_nodes(observed: Observed, allocations: pd.DataFrame | Table | None) -> str:
    """Return the origin of the nodes of each job: `recorded`, `assigned` (their number is recorded) or `unknown`."""
    if allocations is None:
        return "unknown"
    return "assigned" if observed.allocations is None else "recorded"


def _origin(observed: Observed, pairing: Pairing) -> dict[str, object]:
    """Return `RunInfo.imported`."""
    return {
        "from": observed.format,
        "file": observed.source.name,
        "sha256": observed.source.sha256,
        "bytes": observed.source.bytes,
        "program": observed.program,
        "version": observed.version,
        "matched_by": pairing.by,
        "offset_s": pairing.offset_s,
        "rows": len(observed.jobs),
        "rows_without_job": len(pairing.unmatched_rows),
        "jobs_without_row": int((pairing.rows < 0).sum()),
        **observed.facts,
    }


def facts_of(run: Run) -> tuple[Workload, dict[str, object]]:
    """Return the workload of a run, derived from its jobs, and the facts of the workload for other runs of it.

    Raises:
        InputError: the run has no jobs.
    """
    jobs = run.jobs
    table = pd.DataFrame(
        {
            "job_id": jobs["job_id"],
            "submit_time": jobs["submit_planned"],
            "run_time": jobs["run_time"],
            "time_limit": jobs["time_limit"],
            "nodes": jobs["nodes"],
            "kind": jobs["kind"],
            "user": jobs["user"],
        }
    )
    cores = max((node.cores for node in run.info.nodes), default=None)
    raw = run.info.workload.get("provenance") or {}
    start = raw.get("unix_start")
    provenance = Provenance(system=System(run.total_nodes or None, cores), unix_start=start)
    return Workload(table, provenance), dict(run.info.workload)


def derived_workload(run: Run) -> tuple[Workload, bool]:
    """Return the workload of a run, derived from its jobs, and whether its hash is that of the workload.

    A run does not have all properties of all jobs: it lacks the sizes that malleable jobs may have.
    """
    workload, facts = facts_of(run)
    sizes = {1, workload.provenance.system.cores_per_node or 1}
    for cores in sorted(sizes):  # the table of a run lacks the cores that a job requested of each node
        found = Workload(workload.table.assign(cores_per_node=cores), workload.provenance)
        if found.sha256 == facts.get("sha256"):
            return found, True
    return workload, False


def workload_of(run: Run) -> Workload:
    """Return the workload of a run, derived from its jobs.

    Raises:
        InputError: the run does not have all properties of its jobs.
    """
    workload, is_whole = derived_workload(run)
    if not is_whole:
        what = f"the workload {run.info.workload.get('name')} has properties of jobs that its runs lack"
        raise InputError(what, hint="use the file of the workload")
    if run.info.imported.get("matched_by") == "itself":
        resized = np.isin(run.jobs["job_id"], run.reconfigurations["job_id"]) & run.jobs["run_time"].isna()
        if resized.any():
            resized_jobs = counted(int(resized.sum()), "resized job")
            what = (
                f"the file is its own workload, but it has {resized_jobs}, with run times that hold for no single size"
            )
            raise InputError(what, hint="use the file of the workload")
        if "reconfigurations" in run.info.unknown:
            jobs = int(run.jobs["kind"].isin([*RESIZABLE]).sum())
            tolerate({UNRECORDED: jobs})
    return workload


def workload_for_import(options: ReadOptions, run: Run) -> tuple[Workload, ReadOptions]:
    """Return the workload of `run`, and the options for the import of another run of it."""
    workload, facts = facts_of(run)
    return workload, replace(options, workload_facts=facts)
