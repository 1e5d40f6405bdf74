"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, fields
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import click
from click.core import ParameterSource

from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import ARTIFACT

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    FloatType = click.ParamType[float]
    NameType = click.ParamType[str]
    NumbersType = click.ParamType[list[int]]
    FamilyType = click.ParamType[tuple[Any, dict[str, Any]]]
else:
    FloatType = NameType = NumbersType = FamilyType = click.ParamType  # older versions do not say the type

Command = TypeVar("Command", bound=Callable[..., Any])


def added(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds options, in the order of `--help`."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def option(*names: str, **attributes: Any) -> Any:
    """Return a field of a dataclass of options: its option, by default `--NAME` of the field, with its help.

    The type of the field is that of the option: a `bool` is a flag, a `Path` a file, a `Literal` one of its values, and
    a `tuple` may be repeated. `--help` shows the default, if there is one.

    Args:
        names: names of the option.
        attributes: other arguments of `click.option`, such as the type of a number in a range.
    """

    def made(own: str, kind: Any) -> Callable[[Any], Any]:
        shown = {} if attributes.get("default") is None else {"show_default": True}
        return click.option(*(names or (f"--{own.replace('_', '-')}",)), own, **type_of(kind) | shown | attributes)

    return field(default=None, metadata={"option": made})


def shared(decorator: Callable[[Any], Any]) -> Any:
    """Return a field of a dataclass of options whose option several commands have."""
    return field(default=None, metadata={"option": lambda own, kind: decorator})


def type_of(kind: Any) -> dict[str, Any]:
    """Return what `click.option` takes for a value of a type; of `X | None`, that of X. Numbers have no range."""
    parts = [part for part in get_args(kind) if part is not NoneType]
    if get_origin(kind) is Literal:
        return {"type": click.Choice(parts)}
    if get_origin(kind) is tuple and parts[1:] == [...]:
        return type_of(parts[0]) | {"multiple": True}
    if get_origin(kind) in (Union, UnionType):
        return type_of(parts[0]) if len(parts) == 1 else {}
    return {"type": PATH, "metavar": "FILE"} if kind is Path else {"is_flag": True} if kind is bool else {}


def gathered(argument: str, kind: type[Any], *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds options, whose values are together one argument of the command.

    Args:
        argument: name of the argument, an instance of `kind`.
        kind: a dataclass, whose fields are made by `option` and `shared`.
        names: fields whose options the command has; by default all. The other fields are None.
    """
    types = get_type_hints(kind)
    made = {each.name: each.metadata["option"](each.name, types[each.name]) for each in fields(kind)}
    return bundled(argument, kind, {name: made[name] for name in names or made})


def bundled(
    argument: str, kind: Callable[..., Any], options: Mapping[str, Callable[[Any], Any]]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds options, whose values are together one argument: `kind` of them by name."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def call(**values: Any) -> Any:
            own = {name: values.pop(name) for name in options}
            return command(**values, **{argument: kind(**own)})

        return added(*options.values())(call)

    return add


def names_in(*kinds: type[Any]) -> tuple[str, ...]:
    """Return the names of the parameters that dataclasses of options have."""
    return tuple(each.name for kind in kinds for each in fields(kind))


def keywords(options: Any) -> dict[str, Any]:
    """Return the values of a dataclass of options by name, as keywords of the api, without missing ones."""
    return {name: value for name, value in vars(options).items() if value is not None}


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


class OutputPath(FilePath):
    """A click type: the path of a file or folder that the command writes, of a `kind` of outputs.

    `check_outputs` checks each value before the command begins, by the rule of `tracebed.ground.outputs`.
    """

    def __init__(self, kind: Checked) -> None:
        super().__init__()
        self.kind = kind


class Checked(Protocol):
    """A kind of outputs."""

    def check(self, path: Path, *, replace: bool = False) -> None:
        """Check that an output of this kind can be written to `path`; raise InputError otherwise."""


class RunFolder:
    """The folder of a run."""

    def __init__(self, *, real: bool = True) -> None:
        """Take whether the run may be real. A prediction never replaces a finished real run."""
        self.real = real

    def check(self, path: Path, *, replace: bool = False) -> None:
        """Check that a run can be written to `path`; raise InputError otherwise."""
        import tracebed.api as tb

        tb.check_run(path, replace=replace, real=self.real)


class WorkloadPath:
    """The file or folder of a workload, in the format of its name."""

    def check(self, path: Path, *, replace: bool = False) -> None:
        """Check that a workload can be written to `path`; raise InputError otherwise."""
        import tracebed.api as tb

        tb.check_workload(path, replace=replace)


class CheckedLater:
    """An output that the command itself checks at its start, since the check depends on other options."""

    def check(self, path: Path, *, replace: bool = False) -> None:
        """Check nothing."""


class Store(CheckedLater):
    """A folder in which a command continues, such as that of a sweep. The command locks it, and refuses other ones."""


RUN, PREDICTION, WRITTEN_WORKLOAD = RunFolder(), RunFolder(real=False), WorkloadPath()
LATER, STORE = CheckedLater(), Store()

replace_option = click.option(
    "--replace",
    is_flag=True,
    help="Replace an earlier output of the same kind. It stays until the new one is complete.",
)


def output_option(
    what: str, kind: Checked, *, required: bool = True, metavar: str = "PATH"
) -> Callable[[Command], Command]:
    """`-o/--output PATH`, the same everywhere, and `--replace` unless the command continues in its output."""

    def add(command: Command) -> Command:
        output = click.option("-o", "--output", type=OutputPath(kind), required=required, metavar=metavar, help=what)
        return output(
            command if isinstance(kind, Store) or getattr(kind, "renewed", False) else replace_option(command)
        )

    return add


def budget_option(what: str) -> Callable[[Command], Command]:
    """`--budget`, of a fit."""
    return click.option("--budget", type=click.IntRange(1), default=200, show_default=True, help=what)


loss_option = click.option(
    "--loss",
    type=click.Choice(["metrics", "jobs"]),
    default="metrics",
    show_default=True,
    help="Loss of a fit: mean relative error of the gated metrics, or of wait and response of each job.",
)


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


class Numbers(NumbersType):
    """A click type: a list of whole numbers from 1 to `most`, such as `1,2,4`."""

    name = "list"

    def __init__(self, most: int) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """Parse, or fail as click does."""
        words = str(value).split(",")
        if not all(word.strip().isdecimal() and len(word) < 16 and 1 <= int(word) <= self.most for word in words):
            self.fail(f"{value!r} is not a list of numbers from 1 to {self.most:,}.", param, ctx)
        return [int(word) for word in words]


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
    """A click type for `duration`, in a range, s; by default from 0 to `bounds.MAX_SECONDS`. None: no bound."""

    name = "duration"

    def __init__(self, least: float | None = 0, most: float | None = bounds.MAX_SECONDS) -> None:
        self.least = -bounds.MAX_EXACT if least is None else least
        self.most = bounds.MAX_EXACT if most is None else most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse, or fail as click does."""
        try:
            seconds = duration(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)
        if not self.least <= seconds <= self.most:
            self.fail(f"{value!r} is not from {bounds.text(self.least)} to {bounds.text(self.most)} s", param, ctx)
        return seconds


DURATION = Duration()


tau_option = click.option(
    "--tau",
    type=DURATION,
    default="10",
    show_default=True,
    help="Threshold of the bounded slowdown, in seconds.",
)


def given(names: Collection[str]) -> str | None:
    """Return the first option or argument of the current command, among the parameters `names`, that was given."""
    context = click.get_current_context()
    found = (
        param
        for param in context.command.params
        if param.name in names and context.get_parameter_source(param.name) is not ParameterSource.DEFAULT
    )
    return next(
        (param.opts[-1] if isinstance(param, click.Option) else param.make_metavar(context) for param in found), None
    )


def check_alone(name: str, beside: Collection[str]) -> None:
    """Raise InputError if a parameter of the current command other than `name` and those in `beside` was given."""
    others = {param.name or "" for param in click.get_current_context().command.params if param.expose_value}
    if option := given(others - {name, *beside}):
        raise InputError(f"{option} does not apply with --{name}", hint="leave it out")


def check_only(allowed: Collection[str], what: str, *, hint: str = "leave it out") -> None:
    """Raise InputError if a parameter of the current command besides `allowed` was given (not for `what`)."""
    context = click.get_current_context()
    defaults = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)  # those of `tracebed config` are no request
    names = {
        param.name or ""
        for param in context.command.params
        if param.expose_value and context.get_parameter_source(param.name or "") not in defaults
    }
    if option := given(names - {*allowed}):
        raise InputError(f"{option} does not apply to {what}", hint=hint)


def check_outputs(context: click.Context) -> None:
    """Check the outputs of a command, before the command begins.

    Raises:
        InputError: an output exists and may not be replaced, would replace an input (also inside a folder), or two
            outputs have the same name.
    """
    given = [
        (option.type, path)
        for option in context.command.params
        for path in _paths(context.params.get(option.name or ""))
        if isinstance(option.type, click.Path)
    ]
    sources = [os.path.realpath(path) for kind, path in given if not isinstance(kind, OutputPath) and path.exists()]
    taken: list[str] = []
    for option_type, output in given:
        if not isinstance(option_type, OutputPath) or (output.exists() and not (output.is_file() or output.is_dir())):
            continue  # a pipe or terminal is not replaced
        target, kind = os.path.realpath(output), option_type.kind
        continued = isinstance(kind, Store) or getattr(kind, "renewed", False)
        if any(target == source or (not continued and _overlap(target, source)) for source in sources):
            raise InputError("would replace what it is made from", where=str(output), hint="name another file")
        if target in taken:
            raise InputError("two results under one name", where=str(output), hint="name another file for one of them")
        taken.append(target)
    for option_type, output in given:
        if isinstance(option_type, OutputPath):
            option_type.kind.check(output, replace=bool(context.params.get("replace")))


def _paths(value: Any) -> list[Path]:
    """Return the paths in the value of an option."""
    return [path for path in (value if isinstance(value, tuple) else [value]) if isinstance(path, Path)]


def _overlap(target: str, source: str) -> bool:
    """Return whether an output is a file of the folder `source`, or contains `source`."""
    return (_contains(source, target) and Path(target).exists()) or _contains(target, source)


def _contains(folder: str, path: str) -> bool:
    """Return whether `path` is `folder`, or lies in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


class ExtensionName(NameType):
    """A click type: the name of an installed extension of a `group`, checked where the extension is loaded."""

    name = "name"

    def __init__(self, group: str) -> None:
        self.group = group

    def names(self) -> list[str]:
        """Return the names of all installed extensions, without importing them."""
        from tracebed.ground.registry import Registry

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


def extension(group: str) -> dict[str, Any]:
    """Return what `click.option` takes for the name of an extension of a group."""
    return {"cls": ExtensionOption, "type": ExtensionName(group), "metavar": "NAME"}


class InventoryName(FilePath):
    """A click type: the name of an inventory that is part of tracebed, or the path of a file."""

    def names(self) -> list[str]:
        """Return the names."""
        import tracebed.api as tb

        return tb.inventories()

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


class Family(FamilyType):
    """A click type: a `first` value, and `options` (name -> type) that belong to it, such as `20,submit=0`.

    Without `options`, or with `others`, any name is valid, and the values of names without a type stay texts.
    """

    name = "family"

    def __init__(
        self,
        first: click.ParamType[Any],
        options: Mapping[str, click.ParamType[Any]] | None = None,
        *,
        others: bool = False,
    ) -> None:
        self.first, self.options, self.others = first, options or {}, others or options is None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse, or fail as click does."""
        if isinstance(value, tuple):
            return value
        first, *others = str(value).split(",")
        found: dict[str, Any] = {}
        for text in others:
            name, equals, content = (part.strip() for part in text.partition("="))
            if not (name and equals and content):
                self.fail(f"{text!r} is not NAME=VALUE.", param, ctx)
            if name not in self.options and not self.others:
                self.fail(f"{name!r} is not one of {', '.join(map(repr, self.options))}.", param, ctx)
            found[name] = self.options[name].convert(content, param, ctx) if name in self.options else content
        return self.first.convert(first.strip(), param, ctx), found


class ExtensionFamily(ExtensionName):
    """A click type: the name of an extension of a `group`, and options that belong to it; some have a type.

    The extensions `without` are not offered.
    """

    def __init__(self, group: str, options: Mapping[str, click.ParamType[Any]], without: Sequence[str] = ()) -> None:
        super().__init__(group)
        self._family, self._without = Family(click.STRING, options, others=True), without

    def names(self) -> list[str]:
        """Return the names that are offered."""
        return [name for name in super().names() if name not in self._without]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse, or fail as click does."""
        return self._family.convert(value, param, ctx)


class CalendarOrModel(Family):
    """A click type: a file with outages, or a model of them, `mtbf=30d,repair=2h`, as keywords of the api."""

    name = "outages"

    def __init__(self) -> None:
        super().__init__(
            click.STRING, {"mtbf": DURATION, "repair": DURATION, "shape": Number(0.1, 100), "seed": click.IntRange(0)}
        )

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse, or fail as click does. A text with `=` is a model, unless a file has this name."""
        if isinstance(value, dict | Path):
            return value
        if "=" not in str(value) or Path(value).exists():
            return PATH.convert(value, param, ctx)
        _, found = super().convert(f",{value}", param, ctx)
        for name in ("mtbf", "repair"):
            if name not in found:
                self.fail(f"{name} is missing, as in mtbf=30d,repair=2h.", param, ctx)
        return {"mtbf_s": found.pop("mtbf"), "repair_s": found.pop("repair"), **found}


def outages_option(command: Command) -> Command:
    """`--outages FILE|mtbf=D,repair=D`: the outages of the nodes, as keywords of the api take them."""
    return click.option(
        "--outages",
        type=CalendarOrModel(),
        metavar="FILE|mtbf=D,repair=D[,...]",
        help="Outages of the nodes: a file, CSV with the columns node, from, to, kind, reason, or the output of "
        "`sacctmgr -P show event`; or mean times up and down of a node from which they are drawn (mtbf=30d,repair=2h), "
        "with shape=K of the Weibull distribution of the times up (1: exponential) and seed=N.  [default: no node "
        "fails]",
    )(command)


def set_option(what: str) -> Callable[[Command], Command]:
    """`--set NAME=VALUE` for `what`, the same everywhere; `settings_from` parses the values."""
    return click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help=f"{what}; may be repeated.")


def settings_from(texts: Sequence[str], known: Mapping[str, click.ParamType[Any]], *, strict: bool = True) -> Any:
    """Return `--set NAME=VALUE` texts as a dictionary; `known` has name -> type of the value.

    A hyphen in a name counts as an underscore. Raises InputError for another form or an invalid value, and if `strict`
    for an unknown name, whose value otherwise stays a text.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not (name and equals and value):
            raise InputError(f"--set {text!r} is not a setting", hint="write NAME=VALUE")
        if name not in known and strict:
            from tracebed.ground.registry import unknown

            raise unknown("setting", name, [*known])
        if name in found:
            raise InputError(f"--set {name} is given twice", hint="give it once")
        try:
            found[name] = known[name].convert(value, None, None) if name in known else value
        except click.ClickException as error:
            raise InputError(f"--set {text}: {error.format_message().rstrip('.')}", hint="correct the value") from None
    return found


def artifact_option(command: Command) -> Command:
    """`--report`, the folder of an artifact, as the argument `artifact` of the command."""
    about = (
        "Also write an artifact for a reproducibility committee: inputs, results, hashes, and a script that rebuilds."
    )
    return click.option("--report", "artifact", type=OutputPath(ARTIFACT), metavar="FOLDER", help=about)(command)


def chosen(option: str, texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of an option KEY=VALUE,VALUE by key. Raises InputError if a text is not of this form."""
    wanted: dict[str, list[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not (key and equals and values):
            raise InputError(f"{option} {text!r} chooses nothing", hint="write KEY=VALUE, or KEY=VALUE,VALUE")
        wanted.setdefault(key, []).extend(values.split(","))
    return wanted
