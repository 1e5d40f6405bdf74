"""The steps of an error budget: a prediction repeated with one cause after another taken from the real run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.machine.pools import Pools
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.redecide import logged_decisions, redecide
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.decision_log import LoggedDecision
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.pools import on_pools
from tracebed.orchestrator.scheduling.state import Policy, handles_requests, shares
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.delays import count_dispatched
from tracebed.orchestrator.simulation.interference import Interference
from tracebed.orchestrator.simulation.observed import ALL, ErrorCause, ObservedResize, ObservedSimulator, ObservedTimes
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.tables import make_run


@dataclass(frozen=True)
class RealRun:
    """A real run with its journal."""

    run: Run
    entries: list[Entry]
    decisions: list[LoggedDecision]  # the calls of the policy and the decisions in the journal
    observed: ObservedTimes

    @classmethod
    def load(cls, folder: Path) -> RealRun:
        """Read the run in `folder` and its journal. A run of a batch system has no decisions of a policy."""
        run = Run.load(folder)
        where = str(folder)
        if not run.info.is_replay:
            what = f"the source of the run is {run.info.source}, not a replay"
            raise InputError(what, where=where, hint="an error budget requires the journal of a replay")
        if run.info.batch:
            return cls(run, [], [], observe_batch(run, where))
        facts, entries = journal.read(folder / JOURNAL)
        interrupted = run.info.state == "interrupted"
        if interrupted and "end" not in facts:
            what = "the replayer was killed: the journal may lack its last decisions"
            raise InputError(what, where=where, hint="repeat the replay")
        found = logged_decisions(entries)
        until = float(facts["end"]["time"]) if interrupted else math.inf
        reason = "; ".join(run.info.interruptions) if interrupted else None
        observed = observe(run, found, until=until, interrupted=reason)
        return cls(run, entries, found, replace(observed, requests=_requests(run, entries)))


def _requests(run: Run, entries: list[Entry]) -> dict[int, list[tuple[float, int]]]:
    """Return the times, trace s, and nodes of the requests of each evolving job."""
    number = {name: job for job, name in enumerate(run.jobs["job_id"])}
    requests: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for entry in entries:
        if entry.kind == "request":
            requests[number[entry.job or ""]].append((entry.time, int(entry.data["nodes"])))
    return requests


def observe(
    run: Run, decisions: list[LoggedDecision], *, until: float = math.inf, interrupted: str | None = None
) -> ObservedTimes:
    """Return the times of a real run, interrupted at `until` (trace s) for a reason, if it was."""
    jobs, table = run.jobs, run.resizes
    number = {name: job for job, name in enumerate(jobs["job_id"])}
    submit = jobs["submit"].to_numpy()
    resizes: dict[int, list[ObservedResize]] = defaultdict(list)
    columns = (table["job_id"], table["nodes_to"] - table["nodes_from"])
    times = (table[name] for name in ("asked", "decided", "applied", "ended"))
    for name, added, *instants in zip(*(column.tolist() for column in (*columns, *times)), strict=True):
        resizes[number[name]].append(ObservedResize(added, *instants))
    cancelled: dict[int, float] = {}
    for decision in decisions:
        if decision.kind == "cancel":
            cancelled.setdefault(number[decision.job], decision.time)
    return ObservedTimes(
        submit=submit.tolist(),
        start=jobs["start"].tolist(),
        launched=jobs["launched"].tolist(),
        end=jobs["end"].tolist(),
        state=[JobState(state) for state in jobs["state"]],
        reason=jobs["reason"].tolist(),
        cancelled=cancelled,
        resizes=dict(resizes),
        calls=[decision.time for decision in decisions if decision.kind == "call"],
        until=until,
        interrupted=interrupted,
    )


def observe_batch(run: Run, where: str) -> ObservedTimes:
    """Return the times of a run of a batch system. The work of a rigid job is the time in which it ran."""
    if run.info.state == "interrupted" or len(run.reconfigurations):
        what = "an error budget requires a complete run of the batch system without resizes"
        raise InputError(what, where=where, hint="repeat the replay")
    work = (run.jobs["end"] - run.jobs["launched"]).tolist()
    return replace(observe(run, []), work=work)


NOMINAL = "nominal"
OVERHEADS = "overheads"
INTERFERENCE = "interference"
REMAINDER = "remainder"


class BudgetStep(NamedTuple):
    """A step of an error budget."""

    name: str
    label: str  # label of the cause that this step removes, for tables and figures
    causes: ErrorCause


STEPS = (
    BudgetStep(NOMINAL, "nominal prediction", ErrorCause.NONE),
    BudgetStep(OVERHEADS, "calibrated overheads", ErrorCause.NONE),
    BudgetStep(INTERFERENCE, "interference between applications", ErrorCause.NONE),
    BudgetStep("submissions", "submission lateness", ErrorCause.SUBMISSIONS),
    BudgetStep("delays", "launch and resize delays", ErrorCause.SUBMISSIONS | ErrorCause.DELAYS),
    BudgetStep("work", "work rates and run times", ErrorCause.SUBMISSIONS | ErrorCause.DELAYS | ErrorCause.WORK),
    BudgetStep("calls", "times of policy calls", ALL),
)
"""The steps in their order. Each step includes the causes of the steps before it. A run of a batch system, which calls
no policy, has no step `calls`."""


@dataclass(frozen=True)
class Remainder:
    """The decisions in which the simulation with all causes differs from the real run. There should be none."""

    decisions: int  # number of calls of the policy and decisions that differ
    of: int  # number of calls and decisions in the real run
    first: str = ""  # the first difference, in words; empty if the decisions agree
    cause: str = ""  # whether the policy or the simulator is the origin of the difference; empty if the decisions agree


@dataclass(frozen=True)
class Repeated:
    """A real run, and the prediction repeated step by step."""

    real: Run
    steps: dict[str, Run]  # name of the step -> the simulation, in the order of `STEPS`
    remainder: Remainder  # the decisions that differ after the last step


def repeat(
    workload: Workload,
    real: RealRun,
    make_policy: Callable[[], Policy],
    *,
    overheads: Overheads | None = None,
    interference: Interference | None = None,
    runtime_model: RuntimeModel = RuntimeModel.IDEAL,
) -> Repeated:
    """Repeat the prediction of `real` with one cause after another; unknown overheads (wall s) are left out."""
    simulations = Simulations(workload, real, make_policy, runtime_model, interference)
    if real.run.info.batch:
        return Repeated(real.run, simulations.nominal_and_causes(real.observed, overheads), Remainder(0, 0))
    last = STEPS[-1]
    everything, final = simulations.run(last, real.observed, overheads)
    observed = replace(real.observed, work=everything.work_done)
    steps = simulations.nominal_and_causes(observed, overheads)
    remainder = simulations.remainder(everything.log.decisions)
    return Repeated(real.run, steps | {last.name: final}, remainder)


class Simulations:
    """The simulations of a real run, whose workload is checked; arguments as for `repeat`."""

    def __init__(
        self,
        workload: Workload,
        real: RealRun,
        make_policy: Callable[[], Policy],
        runtime_model: RuntimeModel,
        interference: Interference | None = None,
    ) -> None:
        info = real.run.info
        if workload.sha256 != info.workload.get("sha256"):
            name = info.workload.get("name") or "another workload"
            hint = f"give the workload that was replayed ({name})"
            raise InputError("the real run has a different workload (the hashes differ)", hint=hint)
        self.real, self.make_policy, self.runtime_model = real, make_policy, runtime_model
        self.interference = interference if shares(make_policy()) else None
        self.scheduling = info.setup.scheduling
        over_limit = self.scheduling.over_limit
        self.cores = [node.cores for node in info.nodes]
        evolving = handles_requests(make_policy())
        self.jobs = Jobs.of(
            workload,
            cores_per_node=max(self.cores),
            over_limit=over_limit,
            evolving=evolving,
            dependencies=self.scheduling.dependencies,
        )
        self.pools: Pools | None = None
        if info.machine is not None and not info.machine.plain:
            self.jobs, self.pools = on_pools(workload, info.machine, self.jobs, make_policy())

    def run(
        self, step: BudgetStep, observed: ObservedTimes, overheads: Overheads | None
    ) -> tuple[ObservedSimulator, Run]:
        """Return the simulator and the simulation of a step; `overheads` in wall seconds."""
        info = self.real.run.info
        setup = Setup.of(info.setup, runtime_model=self.runtime_model, overheads=overheads or Overheads())
        simulator = ObservedSimulator(
            observed,
            step.causes,
            [node.name for node in info.nodes],
            jobs=self.jobs,
            cores=self.cores,
            policy=self.make_policy(),
            setup=setup,
            sockets=[node.sockets for node in info.nodes],
            interference=None if step.name in (NOMINAL, OVERHEADS) else self.interference,
            dispatched=bool(info.batch),
            pools=self.pools,
        )
        record = simulator.run()
        if info.batch:
            count_dispatched(record, simulator.cluster, simulator.delays)
        facts = replace(
            info,
            source="simulator",
            execution="simulated",
            engine="python",
            state="interrupted" if observed.interrupted else "completed",
            setup=setup,
            parameters={},
            counts={},
            warnings=[],
            lateness_ms={},
            hosts=[],
            health={},
            calibration={},
            created=None,
        )
        return simulator, make_run(record, simulator.cluster, facts)

    def nominal_and_causes(self, observed: ObservedTimes, overheads: Overheads | None) -> dict[str, Run]:
        """Return the simulations of all steps but the last one, by the name of the step."""
        left_out = {OVERHEADS} if overheads is None else set()
        left_out |= {INTERFERENCE} if self.interference is None else set()
        chosen = [step for step in STEPS[:-1] if step.name not in left_out]
        return {step.name: self.run(step, observed, None if step.name == NOMINAL else overheads)[1] for step in chosen}

    def remainder(self, decisions: list[LoggedDecision]) -> Remainder:
        """Compare the decisions of the last step with those of the real run."""
        real = self.real.decisions
        missing, surplus = Counter(real) - Counter(decisions), Counter(decisions) - Counter(real)
        count = max(missing.total(), surplus.total())
        first = _first_difference(real, decisions)
        if not first:
            return Remainder(0, len(real))
        try:
            again = _first_difference(real, self._decisions_again())
        except (LookupError, ValueError):
            again = "an event of the journal is impossible after the decisions before it"
        cause = (
            "The policy also decides otherwise if it receives the events of the journal again: it is not "
            f"deterministic, or the journal was changed ({again})."
            if again
            else "The policy decides as in the real run if it receives the events of the journal again: the simulator "
            "is wrong. Please report this."
        )
        return Remainder(max(count, 1), len(real), first, cause)

    def _decisions_again(self) -> Iterator[LoggedDecision]:
        """Yield the decisions of the policy for the events of the journal."""
        return redecide(
            self.real.entries,
            self.jobs,
            self.real.run.info.nodes,
            self.make_policy(),
            self.scheduling,
            self.pools,
        )


def _first_difference(real: list[LoggedDecision], simulated: list[LoggedDecision] | Iterator[LoggedDecision]) -> str:
    """Return the first difference of two sequences of decisions in words; empty if the sequences agree."""
    for ours, theirs in zip_longest(real, simulated):
        if ours != theirs:
            return f"real: {ours or 'no further decision'}; simulated: {theirs or 'no further decision'}"
    return ""
