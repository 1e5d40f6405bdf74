"""The reader of sacct against a real Slurm with accounting, started in a temporary folder.

It runs munged, mariadbd, slurmdbd, slurmctld and four slurmd on the loopback, and ends them by their process ids.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from tests.servers.slurmd import SETTINGS, Slurm, reason_to_skip
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.sacct import COMMAND, STATES

REASON = reason_to_skip(accounting=True)
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.slow]

SHRINKING = """#!/bin/sh
sleep 2; scontrol update JobId=$SLURM_JOB_ID NumNodes=2
sleep 2; scontrol update JobId=$SLURM_JOB_ID NumNodes=1
sleep 1
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Slurm, dict[str, str]]]:
    """Yield a Slurm whose jobs have all ended, and purpose -> job number."""
    expansion = {"SchedulerParameters": f"{SETTINGS['SchedulerParameters']},permit_job_expansion"}
    cluster = Slurm(tmp_path_factory.mktemp("slurm"), nodes=4, accounting=True, settings=expansion)
    try:
        cluster.up()
        yield cluster, submit(cluster)
    finally:
        cluster.down()


def submit(slurm: Slurm) -> dict[str, str]:
    """Submit jobs of every kind, wait until all have ended, and return purpose -> job number."""

    def batch(*options: str, run: str = "sleep 1") -> str:
        return slurm("sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap", run).strip()

    (slurm.folder / "shrinking").write_text(SHRINKING)
    name = ("-J", "job_0||0002|", "--comment", "a|b\nsecond line|")
    jobs = {
        "timed out": batch("-N1", "-t1", run="sleep 600"),
        "array": batch("-N1", "-t5", "--array=0-2"),
        "never": batch("-N1", "--array=5-9%2", "--begin=now+1hour"),
        "het": batch("-N1", "-t5", "-J", "het", ":", "-N1", "-t5", run="srun true"),
        "shrinking": slurm("sbatch", "--parsable", "-o", "/dev/null", "-N3", "-t7", *name, "shrinking").strip(),
        "two lines": batch("-N2", "-n4", "-t", "UNLIMITED", "--mem=100M", "-J", "late\nline", run="false"),
        "held": batch("-N1", "--hold"),
        "later": batch("-n1", "--begin=now+3", "--mem-per-cpu=50M"),
        "again": batch("-N1", "--requeue", run="sleep 600"),
        "throttled": batch("-N1", "-t5", "--array=0-3%2", run="sleep 2"),
    }
    jobs["dependent"] = batch("-N1", "-t5", "-d", f"afterany:{jobs['array']}")
    slurm.until(lambda: states(slurm).get(jobs["timed out"]) == "RUNNING", "the first job does not run")
    slurm("scontrol", "update", f"JobId={jobs['timed out']}", "EndTime=now+1")  # its limit ends a minute later
    slurm("scancel", jobs["never"], jobs["held"])
    slurm.until(lambda: states(slurm).get(jobs["again"]) == "RUNNING", "the job to be requeued does not run")
    slurm("scontrol", "requeue", jobs["again"])
    slurm.until(lambda: states(slurm).get(jobs["again"]) == "PENDING", "the job is not requeued")
    slurm("scancel", jobs["again"])
    slurm.until(lambda: not states(slurm), "jobs do not end")
    jobs |= resized(slurm)
    ended = [job for name, job in jobs.items() if name != "given away"]
    listed = ("sacct", "-n", "-P", "-X", "-D", "-j", ",".join(ended), "-o", "End,State")
    slurm.until(lambda: not any(word in slurm(*listed) for word in ("Unknown", "RUNNING", "PENDING")), "no accounts")
    return jobs


def resized(slurm: Slurm) -> dict[str, str]:
    """Run jobs that are suspended, held, shrunk and expanded; return purpose -> job number."""

    def running(name: str, nodes: int) -> str:
        job = slurm("sbatch", "--parsable", "-o", "/dev/null", f"-N{nodes}", "-t5", "-J", name, "--wrap", "sleep 600")
        slurm.until(lambda: states(slurm).get(job.strip()) == "RUNNING", f"{name} does not run")
        return job.strip()

    def suspend(job: str) -> None:
        for command in ("suspend", "resume"):
            time.sleep(2.0)
            slurm("scontrol", command, job)
        time.sleep(2.0)

    jobs = {"suspended": running("suspended", 2), "held while it ran": running("held", 2)}
    suspend(jobs["suspended"])
    slurm("scontrol", "hold", jobs["held while it ran"])
    for job in jobs.values():
        slurm("scontrol", "update", f"JobId={job}", "NumNodes=1")
    suspend(jobs["suspended"])
    slurm("scancel", *jobs.values())
    slurm.until(lambda: not states(slurm), "jobs do not end")
    jobs["expanded"] = first = running("expanded", 1)
    suspend(first)
    slurm("salloc", "--no-shell", "-N1", "-t5", "-J", "second", f"--dependency=expand:{first}")
    jobs["given away"] = second = slurm("squeue", "-h", "-n", "second", "-o", "%i").strip()
    time.sleep(2.0)
    slurm("scontrol", "update", f"JobId={second}", "NumNodes=0")
    slurm("scontrol", "update", f"JobId={first}", "NumNodes=ALL")
    suspend(first)
    slurm("scontrol", "update", f"JobId={first}", "NumNodes=1")
    time.sleep(2.0)
    slurm("scancel", first)
    slurm.until(lambda: not states(slurm), "the expanded job does not end")
    return jobs


def states(slurm: Slurm) -> dict[str, str]:
    """Return the states of jobs that have not ended, by number."""
    return dict(line.split(" ", 1) for line in slurm("squeue", "-h", "-o", "%i %T").splitlines())


FIELDS = (
    *("JobID", "JobName", "Submit", "Eligible", "Start", "End", "Elapsed", "Timelimit", "State", "NNodes", "NCPUS"),
    *("ReqMem", "AllocTRES", "ReqTRES", "Comment", "SubmitLine", "NodeList", "Cluster", "User", "ReqNodes"),
)


def jobs_of(slurm: tuple[Slurm, dict[str, str]], fields: str, *options: str, **environment: str) -> pd.DataFrame:
    """Return the jobs in sacct's output with these fields, by number."""
    cluster, jobs = slurm
    path = cluster.folder / "sacct.txt"
    path.write_text(cluster("sacct", *options, "-j", ",".join(jobs.values()), "-o", fields, **environment))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_workload(path, keep_names=True).table.set_index("job_id")


def test_jobs_are_read_as_they_ran(slurm: tuple[Slurm, dict[str, str]]) -> None:
    table, jobs = jobs_of(slurm, ",".join(FIELDS), "-P", "-D"), slurm[1]
    array = [f"{jobs['array']}_{task}" for task in range(3)]
    throttled = [f"{jobs['throttled']}_{task}" for task in range(4)]
    het = [f"{jobs['het']}+{part}" for part in range(2)]
    single = [jobs[name] for name in ("timed out", "shrinking", "two lines", "held", "later", "again", "dependent")]
    single += [jobs[name] for name in ("suspended", "held while it ran", "expanded", "given away")]
    others = [f"{jobs['never']}_[5-9%2]", f"{jobs['again']}-2"]
    assert sorted(table.index) == sorted([*single, *array, *throttled, *het, *others])
    assert table.loc[throttled, "array"].unique().tolist() == [f"{jobs['throttled']}%2"]
    assert table.loc[array, "array"].unique().tolist() == [jobs["array"]]
    assert table.loc[jobs["dependent"], "dependency"] == f"afterany:{jobs['array']}"
    held = table.loc[[*throttled, jobs["dependent"]]]
    assert ((held["earliest_start"] - held["submit_time"]).fillna(0.0) <= 1.0).all()  # slurmctld takes up to a second
    assert table.loc[[*array, *het], "status"].unique().tolist() == ["completed"]
    assert table.loc[het, "extra_het_job"].tolist() == [jobs["het"]] * 2
    assert table.loc[jobs["timed out"], ["status", "time_limit"]].tolist() == ["killed", 60.0]
    assert table.loc[[jobs["again"], f"{jobs['again']}-2"], "status"].tolist() == ["requeued", "cancelled"]
    assert table.loc[jobs["two lines"], ["status", "nodes", "memory_mib"]].tolist() == ["failed", 2, 100.0]
    assert np.isnan(table.loc[jobs["two lines"], "time_limit"])
    for job in (f"{jobs['never']}_[5-9%2]", jobs["held"], f"{jobs['again']}-2"):
        assert table.loc[job, "status"] == "cancelled"
        assert table.loc[job, ["run_time", "logged_start"]].isna().all()
    ran = table[table["logged_start"].notna()].drop([jobs["suspended"], jobs["expanded"]])
    assert (ran["run_time"] == ran["logged_end"] - ran["logged_start"]).all()
    assert (ran["cores_per_node"] == 2).all()  # whole nodes
    later = table.loc[jobs["later"]]
    assert later["earliest_start"] - later["submit_time"] >= 2.0
    assert later["logged_start"] >= later["earliest_start"]


def test_a_resized_job_is_one_with_its_staircase(slurm: tuple[Slurm, dict[str, str]]) -> None:
    job = jobs_of(slurm, ",".join(FIELDS), "-P", "-D").loc[slurm[1]["shrinking"]]
    assert job["nodes"] == 3
    assert job["time_limit"] == 420.0
    segments = [part.split(":") for part in job["extra_segments"].split()]
    assert [int(nodes) for nodes, _ in segments] == [3, 2, 1]
    assert sum(float(seconds) for _, seconds in segments) == job["run_time"] >= 5.0


def test_a_resized_job_ran_without_its_suspensions(slurm: tuple[Slurm, dict[str, str]]) -> None:
    cluster, jobs = slurm
    table = jobs_of(slurm, ",".join(FIELDS), "-P", "-D")
    for name, nodes in (("suspended", [2, 1]), ("expanded", [1, 2, 1])):
        job = table.loc[jobs[name]]
        rows = cluster("sacct", "-n", "-P", "-X", "-D", "-j", jobs[name], "-o", "Suspended").split()
        suspended = sum(int(text[-2:]) for text in rows)
        assert suspended >= 4 and len(rows) == len(nodes)
        assert job["run_time"] == job["logged_end"] - job["logged_start"] - suspended
        assert [int(part.partition(":")[0]) for part in job["extra_segments"].split()] == nodes
    given = table.loc[jobs["given away"]]
    assert given["status"] == "completed" and given["run_time"] == given["logged_end"] - given["logged_start"] <= 10.0
    assert given["extra_segments"] == f"1:{given['run_time']:.0f}"


def test_only_states_list_jobs_that_were_held_while_they_ran(slurm: tuple[Slurm, dict[str, str]]) -> None:
    """If this fails, Slurm lists such jobs by itself."""
    cluster, jobs = slurm
    held = {jobs["held"], jobs["held while it ran"]}
    export = ("sacct", "-n", "-a", "-P", "-D", "-X", "-S", "now-1day", "-E", "now", "-o", "JobID,State")
    rows = cluster(*export, "-s", STATES).split()
    assert held <= {row.partition("|")[0] for row in rows}
    assert f"{jobs['held while it ran']}|RESIZING" in rows
    fewer = cluster(*export).split()
    assert f"{jobs['held while it ran']}|RESIZING" not in fewer
    assert jobs["held"] not in {row.partition("|")[0] for row in fewer}


def test_json_and_commas_give_the_same(slurm: tuple[Slurm, dict[str, str]]) -> None:
    cluster, jobs = slurm
    fields = COMMAND.rpartition(" ")[2]
    expected = jobs_of(slurm, fields, "-P", "-D").sort_index()
    text = jobs_of(slurm, fields, "-P", "-D", "--delimiter=,").sort_index()
    pd.testing.assert_frame_equal(text, expected)
    path = cluster.folder / "sacct.json"
    path.write_text(cluster("sacct", "-D", "--json", "-j", ",".join(jobs.values())))
    assert json.loads(path.read_text())["jobs"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = read_workload(path, keep_names=True).table.set_index("job_id").sort_index()
    # Slurm 22.05 has no command lines in JSON.
    evidence = ["array", "dependency", "earliest_start", "fewest_nodes", "spread", "gres", "licenses"]
    same = [name for name in expected if name not in evidence]
    pd.testing.assert_frame_equal(found[same], expected[same])


@pytest.mark.parametrize("delimiter", ["|", ";;", "^"])
@pytest.mark.parametrize("parsable", ["-P", "-p"])
@pytest.mark.parametrize("epoch", [False, True])
def test_any_order_delimiter_and_clock_give_the_same(
    slurm: tuple[Slurm, dict[str, str]], delimiter: str, parsable: str, epoch: bool
) -> None:
    expected = jobs_of(slurm, ",".join(FIELDS), "-P", "-D")
    clock = {"SLURM_TIME_FORMAT": "%s"} if epoch else {}
    options = (parsable, "-D", f"--delimiter={delimiter}")
    found = jobs_of(slurm, ",".join(reversed(FIELDS)), *options, **clock)
    pd.testing.assert_frame_equal(found, expected)


def test_all_fields_at_once(slurm: tuple[Slurm, dict[str, str]]) -> None:
    found = jobs_of(slurm, "ALL", "-P", "-D")
    expected = jobs_of(slurm, ",".join(FIELDS), "-P", "-D")
    same = ["submit_time", "run_time", "time_limit", "nodes", "cores_per_node", "memory_mib", "status", "logged_end"]
    same += ["array", "dependency", "earliest_start"]
    pd.testing.assert_frame_equal(found[same], expected[same])
