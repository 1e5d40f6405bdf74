"""The executor `nights`: compiled rules of a published program, beside a plain simulator of the same rules."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.fulda import Fulda, Job
from tracebed.converters.provenance import Provenance, System
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.machine.machine import Machine, NodeClass
from tracebed.machine.power import NodePower, Sleep
from tracebed.orchestrator.executors import execute
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.engine import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

SCHEDULERS = {"easy": "firstfit", "msa": "min"}


def workload_of(jobs: list[Job], nodes: int) -> Workload:
    """Return the workload of jobs."""
    table = pd.DataFrame(
        {
            "job_id": [str(job.number) for job in jobs],
            "submit_time": [job.submit for job in jobs],
            "run_time": [job.run_time for job in jobs],
            "time_limit": [job.predicted for job in jobs],
            "nodes": [job.pref for job in jobs],
            "cores_per_node": 1,
            "kind": ["malleable" if job.malleable else "rigid" for job in jobs],
            "nodes_min": [job.low for job in jobs],
            "nodes_max": [job.high for job in jobs],
            "nodes_pref": [job.pref for job in jobs],
            "speedup": "amdahl",
            "speedup_parameters": [str(job.part) for job in jobs],
        }
    )
    return Workload(table, Provenance(system=System(nodes, 1)))


def machine_of(
    nodes: int, share: float, *, window: tuple[str, str] = ("22:00", "06:00"), shrink: bool = True
) -> Machine:
    """Return a machine whose nodes boot in 159 s."""
    power = NodePower(busy_w=3.0, idle_w=2.0, boot_s=159.0, shutdown_s=10.0)
    sleep = Sleep(rule="windows", start=window[0], end=window[1], share=share, shrink=shrink) if share else None
    return Machine(classes=(NodeClass(count=nodes, cores=1, power=power),), sleep=sleep)


def run_of(jobs: list[Job], machine: Machine, scheduler: str, interval_s: float = 0.0) -> Run:
    setup = Setup.of(SCHEDULERS[scheduler], interval_s=interval_s)
    return execute(workload_of(jobs, len(machine.nodes)), machine, setup, executor="nights")


@st.composite
def drawn_jobs(draw: st.DrawFn, nodes: int) -> list[Job]:
    """Draw jobs that are submitted around the hours at which nodes are switched."""
    jobs, at = [], 0.0
    for number in range(draw(st.integers(1, 30))):
        at += draw(st.sampled_from([0, 0, 0, 1, 2, 7, 60, 400, 3600, 20_000]))
        pref = draw(st.integers(1, nodes))
        part = draw(st.sampled_from([0.95, 0.99, 0.999]))
        log_s = draw(st.sampled_from([1, 5, 60, 61, 300, 3600, 9000, 40_000]))
        malleable = draw(st.booleans())
        low = draw(st.integers(1, pref)) if malleable else pref
        high = draw(st.integers(pref, nodes)) if malleable else pref
        run_time = log_s * (pref * ((1 - part) + part / pref))
        factor = draw(st.sampled_from([0.5, 0.97, 1.0, 1.4, 3.0]))
        iterations = float(log_s) if malleable else 1.0
        predicted = max(1.0, float(round(factor * run_time)))
        jobs.append(Job(number, at, run_time, iterations, pref, low, high, malleable, part, predicted))
    return jobs


@given(st.data(), st.integers(1, 70), st.sampled_from([0.0, 0.1, 0.3, 0.6]), st.sampled_from([*SCHEDULERS]))
def test_the_compiled_rules_are_those_of_the_plain_simulator_to_the_bit(
    data: st.DataObject, nodes: int, share: float, scheduler: str
) -> None:
    jobs = data.draw(drawn_jobs(nodes))
    shrink = data.draw(st.booleans())
    begin, end = data.draw(st.sampled_from([(22, 6), (0, 5), (1, 2), (12, 23)]))
    window = f"{begin:02}:00", f"{end:02}:00"
    interval = data.draw(st.sampled_from([1, 10, 7]))
    run = run_of(jobs, machine_of(nodes, share, window=window, shrink=shrink), scheduler, interval)
    hours = (begin * 3600, end * 3600)
    plain = Fulda(jobs, nodes, scheduler, share, window=hours, shrinks=shrink, interval=interval).run()
    assert np.array_equal(run.jobs["start"], [job.start for job in plain.jobs], equal_nan=True)
    assert np.array_equal(run.jobs["end"], [job.end for job in plain.jobs], equal_nan=True)
    held = run.allocations
    busy = [*zip(held["start"], held["count"], strict=True), *zip(held["end"], -held["count"], strict=True)]
    assert changes_of(busy) == changes_of(plain.busy)
    rows = run.nodes[run.nodes["power_state"] != ""]
    for state in ("off", "boot", "shutdown"):
        begun = sorted(rows["time"][rows["power_state"] == state])
        assert begun == sorted(at for at, own, change in plain.states if own == state for _ in range(max(0, change)))


def changes_of(changes: list[tuple[float, int]]) -> dict[float, int]:
    """Return the changes of a number by instant."""
    total: dict[float, int] = {}
    for at, change in changes:
        total[at] = total.get(at, 0) + change
    return {at: change for at, change in total.items() if change}


@given(st.data(), st.integers(1, 20), st.sampled_from([0.0, 0.3]), st.sampled_from([*SCHEDULERS]))
def test_calls_in_which_nothing_can_change_are_left_out(
    data: st.DataObject, nodes: int, share: float, scheduler: str
) -> None:
    """A call each second decides the same. The window is short: such a day has 86,400 calls."""
    jobs = [job for job in data.draw(drawn_jobs(nodes)) if job.run_time < 500 and job.submit < 2000]
    jobs = [Job(number, *vars_of(job)) for number, job in enumerate(jobs)]
    again = [Job(number, *vars_of(job)) for number, job in enumerate(jobs)]
    if share and any(job.low > nodes - int(nodes * (1 - (1 - share))) for job in jobs):
        return  # it may never start
    interval = data.draw(st.sampled_from([1, 10]))
    every = Fulda(jobs, nodes, scheduler, share, window=(600, 1200), interval=interval).run(each_second=True)
    some = Fulda(again, nodes, scheduler, share, window=(600, 1200), interval=interval).run()
    assert [(job.start, job.end) for job in every.jobs] == [(job.start, job.end) for job in some.jobs]


def vars_of(job: Job) -> list[object]:
    names = ("submit", "run_time", "iterations", "pref", "low", "high", "malleable", "part", "predicted")
    return [getattr(job, name) for name in names]


def rigid(number: int, submit: float, run_time: float, nodes: int, predicted: float | None = None) -> Job:
    return Job(number, submit, run_time, 1.0, nodes, nodes, nodes, False, 0.95, predicted or run_time)


def test_a_job_takes_nodes_that_are_to_sleep_only_if_it_ends_by_then() -> None:
    """Of 10 nodes, 3 are off from 22:00. Until 6:00 the night before, these are off too. 22:00 is at 79,200 s."""
    jobs = [rigid(0, 70_000, 9_000, 8), rigid(1, 70_001, 20_000, 8)]
    run = run_of(jobs, machine_of(10, 0.3), "easy")
    assert run.jobs["start"][0] == 70_001
    assert run.jobs["start"][1] == 108_000 + 159  # it needs more than the 7 nodes that stay on
    rows = run.nodes[run.nodes["power_state"] == "off"]
    assert {*rows["node"]} == {0, 1, 2}
    assert {*rows["time"]} == {11.0, 79_210.0}  # switched off at second 1 and at 22:00, in 10 s


def test_a_job_that_outlives_its_prediction_keeps_its_nodes_in_the_window() -> None:
    run = run_of([rigid(0, 79_000, 1_000, 10, predicted=100.0)], machine_of(10, 0.3), "easy")
    assert run.jobs["end"][0] == 80_001
    rows = run.nodes[(run.nodes["power_state"] == "shutdown") & (run.nodes["time"] > 40_000)]
    assert {*rows["time"]} == {80_002.0}


def test_a_malleable_job_leaves_nodes_that_are_to_be_off() -> None:
    job = Job(0, 79_000, 2_000.0, 2_000.0, 10, 2, 10, True, 0.999, 150.0)
    run = run_of([job], machine_of(10, 0.3), "easy")
    [row] = run.reconfigurations.itertuples()
    assert (row.nodes_from, row.nodes_to, row.asked) == (10, 9, 79_200.0)  # its first two nodes stay, though to be off
    kept = run_of([job], machine_of(10, 0.3, shrink=False), "easy")
    assert not len(kept.reconfigurations)


def test_a_job_that_never_gets_its_nodes_is_told() -> None:
    run = run_of([rigid(0, 30_000, 90_000, 9), rigid(1, 30_000, 10, 11)], machine_of(10, 0.3), "easy")
    assert [*run.jobs["state"]] == [JobState.UNKNOWN, JobState.REJECTED]
    assert "needs more nodes than are on" in run.jobs["reason"][0]


def test_an_interval_that_is_no_whole_number_of_seconds_is_refused() -> None:
    with pytest.raises(InputError, match=r"the scheduling interval is 1\.5 s"):
        run_of([rigid(0, 0, 10, 1)], machine_of(2, 0.0), "easy", 1.5)


def test_another_policy_is_refused() -> None:
    with pytest.raises(InputError, match="nights does not accept"):
        execute(workload_of([rigid(0, 0, 1, 1)], 1), machine_of(1, 0.0), Setup.of("easy"), executor="nights")
