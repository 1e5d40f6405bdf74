"""Forecasts of jobs with special demands: what each field of `scontrol show job` does, against a real Slurm 22.05.8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tracebed.api as tb
from tests.slurm.test_forecast import PARTITION, folder_of, log_of, minutes_of, read_state, running, waiting
from tracebed.slurm.gres import gres_of
from tracebed.slurm.job_fields import FREE, IGNORED, MODELED, OF_RUNNING, WITHOUT_EFFECT, gres
from tracebed.slurm.scontrol import Record
from tracebed.slurm.state import waits_for

PRINTED = json.loads((Path(__file__).parents[1] / "slurm_recordings" / "fields" / "job.json").read_text())
"""Release of Slurm -> the fields that `scontrol -d show job` prints."""
BASIC = """Configuration data as of 2026-01-31T12:00:00
PriorityType            = priority/basic
SchedulerParameters     = {parameters}
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE
SLURM_VERSION           = {release}
"""
BOOKED = (
    "ReservationName=r StartTime=2026-01-31T12:02:30 EndTime=2026-01-31T12:03:30 Duration=00:01:00\n"
    "   Nodes=n[1-2] NodeCnt=2 CoreCnt=8 Features=(null) PartitionName=(null) Flags={flags}\n"
    "   Users=ann Licenses=(null) State=INACTIVE MaxStartDelay=(null)\n"
)


def asked(job: int, **changes: Any) -> str:
    """Return a waiting job that asked for one core for ten minutes just now. Further fields come before `Features`."""
    fields = " ".join(f"{name}={changes.pop(name)}" for name in [*changes] if name[0].isupper())
    recent = {"limit": "00:10:00", "cores": 1, "eligible": "2026-01-31T11:59:59", "priority": 1000 - job} | changes
    return waiting(job, **recent).replace(" Features=", f" {fields} Features=" if fields else " Features=")


def state_of(
    path: Path,
    *jobs: str,
    parameters: str = "(null)",
    release: str = "22.05.8",
    flags: str | None = None,
    nodes: int = 2,
) -> Path:
    config = BASIC.format(parameters=parameters, release=release)
    folder = folder_of(path, *jobs, states=("IDLE",) * nodes, config=config)
    (folder / "partition.txt").write_text(f"{PARTITION.replace('n[1-2]', f'n[1-{nodes}]')}\n")
    if flags is not None:
        (folder / "reservation.txt").write_text(BOOKED.format(flags=flags))
    return folder


def within(found: tb.Forecast, job: str, minutes: float) -> bool:
    """Return whether an instant, min after that of the state, is in the short interval of a job."""
    low, high = (minutes_of(found, name)[job] for name in ("earliest", "latest"))
    return low - 0.02 <= minutes <= high + 0.02 and high - low < 1.5


# -- the fields -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", PRINTED)
def test_each_field_of_a_job_is_modeled_or_without_effect_or_named(release: str, tmp_path: Path) -> None:
    assert not (MODELED & WITHOUT_EFFECT) and not (MODELED | WITHOUT_EFFECT) & {*IGNORED}
    for name in PRINTED[release].split():
        assert name in MODELED | WITHOUT_EFFECT or name in IGNORED, name


@pytest.mark.parametrize("name", sorted({*" ".join(PRINTED.values()).split()} - MODELED))
def test_a_field_that_is_not_modeled_is_named_if_it_has_an_effect(name: str, tmp_path: Path) -> None:
    job = {"array": f"{name}=7 "} if name not in FREE else {"array": f"{name}=a B=7 "}
    plain = read_state(state_of(tmp_path / "plain", asked(2)))
    state = read_state(state_of(tmp_path / "state", asked(2, **job)))
    assert state.jobs == plain.jobs
    assert state.notes == ((f"1 job: {name} is not modeled",) if name in IGNORED else ())
    held = read_state(state_of(tmp_path / "held", running(2, "n1", **job)))
    assert held.notes == ((f"1 job: {name} is not modeled",) if name in OF_RUNNING else ())


OTHER: dict[str, tuple[str, str]] = {
    "Account": ("Account=chem", "Account=bio"),
    "AccrueTime": ("AccrueTime=2026-01-31T11:00:00", "AccrueTime=2026-01-31T11:30:00"),
    "ArrayJobId": ("JobId=2", "JobId=2 ArrayJobId=2 ArrayTaskId=4"),
    "CPUs/Task": ("NtasksPerN:B:S:C=0", "NtasksPerN:B:S:C=2"),
    "Dependency": ("Reason=Priority Dependency=(null)", "Reason=Dependency Dependency=singleton"),
    "EligibleTime": ("EligibleTime=2026-01-31T11:59:59", "EligibleTime=2026-01-31T13:00:00"),
    "Exclusive": ("OverSubscribe=OK", "OverSubscribe=NO Exclusive=NODE"),
    "Features": ("Features=(null)", "Features=fast"),
    "JobName": ("JobName=wrap", "JobName=other"),
    "JobState": ("JobState=PENDING", "JobState=COMPLETED"),
    "NumCPUs": ("NumCPUs=1", "NumCPUs=3"),
    "NumNodes": ("NumNodes=1 NumCPUs=1 CPUs/Task=1 TRES=cpu=1,node=1", "NumNodes=2 NumCPUs=2 CPUs/Task=1"),
    "OverSubscribe": ("OverSubscribe=OK", "OverSubscribe=NO"),
    "Partition": ("Partition=main", "Partition=main,main"),
    "Priority": ("Priority=998", "Priority=7"),
    "Reason": ("Reason=Priority", "Reason=Resources"),
    "StartTime": ("StartTime=Unknown", "StartTime=2026-01-31T15:00:00"),
    "SubmitTime": ("EligibleTime=2026-01-31T11:59:59", "EligibleTime=Unknown"),
    "TRES": ("TRES=cpu=1,node=1", "TRES=cpu=1,node=2"),
    "TimeLimit": ("TimeLimit=00:10:00", "TimeLimit=00:11:00"),
    "UserId": ("UserId=ann", "UserId=bob"),
}
"""Modeled field -> the text of a waiting job without and with another value."""
ADDED = {
    **{name: f"{name}=cpu=1,node=2" for name in ("ReqTRES", "AllocTRES")},
    "Deadline": "Deadline=2026-01-31T13:00:00",
    "Gres": "Gres=gpu:1",
    "HetJobId": "HetJobId=2",
    "Licenses": "Licenses=matlab:1",
    "MinMemoryCPU": "MinMemoryCPU=100M",
    "QOS": "QOS=slow",
    "Reservation": "Reservation=r",
    "TimeMin": "TimeMin=00:01:00",
    "TresPerJob": "TresPerJob=gres/gpu:2",
    "TresPerNode": "TresPerNode=gres:gpu:1",
}
"""Modeled field -> what is added to a waiting job."""
HELD = {
    "CPU_IDs": ("CPU_IDs=0-3", "CPU_IDs=0-1"),
    "Nodes": ("Nodes=n1", "Nodes=n2"),
    "NodeList": ("  Nodes=n1 CPU_IDs=0-3 Mem=0 GRES= ", ""),
    "SuspendTime": ("NumNodes=1", "NumNodes=1 SuspendTime=2026-01-31T11:55:00 EndTime=2026-01-31T13:35:00"),
}
"""Modeled field of a running job -> the text without and with another value."""


@pytest.mark.parametrize("name", sorted(MODELED - {"JobId"}))
def test_a_modeled_field_changes_the_job(name: str, tmp_path: Path) -> None:
    pending, other = asked(2), ""
    if name in OTHER:
        other = pending.replace(*OTHER[name])
    elif name in ADDED:
        pending = pending.replace("TRES=cpu=1,node=1 ", "") if "TRES" in name else pending
        other = pending.replace(" Features=", f" {ADDED[name]} Features=")
    elif name == "MinMemoryNode":
        other = pending.replace("MinMemoryNode=0", "MinMemoryNode=100M")
    elif name in ("ArrayTaskId", "ArrayTaskThrottle"):
        pending = asked(2, array="ArrayJobId=2 ArrayTaskId=4 ")
        more = "ArrayTaskId=5" if name == "ArrayTaskId" else "ArrayTaskId=4 ArrayTaskThrottle=1"
        other = pending.replace("ArrayTaskId=4", more)
    else:
        pending = running(2, "n1")
        other = pending.replace(*HELD["SuspendTime" if name == "EndTime" else name])
        pending = pending.replace("n1", "n2") if name == "NodeList" else pending
    assert other != pending
    before, after = (read_state(state_of(tmp_path / str(k), text)) for k, text in enumerate((pending, other)))
    assert before.jobs != after.jobs
    assert before.notes == after.notes


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"Contiguous": 0, "MinCPUsNode": 1, "DelayBoot": "00:00:00", "CoreSpec": "*", "Socks/Node": "*"}, []),
        ({"ReqB:S:C:T": "0:0:*:*", "Reboot": 0, "TresPerTask": "cpu=2", "Network": "(null)"}, []),
        (
            {"MinCPUsNode": 4, "Switches": "1@00:05:00", "TresPerTask": "gres/gpu=1"},
            ["MinCPUsNode", "Switches", "TresPerTask"],
        ),
        (
            {"Contiguous": 1, "CoreSpec": 1, "Reboot": 1, "Prefer": "fast"},
            ["Contiguous", "CoreSpec", "Prefer", "Reboot"],
        ),
    ],
)
def test_a_field_is_named_only_for_a_value_with_an_effect(
    fields: dict[str, Any], named: list[str], tmp_path: Path
) -> None:
    state = read_state(state_of(tmp_path / "state", asked(2, **fields)))
    assert list(state.notes) == [f"1 job: {name} is not modeled" for name in named]


def test_unknown_fields_of_a_newer_release_are_named_once(tmp_path: Path) -> None:
    jobs = [asked(2, Novel="yes"), asked(3, Novel="no"), asked(4, Comment="see Other=7", Command="/bin/x Deep=1")]
    assert list(read_state(state_of(tmp_path / "state", *jobs)).notes) == [
        "2 jobs: the field Novel is unknown, and ignored"
    ]


def test_the_page_names_the_fields_that_are_not_modeled() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "forecast.md").read_text()
    assert not [name for name in IGNORED if f"`{name}`" not in page]


# -- reservations, shortest limits, deadlines --------------------------------------------------------------------------


def test_a_job_waits_for_its_reservation_and_a_job_with_a_shortest_limit_starts_before_it(tmp_path: Path) -> None:
    """As Slurm 22.05.8 did: jobs 1 and 4 after the reservation, job 2 by backfill 27 s later, job 5 at its begin."""
    jobs = [
        asked(1, reason="ReqNodeNotAvail,_Reserved_for_maintenance"),
        asked(2, TimeMin="00:01:00"),
        asked(3, limit="00:01:00"),
        asked(5, reason="Reservation", eligible="Unknown", Reservation="r"),
    ]
    found = tb.forecast(state_of(tmp_path / "state", *jobs, flags="SPEC_NODES"), log_of(), repetitions=16)
    starts = minutes_of(found)
    assert starts["1"] == pytest.approx(3.55, abs=0.1)
    assert within(found, "2", 27 / 60) and starts["3"] < 0.1
    assert within(found, "5", 2.57) and minutes_of(found, "latest")["5"] - minutes_of(found, "earliest")["5"] > 0.02
    assert found.table.set_index("job_id")["reason"].to_dict() == dict.fromkeys("1235", "")
    assert not any("TimeMin" in note for note in found.notes)


def test_a_job_of_an_unknown_reservation_has_no_forecast(tmp_path: Path) -> None:
    jobs = [asked(2, Reservation="gone"), asked(3, Reservation="gone,r"), asked(4)]
    table = tb.forecast(state_of(tmp_path / "state", *jobs, flags="SPEC_NODES"), log_of(), repetitions=4).table
    reasons = table.set_index("job_id")["reason"]
    assert reasons["2"].startswith("Reservation: unknown") and reasons[["3", "4"]].tolist() == ["", ""]


@pytest.mark.parametrize(("release", "limit_s"), [("22.05.8", 60), ("24.11.5", 60), ("25.11.1", 120)])
def test_backfill_starts_a_job_with_the_shortest_limit(release: str, limit_s: int, tmp_path: Path) -> None:
    """Slurm 22.05.8 does not lengthen the limit of a job that it starts; newer ones do until nodes are reserved."""
    jobs = [asked(2, TimeMin="00:01:00", cores=8), asked(3, cores=8, limit="00:10:00", priority=1)]
    folder = state_of(tmp_path / "state", *jobs, parameters="bf_interval=1", release=release, flags="SPEC_NODES")
    starts = minutes_of(tb.forecast(folder, log_of(share=1.0), repetitions=8))
    assert starts["2"] < 0.1 and starts["3"] > limit_s / 60


def test_a_job_that_misses_its_deadline_never_starts(tmp_path: Path) -> None:
    """Slurm 22.05.8 ended job 2 as DEADLINE in the first pass in which it could no longer end in time."""
    held = [running(job, f"n{job}", limit="00:10:00", start="2026-01-31T11:59:57") for job in (1, 2)]
    jobs = [
        asked(5, limit="00:01:00", Deadline="2026-01-31T12:01:40"),
        asked(6, limit="00:01:00"),
        asked(7, Deadline="2026-01-31T13:00:00"),
        asked(8, limit="00:01:00", dependency="afterany:5(unfulfilled)", reason="Dependency"),
    ]
    found = tb.forecast(state_of(tmp_path / "state", *held, *jobs), log_of(), repetitions=8)
    table = found.table.set_index("job_id")
    latest = "DeadLine: Slurm ends it, since it has not started until 2026-01-31T12:00:40, in 8 of 8 simulations"
    assert table["reason"].to_dict() == {"6": "", "7": "", "8": "", "5": latest}
    starts = minutes_of(found)
    assert starts["6"] == pytest.approx(5.0, abs=6.0) and starts["7"] < 60


def test_a_deadline_that_only_some_simulations_miss_is_said(tmp_path: Path) -> None:
    log = log_of(jobs=40)
    log.table.loc[::3, "run_time"] = 6000.0
    held = [running(1, "n1"), running(2, "n2")]
    job = asked(5, cores=8, Deadline="2026-01-31T13:05:00")
    found = tb.forecast(state_of(tmp_path / "state", *held, job), log, repetitions=16)
    late = found.table["reason"][0] or "\n".join(found.notes)
    assert "DeadLine: Slurm ends it, since it has not started until 2026-01-31T12:55:00, in " in late


# -- heterogeneous jobs -----------------------------------------------------------------------------------------------


def het(job: int, leader: int, **changes: Any) -> str:
    return asked(job, array=f"HetJobId={leader} HetJobOffset={job - leader} ", reason="None", **changes)


def test_no_job_behind_a_heterogeneous_one_starts_before_it(tmp_path: Path) -> None:
    """As Slurm 22.05.8 did: jobs 3 and 4 by backfill 45 s later, job 5 just after them, though all nodes are idle."""
    jobs = [het(3, 3, limit="00:02:00"), het(4, 3, limit="00:02:00", cores=2), asked(5, limit="00:01:00")]
    folder = state_of(tmp_path / "state", *jobs, parameters="bf_interval=60", nodes=3)
    found = tb.forecast(folder, log_of(), repetitions=16)
    assert all(within(found, job, 45 / 60) for job in ("3", "4", "5"))
    assert minutes_of(found)["3"] == minutes_of(found)["4"] <= minutes_of(found)["5"]
    assert waits_for(read_state(tmp_path / "state").jobs)[2] == "Priority (2 before it)"


def test_a_heterogeneous_job_waits_for_all_of_its_components(tmp_path: Path) -> None:
    jobs = [running(1, "n1"), het(3, 3), het(4, 3, cores=4)]
    found = minutes_of(tb.forecast(state_of(tmp_path / "state", *jobs), log_of(), repetitions=8))
    assert found["3"] == found["4"] == pytest.approx(40.0, abs=1.5)
    held = [het(3, 3, priority=0), het(4, 3)]
    table = tb.forecast(state_of(tmp_path / "held", *held), log_of(), repetitions=4).table.set_index("job_id")
    assert table["reason"].to_dict() == {
        "3": "JobHeldUser",
        "4": "another component of its heterogeneous job has no forecast",
    }


@pytest.mark.parametrize(
    ("fields", "nodes", "demand"),
    [
        ({"TresPerNode": "gres:gpu:a100:2"}, 2, {"gpu": 2, "gpu:a100": 2}),
        ({"TresPerJob": "gres:gpu:a100:3"}, 2, {"gpu": 2, "gpu:a100": 2}),
        ({"TresPerJob": "gres:gpu:4,gres:bw:1K"}, 4, {"gpu": 1, "bw": 256}),
    ],
)
def test_generic_resources_of_a_job_count_once(fields: dict[str, str], nodes: int, demand: dict[str, int]) -> None:
    assert gres_of(gres(Record(fields, "", "job.txt:1"), nodes)) == demand
