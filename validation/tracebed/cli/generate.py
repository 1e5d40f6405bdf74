"""`tracebed generate`: a workload drawn from a model. Each model is a subcommand built from its signature."""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click

import tracebed.api as tb
from tracebed.cli.groups import LazyGroup
from tracebed.cli.logs import write_and_summarize
from tracebed.cli.messages import progress
from tracebed.cli.options import (
    PATH,
    SIZE,
    WRITTEN_WORKLOAD,
    Number,
    gathered,
    json_option,
    option,
    output_option,
    seed_option,
    settings_from,
    shared,
)
from tracebed.ground.errors import InputError
from tracebed.ground.registry import unknown

COMMON = {
    "jobs": (click.IntRange(min=1), "How many jobs."),
    "nodes": (SIZE, "Nodes of the machine."),
    "cores_per_node": (SIZE, "Cores of each node; jobs use them all."),
}
"""Arguments that models share: type, help."""
SET = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an argument or a constant of the model (listed below); may be repeated.",
)
PREFIX = "estimates."
"""Prefix of the constants of the estimates."""


@dataclass(frozen=True)
class Drawing:
    """What all models have: the seed, and what is changed after the draw."""

    seed: int = shared(seed_option)
    estimates: Literal["tsafrir05"] | None = option(
        help="Draw users' estimates as time limits (Tsafrir, Etsion and Feitelson 2005); "
        "--set estimates.longest and estimates.longest_share adjust them."
    )
    kind: Literal["moldable", "malleable"] | None = option(
        help="Make rigid jobs moldable or malleable (Cirne and Berman, Downey)."
    )
    applications: bool = option(help="Assign an application to each job, in the shares of the SD-Policy paper.")
    load: float | None = option(
        type=Number(0.000001, 1_000_000),
        help="Scale the times between arrivals, not the run times, to this offered load.",
    )


class Models(LazyGroup):
    """The models of the registry, each with the arguments of its function as options."""

    noun = "model"

    def summaries(self) -> dict[str, str]:
        """Return one line of help for each model, without importing the models."""
        return tb.models()

    def load(self, name: str) -> click.Command:
        """Import the function of a model and return its command."""
        return _command(name, tb.MODELS.load(name), tb.models()[name])


@click.group(cls=Models, subcommand_metavar="MODEL [ARGS]...")
def generate() -> None:
    """Draw a workload from a model, or a paper's workload by its name.

    \b
    Example:
      tracebed generate cirne --nodes 16 --jobs 200 --seed 7 -o w.parquet
    """


def _command(name: str, model: Callable[..., Any], summary: str) -> click.Command:
    """Return the command `tracebed generate NAME`: its options are the arguments of `model`."""
    arguments = inspect.signature(model, eval_str=True).parameters
    meanings = _meanings(model)
    shown = {*COMMON, *(name for name, argument in arguments.items() if argument.default is argument.empty)}
    own = [_option(argument, meanings.get(name, "")) for name, argument in arguments.items() if name in shown]
    others = {name: argument for name, argument in arguments.items() if name not in {*shown, "seed", "parameters"}}
    parameters = _defaults(arguments["parameters"]) if "parameters" in arguments else None

    def run(
        drawing: Drawing, output: Path, replace: bool, as_json: bool, settings: Sequence[str] = (), **options: Any
    ) -> None:
        of_estimates = [text for text in settings if text.startswith(PREFIX)]
        of_model = [text for text in settings if _name(text) in others]
        constants = [text for text in settings if text not in (*of_estimates, *of_model)]
        if of_estimates and drawing.estimates is None:
            raise InputError(f"--set {of_estimates[0]} without estimates", hint="add --estimates tsafrir05")
        options |= settings_from(of_model, {name: _type(argument.annotation) for name, argument in others.items()})
        if constants and parameters is None:
            raise unknown("setting", _name(constants[0]), [*others])
        if constants:
            options["parameters"] = _changed(parameters, constants, others=others)
        options |= vars(drawing)
        if drawing.estimates:
            options["estimates"] = vars(_changed(tb.Tsafrir05Parameters(), of_estimates, PREFIX))
        with progress("drawing jobs"):
            workload = tb.generate(name, **options)
        write_and_summarize(workload, output, as_json, replace=replace)

    shared = [
        gathered("drawing", Drawing),
        output_option("The workload to write: .parquet, .csv or .swf.", WRITTEN_WORKLOAD),
        json_option,
    ]
    for decorate in reversed([*own, *([SET] if parameters or others else []), *shared]):
        run = decorate(run)
    needed = [argument for argument in arguments.values() if argument.default is argument.empty]
    words = "".join(f" {_flag(argument)} {'log.swf' if argument.annotation is Path else 200}" for argument in needed)
    constants = ", ".join(f"{name}={value}" for name, value in _flat(parameters).items()) if parameters else ""
    epilog = [f"\b\nArguments and their defaults:\n{_listed(others, meanings)}"] if others else []
    epilog += [f"Constants and their defaults: {constants}."] if constants else []
    return click.command(
        name,
        help=f"{summary}\n\n\b\nExample:\n  tracebed generate {name}{words} --seed 7 -o w.parquet",
        epilog="\n\n".join(epilog) or None,
    )(run)


def _option(argument: inspect.Parameter, meaning: str) -> Callable[[Any], Any]:
    """Return the option for one argument of a model."""
    option = _flag(argument)
    kind, meaning = COMMON.get(argument.name, (_type(argument.annotation), meaning))
    if argument.default is argument.empty:
        return click.option(option, type=kind, required=True, help=meaning)
    if argument.default is None:
        return click.option(option, type=kind, help=f"{meaning}  [default: the model's own]")
    return click.option(option, type=kind, default=argument.default, show_default=True, help=meaning)


def _listed(others: Mapping[str, inspect.Parameter], meanings: Mapping[str, str]) -> str:
    """Return the arguments of a model that `--set` sets, with their defaults and meanings, each in a paragraph."""
    lines = []
    for name, argument in others.items():
        choices = get_args(argument.annotation) if get_origin(argument.annotation) is Literal else ()
        text = f"{name}={_default(argument.default)}: {meanings.get(name, '')}"
        text += f" One of {', '.join(choices)}." if choices else ""
        lines += textwrap.wrap(text, 76, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)


def _default(value: Any) -> str:
    """Return the default of an argument as `--set` takes it; empty: the model chooses."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else "" if value is None else str(value)


def _name(text: str) -> str:
    """Return the name in NAME=VALUE as that of an argument."""
    return text.partition("=")[0].strip().replace("-", "_")


def _flag(argument: inspect.Parameter) -> str:
    return f"--{argument.name.replace('_', '-')}"


def _type(annotation: Any) -> Any:
    """Return click's type for an annotation; of `X | None`, that of X."""
    if get_origin(annotation) is Literal:
        return click.Choice(get_args(annotation))
    if get_args(annotation):
        (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
        return _type(annotation)
    return {float: Number(), Path: PATH, int: click.INT, str: click.STRING, bool: click.BOOL}[annotation]


def _meanings(model: Callable[..., Any]) -> dict[str, str]:
    """Return the description of each argument from the docstring of a model."""
    text = inspect.getdoc(getattr(model, "func", model)) or ""
    found = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", words[:1].upper() + words[1:]) for name, words in found}


def _defaults(argument: inspect.Parameter) -> Any:
    """Return the default constants of a model."""
    if argument.default is not None:
        return argument.default
    (parameters,) = (part for part in get_args(argument.annotation) if part is not NoneType)
    return parameters()


def _flat(parameters: Any, prefix: str = "") -> dict[str, float]:
    """Return constants by name; those of a dataclass inside another as `outer.inner`."""
    flat: dict[str, float] = {}
    for name, value in vars(parameters).items():
        flat |= _flat(value, f"{prefix}{name}.") if is_dataclass(value) else {f"{prefix}{name}": value}
    return flat


def _changed(parameters: Any, texts: Sequence[str], prefix: str = "", others: Collection[str] = ()) -> Any:
    """Return the constants after each NAME=VALUE, the names after `prefix`; a value takes the type of the default.

    `others` are other names that `--set` takes, for messages.
    """
    flat = _flat(parameters)
    for text in texts:
        name, _, value = text.removeprefix(prefix).partition("=")
        if name not in flat:
            hint = f"one of {', '.join([*others, *(prefix + known for known in flat)])}"
            raise InputError(f"--set {text}: unknown constant {prefix + name!r}", hint=hint)
        type_of = type(flat[name])
        try:
            flat[name] = type_of(value)
        except ValueError:
            flat[name] = math.nan
        if not math.isfinite(flat[name]):
            kind = "a whole number" if type_of is int else "a number"
            raise InputError(f"--set {text}: {value!r} is not {kind}", hint=f"{prefix}{name}=NUMBER") from None
    return _built(parameters, flat)


def _built(parameters: Any, flat: dict[str, float], prefix: str = "") -> Any:
    """Return constants of the same classes with the values of `flat`: the inverse of `_flat`."""
    values = {
        name: _built(value, flat, f"{prefix}{name}.") if is_dataclass(value) else flat[prefix + name]
        for name, value in vars(parameters).items()
    }
    return type(parameters)(**values)
