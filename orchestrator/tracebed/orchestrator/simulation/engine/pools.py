"""The compiled simulator of a machine with pools of nodes, of which each node is in one: a simulation of each pool.

A policy decides on such pools as if each were a machine of its own, so that their simulations are independent. Jobs and
nodes have other numbers in the simulation of a pool, in the same order; nodes of smaller weight come first.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any

import numpy as np

from tracebed.converters.workload import IntArray
from tracebed.ground.states import JobState
from tracebed.machine.pools import Pools
from tracebed.machine.power import PowerState
from tracebed.orchestrator.scheduling.cluster import Cluster, Ledger
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import CoreChanges, PowerChanges, Resizes, ScheduleRecord
from tracebed.orchestrator.scheduling.sleeping import Sleeping
from tracebed.orchestrator.scheduling.state import Policy, next_multiple
from tracebed.orchestrator.setup import DEFAULT, Setup
from tracebed.orchestrator.simulation.delays import OF_RESIZES, Drawn, Pauses
from tracebed.orchestrator.simulation.engine import CompiledSimulator, obstacle
from tracebed.orchestrator.simulation.interference import Interference
from tracebed.orchestrator.simulation.outages import Outages
from tracebed.orchestrator.tables import split


class PooledSimulator:
    """Compiled version of `simulator.Simulator` on pools, with the same arguments, attributes and results.

    The resizes, and the changes of cores, are in the order of the pools.
    """

    def __init__(
        self,
        jobs: Jobs,
        cores: list[int],
        policy: Policy,
        setup: Setup = DEFAULT,
        *,
        sockets: list[int] | None = None,
        interference: Interference | None = None,
        drawn: Drawn | None = None,
        pauses: Pauses | None = None,
        outages: Outages | None = None,
        pools: Pools | None = None,
        sleeping: Sleeping | None = None,
    ) -> None:
        """Start with an idle cluster. Raise ValueError if there is an `obstacle`."""
        assert pools is not None
        reason = obstacle(
            jobs,
            policy,
            len(cores),
            setup,
            interference=interference,
            outages=outages,
            pools=pools,
            sleeping=sleeping,
        )
        if reason:
            raise ValueError(reason)
        self.jobs, self.pools = jobs, pools
        self.cluster = Cluster(cores, sockets)
        self.record = ScheduleRecord(jobs)
        self._policy, self._setup, self._interference = policy, setup, interference
        self._drawn, self._pauses, self._sleeping = drawn, pauses, sleeping

    def run(self, on_progress: Callable[[int], None] | None = None) -> ScheduleRecord:
        """Run until every job has ended and return the record.

        Args:
            on_progress: called periodically with the number of jobs submitted so far.

        Raises:
            MemoryError: the engine cannot allocate memory.
        """
        jobs, record, pools = self.jobs, self.record, self.pools
        times = {name: np.full(len(jobs), math.nan) for name in ("start", "launched", "end")}
        states = np.array(record.state, dtype=object)
        submitted = 0

        def report(count: int) -> None:
            assert on_progress is not None
            on_progress(submitted + count)

        parts = []
        with ExitStack() as stack:
            for number, pool in enumerate(pools.pools):
                rows, nodes = np.flatnonzero(pools.of == number), np.array(pool.nodes)
                nodes = nodes[np.argsort(pools.weights[nodes], kind="stable")]
                part = stack.enter_context(self._part(rows, nodes))
                part.advance(report if on_progress else None)
                submitted += len(rows)
                parts.append((part, rows, nodes))
                if self._sleeping is None:
                    stack.close()  # an engine is freed before the next one is made
            if self._sleeping is not None:
                self._switch_off([part for part, *_ in parts], self._sleeping)
        for part, rows, nodes in parts:
            own = part.record
            for name, values in times.items():
                values[rows] = getattr(own, name)
            states[rows] = own.state
            for job in [job for job, reason in enumerate(own.reason) if reason]:
                record.reason[rows[job]] = own.reason[job]
            _add(record.resizes, own.resizes, job=rows)
            _add(record.cores, own.cores, job=rows, node=nodes)
            _add(record.power, own.power, node=nodes)
            _add_ledger(self.cluster.ledger, part.cluster.ledger, rows, nodes)
        record.submit = array("d", np.asarray(jobs.column("submit"), dtype=np.float64).tobytes())
        record.start, record.launched, record.end = (array("d", values.tobytes()) for values in times.values())
        record.state = states.tolist()
        record.unserved = pools.reasons
        for job, reason in pools.reasons.items():
            record.refuse(job, JobState.REJECTED, reason)
        return record

    def _switch_off(self, parts: list[CompiledSimulator], sleeping: Sleeping) -> None:
        """Let nodes that are idle be switched off until the last instant of the machine, also those of no pool.

        After each submission and shutdown, there is a call of the policy, perhaps later: at its interval.
        """
        interval_s, rest_s = self._setup.scheduling.interval_s if parts else 0.0, sleeping.rule.rest_s
        others = sorted({*range(len(self.cluster))}.difference(*(pool.nodes for pool in self.pools.pools)))
        off = {node: rest_s + float(sleeping.shutdown_s[node]) for node in others}
        until, last = -math.inf, float(np.max(self.jobs.column("submit")))
        events = [last, *(at for at in off.values() if at > rest_s)]
        while last > until:
            until = last
            calls = [next_multiple(interval_s, at) for at in events if at <= until] if interval_s else []
            last = max([until, *calls, *(part.advance(until=until) for part in parts)])
        for node in others if rest_s <= last else ():
            self.record.power.add(node, rest_s, PowerState.SHUTDOWN)
            self.record.power.add(node, off[node], PowerState.OFF)

    def _part(self, rows: IntArray, nodes: IntArray) -> CompiledSimulator:
        """Return the simulator of the jobs in `rows` on `nodes`."""
        drawn, pauses, sleeping, cluster = self._drawn, self._pauses, self._sleeping, self.cluster
        if drawn is not None:
            drawn = {step: values if step in OF_RESIZES else values[rows] for step, values in drawn.items()}
        if pauses is not None:
            pauses = replace(pauses, **{name: values[rows] for name, values in vars(pauses).items()})
        if sleeping is not None:
            sleeping = replace(sleeping, boot_s=sleeping.boot_s[nodes], shutdown_s=sleeping.shutdown_s[nodes])
        return CompiledSimulator(
            self.jobs.take(rows),
            [cluster.cores[node] for node in nodes.tolist()],
            self._policy,
            self._setup,
            sockets=[cluster.sockets[node] for node in nodes.tolist()],
            interference=self._interference,
            drawn=drawn,
            pauses=pauses,
            sleeping=sleeping,
        )


def _add(
    table: Resizes | CoreChanges | PowerChanges, own: Resizes | CoreChanges | PowerChanges, **numbers: IntArray
) -> None:
    """Add the rows of a pool to a table. `numbers`: column -> the numbers of its jobs or nodes on the machine."""
    for name in [column.name for column in fields(table)]:
        values: Any = getattr(own, name)
        if name in numbers and len(values):
            values = array("i", numbers[name][np.asarray(values)].astype(np.int32).tobytes())
        getattr(table, name).extend(values)


def _add_ledger(ledger: Ledger, own: Ledger, jobs: IntArray, nodes: IntArray) -> None:
    """Add the allocations of a pool to those of the machine. `jobs`, `nodes`: their numbers there.

    A range of nodes of the pool may be several ranges of the machine.
    """
    if not len(own.jobs):
        return
    held, low, count, starts, ends = map(np.asarray, (own.jobs, own.firsts, own.counts, own.starts, own.ends))
    row, low, high = split(low, low + count, np.cumsum(np.diff(nodes, prepend=nodes[0] - 1) != 1))
    first = len(ledger.jobs)
    for at in np.flatnonzero(np.isin(row, [*own.parts])).tolist() if own.parts else ():
        ledger.parts[first + at] = own.parts[int(row[at])]
    for column, values in (
        (ledger.jobs, jobs[held[row]]),
        (ledger.firsts, nodes[low]),
        (ledger.counts, high - low),
        (ledger.starts, starts[row]),
        (ledger.ends, ends[row]),
    ):
        column.frombytes(values.astype(column.typecode).tobytes())
