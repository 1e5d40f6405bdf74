"""The options of a setup, made from its fields: each command with a part of it has options for all its settings."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tracebed.api import PRIORITIES, SETTINGS, SETUP_PARTS, TYPES
from tracebed.cli.messages import warn
from tracebed.cli.options import PATH, Duration, Number, bundled, extension
from tracebed.ground.errors import InputError


def parsed(options: Sequence[str], configured: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return options of the form `name=value` as a dictionary. The last value of a name counts.

    `configured`: parameters of the files of options of the form `@FILE`, in the place of the first of these options;
    None: there are no such options.

    Raises:
        InputError: an option has another form.
    """
    parameters: dict[str, str] = {}
    files = configured
    for option in options:
        if option.startswith("@") and configured is not None:
            parameters |= files or {}
            files = None
            continue
        name, equals, value = option.partition("=")
        if not (name and equals):
            raise InputError(f"policy option {name!r} has no value", hint="write NAME=VALUE, or @FILE of a slurm.conf")
        parameters[name.strip().replace("-", "_")] = value.strip()
    return parameters


def _of_policy(options: Sequence[str], nodes: int | None, plain: bool) -> dict[str, Any]:
    """Return the settings of options of a policy: its parameters, and the machine of a slurm.conf, if there is one.

    All files together describe a cluster of Slurm. Settings that are not modeled, or that contradict a layer, are a
    warning each.
    """
    paths = [Path(option[1:]) for option in options if option.startswith("@")]
    if not paths:
        return {"policy_parameters": parsed(options)}
    import tracebed.api as tb

    conf = tb.slurm_conf(paths, nodes, plain=plain)
    parameters = parsed(options, conf.parameters)
    for note in conf.noted(parameters):
        warn(f"{', '.join(map(str, paths))}: {note}")
    machine = {} if conf.machine is None else {"machine": conf.machine}
    return {"policy_parameters": parameters, **machine}


SECTION = tuple(name for name in SETUP_PARTS["scheduling"] if not name.startswith("policy"))
"""Settings of the section of help about scheduling."""
OF_REPLAYS = (*SETUP_PARTS["scheduling"], "speed")
"""Settings of a replay."""
OF_TIMING = tuple(name for name in SETUP_PARTS["timing"] if name != "dispatched")
"""Settings of the time of a prediction. Whether a policy dispatches as a batch system is no option."""
OF_PREDICTIONS = (*SETUP_PARTS["scheduling"], *OF_TIMING)
"""Settings of a prediction."""


def setup_options(names: Iterable[str], *, required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options of settings by `names`, in their order.

    Their values are together the argument `settings` of the command, which `settings_of` reads. `required`: whether
    `--policy` is required.
    """
    return bundled("settings", dict, {name: click.option(*declared(name), **_kind(name, required)) for name in names})


def settings_of(values: Mapping[str, Any], nodes: int | None = None, *, plain: bool = False) -> dict[str, Any]:
    """Return the settings of a command as keywords of the api, and the `machine` of a slurm.conf.

    Args:
        values: the parameters of the command.
        nodes: number of nodes of the workload; None: unknown.
        plain: whether equal nodes in one partition of a slurm.conf are the machine, too.

    Raises:
        InputError: a value `NAME=VALUE` has another form, a file cannot be read or is not a slurm.conf, or its nodes
            contradict `nodes`.
    """
    found = dict(values)
    if "policy_parameters" in found:
        found |= _of_policy(found["policy_parameters"], nodes, plain)
    if "overheads" in found:
        found["overheads"] = {name: _seconds(name, text) for name, text in parsed(found["overheads"]).items()} or None
    return found


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"overhead {name} is {text!r}", hint="write a number of wall seconds") from None


def declared(name: str) -> tuple[str, ...]:
    """Return the names of the option of a setting, and the name of its parameter."""
    special = {"policy_parameters": ("-P", "--policy-option"), "overheads": ("--overhead",)}
    return (*special.get(name, (f"--{name.removesuffix('_s').replace('_', '-')}",)), name)


def _kind(name: str, required: bool) -> dict[str, Any]:
    """Return the type of the option of a setting, its default and its help."""
    setting, kind = SETTINGS[name], TYPES[name]
    about, default = setting.metadata["about"], setting.default
    least, most = setting.metadata["least"], setting.metadata["most"]
    known: dict[str, dict[str, Any]] = {
        "policy": {
            **extension("tracebed.policies"),
            "metavar": "NAME|FILE.py:CLASS",
            "required": required,
            "help": "Scheduling policy: {names}, or a class in a file.",
        },
        "policy_parameters": {
            "multiple": True,
            "metavar": "NAME=VALUE|@FILE",
            "help": "Set a parameter of the policy; may be repeated. An unknown name lists the parameters. "
            "@FILE reads the parameters of the policy slurm from a slurm.conf, "
            "and accounts and QOS from the output of sacctmgr.",
        },
        "priority": {"type": click.Choice([*PRIORITIES]), "default": default, "show_default": True},
        "placement": {
            **extension("tracebed.placements"),
            "default": default,
            "show_default": True,
            "help": f"{about[:-1]}: {{names}}.",
        },
        "grid": {"metavar": "GRID"},
        "overheads": {"multiple": True, "metavar": "NAME=S"},
        "calibration": {"type": PATH, "metavar": "FILE"},
    }
    if name in known:
        return {"help": about} | known[name]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {
            "help": about,
            "type": click.Choice([str(each) for each in kind]),
            "default": default and default.value,
            "show_default": True,
        }
    if kind is float and name.endswith("_s"):
        return {"help": about, "type": Duration(least, most), "default": default, "metavar": "S"}
    if kind is float:
        kind = Number(least, most)
    elif kind is int and (least, most) != (None, None):
        kind = click.IntRange(least, most)
    return {"help": about, "type": kind, "default": default, "show_default": True}


def table_of_settings() -> str:
    """Return the settings as a table in Markdown, for the page about the setup."""
    rows = ["| setting | part | option | meaning |", "|---|---|---|---|"]
    for room, names in SETUP_PARTS.items():
        for name in names:
            option = f"`{declared(name)[-2]}`" if name in OF_PREDICTIONS else ""
            rows.append(f"| `{name}` | {room} | {option} | {SETTINGS[name].metadata['about']} |")
    return "\n".join(rows)
