"""Drawn workloads of Slurm with arrays, begin times, licences, a reservation and preemption."""

from __future__ import annotations

import math
from random import Random

from tests.oracles.slurm_scenarios import BY_TIER, CREATE, Scenario, Submitted


def drawn(seed: int, mode: str) -> Scenario:
    """Return a drawn workload of 70 submissions: arrays, begins, licences, a reservation and preemption."""
    draw, now, jobs = Random(seed), 0.0, list[Submitted]()
    for _ in range(70):
        now += draw.expovariate(1 / 2.5)
        cores = draw.choices((1, 2, 4, 8, 12), (5, 4, 4, 2, 1))[0]
        run = round(min(60.0, draw.lognormvariate(2.3, 0.8)), 1)
        columns: dict[str, str | float] = {"partition": draw.choices(("low", "high"), (7, 2))[0]}
        kind = draw.random()
        if kind < 0.15:
            columns["licenses"] = f"a:{draw.choice((1, 2))}"
        elif kind < 0.25:
            columns["earliest_start"] = math.ceil(now) + draw.randint(5, 30)
        elif kind < 0.30 and 40 < now < 100:
            columns |= {"reservation": "r", "partition": "low"}
            cores = min(cores, 4)
        tasks = f"0-{draw.choice((2, 4))}{draw.choice(('', '%2'))}" if 0.3 < kind < 0.42 and cores < 8 else ""
        limit = draw.choice((1, 1, 2, 4)) if run < 50 else draw.choice((2, 4))
        jobs.append(Submitted(round(now, 1), run, cores, limit, tasks, columns=columns))
    settings = (
        "SchedulerParameters=bf_interval=5,bf_resolution=10,bf_max_job_test=1000,batch_sched_delay=0",
        *("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core", "Licenses=a:2"),
        *((*BY_TIER, f"PreemptMode={mode}") if mode else ()),
    )
    lines = (
        "NodeName=n[1-6] CPUs=4",
        "PartitionName=low Nodes=ALL Default=YES PriorityTier=1",
        "PartitionName=high Nodes=n[1-4] PriorityTier=2",
    )
    actions = ((-2, CREATE.format(70, 130, "n6", "")),)
    return Scenario(f"drawn-{seed}", tuple(jobs), 420, settings, lines, actions, nodes=6)


DRAWN = {each.name: each for each in (drawn(1, ""), drawn(2, "CANCEL"), drawn(3, "REQUEUE"))}
