"""Replays on a batch system, which decides, or carries out the decisions of a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tracebed.api.results import Run
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.progress import reporter
from tracebed.orchestrator.batch import session
from tracebed.orchestrator.batch.base import BatchSettings
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.setup import AnyPolicy, Setup

PARTITION = "partition="
"""Beginning of the option that chooses the partition."""
PROGRAM = "program="
"""Beginning of the option with the program of malleable jobs."""


def replay_on(
    workload: Workload,
    scheduler: str = "slurm",
    policy: AnyPolicy | Setup | None = None,
    *,
    output: Path | str,
    speed: float = 1.0,
    options: Sequence[str] = (),
    configuration: Path | str | None = None,
    health: Path | str | None = None,
    resume: bool = False,
    replace: bool = False,
    name: str = "workload",
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Submit each job of a workload to a batch system at its time, and let the batch system or a policy decide.

    The jobs sleep for their run time on whole nodes. With a policy, they wait in the batch system until the policy
    starts them on nodes that it chooses, and the batch system resizes running malleable jobs as the policy decides. In
    the main thread SIGINT (Ctrl-C), SIGTERM and SIGHUP cancel all jobs of the replay; `info.state` of the returned run
    is `interrupted`.

    Args:
        workload: the workload.
        scheduler: name of an installed batch system.
        policy: the policy that decides, or a setup with it; None: the batch system decides.
        output: folder of the run, on a file system that all nodes see. If the batch system stops answering, the
            journal stays beside it, and `resume` continues the replay.
        speed: trace seconds per wall second.
        options: additional options of each submission, `KEY=VALUE` or `KEY`. The partition of the jobs is
            `partition=NAME`; without, it is the default partition of the batch system. `program=COMMAND` is a command
            of the shell that does the work of malleable jobs under a policy; without, the work is emulated.
        configuration: configuration file of the batch system (`slurm.conf`); by default that of the environment.
        health: file of the thresholds of health; by default those that tracebed provides.
        resume: whether to continue the newest replay to `output` that was killed, with the same arguments.
            If the replay has finished, its run is returned, and nothing is replayed.
        replace: whether an earlier run in `output` is replaced, as by `replay`.
        name: name of the workload in reports.
        on_progress: called from time to time with the number of ended jobs.

    Raises:
        InputError: the workload, an option, the policy or the partition cannot be used, the batch system permits no
            resizes, or `output` cannot be written.
        TestbedError: the batch system does not answer.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> tb.replay_on(w, "slurm", output="real", speed=60).info.policy  # doctest: +SKIP
        'slurm'
    """
    for text in options:
        key, value = text.removeprefix("--").partition("=")[::2]
        if f"{key}=" in (PARTITION, PROGRAM) and not (value and text.startswith(key)):
            raise InputError(f"{text!r} is not an option of a replay", hint=f"write {key}=VALUE")
    own = {key: [text.removeprefix(key) for text in options if text.startswith(key)] for key in (PARTITION, PROGRAM)}
    if own[PROGRAM] and policy is None:
        raise InputError("a program is for jobs that a policy resizes", hint="add --policy, or leave program= out")
    settings = BatchSettings(
        partition=next(reversed(own[PARTITION]), None),
        options=tuple(text for text in options if not text.startswith((PARTITION, PROGRAM))),
        program=next(reversed(own[PROGRAM]), None),
        configuration=Path(configuration) if configuration is not None else None,
    )
    chosen = session.BatchOptions(speed, scheduler, settings, None if policy is None else Setup.of(policy))
    thresholds = HealthThresholds.read(Path(health)) if health is not None else None
    return Run.of(
        session.replay(
            workload,
            Path(output),
            chosen,
            name=name,
            thresholds=thresholds,
            resume=resume,
            replace_run=replace,
            on_progress=reporter(f"replaying on {scheduler}", len(workload), on_progress),
        )
    )
