"""Lists of jobs in JSON, read with care: each value is of its type, or one error names file, job and key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import MAX_EXACT
from tracebed.errors import InputError

HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""One of the two escapes that are a character together; alone it is none, and no file can hold it."""


@dataclass(frozen=True)
class Item:
    """An object of a JSON document: its values, and what messages call it."""

    values: Mapping[str, Any]
    where: str

    def number(self, name: str, default: float | None = None, *, least: float = -MAX_EXACT) -> float:
        """Return a number; `default` where there is none. Raises InputError if it is missing or none."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= MAX_EXACT:
            self.refuse(name, f"a number from {least:.4g} on" if least > -MAX_EXACT else "a number")
        return float(value)

    def whole(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """Return a whole number; `default` where there is none. Raises InputError if it is missing or none."""
        value = self.number(name, default, least=least)
        if value != math.floor(value):
            self.refuse(name, "a whole number")
        return int(value)

    def text(self, name: str) -> str:
        """Return a text, or a whole number as one. Raises InputError if it is missing or neither."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            self.refuse(name, "a text")
        return str(value)

    def item(self, name: str) -> Item:
        """Return an object, empty where there is none. Raises InputError if it is something else."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            self.refuse(name, "an object")
        return Item(value or {}, f"{self.where}, {name}")

    def items(self, name: str) -> list[Item]:
        """Return a list of objects. Raises InputError if it is none."""
        value = self.values.get(name)
        if not isinstance(value, list):
            self.refuse(name, "a list")
        for position, element in enumerate(value):
            if not isinstance(element, dict):
                raise InputError(f"{name}[{position}] is {shown(element)}, not an object", where=self.where)
        return [Item(element, f"{self.where}, {name}[{position}]") for position, element in enumerate(value)]

    def refuse(self, name: str, wanted: str) -> NoReturn:
        """Raise InputError: the value of this name is not what it must be."""
        found = f"{name} is {shown(self.values[name])}, not {wanted}" if name in self.values else f"{name} is missing"
        raise InputError(found, where=self.where, hint=f"give {wanted}")


def load(file: Input) -> Item:
    """Return a JSON document that is an object.

    It may well stand on one line, however many jobs it has; what has no comma for long is no list of jobs.

    Raises:
        InputError: it is not JSON (NaN and Infinity are not), ends early, is nested without end, or no object.
    """
    try:
        text = file.bounded(b",", "value").decode("utf-8-sig")
        document = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InputError("is nested too deeply", where=file.where, hint="check the file") from None
    except json.JSONDecodeError as error:
        hint = "check that the file is complete"
        raise InputError(f"is not JSON: {error.msg}", where=f"{file.where}:{error.lineno}", hint=hint) from None
    except ValueError as error:  # not UTF-8, a constant, or a number of thousands of digits
        what = str(error).splitlines()[0][:200]
        raise InputError(f"is not JSON: {what}", where=file.where, hint="check the file") from None
    if HALF.search(text):
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except RecursionError:
            raise InputError("is nested too deeply", where=file.where, hint="check the file") from None
        except UnicodeEncodeError:
            hint = "write characters beyond 16 bits as two \\u or as they are"
            raise InputError("holds half a character (\\ud800 to \\udfff alone)", where=file.where, hint=hint) from None
    if not isinstance(document, dict):
        raise InputError(f"is {shown(document)}, not an object", where=file.where, hint="check the file")
    return Item(document, file.where)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def shown(value: object) -> str:
    """Return a value as messages show it, on one line and not long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def plain(value: Any) -> Any:
    """Return a value of a column as JSON has it: a whole number without its `.0`, None for NaN."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return int(value) if value == math.floor(value) and abs(value) < MAX_EXACT else value
    return value
