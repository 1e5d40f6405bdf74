"""Programs of processes, beside SimGrid on the same grid: the ends of all jobs agree.

SimGrid runs its fluid model CM02 without corrections: factors of bandwidth and latency are 1, a message's share does
not depend on its latency (weight-S 0, TCP-gamma without effect), and there is no cross-traffic of acknowledgements.
SimGrid weights the messages on a link by their latencies, which max-min fairness does not. Therefore cases with
latency have messages of one process at a time.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.oracles import evolving as reference
from tests.patience import patience
from tracebed.converters.models.deadlines import TYPES
from tracebed.ground.topology import Grid
from tracebed.orchestrator.evolving import behaviours
from tracebed.orchestrator.evolving.machine import AllocationPlan, Machine
from tracebed.orchestrator.evolving.programs import COMMUNICATIONS, Builder, Communication, Programs
from tracebed.orchestrator.evolving.simulation import simulate

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
