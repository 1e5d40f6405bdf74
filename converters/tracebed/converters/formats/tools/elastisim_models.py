"""Application models of ElastiSim: from speedups to run-time formulas, and from formulas to run times.

A job runs for T(n) = run_time S(requested) / S(n) on n nodes (Amdahl 1967, Downey 1997). ElastiSim substitutes a
job's arguments into the formula as text and truncates floats to six decimals. Therefore times are integers in
nanoseconds, and no argument name is a substring of another word of a formula.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from tracebed.converters.formats.tools.json_jobs import Item
from tracebed.converters.speedup import Speedup, downey_speedup

NANO = 1_000_000_000
SHARED = "(serial_ns + parallel_ns * (requested / num_nodes))"
TAIL = "(tail_fixed_ns + tail_shared_ns * (requested / num_nodes))"
FORMULAS = {"application.json": SHARED, "application_downey.json": f"max(least_ns, max({SHARED}, {TAIL}))"}
"""File -> formula of the run time in ns on `num_nodes` nodes. Each table of measured speedups gets its own file."""


class ApplicationModel(NamedTuple):
    """The application model of one job: its file, the formula in that file, and the job's arguments."""

    file: str
    formula: str
    arguments: dict[str, int]


def application(speedup: Speedup, run_time: float, requested: int, table_file: str) -> ApplicationModel:
    """Return the model of a job of `run_time` s on `requested` nodes; of a speedup table, in the file `table_file`."""
    work = round(run_time * NANO)
    if speedup.name == "table":
        requested_curve = _curve(speedup.points, "requested")
        formula = f"work_ns * (({_curve(speedup.points, 'num_nodes')}) / ({requested_curve}))"
        return ApplicationModel(table_file, formula, {"requested": requested, "work_ns": work})
    if speedup.name == "downey":
        file = "application_downey.json"
        arguments = _downey(speedup.numbers[0], speedup.numbers[1], work, requested)
    else:
        file = "application.json"
        f = speedup.numbers[0] if speedup.numbers else 1.0
        parallel = round(work * (f / ((1.0 - f) * requested + f)))
        arguments = {"serial_ns": work - parallel, "parallel_ns": parallel}
    return ApplicationModel(file, FORMULAS[file], {"requested": requested, **arguments})


def _downey(a: float, sigma: float, work: int, requested: int) -> dict[str, int]:
    """Return the coefficients, in ns, of the terms x + y / n whose maximum is T(n) (Downey 1997)."""
    if sigma <= 1:
        lines = [(sigma / (2 * a), 1 - sigma / (2 * a)), ((1 - sigma / 2) / a, sigma * (a - 0.5) / a)]
    else:
        lines = [(sigma / (a * (sigma + 1)), (sigma * (a - 1) + a) / (a * (sigma + 1))), (0.0, 0.0)]
    serial = work * float(downey_speedup(requested, a, sigma))
    least = round(serial / a)
    parts = [[round(serial * x), round(serial * y / requested)] for x, y in lines]
    sums = [least, *map(sum, parts)]
    highest = sums.index(max(sums))
    if highest == 0:
        least = work
    for line, part in enumerate(parts, start=1):  # correct rounding: the largest term equals the run time exactly
        missing = work - sum(part)
        part[1] += missing if line == highest else min(0, missing)
        if part[1] < 0:
            part[:] = [part[0] + part[1], 0]
    names = ("serial_ns", "parallel_ns", "tail_fixed_ns", "tail_shared_ns")
    return {"least_ns": min(least, work), **dict(zip(names, [*parts[0], *parts[1]], strict=True))}


def _curve(points: tuple[tuple[int, float], ...], nodes: str) -> str:
    """Return `Speedup.seconds` as a formula of the variable `nodes`."""
    terms = [repr(points[0][1])]
    for (small, slow), (large, fast) in pairwise(points):
        terms.append(f"({fast!r} - {slow!r}) / ({large} - {small}) * (min(max({nodes}, {small}), {large}) - {small})")
    return " + ".join(terms)


def document(formula: str) -> dict[str, Any]:
    """Return an application model of one phase, whose iterations take `formula` ns in total. Resizes cost nothing."""
    task = {
        "type": "busy_wait",
        "name": "run",
        "delay": f"{formula} / {NANO} / iterations",
        "pattern": "uniform",
    }
    return {"phases": [{"iterations": "iterations", "scheduling_point": True, "barrier": True, "tasks": [task]}]}


# -- from formulas to run times

PER_NODE: dict[str, Callable[[int], float]] = {
    "uniform": lambda n: 1.0,
    "all_ranks": lambda n: 1.0 / n,
    "total": lambda n: 1.0 / n,
}
"""Pattern -> the fraction of a payload on each of n nodes."""
LONGEST_FORMULA = 100_000
OPERATIONS: dict[type, Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Mod: math.fmod,
    ast.Pow: lambda a, b: math.pow(a, b),
}
FUNCTIONS: dict[str, Callable[..., float]] = {
    **{"min": min, "max": max, "ceil": math.ceil, "floor": math.floor, "sqrt": math.sqrt, "abs": abs},
    **{"log": math.log, "log2": math.log2, "log10": math.log10, "exp": math.exp, "pow": math.pow},
}


class UnsupportedModelError(Exception):
    """The run time of an application model cannot be computed: it communicates, or a formula is not supported."""


def run_time(model: Item, arguments: Mapping[str, Any], nodes: int, speed: float | None) -> float:
    """Return the run time of a job of `model` on a constant number of nodes, in s; `speed` of a node is in flop/s."""
    names = {"num_nodes": float(nodes), "num_gpus": 0.0, "num_gpus_per_node": 0.0}
    for name, value in arguments.items():
        try:
            names[name] = float(value)
        except (ValueError, TypeError, OverflowError):
            continue  # a formula that uses this text fails in `evaluate`
    phases = model.items("phases")
    first = model.values.get("on_init")  # in older models a list of tasks, not an object
    init = Item({"tasks": first}, model.where) if isinstance(first, list) else model.item("on_init")
    once = [] if first is None else [init]
    total = sum(_tasks(phase, names, nodes, speed) for phase in once)
    total += sum(_value(phase, "iterations", names, 1.0) * _tasks(phase, names, nodes, speed) for phase in phases)
    if not 0 <= total < math.inf:
        raise UnsupportedModelError
    return total


def _tasks(phase: Item, names: Mapping[str, float], nodes: int, speed: float | None) -> float:
    return sum(
        _value(task, "iterations", names, 1.0) * _task(task, names, nodes, speed) for task in phase.items("tasks")
    )


def _task(task: Item, names: Mapping[str, float], nodes: int, speed: float | None) -> float:
    kind = str(task.values.get("type")).lower()
    if kind == "sequence":
        return _tasks(task, names, nodes, speed)
    pattern = task.values.get("computation_pattern" if kind == "cpu" else "pattern")
    share = PER_NODE.get(str(pattern).lower())
    if share is None or (kind == "cpu" and (task.values.get("bytes") is not None or speed is None)):
        raise UnsupportedModelError
    if kind == "cpu" and speed:
        return _value(task, "flops", names) * share(nodes) / speed
    if kind in ("busy_wait", "idle"):
        return _value(task, "delay", names) * share(nodes)
    raise UnsupportedModelError


def _value(item: Item, name: str, names: Mapping[str, float], default: float | None = None) -> float:
    """Return a value that a model gives as a number or as a formula."""
    given = item.values.get(name)
    if isinstance(given, str):
        return evaluate(given, names)
    return item.number(name, default)


def evaluate(formula: str, names: Mapping[str, float]) -> float:
    """Return the value of a formula of numbers, names, + - * / % ^, parentheses and functions, or raise."""
    try:
        return float(_parsed(formula)(names))
    except (ArithmeticError, ValueError, TypeError, KeyError, RecursionError):
        raise UnsupportedModelError from None


@lru_cache(1024)
def _parsed(formula: str) -> Callable[[Mapping[str, float]], float]:
    if len(formula) > LONGEST_FORMULA:
        raise UnsupportedModelError
    text = re.sub(r"\^", "**", formula.strip())
    try:
        return _compiled(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UnsupportedModelError from None


def _compiled(node: ast.expr) -> Callable[[Mapping[str, float]], float]:
    """Return the formula as a function of the values of its names. Only arithmetic is supported."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            number = float(value)
            return lambda names: number
        case ast.Name(id=name):
            return lambda names: names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _compiled(operand)
            return lambda names: -inner(names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            a, apply, b = _compiled(left), OPERATIONS[type(op)], _compiled(right)
            return lambda names: apply(a(names), b(names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS and args:
            function, values = FUNCTIONS[name], [_compiled(arg) for arg in args]
            return lambda names: function(*(value(names) for value in values))
        case _:
            raise UnsupportedModelError
