"""Options of `tracebed replay` for a batch system in place of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tracebed.api.settings import SETUP_PARTS
from tracebed.cli.messages import emit
from tracebed.cli.options import Command, ExtensionName, ExtensionOption, given
from tracebed.cli.watch import shown_live
from tracebed.errors import InputError

if TYPE_CHECKING:
    from tracebed.api import Run, Workload

OF_TESTBEDS = (
    *SETUP_PARTS["scheduling"],
    *("inventory", "balance", "work_rate", "clock", "on_node_failure", "drain", "commands"),
)
"""Parameters that a replay with `--scheduler` does not accept."""

OWN = ("conf", "partition")
"""Keys of `--scheduler-option` that concern the batch system and not a submission."""


def scheduler_options(command: Command) -> Command:
    """Add `--scheduler` and `--scheduler-option`."""
    for option in (
        click.option(
            "-S",
            "--scheduler-option",
            "scheduler_options",
            multiple=True,
            metavar="KEY[=VALUE]",
            help="Pass an option to each submission, such as partition=test or account=physics; may be repeated. "
            "conf=FILE names the configuration of the batch system.",
        ),
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

    A replay needs a workload, an output, and either a policy and an inventory, or a batch system.
    """
    context = click.get_current_context()
    needed = ["workload", "output"]
    if context.params["scheduler"] is not None:
        if option := given(OF_TESTBEDS):
            raise InputError(f"{option} does not apply with --scheduler", hint="leave it out: the batch system decides")
    else:
        if option := given(["scheduler_options"]):
            raise InputError(f"{option} needs --scheduler", hint="add --scheduler slurm, or leave it out")
        needed += ["policy", "inventory"]
    params = {param.name: param for param in context.command.params}
    for name in needed:
        if context.params[name] is None:
            raise click.MissingParameter(ctx=context, param=params[name])


def replay_on(
    jobs: Workload, scheduler: str, options: Sequence[str], shown: Mapping[str, Any], common: Mapping[str, Any]
) -> Run:
    """Replay a workload on a batch system, and show it while it runs.

    Args:
        jobs: the workload.
        scheduler: name of the batch system.
        options: additional options of each submission.
        shown: values of the options of the live view.
        common: other arguments of `tracebed.api.replay_on`.
    """
    import tracebed.api as tb

    own = {key: value for key, equals, value in (text.partition("=") for text in options) if key in OWN and equals}
    others = [text for text in options if text.partition("=")[0] not in own]
    what = f"replaying on {scheduler} at {common['speed']:g}x"
    with shown_live(common["output"], what, len(jobs), **shown) as bar:
        run = tb.replay_on(
            jobs,
            scheduler,
            partition=own.get("partition"),
            configuration=own.get("conf"),
            options=others,
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
