"""Calibrations of testbeds: what replays there take time for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tracebed.orchestrator.calibrating import procedure
from tracebed.orchestrator.calibration import Calibration
from tracebed.orchestrator.testbeds.inventory import load_inventory
from tracebed.orchestrator.testbeds.nodes import Inventory

AnyCalibration: TypeAlias = Calibration | Path | str
"""A calibration, or its file."""


def calibrate(
    nodes: Inventory | Path | str,
    *,
    speed: float = 100.0,
    repetitions: int = procedure.REPETITIONS,
    seconds: float = 1.0,
    on_progress: Callable[[float], None] | None = None,
) -> Calibration:
    """Measure what replays on an inventory take time for, by replays of small workloads.

    The work rate of computing nodes is also stored for later replays on this machine.

    Args:
        nodes: an inventory, or the name or path of one.
        speed: trace seconds per wall second of the probes.
        repetitions: number of replays of each probe.
        seconds: factor on the duration of the probes.
        on_progress: called with the share of the work that is done.

    Returns:
        the calibration. `Calibration.save` writes it.

    Raises:
        InputError: the inventory cannot be used, or a number is out of its range.
        TestbedError: the agents of the testbed do not start, or a probe was interrupted.

    Example:
        >>> import tracebed.api as tb
        >>> made = tb.calibrate("emulated-4", repetitions=1, seconds=0.1)
        >>> made.overheads["launch_s"].value > 0
        True
    """
    chosen = nodes if isinstance(nodes, Inventory) else load_inventory(nodes)
    return procedure.calibrate(chosen, speed=speed, repetitions=repetitions, seconds=seconds, on_progress=on_progress)


def loaded_calibration(calibration: AnyCalibration | None) -> Calibration | None:
    """Return a calibration that is given as such or as a file."""
    return Calibration.load(calibration) if isinstance(calibration, Path | str) else calibration


def warn_of_another_testbed(calibration: Calibration, nodes: Inventory) -> None:
    """Warn if the calibration was made on another inventory, kind of nodes, grain or duty."""
    duty = nodes.duty(calibration.duty or None)
    differing = {
        "inventory": (calibration.inventory, nodes.name),
        "execution": (calibration.execution, nodes.execution),
        "grain": (calibration.grain_s, nodes.grain_s),
        "duty": (calibration.duty, duty),
    }
    for what, (made, given) in differing.items():
        if made != given:
            text = f"the calibration was made for {what} {made}, but the prediction is for {what} {given}"
            warnings.warn(text, stacklevel=3)
