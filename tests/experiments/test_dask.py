"""Studies on Dask workers that are processes of their own, and on workers that are jobs of a real Slurm."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.experiments.test_simulated_experiments import HERE, run, study
from tests.patience import GUARD_S, matching, until
from tests.servers import slurmd
from tracebed.ground.errors import InputError
from tracebed.ground.version import version
from tracebed.validation.experiments import pools
from tracebed.validation.experiments.pools import DaskPool

__all__ = ["study"]  # the fixture

pytest.importorskip("distributed")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_is_left")]
LOOPBACK = ("--host", "127.0.0.1", "--no-dashboard")
HERE_TOO = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])}
"""The functions of this module are computed by workers, which import it."""


class Cluster:
    """A Dask scheduler, and workers of one thread."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "scheduler.json"
        self.started: list[subprocess.Popen[bytes]] = []
        self.scheduler = self.start("dask_scheduler", "--port", "0", "--scheduler-file", str(self.file), *LOOPBACK)
        self.address = ""
        if not until(self.has_address):
            self.end()
            raise AssertionError(f"no address of the scheduler after {GUARD_S} s")

    def has_address(self) -> bool:
        """Read the address from the file of the scheduler, which is empty for a while before its content appears."""
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            self.address = str(json.loads(self.file.read_text())["address"])
        return bool(self.address)

    def start(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.{program}", *words]
        process = subprocess.Popen(command, env=os.environ | HERE_TOO, stderr=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def worker(self) -> subprocess.Popen[bytes]:
        return self.start("dask_worker", *self.as_worker())

    def as_worker(self) -> tuple[str, ...]:
        return ("--scheduler-file", str(self.file), "--nthreads", "1", "--no-nanny", *LOOPBACK)

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose scheduler ends if a test takes too long: a client waits for workers as long as there is one."""
    found = Cluster(tmp_path)
    guard = threading.Timer(2 * GUARD_S, found.scheduler.kill)
    guard.start()
    yield found
    guard.cancel()
    found.end()


def marked(item: tuple[str, int]) -> int:
    """Note in a file that the item is computed and by whom; the first computation of item 0 waits for its end."""
    folder, number = Path(item[0]), item[1]
    done = list(folder.glob(f"{number}-*"))
    (folder / f"{number}-{os.getpid()}").touch()
    if number == 0 and not done:
        time.sleep(GUARD_S)
    return 10 * number


def computed(folder: Path) -> Counter[int]:
    """Return how many processes have computed each item."""
    return Counter(int(path.name.partition("-")[0]) for path in folder.iterdir())


def disturbed(pool: DaskPool, folder: Path, strike: Callable[[int], object]) -> dict[tuple[str, int], Any]:
    """Compute 20 items. When 19 are back, call `strike` with the process that computes item 0.

    A worker keeps a result until it is fetched, so that an earlier death may lose one.
    """
    results = pool.map(marked, [(str(folder), number) for number in range(20)])
    found = dict(itertools.islice(results, 19))
    assert until(lambda: matching(folder, "0-*")), "item 0 does not begin"
    (path,) = folder.glob("0-*")
    strike(int(path.name.partition("-")[2]))
    return found | dict(results)


def test_after_the_death_of_a_worker_only_the_item_that_it_computed_is_computed_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    marks, killed = tmp_path / "marks", list[int]()
    marks.mkdir()
    workers = [cluster.worker() for _ in range(2)]

    def kill(worker: int) -> None:
        killed.append(worker)
        psutil.Process(worker).kill()

    with DaskPool(cluster.address) as pool:
        found = disturbed(pool, marks, kill)
    assert found == {(str(marks), number): 10 * number for number in range(20)}
    assert computed(marks) == Counter({0: 2} | dict.fromkeys(range(1, 20), 1))
    assert killed[0] in [worker.pid for worker in workers]


def test_after_the_death_of_the_scheduler_the_same_command_computes_what_is_missing(
    cluster: Cluster, study: Callable[..., Path], tmp_path: Path
) -> None:
    path, out = study(seeds=20), tmp_path / "out"
    cluster.worker()

    def kill_the_scheduler() -> None:
        assert until(lambda: len(matching(out, "**/cells/*.json")) >= 3), "too few cells"
        cluster.scheduler.kill()

    murderer = threading.Thread(target=kill_the_scheduler)
    murderer.start()
    result = run(path, "-o", out, "--dask", cluster.address)
    murderer.join()
    assert isinstance(result.exception, InputError)
    assert "the connection to the Dask scheduler is lost" in str(result.exception)
    assert "Traceback" not in result.output
    cluster.end()  # the worker may still finish its cell
    before = {cell: cell.stat().st_mtime_ns for cell in out.glob("**/cells/*.json")}
    assert len(before) >= 3

    assert run(path, "-o", out, *HERE).exit_code == 0
    after = {cell: cell.stat().st_mtime_ns for cell in out.glob("**/cells/*.json")}
    assert len(after) > len(before)
    assert {cell: after[cell] for cell in before} == before


def test_a_scheduler_that_dies_while_it_sends_a_result_is_named(
    cluster: Cluster, study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Future
    from distributed.comm import CommClosedError

    def closed(self: Future) -> None:
        raise CommClosedError("in <TCP (closed)>: ConnectionResetError: [Errno 104] Connection reset by peer")

    cluster.worker()
    monkeypatch.setattr(Future, "result", closed)
    result = run(study(seeds=2), "-o", tmp_path / "out", "--dask", cluster.address)
    assert isinstance(result.exception, InputError)
    assert "the connection to the Dask scheduler is lost" in str(result.exception)


def test_a_worker_with_another_tracebed_ends_the_command_and_no_cell_is_kept(
    cluster: Cluster, study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.worker()
    monkeypatch.setattr(pools, "_code", lambda: ("0.0.1", "other"))
    result = run(study(seeds=2), "-o", tmp_path / "out", "--dask", cluster.address)
    assert isinstance(result.exception, InputError)
    what = rf"a Dask worker has another tracebed \({version()}\) than this command \(0\.0\.1\) \(install the same wheel"
    assert re.search(what, str(result.exception))
    assert not list(tmp_path.glob("out/**/cells/*.json"))


def test_without_workers_the_command_says_so_and_waits(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setattr(pools, "LOOK_S", 0.1)
    said: list[str] = []

    def start_a_worker(message: Warning | str, *_: object) -> None:
        said.append(str(message))
        cluster.worker()

    with warnings.catch_warnings(), DaskPool(cluster.address) as pool:
        warnings.simplefilter("always")
        warnings.showwarning = start_a_worker
        found = dict(pool.map(marked, [(str(marks), 1)]))
    assert found == {(str(marks), 1): 10}
    (text,) = said
    assert text.startswith(f"{cluster.address} has no workers: waiting for workers (")


@pytest.mark.skipif(bool(slurmd.reason_to_skip()), reason=slurmd.reason_to_skip() or "")
def test_workers_are_jobs_of_slurm_one_of_which_is_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    slurm = slurmd.Slurm(tmp_path / "slurm", nodes=2)
    slurm.folder.mkdir()
    try:
        slurm.up()
        worker = shlex.join([sys.executable, "-m", "distributed.cli.dask_worker", *cluster.as_worker()])
        said = slurm("sbatch", "--parsable", "--array=1-2", "--wrap", f"exec {worker}", **HERE_TOO)
        jobs = said.strip()

        def cancel(worker: int) -> None:
            slurm("scancel", f"{jobs}_{psutil.Process(worker).environ()['SLURM_ARRAY_TASK_ID']}")

        with DaskPool(cluster.address) as pool:
            found = disturbed(pool, marks, cancel)
        assert found == {(str(marks), number): 10 * number for number in range(20)}
        assert computed(marks) == Counter({0: 2} | dict.fromkeys(range(1, 20), 1))
        slurm("scancel", jobs)
        slurm.until(lambda: not slurm("squeue", "-h").strip(), "end of the jobs")
    finally:
        slurm.down()
