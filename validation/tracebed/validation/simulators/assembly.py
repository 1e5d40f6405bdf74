"""The run of a file of another program: its jobs matched with a workload, on the clock of the workload.

Times that the file lacks are derived from the others. The nodes and allocations are recorded, assigned to jobs of
constant size, or unknown.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracebed.converters.description import part_jobs
from tracebed.converters.provenance import Provenance, Step, System
from tracebed.converters.scaling import scale
from tracebed.converters.workload import MAX_SIZE, BoolArray, FloatArray, IntArray, Kind, Workload
from tracebed.ground.display import counted
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.states import JobState
from tracebed.ground.table import Table, expanded, repeated, take, texts
from tracebed.machine.nodes import NodeFacts, nodes_of
from tracebed.orchestrator.run import Run, RunInfo, workload_facts
from tracebed.orchestrator.runs.checks import ROUNDING_S
from tracebed.orchestrator.scheduling.policies.registry import POLICIES
from tracebed.orchestrator.setup import UNKNOWN_POLICY, Setup
from tracebed.validation.simulators.history import assign_nodes
from tracebed.validation.simulators.observed import SEVERAL_RUNS, Observed, states_of
from tracebed.validation.simulators.pairing import SHOWN, Pairing, check_placeholder, check_unit, pair, sizes_of
from tracebed.validation.simulators.simulator import ReadOptions

MISSING = "not in the file"
UNRECORDED = "malleable jobs without a record of their resizes, whose run times are taken to be those on their sizes"

SHARED_S = 1.0  # two jobs share a node if both hold it for longer than this, s: rounded times overlap by a second
NUMBERED = "check the number of nodes of the machine (import --nodes) and the files of the simulation"
NO_SIZES = "the number of nodes of each job is not in the file"
NO_COURSES = "the file does not record from when to when a job held each of its nodes"
NO_NODES = "the number of nodes is unknown (import --nodes)"
NO_RESIZES = "the file does not record when malleable jobs were resized"
RESIZABLE = (Kind.MALLEABLE, Kind.EVOLVING)


def run_of(observed: Observed, workload: Workload | None, options: ReadOptions) -> Run:
    """Return the run in a file, with the jobs of `workload`; None: the workload is made from the file."""
    if not len(observed.jobs):
        raise InputError("contains no jobs", where=observed.where, hint="check that the file is complete")
    observed = observed.at_speed(options.speed)
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
            **{name: workload.arrow(name) for name in ("user", "group", "partition")},
        }
    )
    real = options.side == "real"
    version = {observed.program: observed.version} if observed.program and observed.version else {}
    info = RunInfo(
        source="log" if real else observed.program or observed.format,
        execution="logged" if real else "simulated",
        nodes=nodes,
        workload=dict(facts),
        setup=Setup.of(policy or UNKNOWN_POLICY, speed=options.speed),
        resolution_s=observed.resolution,
        counts={"jobs": len(workload), **Counter(states.tolist())},
        warnings=[*observed.warnings, *warnings, *more],
        imported=_origin(observed, workload, pairing)
        | {"nodes_of_jobs": _origin_of_nodes(observed, allocations)}
        | dict(observed.facts),  # a file may have computed sizes, on assigned nodes
        unknown=unknown,
    )
    info.versions |= version
    samples = samples_of(observed, pairing, len(nodes))
    return Run(info, jobs, allocations, reconfigurations_of(observed, workload, pairing), samples)


def at_speed(workload: Workload, options: ReadOptions) -> Workload:
    """Return the workload in a file on the clock of the options; without logged times at a speed other than 1."""
    return workload if options.speed == 1 else scale(workload, run_time=options.speed, arrivals=options.speed)


def _as_scheduled(workload: Workload, policy: str) -> Workload:
    """Return the workload with rigid jobs only if `policy` is an installed policy that resizes no job."""
    if policy not in POLICIES.entries or POLICIES.load(policy).malleable:
        return workload
    if (workload.column("kind") == Kind.RIGID.value).all():
        return workload
    return Workload(workload.table.assign(kind=Kind.RIGID.value), workload.provenance)


def workload_in(observed: Observed, options: ReadOptions) -> tuple[Workload, Pairing]:
    """Return the workload made from the jobs of a file, and the row of each job. Time 0 is the first submission."""
    submit, start, end = (observed.floats(name) for name in ("submit", "start", "end"))
    wait, run, response = (observed.floats(name) for name in ("wait", "run", "response"))
    submit = first_of(submit, start - wait, end - response)
    if not np.isfinite(submit).all():
        row = int((~np.isfinite(submit)).argmax())
        hint = "name the column of submit times (--columns submit=NAME), or give the --workload"
        raise observed.error(row, "has no submit time, so no workload can be made from the file", hint)
    offset = float(submit.min())
    start = first_of(start, submit + wait)
    # Run times are those of the file; that of a job that was resized is unknown, since it holds for no single size.
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
    """Return warnings about jobs and rows without a counterpart; a prediction has only jobs of the workload."""
    warnings = []
    absent = int((pairing.rows < 0).sum())
    if absent:
        shown = ", ".join([*_missing(workload, pairing), *(["..."] if absent > SHOWN else [])])
        warnings.append(f"{absent:,} of {len(workload):,} jobs are not in the file, and count as not ended ({shown})")
    strangers = pairing.unmatched_rows
    if len(strangers):
        what = f"{len(strangers):,} of {len(observed.jobs):,} rows match no job of the workload"
        place = observed.place(int(strangers[0]))
        if options.side == "predicted":
            hint = "check --workload, or match jobs by --match FILE, id, order or shape"
            raise InputError(what, where=place, hint=hint)
        warnings.append(f"{what}, and are ignored (first: {place})")
    return warnings


def _missing(workload: Workload, pairing: Pairing) -> list[str]:
    """Return the ids of the first `SHOWN` jobs that are not in the file."""
    return list(map(str, workload.column("job_id")[pairing.rows < 0][:SHOWN]))


def _partial_nodes(observed: Observed, workload: Workload, options: ReadOptions) -> list[str]:
    """Return a warning if jobs hold a part of the cores of a node: a scheduler of nodes gives them the whole node."""
    if observed.is_known("nodes") or not observed.is_known("cores"):
        return []
    cores, whole = observed.floats("cores"), max(workload.ints("cores_per_node").max(initial=1), 1)
    # Cores count as nodes, with a warning, if the number of cores of a node is unknown.
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


def _origin(observed: Observed, workload: Workload, pairing: Pairing) -> dict[str, object]:
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
        "missing_jobs": _missing(workload, pairing),
        **observed.facts,
    }


def facts_of(run: Run) -> tuple[Workload, dict[str, object]]:
    """Return the workload of a run, derived from its jobs, and the facts of the workload for other runs of it."""
    jobs = run.jobs
    table = pd.DataFrame(
        {
            "job_id": jobs["job_id"],
            "submit_time": jobs["submit_planned"],
            "run_time": jobs["run_time"],
            "time_limit": jobs["time_limit"],
            "nodes": jobs["nodes"],
            "kind": jobs["kind"],
            **{name: jobs[name] for name in ("user", "group", "partition")},
        }
    )
    cores = max((node.cores for node in run.info.nodes), default=None)
    raw = run.info.workload.get("provenance") or {}
    start = raw.get("unix_start")
    provenance = Provenance(system=System(run.total_nodes or None, cores), unix_start=start)
    return Workload(table, provenance), dict(run.info.workload)


def derived_workload(run: Run) -> tuple[Workload, bool]:
    """Return the workload of a run, derived from its jobs, and whether its hash is that of the workload."""
    # A run does not have all properties of all jobs: it lacks the sizes that malleable jobs may have.
    workload, facts = facts_of(run)
    sizes = {1, workload.provenance.system.cores_per_node or 1}
    for cores in sorted(sizes):  # the table of a run lacks the cores that a job requested of each node
        candidate = Workload(workload.table.assign(cores_per_node=cores), workload.provenance)
        if candidate.sha256 == facts.get("sha256"):
            return candidate, True
    return workload, False


def workload_of(run: Run) -> Workload:
    """Return the workload of a run, derived from its jobs, if the run has all properties of its jobs."""
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


def observed_run_times(workload: Workload, run: Run) -> Workload:
    """Return the workload with the run times of a run of it; jobs that did not end, or were resized, keep their own."""
    times = run.jobs[~run.jobs["job_id"].isin(run.reconfigurations["job_id"])].set_index("job_id")
    ran = (times["end"] - times["start"]).reindex(workload.column("job_id")).to_numpy(dtype=np.float64)
    table = workload.table.assign(run_time=np.where(np.isfinite(ran), ran, workload.floats("run_time")))
    step = Step("observed run times", {"run": run.info.imported["sha256"]})
    return Workload(table, replace(workload.provenance, steps=(*workload.provenance.steps, step)))


def workload_for_import(options: ReadOptions, run: Run) -> tuple[Workload, ReadOptions]:
    """Return the workload of `run`, and the options for the import of another run of it."""
    workload, facts = facts_of(run)
    return workload, replace(options, workload_facts=facts)


def allocations_of(
    observed: Observed, workload: Workload, pairing: Pairing, times: Times, options: ReadOptions
) -> tuple[list[NodeFacts], pd.DataFrame | Table | None, dict[str, str], list[str]]:
    """Return the nodes of the run, the table of allocations, the unknown data, and warnings."""
    resizable = np.isin(workload.column("kind"), RESIZABLE) & np.isfinite(times.start)
    unknown = {}
    if resizable.any() and observed.reconfigurations is None:
        unknown["reconfigurations"] = NO_RESIZES
    nodes = _nodes(observed, workload, options)
    if not nodes:
        return [], None, unknown | dict.fromkeys(("nodes", "allocations"), NO_NODES), []
    if observed.allocations is not None and "reconfigurations" not in unknown:
        recorded = _recorded(observed, workload, pairing, times, nodes)
        return nodes, recorded, unknown, _shared(recorded, nodes)
    size = _sizes(observed, workload, pairing)
    ran = np.isfinite(times.start)
    if resizable.any():
        what = NO_SIZES if observed.allocations is None else NO_COURSES
        return nodes, None, unknown | {"allocations": f"{what}: {int(resizable.sum()):,} jobs are malleable"}, []
    if not (size[ran] > 0).all():
        lacking = int((size[ran] <= 0).sum())
        return nodes, None, unknown | {"allocations": f"{NO_SIZES}: unknown for {lacking:,} of {int(ran.sum()):,}"}, []
    allocations, assigned, warnings = _assigned(observed, workload, times, size, ran, nodes, options)
    if len(assigned) > len(nodes) and (parts := part_jobs(workload)):
        what = (
            f"{warnings[0]}: {parts:,} jobs on a part of a node count as jobs of the whole node, and allocations are "
        )
        return nodes, None, unknown | {"allocations": "jobs share nodes"}, [f"{what}unknown"]
    return assigned, allocations, unknown, [f"{warning}: nodes were added" for warning in warnings]


def _nodes(observed: Observed, workload: Workload, options: ReadOptions) -> list[NodeFacts]:
    """Return the nodes of the machine: of the options, the file or the workload; empty if unknown."""
    own = workload.provenance.system
    cores = options.cores_per_node or own.cores_per_node or int(workload.ints("cores_per_node").max(initial=1))
    if options.nodes is None and observed.nodes:
        return list(observed.nodes)
    total = options.nodes or own.nodes
    return nodes_of(System(total, cores)) if total else []


def _sizes(observed: Observed, workload: Workload, pairing: Pairing) -> IntArray:
    """Return the nodes that each job held, shape (jobs,): of the file or, for rigid jobs, of the workload; else 0."""
    stated = np.where(pairing.rows < 0, np.nan, sizes_of(observed, workload)[pairing.rows])
    rigid = workload.column("kind") == Kind.RIGID
    sizes = np.where(np.isfinite(stated), stated, np.where(rigid, workload.ints("nodes"), 0))
    return np.asarray(sizes, dtype=np.int64)


def _assigned(
    observed: Observed,
    workload: Workload,
    times: Times,
    size: IntArray,
    ran: BoolArray,
    nodes: list[NodeFacts],
    options: ReadOptions,
) -> tuple[Table, list[NodeFacts], list[str]]:
    """Assign nodes to jobs of constant size, so that as many are busy as in the file."""
    jobs = np.flatnonzero(ran)
    start = times.start[jobs]
    last = np.nanmax(np.concatenate([times.start[jobs], times.end[jobs]]))
    end = np.where(np.isfinite(times.end[jobs]), times.end[jobs], last)
    # Rounded times of two jobs may overlap by the resolution, so that nodes are released that much earlier.
    released = np.maximum(start, end - max(observed.resolution, ROUNDING_S))
    owner, node, count, busiest = assign_nodes(start, released, size[jobs])
    warnings = []
    if busiest > len(nodes):
        what = f"up to {busiest:,} nodes are busy at once, but the machine has {len(nodes):,}"
        if (options.side == "predicted" or options.nodes is not None) and not part_jobs(workload):
            hint = (
                "check the number of nodes (import --nodes), the sizes of jobs (nodes or cores? shared?) and the times"
            )
            raise InputError(what, where=observed.where, hint=hint)
        warnings.append(what)
        nodes = nodes_of(System(busiest, nodes[0].cores))
    table = Table(
        {
            "job_id": take(workload.arrow("job_id"), jobs[owner]),
            "node": node,
            "count": count,
            "start": start[owner],
            "end": times.end[jobs][owner],
            "cores": np.full(len(owner), nodes[0].cores),
            "cpus": repeated("", len(owner)),
        }
    )
    return table, nodes, warnings


def _recorded(
    observed: Observed, workload: Workload, pairing: Pairing, times: Times, nodes: list[NodeFacts]
) -> pd.DataFrame:
    """Return the allocations of the file, within the times of their jobs, up to the resolution."""
    rows = observed.allocations
    assert rows is not None
    job_of = np.full(len(observed.jobs), -1, dtype=np.int64)
    job_of[pairing.rows[pairing.found]] = pairing.found
    job = job_of[rows["row"].to_numpy()]
    rows, job = rows[job >= 0], job[job >= 0]
    begin, until = times.start[job], times.end[job]
    start = rows["start"].to_numpy(dtype=np.float64) - pairing.offset_s if "start" in rows else begin
    end = rows["end"].to_numpy(dtype=np.float64) - pairing.offset_s if "end" in rows else until
    tolerance = max(observed.resolution, ROUNDING_S)
    outside = (start < begin - tolerance) | (end > until + tolerance)
    first = rows["node"].to_numpy()
    high = first + rows["count"].to_numpy()
    if len(rows) and (highest := int(high.max()) - 1) >= len(nodes):
        lowest = int(first.min())
        if highest - lowest >= len(nodes):
            at = int((high - lowest > len(nodes)).argmax())
            what = f"holds node number {high[at] - 1:,}, but there are {len(nodes):,} nodes, numbered from {lowest:,}"
            raise observed.error(int(rows["row"].iloc[at]), what, NUMBERED)
        first = first - lowest  # the numbers of OAR begin at 1
    hint = "check the number of nodes (import --nodes) and the files of the simulation"
    if outside.any():
        at = int(outside.argmax())
        what = f"holds nodes from {start[at]:,.6g} to {end[at]:,.6g} s, outside of its own times"
        raise observed.error(int(rows["row"].iloc[at]), what, hint)
    cores = np.array([node.cores for node in nodes], dtype=np.int64)
    table = pd.DataFrame(
        {
            "job_id": workload.column("job_id").astype(object)[job],
            "node": first,
            "count": rows["count"].to_numpy(),
            "start": np.clip(start, begin, None),
            "end": np.fmin(end, until),
            "cores": rows["cores"].to_numpy() if "cores" in rows else cores[first],
            "cpus": "",
        }
    )
    began: pd.DataFrame = table[np.isfinite(table["start"].to_numpy())]
    return began.sort_values("start", kind="stable", ignore_index=True)


def _shared(allocations: pd.DataFrame, nodes: list[NodeFacts]) -> list[str]:
    """Return a warning if jobs held nodes at the same time: the scheduler of a prediction gives nodes as a whole."""
    lasting = allocations[allocations["end"] - allocations["start"] > ROUNDING_S]
    row, node = expanded(lasting["node"].to_numpy(), lasting["count"].to_numpy())
    start, end = (lasting[name].to_numpy(dtype=np.float64)[row] for name in ("start", "end"))
    order = np.lexsort((start, node))
    node, start, end = node[order], start[order], end[order]
    together = (node[1:] == node[:-1]) & (start[1:] < end[:-1] - SHARED_S)
    number = len(np.unique(node[1:][together]))
    if not number:
        return []
    return [f"{number:,} of {len(nodes):,} nodes are held by several jobs at once, and count whole for each job"]


def reconfigurations_of(observed: Observed, workload: Workload, pairing: Pairing) -> pd.DataFrame | None:
    """Return the resizes of the file with the ids of the workload, on the clock of the workload."""
    rows, ids = observed.reconfigurations, workload.column("job_id").tolist()
    if rows is None:
        return None
    job_of = dict(zip(pairing.rows[pairing.found].tolist(), pairing.found.tolist(), strict=True))
    kept = rows[rows["row"].isin(list(job_of))]
    moved = {name: kept[name] - pairing.offset_s for name in ("asked", "decided", "applied", "ended")}
    return kept.drop(columns="row").assign(job_id=[ids[job_of[row]] for row in kept["row"].tolist()], **moved)


def samples_of(observed: Observed, pairing: Pairing, nodes: int) -> pd.DataFrame | None:
    """Return the samples and states of the nodes of the file, on the clock of the workload; None without nodes.

    Raises:
        InputError: a row has a node that the machine does not have.
    """
    rows = observed.samples
    if rows is None or not nodes:
        return None
    if (highest := int(rows["node"].max())) >= nodes:
        what = f"a file beside it has node number {highest:,}, but there are {nodes:,} nodes"
        raise InputError(what, where=observed.where, hint=NUMBERED)
    return rows.assign(time=rows["time"] - pairing.offset_s)


@dataclass(frozen=True)
class Times:
    """Times of each job of the workload, s since its time 0, shape (jobs,); NaN: never, or not in the file."""

    submit: FloatArray
    start: FloatArray
    end: FloatArray


def times_of(observed: Observed, workload: Workload, pairing: Pairing) -> Times:
    """Return the times of the jobs; what a file lacks is derived from the other times, and from the workload."""
    rows, absent = pairing.rows, pairing.rows < 0

    def column(name: str, offset: float = 0.0) -> FloatArray:
        values = relative(observed.floats(name), offset) if offset else observed.floats(name)
        return np.where(absent, np.nan, values[rows])

    submit, start, end = (column(name, pairing.offset_s) for name in ("submit", "start", "end"))
    wait, run, response = (column(name) for name in ("wait", "run", "response"))
    planned = np.where(absent, np.nan, workload.floats("submit_time"))
    submit = first_of(submit, start - wait, end - response, planned)
    if not observed.is_known("start"):  # otherwise a job without a start never started
        start = first_of(start, submit + wait, end - run)
    end = first_of(end, start + run, submit + response)
    return Times(submit, start, np.where(np.isfinite(start), end, np.nan))


def first_of(*candidates: FloatArray) -> FloatArray:
    """Return the first finite value of each element."""
    values = candidates[0]
    for other in candidates[1:]:
        values = np.where(np.isfinite(values), values, other)
    return values


def relative(times: FloatArray, offset: float) -> FloatArray:
    """Return times since `offset`, rounded to the precision that times since 1970 have as floating-point numbers."""
    return np.round(times - offset, 6) if abs(offset) > 1e6 else times - offset


def check_times(observed: Observed, pairing: Pairing, times: Times) -> None:
    """Check that jobs start after their submission and end after their start, and that some job ended."""
    tolerance = max(observed.resolution, ROUNDING_S)
    for early, what in (
        (times.start - times.submit, "starts {:,.6g} s before its submission"),
        (times.end - times.start, "ends {:,.6g} s before its start"),
    ):
        bad = early < -tolerance
        if bad.any():
            at = int(bad.argmax())
            more = f" ({int(bad.sum()):,} jobs do)" if bad.sum() > 1 else ""
            hint = "check the columns, their units and the time zone, or correct the line"
            raise observed.error(int(pairing.rows[at]), what.format(-early[at]) + more, hint)
    if not np.isfinite(times.end).any():
        hint = "a start (or wait) and an end (or run time) are needed: name their columns by --columns start=NAME,..."
        raise InputError("no job has a start and an end", where=observed.where, hint=hint)
