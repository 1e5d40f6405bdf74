"""Runs: simulated, replayed, read from logs, measured, and compared."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pandas as pd

from tracebed.api.calibration_files import AnyCalibration, loaded_calibration, warn_of_another_testbed
from tracebed.api.checks import check_size
from tracebed.api.results import Run, metrics_table
from tracebed.converters.workload import System, Workload
from tracebed.errors import InputError
from tracebed.orchestrator import run as orchestrator
from tracebed.orchestrator.run import NodeFacts, nodes_of
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.placement import on_grid
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.simulation.prediction import EngineChoice, calibrated, predict
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.simulation.simulator import Overheads
from tracebed.orchestrator.testbeds.nodes import Inventory
from tracebed.registry import one_of
from tracebed.validation.metrics.measured import PowerModel, WindowName

if TYPE_CHECKING:
    from tracebed.orchestrator.evolving.programs import Communication

AnyPolicy: TypeAlias = str | type[Policy] | Policy
"""A policy: the name of an installed one, a class, or an instance."""
OverLimitName: TypeAlias = Literal["extend", "kill", "again", "now"]
RuntimeModelName: TypeAlias = Literal["ideal", "worst-case"]
Balance: TypeAlias = Literal["static", "dynamic"]
ClockName: TypeAlias = Literal["wall", "steady"]
NodeFailureName: TypeAlias = Literal["requeue", "fail", "abort"]
AnyRun: TypeAlias = orchestrator.Run | Path | str
"""A run, or the folder of one."""


def simulate(
    workload: Workload,
    policy: AnyPolicy,
    nodes: int | Inventory | Path | str | None = None,
    *,
    cores_per_node: int | None = None,
    policy_parameters: Mapping[str, Any] | None = None,
    priority: str = "fcfs",
    placement: str = "first",
    grid: str | None = None,
    interval_s: float = 0.0,
    over_limit: OverLimitName = "extend",
    malleability_interval_s: float = 0.0,
    runtime_model: RuntimeModelName = "ideal",
    launch_overhead_s: float = 0.0,
    end_overhead_s: float = 0.0,
    reconfiguration_overhead_s: float = 0.0,
    calibration: AnyCalibration | None = None,
    speed: float = 1.0,
    engine: EngineChoice = "auto",
    simulator: str = "tracebed",
    simulator_options: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    keep: Path | str | None = None,
    replace: bool = False,
    processes: Communication | None = None,
    processes_seed: int = 0,
    processes_options: Mapping[str, Any] | None = None,
    name: str = "workload",
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Predict a workload under a policy, in virtual time. The same arguments give the same run.

    Args:
        workload: the workload.
        policy: name of an installed policy (see `policies`), a policy class or an instance.
        nodes: number of nodes, an inventory, or the name or path of one; by default the workload's system.
        cores_per_node: cores of each node; by default those of the workload's system. Not with an inventory.
        policy_parameters: parameters of a policy that is given by name or class.
        priority: order in which the policy considers waiting jobs.
        placement: choice of the nodes of jobs among the idle ones.
        grid: grid of the network between the nodes: `8x16`, `4x4x8`, `torus:8x16`; by default that of the inventory or
            of the workload's system.
        interval_s: scheduling interval, s; 0 schedules on every event.
        over_limit: treatment of jobs that outlive their time limit: the limit is extended to the run time, the job is
            killed, or it is expected to take its limit again, or to end now.
        malleability_interval_s: time between malleability points of a job, s; 0 resizes jobs at once.
        runtime_model: run time of jobs that hold fewer cores than requested.
        launch_overhead_s: wall time from the start of a job to its first work, s.
        end_overhead_s: wall time from the last work of a job until its nodes are idle, s.
        reconfiguration_overhead_s: wall time that a job stands still at a resize, s.
        calibration: calibration of the testbed whose replays are predicted, or its file: all overheads, and the grain.
            No overhead or malleability interval may be given with it.
        speed: trace seconds per wall second; converts the overheads from wall to trace time.
        engine: engine of tracebed's simulator; `auto` uses the compiled one where it can. The results are the same.
        simulator: `tracebed`, or the name of an installed simulator of another project (`elastisim`), which then
            simulates the jobs. Options that it does not support are refused.
        simulator_options: options of that simulator by name, for example `program`, the path of its program.
        timeout_s: time after which that simulator is stopped, wall s; by default an hour.
        keep: folder in which the files of that simulator are kept.
        replace: whether an earlier folder `keep` is replaced.
        processes: communication of the processes of jobs, `asynchronous` or `synchronous`: each job is a program of its
            `behaviour`, whose run time follows from its nodes and from other jobs. None: a job takes its run time.
        processes_seed: seed of the programs.
        processes_options: constants of the programs and other choices, the fields of `simulation.processes.Processes`.
        name: name of the workload in reports.
        on_progress: called from time to time with the number of submitted jobs.

    Raises:
        InputError: no job can run, a name is unknown, a number is out of its range, or the size of the machine is
            unknown.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.generate("cirne", jobs=30, nodes=16, seed=3)
        >>> tb.simulate(w, "easy").info.counts["jobs"]
        30
    """
    one_of("over_limit", over_limit, OverLimit)
    one_of("runtime_model", runtime_model, RuntimeModel)
    overheads = Overheads(launch_overhead_s, end_overhead_s, reconfiguration_overhead_s)
    chosen = loaded_calibration(calibration)
    if chosen is not None:
        if overheads != Overheads() or malleability_interval_s:
            given = "a malleability interval" if malleability_interval_s else "overheads"
            raise InputError(f"both a calibration and {given} are given", hint="give one of them")
        if isinstance(nodes, Inventory | Path | str):
            warn_of_another_testbed(chosen, inventory(nodes))
    if simulator != "tracebed":
        from tracebed.validation.simulators import simulator as simulators

        if not isinstance(policy, str):
            raise InputError(f"{simulator} needs a policy that is given by name", hint="give the name of the policy")
        usuals: tuple[tuple[str | None, str | None, str], ...] = (
            (engine, "auto", "engine"),
            (runtime_model, "ideal", "runtime_model"),
            (processes, None, "processes"),
        )
        for value, usual, option in usuals:
            if value != usual:
                what = f"{option} is an option of tracebed's simulator, not of {simulator}"
                raise InputError(what, hint="leave the option out")
        options = simulators.SimulateOptions(
            policy_parameters=policy_parameters or {},
            priority=priority,
            placement=placed(placement, grid, workload, nodes),
            over_limit=OverLimit(over_limit),
            timeout_s=simulators.TIMEOUT_S if timeout_s is None else timeout_s,
            folder=None if keep is None else Path(keep),
            replace=replace,
            interval_s=interval_s,
            malleability_interval_s=malleability_interval_s,
            overheads=(calibrated(chosen) if chosen else overheads).times(speed),
            calibration=chosen.facts() if chosen else {},
            speed=speed,
            on_progress=on_progress,
            name=name,
            options=simulator_options or {},
        )
        nodes_of_machine = machine(workload, nodes, cores_per_node)
        return Run.of(simulators.simulate(simulator, workload, nodes_of_machine, policy, options))
    run = predict(
        workload,
        machine(workload, nodes, cores_per_node),
        policy,
        name=name,
        policy_parameters=policy_parameters,
        runtime_model=RuntimeModel(runtime_model),
        overheads=None if chosen else overheads,
        calibration=chosen,
        speed=speed,
        interval_s=interval_s,
        malleability_interval_s=malleability_interval_s,
        over_limit=OverLimit(over_limit),
        priority=priority,
        placement=placed(placement, grid, workload, nodes),
        engine=engine,
        on_progress=on_progress,
    )
    if processes is not None or processes_options:
        from tracebed.orchestrator.simulation.processes import Processes, as_processes

        if overheads != Overheads() or chosen is not None:
            raise InputError("overheads do not apply to processes", hint="leave the overheads and the calibration out")
        run = as_processes(run, workload, Processes.of(processes, processes_options), seed=processes_seed)
    return Run.of(run)


def placed(placement: str, grid: str | None, workload: Workload, nodes: int | Inventory | Path | str | None) -> str:
    """Return the placement with the grid of the nodes; the arguments are those of `simulate`."""
    own, known = workload.provenance.system, None
    if isinstance(nodes, Inventory | Path | str):
        known = inventory(nodes).grid
    elif nodes in (None, own.nodes):
        known = own.grid
    return on_grid(placement, grid, known)


def machine(
    workload: Workload, nodes: int | Inventory | Path | str | None, cores_per_node: int | None
) -> list[NodeFacts]:
    """Return the nodes of a simulation; the arguments are those of `simulate`."""
    own = workload.provenance.system
    if not isinstance(nodes, Inventory | Path | str):
        for name, size in (("nodes", nodes), ("cores_per_node", cores_per_node)):
            if size is not None:
                check_size(name, size)
        return nodes_of(System(nodes or own.nodes, cores_per_node or own.cores_per_node))
    if cores_per_node is not None:
        raise InputError("both an inventory and cores per node are given", hint="give one of them")
    return inventory(nodes).facts


def inventory(nodes: Inventory | Path | str) -> Inventory:
    """Return an inventory: itself, or that of a name or path.

    Args:
        nodes: an inventory, the name of one that tracebed ships (`local`, `emulated-4`), or the path of a file: an
            inventory of tracebed or of Ansible in YAML, or an SSH configuration.

    Raises:
        InputError: there is no such inventory, or the file is not valid.

    Example:
        >>> import tracebed.api as tb
        >>> len(tb.inventory("emulated-4").nodes)
        4
    """
    if isinstance(nodes, Inventory):
        return nodes
    from tracebed.orchestrator.testbeds.inventory import load_inventory

    return load_inventory(nodes)


def replay(
    workload: Workload,
    policy: AnyPolicy,
    nodes: Inventory | Path | str,
    *,
    speed: float = 1.0,
    output: Path | str | None = None,
    policy_parameters: Mapping[str, Any] | None = None,
    priority: str = "fcfs",
    placement: str = "first",
    grid: str | None = None,
    interval_s: float = 0.0,
    over_limit: OverLimitName = "extend",
    balance: Balance = "static",
    calibration: AnyCalibration | None = None,
    clock: ClockName = "wall",
    health: Path | str | None = None,
    on_node_failure: NodeFailureName = "requeue",
    drain: bool = False,
    allow_commands: Path | str | None = None,
    resume: bool = False,
    replace: bool = False,
    name: str = "workload",
    on_progress: Callable[[int], None] | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Run:
    """Run a workload under a policy on a testbed: each job is processes that compute, or sleep on emulated nodes.

    Works in a thread, too, and in a notebook. In the main thread SIGINT (Ctrl-C, or the stop button of a notebook),
    SIGTERM and SIGHUP end all jobs; the run that is returned has `info.state` `interrupted`.

    Args:
        workload: the workload.
        policy: name of an installed policy, a policy class or an instance.
        nodes: an inventory, or the name or path of one.
        speed: trace seconds per wall second.
        output: folder of the run; by default the run is kept in memory only (`Run.save` writes it).
        policy_parameters: parameters of a policy that is given by name or class.
        priority: order in which the policy considers waiting jobs.
        placement: choice of the nodes of jobs among the idle ones.
        grid: grid of the network between the nodes: `8x16`, `4x4x8`, `torus:8x16`; by default that of the inventory or
            of the workload's system.
        interval_s: scheduling interval, trace s; 0 schedules on every event.
        over_limit: treatment of jobs that outlive their time limit, as in `simulate`. Only `kill` ends processes.
        balance: work of the ranks of a job: equal shares (`static`), or chunks from a common pool (`dynamic`).
        calibration: calibration of the inventory, or its file: the work rate, and the duty of nodes that have none.
            By default the work rate is that stored for this machine; the first replay measures and stores it (5 s).
        clock: the clock of the replay and its jobs: `wall`, or `steady`, which stands still while a job is late.
        health: file of the thresholds of health (see `Run.health`); by default those that tracebed provides.
        on_node_failure: treatment of the jobs of a lost node: they return to the queue (`requeue`), they fail
            (`fail`), or the replay ends (`abort`).
        drain: whether to run without the nodes whose agents do not start, unless no agent starts.
        allow_commands: file of the commands that jobs of the application `command` may run.
        resume: whether to continue the newest replay to `output` that was killed. The other arguments must be the same.
            If the replay has finished, its run is returned, and nothing is replayed.
        replace: whether an earlier run in `output` is replaced when the new one is complete. An interrupted run does
            not replace a finished real one; it is then written beside it, and `Run.folder` has its place.
        name: name of the workload in reports.
        on_progress: called from time to time with the number of ended jobs.
        on_step: called with each long step of the preparation of nodes, such as an installation, from any thread.

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
    from tracebed.orchestrator.replay import session
    from tracebed.orchestrator.replay.commands import AllowedCommands
    from tracebed.orchestrator.replay.options import Options
    from tracebed.orchestrator.replay.thresholds import Thresholds
    from tracebed.orchestrator.testbeds.checking.survey import load_with_facts

    one_of("over_limit", over_limit, OverLimit)
    if resume and output is None:
        raise InputError("a replay that is kept in memory only cannot be resumed", hint="give an output")
    chosen = loaded_calibration(calibration)
    thresholds = Thresholds.read(Path(health)) if health is not None else None
    testbed = nodes if isinstance(nodes, Inventory) else load_with_facts(nodes)
    commands = None if allow_commands is None else AllowedCommands.read(Path(allow_commands))
    options = Options(
        speed=speed,
        interval_s=interval_s,
        over_limit=OverLimit(over_limit),
        balance=balance,
        priority=priority,
        placement=placed(placement, grid, workload, testbed),
        clock=clock,
        on_node_failure=on_node_failure,
        drain=drain,
        commands=commands,
    )
    if chosen is not None:
        warn_of_another_testbed(chosen, testbed)

    def carry_out(folder: Path) -> Run:
        run = session.replay(
            workload,
            testbed,
            policy,
            folder,
            name=name,
            policy_parameters=policy_parameters,
            options=options,
            calibration=chosen,
            thresholds=thresholds,
            resume=resume,
            replace_run=replace,
            on_progress=on_progress,
            on_step=on_step,
        )
        return Run.of(run)

    if output is not None:
        return carry_out(Path(output))
    with tempfile.TemporaryDirectory(prefix="tracebed-") as folder:
        return carry_out(Path(folder, "run"))


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
    options: dict[str, Any] = {"tau": tau, "window": window, "after": after, "ended": ended, "power": power}
    return metrics_table({name: _loaded(run) for name, run in runs.items()}, **options)


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
    rows = {}
    for name in registry.names():
        policy = registry.load(name)
        rows[name] = {
            "malleable": policy.malleable,
            "parameters": ", ".join(f"{key}={value}" for key, value in registry.parameters(policy).items()),
            "summary": (inspect.getdoc(policy) or "").partition("\n")[0],
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("policy")


def _loaded(run: AnyRun) -> orchestrator.Run:
    return Run.load(run) if isinstance(run, Path | str) else run
