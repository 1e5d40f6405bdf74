"""Recorded runs of others, joined by one file: ids of their own, missing jobs, replays, a slurm.conf, an ensemble."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

import tracebed.api as tb
from tests.commands import call
from tests.suites import suite_of
from tracebed.ground.errors import ExitCode, InputError
from tracebed.orchestrator.run import Run
from tracebed.studies.board.building import build
from tracebed.studies.board.datasets import Dataset, datasets
from tracebed.studies.board.entries import load_entries
from tracebed.validation.experiments import runner

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "validate-your-simulator.md"
JOBS = 200
FIRST_ID = 2  # of the ids of the batch system: most of them are also ids of other jobs in the workload
UNIX = 1462900000
SUITE = """\
workloads: {"w[12]": "plans/{workload}.csv"}
policies: [easy]
recorded:
  runs: "run-*/{workload}.json"
  from: oar-gantt
  match: "{folder}/{workload}-ids.csv"
simulators:
  easy: {}
"""


def plan(number: int) -> list[tuple[int, float, int, int]]:
    """Return job, submit time, nodes and run time of the jobs of a workload; no two runs of jobs overlap."""
    return [(job, 40.0 * job, 1 + (job + number) % 4, 20 + job * number % 7) for job in range(JOBS)]


def write_run(folder: Path, number: int, missing: Iterable[int] = (), *, late: int = 0, nodes: int = 4) -> None:
    """Write a run as OAR prints it, with ids of its own, and the file of both ids, that of the workload first."""
    folder.mkdir(exist_ok=True)
    ids, jobs, oar = ["batsim_id,oar_id"], {}, FIRST_ID
    for job, submit, size, run in plan(number):
        if job in missing:
            ids.append(f"{job},-5")  # an error of the submission
            continue
        start = UNIX + int(submit) + 1 + late
        jobs[str(oar)] = {
            "state": "Terminated",
            "submission_time": UNIX + int(submit),
            "start_time": start,
            "stop_time": start + run + 2,
            "walltime": 60,
            "resources": list(range(1, size + 1)),
        }
        ids.append(f"{job},{oar}")
        oar += 1
    resources = [{"resource_id": str(each), "host": f"n{each}"} for each in range(1, nodes + 1)]
    (folder / f"w{number}.json").write_text(json.dumps({"jobs": jobs, "resources": resources}))
    (folder / f"w{number}-ids.csv").write_text("\r\n".join([*ids, ""]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three runs of two workloads, as a stranger has them."""
    (tmp_path / "plans").mkdir()
    for number in (1, 2):
        rows = [f"{job},{submit},{size},{run},60" for job, submit, size, run in plan(number)]
        text = "\n".join(["job_id,submit_time,nodes,run_time,time_limit", *rows])
        (tmp_path / "plans" / f"w{number}.csv").write_text(text + "\n")
        for repetition in (1, 2, 3):
            write_run(tmp_path / f"run-{repetition}", number, late=repetition)
    (tmp_path / "s.yaml").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def changed(folder: Path, old: str, new: str) -> Path:
    """Write the suite with a change, and return its path."""
    assert old in SUITE
    (folder / "s.yaml").write_text(SUITE.replace(old, new))
    return folder / "s.yaml"


# -- ids


def test_each_run_has_its_own_file_of_ids(folder: Path) -> None:
    cases = suite_of("s.yaml").cases
    assert [len(case.recorded) for case in cases.values()] == [3, 3]
    for number, case in enumerate(cases.values(), 1):
        assert case.workload is not None
        assert case.workload.ints("nodes").tolist() == [size for _, _, size, _ in plan(number)]
        for run in case.recorded.values():
            assert run.info.imported["matched_by"] == "mapping"
            held = run.allocations.groupby("job_id")["count"].sum()
            assert held.loc[run.jobs["job_id"]].tolist() == run.jobs["nodes"].tolist()


def test_the_columns_of_ids_may_be_in_either_order(folder: Path) -> None:
    before = suite_of("s.yaml").cases["w1-easy"].recorded
    path = folder / "run-2" / "w1-ids.csv"
    lines = [line.split(",") for line in path.read_text().splitlines()]
    path.write_text("\n".join(f"{second} {first}" for first, second in lines))
    after = suite_of("s.yaml").cases["w1-easy"].recorded
    assert [run.jobs["start"].tolist() for run in after.values()] == [
        run.jobs["start"].tolist() for run in before.values()
    ]


@pytest.mark.parametrize(
    ("match", "message", "mend"),
    [
        (
            "{folder}/none.csv",
            r"s\.yaml:3: case w1-easy: .*run-1/none\.csv: no path matches",
            "with {folder} and {stem}",
        ),
        (
            "shapes",
            r"s\.yaml:3: .*no path matches, for the jobs of .*run-1/w1\.json",
            "`match` is auto, id, order, shape",
        ),
        ("{folder}/*-ids.csv", r"s\.yaml:3: .*2 files match the jobs of w1\.json", "one file of each run"),
        ("{file}.csv", r"s\.yaml:6: .*unknown placeholder {file}", ""),
        ("plans/w1.csv", r"s\.yaml:3: .*plans/w1\.csv:1: has 5 values, not two", "write the id of the file and the id"),
        ("foreign.csv", r"s\.yaml:3: .*foreign\.csv: no line of the mapping has an id of the file", "are such as '2'"),
    ],
)
def test_a_file_of_ids_that_does_not_fit_is_told(folder: Path, match: str, message: str, mend: str) -> None:
    (folder / "foreign.csv").write_text("a,1000\nb,1001\n")
    with pytest.raises(InputError, match=message) as error:
        suite_of(changed(folder, "{folder}/{workload}-ids.csv", match))
    assert mend in str(error.value)


def test_a_pattern_of_names_gives_each_workload_its_file(folder: Path) -> None:
    text = SUITE.replace('"plans/{workload}.csv"', '{file: "plans/{workload}.csv", calibration: true}')
    (folder / "s.yaml").write_text(text.replace("}}\n", '}, w2: "plans/w2.csv"}\n', 1))
    cases = suite_of("s.yaml").cases
    assert {name: case.calibration for name, case in cases.items()} == {"w1-easy": True, "w2-easy": False}
    with pytest.raises(InputError, match=r"s\.yaml:1: a pattern of names requires {workload} in its `file`") as error:
        suite_of(changed(folder, "plans/{workload}", "plans/w1"))
    assert '{"w[12]": "plans/{workload}.json"}' in str(error.value)
    with pytest.raises(InputError, match=r"s\.yaml:1: no recorded run is of a workload z\*"):
        suite_of(changed(folder, "w[12]", "z*"))


# -- missing jobs


def test_a_run_that_lacks_jobs_is_told_and_the_others_go_on(folder: Path) -> None:
    write_run(folder / "run-2", 1, missing=[7])
    write_run(folder / "run-3", 2, missing=[11, 12, 150])
    result = call("validate", "s.yaml", "-o", "out", "--no-case-pages")
    assert result.return_value == ExitCode.INACCURATE, result.output  # the simulation lacks the delays of the batch
    told = result.output + result.stderr
    assert re.search(r"w1-easy run-2/w1\.json: 1 of 200 jobs are not in the file w1\.json \(7\)", told)
    assert re.search(r"w2-easy: 1 of 3 .*run-3/w2\.json: H2: 3 of 200 jobs are not in the file w2.json \(11, 12", told)
    (document,) = json.loads((folder / "out" / "verdict.json").read_text())["simulators"]
    excluded = [each["excluded"] for case in document["cases"] for each in case["repetitions"]]
    assert [bool(each) for each in excluded] == [False, False, False, False, False, True]


def test_a_run_that_lacks_jobs_is_not_the_workload_of_the_others(folder: Path) -> None:
    text = SUITE.replace('{"w[12]": "plans/{workload}.csv"}', "[w1]").replace("{folder}/{workload}-ids.csv", "shape")
    (folder / "s.yaml").write_text(text)
    write_run(folder / "run-1", 1, missing=[7])
    (case,) = suite_of("s.yaml").cases.values()
    assert case.workload is not None
    assert len(case.workload) == JOBS
    assert [run.info.imported["jobs_without_row"] for run in case.recorded.values()] == [1, 0, 0]
    assert [run.info.imported["rows_without_job"] for run in case.recorded.values()] == [0, 0, 0]


# -- run times


def test_observed_run_times_replace_planned_ones(folder: Path) -> None:
    write_run(folder / "run-1", 1, missing=[7])  # the second run has all jobs
    (folder / "out").mkdir()
    suite = suite_of(changed(folder, "  from:", "  run_times: observed\n  from:"))
    workload = suite.cases["w1-easy"].workload
    assert workload is not None
    assert workload.floats("run_time").tolist() == [run + 2 for *_, run in plan(1)]
    assert workload.floats("submit_time").tolist() == [submit for _, submit, *_ in plan(1)]
    predictions, failed = runner.predict_suite(suite, folder / "out")
    assert failed == {}
    ran = predictions["easy"]["w1-easy"][0].jobs
    assert (ran["end"] - ran["start"]).tolist() == [run + 2 for *_, run in plan(1)]


# -- speed

SPEED = 230
LOG = "job_id,submit,start,end,nodes,time_limit\n"


@pytest.mark.parametrize("origin", [0, UNIX])
def test_the_log_of_a_replay_is_read_at_its_speed(tmp_path: Path, origin: int) -> None:
    log, workload = tmp_path / "log.csv", tmp_path / "w.csv"
    rows = [(job, 10 * job, 10 * job + 1, 10 * job + 9, 1 + job % 2, 20) for job in range(30)]
    shown = [f"{job},{a + origin},{b + origin},{c + origin},{size},{limit}" for job, a, b, c, size, limit in rows]
    log.write_text(LOG + "\n".join(shown) + "\n")
    planned = "\n".join(f"{job},{SPEED * a},{SPEED * 8},{size}" for job, a, _, _, size, _ in rows)
    workload.write_text(f"job_id,submit_time,run_time,nodes\n{planned}\n")
    for of in (workload, None):
        run = tb.import_run(log, side="real", workload=of, nodes=2, speed=SPEED)
        assert run.jobs["start"].tolist() == [SPEED * (b - rows[0][1]) for _, _, b, *_ in rows]
        assert (run.jobs["end"] - run.jobs["start"]).tolist() == [SPEED * 8.0] * 30
        assert run.info.resolution_s == SPEED
        assert run.info.setup.timing.speed == SPEED
        assert run.info.imported["speed"] == SPEED
        if of is None:
            assert run.jobs["time_limit"].tolist() == [SPEED * 20.0] * 30
            assert (run.info.workload["provenance"]["unix_start"] or 0) == origin
    with pytest.raises(InputError, match=r"log\.csv:\d+: job '\d+' was submitted") as error:
        tb.import_run(log, side="real", workload=workload, nodes=2)
    assert "give its --speed (by the spans 230)" in str(error.value)
    arguments = ("import", log, "--as", "real", "--workload", workload, "--speed", SPEED, "-o", tmp_path / "run")
    assert call(*arguments).exit_code == ExitCode.OK
    assert Run.load(tmp_path / "run").jobs["end"].max() == SPEED * rows[-1][3]


def test_a_log_of_a_batch_system_is_its_own_workload_at_its_speed(tmp_path: Path) -> None:
    jobs = tb.scale(tb.generate("cirne", jobs=30, nodes=16, seed=3), nodes=4)
    slow = tmp_path / "log.swf"
    slow.write_text(
        "\n".join(f"{n + 1} {60 * n} {n % 3} 30 1 -1 -1 1 90 -1 1 1 1 -1 1 1 -1 -1" for n in range(len(jobs))) + "\n"
    )
    run = tb.import_run(slow, side="real", nodes=4, speed=10)
    assert run.jobs["submit_planned"].tolist() == [600.0 * n for n in range(30)]
    assert run.jobs["start"].tolist() == [600.0 * n + 10 * (n % 3) for n in range(30)]
    assert set(run.jobs["run_time"]) == {300.0}
    assert set(run.jobs["time_limit"]) == {900.0}


def test_dates_without_submissions_have_no_origin_at_a_speed(tmp_path: Path) -> None:
    log, workload = tmp_path / "log.csv", tmp_path / "w.csv"
    log.write_text("id,start,end\n1,2020-01-01T00:00:00Z,2020-01-01T00:01:00Z\n")
    workload.write_text("job_id,submit_time,run_time,nodes\n1,0,600,1\n")
    with pytest.raises(InputError, match=r"log\.csv: the times are dates.*submit=NAME"):
        tb.import_run(log, side="real", workload=workload, nodes=1, speed=10)
    with pytest.raises(InputError, match="speed"):
        tb.import_run(log, side="real", workload=workload, nodes=1, speed=0)


def test_a_recorded_suite_has_a_speed(folder: Path) -> None:
    rows = [
        f"{job},{submit / 4},{submit / 4 + 1},{(submit + run) / 4 + 1},{size},15" for job, submit, size, run in plan(1)
    ]
    (folder / "w1-log.csv").write_text(LOG + "\n".join(rows) + "\n")
    recorded = '{runs: "{workload}-log.csv", from: csv, nodes: 4, speed: 4}'
    text = f"workloads: {{w1: plans/w1.csv}}\npolicies: [easy]\nrecorded: {recorded}\nsimulators: {{easy: {{}}}}\n"
    (folder / "s.yaml").write_text(text)
    (case,) = suite_of("s.yaml").cases.values()
    (run,) = case.recorded.values()
    assert run.jobs["start"].tolist() == [submit + 4 for _, submit, *_ in plan(1)]
    assert case.setup.timing.speed == 4
    (folder / "s.yaml").write_text(text.replace(", from: csv", "").replace(", nodes: 4", ""))
    with pytest.raises(InputError, match=r"s\.yaml:3: .*`speed` requires `from`"):
        suite_of("s.yaml")


# -- the configuration of a scheduler

CONF = """\
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=7
NodeName=n[1-4] CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES
"""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_simulator_has_the_parameters_of_a_slurm_conf_or_of_its_case(folder: Path) -> None:
    (folder / "slurm.conf").write_text(CONF)
    (folder / "out").mkdir()
    slurm = SUITE.replace("[easy]", "[{label: easy, policy: slurm, conf: slurm.conf}]")
    (folder / "s.yaml").write_text(
        slurm + "  same: {policy: slurm}\n  less: {policy: slurm, policy_parameters: {bf_interval: 9}}\n"
    )
    found, failed = runner.predict_suite(suite_of("s.yaml"), folder / "out")
    assert failed == {}
    parameters = {name: runs["w1-easy"][0].info.policy_parameters["bf_interval"] for name, runs in found.items()}
    assert parameters == {"easy": 7, "same": 7, "less": 9}
    (folder / "s.yaml").write_text(SUITE + "  ours: {policy: slurm, conf: slurm.conf}\n")
    found, failed = runner.predict_suite(suite_of("s.yaml"), folder / "out")
    assert failed == {}
    assert found["ours"]["w1-easy"][0].info.policy_parameters["bf_interval"] == 7
    (folder / "s.yaml").write_text(SUITE + "  ours: {policy: slurm, conf: none.conf}\n")
    with pytest.raises(InputError, match=r"s\.yaml:9: none\.conf: .*cannot read"):
        suite_of("s.yaml")
    (folder / "s.yaml").write_text(SUITE + "  ours: {conf: slurm.conf}\n")
    with pytest.raises(InputError, match=r"s\.yaml:9: .*`conf` requires `policy`"):
        suite_of("s.yaml")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_conf_of_an_entry_is_a_file_of_the_data_set(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "slurm.conf").write_text(CONF)
    (tmp_path / "mine.yaml").write_text("slurm-model:\n  mine: {policy: slurm, conf: slurm.conf}\n")
    _, entries = load_entries([tmp_path / "mine.yaml"])
    (simulator,) = entries.simulators("slurm-model", tmp_path / "set")
    assert simulator.parameters()["bf_interval"] == 7  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"mine\.yaml:2: .*slurm\.conf: cannot read"):
        list(entries.simulators("slurm-model", tmp_path))


# -- the board


def test_a_data_set_with_plans_has_both_tracks_and_a_run_that_lacks_jobs_does_not_block_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = folder / "data"
    data.mkdir()
    for number in (1, 2):
        write_run(folder / "run-1", number, missing=[1, 2, 3] if number == 2 else [4])
        for file, name in (
            (f"w{number}.json", f"w{number}.run.json"),
            (f"w{number}-ids.csv", f"w{number}.run-ids.csv"),
        ):
            (folder / "run-1" / file).rename(data / name)
        (folder / "plans" / f"w{number}.csv").rename(data / f"w{number}.plan.csv")
    suite = SUITE.replace("plans/{workload}.csv", "{workload}.plan.csv").replace("run-*/{workload}", "{workload}.run")
    contents = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in data.iterdir()}
    facts = dict.fromkeys(("title", "institution", "source", "commit", "licence", "citation"), "x")
    text = suite.replace("{folder}/{workload}-ids", "{folder}/{stem}-ids")
    made = Dataset(name="mine", files=contents, suite=text, observed=True, **facts)
    monkeypatch.setitem(datasets(), "mine", made)
    board, missing = build(folder / "board", [data], load_entries([])[:1], ["mine"])
    assert (missing, board.datasets["mine"].failed) == ({}, {})
    scores = {(each.entry, each.track): each for each in board.scores}
    assert (board.datasets["mine"].cases, board.datasets["mine"].unhealthy) == (2, 1)
    assert [scores["easy", track].cases for track in ("planned", "observed")] == [1, 1]
    assert scores["easy", "observed"].errors["makespan_s"] != scores["easy", "planned"].errors["makespan_s"]


# -- an ensemble of assumptions


def test_an_ensemble_draws_its_assumptions(folder: Path) -> None:
    (folder / "out").mkdir()
    constant = "  constant: {overheads: {launch_s: 5}}\n"
    drawn = "  drawn: {overheads: {launch_s: [2, 8], end_s: 1}, seeds: 20}\n"
    noisy = "  noisy: {run_time_sd_s: 2, seeds: 3}\n"
    (folder / "s.yaml").write_text(SUITE + constant + drawn + noisy)
    found, failed = runner.predict_suite(suite_of("s.yaml"), folder / "out")
    assert failed == {}

    def longer(name: str) -> list[float]:
        runs = found[name]["w1-easy"]
        planned = np.array([run for *_, run in plan(1)])
        return [float((run.jobs["end"] - run.jobs["start"] - planned).mean()) for run in runs]

    assert longer("constant") == [pytest.approx(5)]
    assert all(3 <= each <= 9 for each in longer("drawn"))
    assert len({*longer("drawn")}) == 20
    assert np.mean(longer("drawn")) == pytest.approx(6, abs=1.2)  # 4 standard errors of a uniform mean are 1.55
    members = found["noisy"]["w1-easy"]
    deviations = [np.array(run.jobs["end"] - run.jobs["start"]) - [run for *_, run in plan(1)] for run in members]
    assert [float(each.std()) for each in deviations] == [pytest.approx(2, rel=0.25)] * 3
    assert abs(float(np.corrcoef(deviations[0], deviations[1])[0, 1])) < 0.3
    assert len({run.info.workload["sha256"] for run in members}) == 1
    assert [run.info.parameters["member"] for run in members] == [0, 1, 2]
    (folder / "again").mkdir()
    again, _ = runner.predict_suite(suite_of("s.yaml"), folder / "again")
    assert [run.jobs["end"].tolist() for run in again["noisy"]["w1-easy"]] == [
        run.jobs["end"].tolist() for run in members
    ]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("overheads: {launch_s: [2, 8]}", "require `seeds`"),
        ("run_time_sd_s: 1", "require `seeds`"),
        ("overheads: {launch_s: [8, 2]}, seeds: 2", "the range of launch_s is 8 to 2; give the lower end first"),
        ("overheads: {lunch_s: 2}", "lunch_s"),
        ("overheads: {launch_s: [1, 2, 3]}, seeds: 2", "overheads.launch_s"),
        ("overheads: {launch_s: 1}, calibration: c.yaml", "one of `overheads` and `calibration`"),
        ('runs: "x", overheads: {launch_s: 1}', "`overheads` does not apply to a simulator by `runs`"),
    ],
)
def test_assumptions_that_do_not_fit_are_refused(folder: Path, keys: str, message: str) -> None:
    (folder / "s.yaml").write_text(SUITE + f"  mine: {{{keys}}}\n")
    with pytest.raises(InputError, match=message) as error:
        suite_of("s.yaml")
    assert "s.yaml:9:" in str(error.value)


# -- real data


def test_the_runs_of_may_2016_join_by_the_file_of_the_page(
    reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    clone = reference_data("batsim-experiments")
    (text,) = re.findall(r"```yaml\n(workloads: \{\"seed.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for root in ("workload_generation", "replay_workload"):
        text = text.replace(f'"{root}', f'"{clone}/{root}')
    (tmp_path / "may.yaml").write_text(re.sub(r"  mine: .*\n", "", text))
    call("validate", tmp_path / "may.yaml", "-o", tmp_path / "out", "--no-case-pages")
    (document,) = json.loads((tmp_path / "out" / "verdict.json").read_text())["simulators"]
    runs = [each for case in document["cases"] for each in case["repetitions"]]
    assert (len(document["cases"]), len(runs)) == (9, 23)
    assert [each["excluded"].split(",")[0] for each in runs if each["excluded"]] == ["H1: 22 nodes"] * 3
