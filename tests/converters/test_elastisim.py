"""ElastiSim inputs: written jobs run as long as in the workload, and read jobs as long as in ElastiSim."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.logs import read_counted, tolerated
from tracebed.cli.workloads import convert
from tracebed.converters.formats import elastisim
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.tools.elastisim_models import UnsupportedModelError, application, evaluate
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.speedup import Speedup, speedup_function
from tracebed.converters.workload import SCHEMA, Provenance, System, Workload
from tracebed.ground.errors import InputError, Tolerated

SPEEDUPS = (
    *(("linear", ""), ("amdahl", "0.95"), ("amdahl", "1"), ("amdahl", "0"), ("downey", "12.5 0.5"), ("downey", "7 0")),
    *(("downey", "30 1"), ("downey", "9 2.5"), ("downey", "1 0"), ("table", "1:100 4:40 16:25.5"), ("table", "8:3")),
)


def workload_of(*jobs: dict[str, Any], system: System | None = None) -> Workload:
    """Return a workload of jobs with defaults: submitted at 0 s, 100 s of run time, 4 nodes."""
    usual = {"submit_time": 0.0, "run_time": 100.0, "nodes": 4, "kind": "rigid"}
    rows = [{"job_id": f"job{number}", **usual, **job} for number, job in enumerate(jobs)]
    table = pd.DataFrame(rows)
    for name in table.columns.intersection(["nodes_min", "nodes_max", "nodes_pref"]):
        table[name] = table[name].fillna(table["nodes"])
    return Workload(table, Provenance(system=system or System(128)))


def written(workload: Workload, folder: Path, **options: Any) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Write a folder; return the jobs in its file and the warnings."""
    with tolerated() as counts:
        write_workload(workload, folder, "elastisim", **options)
    jobs = json.loads((folder / "jobs.json").read_text())["jobs"]
    return jobs, counts


def simulated(job: dict[str, Any], folder: Path, nodes: int) -> float:
    """Return the run time of a job in ElastiSim, which substitutes arguments into formulas as text, in order."""
    model = json.loads((folder / job["application_model"]).read_text())
    assert set(model) == {"phases"}, "nothing else costs time"
    (phase,) = model["phases"]
    (task,) = phase["tasks"]
    assert (task["type"], task["pattern"]) == ("busy_wait", "uniform")

    def value(formula: str) -> float:
        for name, argument in sorted(job["arguments"].items()):
            text = f"{argument:f}" if isinstance(argument, float) else str(argument)
            formula = re.sub(name, text, formula)
        formula = re.sub("num_nodes", str(nodes), formula)
        assert not re.search(r"[a-z_]{4,}", formula), f"a name is left in {formula!r}"
        return float(eval(formula, {"__builtins__": {}, "min": min, "max": max}))

    return sum(value(task["delay"]) for _ in range(int(value(phase["iterations"]))))


# -- writing


@given(
    st.sampled_from(SPEEDUPS),
    st.floats(0, 1e7, allow_subnormal=False).map(lambda time: round(time, 9)),
    st.integers(1, 5000),
    st.sampled_from(["rigid", "malleable"]),
)
def test_a_job_alone_runs_exactly_as_long_as_in_the_workload(
    tmp_path_factory: pytest.TempPathFactory, speedup: tuple[str, str], run_time: float, nodes: int, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("identity") / "es"
    name, parameters = speedup
    job = {"run_time": run_time, "nodes": nodes, "kind": kind, "speedup": name, "speedup_parameters": parameters}
    jobs, _ = written(workload_of(job, system=System(5000)), folder)
    assert simulated(jobs[0], folder, nodes) == pytest.approx(run_time, rel=4e-16 if kind == "rigid" else 4e-15)
    back, _ = read_counted(folder / "jobs.json")
    assert back.floats("run_time")[0] == pytest.approx(run_time, abs=5e-10, rel=1e-15)


@pytest.mark.parametrize(("name", "parameters"), SPEEDUPS)
def test_on_other_nodes_a_job_runs_by_its_speedup(tmp_path: Path, name: str, parameters: str) -> None:
    s = speedup_function(name, parameters)
    job = {"kind": "malleable", "nodes": 6, "nodes_min": 1, "nodes_max": 64, "nodes_pref": 6, "run_time": 1234.5}
    jobs, _ = written(workload_of(job | {"speedup": name, "speedup_parameters": parameters}), tmp_path / "es")
    for nodes in (*range(1, 30), 63, 64):
        expected = 1234.5 * s(6) / s(nodes)
        assert simulated(jobs[0], tmp_path / "es", nodes) == pytest.approx(expected, rel=1e-9)


@given(
    st.floats(1, 5000),
    st.floats(0, 1) | st.floats(0, 5),
    st.floats(0, 1e8),
    st.integers(1, 9000),
    st.integers(1, 9000),
)
def test_downeys_law_is_the_maximum_of_two_lines_and_a_floor(
    average: float, sigma: float, run_time: float, requested: int, nodes: int
) -> None:
    speedup = Speedup("downey", (average, sigma))
    model = application(speedup, run_time, requested, "")
    assert min(model.arguments.values()) >= 0
    times = [evaluate(model.formula, {**model.arguments, "num_nodes": float(n)}) / 1e9 for n in (requested, nodes)]
    assert times[0] == pytest.approx(run_time, abs=5e-10, rel=4e-16)
    assert times[1] == pytest.approx(run_time * speedup.of(requested) / speedup.of(nodes), rel=1e-9, abs=1e-5)


def test_kassel_inflation_equals_that_of_the_kassel_group(tmp_path: Path) -> None:
    thousand = {"run_time": 1000.0, "speedup": "amdahl", "kind": "malleable"}
    workload = workload_of(
        thousand | {"nodes": 8, "speedup_parameters": "0.965"},
        thousand | {"nodes": 1024, "speedup_parameters": "0.999"},
        system=System(1024),
    )
    jobs, _ = written(workload, tmp_path / "es", kassel_inflation=True)
    times = [simulated(job, tmp_path / "es", job["arguments"]["requested"]) for job in jobs]
    assert [round(time) for time in times] == [1245, 2023]


def test_no_arguments_name_is_part_of_another_word_of_a_formula(tmp_path: Path) -> None:
    rows = [{"speedup": name, "speedup_parameters": parameters, "kind": "malleable"} for name, parameters in SPEEDUPS]
    jobs, _ = written(workload_of(*rows), tmp_path / "es")
    for job in jobs:
        formulas = (tmp_path / "es" / job["application_model"]).read_text()
        words = {*re.findall(r"[a-z_]+", formulas), "num_nodes", "num_gpus", "num_gpus_per_node"}
        for name in job["arguments"]:
            clashes = [word for word in words if name in word and name != word]
            assert not clashes, f"{name} breaks {clashes}"
            assert isinstance(job["arguments"][name], int), "ElastiSim cuts floats to six decimals"
            assert job["arguments"][name] < 2**63


def test_kinds_sizes_and_limits(tmp_path: Path) -> None:
    sizes = {"nodes_min": 2, "nodes_max": 8, "nodes_pref": 4}
    jobs, tolerated = written(
        workload_of(
            {"submit_time": 50.0, "time_limit": 120.5},
            {"submit_time": 60.0, "kind": "moldable", "time_limit": 200.0, **sizes},
            {"submit_time": 60.25, "kind": "malleable", "time_limit": math.nan, **sizes},
            {"submit_time": 70.0, "kind": "evolving", "time_limit": 0.0, **sizes},
            {"submit_time": 80.0, "nodes": 129, "nodes_max": 300, "time_limit": 1e11},
            {"submit_time": 90.0, "run_time": math.nan, **sizes},
        ),
        tmp_path / "es",
        iterations=7,
    )
    assert [job["type"] for job in jobs] == ["rigid", "moldable", "malleable", "rigid", "rigid"]
    assert [job["submit_time"] for job in jobs] == [0, 10, 10.25, 20, 30]
    assert [job.get("walltime") for job in jobs] == [121, 200, None, 1, None]
    assert all(isinstance(job.get("walltime", 1), int) for job in jobs), "a float walltime is silently ignored"
    assert [job["arguments"]["iterations"] for job in jobs] == [1, 1, 7, 1, 1]
    assert [job["arguments"]["num_nodes_pref"] for job in jobs] == [4, 4, 4, 4, 129]
    assert (jobs[1]["num_nodes_min"], jobs[1]["num_nodes_max"]) == (2, 8)
    assert tolerated == {
        "jobs without a run time left out": 1,
        "jobs larger than the machine's 128 nodes, which deadlock ElastiSim": 1,
        "evolving jobs, written as rigid since ElastiSim requires a formula for their requests": 1,
        "rigid jobs with bounds that differ from their size, bounds left out": 1,
        "time limits rounded up to whole seconds": 1,
        "time limits of 0 s, written as 1 s": 1,
        "time limits longer than 68 years, left out": 1,
    }


def test_ids_are_mapped_in_the_order_in_which_elastisim_numbers_jobs(tmp_path: Path) -> None:
    written(workload_of({"submit_time": 9.0}, {"submit_time": 3.0}, {"submit_time": 9.0}), tmp_path / "es")
    rows = list(csv.reader((tmp_path / "es" / "mapping.csv").read_text().splitlines()))
    assert rows == [["id", "job_id"], ["0", "job1"], ["1", "job0"], ["2", "job2"]]


def test_the_platform_is_a_crossbar_of_the_systems_nodes(tmp_path: Path) -> None:
    written(workload_of({}, system=System(9688, 68)), tmp_path / "es")
    (cluster,) = ElementTree.parse(tmp_path / "es" / "platform.xml").getroot().iter("cluster")
    assert cluster.get("radical") == "0-9687"
    _, tolerated = written(workload_of({"nodes": 40}, system=System()), tmp_path / "unknown")
    assert "unknown number of nodes of the system, set to the size of the largest job, 40" in tolerated
    (cluster,) = ElementTree.parse(tmp_path / "unknown" / "platform.xml").getroot().iter("cluster")
    assert cluster.get("radical") == "0-39"


def test_keys_and_types_are_those_of_accepted_elastisim_inputs(
    reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    folders = [reference_data("elastisim/example500/input"), *sorted(reference_data("elastisim/edge").iterdir())]
    sizes = {"nodes_min": 2, "nodes_max": 8}
    jobs, _ = written(
        workload_of(
            {"time_limit": 500.0, "user": "ann"}, {"kind": "moldable", **sizes}, {"kind": "malleable", **sizes}
        ),
        tmp_path / "es",
    )
    seen: dict[str, set[type]] = {}
    configured: dict[str, set[type]] = {}
    for folder in folders:
        for job in json.loads((folder / "jobs.json").read_text())["jobs"]:
            for key, value in job.items():
                seen.setdefault(key, set()).add(type(value))
        for key, value in json.loads((folder / "configuration.json").read_text()).items():
            configured.setdefault(key, set()).add(type(value))
    for job in jobs:
        assert {key for key, value in job.items() if type(value) not in seen[key]} == set()
    ours = json.loads((tmp_path / "es" / "configuration.json").read_text())
    assert {key for key, value in ours.items() if type(value) not in configured[key]} == set()
    for name in ("jobs_file", "platform_file"):
        assert (tmp_path / "es" / ours[name]).is_file()
    sample = ElementTree.parse(folders[0] / "crossbar.xml").getroot()
    platform = ElementTree.parse(tmp_path / "es" / "platform.xml").getroot()
    assert [(e.tag, sorted(e.keys())) for e in platform.iter()] == [(e.tag, sorted(e.keys())) for e in sample.iter()]


VALUES: dict[str, Any] = {
    **{"job_id": "x", "submit_time": 0.0, "run_time": 7.0, "time_limit": 9.0, "nodes": 4, "cores_per_node": 3},
    **{"kind": "malleable", "nodes_min": 2, "nodes_max": 9, "nodes_pref": 5, "requests": "0.5:4"},
    **{
        "speedup": "amdahl",
        "speedup_parameters": "0.9",
        "application": "stream",
        "application_parameters": "a=1",
        "state_mib": 5.5,
    },
    **{"memory_mib": 2.5, "user": "ann", "group": "g", "queue": "q", "partition": "p", "status": "failed"},
    **{"after": "y", "think_time": 3.0, "deadline": 90.0, "earliest_start": 4.0, "behaviour": "bsp"},
    **{"features": "ib", "gres": "gpu:2", "fewest_nodes": 2, "spread": 1, "ranks_per_node": 2},
    **{"dependency": "afterok:y", "array": "7%2", "reservation": "maintenance", "licenses": "matlab:1"},
    **{"priority": 0.5, "logged_start": 1.0, "logged_end": 8.0},
}


def test_each_column_is_held_or_warned_of_and_comes_back(tmp_path: Path) -> None:
    assert VALUES.keys() == SCHEMA.keys()
    table = pd.DataFrame([VALUES, {**VALUES, "job_id": "y", "after": "", "user": ""}])
    workload = Workload(table.assign(extra_colour=["red", ""], extra_n=[1, 2]), Provenance(system=System(16, 4)))
    _, tolerated = written(workload, tmp_path / "es")
    (warning,) = (what for what in tolerated if what.startswith("columns without a field in ElastiSim"))
    warned = set(re.search(r"\((.*)\),", warning)[1].split(", "))  # type: ignore[index]
    assert warned == {*SCHEMA, "extra_colour", "extra_n"}.difference(elastisim.HELD)
    assert "jobs on part of the cores of a node, written as whole nodes" in tolerated
    back, _ = read_counted(tmp_path / "es" / "jobs.json")
    for name in workload.table:
        assert back.table[name].tolist() == workload.table[name].tolist(), name
    assert back.provenance.system == System(16, 4)
    assert [source.name for source in back.provenance.sources] == ["jobs.json"]


def test_the_command_writes_and_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, folder, back = tmp_path / "w.csv", tmp_path / "es", tmp_path / "back.csv"
    source.write_text("job_id,submit_time,run_time,nodes,kind,nodes_min,nodes_max\na,0,60.5,4,malleable,2,8\n")
    options = ["--to", "elastisim", "--set", "iterations=3"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Tolerated)
        for arguments in ([str(source), "-o", str(folder), *options], [str(folder / "jobs.json"), "-o", str(back)]):
            convert.main(arguments, standalone_mode=False)
    (job,) = json.loads((folder / "jobs.json").read_text())["jobs"]
    assert job["arguments"]["iterations"] == 3
    assert read_workload(back).table[["job_id", "run_time", "nodes_max"]].values.tolist() == [["a", 60.5, 8]]
    with pytest.raises(InputError, match="writing csv does not support option 'iterations'"):
        convert.main([str(source), "-o", str(tmp_path / "b.csv"), "--set", "iterations=3"], standalone_mode=False)
    with pytest.raises(InputError, match="--to run and --set"):
        options = ["--to", "run", "--set", "speed=2"]
        convert.main([str(source), "-o", str(tmp_path / "b"), *options], standalone_mode=False)
    with pytest.raises(InputError, match="unknown format 'elastic'"):
        convert.main([str(source), "-o", str(back), "--to", "elastic"], standalone_mode=False)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no job with a run time"):
        written(workload_of({"run_time": math.nan}), tmp_path / "a")
    with pytest.raises(InputError, match="speedup 'amdahl' with parameters '2' is invalid"):
        written(workload_of({"speedup": "amdahl", "speedup_parameters": "2"}), tmp_path / "b")
    with pytest.raises(InputError, match="run time of 1e"):
        written(workload_of({"run_time": 1e10}), tmp_path / "c")
    with pytest.raises(InputError, match="invalid number of iterations 0"):
        written(workload_of({}), tmp_path / "d", iterations=0)
    assert list(tmp_path.iterdir()) == []


# -- reading


@pytest.mark.parametrize("case", ["epoch", "reconf", "toolarge", "unsorted", "walltime", "minint_ctl"])
def test_rigid_jobs_of_real_inputs_run_as_long_as_in_elastisim(
    reference_data: Callable[[str], Path], case: str
) -> None:
    folder = reference_data(f"elastisim/edge/{case}")
    workload, _ = read_counted(folder / "jobs.json")
    results = {row["ID"]: row for row in csv.DictReader((folder / "job_statistics.csv").read_text().splitlines())}
    assert len(results) in (0, len(workload))
    for job, kind, time in zip(*(workload.column(name) for name in ("job_id", "kind", "run_time")), strict=True):
        assert math.isfinite(time)
        if job in results and kind == "rigid" and results[job]["Status"] == "completed":
            assert time == pytest.approx(float(results[job]["Makespan"]), rel=1e-5)
    assert workload.provenance.system.nodes == 8
    assert workload.provenance.unix_start == (1.7e9 if case == "epoch" else None)


def test_a_real_model_that_communicates_leaves_run_times_unknown(reference_data: Callable[[str], Path]) -> None:
    workload, tolerated = read_counted(reference_data("elastisim/example500/input/jobs.json"), keep_extra=True)
    assert (len(workload), workload.provenance.system.nodes) == (500, 128)
    assert tolerated == {
        "adaptive jobs (malleable and evolving), read as malleable": 6,
        "jobs without a preferred size, set to the maximum": 262,
        "jobs whose application model does not determine the run time, run time unknown": 500,
    }
    assert np.isnan(workload.floats("run_time")).all()
    assert (workload.column("kind") == "malleable").sum() == 80
    assert workload.table["extra_argument_iterations"].dtype == np.int64


def model_of(*tasks: dict[str, Any], iterations: object = 1, **more: Any) -> dict[str, Any]:
    return {"phases": [{"iterations": iterations, "tasks": list(tasks)}], **more}


WAIT = {"type": "busy_wait", "delay": "10", "pattern": "uniform"}


@pytest.mark.parametrize(
    ("model", "seconds"),
    [
        (model_of(WAIT, iterations="2 * 3"), 60.0),
        (model_of({**WAIT, "delay": "2 ^ x / num_nodes - 1"}), 1.0),
        (model_of({**WAIT, "delay": 7, "pattern": "all_ranks"}), 1.75),
        (model_of({"type": "idle", "delay": 5, "pattern": "uniform", "iterations": 3}), 15.0),
        (model_of({"type": "sequence", "iterations": 2, "tasks": [WAIT]}), 20.0),
        (model_of({"type": "CPU", "flops": "8e9", "computation_pattern": "uniform"}), 4.0),
        (model_of(WAIT, on_init={"tasks": [WAIT]}), 20.0),
        (model_of(WAIT, on_init=[WAIT]), 20.0),
        (model_of({"type": "cpu", "flops": 1, "bytes": 1, "computation_pattern": "uniform"}), None),
        (model_of({"type": "pfs_write", "bytes": 1, "pattern": "uniform"}), None),
        (model_of({**WAIT, "delay": "unknown"}), None),
        (model_of({**WAIT, "delay": "1 / (x - 3)"}), None),
        (model_of({**WAIT, "delay": "9 ^ 9 ^ 9 ^ 9"}), None),
        (model_of({**WAIT, "delay": "-1"}), None),
        (model_of({**WAIT, "delay": "().__class__"}), None),
        (model_of({**WAIT, "delay": "(" * 5000}), None),
        (model_of({**WAIT, "delay": "1" + " + 1" * 9000}), None),
        (model_of({**WAIT, "pattern": "root_only"}), None),
    ],
)
def test_run_times_follow_from_models_that_wait_and_compute(
    tmp_path: Path, model: dict[str, Any], seconds: float | None
) -> None:
    (tmp_path / "app.json").write_text(json.dumps(model))
    (tmp_path / "machine.xml").write_text('<cluster id="c" radical="1-4" speed="2Gf"/>')
    job = {"type": "RIGID", "submit_time": 0, "num_nodes": 4, "arguments": {"x": 3}, "application_model": "in/app.json"}
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job]}))
    workload, tolerated = read_counted(tmp_path / "jobs.json")
    if seconds is None:
        assert math.isnan(workload.floats("run_time")[0])
        assert tolerated == {"jobs whose application model does not determine the run time, run time unknown": 1}
    else:
        assert (workload.floats("run_time")[0], tolerated) == (seconds, {})


@given(st.text(max_size=30) | st.text("0123456789.+-*/^%()xe, minmaxlog", max_size=30))
def test_any_formula_has_a_value_or_none(formula: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        with contextlib.suppress(UnsupportedModelError):
            assert isinstance(evaluate(formula, {"x": 2.0, "num_nodes": 3.0}), float)


def test_a_models_speedup_becomes_linear_or_a_table(tmp_path: Path) -> None:
    job = {"type": "malleable", "submit_time": 0, "num_nodes_min": 1, "num_nodes_max": 4, "application_model": "a.json"}
    job["arguments"] = {"num_nodes_pref": 2}
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job]}))
    (tmp_path / "a.json").write_text(json.dumps(model_of({**WAIT, "delay": "100 / num_nodes"})))
    workload, tolerated = read_counted(tmp_path / "jobs.json")
    assert (workload.floats("run_time")[0], workload.column("speedup")[0], tolerated) == (50.0, "linear", {})
    (tmp_path / "a.json").write_text(json.dumps(model_of({**WAIT, "delay": "20 + 80 / num_nodes"})))
    workload, _ = read_counted(tmp_path / "jobs.json")
    row = workload.table.iloc[0]
    assert (row["run_time"], row["nodes"], row["speedup"]) == (60.0, 2, "table")
    assert row["speedup_parameters"] == "1:100.0 2:60.0 3:46.666666667 4:40.0"


GOOD = {"type": "rigid", "submit_time": 0, "num_nodes": 4, "application_model": "app.json"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"jobs": [', "is not JSON"),
        ('{"application_model": 1}', "jobs is missing"),
        ('{"jobs": {"application_model": 1}}', "jobs is {.*, not a list"),
        ('{"jobs": [], "application_model": 1}', "contains no jobs"),
        ('{"jobs": [1], "application_model": 1}', r"jobs\[0\] is 1, not an object"),
        ([GOOD | {"type": "stiff"}], r"jobs\[0\]: type is \"stiff\", not one of rigid"),
        ([GOOD, GOOD | {"num_nodes": "4"}], r"jobs\[1\]: num_nodes is \"4\", not a number"),
        ([GOOD | {"num_nodes": 1.5}], "num_nodes is 1.5, not a whole number"),
        ([GOOD | {"num_nodes": 0}], "num_nodes is 0, not a number of at least 1"),
        ([GOOD | {"num_nodes": True}], "num_nodes is true"),
        ([GOOD | {"num_nodes": 10**400}], "num_nodes is 1000"),
        ([GOOD | {"submit_time": None}], "submit_time is null"),
        ([GOOD | {"submit_time": math.nan}], "NaN is not a JSON number"),
        ([GOOD | {"walltime": -1}], "walltime is -1"),
        ([GOOD | {"arguments": [1]}], "arguments is .*, not an object"),
        ([GOOD | {"type": "moldable"}], "num_nodes_min is missing"),
        ([GOOD | {"type": "moldable", "num_nodes_min": 3, "num_nodes_max": 2}], "num_nodes_max is 2, not at least"),
        ('{"jobs": ' + "[" * 100_000 + '"application_model"', "nested too deeply|is not JSON"),
    ],
)
def test_bad_input_is_one_line_with_the_jobs_place(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "jobs.json"
    path.write_text(content if isinstance(content, str) else json.dumps({"jobs": content}))
    with pytest.raises(InputError, match=message) as caught:
        read_counted(path, format="elastisim")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [GOOD]}))
    _, tolerated = read_counted(tmp_path / "jobs.json")
    assert tolerated == {"jobs whose application model is missing, run time unknown": 1}
    (tmp_path / "app.json").write_text("{")
    with pytest.raises(InputError, match=r"app\.json:1: is not JSON"):
        read_counted(tmp_path / "jobs.json")


VALID = json.dumps(
    {"jobs": [GOOD, GOOD | {"type": "malleable", "num_nodes_min": 1, "num_nodes_max": 8, "arguments": {"a": 0.5}}]}
).encode()


def test_a_written_folder_is_read_again_unchanged(tmp_path: Path) -> None:
    table = pd.DataFrame({"job_id": ["a", "b"], "submit_time": [0.0, 5.0], "run_time": [60.0, 70.0], "nodes": [1, 2]})
    write_workload(Workload(table, Provenance(system=System(4, 8))), tmp_path / "es", format="elastisim")
    with pytest.warns(UserWarning, match="files that are not in format"):
        assert list(read_workload(tmp_path / "es").column("job_id")) == ["a", "b"]
