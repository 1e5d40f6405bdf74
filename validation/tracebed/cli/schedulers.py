"""Options of `tracebed replay` for a batch system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tracebed.api.settings import SETUP_PARTS
from tracebed.cli.messages import emit
from tracebed.cli.options import ExtensionName, ExtensionOption, added, given
from tracebed.cli.watch import shown_live
from tracebed.ground.errors import InputError

if TYPE_CHECKING:
    from tracebed.api import Run, Setup, Workload

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
        if context.params["policy"] is None and (option := given(SETUP_PARTS["scheduling"])):
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
    jobs: Workload,
    scheduler: str,
    policy: Setup | None,
    options: Sequence[str],
    shown: Mapping[str, Any],
    common: Mapping[str, Any],
) -> Run:
    """Replay a workload on a batch system, and show it while it runs.

    Args:
        jobs: the workload.
        scheduler: name of the batch system.
        policy: the policy that decides, with its settings; None: the batch system decides.
        options: additional options of each submission.
        shown: values of the options of the live view.
        common: other arguments of `tracebed.api.replay_on`.
    """
    import tracebed.api as tb

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
