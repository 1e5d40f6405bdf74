"""`tracebed replay`: runs on testbeds and batch systems."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import tracebed.api as tb
from tracebed.cli.console import end_on_signals, load_workload
from tracebed.cli.groups import Sectioned
from tracebed.cli.messages import emit
from tracebed.cli.options import (
    LATER,
    PATH,
    check_alone,
    extension,
    gathered,
    given,
    inventory_option,
    json_option,
    keywords,
    names_in,
    option,
    output_option,
)
from tracebed.cli.run_summary import summary
from tracebed.cli.setup_options import OF_REPLAYS, SECTION, settings_of, setup_options
from tracebed.cli.watch import Live
from tracebed.ground.display import time_text
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.states import JobState

CONF = "conf="
"""Beginning of the scheduler option that names the configuration of the batch system."""


@dataclass(frozen=True)
class Batch:
    """The batch system of a replay."""

    scheduler: str | None = option(
        **extension("tracebed.batch_systems"),
        help="Submit the jobs to a batch system: {names}. With --policy, it starts and resizes jobs as the policy "
        "decides; without, it decides itself.",
    )
    scheduler_options: tuple[str, ...] = option(
        *("-S", "--scheduler-option"),
        metavar="KEY[=VALUE]",
        help="Pass an option to each submission, such as partition=test or account=physics; may be repeated. "
        "conf=FILE names the configuration of the batch system. program=COMMAND does the work of malleable jobs "
        "under a policy or a layer. demands submits each job with its own partition, account, QOS, cores, memory, GRES "
        "and features, and by root as its user; without, all jobs get whole nodes of one partition. resize-interval=S "
        "is the time between two passes of a layer (10 s).",
    )
    resizes: Literal["dmr", "pref", "min", "avg", "keep-pref"] | None = option(
        help="Let a layer with this policy shrink and expand running malleable jobs beside the batch system, which "
        "starts all jobs, with their demands (-S demands)."
    )


@dataclass(frozen=True)
class Testbed:
    """How the jobs of a replay run on the nodes of a testbed."""

    balance: Literal["static", "dynamic"] = option(
        default="static", help="Work of the ranks of a job: equal shares, or chunks from a common pool."
    )
    work_rate: Path | None = option(
        help="Take the work rate, and the duty of nodes that have none, from this file of `tracebed nodes calibrate`."
    )
    clock: Literal["wall", "steady"] = option(
        default="wall", help="Clock of the replay and its jobs; the steady clock stands still while a job is late."
    )
    commands: Path | None = option(
        "--allow-commands", help="YAML file of the commands that jobs of the application `command` may run."
    )
    health: Path | None = option(
        help="YAML file of the thresholds of the health of the run. Wider ones than the defaults are named, and do not "
        "count in verdicts.  [default: those of tracebed]"
    )
    on_node_failure: Literal["requeue", "fail", "abort"] = option(
        default="requeue",
        help="Treatment of the jobs of a lost node: return them to the queue, fail them, or end the replay.",
    )
    drain: bool = option(help="Run without the nodes whose agents do not start.")


@dataclass(frozen=True)
class Continuation:
    """How a killed replay goes on."""

    resume: bool = option(help="Continue the newest killed replay to the same output.")
    recover: Path | None = option(
        type=click.Path(path_type=Path, file_okay=False),
        metavar="FOLDER",
        help="Make the run of a killed replay from its working folder, and replay nothing.",
    )


def check_scheduler_options() -> None:
    """Raise an error if the current command mixes options of policies with options of batch systems.

    A replay needs a workload, an output, and either a policy and an inventory, or a batch system. Settings of the
    scheduling need a policy.
    """
    context = click.get_current_context()
    needed = ["workload", "output"]
    if context.params["scheduler"] is not None:
        if name := given({"inventory", *names_in(Testbed)} - {"health"}):
            raise InputError(f"{name} does not apply with --scheduler", hint="leave it out")
        if context.params["policy"] is None and (name := given(tb.SETUP_PARTS["scheduling"])):
            raise InputError(f"{name} needs --policy", hint="leave it out: the batch system decides")
    else:
        if name := given(names_in(Batch)):
            raise InputError(f"{name} needs --scheduler", hint="add --scheduler slurm, or leave it out")
        needed += ["policy", "inventory"]
    params = {param.name: param for param in context.command.params}
    for name in needed:
        if context.params[name] is None:
            raise click.MissingParameter(ctx=context, param=params[name])


def _replay_on(jobs: tb.Workload, batch: Batch, policy: tb.Setup | None, live: Live, **common: Any) -> tb.Run:
    """Replay a workload on a batch system, where a policy decides, if one is given, and show it while it runs.

    `common` are other arguments of `tracebed.api.replay_on`.
    """
    assert batch.scheduler is not None
    conf = [text.partition("=")[2] for text in batch.scheduler_options if text.startswith(CONF)]
    decides = f"{policy.scheduling.policy} " if policy is not None else ""
    of_layer = [f"resizes={batch.resizes}"] if batch.resizes else []
    what = f"replaying {decides}on {batch.scheduler} at {common['speed']:g}x"
    with live.shown(common["output"], what, len(jobs)) as bar:
        run = tb.replay_on(
            jobs,
            batch.scheduler,
            policy,
            configuration=conf[-1] if conf else None,
            options=[*(text for text in batch.scheduler_options if not text.startswith(CONF)), *of_layer],
            on_progress=bar.update,
            **common,
        )
    facts = run.info.batch
    calls = facts["submission_ms"]
    if calls:
        where = f", partition {facts['partition']}" if facts["partition"] else ""
        emit(
            f"tracebed: {facts['system']} {facts['version']}{where}: a submission took "
            f"{calls['p50']:.0f} ms (median), {calls['p99']:.0f} ms (99 %), at most {calls['max']:.0f} ms"
        )
    return run


@click.command(
    cls=Sectioned,
    sections={
        "Scheduling": SECTION,
        "Batch system": Batch,
        "Jobs and nodes": Testbed,
        "Continuation of a killed replay": Continuation,
        "Live view": Live,
    },
)
@click.argument("workload", type=PATH, required=False)
@setup_options(OF_REPLAYS, required=False)
@inventory_option()
@gathered("batch", Batch)
@gathered("testbed", Testbed)
@gathered("continuation", Continuation)
@gathered("live", Live)
@output_option("Folder of the run. With --recover, it is by default the output of the replay.", LATER, required=False)
@json_option
def replay(
    workload: Path | None,
    settings: dict[str, Any],
    inventory: Path | None,
    batch: Batch,
    testbed: Testbed,
    continuation: Continuation,
    live: Live,
    output: Path | None,
    replace: bool,
    as_json: bool,
) -> int:
    """Run WORKLOAD under a policy on a testbed, as real processes.

    Each job computes (on emulated nodes: sleeps) for its run time divided by --speed. Malleable jobs shrink and
    expand while they run. Ctrl-C, SIGTERM and SIGHUP end all jobs and leave an interrupted run.

    After a replay was killed, the same command with --resume continues it. --recover makes a run of the part until
    then from the working folder of the replay (runs/real.partial-1a2b3c4d for -o runs/real), which stays as it is.
    The run is `interrupted` unless all jobs had ended.

    The health of the run says whether it is fit to be compared: complete, in time, on a machine without other load.

    With --scheduler, the jobs are submitted to a batch system, which decides unless a policy is given. On the nodes
    that the batch system allocates, each job sleeps for its run time divided by --speed.

    \b
    Examples:
      tracebed replay w.parquet --policy pref --inventory local --speed 9 -o real
      tracebed replay w.parquet --scheduler slurm -S partition=test -o real
      tracebed replay w.parquet --scheduler slurm --policy pref -o real
      tracebed replay --recover real.partial-1a2b3c4d
    """
    end_on_signals()
    if continuation.recover is not None:
        return _recover(continuation.recover, output, replace=replace, as_json=as_json)
    check_scheduler_options()
    assert workload is not None and output is not None  # checked above
    jobs = load_workload(workload)
    settings = settings_of(settings, nodes=jobs.provenance.system.nodes)
    if settings.pop("machine", None) is not None:
        raise InputError("a cluster of a slurm.conf can be simulated only", hint="leave -P @slurm.conf out")
    policy, speed = settings.pop("policy"), settings.pop("speed")
    common: dict[str, Any] = {
        "output": output,
        "replace": replace,
        "name": workload.name,
        "resume": continuation.resume,
    }
    if batch.scheduler is not None:
        chosen = None if policy is None else tb.Setup.of(policy, **settings)
        run = _replay_on(jobs, batch, chosen, live, speed=speed, health=testbed.health, **common)
        return concluded(run, output, as_json)
    assert policy is not None and inventory is not None  # checked above
    machine = tb.inventory(inventory)
    least = tb.shortest_replay(jobs, machine, tb.Setup.of(policy, speed=speed, **settings))
    takes = "the virtual nodes run for" if machine.execution == "virtual" else "this takes"
    emit(f"tracebed: at {speed:g}x {takes} at least {time_text(least)}")
    what = f"replaying {policy} on {machine.execution} nodes at {speed:g}x"
    with live.shown(output, what, len(jobs)) as bar:
        run = tb.replay(
            jobs,
            policy,
            machine,
            speed=speed,
            on_progress=bar.update,
            on_step=lambda step: emit(f"tracebed: {step}"),
            **common,
            **settings,
            **keywords(testbed),
        )
    _name_rate(run.info.calibration)
    return concluded(run, output, as_json)


def _recover(folder: Path, output: Path | None, *, replace: bool, as_json: bool) -> ExitCode:
    """Make the run of a killed replay, and print its summary."""
    check_alone("recover", ("output", "replace", "as_json"))
    run = tb.recover(folder, output, replace=replace)
    assert run.folder is not None
    summary(run, run.folder, as_json)
    if not (folder / "run.json").exists():
        resumed = "" if run.info.source == "virtual" else ", and to resume the replay"
        emit(f"tracebed: {folder} is only needed for the output of its jobs{resumed}")
    return ExitCode.OK


def concluded(run: tb.Run, output: Path, as_json: bool) -> ExitCode:
    """Print the summary of a replay, and return the exit code."""
    output = run.folder or output
    summary(run, output, as_json)
    info = run.info
    if info.batch and info.counts.get(JobState.REJECTED) == info.counts["jobs"]:
        emit(f"tracebed: {info.batch['system']} accepted no job: the run has nothing to compare")
        return ExitCode.UNHEALTHY
    if info.state != "interrupted":
        return ExitCode.OK
    (reason,) = run.info.interruptions
    emit(f"tracebed: the replay was interrupted ({reason}); {output} has what happened until then")
    return ExitCode.INTERRUPTED if run.info.stopped_by_signal else ExitCode.UNHEALTHY


def _name_rate(calibration: dict[str, Any]) -> None:
    """Print the work rate by which the jobs of a replay were sized, and its origin."""
    if rate := calibration.get("units_per_core_second"):
        from datetime import UTC, datetime

        low, high = calibration["spread"]
        age_s = (datetime.now(UTC) - datetime.fromisoformat(calibration["created"])).total_seconds()
        emit(
            f"tracebed: work sized by {rate:,.0f} units per core and second (p05 to p95 {low:.2f} to {high:.2f}),"
            f" {calibration['name']}, {time_text(max(0.0, age_s))} old; `tracebed nodes calibrate` measures it again"
        )
