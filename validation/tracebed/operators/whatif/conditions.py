"""Conditions that choose jobs, such as `nodes>=4 and partition=batch`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from tracebed.converters.workload import BoolArray, Workload
from tracebed.ground.display import listed
from tracebed.ground.errors import InputError

TEXTS = {"partition": "partition", "qos": "queue", "account": "group", "user": "user"}
"""Name in a condition -> column of texts."""
NUMBERS = ("nodes", "cores", "run_time", "time_limit")
NAMES = (*NUMBERS, *TEXTS)
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|!=|=|>|<)\s*(.*?)\s*")
MOST_SHOWN = 6
TIMES = ("run_time", "time_limit")
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
HINT = "write `nodes>=4 and partition=batch|long`: conditions joined by `and`, alternatives by `|`"


def jobs_where(workload: Workload, text: str) -> BoolArray:
    """Return which jobs satisfy all conditions of a text, shape (jobs,); an empty text: all.

    Raises:
        InputError: the text is not a list of conditions.
    """
    conditions = re.split(r"\s+and\s+", text.strip()) if text.strip() else []
    every = np.ones(len(workload), dtype=bool)
    return reduce(np.logical_and, (_condition(workload, each) for each in conditions), every)


def _condition(workload: Workload, text: str) -> BoolArray:
    """Return which jobs satisfy a condition."""
    match = CONDITION.fullmatch(text)
    if match is None or not match[3]:
        raise InputError(f"where {text!r} is not a condition", hint=HINT)
    name, sign, values = match.groups()
    if name not in NAMES:
        raise InputError(f"where {text!r}: {name!r} is unknown", hint=f"use one of {', '.join(NAMES)}")
    alternatives = [value.strip() for value in values.split("|")]
    if sign not in ("=", "!=") and (name in TEXTS or len(alternatives) > 1):
        raise InputError(f"where {text!r}: {sign} compares one number", hint=HINT)
    own = workload.partitions() if name == "partition" else None
    if name in TEXTS:
        own = workload.texts(TEXTS[name]) if own is None else own
        if absent := [value for value in alternatives if not own.eq(value).any()]:
            pseudonyms = (
                "; names may be pseudonyms, unless the log is read with its names"
                if name in ("account", "user")
                else ""
            )
            known = listed(sorted(set(own) - {""}), MOST_SHOWN)
            raise InputError(f"where {text!r}: no job has {name} {absent[0]}", hint=f"the log has {known}{pseudonyms}")
        among = own.isin(alternatives).to_numpy(dtype=bool)
        return among if sign == "=" else ~among
    numbers = [_number(name, value, text) for value in alternatives]
    cores = workload.ints("nodes") * workload.ints("cores_per_node")
    mine = cores if name == "cores" else workload.column(name)
    compared = [COMPARISONS[sign](mine, number) for number in numbers]
    return np.asarray((np.all if sign == "!=" else np.any)(compared, axis=0), dtype=bool)


def _number(name: str, value: str, text: str) -> float:
    """Return a number, or a duration such as `2h` for a time."""
    unit = value.lstrip("0123456789.") if name in TIMES else ""
    try:
        number = float(value.removesuffix(unit)) * UNITS[unit]
    except (ValueError, KeyError):
        number = math.nan
    if math.isnan(number):
        kind = "a time, such as 90s, 15m, 2h or 1d" if name in TIMES else "a number"
        raise InputError(f"where {text!r}: {value!r} is not {kind}", hint=HINT)
    return number
