"""The aligner: chunks, splices and checksum do not depend on resizes, and its data move as in the DMR paper."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.test_pils import CPU, CPUS, Rank, launch
from tests.servers.agents import stopped
from tracebed.benchmarks import application_data
from tracebed.benchmarks.application_data import Merging
from tracebed.benchmarks.applications.aligner import JUNCTIONS, Aligner, Aligning
from tracebed.benchmarks.applications.base import load_application
from tracebed.benchmarks.kernels import compute
from tracebed.benchmarks.program import Launch, Program
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.scheduling.policies.dmr import Dmr
from tracebed.orchestrator.testbeds.nodes import Inventory, Node


class Unhurried(Aligning):
    """The work of a rank that is slow until the file `resized` exists: the job ends after its resizes."""

    resized: Path

    def __call__(self, first: int, count: int) -> int:
        if not self.resized.exists():
            time.sleep(0.005)
        return super().__call__(first, count)


@dataclass(frozen=True)
class UnhurriedAligner(Aligner):
    """An aligner that waits for a test."""

    resized: Path = Path("/")

    def kernel(self, program: Program) -> Aligning:
        kernel = Unhurried(self.chunk, self.index_mib)
        kernel.resized = self.resized
        return kernel


ALIGNER = Aligner(chunk=100, index_mib=1)
READS = 20_050
PROGRAM = Program("aligner", 50, READS - 50, 1000, 1e6, balance="dynamic")


def undisturbed(duty: float, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the chunks and the summary of one kernel that aligns all reads at once."""
    alone = Aligning(ALIGNER.chunk, ALIGNER.index_mib)
    alone.open(folder / "alone")
    checksum = alone(0, int(READS * duty))
    alone.write(alone.results())
    alone.finish(checksum)
    return written(folder, "alone")


def written(folder: Path, leader: str) -> tuple[list[str], dict[str, Any]]:
    """Return the lines of the chunks, sorted by chunk, and the summary that a leader has written."""
    lines = (folder / f"{leader}.chunks").read_text().splitlines()
    return sorted(lines, key=lambda line: int(line.split()[0])), json.loads(
        (folder / f"{leader}.summary.json").read_text()
    )


class Job:
    """A job whose ranks join and leave."""

    def __init__(self, folder: Path, program: Program, duty: float) -> None:
        self.folder, self.program, self.duty, self.requests = folder, program, duty, 0
        self.present: dict[str, Rank] = {}
        self.add("a")
        self.present["a"].hear("started")

    def add(self, name: str, run: Callable[[Launch, socket.socket], int] | None = None) -> None:
        run = run or UnhurriedAligner(ALIGNER.chunk, ALIGNER.index_mib, self.folder / "resized").run
        launched = launch(name, self.program, self.folder, duty=self.duty, members=("a",), cpus=(CPU,))
        self.present[name] = Rank(launched, run)

    def resize(self, members: Sequence[str]) -> dict[str, Any]:
        for name in set(members) - self.present.keys():
            self.add(name)
        self.requests += 1
        self.present["a"].tell(request=self.requests, members=members)
        resized = self.present["a"].hear("resized", "finished")
        assert resized["type"] == "resized", resized
        for name in set(self.present) - set(members):
            self.end(name)
        return resized

    def end(self, name: str) -> dict[str, Any]:
        rank = self.present.pop(name)
        finished = rank.hear("finished")
        assert (finished["state"], rank.join()) == ("completed", 0), finished
        return finished


@pytest.mark.parametrize(
    ("seed", "duty"), [(1, 1.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, 1.0), (2, 0.5)))]
)
def test_the_result_does_not_depend_on_resizes(tmp_path: Path, seed: int, duty: float) -> None:
    draw = random.Random(seed)
    chunks, summary = undisturbed(duty, tmp_path)
    assert len(chunks) == summary["chunks"] == -(-int(READS * duty) // 100)
    job = Job(tmp_path, PROGRAM, duty)
    for _ in range(6):
        before = set(job.present)
        members = ["a", *draw.sample("bcdef", draw.randint(0, 5))]
        stages = job.resize(members)["stages"]
        joined, left = set(members) - before, before - set(members)
        merged = 8 * JUNCTIONS * (len(before) - 1) if left else 0
        assert stages["moved_mib"] == len(joined) * ALIGNER.index_mib + merged / 2**20
    (tmp_path / "resized").touch()
    ended = {name: job.end(name) for name in sorted(job.present, reverse=True)}
    assert ended["a"]["checksum"] == summary["checksum"]
    assert written(tmp_path, "a") == (chunks, summary)


def test_an_emulated_aligner_writes_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, PROGRAM, 0.0)
    job.end("a")
    assert not list(tmp_path.glob("*.chunks"))


def test_a_wrong_index_changes_the_checksum(tmp_path: Path) -> None:
    right, wrong = Aligning(100, 1), Aligning(100, 1)
    wrong.adopt(bytes(len(right.common())))
    assert right(0, 100) != wrong(0, 100)
    assert right(1, 99) == wrong(1, 99) == compute(1, 99)  # only the first read of a chunk uses the index


@given(st.lists(st.integers(0, 999), max_size=8), st.integers(1, 5))
def test_the_sums_do_not_depend_on_the_division_of_the_reads(cuts: list[int], ranks: int) -> None:
    workers = [Aligning(100, 1) for _ in range(ranks)]
    ends = [0, *sorted(cuts), 1000]
    total = sum(workers[index % ranks](first, end - first) for index, (first, end) in enumerate(pairwise(ends)))
    alone = Aligning(100, 1)
    assert total % 2**64 == alone(0, 1000)
    for other in workers[1:]:
        workers[0].merge(other.take())
        assert not any(other.splices)
    assert workers[0].splices == alone.splices


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 10])
def test_worker_data_are_merged_along_a_tree(ranks: int) -> None:
    """Figure 6 of the DMR paper: at distance 1 the odd ranks send, at distance 2 every other of the rest, and so on."""
    workers = [Aligning(100, 1) for _ in range(ranks)]
    for worker in workers:
        worker.splices[0] = 1
    sent: list[tuple[int, int]] = []
    names = [str(index) for index in range(ranks)]
    queue: list[Callable[[], None]] = []
    done: list[bool] = []

    def send(rank: str, message: dict[str, Any], data: bytes = b"") -> None:
        def answer(message: dict[str, Any], data: bytes = b"") -> None:
            if message["type"] == "worker":
                sent.append((int(rank), int(merging._target[rank])))
                queue.append(lambda: merging.given(rank, data))
            else:
                queue.append(merging.merged)

        application_data.answer(workers[int(rank)], message, data, answer)

    merging = Merging(names, workers[0], send, lambda: done.append(True))
    merging.begin()
    while queue:
        queue.pop(0)()
    assert done == [True]
    assert [worker.splices[0] for worker in workers] == [ranks, *[0] * (ranks - 1)]
    step = [(rank, rank - (rank & -rank)) for rank in range(1, ranks)]  # its lowest bit is the distance
    assert sorted(sent) == step
    assert sent == sorted(step, key=lambda pair: (pair[0] - pair[1], pair[0]))


def test_a_rank_killed_while_data_are_merged_fails_the_job(tmp_path: Path) -> None:
    def stopping(launched: Launch, control: socket.socket) -> int:
        def take(self: Aligning) -> bytes:
            os.kill(os.getpid(), signal.SIGSTOP)
            raise AssertionError("continued")

        Aligning.take = take  # type: ignore[method-assign]  # in the process of this rank only
        return ALIGNER.run(launched, control)

    job = Job(tmp_path, PROGRAM._replace(parallel_units=10**9, iterations=10**6), 1.0)
    job.add("b", stopping)
    job.resize(["a", "b"])
    job.present["a"].tell(request=9, members=["a"])
    process = psutil.Process(job.present["b"].process.pid)
    assert stopped(process)
    process.kill()
    finished = job.present["a"].hear("finished")
    assert (finished["state"], finished["reason"]) == ("failed", "lost rank 'b'")
    assert (job.present["a"].join(), job.present["b"].join()) == (1, -9)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_the_chunks_fails_the_job_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "a.chunks").symlink_to("/dev/full")
    leader = Rank(launch("a", PROGRAM, tmp_path, duty=1.0, members=("a",)), ALIGNER.run)
    finished = leader.hear("finished")
    assert finished["state"] == "failed" and "No space left on device" in finished["reason"]
    assert leader.join() == 1


def test_lost_splices_fail_the_job(tmp_path: Path) -> None:
    data = Aligning(100, 1)
    data.open(tmp_path / "a")
    checksum = data(0, 1000)
    data.write(data.results())
    data.take()
    with pytest.raises(TestbedError, match="its data have the checksums"):
        data.finish(checksum)


@pytest.mark.parametrize("parameters", [{"chunk": "0"}, {"index_mib": "0"}, {"chunk": "x"}, {"reads": "1"}])
def test_invalid_parameters_are_errors(parameters: dict[str, str]) -> None:
    assert load_application("aligner", {"chunk": "10", "index_mib": "2"}) == Aligner(10, 2)
    with pytest.raises(InputError, match=next(iter(parameters))):
        load_application("aligner", parameters)


@pytest.mark.slow
@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_a_replay_resizes_an_aligner(tmp_path: Path) -> None:
    """Job b takes a node from the aligner and gives it back. The state and the index move through real agents."""
    table = {
        "job_id": ["a", "b"],
        "submit_time": [0.0, 2.0],
        "run_time": [10.0, 0.5],
        "nodes": [1, 1],
        "kind": ["malleable", "rigid"],
        "nodes_min": [1, 1],
        "nodes_max": [2, 1],
        "nodes_pref": [2, 1],
        "application": ["aligner", "pils"],
        "application_parameters": ["chunk=100 index_mib=2", ""],
        "state_mib": [3.0, 0.0],
    }
    nodes = tuple(Node(f"n{index}", 1, 1, (CPUS[index],), False, 0.2) for index in range(2))
    inventory = Inventory("two", "agents", nodes)
    run = replay(Workload(pd.DataFrame(table)), inventory, Dmr(floor="min"), tmp_path / "run")
    assert set(run.jobs["state"]) == {"completed"}
    assert list(run.reconfigurations["kind"])[:2] == ["shrink", "expand"]
    _, entries = journal.read(tmp_path / "run" / JOURNAL)
    [ended] = [e.data for e in entries if e.kind == "ended" and e.data.get("leader") and e.job == "a"]
    moved = 8 * JUNCTIONS / 2**20  # the splices of a rank
    assert list(run.reconfigurations["moved_mib"])[:2] == [1.5 + moved, 1.5 + 2.0]
    units = sum(e.data["units_done"] for e in entries if e.kind == "ended" and e.job == "a")
    assert ended["checksum"] == f"{Aligning(100, 2)(0, int(units * 0.2)):016x}"


@pytest.fixture(autouse=True)
def no_rank_remains() -> Iterator[None]:
    """No test leaves a process."""
    yield
    assert psutil.Process().children() == []
