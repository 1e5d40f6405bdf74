"""Logs of the AMTE scheduler: runs with resizes, workloads with the job scripts, and comparisons with predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import tracebed.api as tb
from tests.commands import call
from tests.oracles.amte_prediction import (
    SHRINKS_S,
    SMALLER,
    explained,
    judged,
    log_of,
    makespan,
    measured,
    prediction,
    programs,
    resizes,
)
from tracebed.ground.errors import InputError, Tolerated
from tracebed.validation.simulators.assembly import workload_of
from tracebed.validation.simulators.reading import form_of

STORED = Path(__file__).parents[2] / "docs" / "explanation" / "amte-malleable"
LOG = """\
281568387;/jobs/job_1; started; [host00, host01, host02]
5157003169;/jobs/job_2; started; [host03]
12000000000;/jobs/job_1; released; [host02]
15153447830;/jobs/job_3; started; [host02]
26922877672;/jobs/job_2; terminated
30100000000;/jobs/job_1; expand; [host03]
40000000000;/jobs/job_3; terminated
50000000000;/jobs/job_1; terminated
69000000000; all jobs completed
"""
"""A log of a malleable run: job 0 shrinks from three nodes to two, and expands to three."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "malleableSchedule.csv"
    path.write_text(LOG)
    return path


def with_scripts(folder: Path, *, links: bool) -> None:
    """Write the scripts of three jobs: malleable on 2 to 4 nodes (rigid on 3), rigid, and malleable but of one size."""
    for name, (kind, least, most) in {
        "wide": ("malleable", 2, 4),
        "narrow": ("malleable", 3, 3),
        "one": ("rigid", 1, 1),
    }.items():
        header = f"#!/bin/bash\n#JOB_TYPE apgas\n#JOB_CLASS {kind}\n#MIN_NODES {least}\n#MAX_NODES {most}\n"
        (folder / f"{name}.sh").write_text(header + "cd $SCRIPT_DIR\n")
    for job, scripts in {
        "00": {"fixed": "narrow", "malleable": "wide"},
        "01": {"fixed": "one"},
        "02": {"fixed": "one"},
    }.items():
        (folder / f"job_{job}").mkdir()
        for name, target in scripts.items():
            place = folder / f"job_{job}" / f"{name}.sh"
            if links:
                place.symlink_to(f"../{target}.sh")
            else:
                place.write_text(f"../{target}.sh")  # as git writes a link where there are none


def test_a_log_is_a_run_with_the_nodes_of_each_job_and_its_resizes(log: Path) -> None:
    assert form_of(log) == "amte"
    run = tb.import_run(log, side="real")
    assert run.jobs["job_id"].tolist() == ["0", "1", "2"]
    assert run.jobs["start"].tolist() == [0.281568387, 5.157003169, 15.15344783]
    assert run.jobs["end"].tolist() == [50.0, 26.922877672, 40.0]
    assert [node.name for node in run.info.nodes] == ["host00", "host01", "host02", "host03"]
    held = run.allocations.sort_values(["job_id", "start", "node"])
    rows = list(zip(held["job_id"], held["node"], held["count"], held["start"], held["end"], strict=True))
    assert rows == [
        ("0", 0, 2, 0.281568387, 50.0),
        ("0", 2, 1, 0.281568387, 12.0),
        ("0", 3, 1, 30.1, 50.0),
        ("1", 3, 1, 5.157003169, 26.922877672),
        ("2", 2, 1, 15.15344783, 40.0),
    ]
    columns = ["kind", "nodes_from", "nodes_to", "asked", "ended"]
    shrink, expand = run.reconfigurations[columns].fillna(-1).values.tolist()
    assert shrink == ["shrink", 3, 2, -1, 12.0]  # the log has the end of a shrink, and not the decision
    assert expand == ["expand", 2, 3, 30.1, -1]
    assert run.metrics()["shrink_operations_per_job"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("links", [True, False])
def test_scripts_beside_a_log_state_which_jobs_are_malleable_and_their_bounds(log: Path, links: bool) -> None:
    assert tb.import_run(log, side="real").jobs["kind"].tolist() == ["malleable"] * 3  # unknown without scripts
    with_scripts(log.parent, links=links)
    assert tb.import_run(log, side="real").jobs["kind"].tolist() == ["malleable", "rigid", "rigid"]
    with pytest.warns(Tolerated, match="resized, run time unknown"):
        batch = tb.read(log)
    assert batch.column("kind").tolist() == ["malleable", "rigid", "rigid"]
    assert batch.ints("nodes_min").tolist() == [2, 1, 1]
    assert batch.ints("nodes_max").tolist() == [4, 1, 1]
    assert batch.floats("logged_end").tolist() == [50.0, 26.922877672, 40.0]
    assert math.isnan(batch.floats("run_time")[0])
    assert batch.floats("run_time")[1] == pytest.approx(26.922877672 - 5.157003169)


def test_a_log_without_resizes_is_a_run_of_rigid_jobs(log: Path) -> None:
    with_scripts(log.parent, links=False)
    rigid = [line for line in LOG.splitlines() if "released" not in line and "expand" not in line]
    rigid[2] = rigid[2].replace("15153447830", "27153447830").replace("host02", "host03")
    log.write_text("\n".join(rigid))
    run = tb.import_run(log, side="real")
    assert run.jobs["kind"].tolist() == ["rigid"] * 3
    assert not len(run.reconfigurations)
    assert tb.read(log).column("kind").tolist() == ["malleable", "rigid", "rigid"]  # the batch, not the run


@pytest.mark.parametrize("released", ["", "java.net.ConnectException:Connectionrefused"])
def test_a_shrink_that_released_no_host_leaves_the_job_its_hosts(log: Path, released: str) -> None:
    log.write_text(
        LOG.replace("released; [host02]", f"released; [{released}]").replace(
            "job_3; started; [host02]", "job_3; started; [host04]"
        )
    )
    run = tb.import_run(log, side="real")
    assert len(run.info.nodes) == 5
    assert any("no hosts of the job" in warning for warning in run.info.warnings) == bool(released)
    assert run.reconfigurations["kind"].tolist() == ["expand"]
    assert run.allocations["end"][run.allocations["job_id"] == "0"].tolist() == [50.0, 50.0]


def test_a_log_that_ends_before_a_job_has_no_end_of_it(log: Path) -> None:
    log.write_text(LOG.split("50000000000;")[0])
    assert str(tb.import_run(log, side="real").jobs["state"][0]) == "unknown"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("job_2; terminated", "job_9; terminated", "starts or ends twice, or changes before its start"),
        ("job_3; started", "job_2; started", "starts or ends twice"),
        ("40000000000;/jobs/job_3", "40000000000;/jobs/job_2", "starts or ends twice"),
        ("started; [host03]", "started; []", "starts without hosts"),
    ],
)
def test_a_damaged_log_is_refused(log: Path, old: str, new: str, message: str) -> None:
    log.write_text(LOG.replace(old, new))
    with pytest.raises(InputError, match=message):
        tb.import_run(log, side="real")


def test_other_lines_are_left_out_with_a_warning(log: Path) -> None:
    log.write_text(LOG + "Exception in thread main\n")
    with pytest.warns(Tolerated, match="no events of the scheduler"):
        assert len(tb.import_run(log, side="real").jobs) == 3


def test_scripts_of_another_batch_are_left_out_or_refused(log: Path) -> None:
    with_scripts(log.parent, links=False)
    (log.parent / "narrow.sh").write_text("#JOB_CLASS rigid\n")
    (log.parent / "job_00" / "malleable.sh").unlink()
    with pytest.raises(InputError, match="not a job script of the scheduler"):
        tb.read(log)
    (log.parent / "job_00" / "fixed.sh").write_text("../one.sh")
    with pytest.raises(InputError, match="job 0 has 3 nodes, and its script 1 to 1"):
        tb.read(log)
    (log.parent / "job_02" / "fixed.sh").unlink()
    with pytest.warns(Tolerated, match="another number of jobs"):
        assert set(tb.read(log).column("kind")) == {"rigid"}


def batch() -> tb.Workload:
    """Return six jobs under which malleable jobs shrink and expand."""
    kinds = [(4, 12, 600.0), (6, 6, 20.0), (2, 8, 200.0), (5, 5, 30.0), (3, 9, 300.0), (4, 4, 20.0)]
    table = {
        "job_id": [str(number) for number in range(len(kinds))],
        "submit_time": 0.0,
        "run_time": [seconds for *_, seconds in kinds],
        "nodes": [low for low, *_ in kinds],
        "kind": ["malleable" if low < high else "rigid" for low, high, _ in kinds],
        "nodes_min": [low for low, *_ in kinds],
        "nodes_max": [high for _, high, _ in kinds],
        "nodes_pref": [low for low, *_ in kinds],
    }
    return tb.Workload(pd.DataFrame(table))


def test_the_log_of_a_run_is_read_as_the_same_run(tmp_path: Path) -> None:
    run = tb.simulate(batch(), "fcfs-malleable", nodes=12, overheads={"release_s": 2.0})
    assert {"shrink", "expand"} == set(run.reconfigurations["kind"])
    (tmp_path / "log.csv").write_text(log_of(run))
    same = tb.import_run(tmp_path / "log.csv", side="real")
    for column in ("start", "end"):
        assert same.jobs[column].tolist() == pytest.approx(run.jobs[column].tolist(), abs=1e-8)
    key = ["job_id", "kind", "nodes_from", "nodes_to"]
    assert sorted(same.reconfigurations[key].values.tolist()) == sorted(run.reconfigurations[key].values.tolist())
    assert same.metrics()["utilization"] == pytest.approx(run.metrics()["utilization"])


def test_one_command_judges_a_log_by_the_log_of_a_prediction(tmp_path: Path) -> None:
    """The files may name the jobs as they like: the order of the starts counts."""
    slow = batch()
    slow = tb.Workload(slow.table.assign(run_time=slow.floats("run_time") * 1.01), slow.provenance)
    ends = []
    for name, workload, folder in (("real", slow, "/a/job_{}"), ("predicted", batch(), "/b/{:x}")):
        run = tb.simulate(workload, "fcfs-malleable", nodes=12)
        (tmp_path / f"{name}.csv").write_text(log_of(run, folder))
        ends.append(makespan(run))
    printed = call("compare", "--real", tmp_path / "real.csv", "--predicted", tmp_path / "predicted.csv").stdout
    assert "inconclusive: one real run" in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("makespan")]
    assert float(line.split("%")[0].split()[-1]) == pytest.approx((ends[1] / ends[0] - 1) * 100, rel=0.01)


# -- the rigid run, and the prediction of the malleable one


@pytest.fixture
def evaluation(reference_data: Callable[[str], Path]) -> Path:
    folder = reference_data("logs").parents[1] / "peers" / "amte" / "workloads" / "AMTE-evaluation"
    if not folder.is_dir():
        pytest.skip(f"no batch of the AMTE scheduler in {folder}")
    return folder


def test_the_rigid_run_is_predicted_within_a_thousandth_and_each_start_within_half_a_second(evaluation: Path) -> None:
    real = tb.import_run(evaluation / "fixedSchedule.csv", side="real")
    predicted = tb.simulate(workload_of(real), "fcfs-malleable", nodes=12)
    assert makespan(predicted) == pytest.approx(makespan(real), rel=2e-4)  # -0.0131 %
    apart = (predicted.jobs["start"] - real.jobs["start"]).abs()
    assert len(apart) == 30
    assert apart.max() < 0.29  # the first start, with the classes of Java to load
    assert apart[1:].max() < 0.2


@pytest.mark.slow
def test_the_stored_prediction_follows_from_the_rigid_run_and_the_scripts(evaluation: Path) -> None:
    _, part = programs(evaluation / "fixedSchedule.csv")
    assert [(part == size).sum() for size in (1.0, SMALLER)] == [12, 2]
    run, facts = prediction(evaluation / "fixedSchedule.csv")
    assert log_of(run) == (STORED / "prediction.csv").read_text()
    assert facts | {"made": "then"} == json.loads((STORED / "prediction.json").read_text()) | {"made": "then"}


def test_the_judgement_of_the_stored_prediction_by_itself_is_perfect() -> None:
    lines = judged(STORED / "prediction.csv", STORED)
    assert "(+0.00 %), within" in lines[0]
    assert all("only predicted -, only real -" in line for line in lines[1:])


def test_the_blind_prediction_is_as_near_to_the_malleable_run_as_was_judged(
    reference_data: Callable[[str], Path],
) -> None:
    """The figures of 2026-11-28, on the page of the prediction."""
    log = reference_data("FIFO-Malleable-Job-Scheduler") / "workloads" / "AMTE-evaluation" / "malleableSchedule.csv"
    assert judged(log, STORED) == [
        "makespan 1092.3 s, predicted 1086.9 s (-0.49 %), within 1057.6 to 1123.3 s",
        "jobs that shrink: in both 4 8 10 22, only predicted -, only real 13 16",
        "jobs that expand: in both 23 29, only predicted -, only real -",
    ]
    real, predicted = (tb.import_run(path, side="real").jobs for path in (log, STORED / "prediction.csv"))
    assert (predicted["start"] - real["start"]).abs().mean() == pytest.approx(12.1, abs=0.05)
    intervals = json.loads((STORED / "prediction.json").read_text())["starts_s"]
    late_s = 0.3  # the log has a start after the pass: `test_the_rigid_run_is_predicted...`
    starts = real.set_index("job_id")["start"]
    outside = [job for job, (low, _, high) in intervals.items() if not low <= starts[job] <= high + late_s]
    assert (len(intervals), outside) == (30, ["5"])


# -- why jobs 13 and 16 were not shrunk in the prediction

REAL = ["10 10>6", "13 6>4", "16 6>4", "22 10>6", "23 2>4", "29 8>10", "4 6>2", "8 10>6"]
"""The resizes of the malleable run (malleableSchedule.csv of the authors' repository at 3813737)."""
REAL_S = 1092.282
"""Its makespan."""


def test_the_time_of_the_first_shrink_decides_and_a_shrink_after_the_startup_has_the_resizes_of_the_real_run(
    evaluation: Path,
) -> None:
    runs = explained(evaluation / "fixedSchedule.csv")
    blind = runs.pop("5 s, as predicted blindly")
    assert {"13 6>4", "16 6>4"}.isdisjoint(resizes(blind))
    errors = {}
    for name, run in runs.items():
        assert sorted(resizes(run)) == REAL, name
        errors[name] = makespan(run) / REAL_S - 1
    assert makespan(blind) / REAL_S - 1 == pytest.approx(-0.0222, abs=5e-5)
    assert errors["each as measured"] == pytest.approx(0.0016, abs=1e-4)
    assert errors["5 s, after the startup"] == pytest.approx(0.0042, abs=1e-4)


@pytest.mark.parametrize(
    ("release_s", "error", "count"), [(0.0, -0.0135, 7), (5.0, -0.0002, 8), (6.0, -0.0158, 6), (8.0, -0.0213, 8)]
)
def test_no_default_time_of_a_shrink_is_right(evaluation: Path, release_s: float, error: float, count: int) -> None:
    """The plain command line: run times scale as a whole, so the time of a shrink and the error are not related."""
    workload = tb.read(evaluation / "fixedSchedule.csv")
    run = tb.simulate(workload, "fcfs-malleable", nodes=12, overheads={"release_s": release_s})
    assert makespan(run) / REAL_S - 1 == pytest.approx(error, abs=1e-4)
    assert len(resizes(run)) == count


def test_shrinks_are_measured_from_the_pass_in_which_they_are_ordered(evaluation: Path, tmp_path: Path) -> None:
    """In the log of a simulation, each shrink takes the time that was given for it."""
    for folder in evaluation.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    run = explained(evaluation / "fixedSchedule.csv")["each as measured"]
    (tmp_path / "malleableSchedule.csv").write_text(log_of(run))
    rows = measured(tmp_path / "malleableSchedule.csv", latency_s=0.0)
    assert {job: seconds for job, _, _, seconds, _ in rows} == pytest.approx(SHRINKS_S)
    assert [(job, nodes) for job, nodes, *_ in rows] == [("4", 4), ("8", 4), ("10", 4), ("13", 2), ("16", 2), ("22", 4)]
