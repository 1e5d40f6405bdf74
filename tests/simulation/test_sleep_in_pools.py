"""Nodes that sleep on a machine with partitions: pools without a common node are machines of their own."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.drawn import draw
from tests.scheduling.test_pools import pools_of
from tests.scheduling.test_scheduling import POLICY_PARAMETERS, workload_of
from tests.simulation.test_sleep import EVERY
from tracebed.machine.calendar import Clock
from tracebed.machine.pools import Pools
from tracebed.machine.power import Sleep, share_of
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.record import POWER_STATES, ScheduleRecord
from tracebed.orchestrator.scheduling.sleeping import Sleeping
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.simulator import Simulator

POOLED = [name for name in EVERY if name not in ("slurm", "leak")]
"""The policies of whole nodes: `slurm` has a simulation of its own on pools, and shapes of `leak` cross them."""
SEEDS = st.integers(0, 2**32 - 1)


def changes(record: ScheduleRecord, until: float) -> list[tuple[float, int, str]]:
    """Return the changes of power before an instant: time, node and state, those of a node in their order."""
    rows = zip(record.power.time, record.power.node, record.power.state, strict=True)
    kept = [(at, node, str(POWER_STATES[state])) for at, node, state in rows if at < until]
    return sorted(kept, key=lambda row: row[:2])


@settings(max_examples=60)
@given(seed=SEEDS, policy=st.sampled_from(POOLED), rule=st.sampled_from(["idle", "idle", "windows"]))
def test_pools_without_a_common_node_sleep_as_machines_of_their_own(seed: int, policy: str, rule: str) -> None:
    """Each job starts, begins and ends at the same instant, and each node changes at the same ones, to the bit."""
    rng = random.Random(f"{seed} {rule}")
    first = draw(seed, policy)
    cases = [first, *(replace(draw(seed + at, policy), options=first.options) for at in range(1, rng.randint(2, 3)))]
    if rule == "windows":  # of ten minutes each day
        cases = [
            replace(case, jobs=[replace(job, submit=job.submit + 86_000.0) for job in case.jobs]) for case in cases
        ]
    options = dict(first.options)
    parameters = {key: options.pop(key) for key in list(options) if key in POLICY_PARAMETERS}
    over_limit = OverLimit(options.pop("over_limit", "extend"))
    total = sum(case.machine for case in cases)
    every = [*range(total)]
    rng.shuffle(every)  # the nodes of a pool are scattered over the machine
    nodes = [np.sort([every.pop() for _ in range(case.machine)]) for case in cases]
    boot_s, shutdown_s = (np.array(rng.choices([0.0, 1.0, 7.0, 30.0], k=total)) for _ in range(2))
    sleep = Sleep(rule="idle", idle_s=rng.choice([0.0, 2.0, 10.0]), keep=rng.choice([0, 0, 1, 2]))
    members = 0
    if rule == "windows":
        sleep = Sleep(
            rule="windows", start="23:54", end="00:04", share=rng.choice([0.3, 0.7]), shrink=rng.random() < 0.7
        )
        members = share_of(total, sleep.share)

    def simulated(jobs: Jobs, own: np.ndarray, pools: Pools | None) -> ScheduleRecord:
        share = min(1.0, (int((own < members).sum()) + 0.5) / len(own))  # the same nodes
        sleeping = Sleeping(replace(sleep, share=share), boot_s[own], shutdown_s[own], Clock())
        setup = Setup.of(policy, **options)
        policy_ = registry.load(policy, parameters)
        return Simulator(jobs, [1] * len(own), policy_, setup, pools=pools, sleeping=sleeping).run()

    order = sorted((job.submit, pool, at) for pool, case in enumerate(cases) for at, job in enumerate(case.jobs))
    merged = [replace(cases[pool].jobs[at], id=number) for number, (_, pool, at) in enumerate(order)]
    pools = pools_of([own.tolist() for own in nodes], [pool for _, pool, _ in order])
    together = simulated(Jobs.of(workload_of(merged), over_limit=over_limit), np.arange(total), pools)
    for pool, (case, own) in enumerate(zip(cases, nodes, strict=True)):
        alone = simulated(Jobs.of(workload_of(case.jobs), over_limit=over_limit), own, None)
        rows = [number for number, (_, of, _) in enumerate(order) if of == pool]
        jobs = sorted(range(len(case.jobs)), key=lambda at: (case.jobs[at].submit, at))
        for name in ("start", "launched", "end"):
            got, want = (np.asarray(getattr(record, name)) for record in (together, alone))
            np.testing.assert_array_equal(got[rows], want[: len(jobs)])
        last = np.nanmax(np.asarray(alone.end), initial=0.0)
        got_rows = [(at, node, state) for at, node, state in changes(together, last) if node in own]
        assert got_rows == [(at, int(own[node]), state) for at, node, state in changes(alone, last)]
