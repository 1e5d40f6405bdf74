"""Runs: simulated, replayed, read from logs, measured, and compared."""

from __future__ import annotations

import dataclasses
import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from tracebed.api.arguments import AnyCalibration, check_size, loaded_calibration, warn_of_another_testbed
from tracebed.api.results import AnyRun, Run, loaded_run
from tracebed.converters.formats.format import from_log
from tracebed.converters.workload import System, Workload
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.progress import reporter
from tracebed.ground.registry import unknown
from tracebed.machine.machine import Machine
from tracebed.machine.sources import read_machine
from tracebed.orchestrator import run as orchestrator
from tracebed.orchestrator.executors import EXECUTORS, REPLAYS, Executor, Options, execute, installed_executor
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.setup import SETTINGS, AnyPolicy, Setup, unknown_setting
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.validation.metrics import classes
from tracebed.validation.metrics.classes import MOST
from tracebed.validation.metrics.measured import MeasuredRun, PowerModel, Undefined, WindowName

TRACEBED = "tracebed"
"""Name of the simulator of tracebed."""
PARTITION = "partition="
"""Beginning of the option that chooses the partition."""
PROGRAM = "program="
"""Beginning of the option with the program of malleable jobs."""
DEMANDS, RESIZES, INTERVAL = "demands", "resizes=", "resize-interval="
OWN = (PARTITION, PROGRAM, RESIZES, INTERVAL)
"""Beginnings of the options of `replay_on` that are not those of each submission."""

if TYPE_CHECKING:
    import pandas as pd

    from tracebed.orchestrator.evolving.programs import Communication
    from tracebed.orchestrator.simulation.prediction import EngineChoice
    from tracebed.orchestrator.testbeds.nodes import Inventory


def simulate(
    workload: Workload,
    policy: AnyPolicy | Setup,
    nodes: int | Inventory | Machine | Path | str | None = None,
    *,
    cores_per_node: int | None = None,
    engine: EngineChoice = "auto",
    simulator: str = TRACEBED,
    processes: Communication | None = None,
    processes_seed: int = 0,
    processes_options: Mapping[str, Any] | None = None,
    name: str = "workload",
    on_progress: Callable[[int], None] | None = None,
    **settings: Any,
) -> Run:
    """Predict a workload under a policy, in virtual time. The same arguments give the same run.

    Args:
        workload: the workload.
        policy: name of an installed policy (see `policies`), `FILE.py:CLASS`, a policy class or an instance; or a
            whole setup.
        nodes: number of nodes, a machine (see `read_machine`), an inventory, or the name or path of one; by default
            the workload's system.
        cores_per_node: cores of each node; by default those of the workload's system. Not with an inventory.
        engine: engine of tracebed's simulator; `auto` uses the compiled one where it can. The results are the same.
        simulator: `tracebed`, or the name of an installed simulator of another project (`elastisim`), which then
            simulates the jobs. Settings that it does not support are refused.
        processes: communication of the processes of jobs, `asynchronous` or `synchronous`: each job is a program of its
            `behaviour`, whose run time follows from its nodes and from other jobs. None: a job takes its run time.
        processes_seed: seed of the programs.
        processes_options: constants of the programs and other choices, the fields of `simulation.processes.Processes`.
        name: name of the workload in reports.
        on_progress: called from time to time with the number of submitted jobs; None: a line on standard error after
            5 s, and then every 10 s. Likewise in the other functions.
        settings: the settings of `Setup` by name, such as `priority="aging"`, `overheads={"launch_s": 0.1}` or
            `calibration=` a calibration or its file; `member=`, the seed of a member of an ensemble, whose delays are
            drawn from the distributions of the calibration; `outages=` a calendar, its file (see `read_outages`), or a
            model by its fields `mtbf_s` and `repair_s` (mean times up and down of a node, s), `shape` (1: exponential,
            else Weibull) and `seed`; `on_node_failure=` what happens to the jobs of a node that is down, `requeue`
            (they begin again, the default), `fail`, or `shrink` (malleable ones continue on their other nodes);
            `checkpoint_s=` the work between two checkpoints of a job, from which it then continues, and
            `checkpoint_cost_s=` the time to write one, s; and for a simulator of another project `timeout_s`, `keep`,
            `replace` and `simulator_options`, the fields of `SimulateOptions`.

    Raises:
        InputError: no job can run, a name is unknown, a number is out of its range, or the size of the machine is
            unknown.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.generate("cirne", jobs=30, nodes=16, seed=3)
        >>> tb.simulate(w, "easy", priority="shortest-first").info.counts["jobs"]
        30
    """
    from tracebed.orchestrator.simulation.outages import outages_of
    from tracebed.orchestrator.simulation.prediction import PredictionOptions, machine_of

    chosen, member = loaded_calibration(settings.pop("calibration", None)), settings.pop("member", None)
    outages = outages_of(settings.pop("outages", None), workload)
    treatment = {name: settings.pop(name) for name in TREATMENT if name in settings}
    other = None if simulator == TRACEBED else _simulator(simulator)
    options_of: Any = Options if other is None else other.options
    if other is None and settings.keys() - SETTINGS.keys():
        from tracebed.validation.simulators.simulator import SimulateOptions  # names what tracebed's simulator lacks

        options_of = SimulateOptions
    elif other is not None:
        settings |= _own_options(options_of, settings.pop("simulator_options", None) or {})
    given, own = split(settings, options_of, policy)
    setup = Setup.of(policy, **given, calibration=chosen)
    made = machine_of(workload, machine(workload, nodes, cores_per_node))
    setup = setup.on(made.grid)
    if chosen is not None:
        from tracebed.orchestrator.testbeds.machine import InventoryMachine

        if isinstance(made, InventoryMachine):
            warn_of_another_testbed(chosen, made.inventory)
    told = reporter(f"simulating under {setup.scheduling.policy}", len(workload), on_progress)
    if made.plain and from_log(workload):
        from tracebed.converters.pooling import pooled  # counts with the statistics of logs, for logs only

        tolerate(pooled(workload))
    if other is not None:
        usuals: tuple[tuple[str | None, str | None, str], ...] = (
            (engine, "auto", "engine"),
            (processes, None, "processes"),
            (None if member is None else str(member), None, "member"),
            (None if outages is None else "given", None, "outages"),
        )
        for value, usual, option in usuals:
            if value != usual:
                what = f"{option} is an option of tracebed's simulator, not of {simulator}"
                raise InputError(what, hint="leave the option out")
        options = options_of(name=name, on_progress=told, **own)
        named = simulator if simulator in EXECUTORS.names() else other
        return Run.of(execute(workload, made, setup, options, executor=named))
    if own:
        what = f"{next(iter(own))} is an option of the simulator of another project"
        raise InputError(what, hint="name the simulator, or leave the option out")
    if outages is not None and (processes is not None or processes_options):
        raise InputError("outages do not apply to processes", hint="leave one of the two out")
    prediction = PredictionOptions(
        name=name, on_progress=told, engine=engine, member=member, outages=outages, **treatment
    )
    run = execute(workload, made, setup, prediction)
    if processes is not None or processes_options:
        from tracebed.orchestrator.simulation.processes import Processes, as_processes

        if setup.timing.overheads != Overheads():
            raise InputError("overheads do not apply to processes", hint="leave the overheads and the calibration out")
        run = as_processes(run, workload, Processes.of(processes, processes_options), seed=processes_seed)
    return Run.of(run)


TREATMENT = ("on_node_failure", "checkpoint_s", "checkpoint_cost_s")
"""What happens to jobs that lose a node: keywords of `simulate`, fields of `PredictionOptions`."""


def _simulator(name: str) -> Executor:
    """Return the executor with which a simulator of another project, or one of tracebed by its name, simulates."""
    if name in EXECUTORS.names():
        chosen = installed_executor(name)
        if not chosen.predicts:
            raise InputError(f"the executor {name} replays jobs, it does not simulate them", hint="use tracebed replay")
        return chosen
    from tracebed.validation.simulators.simulator import SIMULATORS

    if name not in SIMULATORS.names():
        raise unknown("simulator", name, sorted({*EXECUTORS.names()} - {*REPLAYS}))
    return SIMULATORS.load(name)


def _own_options(options: type[Options], texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that only one executor has as fields of its class of options, which give their types."""
    known = get_type_hints(options)
    if not texts or "simulator_options" in known:
        return {"simulator_options": texts} if texts else {}
    from pydantic import TypeAdapter, ValidationError  # slow to import

    own = {}
    for name, text in texts.items():
        if name not in known:
            raise unknown("option", name, sorted(known.keys() - Options.__dataclass_fields__.keys()))
        try:
            own[name] = TypeAdapter(known[name]).validate_python(text)
        except ValidationError as error:
            raise InputError(f"option {name} is {text!r}: {error.errors()[0]['msg']}", hint="correct it") from error
    return own


def split(
    settings: Mapping[str, Any], options: type[Any], policy: AnyPolicy | Setup
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a setup, and the fields of `options`, among keywords. None stands for the default.

    Raises:
        InputError: a keyword is neither.
    """
    own = {field.name for field in fields(options)}
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given:
        if name not in SETTINGS and name not in own:
            raise unknown_setting(name, [*SETTINGS, *sorted(own)], policy)
    return (
        {name: value for name, value in given.items() if name in SETTINGS},
        {name: value for name, value in given.items() if name in own},
    )


def machine(
    workload: Workload, nodes: int | Inventory | Machine | Path | str | None, cores_per_node: int | None
) -> Machine:
    """Return the machine of a simulation; the arguments are those of `simulate`."""
    if nodes is not None and not isinstance(nodes, int):  # a number of nodes needs no inventories
        from tracebed.orchestrator.testbeds.machine import InventoryMachine
        from tracebed.orchestrator.testbeds.nodes import Inventory

        if isinstance(nodes, Inventory | Machine | Path | str):
            if cores_per_node is not None:
                given = "a machine" if isinstance(nodes, Machine) else "an inventory"
                raise InputError(f"both {given} and cores per node are given", hint="give one of them")
            if isinstance(nodes, Machine):
                return nodes
            return InventoryMachine.of(nodes) if isinstance(nodes, Inventory) else read_machine(nodes)
    for name, size in (("nodes", nodes), ("cores_per_node", cores_per_node)):
        if size is not None:
            check_size(name, size)
    own = workload.provenance.system
    grid = own.grid if nodes in (None, own.nodes) else ""
    return Machine.of_system(System(nodes or own.nodes, cores_per_node or own.cores_per_node, grid=grid))


def replay(
    workload: Workload,
    policy: AnyPolicy | Setup,
    nodes: Inventory | Path | str,
    *,
    output: Path | str | None = None,
    work_rate: AnyCalibration | None = None,
    resume: bool = False,
    replace: bool = False,
    name: str = "workload",
    on_progress: Callable[[int], None] | None = None,
    on_step: Callable[[str], None] | None = None,
    **settings: Any,
) -> Run:
    """Run a workload under a policy on a testbed: each job is processes that compute, or sleep on emulated nodes.

    Works in a thread, too, and in a notebook. In the main thread SIGINT (Ctrl-C, or the stop button of a notebook),
    SIGTERM and SIGHUP end all jobs; `info.state` of the returned run is `interrupted`.

    Args:
        workload: the workload.
        policy: name of an installed policy, `FILE.py:CLASS`, a policy class or an instance; or a whole setup.
        nodes: an inventory, or the name or path of one.
        output: folder of the run; by default the run is kept in memory only (`Run.save` writes it).
        work_rate: calibration of the inventory, or its file: the work rate, and the duty of nodes that have none.
            By default the work rate is that stored for this machine; the first replay measures and stores it (5 s).
        resume: whether to continue the newest replay to `output` that was killed. The other arguments must be the same.
            If the replay has finished, its run is returned, and nothing is replayed.
        replace: whether an earlier run in `output` is replaced when the new one is complete. An interrupted run does
            not replace a finished real one; it is then written beside it, and `Run.folder` has its place.
        name: name of the workload in reports.
        on_progress: called from time to time with the number of ended jobs.
        on_step: called with each long step of the preparation of nodes, such as an installation, from any thread.
        settings: the settings of `Setup` by name, such as `speed=100` or `priority="aging"`, and what only a replay
            has: `balance`, `clock`, `on_node_failure`, `drain`, `commands` and `health`, the fields of
            `orchestrator.replay.options.Options`. `commands` and `health` may be files.

    Raises:
        InputError: the workload or the inventory cannot be used, a name is unknown, a number is out of its range, or
            `output` cannot be written.
        TestbedError: the agents of the testbed do not start.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> tb.replay(w, "easy", "emulated-4", speed=1e6).info.execution
        'emulated'
    """
    from tracebed.orchestrator.replay.options import Options
    from tracebed.orchestrator.replay.programs import AllowedCommands
    from tracebed.orchestrator.replay.session import ReplayOptions
    from tracebed.orchestrator.replay.thresholds import HealthThresholds
    from tracebed.orchestrator.testbeds.checking.survey import load_with_facts
    from tracebed.orchestrator.testbeds.machine import InventoryMachine

    if resume and output is None:
        raise InputError("a replay that is kept in memory only cannot be resumed", hint="give an output")
    chosen = loaded_calibration(work_rate)
    testbed = load_with_facts(nodes)
    given, own = split(settings, Options, policy)
    if isinstance(own.get("commands"), Path | str):
        own["commands"] = AllowedCommands.read(Path(own["commands"]))
    if isinstance(own.get("health"), Path | str):
        own["health"] = HealthThresholds.read(Path(own["health"]))
    setup = Setup.of(policy, **given).on(testbed.grid)
    if chosen is not None:
        warn_of_another_testbed(chosen, testbed)

    def carry_out(folder: Path) -> Run:
        options = ReplayOptions(
            output=folder,
            name=name,
            options=Options(**own),
            work_rate=chosen,
            resume=resume,
            replace_run=replace,
            on_progress=reporter(f"replaying under {setup.scheduling.policy}", len(workload), on_progress),
            on_step=on_step,
        )
        return Run.of(execute(workload, InventoryMachine.of(testbed), setup, options, executor="replay"))

    if output is not None:
        return carry_out(Path(output))
    with tempfile.TemporaryDirectory(prefix="tracebed-") as folder:
        return carry_out(Path(folder, "run"))


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

    The jobs sleep for their run time, on whole nodes unless they have demands (see `options`). With a policy, they wait
    in the batch system until the policy starts them on nodes that it chooses, and the batch system resizes running
    malleable jobs as the policy decides. In the main thread SIGINT (Ctrl-C), SIGTERM and SIGHUP cancel all jobs of the
    replay; `info.state` of the returned run is `interrupted`.

    Args:
        workload: the workload.
        scheduler: name of an installed batch system.
        policy: the policy that decides, or a setup with it; None: the batch system decides.
        output: folder of the run, on a file system that all nodes see. If the batch system stops answering, the
            journal stays beside it, and `resume` continues the replay.
        speed: trace seconds per wall second.
        options: additional options of each submission, `KEY=VALUE` or `KEY`. The partition of the jobs is
            `partition=NAME`; without, it is the default partition of the batch system. `program=COMMAND` is a command
            of the shell that does the work of malleable jobs under a policy; without, the work is emulated. `demands`
            submits each job with its own partition, account, QOS, cores, memory, generic resources and features, and by
            root as its user; without, all jobs get whole nodes of one partition. A policy then decides in the pools of
            the machine. `resizes=POLICY` (`dmr`, `pref`, `min`, `avg`, `keep-pref`) is a layer that resizes malleable
            jobs beside the batch system, which starts all jobs, with their `demands`; it makes a pass every
            `resize-interval=S` trace seconds, by default 10.
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
    from tracebed.orchestrator.replay.batch import session
    from tracebed.orchestrator.replay.batch.base import BatchSettings
    from tracebed.orchestrator.replay.thresholds import HealthThresholds

    for text in options:
        key, value = text.removeprefix("--").partition("=")[::2]
        if f"{key}=" in OWN and not (value and text.startswith(key)):
            raise InputError(f"{text!r} is not an option of a replay", hint=f"write {key}=VALUE")
    own = {key: next((text[len(key) :] for text in reversed(options) if text.startswith(key)), None) for key in OWN}
    resizes, demands = own[RESIZES], own[RESIZES] is not None or DEMANDS in options
    if own[PROGRAM] and policy is None and resizes is None:
        hint = "add --policy or resizes=POLICY, or leave program= out"
        raise InputError("a program is for jobs that are resized", hint=hint)
    if policy is not None and resizes is not None:
        what = "a layer that resizes jobs: the batch system starts the jobs, and a policy cannot"
        raise InputError(what, hint="leave the policy or the layer out")
    settings = BatchSettings(
        partition=own[PARTITION],
        options=tuple(text for text in options if not text.startswith(OWN) and text != DEMANDS),
        program=own[PROGRAM],
        configuration=Path(configuration) if configuration is not None else None,
        demands=demands,
    )
    setup = None if policy is None else Setup.of(policy)
    chosen = session.BatchOptions(speed, scheduler, settings, setup, resizes=resizes)
    if (interval := own[INTERVAL]) is not None:
        try:
            chosen = dataclasses.replace(chosen, resize_interval_s=float(interval))
        except ValueError:
            raise InputError(f"{INTERVAL}{interval} is not a number", hint="write trace seconds, such as 10") from None
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


def shortest_replay(workload: Workload, nodes: Inventory | Path | str, setup: Setup) -> float:
    """Return a lower bound of the time of a replay, in wall seconds.

    Args:
        workload: the workload.
        nodes: an inventory, or the name or path of one.
        setup: the setup of the replay, of which the speed and the treatment of limits count.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> shortest_replay(w, "emulated-4", tb.Setup.of("easy", speed=1e6)) < 60
        True
    """
    from tracebed.orchestrator.replay.programs import shortest_replay as bound
    from tracebed.orchestrator.testbeds.inventory import inventory

    return bound(workload, inventory(nodes), setup.timing.speed, over_limit=setup.scheduling.over_limit)


def recover(folder: Path | str, output: Path | str | None = None, *, replace: bool = False) -> Run:
    """Make the run of a replay that was killed from its journal, write it, and return it. `Run.folder` is its place.

    Args:
        folder: the working folder of the replay, on a testbed or on a batch system. It is not changed.
        output: folder of the run; None: the output of the replay, which must not exist.
        replace: whether an earlier run in `output` is replaced.

    Raises:
        InputError: the journal is missing or damaged, the replay is still running, or the run cannot be written.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> _ = tb.replay(w, "easy", "emulated-4", speed=1e6, output="finished")
        >>> len(tb.recover("finished", "again").jobs)
        5
    """
    from tracebed.orchestrator.replay import recovery
    from tracebed.orchestrator.replay.batch.recovery import recovered

    folder = Path(folder)
    make = recovered if (folder / "jobs").is_dir() else None
    made, place = recovery.recover(folder, None if output is None else Path(output), make, replace=replace)
    run = Run.of(made)
    run.folder = place
    return run


def resizes(run: orchestrator.Run) -> int | None:
    """Return the number of resizes that took effect; None: they are not recorded.

    Args:
        run: the run.
    """
    if "reconfigurations" in run.info.unknown:
        return None
    return int((run.are_resizes & run.table("reconfigurations").equal("state", "applied")).sum())


def metrics(
    runs: AnyRun | Mapping[str, AnyRun] | Sequence[AnyRun],
    *,
    tau: float = 10.0,
    window: WindowName = "arrivals",
    after: float = 0.0,
    ended: bool = False,
    power: PowerModel | None = None,
) -> pd.DataFrame:
    """Return the metrics of runs side by side.

    Args:
        runs: a run, or several, by name or in a sequence; each a run or its folder.
        tau: threshold of the bounded slowdown, s.
        window: where utilization, throughput and loss of capacity are measured: `arrivals`, `full`, or two instants
            in s after the first submission.
        after: leave out the jobs of the first seconds, s.
        ended: leave out jobs that have not ended by the last submission.
        power: parameters of the modelled energy.

    Returns:
        a row per metric (index `metric`), column `unit`, and a column per run, NaN where a metric is not defined.

    Raises:
        InputError: a run cannot be read, or an option is out of its range.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.generate("cirne", jobs=30, nodes=16, seed=3)
        >>> table = tb.metrics({name: tb.simulate(w, name) for name in ("fcfs", "easy")})
        >>> bool(table.loc["mean_wait_s", "easy"] <= table.loc["mean_wait_s", "fcfs"])
        True
    """
    if isinstance(runs, orchestrator.Run | Path | str):
        runs = [runs]
    if not isinstance(runs, Mapping):
        names = [str(run) if isinstance(run, Path | str) else run.info.policy for run in runs]
        if len(set(names)) < len(names):
            names = [f"{name} {number}" for number, name in enumerate(names, 1)]
        runs = dict(zip(names, runs, strict=True))
    if not runs:
        raise InputError("no runs are given", hint="give a run, or several by name")
    import pandas as pd

    from tracebed.validation.metrics import all_metrics
    from tracebed.validation.metrics import metrics as measured

    known = all_metrics()
    table: dict[str, list[Any]] = {"unit": [metric.unit for metric in known.values()]}
    for name, run in runs.items():
        found = measured(loaded_run(run), tau, window, after=after, ended=ended, power=power)
        table[name] = [found[metric] for metric in known]
    return pd.DataFrame(table, index=pd.Index(list(known), name="metric"))


def metrics_by(
    run: AnyRun,
    by: str,
    *,
    tau: float = 10.0,
    after: float = 0.0,
    ended: bool = False,
    most: int | None = MOST,
) -> pd.DataFrame:
    """Return node hours, waits and slowdowns of the jobs of a run by user, account, partition, class of nodes or size.

    Args:
        run: the run, or its folder.
        by: `user`, `account`, `partition` (of several, the first), `class` (the class of most of the nodes that a job
            held) or `size` (requested nodes, by powers of two).
        tau: threshold of the bounded slowdown, s.
        after: leave out the jobs of the first seconds, s.
        ended: leave out jobs that have not ended by the last submission.
        most: number of names with a row of their own, those with the most node hours; None: all

    Returns:
        a row per class: sizes in ascending order, the others by node hours, the most first. Columns: `class` (the name;
        `unknown` for jobs without one; in the last row, `37 others` for the 37 beyond `most`), `classes` (how many are
        in the row), `jobs`, `node_hours`, and over the finished jobs `mean_wait_s`, `median_wait_s` and
        `mean_bounded_slowdown`, NaN without finished jobs.

    Raises:
        InputError: the run cannot be read, does not know its users, accounts, partitions or nodes, or an option is out
            of its range.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.generate("cirne", jobs=30, nodes=16, seed=3)
        >>> int(tb.metrics_by(tb.simulate(w, "easy"), "size")["jobs"].sum())
        30
    """
    measured = MeasuredRun(loaded_run(run), tau, after=after, ended=ended)
    try:
        return classes.metrics_by(measured, by, most)
    except Undefined as reason:
        where = str(run) if isinstance(run, Path | str) else None
        hint = "a run has those of its workload; runs of earlier versions have users only"
        hint = "each run has its jobs by size" if by == "class" else hint
        raise InputError(str(reason), where=where, hint=hint) from None


def policies() -> pd.DataFrame:
    """Return the installed policies.

    Returns:
        a row per policy (index `policy`), columns `malleable` (whether it decides sizes), `parameters` (with their
        defaults) and `summary`.

    Example:
        >>> import tracebed.api as tb
        >>> bool(tb.policies().loc["pref", "malleable"])
        True
    """
    import pandas as pd

    rows = {}
    for name in registry.names():
        policy = registry.load(name)
        rows[name] = {
            "malleable": policy.malleable,
            "parameters": ", ".join(f"{key}={value}" for key, value in registry.parameters(policy).items()),
            "summary": (inspect.getdoc(policy) or "").partition("\n")[0],
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("policy")
