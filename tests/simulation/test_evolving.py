"""Evolving jobs: programs, the network, nodes under dynamic allocation, and the compiled simulation."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.oracles import evolving as reference
from tests.oracles import evolving_cases
from tests.patience import patience
from tracebed.converters.models.deadlines import TYPES
from tracebed.ground.errors import InputError
from tracebed.ground.topology import Grid
from tracebed.orchestrator.evolving import behaviours
from tracebed.orchestrator.evolving import simulation as compiled
from tracebed.orchestrator.evolving.machine import AllocationPlan, LeakVariant, Machine, ProgramOutcome
from tracebed.orchestrator.evolving.programs import COMMUNICATIONS, Builder, Communication, Programs, StepKind
from tracebed.orchestrator.evolving.simulation import adapted, leaking, programs_of, reserved, run_alone, simulate
from tracebed.orchestrator.scheduling.shapes import place_median

ROOT = Path(__file__).resolve().parents[2]
NEVER = np.inf
LINE = Machine(Grid((4,)))


def both(programs: Programs, machine: Machine, plan: AllocationPlan) -> ProgramOutcome:
    """Return the outcome of the Python simulation, and check that the compiled one is the same."""
    outcome = reference.ReferenceSimulation(programs, machine, plan).run()
    assert evolving_cases.fields_of(simulate(programs, machine, plan)) == evolving_cases.fields_of(outcome)
    return outcome


def array(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def static(start: list[float], *nodes: int, cancel: list[float] | None = None) -> AllocationPlan:
    return AllocationPlan(np.array(start), np.array(cancel or [NEVER] * len(start)), array(*nodes))


# -- programs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", TYPES)
@pytest.mark.parametrize("communication", COMMUNICATIONS)
def test_every_program_ends_and_does_its_work(behaviour: str, communication: Communication) -> None:
    machine = Machine(Grid((4, 4)), 4)
    sizes = [1, 2, 5, 16]
    programs = behaviours.drawn([behaviour] * 4, sizes, cores=4, communication=communication, seed=3)
    for number, count in enumerate(sizes):
        plan = reserved(programs, np.where(np.arange(4) == number, 0.0, np.nan), [range(size) for size in sizes])
        outcome = both(programs, machine, plan)
        assert outcome.completed.tolist() == [job == number for job in range(4)]
        steps = slice(*programs.steps[programs.processes[number : number + 2]])
        assert outcome.work[number] == pytest.approx(programs.amount[steps].sum())
        assert outcome.held[number] == 4 * count * outcome.end[number]


def test_the_types_create_their_processes_as_in_the_study() -> None:
    programs = behaviours.drawn(TYPES, [6] * 4, cores=4, communication="asynchronous", seed=1)
    for job, name in enumerate(TYPES):
        numbers = np.arange(*programs.processes[job : job + 2])
        forked = numbers[programs.parent[numbers] >= 0]
        if name in {"independent", "bsp"}:
            assert len(numbers) == 24
            assert len(forked) == 0
        elif name == "local-forks":
            assert len(numbers) - len(forked) == 6
            assert (programs.home[forked] == programs.home[programs.parent[forked]]).all()
        else:
            assert len(numbers) - len(forked) == 1
            assert (programs.home[forked] != programs.home[programs.parent[forked]]).any()


def test_a_static_program_has_one_process_on_each_node_if_so_chosen() -> None:
    chosen = behaviours.BehaviourParameters(per_node=1, growth=0.0)
    programs = behaviours.drawn(TYPES, [6] * 4, cores=4, communication="asynchronous", seed=1, parameters=chosen)
    counts = np.diff(programs.processes).tolist()
    homes = [programs.home[slice(*programs.processes[job : job + 2])].tolist() for job in range(4)]
    assert counts[:2] == [6, 6]
    assert homes[0] == homes[1] == list(range(6))
    assert counts[2] > 6  # threads on the other cores of the node
    assert set(homes[3]) == set(range(6))
    assert counts[3] == 1 + 3 * 5  # the root, and in each phase a tree of one process a node


def test_a_program_depends_on_seed_and_number_alone() -> None:
    def amounts(types: list[str], seed: int) -> list[float]:
        programs = behaviours.drawn(types, [3] * len(types), cores=2, communication="asynchronous", seed=seed)
        return programs.amount[programs.steps[programs.processes[1]] : programs.steps[programs.processes[2]]].tolist()

    assert amounts(["bsp", "forks"], 1) == amounts(["independent", "forks", "bsp"], 1)
    assert amounts(["bsp", "forks"], 1) != amounts(["bsp", "forks"], 2)


def test_an_unknown_behavior_or_communication_and_invalid_constants_are_errors() -> None:
    with pytest.raises(InputError, match="unknown communication 'buffered'"):
        behaviours.drawn(["bsp"], [1], cores=1, communication="buffered")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown behavior 'fluid'"):
        behaviours.drawn(["fluid"], [1], cores=1, communication="asynchronous")
    for wrong in ({"imbalance": 1.5}, {"supersteps": 0}, {"per_node": -1}, {"message": math.nan}):
        with pytest.raises(InputError, match="invalid"):
            behaviours.BehaviourParameters(**wrong)  # type: ignore[arg-type]


def test_no_jobs_are_no_error() -> None:
    programs = adapted(behaviours.drawn([], [], cores=1, communication="synchronous"), np.zeros(0), LINE)
    outcome = both(programs, LINE, at())
    assert len(outcome.end) == 0
    assert outcome.utilization(LINE) == 0.0
    assert len(both(programs, LINE, static([])).end) == 0


def test_programs_with_numbers_of_other_jobs_are_refused() -> None:
    programs = behaviours.drawn(["bsp", "forks"], [2, 2], cores=1, communication="asynchronous")
    for field in ("argument", "sender", "receiver", "home"):
        with pytest.raises(ValueError, match=r"another job|not among"):
            replace(programs, **{field: getattr(programs, field) + 1000})
    with pytest.raises(ValueError, match="shape"):
        replace(programs, size=programs.size[1:])
    with pytest.raises(ValueError, match="ascend"):
        replace(programs, steps=programs.steps[::-1].copy())


# -- nodes and links -------------------------------------------------------------------------------------------------


@given(st.builds(Grid, st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), st.booleans()), st.data())
def test_routes_are_shortest_paths_over_neighbours(grid: Grid, data: st.DataObject) -> None:
    one, other = (data.draw(st.integers(0, len(grid) - 1)) for _ in range(2))
    links = Machine(grid).route(one, other)
    assert len(links) == grid.distance(one, other)
    at = one
    for link in links:
        node, axis, upwards = link // 2 // len(grid.sides), link // 2 % len(grid.sides), link % 2
        assert node == at
        place = grid.coordinates[at].copy()
        place[axis] = (place[axis] + (1 if upwards else -1)) % grid.sides[axis]
        at = int(np.ravel_multi_index(tuple(place), grid.sides))
        assert at in grid.neighbours[node]
    assert at == other


def test_a_message_takes_rows_before_columns() -> None:
    assert [link // 4 for link in Machine(Grid((3, 3))).route(0, 8)] == [0, 3, 6, 7]


@given(st.dictionaries(st.integers(0, 20), st.sets(st.integers(0, 8), min_size=1), max_size=12))
def test_rates_are_max_min_fair(links: dict[int, set[int]]) -> None:
    """A rate is max-min fair if each message has a full link on which no other message is faster."""
    routes = {message: sorted(route) for message, route in links.items()}
    rates = reference.max_min(routes, 1.0)
    used = {link: sum(rates[m] for m in routes if link in routes[m]) for link in range(9)}
    assert all(total <= 1.0 + 1e-9 for total in used.values())
    for message, route in routes.items():
        assert any(
            used[link] > 1.0 - 1e-9 and all(rates[m] <= rates[message] + 1e-9 for m in routes if link in routes[m])
            for link in route
        )


def one_way(communication: Communication, sizes: list[float], works: list[float]) -> Programs:
    """Return a job of two processes: the first computes, sends messages, and computes; the second receives first."""
    builder = Builder(communication)
    builder.begin(2)
    first, second = (array(number) for number in builder.create([0, 1]))
    builder.compute(first, np.array(works[:1]))
    for size in sizes:
        builder.exchange((first, second, size))
    builder.compute(first, np.array(works[1:2]))
    builder.compute(second, np.array(works[2:3]))
    return builder.build()


def test_a_synchronous_send_lasts_until_the_message_is_received() -> None:
    plan = static([0.0], 0, 3)
    for communication, end in (("asynchronous", 1.0 + 5.0), ("synchronous", 1.0 + 2.0 + 5.0)):
        programs = one_way(communication, [2.0], [1.0, 5.0, 0.5])  # type: ignore[arg-type]
        assert both(programs, LINE, plan).end.tolist() == [end]


def test_latency_counts_each_link_and_a_message_within_a_node_takes_no_time() -> None:
    programs = one_way("asynchronous", [2.0], [1.0, 0.0, 0.0])
    slow = Machine(Grid((4,)), cores=2, bandwidth=0.5, latency=0.25)
    assert both(programs, slow, static([0.0], 0, 3)).end.tolist() == [1.0 + 3 * 0.25 + 2.0 / 0.5]
    assert both(programs, slow, static([0.0], 2, 2)).end.tolist() == [1.0]


def test_messages_on_a_link_share_it_and_the_rest_of_the_bandwidth_goes_to_others() -> None:
    """Jobs send 0 -> 3, 0 -> 1 and 2 -> 3: each link has two messages at rate 1/2; the long one ends with them."""
    builder = Builder("asynchronous")
    for size in (2.0, 1.0, 1.0):
        builder.begin(2)
        first, second = (array(number) for number in builder.create([0, 1]))
        builder.exchange((first, second, size))
    programs = builder.build()
    outcome = both(programs, LINE, static([0.0] * 3, 0, 3, 0, 1, 2, 3))
    assert outcome.end.tolist() == [3.0, 2.0, 2.0]


def test_contention_lengthens_jobs_whose_routes_cross() -> None:
    programs = one_way("asynchronous", [2.0], [0.0, 0.0, 0.0])
    two = Builder("asynchronous")
    for _ in range(2):
        two.begin(2)
        two.exchange((*(array(number) for number in two.create([0, 1])), 2.0))
    assert both(programs, LINE, static([0.0], 0, 2)).end.tolist() == [2.0]
    assert both(two.build(), LINE, static([0.0, 0.0], 0, 2, 1, 3)).end.tolist() == [4.0, 4.0]
    assert both(two.build(), LINE, static([0.0, 0.0], 0, 1, 2, 3)).end.tolist() == [2.0, 2.0]


def test_processes_share_the_cores_of_a_node_equally() -> None:
    builder = Builder("asynchronous")
    builder.begin(1)
    builder.compute(builder.create([0, 0, 0]), np.array([1.0, 1.0, 3.0]))
    outcome = both(builder.build(), Machine(Grid((1,)), cores=2), static([0.0], 0))
    assert outcome.end.tolist() == [pytest.approx(1.5 + 2.0)]  # three on two cores for 1.5 s, then one alone
    assert outcome.work.tolist() == [5.0]


def test_a_job_is_cancelled_at_its_deadline_and_gives_back_everything() -> None:
    programs = one_way("asynchronous", [4.0], [1.0, 0.0, 0.0])
    outcome = both(programs, LINE, static([0.0], 0, 3, cancel=[3.0]))
    assert (outcome.end.tolist(), outcome.completed.tolist(), outcome.work.tolist()) == ([3.0], [False], [1.0])
    exactly = both(programs, LINE, static([0.0], 0, 3, cancel=[5.0]))
    assert (exactly.end.tolist(), exactly.completed.tolist()) == ([5.0], [True])
    two = Builder("asynchronous")
    for _ in range(2):
        two.begin(2)
        two.exchange((*(array(number) for number in two.create([0, 1])), 4.0))
    shared = both(two.build(), LINE, static([0.0, 0.0], 0, 3, 0, 3, cancel=[2.0, NEVER]))
    assert shared.end.tolist() == [2.0, 5.0]  # half of the rate for 2 s, then all of it


# -- adapted to run times --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("communication", COMMUNICATIONS)
@pytest.mark.parametrize("cores", [1, 4])
def test_a_job_alone_on_a_compact_partition_takes_its_run_time(communication: Communication, cores: int) -> None:
    machine = Machine(Grid((8, 16)), cores)
    study = tb.generate("deadline-normal", jobs=60, seed=2)
    programs = programs_of(study, machine, communication=communication, seed=1)
    nodes = [place_median(machine.grid, range(128), int(count), (), 0) for count in programs.nodes]
    times = run_alone(programs, machine, reserved(programs, study.floats("submit_time"), nodes))
    assert times == pytest.approx(study.floats("run_time"), rel=1e-9)
    backwards = reserved(programs, study.floats("submit_time"), [part[::-1] for part in nodes])
    assert (run_alone(programs, machine, backwards) == times).all()
    stretched = [[node * 128 // len(part) for node in range(len(part))] for part in nodes]
    scattered = run_alone(programs, machine, reserved(programs, study.floats("submit_time"), stretched))
    assert (scattered > times * 1.01).any()


def test_programs_are_adapted_to_any_run_time_of_at_least_zero() -> None:
    programs = behaviours.drawn(["bsp"] * 2, [2, 2], cores=1, communication="synchronous")
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match=r"invalid run time .*: job 2|job 2.*invalid run time"):
            adapted(programs, np.array([1.0, wrong]), LINE)
    with pytest.raises(InputError, match="latency"):
        adapted(programs, np.ones(2), Machine(Grid((4,)), latency=1.0))
    with pytest.raises(InputError, match="2 nodes on a grid of 1"):
        adapted(programs, np.ones(2), Machine(Grid((1,))))
    zero = adapted(programs, np.array([0.0, 7.0]), LINE)
    assert simulate(zero, LINE, static([3.0, 3.0], 0, 1, 2, 3)).end.tolist() == [3.0, 10.0]


# -- dynamic allocation ----------------------------------------------------------------------------------------------


def computing(*trees: list[tuple[int, float]]) -> Programs:
    """Return jobs whose first process forks children; each list has (parent's place in the list, work), root first."""
    builder = Builder("asynchronous")
    for tree in trees:
        builder.begin(1)
        numbers = [builder.create([0])]
        for parent, _ in tree[1:]:
            numbers.append(builder.fork(numbers[parent], [0]))
        for number, (_, work) in zip(numbers, tree, strict=True):
            builder.compute(number, np.array([work]))
        for place in range(len(tree) - 1, 0, -1):
            builder.join(numbers[tree[place][0]], numbers[place])
    return builder.build()


def where(programs: Programs, machine: Machine, plan: AllocationPlan, time: float) -> list[int]:
    """Return the node of each process that computes just after `time`."""
    cut = replace(plan, cancel=np.minimum(plan.cancel, time))
    simulation = reference.ReferenceSimulation(programs, machine, cut)
    places: list[int] = []

    def cancel(job: int) -> None:
        if simulation.now == time and not places:
            places.extend(process.node for n, process in enumerate(simulation.processes) if n in simulation.computing)

    simulation.cancel = cancel  # type: ignore[method-assign]
    simulation.run()
    return places


def at(*start: float) -> AllocationPlan:
    return AllocationPlan(np.array(start), np.full(len(start), NEVER), leak=LeakVariant.CONTIGUOUS)


def searched(
    machine: Machine, busy: str, jobs: int = 1, leak: LeakVariant = LeakVariant.CONTIGUOUS
) -> reference.ReferenceSimulation:
    """Return a simulation in which the nodes with an `x` in `busy` have no idle core."""
    plan = replace(at(*[0.0] * jobs), leak=leak)
    simulation = reference.ReferenceSimulation(computing(*[[(0, 1.0)]] * jobs), machine, plan)
    for node, mark in enumerate(busy.replace("/", "")):
        simulation.idle[node] *= mark != "x"
    return simulation


def taken(simulation: reference.ReferenceSimulation, origin: int, job: int = 0) -> int | None:
    """Return the node that the search from `origin` finds, and let the job take it."""
    node = simulation.search(job, origin)
    if node is not None:
        simulation.idle[node] -= 1
        simulation.held[job][node] = 1
    return node


def test_figure_11_first_nodes_of_a_job() -> None:
    """The first row is busy, and the snake comes back in the second row. Four nodes are taken, neighbor by neighbor."""
    simulation = searched(Machine(Grid((4, 4))), "xxxx/xx.x/x.../..x.")
    first = taken(simulation, -1)
    assert first == 6  # row 1 from its end: node 7 is busy
    assert [taken(simulation, first) for _ in range(3)] == [10, 9, 11]  # below it, then on both sides of that
    assert taken(simulation, first) == 13  # below 9: 14, below 10, is busy


def test_figure_12_a_released_node_is_lost_to_another_job() -> None:
    """The job holds 5 and 6 and has lost 4. The search from 5 finds no idle neighbor; that from 6 finds three."""
    simulation = searched(Machine(Grid((3, 4))), "xx.x/xxx./xx.x")
    simulation.held[0] = {5: 1, 6: 1}
    assert [taken(simulation, 5) for _ in range(3)] == [2, 10, 7]  # above, below and beside 6
    assert taken(simulation, 5) is None


def test_figure_13_disjoint_parts_grow_as_one_partition() -> None:
    """Without an idle neighbor, the snake finds a node in another row, and the search goes on around that node too."""
    busy = "..xx/xxxx/xx.x/x..."
    assert searched(Machine(Grid((4, 4))), busy).search(0, 0) == 0
    for leak, found in ((LeakVariant.CONTIGUOUS, None), (LeakVariant.NONCONTIGUOUS, 10)):
        simulation = searched(Machine(Grid((4, 4))), busy, leak=leak)
        assert [taken(simulation, -1), taken(simulation, 0)] == [0, 1]
        assert taken(simulation, 0) == found
    assert [taken(simulation, 0) for _ in range(3)] == [14, 13, 15]  # below 10, then beside 14
    simulation.held[0].pop(0)  # released in the first row, and used by another job
    simulation.idle[4] = 1
    assert taken(simulation, 1) == 4  # not beside 1 or 10 to 15: by the snake again


def test_processes_flow_from_the_first_node() -> None:
    """The search takes neighbors of the creating node, then those of the other nodes of the job."""
    grid = Machine(Grid((4, 4)))
    programs = computing([(0, 9.0)] + [(0, 9.0)] * 5)
    assert where(programs, grid, at(0.0), 1.0) == [0, 4, 1, 8, 5, 2]


def test_jobs_enter_at_spread_nodes_and_the_search_continues_along_the_snake() -> None:
    grid = Machine(Grid((2, 4)))
    programs = computing(*[[(0, 9.0)]] * 6)
    # Entries are the places 0, 2, 4 and 6 of the snake 0 1 2 3 7 6 5 4; the fifth job begins at 0 again.
    assert where(programs, grid, at(*[0.0] * 6), 1.0) == [0, 2, 7, 5, 1, 3]
    full = both(computing(*[[(0, 9.0)]] * 9), grid, at(*[0.0] * 9))
    assert full.accepted.tolist() == [True] * 8 + [False]
    assert math.isnan(full.start[8])


def test_jobs_that_may_wait_start_in_order_when_a_core_is_released() -> None:
    machine = Machine(Grid((1, 2)))
    programs = computing([(0, 3.0)], [(0, 5.0)], [(0, 1.0)], [(0, 1.0)], [(0, 1.0)], [(0, 1.0)])
    plan = replace(at(0.0, 0.0, 2.0, 1.0, 3.0, 2.0), waits=True, cancel=np.array([NEVER] * 5 + [2.5]))
    outcome = both(programs, machine, plan)
    assert outcome.accepted.all()
    assert outcome.start[:5].tolist() == [0.0, 0.0, 4.0, 3.0, 5.0]
    assert (math.isnan(outcome.start[5]), outcome.end[5], outcome.completed[5]) == (True, 2.5, False)
    assert both(programs, machine, replace(plan, waits=False)).accepted.tolist() == [True, True] + [False] * 2 + [
        True,
        False,
    ]


def test_a_node_is_released_at_the_end_of_its_process() -> None:
    grid = Machine(Grid((1, 4)))
    programs = computing([(0, 9.0), (0, 2.0)], [(0, 9.0)])
    assert where(programs, grid, at(0.0, 1.0), 0.5) == [0, 1]
    late = at(0.0, 3.0)
    assert where(programs, grid, late, 3.5) == [0, 1]  # the second job enters at place 1, which is free again
    outcome = both(programs, grid, late)
    assert outcome.held.tolist() == [11.0, 9.0]
    assert outcome.utilization(grid) == pytest.approx(20.0 / (12.0 * 4))


def test_a_core_may_be_kept_until_the_join() -> None:
    """The child ends at 2 and is joined at 5. A job that starts at 3 gets its core at 3, or at 5."""
    grid = Machine(Grid((1, 2)))
    builder = Builder("asynchronous")
    builder.begin(2)
    root = builder.create([0])
    child = builder.fork(root, [1])
    builder.compute(np.concatenate([root, child]), np.array([5.0, 2.0]))
    builder.join(root, child)
    builder.compute(root, np.array([1.0]))
    builder.begin(1)
    builder.compute(builder.create([0]), np.array([4.0]))
    plan = replace(at(0.0, 3.0), waits=True)
    released = both(builder.build(), grid, plan)
    assert (released.start.tolist(), released.held.tolist()) == ([0.0, 3.0], [8.0, 4.0])
    kept = both(builder.build(), grid, replace(plan, joins_release=True))
    assert (kept.start.tolist(), kept.held.tolist()) == ([0.0, 5.0], [11.0, 4.0])


def test_a_process_may_search_a_node_without_processes() -> None:
    """A thread starts on the node of its parent. Another process, and another job, need a node without processes."""
    row = Machine(Grid((1, 4)), cores=2)
    builder = Builder("asynchronous")
    builder.begin(2)
    root = builder.create([0])
    thread, other = builder.fork(root, [0]), builder.fork(root, [1])
    builder.compute(np.concatenate([root, thread, other]), np.array([9.0, 2.0, 2.0]))
    builder.begin(1)
    builder.compute(builder.create([0]), np.array([4.0]))
    programs, plan = builder.build(), replace(at(0.0, 1.0), by_nodes=True)
    assert where(programs, row, plan, 1.5) == [0, 0, 1, 2]
    full = replace(row, grid=Grid((1, 2)))
    assert both(programs, full, plan).accepted.tolist() == [True, False]
    assert both(programs, full, replace(plan, by_nodes=False)).accepted.tolist() == [True, True]
    waiting = both(programs, full, replace(plan, waits=True))
    assert waiting.start.tolist() == [0.0, 2.0] and waiting.held.tolist() == [13.0, 4.0]


def test_without_a_free_neighbour_contiguous_shares_and_noncontiguous_jumps() -> None:
    """The row 0 1 2 3: job 1 on 0, job 2 on 1 and job 3 on 2 surround; the fork of job 1 goes to 3, or shares 0."""
    grid = Machine(Grid((1, 4)))
    builder = Builder("asynchronous")
    builder.begin(1)
    root = builder.create([0])
    builder.compute(root, np.array([1.0]))
    child = builder.fork(root, [0])
    builder.compute(np.concatenate([root, child]), np.array([4.0, 4.0]))
    builder.join(root, child)
    for _ in range(2):
        builder.begin(1)
        builder.compute(builder.create([0]), np.array([20.0]))
    programs = builder.build()
    plan = at(0.0, 0.0, 0.0)
    assert where(programs, grid, plan, 2.0) == [0, 0, 1, 2]
    assert both(programs, grid, plan).end.tolist() == [9.0, 20.0, 20.0]
    jumping = replace(plan, leak=LeakVariant.NONCONTIGUOUS)
    assert where(programs, grid, jumping, 2.0) == [0, 3, 1, 2]
    assert both(programs, grid, jumping).end.tolist() == [5.0, 20.0, 20.0]


def test_cores_of_a_node_are_taken_before_its_neighbours() -> None:
    grid = Machine(Grid((1, 4)), cores=2)
    assert where(computing([(0, 9.0)] * 4), grid, at(0.0), 1.0) == [0, 0, 1, 1]


@given(st.integers(0, 10**6))
def test_cores_are_never_given_twice_and_all_are_given_back(seed: int) -> None:
    programs, machine, plan = evolving_cases.case(seed)
    plan = replace(plan, nodes=None, leak=plan.leak or LeakVariant.NONCONTIGUOUS)
    simulation = reference.ReferenceSimulation(programs, machine, plan)
    place = simulation.place

    def checked(number: int, parent: int) -> None:
        place(number, parent)
        assert min(simulation.idle) >= 0
        held = [sum(of_job.get(node, 0) for of_job in simulation.held) for node in range(len(machine.grid))]
        assert [machine.cores - idle for idle in simulation.idle] == held

    simulation.place = checked  # type: ignore[method-assign]
    outcome = simulation.run()
    assert simulation.idle == [machine.cores] * len(machine.grid)
    assert not any(simulation.held)
    assert (outcome.end[outcome.accepted] <= plan.cancel[outcome.accepted]).all()


def test_dynamic_allocation_helps_jobs_that_fork_more_than_their_nodes_hold() -> None:
    machine = Machine(Grid((8, 8)), 4)
    programs = behaviours.drawn(["local-forks"] * 3, [4] * 3, cores=4, communication="asynchronous", seed=5)
    fixed = simulate(programs, machine, reserved(programs, np.zeros(3), [range(4 * j, 4 * j + 4) for j in range(3)]))
    moving = simulate(programs, machine, replace(at(0.0, 0.0, 0.0), leak=LeakVariant.NONCONTIGUOUS))
    assert (moving.end < fixed.end).all()
    assert (moving.held < fixed.held).all()


# -- plans -----------------------------------------------------------------------------------------------------------


def test_plans_that_do_not_fit_are_errors() -> None:
    programs = computing([(0, 1.0)], [(0, 1.0)])
    for plan, what in (
        (static([0.0], 0), "shape"),
        (static([0.0, NEVER], 0, 1), "infinite"),
        (static([0.0, 0.0], 0), "2 in programs"),
        (static([0.0, 0.0], 0, 4), "invalid node 4.*job 2|job 2.*invalid node 4"),
        (replace(at(0.0, 0.0), leak=None), "nodes or leak"),
    ):
        with pytest.raises(InputError, match=what):
            simulate(programs, LINE, plan)
    with pytest.raises(InputError, match="2 nodes for a program of 1"):
        reserved(programs, np.zeros(2), [[0], [1, 2]])
    assert reserved(programs, np.array([0.0, np.nan]), [[2], []], np.array([np.nan, 1.0])).cancel.tolist() == [
        NEVER,
        1.0,
    ]


def test_a_workload_without_behavior_is_an_error() -> None:
    with pytest.raises(InputError, match="column behaviour"):
        programs_of(tb.generate("feitelson96", jobs=3, nodes=4, cores_per_node=1), LINE)


def test_leaking_jobs_start_at_their_earliest_start_and_are_cancelled_at_their_deadline() -> None:
    study = tb.generate("deadline-very-heavy", jobs=40, seed=4, behaviour="forks")
    plan = leaking(study, LeakVariant.NONCONTIGUOUS)
    assert (plan.start == study.floats("earliest_start")).all()
    machine = Machine(Grid((8, 16)), 4)
    outcome = simulate(programs_of(study, machine), machine, plan)
    done = outcome.accepted & outcome.completed
    assert done.any()
    assert (outcome.end[done] <= study.floats("deadline")[done]).all()
    assert (outcome.end[outcome.accepted & ~done] == study.floats("deadline")[outcome.accepted & ~done]).all()


# -- compiled --------------------------------------------------------------------------------------------------------


def test_the_compiled_simulation_gives_the_same_to_the_bit() -> None:
    for seed in range(150):
        assert evolving_cases.compared(seed) == "", f"seed {seed}"
    assert evolving_cases.compared(1, large=True) == ""


def test_the_run_time_alone_is_that_of_a_simulation_of_the_job_alone() -> None:
    programs, machine, _ = evolving_cases.case(7)
    together = reserved(programs, np.zeros(len(programs)), [list(range(count)) for count in programs.nodes])
    for job, run_time in enumerate(run_alone(programs, machine, together)):
        only = np.where(np.arange(len(programs)) == job, 0.0, np.nan)
        alone = reference.ReferenceSimulation(programs, machine, replace(together, start=only)).run()
        assert run_time == alone.end[job]


@pytest.mark.parametrize(("name", "error"), [("missing.so", "no C compiler"), ("machine.h", "another machine")])
def test_without_the_compiled_simulation_an_error_says_what_to_install(
    name: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "LIBRARY", compiled.LIBRARY.with_name(name))
    with pytest.raises(InputError, match=error) as raised:
        simulate(*evolving_cases.case(7))
    assert "install" in str(raised.value.hint)


def test_the_kinds_of_steps_are_those_of_the_source() -> None:
    source = (compiled.LIBRARY.parent / "machine.h").read_text(encoding="utf-8")
    assert f"enum kind {{ {', '.join(kind.name for kind in StepKind)} }};" in source
    assert f"enum leak {{ STATIC, {', '.join(leak.name for leak in LeakVariant)} }};" in source


def test_the_example_of_the_documentation_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "explanation" / "evolving.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for code, printed in re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL):
        exec(code, names)
        assert capsys.readouterr().out == printed
    assert "outcome" in names


# -- programs beside SimGrid on the same grid: the ends of all jobs agree ----------------------------------------------

SOURCE = Path(__file__).with_name("simgrid_programs.cpp")
OPTIONS = (
    *("network/model:CM02", "network/bandwidth-factor:1", "network/latency-factor:1", "network/weight-S:0"),
    *("network/TCP-gamma:1e30", "network/crosstraffic:0", "network/loopback-bw:1e18"),
)
MARGIN = 1e-4
"""Largest relative difference; measured 2e-8. Synchronous programs amplify rounding, which versions may change."""


@pytest.fixture(scope="module")
def simgrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the program for SimGrid."""
    compiler, program = shutil.which("g++"), tmp_path_factory.mktemp("simgrid") / "programs"
    if not compiler or not Path("/usr/include/simgrid/s4u.hpp").exists():
        pytest.skip("SimGrid or g++ is not installed (apt-get install g++ libsimgrid-dev)")
    command = [compiler, "-O1", "-std=c++17", "-o", str(program), str(SOURCE), "-lsimgrid"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def ends_in_simgrid(simgrid: Path, programs: Programs, machine: Machine, nodes: list[int]) -> list[float]:
    """Return the end of each process by SimGrid, s. `nodes` are those of the jobs, all of which start at 0."""
    first, sides = np.concatenate([[0], np.cumsum(programs.nodes)]), machine.grid.sides
    job = np.repeat(np.arange(len(programs)), np.diff(programs.processes))
    lines = [
        f"{len(sides)} {' '.join(map(str, sides))} {int(machine.grid.torus)} {machine.cores} {machine.bandwidth} "
        f"{machine.latency} {int(programs.communication == 'synchronous')} {len(job)} {len(programs.size)}"
    ]
    for number, parent in enumerate(programs.parent):
        steps = range(*programs.steps[number : number + 2])
        lines.append(f"{nodes[first[job[number]] + programs.home[number]]} {parent} {len(steps)}")
        lines += [f"{programs.kind[step]} {programs.argument[step]} {float(programs.amount[step])}" for step in steps]
    messages = zip(*(array.tolist() for array in (programs.sender, programs.receiver, programs.size)), strict=True)
    lines += [f"{sender} {receiver} {size}" for sender, receiver, size in messages]
    command = [str(simgrid), *(f"--cfg={option}" for option in OPTIONS), "--log=root.thresh:error"]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, timeout=patience(300), check=False
    )
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


def errors(
    simgrid: Path, programs: Programs, machine: Machine, nodes: list[int]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the relative differences of the ends of the jobs."""
    count = len(programs)
    plan = AllocationPlan(np.zeros(count), np.full(count, np.inf), np.array(nodes, dtype=np.int64))
    ours = simulate(programs, machine, plan).end
    theirs = np.maximum.reduceat(ends_in_simgrid(simgrid, programs, machine, nodes), programs.processes[:-1])
    return ours / theirs - 1.0


@pytest.mark.parametrize("communication", COMMUNICATIONS)
@pytest.mark.parametrize(("sides", "torus"), [((4, 4), False), ((4, 4), True), ((2, 3, 3), False)])
def test_jobs_that_share_links_end_as_in_simgrid(
    sides: tuple[int, ...], torus: bool, communication: Communication, simgrid: Path
) -> None:
    """Jobs of all types on scattered nodes, with large messages, so that most of the time is communication."""
    machine = Machine(Grid(sides, torus), cores=2)
    rng = np.random.default_rng(len(sides) + torus)
    sizes = [3, 5, 4, 4, 6, 2, 7, 3]
    programs = behaviours.drawn(
        [*TYPES, *TYPES],
        sizes,
        cores=2,
        communication=communication,
        seed=4,
        parameters=behaviours.BehaviourParameters(message=0.5, input=3.0),
    )
    nodes = [int(node) for count in sizes for node in rng.permutation(len(machine.grid))[:count]]
    found = errors(simgrid, programs, machine, nodes)
    assert np.abs(found).max() < MARGIN, found


def test_latency_is_that_of_simgrid(simgrid: Path) -> None:
    for communication in COMMUNICATIONS:
        builder = Builder(communication)
        builder.begin(16)
        numbers = builder.create(range(16))
        for one, other in ((0, 15), (3, 12), (5, 6), (8, 1)):
            builder.compute(numbers[one : one + 1], np.array([0.3]))
            builder.exchange((numbers[one : one + 1], numbers[other : other + 1], 0.7))
        found = errors(simgrid, builder.build(), Machine(Grid((4, 4)), 1, 2.0, 0.05), list(range(16)))
        assert np.abs(found).max() < MARGIN, (communication, found)


def test_the_comparison_sees_another_model(simgrid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each link's bandwidth divided equally, whether or not its messages use it, the ends differ by more."""

    def equal_parts(routes: dict[int, list[int]], bandwidth: float) -> dict[int, float]:
        on = {link: sum(link in route for route in routes.values()) for route in routes.values() for link in route}
        return {message: min(bandwidth / on[link] for link in route) for message, route in routes.items()}

    programs = behaviours.drawn(
        ["bsp"] * 4,
        [4] * 4,
        cores=1,
        communication="asynchronous",
        seed=4,
        parameters=behaviours.BehaviourParameters(message=2.0),
    )
    nodes, machine = np.random.default_rng(1).permutation(16), Machine(Grid((4, 4)))
    theirs = ends_in_simgrid(simgrid, programs, machine, nodes.tolist())
    monkeypatch.setattr(reference, "max_min", equal_parts)
    plan = AllocationPlan(np.zeros(4), np.full(4, np.inf), nodes)
    ours = reference.ReferenceSimulation(programs, machine, plan).run().end
    assert np.abs(ours / np.maximum.reduceat(theirs, programs.processes[:-1]) - 1.0).max() > 100 * MARGIN
