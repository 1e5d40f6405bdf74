"""Slurms of this machine side by side, each with one replay at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, TypeVar

from tests.servers.slurmd import Slurm

Cluster = TypeVar("Cluster", bound=Slurm)
Item = TypeVar("Item")


def run(*command: str) -> None:
    """Run a command, and show it."""
    sys.stdout.write(f"$ {' '.join(command)}\n")
    sys.stdout.flush()
    subprocess.run(command, check=True)


class Clusters(Generic[Cluster]):
    """Slurms whose servers run."""

    def __init__(self, clusters: list[Cluster]) -> None:
        """Take the clusters, which are all free."""
        self.all = clusters
        self._free: SimpleQueue[Cluster] = SimpleQueue()
        for cluster in clusters:
            self._free.put(cluster)

    def each(self, work: Callable[[Cluster, Item], None], items: Iterable[Item]) -> None:
        """Do the work for each item, on a cluster that is free."""

        def one(item: Item) -> None:
            cluster = self._free.get()
            try:
                work(cluster, item)
            finally:
                self._free.put(cluster)

        with ThreadPoolExecutor(len(self.all)) as pool:
            for done in [pool.submit(one, item) for item in items]:
                done.result()


@contextmanager
def side_by_side(make: Callable[[Path], Cluster], count: int) -> Iterator[Clusters[Cluster]]:
    """Start `count` clusters, each made with a folder of its own. A signal to end stops them, too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="tracebed-slurm-") as folder:
        Path(folder).chmod(0o755)
        clusters = [make(Path(folder) / f"slurm{number}") for number in range(count)]
        try:
            for cluster in clusters:
                cluster.up()
            yield Clusters(clusters)
        finally:
            for cluster in clusters:
                cluster.down()
