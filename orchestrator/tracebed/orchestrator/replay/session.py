"""A replay from start to end: the working folder, the testbed, signals, and the run that is saved."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from tracebed.converters.workload import Workload
from tracebed.errors import InputError, TestbedError
from tracebed.orchestrator.replay.journal import Journal
from tracebed.orchestrator.replay.loop import Options, Replayer
from tracebed.orchestrator.run import (
    JOURNAL,
    NodeFacts,
    Run,
    RunInfo,
    check_target,
    host_facts,
    workload_facts,
)
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.tables import make_run
from tracebed.orchestrator.testbeds.inventory import Inventory
from tracebed.orchestrator.testbeds.local import LocalTestbed

CLAIM = "claim"
"""File in the folder of a replay under way that is locked by it."""


def replay(
    workload: Workload,
    inventory: Inventory,
    policy: str | type[Policy] | Policy,
    output: Path,
    *,
    name: str = "workload",
    policy_parameters: Mapping[str, Any] | None = None,
    options: Options | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Replay `workload` on the nodes of `inventory` under `policy`; write the run to `output` and return it.

    While it runs, journal and job output stand in `output` with `.partial` behind its name; an earlier run in
    `output` is replaced only at the end. SIGINT and SIGTERM end all jobs and leave an interrupted run, or nothing
    if none could have begun.

    Args:
        workload: the submission list.
        inventory: the nodes.
        policy: a name of `policies.registry`, a policy class or an instance.
        output: the run's folder.
        name: the workload's name, for reports.
        policy_parameters: the policy's parameters; values may be texts.
        options: how to replay.
        on_progress: called now and then with the number of jobs that have ended so far.

    Raises:
        InputError: something cannot be replayed, or not written (the journal so far is kept).
        TestbedError: agents do not start. One that is lost later ends the run, which is then returned as interrupted.
        KeyboardInterrupt: a signal came before the run had begun, or after all jobs had ended (the run is complete).
    """
    options = options or Options()
    policy_name, chosen = registry.resolve(policy, policy_parameters)
    if "+" in inventory.execution:
        raise InputError("computing and emulated nodes are mixed", where=inventory.where, hint="replay on one kind")
    jobs = Jobs.of(workload, cores_per_node=max(node.cores for node in inventory.nodes))
    check_target(output)
    partial = output.with_name(output.name + ".partial")
    info = RunInfo(
        source="replay",
        execution=inventory.execution,
        nodes=[NodeFacts(node.name, node.cores, node.sockets) for node in inventory.nodes],
        workload=workload_facts(workload, name),
        policy=policy_name,
        policy_parameters=registry.parameters(chosen),
        parameters={
            "inventory": inventory.name,
            "testbed": inventory.testbed,
            "grain_s": inventory.grain_s,
            "interval_s": options.interval_s,
            "kill_at_limit": options.kill_at_limit,
            "priority": options.priority,
            "balance": options.balance,
        },
        speed=options.speed,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    facts = {"policy": policy_name, "parameters": info.policy_parameters, "jobs": jobs.ids}
    with _claimed(partial):
        try:
            with contextlib.closing(Journal(partial / JOURNAL, facts)) as journal:
                testbed = LocalTestbed(inventory, partial / "spool")
                replayer = Replayer(jobs, testbed, inventory, chosen, options, journal)
                with _interruptible(replayer, info):
                    run = _carry_out(replayer, info, on_progress)
                    run.save(output, journal=journal.copy(partial / f"copy-{JOURNAL}"))
                    journal.close()
                    shutil.rmtree(partial, ignore_errors=True)
        except BaseException:
            if not info.hosts:  # nothing has run
                shutil.rmtree(partial, ignore_errors=True)
            raise
    return run


@contextlib.contextmanager
def _claimed(partial: Path) -> Iterator[None]:
    """Have the folder `partial` to ourselves, and cleared of what a killed replay left there.

    Raises:
        InputError: it is another replay's, or cannot be written.
    """
    hint = "name another folder with -o"
    with contextlib.ExitStack() as stack:
        try:
            partial.mkdir(exist_ok=True)
            claim = stack.enter_context((partial / CLAIM).open("w"))
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in partial.iterdir():
                if left.is_dir():
                    shutil.rmtree(left)
                elif left.name != CLAIM:
                    left.unlink()
        except BlockingIOError:
            raise InputError("another replay writes to it", where=str(partial), hint=hint) from None
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(partial), hint=hint) from error
        yield


def _carry_out(replayer: Replayer, info: RunInfo, on_progress: Callable[[int], None] | None) -> Run:
    """Start the testbed, replay, stop it, and return the run, whose `info` is completed here."""
    try:
        with replayer.testbed as testbed:
            info.hosts = [{**host_facts(), **host} for host in testbed.hosts]
            replayer.run(on_progress)
    except TestbedError as error:
        if not info.hosts:
            raise
        replayer.interrupt(str(error))
    if replayer.close():
        info.state = "interrupted"
        info.interruptions = [replayer.interrupted or ""]
    info.lateness_ms = lateness(replayer.lateness_s)
    cpus = [node.cpus or () for node in replayer.inventory.nodes]
    return make_run(replayer.record, replayer.cluster, info, cpus=cpus)


def lateness(seconds: Sequence[float]) -> dict[str, float]:
    """Return count, p50, p99 and maximum, in ms, of how late submissions came."""
    if not seconds:
        return {"count": 0}
    late = np.array(seconds) * 1e3
    p50, p99 = np.percentile(late, [50, 99])
    return {
        "count": len(late),
        "p50": round(float(p50), 3),
        "p99": round(float(p99), 3),
        "max": round(float(late.max()), 3),
    }


@contextlib.contextmanager
def _interruptible(replayer: Replayer, info: RunInfo) -> Iterator[None]:
    """Have SIGINT and SIGTERM end the replay: at once while the testbed starts, in order once jobs may run.

    One that comes too late to cut anything short is raised at the end; a second one changes nothing.
    """
    came: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        came.append(number)
        replayer.interrupt(signal.Signals(number).name)
        if len(came) == 1 and not info.hosts:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came and info.state == "completed":
        raise KeyboardInterrupt
