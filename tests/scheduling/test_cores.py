"""Policies that share nodes, and dmr: equal to their slow references, within invariants, and the papers' figures."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.reference_cores import CoreJob, CoresReference, DmrReference
from tests.oracles.reference_scheduler import NearTie, RefJob
from tests.replay.test_replayer import workload
from tests.runs import resize_rows
from tests.scheduling.test_scheduling import workload_of as whole_nodes
from tracebed.converters.workload import Workload
from tracebed.ground.cpus import parse_cpus
from tracebed.ground.errors import InputError
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay.event_handler import mask_changed
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies.dmr import Dmr
from tracebed.orchestrator.scheduling.policies.drom import DromShare
from tracebed.orchestrator.scheduling.policies.sd import ReservationMap, SlowdownDriven, Trial
from tracebed.orchestrator.scheduling.record import NEVER, CoreChange, CoreChanges, ScheduleRecord
from tracebed.orchestrator.scheduling.reservations import Releases
from tracebed.orchestrator.scheduling.state import Decision, Policy, Share, State
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.simulation.simulator import Simulator
from tracebed.orchestrator.tables import allocations_table

MICROSECOND = 1e-6
POLICIES = {"sd": SlowdownDriven, "drom-share": DromShare}
Steps = dict[int, list[tuple[float, float, int, int]]]


def workload_of(jobs: list[CoreJob]) -> Workload:
    return Workload(
        pd.DataFrame(
            {
                "job_id": [str(job.id) for job in jobs],
                "submit_time": [job.submit for job in jobs],
                "run_time": [job.run_time for job in jobs],
                "time_limit": [job.limit for job in jobs],
                "nodes": [job.nodes for job in jobs],
                "cores_per_node": [job.cores for job in jobs],
                "kind": [job.kind for job in jobs],
                "speedup": ["linear" if job.fraction == 1 else "amdahl" for job in jobs],
                "speedup_parameters": ["" if job.fraction == 1 else str(job.fraction) for job in jobs],
                "user": [job.user for job in jobs],
                "ranks_per_node": [job.ranks for job in jobs],
            }
        )
    )


def simulated(
    jobs: list[CoreJob],
    policy: Policy,
    *,
    nodes: int,
    cores: int,
    sockets: int = 1,
    model: str = "ideal",
    over_limit: OverLimit = OverLimit.EXTEND,
) -> tuple[ScheduleRecord, Simulator]:
    simulator = Simulator(
        Jobs.of(workload_of(jobs), cores_per_node=cores, over_limit=over_limit),
        [cores] * nodes,
        policy,
        Setup.of(policy, runtime_model=model),
        sockets=[sockets] * nodes,
    )
    return simulator.run(), simulator


def pieces(simulator: Simulator) -> Steps:
    """Return job -> (start, end, node, cores) of each of its allocations."""
    ledger, pieces = simulator.cluster.ledger, Steps()
    for entry, job in enumerate(ledger.jobs):
        first, start, end = ledger.firsts[entry], ledger.starts[entry], ledger.ends[entry]
        for node in range(first, first + ledger.counts[entry]):
            part = ledger.parts.get(entry, range(simulator.cluster.cores[node]))
            pieces.setdefault(job, []).append((start, end, node, len(part)))
    return pieces


def drawn(rng: np.random.Generator, nodes: int, cores: int, *, limits_hold: bool) -> list[CoreJob]:
    """Draw a dense workload with times on a lattice; all core counts divide each other."""
    jobs, submit = [], 0.0
    for number in range(int(rng.integers(2, 26))):
        submit += float(rng.choice([0.0, 0.0, 1.0, 4.0, 16.0]))
        run_time = float(rng.choice([0.0, 1.0, 2.0, 8.0, 12.0, 24.0, 40.0]))
        limit = float(rng.choice([0.0, 2.0, 8.0, 16.0, 32.0, 64.0, 96.0]))
        job = CoreJob(
            number,
            submit,
            min(run_time, limit) if limits_hold else run_time,
            limit,
            int(rng.integers(1, nodes + 1 + (rng.random() < 0.05))),
            int(rng.choice([cores, cores, max(1, cores // 2), 1])),
            str(rng.choice(["malleable", "malleable", "malleable", "moldable", "rigid"])),
        )
        jobs.append(job)
    return jobs


def case(seed: int, policy: str) -> tuple[list[CoreJob], dict[str, Any], dict[str, Any]]:
    """Return the jobs, the machine with its runtime model and over-limit rule, and the policy's parameters."""
    rng = np.random.default_rng(seed)
    nodes, cores = int(rng.integers(1, 8)), int(rng.choice([1, 2, 4, 8]))
    machine = {"nodes": nodes, "cores": cores, "sockets": int(rng.choice([1, 2 if cores > 1 else 1]))}
    machine["model"] = str(rng.choice(["ideal", "worst-case"]))
    machine["over_limit"] = random.Random(seed).choice([*OverLimit])
    jobs = drawn(rng, nodes, cores, limits_hold=bool(rng.random() < 0.5))
    serial = random.Random(seed)
    for job in jobs if seed % 2 else []:
        job.fraction = serial.choice([1.0, 0.75, 0.5, 0.0])
    if policy == "drom-share":
        modes = ["share", "share", "share", "serial"]
        mode, split = str(rng.choice(modes)), str(rng.choice(["even", "asked"]))
        return jobs, machine, {"mode": mode, "split": split if mode == "share" else "even"}
    return (
        jobs,
        machine,
        {
            "max_slowdown": str(rng.choice(["5", "10", "inf", "dynamic", "median", "p70", "1.5"])),
            "sharing_factor": float(rng.choice([0.5, 0.5, 0.25, 0.75])),
            "mates": int(rng.choice([1, 2, 2, 3])),
            "candidates": int(rng.choice([0, 64, 2])),
            "include_free_nodes": bool(rng.random() < 0.5),
            "inside": str(rng.choice(["after", "after", "before", "off"])),
            "depth": int(rng.choice([100, 0, 3])),
            "backfill_interval_s": float(rng.choice([0.0, 0.0, 4.0])),
            "keep_plan": bool(rng.random() < 0.3),
        },
    )


Case = tuple[list[CoreJob], dict[str, Any], dict[str, Any]]


def compare(seed: int, policy: str, drawn_case: Case | None = None) -> int:
    """Compare one drawn case with the slow reference; return the number of jobs that shared nodes."""
    jobs, machine, parameters = drawn_case or case(seed, policy)
    record, simulator = simulated(jobs, POLICIES[policy](**parameters), **machine)
    expected = CoresReference(jobs, policy=policy, **machine, **parameters).go()
    held = pieces(simulator)
    for job in jobs:
        want = expected[job.id]
        if math.isnan(want.start):
            assert record.state[job.id] == "rejected"
            continue
        assert record.start[job.id] == pytest.approx(want.start, abs=MICROSECOND), (seed, job)
        assert record.end[job.id] == pytest.approx(want.end, abs=MICROSECOND), (seed, job)
        for since, cores in want.cores:
            mine = sum(part for start, end, _, part in held.get(job.id, []) if start <= since + MICROSECOND < end)
            assert mine == cores or since + 2 * MICROSECOND > want.end, (seed, job, since)
    return len({simulator.cluster.ledger.jobs[entry] for entry in simulator.cluster.ledger.parts})


def as_slurm_ran(seed: int) -> tuple[list[CoreJob], dict[str, Any], dict[str, Any]]:
    """Return a drawn case of sd with any options of the paper's program and of Slurm's passes."""
    jobs, machine, parameters = case(seed, "sd")
    rng = random.Random(seed)
    for job in jobs:
        job.user = rng.choice("ab")
        job.ranks = rng.choice([1, 1, 2, 4])
    parameters |= {"if_earlier": rng.random() < 0.5, "partial": rng.random() < 0.5, "weighted": rng.random() < 0.5}
    parameters["mates"] = rng.choice([0, 1, 2, 2, 2, 3])
    if rng.random() < 0.7:
        parameters |= {"backfill_interval_s": 4.0, "depth": rng.choice([0, 0, 5])}
        parameters |= {"bf_window": rng.choice([0, 1, 1, 2]), "bf_resolution": rng.choice([0, 1, 5, 60])}
        parameters |= {"bf_node_space_size": rng.choice([0, 1, 3, 6]), "bf_max_job_user": rng.choice([0, 0, 2])}
    return jobs, machine, parameters


@pytest.mark.parametrize("block", range(4))
def test_the_options_of_the_papers_program_equal_the_slow_reference(block: int) -> None:
    shared = [compare(seed, "sd", as_slurm_ran(seed)) for seed in range(1000 + block * 60, 1000 + (block + 1) * 60)]
    assert sum(count > 0 for count in shared) > 8  # enough cases share nodes


@pytest.mark.parametrize("policy", ["sd", "drom-share"])
@pytest.mark.parametrize("block", range(4))
def test_schedules_equal_the_slow_references(policy: str, block: int) -> None:
    shared = [compare(seed, policy) for seed in range(block * 60, (block + 1) * 60)]
    assert sum(count > 0 for count in shared) > 8  # enough cases share nodes


def drawn_sizes(rng: np.random.Generator, nodes: int) -> list[RefJob]:
    jobs, submit = [], 0.0
    for number in range(int(rng.integers(2, 26))):
        submit += float(rng.choice([0.0, 0.0, 1.0, 3.0, 10.0]))
        size = int(rng.integers(1, nodes + 1))
        run_time, limit = float(rng.choice([0.0, 1.0, 5.0, 20.0, 40.0])), float(rng.choice([1.0, 10.0, 40.0, 60.0]))
        job = RefJob(number, submit, run_time, limit, size, malleable=bool(rng.random() < 0.7))
        if job.malleable:
            job.nodes_pref = int(rng.integers(1, nodes + 1))
            job.nodes_min = int(rng.integers(1, job.nodes_pref + 1))
            job.nodes_max = int(rng.integers(job.nodes_pref, nodes + 2))
            job.parallel_fraction = [None, 0.5, 0.9][int(rng.integers(3))]
        jobs.append(job)
    return jobs


def compare_dmr(seed: int) -> int:
    """Compare one drawn case of dmr with its slow reference; return the number of resizes, 0 if rounding decides."""
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(1, 11))
    jobs = drawn_sizes(rng, nodes)
    options = {
        "interval_s": float(rng.choice([0.0, 0.0, 4.0])),
        "malleability_interval_s": float(rng.choice([0.0, 0.0, 2.0, 3.7])),
    }
    chance = random.Random(seed)
    over_limit = chance.choice([*OverLimit])
    parameters = {"floor": chance.choice(["pref", "min"]), "sizes": chance.choice(["any", "any", "halved"])}
    simulator = Simulator(
        Jobs.of(whole_nodes(jobs), over_limit=over_limit), [1] * nodes, Dmr(**parameters), Setup.of("dmr", **options)
    )
    record = simulator.run()
    reference = DmrReference(jobs, nodes, over_limit=over_limit, **parameters, **options)
    try:
        reference.go()
    except NearTie:
        return 0
    for job in jobs:
        want = reference.results[job.id]
        assert record.state[job.id] == want.state
        if want.start is not None:
            assert record.start[job.id] == pytest.approx(want.start, abs=MICROSECOND), (seed, job)
            assert record.end[job.id] == pytest.approx(want.end, abs=MICROSECOND), (seed, job)
        mine = [(int(row[1]), int(row[2])) for row in resize_rows(record) if row[0] == job.id]
        assert mine == [step[1:] for step in want.resizes], (seed, job)
    return len(record.resizes)


@pytest.mark.parametrize("block", range(4))
def test_dmr_equals_its_slow_reference(block: int) -> None:
    assert sum(compare_dmr(seed) > 0 for seed in range(block * 60, (block + 1) * 60)) > 15


@pytest.mark.parametrize("policy", ["sd", "drom-share"])
def test_no_core_is_allocated_twice_and_every_job_has_one(policy: str) -> None:
    for seed in range(10_000, 10_060):
        jobs, machine, parameters = case(seed, policy)
        _, simulator = simulated(jobs, POLICIES[policy](**parameters), **machine)
        held = pieces(simulator)
        assert all(cores >= 1 for rows in held.values() for *_, cores in rows)
        assert sorted(simulator.cluster.idle) == list(range(machine["nodes"]))
        assert not simulator.cluster.loans
        rows = [row for rows in held.values() for row in rows if row[0] < row[1]]
        for instant in {row[0] for row in rows}:
            for node in range(machine["nodes"]):
                here = [cores for start, end, at, cores in rows if at == node and start <= instant < end]
                assert sum(here) in (0, machine["cores"]), (seed, instant, node)  # all cores are in use
                assert len(here) <= 2
        for job in jobs:  # on its requested number of nodes from start to end
            mine = [row for row in held.get(job.id, []) if row[0] < row[1]]
            for instant in {row[0] for row in mine}:
                assert len({at for start, end, at, _ in mine if start <= instant < end}) == job.nodes
                if job.kind == "rigid":
                    assert {cores for _, _, _, cores in mine} == {machine["cores"]}
        masks = [range(machine["cores"] * node, machine["cores"] * (node + 1)) for node in range(machine["nodes"])]
        table = allocations_table(
            simulator.cluster.ledger, [str(job.id) for job in jobs], simulator.cluster.cores, masks
        ).frame()
        pinned = [(row.start, row.end, cpu) for row in table.itertuples() for cpu in parse_cpus(row.cpus)]
        assert len(pinned) == int((table["count"] * table["cores"]).sum())
        for cpu in {row[2] for row in pinned}:  # one job at a time
            mine = sorted(row[:2] for row in pinned if row[2] == cpu)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(mine)), (seed, cpu)
        busy = float(((table["end"] - table["start"]) * table["count"] * table["cores"]).sum())
        assert busy == pytest.approx(sum((end - start) * cores for start, end, _, cores in rows))


@pytest.mark.parametrize("policy", ["sd", "drom-share"])
def test_work_is_conserved_under_both_runtime_models(policy: str) -> None:
    """The integral of the rate over a job's life is its run time, or its limit if it is killed there."""
    shared = 0
    for seed in range(20_000, 20_060):
        jobs, machine, parameters = case(seed, policy)
        _, simulator = simulated(jobs, POLICIES[policy](**parameters), **machine)
        for job, rows in pieces(simulator).items():
            if jobs[job].kind == "moldable":
                continue  # it may inherit a node when it starts, but keeps its initial cores
            wanted = min(jobs[job].cores, machine["cores"])
            instants = sorted({instant for row in rows for instant in row[:2]})
            done = 0.0
            for start, end in itertools.pairwise(instants):
                has = [min(cores, wanted) for since, until, _, cores in rows if since <= start < until]
                share = sum(has) / len(has) / wanted if machine["model"] == "ideal" else min(has) / wanted
                done += (end - start) * jobs[job].speed(share)
                shared += share < 1
            if instants[0] < instants[-1]:
                assert done == pytest.approx(simulator.jobs.work[job], abs=1e-6), (seed, job)
    assert shared > 20


def test_guests_end_inside_their_mates_allocations_when_limits_hold() -> None:
    """SD-Policy paper, section 3.2.4: every job runs exactly its limit, so the estimates are exact.

    The equations of the paper have no serial part: a mate with one ends earlier than they say.
    """
    pairs: list[tuple[int, int]] = []

    class Watched(SlowdownDriven):
        def decide(self, state: State) -> Iterator[Decision]:
            for decision in super().decide(state):
                if isinstance(decision, Share):
                    pairs.extend((decision.job, loan.owner) for loan in decision.loans)
                yield decision

    guests = 0
    for seed in range(30_000, 30_080):
        jobs, machine, parameters = case(seed, "sd")
        for job in jobs:
            job.run_time, job.fraction = job.limit, 1.0
        parameters["inside"], machine["model"] = "after", "worst-case"
        pairs.clear()
        record, _ = simulated(jobs, Watched(**parameters), **machine)
        guests += len(pairs)
        for guest, mate in pairs:
            assert record.end[guest] <= record.end[mate] + MICROSECOND, (seed, guest, mate)
    assert guests > 20


def jobs_of(*rows: tuple[float, float, float, int, int], kind: str = "malleable") -> list[CoreJob]:
    """Return jobs of (submit, run time, limit, nodes, cores)."""
    return [CoreJob(number, *row, kind) for number, row in enumerate(rows)]


def numbered(*jobs: CoreJob) -> list[CoreJob]:
    """Return the jobs with their places as numbers."""
    return [replace(job, id=number) for number, job in enumerate(jobs)]


@pytest.mark.parametrize("model", [*RuntimeModel])
def test_fewer_cores_do_not_slow_down_the_serial_part(model: str) -> None:
    """With f = 0.8 and half the cores of one node, the run time is 0.2 + 0.8 / (1/2) = 1.8 times as long."""
    jobs = [replace(job, fraction=0.8) for job in MATE_AND_GUEST]
    record, _ = simulated(jobs, SlowdownDriven(max_slowdown="inf"), nodes=1, cores=8, sockets=2, model=model)
    assert record.start == [0.0, 10.0]
    assert record.end == pytest.approx([10 + 36 + (100 - 10 - 36 / 1.8), 10 + 20 * 1.8])


MATE_AND_GUEST = jobs_of((0.0, 100.0, 100.0, 1, 8), (10.0, 20.0, 20.0, 1, 8))


def test_sd_equations_4_to_6_by_hand() -> None:
    """Half a node each: the guest takes 40 s instead of 20, its mate is delayed by 40 x (1 - 1/2) = 20 s."""
    record, simulator = simulated(MATE_AND_GUEST, SlowdownDriven(max_slowdown="inf"), nodes=1, cores=8, sockets=2)
    assert record.start == [0.0, 10.0]
    assert record.end == [120.0, 50.0]
    assert pieces(simulator) == {
        0: [(0.0, 10.0, 0, 8), (10.0, 50.0, 0, 4), (50.0, 120.0, 0, 8)],
        1: [(10.0, 50.0, 0, 4)],
    }


@pytest.mark.parametrize(("cut_off", "start"), [("1.2", 100.0), ("1.21", 10.0), ("dynamic", 100.0)])
def test_sd_excludes_mates_with_a_high_penalty(cut_off: str, start: float) -> None:
    """p = (0 + 20 + 100) / 100 = 1.2; the average slowdown of the one running job is 1."""
    record, _ = simulated(MATE_AND_GUEST, SlowdownDriven(max_slowdown=cut_off), nodes=1, cores=8)
    assert record.start[1] == start


@pytest.mark.parametrize(("cut_off", "start"), [("1.4", 240.0), ("1.41", 100.0)])
def test_sd_counts_the_delay_of_a_mate_by_earlier_guests(cut_off: str, start: float) -> None:
    """Equation 6 sums over all sharing: the guest from 10 to 90 cost 40 s, so p = (40 + 40 + 200) / 200 = 1.4."""
    jobs = jobs_of((0.0, 200.0, 200.0, 1, 8), (10.0, 40.0, 40.0, 1, 8), (100.0, 40.0, 40.0, 1, 8))
    record, _ = simulated(jobs, SlowdownDriven(max_slowdown=cut_off), nodes=1, cores=8)
    assert record.start == [0.0, 10.0, start]
    assert record.end[1] == 90.0


@pytest.mark.parametrize(("submit", "start"), [(40.0, 110.0), (60.0, 60.0)])
def test_sd_cuts_off_at_the_average_slowdown_of_the_running_jobs(submit: float, start: float) -> None:
    """DynAVGSD, section 3.2.2. The mate's penalty is (0 + 40 + 200) / 200 = 1.2, the average at 40 is 1.

    At 60 a job of 60 s that waited 50 s is running: (1 + 110/60) / 2 = 1.42.
    """
    rigid = jobs_of((0.0, 50.0, 50.0, 1, 8), (0.0, 60.0, 60.0, 1, 8), kind="rigid")
    jobs = numbered(*jobs_of((0.0, 200.0, 200.0, 1, 8)), *rigid, *jobs_of((submit, 40.0, 40.0, 1, 8)))
    record, _ = simulated(jobs, SlowdownDriven(), nodes=2, cores=8)
    assert record.start == [0.0, 0.0, 50.0, start]


@pytest.mark.parametrize(("max_slowdown", "start"), [("dynamic", 60.0), ("median", 110.0), ("p70", 60.0)])
def test_sd_may_cut_off_at_a_quantile_of_the_running_jobs(max_slowdown: str, start: float) -> None:
    """Section 3.2.2. At 60 the slowdowns of the running jobs are 1, 1 and 110/60, the mate's penalty is 1.2."""
    rigid = jobs_of((0.0, 200.0, 200.0, 1, 8), (0.0, 50.0, 50.0, 1, 8), (0.0, 60.0, 60.0, 1, 8), kind="rigid")
    jobs = numbered(*jobs_of((0.0, 200.0, 200.0, 1, 8)), *rigid, *jobs_of((60.0, 40.0, 40.0, 1, 8)))
    record, _ = simulated(jobs, SlowdownDriven(max_slowdown=max_slowdown), nodes=3, cores=8)
    assert record.start == [0.0, 0.0, 0.0, 50.0, start]


@pytest.mark.parametrize(("keep_plan", "starts"), [(False, [0.0, 140.0, 10.0]), (True, [0.0, 100.0, 200.0])])
def test_sd_may_keep_guests_from_nodes_that_the_plan_reserves(keep_plan: bool, starts: list[float]) -> None:
    """The node is reserved for the rigid job at 100. The guest would delay its mate until 140."""
    rigid = jobs_of((10.0, 100.0, 100.0, 1, 8), kind="rigid")
    jobs = numbered(*jobs_of((0.0, 100.0, 100.0, 1, 8)), *rigid, *jobs_of((10.0, 40.0, 40.0, 1, 8)))
    record, _ = simulated(jobs, SlowdownDriven(max_slowdown="inf", keep_plan=keep_plan), nodes=1, cores=8)
    assert record.start == starts


def test_sd_tries_each_job_as_a_guest_right_after_its_static_trial() -> None:
    """Section 3.1: in order of priority, not after all static trials. Of 3 nodes one is idle at 10.

    Job 2 needs two nodes and takes it with one of the mate's. Job 3, submitted with 2, would fit there but waits.
    """
    jobs = [*jobs_of((0.0, 900.0, 900.0, 1, 8)), *jobs_of((0.0, 500.0, 500.0, 1, 8), kind="rigid")]
    jobs = numbered(*jobs, *jobs_of((10.0, 50.0, 50.0, 2, 8)), *jobs_of((10.0, 50.0, 50.0, 1, 8), kind="rigid"))
    policy = SlowdownDriven(max_slowdown="inf", include_free_nodes=True)
    assert simulated(jobs, policy, nodes=3, cores=8, model="worst-case")[0].start == [0.0, 0.0, 10.0, 110.0]


@pytest.mark.parametrize(("inside", "start"), [("after", 50.0), ("before", 100.0)])
def test_sd_guests_end_inside_the_mates_allocation(inside: Any, start: float) -> None:
    """Section 3.2.4: the guest takes 80 s. Its mate has 50 s left, which at half speed for those 80 s take 90 s."""
    jobs = jobs_of((0.0, 100.0, 100.0, 1, 8), (50.0, 40.0, 40.0, 1, 8))
    policy = SlowdownDriven(max_slowdown="inf", inside=inside)
    record, _ = simulated(jobs, policy, nodes=1, cores=8)
    assert record.start[1] == start
    assert record.end == ([140.0, 130.0] if inside == "after" else [100.0, 140.0])


def test_sd_plans_an_overdue_mate_from_now_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reservation that began in the past once damaged the profile of idle nodes."""
    early, overdue = [], []

    def add(plan: ReservationMap, start: float | None, duration: float, nodes: int) -> None:
        early.extend([start] if start is not None and start < plan._now else [])
        add_to(plan, start, duration, nodes)

    def shared(trial: Trial, share: Share) -> None:
        overdue.extend(end for end in trial._ends.values() if end < trial.state.now)
        note(trial, share)

    add_to, note = ReservationMap.add, Trial.shared
    monkeypatch.setattr(ReservationMap, "add", add)
    monkeypatch.setattr(Trial, "shared", shared)
    for seed in range(20):
        jobs, machine, parameters = case(seed, "sd")
        machine["over_limit"], parameters["inside"] = OverLimit.NOW, "off"
        simulated(jobs, SlowdownDriven(**parameters), **machine)
    assert overdue and not early


def test_sd_in_the_passes_of_slurms_backfill() -> None:
    """Section 3.1, "editing sched/backfill": the guest of 10 starts in the pass at 30 if its depth is two jobs."""
    jobs = [
        MATE_AND_GUEST[0],
        CoreJob(1, 5.0, 10.0, 10.0, 1, 8, "rigid"),
        CoreJob(2, 10.0, 20.0, 20.0, 1, 8, "malleable"),
    ]
    slurm = {"max_slowdown": "inf", "backfill_interval_s": 30.0}
    record, _ = simulated(jobs, SlowdownDriven(**slurm), nodes=1, cores=8)
    assert (record.start, record.end) == ([0.0, 120.0, 30.0], [120.0, 130.0, 70.0])
    record, _ = simulated(jobs, SlowdownDriven(**slurm, depth=1), nodes=1, cores=8)
    assert record.start == [0.0, 100.0, 110.0]


def test_sd_shares_only_if_the_job_then_ends_earlier() -> None:
    """At 85, waiting until 100 and running 20 s ends at 120, sharing the mate's node at 125 (listing 1)."""
    jobs = jobs_of((0.0, 100.0, 100.0, 1, 8), (85.0, 20.0, 20.0, 1, 8))
    record, _ = simulated(jobs, SlowdownDriven(max_slowdown="inf", inside="off"), nodes=1, cores=8)
    assert record.start[1] == 100.0
    jobs[1].submit = 75.0  # 115 against 120
    record, _ = simulated(jobs, SlowdownDriven(max_slowdown="inf", inside="off"), nodes=1, cores=8)
    assert record.start[1] == 75.0
    assert record.end == [120.0, 115.0]


def test_sd_selects_the_two_mates_with_enough_nodes_and_the_lowest_penalty() -> None:
    """Equations 1 to 3: W = 3, mates with w = 1, 2 and 2, of which the last has waited; rigid jobs are no mates."""
    jobs = jobs_of((0.0, 200.0, 200.0, 1, 8), (0.0, 200.0, 200.0, 2, 8), (0.0, 50.0, 200.0, 2, 8))
    jobs = numbered(*jobs, *jobs_of((0.0, 200.0, 200.0, 2, 8), (60.0, 20.0, 20.0, 3, 8)))
    jobs[2].kind = "rigid"
    record, simulator = simulated(jobs, SlowdownDriven(max_slowdown="inf"), nodes=5, cores=8)
    assert record.start == [0.0, 0.0, 0.0, 50.0, 60.0]
    assert {row[2] for row in pieces(simulator)[4]} == {0, 1, 2}
    alone = SlowdownDriven(max_slowdown="inf", mates=1)
    assert simulated(jobs, alone, nodes=5, cores=8)[0].start[4] > 60.0


@given(st.permutations(range(6)), st.lists(st.sampled_from([1.0, 2.0]), min_size=6, max_size=6))
def test_running_jobs_are_in_order_of_expected_end_and_number(order: list[int], ends: list[float]) -> None:
    releases = Releases()
    for job in order:
        releases.add(job, ends[job], 1)
    expected = sorted(order, key=lambda job: (ends[job], job))
    assert releases.rows[2].tolist() == expected
    releases.remove(order[0], ends[order[0]])
    assert releases.rows[2].tolist() == [job for job in expected if job != order[0]]


def test_a_guest_inherits_the_node_of_an_owner_that_ends_first() -> None:
    """The mate ends at 30, far within its limit: 10 s at half speed are 5 of the guest's 20, and 15 s are left."""
    jobs = jobs_of((0.0, 25.0, 100.0, 1, 8), (20.0, 20.0, 20.0, 1, 8), (41.0, 1.0, 1.0, 1, 8))
    jobs[2].kind = "rigid"
    record, _ = simulated(jobs, SlowdownDriven(max_slowdown="inf"), nodes=1, cores=8)
    assert record.end == [30.0, 45.0, 46.0]  # the node is idle only after both have ended
    jobs[1].kind = "moldable"  # a moldable job does not grow
    assert simulated(jobs, SlowdownDriven(max_slowdown="inf"), nodes=1, cores=8)[0].end == [30.0, 60.0, 61.0]


def test_a_guest_keeps_its_first_node_whichever_it_inherits_first() -> None:
    """The guest's leader runs there, so this node must be the last to be released."""
    cluster = Cluster([2] * 4)
    for owner, count in ((0, 2), (1, 2)):
        cluster.take(owner, count, 0.0)
    cluster.lend(0, 2, [1, 0], 1, 1.0)
    cluster.lend(1, 2, [2, 3], 1, 1.0)
    assert cluster.nodes_of(2) == [1, 0, 2, 3]
    assert cluster.release(1, 2.0) == cluster.release(0, 3.0) == [2]
    assert cluster.owned(2)[0] == 1 and set(cluster.owned(2)) == {0, 1, 2, 3}
    assert set(cluster.shrink(2, 3, 4.0)) == {0, 2, 3}
    cluster.release(2, 5.0)
    assert cluster.idle == [0, 1, 2, 3]


@pytest.mark.parametrize(("model", "end"), [("ideal", 40.0), ("worst-case", 46.0)])
def test_in_the_worst_case_a_guest_runs_at_its_poorest_node(model: str, end: float) -> None:
    """One of two mates ends at 32, 24 s after the guest started. The guest takes its node: 8 + 4 of 16 cores."""
    jobs = jobs_of((0.0, 20.0, 100.0, 1, 8), (0.0, 100.0, 100.0, 1, 8), (8.0, 18.0, 18.0, 2, 8))
    record, _ = simulated(jobs, SlowdownDriven(max_slowdown="inf"), nodes=2, cores=8, model=model)
    assert record.start[2] == 8.0
    assert record.end[0] == 32.0
    assert record.end[2] == {"ideal": 40.0, "worst-case": 44.0}[model]
    assert end >= record.end[2]


def test_drom_use_case_1_in_situ_analytics() -> None:
    """DROM paper, figure 3: analytics on 2 of 16 cores for 10 s cost the simulation 10 x 2/16 s."""
    jobs = jobs_of((0.0, 100.0, 100.0, 2, 16), (20.0, 10.0, 10.0, 2, 2))
    share, _ = simulated(jobs, DromShare(), nodes=2, cores=16, sockets=2)
    serial, _ = simulated(jobs, DromShare(mode="serial"), nodes=2, cores=16, sockets=2)
    assert (share.start[1], share.end) == (20.0, [101.25, 30.0])
    assert (serial.start[1], serial.end) == (100.0, [100.0, 110.0])


def test_drom_use_case_2_high_priority_job() -> None:
    """DROM paper, figure 13: 16 of 32 cores each, one socket per node; the remaining job grows into freed cores."""
    jobs = jobs_of((0.0, 100.0, 100.0, 2, 16), (20.0, 100.0, 100.0, 2, 16))
    record, simulator = simulated(jobs, DromShare(), nodes=2, cores=16, sockets=2)
    assert record.start == [0.0, 20.0]
    assert record.end == [180.0, 200.0]
    assert sorted(pieces(simulator)[1]) == [
        (20.0, 180.0, 0, 8),
        (20.0, 180.0, 1, 8),
        (180.0, 200.0, 0, 16),
        (180.0, 200.0, 1, 16),
    ]


@pytest.mark.parametrize(("model", "ends"), [("ideal", [160.0, 140.0]), ("worst-case", [180.0, 190.0])])
def test_drom_job_2_starts_on_an_idle_node_and_on_half_of_job_1s(model: str, ends: list[float]) -> None:
    """DROM paper, figure 2. Job 2 has 8 + 16 of 32 cores, job 1 one socket of its node.

    ideal: the 90 s of job 2 take 90 / 0.75 = 120, after which job 1, 20 + 60 s done, has 20 left. By the poorest node:
    the 80 s left of job 1 take 160, after which job 2, 80 s done, has 10 left.
    """
    jobs = jobs_of((0.0, 100.0, 100.0, 1, 16), (20.0, 90.0, 90.0, 2, 16))
    record, simulator = simulated(jobs, DromShare(), nodes=2, cores=16, sockets=2, model=model)
    assert record.start == [0.0, 20.0]
    assert record.end == ends
    assert [row for row in sorted(pieces(simulator)[1]) if row[0] == 20.0] == [
        (20.0, min(ends), 0, 8),
        (20.0, ends[1], 1, 16),
    ]


@pytest.mark.parametrize(
    ("floor", "resizes"),
    [
        ("pref", [(0, 12, 6, 4.0), (1, 12, 6, 5.0), (2, 12, 6, 6.0), (3, 12, 6, 7.0)]),
        ("min", [(0, 12, 6, 4.0), (0, 6, 3, 5.0), (1, 12, 6, 6.0), (1, 6, 3, 7.0)]),
    ],
)
def test_dmr_on_the_49_nodes_of_the_study(floor: Any, resizes: list[tuple[int, int, int, float]]) -> None:
    """HPG-aligner paper, figure 13: four fixed jobs of 12 nodes at a time, and eight malleable ones of 3 to 12.

    By default each of the first four jobs releases 6 nodes to one of the next four. With the minimum as the floor, the
    fifth job takes the idle node and 6 of the first job, the sixth 3 more, the next two 6 and 3 of the second.
    """
    sizes = {"malleable": True, "nodes_min": 3, "nodes_max": 12, "nodes_pref": 6}
    fixed = [RefJob(number, float(number), 900.0, 900.0, 12) for number in range(8)]
    jobs = [RefJob(number, float(number), 900.0, 900.0, 12, **sizes) for number in range(8)]
    assert Simulator(Jobs.of(whole_nodes(fixed)), [1] * 49, Dmr()).run().start == [0, 1, 2, 3, 900, 901, 902, 903]
    simulator = Simulator(Jobs.of(whole_nodes(jobs)), [1] * 49, Dmr(floor))
    record = simulator.run()
    assert record.start == list(range(8))
    assert [tuple(row[:4]) for row in resize_rows(record) if row[3] < 8] == resizes


def test_dmr_starts_at_the_maximum_and_shrinks_to_the_preferred_size() -> None:
    """HPG-aligner's 3 to 12 nodes, preferred 6: shrunk to 6 when another job waits, and expanded after it."""
    sizes = {"malleable": True, "nodes_min": 3, "nodes_max": 12, "nodes_pref": 6}
    jobs = [RefJob(0, 0.0, 100.0, 100.0, 12, **sizes), RefJob(1, 10.0, 10.0, 10.0, 12, **sizes)]
    simulator = Simulator(Jobs.of(whole_nodes(jobs)), [1] * 12, Dmr())
    record = simulator.run()
    assert record.start == [0.0, 10.0]
    assert record.end == [110.0, 30.0]
    assert [tuple(row[:4]) for row in resize_rows(record)] == [(0, 12, 6, 10.0), (0, 6, 12, 30.0)]


@pytest.mark.parametrize(
    "parameters",
    [
        {"max_slowdown": "often"},
        {"sharing_factor": 1.0},
        {"sharing_factor": 0.0},
        {"mates": -1},
        {"depth": -1},
        {"bf_window": 1},
        {"backfill_interval_s": 30.0, "bf_node_space_size": -1},
    ],
)
def test_parameters_of_sd_out_of_range(parameters: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="sd"):
        SlowdownDriven(**parameters)


def test_a_prediction_records_the_cores_of_each_job() -> None:
    nodes = [NodeFacts("n1", 12, 3)]
    run = predict(workload_of(jobs_of((0.0, 10.0, 10.0, 1, 12), (1.0, 2.0, 2.0, 1, 12))), nodes, "drom-share")
    rows = run.allocations[["job_id", "start", "end", "cores"]].to_numpy().tolist()
    assert rows == [["0", 0.0, 1.0, 12], ["0", 1.0, 7.0, 8], ["1", 1.0, 7.0, 4], ["0", 7.0, 12.0, 12]]  # one socket
    assert run.jobs_on_shared_nodes == 2


# -- the record of changes: which request a change of a mask answers ---------------------------------------------------

WHOLE, HALF = range(4), range(2)
SHRINK, GROW = CoreChange(WHOLE, HALF), CoreChange(HALF, WHOLE)


def test_a_change_is_applied_by_the_last_request_before_it() -> None:
    """A guest ends as another one comes: the cores return and are lent at once, and the rank notices neither."""
    changes = CoreChanges()
    for asked, change in ((1.0, SHRINK), (5.0, GROW), (5.0, SHRINK), (9.0, GROW)):
        changes.requested(0, 1, {0: change}, asked)
        if asked in (1.0, 9.0):
            changes.took_effect(0, 0, (len(change.before), len(change.after)), (asked + 0.1, NEVER, asked + 0.2))
    assert changes.applied.tolist() == pytest.approx([1.2, math.nan, math.nan, 9.2], nan_ok=True)
    changes.took_effect(0, 0, (4, 3), (10.0, NEVER, 10.0))
    assert changes.cause[-1] == "operator" and len(changes) == 5


def test_a_clock_that_is_late_does_not_make_a_change_that_of_an_operator() -> None:
    changes = CoreChanges()
    changes.requested(0, 1, {0: SHRINK}, 12.0)
    changes.took_effect(0, 0, (4, 2), (11.999, NEVER, 12.0))
    assert (changes.decided.tolist(), changes.applied.tolist()) == ([12.0], [12.0])


def test_a_clock_that_has_stepped_leaves_the_steps_of_a_change_in_order() -> None:
    changes = CoreChanges()
    changes.requested(0, 1, {0: SHRINK, 1: SHRINK, 2: SHRINK}, 12.0)
    changes.took_effect(0, 0, (4, 2), (3.0, 2.0, 4.0))
    changes.took_effect(0, 1, (4, 2), (19.0, 18.0, 14.0))
    changes.launched_with(0, 2, 2, 3.0)
    assert changes.seen.tolist() == pytest.approx([12.0, 14.0, math.nan], nan_ok=True)
    assert (changes.decided.tolist(), changes.applied.tolist()) == ([12.0, 14.0, 12.0], [12.0, 14.0, 12.0])


def test_a_step_towards_the_cores_asked_for_is_no_change_of_an_operator() -> None:
    changes = CoreChanges()
    changes.requested(0, 1, {0: GROW}, 1.0)
    changes.took_effect(0, 0, (2, 3), (1.1, NEVER, 1.1))
    assert len(changes) == 1 and math.isnan(changes.applied[0])
    changes.took_effect(0, 0, (3, 4), (1.2, NEVER, 1.2))
    assert changes.applied.tolist() == [1.2]


def test_a_rank_that_is_launched_after_a_change_has_applied_it() -> None:
    record = ScheduleRecord(Jobs.of(workload(2)))
    record.cores.requested(0, 1, {0: SHRINK}, 1.0)
    mask = {"before": None, "after": "0-1", "applied": 1.5, "nodes": 1}
    mask_changed(record, 0, 0, mask)
    mask_changed(record, 1, 0, mask)  # a guest, of which no change was asked
    assert record.cores.applied.tolist() == [1.5]


# -- the options that the paper's program and Slurm's backfill of its time have, worked out by hand --------------------

PASSES: dict[str, Any] = {"backfill_interval_s": 30.0, "depth": 0}


def whole(number: int, submit: float, limit: float, nodes: int, kind: str = "rigid") -> CoreJob:
    """Return a job that uses its nodes of 8 cores whole, for its limit."""
    return CoreJob(number, submit, limit, limit, nodes, 8, kind)


def starts(jobs: list[CoreJob], nodes: int, **parameters: Any) -> list[float]:
    record, _ = simulated(jobs, SlowdownDriven(**({"max_slowdown": "inf"} | parameters)), nodes=nodes, cores=8)
    return [record.start[job.id] for job in jobs]


def test_a_job_that_would_start_beyond_bf_window_has_no_reservation() -> None:
    """Job 1 would start at 7,200 s. Without a reservation for it, job 2 starts in the pass at 30 and delays it."""
    jobs = [whole(0, 0.0, 7200.0, 1), whole(1, 1.0, 10.0, 2), whole(2, 2.0, 8000.0, 1)]
    assert starts(jobs, 2, **PASSES) == [0.0, 7200.0, 7210.0]
    assert starts(jobs, 2, **PASSES, bf_window=60) == [0.0, 8030.0, 30.0]
    assert starts(jobs, 2, **PASSES, bf_window=120) == [0.0, 7200.0, 7210.0]


FULL = [whole(0, 0.0, 100.0, 1), whole(1, 1.0, 10.0, 2), whole(2, 1.0, 10.0, 2), whole(3, 1.0, 20.0, 1)]
"""Job 1 is planned from 100 to 110, job 2 from 110 to 120, and job 3 fits beside job 0."""


def test_a_pass_ends_when_the_plan_has_bf_node_space_size_slots() -> None:
    """The slots are those that begin at 30, 100 and 110, and with job 2 at 120."""
    assert starts(FULL, 2, **PASSES) == [0.0, 100.0, 110.0, 30.0]
    assert starts(FULL, 2, **PASSES, bf_node_space_size=4) == [0.0, 100.0, 110.0, 30.0]
    assert starts(FULL, 2, **PASSES, bf_node_space_size=3) == [0.0, 100.0, 110.0, 120.0]


def test_a_full_plan_does_not_end_a_pass_before_a_job_needs_a_slot() -> None:
    without_2 = [FULL[0], FULL[1], replace(FULL[3], id=2)]
    assert starts(without_2, 2, **PASSES, bf_node_space_size=3) == [0.0, 100.0, 30.0]


def test_a_job_beyond_bf_window_takes_no_slot() -> None:
    """With a window of one minute jobs 1 and 2 have no reservation, and the smallest plan is not full."""
    assert starts(FULL, 2, **PASSES, bf_node_space_size=1, bf_window=1)[3] == 30.0
    assert starts(FULL, 2, **PASSES, bf_node_space_size=1)[3] == 120.0


def test_reservations_begin_at_multiples_of_bf_resolution() -> None:
    """Job 1 is planned for 95 to 125, rounded down to 60 and 120. Job 2 would end at 80."""
    jobs = [whole(0, 0.0, 95.0, 1), whole(1, 1.0, 30.0, 2), whole(2, 2.0, 50.0, 1)]
    assert starts(jobs, 2, **PASSES) == [0.0, 95.0, 30.0]
    assert starts(jobs, 2, **PASSES, bf_resolution=60) == [0.0, 95.0, 125.0]
    assert starts(jobs, 2, **PASSES, bf_resolution=40) == [0.0, 95.0, 30.0]


@pytest.mark.parametrize(("user", "start"), [("a", 120.0), ("b", 30.0)])
def test_a_pass_considers_bf_max_job_user_jobs_of_a_user(user: str, start: float) -> None:
    jobs = [replace(job, user="a") for job in FULL[:3]] + [replace(FULL[3], user=user)]
    assert starts(jobs, 2, **PASSES, bf_max_job_user=2) == [0.0, 100.0, 110.0, start]


def test_without_mates_sd_is_static_backfill() -> None:
    jobs = [whole(0, 0.0, 100.0, 1, "malleable"), whole(1, 10.0, 20.0, 1, "malleable")]
    assert starts(jobs, 1) == [0.0, 10.0]
    assert starts(jobs, 1, mates=0) == [0.0, 100.0]


def test_a_job_may_be_a_guest_though_it_would_end_earlier_if_it_waited() -> None:
    """At 85, waiting until 100 and running 20 s ends at 120, sharing the node of the mate at 125."""
    jobs = [whole(0, 0.0, 100.0, 1, "malleable"), whole(1, 85.0, 20.0, 1, "malleable")]
    assert starts(jobs, 1, inside="off") == [0.0, 100.0]
    assert starts(jobs, 1, inside="off", if_earlier=False) == [0.0, 85.0]


@pytest.mark.parametrize(("weighted", "mates"), [(False, {3}), (True, {1, 2})])
def test_the_penalties_of_large_mates_may_weigh_more(weighted: bool, mates: set[int]) -> None:
    """At 60 four nodes are needed: job 3 has waited 50 s and p = 1.35; jobs 1 and 2, of two nodes each, have 1.1."""
    jobs = [whole(0, 0.0, 50.0, 4), *(whole(number, 0.0, 200.0, 2, "malleable") for number in (1, 2))]
    jobs += [whole(3, 0.0, 200.0, 4, "malleable"), whole(4, 60.0, 20.0, 4, "malleable")]
    policy = SlowdownDriven(max_slowdown="inf", weighted=weighted)
    record, simulator = simulated(jobs, policy, nodes=8, cores=8)
    assert record.start == [0.0, 0.0, 0.0, 50.0, 60.0]
    held = pieces(simulator)
    shared = {row[2] for row in held[4]}
    assert {job for job in (1, 2, 3) if shared & {row[2] for row in held[job]}} == mates


def test_a_mate_may_share_some_of_its_nodes() -> None:
    """The guest of 10 takes one of the mate's two nodes; the mate is as slow as on both in the worst-case model."""
    jobs = [whole(0, 0.0, 100.0, 2, "malleable"), whole(1, 10.0, 20.0, 1, "malleable")]
    assert starts(jobs, 2) == [0.0, 100.0]
    policy = SlowdownDriven(max_slowdown="inf", partial=True)
    record, simulator = simulated(jobs, policy, nodes=2, cores=8, model="worst-case")
    assert (record.start, record.end) == ([0.0, 10.0], [120.0, 50.0])
    assert len({row[2] for row in pieces(simulator)[1]}) == 1


@pytest.mark.parametrize(("ranks", "cores"), [(1, 4), (4, 4), (6, 2), (8, 0)])
def test_a_mate_keeps_a_core_for_each_of_its_ranks(ranks: int, cores: int) -> None:
    """SharingFactor would take 4 of 8 cores. With 8 ranks, the job has none to lend, and its node no guest."""
    jobs = [replace(whole(0, 0.0, 100.0, 1, "malleable"), ranks=ranks), whole(1, 10.0, 5.0, 1, "malleable")]
    record, simulator = simulated(jobs, SlowdownDriven(max_slowdown="inf"), nodes=1, cores=8)
    assert record.start[1] == (10.0 if cores else 100.0)
    assert pieces(simulator)[1][0][3] == (cores or 8)


@pytest.mark.parametrize(("ranks", "start"), [(4, 10.0), (5, 100.0)])
def test_a_guest_needs_a_core_for_each_of_its_ranks(ranks: int, start: float) -> None:
    jobs = [whole(0, 0.0, 100.0, 1, "malleable"), replace(whole(1, 10.0, 5.0, 1, "malleable"), ranks=ranks)]
    assert starts(jobs, 1) == [0.0, start]


def test_a_guest_that_requests_few_cores_leaves_the_others_to_its_mate() -> None:
    """Section 3.3: a memory-bound job that requests 2 of 8 cores takes 2, though SharingFactor would allow 4."""
    jobs = [whole(0, 0.0, 100.0, 1, "malleable"), replace(whole(1, 10.0, 5.0, 1, "malleable"), cores=2)]
    _, simulator = simulated(jobs, SlowdownDriven(max_slowdown="inf"), nodes=1, cores=8)
    assert pieces(simulator) == {
        0: [(0.0, 10.0, 0, 8), (10.0, 15.0, 0, 6), (15.0, 101.25, 0, 8)],
        1: [(10.0, 15.0, 0, 2)],
    }


# -- a grain: cores change hands at malleability points, and data divided by the first cores ---------------------------


def with_overheads(
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
    record, _ = with_overheads(MATE_AND_GUEST, SlowdownDriven(max_slowdown="inf"), Overheads(grain_s=8.0))
    step = 100 / round(100 / 8)
    first = 2 * step  # the first point after 10 s
    guest_end = first + 40
    returned = first + 2 * step * math.ceil((guest_end - first) / (2 * step))
    assert record.start == [0.0, 10.0]
    assert record.launched == pytest.approx([0.0, first])
    assert record.end == pytest.approx([100 + (returned - first) / 2, guest_end])


def test_a_guest_begins_when_its_owner_ends_if_that_has_no_further_malleability_point() -> None:
    """The owner is in its last iteration. The guest takes the whole node when the owner ends."""
    record, _ = with_overheads(MATE_AND_GUEST, SlowdownDriven(max_slowdown="inf"), Overheads(grain_s=200.0))
    assert record.start == [0.0, 10.0]
    assert record.launched == [0.0, 100.0]
    assert record.end == [100.0, 120.0]


def test_the_launch_of_a_guest_goes_on_while_it_waits_for_its_cores() -> None:
    overheads = Overheads(grain_s=5.0, launch_s=4.0)
    record, _ = with_overheads(MATE_AND_GUEST, SlowdownDriven(max_slowdown="inf"), overheads)
    assert record.launched == pytest.approx([4.0, 14.0])  # the owner's point at 14 s is when the launch ends
    later = replace(MATE_AND_GUEST[1], submit=13.0)
    record, _ = with_overheads([MATE_AND_GUEST[0], later], SlowdownDriven(max_slowdown="inf"), overheads)
    assert record.launched == pytest.approx([4.0, 17.0])


def test_a_second_guest_need_not_wait_for_cores_that_have_not_returned() -> None:
    jobs = [*jobs_of((0.0, 100.0, 100.0, 1, 8), (10.0, 20.0, 20.0, 1, 8), (20.0, 5.0, 5.0, 1, 8))]
    record, _ = with_overheads(jobs, DromShare(), Overheads(grain_s=10.0))
    assert record.launched == pytest.approx([0.0, 20.0, 60.0])  # the second guest starts as the first one ends
    assert record.end[1] == 60.0 == record.start[2]


def test_data_divided_by_the_first_cores_leave_cores_unused() -> None:
    """The data of 8 cores are 32 tasks. 5 cores do them in 7 rounds: 4/7 of the speed, not 5/8 (DROM, figure 5)."""
    jobs = [*jobs_of((0.0, 100.0, 100.0, 1, 8), (10.0, 20.0, 20.0, 1, 3))]
    ends = {}
    for data in ("free", "static"):
        record, simulator = with_overheads(
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
    record, _ = with_overheads(jobs, DromShare(), Overheads(), application="simulation", parameters="data=static")
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
        record, simulator = with_overheads(jobs, kind(**parameters), Overheads(grain_s=grain), **machine)
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
