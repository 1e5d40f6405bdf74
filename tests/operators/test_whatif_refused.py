"""What if a change refuses work: a gain by deleting jobs is no answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.operators.test_whatif import CONF, drawn, of_rows
from tests.validation.test_schemas import problems
from tracebed.ground.errors import ExitCode
from tracebed.operators.whatif.classes import Answer
from tracebed.operators.whatif.log import log_of
from tracebed.operators.whatif.pictures import pictures
from tracebed.operators.whatif.refused import MOST, Remedy, adapted
from tracebed.slurm.conf import of_lines
from tracebed.slurm.conf_lines import lines_of
from tracebed.slurm.machine import SlurmCluster
from tracebed.slurm.simulation.demands import STARTED, longest_limits

Call = Callable[..., tuple[int, str, str]]
SHORT = "Partition.batch.MaxTime=60"
"""A limit of an hour, which refuses a third of the jobs of `drawn`."""


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "slurm.conf"
    path.write_text(CONF)
    return path


@pytest.fixture(scope="module")
def log(conf: Path) -> tb.Workload:
    return drawn(conf)


@pytest.fixture(scope="module")
def shorter(conf: Path, log: tb.Workload) -> Callable[[str], tb.WhatIf]:
    """Return a function from the remedy to the answer about `SHORT`."""
    return cache(lambda refused: tb.whatif(log, conf, settings=[SHORT], members=6, over_limit=refused, name="log.csv"))


def answers(found: tb.WhatIf) -> set[Answer]:
    return {each.answer for each in found.classes}


def started(log: tb.Workload, conf: Path) -> set[str]:
    """Return the jobs that had started when the log begins."""
    jobs = log_of(log, machine_of(conf)).workload
    return set(jobs.column("job_id")[jobs.column(STARTED)])


def machine_of(conf: Path) -> SlurmCluster:
    machine = of_lines(lines_of(conf), conf, plain=True).cluster
    assert machine is not None
    return machine


def backtest(found: tb.WhatIf) -> list[Any]:
    """Return what is known of the model, without the change."""
    figures = ("by", "class", "jobs", "logged_wait_s", "predicted_wait_s", "error", "moving_average")
    return [{name: each.to_json()[name] for name in figures} for each in found.classes]


@pytest.mark.parametrize("refused", ["leave-out", "cut"])
def test_a_change_that_deletes_work_has_no_answer_about_waits(
    conf: Path, log: tb.Workload, shorter: Callable[[str], tb.WhatIf], refused: str
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
        long &= ~log.table["job_id"].isin(started(log, conf))
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
    conf: Path, log: tb.Workload, shorter: Callable[[str], tb.WhatIf]
) -> None:
    alone = tb.whatif(log, conf, members=6)
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


def test_a_little_refused_work_is_in_the_headline_beside_the_answer(conf: Path, log: tb.Workload) -> None:
    limit = log.table.loc[log.table["partition"] == "batch", "time_limit"].max() / 60 - 1
    found = tb.whatif(log, conf, settings=[f"Partition.batch.MaxTime={limit:.0f}"], add_nodes={"batch": 2}, members=6)
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


def test_the_pieces_of_a_job_follow_each_other_within_the_limit(conf: Path) -> None:
    rows = [(0.0, 10.0, 40.0, 60.0), (50.0, 60.0, 260.0, 300.0), (51.0, 60.0, 90.0, 60.0)]
    log = of_rows(conf, *rows, dependency=["", "afterok:0", "afterany:1"]).workload
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


def test_a_job_that_had_started_before_the_change_runs_on(conf: Path) -> None:
    """As Slurm 22.05.8: the limit of a partition counts when a job starts."""
    ran = [(0.0, 10.0, 9_000.0, 9_000.0), (0.0, 10.0, 100.0, 120.0)]
    later = [(200.0 + at, 200.0 + at, 400.0 + at, 240.0) for at in range(8)]
    log = of_rows(conf, *ran, *later, cores_per_node=8, partition="long")
    assert log.workload.column(STARTED).tolist() == [True, True] + [False] * 8
    found = tb.whatif(log.workload, conf, settings=["Partition.long.MaxTime=10"], members=6)
    assert found.refused is not None
    assert (found.refused.jobs, found.refused.cut_jobs) == (0, 0)
    assert not any("can never start" in note for note in found.notes)
    assert answers(found) == {Answer.EQUAL}


def test_jobs_without_a_limit_that_end_at_the_new_one_are_counted(conf: Path, log: tb.Workload) -> None:
    unlimited = tb.Workload(log.table.assign(time_limit=math.nan), log.provenance)
    found = tb.whatif(unlimited, conf, settings=[SHORT], members=2)
    assert found.refused is not None
    assert (found.refused.jobs, found.refused.cut_jobs > 0, found.refused.much) == (0, True, True)
    assert "earlier" in found.sentences[0]


def test_a_preempted_job_that_is_cancelled_lacks_its_work(conf: Path, log: tb.Workload) -> None:
    changes = ["PreemptType=preempt/partition_prio", "PreemptMode=CANCEL", "Partition.long.Nodes=n[1-4]"]
    found = tb.whatif(log, conf, settings=[*changes, "Partition.long.PriorityTier=5"], members=2)
    assert found.refused is not None
    assert found.refused.cut_jobs > 0


def test_jobs_of_a_partition_that_is_gone_or_of_a_node_that_is_down_are_refused(
    conf: Path, log: tb.Workload, tmp_path: Path
) -> None:
    other = tmp_path / "new.conf"
    other.write_text(CONF.replace("PartitionName=long Nodes=n4\n", ""))
    gone = tb.whatif(log, conf, replacement=other, members=2)
    down = tb.whatif(log, conf, settings=["Node.n4.State=DOWN"], members=2)
    for found, why in ((gone, "no partition long"), (down, "no nodes of its partition can ever run it")):
        assert found.refused is not None
        assert found.refused.jobs == (log.table["partition"] == "long").sum()
        assert why in found.sentences[0]
        assert "--over-limit" not in found.sentences[0]  # no limit is too short


def test_a_change_that_refuses_each_judged_job_has_a_page(
    conf: Path, log: tb.Workload, tmp_path: Path, svg_only: None
) -> None:
    found = tb.whatif(log, conf, settings=["Partition.batch.MaxTime=1", "Partition.long.MaxTime=1"], members=2)
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
    alone, rounded = (tb.whatif(log, conf, members=6, limit_s=limit) for limit in (0.0, 36_000.0))
    assert len(rounded.jobs) == len(alone.jobs)


def test_the_longest_limit_is_that_of_one_of_the_partitions(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("NodeName=n1 CPUs=4\nPartitionName=a Nodes=n1 MaxTime=10\nPartitionName=b Nodes=n1 MaxTime=20\n")
    jobs = pd.DataFrame({"job_id": ["1", "2", "3"], "submit_time": 0.0, "run_time": 1.0, "nodes": 1})
    workload = tb.Workload(jobs.assign(partition=["a", "a,b", "gone"]))
    assert longest_limits(workload, machine_of(path)).tolist() == [600, 1200, math.inf]


@pytest.mark.slow
@pytest.mark.parametrize("refused", ["leave-out", "split"])
def test_the_command_its_document_and_its_page_say_what_is_refused(
    conf: Path, log: tb.Workload, refused: str, call: Call, tmp_path: Path, svg_only: None
) -> None:
    tb.write(log, tmp_path / "log.csv")
    command = ["whatif", "log.csv", str(conf), "--set", SHORT, "--perturb", "6", "--over-limit", refused, "-o", "out"]
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
    assert ("effects" in pictures(found)) is (refused is Remedy.SPLIT)
