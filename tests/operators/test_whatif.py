"""What if: the backtest of a log, the effect of a change of its slurm.conf, refused work, and the answer in words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape

import tracebed.api as tb
from tests.converters import test_sacct_exports
from tests.recorders import sacct_dumps
from tests.servers import chromium
from tests.validation.test_schemas import problems
from tracebed.converters.perturbation import Perturbation
from tracebed.ground.errors import ExitCode, InputError
from tracebed.machine.calendar import OutageKind
from tracebed.operators.whatif import members, pictures, study
from tracebed.operators.whatif.classes import Answer, Changed, JobClass, classes_of
from tracebed.operators.whatif.log import Log, log_of, with_starts
from tracebed.operators.whatif.refused import MOST, Remedy, adapted
from tracebed.slurm.conf import of_lines
from tracebed.slurm.conf_lines import lines_of
from tracebed.slurm.machine import SlurmCluster, SlurmMachine
from tracebed.slurm.simulation.demands import STARTED, as_asked, longest_limits
from tracebed.validation.report.templates import fill

Call = Callable[..., tuple[int, str, str]]
CONF = """SchedulerParameters=bf_interval=30
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=n[1-4] CPUs=8
PartitionName=batch Nodes=n[1-3] Default=YES
PartitionName=long Nodes=n4
"""
ROWS = 300


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "slurm.conf"
    path.write_text(CONF)
    return path


def drawn(conf: Path, jobs: int = ROWS, seed: int = 5) -> tb.Workload:
    """Return the log of a cluster that is a simulated Slurm: jobs that share nodes, in two partitions."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"job_id": [str(number) for number in range(jobs)]})
    table["submit_time"] = np.round(np.cumsum(rng.exponential(250.0, jobs)))
    table["run_time"] = np.round(rng.lognormal(7.0, 0.8, jobs)) + 1
    table["time_limit"] = 60.0 * np.ceil(table["run_time"] * rng.uniform(1.0, 4.0, jobs) / 60)
    table["nodes"] = 1
    table["cores_per_node"] = rng.choice([1, 2, 4, 8], jobs)
    table["partition"] = rng.choice(["batch", "long"], jobs, p=[0.7, 0.3])
    table["queue"] = rng.choice(["normal", "high"], jobs)
    table["group"] = rng.choice(["chem", "phys", "bio"], jobs)
    return logged(tb.Workload(table), conf, seed)


def logged(workload: tb.Workload, conf: Path, seed: int) -> tb.Workload:
    """Return a workload with the starts that a simulated Slurm gives its jobs."""
    machine = tb.read_machine(conf)
    run = tb.simulate(workload, "slurm", machine, over_limit="kill", policy_parameters={"seed": seed})
    times = run.jobs.set_index("job_id").loc[workload.table["job_id"]]
    table = workload.table.assign(logged_start=times["start"].to_numpy(), logged_end=times["end"].to_numpy())
    return tb.Workload(table, workload.provenance)


# -- the jobs of a log


def of_rows(conf: Path, *rows: tuple[float, float, float, float], **columns: Any) -> Log:
    """Return a log of jobs: submission, start, end and time limit."""
    table = pd.DataFrame(rows, columns=["submit_time", "logged_start", "logged_end", "time_limit"])
    table = table.assign(job_id=[str(at) for at in range(len(rows))], nodes=1)
    table["run_time"] = table["logged_end"] - table["logged_start"]
    return log_of(tb.Workload(table.assign(**columns)), machine_at(conf))


def machine_at(conf: Path) -> SlurmCluster:
    machine = of_lines(lines_of(conf), conf, plain=True).cluster
    assert machine is not None
    return machine


NAN = math.nan
LATER = (50.0, 60.0, 90.0, 60.0)


def test_a_job_that_ran_when_the_log_begins_starts_as_logged_and_is_not_judged(conf: Path) -> None:
    log = of_rows(conf, (0, 10, 40, 60), (0, 20, 100, 90), LATER)
    assert log.begin == 40
    assert log.workload.table["submit_time"].tolist() == [10, 20, 50]
    assert log.judged.tolist() == [False, False, True]
    assert log.wait.tolist() == [0, 0, 10]


def test_a_job_that_waited_when_the_log_begins_is_submitted_then_and_is_not_judged(conf: Path) -> None:
    log = of_rows(conf, (0, 10, 40, 60), (5, 45, 100, 90), LATER)
    assert log.workload.table["submit_time"].tolist() == [10, 40, 50]
    assert log.judged.tolist() == [False, False, True]


def test_the_wait_begins_when_a_job_is_eligible(conf: Path) -> None:
    log = of_rows(conf, (0, 10, 40, 60), LATER, (50, 95, 99, 60), earliest_start=[NAN, NAN, 80])
    assert log.wait.tolist() == [0, 10, 15]
    assert "earliest_start" not in log.workload.table
    assert any("1 of 3 jobs were held" in note for note in log.notes)


def test_a_job_without_an_end_runs_for_its_limit_and_one_that_was_cancelled_is_left_out(conf: Path) -> None:
    status = ["completed", "completed", "running", "pending", "cancelled"]
    rows = [(0, 10, 40, 60), LATER, (55, 70, NAN, 600), (56, NAN, NAN, 300), (57, NAN, 60, 300)]
    log = of_rows(conf, *rows, status=status)
    assert log.workload.table["run_time"].tolist() == [30, 30, 600, 300]
    assert log.judged.tolist() == [False, True, True, False]
    assert any("2 of 5 jobs ran or waited when the log ends" in note for note in log.notes)
    assert any("1 of 5 jobs never started" in note for note in log.notes)


def test_jobs_that_wait_when_the_log_ends_are_in_the_logged_queue(conf: Path) -> None:
    ran = [(20.0 * at, 20.0 * at, 20.0 * at + 10, 60.0) for at in range(20)]
    waiting = [(200.0, NAN, NAN, 60.0)] * 3
    log = of_rows(conf, *ran, *waiting, status=["completed"] * 20 + ["pending"] * 3)
    courses = tb.whatif(log.workload, conf, members=2, workers=1).courses
    expected = np.where(courses["time"] < 199, 0.0, 3.0)
    between = (courses["time"] >= 199) & (courses["time"] <= 200)
    assert courses["waiting_logged"][~between].to_numpy() == pytest.approx(expected[~between])


ARRAYS = """JobID|Partition|Submit|Eligible|Start|End|Elapsed|Timelimit|State|NNodes|NCPUS|NodeList
9|batch|@00:00|@00:00|@00:00|@01:00|00:01:00|01:00:00|COMPLETED|1|1|n1
2000_1|batch|@02:00|@02:30|@10:00|@20:00|00:10:00|01:00:00|COMPLETED|1|1|n1
2000_[2-100]|batch|@02:00|@02:00|Unknown|Unknown|00:00:00|01:00:00|PENDING|1|1|None assigned
2001_[0-6:3,9%2]|batch|@03:00|@03:00|Unknown|Unknown|00:00:00|01:00:00|PENDING|1|1|None assigned
2003_[1-9]|batch|@03:00|Unknown|Unknown|@09:00|00:00:00|01:00:00|CANCELLED by 1|1|1|None assigned
"""


def test_a_waiting_array_is_a_job_for_each_task(conf: Path) -> None:
    (conf.parent / "sacct.txt").write_text(ARRAYS.replace("@", "2024-03-01T08:"))
    machine = of_lines(lines_of(conf), conf, plain=True).cluster
    assert machine is not None
    log = log_of(tb.read(conf.parent / "sacct.txt", time_zone="UTC"), machine)
    arrays = pd.Series(log.workload.column("job_id")).str.partition("_")[0].value_counts()
    assert arrays.to_dict() == {"2000": 100, "2001": 4, "9": 1}
    limited = log.workload.texts("array")[log.workload.texts("job_id").str.startswith("2001_")]
    assert set(limited) == {"2001%2"}
    assert "103 tasks of 2 arrays wait when the log ends: a job for each task" in log.notes
    assert any("103 of 106 jobs ran or waited when the log ends" in note for note in log.notes)


def test_a_list_of_tasks_that_is_cut_off_is_named(conf: Path) -> None:
    rows = [(0, 10, 40, 60), LATER, (56, NAN, NAN, 300)]
    ids, status = ["1", "7_5", "7_[1,3,5-7,...]"], ["completed", "completed", "pending"]
    log = of_rows(conf, *rows, job_id=ids, status=status)
    assert log.workload.column("job_id").tolist() == ["1", "7_5", "7_1", "7_3", "7_6", "7_7"]
    assert any("the list of tasks of 1 array is cut off in the log" in note for note in log.notes)


def test_the_cpus_of_a_log_are_threads_if_they_are_more_than_the_cores(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("NodeName=n1 CPUs=16 CoresPerSocket=8 ThreadsPerCore=2\nPartitionName=a Nodes=n1 Default=YES\n")
    rows = ((0, 10, 40, 60), LATER, LATER)
    assert of_rows(path, *rows, cores_per_node=[1, 3, 16]).cores.tolist() == [1, 2, 8]
    assert of_rows(path, *rows, cores_per_node=[1, 3, 8]).cores.tolist() == [1, 3, 8]


def test_the_cpus_of_a_log_count_on_nodes_of_unlike_cores(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    nodes = "NodeName=n1 CoresPerSocket=8 ThreadsPerCore=2\nNodeName=n2 CoresPerSocket=12\n"
    path.write_text(f"{nodes}PartitionName=a Nodes=ALL Default=YES\n")
    rows = ((0, 10, 40, 60), LATER, LATER)
    log = of_rows(path, *rows, cores_per_node=[1, 13, 16])
    assert (log.cores.tolist(), log.wide) == ([1, 13, 16], 0)
    assert not any("hardware threads" in note for note in log.notes)
    assert as_asked(log.workload, machine_at(path))[0].ints("cores_per_node").tolist() == [1, 13, 16]
    path.write_text(nodes.replace("=12", "=12 ThreadsPerCore=2") + "PartitionName=a Nodes=ALL\n")
    assert of_rows(path, *rows, cores_per_node=[1, 13, 24]).cores.tolist() == [1, 7, 12]


def test_a_share_of_a_node_is_a_number_of_its_cores(conf: Path) -> None:
    rows = ((0, 10, 40, 60), LATER, LATER)
    log = of_rows(conf, *rows, cores_per_node=8, extra_node_share=[0.5, 0.3, NAN])
    assert log.cores.tolist() == [4, 3, 8]


def test_the_starts_of_a_real_run_are_those_of_the_log(conf: Path) -> None:
    workload = drawn(conf, 30)
    bare = tb.Workload(workload.table.drop(columns=["logged_start", "logged_end"]), workload.provenance)
    machine = tb.read_machine(conf)
    run = tb.simulate(bare, "slurm", machine, over_limit="kill", policy_parameters={"seed": 5})
    assert with_starts(bare, run).table["logged_start"].tolist() == workload.table["logged_start"].tolist()
    fewer = tb.simulate(tb.Workload(bare.table[:20], bare.provenance), "slurm", machine)
    with pytest.raises(InputError, match="the run lacks 10 jobs of the workload, such as 20"):
        with_starts(bare, fewer)


def test_features_of_several_kinds_of_nodes_are_counted(conf: Path) -> None:
    log = of_rows(conf, (0, 10, 40, 60), (50, 60, 90, 60), nodes=[1, 2], features=["", "[a|b]"])
    assert any("1 of 2 jobs have several nodes, and features with brackets" in note for note in log.notes)


def test_jobs_without_a_limit_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("NodeName=n1 CPUs=4\nPartitionName=a Nodes=n1 Default=YES MaxTime=10\nPartitionName=b Nodes=n1\n")
    rows = [(0, 10, 40, 60), (50, 60, 90, NAN), (51, 60, 90, NAN)]
    log = of_rows(path, *rows, partition=["a", "a", "b"])
    np.testing.assert_equal(log.workload.floats("time_limit"), [60, NAN, NAN])
    assert any("2 of 3 jobs have no time limit in the log: DefaultTime or MaxTime" in note for note in log.notes)


def test_a_log_without_starts_or_of_one_job_is_an_error(conf: Path) -> None:
    with pytest.raises(InputError, match="no job has a logged start: there is nothing to compare the model with"):
        of_rows(conf, (0, NAN, NAN, 60))
    with pytest.raises(InputError, match="the log is too short to judge a model"):
        of_rows(conf, (0, 10, 20, 60))


def test_a_slurm_conf_in_place_of_the_log_is_an_error_that_says_the_order(conf: Path, call: Call) -> None:
    status, _, err = call("whatif", str(conf), "log.parquet")
    assert status == ExitCode.USAGE and "the log comes first: whatif LOG slurm.conf" in err


# -- the answers


def a_class(base: list[float], after: list[float], real: float = 100.0) -> JobClass:
    """Return the class of two jobs with these mean waits in the members."""
    jobs = pd.DataFrame({"submit": [0.0, 1.0], "logged": [real, real], "cores": [1, 1]})
    jobs = jobs.assign(partition=["a", "a"], node_class="n[1-2]", queue="", group="")
    waits = [np.repeat(np.array(values, dtype=float)[:, None], 2, axis=1) for values in (base, after)]
    return classes_of(jobs, waits[0], Changed(*waits, np.zeros(2), np.ones(2)))[0]


def test_an_effect_that_exceeds_the_error_of_the_model_is_an_answer() -> None:
    found = a_class([100, 101, 99, 100, 102, 98], [80, 81, 79, 80, 82, 78])
    assert found.answer is Answer.FALL
    assert found.error == pytest.approx(0.01, rel=0.01)
    own = "the model's own error on this log is -1 to +1 %"
    assert found.sentence == f"waits of all jobs fall by 20 % (20 to 20 %); {own}"
    assert a_class([100] * 6, [150] * 6).answer is Answer.RISE


def test_an_effect_below_the_error_of_the_model_is_inconclusive() -> None:
    found = a_class([130, 131, 129, 130, 132, 128], [110, 111, 109, 110, 112, 108])
    assert found.answer is Answer.ERROR
    assert "inconclusive: the error of the model exceeds the effect (-15 %" in found.sentence
    assert found.sentence.endswith("the model's own error on this log is -23 to +30 %")


@pytest.mark.parametrize(
    ("logged", "predicted", "changed", "answer"),
    [
        (29_833, 8_343, 16_656, Answer.ERROR),  # a factor of 3.6, and one of 2.0
        (8_343, 29_833, 16_656, Answer.ERROR),
        (8_343, 29_833, 59_666, Answer.ERROR),
        (100, 216, 13, Answer.FALL),  # a factor of 2.2, and one of 17
        (216, 100, 1_700, Answer.RISE),
        (100, 0, 200, Answer.UNKNOWN),
        (100, 1, 50, Answer.ERROR),  # a factor of 100, and one of 50
        (100, 30, 0, Answer.FALL),
    ],
)
def test_a_rise_and_a_fall_by_one_factor_have_one_answer(
    logged: float, predicted: float, changed: float, answer: Answer
) -> None:
    assert a_class([predicted] * 6, [changed] * 6, real=logged).answer is answer


def test_an_error_is_printed_in_percent_in_both_directions() -> None:
    found = a_class([8_343] * 6, [16_656] * 6, real=29_833)
    assert found.errors[0] == "-72 to +258 %"
    assert "error of the model exceeds the effect (100 %" in found.sentence
    document = found.to_json()
    assert document["error"] == pytest.approx(29_833 / 8_343 - 1)
    assert document["error_low"] == pytest.approx(8_343 / 29_833 - 1)
    assert a_class([29_833] * 6, [1] * 6, real=8_343).errors[0] == found.errors[0]


def test_an_effect_that_chance_may_turn_round_is_inconclusive() -> None:
    found = a_class([100, 100, 100, 100, 100, 100], [80, 85, 90, 110, 115, 80])
    assert found.answer is Answer.CHANCE
    assert "inconclusive: chance exceeds the effect" in found.sentence


def test_no_effect_is_shown_where_none_is_defined() -> None:
    assert a_class([100] * 6, [100] * 6).sentence == "waits of all jobs do not change"
    assert "no job of it waited in the log" in a_class([1] * 6, [2] * 6, real=0.0).sentence
    assert "no job waits as the cluster was" in a_class([0] * 6, [2] * 6).sentence
    assert "too few members for an interval (5)" in a_class([100] * 5, [50] * 5).sentence
    assert {a_class([0] * 6, [2] * 6).answer, a_class([100] * 5, [50] * 5).answer} == {Answer.UNKNOWN}


def test_an_error_that_says_nothing_has_no_number() -> None:
    found = a_class([10_000] * 6, [100] * 6, real=1.0)
    assert found.errors == ("above a factor of 10", "-")
    assert found.sentence.endswith("the model's own error on this log is above a factor of 10")
    assert a_class([1] * 6, [1] * 6, real=0.0).errors == ("-", "-")


def test_a_fall_is_at_most_100_percent() -> None:
    found = a_class([10, 100, 1000, 10, 100, 1000], [1, 1, 1, 1, 1, 1])
    assert -1 <= found.shares[1] <= found.shares[0] <= found.shares[2] < 0


# -- from a log to an answer


def test_the_log_of_the_model_itself_is_predicted_with_a_small_error(conf: Path) -> None:
    found = tb.whatif(drawn(conf), conf, members=8, perturbation={"submit_s": 0})
    every = found.classes[0]
    assert every.error < 0.05
    assert every.low_s <= every.logged_s * 1.02 and every.logged_s * 0.98 <= every.high_s
    assert every.moving is not None and every.moving.error < 0.1
    assert found.sentences == [found.backtest]
    assert {each.by for each in found.classes} == {"all", "partition", "QOS", "account", "size"}


def test_the_classes_of_unlike_nodes_have_rows_of_their_own(conf: Path) -> None:
    conf.write_text(CONF.replace("NodeName=n[1-4] CPUs=8", "NodeName=n[1-3] CPUs=8\nNodeName=n4 CPUs=8 Weight=2"))
    found = tb.whatif(drawn(conf), conf, members=2, perturbation={"submit_s": 0})
    rows = {each.title: (each.jobs, each.logged_s, each.predicted_s) for each in found.classes}
    # Each partition has all nodes of a class, and no other nodes.
    assert rows["class n[1-3]"] == rows["partition batch"]
    assert rows["class n4"] == rows["partition long"]
    assert set(found.jobs["node_class"]) == {"n[1-3]", "n4"}
    assert not problems(found.to_json(), "tracebed-whatif-1.json")


def test_more_nodes_in_a_partition_shorten_its_waits_alone(conf: Path) -> None:
    found = tb.whatif(drawn(conf), conf, add_nodes={"batch": 2}, members=8)
    answers = {each.title: each.answer for each in found.classes}
    assert answers["partition batch"] is Answer.FALL
    assert answers["partition long"] in (Answer.EQUAL, Answer.CHANCE)  # a pass may come some seconds later
    assert [len(machine.nodes) for machine in found.machines] == [4, 6]
    (batch,) = (each for each in found.classes if each.title == "partition batch")
    assert re.fullmatch(
        r"waits of partition batch fall by \d+ % \(\d+ to \d+ %\); "
        r"the model's own error on this log is -[\d.]+ to \+[\d.]+ %",
        batch.sentence,
    )
    assert [each.title for each in found.headlines] == ["partition batch", "all jobs", "partition long"]
    assert found.sentences[0] == batch.sentence
    assert found.jobs.columns.tolist()[-3:] == ["logged", "predicted", "changed"]
    assert (found.courses["busy_changed"] <= 1).all()


# -- outages


MODEL = {"mtbf_s": 60_000.0, "repair_s": 9_000.0, "seed": 1}
"""Each node fails once or twice in the time of the log."""


@cache
def with_outages() -> tuple[str, tb.Workload, tb.Calendar]:
    """Return a slurm.conf, a log of its cluster with drawn outages, and these outages."""
    with TemporaryDirectory() as folder:
        conf = Path(folder) / "slurm.conf"
        conf.write_text(CONF)
        bare = drawn(conf)
        bare = tb.Workload(bare.table.drop(columns=["logged_start", "logged_end"]), bare.provenance)
        settings: dict[str, Any] = {"over_limit": "kill", "policy_parameters": {"seed": 5}, "outages": MODEL}
        run = tb.simulate(bare, "slurm", tb.read_machine(conf), **settings)
    assert run.jobs["restarts"].sum() > 3
    outages = (
        tb.Outage(node=each["node"], start=each["from"], end=each["until"] or math.inf) for each in run.info.outages
    )
    return CONF, tb.with_starts(bare, run), tb.Calendar(tuple(outages))


def test_the_outages_of_a_log_are_in_its_backtest(conf: Path, tmp_path: Path) -> None:
    """Without them, the model predicts that jobs wait half as long as they did."""
    _, log, outages = with_outages()
    found = tb.whatif(log, conf, outages=outages, members=8)
    assert found.outages is not None
    every, without = found.classes[0], found.outages.classes[0]
    assert every.error < 0.1 < 0.4 < without.error
    assert (without.changed_s, without.logged_s) == (every.predicted_s, every.logged_s)
    plain = tb.whatif(log, conf, members=8)
    assert plain.outages is None and plain.classes[0].predicted_s == without.predicted_s
    assert without.effect is not None and without.effect.low > 0
    assert found.sentences == [found.backtest, found.outages.sentence]
    assert re.fullmatch(
        r"the outages \(6 outages of 4 nodes, 6 node hours, [\d.]+ % of those of the cluster; [\d.]+ jobs lose a node "
        r"in a prediction\) raise the predicted mean wait by \d+ % \(\d+ to \d+ %\); without them, the model's own "
        r"error on this log is -\d+ to \+\d+ %",
        found.outages.sentence,
    )
    node_s = sum(min(each.end, found.courses["time"].iloc[-1] + 400) - each.start for each in outages.outages)
    assert found.outages.node_hours == pytest.approx(node_s / 3600, rel=0.02)
    assert [each.title for each in found.outages.classes] == ["all jobs", "partition batch", "partition long"]
    assert problems(json.loads(json.dumps(found.to_json())), "tracebed-whatif-1.json") == []
    page = found.save(tmp_path / "page").read_text()
    assert "With and without the outages" in page and "7.9 jobs lose a node" in page


def test_a_change_is_answered_with_the_outages_in_both_clusters(conf: Path) -> None:
    """The additional node is in no event. Half of the nodes of a log may be former ones."""
    _, log, outages = with_outages()
    former = tb.Outage(node="old7", start=5, end=9)
    found = tb.whatif(log, conf, outages=tb.Calendar((*outages.outages, former)), add_nodes={"batch": 1}, members=6)
    assert found.classes[0].answer is Answer.FALL
    assert found.outages is not None and found.sentences[-1] == found.outages.sentence
    assert "1 outage of nodes that the slurm.conf lacks: left out" in found.notes
    with pytest.raises(InputError, match=r"no outage is of a node of the slurm\.conf; the first one is of old7"):
        tb.whatif(log, conf, outages=tb.Calendar((former,)), members=2)


def test_jobs_that_wait_for_a_node_that_does_not_return_are_left_out_and_counted(conf: Path) -> None:
    gone = tb.Calendar((tb.Outage(node="n4", start=40_000.0, kind=OutageKind.DRAIN),))
    log = drawn(conf)
    found = tb.whatif(log, conf, outages=gone, members=2)
    late = (log.table["partition"] == "long") & (log.table["submit_time"] > 40_000)
    (note,) = (note for note in found.notes if "never start" in note)
    assert int(note.split()[0].replace(",", "")) >= late.sum() > 10
    assert len(found.jobs) < ROWS - late.sum()


def test_cores_of_a_job_that_ran_twice_count_once(conf: Path) -> None:
    _, log, outages = with_outages()
    cluster = machine_at(conf)
    workload = log_of(log, cluster).workload
    side = members.Side(SlurmMachine.of(cluster), {}, np.full(len(workload), np.inf), outages=outages)
    (member,) = members.ensemble(workload, side, range(1), Perturbation(), np.linspace(0, 1e5, 3))
    assert member.hit > 3
    assert member.cores.tolist() == workload.table["cores_per_node"].tolist()


def test_the_command_prints_the_backtest_with_and_without_outages(call: Call, conf: Path, tmp_path: Path) -> None:
    _, log, outages = with_outages()
    tb.write(log, tmp_path / "log.parquet")
    rows = [f"{each.node},{each.start},{'' if math.isinf(each.end) else each.end}" for each in outages.outages]
    (tmp_path / "events.csv").write_text("\n".join(["node,from,to", *rows]) + "\n")
    given = [str(tmp_path / "log.parquet"), str(conf), "--outages", str(tmp_path / "events.csv")]
    code, out, _ = call("whatif", *given, "--perturb", "2")
    assert code == 0
    (header,) = (line for line in out.splitlines() if "without" in line and "difference" in line)
    assert header.split("  ")[0] == "mean wait (s)"
    assert "the outages (6 outages of 4 nodes" in out


def test_no_unknown_perturbation_is_made(conf: Path) -> None:
    with pytest.raises(InputError, match="perturbation 'limits'"):
        tb.whatif(drawn(conf), conf, perturbation={"limits": 60})


@pytest.mark.parametrize("own_line", [False, True])
@pytest.mark.parametrize("state", ["DOWN", "DRAINED", "FAIL"])
def test_a_node_that_is_down_is_answered_as_one_that_is_removed(conf: Path, state: str, own_line: bool) -> None:
    log, text = drawn(conf), CONF.replace("n[1-4] CPUs", "n[2-4] CPUs").replace("n[1-3]", "n[2-3]")
    if own_line:
        conf.write_text(CONF.replace("NodeName=n[1-4] CPUs=8", "NodeName=n1 CPUs=8\nNodeName=n[2-4] CPUs=8"))
    removed = conf.with_name("removed.conf")
    removed.write_text(text)
    one = tb.whatif(log, conf, settings=[f"Node.n1.State={state}"], members=2).to_json()
    other = tb.whatif(log, conf, replacement=removed, members=2).to_json()
    assert one["classes"] == other["classes"]
    assert one["clusters"] == other["clusters"]


def test_the_class_of_additional_nodes_is_named(conf: Path) -> None:
    found = tb.whatif(drawn(conf, 60), conf, add_nodes={"batch": 2, "long": (1, "n1")}, members=2)
    assert found.change == ("2 more nodes of batch, like n[1-4]", "1 more node of long, like n[1-4]")


def test_a_part_of_a_change_without_an_effect_is_named(conf: Path) -> None:
    settings = ["bf_interval=60", "bf_continue=1", "Partition.batch.PriorityTier=1", "Node.n2.TmpDisk=5"]
    notes = tb.whatif(drawn(conf, 60), conf, settings=settings, members=2).notes
    void = [note for note in notes if "has no part in the prediction" in note]
    assert [note.partition(" ")[0] for note in void] == settings[1:]
    assert "the model has no rule for this" in void[0] and "by Slurm's default" in void[1]


def test_the_partitions_that_a_change_names_come_first(conf: Path) -> None:
    found = tb.whatif(drawn(conf, 60), conf, settings=["partition.long.MaxTime=10"], members=2)
    assert [each.title for each in found.headlines] == ["partition long", "all jobs", "partition batch"]


def test_a_pair_has_the_same_draws_and_the_same_input(conf: Path) -> None:
    """A change without an effect on any job changes no wait of any member."""
    found = tb.whatif(drawn(conf), conf, settings=["KillWait=60"], members=6)
    assert all(each.answer is Answer.EQUAL for each in found.classes)


def test_the_result_does_not_depend_on_the_number_of_processes(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "ALONE", 0)  # otherwise, one process computes so few jobs alone
    log = drawn(conf, jobs=150)
    one, two = (
        tb.whatif(log, conf, settings=["bf_interval=-1"], members=3, workers=workers).to_json() for workers in (1, 2)
    )
    assert one == two


def test_each_change_alone_has_the_answer_that_it_has_alone(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, made = drawn(conf), list[int]()
    whole = study.ensemble

    def counting(*arguments: Any, **how: Any) -> Any:
        made.append(len(arguments[2]))
        return whole(*arguments, **how)

    monkeypatch.setattr(study, "ensemble", counting)
    settings = ["bf_interval=-1", "bf_interval=300"]
    changes = [*({"settings": [each]} for each in settings), {"add_nodes": {"batch": 4}}]
    ticks: list[int] = []
    found = tb.whatif_each(log, conf, changes, members=6, on_progress=ticks.append)
    assert sum(made) == 4 * 6  # the backtest once, and each change
    assert max(ticks) == 4 * 6
    assert found.change == () and [each.change[0] for each in found.alternatives] == [
        "bf_interval=-1",
        "bf_interval=300",
        "4 more nodes of batch, like n[1-4]",
    ]
    alone = tb.whatif(log, conf, settings=["bf_interval=-1"], members=6)
    assert alone.to_json()["classes"] == found.to_json()["alternatives"][0]["classes"]
    assert problems(found.to_json(), "tracebed-whatif-1.json") == []
    columns, rows = found.of_changes
    assert columns == ["change", "all jobs", "partition batch", "partition long", "inconclusive", "work refused"]
    assert [len(row) for row in rows] == [6, 6, 6] and rows[2][1].startswith("-")
    assert found.sentences[0].startswith("of 3 changes, 4 more nodes of batch, like n[1-4] has the largest fall: waits")


def test_the_default_partition_moves(conf: Path) -> None:
    """Of two lines with Default=YES, Slurm takes the last one; the first is then no default."""
    log = drawn(conf, 60)
    log = tb.Workload(log.table.drop(columns="partition").assign(cores_per_node=2), log.provenance)
    found = [
        tb.whatif(log, conf, settings=[*more, "Partition.long.Default=YES"], members=2).to_json()["classes"]
        for more in ([], ["Partition.batch.Default=NO"])
    ]
    assert found[0] == found[1]
    assert found[0][0]["changed_wait_s"] > found[0][0]["predicted_wait_s"]  # one node in place of three


def test_parts_without_a_change_or_with_a_void_one_are_errors(conf: Path) -> None:
    log = drawn(conf, 60)
    with pytest.raises(InputError, match="there is no change"):
        tb.whatif_each(log, conf, [])
    with pytest.raises(InputError, match="bf_continue=1"):
        tb.whatif_each(log, conf, [{"settings": ["bf_interval=60"]}, {"settings": ["bf_continue=1"]}])


def test_the_command_answers_each_change_in_one_table(call: Call, export: Path, tmp_path: Path, svg_only: None) -> None:
    command = ["whatif", export / "sacct.txt", export / "slurm.conf", "--time-zone", sacct_dumps.ZONE]
    changes = ["--set", "bf_interval=300", "--add-nodes", "cpu=8", "--by", "change", "--perturb", "6", "-o", "out"]
    status, out, err = call(*map(str, command), *changes)
    assert status == ExitCode.OK, err
    table = out.partition("work refused")[2]
    assert re.search(r"^bf_interval=300 ", table, re.MULTILINE)
    assert re.search(r"^8 more nodes of cpu, like \S+ +-\d", table, re.MULTILINE)
    page = (tmp_path / "out" / "index.html").read_text()
    assert "2 changes, each alone" in page and "work refused" in page
    assert pd.read_csv(tmp_path / "out" / "plots" / "changes.csv")["change"].tolist()[0] == "bf_interval=300"


def test_another_slurm_conf_replaces_the_first(conf: Path, tmp_path: Path) -> None:
    other = tmp_path / "slurm.conf.new"
    other.write_text(CONF.replace("n[1-4]", "n[1-8]").replace("n[1-3]", "n[1-3,5-8]"))
    found = tb.whatif(drawn(conf), conf, replacement=other, members=6)
    assert found.change == ("slurm.conf.new in place of the slurm.conf",)
    assert found.classes[0].answer is Answer.FALL


DUMP = """Cluster - 'c':Fairshare=1
Parent - 'root'
Account - 'chem':Fairshare=1:GrpJobs=1
Account - 'phys':Fairshare=1
Account - 'bio':Fairshare=1
Parent - 'chem'
User - 'u':DefaultAccount='chem':Fairshare=1
Parent - 'phys'
User - 'u':Fairshare=1
Parent - 'bio'
User - 'u':Fairshare=1
"""


def test_limits_of_slurms_database_count_in_both_clusters(tmp_path: Path) -> None:
    conf, dump = tmp_path / "slurm.conf", tmp_path / "dump.cfg"
    conf.write_text(f"{CONF}PriorityType=priority/multifactor\nAccountingStorageEnforce=limits\n")
    dump.write_text(DUMP)
    log = drawn(conf, 100)
    log = tb.Workload(log.table.assign(user="u"), log.provenance)
    waits = {}
    for name, files in (("alone", conf), ("with its database", [dump, conf])):
        found = tb.whatif(log, files, settings=["bf_interval=60"], members=2)
        (waits[name],) = (each for each in found.classes if each.title == "account chem")
    alone, limited = waits.values()
    assert limited.predicted_s > 2 * alone.predicted_s  # one job of chem runs at a time
    assert limited.changed_s > 2 * alone.changed_s


def test_a_limit_of_an_account_is_changed(tmp_path: Path) -> None:
    conf, dump = tmp_path / "slurm.conf", tmp_path / "dump.cfg"
    conf.write_text(f"{CONF}PriorityType=priority/multifactor\nAccountingStorageEnforce=limits\n")
    dump.write_text(DUMP)
    log = drawn(conf, 100)
    log = tb.Workload(log.table.assign(user="u"), log.provenance)
    found = tb.whatif(log, [conf, dump], settings=["Account.chem.GrpJobs=-1"], members=6)
    (chem,) = (each for each in found.classes if each.title == "account chem")
    assert chem.shares[2] < -0.5  # without the limit of one running job
    conf.write_text(conf.read_text().replace("Enforce=limits", "Enforce=associations"))
    with pytest.raises(InputError, match="AccountingStorageEnforce of the slurm"):
        tb.whatif(log, [conf, dump], settings=["Account.chem.GrpJobs=-1"], members=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": ["GraceTime=4"]}, "GraceTime is neither"),
        ({"settings": ["bf_continue=1"]}, "the model has no rule for this, and the prediction would be the same"),
        ({"settings": ["bf_interval=30"]}, "changes nothing"),
        ({"settings": ["Node.n2.TmpDisk=5"]}, "the model has no rule for this"),  # a line of its own is no change
        ({"settings": ["KillWait=30"]}, "the slurm.conf has this value, by Slurm's default or in other words"),
        ({"settings": ["Partition.batch.Nodes=n1,n2,n3"]}, "in other words"),
        ({"settings": ["Partition.batch.Default=NO"]}, "no partition of the changed slurm.conf is the default"),
        ({"settings": ["Partition.batch.State=DOWN"]}, "the model has no rule for this"),
        ({"settings": ["bf_interval=often"]}, "often"),
        ({"members": 1}, "number of members is 1"),
        ({"over_limit": "kill"}, "kill"),
    ],
)
def test_a_change_that_changes_nothing_is_an_error(conf: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tb.whatif(drawn(conf, 50), conf, **changes)


def test_a_slurm_conf_that_does_not_fit_the_log_is_an_error(conf: Path, tmp_path: Path) -> None:
    log = drawn(conf, 100)
    other = tmp_path / "other.conf"
    two_cpus = CONF.replace("NodeName=n[1-4] CPUs=8", "NodeName=n[1-3] CPUs=8\nNodeName=n4 CPUs=2")
    demanded = r"can ever run it \(\d cores on a node are demanded, and a node has 2 at most\)"
    for text, what, hint in (
        (CONF.replace("=long", "=longer"), r"in partitions that .* lacks: long \d+", "this one has batch, longer"),
        (CONF.replace("CPUs=8", "CPUs=4"), "with more cores on a node than any node has", "nodes of up to 4 cores"),
        (two_cpus, f"jobs, partition long: no nodes of its partition {demanded}", ""),
        ("SchedulerType=sched/backfill\n", "names no nodes with a known number of CPUs", ""),
    ):
        other.write_text(text)
        with pytest.raises(InputError, match=what) as found:
            tb.whatif(log, other)
        assert hint in str(found.value.hint)


def test_a_few_jobs_that_do_not_fit_are_left_out_and_named(conf: Path) -> None:
    log = drawn(conf, 100)
    table = log.table.assign(partition=["gone", "gone", *log.table["partition"][2:]])
    found = tb.whatif(tb.Workload(table, log.provenance), conf, members=2)
    assert any("2 of 100 jobs cannot run" in text and "no partition gone" in text for text in found.notes)
    assert "gone" not in set(found.jobs["partition"])


def test_a_cluster_smaller_than_that_of_the_log_is_named(conf: Path, tmp_path: Path) -> None:
    log = drawn(conf, 100)
    assert not any("at a time" in note for note in tb.whatif(log, conf, members=2).notes)
    other = tmp_path / "other.conf"
    other.write_text(CONF.replace("Nodes=n[1-3]", "Nodes=n1"))
    notes = tb.whatif(log, other, members=2).notes
    [note] = [note for note in notes if "at a time" in note]
    assert re.match(r"jobs of partition batch held up to (1[0-9]|2[0-4]) cores at a time, and it has 8: ", note)


@pytest.mark.parametrize("rows", [[LATER], [(50.0, 60.0 + at, 90.0 + at, 60.0) for at in range(12)]])
def test_a_log_of_one_judged_job_or_of_one_instant_has_a_page(
    rows: list[Any], conf: Path, tmp_path: Path, svg_only: None
) -> None:
    log = of_rows(conf, (0, 10, 40, 60), *rows).workload
    found = tb.whatif(log, conf, settings=["bf_interval=7"], members=6)
    assert len(found.jobs) == len(rows)
    assert found.save(tmp_path / "out").exists()


def test_the_summary_of_a_backtest_says_its_error(conf: Path, tmp_path: Path, svg_only: None) -> None:
    found = tb.whatif(drawn(conf, 60), conf, members=2)
    sheet = found.save(tmp_path / "out").with_name("summary.html").read_text()
    assert f"<strong>T{escape(found.backtest[1:])}.</strong>" in sheet
    assert sheet.count("<figure") == 1 and "Outages of nodes" in sheet


# -- the command


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an export of sacct of a cluster with three partitions that is a simulated Slurm, and its slurm.conf."""
    folder = tmp_path_factory.mktemp("export")
    (folder / "slurm.conf").write_text(sacct_dumps.CONF)
    rows = [row for row in sacct_dumps.rows(500) if "." not in row["JobID"] and row["NodeList"] != "None assigned"]
    rows = list({row["JobID"]: {**row, "Eligible": row["Submit"]} for row in rows}.values())
    (folder / "sacct.txt").write_text(sacct_dumps.text(rows))
    read = tb.read(folder / "sacct.txt", time_zone=sacct_dumps.ZONE)
    plain = tb.Workload(read.table.drop(columns=["dependency", "array"], errors="ignore"), read.provenance)
    times = logged(plain, folder / "slurm.conf", seed=77).table.set_index("job_id")
    zero = read.provenance.unix_start
    assert zero is not None
    for row in rows:
        start, end = (zero + float(times.loc[row["JobID"], f"logged_{name}"]) for name in ("start", "end"))
        row |= {"Start": sacct_dumps._clock(start), "End": sacct_dumps._clock(end)}
        row["Elapsed"] = sacct_dumps._span(end - start)
    (folder / "sacct.txt").write_text(sacct_dumps.text(row for row in rows if row["Start"] != "nan"))
    return folder


@pytest.mark.parametrize("width", [3.5, 7.16, 11.0])
def test_the_longest_name_of_a_class_is_within_its_picture(width: float) -> None:
    names = ("all jobs", "size 2,049 to 4,096 cores", "partition " + "m" * 40, "4 more nodes of batch, like n[01-32]")
    figure = pictures._by_class([cast("Any", SimpleNamespace(title=name)) for name in names], "wait")(width)
    assert min(text.get_window_extent().x0 for text in figure.axes[0].get_yticklabels()) >= 0
    assert figure.axes[0].get_yticklabels()[-1].get_text().split() == names[-1].split()


@pytest.mark.slow
def test_an_export_of_sacct_becomes_a_page_with_pictures_and_their_data(
    export: Path, call: Call, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    command = ["whatif", export / "sacct.txt", export / "slurm.conf", "--time-zone", sacct_dumps.ZONE]
    changes = ["--set", "Partition.debug.PriorityTier=1", "--add-nodes", "cpu=8", "--perturb", "6", "-o", "out"]
    status, out, err = call(*map(str, command), *changes)
    assert status == ExitCode.OK, err
    assert f"time zone {sacct_dumps.ZONE}" in out
    assert re.search(r"waits of partition cpu fall by \d+ %", out)
    assert "the model's own error on this log is" in out
    for row in ("partition gpu", "QOS high", "size 33 to 64 cores"):
        assert re.search(rf"^{row} +\d", out, re.MULTILINE)
    assert "equal nodes" not in err  # what a machine of equal nodes would lose
    folder = tmp_path / "out"
    page = (folder / "index.html").read_text()
    assert not re.search(r"(?:src|href)=\"(?!#)|url\((?!#)|@import", page)
    assert page.count("<figure") == 5
    sheet = (folder / "summary.html").read_text()
    assert not re.search(r"(?:src|href)=\"(?!#)|url\((?!#)|@import", sheet)
    assert sheet.count("<figure") == 1 and "Waits of all jobs " in sheet and "What is not modeled" in sheet
    assert all(
        f"{each[0].upper()}{escape(each[1:])}." in sheet
        for each in json.loads((folder / "whatif.json").read_text())["not_modeled"]
    )
    for name in ("waits", "effects", "classes", "queue", "utilization"):
        assert {path.suffix for path in (folder / "plots").glob(f"{name}-page.*")} == {".png", ".svg", ".pdf"}
        assert len(pd.read_csv(folder / "plots" / f"{name}.csv")) > 5
    document = json.loads((folder / "whatif.json").read_text())
    assert problems(document, "tracebed-whatif-1.json") == []
    assert len(pd.read_csv(folder / "jobs.csv")) == document["log"]["jobs"]
    assert sum(each["jobs"] for each in document["classes"] if each["by"] == "partition") == document["log"]["jobs"]
    request.getfixturevalue("svg_only")
    status, again, _ = call(*map(str, command), *changes)  # the page is a view and is made again
    assert (status, again) == (ExitCode.OK, out)


def test_the_document_is_that_of_the_folder(export: Path, call: Call, tmp_path: Path, svg_only: None) -> None:
    command = ["whatif", export / "sacct.txt", export / "slurm.conf", "--time-zone", sacct_dumps.ZONE]
    status, out, _ = call(*map(str, command), "--perturb", "2,submit=0", "--json", "-o", "out")
    assert status == ExitCode.OK
    assert json.loads(out) == json.loads((tmp_path / "out" / "whatif.json").read_text())
    assert json.loads(out)["change"] == []
    assert problems(json.loads(out), "tracebed-whatif-1.json") == []


def test_a_log_may_be_the_json_of_sacct(conf: Path, call: Call, tmp_path: Path) -> None:
    """The answer is that of the same jobs as text."""
    text, jobs, begin = ["JobID|Partition|QOS|Account|Submit|Start|End|Timelimit|State|NNodes|NCPUS"], [], 1_704_067_200
    for row in drawn(conf, 120).table.to_dict("records"):
        times = [begin + round(row[name]) for name in ("submit_time", "logged_start", "logged_end")]
        clocks = [f"{pd.Timestamp(at, unit='s'):%Y-%m-%dT%H:%M:%S}" for at in times]
        names, minutes, cores = (
            [row["partition"], row["queue"], row["group"]],
            round(row["time_limit"] / 60),
            row["cores_per_node"],
        )
        limit = f"{minutes // 1440}-{minutes % 1440 // 60:02}:{minutes % 60:02}:00"
        text.append("|".join([row["job_id"], *names, *clocks, limit, "COMPLETED", "1", str(cores)]))
        submit, start, end = times
        clock = {
            "submission": submit,
            "eligible": submit,
            "start": start,
            "end": end,
            "elapsed": end - start,
            "limit": minutes,
        }
        keys = dict(zip(("partition", "qos", "account"), names, strict=True)) | {"job_id": int(row["job_id"]) + 1000}
        tres = {"allocated": [{"type": "cpu", "name": None, "id": 1, "count": cores}], "requested": []}
        size = {
            "allocation_nodes": 1,
            "nodes": "n1",
            "constraints": "",
            "required": {"CPUs": cores, "memory": 0},
            "tres": tres,
        }
        jobs.append(test_sacct_exports.PLAIN | keys | size | {"time": clock})
    (tmp_path / "sacct.txt").write_text("\n".join(text) + "\n")
    (tmp_path / "sacct.json").write_text(json.dumps({"jobs": jobs, "errors": []}))
    answers = []
    for log in ("sacct.txt", "sacct.json"):
        changes = ["--set", "bf_interval=300", "--time-zone", "UTC", "--perturb", "2", "--json"]
        status, out, err = call("whatif", log, "slurm.conf", *changes)
        assert status == ExitCode.OK, err
        answers.append(json.loads(out))
    assert answers[0]["log"]["jobs"] > 100
    assert answers[0]["sentences"] == answers[1]["sentences"]
    for one, other in zip(answers[0]["classes"], answers[1]["classes"], strict=True):
        assert one["jobs"] == other["jobs"] and one["logged_wait_s"] == other["logged_wait_s"]
        assert one["predicted_wait_s"] == other["predicted_wait_s"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--add-nodes", "cpu"], "is not PARTITION=N"),
        (["--add-nodes", "cpu=many"], "--add-nodes cpu=many: "),
        (["--add-nodes", "cpu=1", "--add-nodes", "cpu=2"], "given twice"),
        (["--add-nodes", "cpu=1,like=cpu99"], "the slurm.conf has no node cpu99"),
        (["--add-nodes", "cpu=1,as=cpu01"], "'as' is not one of 'like'"),
        (["--set", "bf_intervall=3"], "did you mean bf_interval"),
        (["--replace", "absent.conf"], "absent.conf"),
    ],
)
def test_a_wrong_option_is_an_error(export: Path, call: Call, options: list[str], message: str) -> None:
    status, _, err = call("whatif", str(export / "sacct.txt"), str(export / "slurm.conf"), *options)
    assert status == ExitCode.USAGE
    assert message in err.splitlines()[-1]


def test_no_folder_of_others_is_replaced(export: Path, call: Call, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    status, _, err = call("whatif", str(export / "sacct.txt"), str(export / "slurm.conf"), "-o", "out")
    assert status == ExitCode.USAGE
    assert "exists and is not a what-if" in err


# -- logs of real clusters

PERLMUTTER = """SchedulerParameters=bf_interval=60,bf_max_job_test=500
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PriorityType=priority/multifactor
PriorityWeightAge=1000
NodeName=nid[000001-001792] CPUs=128 Sockets=1 CoresPerSocket=64 ThreadsPerCore=2 RealMemory=256000 Gres=gpu:4
PartitionName=gpu_ss11 Nodes=ALL Default=YES MaxTime=2-00:00:00
PartitionName=resv Nodes=ALL
PartitionName=cron Nodes=ALL
"""
HASWELL = """SchedulerParameters=bf_interval=60,bf_max_job_test=500
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/multifactor
PriorityWeightAge=1000
NodeName=nid[00001-02388] CPUs=64 Sockets=2 CoresPerSocket=16 ThreadsPerCore=2 RealMemory=128000
PartitionName=DEFAULT Nodes=ALL
PartitionName=regular_hsw Default=YES OverSubscribe=EXCLUSIVE
PartitionName=debug_hsw PriorityTier=2 OverSubscribe=EXCLUSIVE
PartitionName=shared
PartitionName=genepool_shared
"""


@pytest.mark.parametrize(
    ("log", "text"),
    [("nersc_perlmutter_gpu_sample.csv", PERLMUTTER), ("nersc_cori_haswell_sample.csv", HASWELL)],
)
def test_a_sample_of_a_real_log_is_answered_as_inconclusive(
    log: str, text: str, call: Call, reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    """Of a sample, a cluster of this size is empty: no job waits in the prediction, and the error is 100 %."""
    (tmp_path / "slurm.conf").write_text(text)
    path = reference_data(f"logs/{log}")
    status, out, err = call("whatif", str(path), "slurm.conf", "--set", "bf_interval=120", "--perturb", "6")
    assert status == ExitCode.OK, err
    assert "time zone America/Los_Angeles" in out
    assert re.search(
        r"waits of all jobs: inconclusive: .*; the model's own error on this log is above a factor of 10", out
    )


def test_the_jobs_of_slurm_model_are_predicted_and_a_change_is_answered(
    call: Call, reference_data: Callable[[str], Path]
) -> None:
    """A real Slurm of other people: the starts are those of one of its runs."""
    folder = reference_data("slurm-model")
    table = ["import", folder / "two-runs.csv", "--as", "real", "--workload", folder / "jobs500.csv"]
    status, _, err = call(*map(str, table), "--only", "run_id=1", "-o", "real")
    assert status == ExitCode.OK, err
    command = ["whatif", folder / "jobs500.csv", folder / "slurm.conf", "--real", "real", "--json"]
    status, out, err = call(*map(str, command), "--set", "PriorityWeightJobSize=0", "--perturb", "8,submit=0")
    assert status == ExitCode.OK, err
    every = json.loads(out)["classes"][0]
    assert every["jobs"] == 499  # the first job to end is not judged
    assert every["error"] < 0.1
    assert every["effect"]["answer"] == "fall"  # small jobs no longer wait for large ones
    assert "PriorityWeightQOS" in err  # not modeled, and named


@pytest.mark.slow
@pytest.mark.skipif(chromium.PROGRAM is None, reason="no chromium to open the page with (apt-get install chromium)")
@pytest.mark.parametrize("width", [1280, 375])
def test_the_page_is_readable_in_a_browser_and_escapes_names(width: int, conf: Path, tmp_path: Path) -> None:
    log = drawn(conf, 120)
    evil = "<img src=x onerror=alert(1)>"
    named = tb.Workload(log.table.assign(queue=[evil, *log.table["queue"][1:]]), log.provenance)
    found = tb.whatif(named, conf, add_nodes={"batch": 1}, members=6, name=evil)
    page = found.save(tmp_path / "out")
    with chromium.Chromium(tmp_path / "profile") as browser:
        opened = chromium.Page(browser, page, width=width, phone=width < 500)
        assert opened.errors() == []
        assert opened.run("document.querySelectorAll('figure').length") == 5
        sheet = chromium.Page(browser, page.with_name("summary.html"), width=width, phone=width < 500)
        assert sheet.errors() == []
        assert sheet.run("document.documentElement.scrollWidth") <= width
        assert opened.run("document.images.length") == 0
        assert opened.run("document.documentElement.scrollWidth") <= width


def test_a_time_of_the_table_has_the_unit_of_its_own_size() -> None:
    """One unit for a column made the minutes of a small class 0.01386 d; the table sorts by the seconds."""
    long, short = (a_class([wait], [wait], wait) for wait in (3 * 86_400.0, 1197.5))
    page = fill("whatif_classes", found=SimpleNamespace(classes=[long, short], change=[], comparison=None))
    assert '<td data-value="1197.5">19 min 57 s</td>' in page
    assert '<td data-value="259200.0">3 d</td>' in page
    assert " d)" not in page and "0.01" not in page


# A change that refuses work: a gain by deleting jobs is no answer.

SHORT = "Partition.batch.MaxTime=60"
"""A limit of an hour, which refuses a third of the jobs of `drawn`."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "slurm.conf"
    path.write_text(CONF)
    return path


@pytest.fixture(scope="module")
def log(cluster: Path) -> tb.Workload:
    return drawn(cluster)


@pytest.fixture(scope="module")
def shorter(cluster: Path, log: tb.Workload) -> Callable[[str], tb.WhatIf]:
    """Return a function from the remedy to the answer about `SHORT`."""
    return cache(
        lambda refused: tb.whatif(log, cluster, settings=[SHORT], members=6, over_limit=refused, name="log.csv")
    )


def answers(found: tb.WhatIf) -> set[Answer]:
    return {each.answer for each in found.classes}


def started(log: tb.Workload, cluster: Path) -> set[str]:
    """Return the jobs that had started when the log begins."""
    jobs = log_of(log, machine_at(cluster)).workload
    return set(jobs.column("job_id")[jobs.column(STARTED)])


def backtest(found: tb.WhatIf) -> list[Any]:
    """Return what is known of the model, without the change."""
    figures = ("by", "class", "jobs", "logged_wait_s", "predicted_wait_s", "error", "moving_average")
    return [{name: each.to_json()[name] for name in figures} for each in found.classes]


@pytest.mark.parametrize("refused", ["leave-out", "cut"])
def test_a_change_that_deletes_work_has_no_answer_about_waits(
    cluster: Path, log: tb.Workload, shorter: Callable[[str], tb.WhatIf], refused: str
) -> None:
    found = shorter(refused)
    assert answers(found) == {Answer.REFUSED}
    [headline] = found.sentences
    work = found.refused
    assert work is not None and sum(work.shares) > MOST
    assert headline.endswith(
        "no statement about waits; `whatif --over-limit split` divides jobs beyond a limit into shorter ones"
    )
    assert not any(word in headline for word in ("fall", "rise", "do not change"))
    if refused == "leave-out":
        long = (log.table["partition"] == "batch") & (log.table["time_limit"] > 3600)
        core_s = log.table["run_time"] * log.table["cores_per_node"]
        long &= ~log.table["job_id"].isin(started(log, cluster))
        assert work.jobs == long.sum()
        assert work.shares[0] == pytest.approx(core_s[long].sum() / core_s.sum(), rel=0.01)
        assert headline.startswith(
            f"the change refuses {work.jobs} jobs of the log with 200 core hours (44 % of the log's): "
        )
    else:
        assert (work.jobs, work.adapted) == (0, 82)
        assert headline.startswith(
            "the change cuts off 9.938 core hours (2.2 % of the log's), of jobs that end earlier (15)"
        )


def test_the_backtest_does_not_depend_on_the_change(
    cluster: Path, log: tb.Workload, shorter: Callable[[str], tb.WhatIf]
) -> None:
    alone = tb.whatif(log, cluster, members=6)
    for refused in (Remedy.LEAVE_OUT, Remedy.SPLIT):
        found = shorter(refused)
        assert backtest(found) == backtest(alone)
        assert found.backtest == alone.backtest
        assert found.jobs[["job_id", "logged", "predicted"]].equals(alone.jobs[["job_id", "logged", "predicted"]])


def test_waits_are_compared_over_the_same_jobs(shorter: Callable[[str], tb.WhatIf]) -> None:
    """Without the refused jobs, a shorter limit alone changes nothing."""
    found = shorter("leave-out")
    every = found.classes[0]
    work = found.refused
    assert work is not None and every.effect is not None
    assert every.compared == every.jobs - work.jobs
    assert every.effect.change == 0
    assert found.jobs["changed"].isna().sum() == work.jobs
    assert found.comparison == ""  # beyond 1 %, neither is shown
    assert len(found.windows.columns) == 4 and not found.windows["changed"].isna().all()


def test_a_change_without_a_row_in_the_picture_is_named_below_it(cluster: Path, log: tb.Workload) -> None:
    """The summary has no table: without the caption, the change would be missing there."""
    changes = [{"settings": [SHORT]}, {"settings": ["bf_interval=300"]}]
    _, picture = pictures.pictures(tb.whatif_each(log, cluster, changes, members=2))["changes"]
    assert picture.caption.endswith(f"Not drawn, since these changes refuse more than 1 % of the work: {SHORT} (44 %).")


def test_a_little_refused_work_is_in_the_headline_beside_the_answer(cluster: Path, log: tb.Workload) -> None:
    limit = log.table.loc[log.table["partition"] == "batch", "time_limit"].max() / 60 - 1
    found = tb.whatif(
        log, cluster, settings=[f"Partition.batch.MaxTime={limit:.0f}"], add_nodes={"batch": 2}, members=6
    )
    work = found.refused
    assert work is not None and not work.much
    first, *others = found.sentences
    assert first.startswith(f"the change refuses {work.jobs} job") and "no statement" not in first
    assert "waits of partition batch fall by" in others[0]
    every = found.classes[0]
    assert f"{every.compared} of the {every.jobs} judged jobs" in found.comparison


def test_split_jobs_do_all_their_work_in_a_chain(shorter: Callable[[str], tb.WhatIf]) -> None:
    found = shorter("split")
    work = found.refused
    assert work is not None
    assert (work.jobs, work.cut_jobs, work.adapted, work.shares) == (0, 0, 82, (0.0, 0.0))
    assert found.sentences[0] == "a limit beyond the longest permitted one splits a job into jobs within it (82 jobs)"
    assert Answer.REFUSED not in answers(found)
    assert found.classes[0].compared == found.classes[0].jobs


def test_the_pieces_of_a_job_follow_each_other_within_the_limit(cluster: Path) -> None:
    rows = [(0.0, 10.0, 40.0, 60.0), (50.0, 60.0, 260.0, 300.0), (51.0, 60.0, 90.0, 60.0)]
    log = of_rows(cluster, *rows, dependency=["", "afterok:0", "afterany:1"]).workload
    jobs, own = adapted(log, np.array([90.0] * 3), Remedy.SPLIT)
    assert own.tolist() == [0, 1, 1, 1, 2]
    names = jobs.column("job_id").tolist()
    assert (names[0], names[3], names[4]) == ("0", "1", "2")  # job 2 waits for the last piece of job 1
    pieces = [f"afterany:{name}" for name in names[1:3]]
    assert jobs.column("dependency").tolist() == ["", "afterok:0", *pieces, "afterany:1"]
    assert jobs.floats("run_time")[1:4].sum() == 200
    assert jobs.floats("time_limit").tolist() == [60, 90, 90, 90, 60]
    cut, own = adapted(log, np.array([90.0] * 3), Remedy.CUT)
    assert cut.floats("time_limit").tolist() == [60, 90, 60]
    assert cut.floats("run_time").tolist() == [30, 200, 30]  # Slurm ends the job at the limit


def test_a_job_that_had_started_before_the_change_runs_on(cluster: Path) -> None:
    """As Slurm 22.05.8: the limit of a partition counts when a job starts."""
    ran = [(0.0, 10.0, 9_000.0, 9_000.0), (0.0, 10.0, 100.0, 120.0)]
    later = [(200.0 + at, 200.0 + at, 400.0 + at, 240.0) for at in range(8)]
    log = of_rows(cluster, *ran, *later, cores_per_node=8, partition="long")
    assert log.workload.column(STARTED).tolist() == [True, True] + [False] * 8
    found = tb.whatif(log.workload, cluster, settings=["Partition.long.MaxTime=10"], members=6)
    assert found.refused is not None
    assert (found.refused.jobs, found.refused.cut_jobs) == (0, 0)
    assert not any("can never start" in note for note in found.notes)
    assert answers(found) == {Answer.EQUAL}


def test_jobs_without_a_limit_that_end_at_the_new_one_are_counted(cluster: Path, log: tb.Workload) -> None:
    unlimited = tb.Workload(log.table.assign(time_limit=math.nan), log.provenance)
    found = tb.whatif(unlimited, cluster, settings=[SHORT], members=2)
    assert found.refused is not None
    assert (found.refused.jobs, found.refused.cut_jobs > 0, found.refused.much) == (0, True, True)
    assert "earlier" in found.sentences[0]


def test_a_preempted_job_that_is_cancelled_lacks_its_work(cluster: Path, log: tb.Workload) -> None:
    changes = ["PreemptType=preempt/partition_prio", "PreemptMode=CANCEL", "Partition.long.Nodes=n[1-4]"]
    found = tb.whatif(log, cluster, settings=[*changes, "Partition.long.PriorityTier=5"], members=2)
    assert found.refused is not None
    assert found.refused.cut_jobs > 0


def test_jobs_of_a_partition_that_is_gone_or_of_a_node_that_is_down_are_refused(
    cluster: Path, log: tb.Workload, tmp_path: Path
) -> None:
    other = tmp_path / "new.conf"
    other.write_text(CONF.replace("PartitionName=long Nodes=n4\n", ""))
    gone = tb.whatif(log, cluster, replacement=other, members=2)
    down = tb.whatif(log, cluster, settings=["Node.n4.State=DOWN"], members=2)
    for found, why in ((gone, "no partition long"), (down, "no nodes of its partition can ever run it")):
        assert found.refused is not None
        assert found.refused.jobs == (log.table["partition"] == "long").sum()
        assert why in found.sentences[0]
        assert "--over-limit" not in found.sentences[0]  # no limit is too short


def test_a_change_that_refuses_each_judged_job_has_a_page(
    cluster: Path, log: tb.Workload, tmp_path: Path, svg_only: None
) -> None:
    found = tb.whatif(log, cluster, settings=["Partition.batch.MaxTime=1", "Partition.long.MaxTime=1"], members=2)
    assert answers(found) == {Answer.REFUSED}
    assert found.classes[0].compared == 0 and found.classes[0].lost == 1
    assert found.save(tmp_path / "out").exists()


def test_rounded_limits_stay_within_that_of_the_partition(tmp_path: Path, log: tb.Workload) -> None:
    """Otherwise members with other limits refuse jobs that ran, and the backtest loses them."""
    conf = tmp_path / "slurm.conf"
    most = math.ceil(log.table["time_limit"].max() / 60)
    conf.write_text(
        CONF.replace("Nodes=n[1-3]", f"Nodes=n[1-3] MaxTime={most}").replace("n4\n", f"n4 MaxTime={most}\n")
    )
    alone, rounded = (tb.whatif(log, conf, members=6, perturbation={"limit_s": limit}) for limit in (0.0, 36_000.0))
    assert len(rounded.jobs) == len(alone.jobs)


def test_the_longest_limit_is_that_of_one_of_the_partitions(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("NodeName=n1 CPUs=4\nPartitionName=a Nodes=n1 MaxTime=10\nPartitionName=b Nodes=n1 MaxTime=20\n")
    jobs = pd.DataFrame({"job_id": ["1", "2", "3"], "submit_time": 0.0, "run_time": 1.0, "nodes": 1})
    workload = tb.Workload(jobs.assign(partition=["a", "a,b", "gone"]))
    assert longest_limits(workload, machine_at(path)).tolist() == [600, 1200, math.inf]


@pytest.mark.slow
@pytest.mark.parametrize("refused", ["leave-out", "split"])
def test_the_command_its_document_and_its_page_say_what_is_refused(
    cluster: Path, log: tb.Workload, refused: str, call: Call, tmp_path: Path, svg_only: None
) -> None:
    tb.write(log, tmp_path / "log.csv")
    command = [
        "whatif",
        "log.csv",
        str(cluster),
        "--set",
        SHORT,
        "--perturb",
        "6",
        "--over-limit",
        refused,
        "-o",
        "out",
    ]
    status, out, err = call(*command)
    assert status == ExitCode.OK, err
    document = json.loads((tmp_path / "out" / "whatif.json").read_text())
    assert problems(document, "tracebed-whatif-1.json") == []
    assert document["refused"]["remedy"] == refused
    assert document["refused"]["jobs"] == (82 if refused == "leave-out" else 0)
    assert document["sentences"][0] in out
    page = (tmp_path / "out" / "index.html").read_text()
    assert document["sentences"][0][1:60] in page
    answers = {each["effect"]["answer"] for each in document["classes"] if each["effect"]}
    assert ("refused" in answers) is (refused == "leave-out")
    assert ("waits of all jobs" in out) is (refused == "split")


@pytest.mark.parametrize("refused", Remedy)
def test_the_document_and_the_page_say_what_is_refused(shorter: Callable[[str], tb.WhatIf], refused: Remedy) -> None:
    found = shorter(refused)
    document = found.to_json()
    assert problems(document, "tracebed-whatif-1.json") == []
    assert document["refused"]["remedy"] == refused
    assert document["sentences"][0].startswith(document["refused"]["sentence"])
    assert ("effects" in pictures.pictures(found)) is (refused is Remedy.SPLIT)
