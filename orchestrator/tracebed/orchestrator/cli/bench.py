"""`tracebed bench`: a benchmark as a program of its own."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tracebed.cpus import format_cpus, parse_cpus
from tracebed.errors import TestbedError
from tracebed.orchestrator.cli.console import print_json
from tracebed.orchestrator.cli.groups import LazyGroup
from tracebed.orchestrator.cli.options import Command, json_option

if TYPE_CHECKING:
    from tracebed.benchmarks.standalone.stream import StreamResult

COMMANDS = {
    "stream": "Measure the memory bandwidth with the four kernels of STREAM.",
}
COUNT = click.IntRange(1, 2**40)
MIB = 2**20


class Bench(LazyGroup):
    """The commands of `COMMANDS`."""

    def summaries(self) -> dict[str, str]:
        """Return one line of help for each command."""
        return COMMANDS

    def load(self, name: str) -> click.Command:
        """Return the command `name`."""
        return {"stream": stream}[name]


@click.group(cls=Bench)
def bench() -> None:
    """Run a benchmark by hand, and print what the original benchmark prints.

    Jobs of replays run the same kernels. With a table of CPUs (TRACEBED_DROM_TABLE), the benchmarks are malleable.

    \b
    Example:
      tracebed bench stream
    """


def cpus_option(command: Command) -> Command:
    """`--cpus LIST`: the CPUs of the threads."""
    return click.option("--cpus", metavar="LIST", help="CPUs of the threads (0-3,7). Default: all CPUs.")(command)


@click.command()
@click.option("--elements", type=COUNT, help="Elements of an array. Default: four times the last-level cache.")
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
def stream(elements: int | None, threads: int | None, cpus: str | None, repetitions: int, as_json: bool) -> None:
    """Measure the memory bandwidth with the four kernels of STREAM: copy, scale, add, triad.

    Sizes, repetitions and the validation follow STREAM 5.10. Each thread is bound to a CPU.

    \b
    Example:
      tracebed bench stream --threads 1
    """
    from tracebed.benchmarks.standalone.stream import LABEL, TOLERANCE, run

    result = run(elements, threads=threads, cpus=None if cpus is None else parse_cpus(cpus), repetitions=repetitions)
    if as_json:
        _print_stream_json(result, LABEL)
    else:
        _print_stream(result, LABEL)
    if not result.valid:
        errors = ", ".join(f"{name} {error:.2g}" for name, error in zip("abc", result.errors, strict=True))
        what = f"the arrays have wrong values: average relative errors {errors}, at most {TOLERANCE:g} is valid"
        raise TestbedError(what, hint="check the memory of this machine")
    if not as_json:
        click.echo(f"Solution validates: average error of each array below {TOLERANCE:g}.")


def _print_stream(result: StreamResult, label: str) -> None:
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


def _print_stream_json(result: StreamResult, label: str) -> None:
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
