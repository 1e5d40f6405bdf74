"""The overheads of a batch system that executes the decisions of a policy or of a layer, from runs that recorded them.

Beside a layer, rigid jobs are scripts, and malleable ones start a step on each of their nodes. So they launch and end
later, and a calibration has these times (`Calibration.steps`) apart from those of all jobs.

If the jobs of the runs are programs (`replay -S program=COMMAND`), the costs of the resizes are those of applications.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.ground.version import version
from tracebed.orchestrator.calibrating.estimates import (
    LEAST,
    FloatArray,
    estimates,
    factors,
    least_squares,
    mean_of,
    of_all,
)
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.testbeds.calibration import Calibration, OverheadEstimate, Step, host_of

# Overhead -> the step of a job whose delays vary with it.
STEP_OF: dict[str, Step] = {
    "launch_s": "launch",
    "end_s": "end",
    "expand_s": "expand",
    "reconfiguration_s": "reconfiguration",
    "release_s": "release",
}
ROUNDED = ("launch_s", "end_s")  # overheads whose samples have an error of half a second beside a layer
Costs = dict[str, dict[str, OverheadEstimate]]  # application -> its costs, by the names of `calibration.COSTS`
COLUMNS = ("application", "kind", "rank", "mib", "pause", "release")


def calibrate_batch(runs: Sequence[Run], name: str) -> Calibration:
    """Return the calibration from replays in which a policy or a layer decided and a batch system executed.

    The constants do not depend on the number of nodes: the commands of a batch system are for all nodes of a job. Each
    run is a repetition: one without a journal, of another kind, or that differs from the others in its system or speed
    is an InputError.
    """
    first = runs[0].info
    for run in runs:
        _check(run, runs[0])
    journals = [(run, *journal.read(run.folder / JOURNAL)) for run in runs if run.folder is not None]
    samples = [samples_of(run, entries, float(facts["resolution_s"])) for run, facts, entries in journals]
    estimates = {overhead: mean_of([one[overhead] for one in samples]) for overhead in STEP_OF}
    found: dict[str, OverheadEstimate] = {key: _positive(each) for key, each in estimates.items() if each is not None}
    steps: dict[str, OverheadEstimate] = {}
    rounded: Sequence[str] = ()
    if _is_layered(runs[0]):
        rounded = ROUNDED  # the mean is known, and the distribution is not
        of_jobs = [times_of(run, entries, float(facts["resolution_s"])) for run, facts, entries in journals]
        steps = _of_steps(of_jobs)
    varying = [key for key in found if key not in rounded]
    rows = {key: [np.column_stack([np.ones(len(one[key])), one[key]]) for one in samples] for key in varying}
    drawn = {STEP_OF[key]: factors(each, of_all) for key, each in rows.items()}
    programs = [resizes_of(run, facts["plan"]) for run, facts, _ in journals]
    costs = costs_of(programs)
    if costs:
        drawn |= _of_programs(programs, costs, found)
    return Calibration(
        name=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tracebed=version(),
        inventory=str(first.parameters["inventory"]),
        execution="emulated",
        nodes=len(first.nodes),
        cores=sorted({node.cores for node in first.nodes}),
        host=host_of(first.hosts[0] if first.hosts else {}),
        speed=first.speed,
        grain_s=first.parameters["grain_s"],
        repetitions=len(runs),
        duty=0.0,
        overheads=found,
        factors={step: values for step, values in drawn.items() if values},
        resizes=_stages(runs),
        applications=costs,
        steps=steps,
        workloads=sorted({str(run.info.workload["sha256"]) for run in runs}),
        batch=str(first.batch["system"]),
    )


def _of_steps(runs: Sequence[pd.DataFrame]) -> dict[str, OverheadEstimate]:
    """Return by how much malleable jobs launch and end later than rigid ones, from `times_of` of each run."""
    malleable = [each[each["malleable"]] for each in runs]
    launch = mean_of([(each["launched"] - each["started"]).to_numpy(dtype=np.float64) for each in malleable])
    if launch is None:
        return {}
    _, end = estimates([each[["malleable", "end"]].to_numpy(dtype=np.float64) for each in runs], _ends)
    return {"launch_s": launch, "end_s": end}


def _ends(samples: FloatArray) -> FloatArray:
    """Return the mean end of the rigid jobs of samples (whether malleable, s), and how much later malleable ones end.

    A kind without samples ends at once.
    """
    rigid, malleable = (
        max(0.0, one.mean()) if len(one := samples[samples[:, 0] == kind, 1]) else 0.0 for kind in (0, 1)
    )
    return np.array([rigid, max(0.0, malleable - rigid)])


def _of_programs(
    programs: Sequence[pd.DataFrame], costs: Costs, overheads: Mapping[str, OverheadEstimate]
) -> dict[Step, list[float]]:
    """Return the distributions of the delays of resizes as multiples of the costs of their applications."""
    constants = {name: one.value for name, one in overheads.items()}
    pauses, releases = [], []
    for rows in programs:
        pause, release = predicted(rows, costs, constants)
        pauses.append(np.column_stack([pause, rows["pause"]]).astype(np.float64))
        released = np.column_stack([release, rows["pause"] + rows["release"]]).astype(np.float64)
        releases.append(released[(rows["kind"] == "shrink").to_numpy()])
    return {"reconfiguration": factors(pauses, _column), "release": factors(releases, _column)}


def _column(values: FloatArray) -> FloatArray:
    return values[:, None]


def samples_of(run: Run, entries: Sequence[Entry], resolution_s: float) -> dict[str, FloatArray]:
    """Return overhead -> its samples in a run, wall s.

    A start lasts from the decision until the script of the job begins, and an end from the end of the work until the
    scheduler knows it. An expansion lasts from its decision until the job can read its new size, on average half an
    iteration before its malleability point. The pause of a job is at the malleability point. The nodes of a shrink are
    released after it.

    If the batch system starts the jobs beside a layer, its times of starts and ends are multiples of `resolution_s`,
    rounded down: the samples are right on average only. A launch is then that of the script alone, and an end that of a
    rigid job (`Calibration.steps` has the rest). An expansion lasts from the start of its second job, and a release
    from the decision of the layer.
    """
    speed, jobs, layered = run.info.speed, run.jobs.set_index("job_id"), _is_layered(run)
    jobs = jobs[(jobs["state"] == JobState.COMPLETED) & (jobs["restarts"] == 0)]
    expands, shrinks = (_applied(run, kind) for kind in ("expand", "shrink"))
    resizes = pd.concat([expands, shrinks])
    told = expands["decided"] - run.info.parameters["grain_s"] / 2 * speed
    if layered:
        times = times_of(run, entries, resolution_s)
        starts = {
            "launch_s": times["started"].to_numpy(dtype=np.float64),
            "end_s": times["end"][~times["malleable"]].to_numpy(dtype=np.float64),
        }
    else:
        decided = pd.Series({entry.job: entry.time for entry in entries if entry.kind == "start"}, dtype=np.float64)
        noticed = pd.Series({entry.job: entry.time for entry in entries if entry.kind == "ended"}, dtype=np.float64)
        starts = _seconds(
            {
                "launch_s": jobs["launched"] - decided.reindex(jobs.index),
                "end_s": noticed.reindex(jobs.index) - jobs["end"],
            },
            speed,
        )
    return starts | _seconds(
        {
            "expand_s": told - expands["asked"] - (expands["grant_s"] * speed if layered else 0.0),
            "reconfiguration_s": resizes["applied"] - resizes["decided"],
            "release_s": shrinks["ended"] - shrinks["asked" if layered else "decided"],
        },
        speed,
    )


def times_of(run: Run, entries: Sequence[Entry], resolution_s: float) -> pd.DataFrame:
    """Return when the jobs of a run with a layer launched and ended, wall s: a row for each job that completed.

    The columns are `malleable`, `started` and `launched` (time from the start of the job until its script began, and
    until its steps worked) and `end` (time from the end of the work until the end of the job). The batch system rounds
    starts and ends down to multiples of `resolution_s`, so that these times are right on average only.
    """
    jobs = run.jobs.set_index("job_id")
    jobs = jobs[(jobs["state"] == JobState.COMPLETED) & (jobs["restarts"] == 0)]
    # What is learned of a job after its end is another entry.
    ended = {str(entry.job): entry.data for entry in entries if entry.kind == "ended" and entry.job in jobs.index}
    rows = [
        (
            jobs["kind"][job] == "malleable",
            own["start"] - seen["start"] - resolution_s / 2,
            own["launched"] - seen["start"] - resolution_s / 2,
            seen["end"] - own["end"] + resolution_s / 2,
        )
        for job, own, seen in ((job, data["own"], data["seen"]) for job, data in ended.items())
        if own.get("launched") and seen.get("start") and seen.get("end")
    ]
    times = pd.DataFrame(rows, columns=["malleable", "started", "launched", "end"])
    return times.astype({"malleable": bool})


def _seconds(times: Mapping[str, pd.Series[float]], speed: float) -> dict[str, FloatArray]:
    """Return known durations in trace s as wall s, at least 0."""
    return {name: own.dropna().to_numpy(dtype=np.float64).clip(min=0.0) / speed for name, own in times.items()}


def _positive(estimate: OverheadEstimate) -> OverheadEstimate:
    """Return an estimate of a duration, whose samples may be below 0, at least 0."""
    names = ("value", "median", "low", "high")
    values: dict[str, Any] = {name: max(0.0, getattr(estimate, name)) for name in names}
    return estimate.model_copy(update={**values, "repetitions": [max(0.0, each) for each in estimate.repetitions]})


def _is_layered(run: Run) -> bool:
    """Return whether a layer resized the jobs of a run beside the batch system."""
    return "resizes" in run.info.batch


def _applied(run: Run, kind: str) -> pd.DataFrame:
    """Return the applied resizes of a kind."""
    return run.resizes[((run.resizes["kind"] == kind) & (run.resizes["state"] == "applied")).to_numpy()]


def _stages(runs: Sequence[Run]) -> dict[str, OverheadEstimate]:
    """Return the stages of resizes as in a calibration of a testbed."""
    found = {}
    for kind in ("expand", "shrink"):
        tables = [_applied(run, kind) for run in runs]
        for since, until in (("asked", "decided"), ("decided", "applied"), ("applied", "ended")):
            times = [(table[until] - table[since]).to_numpy(dtype=np.float64) / runs[0].info.speed for table in tables]
            if (estimate := mean_of(times)) is not None:
                found[f"{kind} {since} to {until}"] = estimate
    return found


def _check(run: Run, first: Run) -> None:
    """Raise InputError unless a run can be calibrated from, together with the first one."""
    where = str(run.folder)
    if not run.info.batch.keys() & {"parameters", "resizes"}:
        what = "the run is not of a policy or a layer that decides on a batch system"
        raise InputError(what, where=where, hint="fit the overheads: add --workload FILE")
    if run.folder is None or not (run.folder / JOURNAL).exists():
        raise InputError("the run has no journal", where=where)
    for what, ours, others in (
        ("batch system", run.info.batch["system"], first.info.batch["system"]),
        ("speed", run.info.speed, first.info.speed),
        ("use of a layer", _is_layered(run), _is_layered(first)),
    ):
        if ours != others:
            raise InputError(f"the runs differ in their {what}: {ours}, {others}", where=where)


def resizes_of(run: Run, plan: Mapping[str, Any]) -> pd.DataFrame:
    """Return the resizes of programs in a run, with `COLUMNS`. The `plan` is columns of `batch.plan.SubmissionPlan`.

    `rank` is the number of nodes after the first one that are added or released, `mib` the state. `pause` and `release`
    are wall s: from the malleability point until the job works, and from then on until released nodes are idle.
    """
    if run.info.batch.get("program") is None or not plan.get("application"):
        return pd.DataFrame(columns=COLUMNS)
    done = run.resizes[(run.resizes["state"] == "applied").to_numpy()]
    numbers = pd.Index(plan["ids"]).get_indexer(done["job_id"])
    columns = (
        np.array(plan["application"], dtype=object)[numbers],
        done["kind"],
        (done["nodes_to"] - done["nodes_from"]).abs() - 1,
        np.array(plan["state_mib"], dtype=np.float64)[numbers],
        (done["applied"] - done["decided"]).clip(lower=0.0) / run.info.speed,
        (done["ended"] - done["applied"]).clip(lower=0.0) / run.info.speed,
    )
    return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))


def costs_of(repetitions: Sequence[pd.DataFrame]) -> Costs:
    """Return the costs of each application with at least `LEAST` resizes of a kind.

    The pause is a least-squares fit over all repetitions: a constant, a time for each further node, and a time for each
    MiB. A number of nodes or a state that does not vary has no time of its own.
    """
    found: Costs = {}
    for (application, kind), rows in pd.concat(repetitions).groupby(["application", "kind"]):
        if len(rows) < LEAST:
            continue
        costs = found.setdefault(str(application), {})
        varying = [name for name in ("rank", "mib") if rows[name].nunique() > 1]
        samples = rows[[*varying, "pause"]].to_numpy(dtype=np.float64)
        names = [f"{kind}_pause_s", *(f"{kind}_pause_{name}_s" for name in varying)]
        costs |= dict(zip(names, estimates([samples], _plane, blocks=1), strict=True))
        if kind == "shrink" and (release := mean_of([rows["release"].to_numpy(dtype=np.float64)])):
            costs["shrink_release_s"] = release
    return found


def predicted(rows: pd.DataFrame, costs: Costs, otherwise: Mapping[str, float]) -> tuple[FloatArray, FloatArray]:
    """Return the pause of each of `resizes_of`, and the time from its malleability point to idle nodes, wall s."""
    # Of applications without costs.
    pauses, releases = (np.full(len(rows), otherwise.get(name, 0.0)) for name in ("reconfiguration_s", "release_s"))
    for (application, kind), each in rows.reset_index(drop=True).groupby(["application", "kind"]):
        value = {name: one.value for name, one in costs.get(str(application), {}).items()}
        if f"{kind}_pause_s" in value:
            at, rank, mib = each.index, *(each[name].to_numpy(dtype=np.float64) for name in ("rank", "mib"))
            pauses[at] = (
                value[f"{kind}_pause_s"]
                + value.get(f"{kind}_pause_rank_s", 0.0) * rank
                + value.get(f"{kind}_pause_mib_s", 0.0) * mib
            )
            releases[at] = pauses[at] + value.get("shrink_release_s", 0.0)
    return pauses, releases


def _plane(samples: FloatArray) -> FloatArray:
    """Fit the last column by a constant and multiples of the others, none below 0."""
    return least_squares(samples, np.column_stack([np.ones(len(samples)), samples[:, :-1]]))
