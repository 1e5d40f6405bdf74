"""The values of `-P`: single parameters of a policy, or those of a slurm.conf and of Slurm's database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracebed.cli.messages import warn
from tracebed.ground.errors import InputError


def parsed(options: Sequence[str], *, nodes: int | None = None, plain: bool = False) -> dict[str, str]:
    """Return the policy options, `name=value` or `@FILE`, as a dictionary. The last value of a name counts.

    All files together describe a cluster of Slurm; their parameters come in the place of the first file.

    Args:
        options: the options.
        nodes: nodes of the machine of the workload; None: unknown.
        plain: whether equal nodes in one partition of a slurm.conf are the machine.

    Raises:
        InputError: an option has another form, a file cannot be read or is not a slurm.conf, or the nodes in a file
            contradict `nodes`.
    """
    parameters: dict[str, str] = {}
    files = [Path(option[1:]) for option in options if option.startswith("@")]
    for option in options:
        if option.startswith("@"):
            parameters |= _of_slurm(files, nodes, plain) if files else {}
            files = []
            continue
        name, equals, value = option.partition("=")
        if not (name and equals):
            raise InputError(f"policy option {name!r} has no value", hint="write NAME=VALUE, or @FILE of a slurm.conf")
        parameters[name.strip().replace("-", "_")] = value.strip()
    return parameters


def _of_slurm(paths: Sequence[Path], nodes: int | None, plain: bool) -> dict[str, str]:
    """Return the parameters of the policy `slurm` from files of Slurm. Warn of settings that are not modeled."""
    import tracebed.api as tb

    parameters, differences = tb.slurm_parameters(paths, nodes, plain=plain)
    for difference in differences:
        warn(f"{', '.join(map(str, paths))}: {difference}")
    return parameters
