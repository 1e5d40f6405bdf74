"""`tracebed replay`: runs on testbeds and batch systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import tracebed.api as tb
from tracebed.cli.console import end_on_signals, load_workload
from tracebed.cli.groups import Sectioned
from tracebed.cli.messages import emit
from tracebed.cli.options import (
    LATER,
    PATH,
    ExtensionName,
    ExtensionOption,
    added,
    check_alone,
    given,
    inventory_option,
    json_option,
    output_option,
)
from tracebed.cli.run_summary import summary
from tracebed.cli.setup_options import OF_REPLAYS, SECTION, settings_of, setup_options
from tracebed.cli.watch import shown_live, watch_options
from tracebed.ground.display import time_text
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.states import JobState

OF_TESTBEDS = ("inventory", "balance", "work_rate", "clock", "on_node_failure", "drain", "commands")
"""Parameters that a replay with `--scheduler` does not accept."""

CONF = "conf="
"""Beginning of the scheduler option that names the configuration of the batch system."""


scheduler_options = added(
    click.option(
        "--scheduler",
        cls=ExtensionOption,
        type=ExtensionName("tracebed.batch_systems"),
        metavar="NAME",
        help="Submit the jobs to a batch system: {names}. With --policy, it starts and resizes jobs as the policy "
        "decides; without, it decides itself.",
    ),
    click.option(
        "-S",
        "--scheduler-option",
        "scheduler_options",
        multiple=True,
        metavar="KEY[=VALUE]",
        help="Pass an option to each submission, such as partition=test or account=physics; may be repeated. "
        "conf=FILE names the configuration of the batch system. program=COMMAND does the work of malleable jobs "
        "under a policy.",
    ),
)
"""`--scheduler` and `--scheduler-option`."""


def check_scheduler_options() -> None:
    """Raise an error if the current command mixes options of policies with options of batch systems.

    A replay needs a workload, an output, and either a policy and an inventory, or a batch system. Settings of the
    scheduling need a policy.
    """
    context = click.get_current_context()
    needed = ["workload", "output"]
    if context.params["scheduler"] is not None:
        if option := given(OF_TESTBEDS):
            raise InputError(f"{option} does not apply with --scheduler", hint="leave it out")
        if context.params["policy"] is None and (option := given(tb.SETUP_PARTS["scheduling"])):
            raise InputError(f"{option} needs --policy", hint="leave it out: the batch system decides")
    else:
        if option := given(["scheduler_options"]):
            raise InputError(f"{option} needs --scheduler", hint="add --scheduler slurm, or leave it out")
        needed += ["policy", "inventory"]
    params = {param.name: param for param in context.command.params}
    for name in needed:
        if context.params[name] is None:
            raise click.MissingParameter(ctx=context, param=params[name])


def replay_on(
    jobs: tb.Workload,
    scheduler: str,
    policy: tb.Setup | None,
    options: Sequence[str],
    shown: Mapping[str, Any],
    common: Mapping[str, Any],
) -> tb.Run:
    """Replay a workload on a batch system, where a policy decides, if one is given, and show it while it runs.

    `shown` has the options of the live view, `common` other arguments of `tracebed.api.replay_on`.
    """
    conf = [text.partition("=")[2] for text in options if text.startswith(CONF)]
    decides = f"{policy.scheduling.policy} " if policy is not None else ""
    what = f"replaying {decides}on {scheduler} at {common['speed']:g}x"
    with shown_live(common["output"], what, len(jobs), **shown) as bar:
        run = tb.replay_on(
            jobs,
            scheduler,
            policy,
            configuration=conf[-1] if conf else None,
            options=[text for text in options if not text.startswith(CONF)],
            on_progress=bar.update,
            **common,
        )
    facts = run.info.batch
    calls = facts["submission_ms"]
    if calls:
        emit(
            f"tracebed: {facts['system']} {facts['version']}, partition {facts['partition']}: a submission took "
            f"{calls['p50']:.0f} ms (median), {calls['p99']:.0f} ms (99 %), at most {calls['max']:.0f} ms"
        )
    return run


@click.command(
    cls=Sectioned,
    sections={
        "Scheduling": SECTION,
        "Batch system": ("scheduler", "scheduler_options"),
        "Jobs and nodes": (
            *("balance", "work_rate", "clock", "commands"),
            *("health", "on_node_failure", "drain"),
        ),
        "Continuation of a killed replay": ("resume", "recover"),
        "Live view": ("live", "metrics"),
    },
)
@click.argument("workload", type=PATH, required=False)
@setup_options(OF_REPLAYS, required=False)
@inventory_option()
@scheduler_options
@click.option(
    "--balance",
    type=click.Choice(["static", "dynamic"]),
    default="static",
    show_default=True,
    help="Work of the ranks of a job: equal shares, or chunks from a common pool.",
)
@click.option(
    "--work-rate",
    type=PATH,
    metavar="FILE",
    help="Take the work rate, and the duty of nodes that have none, from this file of `tracebed nodes calibrate`.",
)
@click.option(
    "--clock",
    type=click.Choice(["wall", "steady"]),
    default="wall",
    show_default=True,
    help="Clock of the replay and its jobs; the steady clock stands still while a job is late.",
)
@click.option(
    "--health",
    type=PATH,
    metavar="FILE",
    help="YAML file of the thresholds of the health of the run. Wider ones than the defaults are named, and do not "
    "count in verdicts.  [default: those of tracebed]",
)
@click.option(
    "--on-node-failure",
    type=click.Choice(["requeue", "fail", "abort"]),
    default="requeue",
    show_default=True,
    help="Treatment of the jobs of a lost node: return them to the queue, fail them, or end the replay.",
)
@click.option("--drain", is_flag=True, help="Run without the nodes whose agents do not start.")
@click.option(
    "--allow-commands",
    "commands",
    type=PATH,
    metavar="FILE",
    help="YAML file of the commands that jobs of the application `command` may run.",
)
@click.option("--resume", is_flag=True, help="Continue the newest killed replay to the same output.")
@click.option(
    "--recover",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Make the run of a killed replay from its working folder, and replay nothing.",
)
@watch_options
@output_option("Folder of the run. With --recover, it is by default the output of the replay.", LATER, required=False)
@json_option
def replay(
    workload: Path | None,
    policy: str | None,
    speed: float,
    inventory: Path | None,
    scheduler: str | None,
    recover: Path | None,
    output: Path | None,
    replace: bool,
    as_json: bool,
    **values: Any,
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
    if recover is not None:
        return _recover(recover, output, replace=replace, as_json=as_json)
    check_scheduler_options()
    assert workload is not None and output is not None  # checked above
    common = {name: values.pop(name) for name in ("health", "resume")} | {"speed": speed, "replace": replace}
    shown = {name: values.pop(name) for name in ("live", "metrics")}
    jobs = load_workload(workload)
    common |= {"output": output, "name": workload.name}
    settings = settings_of(values, nodes=jobs.provenance.system.nodes)
    if scheduler is not None:
        chosen = None if policy is None else tb.Setup.of(policy, **settings)
        run = replay_on(jobs, scheduler, chosen, values["scheduler_options"], shown, common)
        return concluded(run, output, as_json)
    assert policy is not None and inventory is not None  # checked above
    machine = tb.inventory(inventory)
    least = tb.shortest_replay(jobs, machine, tb.Setup.of(policy, speed=speed, **settings))
    takes = "the virtual nodes run for" if machine.execution == "virtual" else "this takes"
    emit(f"tracebed: at {speed:g}x {takes} at least {time_text(least)}")
    what = f"replaying {policy} on {machine.execution} nodes at {speed:g}x"
    with shown_live(output, what, len(jobs), **shown) as bar:
        run = tb.replay(
            jobs,
            policy,
            machine,
            work_rate=values["work_rate"],
            on_progress=bar.update,
            on_step=lambda step: emit(f"tracebed: {step}"),
            **common,
            **settings,
            **{name: values[name] for name in ("balance", "clock", "on_node_failure", "drain", "commands")},
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
