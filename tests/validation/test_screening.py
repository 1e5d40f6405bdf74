"""Screening of repetitions: nodes that were never used although a job lacked them, and copies of one real run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracebed.api as tb
from tests.commands import call
from tests.runs import fcfs_run, make_run
from tests.validation.test_validation import predicted, repetitions, validated
from tracebed.ground.errors import InputError
from tracebed.machine.machine import Machine, NodeClass, Partition
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.validation.verdict.health import unused_nodes
from tracebed.validation.verdict.noise import noise_floor
from tracebed.validation.verdict.screening import is_copy

TIMES = ["submit", "start", "end"]


def on_a_part(used: int, declared: int, *, jobs: int = 60, load: float = 0.95, seed: int = 3, **info: Any) -> Run:
    """Return a run on `used` nodes of a machine that is declared to have more."""
    run = fcfs_run(jobs, machine=used, seed=seed, **info)
    run.info.nodes = [NodeFacts(f"n{index}", 1) for index in range(declared)]
    return Run(run.info, run.jobs, run.allocations)


def test_no_run_passes_on_22_of_32_nodes() -> None:
    broken = on_a_part(22, 32, stretch=6.0)
    found = unused_nodes(broken)
    assert found is not None
    assert (len(found.nodes), found.total, found.nodes[0]) == (10, 32, "n22")
    assert found.waited_s > found.limit_s == 120.0
    whole = fcfs_run(60, machine=22, seed=3, stretch=6.0)
    assert unused_nodes(whole) is None
    alone = validated([broken], fcfs_run(60, machine=22, seed=3, stretch=6.0, real=False))
    excluded = alone.cases[0].repetitions[0].excluded
    assert excluded.startswith("H1: 10 of 32 nodes (n22, n23, n24, ...) were never used while job ")


@pytest.mark.parametrize(
    ("jobs", "options", "flagged"),
    [
        ([(0, 0, 900, 2), (10, 900, 1000, 1)], {}, True),  # the second job fits with the third node
        ([(0, 0, 900, 2), (10, 900, 1000, 2)], {}, False),  # it does not fit even so: three nodes, two of them busy
        ([(0, 0, 100, 2), (10, 500, 1000, 1)], {}, False),  # it waits although used nodes are idle: another reason
        ([(0, 0, 900, 2), (10, 110, 200, 1)], {}, False),  # it waits for less than the limit
        ([(0, 0, 900, 1), (10, 10, 90, 1)], {}, False),  # a small workload that never needs the third node
        ([(0, 0, 900, 2), (10, 900, 1000, 1)], {"speed": 2000.0}, False),  # less than a second of wall time
        ([(0, 0, 900, 2), (10, 900, 1000, 1)], {"parameters": {"interval_s": 600.0}}, False),
        ([(0, 0, 900, 2), (10, 900, 1000, 1)], {"policy_parameters": {"contiguous": True}}, False),
        ([(0, 0, 900, 2), (10, 900, 1000, 1)], {"unknown": {"allocations": "not recorded"}}, False),
        ([(0, 0, 900, 2), (10, 900, 1000, 1)], {"outages": [{"node": "n2", "from": 0.0, "until": None}]}, False),
    ],
)
def test_only_nodes_that_the_first_job_of_the_queue_lacked_count(
    jobs: list[tuple[float, float, float, int]], options: dict[str, Any], flagged: bool
) -> None:
    assert (unused_nodes(make_run(jobs, machine=3, **options)) is not None) == flagged


def test_unused_nodes_of_a_machine_with_partitions_are_no_evidence() -> None:
    """The third node may be of another partition."""
    run = make_run([(0, 0, 900, 2), (10, 900, 1000, 1)], machine=3)
    assert unused_nodes(run) is not None
    run.info.machine = Machine(classes=(NodeClass(count=3),), partitions=(Partition(name="p", nodes=("n1", "n2")),))
    assert unused_nodes(run) is None


def test_noise_is_not_pooled_over_broken_runs_in_silence(tmp_path: Path) -> None:
    runs = {f"r{n}": fcfs_run(60, machine=32, seed=3, stretch=1 + 0.001 * n) for n in range(5)}
    broken = on_a_part(22, 32, stretch=6.0)
    floor = noise_floor(runs | {"broken": broken})
    [left_out] = floor.left_out
    assert left_out.startswith("broken: unhealthy: 10 of 32 nodes (n22, n23, n24, ...) were never used while job ")
    assert floor.profile is not None
    wait = floor.profile.noise("mean_response_s")
    assert wait is not None
    assert floor.selections["with excluded"]["mean_response_s"].log_sd > 5 * wait.log_sd
    for number, run in enumerate([*runs.values(), broken]):
        run.save(tmp_path / "cell" / f"rep-{number}")
    result = call("metrics", tmp_path / "cell", "--noise", tmp_path / "noise.yaml")
    assert "with excluded" in result.stdout
    assert "excluded: " in result.stderr


def test_a_cell_of_one_run_has_no_nan_and_no_unknown_policy_in_its_name(tmp_path: Path) -> None:
    run = fcfs_run(20, policy="not known", source="log", execution="logged", health={})
    run.save(tmp_path / "run")
    result = call("metrics", tmp_path / "run", "--noise", tmp_path / "noise.yaml")
    assert "nan" not in result.stdout
    assert "not known" not in result.stdout
    assert "tiny " in result.stdout


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    nodes=st.sampled_from([4, 8, 16]),
    times=st.sampled_from([1, 2]),
    load=st.sampled_from([0.5, 0.9, 1.3]),
    policy=st.sampled_from(registry.names()),
    priority=st.sampled_from(["fcfs", "shortest-first"]),
    malleable=st.sampled_from([0.0, 0.6]),
)
def test_no_simulated_run_of_any_policy_is_excluded(
    seed: int, nodes: int, times: int, load: float, policy: str, priority: str, malleable: float
) -> None:
    """Neither where all nodes are used, nor where the machine is larger than the workload needs."""
    work = tb.scale(tb.generate("cirne", jobs=40, nodes=nodes, seed=seed), nodes=nodes, load=load)
    if malleable:
        work = tb.make_malleable(work, share=malleable, seed=seed)
    try:
        run = tb.simulate(work, policy, nodes=times * nodes, priority=priority)
    except tb.InputError:  # a policy with an order of its own
        run = tb.simulate(work, policy, nodes=times * nodes)
    assert unused_nodes(run) is None


def test_a_simulated_run_on_fewer_nodes_than_declared_is_excluded_under_load() -> None:
    work = tb.scale(tb.generate("cirne", jobs=150, nodes=32, seed=1), nodes=22, load=1.1)
    for policy in ("easy", "fcfs", "conservative", "firstfit"):
        run = tb.simulate(work, policy, nodes=22)
        run.info.nodes = [NodeFacts(f"n{index}", 1) for index in range(32)]
        found = unused_nodes(run)
        assert found is not None, policy
        assert len(found.nodes) == 10


def test_no_public_log_is_excluded_and_too_many_declared_nodes_are(
    reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    """OAR on Grid'5000: ten runs on 34 and 37 nodes, whose ids begin with 1."""
    folder = reference_data("grid5000-2016-02")
    for size in (34, 37):
        flagged = []
        for seed in range(5):
            words = ["--as", "real", "--columns", "nodes=requested_number_of_processors,held=allocated_processors"]
            source = folder / f"g5k_workload_delay_seed{seed}_size{size}.real_jobs.csv"
            for declared in (size, 47):
                target = tmp_path / f"{seed}-{size}-{declared}"
                call("import", source, *words, "--nodes", declared, "-o", target)
                found = unused_nodes(Run.load(target))
                flagged.append((declared, found is not None))
        assert (size, True) not in flagged
        assert (47, True) in flagged


def moved(run: Run, seconds: float = 0.0, decimals: int | None = None) -> Run:
    """Return a copy of a run with all times shifted, and rounded."""
    jobs = run.jobs.copy()
    jobs[TIMES] += seconds
    if decimals is not None:
        jobs[TIMES] = jobs[TIMES].round(decimals)
    return Run(run.info, jobs, run.allocations)


@pytest.mark.parametrize(("seconds", "decimals"), [(0.003, None), (3600.0, None), (0.0, 0), (0.4, 0), (0.0, 1)])
def test_no_copy_passes_shifted_or_rounded(seconds: float, decimals: int | None) -> None:
    real = repetitions(4)
    copy = moved(real[0], seconds, decimals)
    assert is_copy(copy, real[0])
    if decimals != 0:  # the repetitions differ by less than a second
        assert not any(is_copy(copy, other) for other in real[1:])
    found = validated([*real, copy])
    assert found.cases[0].repetitions[4].excluded == "H7: the same log as rep-01"
    assert noise_floor({"one": real[0], "two": copy, "three": real[1]}).left_out == ("two: the same times as one",)


def test_five_copies_shifted_by_milliseconds_are_one_repetition() -> None:
    [run] = repetitions(1)
    found = validated([moved(run, 0.001 * number) for number in range(5)])
    assert [each.excluded for each in found.cases[0].repetitions[1:]] == ["H7: the same log as rep-01"] * 4


def test_repetitions_with_little_noise_are_no_copies() -> None:
    generator = np.random.default_rng(1)
    [run] = repetitions(1)
    for decimals in (None, 0):
        jobs = run.jobs.copy()
        jobs[["start", "end"]] += generator.exponential(0.5, (len(jobs), 2))
        other = moved(Run(run.info, jobs, run.allocations), 0.0, decimals)
        assert not is_copy(other, moved(run, 0.0, decimals))


def test_a_prediction_with_permuted_ids_is_no_prediction() -> None:
    real, sim = repetitions(5), predicted()
    jobs = sim.jobs.copy()
    jobs["job_id"] = np.roll(jobs["job_id"], 7)
    with pytest.raises(InputError, match=r"40 jobs of the same workload differ in their plan, first job 1: "):
        validated(real, Run(sim.info, jobs, sim.allocations))


def test_a_prediction_with_ids_permuted_among_jobs_of_one_size_is_no_prediction() -> None:
    real, sim = repetitions(5), predicted()
    jobs = sim.jobs.copy().assign(submit_planned=0.0)
    for run in real:
        run.jobs["submit_planned"] = 0.0
    alike = np.flatnonzero(jobs["nodes"] == jobs["nodes"].mode()[0])[:2]
    jobs.loc[alike, "job_id"] = jobs.loc[alike[::-1], "job_id"].to_numpy()
    with pytest.raises(InputError, match="2 jobs of the same workload differ in their plan"):
        validated(real, Run(sim.info, jobs, sim.allocations))


def test_the_order_of_rows_does_not_matter() -> None:
    sim = predicted()
    shuffled = Run(sim.info, sim.jobs.sample(frac=1, random_state=1), sim.allocations)
    assert isinstance(shuffled.jobs, pd.DataFrame)
    validated([fcfs_run(40, stretch=1.001)], shuffled)
