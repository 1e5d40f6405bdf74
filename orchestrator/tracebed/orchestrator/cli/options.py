"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tracebed import bounds
from tracebed.errors import InputError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    FloatType = click.ParamType[float]
    NameType = click.ParamType[str]
else:
    FloatType = NameType = click.ParamType  # only newer versions of click say the type at run time

Command = TypeVar("Command", bound=Callable[..., Any])


class FilePath(click.Path):
    """A click type: the path of a file or folder. An empty path, which would be the current folder, is invalid."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the path, or fail as click does if it is empty (an empty shell variable)."""
        if not str(value):
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


PATH = FilePath()


def output_option(what: str, *, required: bool = True) -> Callable[[Command], Command]:
    """`-o/--output PATH`, the same everywhere."""
    return click.option("-o", "--output", type=PATH, required=required, metavar="PATH", help=what)


def json_option(command: Command) -> Command:
    """`--json`: print JSON for machines in place of the table."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON in place of tables.")(command)


def seed_option(command: Command) -> Command:
    """`--seed N`: seed of the numpy Generator of all draws."""
    return click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of all draws.")(
        command
    )


def workload_argument(command: Command) -> Command:
    """Take the workload's file; `load_workload` reads it."""
    return click.argument("workload", type=PATH, metavar="WORKLOAD")(command)


class Number(click.FloatRange):
    """A click type: a finite number in a range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse, or fail as click does; nan and inf lie in every range of click's."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Say nothing in --help where there is no bound; click would write `x<=None`."""
        return "" if self.min is None and self.max is None else super()._describe_range()


SIZE = click.IntRange(1, bounds.MAX_MACHINE)
"""Nodes of a machine, or cores of a node."""
SPEED = Number(bounds.MIN_SPEED, bounds.MAX_SPEED)
SECONDS = Number(0, bounds.MAX_SECONDS)

DURATION_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """Parse `90`, `90s`, `15m`, `2h` or `1d` into seconds; raise InputError otherwise."""
    text = text.strip()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        seconds = float(number) * DURATION_UNITS[text[len(number) :]]
    except (ValueError, KeyError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise InputError(f"{text!r} is not a duration", hint="write 90s, 15m, 2h or 1d")
    return seconds


class Duration(FloatType):
    """A click type for `duration`, from 0 to `bounds.MAX_SECONDS`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse, or fail as click does."""
        try:
            seconds = duration(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)
        if not 0 <= seconds <= bounds.MAX_SECONDS:
            self.fail(f"{value!r} is not from 0 to {bounds.MAX_SECONDS:,.0f} s", param, ctx)
        return seconds


DURATION = Duration()


tau_option = click.option(
    "--tau",
    type=DURATION,
    default="10",
    show_default=True,
    help="Threshold of the bounded slowdown, in seconds.",
)


def keep_inputs(inputs: Iterable[Path], outputs: Iterable[Path | None]) -> None:
    """Raise InputError if an output would replace an input (also inside a folder), or two outputs are the same."""
    sources = [os.path.realpath(path) for path in inputs]
    taken: list[str] = []
    for output in outputs:
        if output is None or (output.exists() and not (output.is_file() or output.is_dir())):
            continue  # a pipe or terminal is not replaced
        target = os.path.realpath(output)
        if any((_holds(source, target) and output.exists()) or _holds(target, source) for source in sources):
            raise InputError("would replace what it is made from", where=str(output), hint="name another file")
        if target in taken:
            raise InputError("two results under one name", where=str(output), hint="name another file for one of them")
        taken.append(target)


def _holds(folder: str, path: str) -> bool:
    """Tell whether a path is this one, or in this folder."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


class ExtensionName(NameType):
    """A click type: the name of an installed extension. It is checked where the extension is loaded.

    Args:
        group: the group of entry points (`tracebed.policies`).
    """

    name = "name"

    def __init__(self, group: str) -> None:
        self.group = group

    def names(self) -> list[str]:
        """Return the names of all installed extensions, without importing them."""
        from tracebed.registry import Registry

        return Registry[object](self.group, self.name).names()

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin with `incomplete`."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in self.names() if name.startswith(incomplete)]


class ExtensionOption(click.Option):
    """An option whose value is the name of an extension; `{names}` in its help becomes the installed names."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the two columns of help."""
        assert isinstance(self.type, ExtensionName | InventoryName)
        self.help = (self.help or "").replace("{names}", ", ".join(self.type.names()))
        return super().get_help_record(ctx)


def policy_options(command: Command, *, required: bool = True) -> Command:
    """Add the options of all executors: `--policy`, `--policy-option`, `--placement`, `--grid`, `--priority`, ..."""
    for option in (
        click.option(
            "--over-limit",
            type=click.Choice(["extend", "kill", "again", "now"]),
            default="extend",
            show_default=True,
            help="Jobs that outlive their time limit: extend the limit to the run time, kill the job, or expect it to "
            "take the limit again, or to end now.",
        ),
        click.option(
            "--interval",
            type=DURATION,
            default=0.0,
            metavar="S",
            help="Scheduling interval in trace seconds. 0 (default) schedules on every event.",
        ),
        click.option(
            "--priority",
            type=click.Choice(["fcfs", "largest-slowdown-first", "shortest-first", "aging"]),
            default="fcfs",
            show_default=True,
            help="Order in which the policy considers waiting jobs.",
        ),
        click.option(
            "--grid",
            metavar="GRID",
            help="Grid of the network between the nodes: 8x16, 4x4x8, torus:8x16.  [default: that of the inventory or "
            "of the workload's system]",
        ),
        click.option(
            "--placement",
            cls=ExtensionOption,
            type=ExtensionName("tracebed.placements"),
            default="first",
            show_default=True,
            metavar="NAME",
            help="Which of the idle nodes a job gets: {names}.",
        ),
        click.option(
            "-P",
            "--policy-option",
            "policy_options",
            multiple=True,
            metavar="NAME=VALUE|@FILE",
            help="Set a parameter of the policy; may be repeated. An unknown name lists the parameters. "
            "@FILE reads the parameters of the policy slurm from a slurm.conf.",
        ),
        click.option(
            "--policy",
            cls=ExtensionOption,
            type=ExtensionName("tracebed.policies"),
            required=required,
            metavar="NAME",
            help="Scheduling policy: {names}.",
        ),
    ):
        command = option(command)
    return command


class InventoryName(FilePath):
    """A click type: the name of an inventory that is part of tracebed, or the path of a file."""

    def names(self) -> list[str]:
        """Return the names."""
        from tracebed.orchestrator.testbeds.nodes import shipped

        return shipped()

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin with `incomplete`, and have the shell complete files."""
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name) for name in self.names() if name.startswith(incomplete)]
        return names + super().shell_complete(ctx, param, incomplete)


def inventory_option(*, required: bool = False, what: str = "Inventory of nodes") -> Callable[[Command], Command]:
    """`--inventory NAME|FILE`, the same everywhere."""
    return click.option(
        "--inventory",
        cls=ExtensionOption,
        type=InventoryName(),
        required=required,
        metavar="NAME|FILE",
        help=f"{what}: {{names}}, or a file (YAML, Ansible, SSH configuration).",
    )
