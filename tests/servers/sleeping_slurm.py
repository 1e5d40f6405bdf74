"""A real Slurm whose nodes sleep: its SuspendProgram stops the slurmd of a node, and its ResumeProgram starts it.

The programs write what they do, and when, into `power.log` in the folder of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.servers.slurmd import SEARCHED, Slurm

PROGRAM = """#!/bin/sh
export PATH={path} TZ=UTC
cd {folder}
nodes=$(scontrol show hostnames "$1")
note() {{ for node in $nodes; do echo "$(date +%s.%N) $1 $node" >>power.log; done; }}
"""
SUSPEND = """note off
for node in $nodes; do kill "$(cat slurmd-$node.pid)"; done
"""
RESUME = """note boot
sleep {boot_s}
note on
for node in $nodes; do setsid slurmd -D -b -N $node </dev/null >>$node.out 2>&1 & done
"""
"""`-b` says that the node has booted: slurmctld takes no other registration, since the machine itself did not boot."""


class PowerNote(NamedTuple):
    """What a program did to a node, and when, s since 1970."""

    at: float
    what: str
    """`off`, `boot`: the decision of slurmctld; `on`: the slurmd starts."""
    node: str


class SleepingSlurm(Slurm):
    """A cluster whose nodes are switched off after `suspend_s` idle seconds, and boot for `boot_s` seconds."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 8,
        *,
        suspend_s: int,
        boot_s: float,
        suspend_timeout_s: int = 4,
        resume_timeout_s: int = 60,
        settings: Mapping[str, str] | None = None,
        accounting: bool = False,
    ) -> None:
        """Describe a cluster. `settings` replaces or adds keys of slurm.conf."""
        power = {
            "SuspendProgram": "{folder}/suspend",
            "ResumeProgram": "{folder}/resume",
            "SuspendTime": str(suspend_s),
            "SuspendTimeout": str(suspend_timeout_s),
            "ResumeTimeout": str(resume_timeout_s),
        }
        super().__init__(folder, nodes, accounting=accounting, settings=power | dict(settings or {}))
        self.boot_s = boot_s

    def _configure(self) -> None:
        super()._configure()
        for name, text in (("suspend", SUSPEND), ("resume", RESUME)):
            program = self.folder / name
            program.write_text((PROGRAM + text).format(path=SEARCHED, folder=self.folder, boot_s=self.boot_s))
            program.chmod(0o755)  # slurmctld refuses a program that others can write
        (self.folder / "power.log").touch()

    def notes(self) -> list[PowerNote]:
        """Return what the programs have done."""
        words = [line.split() for line in (self.folder / "power.log").read_text().splitlines()]
        return [PowerNote(float(at), what, node) for at, what, node in words]

    def asleep(self) -> bool:
        """Return whether all nodes are off, and may be allocated."""
        return self("sinfo", "-h", "-N", "-o", "%T").split() == ["idle~"] * self.nodes
