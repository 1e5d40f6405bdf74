"""Nodes that are off in a window of each day, under the policies of whole nodes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.drawn import draw
from tests.oracles.reference_scheduler import RefJob
from tests.scheduling.test_scheduling import workload_of
from tests.simulation.test_sleep import EVERY, changes_of, states_after_on
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.machine.calendar import UNDATED, Clock
from tracebed.machine.machine import Machine, NodeClass
from tracebed.machine.power import NodePower, Sleep, seconds_of_day
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.windows import windows_of
from tracebed.orchestrator.simulation.prediction import predict

HOUR, DAY = 3600, 86_400


def windowed(count: int, share: float = 0.5, boot_s: float = 60.0, shutdown_s: float = 10.0, **rule: Any) -> Machine:
    power = NodePower(busy_w=200, idle_w=100, boot_s=boot_s, shutdown_s=shutdown_s)
    sleep = Sleep(rule="windows", share=share, **rule)
    return Machine(classes=(NodeClass(count=count, power=power),), sleep=sleep)


def dated(workload: Workload, unix_start: float, zone: str) -> Workload:
    return Workload(workload.table, replace(workload.provenance, unix_start=unix_start, time_zone=zone))


def held_nodes(run: Run) -> dict[int, list[tuple[str, float, float]]]:
    """Return job, begin and end of each allocation of a node, by node."""
    held: dict[int, list[tuple[str, float, float]]] = {}
    columns = ["job_id", "node", "count", "start", "end"]
    for job, first, count, start, end in run.allocations[columns].itertuples(index=False):
        for node in range(first, first + count):
            held.setdefault(node, []).append((job, start, end))
    return held


def off_from(run: Run, end: float = math.inf) -> dict[int, list[tuple[float, float]]]:
    """Return when each node is switched off, and when it is on again (infinite: not in the run)."""
    by_node: dict[int, list[tuple[float, str]]] = {}
    for at, node, state in changes_of(run):
        by_node.setdefault(node, []).append((at, state))
    order = {"on": "shutdown", "shutdown": "off", "off": "boot", "boot": "on"}
    for steps in by_node.values():
        assert [state for _, state in steps] == [*itertools.islice(states_after_on(order), len(steps))]
    return {
        node: [(steps[at][0], steps[at + 3][0] if at + 3 < len(steps) else math.inf) for at in range(0, len(steps), 4)]
        for node, steps in by_node.items()
    }


# -- the windows -------------------------------------------------------------------------------------------------------


def first_windows(start: str, end: str, clock: Clock, count: int = 3) -> list[tuple[float, float]]:
    return [*itertools.islice(windows_of(Sleep(rule="windows", start=start, end=end), clock), count)]


def test_windows_of_an_unknown_date_count_from_midnight() -> None:
    night = first_windows("22:00", "06:00", Clock(), 2)
    assert night == [(-2 * HOUR, 6 * HOUR), (22 * HOUR, 30 * HOUR)]
    assert first_windows("08:00", "24:00", Clock(), 2) == [(8 * HOUR, 24 * HOUR), (32 * HOUR, 48 * HOUR)]
    assert first_windows("24:00", "06:00", Clock(), 2) == [(0, 6 * HOUR), (24 * HOUR, 30 * HOUR)]


def test_windows_follow_the_clock_of_the_workload() -> None:
    """Time 0 is 21:00 in Berlin, on the day before the clocks go forward at 2:00: the night lasts seven hours."""
    start = datetime(2026, 3, 28, 21, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    nights = first_windows("22:00", "06:00", Clock(start, "Europe/Berlin"), 2)
    assert nights == [(HOUR, 8 * HOUR), (24 * HOUR, 32 * HOUR)]


def test_a_window_does_not_begin_before_the_end_of_the_last_one() -> None:
    """02:45 does not exist on that day, and is 03:45 of the summer time. The next window would begin at 03:00."""
    start = datetime(2026, 3, 28, 12, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    windows = first_windows("03:00", "02:45", Clock(start, "Europe/Berlin"), 4)
    assert all(begin < end for begin, end in windows)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(windows))


def test_a_window_without_an_end_is_refused() -> None:
    with pytest.raises(InputError, match="begins at 00:00, and ends at 24:00"):
        Sleep(rule="windows", start="00:00", end="24:00")


# -- cases by hand -----------------------------------------------------------------------------------------------------


def test_idle_nodes_are_off_in_the_window_and_boot_at_its_end() -> None:
    """Nodes 0 and 1 of four. Job 1 needs three nodes and waits for the end of their boot; job 2 is backfilled."""
    jobs = [
        RefJob(0, 20.0 * HOUR, 60.0, 60.0, 1),
        RefJob(1, 23.0 * HOUR, 100.0, 100.0, 3),
        RefJob(2, 23.0 * HOUR, 7.0 * HOUR, 7.0 * HOUR, 1),
        RefJob(3, 23.5 * HOUR, 9.0 * HOUR, 9.0 * HOUR, 2),
    ]
    run = predict(workload_of(jobs), windowed(4, start="22:00", end="06:00"), "easy")
    assert run.info.engine == "python"
    assert run.jobs["start"].tolist() == [20 * HOUR, 30 * HOUR + 60, 23 * HOUR, 30 * HOUR + 160]
    night = [(0, "shutdown"), (10, "off"), (8 * HOUR, "boot"), (8 * HOUR + 60, "on")]
    first = [(0, "shutdown"), (0, "off"), (6 * HOUR, "boot"), (6 * HOUR + 60, "on")]
    rows = [(float(at), node, state) for at, state in first for node in (0, 1)]
    rows += [(float(22 * HOUR + at), node, state) for at, state in night for node in (0, 1)]
    assert sorted(changes_of(run)) == sorted(rows)
    assert any(UNDATED in warning for warning in run.info.warnings)


def test_the_date_of_time_0_is_known() -> None:
    """Time 0 is 21:00 in Berlin (UTC + 2 h), so that nodes are off from 1 h to 9 h."""
    start = datetime(2026, 7, 1, 21, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    workload = dated(workload_of([RefJob(0, 2.0 * HOUR, 60.0, 60.0, 4)]), start, "Europe/Berlin")
    run = predict(workload, windowed(4), "fcfs")
    assert run.jobs["start"].tolist() == [9 * HOUR + 60]
    assert off_from(run) == {node: [(HOUR, 9 * HOUR + 60)] for node in (0, 1)}
    assert not any(UNDATED in warning for warning in run.info.warnings)


def test_a_busy_node_is_switched_off_after_its_job() -> None:
    """Job 0 runs until 23:00 on all nodes; the waiting job does not get those of the window."""
    jobs = [RefJob(0, 21.0 * HOUR, 2.0 * HOUR, 2.0 * HOUR, 4), RefJob(1, 22.5 * HOUR, 60.0, 60.0, 3)]
    run = predict(workload_of(jobs), windowed(4, start="22:00"), "easy")
    assert run.jobs["start"].tolist() == [21 * HOUR, 30 * HOUR + 60]
    assert [period for node in (0, 1) for period in off_from(run)[node][1:]] == [(23 * HOUR, 30 * HOUR + 60)] * 2


def test_a_job_that_holds_its_nodes_through_the_window_keeps_them_on() -> None:
    jobs = [RefJob(0, 21.0 * HOUR, 10.0 * HOUR, 10.0 * HOUR, 4), RefJob(1, 31.0 * HOUR, 60.0, 60.0, 4)]
    run = predict(workload_of(jobs), windowed(4), "easy")
    assert run.jobs["start"].tolist() == [21 * HOUR, 31 * HOUR]
    assert {node: len(periods) for node, periods in off_from(run).items()} == {0: 1, 1: 1}  # of the night before


def test_a_malleable_job_leaves_the_nodes_of_the_window() -> None:
    """The limit of job 0 is 22:00, so that its first node is node 0, which it keeps until it ends. It leaves node 1."""
    jobs = [RefJob(0, 21.0 * HOUR, 2.0 * HOUR, HOUR, 4, True, 2, 4, 4)]
    run = predict(workload_of(jobs), windowed(4), "pref", over_limit=OverLimit.NOW)
    steps = run.reconfigurations[["nodes_from", "nodes_to", "applied"]].to_numpy().tolist()
    assert steps == [[4, 3, 22 * HOUR]]
    assert off_from(run)[1][1][0] == 22 * HOUR
    end = 22 * HOUR + HOUR * 4 / 3  # linear speedup
    assert run.jobs["end"].tolist() == [pytest.approx(end)]
    assert off_from(run)[0][1][0] == pytest.approx(end)
    kept = predict(workload_of(jobs), windowed(4, shrink=False), "pref", over_limit=OverLimit.NOW)
    assert kept.jobs["end"].tolist() == [23 * HOUR]
    assert kept.reconfigurations.empty


def test_a_job_that_may_run_into_the_window_gets_other_nodes_first() -> None:
    """Job 0 gets nodes 2 and 3, job 1 those of the window, job 2 both, of which it leaves those of the window."""
    jobs = [
        RefJob(0, 13.0 * HOUR, 100.0, 10.0 * HOUR, 2),
        RefJob(1, 13.0 * HOUR, 100.0, 9.0 * HOUR, 2),
        RefJob(2, 20.0 * HOUR, 4.0 * HOUR, 4.0 * HOUR, 3, True, 1, 3, 3),
    ]
    run = predict(workload_of(jobs), windowed(4), "pref")
    nodes = {job: {node for node, held in held_nodes(run).items() if job in {id for id, *_ in held}} for job in "012"}
    assert nodes == {"0": {2, 3}, "1": {0, 1}, "2": {0, 2, 3}}
    assert run.reconfigurations[["nodes_to", "applied"]].to_numpy().tolist() == [[2, 22 * HOUR]]
    assert [off_from(run)[node][1][0] for node in (0, 1)] == [22 * HOUR] * 2


def test_a_malleable_job_keeps_its_minimum() -> None:
    """All four nodes are to be off. The job leaves only one, since it needs three."""
    jobs = [RefJob(0, 21.0 * HOUR, 2.0 * HOUR, 2.0 * HOUR, 4, True, 3, 4, 4)]
    run = predict(workload_of(jobs), windowed(4, share=1.0), "pref")
    assert run.reconfigurations["nodes_to"].tolist() == [3]
    switched = sorted(periods[1][0] for periods in off_from(run).values() if len(periods) > 1)
    assert switched == [22 * HOUR, *[pytest.approx(22 * HOUR + HOUR * 4 / 3)] * 3]


def test_nodes_are_left_at_a_malleability_point() -> None:
    """The job can shrink each 1,000 s of its run: at 79,600 s, 400 s after 22:00."""
    jobs = [RefJob(0, 75_600.0, 2.0 * HOUR, 2.0 * HOUR, 4, True, 2, 4, 4)]
    run = predict(workload_of(jobs), windowed(4), "pref", malleability_interval_s=1000.0)
    assert run.reconfigurations[["decided", "applied"]].to_numpy().tolist()[0][-1] == 79_600
    assert off_from(run)[1][1][0] == 79_600


def test_a_job_that_needs_nodes_which_never_serve_ends_the_simulation() -> None:
    """The boot lasts longer than the day between two windows."""
    jobs = [RefJob(0, 0.0, 60.0, 60.0, 4)]
    for interval_s in (0.0, 1000.0):
        run = predict(workload_of(jobs), windowed(4, boot_s=17.0 * HOUR), "easy", interval_s=interval_s)
        assert run.jobs["state"].tolist() == [JobState.UNKNOWN]


def test_a_job_is_reserved_on_other_nodes_than_those_that_are_off() -> None:
    """A deadline at noon: the job waits for the end of the boot, and is not rejected. Two nodes are idle at once."""
    jobs = [RefJob(0, 0.0, 60.0, 60.0, 2), RefJob(1, 0.0, 60.0, 60.0, 4)]
    workload = workload_of(jobs)
    workload.table["deadline"] = [math.nan, 12.0 * HOUR]
    run = predict(workload, windowed(4), "deadline")
    assert run.jobs["start"].tolist() == [0, 6 * HOUR + 60]


@pytest.mark.parametrize(
    ("machine", "policy", "options", "what"),
    [
        ({}, "sd", {}, "lets jobs share nodes"),
        ({"power": None}, "easy", {}, "has no `power`"),
        ({}, "easy", {"engine": "compiled"}, "by the rule windows"),
    ],
)
def test_what_cannot_be_off_is_refused(
    machine: dict[str, Any], policy: str, options: dict[str, Any], what: str
) -> None:
    kind = NodeClass(**({"count": 16, "power": NodePower(busy_w=2, idle_w=1)} | machine))
    asleep = Machine(classes=(kind,), sleep=Sleep(rule="windows", share=0.5))
    with pytest.raises(InputError, match=what):
        predict(workload_of(draw(1).jobs), asleep, policy, **options)


# -- the slow reference ------------------------------------------------------------------------------------------------


def drawn_days(rng: random.Random) -> tuple[list[RefJob], int, dict[str, Any]]:
    """Return jobs of two days, all times whole minutes, the number of nodes, and the rule of the window."""
    nodes = rng.randint(1, 6)
    jobs = []
    for number in range(rng.randint(1, 12)):
        run_time = 60.0 * rng.choice([1, 30, 200, rng.randint(1, 2000)])
        limit = run_time + 60.0 * rng.choice([0, 0, 10, 500])
        jobs.append(RefJob(number, 60.0 * rng.randint(0, 2880), run_time, limit, rng.randint(1, nodes)))
    start, end = rng.sample(range(24), 2)
    rule: dict[str, Any] = {"start": f"{start:02}:00", "end": f"{end:02}:{rng.choice([0, 30]):02}"}
    rule |= {"share": rng.choice([0.0, 0.3, 0.5, 1.0])}
    rule |= {name: 60.0 * rng.choice([0, 0, 1, 20, 300]) for name in ("boot_s", "shutdown_s")}
    return jobs, nodes, rule


def by_minutes(
    jobs: list[RefJob], nodes: int, policy: str, offset: int, rule: dict[str, Any]
) -> tuple[dict[int, tuple[int, int]], list[tuple[int, int, str]]]:
    """Return start and end of each job, and the changes of power, in minutes, minute by minute. `offset`: of time 0.

    A job starts on the lowest nodes that are on, idle, and not to be off now. If its limit ends after the begin of the
    next window, those of the window are the last ones.
    """
    begin, until = (seconds_of_day(name, rule[name]) // 60 for name in ("start", "end"))
    members = int(nodes * rule["share"] + 1e-9)
    boot, shutdown = int(rule["boot_s"]) // 60, int(rule["shutdown_s"]) // 60

    def dark(minute: int) -> bool:
        of_day = (minute + offset) % 1440
        return begin <= of_day < until if begin < until else of_day >= begin or of_day < until

    state, due = ["on"] * nodes, [0] * nodes
    held: dict[int, tuple[int, int]] = {}  # node -> job, end
    rows: list[tuple[int, int, str]] = []
    times: dict[int, tuple[int, int]] = {}
    queue: list[RefJob] = []
    minute = 0
    while dark(minute) and dark(minute - 1) and minute > -1440:
        minute -= 1
    while len(times) < len(jobs) or any(end >= minute for _, end in held.values()):
        held = {node: (job, end) for node, (job, end) in held.items() if end > minute}
        for node in range(members):
            while True:
                now, late = state[node], due[node] <= minute
                if now == "on" and node not in held and dark(minute):
                    state[node], due[node] = "shutdown", minute + shutdown
                elif now == "shutdown" and late:
                    state[node] = "off"
                elif now == "off" and not dark(minute):
                    state[node], due[node] = "boot", minute + boot
                elif now == "boot" and late:
                    state[node] = "on"
                else:
                    break
                rows.append((max(0, minute), node, state[node]))
        queue += sorted((job for job in jobs if job.submit == 60 * minute), key=lambda job: job.id)
        for job in [*queue]:
            free = [
                node
                for node in range(nodes)
                if node not in held and state[node] == "on" and not (node < members and dark(minute))
            ]
            dusk = next((later for later in range(minute + 1, minute + 3000) if dark(later)), math.inf)
            if minute + int(max(job.limit or 0, job.run_time)) // 60 > dusk:
                free.sort(key=lambda node: (node < members, node))
            if len(free) >= job.nodes:
                end = minute + int(job.run_time) // 60
                held |= dict.fromkeys(free[: job.nodes], (job.id, end))
                times[job.id] = (minute, end)
                queue.remove(job)
            elif policy == "fcfs":
                break
        minute += 1
        if minute > 60 * 1440:
            return times, rows  # the rest never starts
    return times, rows


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), policy=st.sampled_from(["fcfs", "firstfit"]))
def test_rigid_jobs_run_as_minute_by_minute(seed: int, policy: str) -> None:
    rng = random.Random(f"windows {seed}")
    jobs, nodes, rule = drawn_days(rng)
    offset = rng.choice([0, 0, 60 * rng.randint(0, 23)])
    want, rows = by_minutes(jobs, nodes, policy, offset, rule)
    workload = dated(workload_of(jobs), 60.0 * offset, "UTC") if offset else workload_of(jobs)
    run = predict(workload, windowed(nodes, **rule), policy)
    for id, start, end in run.jobs[["job_id", "start", "end"]].itertuples(index=False):
        if int(id) in want:
            assert (start / 60, end / 60) == want[int(id)]
        else:
            assert math.isnan(start)
    last = run.jobs["end"].max()
    got = [(at, node, state) for at, node, state in changes_of(run) if at < last]
    assert got == sorted(
        ((60.0 * at, node, state) for at, node, state in rows if 60 * at < last), key=lambda row: row[:2]
    )


# -- invariants under every policy -------------------------------------------------------------------------------------


def in_windows(rule: Sleep, until: float) -> Iterator[tuple[float, float]]:
    return itertools.takewhile(lambda window: window[0] <= until, windows_of(rule, Clock()))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), policy=st.sampled_from(EVERY))
def test_nodes_of_the_window_are_off_unless_a_job_holds_them(seed: int, policy: str) -> None:
    """Under each policy: no job has a node that is not on, none takes one of the window, and all jobs end."""
    rng, drawn = random.Random(f"every policy {seed}"), draw(seed)
    stretch = rng.choice([60.0, 600.0, 3000.0])
    jobs = [
        RefJob(
            **(
                vars(job)
                | {"submit": job.submit * stretch, "run_time": job.run_time * stretch}
                | ({} if job.limit is None else {"limit": job.limit * stretch})
            )
        )
        for job in drawn.jobs
    ]
    options = {"malleability_interval_s": rng.choice([0.0, 700.0]), "interval_s": rng.choice([0.0, 0.0, 500.0])}
    if rng.random() < 0.5 and policy in ("easy", "conservative"):
        options["policy_parameters"] = {"reserve": "nodes"}
    machine = windowed(
        drawn.machine,
        rng.choice([0.3, 0.5, 1.0]),
        rng.choice([0.0, 60.0, 2000.0]),
        rng.choice([0.0, 10.0, 900.0]),
        shrink=rng.random() < 0.7,
    )
    run = predict(workload_of(jobs), machine, policy, **options)
    assert not (run.jobs["state"] == JobState.UNKNOWN).any()
    last, members = run.jobs["end"].max(), int(drawn.machine * machine.sleep.share + 1e-9)
    held, off = held_nodes(run), off_from(run)
    assert all(node < members for node in off)
    windows = [*in_windows(machine.sleep, last)]
    for node in range(members):
        for _, start, end in held.get(node, []):
            assert not any(down < end and start < on for down, on in off.get(node, [])), node
            assert not any(begin <= start < until and start < end for begin, until in windows), node
        for begin, until in windows:
            # From the begin of the window, or the end of the job, or a boot that is over only then: off.
            since = max([begin, *(end for _, start, end in held.get(node, []) if start < begin < end)])
            since = max([since, *(on for down, on in off.get(node, []) if down < begin < on < math.inf)])
            if since < min(until, last):
                assert any(down == max(0.0, since) for down, _ in off[node]), (node, since)
