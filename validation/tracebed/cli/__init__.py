"""The command `tracebed`. A command's module is imported only when it is called: --help stays fast."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli import messages
from tracebed.cli.groups import LazyGroup, common_options
from tracebed.cli.messages import MessageLevel, Messages, emit, one_line
from tracebed.ground.errors import ExitCode, TracebedError, print_traceback
from tracebed.ground.version import others_installed, own_entry_points

if TYPE_CHECKING:
    from tracebed.ground.registry import Registry

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("First steps", "Run all steps, from a model to a verdict, on this machine."),
    "generate": ("Workloads", "Draw a workload from a model."),
    "convert": ("Workloads", "Convert a log or workload from one format to another."),
    "clean": ("Workloads", "Clean a raw log by a recipe, with an audit of each step."),
    "describe": ("Workloads", "Print and plot the statistics of a workload."),
    "scale": ("Workloads", "Map a workload onto fewer nodes, cut a window, compress times."),
    "malleable": ("Workloads", "Turn a share of the rigid jobs into malleable ones."),
    "nodes": ("Testbeds", "Prepare, check, measure and take down nodes of an inventory."),
    "simulate": ("Runs", "Simulate a workload under a policy, in virtual time."),
    "whatif": ("Runs", "Predict what a changed slurm.conf does to the waits of a log, and how sure that is."),
    "forecast": ("Runs", "Forecast when the waiting jobs of a Slurm cluster start."),
    "experiment": (
        "Experiments and papers",
        "Run the cells of an experiment: simulated or replayed, with tables and plots.",
    ),
    "replay": ("Runs", "Run a workload under a policy on a testbed, as real processes."),
    "watch": ("Runs", "Show a replay while it runs: queue, nodes, health, time left."),
    "import": ("Runs", "Make a run of another simulator's output, or of a real log."),
    "metrics": ("Judging", "Print the metrics of runs: waits, slowdowns, utilization, noise."),
    "compare": ("Judging", "Compare predictions with real runs of one case: verdict, report."),
    "validate": ("Judging", "Replay and predict the cells of an experiment: a verdict on each simulator."),
    "explain": ("Judging", "Explain the error of a prediction: the share of each cause."),
    "export": ("Runs", "Write a run for another program: Perfetto, evalys, SWF, CSV."),
}
"""Command of tracebed -> its family and a line of help; the order is that of the work.

The modules of all commands are entry points of the group `tracebed.commands`. Those of other packages have a family of
their own, and the line of help is the first one of their documentation."""
FAMILIES = ("First steps", "Workloads", "Runs", "Judging", "Testbeds", "Experiments and papers")
"""Titles of the families in `--help`."""
OTHERS = "Further commands"
GROUP = "tracebed.commands"


class Commands(LazyGroup):
    """The commands of tracebed and of other packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the work, then those of other packages."""
        return [*COMMANDS, *others()]

    def knows(self, name: str) -> bool:
        """Return whether there is a command of this name."""
        return name in COMMANDS or name in others()

    def summaries(self) -> dict[str, str]:
        """Return one line of help for each command."""
        return {name: text for name, (_, text) in COMMANDS.items()} | others()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in their families, without importing them."""
        width = max(map(len, COMMANDS))
        for title in FAMILIES:
            family = [(f"{name:{width}}", text) for name, (own, text) in COMMANDS.items() if own == title]
            with formatter.section(title):
                formatter.write_dl(family)
        if extensions := others():
            with formatter.section(OTHERS):
                formatter.write_dl([(f"{name:{width}}", text) for name, text in extensions.items()])

    def load(self, name: str) -> click.Command:
        """Import the module of a command and return the command."""
        return _registry().load(name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A closed pipe has its own exit status, because click would exit with 1 (`inaccurate`)."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise click.exceptions.Exit(ExitCode.BROKEN_PIPE) from None


def others() -> dict[str, str]:
    """Return the commands that `COMMANDS` lacks, most of them of other packages, with a line of help for each.

    The commands are not imported. Without them, the help of tracebed needs no `importlib.metadata`.
    """
    if not others_installed(GROUP) and own_entry_points().get(GROUP, {}).keys() <= COMMANDS.keys():
        return {}
    registry = _registry()
    return {name: registry.summary(name) for name in registry.names() if name not in COMMANDS}


def _registry() -> Registry[click.Command]:
    from tracebed.ground.registry import Registry

    return Registry(GROUP, "command", click.Command)


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
        return _failed(ExitCode.INTERNAL, messages.crash_report(error, shown=chosen.verbose))


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
