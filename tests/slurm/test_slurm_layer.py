"""A layer that resizes running jobs beside Slurm's loops, in both simulations of a cluster."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.oracles import slurm_cases
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.machine.machine import Machine
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.testbeds.calibration import Calibration, OverheadEstimate
from tracebed.slurm import resize_layer
from tracebed.slurm.conf import read
from tracebed.slurm.simulation import engine
from tracebed.slurm.simulation.inputs import ENDED, Resized
from tracebed.slurm.simulation.prediction import QUERY_S

SHARED = "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n"
FOUR = "NodeName=n[1-4] CPUs=2\nPartitionName=main Nodes=ALL\n"
COMPILED = engine.simulate
MALLEABLE = {"kind": "malleable", "speedup": "linear"}


@pytest.fixture(autouse=True)
def _both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "simulate", slurm_cases.both)


def simulated(folder: Path, conf: str, jobs: list[dict[str, Any]], policy: str = "dmr", **settings: Any) -> Run:
    """Return the run of jobs, each submitted at 0 for 1,000 s of 4 nodes of two cores unless it says otherwise."""
    path = folder / "slurm.conf"
    path.write_text(conf)
    usual = {"submit_time": 0.0, "run_time": 1000.0, "nodes": 4, "cores_per_node": 2, "time_limit": 1200.0}
    rows = [{"job_id": str(number), **usual, **job} for number, job in enumerate(jobs, 1)]
    for row in rows:
        row |= {f"nodes_{name}": row.get(f"nodes_{name}", row["nodes"]) for name in ("min", "pref", "max")}
    overheads = Overheads(**{name: settings.pop(name) for name in [*settings] if name.endswith("_s")})
    calibration = settings.pop("calibration", None)
    run = predict(
        Workload(pd.DataFrame(rows).fillna({"kind": "rigid", "speedup": ""}), Provenance()),
        read(path).machine,
        "slurm",
        over_limit=OverLimit.KILL,
        policy_parameters={"resizes": policy, **settings},
        overheads=overheads,
        calibration=calibration,
    )
    run.check(folder)
    return run


def resizes(run: Run) -> list[tuple[str, int, int]]:
    """Return job and sizes of each resize, in the order of the decisions."""
    table = run.reconfigurations.sort_values("asked")
    return [*zip(table["job_id"], table["nodes_from"].tolist(), table["nodes_to"].tolist(), strict=True)]


def held(run: Run, job: str, at: float) -> int:
    """Return the number of nodes that a job holds at an instant."""
    table = run.allocations
    own = table[(table["job_id"] == job) & (table["start"] <= at) & (at < table["end"])]
    return int(own["count"].sum())


def test_a_job_shrinks_for_the_first_waiting_job_and_expands_when_it_has_ended(tmp_path: Path) -> None:
    waiting = {"nodes": 2, "submit_time": 100.0, "run_time": 200.0}
    job = {"nodes_min": 1, "nodes_pref": 2, **MALLEABLE}
    run = simulated(tmp_path, SHARED + FOUR, [job, waiting], launch_s=0.25)
    assert resizes(run) == [("1", 4, 2), ("1", 2, 4)]
    shrink, expansion = (row for _, row in run.reconfigurations.iterrows())
    jobs = run.jobs.set_index("job_id")
    assert 100.0 < shrink["asked"] <= 110.0
    assert shrink["asked"] < jobs["start"]["2"] <= shrink["asked"] + 5.0
    assert jobs["end"]["2"] < expansion["asked"] <= jobs["end"]["2"] + 10.0
    start, slow = jobs["start"]["1"], expansion["applied"] - shrink["applied"]
    assert jobs["end"]["1"] == pytest.approx(start + 1000.0 + slow / 2)
    assert [held(run, "1", at) for at in (50.0, 250.0, 900.0)] == [4, 2, 4]
    # at half its speed, it would have exceeded its limit of 1,200 s without a longer one
    assert jobs["state"]["1"] == JobState.COMPLETED


@pytest.mark.parametrize("policy", ["dmr", "none"])
def test_malleable_jobs_start_and_end_steps_beside_a_layer_only(tmp_path: Path, policy: str) -> None:
    """A rigid job takes the same nodes before and after. Each script starts 0.25 s after its job."""
    jobs = [{}, {"submit_time": 1.0, **MALLEABLE}, {"submit_time": 2.0}]
    launch_s, end_s = (3.0, 20.0) if policy == "dmr" else (0.0, 0.0)
    run = simulated(tmp_path, SHARED + FOUR, jobs, policy, calibration=stepped(launch_s=3.0, end_s=20.0))
    first, second, third = (row for _, row in run.jobs.set_index("job_id").iterrows())
    assert first["end"] - first["start"] == pytest.approx(1000.0)
    assert second["end"] - second["start"] == pytest.approx(1000.0 + launch_s)
    assert second["launched"] == second["start"]
    assert 0.0 < second["start"] - first["end"] < 5.0
    assert end_s < third["start"] - second["end"] < end_s + 5.0
    assert third["end"] - third["start"] == pytest.approx(1000.0)


def stepped(launch_s: float, end_s: float) -> Calibration:
    """Return a calibration beside a layer, with times of the steps of malleable jobs."""

    def estimate(value: float) -> OverheadEstimate:
        return OverheadEstimate(value=value, median=value, low=value, high=value, count=1)

    return Calibration(
        **{"name": "layer", "created": "2026-01-02T03:04:05+00:00", "tracebed": "1", "inventory": "", "nodes": 4},
        **{
            "execution": "emulated",
            "cores": [2],
            "host": {},
            "speed": 1.0,
            "grain_s": 0.0,
            "repetitions": 1,
            "duty": 0.0,
        },
        overheads={"launch_s": estimate(0.25)},
        steps={"launch_s": estimate(launch_s), "end_s": estimate(end_s)},
        workloads=["0" * 64],
        batch="slurm",
    )


@pytest.mark.parametrize("seed", range(5))
def test_passes_are_at_multiples_of_the_interval_after_the_first_submission(tmp_path: Path, seed: int) -> None:
    waiting = {"nodes": 2, "submit_time": 103.0, "run_time": 200.0}
    job = {"submit_time": 7.0, "nodes_min": 1, "nodes_pref": 2, **MALLEABLE}
    run = simulated(tmp_path, SHARED + FOUR, [job, waiting], seed=seed)
    assert all(0.0 <= (asked - 7.0) % 10.0 <= QUERY_S for asked in run.reconfigurations["asked"])


def test_without_a_layer_malleable_jobs_keep_their_size(tmp_path: Path) -> None:
    waiting = {"nodes": 2, "submit_time": 100.0, "run_time": 200.0}
    run = simulated(tmp_path, SHARED + FOUR, [{"nodes_min": 1, **MALLEABLE}, waiting], "none")
    assert not len(run.reconfigurations)
    assert run.jobs.set_index("job_id")["start"]["2"] > 1000.0


def test_a_limit_that_is_reached_at_the_smaller_size_follows_the_resize(tmp_path: Path) -> None:
    waiting = {"nodes": 2, "submit_time": 100.0, "run_time": 5000.0, "time_limit": 6000.0}
    job = {"nodes_min": 2, "nodes_pref": 2, "time_limit": 1000.0, **MALLEABLE}
    run = simulated(tmp_path, SHARED + FOUR, [job, waiting])
    jobs = run.jobs.set_index("job_id")
    assert jobs["state"]["1"] == JobState.COMPLETED
    asked = run.reconfigurations["asked"].iloc[0]
    assert jobs["end"]["1"] == pytest.approx(asked + 2.0 * (jobs["start"]["1"] + 1000.0 - asked))


def test_costs_stop_the_job_and_keep_its_nodes(tmp_path: Path) -> None:
    waiting = {"nodes": 2, "submit_time": 100.0, "run_time": 2000.0, "time_limit": 2400.0}
    costs = {"reconfiguration_s": 30.0, "release_s": 7.0}
    run = simulated(tmp_path, SHARED + FOUR, [{"nodes_min": 2, "nodes_pref": 2, **MALLEABLE}, waiting], **costs)
    (row,) = (row for _, row in run.reconfigurations.iterrows())
    jobs = run.jobs.set_index("job_id")
    assert row["applied"] == row["asked"] + 30.0
    assert row["ended"] == row["applied"]
    assert 7.0 < jobs["start"]["2"] - row["asked"] < 12.0
    left = jobs["start"]["1"] + 1000.0 - row["asked"]
    assert jobs["end"]["1"] == pytest.approx(row["asked"] + 30.0 + 2.0 * left)


@pytest.mark.parametrize(
    ("policy", "sizes"), [("pref", [3, 2]), ("keep-pref", [3, 2]), ("min", [4, 1]), ("avg", [3, 2]), ("dmr", [4, 1])]
)
def test_three_nodes_come_from_the_jobs_that_the_policy_prefers(tmp_path: Path, policy: str, sizes: list[int]) -> None:
    """`dmr` lets one application decide alone; the others take the fewest nodes that suffice."""
    conf = SHARED + "NodeName=n[1-8] CPUs=2\nPartitionName=main Nodes=ALL\n"
    one = {"nodes": 4, "nodes_min": 3, "nodes_pref": 3, **MALLEABLE}
    other = {"nodes": 4, "nodes_min": 1, "nodes_pref": 2, **MALLEABLE}
    wanted = {"nodes": 3, "submit_time": 100.0, "run_time": 5000.0, "time_limit": 6000.0}
    run = simulated(tmp_path, conf, [one, other, wanted], policy)
    table = run.reconfigurations
    first = table[table["asked"] == table["asked"].min()]
    after = dict(zip(first["job_id"], first["nodes_to"].tolist(), strict=True))
    assert [after.get("1", 4), after.get("2", 4)] == sizes
    assert run.jobs.set_index("job_id")["start"]["3"] < 120.0


def test_a_job_does_not_shrink_for_another_partition_nor_below_what_helps(tmp_path: Path) -> None:
    conf = SHARED + "NodeName=n[1-4] CPUs=2\nPartitionName=main Nodes=ALL\nPartitionName=other Nodes=ALL\n"
    job = {"nodes_min": 2, "nodes_pref": 2, "partition": "main", **MALLEABLE}
    for partition, nodes, count in (("other", 2, 0), ("main", 3, 0), ("main", 2, 1)):
        waiting = {"nodes": nodes, "submit_time": 100.0, "run_time": 10.0, "partition": partition}
        run = simulated(tmp_path, conf, [job, waiting], "pref")
        assert sum(after < before for _, before, after in resizes(run)) == count


def test_a_job_with_generic_resources_shrinks_and_never_expands(tmp_path: Path) -> None:
    conf = SHARED + "GresTypes=gpu\nNodeName=n[1-4] CPUs=2 Gres=gpu:1\nPartitionName=main Nodes=ALL\n"
    job = {"nodes_min": 1, "nodes_pref": 2, "gres": "gpu:1", **MALLEABLE}
    waiting = {"nodes": 2, "submit_time": 100.0, "run_time": 200.0, "gres": "gpu:1"}
    run = simulated(tmp_path, conf, [job, waiting])
    assert resizes(run) == [("1", 4, 2)]
    assert any("generic resources" in warning for warning in run.info.warnings)


@pytest.mark.parametrize("release", [22.05, 24.11])
def test_jobs_of_whole_nodes_do_not_expand_on_clusters_with_generic_resources(tmp_path: Path, release: float) -> None:
    """Slurm gives them all generic resources of their nodes, and refuses to merge them."""
    for gres in ("GresTypes=gpu\nNodeName=n4 CPUs=2 Gres=gpu:1\n", "NodeName=n4 CPUs=2\n"):
        conf = f"{SHARED}{gres}NodeName=n[1-3] CPUs=2\nPartitionName=main Nodes=ALL OverSubscribe=EXCLUSIVE\n"
        run = simulated(tmp_path, conf, [{"nodes": 2, "nodes_min": 2, "nodes_max": 4, **MALLEABLE}], release=release)
        assert resizes(run) == ([] if "gpu" in gres else [("1", 2, 4)])
        noted = any(resize_layer.GIVEN in warning for warning in run.info.warnings)
        assert noted == (not resizes(run))


@pytest.mark.parametrize(("release", "expected"), [(22.05, []), (24.11, [("1", 4, 2)])])
def test_exclusive_jobs_shrink_on_the_releases_that_allocate_their_nodes_again(
    tmp_path: Path, release: float, expected: list[tuple[str, int, int]]
) -> None:
    conf = SHARED + "NodeName=n[1-4] CPUs=2\nPartitionName=main Nodes=ALL OverSubscribe=EXCLUSIVE\n"
    waiting = {"nodes": 2, "submit_time": 100.0, "run_time": 5000.0, "time_limit": 6000.0}
    run = simulated(tmp_path, conf, [{"nodes_min": 2, "nodes_pref": 2, **MALLEABLE}, waiting], release=release)
    assert resizes(run) == expected
    assert any(resize_layer.EXCLUSIVE in warning for warning in run.info.warnings) == (not expected)


def test_jobs_that_share_nodes_expand_up_to_the_size_that_they_had_and_not_on_newer_releases(tmp_path: Path) -> None:
    job = {"nodes": 2, "nodes_min": 1, "nodes_pref": 2, "nodes_max": 4, **MALLEABLE}
    waiting = {"nodes": 3, "submit_time": 100.0, "run_time": 200.0}
    assert resizes(simulated(tmp_path, SHARED + FOUR, [job, waiting])) == [("1", 2, 1), ("1", 1, 2)]
    run = simulated(tmp_path, SHARED + FOUR, [job, waiting], release=24.11)
    assert resizes(run) == [("1", 2, 1)]
    assert any(resize_layer.SHARED in warning for warning in run.info.warnings)


def test_an_expander_leaves_nodes_that_are_reserved_before_its_job_ends(tmp_path: Path) -> None:
    """Slurm plans it as a job of the lowest priority, until the limit of its job."""
    conf = SHARED + "NodeName=n[1-8] CPUs=2\nPartitionName=main Nodes=ALL\nPartitionName=wide Nodes=ALL\n"
    job = {"nodes": 4, "nodes_min": 2, "nodes_pref": 2, "partition": "main", **MALLEABLE}
    rigid = {"nodes": 4, "run_time": 300.0, "time_limit": 600.0, "partition": "wide"}
    small = {"nodes": 2, "run_time": 100.0, "time_limit": 120.0, "submit_time": 50.0, "partition": "main"}
    large = {"nodes": 6, "run_time": 10.0, "time_limit": 60.0, "submit_time": 60.0, "partition": "wide"}
    run = simulated(tmp_path, conf, [job, rigid, small, large])
    jobs = run.jobs.set_index("job_id")
    (expansion,) = (row for _, row in run.reconfigurations.iterrows() if row["nodes_to"] > row["nodes_from"])
    assert expansion["decided"] > jobs["start"]["4"] > jobs["end"]["2"]  # two nodes were idle from 150 s on


def test_a_limit_on_running_jobs_counts_expanders(tmp_path: Path) -> None:
    accounts = tmp_path / "dump.cfg"
    accounts.write_text(
        "Cluster - 'c'\nParent - 'root'\nUser - 'root'\nAccount - 'a'\nParent - 'a'\nUser - 'u':MaxJobs=2\n"
    )
    five = "NodeName=n[1-5] CPUs=2\nPartitionName=main Nodes=ALL\n"
    conf = SHARED + five + "ClusterName=c\nAccountingStorageEnforce=limits\nPriorityType=priority/multifactor\n"
    conf += "PriorityWeightAge=1000\n"
    (tmp_path / "slurm.conf").write_text(conf)
    rows = [
        {"job_id": "1", "nodes": 4, "run_time": 1000.0, "nodes_min": 2, "nodes_pref": 2, "nodes_max": 4, **MALLEABLE},
        {"job_id": "2", "nodes": 3, "run_time": 200.0, "nodes_min": 3, "nodes_pref": 3, "nodes_max": 3},
        {"job_id": "3", "nodes": 1, "run_time": 10.0, "nodes_min": 1, "nodes_pref": 1, "nodes_max": 1},
    ]
    submit = [0.0, 100.0, 400.0]
    table = pd.DataFrame(rows).assign(submit_time=submit, cores_per_node=2, time_limit=1500.0, user="u", group="a")
    workload = Workload(table.fillna({"kind": "rigid", "speedup": ""}), Provenance())
    machine = read(tmp_path / "slurm.conf", accounts).machine
    run = predict(workload, machine, "slurm", over_limit=OverLimit.KILL, policy_parameters={"resizes": "pref"})
    assert resizes(run) == [("1", 4, 2), ("1", 2, 4)]
    jobs = run.jobs.set_index("job_id")
    assert run.reconfigurations["asked"].iloc[1] > jobs["end"]["2"]  # one running job more was not allowed before
    assert run.reconfigurations["applied"].iloc[1] < 400.0
    assert jobs["start"]["3"] > jobs["end"]["1"]  # Slurm counts the merged expander, and a node was idle


@given(st.integers(0, 10**9), st.booleans())
@example(407, False)  # a job shrank for one that did not start, and expanded again, without ever working
def test_sizes_work_and_cores_of_resized_jobs_add_up(seed: int, lost: bool) -> None:
    inputs, policy = slurm_cases.crowded(seed)
    if not inputs.requests:
        return
    inputs = slurm_cases.with_resizing(seed, slurm_cases.with_outages(seed, inputs) if lost else inputs)
    assert inputs.resizing is not None
    layer = replace(inputs.resizing, release_s=0.0)  # so that no job ends before it has left its nodes
    inputs = replace(inputs, resizing=layer)
    outcome = COMPILED(inputs, policy)
    of_job: dict[int, list[Resized]] = {}
    for resize in outcome.resizes:
        job, request = resize.job, inputs.requests[resize.job]
        assert layer.least[job] <= resize.after <= layer.most[job]
        assert layer.shrinks[job] or resize.after > resize.before
        assert resize.after < resize.before or not any(request.gres)
        assert resize.asked <= resize.decided <= resize.ended
        of_job.setdefault(job, []).append(resize)
    for job, resizes_of_job in of_job.items():
        first_entry = inputs.entries.first[job] if inputs.entries else job
        killed_as_logged = not math.isnan(inputs.overrun_s[job])
        if outcome.fate[job] != ENDED or outcome.restarts[first_entry] or killed_as_logged:
            continue
        size = first = inputs.requests[job].fewest
        work, since = 0.0, outcome.launched[job]
        for resize in resizes_of_job:
            assert resize.before == size
            assert layer.grows[job] or resize.after <= first
            work += max(0.0, resize.decided - since) * layer.rates[job][size - layer.least[job]]
            since, size = max(since, resize.decided) + layer.pause_s, resize.after
        work += (outcome.end[job] - since) * layer.rates[job][size - layer.least[job]]
        assert work == pytest.approx(inputs.run_time[job], abs=1e-6)
    held = [(stint.parts, stint.start, stint.end) for stint in outcome.stints]
    held += [*zip(outcome.parts, outcome.active, outcome.end, strict=True)]
    for node, cores in enumerate(inputs.free.total):
        changes = [
            (at, sign * parts[node])
            for parts, *span in held
            if node in parts
            for at, sign in zip(span, (1, -1), strict=True)
        ]
        used = np.cumsum([change for _, change in sorted(changes)])
        assert inputs.preemption is not None or not len(used) or used.max() <= cores


def test_equal_nodes_without_a_slurm_conf_are_a_cluster_of_whole_nodes() -> None:
    rows = [
        {"job_id": "1", "nodes": 4, "run_time": 1000.0, "nodes_min": 2, "nodes_pref": 2, "nodes_max": 4, **MALLEABLE},
        {"job_id": "2", "nodes": 2, "run_time": 200.0, "nodes_min": 2, "nodes_pref": 2, "nodes_max": 2},
    ]
    table = pd.DataFrame(rows).assign(submit_time=[0.0, 100.0], cores_per_node=2)
    workload = Workload(table.fillna({"kind": "rigid", "speedup": ""}), Provenance())
    settings = {"resizes": "dmr", "release": 24.11}
    run = predict(workload, Machine.of_system(System(4, 2)), "slurm", policy_parameters=settings)
    assert resizes(run) == [("1", 4, 2), ("1", 2, 4)]
    assert "2 jobs without a time limit: run time used as limit" in run.info.warnings


def test_a_policy_that_the_layer_lacks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="resizes"):
        simulated(tmp_path, SHARED + FOUR, [{}], "easy")
