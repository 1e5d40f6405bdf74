"""Files of thresholds: for each kind of nodes, the limits of the signals by which health is judged."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from tracebed.ground.registry import unknown
from tracebed.ground.yaml_file import YamlFile

# Kinds of nodes: emulated nodes, computing nodes with a duty below 1, and computing nodes with duty 1.
KINDS = ("emulated", "paced", "computing")
HINT = "keys: all, emulated, paced, computing; in each, signal: {degraded: LIMIT, unhealthy: LIMIT}"


class Signal(NamedTuple):
    """A figure by which health is judged."""

    meaning: str  # Description of the figure. Messages have the value after it.
    unit: str  # `%` (the value is a share), `s` (wall seconds), `MiB`, or empty (a count or a ratio)
    falls: bool = False  # whether smaller values are worse


PRESSURES = {
    "cpu_pressure": Signal("time in which a process of the machine waited for a CPU", "%"),
    "io_pressure": Signal("time in which a process of the machine waited for input or output", "%"),
    "memory_pressure": Signal("time in which a process of the machine waited for memory", "%"),
}
STEAL = Signal("CPU time taken by the hypervisor", "%")

Limits = TypeVar("Limits", bound=BaseModel)  # the model of the limits of a signal


class LimitsFile(BaseModel, Generic[Limits]):
    """The content of a file: signal -> limits, for all kinds, and for each kind."""

    model_config = ConfigDict(extra="forbid")

    all: dict[str, Limits] = {}
    emulated: dict[str, Limits] = {}
    paced: dict[str, Limits] = {}
    computing: dict[str, Limits] = {}


def limits_of(
    yaml: YamlFile, model: type[LimitsFile[Limits]], signals: Collection[str]
) -> dict[str, dict[str, Limits]]:
    """Return kind -> signal -> limits of a file with the given model. The message of an error has the line."""
    file = yaml.checked(model)
    for section in ("all", *KINDS):
        for name in getattr(file, section):
            if name not in signals:
                error = unknown("signal", name, list(signals))
                raise yaml.error(error.what, section, name, hint=error.hint)
    return {kind: {**file.all, **getattr(file, kind)} for kind in KINDS}
