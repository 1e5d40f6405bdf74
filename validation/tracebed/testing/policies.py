"""The check of scheduling policies."""

from __future__ import annotations

import builtins
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast
from unittest import mock

import numpy as np
import pandas as pd

from tracebed.converters.workload import Workload
from tracebed.machine.machine import Machine
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Decision, Policy, State, shares, visible_jobs
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.testing import workloads

ENDED = {"completed", "rejected", "cancelled"}
"""Valid final states of the jobs in these workloads. The state `unknown` means that the policy never started a job."""
TABLES = ("jobs", "allocations", "reconfigurations")


def check_policy(
    policy: str | type[Policy] | Policy,
    parameters: Mapping[str, Any] | None = None,
    *,
    no_starvation: bool = False,
    cases: int = 60,
    seed: int = 0,
) -> None:
    """Check the invariants of a scheduling policy on random workloads.

    The invariants are:

    * Each job that fits the machine runs once, after its submission.
    * No core is allocated twice, and no node outside the machine is allocated.
    * On a machine with partitions, no job holds a node outside its partition.
    * Each job receives the core seconds that it needs.
    * A malleable job stays within its sizes. A rigid job, and each job under a rigid policy, keeps its requested nodes.
    * The same workload gives the same schedule, even if the instance has scheduled other workloads meanwhile.
    * The policy does not modify the scheduler state, read a clock or a file, or use a global random generator.

    Args:
        policy: name of an installed policy, a policy class or an instance.
        parameters: parameters of a policy that is given by name or class.
        no_starvation: also check that a job that needs all nodes starts although smaller jobs keep arriving.
        cases: number of workloads.
        seed: seed of the first workload; the other workloads have the following seeds.

    Raises:
        AssertionError: an invariant is violated; the message has the invariant and the workload.
        PolicyError: the code of the policy fails, or a decision is impossible; the message has the file and the line.
        InputError: `policy` is not a policy.

    Example:
        >>> from tracebed.testing import check_policy
        >>> check_policy("easy", cases=5, no_starvation=True)
    """
    name, instance = registry.resolve(policy, parameters)
    before = _Case.simulate(instance, workloads.draw(seed), seed, name)
    for number in range(seed, seed + cases):
        drawn = workloads.draw(number)
        for workload, machine in ((drawn, None), workloads.in_partitions(drawn, number)):
            case = _Case.simulate(instance, workload, number, name, machine)
            case.check_jobs()
            case.check_cores()
            case.check_nodes()
            case.check_sizes()
            case.check_work()
            case.check_same(_Case.simulate(instance, workload, number, name, machine), "a second time")
    again = _Case.simulate(instance, before.workload, seed, name)
    before.check_same(again, f"after {cases} other workloads: the policy keeps state between workloads")
    if no_starvation:
        crowd = _Case.simulate(instance, workloads.contended_workload(), None, name)
        wide = float(crowd.run.jobs.loc[crowd.run.jobs["job_id"] == "wide", "start"].iloc[0])
        crowd.require(wide <= 100.0, f"the job that needs all nodes starves: it starts at {wide:g} s")


@dataclass
class _Case:
    """A workload, and its run under the policy."""

    policy: Policy
    workload: Workload
    run: Run
    name: str
    seed: int | None
    machine: Machine

    @classmethod
    def simulate(
        cls, policy: Policy, workload: Workload, seed: int | None, name: str, machine: Machine | None = None
    ) -> _Case:
        """Simulate a workload on a machine; None: on the nodes of its system."""
        machine = Machine.of_system(workload.provenance.system) if machine is None else machine
        watched = _ReadOnlyPolicy(policy, lambda text: _fail(name, seed, text))
        with _seeded(random.randrange(2**32)):
            run = predict(workload, machine, cast(Policy, watched), engine="python")
        return cls(policy, workload, run, name, seed, machine)

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs as the policy sees them."""
        return visible_jobs(self.policy, Jobs.of(self.workload, cores_per_node=1))

    @cached_property
    def members(self) -> dict[str, set[int]]:
        """The numbers of the nodes of each partition; those of the machine for jobs without a partition."""
        names = [node.name for node in self.machine.nodes]
        members = {part.name: {names.index(name) for name in part.nodes} for part in self.machine.partitions}
        return {"": {*range(len(names))}} | members

    def require(self, holds: object, text: str) -> None:
        if not holds:
            _fail(self.name, self.seed, text)

    def check_jobs(self) -> None:
        """Check that each job that fits the machine runs after its submission."""
        for job in self.run.jobs.to_dict("records"):
            what, number = f"job {job['job_id']}", self.jobs.ids.index(job["job_id"])
            fits = self.jobs.low[number] <= len(self.members[job["partition"]])
            self.require(job["nodes"] == self.jobs.nodes[number], f"{what} requests other nodes than in the workload")
            self.require(job["state"] in ENDED, f"{what} is {job['state']} at the end ({job['reason']})")
            self.require(job["state"] == "completed" or job["reason"], f"{what} is {job['state']} without a reason")
            self.require(fits or job["state"] != "completed", f"{what} runs, but needs more nodes than the machine has")
            self.require(
                bool(np.isnan(job["start"]) or job["start"] >= job["submit"]), f"{what} starts before its submission"
            )

    def check_cores(self) -> None:
        """Check that no core is allocated twice, and no node outside the machine is allocated."""
        rows = self.run.allocations
        inside = (rows["node"] >= 0) & (rows["node"] + rows["count"] <= self.run.total_nodes)
        self.require(bool(inside.all()), "a job holds a node outside the machine")
        rows = rows[rows["end"] > rows["start"]]
        for node, facts in enumerate(self.run.info.nodes):
            own = rows[(rows["node"] <= node) & (node < rows["node"] + rows["count"])]
            changes = pd.concat(
                [pd.Series(own["cores"].array, own["start"]), pd.Series(-own["cores"].array, own["end"])]
            )
            held = changes.groupby(level=0).sum().cumsum()
            self.require(
                bool((held <= facts.cores).all()), f"more than the {facts.cores} cores of node {node} are allocated"
            )

    def check_nodes(self) -> None:
        """Check that no job holds a node outside its partition."""
        rows = self.run.allocations
        partition = dict(zip(self.run.jobs["job_id"], self.run.jobs["partition"], strict=True))
        for job, node, count in zip(rows["job_id"], rows["node"], rows["count"], strict=True):
            inside = {*range(node, node + count)} <= self.members[partition[job]]
            self.require(inside, f"job {job} holds a node outside its partition")

    def check_sizes(self) -> None:
        """Check that each rigid job keeps its nodes, and each malleable job stays within its sizes."""
        jobs = self.jobs
        rows = self.run.allocations[self.run.allocations["end"] > self.run.allocations["start"]]
        for job, own in rows.groupby("job_id"):
            number = jobs.ids.index(str(job))
            for instant in np.unique(own["start"]):
                nodes = int(own.loc[(own["start"] <= instant) & (instant < own["end"]), "count"].sum())
                low, high = jobs.low[number], jobs.high[number]
                if not jobs.malleable[number]:
                    low = high = jobs.nodes[number]
                self.require(low <= nodes <= high, f"job {job} holds {nodes} nodes, but may hold {low} to {high}")

    def check_work(self) -> None:
        """Check that each completed job has received the core seconds that it needs (all speedups are linear)."""
        rows = self.run.allocations
        received = (rows["cores"] * rows["count"] * (rows["end"] - rows["start"])).groupby(rows["job_id"]).sum()
        table = self.workload.table.set_index("job_id")
        needed = table["run_time"] * table["nodes"] * table["cores_per_node"]
        for job in self.run.jobs.loc[self.run.jobs["state"] == "completed", "job_id"]:
            right = abs(received.get(job, 0.0) - needed[job]) <= 1e-6 * max(1.0, needed[job])
            self.require(right, f"job {job} received {received.get(job, 0.0):g} core s, but needs {needed[job]:g}")

    def check_same(self, other: _Case, when: str) -> None:
        """Check that another simulation gave the same tables."""
        for table in TABLES:
            same = getattr(self.run, table).equals(getattr(other.run, table))
            self.require(same, f"the table {table} of the run differs {when}")


def _fail(name: str, seed: int | None, text: str) -> None:
    case = "the crowded workload" if seed is None else f"workload {seed}"
    raise AssertionError(f"policy {name}, {case} (tracebed.testing.workloads): {text}")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global random generators, so that a policy that uses them gives a different schedule for each seed."""
    before, numpys = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpys)


CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time")


@dataclass(frozen=True)
class _ReadOnlyPolicy:
    """A policy that fails the check if a step does anything but read the state."""

    observed: Policy
    fail: Callable[[str], None]

    @property
    def malleable(self) -> bool:
        return self.observed.malleable

    @property
    def shares(self) -> bool:
        return shares(self.observed)

    def view(self, jobs: Jobs) -> Jobs:
        return visible_jobs(self.observed, jobs)

    def decide(self, state: State) -> Iterator[Decision]:
        steps = self.observed.decide(state)
        return _Steps(self, state, steps) if hasattr(steps, "__next__") else steps

    @contextmanager
    def without_side_effects(self) -> Iterator[None]:
        """Fail the check if the block reads a clock or opens a file."""

        def refused(what: str) -> Callable[..., Any]:
            return lambda *_, **__: self.fail(f"the policy {what}")

        with ExitStack() as stack:
            for clock in CLOCKS:
                stack.enter_context(mock.patch.object(time, clock, refused("reads a clock")))
            stack.enter_context(mock.patch.object(builtins, "open", refused("opens a file")))
            yield


@dataclass
class _Steps:
    """The decisions of a call. A step fails the check if it does anything but read the state."""

    watched: _ReadOnlyPolicy
    state: State
    steps: Any

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Decision:
        before = _snapshot(self.state)
        try:
            with self.watched.without_side_effects():
                decision: Decision = next(self.steps)
                return decision
        finally:
            if _snapshot(self.state) != before:
                self.watched.fail("the policy modifies the scheduler state")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.steps, name)  # the frame of the generator has the line of the policy


def _snapshot(state: State) -> tuple[Any, ...]:
    """Return a copy of the state that a policy could modify by mistake."""
    return (
        (state.now, state.idle, state.returning, state.settled, state.freed, state.woken),
        tuple(state.queue.jobs()),
        tuple(state.size.items()),
        tuple(state.expected_end.items()),
        (tuple(state.resizable), tuple(sorted(state.resizing)), tuple(state.reserved.items()), tuple(state.arrived)),
        state.started.tobytes(),
        (tuple(state.reservations.holds.items()), tuple(sorted(state.cancelling))),
        (tuple(state.since.items()), tuple(state.ran.items())),
    )
