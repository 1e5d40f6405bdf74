"""Options of `tracebed replay` for a batch system in place of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tracebed.api.settings import ROOMS
from tracebed.cli.messages import say
from tracebed.cli.options import PATH, Command, ExtensionName, ExtensionOption
from tracebed.cli.watch import shown_live
from tracebed.errors import InputError

if TYPE_CHECKING:
    from tracebed.api import Run, Workload

OF_SCHEDULERS = ("partition", "scheduler_options", "scheduler_conf")
"""Parameters that need `--scheduler`."""
OF_TESTBEDS = (
    *ROOMS["scheduling"],
    *("inventory", "balance", "work_rate", "clock", "on_node_failure", "drain", "commands"),
)
"""Parameters that a replay with `--scheduler` does not accept."""


def scheduler_options(command: Command) -> Command:
    """Add `--scheduler`, `--partition`, `--scheduler-option` and `--scheduler-conf`."""
    for option in (
        click.option(
            "--scheduler-conf",
            type=PATH,
            metavar="FILE",
            help="Configuration of the batch system (slurm.conf).  [default: that of the environment]",
        ),
        click.option(
            "-S",
            "--scheduler-option",
            "scheduler_options",
            multiple=True,
            metavar="KEY[=VALUE]",
            help="Pass an option to each submission, for example account=physics; may be repeated.",
        ),
        click.option("--partition", metavar="NAME", help="Partition of the jobs.  [default: that of the batch system]"),
        click.option(
            "--scheduler",
            cls=ExtensionOption,
            type=ExtensionName("tracebed.batch_systems"),
            metavar="NAME",
            help="Submit the jobs to a batch system, in place of a policy on an inventory: {names}.",
        ),
    ):
        command = option(command)
    return command


def check_scheduler_options() -> None:
    """Raise an error if the current command mixes options of policies with options of batch systems.

    A replay needs either a policy and an inventory, or a batch system.
    """
    context = click.get_current_context()
    options = {param.name: param for param in context.command.params if param.name is not None}

    def given(names: Sequence[str]) -> str | None:
        found = [
            name
            for name in names
            if name in options and context.get_parameter_source(name) is not ParameterSource.DEFAULT
        ]
        return options[found[0]].opts[-1] if found else None

    if context.params["scheduler"] is not None:
        if option := given(OF_TESTBEDS):
            raise InputError(f"{option} does not apply with --scheduler", hint="leave it out: the batch system decides")
        return
    if option := given(OF_SCHEDULERS):
        raise InputError(f"{option} needs --scheduler", hint="add --scheduler slurm, or leave it out")
    for name in ("policy", "inventory"):
        if context.params[name] is None:
            raise click.MissingParameter(ctx=context, param=options[name])


def replay_on(
    jobs: Workload,
    name: str,
    scheduler: str,
    settings: tuple[str | None, Sequence[str], Path | None],
    speed: float,
    health: Path | None,
    resume: bool,
    replace: bool,
    output: Path,
    shown: tuple[bool | None, int | None, Path | None],
) -> Run:
    """Replay a workload on a batch system, and show it while it runs.

    Args:
        jobs: the workload.
        name: name of the workload.
        scheduler: name of the batch system.
        settings: partition, additional options of each submission, and configuration file of the batch system.
        speed: trace seconds per wall second.
        health: file of health thresholds.
        resume: whether to continue a replay that was killed.
        replace: whether an earlier run in `output` is replaced.
        output: folder of the run.
        shown: values of the options of the live view.
    """
    import tracebed.api as tb

    partition, options, configuration = settings
    with shown_live(output, f"replaying on {scheduler} at {speed:g}x", len(jobs), *shown) as bar:
        run = tb.replay_on(
            jobs,
            scheduler,
            speed=speed,
            output=output,
            partition=partition,
            options=options,
            configuration=configuration,
            health=health,
            resume=resume,
            replace=replace,
            name=name,
            on_progress=bar.update,
        )
    facts = run.info.batch
    calls = facts["submission_ms"]
    if calls:
        say(
            f"tracebed: {facts['system']} {facts['version']}, partition {facts['partition']}: a submission took "
            f"{calls['p50']:.0f} ms (median), {calls['p99']:.0f} ms (99 %), at most {calls['max']:.0f} ms"
        )
    return run
