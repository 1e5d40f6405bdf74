"""Configuration files: defaults of options, in TOML, with a section for each command.

    quiet = true

    [simulate]
    policy = "easy"

    [generate.cirne]
    nodes = 16

A key is the long name of an option. The command line and `TRACEBED_*` variables take precedence over the files, and
`./tracebed.toml` over `$XDG_CONFIG_HOME/tracebed/config.toml`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from tracebed.ground.errors import InputError
from tracebed.ground.input_files import read_text

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


def read(chosen: Path | None) -> dict[str, Any]:
    """Return the settings of the file `chosen`, or of the user's file and that of the working folder.

    Returns:
        a tree of dictionaries as the files have it, whose leaves are `ConfigValue`s.

    Raises:
        InputError: a file cannot be read or is not TOML.
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


def defaults(settings: Mapping[str, Any], ctx: click.Context, command: click.Command) -> dict[str, Any]:
    """Return the `default_map` of `command`: the values of its section by parameter, the sections of its subcommands.

    Args:
        settings: the section of the command.
        ctx: the context in which its values are checked.
        command: the command, or a group of commands.

    Raises:
        InputError: a key is not an option of the command, or a value is invalid for it.
    """
    from tracebed.ground.registry import unknown

    options = {name: option for option in options_of(command) for name in names_of(option)}
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
            found[str(option.name)] = _value(option, setting, ctx)
    return found


def options_of(command: click.Command) -> list[click.Option]:
    """Return the options of `command` that have a value to set."""
    return [option for option in command.params if isinstance(option, click.Option) and not option.is_eager]


def names_of(option: click.Option) -> list[str]:
    """Return the long names of an option, without the dashes."""
    return [name.removeprefix("--") for name in option.opts if name.startswith("--")]


def _value(option: click.Option, setting: ConfigValue, ctx: click.Context) -> Any:
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
