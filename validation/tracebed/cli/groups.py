"""Groups of commands that are imported on demand, the options of all commands, and their configuration files.

    quiet = true

    [simulate]
    policy = "easy"

    [generate.cirne]
    nodes = 16

A key of a configuration file is the long name of an option. The command line and `TRACEBED_*` variables take precedence
over the files, and `./tracebed.toml` over `$XDG_CONFIG_HOME/tracebed/config.toml`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tracebed.cli import messages
from tracebed.cli.messages import Messages
from tracebed.cli.options import PATH, OutputPath, added, check_outputs, names_in
from tracebed.ground.errors import InputError
from tracebed.ground.input_files import read_text
from tracebed.ground.outputs import LOG

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


LOCAL = Path("tracebed.toml")
"""The file of the working folder."""


class ConfigValue(NamedTuple):
    """One value of a configuration file, and the place where it stands."""

    value: Any
    where: str


def user_file() -> Path:
    """Return the path of the user's file: `$XDG_CONFIG_HOME/tracebed/config.toml`."""
    home = os.environ.get("XDG_CONFIG_HOME") or f"{os.environ.get('HOME', '')}/.config"
    return Path(home, "tracebed", "config.toml")


def _read(chosen: Path | None) -> dict[str, Any]:
    """Return the settings of the file `chosen`, or of the user's file and that of the working folder.

    They are a tree of dictionaries as the files have it, whose leaves are `ConfigValue`s. Raises InputError if a file
    cannot be read or is not TOML.
    """
    settings: dict[str, Any] = {}
    for path in [chosen] if chosen else [user_file(), LOCAL]:
        if chosen or path.is_file():
            _merge(settings, _tree(_parsed(path), str(path)))
    return settings


def _parsed(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(read_text(path, "configuration", hint="name another file with --config"))
    except RecursionError:
        raise InputError("is nested too deeply", where=str(path), hint="name another file with --config") from None
    except ValueError as error:
        line = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        where, what = (f"{path}:{line[1]}", str(error)[: line.start()]) if line else (str(path), str(error))
        raise InputError(
            f"is not TOML: {what}", where=where, hint='write `policy = "easy"` under `[simulate]`'
        ) from None


def _tree(table: Mapping[str, Any], place: str) -> dict[str, Any]:
    return {
        key: _tree(value, f"{place}, [{key}]") if isinstance(value, dict) else ConfigValue(value, f"{place}, {key}")
        for key, value in table.items()
    }


def _merge(into: dict[str, Any], settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _defaults(settings: Mapping[str, Any], ctx: click.Context, command: click.Command) -> dict[str, Any]:
    """Return the `default_map` of `command`: the values of its section by parameter, the sections of its subcommands.

    The values are checked in `ctx`. Raises InputError if a key is not an option of the command, or a value is invalid.
    """
    if not settings:  # nearly always, and the names of the commands take 2 ms
        return {}
    from tracebed.ground.registry import unknown

    options = {name: option for option in _options_of(command) for name in _names_of(option)}
    nested = command.list_commands(ctx) if isinstance(command, click.Group) else []
    found: dict[str, Any] = {}
    for key, setting in settings.items():
        if isinstance(setting, dict):
            if key not in nested:
                raise InputError(f"section [{key}]: {unknown('command', key, nested)}", where=_place(setting))
            found[key] = setting
        elif key not in options:
            raise InputError(str(unknown("option", key, sorted(options))), where=setting.where)
        else:
            option = options[key]
            found[str(option.name)] = _setting_value(option, setting, ctx)
    return found


def _options_of(command: click.Command) -> list[click.Option]:
    """Return the options of `command` that have a value to set."""
    return [option for option in command.params if isinstance(option, click.Option) and not option.is_eager]


def _names_of(option: click.Option) -> list[str]:
    """Return the long names of an option, without the dashes."""
    return [name.removeprefix("--") for name in option.opts if name.startswith("--")]


def _setting_value(option: click.Option, setting: ConfigValue, ctx: click.Context) -> Any:
    """Return the value for click, parsed as on the command line."""
    value = setting.value
    if option.is_flag:
        if not isinstance(value, bool):
            raise InputError(f"{value!r} is not true or false", where=setting.where)
        return (option.flag_value if value else None) if isinstance(option.flag_value, str) else value
    many = isinstance(value, list)
    if many and not option.multiple:
        raise InputError("is a list, and the option takes one value", where=setting.where)
    texts = [str(item) for item in (value if many else [value])]
    try:
        parsed: Sequence[Any] = [option.type.convert(text, option, ctx) for text in texts]
    except click.BadParameter as error:
        raise InputError(error.message, where=setting.where) from None
    return parsed if option.multiple else parsed[0]


def _place(section: Mapping[str, Any]) -> str | None:
    """Return the file of a section: that of its first setting."""
    for value in section.values():
        found = _place(value) if isinstance(value, dict) else str(value.where).partition(",")[0]
        if found:
            return found
    return None


SETTINGS = "tracebed.settings"
"""Key of the context's `meta` under which the settings of the configuration files stand."""


class LazyGroup(click.Group):
    """A group of commands, each of which is imported only when it is called, so that --help is fast."""

    noun = "command"
    """What a command of the group is called in messages."""

    def summaries(self) -> dict[str, str]:
        """Return one line of help for each command, by name, without importing the commands."""
        raise NotImplementedError

    def load(self, name: str) -> click.Command:
        """Import and return the command `name`, one of `summaries`."""
        raise NotImplementedError

    def knows(self, name: str) -> bool:
        """Return whether there is a command of this name."""
        return name in self.summaries()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of help."""
        return list(self.summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, with the options, variables and settings of all commands."""
        if not self.knows(cmd_name):
            return None
        command = self.load(cmd_name)
        _prepare(command, _path(ctx, cmd_name))
        settings = ctx.meta.get(SETTINGS, {})
        for name in _path(ctx, cmd_name):
            settings = settings.get(name, {})
        if settings and not ctx.resilient_parsing:
            ctx.default_map = {**(ctx.default_map or {}), cmd_name: _defaults(settings, ctx, command)}
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name. Raises InputError if it is unknown, or an option is repeated."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and not self.knows(name):
            from tracebed.ground.registry import unknown

            raise unknown(self.noun, name, self.list_commands(ctx))
        found, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            _refuse_repeated_options(command, click.Context(command, ctx, found), rest)
        return found, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section(f"{self.noun.capitalize()}s"):
            formatter.write_dl(list(self.summaries().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with `incomplete`, without importing the commands."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=text) for name, text in self.summaries().items()]
        found = [item for item in found if item.value.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


def _refuse_repeated_options(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    """Raise InputError if `args` give an option twice that takes one value: click would keep the last one."""
    _, _, given = command.make_parser(ctx).parse_args(list(args))
    for option in dict.fromkeys(given):
        one_value = isinstance(option, click.Option) and not (option.multiple or option.count or option.is_flag)
        if one_value and given.count(option) > 1:
            what = f"{option.opts[-1]} is given {given.count(option)} times, and takes one value"
            raise InputError(what, hint="give it once")


def _path(ctx: click.Context, name: str) -> list[str]:
    """Return the names from the first command to `name`: `["generate", "cirne"]`."""
    path = [name]
    while ctx.parent is not None:
        path.insert(0, str(ctx.info_name))
        ctx = ctx.parent
    return path


def _prepare(command: click.Command, path: list[str]) -> None:
    """Give each option of `command` its variable (`TRACEBED_SIMULATE_POLICY`), and add the common options."""
    if _COMMON[0] in command.params:
        return
    for option in _options_of(command):
        if names := _names_of(option):
            option.envvar = "_".join(["TRACEBED", *path, names[0]]).replace("-", "_").upper()
    command.params += _COMMON
    command.callback = _checked(command.callback)


def _checked(callback: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Return the function of a command with a check of the outputs before it."""
    if callback is None:
        return None

    @wraps(callback)
    def run(*args: Any, **options: Any) -> Any:
        check_outputs(click.get_current_context())
        return callback(*args, **options)

    return run


def _config(ctx: click.Context, option: click.Parameter, path: Path | None) -> None:
    """Read the configuration files, before the other options take their defaults from them."""
    if ctx.resilient_parsing:
        return
    ctx.obj = ctx.obj or Messages()
    before = messages.current()
    messages.use(ctx.obj)
    ctx.call_on_close(lambda: messages.use(before))
    settings = _read(path)
    ctx.meta[SETTINGS] = settings
    ctx.default_map = _defaults(settings, ctx, ctx.command)


def _quiet(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        messages.current().quiet = True
        _check()


def _verbose(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        messages.current().verbose = True
        _check()


def _check() -> None:
    chosen = messages.current()
    if chosen.quiet and chosen.verbose:
        chosen.quiet = False
        raise InputError("both -q and -v are given", hint="give one of them")


def _log(ctx: click.Context, option: click.Parameter, path: Path | None) -> None:
    if path is not None and not ctx.resilient_parsing:
        messages.current().open_log(path)


def _hidden(*names: str, callback: Callable[..., None], **attributes: Any) -> click.Option:
    """Return one of the common options as each command takes it, too: `tracebed simulate -q ...`."""
    return click.Option(names, hidden=True, expose_value=False, callback=callback, **attributes)


_COMMON = [
    _hidden("-q", "--quiet", callback=_quiet, is_flag=True),
    _hidden("-v", "--verbose", callback=_verbose, is_flag=True),
    _hidden("--log-file", callback=_log, type=OutputPath(LOG)),
]

common_options = added(
    click.option(
        "--config",
        type=PATH,
        metavar="FILE",
        envvar="TRACEBED_CONFIG",
        is_eager=True,
        expose_value=False,
        callback=_config,
        help="Read defaults of options from this TOML file in place of ./tracebed.toml and the user's file.",
    ),
    click.option(
        "-q",
        "--quiet",
        is_flag=True,
        envvar="TRACEBED_QUIET",
        expose_value=False,
        callback=_quiet,
        help="Print results and errors only: no progress, notes or warnings.",
    ),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        envvar="TRACEBED_VERBOSE",
        expose_value=False,
        callback=_verbose,
        help="Print durations, warnings of libraries, and the traceback of an internal error or of an extension.",
    ),
    click.option(
        "--log-file",
        type=OutputPath(LOG),
        metavar="FILE",
        envvar="TRACEBED_LOG_FILE",
        expose_value=False,
        callback=_log,
        help="Append every message to this file, with its time.",
    ),
)
"""`--config`, `-q`, `-v` and `--log-file` of the first group; each has a variable `TRACEBED_...`."""


class Sectioned(click.Command):
    """A command whose help has sections.

    Args:
        sections: title of a section -> names of the parameters of its options, or their dataclass. The other options
            come first.
    """

    def __init__(self, *arguments: Any, sections: Mapping[str, Sequence[str] | type[Any]], **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        named = {title: names_in(names) if isinstance(names, type) else names for title, names in sections.items()}
        self.sections: dict[str, Sequence[str]] = named

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a section for each family."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {option.name: record for option in options if (record := option.get_help_record(ctx))}
        titled = {name for names in self.sections.values() for name in names}
        common = [name for name in records if name not in titled]
        for title, names in {"Options": common, **self.sections}.items():
            with formatter.section(title):
                formatter.write_dl([records[name] for name in names])
