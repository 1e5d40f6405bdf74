"""The installed formats, by name.

A new format is a module with a `FORMAT` and one line in `pyproject.toml`, in tracebed or in another package:

    [project.entry-points."tracebed.formats"]
    mine = "my_package.mine:FORMAT"
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools.files import SUFFIXES
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.registry import Registry

FORMATS: Registry[Format] = Registry("tracebed.formats", "format")


def known() -> list[Format]:
    """Return all formats, the most reliable marks first; warn about formats that cannot be loaded."""
    found = []
    for name in FORMATS.names():
        try:
            found.append(named(name))
        except InputError as error:
            tolerate({str(error): 1})
    return sorted(found, key=lambda format: format.marks)


def named(name: str) -> Format:
    """Return the format `name`. Raise InputError if the format does not exist or its package is broken."""
    format = FORMATS.load(name)
    if not isinstance(format, Format):
        raise InputError(f"format {name} is not a Format", where=FORMATS.entries[name].value)
    return format


def by_name(path: Path) -> Format | None:
    """Return the format with the ending of a file name, ignoring compression endings, or None."""
    name = path.name.lower()
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return next((format for format in known() if format.suffixes and name.endswith(format.suffixes)), None)


def check_options(function: Callable[..., Any], options: Mapping[str, Any], doing: str, where: str) -> None:
    """Raise InputError if a reader or writer does not accept one of the options."""
    taken = inspect.signature(function).parameters
    for option in options:
        if option not in taken:
            known = [name for name, one in taken.items() if one.kind is one.KEYWORD_ONLY]
            hint = f"available options: {', '.join(known) or 'none'}"
            raise InputError(f"{doing} does not support option {option!r}", where=where, hint=hint)
