"""The interface through which a scheduler controls the simulator or the replayer."""

from __future__ import annotations

from typing import Protocol


class Executor(Protocol):
    """Executor of the decisions: the simulator or the replayer."""

    def start(self, job: int, nodes: list[int]) -> None:
        """Start `job` on `nodes`, which are allocated to it."""

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Resize `job` from `before` nodes to `nodes`. Return whether the resize takes effect immediately.

        Otherwise the executor calls `Scheduler.resized` when the resize takes effect. `nodes` begins with the nodes
        that the job keeps. Added nodes are allocated now; dropped nodes are released when the resize takes effect.
        """
        ...

    def deny(self, job: int, requested: int) -> None:
        """Record that the running evolving `job` does not get the `requested` nodes. Here: nothing."""
        return

    def change_cores(self, job: int) -> None:
        """Continue the running `job` on its new cores; see `Cluster.cores_of`. Here: nothing."""
        return

    def reject(self, job: int, reason: str) -> None:
        """Record that the waiting `job` is rejected."""

    def cancel(self, job: int, reason: str) -> None:
        """End the running `job`; the executor calls `Scheduler.end` when the job has ended."""
