"""Drawn cases for the scheduler: a workload, a machine, a policy and its options, all from one seed.

python -m tests.oracles.drawn 20000    # compares 20,000 with the slow reference, from a seed that changes every hour
python -m tests.oracles.drawn 20000 --seed 7 --policy conservative
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

from tests.oracles.reference_scheduler import MALLEABLE, NearTie, RefJob

POLICIES = ("fcfs", "firstfit", "easy", "conservative", *MALLEABLE)
PRIORITIES = ("fcfs", "largest-slowdown-first", "shortest-first", "aging")


@dataclass
class Case:
    """The arguments of `simulated` and `reference_schedule`."""

    jobs: list[RefJob]
    machine: int
    policy: str
    options: dict[str, Any]


def draw(seed: int, policy: str | None = None, *, limits_hold: bool = False) -> Case:
    """Return the case of `seed`: times on a lattice (many ties) or not, any share of malleable jobs, any option."""
    rng = random.Random(seed)
    policy = policy or rng.choice(POLICIES)
    machine = rng.choice([1, 2, 3, 5, 8, 10, 16])
    lattice = rng.random() < 0.7
    share = rng.choice([0.0, 0.3, 0.7, 1.0])
    gap = rng.choice([0.5, 2.0, 5.0])
    limits = rng.choice(["any", "some", "exact"])
    jobs, submit = [], 0.0
    for number in range(rng.randint(1, 40)):
        if rng.random() < 0.6:
            submit += float(rng.choice([1, 2, 3, 10])) * gap if lattice else rng.expovariate(1 / gap)
        nodes = rng.randint(1, machine) if rng.random() < 0.5 else rng.randint(1, max(1, machine // 3))
        nodes += machine if rng.random() < 0.02 else 0
        run_time = rng.choice([0.0, 1.0, 2.0, 5.0, 7.5, 10.0, 20.0, 40.0]) if lattice else rng.expovariate(0.1)
        if limits == "exact" or rng.random() < 0.2:
            limit = run_time if rng.random() < 0.9 else None
        elif lattice:
            limit = rng.choice([None, 0.0, 1.0, 5.0, 10.0, 20.0, 40.0, 60.0])
        else:
            limit = run_time * rng.uniform(0.5 if limits == "any" else 1.0, 3.0)
        if limits_hold and limit is not None:
            limit = max(limit, run_time)
        job = RefJob(number, submit, run_time, limit, nodes)
        if nodes <= machine and rng.random() < share:
            job.malleable = True
            job.nodes_pref = nodes if rng.random() < 0.7 else rng.randint(1, machine + 1)
            job.nodes_min = rng.randint(1, job.nodes_pref)
            job.nodes_max = rng.randint(job.nodes_pref, machine + 2)
            job.parallel_fraction = rng.choice([None, 0.5, 0.9, 0.99])
        jobs.append(job)
    options: dict[str, Any] = {
        "interval_s": rng.choice([0.0, 0.0, 4.0, 3.3]),
        "malleability_interval_s": rng.choice([0.0, 2.0, 3.7, 11.0]),
        "over_limit": rng.choice(["extend", "kill", "again", "now"]),
        "priority": rng.choice(PRIORITIES) if rng.random() < 0.5 else "fcfs",
    }
    if policy in MALLEABLE:
        options |= {
            "promise": rng.choice(["pool", "direct", "steal"]),
            "backfill": rng.choice(["easy", "easy", "firstfit"]),
            "count_idle": rng.choice(["yes", "yes", "no", "head"]),
            "grow_at_start": rng.random() < 0.3,
            "calls": rng.choice(["settle", "event", "tick" if options["interval_s"] else "settle"]),
            "expected_end": "scaled" if options["over_limit"] == "kill" else rng.choice(["scaled", "limit"]),
            "narrow": rng.random() < 0.5,
            "ties": rng.choice(["start", "id"]),
            "spread": rng.random() < 0.5,
            **{name: random.Random(f"{name} {seed}").random() < 0.3 for name in ("if_idle", "straight")},
        }
        options["narrow"] &= options["backfill"] == "easy"  # else it has no effect
    if policy == "conservative" and rng.random() < 0.5:
        options |= {
            "backfill_depth": rng.choice([0, 1, 2, 5]),
            "backfill_interval_s": rng.choice([0.0, 3.0, 5.0, 30.0]),
        }
    if policy in ("easy", "conservative") and rng.random() < 0.5:
        options["reserve"] = "nodes"
    return Case(jobs, machine, policy, options)


def main() -> int:
    """Compare cases with the reference; print the first seed that differs."""
    from tests.scheduling.test_scheduling import assert_same

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()) // 3600 * 1_000_000)
    parser.add_argument("--policy", choices=POLICIES)
    arguments = parser.parse_args()
    near_ties = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        case = draw(seed, arguments.policy)
        try:
            assert_same(case.jobs, case.machine, case.policy, **case.options)
        except NearTie:
            near_ties += 1
        except Exception as error:
            error.add_note(f"seed {seed}: {case.policy} on {case.machine} nodes, {case.options}")
            raise
    compared = arguments.count - near_ties
    sys.stdout.write(f"{compared:,} cases from seed {arguments.seed}: all the same; {near_ties} left out (near ties)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
