"""Claims on CPUs: two replays on one machine must not compute on the same CPUs.

A claim is an abstract UNIX socket with the number of the CPU in its name. The kernel refuses a second socket of the
same name, for any user, and removes the socket when the last process that holds it ends. Claims do not work across
containers with separate network namespaces.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

from tracebed.ground import system
from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import TestbedError

CLAIM_S = 3.0
"""Longest time to wait for a claim, s. The agents of a replay that was killed may take two seconds to end."""
SPACE = "TRACEBED_CLAIMS"
"""Environment variable with the name of a set of claims. Replays with different names may share CPUs, as in tests."""


def check_cpus(cpus: Sequence[int]) -> None:
    """Raise TestbedError unless this process may use all `cpus`. The kernel would ignore the others."""
    usable = os.sched_getaffinity(0)
    if absent := set(cpus) - usable:
        what = f"the inventory has the CPUs {format_cpus(absent)}, but an agent may use only the CPUs"
        what = f"{what} {format_cpus(usable)}"
        hint = "set `cpus` or `cores` of the node; `tracebed nodes facts` shows its CPUs"
        raise TestbedError(what, hint=hint)


def claim_cpus(cpus: Sequence[int], wait_s: float = CLAIM_S) -> list[socket.socket]:
    """Claim CPUs of this machine until the returned sockets are closed; wait `wait_s` for other claims to end."""
    until = system.monotonic() + wait_s
    claims = []
    taken = list(cpus)
    while taken:
        refused = []
        for cpu in taken:
            if claim := _claim(cpu):
                claims.append(claim)
            else:
                refused.append(cpu)
        taken = refused
        if taken and system.monotonic() >= until:
            for claim in claims:
                claim.close()
            what = f"another replay computes on the CPUs {format_cpus(taken)}"
            raise TestbedError(what, hint="wait until it ends, or use an inventory with other CPUs", transient=True)
        if taken:
            system.sleep(0.05)
    return claims


def _claim(cpu: int) -> socket.socket | None:
    """Return the socket that claims `cpu`, or None if the CPU is claimed."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0tracebed-{os.environ.get(SPACE, '')}-cpu-{cpu}")
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return claim
