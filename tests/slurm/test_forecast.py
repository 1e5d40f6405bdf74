"""Forecasts of the starts of waiting jobs: what is read of a state, what is learnt of a log, and how good they are."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import tracebed.api as tb
from tests.executables import write_program
from tests.oracles import slurm_forecasts
from tracebed.cli import tracebed
from tracebed.ground.errors import ExitCode, InputError, TestbedError
from tracebed.slurm.live_state import ask
from tracebed.slurm.scontrol import records, shares, task_numbers
from tracebed.slurm.simulation.run_times import KILLED, Draws, RunTimes
from tracebed.slurm.state import COMMANDS, ClusterState, read_folder, state_of

NOW = "2026-01-31T12:00:00"
CONFIG = f"""Configuration data as of {NOW}
PriorityType            = priority/multifactor
PriorityWeightAge       = 1000
SchedulerParameters     = bf_interval=5
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE
SLURM_VERSION           = 22.05.8
"""
NODE = (
    "NodeName={name} CPUTot=4 Gres=(null) ActiveFeatures=(null) RealMemory=4000 State={state} ThreadsPerCore=1 Weight=1"
)
PARTITION = "PartitionName=main Default=YES MaxTime=UNLIMITED Nodes=n[1-2] PriorityTier=1 State=UP OverSubscribe=NO"
JOB = (
    "JobId={id} {array}JobName={name} UserId=ann(7) GroupId=g(7) Priority={priority} Account=chem JobState={state} "
    "Reason={reason} Dependency={dependency} TimeLimit={limit} SubmitTime=2026-01-31T11:00:00 "
    "EligibleTime={eligible} AccrueTime=2026-01-31T11:00:00 StartTime={start} Partition={partition} "
    "NodeList={nodes} NumNodes=1 NumCPUs={cores} CPUs/Task=1 TRES=cpu={cores},node=1 NtasksPerN:B:S:C=0:0:*:* "
    "{detail}MinMemoryNode=0 Features=(null) OverSubscribe=OK"
)
PENDING: dict[str, Any] = {
    "array": "",
    "name": "wrap",
    "priority": 100,
    "state": "PENDING",
    "reason": "Priority",
    "dependency": "(null)",
    "limit": "01:40:00",
    "eligible": "2026-01-31T11:00:00",
    "start": "Unknown",
    "partition": "main",
    "nodes": "(null)",
    "cores": 4,
    "detail": "",
}


def running(job: int, node: str, start: str = "2026-01-31T11:50:00", cores: int = 4, **changes: Any) -> str:
    detail = f"  Nodes={node} CPU_IDs=0-{cores - 1} Mem=0 GRES= "
    given = {"state": "RUNNING", "reason": "None", "start": start, "nodes": node, "cores": cores, "detail": detail}
    return JOB.format(id=job, **(PENDING | given | changes))


def waiting(job: int, **changes: Any) -> str:
    return JOB.format(id=job, **(PENDING | changes))


def folder_of(path: Path, *jobs: str, states: tuple[str, ...] = ("MIXED", "IDLE"), config: str = CONFIG) -> Path:
    nodes = [NODE.format(name=f"n{number}", state=state) for number, state in enumerate(states, 1)]
    texts = {"config": config, "partition": PARTITION, "node": "\n".join(nodes), "job": "\n".join(jobs)}
    path.mkdir(exist_ok=True)
    for name, text in texts.items():
        (path / f"{name}.txt").write_text(f"{text}\n")
    return path


def read_state(path: Path) -> ClusterState:
    return state_of(read_folder(path), path)


def log_of(share: float = 0.5, user: str = "ann", jobs: int = 40, gap: float = 1e6) -> tb.Workload:
    """Return a log whose jobs run for a share of their limits, and arrive so rarely that none does in a forecast."""
    return tb.Workload(
        pd.DataFrame(
            {
                "job_id": [str(job) for job in range(jobs)],
                "submit_time": [gap * job for job in range(jobs)],
                "run_time": [6000.0 * share] * jobs,
                "time_limit": 6000.0,
                "nodes": 1,
                "user": user,
                "partition": "main",
            }
        )
    )


def minutes_of(found: tb.Forecast, column: str = "start") -> dict[str, float]:
    """Return the times of a column by job, minutes after the instant of the state."""
    since = (found.table[column] - pd.Timestamp(found.instant)).dt.total_seconds() / 60
    return dict(zip(found.table["job_id"], since, strict=True))


# -- the state --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "whole"),
    [
        ("OverSubscribe=OK", False),
        ("OverSubscribe=NO", True),
        ("OverSubscribe=NO Exclusive=NO", False),  # from Slurm 26.05 on
        ("OverSubscribe=NO Exclusive=NODE", True),
        ("OverSubscribe=NO Exclusive=TOPO", True),
        ("OverSubscribe=NO Exclusive=USER", False),
    ],
)
def test_an_exclusive_job_has_whole_nodes_in_each_version_of_slurm(says: str, whole: bool, tmp_path: Path) -> None:
    state = read_state(folder_of(tmp_path, waiting(1).replace("OverSubscribe=OK", says)))
    assert [job.whole for job in state.jobs] == [whole]


@pytest.mark.parametrize("says", ["OverSubscribe=EXCLUSIVE", "OverSubscribe=NO Exclusive=NODE"])
def test_a_partition_has_exclusive_jobs_in_each_version_of_slurm(says: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, waiting(1))
    (folder / "partition.txt").write_text(PARTITION.replace("OverSubscribe=NO", says) + "\n")
    state = read_state(folder)
    assert [partition.exclusive for partition in state.machine.partitions] == [True]
    assert not any("xclusive" in note for note in state.notes)


def test_a_state_has_the_running_and_waiting_jobs(tmp_path: Path) -> None:
    found = read_state(folder_of(tmp_path / "state", running(1, "n1"), waiting(2), waiting(3, state="COMPLETED")))
    assert [(job.id, job.held, job.limit_s) for job in found.jobs] == [("1", {"n1": 4}, 6000.0), ("2", {}, 6000.0)]
    assert found.machine.partitions[0].name == "main"
    assert [name for name, _ in found.machine.nodes] == ["n1", "n2"]
    assert found.notes == ()


def test_the_name_of_a_job_sets_nothing(tmp_path: Path) -> None:
    name = "x Priority=9 JobState=RUNNING UserId=eve(1) Partition=other"
    found = read_state(folder_of(tmp_path / "state", waiting(2, name=name)))
    assert [(job.user, job.partition, job.priority, job.start) for job in found.jobs] == [("ann", "main", 100, None)]


def test_records_of_several_lines_are_read() -> None:
    text = "JobId=1 JobName=a\n   UserId=ann(7) GroupId=g(7)\n   Priority=5\n\nJobId=2 JobName=b\n   Priority=6\n"
    found = records(text, "JobId", "job.txt")
    assert [(each.fields["JobId"], each.number("Priority"), each.where) for each in found] == [
        ("1", 5, "job.txt:1"),
        ("2", 6, "job.txt:5"),
    ]


def test_an_output_without_records_is_empty() -> None:
    assert records("No jobs in the system\n", "JobId", "job.txt") == []


def test_tasks_of_an_array_wait_one_by_one(tmp_path: Path) -> None:
    found = read_state(folder_of(tmp_path / "state", waiting(7, array="ArrayJobId=5 ArrayTaskId=3-4,8%2 ")))
    assert [job.id for job in found.jobs] == ["5_3", "5_4", "5_8"]
    assert found.notes == ()
    assert {job.array for job in found.jobs} == {"5%2"}
    assert task_numbers("0-6:3") == [0, 3, 6]


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("config", CONFIG, "ClusterName=x\n", "config.txt:1: is not the output of scontrol show config"),
        ("job", "JobId=", "JOBID ", "job.txt:1: 'JOBID 2 JobName=wrap.*' is not a record that begins with JobId="),
        ("job", "JobState=", "State=", "job.txt:1: the record has no field JobState"),
        ("job", "Priority=100", "Priority=high", "job.txt:1: Priority=high is not a number"),
        ("job", "Partition=main", "Partition=gpu", "job.txt:1: job 2 has the unknown partition gpu"),
        ("job", "T11:00:00", " 11h", "job.txt:1: '2026-01-31' is not a time|job.txt:1: .* is not a time"),
        ("node", "CPUTot=4", "CPUs=4", "node.txt:1: the record has no field CPUTot"),
        ("node", "CPUTot=4", "CPUTot=0", "node.txt:1: CPUTot=0 is not a number of CPUs"),
        ("node", "NodeName", "#NodeName", "node.txt:1: .* is not a record that begins with NodeName="),
        ("partition", PARTITION, "", "partition.txt: has no partition"),
        ("partition", "n[1-2]", "n[1-", "partition.txt:1: .* is not a list of hosts"),
    ],
)
def test_another_output_is_an_error_with_its_place(name: str, old: str, new: str, message: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "state", waiting(2))
    file = folder / f"{name}.txt"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InputError, match=message) as error:
        read_state(folder)
    assert error.value.hint


def test_a_missing_file_is_an_error_with_the_command(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "state", waiting(2))
    (folder / "node.txt").unlink()
    with pytest.raises(InputError, match=r"node.txt: cannot read the output of scontrol -o show node") as error:
        read_state(folder)
    assert error.value.hint == "save it: scontrol -o show node > node.txt"
    with pytest.raises(InputError, match="is not a folder"):
        read_state(tmp_path / "other")


def test_binary_data_is_an_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "state", waiting(2))
    (folder / "job.txt").write_bytes(b"JobId=1\0\1")
    with pytest.raises(InputError, match=r"job.txt: binary data, not the output of a command"):
        read_state(folder)


def test_a_file_that_is_cut_or_empty_is_an_error(tmp_path: Path) -> None:
    """Without the last jobs, the queue would seem to drain earlier. scontrol says so where there are no jobs."""
    folder = folder_of(tmp_path / "state", waiting(2), waiting(3))
    file = folder / "job.txt"
    whole = file.read_bytes()
    for kept, message in ((-60, "job.txt: line 2 is cut off"), (0, "job.txt: is empty")):
        file.write_bytes(whole[:kept])
        with pytest.raises(InputError, match=message) as error:
            read_state(folder)
        assert error.value.hint == "save it: scontrol -d -o show job > job.txt"
    file.write_text("No jobs in the system\n")
    assert read_state(folder).jobs == ()


@pytest.mark.parametrize("name", ["sprio", "sshare"])
def test_a_table_of_another_command_is_an_error(name: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "state", waiting(2))
    (folder / f"{name}.txt").write_text("You are not running a supported priority plugin\n")
    with pytest.raises(InputError, match=f"{name}.txt:1: is not the output of {name} -"):
        read_state(folder)


def test_a_running_job_on_an_unknown_node_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="job 1 runs on the unknown node n9"):
        read_state(folder_of(tmp_path / "state", running(1, "n9")))


def test_accounts_below_accounts_have_no_shares() -> None:
    head = "Account|User|NormShares|RawUsage|FairShare\nroot||0|9|\n"
    flat = head + " chem||0.5|9|\n  chem|ann|1.0|9|0.25\n"
    assert [(each.user, each.account_share, each.factor) for each in shares(flat, "")] == [("ann", 0.5, 0.25)]
    assert shares(head + " science||0.5|9|\n  chem||0.5|9|\n   chem|ann|1|9|0.25\n", "") == []


def test_a_cluster_without_multifactor_priorities_has_no_shares_and_no_output_of_sprio(tmp_path: Path) -> None:
    """As Slurm 22.05 prints it under `PriorityType=priority/basic`, the default."""
    folder = folder_of(tmp_path / "state", waiting(2))
    folder.joinpath("sprio.txt").write_text("")
    folder.joinpath("sshare.txt").write_text(
        "Account|User|RawShares|NormShares|RawUsage|NormUsage|EffectvUsage|FairShare|LevelFS|GrpTRESMins|TRESRunMins\n"
        "root||||0||0.000000||0.000000||cpu=0,mem=0\n root|root|1||0||0.000000|0.000000|0.000000||cpu=0,mem=0\n"
        " physics||1||0||0.000000||0.000000||cpu=0,mem=0\n  physics|ann|1||0||0.000000|0.000000|0.000000||cpu=0,mem=0\n"
    )
    assert read_state(folder).shares == ()


def test_the_switches_are_those_of_the_folder(tmp_path: Path) -> None:
    config = CONFIG.replace("22.05.8", "23.11.4") + "TopologyPlugin = topology/tree\n"
    folder = folder_of(tmp_path / "state", waiting(2), config=config)
    notes = read_state(folder).notes
    assert any(f"{folder / 'topology.conf'} is missing: no switches are assumed" in note for note in notes)
    assert any("the rules of Slurm 23.11 are unknown: those of 22.05 are assumed" in note for note in notes)
    (folder / "topology.conf").write_text("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\n")
    machine = read_state(folder).conf.cluster
    assert machine is not None and [switch.nodes for switch in machine.switches] == ["n1", "n2"]


def test_what_is_not_modeled_is_named(tmp_path: Path) -> None:
    config = CONFIG.replace("22.05.8", "25.05.1") + "PreemptType = preempt/qos\nPriorityWeightFairShare = 9\n"
    jobs = (waiting(2, reason="QOSMaxJobsPerUserLimit"),)
    folder = folder_of(tmp_path / "state", *jobs, states=("IDLE+DRAIN", "IDLE"), config=config)
    state = read_state(folder)
    assert state.conf.parameters["release"] == "25.05"
    notes = "\n".join(state.notes)
    for part in (
        "PreemptType=preempt/qos",
        "Slurm 25.05.1 is simulated with the rules of release 25.05, and its output is read as that of 22.05",
        "no job starts on nodes that are down, drained or reserved (1)",
        "the fair-share factors stay as they are",
        "1 job: the reason QOSMaxJobsPerUserLimit is not modeled: the forecast is too early while it lasts",
    ):
        assert part in notes


# -- the run times ----------------------------------------------------------------------------------------------------


def drawn(learnt: RunTimes, user: str, limit: float, elapsed: float = 0.0) -> list[float]:
    return sorted({*Draws(learnt, 2000, np.random.default_rng(1)).of(user, limit, 1, elapsed).tolist()})


def jobs_of(*rows: tuple[str, float, float]) -> tb.Workload:
    users, limits, times = zip(*rows, strict=True)
    names = [str(job) for job in range(len(rows))]
    table = {"job_id": names, "submit_time": 0.0, "run_time": times, "time_limit": limits, "nodes": 1, "user": users}
    return tb.Workload(pd.DataFrame(table))


def test_run_times_are_shares_of_the_limit_of_a_user() -> None:
    learnt = RunTimes(jobs_of(*[("ann", 600.0, 60.0)] * 400, ("bob", 6000.0, 3000.0)))
    shares_of_ann = Draws(learnt, 2000, np.random.default_rng(1)).of("ann", 600.0, 1) / 600.0
    assert np.mean(shares_of_ann == 0.1) > 0.98
    assert drawn(learnt, "bob", 6000.0) == [600.0, 3000.0]  # few jobs of bob: also those of all
    assert drawn(learnt, "eve", 1000.0) == pytest.approx([100.0, 500.0])


def test_run_times_exceed_the_elapsed_time() -> None:
    learnt = RunTimes(jobs_of(*[("ann", 600.0, 60.0)] * 30, *[("ann", 600.0, 300.0)] * 3))
    assert drawn(learnt, "ann", 600.0, elapsed=61.0) == [300.0]
    assert drawn(learnt, "ann", 600.0, elapsed=301.0) == [KILLED * 600.0]  # no job ran as long: until its limit


def test_a_job_of_a_group_that_ran_as_long_belongs_to_it() -> None:
    """Half of the jobs of ann run for 500 s of 600 s, and hardly any other job runs for 100 s of 600 s."""
    own = [("ann", 600.0, 10.0), ("ann", 600.0, 500.0)] * 2
    others = [("bob", 600.0, 30.0)] * 96 + [("bob", 600.0, 300.0)] * 4
    draws = Draws(RunTimes(jobs_of(*own, *others)), 4000, np.random.default_rng(1))
    found = draws.of("ann", 600.0, 1, elapsed=100.0)
    # 2 of 4 jobs of the group, with the weight 4 of all others, of which 6 of 104 ran as long
    assert np.mean(found == 500.0) > 0.9


def test_a_member_goes_through_the_jobs_of_a_user_in_their_order() -> None:
    """Two jobs of a user are alike in a member if those of the log come in series."""
    learnt = RunTimes(jobs_of(*[("ann", 600.0, 60.0)] * 200, *[("ann", 600.0, 300.0)] * 200))
    draws = Draws(learnt, 1000, np.random.default_rng(1))
    first, second = draws.of("ann", 600.0, 1), draws.of("ann", 600.0, 1)
    assert 0.4 < np.mean(first == 60.0) < 0.6
    assert np.mean(first == second) > 0.95


def test_jobs_at_their_limit_are_killed_there() -> None:
    assert drawn(RunTimes(jobs_of(("ann", 600.0, 600.0))), "ann", 60.0) == [KILLED * 60.0]


def test_a_log_without_limits_teaches_nothing(tmp_path: Path) -> None:
    log = jobs_of(("ann", math.nan, 60.0))
    with pytest.raises(InputError, match="no job of the log has a run time and a time limit"):
        tb.forecast(folder_of(tmp_path / "state", waiting(2)), log)


# -- the forecast -----------------------------------------------------------------------------------------------------


def test_a_job_starts_when_a_running_one_is_expected_to_end(tmp_path: Path) -> None:
    """The running jobs began 10 minutes ago, and run for half of 100 minutes: not for their whole limits."""
    jobs = (running(1, "n1"), running(2, "n2", start="2026-01-31T11:40:00"), waiting(3, start="2026-01-31T13:20:00"))
    found = tb.forecast(folder_of(tmp_path / "state", *jobs), log_of(), repetitions=8)
    assert minutes_of(found)["3"] == pytest.approx(30.0, abs=0.2)
    assert minutes_of(found, "earliest")["3"] <= minutes_of(found)["3"] <= minutes_of(found, "latest")["3"]
    assert minutes_of(found, "slurm") == {"3": 80.0}


def test_the_present_priorities_decide(tmp_path: Path) -> None:
    jobs = (running(1, "n1"), running(2, "n2"), waiting(3), waiting(4, priority=300), waiting(5, priority=200))
    found = minutes_of(tb.forecast(folder_of(tmp_path / "state", *jobs), log_of(), repetitions=8))
    assert {job: round(start / 10) for job, start in found.items()} == {"4": 4, "5": 4, "3": 9}


def test_the_age_of_a_state_is_part_of_its_priorities(tmp_path: Path) -> None:
    """The factors of sprio give the part of the age: job 4 gains nothing more, job 3 still does."""
    config = CONFIG + "PriorityMaxAge = 02:00:00\nPriorityCalcPeriod = 00:01:00\n"
    jobs = (running(1, "n1"), running(2, "n2"), waiting(3), waiting(4, priority=200))
    folder = folder_of(tmp_path / "state", *jobs, states=("ALLOCATED", "DOWN*"), config=config)
    (folder / "sprio.txt").write_text("JOBID PARTITION USER PRIORITY AGE FAIRSHARE\n3 main ann 100 0 0\n")
    found = minutes_of(tb.forecast(folder, log_of(), repetitions=8))
    assert found["3"] < found["4"]


def test_a_job_waits_until_its_begin(tmp_path: Path) -> None:
    jobs = (waiting(3, reason="BeginTime", eligible="2026-01-31T12:20:00"), waiting(4))
    found = minutes_of(tb.forecast(folder_of(tmp_path / "state", *jobs), log_of(), repetitions=8))
    assert found["4"] < 0.5
    assert found["3"] == pytest.approx(20.0, abs=0.5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reason": "JobHeldUser", "priority": 0}, "JobHeldUser"),
        ({"priority": 0}, "JobHeldUser"),
        ({"reason": "Dependency", "dependency": "afterok:1(unfulfilled)"}, "Dependency"),
        ({"cores": 9}, "no available nodes of its partition can run it"),
    ],
)
def test_a_job_that_waits_for_something_else_has_no_forecast(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "state", waiting(2, **changes), waiting(3))
    table = tb.forecast(folder, log_of(), repetitions=4).table.set_index("job_id")
    assert table["reason"].to_dict() == {"3": "", "2": reason}
    assert table["start"].isna().to_dict() == {"3": False, "2": True}


def test_a_dependent_job_starts_after_its_job(tmp_path: Path) -> None:
    jobs = (running(1, "n1"), waiting(2, dependency="afterany:1(unfulfilled)", reason="Dependency"))
    more = waiting(3, dependency="afterok:2_*(unfulfilled)", reason="Dependency")
    found = minutes_of(tb.forecast(folder_of(tmp_path / "state", *jobs, more), log_of(), repetitions=8))
    assert found["2"] == pytest.approx(40.0, abs=1.0)  # half of the limit is over after 50 minutes
    assert found["3"] == pytest.approx(90.0, abs=1.5)
    held = waiting(2, dependency="afterany:1(unfulfilled)", reason="JobHeldUser", priority=0)
    table = tb.forecast(folder_of(tmp_path / "held", jobs[0], held, more), log_of(), repetitions=4).table
    assert table.set_index("job_id")["reason"].to_dict() == {"2": "JobHeldUser", "3": "Dependency"}


def test_tasks_of_an_array_and_licences_wait_for_their_limit(tmp_path: Path) -> None:
    config = f"{CONFIG}Licenses = matlab:1\n"
    tasks = waiting(7, array="ArrayJobId=5 ArrayTaskId=3-4%1 ", cores=1, priority=200)
    licensed = [
        waiting(job, cores=1, priority=100 - job).replace(" Features", " Licenses=matlab:1 Features") for job in (8, 9)
    ]
    folder = folder_of(tmp_path / "state", tasks, *licensed, config=config)
    found = minutes_of(tb.forecast(folder, log_of(), repetitions=8))
    assert [found["5_3"], found["8"]] == pytest.approx([0.0, 0.0], abs=1.0)
    assert [found["5_4"], found["9"]] == pytest.approx([50.0, 50.0], abs=1.5)


def test_a_job_of_several_partitions_starts_in_the_first_that_has_room(tmp_path: Path) -> None:
    other = PARTITION.replace("main", "other").replace("n[1-2]", "n2")
    jobs = (running(1, "n1"), waiting(2, partition="main,other"))
    folder = folder_of(tmp_path / "state", *jobs)
    (folder / "partition.txt").write_text(f"{PARTITION.replace('n[1-2]', 'n1')}\n{other}\n")
    assert minutes_of(tb.forecast(folder, log_of(), repetitions=8))["2"] < 0.5


def test_limits_of_a_qos_hold_jobs(tmp_path: Path) -> None:
    config = f"{CONFIG}AccountingStorageEnforce = associations,limits,qos\n"
    jobs = [
        waiting(job, cores=1, reason="QOSMaxJobsPerUserLimit").replace(" Features", " QOS=slow Features")
        for job in (2, 3)
    ]
    large = waiting(4, cores=3).replace(" Features", " QOS=slow Features")
    folder = folder_of(tmp_path / "state", *jobs, large, config=config)
    notes = read_state(folder).notes
    assert any("QOSMaxJobsPerUserLimit is not modeled" in note for note in notes)
    assert "limits are unknown without accounts.txt and qos.txt: jobs that they hold start" in notes
    (folder / "qos.txt").write_text("Name|Priority|MaxTRES|MaxJobsPU\nnormal|0||\nslow|0|cpu=2|1\n")
    forecast = tb.forecast(folder, log_of(), repetitions=8)
    assert "limits are unknown without accounts.txt: jobs that they hold start" in forecast.notes
    assert not any("QOSMaxJobsPerUserLimit" in note for note in forecast.notes)
    found = minutes_of(forecast)
    assert [found["2"], found["3"]] == pytest.approx([0.0, 50.0], abs=1.5)
    reasons = forecast.table.set_index("job_id")["reason"]
    assert reasons["4"].startswith("QOSMaxCpuPerJobLimit")


ACCOUNTS = (
    "Account|User|Partition|ParentName|Share|Priority|QOS|Def QOS|GrpJobs|GrpSubmit|GrpTRES|GrpTRESMins|MaxJobs\n"
    "root||||1||normal||||||\n"
    "lab|||root|1||normal||||cpu=4|cpu=9|\n"
    "chem|||lab|1||normal||||||\n"
    "chem|ann|||1||normal||||||1\n"
    "chem|bob|||1||normal||||||\n"
)


def test_limits_of_accounts_and_users_hold_jobs(tmp_path: Path) -> None:
    """Ann may run one job, and all jobs below the account lab 4 cores."""
    config = f"{CONFIG}AccountingStorageEnforce = associations,limits\n"
    second = waiting(3, cores=1, reason="AssocMaxJobsLimit", priority=300)
    third = waiting(4, cores=2, reason="AssocGrpCpuLimit", priority=200).replace("=ann(7)", "=bob(8)")
    folder = folder_of(tmp_path / "state", running(1, "n1"), second, third, config=config)
    assert {round(start) for start in minutes_of(tb.forecast(folder, log_of(), repetitions=8)).values()} == {0}
    assert len([note for note in read_state(folder).notes if "is not modeled: the forecast is too early" in note]) == 2
    (folder / "accounts.txt").write_text(ACCOUNTS)
    forecast = tb.forecast(folder, log_of(), repetitions=8)
    assert minutes_of(forecast) == pytest.approx({"3": 40.0, "4": 40.0}, abs=1.0)
    assert not [note for note in forecast.notes if "the reason" in note]
    assert any("GrpTRESMins=cpu=9 (account lab)" in note for note in forecast.notes)
    (folder / "accounts.txt").write_text(ACCOUNTS.replace("|root|1", "|other|1"))
    with pytest.raises(InputError, match=r"accounts.txt:3: the parent of lab is not in the lines above"):
        read_state(folder)


def test_a_job_without_a_qos_preempts_by_the_default_qos_of_its_account(tmp_path: Path) -> None:
    config = f"{CONFIG}PreemptType = preempt/qos\nPreemptMode = CANCEL\n"
    held = [running(job, node).replace(" Features", " QOS=low Features") for job, node in ((1, "n1"), (2, "n2"))]
    folder = folder_of(tmp_path / "state", *held, waiting(3), config=config)
    (folder / "qos.txt").write_text("Name|Priority|Preempt|PreemptMode\nnormal|0||\nlow|0||\nhigh|0|low|\n")
    for default, minutes in (("normal", 40.0), ("high", 0.0)):
        (folder / "accounts.txt").write_text(
            ACCOUNTS.replace("chem|ann|||1||normal|", f"chem|ann|||1||normal,high|{default}")
        )
        assert minutes_of(tb.forecast(folder, log_of(), repetitions=8))["3"] == pytest.approx(minutes, abs=1.5)


def test_a_job_with_singleton_waits_for_the_jobs_of_its_name(tmp_path: Path) -> None:
    first = running(1, "n1", cores=1)
    alone = [waiting(job, cores=1, dependency="singleton(unfulfilled)", reason="Dependency") for job in (2, 3)]
    other = waiting(4, cores=1, dependency="singleton(unfulfilled)", reason="Dependency", name="a name with spaces")
    found = minutes_of(tb.forecast(folder_of(tmp_path / "state", first, *alone, other), log_of(), repetitions=8))
    assert found == pytest.approx({"4": 0.0, "2": 40.0, "3": 90.0}, abs=1.5)
    held = waiting(2, cores=1, reason="JobHeldUser", priority=0)
    table = tb.forecast(folder_of(tmp_path / "held", held, alone[1], other), log_of(), repetitions=4).table
    assert table.set_index("job_id")["reason"].to_dict() == {"4": "", "2": "JobHeldUser", "3": "Dependency"}


def test_each_job_says_why_it_waits(tmp_path: Path) -> None:
    jobs = [
        waiting(2, reason="Resources", priority=300),
        waiting(3),
        waiting(4, reason="BeginTime", eligible="2026-01-31T12:20:00"),
        waiting(5, reason="Dependency", dependency="afterok:3(unfulfilled)"),
        waiting(6, reason="QOSMaxJobsPerUserLimit").replace(" Features", " QOS=slow Features"),
        waiting(7, reason="AssocGrpCPUMinutesLimit"),
        waiting(8, reason="Licenses").replace(" Features", " Licenses=matlab:1 Features"),
    ]
    found = tb.forecast(folder_of(tmp_path / "state", *jobs), log_of(), repetitions=2)
    table = found.table.set_index("job_id")
    assert table["waits"].to_dict() == {
        "2": "Resources",
        "3": "Priority (1 before it)",
        "4": "BeginTime (2026-01-31T12:20:00)",
        "5": "Dependency (afterok:3)",
        "6": "QOSMaxJobsPerUserLimit (QOS slow)",
        "7": "AssocGrpCPUMinutesLimit (chem)",
        "8": "Licenses (matlab:1)",
    }
    assert table["reason"]["7"] == "AssocGrpCPUMinutesLimit"
    assert any("AssocGrpCPUMinutesLimit is not modeled: there is no forecast" in note for note in found.notes)


def test_jobs_end_before_a_reservation_begins(tmp_path: Path) -> None:
    booked = (
        "ReservationName=service StartTime=2026-01-31T12:30:00 EndTime=2026-01-31T13:30:00 Duration=01:00:00\n"
        "   Nodes=n[1-2] NodeCnt=2 CoreCnt=8 Features=(null) PartitionName=(null) Flags=MAINT\n"
        "   Users=root Licenses=(null) State=INACTIVE\n"
    )
    inside = waiting(3, cores=1).replace(" Features", " Reservation=service Features")
    folder = folder_of(tmp_path / "state", waiting(2), inside)
    reasons = tb.forecast(folder, log_of(), repetitions=4).table.set_index("job_id")["reason"]
    assert reasons.to_dict() == {"2": "", "3": "Reservation: unknown (no reservation.txt, or not in it)"}
    (folder / "reservation.txt").write_text(booked)
    found = minutes_of(tb.forecast(folder, log_of(), repetitions=8))
    assert found["2"] == pytest.approx(90.0, abs=1.0)
    assert found["3"] == pytest.approx(30.0, abs=1.0)


def test_memory_for_each_cpu_counts_hardware_threads(tmp_path: Path) -> None:
    job = waiting(2, cores=3).replace("MinMemoryNode=0", "MinMemoryCPU=100M")
    folder = folder_of(tmp_path / "state", job)
    nodes = (folder / "node.txt").read_text().replace("ThreadsPerCore=1", "ThreadsPerCore=2")
    (folder / "node.txt").write_text(nodes)
    assert [(each.cores, each.memory_mib) for each in read_state(folder).jobs] == [(2, 200)]


def test_a_job_without_a_limit_has_that_of_its_partition(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "state", waiting(2, limit="Partition_Limit"))
    (folder / "partition.txt").write_text(PARTITION.replace("State=UP", "DefaultTime=00:30:00 State=UP") + "\n")
    assert [job.limit_s for job in read_state(folder).jobs] == [1800.0]


def test_no_job_starts_on_a_drained_node(tmp_path: Path) -> None:
    jobs = (running(1, "n1"), waiting(2), waiting(3, cores=8))
    folder = folder_of(tmp_path / "state", *jobs, states=("ALLOCATED", "IDLE+DRAIN"))
    table = tb.forecast(folder, log_of(), repetitions=4).table.set_index("job_id")
    assert table["reason"].to_dict() == {"2": "", "3": "no available nodes of its partition can run it"}
    assert (table["start"]["2"] - pd.Timestamp(NOW)).total_seconds() / 60 == pytest.approx(40.0, abs=0.2)


def test_later_jobs_of_the_log_delay_the_waiting_ones(tmp_path: Path) -> None:
    """Jobs of a partition with a higher tier arrive every ten minutes, and take both nodes for half of the time."""
    folder = folder_of(tmp_path / "state", running(1, "n1"), running(2, "n2"), waiting(3, cores=8))
    partitions = (folder / "partition.txt").read_text()
    urgent = partitions.replace("main", "urgent").replace("PriorityTier=1", "PriorityTier=2").replace("YES", "NO")
    (folder / "partition.txt").write_text(partitions + urgent)
    table = log_of(0.05, jobs=2000, gap=600.0).table.assign(partition="urgent", cores_per_node=4, nodes=2)
    often = tb.Workload(table)
    alone = minutes_of(tb.forecast(folder, often, repetitions=16, arrivals=False))["3"]
    assert alone == pytest.approx(90.5, abs=0.5)  # no job of the log runs as long: until the limits
    assert minutes_of(tb.forecast(folder, often, repetitions=16))["3"] > alone + 20


def test_a_state_without_waiting_jobs_has_an_empty_table(tmp_path: Path) -> None:
    assert tb.forecast(folder_of(tmp_path / "state", running(1, "n1")), log_of(), repetitions=4).table.empty


def test_the_seed_sets_all_draws(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "state", running(1, "n1"), running(2, "n2"), waiting(3), waiting(4))
    log = jobs_of(*[("ann", 600.0, 30.0 * k) for k in range(1, 20)])
    one, same, other = (tb.forecast(folder, log, repetitions=8, seed=seed).table for seed in (1, 1, 2))
    assert one.equals(same)
    assert not one.equals(other)


def test_unknown_users_are_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "state", waiting(2))
    (note,) = tb.forecast(folder, log_of(user="user-1"), repetitions=2).notes
    assert note.startswith("the log has 0 of the 1 users (read it with --keep names);")


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> Path:
    tb.write(log_of(), tmp_path / "log.parquet")
    return folder_of(
        tmp_path / "state", running(1, "n1"), running(2, "n2"), waiting(3), waiting(4, reason="JobHeldUser")
    )


def call(state: Path, *options: str) -> str:
    command = ["forecast", str(state), "--log", str(state.parent / "log.parquet"), "--repetitions", "8", *options]
    result = CliRunner().invoke(tracebed, command)
    assert result.exit_code == ExitCode.OK, result.output
    return result.stdout


def test_the_command_prints_a_table(state: Path) -> None:
    head, job, held, _ = call(state).splitlines()
    assert " ".join(head.split()) == (
        "job user partition asked start 80 %: from to Slurm's estimate waits for no forecast"
    )
    assert job.split()[:9] == ["3", "ann", "main", "4", "cores,", "1", "h", "40", "min"]
    assert [word[:4] for word in job.split()[9:12]] == ["12:4", "12:4", "12:4"]
    assert job.split()[12:] == ["Priority", "(0", "before", "it)"]
    assert held.split()[-1] == "JobHeldUser"


def test_the_command_prints_json(state: Path) -> None:
    found = json.loads(call(state, "--json"))
    assert (found["schema"], found["instant"], found["members"]) == ("tracebed-forecast/1", NOW, 8)
    assert [(job["job_id"], job["start"][:15] if job["start"] else None) for job in found["jobs"]] == [
        ("3", "2026-01-31T12:4"),
        ("4", None),
    ]


def test_the_command_writes_a_csv(state: Path) -> None:
    file = state.parent / "starts.csv"
    call(state, "-o", str(file))
    rows = [*csv.DictReader(file.read_text().splitlines())]
    assert [(row["job_id"], row["start"][:15], row["reason"]) for row in rows] == [
        ("3", "2026-01-31T12:4", ""),
        ("4", "", "JobHeldUser"),
    ]
    call(state, "-o", str(file), "--replace")


def test_a_live_cluster_is_asked_by_its_commands(
    state: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Commands that print the files stand for those of Slurm. `sprio` fails, as without multifactor priorities."""
    tools = state.parent / "tools"
    scontrol = f'#!/bin/sh\nfor last; do :; done\ncat "{state}/$last.txt"\n'
    for name, text in (("scontrol", scontrol), ("sprio", "#!/bin/sh\nexit 1\n"), ("sshare", "#!/bin/sh\nexit 1\n")):
        write_program(tools / name, text)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    assert ask() == read_folder(state)
    live = tb.forecast(None, log_of(), repetitions=8).table
    assert live.equals(tb.forecast(state, log_of(), repetitions=8).table)


def test_a_machine_without_slurm_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    with pytest.raises(InputError, match="scontrol is not installed"):
        tb.forecast(None, log_of())
    write_program(tmp_path / "scontrol", "#!/bin/sh\necho no answer >&2\nexit 1\n")
    with pytest.raises(TestbedError, match="no answer") as error:
        tb.forecast(None, log_of())
    assert error.value.hint is not None and error.value.hint.endswith("or name a folder with their outputs")


# -- recorded states --------------------------------------------------------------------------------------------------

RECORDED = sorted(slurm_forecasts.FOLDER.glob("*.json.xz"))


@pytest.fixture(scope="module")
def recordings() -> dict[Path, dict[str, Any]]:
    return {path: slurm_forecasts.recorded(path) for path in RECORDED}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.partition(".")[0])
def test_states_have_slurms_own_estimates(path: Path, recordings: dict[Path, dict[str, Any]], tmp_path: Path) -> None:
    """The estimates in the records of the jobs are those of `squeue --start`."""
    for number, recorded in enumerate(recordings[path]["states"][::5]):
        found = state_of({name: recorded[name] for name in COMMANDS if name in recorded}, tmp_path / str(number))
        own = {job.id: job.estimate for job in found.jobs if job.start is None}
        printed = dict(line.split("|") for line in recorded["start"].splitlines())
        same = [
            job
            for job in own.keys() & printed.keys()
            if own[job] == (None if printed[job] == "N/A" else slurm_forecasts.instant(printed[job], ""))
        ]
        assert len(same) >= 0.9 * len(printed)  # the commands run one after the other
        assert found.notes == ()


@pytest.mark.slow
def test_forecasts_are_better_than_those_of_slurm(recordings: dict[Path, dict[str, Any]]) -> None:
    """The aims: at most half of the error of Slurm's own estimates, and 75 to 85 % of the starts in their intervals."""
    tables = []
    for path, content in recordings.items():
        log = slurm_forecasts.log_of([other for place, other in recordings.items() if place != path])
        tables.append(slurm_forecasts.forecasts(content, log, 32, every=3))
        figures = slurm_forecasts.figures(tables[-1])
        assert figures["error_s"] < 0.25 * figures["slurm_error_s"], path.name
    figures = slurm_forecasts.figures(pd.concat(tables))
    assert figures["error_s"] < 0.15 * figures["slurm_error_s"]
    assert 0.75 <= figures["inside"] <= 0.85
