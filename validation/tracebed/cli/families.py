"""Values of options of the form CHOICE[,NAME=VALUE...], and of `--set NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.options import Command, ExtensionName
from tracebed.ground.errors import InputError
from tracebed.ground.registry import unknown

if TYPE_CHECKING:
    FamilyType = click.ParamType[tuple[Any, dict[str, Any]]]
else:
    FamilyType = click.ParamType


class Family(FamilyType):
    """A click type: a value, and options that belong to it, such as `20,submit=0`.

    Args:
        first: type of the value.
        options: name -> type of each option. None: any name, and the values stay texts.
    """

    name = "family"

    def __init__(self, first: click.ParamType[Any], options: Mapping[str, click.ParamType[Any]] | None = None) -> None:
        self.first, self.options = first, options

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
            if self.options is not None and name not in self.options:
                self.fail(f"{name!r} is not one of {', '.join(map(repr, self.options))}.", param, ctx)
            found[name] = content if self.options is None else self.options[name].convert(content, param, ctx)
        return self.first.convert(first.strip(), param, ctx), found


class ExtensionFamily(ExtensionName):
    """A click type: the name of an extension, and options that belong to it.

    Args:
        group: the group of entry points.
        options: name -> type of each option.
    """

    def __init__(self, group: str, options: Mapping[str, click.ParamType[Any]]) -> None:
        super().__init__(group)
        self._family = Family(click.STRING, options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse, or fail as click does."""
        return self._family.convert(value, param, ctx)


def set_option(what: str) -> Callable[[Command], Command]:
    """`--set NAME=VALUE`, the same everywhere; `settings_from` parses the values.

    Args:
        what: what is set, and the names.
    """
    return click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help=f"{what}; may be repeated.")


def settings_from(texts: Sequence[str], known: Mapping[str, click.ParamType[Any]], *, strict: bool = True) -> Any:
    """Return `--set NAME=VALUE` texts as a dictionary.

    Args:
        texts: the texts.
        known: name -> type of its value. A hyphen in a name counts as an underscore.
        strict: whether other names are errors; otherwise their values stay texts.

    Raises:
        InputError: a text has another form, a name is unknown or given twice, or a value is invalid.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not (name and equals and value):
            raise InputError(f"--set {text!r} is not a setting", hint="write NAME=VALUE")
        if name not in known and strict:
            raise unknown("setting", name, [*known])
        if name in found:
            raise InputError(f"--set {name} is given twice", hint="give it once")
        try:
            found[name] = known[name].convert(value, None, None) if name in known else value
        except click.ClickException as error:
            raise InputError(f"--set {text}: {error.format_message().rstrip('.')}", hint="correct the value") from None
    return found
