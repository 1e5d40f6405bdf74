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
from tests.runs import resize_rows
from tests.scheduling.test_scheduling import workload_of as whole_nodes
from tracebed.converters.workload import Workload
from tracebed.ground.cpus import parse_cpus
from tracebed.ground.errors import InputError
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies.dmr import Dmr
from tracebed.orchestrator.scheduling.policies.drom import DromShare
from tracebed.orchestrator.scheduling.policies.sd import ReservationMap, SlowdownDriven, Trial
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.scheduling.reservations import Releases
from tracebed.orchestrator.scheduling.state import Decision, Policy, Share, State
from tracebed.orchestrator.setup import Setup
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
