"""Output of ElastiSim as runs: exact times from six digits, nodes and resizes from the changes of the nodes."""

from __future__ import annotations

import contextlib
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.fuzzing.fuzz import mutated
from tests.oracles import elastisim_programs as programs
from tracebed.cli import tracebed
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.drivers.elastisim import outputs
from tracebed.drivers.elastisim.reader import Stages, read
from tracebed.ground.errors import InputError, TracebedError
from tracebed.machine.nodes import nodes_of
from tracebed.orchestrator.run import Run
from tracebed.validation.simulators.simulator import ReadOptions, SimulateOptions, simulate

# ElastiSim 26c03fb, run by tracebed under `pref`: overheads of 2 s (launch) and 5 s (reconfiguration), a grain of 40 s.
STATISTICS = """ID,Type,Submit Time,Start Time,End Time,Wait Time,Makespan,Turnaround Time,Status
0,malleable,0,0,252,0,252,252,completed
1,rigid,100.25,102,154.125,1.75,52.125,53.875,completed
2,rigid,100.75,252,554,151.25,302,453.25,completed
"""
CHANGES = {
    "0": "node_0,free,none;node_1,free,none;node_2,free,none;node_3,free,none;"
    "node_0,allocated,0;node_1,allocated,0;node_2,allocated,0;node_3,allocated,0",
    "102": "node_2,free,none;node_3,free,none;node_2,allocated,1;node_3,allocated,1",
    "154.125": "node_2,free,none;node_3,free,none",
    "187": "node_2,allocated,0;node_3,allocated,0",
    "252": "node_0,free,none;node_1,free,none;node_2,free,none;node_3,free,none;"
    "node_0,allocated,2;node_1,allocated,2;node_2,allocated,2;node_3,allocated,2",
    "554": "node_0,free,none;node_1,free,none;node_2,free,none;node_3,free,none",
}
UTILIZATION = "Time,Node,State,Running jobs,Expected jobs\n" + "".join(
    f"{time},{change},none\n" for time, changes in CHANGES.items() for change in changes.split(";")
)
TASKS = """Time,Job,Node,Task,Duration
2,0,node_0,launch,2
2,0,node_1,launch,2
102,0,node_0,run,20
104,1,node_2,launch,2
107,0,node_0,reconfiguration,5
107,0,node_1,reconfiguration,5
192,0,node_0,reconfiguration,5
192,0,node_2,reconfiguration,5
254,2,node_0,launch,2
554,2,node_3,run,300
"""
MODEL = {
    "phases": [{"iterations": "iterations", "tasks": [{"type": "busy_wait", "name": "run"}]}],
    "on_init": {"tasks": [{"type": "busy_wait", "name": "launch"}]},
    "on_reconfiguration": {"tasks": [{"type": "busy_wait", "name": "reconfiguration"}]},
}
FILES = {
    "job_statistics.csv": STATISTICS,
    "node_utilization.csv": UTILIZATION,
    "task_times.csv": TASKS,
    "jobs.json": json.dumps({"jobs": [{"application_model": "application.json"}] * 3}),
    "application.json": json.dumps(MODEL),
    "mapping.csv": "id,job_id\n0,a\n1,b\n2,c\n",
}
FIRST = 1_000_000.25
"""Submit time of the first job, s: ElastiSim's time 0."""


def jobs_of(*jobs: dict[str, Any], nodes: int = 4) -> Workload:
    table = pd.DataFrame([{"nodes": 2, "run_time": 100.0, "kind": "rigid", **job} for job in jobs])
    for name in ("nodes_min", "nodes_max", "nodes_pref"):
        table[name] = table["nodes"] if name not in table else table[name].fillna(table["nodes"]).astype(int)
    return Workload(table, Provenance(system=System(nodes, 2)))


WORKLOAD = jobs_of(
    {"job_id": "a", "submit_time": FIRST, "run_time": 400.0, "kind": "malleable", "nodes_min": 1, "nodes_max": 4},
    {"job_id": "b", "submit_time": 1_000_100.5, "run_time": 50.125},
    {"job_id": "c", "submit_time": 1_000_101.0, "run_time": 300.0, "nodes": 4},
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the recorded files, some of them changed or left out (None)."""

    def files(**changes: str | None) -> Path:
        for name, text in FILES.items():
            text = changes.get(name.partition(".")[0], text)
            (tmp_path / name).unlink(missing_ok=True)
            if text is not None:
                (tmp_path / name).write_text(text)
        return tmp_path

    return files


def saved(run: Run, folder: Path) -> Run:
    """Return the run as it is read again, with all checks."""
    return Run.load(run.save(folder / "run"))


# -- what is read ------------------------------------------------------------------------------------------------------


def test_a_recorded_output_is_read_with_exact_times_nodes_and_resizes(write: Callable[..., Path]) -> None:
    folder = write()
    run = saved(read(folder, WORKLOAD, ReadOptions(policy="pref")), folder)
    jobs = run.jobs
    assert jobs["job_id"].tolist() == ["a", "b", "c"]
    assert jobs["submit"].tolist() == WORKLOAD.table["submit_time"].tolist()
    assert jobs["start"].tolist() == [FIRST, 1_000_102.25, 1_000_252.25]
    assert jobs["launched"].tolist() == [FIRST + 2, FIRST + 104, FIRST + 254]
    assert jobs["end"].tolist() == [1_000_252.25, 1_000_154.375, 1_000_554.25]
    assert jobs["state"].tolist() == ["completed"] * 3
    assert (run.info.source, run.info.execution, run.info.policy) == ("elastisim", "simulated", "pref")
    assert [node.name for node in run.info.nodes] == ["node_0", "node_1", "node_2", "node_3"]
    assert {node.cores for node in run.info.nodes} == {2}
    assert run.info.unknown == {}
    held = run.allocations.assign(start=run.allocations["start"] - FIRST, end=run.allocations["end"] - FIRST)
    assert held[["job_id", "node", "count", "start", "end"]].to_numpy().tolist() == [
        ["a", 0, 2, 0.0, 252.0],
        ["a", 2, 2, 0.0, 102.0],
        ["b", 2, 2, 102.0, 154.125],
        ["a", 2, 2, 187.0, 252.0],
        ["c", 0, 4, 252.0, 554.0],
    ]
    changes = run.reconfigurations
    assert changes[["job_id", "kind", "nodes_from", "nodes_to", "state"]].to_numpy().tolist() == [
        ["a", "shrink", 4, 2, "applied"],
        ["a", "expand", 2, 4, "applied"],
    ]
    assert changes["asked"].isna().all()  # ElastiSim does not print the time of the decision
    assert (changes["decided"] - FIRST).tolist() == [102.0, 187.0]
    assert (changes["applied"] - FIRST).tolist() == [107.0, 192.0]
    assert (changes["ended"] - FIRST).tolist() == [107.0, 192.0]


def test_the_stages_are_unknown_without_task_times(write: Callable[..., Path]) -> None:
    run = read(write(task_times=None), WORKLOAD, ReadOptions())
    assert run.jobs["launched"].isna().all()
    assert (run.reconfigurations["applied"] - FIRST).tolist() == [102.0, 187.0]


def test_the_nodes_of_malleable_jobs_are_unknown_without_node_utilization(write: Callable[..., Path]) -> None:
    folder = write(node_utilization=None)
    run = saved(read(folder / "job_statistics.csv", WORKLOAD, ReadOptions()), folder)
    assert set(run.info.unknown) == {"allocations", "reconfigurations"}
    assert np.isnan(tb.metrics(run).loc["utilization"].iloc[-1])
    assert run.jobs["start"].tolist() == [FIRST, 1_000_102.25, 1_000_252.25]


def test_a_run_without_a_workload_has_the_jobs_of_the_file(write: Callable[..., Path]) -> None:
    run = read(write(mapping=None), None, ReadOptions())
    assert run.jobs["job_id"].tolist() == ["0", "1", "2"]
    assert run.jobs["submit"].tolist() == [0.0, 100.25, 100.75]
    assert run.jobs["nodes"].tolist() == [4, 2, 4]
    assert run.jobs["run_time"].fillna(-1).tolist() == [-1, 52.125, 302.0]  # job 0 was resized


def test_jobs_are_numbered_by_submit_time_unless_a_mapping_says_otherwise(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    without = read(write(mapping=None), WORKLOAD, ReadOptions())
    assert without.jobs.equals(read(write(), WORKLOAD, ReadOptions()).jobs)
    more = Workload(
        pd.concat([WORKLOAD.table.head(1).assign(job_id="zero", run_time=np.nan, submit_time=7.0), WORKLOAD.table]),
        WORKLOAD.provenance,
    )  # the export leaves out jobs without a run time
    run = read(write(mapping=None), more, ReadOptions())
    assert run.jobs["state"].tolist() == ["unknown", *["completed"] * 3]
    assert run.jobs["start"].tolist()[1:] == without.jobs["start"].tolist()
    (tmp_path / "map.txt").write_text("0 a\n1 c\n2 b\n")
    with pytest.raises(InputError, match=r"job 1 was submitted at 100.25 s, but job 'c' of the workload at"):
        read(write(), WORKLOAD, ReadOptions(mapping=tmp_path / "map.txt"))
    (tmp_path / "map.txt").write_text("0 a\n1 b\n")
    with pytest.raises(InputError, match=r"lacks job 2 of job_statistics\.csv"):
        read(write(), WORKLOAD, ReadOptions(mapping=tmp_path / "map.txt"))


def test_tiny_negative_waits_are_zero_and_jobs_killed_before_their_start_are_cancelled(
    write: Callable[..., Path],
) -> None:
    text = STATISTICS.replace("0,0,252,0,252,252,completed", "0,0,252,-1.02318e-12,252,252,killed")
    text = text.replace("252,554,151.25,302,453.25,completed", "-1,150,-1,151,49.25,killed")
    nodes = UTILIZATION.replace(",allocated,2,", ",free,none,")
    folder = write(job_statistics=text, node_utilization=nodes)
    jobs = saved(read(folder, WORKLOAD, ReadOptions()), folder).jobs
    assert jobs["start"].tolist()[:2] == [FIRST, 1_000_102.25]
    assert jobs["state"].tolist() == ["killed", "completed", "cancelled"]
    assert np.isnan(jobs["start"][2])
    late = STATISTICS.replace("1,rigid,100.25,102,154.125,1.75", "1,rigid,100.25,98,154.125,-2.25")
    with pytest.raises(InputError, match=r"starts 2.25 s before its submission"):
        read(write(job_statistics=late, node_utilization=None), WORKLOAD, ReadOptions())


def test_several_jobs_on_a_node_are_held_apart(write: Callable[..., Path]) -> None:
    """With `allow_oversubscription`, a node lists its jobs separated by semicolons."""
    text = (
        "Time,Node,State,Running jobs,Expected jobs\n0,n,free,none,none\n0,n,allocated,0,none\n"
        "102,n,allocated,0;1,none\n"
        "154.125,n,allocated,0,none\n252,n,allocated,2,none\n554,n,free,none,none\n"
    )
    run = read(write(node_utilization=text), None, ReadOptions())
    held = run.allocations.set_index("job_id")
    assert held["start"].to_dict() == {"a": 0.0, "b": 102.0, "c": 252.0}
    assert held["end"].to_dict() == {"a": 252.0, "b": 154.125, "c": 554.0}


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"job_statistics": ""}, "is empty: ElastiSim did not finish"),
        ({"job_statistics": STATISTICS.partition("\n")[0]}, "has no rows: ElastiSim did not finish"),
        ({"job_statistics": "a,b\n1,2\n"}, "lacks column 'ID'"),
        ({"mapping": "0," + 2**18 * "a" + "\n"}, "mapping.csv: is not CSV: field larger than field limit"),
        ({"job_statistics": STATISTICS.replace("151.25", "1e")}, "job_statistics.csv:4: wait is '1e', not a number"),
        (
            {"job_statistics": STATISTICS.replace("1,rigid", "7,rigid")},
            "lacks job 1: ElastiSim numbers the jobs",
        ),
        ({"job_statistics": STATISTICS.replace("454,completed", "x")[:-10] + "\n"}, "status of job 2 is"),
        ({"job_statistics": STATISTICS.replace("100.25", "500")}, "job 1 was submitted at 500 s, but job 'b'"),
        ({"mapping": "id,job_id\n0,a\n1,b\n2,d\n"}, "job 'd' is not in the workload"),
        ({"node_utilization": UTILIZATION.replace(",2,none", ",9,none")}, "has job 9, which is not in the statistics"),
        ({"node_utilization": UTILIZATION.replace(",2,none", ",none,none")}, "has no nodes of job 2"),
        ({"node_utilization": UTILIZATION.replace(",2,none", ",x,none")}, "running jobs are 'x'"),
        ({"node_utilization": ""}, "node_utilization.csv: is empty"),
        ({"task_times": "Time,Job\n1,2\n"}, "task_times.csv: lacks column 'Node'"),
    ],
)
def test_damaged_files_are_refused(write: Callable[..., Path], changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(write(**changes), WORKLOAD, ReadOptions())
    assert message in str(caught.value)


def test_another_number_of_jobs_is_refused(write: Callable[..., Path]) -> None:
    two = Workload(WORKLOAD.table.head(2), WORKLOAD.provenance)
    with pytest.raises(InputError, match="has 3 jobs, the workload has 2 with a run time and nodes"):
        read(write(mapping=None), two, ReadOptions())


@pytest.mark.parametrize("name", ["job_statistics.csv", "node_utilization.csv", "task_times.csv", "jobs.json"])
@given(data=st.data())
def test_mutated_files_are_read_or_refused(name: str, data: st.DataObject) -> None:
    damaged = data.draw(mutated(FILES[name].encode()))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        for other, text in FILES.items():
            Path(folder, other).write_text(text)
        Path(folder, name).write_bytes(damaged)
        with contextlib.suppress(InputError):
            read(Path(folder), WORKLOAD, ReadOptions()).save(Path(folder, "run"))
            Run.load(Path(folder, "run"))


# -- real outputs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["reconf", "epoch", "walltime", "unsorted", "minint_ctl"])
def test_real_outputs_become_runs(reference_data: Callable[[str], Path], case: str, tmp_path: Path) -> None:
    folder = reference_data(f"elastisim/edge/{case}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        workload = tb.read(folder / "jobs.json")
    run = saved(read(folder, workload, ReadOptions()), tmp_path)
    printed = outputs.statistics(folder / "job_statistics.csv")
    assert (run.jobs["end"] - run.jobs["start"]).tolist() == pytest.approx(printed["makespan"].tolist(), abs=1e-9)
    assert run.total_nodes == 8
    busy = (run.allocations["count"] * (run.allocations["end"] - run.allocations["start"])).groupby(
        run.allocations["job_id"]
    )
    if case == "epoch":  # all submit times print alike, and the runs overlap
        assert (run.jobs["submit"] - run.jobs["submit"][0]).tolist() == [0.0, 7.0, 14.0]
        assert busy.sum().tolist() == [222.0] * 3
    if case == "walltime":
        assert run.jobs["state"].tolist() == ["completed", "killed"]
    if case == "unsorted":
        assert run.jobs["submit"].is_monotonic_increasing
    if case == "reconf":
        assert run.reconfigurations[["nodes_from", "nodes_to"]].to_numpy().tolist() == [[2, 6], [6, 2]]
        assert run.reconfigurations["applied"].tolist() == [160.0, 213.333]
        assert run.jobs["launched"].tolist() == [10.0, 10.0, 423.333]
        assert busy.sum()["1"] == pytest.approx(2 * 110 + 6 * 83.333 + 2 * 220, abs=0.01)


def test_a_deadlock_leaves_an_empty_file(reference_data: Callable[[str], Path]) -> None:
    with pytest.raises(InputError, match="is empty: ElastiSim did not finish"):
        read(reference_data("elastisim/edge/toolarge"), None, ReadOptions())


def test_a_large_real_output_is_complete(reference_data: Callable[[str], Path], tmp_path: Path) -> None:
    path = reference_data("elastisim/example500/job_statistics.csv")
    run = saved(read(path, None, ReadOptions()), tmp_path)
    assert (len(run.jobs), run.total_nodes, len(run.reconfigurations)) == (500, 128, 286)
    assert set(run.jobs["kind"]) == {"rigid", "moldable", "malleable", "evolving"}
    assert (run.jobs["start"] >= run.jobs["submit"]).all()
    assert tb.metrics(run).loc["utilization"].iloc[-1] > 0.5


# -- round trip with the real program ----------------------------------------------------------------------------------


def test_the_files_of_a_simulation_give_the_run_of_its_messages(tmp_path: Path) -> None:
    """The driver has exact times from the messages; the reader rebuilds them from six digits."""
    program = programs.real(tmp_path)
    drawn = tb.generate("lublin99", jobs=50, nodes=16, seed=3, load=0.9)
    table = drawn.table.assign(submit_time=drawn.table["submit_time"] + 5e6)
    workload = tb.make_malleable(Workload(table, drawn.provenance), share=0.5, seed=1)
    options = SimulateOptions(keep=tmp_path / "kept", simulator_options={"program": str(program)})
    nodes = nodes_of(workload.provenance.system)
    exact = simulate("elastisim", workload, nodes, "pref", options, malleability_interval_s=60)
    found = saved(read(tmp_path / "kept", workload, ReadOptions()), tmp_path)
    resolution = found.info.resolution_s
    for name in ("submit", "start", "end"):
        assert np.allclose(found.jobs[name], exact.jobs[name], rtol=0, atol=resolution), name
    assert found.jobs["state"].equals(exact.jobs["state"])
    resized = ["job_id", "kind", "nodes_from", "nodes_to"]
    applied = exact.reconfigurations[exact.reconfigurations["state"] == "applied"]
    assert len(applied) > 3
    ours, theirs = (
        rows.sort_values(["job_id", "applied"], ignore_index=True) for rows in (applied, found.reconfigurations)
    )
    assert ours[resized].equals(theirs[resized])
    assert np.allclose(ours["applied"], theirs["applied"], rtol=0, atol=max(resolution, 1.0))


def test_the_command_imports_an_output(write: Callable[..., Path], tmp_path: Path) -> None:
    tb.write(WORKLOAD, tmp_path / "w.parquet")
    words = ["import", str(write()), "--from", "elastisim", "--workload", str(tmp_path / "w.parquet")]
    result = CliRunner().invoke(tracebed, [*words, "--as", "predicted", "-o", str(tmp_path / "es")])
    assert not isinstance(result.exception, TracebedError), result.exception
    assert result.exit_code == 0, result.output
    assert Run.load(tmp_path / "es").jobs["start"].tolist() == [FIRST, 1_000_102.25, 1_000_252.25]


@pytest.mark.parametrize("value", [5, "x", {"a": 1}, [7], None, [{"tasks": 3}]])
@pytest.mark.parametrize("key", ["jobs", "on_init"])
def test_no_value_of_a_wrong_kind_in_the_files_of_jobs_ends_the_import(tmp_path: Path, key: str, value: object) -> None:
    model = {"on_init": value if key == "on_init" else [], "phases": value}
    jobs = value if key == "jobs" else [{"application_model": "model.json"}]
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    (tmp_path / "model.json").write_text(json.dumps(model))
    assert np.isnan(Stages(tmp_path).launched(2, 0.0)).all()
