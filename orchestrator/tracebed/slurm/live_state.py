"""The state of a live Slurm cluster, asked by its commands."""

from __future__ import annotations

import os

from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.replay.batch.commands import run
from tracebed.slurm.environment import check_conf
from tracebed.slurm.state import COMMANDS, OPTIONAL

PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SLURM_JWT", "TZ")
"""Environment variables of the commands."""
ELSEWHERE = "use a machine on which Slurm's commands answer, or name a folder with their outputs"


def ask() -> dict[str, str]:
    """Return the output of `COMMANDS` by name. Optional parts that Slurm does not print are left out."""
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {"LC_ALL": "C"}
    check_conf(environment)
    texts: dict[str, str] = {}
    for name, command in COMMANDS.items():
        try:
            texts[name] = run(*command, environment=environment)
        except (InputError, TestbedError) as error:
            if name not in OPTIONAL:
                raise type(error)(error.what, where=error.where, hint=error.hint or ELSEWHERE) from error
    return texts
