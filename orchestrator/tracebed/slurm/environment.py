"""The environment in which the commands of Slurm find their cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tracebed.ground.errors import InputError, TestbedError

WITHOUT_CONF = "configuration source"
"""Part of the message of a command of Slurm that finds neither a slurm.conf nor a server that has one."""


def check_conf(environment: Mapping[str, str]) -> None:
    """Raise InputError if `SLURM_CONF` names a file that does not exist. The commands would retry for a minute."""
    conf = environment.get("SLURM_CONF")
    if conf and not Path(conf).is_file():
        hint = "set SLURM_CONF to the path of slurm.conf, or unset it for that of the system"
        raise InputError("is not a file", where=f"SLURM_CONF={conf}", hint=hint)


def explained(error: TestbedError) -> TestbedError:
    """Return the error of a command of Slurm, with a hint if the command found no cluster."""
    if WITHOUT_CONF not in error.what:
        return error
    return TestbedError(error.what, where=error.where, hint="set SLURM_CONF to the path of slurm.conf")
