"""Groups of commands that are imported on demand, and the options of all commands."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli import config, messages
from tracebed.cli.messages import Messages
from tracebed.cli.options import PATH, OutputPath, added, check_outputs
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import LOG

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

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

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of help."""
        return list(self.summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, with the options, variables and settings of all commands."""
        if cmd_name not in self.summaries():
            return None
        command = self.load(cmd_name)
        _prepare(command, _path(ctx, cmd_name))
        settings = ctx.meta.get(SETTINGS, {})
        for name in _path(ctx, cmd_name):
            settings = settings.get(name, {})
        if settings and not ctx.resilient_parsing:
            ctx.default_map = {**(ctx.default_map or {}), cmd_name: config.defaults(settings, ctx, command)}
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name.

        Raises:
            InputError: there is no such command, or an option that takes one value is given twice.
        """
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and name not in self.summaries():
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
    for option in config.options_of(command):
        if names := config.names_of(option):
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
    settings = config.read(path)
    ctx.meta[SETTINGS] = settings
    ctx.default_map = config.defaults(settings, ctx, ctx.command)


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
