"""The command `tracebed`. A command's module is imported only when it is called: --help stays fast."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any

import click

from tracebed.errors import ExitCode, TracebedError

CLI = "tracebed.orchestrator.cli"

# command -> (module, one line of help); the order is that of the work.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (f"{CLI}.demo", "The whole way on this machine: draw, scale, replay, simulate, compare, report."),
    "generate": (f"{CLI}.generate", "Draw a workload from a model."),
    "convert": (f"{CLI}.workloads", "Read a log or workload of any known format and write it in another."),
    "clean": (f"{CLI}.clean", "Make a clean workload of a raw log, by a recipe, with an audit."),
    "describe": (f"{CLI}.describe", "Sizes, run times, load and arrivals of a workload: table and plot."),
    "scale": (f"{CLI}.workloads", "Map a workload onto fewer nodes, cut a window, compress its times."),
    "malleable": (f"{CLI}.workloads", "Turn a share of the rigid jobs into malleable ones."),
    "simulate": (f"{CLI}.runs", "Predict a workload under a policy, in virtual time."),
    "sweep": (f"{CLI}.sweep", "Compute a study: a grid of simulations, one table, plots, published figures beside."),
    "replay": (f"{CLI}.runs", "Run a workload under a policy on a testbed, for real."),
    "recover": (f"{CLI}.runs", "Make the run of a replay that was killed from its journal."),
    "metrics": (f"{CLI}.verdicts", "What a run amounts to: makespan, waits, slowdowns, utilisation."),
    "compare": (f"{CLI}.verdicts", "Hold a predicted run against a real one: verdict table and report."),
}


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of `cmd_name` and return its command."""
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Where the reader of our output leaves, click would say 1, which is our `inaccurate`."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise click.exceptions.Exit(ExitCode.BROKEN_PIPE) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="tracebed")
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
    """Entry point: run the command, and turn what a user or the machine can cause into one line and an exit status."""
    import warnings

    from tracebed.orchestrator.cli.console import one_line, show_warning

    _ready_streams()
    warnings.showwarning = show_warning
    warnings.simplefilter("default")
    try:
        status = tracebed.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = ExitCode.USAGE
    except TracebedError as error:
        click.echo(f"tracebed: {one_line(error)}", err=True)
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("tracebed: interrupted", err=True)
        status = ExitCode.INTERRUPTED
    except OSError as error:  # none that a command expected: our own output's disk is full, a name is too long
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"tracebed: {one_line(place)}{error.strerror or error}", err=True)
        status = ExitCode.USAGE
    except MemoryError as error:
        reason = f": {error}" if str(error) else ""
        click.echo(f"tracebed: out of memory{reason} (take fewer jobs or nodes, or a larger machine)", err=True)
        status = ExitCode.USAGE
    except Exception as error:  # noqa: BLE001 - status 1, which Python would exit with, means inaccurate
        from tracebed.orchestrator.cli import crash

        click.echo(f"tracebed: {crash.report(error)}", err=True)
        status = ExitCode.INTERNAL
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries again at its end
    sys.exit(int(status or 0))


def _ready_streams() -> None:
    """Let no character fail where a terminal lacks it, and nothing where a stream was closed before we came."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
