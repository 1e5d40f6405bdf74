"""A replay from start to end: working folder, testbed, signals, and the saved run."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracebed.converters.workload import Workload
from tracebed.ground import system
from tracebed.ground.errors import InputError, TestbedError
from tracebed.machine.calendar import Clock
from tracebed.machine.machine import Machine
from tracebed.orchestrator import executors
from tracebed.orchestrator.replay.ending import ended_run, find_finished, save
from tracebed.orchestrator.replay.folder import (
    Signals,
    WorkingFolder,
    collected_signals,
    folder_to_resume,
    working_folder,
)
from tracebed.orchestrator.replay.journal import Journal, has_facts, of_damage
from tracebed.orchestrator.replay.loop import Replayer
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.pace import make_clock
from tracebed.orchestrator.replay.programs import check_commands, check_programs, kernels_of, shortest_replay_of
from tracebed.orchestrator.replay.recovery import NOTHING_BEGUN, facts_of, lost_rows, recovered
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.run import JOURNAL, VIRTUAL, Run, RunInfo, check_target, workload_facts
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.pools import on_pools
from tracebed.orchestrator.scheduling.sleeping import Sleeping
from tracebed.orchestrator.scheduling.state import handles_requests
from tracebed.orchestrator.setup import AnyPolicy, Setup
from tracebed.orchestrator.testbeds.base import TESTBEDS, made_testbed
from tracebed.orchestrator.testbeds.calibration import Calibration
from tracebed.orchestrator.testbeds.machine import InventoryMachine
from tracebed.orchestrator.testbeds.nodes import AGENTS, Inventory
from tracebed.orchestrator.testbeds.provider import world_of
from tracebed.orchestrator.testbeds.rates import rate_of

if TYPE_CHECKING:
    from tracebed.orchestrator.replay.resumption import Resumption


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(executors.Options):
    """What only a replay on a testbed has; see `replay`."""

    output: Path
    options: Options = field(default_factory=Options)
    work_rate: Calibration | None = None
    resume: bool = False
    replace_run: bool = False
    on_step: Callable[[str], None] | None = None


class TestbedReplay:
    """The executor `replay`: real processes on the nodes of an inventory, or virtual ones."""

    options = ReplayOptions
    predicts = False

    def accepts(self, machine: Machine, setup: Setup) -> bool:
        """Return whether the machine is that of an inventory."""
        return isinstance(machine, InventoryMachine)

    def execute(self, workload: Workload, machine: Machine, setup: Setup, options: ReplayOptions) -> Run:
        """Replay a workload; see `replay`."""
        assert isinstance(machine, InventoryMachine)
        return replay(workload, machine.inventory, setup, **vars(options))


EXECUTOR = TestbedReplay()
NEXT = "`tracebed replay --recover {}` makes a run of the replay so far"
"""Hint of an error after which the working folder is kept."""
BEGINS_AGAIN = "virtual nodes end with their replay, which cannot be resumed: it starts from the beginning"


def replay(
    workload: Workload,
    inventory: Inventory,
    setup: AnyPolicy | Setup,
    output: Path,
    *,
    name: str = "workload",
    options: Options | None = None,
    work_rate: Calibration | None = None,
    resume: bool = False,
    replace_run: bool = False,
    on_progress: Callable[[int], None] | None = None,
    on_step: Callable[[str], None] | None = None,
    **settings: Any,
) -> Run:
    """Replay `workload` on the nodes of `inventory` under `setup`; write the run to `output` and return it.

    During the replay, its journal and the output of its jobs are in a folder next to `output` (see `folder.py`). An
    earlier run in `output` is replaced only at the end. SIGINT, SIGTERM and SIGHUP end all jobs; then the run is saved
    as interrupted, or not at all if no job can have started: then a KeyboardInterrupt is raised, as after a signal that
    arrives after all jobs had ended (the run is complete).

    Args:
        setup: the setup, or its policy: the name of an installed policy, a class, or an instance. A replay measures
            the times that a prediction models, and uses only the speed of `Timing`.
        work_rate: the calibration with the work rate, and with the duty of nodes without a duty. None: the stored
            rate of this machine, measured by the first replay.
        resume: whether to continue the newest replay to `output` that was killed, with the same arguments. If there is
            no such replay, the replay starts from the beginning, unless its finished run is in `output`: then nothing
            is done.
        replace_run: whether an earlier run in `output` is replaced. A finished real run is replaced only by a run that
            was not interrupted; an interrupted run is then written beside it.
        on_progress: called periodically with the number of jobs that have ended so far.
        on_step: called with each long step of the preparation of nodes, from any thread.
        settings: settings by name, as for `Setup.of`.

    Raises:
        TestbedError: an agent does not start. If an agent is lost later, the run is returned as interrupted instead.
    """
    options = options or Options()
    thresholds = options.health or HealthThresholds.read()
    if work_rate is not None:
        options = replace(options, proposed_duty=work_rate.duty or None)
    chosen, policy = Setup.of(setup, **settings).resolved(len(inventory.nodes))
    chosen = chosen.measured()
    over_limit, speed = chosen.scheduling.over_limit, chosen.timing.speed
    TESTBEDS.load(inventory.testbed)  # its errors come before a folder is made
    if "+" in inventory.execution:
        what, hint = "the inventory mixes computing and emulated nodes", "replay on one kind of node"
        raise InputError(what, where=inventory.where, hint=hint)
    if work_rate is not None and inventory.execution == "computed" and not work_rate.units_per_core_second:
        hint = "calibrate with the inventory of the replay"
        raise InputError("the calibration has no work rate for computing nodes", where=inventory.where, hint=hint)
    most = max(node.cores for node in inventory.nodes)
    jobs = Jobs.of(
        workload,
        cores_per_node=most,
        over_limit=over_limit,
        evolving=handles_requests(policy),
        dependencies=chosen.scheduling.dependencies,
    )
    machine, pools = InventoryMachine.of(inventory), None
    if not machine.plain:
        if getattr(type(policy), "executor", ""):  # its predictions are not those of the scheduler of a replay
            what = f"the policy {chosen.scheduling.policy} decides on equal nodes in a replay"
            hint = "replay under another policy, or on an inventory without partitions, gres and features"
            raise InputError(f"{what}, and this machine has partitions or resources", where=inventory.where, hint=hint)
        jobs, pools = on_pools(workload, machine, jobs, policy)
    if sleeping := Sleeping.of(machine, Clock.of(workload.provenance)):
        sleeping.check(policy)
    check_programs(jobs, inventory, pools)
    check_commands(jobs, options.commands)
    least_s = shortest_replay_of(jobs, inventory, speed, over_limit=over_limit, pools=pools)
    here = world_of(inventory, speed, least_s)
    virtual = inventory.execution == VIRTUAL
    info = RunInfo(
        source=VIRTUAL if virtual else "replay",
        execution=inventory.execution,
        nodes=inventory.facts,
        machine=None if machine.told_by_nodes else machine,
        workload=workload_facts(workload, name),
        setup=chosen,
        parameters={
            "inventory": inventory.name,
            "testbed": inventory.kind,
            "grain_s": inventory.grain_s,
            "balance": options.balance,
            "duty": inventory.duty(options.proposed_duty),
            "clock": options.clock,
            "on_node_failure": options.on_node_failure,
            **({"allowed_commands": options.commands.sha256} if options.commands else {}),
        },
        calibration=work_rate.facts() if work_rate else {},
        created=datetime.fromtimestamp(system.time(), UTC).isoformat(timespec="seconds"),
        warnings=sleeping.warnings if sleeping else [],
    )
    if resume and (run := find_finished(output, info)):
        return run
    check_target(output, replace=replace_run, real=not virtual)
    if resume and here is not system.current():
        warnings.warn(BEGINS_AGAIN, stacklevel=2)
        resume = False
    left = folder_to_resume(output) if resume else None
    with (
        collected_signals() as signals,
        working_folder(output, left, hint=NEXT) as folder,  # whose name no seed decides
        _living_in(here),
    ):
        facts = facts_of(info, jobs, inventory, thresholds)
        past = _resumption(folder, facts) if left else None
        if past and past.ended:
            return _save_ended(folder, output, replace_run)
        with (
            contextlib.closing(Journal(folder.path / JOURNAL, {} if past else facts)) as journal,
            contextlib.closing(make_clock(options.clock, inventory, folder.path)) as clock,
        ):
            extras: dict[str, Any] = {"drain": True} if options.drain else {}
            if on_step is not None and inventory.testbed == AGENTS:
                extras["on_step"] = on_step
            testbed = made_testbed(inventory.testbed, inventory, folder.path / "spool", **extras)
            if sleeping and not hasattr(testbed, "sleep"):
                what, hint = f"nodes of the testbed {inventory.testbed} do not sleep", "leave out `sleep`"
                raise InputError(what, where=inventory.where, hint=hint)
            replayer = Replayer(
                jobs, testbed, inventory, policy, chosen, options, journal, clock, folder.secret, pools, sleeping
            )
            signals.notify(replayer.interrupt)
            if work_rate is not None and work_rate.units_per_core_second:
                replayer.executor.rates = {"pils": work_rate.units_per_core_second.median}
            past = past if past and past.begun else None
            if past:
                _restore(replayer, info, past)
            elif left:
                warnings.warn(NOTHING_BEGUN.format(output), stacklevel=2)
            least_s = 0.0 if past else least_s  # the replay may be nearly complete
            run = _carry_out(replayer, info, thresholds, folder, signals, past, on_progress, least_s)
            info.warnings += [
                f"fault at {replayer.timeline.trace(time):,.0f} s: {what}" for time, what in here.incidents
            ]
            save(run, folder.path, output, replace=replace_run)
        folder.remove()
    if signals.received and info.state == "completed":
        raise KeyboardInterrupt
    return run


@contextlib.contextmanager
def _living_in(here: system.World) -> Iterator[None]:
    """Live in the world `here` while the block runs. A world that was made for this block ends with it."""
    ends = here is not system.current()
    with system.using(here):
        try:
            yield
        finally:
            if ends:
                here.end()


def _resumption(folder: WorkingFolder, facts: Mapping[str, Any]) -> Resumption | None:
    """Return the remains of the killed replay in `folder`. None: it was killed before it wrote its journal."""
    path = folder.path / JOURNAL
    if not has_facts(path):
        return None
    from tracebed.orchestrator.replay.resumption import Resumption  # of killed replays only

    past = Resumption(path)
    past.check(facts)
    return past


def _save_ended(folder: WorkingFolder, output: Path, replace_run: bool) -> Run:
    """Save the run of a replay that had ended when it was killed, and return the run."""
    run = recovered(folder.path / JOURNAL)
    save(run, folder.path, output, replace=replace_run)
    folder.remove()
    return run


def _restore(replayer: Replayer, info: RunInfo, past: Resumption) -> None:
    """Restore the state of the killed replay in `replayer` and `info`."""
    info.created = past.facts["info"]["created"]
    info.calibration = past.facts.get("calibration", info.calibration)
    info.warnings += lost_rows(past.facts)
    replayer.journal.add_facts(of_damage(past.facts))
    replayer.executor.rates |= info.calibration.get("rates", {})
    replayer.monitor.rates = replayer.executor.rates
    past.restore(replayer)


def _measure(replayer: Replayer, info: RunInfo) -> None:
    """Take the missing work rates of the kernels of the workload from the stored rates, or measure them."""
    rates = replayer.executor.rates
    for kernel in kernels_of(replayer.jobs):
        if kernel not in rates and (rate := rate_of(replayer.testbed, kernel)):
            rates[kernel] = rate.units_per_core_second.median
            info.calibration = info.calibration or rate.facts()
    if rates:
        info.calibration["rates"] = dict(rates)
    replayer.monitor.rates = rates


def _carry_out(
    replayer: Replayer,
    info: RunInfo,
    thresholds: HealthThresholds,
    folder: WorkingFolder,
    signals: Signals,
    past: Resumption | None,
    on_progress: Callable[[int], None] | None,
    least_s: float,
) -> Run:
    """Start the testbed, replay (at least `least_s`), stop the testbed, complete `info`, and return the run."""
    testbed, started = replayer.testbed, False
    try:
        with signals.interruptible():
            # Testbeds whose nodes never sleep lack the argument.
            asleep = replayer.sleepers.asleep if replayer.sleepers is not None else []
            testbed.start(adopt=past.agents(replayer) if past else None, **({"asleep": asleep} if asleep else {}))
            left_s = getattr(testbed, "left_s", None)  # testbeds of other packages may lack it
            if left_s is not None and left_s < least_s:
                what = f"the allocation ends in {left_s:.0f} s, but the replay takes at least {least_s:.0f} s"
                raise TestbedError(what, hint="request a longer allocation, or replay at a higher --speed")
            if not past:
                _measure(replayer, info)
        folder.keep = started = True
        info.hosts = testbed.hosts
        replayer.journal.add_facts({"hosts": info.hosts, "calibration": info.calibration})
        replayer.run(on_progress, begin=past.continue_replay if past else None)
    except TestbedError as error:
        if not started:  # a replay that was to be resumed can be resumed later
            raise
        replayer.interrupt(str(error))
    finally:
        testbed.stop()
    end = replayer.close()
    info.parameters |= replayer.pace.factor()
    replayer.journal.add_facts({"end": {"time": end, "interrupted": replayer.interrupted}})
    cpus = [node.cpus or () for node in replayer.inventory.nodes]
    return ended_run(replayer.record, replayer.cluster, info, replayer.interrupted, cpus, replayer.monitor, thresholds)
