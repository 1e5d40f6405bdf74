"""Data of an application beside the state of its job, and how they move at a resize: figures 5 to 7 of the DMR paper.

The **common data** are identical on all ranks. A rank that joins gets a copy from the leader. The **worker data** of a
rank grow with its work. When ranks join, the other ranks keep their worker data. Before ranks leave, and at the end of
the job, the worker data of all ranks are merged along a binary tree into the data of the leader. The **results** of a
rank go to the leader, which writes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tracebed.benchmarks.connections import Data


class DataKernel(ABC):
    """A compute kernel with own data. Workers call it in threads, and the other methods are called between parts."""

    @abstractmethod
    def __call__(self, first: int, count: int) -> int:
        """Do `count` units from the unit `first` on, and return their checksum, as any compute kernel."""

    @abstractmethod
    def common(self) -> bytes:
        """Return the common data."""

    @abstractmethod
    def adopt(self, common: Data) -> None:
        """Use the common data of the leader."""

    @abstractmethod
    def take(self) -> bytes:
        """Return the worker data of this rank, and continue without worker data."""

    @abstractmethod
    def merge(self, worker: Data) -> None:
        """Add the worker data of another rank to the worker data of this rank."""

    @abstractmethod
    def results(self) -> bytes:
        """Return the results of this rank since the last call."""

    @abstractmethod
    def open(self, output: Path) -> None:
        """Begin to write results, on the leader. `output` is a path without suffix in the folder of the job."""

    @abstractmethod
    def write(self, results: Data) -> None:
        """Write results of a rank, on the leader. Raises OSError if they cannot be written."""

    @abstractmethod
    def finish(self, checksum: int | None) -> None:
        """Write the remaining results. Data that disagree with a checksum of the job are a TestbedError."""


class Merging:
    """The merge of the worker data of all ranks into the data of the leader, which directs it.

    At distance 1, 2, 4, ... a rank at a position (in `order`, the leader first) that is a multiple of twice the
    distance receives the data of the rank at this distance. All merges of a distance run at the same time.
    """

    def __init__(
        self, order: Sequence[str], data: DataKernel, send: Callable[..., None], done: Callable[[], None]
    ) -> None:
        self._order, self._data, self._send, self._done = order, data, send, done
        self._distance = 1
        self._target: dict[str, str] = {}  # rank whose data are on their way -> the rank that merges them
        self._left = 0
        self.moved = 0  # number of bytes that have moved

    def begin(self) -> None:
        """Request the data of one distance, or end if all data have been merged."""
        order, distance = self._order, self._distance
        sources = range(distance, len(order), 2 * distance)
        self._target = {order[source]: order[source - distance] for source in sources}
        self._left = len(sources)
        for source in self._target:
            self._send(source, {"type": "give"})
        if not sources:
            self._done()

    def given(self, source: str, worker: Data) -> None:
        """Pass the data of a rank on to the rank that merges them."""
        target = self._target[source]
        self.moved += len(worker)
        if target == self._order[0]:
            self._data.merge(worker)
            self.merged()
        else:
            self._send(target, {"type": "worker"}, worker)

    def merged(self) -> None:
        """Continue after a rank has merged data."""
        self._left -= 1
        if not self._left:
            self._distance *= 2
            self.begin()


def answer(data: DataKernel, message: dict[str, Any], received: Data, send: Callable[..., None]) -> bool:
    """Process a message of the leader about the data of a follower. Return whether the message is about data."""
    match message["type"]:
        case "common":
            data.adopt(received)
            send({"type": "adopted"})
        case "give":
            send({"type": "worker"}, data.take())
        case "worker":
            data.merge(received)
            send({"type": "merged"})
        case _:
            return False
    return True
