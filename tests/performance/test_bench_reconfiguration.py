"""The stages of a resize, and the cost of an expansion and of a shrink against a plain start of the same ranks."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.test_pils import CPUS
from tests.benchmarks.test_redistribution import COMPUTING, Group
from tracebed.benchmarks.stages import ReconfigurationStages, table

NAMES = "abcdef"
ROUNDS = 15


class Ranks(Group):
    """Ranks that compute at full speed, each on the next CPU of this machine."""

    def __init__(self, folder: Path, mib: float, ranks: int) -> None:
        folder.mkdir()
        (folder / "resized").touch()
        self.begun = time.monotonic()
        super().__init__(folder, mib, COMPUTING, NAMES[:ranks])
        self.started_s = time.monotonic() - self.begun

    def add(self, name: str, **changes: Any) -> None:
        super().add(name, cpus=(CPUS[NAMES.index(name) % len(CPUS)],), **changes)

    def change(self, ranks: int) -> tuple[float, ...]:
        """Resize the job, and return the times of the stages and the moved state."""
        members = NAMES[:ranks]
        self.ask(*members)
        stages = self.leader.hear("resized")["stages"]
        ends = []
        for name in set(self.present) - set(members):
            rank = self.present.pop(name)
            left = rank.hear("finished")["left"]
            assert rank.join() == 0
            ends.append(time.monotonic() - left)
        times = (stages["decision_s"], stages["spawn_s"], stages["redistribution_s"], max(ends, default=0.0))
        return (*times, stages["moved_mib"])


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """Names of folders that do not exist."""
    return (tmp_path / str(number) for number in count())


@pytest.mark.parametrize("mib", [0.0, 64.0])
def test_stages_of_resizes(benchmark: Any, folders: Iterator[Path], mib: float) -> None:
    """Medians. The program prints the table of the stages as the benchmark of resizes through MPI."""
    changes = [(1, 2), (1, 4), (2, 4), (4, 2), (4, 1)]
    found: dict[tuple[int, int], list[tuple[float, ...]]] = {change: [] for change in changes}
    plain: dict[int, list[float]] = {1: [], 2: [], 4: []}

    def measure() -> None:
        for ranks, times in plain.items():
            job = Ranks(next(folders), mib, ranks)
            times.append(job.started_s)
            job.kill()
        for before, after in changes:
            job = Ranks(next(folders), mib, before)
            time.sleep(0.05)
            found[before, after].append(job.change(after))
            job.kill()

    benchmark.pedantic(measure, rounds=ROUNDS, warmup_rounds=1)
    rows = [
        ReconfigurationStages(
            *change, *map(statistics.median, zip(*times, strict=True)), statistics.median(plain[change[1]])
        )
        for change, times in found.items()
    ]
    benchmark.extra_info["stages"] = [row._asdict() for row in rows]
    sys.stdout.write(f"\nstate of {mib:g} MiB\n{table(rows)}")
