"""Nodes that sleep, in a simulation: the rule of the machine, and the times of its nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import InputError
from tracebed.machine.machine import Machine
from tracebed.machine.power import Sleep


@dataclass(frozen=True)
class Sleeping:
    """When nodes are switched off, and how long that takes."""

    rule: Sleep
    boot_s: FloatArray
    """Duration of the boot of each node, s, shape (nodes,)."""
    shutdown_s: FloatArray
    """Duration of the shutdown of each node, s, shape (nodes,)."""

    @classmethod
    def of(cls, machine: Machine) -> Sleeping | None:
        """Return the sleep of a machine; None: no node is switched off.

        Raises:
            InputError: the power of a class of nodes is unknown.
        """
        if machine.sleep is None:
            return None
        powers = []
        for number, kind in enumerate(machine.classes, 1):
            if kind.power is None:
                what = f"class {number} of the machine has no `power`, and its nodes sleep"
                raise InputError(what, hint="give the class `power`, with boot_s and shutdown_s")
            powers.append(kind.power)
        counts = [kind.size for kind in machine.classes]
        boot_s, shutdown_s = (
            np.repeat([getattr(power, name) for power in powers], counts) for name in ("boot_s", "shutdown_s")
        )
        return cls(machine.sleep, boot_s.astype(np.float64), shutdown_s.astype(np.float64))
