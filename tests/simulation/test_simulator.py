"""The simulator: invariants of schedules, overheads, runtime models, and reproducible output."""

from __future__ import annotations

import itertools
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.reference_scheduler import RefJob, reference_schedule
from tests.scheduling.test_scheduling import workload_of
from tracebed.cli import tracebed
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.speedup import speedup_function
from tracebed.converters.workload import Provenance, Step, System, Workload
from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import InputError
from tracebed.ground.table import Table, repeated
from tracebed.machine.nodes import NodeFacts, nodes_of
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling import scheduler
from tracebed.orchestrator.scheduling.cluster import Ledger
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.policies.kassel import Pref
from tracebed.orchestrator.scheduling.queue import Queue
from tracebed.orchestrator.scheduling.scheduler import PolicyError
from tracebed.orchestrator.scheduling.state import Cancel, Decision, Note, Reject, Resize, Start, State, Wake
from tracebed.orchestrator.simulation.engine import _library
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import EngineChoice, predict
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.simulation.simulator import Simulator
from tracebed.orchestrator.tables import allocations_table, ledger_order


def machine(nodes: int, cores: int = 1) -> list[NodeFacts]:
    return [NodeFacts(f"n{number}", cores) for number in range(1, nodes + 1)]


@given(data=st.data())
def test_the_queue_behaves_like_a_list(data: st.DataObject) -> None:
    """Block summaries must not hide a job that fits, including sizes outside the classes."""
    count = data.draw(st.integers(1, 1200))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    nodes = rng.integers(1, 400, count)
    limits = rng.choice([0.0, 1.0, 10.0, 100.0], count)
    table = {"job_id": np.arange(count).astype(str), "submit_time": 0.0, "run_time": 1.0, "time_limit": limits}
    jobs = Jobs.of(Workload(pd.DataFrame(table | {"nodes": nodes})), over_limit=OverLimit.NOW)
    queue, waiting = Queue(jobs), []
    for job in range(count):
        if rng.random() < 0.9:
            queue.append(job)
            waiting.append(job)
    for _ in range(30):
        if waiting and rng.random() < 0.5:
            queue.remove(waiting.pop(int(rng.integers(len(waiting)))))
        after, idle, extra = (int(value) for value in rng.integers(-1, [count, 410, 410]))
        time = float(rng.choice([-1.0, 0.5, 1.0, 50.0, 1e9]))
        fits = [
            job
            for job in sorted(waiting)
            if job > after and nodes[job] <= idle and (limits[job] <= time or nodes[job] <= extra)
        ]
        assert queue.first_fit(after, idle, time, extra) == (fits[0] if fits else None)
        assert queue.head == (min(waiting) if waiting else None)
        assert queue.jobs() == sorted(waiting)


def chain(*, cores: int = 1) -> Workload:
    """Return two jobs of 100 s that run one after the other on two nodes."""
    table = {"job_id": ["a", "b"], "submit_time": [0.0, 0.0], "run_time": 100.0, "time_limit": 200.0, "nodes": 2}
    return Workload(pd.DataFrame(table | {"cores_per_node": cores}))


def test_overheads_are_wall_seconds_times_the_speed() -> None:
    run = predict(chain(), machine(2), "fcfs", overheads=Overheads(launch_s=0.5, end_s=0.25), speed=10.0)
    assert run.jobs["launched"].tolist() == [5.0, 112.5]
    assert run.jobs["start"].tolist() == [0.0, 107.5]
    assert run.jobs["end"].tolist() == [107.5, 215.0]


def test_the_overhead_of_a_reconfiguration_stops_the_job() -> None:
    jobs = [RefJob(0, 0.0, 100.0, 100.0, 1, True, 1, 2, 1)]  # alone, it grows to 2 nodes in the next call
    jobs.append(RefJob(1, 10.0, 0.0, 0.0, 1))
    events = {"calls": "event"}
    plain = predict(workload_of(jobs), machine(2), "pref", policy_parameters=events)
    slow = Overheads(reconfiguration_s=3.0)
    slowed = predict(workload_of(jobs), machine(2), "pref", policy_parameters=events, overheads=slow)
    assert plain.jobs["end"][0] == 10.0 + 90.0 / 2
    assert slowed.jobs["end"][0] == 10.0 + 3.0 + 90.0 / 2
    assert slowed.reconfigurations["applied"].tolist() == [13.0]


@pytest.mark.parametrize(("model", "end"), [("ideal", 100 / 0.75), ("worst-case", 200.0)])
def test_runtime_models_differ_where_nodes_have_fewer_cores(model: str, end: float) -> None:
    """Seed paper of SD-Policy, section 3.4: 4 + 2 of 8 requested cores give 6/8 or, by the poorest node, 1/2."""
    nodes = [NodeFacts("n1", 4), NodeFacts("n2", 2)]
    run = predict(chain(cores=4), nodes, "fcfs", runtime_model=RuntimeModel(model))
    assert run.jobs["end"][0] == pytest.approx(end)


def test_more_cores_than_any_node_has_are_clipped_and_counted() -> None:
    run = predict(chain(cores=48), machine(2, cores=8), "fcfs")
    assert run.jobs["end"].tolist() == [100.0, 200.0]
    assert any("clipped" in warning and warning.startswith("2 ") for warning in run.info.warnings)


def test_a_job_larger_than_the_machine_is_rejected_counted_and_reported() -> None:
    run = predict(chain(), machine(1), "easy")
    assert run.info.counts["rejected"] == 2
    assert any("rejected" in warning for warning in run.info.warnings)
    assert run.jobs["start"].isna().all()


def test_a_saved_run_is_loaded_again_and_foreign_folders_are_kept(tmp_path: Path) -> None:
    run = predict(chain(), machine(2), "easy", name="chain")
    run.save(tmp_path / "run")
    again = Run.load(tmp_path / "run")
    assert again.info == run.info
    pd.testing.assert_frame_equal(again.jobs, run.jobs)
    pd.testing.assert_frame_equal(again.allocations, run.allocations)

    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="is not a run"):
        run.save(other)
    assert (other / "thesis.tex").read_text() == "years of work"
    with pytest.raises(InputError, match=r"run\.json is missing"):
        Run.load(other)
    (tmp_path / "run" / "jobs.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(InputError, match=r"jobs\.parquet"):
        Run.load(tmp_path / "run")


held_sets = st.tuples(
    st.integers(0, 2),
    st.sets(st.integers(0, 8), min_size=1),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([1.0, 2.0]),
    st.sampled_from([None, range(1), range(1, 2)]),
)


@given(
    held=st.lists(held_sets, max_size=6),
    cores=st.lists(st.integers(2, 3), min_size=9, max_size=9),
    virtual=st.booleans(),
)
def test_the_ledger_has_the_holder_of_each_node_in_the_fewest_rows(
    held: list[tuple[int, set[int], float, float, range | None]], cores: list[int], virtual: bool
) -> None:
    ledger, expected = Ledger(), []
    masks = [((7, 3, 1) if node % 5 else (13, 19, 14))[: cores[node]] for node in range(9)]
    cpus: list[tuple[int, ...]] = [()] * 9 if virtual else masks
    for job, nodes, start, end, part in held:
        ledger.add(job, sorted(nodes), start, end, part)
        for node in nodes:
            own = cpus[node] if part is None else [cpus[node][core] for core in part if not virtual]
            mask = format_cpus(own)
            expected.append((start, f"j{job}", node, end, cores[node] if part is None else len(part), mask))
    table = allocations_table(ledger.complete(), ["j0", "j1", "j2"], cores, cpus)
    rows = list(table.frame().itertuples(index=False, name=None))
    told = [(row[3], row[0], node, *row[4:]) for row in rows for node in range(row[1], row[1] + row[2])]
    assert sorted(told) == sorted(expected)
    for before, after in itertools.pairwise(rows):
        assert (before[3], before[0], before[1]) <= (after[3], after[0], after[1])
        joined = before[1] + before[2] == after[1]
        assert not joined or (before[0], *before[3:]) != (after[0], *after[3:])


@given(
    rows=st.lists(st.tuples(*(st.integers(0, 3),) * 4), min_size=1, max_size=12),
    most=st.sampled_from([1, 2**31 - 1]),
)
def test_allocations_are_sorted_by_start_job_node_and_end(rows: list[tuple[int, ...]], most: int) -> None:
    start, job, low, end = np.array([*rows, (3, 3, 3, 3)]).T
    job, low = (job * (most // 3 or 1)).astype(np.int32), (low * (most // 3 or 1)).astype(np.int32)
    assert ledger_order(start / 2, job, low, end / 2).tolist() == np.lexsort((end, low, job, start)).tolist()


def test_a_column_of_equal_values_takes_no_memory_and_is_copied_before_a_write() -> None:
    rows = 1_000_000
    kept = Table(
        {"node": repeated(-1, rows), "seen": repeated(float("nan"), rows), "cause": repeated("resize", rows)},
    )
    assert not any(kept[name].strides[0] for name in ("node", "seen"))
    assert kept.raw("cause").get_total_buffer_size() < rows
    table = kept.frame()
    assert [*map(str, table.dtypes)] == ["int64", "float64", "str"]
    table.loc[3, "node"], table.loc[4, "seen"], table.loc[5, "cause"] = 7, 0.5, "lend"
    assert table["node"].iloc[2:5].tolist() == [-1, 7, -1] and (table["node"] == -1).sum() == rows - 1
    assert table["seen"].count() == 1 and (table["cause"] == "resize").sum() == rows - 1
    assert (kept["node"] == -1).all() and kept.equal("cause", "resize").all()
    other = Table({"node": repeated(-1, 5), "restarts": repeated(0, 5), "empty": repeated("", 5)}).frame()
    assert other.to_numpy().tolist() == [[-1, 0, ""]] * 5
    none = Table({name: repeated(zero, 0) for name, zero in (("whole", 0), ("number", 0.0), ("text", ""))}).frame()
    assert [*map(str, none.dtypes)] == ["int64", "float64", "str"]


def test_nodes_come_from_the_workloads_own_system() -> None:
    assert [node.name for node in nodes_of(System(10, 4))][::9] == ["n01", "n10"]
    with pytest.raises(InputError, match="--nodes"):
        nodes_of(System())
    w = chain().with_step(Step("scale", version="1"), system=System(2, 1))
    assert len(nodes_of(w.provenance.system)) == 2


@pytest.mark.parametrize(
    ("name", "parameters", "nodes", "expected"),
    [
        ("linear", "", 7, 7.0),
        ("amdahl", "0.9", 10, 1 / (0.1 + 0.09)),
        ("downey", "8 0.5", 1, 1.0),
        ("downey", "8 0.5", 4, 8 * 4 / (8 + 0.25 * 3)),
        ("downey", "8 0.5", 100, 8.0),
        ("downey", "8 2", 4, 4 * 8 * 3 / (2 * 11 + 8)),
        ("table", "3:238 6:68 12:40", 6, 3.5),
        ("table", "3:238 6:68 12:40", 9, 238 / 54),
        ("table", "3:238 6:68 12:40", 48, 238 / 40),
    ],
)
def test_speedups(name: str, parameters: str, nodes: int, expected: float) -> None:
    assert speedup_function(name, parameters)(nodes) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("magic", ""),
        ("amdahl", ""),
        ("amdahl", "1.5"),
        ("table", "3"),
        ("linear", "1"),
        ("amdahl", "nan"),
        ("downey", "8"),
        ("downey", "inf 1"),
        ("table", "3:9 6:inf"),
        ("table", ""),
    ],
)
def test_an_invalid_speedup_names_its_job(name: str, parameters: str) -> None:
    table = {"job_id": ["j7"], "submit_time": 0.0, "run_time": 1.0, "nodes": 1, "kind": "malleable"}
    workload = Workload(pd.DataFrame(table | {"speedup": name, "speedup_parameters": parameters}))
    with pytest.raises(InputError, match="job j7"):
        Jobs.of(workload)


def test_policies_come_by_name_with_typed_parameters() -> None:
    assert {"avg", "conservative", "easy", "fcfs", "firstfit", "keep-pref", "min", "pref"} <= set(registry.names())
    pref = registry.load("pref", {"count_idle": "no", "grow_at_start": True})
    assert registry.parameters(pref) == {
        "promise": "pool",
        "backfill": "easy",
        "count_idle": "no",
        "grow_at_start": True,
        "calls": "settle",
        "expected_end": "scaled",
        "narrow": False,
        "ties": "start",
        "spread": False,
        "if_idle": False,
        "straight": False,
    }
    with pytest.raises(InputError, match="easy, fcfs, fcfs-malleable, firstfit"):
        registry.load("best")
    with pytest.raises(InputError, match="count_idle, grow_at_start"):
        registry.load("pref", {"count_idol": "no"})
    with pytest.raises(InputError, match="pool, direct, steal"):
        registry.load("pref", {"promise": "theft"})
    with pytest.raises(InputError, match=r"pref.count_idle cannot be 'maybe' \(one of yes, no, head\)"):
        registry.load("pref", {"count_idle": "maybe"})


@pytest.mark.parametrize("engine", ["python", "auto"])
def test_an_interval_below_the_resolution_of_time_is_invalid(engine: EngineChoice) -> None:
    """The ticks would be counted one by one without end."""
    jobs = [RefJob(0, 1e9, 10.0, 20.0, 1), RefJob(1, 1e9 + 1, 10.0, 20.0, 1)]
    dense = 1e-300
    run = predict(workload_of(jobs), machine(1), "pref", engine=engine, interval_s=dense, malleability_interval_s=dense)
    assert run.jobs["start"].tolist() == [1e9, 1e9 + 10]


@pytest.mark.parametrize(
    ("policy", "name", "value"),
    [
        ("sd", "depth", 2.7),  # not truncated to 2
        ("sd", "depth", [1]),
        ("sd", "mates", True),
        ("sd", "mates", -1),
        ("sd", "sharing_factor", "nan"),
        ("sd", "max_slowdown", "nan"),
        ("sd", "max_slowdown", -1),
        ("pref", "count_idle", 1),
        ("pref", "backfill", None),
        ("conservative", "backfill_depth", -3),
        ("conservative", "backfill_depth", "1e9"),
        ("conservative", "backfill_interval_s", "inf"),
        ("conservative", "backfill_interval_s", "-1"),
    ],
)
def test_an_invalid_parameter_is_rejected_by_name(policy: str, name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{policy}.{name}") as caught:
        registry.load(policy, {name: value})
    assert caught.value.hint


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e308, 1.1e9, "2", True])
@pytest.mark.parametrize(
    "name", ["speed", "interval_s", "malleability_interval_s", "launch_s", "end_s", "reconfiguration_s"]
)
def test_a_number_beyond_its_bounds_is_refused_before_the_simulation(name: str, value: Any) -> None:
    options: dict[str, Any]
    options = {"overheads": Overheads(**{name: value})} if name in vars(Overheads()) else {name: value}
    with pytest.raises(InputError, match=name) as caught:
        predict(chain(), machine(2), "easy", **options)
    assert caught.value.hint


def test_overheads_are_bounded_in_trace_seconds() -> None:
    assert predict(chain(), 2, "easy", overheads=Overheads(1e9)).jobs["end"].tolist() == [1e9 + 100, 2e9 + 200]
    with pytest.raises(InputError, match="overhead launch_s is"):
        predict(chain(), 2, "easy", overheads=Overheads(1e9), speed=2.0)


def test_a_schedule_beyond_the_resolution_of_a_float_is_refused() -> None:
    table = {"job_id": ["a", "b"], "submit_time": 0.0, "run_time": 2.0**53, "nodes": 1}
    with pytest.raises(InputError, match="end later than"):
        predict(Workload(pd.DataFrame(table)), 1, "easy")


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        (0, "nodes is 0"),
        (-1, "nodes is -1"),
        (10**20, "nodes is"),
        ([], "number of nodes is 0"),
        (True, "nodes is True"),
    ]
    + [([NodeFacts("n1", cores)], "cores of node n1") for cores in (0, 10**12)],
)
def test_a_machine_of_an_impossible_size_is_refused(nodes: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        predict(chain(), nodes, "easy")


def test_a_machine_is_a_number_of_nodes_or_a_list_or_the_system_of_the_workload() -> None:
    workload = Workload(chain(cores=4).table, Provenance(system=System(3, 4, "tiny")))
    assert predict(workload, None, "easy").info.nodes == nodes_of(System(3, 4))
    assert predict(workload, 2, "easy").info.nodes == nodes_of(System(2, 4))
    assert predict(workload, np.int64(2), "easy").info.nodes == nodes_of(System(2, 4))
    assert predict(workload, machine(2, 4), "easy").info.nodes == machine(2, 4)
    with pytest.raises(InputError, match="number of nodes of the workload's system is unknown"):
        predict(chain(), None, "easy")


def test_a_policy_is_a_name_or_a_class_or_an_instance() -> None:
    runs = [predict(chain(), 2, policy) for policy in ("pref", Pref, Pref())]
    assert {run.info.policy for run in runs} == {"pref"}
    assert {run.info.engine for run in runs} == {"compiled"}
    assert all(run.info == runs[0].info for run in runs)
    run = predict(chain(), 2, Pref, policy_parameters={"promise": "steal"})
    assert run.info == predict(chain(), 2, Pref(promise="steal")).info


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown engine 'pyton' \(did you mean python\?"):
        predict(chain(), 2, "easy", engine="pyton")  # type: ignore[arg-type]


class Wilful:
    """A policy that yields the given decisions."""

    malleable = True

    def __init__(self, *decisions: Decision) -> None:
        self.decisions = list(decisions)

    def decide(self, state: State) -> Iterator[Decision]:
        while self.decisions:
            yield self.decisions.pop(0)


@pytest.mark.parametrize(
    ("decisions", "what"),
    [
        ([Start(0, 3)], "runs on 1 to 2 nodes"),
        ([Start(0, 1), Start(0, 1)], "is not waiting"),
        ([Start(0, 2), Start(1, 1)], "cannot start job 1 on 1 node: the job lacks nodes: 0 are idle or being released"),
        ([Resize(0, 2)], "is not a running malleable job"),
        ([Start(0, 1), Resize(0, 3)], "cannot resize job 0 to 3 nodes: the job runs on 1 to 2 nodes"),
        ([Start(0, 1), Resize(0, 1)], "has that size"),
        ([Start(0, 1), Start(1, 1), Resize(0, 2)], "cannot resize job 0 to 2 nodes: the job lacks nodes: 0 are idle"),
        ([Cancel(0, "why")], "is not running"),
        ([Start(0, 1), Reject(0, "why")], "is not waiting"),
        ([Start(0, 1, on=(0, 1))], "would get 2 nodes"),
        ([Start(0, 2, on=(1, 1))], "would get 1 nodes"),
        ([Start(0, 1, on=(0,)), Start(1, 1, on=(0,))], "nodes that are not idle"),
        ([Start(0, 1, on=(7,))], "nodes that are not idle"),
    ],
)
def test_invalid_decisions_of_a_policy_are_errors(decisions: list[Decision], what: str) -> None:
    jobs = [RefJob(0, 0.0, 5.0, 5.0, 1, True, 1, 2, 1), RefJob(1, 0.0, 5.0, 5.0, 1, True, 1, 2, 1)]
    with pytest.raises(PolicyError, match=what):
        Simulator(Jobs.of(workload_of(jobs)), [1, 1], Wilful(*decisions)).run()


def test_an_invalid_decision_has_the_time_and_the_id_of_the_job() -> None:
    workload = workload_of([RefJob(0, 812.0, 5.0, 5.0, 1, True, 1, 2, 1)])
    workload = Workload(workload.table.assign(job_id="j17"), workload.provenance)
    with pytest.raises(PolicyError) as raised:
        Simulator(Jobs.of(workload), [1, 1], Wilful(Start(0, 2), Resize(0, 1), Resize(0, 1))).run()
    message = "policy Wilful at t = 812 s: cannot resize job j17 to 1 node: the job already has that size"
    where, _, what = str(raised.value).partition(": ")
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+", where)
    assert what == f"{message} (this is a defect of the policy)"


def test_a_policy_may_choose_the_nodes_of_a_job() -> None:
    jobs = [RefJob(0, 0.0, 50.0, 50.0, 2), RefJob(1, 0.0, 5.0, 5.0, 1)]
    simulator = Simulator(Jobs.of(workload_of(jobs)), [1] * 4, Wilful(Start(0, 2, on=(3, 1)), Start(1, 1)))
    simulator.run()
    ledger = simulator.cluster.ledger
    assert sorted(zip(ledger.jobs, ledger.firsts, ledger.counts, strict=True)) == [(0, 1, 1), (0, 3, 1), (1, 0, 1)]


@dataclass
class Counting:
    """A policy that counts its calls in the state and starts each job in its third call."""

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        calls = state.notes.get("calls", 0.0) + 1.0
        yield Note("calls", calls)
        if 0 in state.queue:
            yield Start(0, 1) if calls == 3.0 else Wake(state.now + 10.0)


def test_a_policy_may_keep_notes_for_its_later_calls() -> None:
    record = Simulator(Jobs.of(workload_of([RefJob(0, 5.0, 50.0, 50.0, 1)])), [1], Counting()).run(None)
    assert record.start == [25.0]


def test_a_policy_may_reject_and_cancel() -> None:
    jobs = [RefJob(0, 0.0, 50.0, 50.0, 1), RefJob(1, 0.0, 5.0, 5.0, 1), RefJob(2, 0.0, 5.0, 5.0, 1)]
    decisions = (Start(0, 1), Reject(1, "no money"), Cancel(0, "no patience"))
    record = Simulator(Jobs.of(workload_of(jobs)), [1, 1], Wilful(*decisions)).run()
    assert record.state == ["cancelled", "rejected", "unknown"]
    assert record.reason == ["no patience", "no money", "the policy never started it"]
    assert record.end[0] == 0.0


def test_a_policy_that_never_settles_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay would call it at one instant for ever."""

    class Restless(Wilful):
        def decide(self, state: State) -> Iterator[Decision]:
            yield Wake(state.now)

    monkeypatch.setattr(scheduler, "MOST_CALLS", 50)
    with pytest.raises(PolicyError, match="requested a call at 0 s 50 times"):
        Simulator(Jobs.of(workload_of([RefJob(0, 0.0, 5.0, 5.0, 1)])), [1], Restless()).run()


# -- jobs that exceed their time limit: their ends, and their expected ends in the scheduler ---------------------------

ENGINES = ["python", pytest.param("compiled", marks=pytest.mark.skipif(_library() is None, reason="no C compiler"))]
# On 4 nodes, job 1 holds 3 from 0 to 100, with a limit of 10. Job 2, the head, needs all 4 at 20. Jobs 3 to 5 need 1.
OUTLIVES = [
    RefJob(1, 0.0, 100.0, 10.0, 3),
    RefJob(2, 20.0, 5.0, 5.0, 4),
    RefJob(3, 21.0, 30.0, 30.0, 1),
    RefJob(4, 22.0, 85.0, 85.0, 1),
    RefJob(5, 52.0, 8.0, 8.0, 1),
]
SPANS = {
    # The head is reserved for 100: job 3 ends before, job 4 does not.
    OverLimit.EXTEND: [(0, 100), (100, 105), (21, 51), (105, 190), (52, 60)],
    # Job 1 has ended when job 2 comes.
    OverLimit.KILL: [(0, 10), (20, 25), (25, 55), (25, 110), (52, 60)],
    # At 20 job 1 is expected to end at 30, at 52 at 62: job 3 would end too late, job 5 does not.
    OverLimit.AGAIN: [(0, 100), (100, 105), (105, 135), (105, 190), (52, 60)],
    # Only job 1 keeps the head from starting now: any other start would delay the head.
    OverLimit.NOW: [(0, 100), (100, 105), (105, 135), (105, 190), (105, 113)],
}


@pytest.mark.parametrize("over_limit", OverLimit)
@pytest.mark.parametrize("engine", ENGINES)
def test_easy_reserves_by_the_expected_ends_of_jobs_past_their_limit(
    engine: EngineChoice, over_limit: OverLimit
) -> None:
    nodes = [NodeFacts(f"n{number}", 1) for number in range(4)]
    run = predict(workload_of(OUTLIVES), nodes, "easy", over_limit=over_limit, engine=engine)
    assert list(zip(run.jobs["start"], run.jobs["end"], strict=True)) == SPANS[over_limit]
    expected = reference_schedule(OUTLIVES, 4, "easy", over_limit=over_limit)
    assert [(expected[job.id].start, expected[job.id].end) for job in OUTLIVES] == SPANS[over_limit]
    killed = over_limit is OverLimit.KILL
    assert run.jobs["state"].tolist() == ["killed" if killed else "completed", *["completed"] * 4]
    assert run.jobs["reason"][0] == ("time limit" if killed else "")
    assert run.info.settings["over_limit"] == over_limit
    assert run.info.warnings == [f"1 jobs exceed their limit: {over_limit.consequence}"]


@pytest.mark.parametrize("over_limit", OverLimit)
def test_only_an_extended_limit_differs_from_the_workload(over_limit: OverLimit) -> None:
    jobs = [RefJob(1, 0.0, 100.0, 10.0, 1), RefJob(2, 0.0, 100.0, 200.0, 1), RefJob(3, 0.0, 100.0, None, 1)]
    read = Jobs.of(workload_of(jobs), over_limit=over_limit)
    assert read.limit == [100.0 if over_limit is OverLimit.EXTEND else 10.0, 200.0, 100.0]
    assert read.work == [10.0 if over_limit is OverLimit.KILL else 100.0, 100.0, 100.0]
    assert read.counts == {
        "jobs without a time limit: run time used as limit": 1,
        f"jobs exceed their limit: {over_limit.consequence}": 1,
    }


def test_a_limit_of_zero_is_one_second_when_it_is_expected_again() -> None:
    """Job 1, past its limit of 0, is expected to end a second after each call: at 1, when job 2 comes, at 2."""
    jobs = [RefJob(1, 0.0, 100.0, 0.0, 1), RefJob(2, 1.0, 5.0, 5.0, 2), RefJob(3, 1.0, 0.5, 0.5, 1)]
    nodes = [NodeFacts("a", 1), NodeFacts("b", 1)]
    for engine in ("python", "auto"):
        run = predict(workload_of(jobs), nodes, "easy", over_limit=OverLimit.AGAIN, engine=engine)
        assert run.jobs["start"].tolist() == [0.0, 100.0, 1.0]


def test_simulate_reports_the_number_of_jobs_over_their_limit(tmp_path: Path) -> None:
    write_workload(workload_of(OUTLIVES), tmp_path / "w.parquet")
    command = ["simulate", str(tmp_path / "w.parquet"), "--policy", "easy", "--nodes", "4", "-o", str(tmp_path / "run")]
    for options, says in (
        ([], "limit extended to the run time"),
        (["--over-limit", "kill"], "killed at their limit"),
        (["--over-limit", "again"], "expected to run for another limit each time it has passed"),
        (["--over-limit", "now"], "expected to end at any moment after it"),
    ):
        done = CliRunner().invoke(tracebed, [*command, *options, "--replace", "--json"])
        assert done.exit_code == 0, done.output
        assert f"tracebed: warning: 1 jobs exceed their limit: {says}\n" in done.stderr
        assert json.loads(done.stdout)["completed"] == (4 if "kill" in options else 5)
    assert Run.load(tmp_path / "run").info.settings["over_limit"] == "now"


@pytest.mark.parametrize("command", ["simulate", "replay"])
def test_the_commands_offer_all_options(command: str) -> None:
    found = tracebed.get_command(click.Context(tracebed), command)
    assert found is not None
    (offered,) = (option.type for option in found.params if option.name == "over_limit")
    assert isinstance(offered, click.Choice) and list(offered.choices) == list(OverLimit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over_limit", "mean_wait_s"), [("extend", 36_862.6), ("kill", 22_182.5), ("again", 67_653.2), ("now", 57_338.3)]
)
@pytest.mark.skipif(_library() is None, reason="no C compiler")
def test_ricc_by_core(reference_data: Callable[[str], Path], over_limit: str, mean_wait_s: float) -> None:
    """The table of docs/reference/policies.md; 36,862.6 s is also what an independent program gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        workload = read_workload(reference_data("logs/RICC-2010-2.swf.gz"), by="core")
    run = predict(workload, nodes_of(workload.provenance.system), "easy", over_limit=OverLimit(over_limit))
    assert (run.jobs["start"] - run.jobs["submit"]).mean() == pytest.approx(mean_wait_s, abs=0.1)
