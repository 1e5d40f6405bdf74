"""Checks of saved runs: a damaged or edited run, or range of nodes, is refused with one line that names the place."""

from __future__ import annotations

import itertools
import json
import re
import shutil
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

from tests.oracles.drawn import draw
from tests.runs import NAN, make_run
from tests.scheduling.test_scheduling import workload_of
from tracebed.cli import tracebed
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, Tolerated
from tracebed.machine import nodes as run_nodes
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.runs import schema as run_schema
from tracebed.orchestrator.simulation.prediction import predict

HAND = [(0.0, 0.0, 10.0, 2), (1.0, 10.0, 30.0, 2), (2.0, 10.0, 20.0, 1), (3.0, 20.0, 25.0, 1), (4.0, NAN, NAN, 9)]
STAIRCASE = {"2": [(10.0, 15.0, 2), (15.0, 30.0, 3)]}
RESIZES = [
    ("2", "expand", 2, 3, 14.0, 14.5, 15.0, 15.0, "applied"),
    ("3", "expand", 1, 2, 19.0, NAN, NAN, NAN, "cancelled"),
]
HEALTH: dict[str, Any] = {"state": "healthy", "causes": []}
HEALTHY_CAUSE = {"state": "healthy", "text": "nodes lost", "signal": "agents_lost"}
TABLES = ("jobs", "allocations", "reconfigurations", "nodes")
TABLE_COLUMNS = {name: [*columns] for name, columns in run_schema.TABLES.items()}
DURATIONS = ("decision_s", "grant_s", "merge_s", "spawn_s", "redistribution_s", "termination_s", "moved_mib")

names = st.builds(
    lambda prefix, number, width: f"{prefix}{number:0{width}d}",
    st.sampled_from(["n", "c1-", "", "gpu"]),
    st.integers(0, 12),
    st.integers(0, 3),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a valid run of five jobs on four nodes of two cores: one job expands, one is rejected."""
    run = make_run(HAND, cores=2, real=False, staircases=STAIRCASE, states={"5": "rejected"}, reconfigurations=RESIZES)
    run.info.counts = {"jobs": 5, "completed": 4, "rejected": 1}
    return run.save(tmp_path / "run")


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    facts = json.loads((folder / "run.json").read_text())
    changed = change(facts)
    (folder / "run.json").write_text(json.dumps(facts if changed is None else changed))


def damage(folder: Path, name: str, change: Callable[[pd.DataFrame], pd.DataFrame | None]) -> None:
    """Change a table and remove the checksums, so that only its values reveal the damage."""
    table = pd.read_parquet(folder / f"{name}.parquet")
    changed = change(table)
    (table if changed is None else changed).to_parquet(folder / f"{name}.parquet")
    edit(folder, lambda facts: facts.pop("checksums") and None)


@pytest.mark.parametrize("state", ["cancelled", "refused"])
def test_a_policy_may_ask_for_a_resize_before_it_learns_of_the_end(folder: Path, state: str) -> None:
    """A batch system is asked every second, so a job may have ended before a decision about it."""

    def late(table: pd.DataFrame) -> None:
        table.loc[1, ["asked", "state"]] = [27.0, state]  # job 3 ended at 25 s

    damage(folder, "reconfigurations", late)
    assert Run.load(folder).reconfigurations["state"].tolist() == ["applied", state]


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as raised:
        Run.load(folder)
    message = str(raised.value)
    assert "\n" not in message and len(message) < 400
    assert raised.value.hint
    return message


def put(row: int, column: str, value: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        values = table[column].astype(object)
        values[row] = value
        return table.assign(**{column: pd.Series(values.tolist())})

    return change


def test_a_valid_run_is_loaded_unchanged(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = Run.load(folder)
    assert repr(run) == "Run(simulator, fcfs, 5 jobs, 4 nodes, makespan 30 s)"


def timing(**values: Any) -> Callable[[dict[str, Any]], Any]:
    """Return an edit of run.json that changes settings of the timing."""
    return lambda facts: facts["setup"]["timing"].update(values)


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "speed is a text": (timing(speed="fast"), r"setup: speed is 'fast'"),
    "speed is 0": (timing(speed=0), r"setup: speed is 0"),
    "speed is NaN": (timing(speed=NAN), r"NaN is not a JSON number"),
    "speed is too large": (timing(speed=1e15), r"setup: speed is 10{15}"),
    "resolution is a text": (lambda facts: facts.update(resolution_s="1 s"), r"resolution_s is '1 s'"),
    "resolution is negative": (lambda facts: facts.update(resolution_s=-1), r"resolution_s is -1, below 0"),
    "nodes are missing": (lambda facts: facts.pop("nodes") and None, r"nodes is missing"),
    "nodes are null": (lambda facts: facts.update(nodes=None), r"nodes is not a list"),
    "cores of a node are a text": (lambda facts: facts["nodes"][1].update(cores="two"), r"'two'.* is not a node"),
    "cores of a node are too large": (
        lambda facts: facts["nodes"][1].update(cores=10**20),
        r"is not a node.*100,000,000",
    ),
    "a node is a number": (lambda facts: facts["nodes"].append(7), r"7 is not a node"),
    "two nodes have one name": (lambda facts: facts["nodes"][1].update(name="n0"), r"two nodes have the same name"),
    "the setup is missing": (lambda facts: facts.pop("setup") and None, r"setup is missing"),
    "the priority is unknown": (
        lambda facts: facts["setup"]["scheduling"].update(priority="best"),
        r"setup: unknown priority .*best",
    ),
    "a setting is unknown": (timing(sped=2), r"setup: unknown setting .*sped"),
    "the state is unknown": (lambda facts: facts.update(state="zzz"), r"state is 'zzz', not completed or interrupted"),
    "counts are texts": (lambda facts: facts["counts"].update(jobs="five"), r"counts is .*'five'"),
    "counts are others": (lambda facts: facts["counts"].update(jobs=6), r"jobs.parquet: has 5 jobs, run.json has 6"),
    "warnings are a text": (lambda facts: facts.update(warnings="none"), r"warnings is 'none'"),
    "hosts are a number": (lambda facts: facts.update(hosts=3), r"hosts is 3"),
    "the workload is a list": (lambda facts: facts.update(workload=[]), r"workload is \[\]"),
    "the name of the workload is a number": (
        lambda facts: facts["workload"].update(name=3),
        r"name of the workload is 3",
    ),
    "the state of its health is unknown": (lambda facts: facts.update(health={"state": "ill"}), "health is not a"),
    "a cause has no text": (
        lambda facts: facts.update(health={"state": "degraded", "causes": [{"state": "degraded"}]}),
        "health is not a state with its causes",
    ),
    "a cause by the default limits is healthy": (
        lambda facts: facts.update(health=HEALTH | {"wider": ["x"], "defaults": HEALTH | {"causes": [HEALTHY_CAUSE]}}),
        "health is not a state with its causes",
    ),
    "the judgment by the default limits is missing": (
        lambda facts: facts.update(health=HEALTH | {"wider": ["x"]}),
        "health is not a state with its causes",
    ),
    "a wider limit is a number": (
        lambda facts: facts.update(health=HEALTH | {"wider": [3], "defaults": HEALTH}),
        "health is not a state with its causes",
    ),
    "the signal of a cause is a list": (
        lambda facts: facts.update(health=HEALTH | {"causes": [HEALTHY_CAUSE | {"state": "degraded", "signal": []}]}),
        "health is not a state with its causes",
    ),
    "the workloads of its calibration are a number": (
        lambda facts: facts.update(calibration={"workloads": 3}),
        r"workloads of the calibration is 3",
    ),
    "the overlap of hand-overs is a text": (
        lambda facts: facts.update(handovers={"overlap_s": "long"}),
        r"overlap_s of the hand-overs is 'long'",
    ),
    "the format is a text": (lambda facts: facts.update(format="two"), r"format is 'two'"),
    "the format is newer": (lambda facts: facts.update(format=99), r"has format 99, .*update tracebed"),
    "it is a list": (lambda facts: [facts], r"is not a JSON object"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_run_json_is_refused(name: str, folder: Path) -> None:
    change, message = EDITS[name]
    edit(folder, change)
    said = refusal(folder)
    assert re.search(message, said) and ("run.json" in said)


@pytest.mark.parametrize("text", ["", "{", '{"nodes": ' + "[" * 100_000, "\x00\xff", "[" * 100_000 + "]" * 100_000])
def test_a_run_json_that_is_not_json_is_refused(text: str, folder: Path) -> None:
    (folder / "run.json").write_text(text, encoding="latin-1")
    assert re.search(r"run.json(:\d+)?: (is not JSON|is nested too deeply|cannot read)", refusal(folder))


DAMAGES: dict[str, tuple[str, Callable[[pd.DataFrame], pd.DataFrame | None], str]] = {
    "doubled rows": ("jobs", lambda t: pd.concat([t, t]), r"jobs.parquet, row 6: job '1' appears twice"),
    "a halved table": ("jobs", lambda t: t.iloc[:2], r"jobs.parquet: has 2 jobs, run.json has 5"),
    "no rows": ("jobs", lambda t: t.iloc[:0], r"jobs.parquet: has 0 jobs, run.json has 5"),
    "an unknown state": ("jobs", put(1, "state", "zzz"), r"row 2: state is 'zzz', not one of completed, "),
    "another known state": ("jobs", put(1, "state", "failed"), r"has 3 completed jobs, run.json has 4"),
    "an unknown kind": ("jobs", put(0, "kind", "soft"), r"row 1: kind is 'soft'"),
    "a start that is missing": ("jobs", put(2, "start", NAN), r"row 3: job '3' is completed, but its start or end"),
    "an end that is missing": ("jobs", put(2, "end", NAN), r"row 3: job '3' is completed, but its start or end"),
    "a submission that is missing": (
        "jobs",
        put(2, "submit", NAN),
        r"row 3: job '3' starts, but its submit time is missing",
    ),
    "a column of texts": ("jobs", lambda t: t.assign(start="soon"), r"column 'start' is not of type float64"),
    "a missing column": ("jobs", lambda t: t.drop(columns="end"), r"lacks column 'end'"),
    "an infinite end": ("jobs", put(0, "end", np.inf), r"row 1: end is inf"),
    "an end before the start": ("jobs", put(1, "end", 9.0), r"row 2: job '2' ends at 9 s, before its start at 10 s"),
    "a start before the submission": ("jobs", put(1, "submit", 11.0), r"row 2: job '2' starts at 10 s, before"),
    "negative nodes": ("jobs", put(3, "nodes", -1), r"row 4: job '4' requests -1 nodes"),
    "too many nodes": ("jobs", put(3, "nodes", 10**12), r"row 4: job '4' requests 1,000,000,000,000 nodes"),
    "half a node": ("jobs", put(3, "nodes", 0.5), r"row 4: nodes is 0.5, not a whole number"),
    "a negative run time": ("jobs", put(3, "run_time", -5.0), r"row 4: run_time of job '4' is -5 s"),
    "a job without a name": ("jobs", put(3, "job_id", None), r"row 4: job_id is missing"),
    "a job with an empty name": ("jobs", put(3, "job_id", ""), r"row 4: job_id is empty"),
    "another job": ("jobs", put(3, "job_id", "x"), r"allocations.parquet, row \d: job '4' is not in jobs.parquet"),
    "halved allocations": ("allocations", lambda t: t.iloc[: len(t) // 2], r"jobs.parquet, row \d: job '\d' runs, but"),
    "doubled allocations": ("allocations", lambda t: pd.concat([t, t]), r"takes 2 of 2 cores of node number 0"),
    "a node beyond the last": ("allocations", put(0, "node", 4), r"row 1: job '1' holds 1 nodes from number 4"),
    "a negative node": ("allocations", put(0, "node", -1), r"row 1: job '1' holds 1 nodes from number -1,"),
    "too many nodes held": (
        "allocations",
        put(0, "count", 2**62),
        r"row 1: job '1' holds 4,611,686,018,427,387,904 nodes",
    ),
    "no nodes held": ("allocations", put(0, "count", 0), r"row 1: job '1' holds 0 nodes"),
    "too many cores held": (
        "allocations",
        put(0, "cores", 10**12),
        r"holds 1,000,000,000,000 cores per node on nodes with 2",
    ),
    "no cores held": ("allocations", put(0, "cores", 0), r"row 1: job '1' holds 0 cores"),
    "nodes held before the start": ("allocations", put(0, "start", -5.0), r"from -5 to 10 s, but runs from 0"),
    "nodes held beyond the end": ("allocations", put(0, "end", 11.0), r"from 0 to 11 s, but runs from 0 to 10"),
    "nodes held backwards": ("allocations", put(0, "end", -1.0), r"holds nodes from 0 to -1 s"),
    "an allocation without a start": ("allocations", put(0, "start", NAN), r"start of the allocation of job '1'"),
    "an allocation without an end": ("allocations", put(0, "end", NAN), r"end of the allocation of job '1' is missing"),
    "a node held by two jobs": (
        "allocations",
        lambda t: t.assign(node=0),
        r"node number 0 at 0 s, while other jobs hold 2",
    ),
    "an invalid mask": ("allocations", put(0, "cpus", "0-"), r"row 1: '0-' is not a CPU list"),
    "a mask of another size": ("allocations", put(0, "cpus", "0-3"), r"row 1: 2 cores, but CPUs 0-3"),
    "a mask that fills the memory": ("allocations", put(0, "cpus", "0-99999999999"), r"row 1: .*CPU"),
    "no node at all": ("reconfigurations", put(0, "nodes_to", 0), r"row 1: expand from 2 to 0 nodes of 4"),
    "too many new nodes": (
        "reconfigurations",
        put(0, "nodes_to", 10**6),
        r"row 1: expand from 2 to 1,000,000 nodes of 4",
    ),
    "cores of another node": ("reconfigurations", put(0, "node", 9), r"row 1: cause is resize, but node is 9"),
    "another cause": ("reconfigurations", put(0, "cause", "whim"), r"row 1: cause is 'whim'"),
    "a negative stage": ("reconfigurations", put(0, "spawn_s", -1.0), r"row 1: spawn_s is negative"),
    "an expansion to less": ("reconfigurations", put(0, "nodes_to", 1), r"row 1: expand from 2 to 1 nodes"),
    "a resize of another job": ("reconfigurations", put(0, "job_id", "x"), r"row 1: job 'x' is not in jobs.parquet"),
    "a resize of another kind": ("reconfigurations", put(0, "kind", "bend"), r"row 1: kind is 'bend'"),
    "a resize in another state": ("reconfigurations", put(1, "state", "applied"), r"row 2: state and applied"),
    "a sample of another node": (
        "nodes",
        lambda t: pd.DataFrame({"time": [0.0], "node": [4], "cpu_busy": [1.0], "power_w": [NAN]}),
        r"nodes.parquet, row 1: node 4 of 4",
    ),
    "a negative sample": (
        "nodes",
        lambda t: pd.DataFrame({"time": [0.0], "node": [1], "cpu_busy": [-1.0], "power_w": [NAN]}),
        r"nodes.parquet, row 1: cpu_busy is negative",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_table_is_refused(name: str, folder: Path) -> None:
    table, change, message = DAMAGES[name]
    damage(folder, table, change)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = refusal(folder)
    assert re.search(message, said), said
    assert ".parquet" in said


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("content", [b"", b"PAR1 but no more", None])
def test_a_table_that_cannot_be_read_is_refused(name: str, content: bytes | None, folder: Path) -> None:
    path = folder / f"{name}.parquet"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert re.search(rf"{name}\.parquet: (not a readable Parquet file|no such file)", refusal(folder))


def test_a_plausible_change_is_detected_by_the_checksum(folder: Path) -> None:
    table = pd.read_parquet(folder / "jobs.parquet")
    table.assign(run_time=table["run_time"] * 2).to_parquet(folder / "jobs.parquet")
    assert "jobs.parquet: does not match its checksum" in refusal(folder)


def test_a_run_without_checksums_is_loaded_with_one_warning(folder: Path) -> None:
    edit(folder, lambda facts: facts.pop("checksums") and None)
    with pytest.warns(Tolerated, match="without a checksum") as warned:
        Run.load(folder)
    assert len(warned) == 1


def test_a_real_run_may_have_a_clock_skew_of_a_day(tmp_path: Path) -> None:
    def load(submit: float, **info: Any) -> Run:
        folder = make_run([(submit, 0.0, 5.0, 1)], **info).save(tmp_path / str(next(number)))
        return Run.load(folder)

    number = itertools.count()
    assert load(50.0).jobs["submit"][0] == 50.0
    assert load(80_000.0).jobs["submit"][0] == 80_000.0
    assert load(800_000.0, speed=10.0).jobs["submit"][0] == 800_000.0
    for submit, real in ((90_000.0, True), (50.0, False)):
        with pytest.raises(InputError, match="before its submission"):
            load(submit, real=real)


def test_an_interrupted_run_may_hold_nodes_without_an_end(tmp_path: Path) -> None:
    run = make_run([(0.0, 0.0, NAN, 1), (0.0, 1.0, 3.0, 1)], states={"1": "interrupted"}, state="interrupted")
    assert Run.load(run.save(tmp_path / "run")).allocations["end"].isna().tolist() == [True, False]


@pytest.mark.parametrize(("cores", "cpus", "good"), [(2, "0-1", True), (3, "0-2", False), (2, "1-2", False)])
def test_jobs_on_one_node_share_its_cores(tmp_path: Path, cores: int, cpus: str, good: bool) -> None:
    """Two jobs on a node of four cores; the second has CPUs 2 and 3."""
    run = make_run([(0.0, 0.0, 10.0, 1), (0.0, 4.0, 6.0, 1)], machine=2, cores=4)
    run.allocations = run.allocations.assign(node=0, cores=[cores, 2], cpus=[cpus, "2-3"])
    run.save(tmp_path / "run")
    if good:
        assert Run.load(tmp_path / "run").jobs_on_shared_nodes == 2
    else:
        assert re.search(r"job '2' takes (2 of 4 cores|CPU 2) of node number 0", refusal(tmp_path / "run"))


@pytest.mark.parametrize("policy", ["easy", "pref", "dmr", "sd", "drom-share", "conservative"])
@pytest.mark.parametrize("seed", range(3))
def test_predictions_pass_all_checks(policy: str, seed: int, tmp_path: Path) -> None:
    case = draw(seed)
    nodes = [NodeFacts(f"n{number}", 4, 2) for number in range(case.machine)]
    run = predict(workload_of(case.jobs, cores_per_node=4), nodes, policy).save(tmp_path / "run")
    Run.load(run)


def test_the_check_in_blocks_finds_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracebed.orchestrator.runs import checks as run_checks

    for limits in ((2**16, 2**22), (1, 2**22), (2**16, 1), (3, 2)):
        monkeypatch.setattr(run_checks, "BLOCK_NODES", limits[0])
        monkeypatch.setattr(run_checks, "BLOCK_ROWS", limits[1])
        Run.load(folder)
        other = shutil.copytree(folder, folder.with_name("other"), dirs_exist_ok=True)
        damage(other, "allocations", lambda table: table.assign(node=3 - table["node"].clip(0, 0)))
        assert "node number 3 at 0 s, while other jobs hold 2" in refusal(other)


def test_a_command_reports_it_in_one_line(folder: Path) -> None:
    damage(folder, "jobs", put(1, "state", "zzz"))
    result = CliRunner().invoke(tracebed, ["metrics", str(folder)])
    assert isinstance(result.exception, InputError)
    assert "jobs.parquet, row 2" in str(result.exception)


def test_a_run_of_an_earlier_version_has_only_changes_of_nodes(folder: Path) -> None:
    def earlier(table: pd.DataFrame) -> pd.DataFrame:
        return table.iloc[:, :9]

    damage(folder, "reconfigurations", earlier)
    run = Run.load(folder)
    assert run.resizes.equals(run.reconfigurations)
    assert run.core_changes.empty
    assert (run.reconfigurations["cause"] == "resize").all()


NONSENSE: dict[str, Any] = {"-1e6": -1e6, "1e9": 1e9, "infinite": np.inf, "1e308": 1e308, "negative": -7, "text": "zz"}
"""Values of no sense in a column of a run of 30 s on four nodes."""
HARMLESS = {
    # In jobs: facts of the workload, which need not fit to the run; and times before 0, which a run may have.
    *(("jobs", column, "1e9") for column in ("run_time", "time_limit", "deadline", "submit_planned", "restarts")),
    *(("jobs", column, value) for column in ("submit_planned", "submit") for value in ("-1e6", "negative")),
    *(("jobs", column, "text") for column in ("reason", "user", "group", "partition", "behaviour", "checksum")),
    # In samples: a sum over processes, without a bound that follows from the run; and times outside the jobs.
    *(("nodes", column, "1e9") for column in TABLE_COLUMNS["nodes"] if column != "node"),
    *(("nodes", "time", value) for value in ("-1e6", "negative")),
    *(("reconfigurations", column, "1e9") for column in DURATIONS),
    ("reconfigurations", "nodes_asked", "1e9"),  # an evolving job may ask for more than there is
    # `seen` may be before or after the other steps.
    *(("reconfigurations", "seen", value) for value in ("1e9", "-1e6", "negative")),
}
"""(table, column, nonsense) that reading accepts, since no other value of the run contradicts it."""


@pytest.mark.parametrize(("table", "column"), [(table, column) for table in TABLES for column in TABLE_COLUMNS[table]])
def test_no_value_of_no_sense_is_accepted(table: str, column: str, folder: Path) -> None:
    if table == "nodes":
        samples = pd.DataFrame([dict.fromkeys(TABLE_COLUMNS["nodes"], 0.0)]).astype({"node": "int64"})
        samples["power_state"] = "on"
        damage(folder, table, lambda _: samples)
    path, is_text = folder / f"{table}.parquet", run_schema.TABLES[table][column].dtype == "str"
    edit(folder, lambda facts: facts.pop("checksums", None) and None)
    valid = pd.read_parquet(path)
    for name, value in NONSENSE.items():
        if is_text != isinstance(value, str):
            continue
        damaged = valid.astype({column: object})
        damaged.loc[0, column] = value
        damaged.to_parquet(path)
        if (table, column, name) in HARMLESS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                Run.load(folder)
        else:
            assert ".parquet" in refusal(folder), name


CONTRADICTIONS: dict[str, tuple[str, Callable[[pd.DataFrame], pd.DataFrame | None], str]] = {
    "launched after its end": (
        "jobs",
        put(0, "launched", 20.0),
        r"row 1: job '1' is launched at 20 s, but runs from 0",
    ),
    "launched before its start": ("jobs", put(1, "launched", 9.0), r"row 2: job '2' is launched at 9 s"),
    "launched, never started": ("jobs", put(4, "launched", 9.0), r"row 5: job '5' is launched, but its start"),
    "an end beyond the allocation": ("jobs", put(0, "end", 1e9), r"row 1: job '1' runs from 0 to 1000000000 s"),
    "a start before the allocation": ("jobs", put(1, "start", 5.0), r"row 2: job '2' runs from 5 to 30 s, but holds"),
    "a resize twice": (
        "reconfigurations",
        lambda t: t.loc[[0, 0, 1]].reset_index(drop=True),
        r"row 2: the resize of job '2' is recorded twice",
    ),
    "a resize before its request": ("reconfigurations", put(0, "asked", 15.5), r"row 1: .*, before asked at 15.5 s"),
    "a resize after its job": ("reconfigurations", put(0, "ended", 31.0), r"row 1: job '2': ended at 31 s, but"),
    "a request before its job": ("reconfigurations", put(1, "asked", 9.0), r"row 2: job '3': asked at 9 s, but"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_no_contradiction_is_accepted(name: str, folder: Path) -> None:
    table, change, message = CONTRADICTIONS[name]
    damage(folder, table, change)
    assert re.search(message, said := refusal(folder)), said


def test_no_run_is_saved_that_cannot_be_read(tmp_path: Path) -> None:
    run = make_run([(0.0, 0.0, 5.0, 1)], parameters={"latency_s": np.inf, "grain": (np.nan, np.float64(2.0))})
    found = Run.load(run.save(tmp_path / "run")).info
    assert found.parameters == {"latency_s": None, "grain": [None, 2.0]}


def read(info: RunInfo) -> RunInfo:
    return RunInfo.from_json(json.loads(json.dumps(info.as_dict())))


def info_of(nodes: list[NodeFacts]) -> RunInfo:
    table = {"job_id": ["a"], "submit_time": [0.0], "run_time": [5.0], "nodes": [1]}
    info = predict(Workload(pd.DataFrame(table)), [NodeFacts("n1", 1)], "easy").info
    info.nodes = nodes
    return info


@given(
    found=st.lists(st.tuples(names, st.integers(1, 2)), max_size=30, unique_by=lambda node: node[0]),
    many=st.integers(1, 4),
)
def test_nodes_are_read_as_they_were(found: list[tuple[str, int]], many: int) -> None:
    nodes = [NodeFacts(name or "x", cores) for name, cores in found]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_nodes, "MANY", many)
        assert read(info_of(nodes)).nodes == nodes


@pytest.mark.parametrize(("first", "last", "entries"), [(1, 99, 99), (1, 100, 1), (0, 999, 1), (95, 1200, 1)])
def test_a_hundred_nodes_are_a_range(first: int, last: int, entries: int) -> None:
    info = info_of([NodeFacts(f"n{number}", 4, 2) for number in range(first, last + 1)])
    assert len(info.as_dict()["nodes"]) == entries
    assert read(info).nodes == info.nodes


def test_a_range_keeps_its_digits_and_ends_where_nodes_differ() -> None:
    nodes = [NodeFacts(f"n{number:04d}", 8 if number < 500 else 16) for number in range(1, 1001)]
    written = info_of(nodes).as_dict()["nodes"]
    assert [(part["first"], part["last"], part["cores"]) for part in written] == [
        ("0001", "0499", 8),
        ("0500", "1000", 16),
    ]


@pytest.mark.parametrize(
    "changes",
    [{"first": "2", "last": "1"}, {"first": "x"}, {"first": None}, {"last": "99999999999"}, {"cores": 0}, {"more": 1}],
)
def test_a_damaged_range_is_an_error(changes: dict[str, Any]) -> None:
    facts = info_of([]).as_dict()
    facts["nodes"] = [{"name": "n", "first": "1", "last": "3", "cores": 1, "sockets": 1} | changes]
    with pytest.raises(InputError, match="is not a node"):
        RunInfo.from_json(facts)


def test_a_run_of_many_nodes_has_a_short_file(tmp_path: Path) -> None:
    """A run of a million nodes once had a run.json of 80 MB, which took 11 s to write."""
    info = info_of([NodeFacts(f"n{number:06d}", 64) for number in range(200_000)])
    one = predict(Workload(pd.DataFrame({"job_id": ["a"], "submit_time": 0.0, "run_time": 5.0, "nodes": 1})), 1, "easy")
    Run(info, one.jobs, one.allocations.assign(cores=1), one.reconfigurations).save(tmp_path / "run")
    assert (tmp_path / "run" / "run.json").stat().st_size < 10_000
    assert Run.load(tmp_path / "run").total_nodes == 200_000
