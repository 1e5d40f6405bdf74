"""Accounts, QOS and limits against a real Slurm 22.05.8 with slurmdbd (`record_slurm_accounts.py`)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from tests.oracles.slurm_simulation.accounting import Counters, FairShare
from tracebed.cli import tracebed
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.slurm.changes import with_database
from tracebed.slurm.conf import read
from tracebed.slurm.database import Association, Database, Limits, Qos, read_qos, tres_of
from tracebed.slurm.machine import SlurmCluster, SlurmMachine
from tracebed.slurm.simulation import prediction
from tracebed.slurm.simulation.accounts import Accounting
from tracebed.slurm.simulation.factors import resets
from tracebed.slurm.simulation.inputs import Inputs, amounts_of

FOLDER = Path(__file__).parents[1] / "slurm_recordings" / "accounts"
FILES = [FOLDER / name for name in ("qos.txt", "slurm.conf", "dump.cfg")]
LIMITED = sorted(path.stem for path in FOLDER.glob("*.json") if "states" in json.loads(path.read_text()))
ORDERED = sorted(path.stem for path in FOLDER.glob("*.json") if "settings" in json.loads(path.read_text()))
NAMES = {
    "Batch job submission failed: Invalid account or account/partition combination specified": "InvalidAccount",
    "Batch job submission failed: Invalid qos specification": "InvalidQOS",
}
"""What sbatch says -> the reason in a run."""
WAIT_S = 8.0
"""A recorded job that has not started so long after its submission waits."""


def recorded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def machine_with(**settings: str) -> SlurmCluster:
    """Return the recorded cluster with changed settings of its slurm.conf."""
    machine = read(*FILES).cluster
    assert machine is not None
    weights = machine.weights
    if flags := settings.get("PriorityFlags"):
        weights = weights.model_copy(update={"flags": tuple(flags.lower().split(","))})
    if "FairShareDampeningFactor" in settings:
        weights = weights.model_copy(update={"dampening": int(settings["FairShareDampeningFactor"])})
    weights = weights.model_copy(update={"favor_small": settings.get("PriorityFavorSmall") == "YES"})
    return machine.model_copy(update={"weights": weights})


def workload_of(jobs: list[dict[str, Any]]) -> Workload:
    """Return recorded jobs; those with a lower priority (nice) were submitted when the others ran."""
    late = next((at for at, job in enumerate(jobs) if "nice" in job), len(jobs) + 1) - 1
    table = pd.DataFrame({"job_id": [str(number) for number in range(1, len(jobs) + 1)]})
    table["submit_time"] = [0.01 * at + (10.0 if at >= late else 0.0) for at in range(len(jobs))]
    table["run_time"] = [float(job["run"]) for job in jobs]
    table["time_limit"] = [60.0 * job["limit"] for job in jobs]
    table["nodes"] = [job["cores"] // job.get("per_node", 1) for job in jobs]
    table["cores_per_node"] = [job.get("per_node", 1) for job in jobs]
    table["spread"] = [int("per_node" not in job) for job in jobs]
    table["fewest_nodes"] = [job.get("nodes", 1) for job in jobs]
    table["memory_mib"] = [float(job.get("memory", job.get("per_cpu", 0) * job["cores"]) or math.nan) for job in jobs]
    table["gres"] = [f"lic:{job['lic']}" if "lic" in job else "" for job in jobs]
    for name, key in (("user", "user"), ("group", "account"), ("queue", "qos"), ("partition", "partition")):
        table[name] = [job.get(key, "") for job in jobs]
    return Workload(table, Provenance(system=System(4, 4)))


def inputs_of(jobs: list[dict[str, Any]], machine: SlurmCluster) -> tuple[Inputs, list[int]]:
    workload = workload_of(jobs)
    known = Jobs.of(workload, cores_per_node=4, over_limit=OverLimit.KILL)
    setup = Setup.of("slurm", over_limit=OverLimit.KILL)
    return prediction._inputs(workload, known, prediction.IdleCluster.of(machine), setup, ScheduleRecord(known))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", LIMITED)
def test_the_jobs_start_wait_and_are_refused_as_in_slurm(name: str, seed: int) -> None:
    recording = recorded(name)
    workload = workload_of(recording["jobs"])
    machine = read(*FILES).machine
    run = predict(workload, machine, "slurm", over_limit=OverLimit.KILL, policy_parameters={"seed": seed})
    jobs = run.jobs.set_index("job_id")
    for number, state in enumerate(recording["states"], 1):
        job = jobs.loc[str(number)]
        if job["state"] == "rejected":
            reason = state.removeprefix("refused: ")
            assert job["reason"].split(":")[0] == NAMES.get(reason, reason)
            assert ("refuses the job" in job["reason"]) == ("refused" in state) or reason in NAMES
        else:
            assert (job["start"] - job["submit"] < WAIT_S) == (state == "R"), (number, state)


@pytest.mark.parametrize("name", LIMITED)
def test_the_reasons_of_waiting_jobs_are_those_of_squeue(name: str) -> None:
    recording = recorded(name)
    inputs, numbers = inputs_of(recording["jobs"], machine_with())
    counters, free = Counters(inputs.limits), inputs.free
    states = [recording["states"][number] for number in numbers]
    amounts = [amounts_of(asked, None, free, inputs.billing[0], False) for asked in inputs.requests]
    limits = [inputs.limits.limits[group] for group in inputs.limits.group]
    for job, state in enumerate(states):
        if state.startswith("refused"):
            assert limits[job][counters.refused(job)].reason == state.removeprefix("refused: ")
            continue
        assert counters.refused(job) < 0
        counters.count(job, None, 1)
        if state == "R":
            counters.count(job, amounts[job], 1)
    for job, state in enumerate(states):
        if not state.startswith("refused") and state != "R":
            number = counters.held(job) if counters.held(job) >= 0 else counters.exceeded(job, amounts[job])
            assert limits[job][number].reason == state


@pytest.mark.parametrize("name", ORDERED)
def test_the_parts_of_priorities_are_those_of_sprio(name: str) -> None:
    recording = recorded(name)
    inputs, numbers = inputs_of(recording["jobs"], machine_with(**recording["settings"]))
    assert numbers == [*range(len(recording["jobs"]))]
    for job, fixed in zip(recording["jobs"], inputs.fixed, strict=True):
        priority, _, fair, *_ = job["sprio"]
        assert fixed == pytest.approx(int(priority) - int(fair), abs=2.0)


@pytest.mark.parametrize("name", ["fair-tree", "classic"])
def test_the_fair_share_factors_are_those_of_sshare(name: str) -> None:
    rows = recorded(name)["shares"]
    settings = {"PriorityFlags": "NO_FAIR_TREE", "FairShareDampeningFactor": "3"} if name == "classic" else {}
    machine = machine_with(**settings)
    accounting = Accounting(machine, ["lic"], [], [])
    tree = FairShare(accounting.tree(1200.0, (), machine.weights.classic), -1)
    assert len(rows) == len(accounting.associations)
    number = {(each.account, each.user): at for at, each in enumerate(accounting.associations)}
    for account, user, _, used, *_ in rows:
        if user:
            tree.use(number[account, user], float(used), -1, 0)
    tree.update([], 0)
    for account, user, _, _, _, factor, *_ in rows:
        if user:
            assert tree.factors[number[account, user]] == pytest.approx(float(factor), abs=2e-6), (account, user)


def test_usage_is_billed_by_weights_and_factor() -> None:
    # sshare of Slurm 22.05.8: TRESBillingWeights="CPU=1.0,Mem=0.5G,GRES/lic=3.0", 2 cores with 1,000 MiB each, 1 lic
    job = {"user": "tracebed4", "account": "fac2", "cores": 2, "limit": 5, "run": 9, "partition": "bill", "lic": 1}
    inputs, _ = inputs_of([{**job, "qos": "low"}], machine_with())
    amounts = amounts_of(inputs.requests[0], {0: 2}, inputs.free, inputs.billing[inputs.partition[0]], False)
    assert amounts == [2, 2000, 1, 5, 1]
    assert sum(a * b for a, b in zip(amounts, inputs.billing[3], strict=True)) == 5.9765625
    assert inputs.usage_factor == [0.5]


# -- the files --------------------------------------------------------------------------------------------------------


def test_the_content_says_what_a_file_is() -> None:
    conf = read(*FILES)
    assert conf.where == str(FOLDER / "slurm.conf")
    assert conf.cluster is not None
    assert not conf.differences
    database = conf.cluster.database
    assert database.associations[:3] == (
        Association(account="root", qos=("normal",)),
        Association(account="root", user="root", default=True),
        database.associations[2],
    )
    known = {(each.account, each.user): each for each in database.associations}
    assert known["lab2", ""].shares == -1
    assert known["lab2", ""].parent == "fac1"
    assert known["y", ""].limits == Limits(jobs=4, tres={"cpu": 6}, user_jobs=2, job_tres={"cpu": 5})
    assert known["lab1", "tracebed1"].priority == 80
    assert known["y", ""].qos[:3] == ("normal", "deny", "grp")
    qos = {each.name: each for each in database.qos}
    assert qos["deny"].flags == ("DenyOnLimit",)
    assert qos["deny"].limits == Limits(wall_s=300.0, job_tres={"cpu": 4})
    assert qos["low"].usage_factor == 0.5
    assert qos["grpmem"].limits.tres == {"mem": 2048, "gres/lic": 3}


def test_a_dump_of_slurm_26_05_begins_with_its_qos(tmp_path: Path) -> None:
    newer = tmp_path / "dump.cfg"
    lines = "# a comment\nQOS - 'normal':Description='Normal QOS default'\nQOS - 'high':Priority=100:MaxTRESPU=cpu=8\n"
    newer.write_text(lines + (FOLDER / "dump.cfg").read_text())
    assert read(FOLDER / "slurm.conf", newer, FOLDER / "qos.txt").cluster == read(*FILES).cluster


OF_DUMP = (
    "QOS - 'normal':Description='Normal QOS default'\n"
    "QOS - 'high':Description='h':Flags='DenyOnLimit,NoDecay':GraceTime=300:GrpJobs=7:GrpTRES=cpu=9:MaxJobsPA=6"
    ":MaxJobsPU=4:MaxSubmitJobsPA=8:MaxSubmitJobsPU=5:MaxTRESPerAccount=cpu=7:MaxTRESPerJob=node=2"
    ":MaxTRESPerUser=cpu=8,gres/gpu=1:MaxTRESRunMinsPerUser=cpu=60:MaxWallDurationPerJob=90:MinTRESPerJob=cpu=2"
    ":Preempt='low,normal':PreemptMode='requeue':PreemptExemptTime=60:Priority=100:UsageFactor=0.500000\n"
)
"""QOS with all keys that the sources of newer versions print."""


def test_without_a_table_the_qos_are_those_of_the_dump(tmp_path: Path) -> None:
    (tmp_path / "dump.cfg").write_text(OF_DUMP + (FOLDER / "dump.cfg").read_text())
    conf = read(FOLDER / "slurm.conf", tmp_path / "dump.cfg")
    assert conf.cluster is not None
    normal, high = conf.cluster.database.qos
    assert normal == Qos(name="normal")
    assert high == Qos(
        name="high",
        priority=100,
        usage_factor=0.5,
        flags=("DenyOnLimit", "NoDecay"),
        limits=Limits(
            jobs=7,
            tres={"cpu": 9},
            user_jobs=4,
            user_submit=5,
            user_tres={"cpu": 8, "gres/gpu": 1},
            account_jobs=6,
            account_submit=8,
            account_tres={"cpu": 7},
            job_tres={"node": 2},
            least_tres={"cpu": 2},
            wall_s=5400.0,
        ),
        preempts=("low", "normal"),
        preempt_mode="requeue",
        grace_s=300,
        exempt_s=60.0,
    )
    assert any("MaxTRESRunMinsPerUser=cpu=60 (QOS high)" in each for each in conf.differences)


def changed(*settings: str) -> Database:
    """Return the database of the recording with changed settings."""
    conf = read(*FILES)
    assert conf.cluster is not None
    return with_database(conf.cluster.database, settings)


def test_a_change_of_a_qos_or_an_account_is_that_of_sacctmgr() -> None:
    database = changed("QOS.high.MaxJobsPU=4", "qos.high.maxtrespu=cpu=8,mem=2G", "QOS.low.Priority=30")
    qos = {each.name: each for each in database.qos}
    assert qos["high"].limits == Limits(user_jobs=4, user_tres={"cpu": 8, "mem": 2048})
    assert (qos["low"].priority, qos["low"].usage_factor) == (30, 0.5)
    database = changed("Account.y.GrpTRES=cpu=12,node=2", "Account.y.GrpJobs=-1", "User.tracebed3.MaxJobs=1")
    known = {(each.account, each.user): each.limits for each in database.associations}
    assert known["y", ""] == Limits(tres={"cpu": 12, "node": 2}, user_jobs=2, job_tres={"cpu": 5})
    assert {key for key, limits in known.items() if key[1] == "tracebed3"} == {
        ("lab2", "tracebed3"),
        ("fac2", "tracebed3"),
    }
    assert known["lab2", "tracebed3"].user_jobs == known["fac2", "tracebed3"].user_jobs == 1
    assert next(each for each in changed("Account.fac1.Fairshare=9").associations if each.account == "fac1").shares == 9
    assert not {each.account: each for each in changed("Account.y.GrpTRES=cpu=-1").associations}["y"].limits.tres


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("QOS.hihg.MaxJobsPU=4", "database has no qos hihg.*did you mean high"),
        ("Account.z.GrpJobs=4", "database has no account z"),
        ("QOS.high.GrpWall=4", "GrpWall is no setting of qos that is modeled"),
        ("QOS.high.MaxJobsPU=many", "MaxJobsPU is 'many', not a whole number"),
        ("QOS.high.MaxTRESPU=license/a=4", "license/a is a resource whose limit is not modeled"),
        ("QOS.high.MaxTRESPU=4", "'4' is not an amount of a resource"),
        ("QOS.MaxJobsPU=4", "is not a setting of a QOS"),
        ("Account.y.GrpJobs=4", "changes nothing: the database has this value"),
    ],
)
def test_a_wrong_change_of_the_database_is_an_error(setting: str, says: str) -> None:
    with pytest.raises(InputError, match=f"(?is){says}"):
        changed(setting)


def test_a_change_of_a_database_that_no_file_has_names_the_file() -> None:
    with pytest.raises(InputError, match="no file has settings of QOS") as error:
        with_database(Database(), ["QOS.normal.MaxJobsPU=4"])
    assert "sacctmgr -P show qos" in str(error.value.hint)


def test_without_the_database_a_warning_says_what_is_assumed() -> None:
    said = "\n".join(read(FOLDER / "slurm.conf").differences)
    assert "all of a level are assumed to be equal (give the output of `sacctmgr dump CLUSTER`, too)" in said
    assert "limits of accounts and users (`sacctmgr dump CLUSTER`) and QOS (`sacctmgr -P show qos`)" in said
    assert "priorities of QOS" in said


def test_limits_without_a_model_have_a_warning(tmp_path: Path) -> None:
    dump = (FOLDER / "dump.cfg").read_text().replace("GrpJobs=4", "GrpJobs=4:GrpTRESMins=cpu=1000")
    (tmp_path / "dump.cfg").write_text(dump)
    conf = (FOLDER / "slurm.conf").read_text()
    (tmp_path / "slurm.conf").write_text(conf + "PriorityFlags=DEPTH_OBLIVIOUS\n")
    found = read(tmp_path / "slurm.conf", tmp_path / "dump.cfg", FOLDER / "qos.txt").differences
    limits = "so that jobs that Slurm holds start: GrpTRESMins=cpu=1000 (account y)"
    assert found == (
        f"1 setting of QOS and accounts not modeled, {limits}",
        "PriorityFlags=DEPTH_OBLIVIOUS not modeled; jobs may have another order",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Cluster - 'a'\nnothing\n", "'nothing' is not a line of sacctmgr dump"),
        ("Cluster - 'a'\nParent - 'b'\n", "the account 'b' is not in the lines above"),
        ("Parent - 'root'\nUser - 'a':Fairshare=1\n", "the account 'root' is not in the lines above"),
        ("Cluster - 'a'\nParent - 'root'\nAccount - 'b':GrpTRES=cpu=many\n", "'cpu=many' is not an amount"),
        ("Cluster - 'a'\nParent - 'root'\nAccount - 'b':MaxJobs=many\n", "'many' is not a number"),
        ("Name|Priority\na|1|2\n", "3 columns, but the header has 2"),
    ],
)
def test_an_invalid_line_is_named(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as error:
        read(FOLDER / "slurm.conf", path)
    assert str(path) in str(error.value)


def test_one_slurm_conf_is_needed() -> None:
    with pytest.raises(InputError, match=r"the slurm\.conf is missing"):
        read(FOLDER / "dump.cfg")
    with pytest.raises(InputError, match=r"is a slurm\.conf, too"):
        read(FOLDER / "slurm.conf", FOLDER / "slurm.conf")


def test_limits_of_resources_that_are_not_counted_are_named() -> None:
    counted, typed = "cpu=4,gres/gpu=2,mem=5G,node=1,billing=9", "gres/gpu:a100=1,license/matlab=2,fs/disk=3"
    _, ignored = read_qos(f"Name|MaxTRESPU|GrpTRES\nnormal|{counted},{typed}|{counted}\n", "qos.txt")
    assert ignored == [f"MaxTRESPU={item} (QOS normal)" for item in sorted(typed.split(","))]


def test_amounts_have_units() -> None:
    assert tres_of("cpu=4,mem=5G,gres/gpu=2", "") == {"cpu": 4, "mem": 5120, "gres/gpu": 2}


def test_a_workload_is_simulated_with_accounts(tmp_path: Path) -> None:
    jobs = [
        {"user": "tracebed1", "account": "", "cores": 1, "limit": 3, "run": 30.0, "qos": "pu"},
        {"user": "tracebed1", "account": "lab1", "cores": 1, "limit": 3, "run": 30.0, "qos": "pu"},
        {"user": "nobody", "account": "lab1", "cores": 1, "limit": 3, "run": 30.0},
    ]
    write_workload(workload_of(jobs), tmp_path / "w.parquet")
    out = tmp_path / "run"
    files = [argument for path in FILES for argument in ("-P", f"@{path}")]
    arguments = ["simulate", str(tmp_path / "w.parquet"), "--policy", "slurm", *files, "-o", str(out)]
    result = CliRunner().invoke(tracebed, arguments)
    assert result.exit_code == 0, result.output
    found = Run.load(out).jobs.set_index("job_id")
    assert found.loc["2", "start"] > found.loc["1", "end"]
    assert found.loc["3", "reason"] == "InvalidAccount: the user nobody has no association with the account lab1"


def test_the_simulation_ends_if_a_limit_holds_jobs_for_ever() -> None:
    """A job of whole nodes gets more cores than it requests, and than its user may use."""
    machine = machine_with()
    main = machine.partitions[0].model_copy(update={"exclusive": True})
    qos = Qos(name="normal", limits=Limits(user_tres={"cpu": 2}))
    machine = machine.model_copy(update={"partitions": (main,), "database": Database(qos=(qos,))})
    job = {"user": "a", "account": "b", "cores": 1, "limit": 3, "run": 9.0}
    run = predict(workload_of([job]), SlurmMachine.of(machine), "slurm", over_limit=OverLimit.KILL)
    assert run.jobs["reason"].tolist() == ["no pass of Slurm ever starts it"]


def test_limits_apply_only_if_they_are_enforced() -> None:
    machine = machine_with().model_copy(update={"enforced": ("associations",)})
    job = {"user": "tracebed1", "account": "lab1", "cores": 1, "limit": 3, "run": 300.0, "qos": "pu"}
    run = predict(workload_of([job, job]), SlurmMachine.of(machine), "slurm", over_limit=OverLimit.KILL)
    assert (run.jobs["start"] < WAIT_S).all()


@pytest.mark.parametrize(
    ("period", "dates"),
    [
        ("daily", ["2026-11-27", "2026-11-28"]),
        ("weekly", ["2026-11-29", "2026-12-06"]),
        ("monthly", ["2026-12-01", "2027-01-01"]),
        ("quarterly", ["2027-01-01", "2027-04-01"]),
        ("yearly", ["2027-01-01", "2028-01-01"]),
    ],
)
def test_usage_is_reset_at_midnight(period: str, dates: list[str]) -> None:
    begin = pd.Timestamp("2026-11-26T10:00", tz="UTC").timestamp()
    assert resets(period, begin)[:2] == [pd.Timestamp(date, tz="UTC").timestamp() for date in dates]


def test_a_reset_changes_the_order_of_the_jobs() -> None:
    """Before midnight, one user has used more than the other. Then a third one has the cluster, while both wait."""
    other = {"account": "b", "cores": 16, "limit": 60}
    jobs = [
        {**other, "user": "first", "account": "a", "run": 1000.0},
        {**other, "user": "second", "run": 2000.0},
        {**other, "user": "third", "account": "c", "run": 1500.0},
        {**other, "user": "second", "run": 100.0},
        {**other, "user": "first", "account": "a", "run": 100.0},
    ]
    machine = machine_with().model_copy(update={"database": Database(), "enforced": ()})
    starts = {}
    for reset in ("", "daily"):
        weights = machine.weights.model_copy(update={"reset": reset})
        cluster = SlurmMachine.of(machine.model_copy(update={"weights": weights}))
        policy = Slurm(epoch_s=86400.0 * 20000 - 3500.0)  # midnight is at 3,500 s
        run = predict(workload_of(jobs), cluster, policy, over_limit=OverLimit.KILL)
        starts[reset] = run.jobs.set_index("job_id")["start"]
    assert starts[""]["5"] < starts[""]["4"]
    assert starts["daily"]["4"] < starts["daily"]["5"]


def test_which_qos_preempts_which_is_in_the_table_of_qos(tmp_path: Path) -> None:
    content = json.loads((FOLDER.parent / "events" / "preempt-qos.json").read_text())
    files = [tmp_path / name for name in ("conf", "dump", "qos")]
    for path in files:
        path.write_text(content[path.name])
    conf = read(*files)
    assert conf.cluster is not None
    found = [(each.name, each.priority, each.preempts) for each in conf.cluster.database.qos]
    assert found == [("normal", 0, ()), ("high", 100, ("normal",))]
    assert not any("preempts" in sentence for sentence in conf.differences)
    assert any("which QOS preempts which" in sentence for sentence in read(files[0]).differences)
