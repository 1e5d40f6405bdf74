"""Drawn cases of evolving jobs: any programs on any machine and plan, simulated in C and in Python.

python -m tests.oracles.evolving_cases 2000            # 2,000 cases, from a seed that changes every hour
"""

from __future__ import annotations

import argparse
import random
import sys
import time

import numpy as np

import tracebed.api as tb
from tests.oracles.evolving import ReferenceSimulation
from tracebed.converters.models.deadlines import TYPES
from tracebed.ground.topology import Grid
from tracebed.orchestrator.evolving import behaviours
from tracebed.orchestrator.evolving.machine import AllocationPlan, LeakVariant, Machine, ProgramOutcome
from tracebed.orchestrator.evolving.programs import COMMUNICATIONS, Builder, Programs
from tracebed.orchestrator.evolving.simulation import leaking, programs_of, simulate

SIDES = ((1,), (7,), (2, 2), (3, 4), (4, 4), (2, 5), (2, 3, 3))


def case(seed: int) -> tuple[Programs, Machine, AllocationPlan]:
    """Return programs, a machine and a plan drawn from `seed`."""
    rng = random.Random(f"evolving {seed}")
    grid = Grid(rng.choice(SIDES), torus=rng.random() < 0.4)
    latency = rng.choice([0.0, 0.0, 0.01, 0.3])
    machine = Machine(grid, rng.choice([1, 1, 2, 4]), rng.choice([1.0, 0.3, 20.0]), latency)
    jobs = rng.randint(1, 8)
    sizes = [rng.randint(1, len(grid)) for _ in range(jobs)]
    programs = any_programs(rng, sizes) if rng.random() < 0.5 else drawn_programs(rng, sizes, machine)
    start = np.array([rng.choice([0.0, 1.0, rng.uniform(0.0, 5.0)]) for _ in range(jobs)])
    start[[rng.random() < 0.1 for _ in range(jobs)]] = np.nan
    cancel = np.array([rng.choice([np.inf, np.inf, rng.uniform(0.0, 20.0), 1.0, 3.0]) for _ in range(jobs)])
    if rng.random() < 0.5:
        return (
            programs,
            machine,
            AllocationPlan(
                start,
                cancel,
                leak=rng.choice(list(LeakVariant)),
                waits=rng.random() < 0.5,
                joins_release=rng.random() < 0.5,
                by_nodes=rng.random() < 0.5,
            ),
        )
    nodes = np.concatenate([np.array(rng.sample(range(len(grid)), count), dtype=np.int64) for count in sizes])
    return programs, machine, AllocationPlan(start, cancel, nodes)


def large_case(seed: int) -> tuple[Programs, Machine, AllocationPlan]:
    """Return jobs of the deadline study that compete for a machine of 128 nodes."""
    rng = random.Random(f"evolving large {seed}")
    study = tb.generate("deadline-very-heavy", jobs=30, seed=seed)
    machine = Machine(Grid((8, 16), torus=rng.random() < 0.5), 2)
    programs = programs_of(study, machine, communication=rng.choice(COMMUNICATIONS), seed=seed)
    leak, waits, joins_release = rng.choice(list(LeakVariant)), rng.random() < 0.5, rng.random() < 0.5
    return programs, machine, leaking(study, leak, waits=waits, joins_release=joins_release)


def drawn_programs(rng: random.Random, sizes: list[int], machine: Machine) -> Programs:
    """Return programs of the behaviors, with any parameters."""
    return behaviours.drawn(
        rng.choices(TYPES, k=len(sizes)),
        sizes,
        cores=machine.cores,
        communication=rng.choice(COMMUNICATIONS),
        seed=rng.randrange(1000),
        parameters=behaviours.BehaviourParameters(
            imbalance=rng.choice([0.0, 0.2, 1.0]),
            message=rng.choice([0.0, 0.05, 1.0]),
            input=rng.choice([0.05, 1.0]),
            supersteps=rng.randint(1, 3),
            phases=rng.randint(1, 2),
            overload=rng.choice([0.0, 2.0, 4.0]),
            growth=rng.choice([0.0, 0.5, 1.0]),
            branches=rng.randint(1, 4),
            per_node=rng.choice([0, 1, 2]),
        ),
    )


def any_programs(rng: random.Random, sizes: list[int]) -> Programs:
    """Return programs of any steps, with many equal times."""
    builder = Builder(rng.choice(COMMUNICATIONS))
    for nodes in sizes:
        builder.begin(nodes)
        alive = builder.create([rng.randrange(nodes) for _ in range(rng.randint(1, 3))]).tolist()
        children: list[tuple[int, int]] = []
        for _ in range(rng.randint(0, 25)):
            step, some = rng.random(), rng.sample(alive, rng.randint(1, len(alive)))
            if step < 0.4:
                builder.compute(np.array(some), np.array([rng.choice([0.0, 0.5, 1.0, rng.random()]) for _ in some]))
            elif step < 0.55:
                children.append((some[0], int(builder.fork(np.array(some[:1]), [rng.randrange(nodes)])[0])))
                alive.append(children[-1][1])
            elif step < 0.65 and children:
                parent, child = children.pop(rng.randrange(len(children)))
                if child in alive and not any(child == above for above, _ in children):
                    builder.join(np.array([parent]), np.array([child]))
                    alive.remove(child)
            else:
                half = len(some) // 2
                pairs = np.array(some[:half], dtype=np.int64), np.array(some[half : 2 * half], dtype=np.int64)
                size = rng.choice([0.0, 0.25, 1.0, rng.random()])
                builder.exchange((*pairs, size), (*reversed(pairs), size))
    return builder.build()


def fields_of(outcome: ProgramOutcome) -> dict[str, bytes]:
    """Return the arrays of an outcome as bytes."""
    return {name: np.asarray(array).tobytes() for name, array in vars(outcome).items()}


def compared(seed: int, *, large: bool = False) -> str:
    """Return what differs between C and Python in a case, or an empty text."""
    programs, machine, plan = large_case(seed) if large else case(seed)
    ours, theirs = (
        simulate(programs, machine, plan),
        ReferenceSimulation(programs, machine, plan).run(),
    )
    differing = [name for name, values in fields_of(theirs).items() if values != fields_of(ours)[name]]
    return "".join(f"{name}: {getattr(theirs, name)}, in C {getattr(ours, name)}\n" for name in differing)


def main() -> int:
    """Compare cases; print the first seed that differs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()) // 3600 * 1_000_000)
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        if found := compared(seed):
            sys.stdout.write(f"seed {seed}:\n{found}")
            return 1
    sys.stdout.write(f"{arguments.count:,} cases from seed {arguments.seed}: all the same\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
