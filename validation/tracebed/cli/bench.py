"""`tracebed nodes bench`: a benchmark as a program of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

import tracebed.api as tb
from tracebed.cli.console import print_json, print_table
from tracebed.cli.groups import LazyGroup
from tracebed.cli.messages import emit, progress
from tracebed.cli.options import Command, Number, Numbers, json_option, set_option, settings_from
from tracebed.ground.cpus import format_cpus, parse_cpus
from tracebed.ground.errors import TestbedError

ALIGNER_SETTINGS: Mapping[str, click.ParamType[Any]] = {
    "workers": click.IntRange(1, 64),
    "reads": click.IntRange(1, 10**12),
    "pairs": click.IntRange(1, 1000),
    "chunks": click.IntRange(1, 10**6),
}
ALIGNER_HELP = """\b
Settings and their defaults:
  workers=1: Number of workers. The writer, and the manager of the malleable
    version, are processes of their own.
  reads=400000: Number of reads, each a unit of PILS.
  pairs=5: Number of pairs of runs.
  chunks=1: Chunks of the malleable version for each worker.
"""


@click.command(epilog=ALIGNER_HELP)
@set_option("Set a value (listed below)")
@json_option
def aligner(settings: tuple[str, ...], as_json: bool) -> None:
    """Run the original and the malleable aligner over MPI in pairs, and print what malleability costs.

    The aligner stands for HPG-aligner. No run is resized. Both versions must have the same checksum. The CPU time is
    that of the workers.

    \b
    Example:
      tracebed nodes bench aligner --set workers=1 --set pairs=10
    """
    given = {"workers": 1, "reads": 400_000, "pairs": 5, "chunks": 1} | settings_from(settings, ALIGNER_SETTINGS)
    with progress("running the aligner"):
        result = tb.aligner(**given)
    if as_json:
        pairs = [{"original": asdict(before), "malleable": asdict(after)} for before, after in result.pairs]
        fields = {**given, "wall_overhead": result.wall._asdict(), "cpu_overhead": result.cpu._asdict()}
        print_json("tracebed-bench-aligner/1", fields | {"pairs": pairs})
        return
    rows = [
        (str(number), *(f"{value:.3f}" for run in pair for value in (run.seconds, run.cpu_s)))
        for number, pair in enumerate(result.pairs, 1)
    ]
    print_table(["pair", "original, s", "CPU time, s", "malleable, s", "CPU time, s"], rows)
    click.echo("\nMalleable against original, medians (middle half of the pairs):")
    for name, ratio in (("time", result.wall), ("CPU time of the workers", result.cpu)):
        click.echo(f"{name}: {ratio.medians:+.2%} ({ratio.low:+.2%} to {ratio.high:+.2%})")
    click.echo(f"Checksum of all runs: {result.pairs[0][0].checksum}")


UNITS = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}


class Mib(Number):
    """A click type: a size such as `8MiB`, in MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse, or fail as click does."""
        unit = next((unit for unit in UNITS if str(value).endswith(unit)), "")
        return UNITS.get(unit, 1.0) * super().convert(str(value).removesuffix(unit), param, ctx)


RESIZES: Mapping[str, click.ParamType[Any]] = {
    "through": click.Choice(["connections", "mpi"]),
    "sizes": Numbers(64),
    "state": Mib(0, 2.0**20),
}
RESIZES_HELP = """\b
Settings and their defaults:
  through=connections: Way in which ranks start and state moves: the connections
    of replays, or mpi (extra mpi).
  sizes=1,2,4,2: Number of ranks at the start, then after each change.
  state=8MiB: Size of the state that moves.
"""


@click.command(epilog=RESIZES_HELP)
@set_option("Set a value (listed below)")
@json_option
def reconfigure(settings: tuple[str, ...], as_json: bool) -> None:
    """Change the number of ranks of a job on this machine, and print how long each stage takes.

    The stages are decision, spawn, redistribution of the state, and termination. A plain spawn is a new start of the
    same number of ranks.

    \b
    Example:
      tracebed nodes bench reconfigure --set sizes=1,2,4,2 --set state=8MiB
    """
    given = {"through": "connections", "sizes": [1, 2, 4, 2], "state": 8.0} | settings_from(settings, RESIZES)
    through: tb.Transport = given["through"]
    with progress("measuring the stages"):
        stages, library = tb.reconfigure(given["sizes"], given["state"], through=through)
    if as_json:
        changes = [change._asdict() | {"total_s": change.total_s, "ratio": change.ratio} for change in stages]
        print_json("tracebed-bench-reconfigure/1", {"through": through, "library": library, "changes": changes})
        return
    if library:
        emit(library)
    click.echo(tb.stages_table(stages), nl=False)


COMMANDS = {
    "aligner": "Run the malleable aligner over MPI beside the original one.",
    "pils": "Do compute-bound work in ranks with different loads, as BSC's PILS.",
    "reconfigure": "Measure the stages of changes of the number of ranks, through connections or MPI.",
    "stream": "Measure the memory bandwidth with the four kernels of STREAM.",
}
COUNT = click.IntRange(1, 2**40)
MIB = 2**20
PILS: Mapping[str, click.ParamType[Any]] = {
    "loads": Numbers(10**15),
    "grain": Number(0, 1, min_open=True),
    "iterations": click.IntRange(1, 10**7),
    "task_us": Number(0.1, 1e9),
    "units": COUNT,
    "ranks": click.IntRange(1, 4096),
}
PILS_HELP = """\b
Settings and their defaults:
  loads=250: Tasks of each rank in an iteration (100,250), repeated over the
    ranks.
  grain=1: Part of the tasks of a thread that the thread takes at once.
  iterations=10: Number of iterations.
  task_us=500: CPU time of a task, us. The work of a task is calibrated.
  units=: Units of work of a task, in place of task_us.
  ranks=1: Number of processes.
"""


class Bench(LazyGroup):
    """The commands of `COMMANDS`."""

    def summaries(self) -> dict[str, str]:
        """Return one line of help for each command."""
        return COMMANDS

    def load(self, name: str) -> click.Command:
        """Return the command `name`."""
        return {"aligner": aligner, "pils": pils, "reconfigure": reconfigure, "stream": stream}[name]


@click.group(cls=Bench)
def bench() -> None:
    """Run a benchmark by hand, and print what the original benchmark prints.

    Jobs of replays run the same kernels. With a table of CPUs (TRACEBED_DROM_TABLE), the benchmarks are malleable.

    \b
    Example:
      tracebed nodes bench stream
      tracebed nodes bench pils --set ranks=2 --set loads=100,250 --threads 1
    """


def cpus_option(command: Command) -> Command:
    """`--cpus LIST`: the CPUs of the threads."""
    return click.option("--cpus", metavar="LIST", help="CPUs of the threads (0-3,7). Default: all CPUs.")(command)


@click.command()
@set_option("Set elements, the size of an array. Default: four times the last-level cache")
@click.option("--threads", type=COUNT, help="Number of threads. Default: one for each CPU.")
@cpus_option
@click.option(
    "--repetitions",
    type=click.IntRange(2, 250),
    default=10,
    show_default=True,
    help="Number of runs of each kernel. The first one does not count.",
)
@json_option
def stream(settings: tuple[str, ...], threads: int | None, cpus: str | None, repetitions: int, as_json: bool) -> None:
    """Measure the memory bandwidth with the four kernels of STREAM: copy, scale, add, triad.

    Sizes, repetitions and the validation follow STREAM 5.10. Each thread is bound to a CPU.

    \b
    Example:
      tracebed nodes bench stream --threads 1
    """
    elements = settings_from(settings, {"elements": COUNT}).get("elements")
    result = tb.stream(
        elements, threads=threads, cpus=None if cpus is None else parse_cpus(cpus), repetitions=repetitions
    )
    if as_json:
        _print_stream_json(result, tb.STREAM_LABEL)
    else:
        _print_stream(result, tb.STREAM_LABEL)
    if not result.valid:
        errors = ", ".join(f"{name} {error:.2g}" for name, error in zip("abc", result.errors, strict=True))
        what = (
            f"the arrays have wrong values: average relative errors {errors}, at most {tb.STREAM_TOLERANCE:g} is valid"
        )
        raise TestbedError(what, hint="check the memory of this machine")
    if not as_json:
        click.echo(f"Solution validates: average error of each array below {tb.STREAM_TOLERANCE:g}.")


def _print_stream(result: tb.StreamResult, label: str) -> None:
    """Print the tables, one for each number of threads."""
    cache = "unknown" if result.cache_bytes is None else f"{result.cache_bytes / MIB:.1f} MiB"
    size_mib = result.elements * 8 / MIB
    click.echo(f"STREAM ({label}), {'C' if result.kernel == 'c' else 'NumPy'} kernels")
    click.echo(f"Array size: {result.elements:,} elements, {size_mib:.1f} MiB; {3 * size_mib:.1f} MiB in all")
    click.echo(f"Last-level cache: {cache}; an array should have at least four times its size")
    click.echo(f"Each kernel runs {len(result.repetitions)} times; the first time does not count.")
    for threads in result.threads():
        used = sorted(
            {cpu for repetition in result.repetitions for cpu in repetition.cpus if len(repetition.cpus) == threads}
        )
        click.echo(f"\nThreads: {threads}, on CPUs {format_cpus(used)}")
        click.echo("Function    Best Rate MB/s  Avg time     Min time     Max time")
        for row in result.table(threads):
            name = f"{row.function.name.capitalize()}:"
            times = "  ".join(f"{seconds:11.6f}" for seconds in (row.average_s, row.least_s, row.most_s))
            click.echo(f"{name:<12}{row.mb_per_s:12.1f}  {times}")


def _print_stream_json(result: tb.StreamResult, label: str) -> None:
    tables = {
        str(threads): [asdict(row) | {"function": row.function.name.lower()} for row in result.table(threads)]
        for threads in result.threads()
    }
    repetitions = [
        {"cpus": list(repetition.cpus), "seconds": list(repetition.seconds)} for repetition in result.repetitions
    ]
    fields = {"label": label, "kernel": result.kernel, "elements": result.elements, "cache_bytes": result.cache_bytes}
    fields |= {"large_enough": result.large_enough, "valid": result.valid, "errors": list(result.errors)}
    print_json("tracebed-bench-stream/1", fields | {"by_threads": tables, "repetitions": repetitions})


@click.command(epilog=PILS_HELP)
@set_option("Set a value (listed below)")
@click.option("--threads", type=COUNT, help="Threads of a rank. Default: all CPUs, divided by the ranks.")
@cpus_option
@json_option
def pils(settings: tuple[str, ...], threads: int | None, cpus: str | None, as_json: bool) -> None:
    """Do compute-bound work in ranks with different loads, as BSC's PILS.

    In each iteration, each rank does its tasks on its threads. A barrier and a reduction end the iteration. A task is a
    fixed amount of work. Each thread is bound to a CPU.

    \b
    Example:
      tracebed nodes bench pils --set ranks=2 --set loads=100,250 --threads 1
    """
    given = settings_from(settings, PILS)
    if "task_us" in given:
        given["task_s"] = given.pop("task_us") / 1e6
    result = tb.pils(**given, threads=threads, cpus=None if cpus is None else parse_cpus(cpus))
    if as_json:
        _print_pils_json(result)
    else:
        _print_pils(result)


def _print_pils(result: tb.PilsResult) -> None:
    work, kernel = result.work, "C" if result.kernel == "c" else "NumPy"
    click.echo(
        f"PILS (after the benchmark of BSC), {kernel} kernel: {work.iterations:,} iterations, "
        f"tasks of {work.units:,} units, grain {work.grain:g}\n"
    )
    rows = [
        (
            str(number),
            f"{rank.load:,}",
            " ".join(dict.fromkeys(map(format_cpus, rank.cpus))),
            f"{sum(rank.compute_s):.4f}",
            f"{rank.wait_s:.4f}",
            f"{rank.cpu_s:.4f}",
        )
        for number, rank in enumerate(result.ranks)
    ]
    print_table(["rank", "tasks", "CPUs", "computing, s", "waiting, s", "CPU time, s"], rows)
    times = result.ranks[0].iteration_s
    mean_s = sum(times) / len(times)
    click.echo(f"\nIteration: mean {mean_s:.6f} s, min {min(times):.6f} s, max {max(times):.6f} s")
    click.echo(f"Load balance: {result.load_balance:.3f}")
    click.echo(f"Parallel efficiency: {result.efficiency:.3f}")
    click.echo(f"Checksum: {result.checksum:016x}")
    click.echo(f"Application time: {result.seconds:.4f} s")


def _print_pils_json(result: tb.PilsResult) -> None:
    ranks = [asdict(rank) | {"checksum": f"{rank.checksum:016x}"} for rank in result.ranks]
    fields = {"kernel": result.kernel, **asdict(result.work), "application_s": result.seconds, "ranks": ranks}
    fields |= {"load_balance": result.load_balance, "efficiency": result.efficiency}
    print_json("tracebed-bench-pils/1", fields | {"checksum": f"{result.checksum:016x}"})
