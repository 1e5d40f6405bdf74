"""Comparison of the compiled simulator with the Python one on cases drawn from one seed.

python -m tests.oracles.engines 20000            # 20,000 cases, from a seed that changes every hour
python -m tests.oracles.engines 500 --seed 7 --large
python -m tests.oracles.engines 500 --pools      # on a machine with partitions, or with features
python -m tests.oracles.engines 500 --sleep      # on nodes that sleep after some idle time
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import asdict, fields, replace
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from tests.oracles.drawn import MALLEABLE, draw
from tests.oracles.reference_scheduler import RefJob
from tests.oracles.slurm_cases import PARAMETERS
from tests.scheduling.test_scheduling import POLICY_PARAMETERS, workload_of
from tests.testbeds.test_calibrate import calibration, estimate
from tracebed.converters.workload import Workload
from tracebed.ground.table import Table
from tracebed.machine.machine import Machine, NodeClass, Partition
from tracebed.machine.nodes import NodeFacts
from tracebed.machine.power import NodePower, Sleep
from tracebed.orchestrator.run import TABLES, Run
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.simulation.delays import STEPS
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.testbeds.calibration import COSTS

SHARING = ("sd", "drom-share")
RIGID = ("fcfs", "firstfit", "easy", "conservative", "slurm")
KINDS = ("rigid", "evolving", "moldable", "malleable")
KNOWN = (*RIGID, "dmr", *MALLEABLE, *SHARING)
POOLED = tuple(name for name in KNOWN if name != "slurm")
"""The policies that decide on pools. `slurm` has a simulation of its own for them."""
SLEEPING = tuple(name for name in KNOWN if name not in SHARING)
"""The policies under which nodes sleep."""


def case(
    seed: int, policy: str | None = None, *, large: bool = False, pools: bool = False, sleep: bool = False
) -> dict[str, Any]:
    """Return the arguments of `predict` for `seed`: the case of `drawn.draw` and more, within the engine's features.

    `pools`: on the same nodes in several pools. `sleep`: on the same nodes, which sleep after some idle time. Both: on
    pools of nodes that sleep, and on nodes of no pool.
    """
    rng = random.Random(f"engine {seed}")
    known = [name for name in KNOWN if (not pools or name in POOLED) and (not sleep or name in SLEEPING)]
    policy = policy or rng.choice(known)
    drawn = draw(seed, policy)
    jobs, machine = (many_jobs(rng, policy not in RIGID)) if large else (drawn.jobs, drawn.machine)
    options = drawn.options | ({"priority": "fcfs"} if policy in SHARING else {})
    parameters = {key: options.pop(key) for key in list(options) if key in POLICY_PARAMETERS}
    cores = rng.choice([[4], [4], [2, 4, 8]])
    workload = workload_of(jobs)
    workload.table["cores_per_node"] = [rng.choice([1, 3, 4, 8]) for _ in jobs]
    workload.table["application"] = ["stream" if number % 3 else "pils" for number in range(len(jobs))]
    workload.table["state_mib"] = [float(number % 2) for number in range(len(jobs))]
    sockets = [1]
    if policy in SHARING:
        parameters, sockets = sharing_parameters(rng, policy), rng.choice([[1], [2], [1, 2]])
        workload.table["ranks_per_node"] = rng.choices([1, 2, 3], [4, 1, 1], k=len(jobs))
        workload.table["user"] = rng.choices("abc", k=len(jobs))
        workload.table["kind"] = rng.choices(KINDS, [1, 1, 1, 7], k=len(jobs))
    if policy == "slurm":
        parameters = {name: rng.choice(values) for name, values in PARAMETERS.items()}
        workload.table["user"] = rng.choices("abc", k=len(jobs))
    if policy == "dmr":
        parameters = {"floor": rng.choice(["pref", "min"])}
    found = {
        "workload": Workload(workload.table),
        "nodes": [NodeFacts(f"n{number}", rng.choice(cores), sockets=rng.choice(sockets)) for number in range(machine)],
        "setup": policy,
        "policy_parameters": parameters,
        "runtime_model": rng.choice(list(RuntimeModel)),
        **options,
        **overheads(rng, options, grain=policy not in SHARING),
        "speed": rng.choice([1.0, 3.0]),
        "over_limit": OverLimit(options["over_limit"]),
    }
    found |= member(rng, found["overheads"])
    if pools:
        weighed = policy in RIGID and parameters.get("reserve") != "nodes" and not sleep
        found["nodes"] = in_pools(random.Random(f"pools {seed}"), workload.table, found["nodes"], weighed=weighed)
        found["workload"] = Workload(workload.table)
    if sleep:
        found["nodes"] = asleep(random.Random(f"sleep {seed}"), found["nodes"])
        if pools and found["priority"] in ("largest-slowdown-first", "aging"):
            found["priority"] = "shortest-first"
    return found


def asleep(rng: random.Random, nodes: list[NodeFacts] | Machine) -> Machine:
    """Return a machine of some nodes that sleep after an idle time: one or two classes with times of their own.

    The classes of a machine with pools have such times, and one more class is of no pool.
    """
    kinds = [
        NodePower(
            busy_w=200,
            idle_w=100,
            boot_s=rng.choice([0.0, 1.0, 5.0, 7.3, 30.0]),
            shutdown_s=rng.choice([0.0, 1.0, 3.7, 5.0, 20.0]),
        )
        for _ in range(rng.choice([1, 1, 2]))
    ]
    sleep = Sleep(
        rule="idle",
        idle_s=rng.choice([0.0, 1.0, 3.0, 10.0, 50.0, rng.uniform(0.0, 9.0)]),
        keep=rng.choice([0, 0, 1, 2, len(nodes.nodes if isinstance(nodes, Machine) else nodes) // 2]),
    )
    if isinstance(nodes, Machine):
        own = [replace(each, power=rng.choice(kinds)) for each in nodes.classes]
        if rng.random() < 0.5 and (nodes.partitions or any(each.features for each in own)):
            own.append(NodeClass(names=("other-0", "other-1"), cores=own[0].cores, power=rng.choice(kinds)))
        return replace(nodes, classes=tuple(own), sleep=sleep)
    rows = [(node, rng.choice(kinds)) for node in nodes]
    classes = []
    for (cores, sockets, power), alike in groupby(rows, lambda row: (*row[0][1:], row[1])):
        names = tuple(node.name for node, _ in alike)
        classes.append(NodeClass(names=names, cores=cores, sockets=sockets, power=power))
    return Machine(classes=tuple(classes), sleep=sleep)


def in_pools(rng: random.Random, table: pd.DataFrame, nodes: list[NodeFacts], *, weighed: bool) -> Machine:
    """Return a machine of some nodes, each in one of up to four pools, and let each job of a workload demand one.

    The pools are partitions, or the nodes with a feature. Some jobs demand what no node has. `weighed`: the nodes of a
    pool have different weights.
    """
    count = rng.randint(1, min(4, len(nodes)))
    of = [*range(count), *rng.choices(range(count), k=len(nodes) - count)]
    rng.shuffle(of)
    members = [[node for node, own in zip(nodes, of, strict=True) if own == number] for number in range(count)]
    chosen = rng.choices([*range(count), None], [1.0] * count + [0.1], k=len(table))
    for row, number in enumerate(chosen):
        cores = [node.cores for node in (members[number] if number is not None else nodes)]
        table.loc[row, "cores_per_node"] = 99 if rng.random() < 0.05 else rng.choice([1, min(cores), min(cores)])
        if number is not None and rng.random() < 0.9:
            sizes = ["nodes", "nodes_min", "nodes_pref", *(["nodes_max"] if rng.random() < 0.5 else [])]
            table.loc[row, sizes] = [min(value, len(cores)) for value in table.loc[row, sizes]]
    names = ["absent" if number is None else f"p{number}" for number in chosen]
    by_feature, classes = rng.random() < 0.3, []
    for ((cores, sockets), number), run in groupby(zip(nodes, of, strict=True), lambda node: (node[0][1:], node[1])):
        own: dict[str, Any] = {"features": (f"p{number}",)} if by_feature else {}
        own["weight"] = rng.choice([1, 2, 3]) if weighed else number
        classes.append(NodeClass(names=tuple(node.name for node, _ in run), cores=cores, sockets=sockets, **own))
    if by_feature:
        table["features"] = names
        return Machine(classes=tuple(classes))
    default = rng.randrange(count)
    table["partition"] = ["" if name == f"p{default}" and rng.random() < 0.3 else name for name in names]
    partitions = [
        Partition(
            name=f"p{number}",
            nodes=tuple(node.name for node in own),
            default=number == default,
            tier=rng.choice([1, 1, 2]),
            limit_s=rng.choice([0.0, 0.0, 0.0, 30.0]),
            most_nodes=rng.choice([0, 0, 0, max(1, len(own) // 2)]),
        )
        for number, own in enumerate(members)
    ]
    return Machine(classes=tuple(classes), partitions=tuple(partitions))


def sharing_parameters(rng: random.Random, policy: str) -> dict[str, Any]:
    """Return parameters of a policy that shares nodes."""
    if policy == "drom-share":
        mode = rng.choice(["share"] * 5 + ["serial"])
        return {"mode": mode, "split": rng.choice(["even", "asked"]) if mode == "share" else "even"}
    interval = rng.choice([0.0, 0.0, 3.0, 5.0, 30.0])
    passes = {
        "bf_window": rng.choice([0, 1, 2]),
        "bf_resolution": rng.choice([0, 1, 5, 60]),
        "bf_node_space_size": rng.choice([0, 1, 3, 10]),
        "bf_max_job_user": rng.choice([0, 0, 1, 3]),
    }
    passes = passes if interval and rng.random() < 0.6 else {}
    return {
        "max_slowdown": rng.choice(["dynamic", "median", "p70", "inf", "10", "10", "2", "1.2"]),
        "sharing_factor": rng.choice([0.5, 0.5, 0.3, 0.9]),
        "mates": rng.choice([0, 1, 2, 2, 2, 3, 9]),
        "candidates": rng.choice([0, 1, 4, 64]),
        "include_free_nodes": rng.random() < 0.5,
        "inside": rng.choice(["before", "after", "off"]),
        "depth": rng.choice([0, 2, 5, 100]),
        "backfill_interval_s": interval,
        "if_earlier": rng.random() < 0.7,
        "partial": rng.random() < 0.3,
        "weighted": rng.random() < 0.3,
        "keep_plan": rng.random() < 0.3,
        **passes,
    }


def overheads(rng: random.Random, options: dict[str, Any], *, grain: bool) -> dict[str, Any]:
    """Return overheads: none, some fields, or all. A grain replaces the malleability interval."""
    if rng.random() < 0.4:
        return {"overheads": None}
    chosen = {
        field.name: rng.choice([0.25, 0.5, 1.5, rng.uniform(0.0, 3.0)])
        for field in fields(Overheads)
        if rng.random() < 0.5 and (grain or field.name != "grain_s")
    }
    interval = 0.0 if "grain_s" in chosen else options["malleability_interval_s"]
    return {"overheads": Overheads(**chosen), "malleability_interval_s": interval}


def member(rng: random.Random, constants: Overheads | None) -> dict[str, Any]:
    """Return the same overheads as a calibration with distributions, and a member of an ensemble; sometimes nothing."""
    if constants is None or rng.random() < 0.5:
        return {}
    values = {name: estimate(value) for name, value in asdict(constants).items() if name != "grain_s"}
    factors = {
        step: sorted(rng.choice([0.0, rng.uniform(0.0, 3.0)]) for _ in range(rng.randint(1, 5)))
        for step in STEPS
        if rng.random() < 0.8
    }
    costs = {name: estimate(rng.uniform(0.0, 3.0)) for name in COSTS if rng.random() < 0.7}
    made = calibration(
        overheads=values,
        factors=factors or {"end": [1.0]},
        grain_s=constants.grain_s,
        applications={"stream": costs} if rng.random() < 0.5 else {},
    )
    return {
        "overheads": None,
        "malleability_interval_s": None,
        "calibration": made,
        "member": rng.randint(0, 99),
    }


def many_jobs(rng: random.Random, malleable: bool) -> tuple[list[RefJob], int]:
    """Return a few hundred jobs of many sizes for a nearly overloaded machine with some hundred nodes."""
    machine = rng.choice([100, 333, 1000])
    jobs, submit = [], 0.0
    for number in range(rng.choice([300, 1500])):
        submit += rng.choice([0.0, 0.0, rng.expovariate(0.3)])
        nodes = min(machine, 1 + int(rng.expovariate(8 / machine)))
        run_time = rng.choice([0.0, 10.0, rng.expovariate(0.05)])
        limit = rng.choice([None, run_time * rng.uniform(0.8, 4.0)])
        job = RefJob(number, submit, run_time, limit, nodes)
        if malleable and rng.random() < 0.8:
            job.malleable = True
            job.nodes_min = rng.randint(1, nodes)
            job.nodes_max = rng.randint(nodes, machine)
            job.parallel_fraction = rng.choice([None, 0.9, 0.99, 0.999])
        jobs.append(job)
    return jobs, machine


def bits(table: Table) -> dict[str, Any]:
    """Return the bits of the columns of numbers, and the texts of the others."""
    return {name: raw.tobytes() if isinstance(raw := table.raw(name), np.ndarray) else raw for name in table}


def differences(one: Run, other: Run) -> str:
    """Return the tables, columns or facts in which two runs differ in any bit, except for the engine's name."""
    found = []
    for name in TABLES:
        if bits(one.table(name)) == bits(other.table(name)):
            continue
        try:
            pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True)
            found.append(f"{name}: not the same bits")
        except AssertionError as error:
            found.append(f"{name}: {error}")
    facts, others = (dict(vars(run.info), engine="") for run in (one, other))
    found += [f"{key}: {value} and {others[key]}" for key, value in facts.items() if value != others[key]]
    return "\n".join(found)


def compared(
    seed: int, policy: str | None = None, *, large: bool = False, pools: bool = False, sleep: bool = False
) -> str:
    """Return the differences of the two simulators on the case of `seed`; empty if they agree."""
    arguments = case(seed, policy, large=large, pools=pools, sleep=sleep)
    one, other = (predict(**arguments, engine=engine) for engine in ("python", "compiled"))
    assert (one.info.engine, other.info.engine) == ("python", "compiled")
    return differences(one, other)


def main() -> int:
    """Compare the simulators and print the seeds that differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()) // 3600 * 1_000_000)
    parser.add_argument("--policy", choices=KNOWN)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--pools", action="store_true")
    parser.add_argument("--sleep", action="store_true")
    options = parser.parse_args()
    chosen = {name: getattr(options, name) for name in ("large", "pools", "sleep")}
    for seed in range(options.seed, options.seed + options.cases):
        if found := compared(seed, options.policy, **chosen):
            print(f"seed {seed}: {found}")  # noqa: T201
            return 1
    print(f"{options.cases:,} cases from seed {options.seed}: the same")  # noqa: T201
    return 0


if __name__ == "__main__":
    np.seterr(all="raise")
    sys.exit(main())
