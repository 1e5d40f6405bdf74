"""Starts that wait for an event, against recordings of a real Slurm 22.05.8 (`record_slurm_events.py`)."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.oracles.slurm_scenarios import DRAWN, SCENARIOS, Submitted
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError
from tracebed.machine.calendar import Calendar, Outage, OutageKind
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.slurm import reservations
from tracebed.slurm.conf import NO_QOS, read
from tracebed.slurm.database import Database, read_qos
from tracebed.slurm.machine import SlurmMachine
from tracebed.slurm.simulation.inputs import CANCEL, REQUEUE
from tracebed.slurm.simulation.start_conditions import preemption_of

ALL = SCENARIOS | DRAWN
FOLDER = Path(__file__).parents[1] / "slurm_recordings" / "events"
TOLERANCE_S = 4.0
"""A pass each second, and the whole seconds of Slurm: a chain of some jobs may start this much earlier or later."""
SCRIPT_S = 0.1
"""Time that the start and the end of a job take."""
KILL_WAIT_S = 20.0
LATE_S = dict.fromkeys(("default-time", "dependency-after-limit", "reservation-end", "kill-wait"), 30.0)
"""Tolerance where a job exceeds its limit: slurmctld notices this within half a minute."""


@cache
def recorded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def rows_of(job: Submitted, number: int, submit: float) -> list[dict[str, Any]]:
    """Return the rows of a job, or of the tasks of an array."""
    row = {
        "job_id": str(number),
        "submit_time": submit,
        "run_time": job.run + SCRIPT_S,
        "time_limit": 60.0 * job.limit or math.nan,
    }
    row |= {"nodes": job.cores, "cores_per_node": 1, "spread": 1, "fewest_nodes": 1}
    row |= {"status": "failed" if job.fails else "completed", **job.columns}
    row["extra_release_s"] = KILL_WAIT_S if job.stubborn else 0.0
    if job.components:
        sizes = enumerate((job.cores, *job.components))
        each = {"status": row["status"], "extra_het_job": str(number)}
        return [{**row, "job_id": str(number + k), "nodes": cores, **each} for k, cores in sizes]
    if not job.tasks:
        return [row]
    listed, _, most = job.tasks.partition("%")
    first, last = listed.split("-")
    array = f"{number}%{most}" if most else str(number)
    return [{**row, "job_id": f"{number}_{task}", "array": array} for task in range(int(first), int(last) + 1)]


def workload_of(name: str) -> Workload:
    """Return the jobs of a recording as they were submitted."""
    rows: list[dict[str, Any]] = []
    jobs = sorted(ALL[name].jobs, key=lambda job: job.at)
    ids, every = list[int](), iter(sorted({int(job.partition("_")[0]) for job in recorded(name)["found"]}))
    for job in jobs:
        ids.append(next(every))
        for _ in job.components:
            next(every)
    for job, number, submit in zip(jobs, ids, recorded(name)["asked"], strict=True):
        rows += rows_of(job, number, submit)
    table = pd.DataFrame(rows).fillna({column: "" for job in jobs for column in job.columns if column in TEXTS})
    return Workload(table, Provenance(system=System(ALL[name].nodes, 4)))


TEXTS = ("dependency", "application", "licenses", "reservation", "partition", "queue")


def outages_of(name: str) -> Calendar | None:
    """Return the outages by the actions of the administrator; None: there are none."""
    begun: dict[str, tuple[float, str]] = {}
    found = []
    for at, action in ALL[name].actions:
        if match := re.match(r"scontrol update nodename=(\w+) state=(\w+)", action):
            node, state = match.groups()
            if state == "resume":
                start, kind = begun.pop(node)
                found.append(Outage(node=node, start=start, end=at, kind=OutageKind(kind), reason="fan"))
            else:
                begun[node] = at, state
    assert not begun
    return Calendar(tuple(found)) if found else None


def predicted(name: str, folder: Path, seed: int = 0, **settings: Any) -> pd.DataFrame:
    """Return the table of the jobs of a prediction, by id."""
    path = folder / "slurm.conf"
    path.write_text(recorded(name)["conf"])
    files = [path]
    for kind in ("dump", "qos") if "qos" in recorded(name) else ():
        files.append(folder / kind)
        files[-1].write_text(recorded(name)[kind])
    if shown := recorded(name)["reservations"]:
        files.append(folder / "resv.txt")
        files[-1].write_text(shown[-1])
    given = {"epoch_s": recorded(name)["zero"], "seed": seed}
    settings |= {"over_limit": OverLimit.KILL, "policy_parameters": given, "outages": outages_of(name)}
    jobs = predict(workload_of(name), read(*files).machine, "slurm", **settings).jobs
    return jobs.set_index("job_id")


def differences(name: str, folder: Path) -> list[str]:
    """Return the jobs whose start, end, final state or number of requeues differs from that in Slurm."""
    jobs, found = predicted(name, folder), []
    tolerance = LATE_S.get(name, TOLERANCE_S)
    for job, (start, end, state, nodes, _, restarts) in recorded(name)["found"].items():
        real = (start if nodes and state != "PENDING" else None, end if state in STATES else None)
        until = ALL[name].until
        own = _within(jobs["start"].get(job), until), _within(jobs["end"].get(job), until + tolerance)
        equal = all(
            a is b is None or (a is not None and b is not None and abs(a - b - 0.5) <= tolerance)
            for a, b in zip(own, real, strict=True)
            if b is not None or state in ("PENDING", *STATES)
        )
        fate = jobs["state"].get(job), jobs["reason"].get(job)
        if not equal or (state in STATES and fate != STATES[state]) or (nodes and jobs["restarts"][job] != restarts):
            found.append(f"{name}: job {job} {fate} {own}, in Slurm {state} {real}")
    return found


STATES = {
    "COMPLETED": ("completed", ""),
    "FAILED": ("completed", ""),  # a prediction does not say so
    "PREEMPTED": ("cancelled", "preempted"),
    "NODE_FAIL": ("failed", "node n2 was lost: fan"),
    "TIMEOUT": ("killed", ""),
}
"""Final state of Slurm -> state and reason of a prediction."""


def _within(instant: Any, until: float) -> float | None:
    """Return an instant before the end of a recording."""
    return None if instant is None or pd.isna(instant) or instant > until else round(float(instant), 1)


STARTS = (
    *("begin", "begin-main-loop", "begin-age"),
    *("dependency", "dependency-killed", "dependency-delay", "dependency-after-limit"),
    *("singleton", "dependency-no-reservation", "dependency-age"),
    *("array-limit", "array-of-different-jobs", "array-depth", "array-bf-max-job-test", "array-limit-reservation"),
    *("array-reserved", "bf_max_job_array_resv", "array-dependency", "array-aftercorr"),
    *("licenses", "licenses-no-reservation", "bf_licenses", "bf_licenses-plan"),
    *("reservation-maintenance", "reservation-before", "reservation-inside", "reservation-end"),
    *("reservation-main-loop", "reservation-main-loop-busy", "reservation-flex"),
    *("preempt-cancel", "preempt-requeue", "preempt-suspend", "preempt-grace", "preempt-exempt", "preempt-order"),
    *("preempt-off", "preempt-youngest", "partition_job_depth", "partition_job_depth-full"),
    *("bf_max_job_part", "bf_max_job_user_part", "preempt-qos"),
    *("het", "het-nodes", "het-main-loop"),
    *("partitions", "partitions-tier", "partitions-reserved", "bf_one_resv_per_job", "default-time"),
    *("lapse-exempt", "lapse-exempt-main-loop", "lapse-exempt-idle", "lapse-min-age", "lapse-priority"),
    *("lapse-begin", "kill-wait", "kill-wait-preempt"),
    *("node-down", "node-down-fail", "node-drain"),
)


@pytest.mark.parametrize("name", STARTS)
def test_jobs_start_when_slurm_starts_them(name: str, tmp_path: Path) -> None:
    assert differences(name, tmp_path) == []


@pytest.mark.parametrize(
    ("name", "epilog_s"),
    [("complete-wait", 6), ("completing", 6), ("lapse-complete-wait", 40), ("lapse-complete-wait-main-loop", 40)],
)
def test_jobs_wait_for_completing_ones_with_complete_wait_only(name: str, epilog_s: float, tmp_path: Path) -> None:
    """The first ones: Slurm plans job 2 on the node of job 1, though the other one is idle. The last ones: CompleteWait
    lapses long before the epilog ends; backfill looks each second, and the main loop at its next pass."""
    jobs = predicted(name, tmp_path, overheads={"end_s": float(epilog_s)})
    real = sorted(start for start, *_ in recorded(name)["found"].values())
    tolerance = 1.6 if epilog_s < 10 else TOLERANCE_S
    assert sorted(jobs["start"]) == pytest.approx([start + 0.5 for start in real], abs=tolerance)


@pytest.mark.parametrize("name", ["time-limit", "time-limit-completed", "over-time-limit"])
def test_slurm_looks_for_jobs_beyond_their_limit_every_half_minute(name: str, tmp_path: Path) -> None:
    """Those that have not ended by themselves are killed at once. All of them are TIMEOUT. The phase is drawn."""
    run, limit = ALL[name].jobs[0].run, 120 if name == "over-time-limit" else 60
    real = pd.DataFrame([each[:3] for each in recorded(name)["found"].values()], columns=["start", "end", "state"])
    jobs = predicted(name, tmp_path)
    for found, killed in ((real, "TIMEOUT"), (jobs, "killed")):
        assert set(found["state"]) == {killed}
        late = found["end"] - found["start"] - limit
        assert ((late > -1.0) & (late < 31.0)).all()
        checked = found["end"][found["end"] - found["start"] < run - 0.5] % 30.0
        assert len(checked) and checked.max() - checked.min() < 1e-6
        assert (len(checked) == len(found)) == (name != "time-limit-completed")


@pytest.mark.parametrize("over_limit", list(OverLimit)[:2])
def test_a_job_that_its_limit_ended_runs_as_long_as_in_the_log(over_limit: OverLimit, tmp_path: Path) -> None:
    columns = {"run_time": [85.0, 64.0], "status": "killed"}
    workload, cluster = inputs_of(tmp_path, columns)
    for machine, engine in ((cluster, "auto"), (None, "compiled"), (None, "python")):
        run = predict(workload, machine, "slurm", over_limit=over_limit, engine=engine)
        jobs = run.jobs
        assert (jobs["end"] - jobs["start"]).tolist() == pytest.approx([85.0, 64.0])
        assert set(jobs["state"]) == {"killed" if over_limit == OverLimit.KILL else "completed"}


def test_the_nodes_of_a_job_that_ignores_sigterm_are_released_when_its_steps_have_ended(tmp_path: Path) -> None:
    """KillWait is 15 s; as Slurm 22.05.8 ran and sacct shows it. Job 1 was cancelled, job 3 was killed at its limit."""
    log = tmp_path / "log.sacct"
    log.write_text(STUBBORN)
    workload = read_workload(log, time_zone="UTC")
    assert workload.floats("extra_release_s").tolist() == [15.0, 0.0, 15.0, 0.0]
    _, machine = inputs_of(tmp_path, {})
    jobs = predict(workload, machine, "slurm", over_limit=OverLimit.KILL).jobs
    assert (jobs["end"] - jobs["start"]).tolist() == pytest.approx([8.0, 3.0, 81.0, 5.0])
    waits = (jobs["start"].diff() - (jobs["end"] - jobs["start"]).shift()).tolist()
    assert 15.0 <= waits[1] <= 15.0 + TOLERANCE_S and 15.0 <= waits[3] <= 15.0 + TOLERANCE_S


STUBBORN = """JobID|State|Submit|Start|End|Elapsed|Timelimit|NNodes|NCPUS|NodeList
1|CANCELLED by 0|2026-11-28T07:52:10|2026-11-28T07:52:11|2026-11-28T07:52:19|00:00:08|00:01:00|2|8|n[1-2]
1.batch|CANCELLED||2026-11-28T07:52:11|2026-11-28T07:52:34|00:00:23||1|4|n1
2|COMPLETED|2026-11-28T07:52:10|2026-11-28T07:52:34|2026-11-28T07:52:37|00:00:03|00:01:00|2|8|n[1-2]
2.batch|COMPLETED||2026-11-28T07:52:34|2026-11-28T07:52:37|00:00:03||1|4|n1
3|TIMEOUT|2026-11-28T07:52:49|2026-11-28T07:52:49|2026-11-28T07:54:10|00:01:21|00:01:00|2|8|n[1-2]
3.batch|CANCELLED||2026-11-28T07:52:49|2026-11-28T07:54:25|00:01:36||1|4|n1
4|COMPLETED|2026-11-28T07:52:50|2026-11-28T07:54:25|2026-11-28T07:54:30|00:00:05|00:01:00|2|8|n[1-2]
"""


@pytest.mark.parametrize("name", DRAWN)
def test_the_mean_wait_of_a_mixture_is_that_of_slurm(name: str, tmp_path: Path) -> None:
    """Arrays, begin times, licences, a reservation, and in two of three mixtures preemption; 16 seeds, one real run."""
    waits, preempted = [], []
    for seed in range(16):
        jobs = predicted(name, tmp_path, seed=seed)
        waits.append((jobs["start"] - jobs["submit"]).mean())
        preempted.append(int((jobs["reason"] == "preempted").sum() + jobs["restarts"].sum()))
    found = recorded(name)["found"]
    real = np.mean([found[job][0] + 0.5 - submit for job, submit in jobs["submit"].items() if job in found])
    count = sum(state == "PREEMPTED" or restarts for _, _, state, _, _, restarts in found.values())
    assert np.mean(waits) == pytest.approx(real, abs=2 * np.std(waits) + 0.03 * real)
    assert np.mean(preempted) == pytest.approx(count, abs=3.0)


def test_passes_over_the_whole_queue_follow_each_other_at_the_interval() -> None:
    """Passes between which nothing happened are not simulated, but their instants count."""
    policy, loop = Slurm(sched_interval=60), Slurm.sched_loop_s
    for full in (0.0, 1009.0 * loop, 1999.0 * loop):
        state: Any = SimpleNamespace(notes={"full_last": full})
        for passes in range(1, 60):  # after the last one over the whole queue
            after = policy._next_full(state, full + passes * loop) - full
            assert 60.0 <= after <= 60.0 + loop or after == pytest.approx((passes + 1) * loop)
        late = policy._next_full(state, full + 3600.0) - full
        assert late == pytest.approx(60 * 60 * loop)


# -- what is read -----------------------------------------------------------------------------------------------------

SHOWN = """ReservationName=week StartTime=2026-11-26T02:00:00 EndTime=2026-11-26T04:00:00 Duration=02:00:00
   Nodes=n[1-2] NodeCnt=2 CoreCnt=8 Features=(null) PartitionName=main Flags=WEEKDAY,FLEX,PURGE_COMP=00:05:00
   Users=root Groups=(null) Accounts=(null) Licenses=a:1 State=INACTIVE

ReservationName=once StartTime=1795658400 EndTime=1795662000 Duration=01:00:00
   Nodes=n1 NodeCnt=1 CoreCnt=1 Features=(null) PartitionName=main Flags=SPEC_NODES
   Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE
"""


def test_reservations_are_read_with_their_repetitions(tmp_path: Path) -> None:
    (week, once), sentences = reservations.read(SHOWN, "resv.txt")
    assert (once.begin, once.end, once.nodes) == (1795658400, 1795662000, "n1")
    hour, day = 3600, 86400
    assert week.end - week.begin == 2 * hour
    assert (week.flexible, once.flexible) == (True, False)
    begins = [begin for begin, _ in week.until(week.begin + 4 * day)]  # from Thursday to Monday
    assert [(begin - week.begin) // day for begin in begins] == [0, 1, 4]
    assert len(once.until(once.begin + 9 * day)) == 1
    text = "\n".join(sentences)
    for expected in ("flag PURGE_COMP", "licences of reservations", "read as UTC"):
        assert expected in text
    (later, same), sentences = reservations.read(SHOWN, "resv.txt", zone="America/Denver")
    assert "read as UTC" not in "\n".join(sentences)
    assert (later.begin - week.begin, same) == (7 * hour, once)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [("2026-11-26T02", "soon", "is not a time"), ("Nodes=n1 ", "Nodes=n[1 ", "reservation 2")],
)
def test_no_invalid_reservation_is_read(old: str, new: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        reservations.read(SHOWN.replace(old, new), "resv.txt")


def test_a_job_that_does_not_fit_in_its_reservation_says_so(tmp_path: Path) -> None:
    columns = {"reservation": ["once", ""], "nodes": [2, 1], "time_limit": [60.0, 60.0]}
    workload, machine = inputs_of(tmp_path, {})
    workload = Workload(workload.table.assign(**columns), workload.provenance)
    machine = replace(machine, reservations=reservations.read(SHOWN, "resv.txt")[0])
    epoch = {"epoch_s": 1795658400}
    jobs = predict(workload, machine, "slurm", policy_parameters=epoch).jobs.set_index("job_id")
    assert jobs["reason"]["1"] == "its reservation ends before it can start"
    assert jobs["state"].tolist() == ["interrupted", "completed"]


def test_a_job_avoids_a_reservation_and_an_outage(tmp_path: Path) -> None:
    """Node n1 is reserved, and n2 is drained until 100 s."""
    workload, machine = inputs_of(tmp_path, {})
    machine = replace(machine, reservations=reservations.read(SHOWN, "resv.txt")[0][1:])
    drained = Calendar((Outage(node="n2", start=0, end=100, kind=OutageKind.DRAIN),))
    epoch = {"epoch_s": 1795658400}
    run = predict(workload, machine, "slurm", policy_parameters=epoch, outages=drained)
    assert 100 <= run.jobs["start"].min() < 200 and set(run.allocations["node"]) == {1}
    assert predict(workload, machine, "slurm", policy_parameters=epoch).jobs["start"].min() < 60


def test_reservations_need_the_date_of_the_workload(tmp_path: Path) -> None:
    workload, machine = inputs_of(tmp_path, {})
    machine = replace(machine, reservations=reservations.read(SHOWN, "resv.txt")[0])
    with pytest.raises(InputError, match="the Unix time of second 0 of the workload is unknown"):
        predict(workload, machine, "slurm")
    epoch = {"epoch_s": 1795658000}
    run = predict(workload, machine, "slurm", policy_parameters=epoch)
    assert run.info.warnings == ["the reservation once has 1 of 4 cores; all cores are assumed"]
    facts = machine.to_json()
    facts["cluster"]["kinds"][0]["names"] = "n1"
    smaller = SlurmMachine.from_json(facts)
    with pytest.raises(InputError, match="reservation week has the unknown node n2"):
        predict(workload, smaller, "slurm", policy_parameters=epoch)


def inputs_of(folder: Path, columns: dict[str, Any], conf: str = "") -> tuple[Workload, SlurmMachine]:
    """Return a workload of two jobs with further columns, and a machine of two nodes."""
    path = folder / "slurm.conf"
    path.write_text("SelectType=select/cons_tres\nNodeName=n[1-2] CPUs=4\nPartitionName=main Nodes=ALL\n" + conf)
    table = pd.DataFrame({"job_id": ["1", "2"], "submit_time": [0.0, 1.0], "run_time": [9.0, 9.0]})
    table = table.assign(**{"nodes": 1, "cores_per_node": 4, "time_limit": 60.0, "memory_mib": 1.0} | columns)
    machine = read(path).machine
    assert machine is not None
    return Workload(table, Provenance(system=System(2, 4))), machine


@pytest.mark.parametrize("text", ["afterok", "before:1", "afterok:1:", "afterok:1+x"])
def test_no_invalid_dependency_is_simulated(text: str, tmp_path: Path) -> None:
    workload, machine = inputs_of(tmp_path, {"dependency": ["", text]})
    with pytest.raises(InputError, match=r"dependency .* of job 2 is invalid"):
        predict(workload, machine, "slurm")


@pytest.mark.parametrize(
    ("columns", "says"),
    [({"array": ["1%2", "1%x"]}, "array '1%x' of job 2"), ({"licenses": ["", "a:2|b"]}, "licences 'a:2|b' are")],
)
def test_no_invalid_array_or_licence_is_simulated(columns: dict[str, Any], says: str, tmp_path: Path) -> None:
    workload, machine = inputs_of(tmp_path, columns, "Licenses=a:2\n")
    with pytest.raises(InputError, match=re.escape(says)):
        predict(workload, machine, "slurm")


def test_a_dependency_on_an_unknown_job_is_satisfied(tmp_path: Path) -> None:
    workload, machine = inputs_of(tmp_path, {"dependency": ["afterok:7", "afternotok:8?afterok:1"]})
    jobs = predict(workload, machine, "slurm").jobs
    assert (jobs["start"] - jobs["submit"] < 4.0).all()


def test_a_previous_job_is_a_condition_and_a_think_time_is_named(tmp_path: Path) -> None:
    nan = float("nan")
    columns = {"job_id": ["1", "2"], "after": ["", "1"], "nodes": 1}
    workload, machine = inputs_of(tmp_path, columns)
    run = predict(workload, machine, "slurm")
    assert run.jobs["start"][1] >= run.jobs["end"][0]
    assert not run.info.warnings
    workload, machine = inputs_of(tmp_path, columns | {"think_time": [nan, 5.0]})
    thinks = predict(workload, machine, "slurm")
    assert thinks.info.warnings == ["1 jobs with a think time: submitted at their own time"]
    assert thinks.jobs["start"][1] < run.jobs["end"][0]
    ignored = predict(workload, machine, "slurm", dependencies="ignore")
    assert ignored.info.warnings == ["1 jobs that depend on another job: dependency ignored"]
    workload, machine = inputs_of(tmp_path, {"dependency": ["", "afterok:1"]})
    late, free = (
        predict(workload, machine, "slurm", dependencies=rule).jobs["start"][1] for rule in ("honor", "ignore")
    )
    assert late > 9.0 > free


def test_a_job_with_too_many_licences_is_rejected(tmp_path: Path) -> None:
    workload, machine = inputs_of(tmp_path, {"licenses": ["a:2,b@server:9", "a:3"]}, "Licenses=a:2\n")
    jobs = predict(workload, machine, "slurm").jobs
    assert jobs["state"].tolist() == ["completed", "rejected"]
    assert jobs["reason"][1] == "the cluster has fewer licences a"


def test_ignored_columns_are_named(tmp_path: Path) -> None:
    columns = {"reservation": ["r", ""], "array": ["1%2", "2"], "earliest_start": [3.0, float("nan")]}
    workload, machine = inputs_of(tmp_path, columns)
    warnings = predict(workload, machine, "slurm").info.warnings
    assert warnings == ["the column reservation of 1 job is ignored: the reservations are not given (-P @FILE)"]
    warnings = predict(workload, None, "slurm").info.warnings
    assert [text.split()[2] for text in warnings] == ["earliest_start", "array", "reservation"]
    assert predict(workload, None, "easy").info.warnings == []


def test_jobs_that_hold_all_memory_for_want_of_a_request_are_named(tmp_path: Path) -> None:
    """A log without memory requests, such as most of SWF, would have one job on each node."""
    halves = {"cores_per_node": 1, "memory_mib": [1.0, float("nan")]}
    workload, machine = inputs_of(tmp_path, halves, "PartitionName=other Nodes=ALL DefMemPerCPU=1\n")
    run = predict(workload, machine, "slurm")
    assert [text.split(":")[0] for text in run.info.warnings] == ["1 job without a memory request"]
    for columns in ({"memory_mib": 1.0}, {"partition": "other"}):
        workload, machine = inputs_of(tmp_path, halves | columns, "PartitionName=other Nodes=ALL DefMemPerCPU=1\n")
        assert predict(workload, machine, "slurm").info.warnings == []
    workload, machine = inputs_of(tmp_path, halves, "DefMemPerNode=1\n")
    assert predict(workload, machine, "slurm").info.warnings == []
    workload, machine = inputs_of(tmp_path, halves, "SelectTypeParameters=CR_Core\n")
    assert predict(workload, machine, "slurm").info.warnings == []


def test_preemption_by_qos_needs_the_database(tmp_path: Path) -> None:
    _, machine = inputs_of(tmp_path, {}, "PreemptType=preempt/qos\nPreemptMode=REQUEUE\n")
    assert NO_QOS in read(tmp_path / "slurm.conf").differences
    table = "Name|Priority|GraceTime|Preempt|PreemptExemptTime|PreemptMode\n"
    table += "normal|0|00:00:10|||cluster\nhigh|5|00:00:00|normal,low|00:02:00|cancel\nlow|0||||off\n"
    qos, _ = read_qos(table, "")
    assert [(each.name, each.preempts, each.preempt_mode, each.grace_s, each.exempt_s) for each in qos] == [
        ("normal", (), "", 10, None),
        ("high", ("normal", "low"), "cancel", 0, 120.0),
        ("low", (), "off", 0, None),
    ]
    cluster = machine.cluster.model_copy(update={"database": Database(qos=qos)})
    found = preemption_of(cluster, [0] * 4, ["", "high", "low", "other"])
    assert found is not None
    assert (found.of, found.may, found.mode[:2]) == ([0, 1, 2, 3], [0, 0b001, 0, 0], [REQUEUE, CANCEL])
    assert found.grace_s[0] == 10
