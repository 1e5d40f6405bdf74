"""A benchmark of this machine for Python: changes of the number of ranks. PILS, STREAM and the aligner need no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from tracebed.ground.registry import one_of

if TYPE_CHECKING:
    from tracebed.benchmarks.stages import ReconfigurationStages

Transport: TypeAlias = Literal["connections", "mpi"]


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
