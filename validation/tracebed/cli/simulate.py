"""`tracebed simulate`: predictions of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import tracebed.api as tb
from tracebed.cli.console import end_on_signals, load_workload, print_table
from tracebed.cli.groups import Sectioned
from tracebed.cli.messages import emit, progress
from tracebed.cli.options import (
    DURATION,
    LATER,
    PREDICTION,
    SIZE,
    ExtensionFamily,
    ExtensionOption,
    Family,
    OutputPath,
    gathered,
    inventory_option,
    json_option,
    names_in,
    option,
    outages_option,
    output_option,
    shared,
    workload_argument,
)
from tracebed.cli.run_summary import saved, summary
from tracebed.cli.setup_options import OF_PREDICTIONS, OF_TIMING, SECTION, settings_of, setup_options
from tracebed.ground.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class MachineOptions:
    """The machine of a simulation."""

    inventory: Path | None = shared(inventory_option())
    machine: tuple[Path, ...] = option(
        help="File that describes the machine, in place of an inventory or a size: a slurm.conf (with more files of "
        "Slurm by further --machine), an inventory, a platform of ElastiSim, a workload, or YAML."
    )
    nodes: int | None = option(type=SIZE, help="Number of nodes, in place of an inventory.")
    cores_per_node: int | None = option(type=SIZE, help="Cores of each node.  [default: the workload's system]")

    @property
    def given(self) -> Path | int | tb.Machine | None:
        """The machine, or its number of nodes. Raises InputError if two are given."""
        if self.inventory and (self.nodes or self.cores_per_node):
            raise InputError("both --inventory and a size are given", hint="give one of them")
        if not self.machine:
            return self.inventory or self.nodes
        if self.inventory or self.nodes or self.cores_per_node:
            raise InputError("both --machine and another machine are given", hint="give one of them")
        return tb.read_machine(*self.machine)


@dataclass(frozen=True)
class Model:
    """What a simulation models besides its setup."""

    cloud: bool = option(help="Print the range of each gated metric over the cloud of a fitted --calibration.")
    processes: tuple[str, dict[str, str]] | None = option(
        type=Family(click.Choice(["asynchronous", "synchronous"])),
        metavar="COMMUNICATION[,NAME=VALUE,...]",
        help="Simulate jobs as processes and messages on the grid, with asynchronous or synchronous communication. "
        "NAME is seed, a constant of the programs or another choice: asynchronous,message=0.2,waits=yes.  "
        "[default: run times]",
    )


@dataclass(frozen=True)
class OutageOptions:
    """The outages of the nodes."""

    outages: Any = shared(outages_option)
    on_node_failure: tuple[str, dict[str, float]] = option(
        type=Family(click.Choice(["requeue", "fail", "shrink"]), {"checkpoint": DURATION, "cost": DURATION}),
        default="requeue",
        metavar="requeue|shrink[,checkpoint=D[,cost=D]]|fail",
        help="Treatment of the jobs of a node that is down: return them to the queue, fail them, or shrink malleable "
        "ones off the node. A requeued job begins again, or continues from its last checkpoint: checkpoint is the work "
        "between two of them, cost the time to write one (0).",
    )

    @property
    def keywords(self) -> dict[str, Any]:
        """The options, as `tracebed.api.simulate` takes them."""
        treatment, given = self.on_node_failure
        every, cost = given.get("checkpoint", 0.0), given.get("cost", 0.0)
        found = {"outages": self.outages, "on_node_failure": treatment}
        return found | {"checkpoint_s": every, "checkpoint_cost_s": cost}


@dataclass(frozen=True)
class Simulations:
    """The simulator, and how often it simulates."""

    engine: Literal["auto", "compiled", "python"] = option(
        default="auto", help="Simulator. auto uses the compiled one where it can; the results are the same."
    )
    simulator: tuple[str, dict[str, Any]] | None = option(
        "--with",
        cls=ExtensionOption,
        type=ExtensionFamily(
            "tracebed.executors",
            {"timeout": DURATION, "keep": OutputPath(LATER)},
            without=("simulator", "replay", "batch"),  # the default, and what predicts nothing
        ),
        metavar="NAME[,NAME=VALUE,...]",
        help="Executor that simulates the jobs, such as the simulator of another project: {names}. Of such a "
        "simulator, timeout is its time limit (1h), keep a folder for its files, program its program; other names are "
        "options of the executor.  [default: tracebed's]",
    )
    repetitions: int | None = option(
        type=click.IntRange(2, 10_000),
        metavar="N",
        help="Simulate N times more with delays drawn from the distributions of --calibration, write these runs to the "
        "folder ensemble in the output, and print the interval of each gated metric and the courses of the schedule.",
    )
    perturb: tuple[int, dict[str, float]] | None = option(
        type=Family(click.IntRange(2, 10_000), {"submit": DURATION, "limits": DURATION}),
        metavar="N[,submit=S][,limits=S]",
        help="Simulate N times more with small random changes of the workload, and print the interval of each metric. "
        "submit is the largest move of a submission (10 s; 0 changes only the order of jobs that are submitted at "
        "once), limits the largest time to a multiple of which all limits are rounded up (60 s; 0 leaves them as they "
        "are).",
    )


@click.command(
    cls=Sectioned,
    sections={
        "Scheduling": SECTION,
        "Model of time": (*OF_TIMING, *names_in(Model)),
        "Outages": OutageOptions,
        "Simulator and repetitions": Simulations,
    },
)
@workload_argument
@setup_options(OF_PREDICTIONS)
@gathered("machine", MachineOptions)
@gathered("model", Model)
@gathered("outages", OutageOptions)
@gathered("simulations", Simulations)
@output_option("Folder of the run.", PREDICTION)
@json_option
def simulate(
    workload: Path,
    settings: dict[str, Any],
    machine: MachineOptions,
    model: Model,
    outages: OutageOptions,
    simulations: Simulations,
    output: Path,
    replace: bool,
    as_json: bool,
) -> None:
    """Simulate WORKLOAD under a policy, in virtual time.

    The nodes are those of --machine, --inventory or --nodes, by default those of the workload's system. The same input
    gives the same bytes.

    --with runs the simulator of another project in place of tracebed's. ElastiSim simulates the jobs, and the policy
    of tracebed decides.

    --outages lets nodes fail. A job on such a node begins again, by default, and its work is lost.

    --repetitions shows how much the figures depend on milliseconds: where a race of jobs decides, the schedule may take
    one of several courses. `tracebed compare --predicted OUTPUT/ensemble` compares all of its runs with real ones.

    --perturb shows how much the figures depend on small random changes of the workload. `tracebed metrics` then prints
    the intervals of several runs side by side.

    \b
    Example:
      tracebed simulate w.parquet --policy easy --nodes 64 -o runs/sim
    """
    if simulations.simulator is not None:
        end_on_signals()
    chosen = machine.given
    calibration: Path | None = settings["calibration"]
    if model.cloud and (calibration is None or as_json):
        raise InputError("--cloud prints a table for a --calibration", hint="give --calibration FILE, and not --json")
    ensemble, perturb = simulations.repetitions or 0, simulations.perturb
    members: Sequence[tb.AnyCalibration] = ()
    if model.cloud and calibration:
        members = cloud_of(calibration)
    jobs = load_workload(workload, equal_nodes=False)  # the api warns, if the machine has equal nodes
    known = len(chosen.nodes) if isinstance(chosen, tb.Machine) else chosen if isinstance(chosen, int) else None
    known = known or jobs.provenance.system.nodes
    settings = settings_of(settings, nodes=known, plain=not (known or chosen))
    policy = settings.pop("policy")
    if (of_conf := settings.pop("machine", None)) is not None:
        if isinstance(chosen, int):
            of_conf.check_size(chosen)
        elif chosen is not None:
            raise InputError("both -P @slurm.conf and another machine are given", hint="give one of them")
        chosen = of_conf
    settings |= outages.keywords | _of_processes(model.processes) | _of_simulator(simulations.simulator, replace)
    settings |= {"cores_per_node": machine.cores_per_node, "engine": simulations.engine, "name": workload.name}

    def predict(made: tb.AnyCalibration | None, of: tb.Workload = jobs, **more: Any) -> tb.Run:
        quiet = {"on_progress": lambda done: None}  # the command shows its own progress
        return tb.simulate(of, policy, chosen, **settings | quiet | {"calibration": made} | more)

    with progress(f"simulating {policy}", total=len(jobs)) as bar, ThreadPoolExecutor(1) as thread:
        later: list[Callable[[], Any]] = [tb.metric_definitions]

        def update(done: int) -> None:
            if later:  # now that the compiled engine computes, which does not need Python's lock
                thread.submit(later.pop())
            bar.update(done)

        run = predict(calibration, on_progress=update)
    drawn = (predict(calibration, member=seed) for seed in range(ensemble))
    first = [*islice(drawn, 1)]  # a calibration without distributions is refused before the run is written
    shown = saved(run, output, replace=replace)
    if not as_json:
        summary(run, output, False, shown=shown)
    if members:
        show_cloud(run, (predict(member) for member in members))
    more: dict[str, Any] = {}
    if ensemble:
        kept = kept_members(output, chain(first, drawn), ensemble)
        if not as_json:
            show_ensemble(run, output, kept)
    if perturb:
        count, given = perturb
        largest = {"submit_s": given.get("submit", 10.0), "limit_s": given.get("limits", 60.0)}
        inputs = (tb.perturb(jobs, seed, **largest) for seed in range(1, count + 1))
        found = perturbed_runs(output, ((changed, predict(calibration, changed)) for changed in inputs), count)
        more = {"perturbed": {"runs": count, **largest, "metrics": tb.metric_intervals(found).to_dict("index")}}
        if not as_json:
            show_perturbed(run, output, found)
    if as_json:
        summary(run, output, True, more, shown=shown)


def _of_processes(processes: tuple[str, dict[str, str]] | None) -> dict[str, Any]:
    """Return `--processes` as keywords of the api."""
    if processes is None:
        return {}
    communication, options = processes
    seed = options.pop("seed", "0")
    if not seed.isdecimal():
        raise InputError(f"--processes: seed is {seed!r}", hint="give a whole number of at least 0")
    return {"processes": communication, "processes_seed": int(seed), "processes_options": options}


def _of_simulator(simulator: tuple[str, dict[str, Any]] | None, replace: bool) -> dict[str, Any]:
    """Return `--with` as keywords of the api."""
    if simulator is None:
        return {}
    name, options = simulator
    keep = options.get("keep")
    given = {"timeout_s": options.get("timeout"), "keep": keep, "replace": replace if keep else None}
    own = {option: value for option, value in options.items() if option not in ("timeout", "keep")}
    return {"simulator": name, **given, "simulator_options": own}


FOLDER = "ensemble"
"""Folder of the members in the folder of the run."""


def kept_members(output: Path, members: Iterable[tb.Run], count: int) -> list[dict[str, Any]]:
    """Write the `count` members of an ensemble into the folder of their run, and return the metrics of each."""
    found = []
    with progress("simulating the ensemble", total=count) as bar:
        for number, run in enumerate(members, start=1):
            run.save(output / FOLDER / f"run-{number:02d}")
            found.append(run.metrics())
            bar.update(number)
    return found


def show_ensemble(run: tb.Run, output: Path, members: list[dict[str, Any]]) -> None:
    """Print each gated metric of a run with its interval over the ensemble, and the courses of the ensemble."""
    import pandas as pd

    known = tb.metric_definitions()
    gated = [name for name, metric in known.items() if metric.margin is not None and metric.margin.gate]
    _show_intervals(run, "constant delays", "ensemble", pd.DataFrame(members)[gated])
    emit(tb.courses_of(run.info.policy, members))
    emit(f"{output / FOLDER}: {len(members)} runs with drawn delays")


def _show_intervals(run: tb.Run, what: str, others: str, figures: pd.DataFrame) -> None:
    """Print metrics of a run, which is `what`, with their intervals over `others`, a row of `figures` each."""
    own, known = run.metrics(), tb.metric_definitions()
    rows = [[known[name].title, own[name], *row] for name, *row in tb.metric_intervals(figures).itertuples()]
    print_table(["metric", what, "median", f"95 % of the {others}: from", "to"], rows)


def cloud_of(calibration: Path) -> list[tb.Calibration]:
    """Return the calibrations of the cloud of a file. Raises InputError if the calibration has no cloud."""
    members = tb.Calibration.load(calibration).members
    if not members:
        hint = "`tracebed nodes calibrate RUN...` writes calibrations with a cloud"
        raise InputError("the calibration has no cloud", where=str(calibration), hint=hint)
    return members


def show_cloud(run: tb.Run, predicted: Iterable[tb.Run]) -> None:
    """Print the metrics of a prediction with their ranges over those with the sets of a cloud, one in memory."""
    figures = [each.metrics() for each in predicted]
    own = run.metrics()
    rows = []
    for name, metric in tb.metric_definitions().items():
        if metric.margin is not None and metric.margin.gate:
            values = [each[name] for each in figures]
            rows.append((metric.title, own[name], min(values), max(values)))
    print_table(["metric", "prediction", "least", "largest"], rows)
    emit(f"least and largest of {len(figures)} sets of overheads that fit the calibration's runs equally well")


def perturbed_runs(output: Path, runs: Iterable[tuple[tb.Workload, tb.Run]], count: int) -> pd.DataFrame:
    """Keep the metrics of `count` runs with perturbed input in the folder of their run, and return them."""
    with progress("simulating with perturbed input", total=count) as bar:

        def counted() -> Iterator[tuple[tb.Workload, tb.Run]]:
            for number, each in enumerate(runs, start=1):
                yield each
                bar.update(number)

        return tb.keep_perturbed(output, counted())


def show_perturbed(run: tb.Run, output: Path, perturbed: pd.DataFrame) -> None:
    """Print each metric of a run with its interval over the runs with perturbed input."""
    _show_intervals(run, "as it is", "runs", perturbed)
    emit(f"{output / tb.PERTURBED}: {len(perturbed)} runs with perturbed input")
