"""A replay on a batch system from start to end: working folder, journal, signals, and the saved run."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tracebed.converters.workload import Workload
from tracebed.ground import bounds, system
from tracebed.ground.errors import InputError
from tracebed.ground.extension_errors import checked_members
from tracebed.machine.machine import Machine
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator import executors
from tracebed.orchestrator.replay.batch.base import (
    BATCH_SYSTEMS,
    BatchSettings,
    BatchSystem,
    DemandingSystem,
    LayeredSystem,
    ResizingSystem,
    SystemFacts,
)
from tracebed.orchestrator.replay.batch.deciding import MOST_SHOWN, Decided, DecidingReplayer
from tracebed.orchestrator.replay.batch.ending import ended_run
from tracebed.orchestrator.replay.batch.layer import Layer, LayerReplayer
from tracebed.orchestrator.replay.batch.loop import BatchReplayer
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.replay.batch.pools import with_pools
from tracebed.orchestrator.replay.batch.records import JobRecords
from tracebed.orchestrator.replay.batch.recovery import SCHEMA, KilledReplay, warn_of_leftover_jobs
from tracebed.orchestrator.replay.batch.resizing import GRAIN_S, ResizingReplayer
from tracebed.orchestrator.replay.batch.wall import WallClock
from tracebed.orchestrator.replay.ending import find_finished, save
from tracebed.orchestrator.replay.folder import (
    Signals,
    WorkingFolder,
    collected_signals,
    folder_to_resume,
    working_folder,
)
from tracebed.orchestrator.replay.journal import Entry, Journal, has_facts
from tracebed.orchestrator.replay.recovery import NOTHING_BEGUN
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.run import JOURNAL, Run, RunInfo, check_target, workload_facts
from tracebed.orchestrator.runs.working_folders import working_folders
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.names import DependencyRule
from tracebed.orchestrator.scheduling.state import dispatches, handles_requests, shares
from tracebed.orchestrator.setup import Setup, Timing
from tracebed.orchestrator.testbeds.agent.facts import host_facts

INTERVAL_S = 10.0
"""Time between two passes of a layer, trace s."""
SHORTEST_INTERVAL_S = 0.1
LEAD_S = 0.5
"""Shortest time from the start of the replay to the first submission, wall s. The first submission is at a whole
second, because batch systems keep whole seconds: repetitions then have the same phase."""
NEXT = "jobs of the replay may still run: the same command with --resume continues it"
"""Hint of an error after which the working folder is kept."""


@dataclass(frozen=True)
class BatchOptions:
    """Options of a replay on a batch system."""

    speed: float = 1.0  # trace s per wall s
    scheduler: str = "slurm"  # name of the batch system
    settings: BatchSettings = field(default_factory=BatchSettings)  # how the batch system is reached
    setup: Setup | None = None  # the policy that decides, with its settings; None: the batch system decides
    dependencies: DependencyRule = DependencyRule.HONOR  # treatment of jobs that depend on others, without `setup`
    resizes: str | None = None  # policy of the layer that resizes jobs beside the batch system; None: no layer
    resize_interval_s: float = INTERVAL_S  # time between two passes of the layer, trace s

    def __post_init__(self) -> None:
        bounds.check("speed", self.speed, bounds.MIN_SPEED, bounds.MAX_SPEED)
        bounds.check("resize interval", self.resize_interval_s, SHORTEST_INTERVAL_S, bounds.MAX_SECONDS)
        if self.resizes is not None and self.setup is not None:
            what = "a layer resizes jobs that the batch system starts, but a policy is to start them"
            raise InputError(what, hint="leave the policy or the layer out")

    @property
    def rule(self) -> DependencyRule:
        """The treatment of jobs that depend on others, whoever decides."""
        return self.dependencies if self.setup is None else self.setup.scheduling.dependencies

    def system(self) -> BatchSystem:
        """Return the batch system. Raises InputError if it is unknown, or an option is invalid."""
        factory = BATCH_SYSTEMS.load(self.scheduler)
        what = f"batch system {self.scheduler}"
        system: BatchSystem = checked_members(factory(self.settings), ("submit", "poll", "cancel"), what, factory)
        return system

    def as_dict(self) -> dict[str, Any]:
        """Return the options on which runs depend, as JSON values. The configuration file is not included."""
        settings = {"partition": self.settings.partition, "options": list(self.settings.options)}
        return {"scheduler": self.scheduler, "speed": self.speed, **settings, **self.of_layer}

    @property
    def layer(self) -> dict[str, Any]:
        """The policy of the layer and its interval, by the names of the parameters of a simulated one."""
        return {} if self.resizes is None else {"resizes": self.resizes, "resize_interval": self.resize_interval_s}

    @property
    def of_layer(self) -> dict[str, Any]:
        """The options about demands and the layer, as JSON values."""
        return {**({"demands": True} if self.settings.demands else {}), **self.layer}


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchMachine(Machine):
    """The nodes of a batch system, and how it is reached."""

    executor: ClassVar[str] = "batch"

    reached: BatchOptions

    @classmethod
    def of(cls, options: BatchOptions) -> BatchMachine:
        """Return the machine of a batch system. Raise TestbedError if the system does not answer."""
        return cls(classes=Machine.of_nodes(options.system().facts().nodes).classes, reached=options)


@dataclass(frozen=True, kw_only=True)
class SessionOptions(executors.Options):
    """What only a replay on a batch system has; see `replay`."""

    output: Path
    thresholds: HealthThresholds | None = None
    resume: bool = False
    replace_run: bool = False


class BatchReplay:
    """The executor `batch`: jobs that sleep, under the scheduler of a batch system or under a policy of tracebed."""

    options = SessionOptions
    predicts = False

    def accepts(self, machine: Machine, setup: Setup) -> bool:
        """Return whether the machine is that of a batch system."""
        return isinstance(machine, BatchMachine)

    def execute(self, workload: Workload, machine: Machine, setup: Setup, options: SessionOptions) -> Run:
        """Replay a workload; see `replay`. Under the policy with the name of the batch system, the system decides."""
        assert isinstance(machine, BatchMachine)
        own = None if setup.scheduling.policy == machine.reached.scheduler else setup
        chosen = replace(machine.reached, setup=own, speed=setup.timing.speed)
        chosen = replace(chosen, dependencies=setup.scheduling.dependencies)
        return replay(workload, options=chosen, **vars(options))


EXECUTOR = BatchReplay()


def replay(
    workload: Workload,
    output: Path,
    options: BatchOptions,
    *,
    name: str = "workload",
    thresholds: HealthThresholds | None = None,
    resume: bool = False,
    replace_run: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Replay `workload` under the scheduler of a batch system, write the run to `output`, and return the run.

    SIGINT, SIGTERM and SIGHUP cancel all jobs of the replay; then the run is saved as interrupted. Before the first
    submission, they raise KeyboardInterrupt. All nodes must see the folder of `output`.

    With `resume`, the newest replay to `output` that was killed continues, with the same arguments. Its jobs continue
    in the meantime. If there is no such replay, the replay starts from the beginning, unless its finished run is in
    `output`: then nothing is done. If the batch system does not answer (TestbedError), the working folder is kept, and
    jobs may still run. `replace_run` and `on_progress` are as for a replay on a testbed.
    """
    thresholds = thresholds or HealthThresholds.read()
    batch_system = options.system()
    facts, unusable = batch_system.facts(), None
    pooled = options.setup is not None and options.settings.demands
    if pooled and resume and (past_nodes := _nodes_of_killed(output)):
        facts = replace(facts, nodes=past_nodes)  # nodes that are lost since then are outages
    elif options.setup is not None and isinstance(batch_system, ResizingSystem):
        facts, unusable = _without_unusable(facts, batch_system)
    decided = _decided(workload, options, batch_system, facts)
    demands, machine = None, None
    if decided is not None and options.settings.demands:
        decided, machine = with_pools(decided, workload, output, options.speed, batch_system, facts)
        facts, demands = replace(facts, nodes=machine.nodes), decided.demands
    elif options.settings.demands:
        if not isinstance(batch_system, DemandingSystem):
            what = f"{facts.name} does not submit jobs with their own demands"
            raise InputError(what, hint="leave --resizes and -S demands out")
        demands = batch_system.demands(workload, output.absolute().parent, options.speed)
    layered = _layered(workload, options, batch_system, facts)
    resizes = decided is not None and decided.policy.malleable
    plan = SubmissionPlan.of(
        workload,
        speed=options.speed,
        limit_step_s=facts.limit_step_s,
        resizes=resizes or layered is not None,
        dependencies=options.rule,
        demands=demands,
    )
    info = _info(workload, name, options, facts, decided, machine)
    info.warnings += [] if layered is None else layered[1].facts.warnings
    if resume and (run := find_finished(output, info)):
        return run
    if unusable is not None:
        info.warnings.append(unusable)
        warnings.warn(unusable, stacklevel=2)
    check_target(output, replace=replace_run)
    left = folder_to_resume(output) if resume else None
    if not resume:
        warn_of_leftover_jobs(working_folders(output), batch_system)
    with collected_signals() as signals, working_folder(output, left, hint=NEXT) as folder:
        past = KilledReplay(folder.path) if left and has_facts(folder.path / JOURNAL) else None
        if left and past is None:
            warnings.warn(NOTHING_BEGUN.format(output), stacklevel=2)
        if past is not None:
            past.check(info, plan)
            info = past.info
        if demands is not None and demands.users:
            folder.path.chmod(0o711)
        run = _carry_out(
            plan,
            batch_system,
            facts,
            info,
            decided,
            layered,
            JobRecords(folder.path / "jobs", shared=demands is not None and bool(demands.users)),
            folder,
            past,
            signals,
            thresholds,
            on_progress,
        )
        save(run, folder.path, output, replace=replace_run)
        folder.remove()
    return run


def _without_unusable(facts: SystemFacts, batch_system: ResizingSystem) -> tuple[SystemFacts, str | None]:
    """Leave the nodes out on which no job can start, unless no node is left. Return the facts, and what is left out."""
    states = batch_system.node_states()
    lost = {node.name for node in facts.nodes if node.name in states and not states[node.name].usable}
    if not lost:
        return facts, None
    words = ", ".join(f"{name} ({states[name].word})" for name in sorted(lost)[:MOST_SHOWN])
    text = f"{len(lost):,} of {len(facts.nodes):,} nodes of {facts.name} are left out, since no job can start on them"
    text += f": {words}{', ...' if len(lost) > MOST_SHOWN else ''}"
    if len(lost) == len(facts.nodes):
        raise InputError(text, hint="let nodes return, or choose another partition")
    return replace(facts, nodes=tuple(node for node in facts.nodes if node.name not in lost)), text


def _decided(
    workload: Workload, options: BatchOptions, batch_system: BatchSystem, facts: SystemFacts
) -> Decided | None:
    """Return the jobs, the policy that decides, and its setup; None: the batch system decides, or InputError."""
    if options.setup is None:
        return None
    setup, policy = replace(options.setup, timing=Timing(speed=options.speed)).resolved(len(facts.nodes))
    setup, named = setup.measured(), f"policy {setup.scheduling.policy}"
    if not isinstance(batch_system, ResizingSystem):
        raise InputError(f"{facts.name} cannot carry out the decisions of a policy", hint="leave --policy out")
    if dispatches(policy):
        raise InputError(f"{named} models a batch system", hint="leave --policy out: the batch system decides")
    if shares(policy) or handles_requests(policy):
        what = "shares nodes between jobs" if shares(policy) else "answers requests of jobs"
        hint = "replay on nodes of an allocation instead, whose agents can: an inventory with `provider: slurm`"
        raise InputError(f"{named} {what}, which {facts.name} cannot carry out", hint=hint)
    batch_system.check_resizing()
    jobs = Jobs.of(workload, over_limit=setup.scheduling.over_limit, dependencies=setup.scheduling.dependencies)
    return Decided(jobs, policy, setup)


def _nodes_of_killed(output: Path) -> tuple[NodeFacts, ...]:
    """Return the nodes of the killed replay that is to be resumed; empty: there is none, or it had not begun."""
    left = working_folders(output)[-1:]
    return tuple(KilledReplay(left[0]).info.nodes) if left and has_facts(left[0] / JOURNAL) else ()


def _layered(
    workload: Workload, options: BatchOptions, batch_system: BatchSystem, facts: SystemFacts
) -> tuple[Jobs, Layer] | None:
    """Return the jobs and the layer that resizes them beside the batch system; None: there is none, or InputError."""
    if options.resizes is None:
        return None
    if not isinstance(batch_system, LayeredSystem):
        raise InputError(f"{facts.name} cannot carry out the decisions of a layer", hint="leave --resizes out")
    permitted = batch_system.check_layer(options.resizes)
    jobs = Jobs.of(workload, over_limit=OverLimit.KILL, dependencies=options.dependencies)
    return jobs, Layer(options.resizes, options.resize_interval_s, permitted)


def _info(
    workload: Workload,
    name: str,
    options: BatchOptions,
    facts: SystemFacts,
    decided: Decided | None,
    machine: Machine | None,
) -> RunInfo:
    """Return the facts of the run that are known before it."""
    of_system = Setup.of(
        facts.name,
        policy_parameters={
            **facts.parameters,
            **{key: value for key, value in options.of_layer.items() if key != "demands"},
        },
        over_limit="kill",
        dependencies=options.dependencies,
        speed=options.speed,
    )
    return RunInfo(
        source="replay",
        execution="emulated",
        nodes=list(facts.nodes),
        machine=machine,
        workload=workload_facts(workload, name),
        setup=of_system if decided is None else decided.setup,
        parameters={
            "scheduler": facts.name,
            "testbed": facts.name,
            "inventory": str(facts.details.get("cluster", "")),
            "duty": 0.0,
            "clock": "wall",
            "grain_s": 0.0 if decided is None and options.resizes is None else GRAIN_S,
        },
        batch={
            "system": facts.name,
            "version": facts.version,
            **facts.details,
            **({} if decided is None else {"parameters": dict(facts.parameters)}),
            **({} if options.settings.program is None else {"program": options.settings.program}),
            **options.of_layer,
        },
        created=datetime.fromtimestamp(system.time(), UTC).isoformat(timespec="seconds"),
        hosts=[host_facts()],
    )


def _carry_out(
    plan: SubmissionPlan,
    batch_system: BatchSystem,
    facts: SystemFacts,
    info: RunInfo,
    decided: Decided | None,
    layered: tuple[Jobs, Layer] | None,
    records: JobRecords,
    folder: WorkingFolder,
    past: KilledReplay | None,
    signals: Signals,
    thresholds: HealthThresholds,
    on_progress: Callable[[int], None] | None,
) -> Run:
    """Replay, and return the run."""
    clock = WallClock(past.steps, past.facts["clock"], past.wall(past.last)) if past is not None else WallClock()
    known: Mapping[str, Any] = past.facts if past is not None else {}
    if past is None:
        known = {
            "schema": SCHEMA,
            "info": info.as_dict(),
            "plan": plan.as_dict(),
            "prefix": f"tracebed-{folder.path.name.rpartition('-')[2]}-",
            "clock": clock.base,
            "origin": float(math.ceil(clock.now() + LEAD_S)),
            "resolution_s": facts.resolution_s,
            "thresholds": [thresholds.text, thresholds.where],
        }
    with contextlib.closing(
        Journal(folder.path / JOURNAL, known if past is None else past.new_facts | {"clock": clock.base})
    ) as journal:
        common = (plan, batch_system, records, journal)
        timing = {"prefix": known["prefix"], "speed": info.speed, "origin": known["origin"], "clock": clock}
        replayer: BatchReplayer
        if decided is not None:
            replayer = DecidingReplayer(decided, info.nodes, *common, **timing)  # type: ignore[arg-type]
        elif layered is not None:
            replayer = LayerReplayer(*layered, [node.name for node in info.nodes], *common, **timing)  # type: ignore
        else:
            replayer = BatchReplayer(*common, **timing)
        if isinstance(replayer, ResizingReplayer):
            replayer.program = info.batch.get("program")
        if past is not None:
            past.restore(replayer)
            _note_pause(replayer, info, past)
        info.outages = replayer.outages
        signals.notify(replayer.interrupt)
        folder.keep = True
        replayer.run(on_progress)
        end = clock.now()
        journal.add_facts({"end": {"time": replayer.trace(end), "interrupted": replayer.interrupted}})
    if left := replayer.left():
        info.warnings.append(f"{len(left):,} jobs may still run in the batch system, for example job {left[0]}")
    info.batch |= _measured(replayer)
    if isinstance(replayer, LayerReplayer):
        info.batch["layer"] = replayer.measured()
        info.warnings += replayer.unresized()
    return ended_run(
        plan,
        replayer.jobs,
        info,
        clock.steps,
        trace=replayer.trace,
        resolution_s=facts.resolution_s,
        interrupted=replayer.interrupted,
        end=end,
        thresholds=thresholds,
        power=replayer.power,
    )


def _note_pause(replayer: BatchReplayer, info: RunInfo, past: KilledReplay) -> None:
    """Record the time in which no replayer ran. The jobs of the batch system continued."""
    now = replayer.trace(replayer.clock.now())
    running = sum(job.pending for job in replayer.jobs)
    pause = {"at": past.last, "wall_s": round((now - past.last) / info.speed, 3), "adopted": running, "lost": 0}
    replayer.journal.write([Entry(0, now, "pause", None, None, pause)])
    info.pauses = [*info.pauses, pause]


def _measured(replayer: BatchReplayer) -> dict[str, object]:
    """Return what the replay measured about the batch system and the clock."""
    plan, calls = replayer.plan, np.array(replayer.latencies) * 1e3
    quantiles = dict(zip(("p50", "p99", "max"), np.percentile(calls, [50, 99, 100]), strict=True)) if len(calls) else {}
    return {
        "epoch_s": replayer.origin - plan.submit[0] / replayer.speed,
        "submission_ms": {name: round(float(value), 3) for name, value in quantiles.items()},
        **replayer.polls,
        "poll_s": replayer.poll_s(),
        "clock": {
            "steps_s": [round(step.size, 3) for step in replayer.clock.steps],
            "drift_s": round(replayer.clock.drift_s, 6),
        },
        "restarts": sum(job.own.restarts for job in replayer.jobs if job.own is not None),
    }
