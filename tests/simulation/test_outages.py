"""Outages in simulations: cases by hand, invariants under each policy, and the same outages in a replay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tracebed.api as tb
from tests.oracles.redecided import virtual, workload
from tests.oracles.reference_scheduler import RefJob
from tests.runs import replaying
from tests.scheduling.test_outages import CORES, VARIANTS, some_jobs
from tests.scheduling.test_scheduling import workload_of
from tracebed.cli import tracebed
from tracebed.converters.workload import Workload
from tracebed.ground import system
from tracebed.ground.errors import InputError
from tracebed.machine.calendar import Calendar, Outage, OutageKind
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay import outages as outages_of_replays
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.record import MOST_LOSSES
from tracebed.orchestrator.simulation.outages import OutageModel
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.testing.virtual.faults import Fault, arm
from tracebed.testing.virtual.kernel import VirtualWorld
from tracebed.validation.metrics import metrics


def nodes(count: int, cores: int = 1) -> list[NodeFacts]:
    return NodeFacts.alike((f"n{number}" for number in range(1, count + 1)), cores)


def down(node: str, start: float, end: float = math.inf, **named: Any) -> Outage:
    return Outage(node=node, start=start, end=end, **named)


def drain(node: str, start: float, end: float = math.inf) -> Outage:
    return down(node, start, end, kind=OutageKind.DRAIN)


def rigid(*rows: tuple[float, float, int], cores: int = 1) -> Workload:
    """Return rigid jobs: submit time, run time, nodes. `cores`: cores of each job on a node."""
    jobs = [RefJob(number, submit, run_time, None, size) for number, (submit, run_time, size) in enumerate(rows)]
    return workload_of(jobs, cores_per_node=cores)


def simulated(work: Workload, count: int, *outages: Outage, policy: str = "fcfs", **settings: Any) -> Run:
    return predict(work, nodes(count), policy, outages=Calendar(outages), **settings)


def times(run: Run) -> list[tuple[float, float]]:
    return [*zip(run.jobs["start"], run.jobs["end"], strict=True)]


# -- cases by hand -----------------------------------------------------------------------------------------------------


def test_the_jobs_of_a_node_that_is_down_begin_again_when_enough_nodes_are_back() -> None:
    run = simulated(rigid((0, 100, 2), (10, 20, 1), (20, 5, 1)), 2, down("n2", 40, 70, reason="fan"))
    assert times(run) == [(70, 170), (170, 190), (170, 175)]
    assert run.jobs["restarts"].tolist() == [1, 0, 0]
    assert run.jobs["state"].tolist() == ["completed"] * 3
    assert run.info.outages == [{"node": "n2", "from": 40, "until": 70, "reason": "fan", "kind": "down"}]
    held = run.allocations[run.allocations["job_id"] == "0"][["start", "end", "node", "count"]]
    assert held.to_numpy().tolist() == [[0, 40, 0, 2], [70, 170, 0, 2]]
    assert run.info.engine == "python"


def test_the_jobs_of_a_node_that_is_down_fail_if_that_is_chosen() -> None:
    run = simulated(rigid((0, 100, 2), (10, 20, 1)), 2, down("n2", 40, reason="fan"), on_node_failure="fail")
    assert times(run) == [(0, 40), (40, 60)]
    assert run.jobs["state"].tolist() == ["failed", "completed"]
    assert run.jobs["reason"][0] == "node n2 was lost: fan"
    assert run.info.outages[0]["until"] is None


def test_a_job_that_lost_many_nodes_is_not_requeued_again() -> None:
    outages = [down("n1", 10 * number, 10 * number + 1) for number in range(1, MOST_LOSSES + 2)]
    run = simulated(rigid((0, 100, 1), (1, 3, 1)), 1, *outages)
    assert run.jobs["restarts"][0] == MOST_LOSSES - 1
    assert times(run) == [(41, 50), (51, 54)]
    assert run.jobs["reason"][0].startswith("the job lost nodes 5 times, and is not requeued again; node n1 was lost")


def test_a_drained_node_takes_no_other_job() -> None:
    run = simulated(rigid((0, 100, 2), (1, 10, 1), (2, 10, 1), (3, 10, 2)), 2, drain("n2", 40, 300))
    assert times(run) == [(0, 100), (100, 110), (110, 120), (300, 310)]
    assert run.jobs["restarts"].sum() == 0
    assert run.info.outages == [{"node": "n2", "from": 40, "until": 300, "reason": "", "kind": "drain"}]


def test_a_drained_node_may_go_down_and_is_back_when_all_its_outages_have_ended() -> None:
    run = simulated(rigid((0, 100, 2)), 2, drain("n2", 40, 300), down("n2", 50, 60))
    assert times(run) == [(300, 400)]
    kinds = [(outage["kind"], outage["from"], outage["until"]) for outage in run.info.outages]
    assert kinds == [("drain", 40, 50), ("down", 50, 60), ("drain", 60, 300)]


def test_a_drained_node_that_returns_before_its_job_has_ended_is_free_after_it() -> None:
    run = simulated(rigid((0, 100, 2), (1, 10, 2)), 2, drain("n2", 40, 50), policy="easy")
    assert times(run) == [(0, 100), (100, 110)]


def test_a_job_that_ends_at_the_instant_of_an_outage_has_ended() -> None:
    run = simulated(rigid((0, 40, 1), (40, 10, 1)), 2, down("n1", 40, 45))
    assert times(run) == [(0, 40), (40, 50)]  # the second one has the other node
    assert run.allocations["node"].tolist() == [0, 1]


def test_a_node_that_is_out_before_the_first_submission_takes_no_job() -> None:
    run = simulated(rigid((10, 5, 1), (10, 5, 1)), 2, down("n1", -100, 12), drain("n2", -50, -40))
    assert times(run) == [(10, 15), (12, 17)]
    assert run.info.outages == [{"node": "n1", "from": 0, "until": 12, "reason": "", "kind": "down"}]


def test_jobs_whose_nodes_do_not_return_never_start() -> None:
    run = simulated(rigid((0, 5, 2), (1, 5, 1)), 2, down("n1", 3), policy="easy")
    assert run.jobs["state"].tolist() == ["unknown", "completed"]
    assert run.jobs["reason"][0] == "the policy never started it; 1 of 2 nodes did not return"
    assert times(run)[1] == (3, 8)
    assert run.info.warnings[-1] == "1 job never started, and 1 of 2 nodes did not return"


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_a_plan_does_not_count_on_drained_nodes(policy: str) -> None:
    """The third job needs three nodes. With a drained one, it waits for both others, and the fourth delays nothing."""
    work = rigid((0, 100, 2), (0, 200, 1), (1, 50, 3), (2, 150, 1))
    run = simulated(work, 4, drain("n2", 10, 1000), policy=policy)
    assert times(run) == [(0, 100), (0, 200), (200, 250), (10, 160)]
    assert times(simulated(work, 4, policy=policy)) == [(0, 100), (0, 200), (100, 150), (150, 300)]


def test_the_pending_resize_of_a_lost_job_does_not_strike_its_next_run() -> None:
    """The first run of the malleable job waits for its point at 50 s, and the second for its one at 80 s."""
    raw = [RefJob(0, 0.0, 100.0, None, 4, True, 1, 4, 4), RefJob(1, 10.0, 30.0, None, 2)]
    run = simulated(workload_of(raw), 4, down("n1", 30, 35), policy="pref", malleability_interval_s=50.0)
    assert run.jobs["restarts"].tolist() == [1, 0]
    first, second = run.resizes.iloc[0], run.resizes.iloc[1]
    assert (first["asked"], first["state"], second["asked"], second["applied"]) == (10, "cancelled", 35, 80)
    assert run.jobs["start"].tolist() == [30, 30]


@pytest.mark.parametrize("promise", ["pool", "direct", "steal"])
def test_a_job_that_holds_a_drained_node_is_not_shrunk(promise: str) -> None:
    """Without the outage, the first job shrinks at 20 s. With it, this job shrinks when the node is back."""
    raw = [RefJob(0, 0.0, 100.0, None, 4, True, 1, 4, 4), RefJob(1, 20.0, 30.0, None, 2)]
    policy = registry.load("pref", {"promise": promise})
    run = simulated(workload_of(raw), 4, drain("n4", 10, 40), policy=policy)
    assert run.jobs["start"].tolist() == [0, 40]
    assert simulated(workload_of(raw), 4, policy=policy).jobs["start"].tolist() == [0, 20]


def malleable(work: float, low: int, size: int, most: int = 0, submit: float = 0.0) -> Workload:
    """Return a malleable job of linear speedup, by its run time on `size` nodes."""
    return workload_of([RefJob(0, submit, work, None, size, True, low, most or size, size)])


def test_a_malleable_job_shrinks_off_a_lost_node() -> None:
    run = simulated(malleable(100, 1, 4), 4, down("n2", 50, 60), policy="pref", on_node_failure="shrink")
    assert times(run) == [(0, 102.5)]  # half of the work at 50, 7.5 s of it until 60, and all nodes from there
    assert run.jobs["restarts"].tolist() == [0]
    held = run.allocations[["node", "count", "start", "end"]].to_numpy().tolist()
    assert sorted(held) == [[0, 1, 0, 102.5], [1, 1, 0, 50], [1, 1, 60, 102.5], [2, 2, 0, 102.5]]
    assert run.reconfigurations[["nodes_from", "nodes_to", "asked"]].to_numpy().tolist() == [[4, 3, 50], [3, 4, 60]]
    assert metrics(run)["jobs_hit"] == 0
    requeued = simulated(malleable(100, 1, 4), 4, down("n2", 50, 60), policy="pref")
    assert times(requeued)[0][0] >= 50


@pytest.mark.parametrize(
    ("job", "settings", "outages"),
    [
        (malleable(100, 4, 4), {}, [down("n1", 50)]),  # at its minimum
        (rigid((0, 100, 4)), {}, [down("n1", 50)]),
        (malleable(100, 1, 4), {"overheads": {"launch_s": 60.0}}, [down("n1", 50)]),  # being launched
        (malleable(100, 1, 4), {"malleability_interval_s": 90.0}, [drain("n4", 10), down("n1", 50)]),
    ],
)
def test_a_job_that_cannot_shrink_off_a_lost_node_is_requeued(job: Workload, settings: Any, outages: Any) -> None:
    run = simulated(job, 5, *outages, policy="pref", on_node_failure="shrink", **settings)
    assert run.jobs["restarts"].tolist() == [1]


def test_a_job_under_a_policy_without_malleability_does_not_shrink_off_a_lost_node() -> None:
    run = simulated(malleable(100, 1, 4), 5, down("n1", 50), policy="easy", on_node_failure="shrink")
    assert times(run) == [(50, 150)]


def test_a_job_that_shrinks_twice_at_one_instant_keeps_its_work() -> None:
    outages = (down("n1", 50), down("n3", 50))
    run = simulated(malleable(100, 1, 4), 4, *outages, policy="pref", on_node_failure="shrink")
    assert times(run) == [(0, 150)]
    pause = simulated(
        malleable(100, 1, 4), 4, *outages, policy="pref", on_node_failure="shrink", overheads={"reconfiguration_s": 3.0}
    )
    assert times(pause)[0][1] == 156


def test_no_guest_starts_on_a_drained_node() -> None:
    raw = [RefJob(number, 20.0 * number, 100.0, 200.0, 2, True, 2, 2, 2) for number in range(2)]
    work = workload_of(raw, cores_per_node=CORES)
    run = predict(work, nodes(2, CORES), "drom-share", outages=Calendar((drain("n2", 10, 1000),)))
    assert times(run) == [(0, 100), (1000, 1100)]
    assert predict(work, nodes(2, CORES), "drom-share").jobs["start"].tolist() == [0, 20]


def test_a_batch_system_counts_the_lost_run_of_a_job_from_its_allocation_to_the_loss() -> None:
    """The latency of a launch precedes the job. The allocation of a lost run includes it."""
    late = {"overheads": {"launch_s": 3.0}, "dispatched": True}
    run = simulated(rigid((0, 100, 1)), 1, down("n1", 40, 70), **late)
    assert times(run) == [(73, 173)]
    assert run.allocations[["start", "end"]].to_numpy().tolist() == [[0, 40], [73, 173]]
    failed = simulated(rigid((0, 100, 1)), 1, down("n1", 2, 70), on_node_failure="fail", **late)
    assert times(failed) == [(2, 2)]
    assert np.isnan(failed.jobs["launched"][0])


def test_an_empty_calendar_changes_nothing() -> None:
    plain = predict(workload(), virtual(4).facts, "pref", engine="python")
    run = predict(workload(), virtual(4).facts, "pref", outages=Calendar())
    for name in ("jobs", "allocations", "reconfigurations"):
        pd.testing.assert_frame_equal(getattr(run, name), getattr(plain, name))


def test_what_has_no_outages_says_so() -> None:
    work = rigid((0, 10, 1))
    with pytest.raises(InputError, match="the compiled engine does not support outages"):
        simulated(work, 2, engine="compiled")
    with pytest.raises(InputError, match="node 'n9', which is not on the machine"):
        simulated(work, 2, down("n9", 0))
    with pytest.raises(InputError, match="on_node_failure 'abort'"):
        simulated(work, 2, on_node_failure="abort")
    with pytest.raises(InputError, match="outages do not apply to processes"):
        tb.simulate(work, "fcfs", 2, outages=Calendar(), processes="synchronous")
    with pytest.raises(InputError, match="outages is an option of tracebed's simulator"):
        tb.simulate(work, "fcfs", 2, outages=Calendar(), simulator="elastisim")


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_a_requeued_job_continues_from_its_last_checkpoint() -> None:
    """Checkpoints are complete at 31, 62 and 93 s. The third one is lost while it is written."""
    saving = {"checkpoint_s": 30.0, "checkpoint_cost_s": 1.0}
    run = simulated(rigid((0, 100, 2)), 2, down("n2", 92.5, 110), **saving)
    assert times(run) == [(110, 110 + 40 + 1)]  # one checkpoint is left: none is written at the end
    found = metrics(run)
    assert found["lost_work_node_h"] * 3600 == pytest.approx(2 * (92.5 - 62))
    job = run.jobs["job_id"][0]
    assert run.info.outages[0]["checkpoints"] == {job: [0, 62]}
    facts = run.info.parameters["outages"]
    assert (facts["checkpoint_s"], facts["checkpoint_cost_s"]) == (30, 1)
    assert times(simulated(rigid((0, 100, 2)), 2, **saving)) == [(0, 103)]
    assert times(simulated(rigid((0, 90, 2)), 2, **saving)) == [(0, 92)]


def test_a_job_that_is_lost_twice_continues_where_the_last_run_was() -> None:
    run = simulated(rigid((0, 100, 1)), 1, down("n1", 45, 50), down("n1", 60, 70), checkpoint_s=20.0)
    assert times(run) == [(70, 70 + 100 - 40)]  # the second run had no checkpoint
    assert metrics(run)["lost_work_node_h"] * 3600 == pytest.approx(5 + 10)
    assert [each.get("checkpoints") for each in run.info.outages] == [{run.jobs["job_id"][0]: [0, 40]}, None]


@pytest.mark.parametrize(("cost", "end"), [(0.0, 52.0), (2.0, 54.0)])
def test_a_job_that_is_resized_when_a_checkpoint_is_due_writes_it(cost: float, end: float) -> None:
    """Half as fast, the second job has done 11 s of its work when the first one ends. Its node goes down later."""
    raw = [RefJob(0, 15.0, 11.0, None, 2, True, 1, 2, 2), RefJob(1, 15.0, 26.0, None, 2, True, 1, 2, 2)]
    saving = {"checkpoint_s": 11.0, "checkpoint_cost_s": cost}
    run = simulated(workload_of(raw), 2, policy="pref", **saving)
    assert times(run)[1] == (15, end + cost)  # a further checkpoint at 22 s
    lost = simulated(workload_of(raw), 2, down("n1", 41, 60), policy="pref", **saving)
    assert lost.info.outages[0]["checkpoints"] == {lost.jobs["job_id"][1]: [15, 37 + cost]}


def test_the_limit_of_a_job_counts_from_its_checkpoint() -> None:
    """As in Slurm, each run has the whole limit: the job needs 100 s, may run for 60, and has 40 after the outage."""
    work = workload_of([RefJob(0, 0.0, 100.0, 60.0, 1)])
    runs = [simulated(work, 1, *out, checkpoint_s=20.0, over_limit="kill") for out in ([], [down("n1", 50, 55)])]
    assert [(run.jobs["state"][0], run.jobs["end"][0]) for run in runs] == [("killed", 60), ("completed", 115)]


def reference(runs: list[list[tuple[float, float, int]]], job: RefJob, every: int, cost: int) -> tuple[float, float]:
    """Return the end of a job, and the node seconds lost: step by step, in exact numbers.

    `runs` has start, end and number of nodes of each part of each run; all but the last run are lost.
    """
    saved, lost, total = Fraction(0), Fraction(0), Fraction(job.run_time)
    for parts in runs:
        work, writing, since_saved = saved, Fraction(0), Fraction(0)
        for start, end, count in parts:
            now, rate = Fraction(start), Fraction(count, job.nodes)
            while now < Fraction(end):
                point = (work // every + 1) * every
                step = writing or (min(point, total) - work) / rate
                step = min(step, Fraction(end) - now)
                now += step
                since_saved += step * count
                if writing:
                    writing -= step
                else:
                    work += step * rate
                    if work >= total:
                        return float(now), float(lost)
                    writing = Fraction(cost) if work == point else writing
                    if work < point:
                        continue
                if not writing:
                    saved, since_saved = work, Fraction(0)
        lost += since_saved
    return math.nan, float(lost)


def runs_of(run: Run, job: str) -> list[list[tuple[float, float, int]]]:
    """Return the parts of the runs of a job, as `reference` takes them. The last one is a second longer."""
    rows = run.allocations[run.allocations["job_id"] == job]
    parts: dict[tuple[float, float], set[int]] = {}
    for row in rows.itertuples():
        parts.setdefault((row.start, row.end), set()).update(range(row.node, row.node + row.count))
    edges = sorted({edge for both in parts for edge in both})
    found: list[list[tuple[float, float, int]]] = [[]]
    for start, end in itertools.pairwise(edges):
        held = {node for (since, until), own in parts.items() if since <= start and end <= until for node in own}
        if held:
            found[-1].append((start, end, len(held)))
        if any(outage["from"] == end and int(outage["node"][1:]) - 1 in held for outage in run.info.outages):
            found.append([])
    start, end, count = found[-1].pop()
    found[-1].append((start, end + 1, count))
    return found


@pytest.mark.parametrize("policy", ["fcfs", "easy", "pref"])
@settings(max_examples=15)
@given(data=st.data())
def test_jobs_continue_from_checkpoints_as_the_reference_does(policy: str, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4), "nodes")
    every, cost = data.draw(st.integers(3, 30), "every"), data.draw(st.integers(0, 4), "cost")
    size = st.integers(1, count)
    rows = st.tuples(st.integers(0, 40), st.integers(1, 90), size)
    raw = [
        RefJob(number, float(submit), float(run_time), None, most, policy == "pref", 1, most, most)
        for number, (submit, run_time, most) in enumerate(
            sorted(data.draw(st.lists(rows, min_size=1, max_size=5), "jobs"))
        )
    ]
    failing = st.tuples(st.integers(1, count), st.integers(1, 200), st.integers(1, 20))
    outages = [  # no loss is at the instant of a checkpoint
        down(f"n{node}", at + 0.0713 * number, at + 0.0713 * number + lasts + 0.0137 * number)
        for number, (node, at, lasts) in enumerate(data.draw(st.lists(failing, max_size=6), "outages"), 1)
    ]
    run = simulated(
        workload_of(raw), count, *outages, policy=policy, checkpoint_s=float(every), checkpoint_cost_s=float(cost)
    )
    lost = 0.0
    for job, row in zip(raw, run.jobs.itertuples(), strict=True):
        if row.state == "failed":
            continue
        end, own = reference(runs_of(run, row.job_id), job, every, cost)
        assert end == pytest.approx(row.end, abs=1e-6), job
        lost += own
    if run.info.outages and (run.jobs["state"] == "completed").all():
        assert metrics(run)["lost_work_node_h"] * 3600 == pytest.approx(lost, abs=1e-5)


def test_checkpoints_without_use_are_refused(tmp_path: Path) -> None:
    work = rigid((0, 10, 1))
    for useless in ({"on_node_failure": "fail"}, {"outages": None}):
        with pytest.raises(InputError, match="no job continues from a checkpoint"):
            tb.simulate(work, "fcfs", 2, **{"outages": Calendar(), "checkpoint_s": 5.0} | useless)
    with pytest.raises(InputError, match="a cost and no interval"):
        simulated(work, 2, checkpoint_cost_s=1.0)
    with pytest.raises(InputError, match="checkpoint_s is -1"):
        simulated(work, 2, checkpoint_s=-1.0)
    with pytest.raises(InputError, match=r"checkpoints are not modeled for a cluster of a slurm\.conf"):
        on_cluster(work, tmp_path, checkpoint_s=5.0)


# -- the cluster of a slurm.conf --------------------------------------------------------------------------------------

HALVES = """SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/basic
SchedulerParameters=bf_interval=1
NodeName=n[1-2] CPUs=4
PartitionName=a Nodes=n[1-2] Default=YES
"""


def on_cluster(work: Workload, folder: Path, *listed: Outage, conf: str = HALVES, **settings: Any) -> Run:
    """Simulate Slurm on two nodes that jobs share."""
    path = folder / "slurm.conf"
    path.write_text(conf)
    return tb.simulate(work, "slurm", tb.read_machine(path), outages=Calendar(listed), **settings)


def test_jobs_of_a_cluster_of_a_slurm_conf_lose_nodes(tmp_path: Path) -> None:
    """Slurm lets the lost job wait 121 s. The second job is on the other node, the third starts there at the outage."""
    work = rigid((0, 100, 1), (1, 300, 1), (5, 50, 1), cores=3)
    run = on_cluster(work, tmp_path, down("n1", 40, 60))
    start = run.jobs["start"].tolist()
    assert run.jobs["restarts"].tolist() == [1, 0, 0]
    assert 161 <= start[0] < 225 and 0 < start[1] < 5 and 60 <= start[2] < 65
    assert run.jobs["state"].tolist() == ["completed"] * 3
    assert run.info.outages == [{"node": "n1", "from": 40.0, "until": 60.0, "reason": "", "kind": "down"}]
    assert run.info.parameters["outages"]["listed"] == 1
    held = run.allocations[run.allocations["job_id"] == run.jobs["job_id"][0]]
    assert sorted(held["end"].tolist()) == [40.0, start[0] + 100]
    found = metrics(run)
    lost = 20 + 40  # the outage, and the run of the job before it, in s
    assert found["jobs_hit"] == 1
    assert (found["lost_node_h"] + found["lost_work_node_h"]) * 3600 == pytest.approx(lost, abs=4)


@pytest.mark.parametrize("how", ["option", "JobRequeue=0"])
def test_a_job_of_a_cluster_fails_with_its_node(tmp_path: Path, how: str) -> None:
    settings = {"on_node_failure": "fail"} if how == "option" else {}
    conf = HALVES if how == "option" else f"{HALVES}{how}\n"
    work = rigid((0, 100, 2), (1, 30, 1), cores=3)
    outages = (down("n2", 40, 60), drain("n1", 45, 70))
    run = on_cluster(work, tmp_path, *outages, conf=conf, **settings)
    assert run.jobs["state"].tolist() == ["failed", "completed"]
    assert (run.jobs["end"][0], run.jobs["reason"][0]) == (40, "node n2 was lost")
    assert 40 <= run.jobs["start"][1] <= 45
    assert [each["kind"] for each in run.info.outages] == ["down", "drain"]


def test_a_job_that_is_lost_while_it_is_launched_has_no_launch(tmp_path: Path) -> None:
    late = {"overheads": {"launch_s": 30.0}, "on_node_failure": "fail"}
    run = on_cluster(rigid((0, 100, 2), cores=3), tmp_path, down("n2", 20, 60), **late)
    assert run.jobs["end"].tolist() == [20] and np.isnan(run.jobs["launched"][0])


# -- metrics and the command -------------------------------------------------------------------------------------------

KEYS = ("lost_node_h", "availability", "jobs_hit", "lost_work_node_h")


def test_the_metrics_of_outages() -> None:
    work = rigid((0, 100, 2), (10, 20, 1), (20, 5, 1))
    requeued = metrics(simulated(work, 2, down("n2", 40, 70)))
    expected = (30 / 3600, 1 - 30 / (2 * 190), 1, 80 / 3600)
    assert tuple(requeued[key] for key in KEYS) == pytest.approx(expected)
    failed = metrics(simulated(work, 2, down("n2", 40), on_node_failure="fail"))
    assert failed["makespan_s"] == 65  # the last of the two jobs that finish
    assert tuple(failed[key] for key in KEYS) == pytest.approx((25 / 3600, 1 - 25 / (2 * 65), 1, 80 / 3600))
    drained = metrics(simulated(rigid((0, 100, 2), (1, 10, 2)), 2, drain("n2", 40, 300)))
    assert tuple(drained[key] for key in KEYS) == pytest.approx((200 / 3600, 1 - 200 / (2 * 310), 0, 0))
    plain = metrics(simulated(work, 2))
    assert all(plain["undefined"][key] == "no node was out" for key in KEYS)


def test_the_command_simulates_outages(tmp_path: Path) -> None:
    tb.write(rigid((0, 100, 2), (10, 20, 1)), tmp_path / "w.parquet")
    (tmp_path / "o.csv").write_text("node,from,to,kind,reason\nn2,40,70,down,fan\n")
    start = ["simulate", str(tmp_path / "w.parquet"), "--policy", "easy", "--nodes", "2", "-o", str(tmp_path / "run")]
    done = CliRunner().invoke(tracebed, [*start, "--outages", str(tmp_path / "o.csv")])
    assert done.exit_code == 0, done.output
    run = tb.Run.load(tmp_path / "run")
    assert (run.info.outages[0]["reason"], run.jobs["restarts"].tolist()) == ("fan", [1, 0])
    facts = tb.read_outages(tmp_path / "o.csv")
    assert run.info.parameters["outages"] == {"sha256": facts.digest, "listed": 1, "on_node_failure": "requeue"}
    saving = ["--outages", str(tmp_path / "o.csv"), "--on-node-failure", "requeue,checkpoint=15s,cost=1", "--replace"]
    done = CliRunner().invoke(tracebed, [*start, *saving])
    assert done.exit_code == 0, done.output
    assert tb.Run.load(tmp_path / "run").info.parameters["outages"]["checkpoint_cost_s"] == 1
    more = ["--outages", "mtbf=50s,repair=10,seed=2", "--on-node-failure", "fail", "--replace"]
    done = CliRunner().invoke(tracebed, [*start, *more])
    assert done.exit_code == 0, done.output
    assert tb.Run.load(tmp_path / "run").info.parameters["outages"]["model"]["mtbf_s"] == 50
    for wrong, says in [
        (["--outages", "mtbf=50s"], "repair is missing"),
        (["--outages", "mtbf=50s,repair=1,x=2"], "'x' is not one of"),
        (["--outages", str(tmp_path / "none.csv")], "No such file"),
    ]:
        done = CliRunner().invoke(tracebed, [*start, *wrong, "--replace"])
        assert done.exit_code and says in done.output + str(done.exception)


# -- invariants --------------------------------------------------------------------------------------------------------


@st.composite
def some_outages(draw: st.DrawFn, count: int) -> tuple[Outage, ...]:
    """Return outages that all end."""
    kinds = st.sampled_from(list(OutageKind))
    return tuple(
        Outage(
            node=f"n{draw(st.integers(1, count))}",
            start=(start := draw(st.integers(-3, 80))),
            end=start + length,
            kind=kind,
        )
        for length, kind in draw(st.lists(st.tuples(st.sampled_from([0.5, 3, 20]), kinds), max_size=8))
    )


def assert_consistent(run: Run, outages: tuple[Outage, ...]) -> None:
    """Check that no job runs on a node that is down or starts on one that is out, and that no core is held twice."""
    held = run.allocations
    for outage in outages:
        node = int(outage.node[1:]) - 1
        rows = held[(held["node"] <= node) & (node < held["node"] + held["count"]) & (held["end"] > held["start"])]
        if outage.kind is OutageKind.DOWN:
            assert not ((rows["start"] < outage.end) & (rows["end"] > outage.start)).any(), outage
        # A later row of the same job is not a start: its cores changed, or its neighbor's.
        first = rows[~rows.set_index(["job_id", "start"]).index.isin(rows.set_index(["job_id", "end"]).index)]
        assert not ((first["start"] >= max(0, outage.start)) & (first["start"] < outage.end)).any(), outage
    for node in range(run.total_nodes):
        rows = held[(held["node"] <= node) & (node < held["node"] + held["count"])]
        for at in rows["start"]:
            there = rows[(rows["start"] <= at) & (rows["end"] > at)]
            assert there["cores"].sum() <= CORES
    for row in run.jobs.itertuples():
        assert row.state in ("completed", "rejected", "cancelled", "killed") or row.restarts == MOST_LOSSES - 1


@pytest.mark.parametrize(("policy", "parameters"), VARIANTS, ids=str)
@settings(max_examples=8)  # of each policy
@given(data=st.data())
def test_every_job_ends_whatever_nodes_are_out(policy: str, parameters: dict[str, Any], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6), "nodes")
    work = workload_of(data.draw(some_jobs(count), "jobs"), cores_per_node=CORES // 2)
    outages = data.draw(some_outages(count), "outages")
    timing = data.draw(
        st.sampled_from(
            [
                {},
                {"malleability_interval_s": 3.0},
                {"overheads": {"launch_s": 0.5, "release_s": 0.25}},
                {"interval_s": 2.0},
                {"checkpoint_s": 5.0, "checkpoint_cost_s": 0.5, "malleability_interval_s": 3.0},
            ]
        ),
        "timing",
    )
    interval = {} if registry.load(policy, parameters).__dict__.get("backfill_interval_s") else timing
    machine, made = nodes(count, CORES), registry.load(policy, parameters)
    treatment = data.draw(st.sampled_from(["requeue", "shrink"]), "treatment")
    run = predict(work, machine, made, outages=Calendar(outages), on_node_failure=treatment, **interval)
    assert_consistent(run, outages)


# -- the same outages in a replay --------------------------------------------------------------------------------------

CRASHES = (
    Fault("crash", 100.0, "n1", 200.0, 0.9),
    Fault("crash", 250.0, "n3", 900.0, 0.9),
    Fault("crash", 700.0, "n2", 50.0, 0.9),
)
"""Nodes that lose power, and return; times are s after the first end of a job."""


def arming(faults: tuple[Fault, ...]) -> Callable[[int], None]:
    """Return a progress callback that schedules the faults once."""
    coming = [faults]

    def schedule(ended: int) -> None:
        here = system.current()
        assert isinstance(here, VirtualWorld)
        if coming:
            arm(here, coming.pop())

    return schedule


@pytest.mark.parametrize(
    ("policy", "treatment"),
    [*((name, "requeue") for name in ("fcfs", "easy", "conservative", "pref")), ("easy", "fail")],
)
def test_a_simulation_and_a_replay_with_the_same_outages_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, treatment: str
) -> None:
    """At speed 1, a launch takes tens of milliseconds, which the simulation does not model. They add up over jobs."""
    monkeypatch.setattr(outages_of_replays, "RETURN_S", 1e9)
    work, testbed = workload(12), virtual(4)
    options = replaying(1.0, on_node_failure=treatment)
    real = replay(work, testbed, policy, tmp_path / "run", **options, on_progress=arming(CRASHES))
    assert len(real.info.outages) == len(CRASHES)
    seen = [
        Outage(node=outage["node"], start=outage["from"], end=outage["until"] or math.inf, reason=outage["reason"])
        for outage in real.info.outages
    ]
    run = predict(work, testbed.facts, policy, outages=Calendar(tuple(seen)), on_node_failure=treatment)
    assert real.jobs["restarts"].sum() if treatment == "requeue" else (real.jobs["state"] == "failed").any()
    for name in ("job_id", "state", "restarts"):
        assert run.jobs[name].tolist() == real.jobs[name].tolist()
    failed = real.jobs["state"] == "failed"
    assert run.jobs["reason"][failed].tolist() == real.jobs["reason"][failed].tolist()
    for name in ("start", "end"):
        np.testing.assert_allclose(run.jobs[name], real.jobs[name], atol=0.5)
    changes = ["job_id", "nodes_from", "nodes_to"]
    assert run.resizes[changes].to_numpy().tolist() == real.resizes[changes].to_numpy().tolist()
    ours, theirs = (
        {key: metrics(one)[key] for key in ("lost_node_h", "availability", "jobs_hit")} for one in (run, real)
    )
    assert ours == pytest.approx(theirs, abs=1e-3)


# -- the model ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [1.0, 0.7, 2.0])
def test_drawn_outages_have_the_mean_times_of_their_model(shape: float) -> None:
    model = OutageModel(mtbf_s=10_000.0, repair_s=1_000.0, shape=shape, seed=4)
    calendar = model.calendar(nodes(20), 2e6)
    lengths = [outage.end - outage.start for outage in calendar.outages]
    assert np.mean(lengths) == pytest.approx(1_000, rel=0.05)
    gaps = []
    for node in {outage.node for outage in calendar.outages}:
        mine = [outage for outage in calendar.outages if outage.node == node]
        gaps += [later.start - earlier.end for earlier, later in itertools.pairwise(mine)]
        assert min(gaps) > 0
    assert np.mean(gaps) == pytest.approx(10_000, rel=0.05)
    expected = {1.0: 1.0, 0.7: 1.462, 2.0: 0.523}[shape]  # coefficient of variation of a Weibull distribution
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(expected, rel=0.05)


def test_a_node_has_the_same_drawn_outages_on_a_larger_machine() -> None:
    model = OutageModel(mtbf_s=1e4, repair_s=100.0, seed=1)
    small, large = model.calendar(nodes(2), 1e5), model.calendar(nodes(3), 1e5)
    assert set(small.outages) == {outage for outage in large.outages if outage.node != "n3"}
    assert small.digest != OutageModel(mtbf_s=1e4, repair_s=100.0, seed=2).calendar(nodes(2), 1e5).digest


def test_a_simulation_with_drawn_outages_is_the_same_again() -> None:
    work = tb.generate("cirne", jobs=50, nodes=16, seed=3)
    model = {"mtbf_s": 3e5, "repair_s": 2e4, "seed": 1}
    first, second = (tb.simulate(work, "easy", outages=model) for _ in range(2))
    pd.testing.assert_frame_equal(first.jobs, second.jobs)
    assert first.info.parameters == second.info.parameters
    assert first.info.parameters["outages"]["model"] == {**model, "shape": 1.0}
    assert first.info.outages


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"mtbf_s": 10.0}, "has mtbf_s, repair_s"),
        ({"mtbf_s": 10.0, "repair_s": 1.0, "k": 2}, "has mtbf_s, repair_s"),
        ({"mtbf_s": 0.0, "repair_s": 1.0}, "mtbf_s of outages is 0.0"),
        ({"mtbf_s": 10.0, "repair_s": 1.0, "shape": math.nan}, "shape of outages is nan"),
        ({"mtbf_s": 10.0, "repair_s": 1.0, "seed": -1}, "seed of outages is -1"),
        ({"mtbf_s": 1.0, "repair_s": 1.0}, "about .* outages in"),
    ],
)
def test_an_invalid_model_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        tb.simulate(rigid((0, 1e9, 1)), "fcfs", 2, outages=values)
