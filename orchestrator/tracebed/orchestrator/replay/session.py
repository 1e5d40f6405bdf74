"""A replay from start to end: working folder, testbed, signals, and the saved run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracebed.converters.workload import Workload
from tracebed.errors import InputError, TestbedError, TracebedError
from tracebed.orchestrator.calibration import Calibration
from tracebed.orchestrator.replay.ending import ended_run
from tracebed.orchestrator.replay.folder import WorkingFolder
from tracebed.orchestrator.replay.journal import Journal, copy
from tracebed.orchestrator.replay.loop import Options, Replayer
from tracebed.orchestrator.replay.pace import make_clock
from tracebed.orchestrator.replay.recovery import facts_of
from tracebed.orchestrator.replay.signals import Signals, noted
from tracebed.orchestrator.replay.thresholds import Thresholds
from tracebed.orchestrator.run import JOURNAL, Run, RunInfo, check_target, workload_facts
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.testbeds.nodes import Inventory
from tracebed.orchestrator.testbeds.rates import rate_of
from tracebed.orchestrator.testbeds.registry import TESTBEDS


def replay(
    workload: Workload,
    inventory: Inventory,
    policy: str | type[Policy] | Policy,
    output: Path,
    *,
    name: str = "workload",
    policy_parameters: Mapping[str, Any] | None = None,
    options: Options | None = None,
    calibration: Calibration | None = None,
    thresholds: Thresholds | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Replay `workload` on the nodes of `inventory` under `policy`; write the run to `output` and return it.

    During the replay, its journal and the output of its jobs are in a folder next to `output` (see `folder.py`). An
    earlier run in `output` is replaced only at the end. SIGINT, SIGTERM and SIGHUP end all jobs; then the run is saved
    as interrupted, or not at all if no job can have started.

    Args:
        workload: the submission list.
        inventory: the nodes.
        policy: a name of `policies.registry`, a policy class or an instance.
        output: the folder of the run.
        name: the name of the workload, for reports.
        policy_parameters: the parameters of the policy; values may be strings.
        options: the options of the replay.
        calibration: the calibration with the work rate, and with the duty of nodes that have none. None: the stored
            rate of this machine, which the first replay measures.
        thresholds: the limits of the health of the run; None: those that tracebed provides.
        on_progress: called periodically with the number of jobs that have ended so far.

    Raises:
        InputError: the workload cannot be replayed, or the run cannot be written (then the working folder is kept).
        TestbedError: an agent does not start. If an agent is lost later, the run is returned as interrupted instead.
        KeyboardInterrupt: a signal arrived before the run began, or after all jobs had ended (the run is complete).
    """
    options = options or Options()
    thresholds = thresholds or Thresholds.read()
    if calibration is not None:
        options = replace(options, proposed_duty=calibration.duty or None)
    policy_name, chosen = registry.resolve(policy, policy_parameters)
    make_testbed = TESTBEDS.load(inventory.testbed)
    if "+" in inventory.execution:
        what, hint = "the inventory mixes computing and emulated nodes", "replay on one kind of node"
        raise InputError(what, where=inventory.where, hint=hint)
    jobs = Jobs.of(workload, cores_per_node=max(node.cores for node in inventory.nodes), over_limit=options.over_limit)
    check_target(output)
    info = RunInfo(
        source="replay",
        execution=inventory.execution,
        nodes=inventory.facts,
        workload=workload_facts(workload, name),
        policy=policy_name,
        policy_parameters=registry.parameters(chosen),
        parameters={
            "inventory": inventory.name,
            "testbed": inventory.kind,
            "grain_s": inventory.grain_s,
            "interval_s": options.interval_s,
            "over_limit": str(options.over_limit),
            "priority": options.priority,
            "balance": options.balance,
            "duty": inventory.duty(options.proposed_duty),
            "clock": options.clock,
        },
        speed=options.speed,
        calibration=calibration.facts() if calibration else {},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    with noted() as signals, _working_folder(output) as folder:
        with (
            contextlib.closing(Journal(folder.path / JOURNAL, facts_of(info, jobs, inventory, thresholds))) as journal,
            contextlib.closing(make_clock(options.clock, inventory, folder.path)) as clock,
        ):
            testbed = make_testbed(inventory, folder.path / "spool")
            replayer = Replayer(jobs, testbed, inventory, chosen, options, journal, clock)
            signals.notify(replayer.interrupt)
            if calibration is not None and calibration.units_per_core_second:
                replayer.rate = calibration.units_per_core_second.median
            run = _carry_out(replayer, info, thresholds, folder, signals, on_progress)
            run.save(output, journal=copy(journal.path, folder.path / f"copy-{JOURNAL}"))
        folder.remove()
    if signals.came and info.state == "completed":
        raise KeyboardInterrupt
    return run


@contextlib.contextmanager
def _working_folder(output: Path) -> Iterator[WorkingFolder]:
    """Create the working folder of a replay. If the replay fails after jobs may have run, keep and report it."""
    folder = WorkingFolder(output)
    try:
        yield folder
    except BaseException as error:
        if not folder.keep:
            folder.remove()
        elif isinstance(error, TracebedError):
            hints = (error.hint, f"`tracebed recover {folder.path}` makes a run of the replay so far")
            error.hint = "; ".join(filter(None, hints))
        else:
            error.add_note(f"`tracebed recover {folder.path}` makes a run of the replay so far")
        raise
    finally:
        folder.close()


def _carry_out(
    replayer: Replayer,
    info: RunInfo,
    thresholds: Thresholds,
    folder: WorkingFolder,
    signals: Signals,
    on_progress: Callable[[int], None] | None,
) -> Run:
    """Start the testbed, replay, stop the testbed, complete `info`, and return the run."""
    testbed = replayer.testbed
    try:
        with signals.at_once():
            testbed.start()
            if replayer.rate is None and (rate := rate_of(testbed)):
                replayer.rate = rate.units_per_core_second.median
                info.calibration = rate.facts()
        folder.keep = True
        info.hosts = testbed.hosts
        replayer.journal.add_facts({"hosts": info.hosts, "calibration": info.calibration})
        replayer.run(on_progress)
    except TestbedError as error:
        if not folder.keep:
            raise
        replayer.interrupt(str(error))
    finally:
        testbed.stop()
    end = replayer.close()
    info.parameters |= replayer.pace.factor()
    replayer.journal.add_facts({"end": {"time": end, "interrupted": replayer.interrupted}})
    cpus = [node.cpus or () for node in replayer.inventory.nodes]
    return ended_run(replayer.record, replayer.cluster, info, replayer.interrupted, cpus, replayer.witness, thresholds)
