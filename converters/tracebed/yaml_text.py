"""YAML that people write (recipes, inventories, studies): bounded when read, its errors on one line."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from reprlib import Repr

import yaml

from tracebed.errors import InputError

LONGEST = 2**22
"""Characters; a log or a device by mistake must not fill the memory."""
BROKEN = (yaml.YAMLError, ValueError, RecursionError)
"""What PyYAML raises: a date such as 2022-13-45 is a ValueError."""

_SHORT = Repr()
_SHORT.maxlevel = 2  # five aliases deep, lists of lists fill a screen; twenty deep, the memory


def shown(value: object) -> str:
    """Return a value as messages show it, not long whatever it holds."""
    return _SHORT.repr(value)


def read(file: Traversable) -> str:
    """Return a text in UTF-8; raise OSError, UnicodeDecodeError, and InputError where it is too long to be YAML."""
    with file.open(encoding="utf-8") as stream:
        text = stream.read(LONGEST + 1)
    if len(text) > LONGEST:
        raise InputError("is too long for YAML", where=str(file), hint="name the file that you wrote")
    return text


def broken(error: Exception, where: str, hint: str) -> InputError:
    """Return one of `BROKEN` as an error with its line."""
    mark = getattr(error, "problem_mark", None)
    what = "nested too deeply" if isinstance(error, RecursionError) else getattr(error, "problem", None) or str(error)
    return InputError(f"is not YAML: {what}", where=f"{where}:{mark.line + 1}" if mark else where, hint=hint)
