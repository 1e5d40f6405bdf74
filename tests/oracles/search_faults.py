"""Search for scenarios that violate a rule: `python -m tests.oracles.search_faults --seconds 60`.

Each finding is printed with its seed, and shrunk as a test. Without a limit, the search does not end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice

from tests.faults.batch_scenario import BatchScenario
from tests.faults.evolving_scenario import EvolvingScenario
from tests.faults.layered_batch import LayerScenario
from tests.faults.partitioned_scenario import PartitionedScenario
from tests.faults.pooled_batch import PooledScenario
from tests.faults.resizing_batch import ResizingScenario
from tests.faults.scenario import FAULTS, JOBS, NODES, Scenario
from tests.faults.shrinking import AnyScenario, Finding, examine, prepare, shrunk
from tests.faults.sleeping_scenario import SleepingPools, SleepingScenario

BATCH = 25
"""Number of seeds that a process gets at once."""


def _batches(first: int, most: int | None, until: float) -> Iterator[range]:
    for begin in count(first, BATCH):
        if time.monotonic() > until or (most is not None and begin >= first + most):
            return
        yield range(begin, begin + BATCH if most is None else min(begin + BATCH, first + most))


def main() -> int:
    """Search, and return 1 if a rule was violated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=None, help="first seed; default: drawn")
    parser.add_argument("--count", type=int, default=None, help="number of seeds; default: no limit")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time for the search; default: no limit")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; default: the CPUs")
    parser.add_argument("--batch", action="store_true", help="scenarios of a batch system instead of agents")
    parser.add_argument("--resizes", action="store_true", help="with --batch: a policy decides, and jobs are resized")
    parser.add_argument("--layer", action="store_true", help="with --batch: a layer resizes jobs beside the system")
    parser.add_argument("--evolving", action="store_true", help="scenarios of agents in which jobs ask for nodes")
    parser.add_argument("--sleep", action="store_true", help="scenarios of agents whose nodes sleep")
    parser.add_argument(
        "--partitions",
        action="store_true",
        help="unlike nodes in partitions, also with --sleep; with --batch, a policy decides",
    )
    parser.add_argument("--no-shrink", action="store_true", help="print the findings as they are")
    chosen = parser.parse_args()
    first = int.from_bytes(os.urandom(4), "big") if chosen.first is None else chosen.first
    kind: type[AnyScenario] = BatchScenario if chosen.batch else Scenario
    if chosen.resizes:
        kind = ResizingScenario
    elif chosen.layer:
        kind = LayerScenario
    elif chosen.evolving:
        kind = EvolvingScenario
    elif chosen.sleep:
        kind = SleepingPools if chosen.partitions else SleepingScenario
    elif chosen.partitions:
        kind = PooledScenario if chosen.batch else PartitionedScenario
    size = f"up to {JOBS} jobs and {FAULTS}" if chosen.batch else f"{JOBS} jobs, {NODES} nodes and {FAULTS}"
    sys.stdout.write(f"seeds from {first}, each with {size} faults\n")
    begun, done, findings = time.monotonic(), 0, list[Finding]()
    batches = _batches(first, chosen.count, begun + chosen.seconds)
    context = multiprocessing.get_context("forkserver")  # a scenario has threads, which a fork would not copy
    context.set_forkserver_preload([examine.__module__])
    with ProcessPoolExecutor(chosen.jobs, context, prepare, max_tasks_per_child=16) as pool:
        pending = deque(pool.submit(examine, batch, kind) for batch in islice(batches, 2 * chosen.jobs))
        while pending:
            examined, found = pending.popleft().result()
            pending += [pool.submit(examine, batch, kind) for batch in islice(batches, 1)]
            done += examined
            for seed, texts in found:
                finding = Finding(kind.drawn(seed), texts)
                findings.append(finding)
                sys.stdout.write(f"seed {seed}: {'; '.join(texts[:3])}\n")
                sys.stdout.flush()
    seconds = time.monotonic() - begun
    sys.stdout.write(f"{done:,} scenarios in {seconds:.0f} s ({60 * done / seconds:,.0f} a minute): ")
    sys.stdout.write(f"{len(findings)} violate a rule\n")
    smallest: dict[str, Finding] = {}
    for finding in findings:
        smallest.setdefault(finding.rule, finding)
    for finding in () if chosen.no_shrink else smallest.values():
        sys.stdout.write(f"\n# seed {finding.scenario.seed}, shrunk:\n{shrunk(finding).as_test()}")
        sys.stdout.flush()
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
