"""Output of Batsim, AccaSim and CQSim as runs, and AccaSim driven."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracebed.api as tb
from tests.commands import call
from tests.simulators.test_import import times, workload
from tests.testbeds.test_calibrate import calibration
from tracebed.converters.workload import System
from tracebed.drivers import accasim
from tracebed.ground.errors import InputError
from tracebed.machine.nodes import nodes_of
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.validation.metrics import metrics
from tracebed.validation.simulators import table
from tracebed.validation.simulators.reading import form_of
from tracebed.validation.simulators.simulator import SIMULATORS, ExternalSimulator, SimulateOptions, simulate

JOBS = [("1", 0.0, 0.0, 60.5, 2), ("2", 5.0, 60.5, 90.25, 1), ("3", 7.25, 60.5, 100.0, 1)]
HELD = ["0-1", "1", "0"]
OLD = (
    "job_id,hacky_job_id,workload_name,submission_time,requested_number_of_resources,requested_time,success,"
    "starting_time,execution_time,finish_time,waiting_time,turnaround_time,stretch,consumed_energy,allocated_resources"
)
FOUR = (
    "job_id,workload_name,submission_time,requested_number_of_resources,requested_time,success,final_state,"
    "starting_time,execution_time,finish_time,waiting_time,turnaround_time,stretch,allocated_resources,"
    "consumed_energy,metadata"
)
FIVE = FOUR.replace("workload_name,", "workload_name,profile,")


def batsim(folder: Path, header: str, *, machines: int = 2, extra: Sequence[str] = ()) -> Path:
    """Write the output of Batsim, of the version that has the header."""
    rows = []
    for (name, submit, start, end, nodes), held in zip(JOBS, HELD, strict=True):
        values = {
            "job_id": f"w0!{name}" if header == FIVE else name,
            "hacky_job_id": "0",
            "workload_name": "w0",
            "profile": "delay",
            "submission_time": submit,
            "requested_number_of_resources": nodes,
            "requested_time": 100,
            "success": 1,
            "final_state": "COMPLETED_SUCCESSFULLY",
            "starting_time": start,
            "execution_time": end - start,
            "finish_time": end,
            "waiting_time": start - submit,
            "turnaround_time": end - submit,
            "stretch": 1,
            "consumed_energy": 0,
            "allocated_resources": held,
            "metadata": '""',
        }
        rows.append(",".join(str(values[name]) for name in header.split(",")))
    folder.mkdir(exist_ok=True)
    (folder / "out_jobs.csv").write_text("\n".join([header, *rows, *extra]) + "\n")
    states = ["time,nb_sleeping,nb_switching_on,nb_switching_off,nb_idle,nb_computing"]
    states += [f"{at},0,0,0,{machines - busy},{busy}" for at, busy in ((0, 2), (60.5, 2), (90.25, 1), (100, 0))]
    (folder / "out_machine_states.csv").write_text("\n".join(states) + "\n")
    mean = np.mean([job[2] - job[1] for job in JOBS])
    if header == FIVE:
        (folder / "out_schedule.json").write_text(json.dumps({"mean_waiting_time": mean, "batsim_version": "5.0.0"}))
    else:
        (folder / "out_schedule.csv").write_text(f"makespan,mean_waiting_time\n100,{mean}\n")
    return folder / "out_jobs.csv"


# -- Batsim


@pytest.mark.parametrize(("header", "version"), [(OLD, "before 1.2"), (FOUR, "4"), (FIVE, "5.0.0")])
def test_all_versions_of_batsim_are_read_by_their_header(tmp_path: Path, header: str, version: str) -> None:
    jobs = batsim(tmp_path / "out", header)
    for path in (jobs, tmp_path / "out"):
        assert form_of(path) == "batsim"
        run = tb.import_run(path, side="predicted", workload=workload(JOBS, nodes=None))
        assert times(run) == [job[:4] for job in JOBS]
        assert run.info.source == "batsim"
        assert run.info.versions["batsim"] == version
        assert run.total_nodes == 2
        assert run.info.imported["nodes_of_jobs"] == "recorded"
        assert run.allocations[["job_id", "node", "count"]].to_numpy().tolist() == [
            ["1", 0, 2],
            ["2", 1, 1],
            ["3", 0, 1],
        ]
        assert run.info.warnings == []


ENERGY = ["0,0,s,NA", "50,10000,s,200", "50,10000,e,NA", "100,14000,e,80", "110,14500,p,50"]
CHANGES = ["0,0-1,0", "60.5,0,2", "91,1,-2", "93,1,13", "97,0-1,-2", "98,1,-1", "99.5,0,13", "104,1,0"]


def test_energy_and_power_states_of_batsim_are_recorded(tmp_path: Path) -> None:
    """Node 1 is switched off while it is off already, and node 0 changes its frequency: neither is a new state."""
    jobs = batsim(tmp_path / "out", OLD)
    (tmp_path / "out/out_consumed_energy.csv").write_text("\n".join(["time,energy,event_type,epower", *ENERGY]) + "\n")
    (tmp_path / "out/out_pstate_changes.csv").write_text("\n".join(["time,machine_id,new_pstate", *CHANGES]) + "\n")
    schedule = tmp_path / "out/out_schedule.csv"
    schedule.write_text(schedule.read_text().replace("\n100,", ",consumed_joules\n100,").rstrip() + ",14010.5\n")
    run = tb.import_run(jobs, side="real")
    states = run.nodes[run.nodes["power_state"] != ""]
    assert states[["time", "node", "power_state"]].to_numpy().tolist() == [
        [91, 1, "shutdown"],
        [93, 1, "off"],
        [97, 0, "shutdown"],
        [97, 1, "shutdown"],
        [98, 1, "boot"],
        [99.5, 0, "off"],
        [104, 1, "on"],
    ]
    assert run.info.warnings == ["2 nodes are switched off at times, with 1 boots: jobs may wait for them"]
    found = run.metrics(window="full")
    assert found["energy_j"] == 14_000
    assert found["energy_full_j"] == 14_010.5
    assert run.metrics(window=(40, 60))["energy_j"] == pytest.approx(10 * 200 + 10 * 80)
    assert "which no model replaces" in found["undefined"]["modelled_energy_j"]
    assert found["off_share"] == pytest.approx((4 + 0.5) / 200)
    run.save(tmp_path / "run")
    assert tb.Run.load(tmp_path / "run").metrics(window="full")["energy_j"] == 14_000


def test_states_without_energy_are_no_modelled_energy(tmp_path: Path) -> None:
    jobs = batsim(tmp_path / "out", OLD)
    (tmp_path / "out/out_pstate_changes.csv").write_text("\n".join(["time,machine_id,new_pstate", *CHANGES]) + "\n")
    found = tb.import_run(jobs, side="real").metrics()
    assert "does not say the power" in found["undefined"]["modelled_energy_j"]
    assert math.isnan(found["energy_j"])
    (tmp_path / "out/out_pstate_changes.csv").unlink()
    states = tmp_path / "out/out_machine_states.csv"
    states.write_text(states.read_text().replace("90.25,0,0,0,1,1", "90.25,1,0,0,0,1"))
    assert "it is unknown which" in tb.import_run(jobs, side="real").info.warnings[0]


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        ("pstate_changes", ["time,machine_id,new_pstate", "0,3-1,-2"], "machine_id is '3-1', not a set of machines"),
        ("pstate_changes", ["time,machine_id,new_pstate", "0,x,-2"], "machine_id is 'x'"),
        ("pstate_changes", ["time,machine_id,new_pstate", "0,0,"], "new_pstate is missing"),
        ("pstate_changes", ["time,machine_id,new_pstate", "0,0-5,-2"], "has node number 5, but there are 2 nodes"),
        ("consumed_energy", ["time,energy", "5,1", "4,2"], "the times of its rows do not ascend"),
        ("consumed_energy", ["time,energy", "5,2", "6,1"], "the energy of its rows does not ascend"),
        ("consumed_energy", ["time,joules", "5,2"], "energy is missing"),
    ],
)
def test_damaged_files_of_energy_are_named(tmp_path: Path, kind: str, rows: list[str], message: str) -> None:
    jobs = batsim(tmp_path / "out", OLD)
    (tmp_path / f"out/out_{kind}.csv").write_text("\n".join(rows) + "\n")
    with pytest.raises(InputError, match=message):
        tb.import_run(jobs, side="real")


def test_a_job_that_batsim_rejected_has_not_ended(tmp_path: Path) -> None:
    row = "4,w0,8,9,100,0,REJECTED,-1,-1,-1,-1,-1,-1,,0,"
    jobs = batsim(tmp_path / "out", FOUR, extra=[row])
    run = tb.import_run(jobs, side="predicted", workload=workload([*JOBS, ("4", 8.0, 0.0, 1.0, 9)], nodes=2))
    assert run.jobs["state"].tolist() == ["completed"] * 3 + ["rejected"]
    assert np.isnan(run.jobs["start"].iloc[3])


def test_figures_of_batsim_that_contradict_each_other_are_a_warning(tmp_path: Path) -> None:
    jobs = batsim(tmp_path / "out", FOUR)
    states = tmp_path / "out" / "out_machine_states.csv"
    states.write_text(states.read_text().replace("90.25,0,0,0,1,1", "90.25,0,0,0,0,2"))
    (tmp_path / "out" / "out_schedule.csv").write_text("mean_waiting_time\n17\n")
    run = tb.import_run(jobs, side="predicted", workload=workload(JOBS, nodes=2))
    assert len(run.info.warnings) == 2
    assert "mean waiting time of 17 s" in run.info.warnings[0]
    assert "node-seconds" in run.info.warnings[1]


@pytest.mark.parametrize("content", ["1e308,1e308", "inf,0", "nan,0", "9" * 400 + ",0", "1,1\r", "x" * 200_000])
def test_no_file_beside_the_jobs_of_batsim_is_an_internal_error(tmp_path: Path, content: str) -> None:
    jobs = batsim(tmp_path / "out", FOUR)
    header = "time,nb_sleeping,nb_switching_on,nb_switching_off,nb_idle,nb_computing"
    (tmp_path / "out" / "out_machine_states.csv").write_text(f"{header}\n0,0,0,0,{content}\n", newline="")
    refused = call("import", jobs, "--as", "real", "-o", tmp_path / "run").exception
    assert refused is None or isinstance(refused, InputError), refused
    assert (refused is None) == (content == "1,1\r")


@pytest.mark.parametrize(
    ("header", "name", "content"),
    [
        (FOUR, "out_schedule.csv", "makespan,mean_waiting_time\n100\n"),
        (FOUR, "out_schedule.csv", "mean_waiting_time\nlong\n"),
        (FIVE, "out_schedule.json", '{"mean_waiting_time": null}'),
    ],
)
def test_a_damaged_schedule_of_batsim_is_an_error_with_its_file(
    tmp_path: Path, header: str, name: str, content: str
) -> None:
    jobs = batsim(tmp_path / "out", header)
    (tmp_path / "out" / name).write_text(content)
    with pytest.raises(InputError, match=f"{name}: mean_waiting_time is missing or not a finite number"):
        tb.import_run(jobs, side="predicted", workload=workload(JOBS, nodes=2))


def nodes_of_jobs(run: Run) -> dict[str, set[int]]:
    """Return job -> the numbers of its nodes."""
    nodes: dict[str, set[int]] = {}
    for row in run.allocations.to_dict("records"):
        nodes.setdefault(row["job_id"], set()).update(range(row["node"], row["node"] + row["count"]))
    return nodes


def test_easy_of_batsim_against_easy_of_tracebed(reference_data: Callable[[str], Path], tmp_path: Path) -> None:
    """Mean wait 9.516 and 8.673 s, 73 of 801 starts at another second; with named nodes, no start differs."""
    peers = reference_data("logs").parents[1] / "peers" / "batsim"
    if not peers.is_dir():
        pytest.skip(f"no output of Batsim in {peers}")
    jobs = tb.read(peers / "medium_late.json.gz")
    theirs = tb.import_run(peers / "easy_out_jobs.csv.gz", side="real", workload=jobs, policy="easy")
    assert (theirs.total_nodes, theirs.info.versions["batsim"], theirs.info.warnings) == (32, "before 1.2", [])
    ours = tb.simulate(jobs, "easy", 32)
    found = [metrics(run)["mean_wait_s"] for run in (theirs, ours)]
    assert found == pytest.approx([9.516326, 8.673], abs=5e-4)
    starts = [run.jobs.set_index("job_id")["start"] for run in (theirs, ours)]
    assert int(((starts[0] - starts[1]).abs() > 1.0).sum()) == 73
    named = tb.simulate(jobs, "easy", 32, policy_parameters={"reserve": "nodes"})
    assert metrics(named)["mean_wait_s"] == pytest.approx(9.516326, abs=1e-6)
    assert int(((starts[0] - named.jobs.set_index("job_id")["start"]).abs() > 1e-5).sum()) == 0
    assert nodes_of_jobs(named) == nodes_of_jobs(theirs)
    assert metrics(theirs)["utilization"] == pytest.approx(metrics(ours)["utilization"], abs=1e-3)
    for name, run in (("real", theirs), ("sim", ours)):
        run.save(tmp_path / name)
    result = call("compare", "--real", tmp_path / "real", "--predicted", tmp_path / "sim", "--json")
    assert "verdict" in json.loads(result.stdout)


# -- AccaSim

PLAN = """3;1;2024-01-01 00:00:07__3;1#__2024-01-01 00:00:07;2024-01-01 00:00:47;1;1;NA;40;
1;1;2024-01-01 00:00:00__1;1#2;1#__2024-01-01 00:00:00;2024-01-01 00:01:00;2;2;NA;60;
2;1;2024-01-01 00:00:05__1;1#2;1#3;1#__2024-01-01 00:01:00;2024-01-01 00:01:30;3;3;NA;60;
"""


def test_a_dispatching_plan_of_accasim_is_a_run(tmp_path: Path) -> None:
    (tmp_path / "sched-w.swf").write_text(PLAN)
    jobs = [("1", 0.0, 0.0, 60.0, 2), ("2", 5.0, 60.0, 90.0, 3), ("3", 7.0, 7.0, 47.0, 1)]
    for path in (tmp_path, tmp_path / "sched-w.swf"):
        assert form_of(path) == "accasim"
        run = tb.import_run(path, side="predicted", workload=workload(jobs, nodes=4))
        assert times(run) == [job[:4] for job in jobs]
        assert (run.info.source, run.info.resolution_s) == ("accasim", 1.0)
    (tmp_path / "sched-w.swf").write_text(PLAN + "4;1;yesterday__1;1#__a;b;1;1;NA;40;\n")
    with pytest.raises(InputError, match=r"sched-w\.swf:4: 'yesterday' is not a date"):
        tb.import_run(tmp_path, side="predicted", workload=workload(jobs, nodes=4))
    (tmp_path / "sched-w.swf").write_text(PLAN + "what is this\n")
    with pytest.raises(InputError, match=r"sched-w\.swf:4: is not a line of a dispatching plan"):
        tb.import_run(tmp_path, side="predicted", workload=workload(jobs, nodes=4), form="accasim")


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let a script of our own be the process of AccaSim."""
    (tmp_path / "fake_accasim.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(accasim, "PROGRAM", "fake_accasim")
    monkeypatch.setattr(accasim, "find_spec", lambda _: True)


FCFS = """
import datetime, os
now = datetime.datetime.fromtimestamp
free = [0] * 2
lines, last = [], 0
for line in open("workload.swf"):
    number, submit, _, run, nodes, *_, = [int(word) for word in line.split()[:5]]
    if nodes > len(free):
        continue
    free.sort()
    last = start = max(submit, free[nodes - 1], last)
    free[:nodes] = [start + run] * nodes
    times = [now(each) for each in (submit, start, start + run)]
    lines.append("{};1;{}__1;1#__{};{};{};{};NA;60;".format(number, *times, nodes, nodes))
os.mkdir("output")
open("output/sched-workload.swf", "w").write("\\n".join(lines) + "\\n")
"""
MACHINE = nodes_of(System(2, 1))


def test_a_driven_accasim_gives_a_run_with_the_original_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, FCFS)
    jobs = [("x", 10.0, 0.0, 60.0, 2), ("y", 15.4, 0.0, 29.6, 1), ("big", 16.0, 0.0, 9.0, 3)]
    with pytest.warns(match="rounded to whole seconds"):
        run = simulate("accasim", workload(jobs), MACHINE, "fcfs", SimulateOptions(name="w"))
    assert run.jobs["job_id"].tolist() == ["x", "y", "big"]
    assert run.jobs["start"].tolist()[:2] == [10.0, 70.0]
    assert run.jobs["end"].tolist()[:2] == [70.0, 100.0]
    assert run.jobs["state"].tolist() == ["completed", "completed", "rejected"]
    assert (run.info.source, run.info.policy, run.info.imported) == ("accasim", "fcfs", {})
    run.save(tmp_path / "run")
    assert Run.load(tmp_path / "run").info.counts["rejected"] == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import time\ntime.sleep(60)", "AccaSim did not end within 0.5 s"),
        ("raise SystemExit('no memory left')", "AccaSim ended with status 1: no memory left"),
        ("pass", "AccaSim ended 0 of the 3 jobs that fit on the machine"),
    ],
)
def test_a_failure_of_accasim_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_process_is_left: None, body: str, message: str
) -> None:
    fake(tmp_path, monkeypatch, body)
    options = SimulateOptions(timeout_s=0.5 if "sleep" in body else 60.0, keep=tmp_path / "kept")
    with pytest.raises(InputError, match=message):
        simulate("accasim", workload(JOBS), MACHINE, "fcfs", options)
    assert (tmp_path / "kept" / "workload.swf").read_text().count("\n") == 3


def test_accasim_refuses_what_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="AccaSim has no policy 'pref'"):
        simulate("accasim", workload(JOBS), MACHINE, "pref", SimulateOptions())
    monkeypatch.setattr(accasim, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"AccaSim is not installed \(pip install accasim==1.1.3\)"):
        simulate("accasim", workload(JOBS), MACHINE, "fcfs", SimulateOptions())


def test_accasim_takes_the_defaults_of_a_policy_and_refuses_other_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setup of an experiment has all parameters of its policy."""
    fake(tmp_path, monkeypatch, "raise SystemExit('called')")
    every = registry.parameters(registry.resolve("easy", {})[1])
    assert every
    with pytest.raises(InputError, match="ended with status 1: called"):
        simulate("accasim", workload(JOBS), MACHINE, Setup.of("easy", policy_parameters=every))
    with pytest.raises(InputError, match="policies of AccaSim have no parameter reserve"):
        simulate("accasim", workload(JOBS), MACHINE, Setup.of("easy", policy_parameters={"reserve": "nodes"}))


@pytest.mark.skipif(find_spec("accasim") is None, reason="AccaSim is not installed (pip install 'tracebed[accasim]')")
def test_fcfs_of_accasim_is_fcfs(tmp_path: Path) -> None:
    drawn = tb.generate("cirne", jobs=60, nodes=16, seed=3)
    table = drawn.table.assign(run_time=np.maximum(drawn.table["run_time"].round(), 1.0))
    jobs = tb.Workload(table.assign(submit_time=table["submit_time"].round()), drawn.provenance)
    theirs = simulate("accasim", jobs, nodes_of(jobs.provenance.system), "fcfs", SimulateOptions())
    np.testing.assert_array_equal(theirs.jobs["start"], tb.simulate(jobs, "fcfs").jobs["start"])


def test_a_calibration_has_its_overheads_with_every_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were zero, although the run named the calibration."""
    seen: list[Setup] = []

    def recorded(workload: Any, nodes: Any, setup: Setup, options: SimulateOptions) -> Run:
        seen.append(setup)
        return tb.simulate(workload, setup, len(nodes))

    stub = ExternalSimulator(
        name="accasim", title="a stub", simulate=recorded, supports=frozenset({"overheads", "calibration"})
    )
    monkeypatch.setattr(accasim, "SIMULATOR", stub)
    measured = calibration()
    tb.simulate(workload(JOBS), "easy", simulator="accasim", calibration=measured, speed=100.0)
    assert seen[0].timing.overheads == Overheads(**measured.constants)
    assert seen[0].timing.overheads.launch_s > 0


# -- CQSim, and all of them


def test_output_of_cqsim_is_a_run(tmp_path: Path) -> None:
    rows = [f"{n};{x};{x};100;{e - s};{s - a};{a};{s};{e}" for n, a, s, e, x in JOBS]
    path = tmp_path / "out.rst"
    path.write_text("\n".join(rows) + "\n")
    assert form_of(path) == "cqsim"
    assert times(tb.import_run(path, side="predicted", workload=workload(JOBS))) == [job[:4] for job in JOBS]
    path.write_text("\n".join([*rows, "1;2"]) + "\n")
    with pytest.raises(InputError, match=r"out\.rst:4: does not have 9 numbers"):
        tb.import_run(path, side="predicted", workload=workload(JOBS), form="cqsim")


def test_the_forms_of_other_files_are_recognized(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id;start;end\n1;2;3\n")
    assert form_of(tmp_path / "t.csv") == "csv"
    tb.write(tb.generate("cirne", jobs=5, nodes=8, seed=1), tmp_path / "w.swf")
    assert form_of(tmp_path / "w.swf") == "swf"
    (tmp_path / "es").mkdir()
    header = "ID,Type,Submit Time,Start Time,End Time,Wait Time,Makespan,Turnaround Time,Status"
    (tmp_path / "es" / "job_statistics.csv").write_text(f"{header}\n0,rigid,0,0,5,0,5,5,completed\n")
    assert form_of(tmp_path / "es") == form_of(tmp_path / "es" / "job_statistics.csv") == "elastisim"
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="the form of the folder is not recognized"):
        form_of(tmp_path / "folder")


def test_every_simulator_has_a_name_a_title_and_a_use() -> None:
    for name in SIMULATORS.names():
        found = SIMULATORS.load(name)
        assert (found.name, bool(found.title)) == (name, True)
        assert found.read or found.simulate


@pytest.mark.parametrize("text", ["9" * 5000 + ":00:00", "1-" + "9" * 5000 + ":00", "0:" + "9" * 5000])
def test_no_duration_of_thousands_of_digits_ends_the_import(text: str) -> None:
    assert math.isnan(table._clock(text))


# -- OAR


GANTT = {
    "resources": [
        *({"resource_id": str(number), "network_address": f"node-{number}", "state": "Alive"} for number in (3, 1, 2)),
    ],
    "jobs": {
        "17": {
            **{"submission_time": 1455753977, "start_time": 1455753978, "stop_time": 1455753988, "walltime": 100},
            **{"state": "Terminated", "user": "ada", "resources": [3, 1]},
        },
        "18": {
            **{"submission_time": 1455753980, "start_time": 1455753990, "stop_time": 1455754090, "walltime": 100},
            **{"state": "Error", "user": "bob", "resources": [2]},
        },
        "19": {
            **{"submission_time": 1455753985, "start_time": 1455754000, "stop_time": 1455754100, "walltime": 100},
            **{"state": "Waiting", "user": "bob", "resources": [2]},
        },
    },
    "dead_resources": {},
}
"""Output of `oarstat --gantt ... --json`: job 19 has not started, its times are planned."""


def gantt(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(GANTT | changes))
    return path


def test_the_gantt_of_oar_is_a_run_with_the_nodes_of_each_job(tmp_path: Path) -> None:
    path = gantt(tmp_path / "oar.json")
    assert form_of(path) == "oar-gantt"
    run = tb.import_run(path, side="real")
    assert [node.name for node in run.info.nodes] == ["node-1", "node-2", "node-3"]
    assert times(run)[:2] == [("17", 0.0, 1.0, 11.0), ("18", 3.0, 13.0, 113.0)]
    assert run.jobs["state"].tolist() == ["completed", "failed", "interrupted"]
    assert np.isnan(run.jobs["start"][2])
    assert run.jobs["time_limit"].tolist() == [100.0] * 3
    assert run.allocations[["job_id", "node", "count"]].to_numpy().tolist() == [
        ["17", 0, 1],
        ["17", 2, 1],
        ["18", 1, 1],
    ]
    assert run.info.resolution_s == 1.0
    assert run.info.unknown == {}


def test_resources_of_oar_on_one_host_are_the_cores_of_a_node(tmp_path: Path) -> None:
    """Two jobs on one host share the node, which is said."""
    resources = [{"resource_id": str(number), "host": f"host-{(number - 1) // 4}"} for number in range(1, 9)]
    first = GANTT["jobs"]["17"] | {"resources": [1, 2]}  # type: ignore[index]
    second = first | {"resources": [3, 5, 6, 7, 8]}
    run = tb.import_run(gantt(tmp_path / "oar.json", resources=resources, jobs={"1": first, "2": second}), side="real")
    assert [(node.name, node.cores) for node in run.info.nodes] == [("host-0", 4), ("host-1", 4)]
    assert run.jobs["nodes"].tolist() == [1, 2]
    assert run.allocations[["job_id", "node", "cores"]].to_numpy().tolist() == [["1", 0, 2], ["2", 0, 1], ["2", 1, 4]]
    assert "1 of 2 nodes are held by several jobs at once, and count whole for each job" in run.info.warnings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobs": []}, "has no jobs of OAR"),
        ({"jobs": {}}, "contains no jobs"),
        ({"jobs": {"1": {"submission_time": "soon"}}}, "job 1: submission_time is not a number"),
        ({"jobs": {"1": {"submission_time": 1, "resources": 7}}}, "job 1: resources is not a list"),
        ({"resources": [{"host": "a"}]}, "has a resource without a number"),
    ],
)
def test_a_damaged_gantt_of_oar_is_an_error_with_its_place(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        tb.import_run(gantt(tmp_path / "oar.json", **changes), side="real", form="oar-gantt")


# -- tables of 2016


def test_the_columns_of_the_oldest_batsim_and_of_converted_logs_of_oar_are_known(tmp_path: Path) -> None:
    """The names of 2016, under which logs of OAR are published, too: numbers of nodes begin at 1."""
    header = "jobID,submission_time,requested_number_of_processors,requested_time,success,starting_time,execution_time,"
    header += "finish_time,waiting_time,turnaround_time,stretch,consumed_energy,allocated_processors"
    rows = ["0,5.0,2,100,1,5.0,10.0,15.0,0.0,10.0,1.0,-1,3 1", "1,6.0,1,100,1,7.0,10.0,17.0,1.0,11.0,1.1,-1,2"]
    path = tmp_path / "real_jobs.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    assert form_of(path) == "batsim"
    for form in ("batsim", "csv"):
        run = tb.import_run(path, side="real", nodes=3, form=form)
        assert times(run) == [("0", 0.0, 0.0, 10.0), ("1", 1.0, 2.0, 12.0)]
        assert run.jobs["nodes"].tolist() == [2, 1]
        assert run.jobs["state"].tolist() == ["completed"] * 2
        assert sorted(run.allocations["node"]) == [0, 1, 2]
        assert run.info.imported["nodes_of_jobs"] == "recorded"
    message = r"job '0' holds node number 3, but there are 2 nodes, numbered from 1 .*--nodes"
    with pytest.raises(InputError, match=message):
        tb.import_run(path, side="real", nodes=2)


def test_a_log_in_the_form_of_elastisim_has_sizes_and_is_a_table(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    header = "ID,Type,Submit Time,Start Time,End Time,Wait Time,Makespan,Turnaround Time,Status"
    path.write_text(f"{header},Nodes\n0,Rigid,0,0,5,0,5,5,completed,2\n")
    assert form_of(path) == "csv"
    run = tb.import_run(path, side="real", nodes=2)
    assert (run.jobs["nodes"][0], run.jobs["kind"][0], run.jobs["state"][0]) == (2, "rigid", "completed")
    path.write_text(f"{header}\n0,Rigid,0,0,5,0,5,5,Completed\n")
    assert tb.import_run(path, side="predicted", workload=run).jobs["end"].tolist() == [5.0]
