"""Nodes that sleep and have outages, on machines with partitions that overlap and without: cases by hand, and rules."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.drawn import draw
from tests.oracles.reference_scheduler import RefJob
from tests.scheduling.test_scheduling import workload_of
from tests.simulation.test_outages import down, drain
from tests.simulation.test_sleep import changes_of, sleeping
from tests.simulation.test_sleep_in_pools import POOLED
from tests.simulation.test_windows import HOUR, held_nodes, windowed
from tracebed.converters.workload import Workload
from tracebed.ground.states import JobState
from tracebed.machine.calendar import Calendar, Outage, OutageKind
from tracebed.machine.machine import Machine, NodeClass, Partition
from tracebed.machine.power import NodePower, PowerState, Sleep
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.metrics import metrics

PROMPT = [name for name in POOLED if name != "deadline"]
"""Where pools overlap, `deadline` tries to reserve nodes each second, which takes long in days of windows."""
IDLE = Sleep(rule="idle", idle_s=60.0)


def simulated(jobs: list[RefJob], machine: Machine, *outages: Outage, policy: str = "easy", **options: Any) -> Run:
    return predict(workload_of(jobs), machine, policy, outages=Calendar(outages), **options)


def states_of(run: Run, node: int) -> list[tuple[float, str]]:
    return [(at, state) for at, of, state in changes_of(run) if of == node]


def test_a_node_that_fails_while_it_sleeps_is_on_and_takes_no_job_until_it_returns() -> None:
    """Both nodes are off from 70 s on. Node 2 is down from 100 to 300 s, idle from 300 s on, and sleeps at 360 s."""
    jobs = [RefJob(0, 200.0, 50.0, 50.0, 2), RefJob(1, 1000.0, 10.0, 10.0, 1)]
    run = simulated(jobs, sleeping(2, IDLE), down("n2", 100, 300))
    assert states_of(run, 1)[:3] == [(60.0, "shutdown"), (70.0, "off"), (100.0, "on")]
    assert run.jobs[["start", "launched"]].to_numpy().tolist()[0] == [300.0, 330.0]  # node 1 boots only then
    assert states_of(run, 0)[2:4] == [(300.0, "boot"), (330.0, "on")]
    alone = simulated(jobs[1:], sleeping(2, IDLE), down("n2", 100, 300))
    assert states_of(alone, 1)[3:] == [(360.0, "shutdown"), (370.0, "off")]


@pytest.mark.parametrize(("end", "slept"), [(63.0, 123.0), (69.0, 129.0), (500.0, 560.0)])
def test_a_node_that_fails_while_it_is_switched_off_is_not_off_afterwards(end: float, slept: float) -> None:
    """It fails at 62 s and may return before the end of the shutdown at 70 s, which takes the other nodes."""
    run = simulated([RefJob(0, 1000.0, 10.0, 10.0, 4)], sleeping(4, IDLE), down("n2", 62, end))
    assert states_of(run, 1)[:4] == [(60, "shutdown"), (62, "on"), (slept, "shutdown"), (slept + 10, "off")]
    assert all(states_of(run, node)[:2] == [(60, "shutdown"), (70, "off")] for node in (0, 2, 3))
    assert run.jobs["launched"].tolist() == [1030.0]


def test_the_job_of_a_node_that_fails_while_it_boots_begins_again() -> None:
    """Node 1 fails at 210 s of its boot. The job starts again at once on node 2, which boots, until 240 s."""
    run = simulated([RefJob(0, 200.0, 50.0, 50.0, 1)], sleeping(2, IDLE), down("n1", 210, 400))
    assert run.jobs[["start", "launched", "end"]].to_numpy().tolist() == [[210.0, 240.0, 290.0]]
    assert states_of(run, 0)[2:] == [(200.0, "boot"), (210.0, "on")]
    assert states_of(run, 1)[2:4] == [(210.0, "boot"), (240.0, "on")]


def test_the_job_of_a_node_that_is_drained_while_it_boots_goes_on() -> None:
    jobs = [RefJob(0, 200.0, 50.0, 50.0, 1), RefJob(1, 220.0, 10.0, 10.0, 2), RefJob(2, 900.0, 1.0, 1.0, 1)]
    run = simulated(jobs, sleeping(2, IDLE), drain("n1", 210, 400))
    assert run.jobs["launched"].tolist() == [230.0, 430.0, 930.0]  # node 2 boots for job 1
    assert states_of(run, 0)[2:5] == [(200.0, "boot"), (230.0, "on"), (500.0, "shutdown")]


def test_a_node_that_fails_in_its_window_is_switched_off_again_when_it_returns() -> None:
    """Nodes 1 and 2 are off from 22 h to 30 h; both fail. Node 1 returns in the window, node 2 after it."""
    run = simulated(
        [RefJob(0, 40.0 * HOUR, 60.0, 60.0, 4)],
        windowed(4),
        down("n1", 23 * HOUR, 25 * HOUR),
        down("n2", 22 * HOUR + 5, 35 * HOUR),
    )
    night = [(0, "shutdown"), (0, "off"), (6 * HOUR, "boot"), (6 * HOUR + 60, "on"), (22 * HOUR, "shutdown")]
    again = [(25 * HOUR, "shutdown"), (25 * HOUR + 10, "off"), (30 * HOUR, "boot"), (30 * HOUR + 60, "on")]
    assert states_of(run, 0)[:10] == [*night, (22 * HOUR + 10, "off"), (23 * HOUR, "on"), *again][:10]
    assert states_of(run, 1) == [*night, (22 * HOUR + 5, "on")]


@pytest.mark.parametrize("kind", [down, drain])
def test_the_end_of_a_window_does_not_bring_a_busy_node_back_from_its_outage(kind: Any) -> None:
    """Job 0 holds node 1 as the window begins. The outage lasts from 23 h until the day after the window."""
    jobs = [RefJob(0, 21.0 * HOUR, 3.0 * HOUR, 3.0 * HOUR, 4), RefJob(1, 31.0 * HOUR, 60.0, 60.0, 4)]
    run = simulated(jobs, windowed(4), kind("n1", 23 * HOUR, 33 * HOUR), on_node_failure="fail")
    assert run.jobs["start"].tolist() == [21 * HOUR, 33 * HOUR]
    assert run.info.outages[0]["until"] == 33 * HOUR
    assert not any(at >= 22 * HOUR for at, _ in states_of(run, 0))


def test_a_node_that_serves_no_job_sleeps_too_and_sleeps_again_after_its_outage() -> None:
    """Node n2 is in a partition without jobs."""
    power = NodePower(busy_w=2, idle_w=1, boot_s=30.0, shutdown_s=10.0)
    partitions = tuple(Partition(name=name, nodes=(f"n{name}",), default=name == "1") for name in "12")
    machine = Machine(classes=(NodeClass(names=("n1", "n2"), power=power),), partitions=partitions, sleep=IDLE)
    run = simulated([RefJob(0, 1000.0, 10.0, 10.0, 1)], machine, down("n2", 100, 300), down("n2", 400, 500))
    slept = [(60.0, "shutdown"), (70.0, "off"), (100.0, "on"), (360.0, "shutdown"), (370.0, "off"), (400.0, "on")]
    assert states_of(run, 1) == [*slept, (560.0, "shutdown"), (570.0, "off")]
    assert [outage["until"] for outage in run.info.outages] == [300.0, 500.0]


def test_nodes_that_are_on_come_first_and_of_these_the_ones_of_smaller_weight() -> None:
    """Job 1 gets the two lightest nodes. The others are off when job 2 comes, which gets those two, and node 1."""
    power = NodePower(busy_w=2, idle_w=1, boot_s=30.0, shutdown_s=0.0)
    classes = tuple(
        NodeClass(names=(f"n{at}",), weight=weight, power=power) for at, weight in ((1, 2), (2, 3), (3, 1), (4, 1))
    )
    jobs = [RefJob(0, 0.0, 100.0, 100.0, 4), RefJob(1, 100.0, 70.0, 70.0, 2), RefJob(2, 175.0, 10.0, 10.0, 3)]
    run = simulated(jobs, Machine(classes=classes, sleep=IDLE))
    nodes = {job: {node for node, own in held_nodes(run).items() if job in {id for id, *_ in own}} for job in "012"}
    assert nodes == {"0": {0, 1, 2, 3}, "1": {2, 3}, "2": {0, 2, 3}}  # n1 and n2 are off: the lighter one boots
    assert run.jobs["launched"].tolist() == [0.0, 100.0, 205.0]


# -- rules under every policy ------------------------------------------------------------------------------------------


def drawn_case(rng: random.Random, seed: int, policy: str, rule: str) -> tuple[Workload, Machine, list[set[int]]]:
    """Return a workload, a machine whose nodes sleep, and the nodes of its partitions that have jobs, by number."""
    drawn, stretch = draw(seed, policy), 1.0 if rule == "idle" else 600.0
    jobs = [
        replace(job, submit=stretch * job.submit, run_time=stretch * job.run_time, limit=None) for job in drawn.jobs
    ]
    power = [
        NodePower(busy_w=300, idle_w=100, off_w=7, boot_w=150, boot_s=boot_s, shutdown_s=shutdown_s)
        for boot_s, shutdown_s in itertools.product(rng.sample([0.0, 1.0, 7.0, 40.0], 2), repeat=2)
    ]
    classes = tuple(
        NodeClass(names=(f"n{number + 1}",), power=rng.choice(power), weight=rng.choice([1, 1, 2]))
        for number in range(drawn.machine)
    )
    sleep = Sleep(rule="idle", idle_s=rng.choice([0.0, 2.0, 10.0]), keep=rng.choice([0, 0, 1, 2]))
    if rule == "windows":
        sleep = Sleep(rule="windows", start="22:00", end="06:00", share=rng.choice([0.3, 0.5, 1.0]))
    partitions, chosen = list[set[int]](), list[int]()
    workload = workload_of(jobs)
    if rng.random() < 0.6:
        sizes = [rng.randint(1, drawn.machine) for _ in range(rng.randint(1, 3))]
        partitions += [{*rng.sample(range(drawn.machine), size)} for size in sizes]
        chosen = [rng.randrange(len(partitions)) for _ in jobs]
        workload.table["partition"] = [f"p{number}" for number in chosen]
        for name in ("nodes", "nodes_min", "nodes_pref"):
            most = [len(partitions[number]) for number in chosen]
            workload.table[name] = [min(pair) for pair in zip(workload.table[name], most, strict=True)]
    specs = tuple(
        Partition(name=f"p{number}", nodes=tuple(f"n{node + 1}" for node in sorted(nodes)), tier=rng.choice([1, 1, 2]))
        for number, nodes in enumerate(partitions)
    )
    machine = Machine(classes=classes, partitions=specs, sleep=sleep)
    pools = [partitions[number] for number in {*chosen}] or [{*range(drawn.machine)}]
    return Workload(workload.table, workload.provenance), machine, pools


def drawn_outages(rng: random.Random, nodes: int, until: float) -> list[Outage]:
    """Return outages, at most one of a node at once, that all end."""
    outages = []
    for number in range(nodes):
        at = rng.uniform(0.0, until)
        while rng.random() < 0.5:
            end = at + rng.choice([0.5, 3.0, 20.0, 0.2 * until])
            outages.append(rng.choice([down, drain])(f"n{number + 1}", at, end))
            at = end + rng.uniform(0.1, 0.5 * until)
    return outages


def spans(run: Run, nodes: int, last: float) -> dict[int, list[tuple[float, float, str]]]:
    """Return begin, end and state of each span of each node, also of those that last no time."""
    steps: dict[int, list[tuple[float, str]]] = {node: [(0.0, "on")] for node in range(nodes)}
    for at, node, state in changes_of(run):
        steps[node].append((at, state))
    ends = {node: [at for at, _ in own[1:]] + [math.inf] for node, own in steps.items()}
    return {
        node: [(at, end, state) for (at, state), end in zip(own, ends[node], strict=True)]
        for node, own in steps.items()
    }


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), policy=st.sampled_from(PROMPT), rule=st.sampled_from(["idle", "windows"]))
def test_no_job_is_lost_and_none_is_on_a_node_that_sleeps_or_is_out(seed: int, policy: str, rule: str) -> None:
    rng = random.Random(f"sleep with outages {seed}")
    workload, machine, pools = drawn_case(rng, seed, policy, rule)
    nodes = len(machine.nodes)
    submits = workload.table["submit_time"].max()
    outages = drawn_outages(rng, nodes, 100.0 + 1.5 * submits) if rng.random() < 0.8 else []
    options = {"malleability_interval_s": rng.choice([0.0, 5.0]), "interval_s": rng.choice([0.0, 0.0, 7.0])}
    options["on_node_failure"] = rng.choice(["requeue", "requeue", "fail", "shrink"])
    run = predict(workload, machine, policy, outages=Calendar(tuple(outages)), engine="python", **options)
    assert not (run.jobs["state"] == JobState.UNKNOWN).any()
    if not (last := run.jobs["end"].max()) > run.jobs["submit"].min():
        return  # all jobs are rejected, or last no time
    held, power = held_nodes(run), spans(run, nodes, last)
    following = {("on", "shutdown"), ("shutdown", "off"), ("off", "boot"), ("boot", "on")}
    out = defaultdict(list)
    for outage in outages:
        out[int(outage.node[1:]) - 1].append(outage)
    for node in range(nodes):
        for (_, at, state), (_, _, later) in itertools.pairwise(power[node]):
            fails = any(outage.start == at for outage in out[node])
            assert (state, later) in following or (fails and later == "on"), (node, at, state, later)
        for begin, end, state in power[node]:
            if state in ("shutdown", "off"):
                assert not any(start < end and begin < until for _, start, until in held.get(node, [])), (node, begin)
            if state != "on" and end - begin > 0:  # a drained node may boot for its job
                where = [outage for outage in out[node] if outage.start < min(end, last) and begin < outage.end]
                holders = [job for job, start, until in held.get(node, []) if start <= begin < until]
                assert not where or (state == "boot" and holders), (node, begin, end, state, where)
        for outage in out[node]:
            assert not any(outage.start < start < outage.end for _, start, _ in held.get(node, [])), (node, outage)
            if outage.kind is OutageKind.DOWN:
                assert not any(start < outage.start < end for _, start, end in held.get(node, []) if outage.end < last)
    check_kept_nodes(power, held, pools, machine, out)
    check_energy(run, power, held, last)


def check_kept_nodes(power: Any, held: Any, pools: list[set[int]], machine: Machine, out: Any) -> None:
    """As a node is switched off, `keep` idle nodes of each of its partitions are on, or boot."""
    if machine.sleep is None or machine.sleep.rule != "idle":
        return
    at_once = {(node, at) for node, own in power.items() for at, _, state in own if state == "shutdown"}
    for node, at in at_once:
        for pool in (pool for pool in pools if node in pool):
            awake = [
                other
                for other in pool
                if not any(start < at < end for _, start, end in held.get(other, []))  # others may start after it
                and not any(outage.start <= at < outage.end for outage in out[other])
                and any(begin <= at < end and state in ("on", "boot") for begin, end, state in power[other])
            ]
            assert len(awake) >= machine.sleep.keep, (node, at, pool)


def check_energy(run: Run, power: Any, held: Any, last: float) -> None:
    """The energy is the sum over the steps of each node, second by second of its staircases."""
    assert run.info.machine is not None
    watts = [kind.power for kind in run.info.machine.classes]
    total, first = 0.0, run.jobs["submit"].min()
    for node, own in power.items():
        for begin, end, state in own:
            begin, end = max(begin, first), min(end, last)
            if begin < end:
                total += (end - begin) * watts[node].watts(PowerState(state))
                if state == "on":
                    busy = (min(end, until) - max(begin, start) for _, start, until in held.get(node, []))
                    total += sum(max(0.0, lasts) for lasts in busy) * (watts[node].busy_w - watts[node].idle_w)
    assert metrics(run, window="full")["modelled_energy_full_j"] == pytest.approx(total)
