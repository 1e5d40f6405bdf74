"""`tracebed simulate`: predictions of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.console import load_workload
from tracebed.cli.messages import progress
from tracebed.cli.options import (
    DURATION,
    LATER,
    PREDICTION,
    SIZE,
    ExtensionName,
    ExtensionOption,
    OutputPath,
    inventory_option,
    json_option,
    output_option,
    workload_argument,
)
from tracebed.cli.policy_options import parsed
from tracebed.cli.runs import end_on_signals, summary
from tracebed.cli.setup_options import OF_PREDICTIONS, settings_of, setup_options
from tracebed.errors import InputError

if TYPE_CHECKING:
    from tracebed.api import Run, Workload
    from tracebed.api.types import AnyCalibration, Communication, EngineChoice


@click.command()
@workload_argument
@setup_options(OF_PREDICTIONS)
@inventory_option(required=False)
@click.option("--nodes", type=SIZE, help="Number of nodes, in place of an inventory.")
@click.option("--cores-per-node", type=SIZE, help="Cores of each node.  [default: the workload's system]")
@click.option(
    "--engine",
    type=click.Choice(["auto", "compiled", "python"]),
    default="auto",
    show_default=True,
    help="Simulator. auto uses the compiled one where it can; the results are the same.",
)
@click.option(
    "--cloud", is_flag=True, help="Print the range of each gated metric over the cloud of a fitted --calibration."
)
@click.option(
    "--processes",
    type=click.Choice(["asynchronous", "synchronous"]),
    help="Simulate jobs as processes and messages on the grid, with this communication.  [default: run times]",
)
@click.option(
    "--processes-seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the programs of processes.",
)
@click.option(
    "--processes-option",
    "processes_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a constant of the programs or another choice of --processes (message=0.2, waits=yes); may be repeated.",
)
@click.option(
    "--with",
    "simulator",
    cls=ExtensionOption,
    type=ExtensionName("tracebed.simulators"),
    metavar="NAME",
    help="Simulator of another project that simulates the jobs: {names}.  [default: tracebed's]",
)
@click.option(
    "--shake",
    type=click.IntRange(2, 10_000),
    metavar="N",
    help="Simulate N times more with small random changes of the workload, and print the interval of each metric.",
)
@click.option(
    "--shake-submit",
    type=DURATION,
    default=10.0,
    show_default=True,
    metavar="S",
    help="Largest move of a submission. 0 changes only the order of jobs that are submitted at once.",
)
@click.option(
    "--shake-limits",
    type=DURATION,
    default=60.0,
    show_default=True,
    metavar="S",
    help="Largest time to a multiple of which all limits are rounded up. 0 leaves them as they are.",
)
@click.option("--timeout", type=DURATION, metavar="S", help="Time limit of that simulator.  [default: 1h]")
@click.option(
    "--keep", type=OutputPath(LATER), metavar="FOLDER", help="Keep the files of that simulator in this folder."
)
@click.option("--program", metavar="FILE", help="Program of that simulator.")
@output_option("Folder of the run.", PREDICTION)
@json_option
def simulate(
    workload: Path,
    inventory: Path | None,
    nodes: int | None,
    cores_per_node: int | None,
    engine: EngineChoice,
    cloud: bool,
    processes: Communication | None,
    processes_seed: int,
    processes_options: Sequence[str],
    simulator: str | None,
    shake: int | None,
    shake_submit: float,
    shake_limits: float,
    timeout: float | None,
    keep: Path | None,
    program: str | None,
    output: Path,
    replace: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Simulate WORKLOAD under a policy, in virtual time.

    The nodes are those of --inventory or --nodes, by default those of the workload's system. The same input gives
    the same bytes.

    --with runs the simulator of another project in place of tracebed's. ElastiSim simulates the jobs, and the policy
    of tracebed decides.

    --shake shows how much of a figure is accident. `tracebed metrics` then prints the intervals of several runs side by
    side.

    \b
    Example:
      tracebed simulate w.parquet --policy easy --nodes 64 --cores-per-node 48 -o runs/sim
    """
    import tracebed.api as tb

    if simulator is None and (timeout is not None or keep or program):
        raise InputError("--timeout, --keep and --program are for the simulator of another project", hint="give --with")
    if simulator is not None:
        end_on_signals()
    if inventory and (nodes or cores_per_node):
        raise InputError("both --inventory and a size are given", hint="give one of them")
    calibration: Path | None = values["calibration"]
    if cloud and (calibration is None or as_json):
        raise InputError("--cloud prints a table for a --calibration", hint="give --calibration FILE, and not --json")
    members: Sequence[AnyCalibration] = ()
    if cloud and calibration:
        from tracebed.cli.fitting import cloud_of, show_cloud

        members = cloud_of(calibration)
    jobs = load_workload(workload)
    settings = settings_of(values, nodes=nodes or jobs.provenance.system.nodes)
    external: dict[str, Any] = {}
    if simulator is not None:
        program_options = {"program": program} if program else {}
        external = {"timeout_s": timeout, "keep": keep, "replace": replace, "simulator_options": program_options}

    def predict(
        made: AnyCalibration | None, on_progress: Callable[[int], None] | None = None, of: Workload = jobs
    ) -> Run:
        return tb.simulate(
            of,
            settings["policy"],
            inventory or nodes,
            cores_per_node=cores_per_node,
            engine=engine,
            simulator=simulator or "tracebed",
            processes=processes,
            processes_seed=processes_seed,
            processes_options=parsed(processes_options),
            name=workload.name,
            on_progress=on_progress,
            **{name: value for name, value in settings.items() if name not in ("policy", "calibration")},
            **external,
            calibration=made,
        )

    with progress(f"simulating {settings['policy']}", total=len(jobs)) as bar:
        run = predict(calibration, bar.update)
    run.save(output, replace=replace)
    if not as_json:
        summary(run, output, False)
    if members:
        show_cloud(run, (predict(member) for member in members))
    more: dict[str, Any] = {}
    if shake:
        from tracebed.api.measures import intervals
        from tracebed.cli.shaking import shaken_runs, show_shaken

        seeds = range(1, shake + 1)
        inputs = (tb.shake(jobs, seed, submit_s=shake_submit, limit_s=shake_limits) for seed in seeds)
        runs = ((changed, predict(calibration, of=changed)) for changed in inputs)
        found = shaken_runs(output, runs, shake)
        largest = {"submit_s": shake_submit, "limit_s": shake_limits}
        more = {"shaken": {"runs": shake, **largest, "metrics": intervals(found).to_dict("index")}}
        if not as_json:
            show_shaken(run, output, found)
    if as_json:
        summary(run, output, True, more)
