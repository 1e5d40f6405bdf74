"""Grids and placements: curves, distances, shapes, and runs in which jobs get the chosen nodes."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.oracles.drawn import POLICIES, draw
from tests.oracles.redecided import decided, decided_again, workload
from tests.runs import make_run, replaying
from tracebed.cli import tracebed
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.provenance import Provenance, System
from tracebed.ground.errors import InputError
from tracebed.ground.topology import Grid
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.placement import PLACEMENTS, chooser, shape
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.validation.metrics.placement import largest_part

SIDES = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)
GRIDS = st.builds(Grid, SIDES, st.booleans())
NAMES = ("first", "hilbert", "median", "median-strict", "leak", "leak-noncontiguous")


# -- the grid --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("height", range(1, 13))
def test_neighbours_on_the_curve_are_neighbours_on_the_grid(height: int) -> None:
    for sides in [*((height, width) for width in range(1, 13)), *((height, a, b) for a, b in ((1, 2), (3, 4), (5, 3)))]:
        grid = Grid(sides)
        assert sorted(grid.curve.tolist()) == list(range(len(grid)))
        assert all(grid.distance(*pair) == 1 for pair in itertools.pairwise(grid.curve.tolist())), sides
        assert (grid.curve[grid.place] == np.arange(len(grid))).all()


def test_the_curve_of_a_square_of_four_is_that_of_hilbert() -> None:
    assert Grid((4, 4)).place.reshape(4, 4).tolist() == [[0, 3, 4, 5], [1, 2, 7, 6], [14, 13, 8, 9], [15, 12, 11, 10]]


@given(GRIDS, st.data())
def test_distances_neighbours_and_parts_are_those_of_their_definitions(grid: Grid, data: st.DataObject) -> None:
    def apart(a: int, b: int) -> int:
        pairs = zip(grid.coordinates[a], grid.coordinates[b], grid.sides, strict=True)
        return sum(min(abs(x - y), side - abs(x - y)) if grid.torus else abs(x - y) for x, y, side in pairs)

    nodes = sorted(data.draw(st.sets(st.integers(0, len(grid) - 1), max_size=12)))
    assert all(grid.distance(a, b) == apart(a, b) for a in nodes for b in nodes)
    assert all(grid.distances_to(a)[b] == apart(a, b) for a in nodes for b in nodes)
    assert all(sorted(grid.neighbours[a]) == [b for b in range(len(grid)) if apart(a, b) == 1] for a in nodes)
    assert grid.total_distance(nodes) == sum(apart(a, b) for a, b in itertools.combinations(nodes, 2))
    joined = {node: {node} for node in nodes}
    for a, b in itertools.combinations(nodes, 2):
        if apart(a, b) == 1 and joined[a] is not joined[b]:
            joined[a] |= joined[b]
            for node in joined[b]:
                joined[node] = joined[a]
    assert grid.parts(nodes) == sorted(sorted(part) for part in {id(part): part for part in joined.values()}.values())
    idle = np.isin(np.arange(len(grid)), nodes)
    assert largest_part(grid, idle) == max(map(len, grid.parts(nodes)), default=0)


@pytest.mark.parametrize("text", ["8x16", "torus:4x4x8", "7"])
def test_a_grid_is_read_back_from_its_text(text: str) -> None:
    assert str(Grid.parse(text)) == text


@pytest.mark.parametrize("text", ["", "8x", "0x4", "8x16x2x2", "8 x 16", "ring:8", "-1x4", "8.0x16", "8x16torus"])
def test_other_texts_are_no_grids(text: str) -> None:
    with pytest.raises(InputError, match="invalid grid"):
        Grid.parse(text)


# -- the choice of nodes -----------------------------------------------------------------------------------------------


def chosen(name: str, grid: Grid, idle: Sequence[int], count: int, held: Sequence[int] = (), job: int = 0) -> list[int]:
    return [int(node) for node in PLACEMENTS.load(name)(grid, idle, count, held, job)]


@given(GRIDS, st.sampled_from(NAMES), st.data())
def test_a_job_gets_idle_nodes_in_the_shape_of_its_placement(grid: Grid, name: str, data: st.DataObject) -> None:
    free = data.draw(st.sets(st.integers(0, len(grid) - 1), min_size=1))
    held = sorted(data.draw(st.sets(st.sampled_from(range(len(grid))), max_size=4)) - free)
    idle, count = sorted(free), data.draw(st.integers(1, len(free)))
    nodes = chosen(name, grid, idle, count, held, data.draw(st.integers(0, 9)))
    assert len(nodes) == len(set(nodes)) == count and set(nodes) <= free
    if held:
        return
    if name == "hilbert":
        on_curve = sorted(grid.place[nodes].tolist())
        runs = np.split(np.sort(grid.place[idle]), np.flatnonzero(np.diff(np.sort(grid.place[idle])) > 1) + 1)
        contiguous = on_curve[-1] - on_curve[0] == count - 1
        assert contiguous == any(len(run) >= count for run in runs)
    if name == "median":
        connected = len(grid.parts(nodes)) == 1
        assert connected == any(len(part) >= count for part in grid.parts(idle))
    if name == "leak":
        connected = len(grid.parts(nodes)) == 1
        assert connected == any(len(part) >= count for part in grid.parts(idle))
    if name == "leak-noncontiguous":
        assert len(grid.parts(nodes)) <= len(grid.parts(idle))


@given(GRIDS, st.sampled_from(NAMES), st.data())
def test_a_shape_is_admissible_or_missing_and_its_placement_chooses_it(
    grid: Grid, name: str, data: st.DataObject
) -> None:
    free = data.draw(st.sets(st.integers(0, len(grid) - 1), min_size=1))
    idle, count, job = sorted(free), data.draw(st.integers(1, len(grid))), data.draw(st.integers(0, 9))
    nodes = shape(f"{name}@{grid}", len(grid))(idle, count, (), job)
    connected = any(len(part) >= count for part in grid.parts(idle))
    places = set(grid.place[idle].tolist())
    segment = any(places.issuperset(range(begin, begin + count)) for begin in places)
    possible = {"hilbert": segment, "median": connected, "leak": connected}.get(name, len(free) >= count)
    if name == "median-strict":  # which parts it reaches is compared with figure 8 in test_deadline.py
        possible = connected and nodes is not None
    assert (nodes is not None) == possible
    if nodes is not None:
        assert len(nodes) == len(set(nodes)) == count and set(nodes) <= free
        assert list(nodes) == chosen(name, grid, idle, count, job=job)
        assert name in ("first", "leak-noncontiguous") or len(grid.parts(nodes)) == 1


def test_every_choice_of_another_package_is_admissible(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
        return idle[-count:]

    monkeypatch.setattr(type(PLACEMENTS), "load", lambda self, name: last)
    choose = shape("last@2x2", 4)
    assert choose([0, 1, 3], 2, (), 0) == [1, 3]
    assert choose([0, 1, 3], 4, (), 0) is None


@pytest.mark.parametrize("name", ["leak", "leak-noncontiguous"])
def test_leak_flows_as_in_figure_11(name: str) -> None:
    """Two jobs hold the first row of 4 x 4, a third the last but one of row 2, where the snake turns to the left.

    The new job of 4 begins at the first idle node of the snake. Its only idle neighbour is below, from which it flows
    to two nodes of row 3. The picture is not in the text; this is the situation that the text describes.
    """
    idle = [5, 8, 9, 10, 12]
    assert chosen(name, Grid((4, 4)), idle, 4) == [5, 9, 8, 10]


def test_leak_continues_with_the_snake_where_nothing_is_idle_beside_the_job() -> None:
    """Figure 13: the second part begins at the next idle node of the snake and grows there."""
    assert chosen("leak-noncontiguous", Grid((3, 4)), [0, 1, 4, 6, 7, 10], 5) == [0, 4, 1, 7, 6]
    assert chosen("leak", Grid((3, 4)), [0, 1, 4, 6, 7, 10], 5) == [0, 4, 1, 7, 6]  # none is large enough


def test_leak_begins_where_it_reaches_all_nodes() -> None:
    """The first idle node of the snake, 0, has one idle neighbour; the flow from 2 reaches three nodes."""
    idle = [0, 2, 3, 4, 7]
    assert chosen("leak", Grid((2, 4)), idle, 3) == [2, 3, 7]
    assert chosen("leak-noncontiguous", Grid((2, 4)), idle, 3) == [0, 4, 2]


def test_each_job_enters_at_another_node() -> None:
    grid = Grid((4, 4))
    assert [chosen("leak", grid, range(16), 1, job=job) for job in range(5)] == [[0], [7], [8], [15], [0]]


def test_median_adds_the_neighbour_with_the_least_distance() -> None:
    """Figure 9: from node 0 of 3 x 3, the nodes 1, then 3 (1 + 2; node 2: 2 + 1), then 4 (2 + 1 + 1; 2: 2 + 1 + 3)."""
    assert chosen("median", Grid((3, 3)), range(9), 4) == [0, 1, 2, 4]
    assert sorted(chosen("median", Grid((3, 3)), [1, 3, 4, 5, 7, 8], 4)) == [1, 3, 4, 5]


def test_median_strict_stops_where_a_busy_neighbour_is_the_nearest() -> None:
    """3 x 3 without node 4: beside 0, 1 and 2 the busy node adds 2 + 1 + 2, the free ones 3 and 5 add 6."""
    idle, grid = [0, 1, 2, 3, 5, 6, 7, 8], Grid((3, 3))
    assert chosen("median", grid, idle, 5) == [0, 1, 2, 3, 5]
    assert chosen("median-strict", grid, idle, 3) == [0, 1, 2]  # as near as the busy node
    assert shape("median-strict@3x3", 9)(idle, 5, (), 0) is None
    assert chosen("median-strict", grid, idle, 5) == chosen("median", grid, idle, 5)


def test_median_strict_is_median_on_an_empty_grid() -> None:
    grid = Grid((4, 5))
    for count in range(1, 21):
        assert chosen("median-strict", grid, range(20), count) == chosen("median", grid, range(20), count)


def least_distances(grid: Grid) -> list[int]:
    """Return the least total distance of all sets of 0, 1, 2, ... nodes: every set is a number, its nodes are bits."""
    total, count = np.zeros(1, dtype=np.int16), np.zeros(1, dtype=np.uint8)
    for node in range(len(grid)):
        to_node = np.zeros(1, dtype=np.int16)  # of each set of the nodes before
        for other in range(node):
            to_node = np.concatenate((to_node, to_node + np.int16(grid.distance(node, other))))
        total, count = np.concatenate((total, total + to_node)), np.concatenate((count, count + np.uint8(1)))
    return [int(total[count == size].min()) for size in range(len(grid) + 1)]


def test_least_distances_are_those_of_the_definition() -> None:
    grid = Grid((2, 3))
    for size, least in enumerate(least_distances(grid)):
        assert least == min(grid.total_distance(nodes) for nodes in itertools.combinations(range(6), size))


@pytest.mark.parametrize("sides", [(2, 3), (3, 3), (3, 4), (4, 4), (4, 5), (5, 5)])
def test_the_distance_of_median_is_near_the_least_on_an_empty_grid(sides: tuple[int, ...]) -> None:
    """Bender et al. prove 7/4 for their MM, which tries every node as the median; this one begins at a corner."""
    grid = Grid(sides)
    found = [grid.total_distance(chosen("median", grid, range(len(grid)), count)) for count in range(2, len(grid) + 1)]
    worst = max(ours / least for ours, least in zip(found, least_distances(grid)[2:], strict=True))
    print(f"median on {grid}: at most {worst:.3f} times the least distance")  # noqa: T201  the figure is quoted
    assert worst <= 7 / 4


def test_an_expansion_takes_nodes_near_those_of_the_job() -> None:
    grid, idle = Grid((4, 4)), [0, 1, 10, 14]
    assert chosen("first", grid, idle, 1, held=[11]) == [0]
    assert chosen("hilbert", grid, idle, 1, held=[11]) == [10]
    assert chosen("median", grid, idle, 2, held=[11]) == [10, 14]
    assert shape("median-strict@4x4", 16)(idle, 2, [11], 0) == [10, 14]
    assert shape("median-strict@4x4", 16)([7, 10, 15], 4, [11], 0) is None
    assert shape("median-strict@4x4", 16)([0, 1, 5], 2, [4], 0) == [0, 1]
    assert shape("median-strict@4x4", 16)([0, 1, 2], 3, [4], 0) is None  # 5 is nearer than 2
    assert chosen("leak", grid, idle, 2, held=[11]) == [10, 14]


# -- runs --------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.sampled_from(POLICIES), st.sampled_from(NAMES[1:]))
def test_a_placement_changes_neither_starts_nor_sizes(seed: int, policy: str, name: str) -> None:
    case = draw(seed, policy)
    drawn = tb.make_malleable(tb.generate("lublin99", jobs=30, nodes=12, seed=seed % 1000, load=0.9), share=0.5, seed=1)
    usual = predict(drawn, 12, policy, priority=case.options["priority"], engine="python")
    other = predict(drawn, 12, policy, priority=case.options["priority"], placement=name, grid="3x4")
    assert usual.jobs.equals(other.jobs)
    held = {(run is usual): run.allocations.groupby("job_id")["count"].sum().to_dict() for run in (usual, other)}
    if not registry.load(policy).malleable:
        assert held[True] == held[False]
    rows = other.allocations
    for node in range(12):
        here = rows[(rows["node"] <= node) & (node < rows["node"] + rows["count"])].sort_values(["start", "end"])
        shared = (here["cores"] < 1).any()
        assert shared or (here["end"].to_numpy()[:-1] <= here["start"].to_numpy()[1:]).all()


def nodes_at_start(run: tb.Run, job: str) -> list[int]:
    rows = run.allocations[(run.allocations["job_id"] == job).to_numpy()]
    rows = rows[rows["start"] == rows["start"].min()]
    return sorted(node for row in rows.itertuples() for node in range(row.node, row.node + row.count))


def test_a_replay_places_jobs_as_its_simulation(tmp_path: Path) -> None:
    """Also its journal gives the same decisions and nodes again."""
    nodes = Inventory("grid", "agents", tuple(Node(f"n{number}", 2, 1, None, True) for number in range(6)), grid="2x3")
    work = workload(8, nodes=3)
    options = replaying(2000.0, placement="hilbert", grid="2x3")
    run = replay(work, nodes, "easy", tmp_path / "run", **options)
    assert run.info.setup.scheduling.placed == "hilbert@2x3"
    jobs = Jobs.of(work, cores_per_node=2)
    path = tmp_path / "run" / JOURNAL
    assert decided_again(path, jobs, nodes, registry.load("easy"), options) == decided(path)
    usual = decided_again(path, jobs, nodes, registry.load("easy"), replaying(2000.0))
    assert [each.nodes for each in usual] != [each.nodes for each in decided(path)]


def test_the_grid_is_that_of_the_inventory_or_of_the_system(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("grid: 2x4\nnodes: [{name: 'n[1-8]', cores: 1, emulated: true}]\n")
    drawn = tb.generate("cirne", jobs=5, nodes=8, seed=1)
    assert tb.simulate(drawn, "easy", file).info.setup.scheduling.placed == "first@2x4"
    assert tb.simulate(drawn, "easy", file, placement="leak").info.setup.scheduling.placed == "leak@2x4"
    assert tb.simulate(drawn, "easy", file, grid="8").info.setup.scheduling.placed == "first@8"
    study = tb.generate("deadline-normal", jobs=5)
    assert tb.simulate(study, "easy", placement="hilbert").info.setup.scheduling.placed == "hilbert@8x16"
    assert tb.simulate(study, "easy", 200).info.setup.scheduling.placed == "first"


def test_an_inventory_with_a_grid_of_another_size_is_an_error_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("nodes: [{name: 'n[1-8]', cores: 1, emulated: true}]\ngrid: 2x5\n")
    with pytest.raises(InputError, match="grid 2x5 has 10 nodes, the machine has 8") as raised:
        tb.inventory(file)
    assert ":2" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--placement", "hilbert"], "needs the grid of the machine"),
        (["--placement", "hilbert", "--grid", "3x3"], "grid 3x3 has 9 nodes, the machine has 8"),
        (["--grid", "3x"], "invalid grid '3x'"),
        (["--placement", "hilbert", "--grid", "2x4", "--engine", "compiled"], "does not support the placement"),
    ],
)
def test_an_impossible_placement_is_an_error(options: list[str], said: str, tmp_path: Path) -> None:
    write_workload(tb.generate("cirne", jobs=5, nodes=8, seed=1), tmp_path / "w.parquet")
    command = ["simulate", str(tmp_path / "w.parquet"), "--policy", "easy", *options, "-o", str(tmp_path / "run")]
    done = CliRunner().invoke(tracebed, command)
    assert isinstance(done.exception, InputError) and said in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_no_chooser_is_made_for_the_usual_placement() -> None:
    assert chooser("first", 5) is None
    assert chooser("first@5", 5) is None


def test_systems_without_a_grid_are_recorded_as_before() -> None:
    assert "grid" not in json.loads(Provenance(System(8, 1)).to_json())["system"]
    with_grid = Provenance(System(8, 1, "m", "2x4"))
    assert Provenance.from_json(with_grid.to_json()) == with_grid
    with pytest.raises(InputError, match="grid 2x5 has 10 nodes"):
        System(8, 1, "m", "2x5")


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_distances_parts_and_fragmentation_by_hand() -> None:
    """2 x 3 nodes. Job 1 holds 0, 1, 2 (a row) from 0 to 10, job 2 then 0, 1 from 10 to 20.

    From 0 to 10, nodes 3, 4, 5 are idle, one part; from 10 to 20 nodes 2 to 5, one part. Distances: 4/3 and 1.
    """
    run = tb.Run.of(make_run([(0, 0, 10, 3), (0, 10, 20, 2)], machine=6))
    found = run.metrics(window="full", grid="2x3")
    assert found["mean_distance"] == pytest.approx((4 / 3 + 1) / 2)
    assert (found["mean_parts"], found["fragmentation"]) == (1.0, 0.0)
    line = run.metrics(window="full", grid="6")
    assert line["mean_distance"] == pytest.approx((4 / 3 + 1) / 2)


def test_idle_nodes_beside_the_largest_part_are_fragmentation() -> None:
    """A line of 5. Job 1 holds 0, job 2 holds 1 until 4, job 3 holds 2. Job 2 leaves a hole, from 4 until 10."""
    run = tb.Run.of(make_run([(0, 0, 10, 1), (0, 0, 4, 1), (0, 0, 10, 1)], machine=5))
    found = run.metrics(window="full", grid="5")
    assert found["fragmentation"] == pytest.approx(6 * 1 / (4 * 2 + 6 * 3))
    assert run.metrics(window=(5.0, 9.0), grid="5")["fragmentation"] == pytest.approx(1 / 3)
    assert run.metrics(window="full", grid="torus:5")["fragmentation"] == pytest.approx(6 / 26)
    assert math.isnan(found["mean_distance"]) and found["undefined"]["mean_distance"] == "no job ran on several nodes"
    assert run.metrics()["undefined"]["mean_distance"] == "the grid of the machine is unknown"
