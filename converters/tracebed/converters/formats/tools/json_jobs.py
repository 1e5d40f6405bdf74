"""Job lists of simulators in JSON: typed access, whose errors name the file, the job and the key, and workloads."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pandas as pd

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import MAX_EXACT, Provenance, Step, Workload
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.input_files import not_json

OURS = "tracebed"
"""Key of the provenance in a list that tracebed wrote; simulators ignore it."""
HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of a surrogate pair. A lone surrogate is not a character and cannot be encoded."""


@dataclass(frozen=True)
class Item:
    """An object of a JSON document: its values, and its name in messages."""

    values: Mapping[str, Any]
    where: str

    def number(self, name: str, default: float | None = None, *, least: float = -MAX_EXACT) -> float:
        """Return a number, or `default` if it is missing. Raise InputError if it is invalid or has no default."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= MAX_EXACT:
            self.refuse(name, f"a number of at least {least:.4g}" if least > -MAX_EXACT else "a number")
        return float(value)

    def whole(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """Return an integer, or `default` if it is missing. Raise InputError if it is invalid or has no default."""
        value = self.number(name, default, least=least)
        if value != math.floor(value):
            self.refuse(name, "a whole number")
        return int(value)

    def text(self, name: str) -> str:
        """Return a string, or an integer as a string. Raise InputError if it is missing or another value."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            self.refuse(name, "a text")
        return str(value)

    def item(self, name: str) -> Item:
        """Return an object, empty if it is missing. Raise InputError if the value is not an object."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            self.refuse(name, "an object")
        return Item(value or {}, f"{self.where}, {name}")

    def items(self, name: str) -> list[Item]:
        """Return a list of objects. Raise InputError if it is missing or not a list of objects."""
        value = self.values.get(name)
        if not isinstance(value, list):
            self.refuse(name, "a list")
        for position, element in enumerate(value):
            if not isinstance(element, dict):
                raise InputError(f"{name}[{position}] is {abbreviated(element)}, not an object", where=self.where)
        return [Item(element, f"{self.where}, {name}[{position}]") for position, element in enumerate(value)]

    def refuse(self, name: str, wanted: str) -> NoReturn:
        """Raise InputError: the value `name` is missing or not `wanted`."""
        what = (
            f"{name} is {abbreviated(self.values[name])}, not {wanted}" if name in self.values else f"{name} is missing"
        )
        raise InputError(what, where=self.where, hint=f"give {wanted}")


def load(file: Input) -> Item:
    """Return a JSON document that is an object; it may be a single line of any length."""
    document = json_of(file)
    if not isinstance(document, dict):
        raise InputError(f"is {abbreviated(document)}, not an object", where=file.where, hint="check the file")
    return Item(document, file.where)


def json_of(file: Input) -> Any:
    """Return a JSON document. Raise InputError if the file is not JSON."""
    try:
        text = file.bounded(b",", "value").decode("utf-8-sig")
        document = json.loads(text, parse_constant=not_json)
    except RecursionError:
        raise InputError("is nested too deeply", where=file.where, hint="check the file") from None
    except json.JSONDecodeError as error:
        hint = "check that the file is complete"
        raise InputError(f"is not JSON: {error.msg}", where=f"{file.where}:{error.lineno}", hint=hint) from None
    except ValueError as error:  # not UTF-8, NaN or Infinity, or a number with thousands of digits
        what = str(error).splitlines()[0][:200]
        raise InputError(f"is not JSON: {what}", where=file.where, hint="check the file") from None
    if HALF.search(text):
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except RecursionError:
            raise InputError("is nested too deeply", where=file.where, hint="check the file") from None
        except UnicodeEncodeError:
            hint = "write characters above U+FFFF as a surrogate pair or in UTF-8"
            raise InputError("contains a lone surrogate (\\ud800 to \\udfff)", where=file.where, hint=hint) from None
    return document


def load_jobs(file: Input) -> tuple[Item, list[Item], Mapping[str, Any]]:
    """Return a document, its jobs, at least one, and the provenance; empty: another program wrote the file."""
    document = load(file)
    jobs = document.items("jobs")
    if not jobs:
        raise InputError("contains no jobs", where=file.where, hint="check that the file is complete")
    return document, jobs, document.item(OURS).values


def workload_of(
    columns: Mapping[str, Any], file: Input, ours: Mapping[str, Any], other: Provenance, step: Step
) -> Workload:
    """Return the workload of a list, which the step `step` read; its provenance is `ours`, or `other` if empty."""
    tolerate(step.counts, where=file.where)
    before = Provenance.from_json(json.dumps(ours), where=file.where) if ours else other
    step = replace(step, counts={what: count for what, count in step.counts.items() if count})
    provenance = replace(before, sources=(*before.sources, file.source), steps=(*before.steps, step))
    table = pd.DataFrame({name: pd.Series(values) for name, values in columns.items()})
    return Workload(table, provenance, where=file.where)


def abbreviated(value: object) -> str:
    """Return a value as shown in messages, on one line and shortened."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def plain(value: Any) -> Any:
    """Return a value of a column as a JSON value: whole floats as integers, NaN as None."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return int(value) if value == math.floor(value) and abs(value) < MAX_EXACT else value
    return value
