"""Arguments that several functions take: sizes, seeds and calibrations."""

from __future__ import annotations

import warnings
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tracebed.ground import bounds
from tracebed.ground.errors import InputError

if TYPE_CHECKING:
    from tracebed.orchestrator.testbeds.calibration import Calibration
    from tracebed.orchestrator.testbeds.nodes import Inventory


def check_size(name: str, value: int) -> None:
    """Raise InputError unless `value`, the argument `name`, is a whole number from 1 to `bounds.MAX_MACHINE`."""
    bounds.check(name, value, 1, bounds.MAX_MACHINE)
    if not isinstance(value, Integral):
        raise InputError(f"{name} is {value!r}", hint="give a whole number")


def check_seed(seed: int) -> None:
    """Raise InputError unless `seed` is a whole number of at least 0."""
    if not isinstance(seed, Integral) or seed < 0:
        raise InputError(f"seed is {seed!r}", hint="give a whole number of at least 0")


AnyCalibration: TypeAlias = "Calibration | Path | str"
"""A calibration, or its file."""


def loaded_calibration(calibration: AnyCalibration | None) -> Calibration | None:
    """Return a calibration that is given as such or as a file."""
    if not isinstance(calibration, Path | str):
        return calibration
    from tracebed.orchestrator.testbeds.calibration import Calibration

    return Calibration.load(calibration)


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
            text = f"the calibration was made for {what} {made}, but it is used for {what} {given}"
            warnings.warn(text, stacklevel=3)
