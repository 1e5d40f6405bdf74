"""The command `tracebed`. A command's module is imported only when it is called: --help stays fast."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from keyword import iskeyword
from typing import Any

import click

from tracebed.cli import messages
from tracebed.cli.groups import LazyGroup, common_options
from tracebed.cli.messages import MessageLevel, Messages, emit, one_line
from tracebed.ground.errors import ExitCode, TracebedError, print_traceback

CLI = "tracebed.cli"

# command -> (module, one line of help); the order is that of the work.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (f"{CLI}.demo", "Run all steps, from a model to a verdict, on this machine."),
    "generate": (f"{CLI}.generate", "Draw a workload from a model."),
    "convert": (f"{CLI}.workloads", "Convert a log or workload from one format to another."),
    "clean": (f"{CLI}.clean", "Clean a raw log by a recipe, with an audit of each step."),
    "describe": (f"{CLI}.describe", "Print and plot the statistics of a workload."),
    "scale": (f"{CLI}.workloads", "Map a workload onto fewer nodes, cut a window, compress times."),
    "malleable": (f"{CLI}.workloads", "Turn a share of the rigid jobs into malleable ones."),
    "nodes": (f"{CLI}.nodes", "Prepare, check, measure and take down nodes of an inventory."),
    "simulate": (f"{CLI}.simulate", "Simulate a workload under a policy, in virtual time."),
    "whatif": (f"{CLI}.whatif", "Predict what a changed slurm.conf does to the waits of a log, and how sure that is."),
    "forecast": (f"{CLI}.forecast", "Forecast when the waiting jobs of a Slurm cluster start."),
    "experiment": (
        f"{CLI}.experiments.command",
        "Run the cells of an experiment: simulated or replayed, with tables and plots.",
    ),
    "replay": (f"{CLI}.runs", "Run a workload under a policy on a testbed, as real processes."),
    "watch": (f"{CLI}.watch", "Show a replay while it runs: queue, nodes, health, time left."),
    "import": (f"{CLI}.imports", "Make a run of another simulator's output, or of a real log."),
    "metrics": (f"{CLI}.metrics", "Print the metrics of runs: waits, slowdowns, utilization, noise."),
    "compare": (f"{CLI}.compare", "Compare predictions with real runs of one case: verdict, report."),
    "validate": (f"{CLI}.validate", "Replay and predict the cells of an experiment: a verdict on each simulator."),
    "explain": (f"{CLI}.explain", "Explain the error of a prediction: the share of each cause."),
    "export": (f"{CLI}.export", "Write a run for another program: Perfetto, evalys, SWF, CSV."),
}

GROUPS = {
    "First steps": ("demo",),
    "Workloads": ("generate", "convert", "clean", "describe", "scale", "malleable"),
    "Runs": ("simulate", "whatif", "forecast", "replay", "watch", "import", "export"),
    "Judging": ("metrics", "compare", "validate", "explain"),
    "Testbeds": ("nodes",),
    "Experiments and papers": ("experiment",),
}
"""Title of a group in `--help` -> its commands."""


class Commands(LazyGroup):
    """The commands of `COMMANDS`."""

    def summaries(self) -> dict[str, str]:
        """Return one line of help for each command."""
        return {name: text for name, (_, text) in COMMANDS.items()}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in their groups, without importing them."""
        width = max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", COMMANDS[name][1]) for name in names])

    def load(self, name: str) -> click.Command:
        """Import the module of a command and return the command."""
        command: click.Command = getattr(
            importlib.import_module(COMMANDS[name][0]), f"{name}_" if iskeyword(name) else name
        )
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A closed pipe has its own exit status, because click would exit with 1 (`inaccurate`)."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise click.exceptions.Exit(ExitCode.BROKEN_PIPE) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(None, "-V", "--version", package_name="tracebed", prog_name="tracebed")
@common_options
def tracebed() -> None:
    """Checks HPC scheduling simulators against reality.

    A workload goes in, a run comes out (real or predicted), and two runs are compared.

    \b
    Exit status: 0 done (of compare: accurate), 1 inaccurate, 2 usage or bad input,
    3 inconclusive, 4 unhealthy testbed, 70 internal error of tracebed, 130 interrupted.

    \b
    Example:
      tracebed demo
    """


def main() -> None:
    """Run the command of `sys.argv` and exit. An error that a user or the machine can cause is printed as one line."""
    import warnings

    # The threads of OpenBLAS compute for 15 to 50 ms when NumPy is imported, and no command multiplies large matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(100_000, 20, 50)  # commands make few cycles, and a search among a million nodes takes a second
    atexit.register(gc.freeze)  # the end of the process frees all objects: a last search for cycles takes 0.1 s
    messages.ready_streams()
    chosen = Messages()
    messages.use(chosen)
    warnings.showwarning = messages.show_warning
    warnings.simplefilter("default")
    status = _status(chosen)
    chosen.log(MessageLevel.DETAIL, f"exit status {status}")
    messages.use(Messages())
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries again at its end
    sys.exit(status)


def _status(chosen: Messages) -> int:
    """Run the command of `sys.argv`, print its error, if there is one, and return the exit status."""
    try:
        return _called(chosen)
    except click.ClickException as error:
        error.show()
        chosen.log(MessageLevel.ERROR, error.format_message())
        return ExitCode.USAGE
    except TracebedError as error:
        if error.__cause__ is not None and chosen.verbose:
            print_traceback(error.__cause__)
        return _failed(error.exit_code, one_line(error))
    except (click.Abort, KeyboardInterrupt):
        return _failed(ExitCode.INTERRUPTED, "interrupted")
    except OSError as error:  # one that no command expected: the disk of our own output is full, a name is too long
        place = f"{error.filename}: " if error.filename else ""
        return _failed(ExitCode.USAGE, f"{one_line(place)}{error.strerror or error}")
    except MemoryError as error:
        reason = f": {error}" if str(error) else ""
        return _failed(ExitCode.USAGE, f"out of memory{reason} (use fewer jobs or nodes, or a larger machine)")
    except Exception as error:  # noqa: BLE001 - status 1, which Python would exit with, means inaccurate
        from tracebed.cli import crash

        return _failed(ExitCode.INTERNAL, crash.report(error, shown=chosen.verbose))


def _called(chosen: Messages) -> int:
    """Run the command of `sys.argv`. An error in the code of an extension is one of the extension."""
    try:
        return int(tracebed.main(standalone_mode=False, obj=chosen) or ExitCode.OK)
    except (click.ClickException, click.Abort, TracebedError):
        raise
    except (Exception, SystemExit) as error:
        from tracebed.ground.extension_errors import extension_error

        if (found := extension_error(error)) is None:
            raise
        raise found from error


def _failed(status: ExitCode, message: str) -> ExitCode:
    emit(f"tracebed: {message}", MessageLevel.ERROR)
    return status
