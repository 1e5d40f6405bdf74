"""Benchmarks of this machine, as programs of their own: PILS, STREAM, the aligner, changes of the number of ranks."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tracebed.ground.registry import one_of

if TYPE_CHECKING:
    from tracebed.benchmarks.mpi.aligner import overhead as aligner
    from tracebed.benchmarks.stages import ReconfigurationStages, table
    from tracebed.benchmarks.standalone.pils import PilsResult
    from tracebed.benchmarks.standalone.pils import run as pils
    from tracebed.benchmarks.standalone.stream import LABEL, TOLERANCE, StreamResult
    from tracebed.benchmarks.standalone.stream import run as stream

__all__ = [
    "LABEL",
    "TOLERANCE",
    "PilsResult",
    "ReconfigurationStages",
    "StreamResult",
    "aligner",
    "pils",
    "reconfigure",
    "stream",
    "table",
]

Transport: TypeAlias = Literal["connections", "mpi"]

_HOME = {
    "aligner": ("mpi.aligner", "overhead"),
    **dict.fromkeys(("ReconfigurationStages", "table"), ("stages", "")),
    "PilsResult": ("standalone.pils", ""),
    "pils": ("standalone.pils", "run"),
    **dict.fromkeys(("LABEL", "TOLERANCE", "StreamResult"), ("standalone.stream", "")),
    "stream": ("standalone.stream", "run"),
}
"""Name -> its module and its name there. STREAM loads NumPy, whose threads would compute beside the ranks of PILS."""


def __getattr__(name: str) -> Any:
    """Import and return a name of `__all__`."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = _HOME[name]
    found = getattr(importlib.import_module(f"tracebed.benchmarks.{module}"), own or name)
    globals()[name] = found
    return found


def reconfigure(
    sizes: Sequence[int], state_mib: float, *, through: Transport = "connections"
) -> tuple[Sequence[ReconfigurationStages], str]:
    """Change the number of ranks of a job on this machine, and measure the stages of each change.

    Args:
        sizes: number of ranks at the start, then after each change.
        state_mib: size of the state that moves, MiB.
        through: way in which ranks start and state moves: the connections of replays, or MPI (extra mpi).

    Returns:
        The stages of each change, and name and version of the MPI library (empty without MPI).

    Raises:
        InputError: a size is invalid.
        TestbedError: a rank or the MPI program fails.
    """
    from tracebed.benchmarks.mpi import launch
    from tracebed.benchmarks.standalone import resizing

    one_of("through", through, ("connections", "mpi"))
    if through == "mpi":
        result = launch.reconfigure(sizes, state_mib)
        return result.stages, result.library
    return resizing.reconfigure(sizes, state_mib), ""
