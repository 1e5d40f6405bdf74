"""Shared nodes with a grain: cores change hands at malleability points, and data divided by the first cores."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.oracles.reference_cores import CoreJob
from tests.scheduling.test_cores import MATE_AND_GUEST, case, jobs_of, pieces, workload_of
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies.drom import DromShare
from tracebed.orchestrator.scheduling.policies.sd import SlowdownDriven
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.simulator import Simulator


def simulated(
    jobs: list[CoreJob],
    policy: Policy,
    overheads: Overheads,
    *,
    nodes: int = 1,
    cores: int = 8,
    sockets: int = 1,
    model: str = "worst-case",
    application: str = "pils",
    parameters: str = "",
) -> tuple[ScheduleRecord, Simulator]:
    work = workload_of(jobs)
    work.table["application"], work.table["application_parameters"] = application, parameters
    simulator = Simulator(
        Jobs.of(work, cores_per_node=cores),
        [cores] * nodes,
        policy,
        Setup.of(policy, runtime_model=model, overheads=overheads),
        sockets=[sockets] * nodes,
    )
    return simulator.run(), simulator


def test_a_guest_begins_at_the_next_malleability_point_of_its_owner() -> None:
    """The owner's points are every 8 s, then, on half its cores, every 16 s: the cores return at 72, not at 56."""
    record, _ = simulated(MATE_AND_GUEST, SlowdownDriven(max_slowdown="inf"), Overheads(grain_s=8.0))
    step = 100 / round(100 / 8)
    first = 2 * step  # the first point after 10 s
    guest_end = first + 40
    returned = first + 2 * step * math.ceil((guest_end - first) / (2 * step))
    assert record.start == [0.0, 10.0]
    assert record.launched == pytest.approx([0.0, first])
    assert record.end == pytest.approx([100 + (returned - first) / 2, guest_end])


def test_a_guest_begins_when_its_owner_ends_if_that_has_no_further_malleability_point() -> None:
    """The owner is in its last iteration. The guest takes the whole node when the owner ends."""
    record, _ = simulated(MATE_AND_GUEST, SlowdownDriven(max_slowdown="inf"), Overheads(grain_s=200.0))
    assert record.start == [0.0, 10.0]
    assert record.launched == [0.0, 100.0]
    assert record.end == [100.0, 120.0]


def test_the_launch_of_a_guest_goes_on_while_it_waits_for_its_cores() -> None:
    overheads = Overheads(grain_s=5.0, launch_s=4.0)
    record, _ = simulated(MATE_AND_GUEST, SlowdownDriven(max_slowdown="inf"), overheads)
    assert record.launched == pytest.approx([4.0, 14.0])  # the owner's point at 14 s is when the launch ends
    later = replace(MATE_AND_GUEST[1], submit=13.0)
    record, _ = simulated([MATE_AND_GUEST[0], later], SlowdownDriven(max_slowdown="inf"), overheads)
    assert record.launched == pytest.approx([4.0, 17.0])


def test_a_second_guest_need_not_wait_for_cores_that_have_not_returned() -> None:
    jobs = [*jobs_of((0.0, 100.0, 100.0, 1, 8), (10.0, 20.0, 20.0, 1, 8), (20.0, 5.0, 5.0, 1, 8))]
    record, _ = simulated(jobs, DromShare(), Overheads(grain_s=10.0))
    assert record.launched == pytest.approx([0.0, 20.0, 60.0])  # the second guest starts as the first one ends
    assert record.end[1] == 60.0 == record.start[2]


def test_data_divided_by_the_first_cores_leave_cores_unused() -> None:
    """The data of 8 cores are 32 tasks. 5 cores do them in 7 rounds: 4/7 of the speed, not 5/8 (DROM, figure 5)."""
    jobs = [*jobs_of((0.0, 100.0, 100.0, 1, 8), (10.0, 20.0, 20.0, 1, 3))]
    ends = {}
    for data in ("free", "static"):
        record, simulator = simulated(
            jobs,
            DromShare(split="asked"),
            Overheads(),
            application="simulation",
            parameters=f"data={data}",
        )
        assert pieces(simulator)[1] == [(10.0, 30.0, 0, 3)]
        assert record.end[1] == pytest.approx(30.0)  # a guest on as many cores as it requests
        ends[data] = record.end[0]
    assert ends == {"free": pytest.approx(120 - 20 * 5 / 8), "static": pytest.approx(120 - 20 * 4 / 7)}


def test_a_guest_with_divided_data_uses_as_many_cores_as_it_has_tasks() -> None:
    """A guest that starts on 4 cores has 16 tasks: all 8 cores compute 2 of them after the end of the owner."""
    jobs = [*jobs_of((0.0, 20.0, 20.0, 1, 8), (10.0, 100.0, 100.0, 1, 8))]
    record, _ = simulated(jobs, DromShare(), Overheads(), application="simulation", parameters="data=static")
    assert record.end == pytest.approx([30.0, 120.0])  # 4 of 8 cores, and all 8 after the owner's end at 30 s


class Slow:
    """The jobs of a drawn case, in steps: the slow reference of the cores that jobs use."""

    def __init__(self, jobs: list[CoreJob], simulator: Simulator, model: str, cores: int, grain: float) -> None:
        self.jobs, self.model, self.cores, self.grain = jobs, model, cores, grain
        self.held = pieces(simulator)
        self.record = simulator.record
        self.used: list[tuple[float, float, int, int]] = []
        """(start, end, node, cores) of each iteration."""

    def allocated(self, job: int, at: float) -> dict[int, int]:
        return {node: cores for start, end, node, cores in self.held[job] if start <= at < end}

    def end(self, job: int) -> float:
        """Return the end of `job`: iterations of equal work, each on the cores allocated as it begins."""
        row = self.jobs[job]
        iterations = max(1, round(row.run_time / self.grain))
        now = self.record.launched[job]
        wanted = min(row.cores, self.cores)
        first = self.allocated(job, self.record.start[job])
        for _ in range(iterations):
            there = first if row.kind == "moldable" else self.allocated(job, now + 1e-7) or first
            has = [min(cores, wanted) for cores in there.values()]
            share = min(has) / wanted if self.model == "worst-case" else sum(has) / len(has) / wanted
            begun, now = now, now + row.run_time / iterations / row.speed(share)
            self.used += [(begun, now, node, cores) for node, cores in there.items()]
        return now


def drawn_cases(seeds: range, policy: str) -> Iterator[tuple[int, list[CoreJob], dict[str, Any], dict[str, Any]]]:
    for seed in seeds:
        jobs, machine, parameters = case(seed, policy)
        rng = random.Random(f"grain {seed}")
        for job in jobs:
            job.run_time += rng.uniform(0.1, 0.9)  # so that no two events are at one instant
            job.submit += rng.uniform(0.0, 0.1)
            job.limit = max(job.limit, job.run_time) * rng.uniform(1.0, 1.5)
        jobs.sort(key=lambda job: job.submit)
        jobs = [replace(job, id=number) for number, job in enumerate(jobs)]
        machine.pop("over_limit")
        yield seed, jobs, machine, parameters


@pytest.mark.parametrize(("policy", "kind"), [("sd", SlowdownDriven), ("drom-share", DromShare)])
def test_ends_equal_those_of_a_slow_reference_in_steps(policy: str, kind: type[Policy]) -> None:
    """Each job does its iterations on the cores that it is allocated as the iteration begins."""
    shared = late = 0
    for seed, jobs, machine, parameters in drawn_cases(range(80), policy):
        grain = random.Random(seed).choice([0.7, 3.1, 11.0])
        record, simulator = simulated(jobs, kind(**parameters), Overheads(grain_s=grain), **machine)
        slow = Slow(jobs, simulator, machine["model"], machine["cores"], grain)
        for job in range(len(jobs)):
            if record.state[job] != "completed":
                continue
            late += record.launched[job] > record.start[job]
            shared += len({cores for *_, cores in slow.held[job]}) > 1
            assert record.end[job] == pytest.approx(slow.end(job), abs=1e-5), (seed, job)
        changes = {end for _, end, *_ in slow.used}
        for job in range(len(jobs)):
            if record.launched[job] > record.start[job]:  # as soon as another job leaves the cores
                assert any(math.isclose(record.launched[job], end, abs_tol=1e-5) for end in changes), (seed, job)
        for begun, _, at, _ in slow.used:
            instant = begun + 1e-4
            busy = sum(cores for start, end, node, cores in slow.used if node == at and start <= instant < end)
            assert busy <= machine["cores"], (seed, begun)
    assert shared > 20
    assert late > 20
