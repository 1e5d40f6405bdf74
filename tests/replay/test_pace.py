"""The pace of a replay: the duty of its nodes, and the steady clock."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

from tests.oracles.redecided import decided, decided_again, emulated, virtual, workload
from tests.patience import until
from tests.runs import replaying
from tracebed.benchmarks.clock import SteadyClock
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.replay import journal, pace
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.testbeds.nodes import DEFAULT_DUTY, Inventory, Node

CPUS = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.usefixtures("no_process_is_left")


def jobs_in_a_row(count: int = 3, seconds: float = 5.0) -> Workload:
    """Return jobs that run one after the other on one node."""
    table = {"job_id": [str(job) for job in range(count)], "submit_time": 0.0, "run_time": seconds, "nodes": 1}
    return Workload(pd.DataFrame(table | {"time_limit": 10 * seconds}))


def computing(duty: float | None = None) -> Inventory:
    return Inventory("test", "agents", (Node("n1", 1, 1, (CPUS[0],), duty=duty),), grain_s=0.02)


def test_a_node_has_its_own_duty_else_the_proposed_one_else_the_default() -> None:
    assert Node("n", 1, duty=0.7).duty_or(0.9) == 0.7
    assert Node("n", 1).duty_or(0.9) == 0.9
    assert Node("n", 1).duty_or(None) == DEFAULT_DUTY
    assert Node("n", 1, emulated=True).duty_or(0.9) == 0.0
    nodes = (Node("a", 1, duty=1.0), Node("b", 1))
    assert Inventory("test", "agents", nodes).duty(0.8) == [1.0, 0.8]
    assert Inventory("test", "agents", nodes[1:]).duty() == DEFAULT_DUTY


@pytest.mark.slow
@pytest.mark.parametrize(
    ("duty", "options", "found"),
    [(None, replaying(100), DEFAULT_DUTY), (None, replaying(100, proposed_duty=0.2), 0.2), (1.0, replaying(100), 1.0)],
)
def test_a_run_names_its_duty_and_its_ranks_compute_that_much(
    tmp_path: Path, duty: float | None, options: dict[str, Any], found: float
) -> None:
    run = replay(jobs_in_a_row(1, 20.0), computing(duty), "fcfs", tmp_path / "run", **options)
    assert run.jobs["state"].tolist() == ["completed"]
    assert (run.info.parameters["duty"], run.info.parameters["clock"]) == (found, "wall")
    assert "clock_factor" not in run.info.parameters
    [ended] = [entry.data for entry in journal.read(tmp_path / "run" / JOURNAL)[1] if entry.kind == "ended"]
    planned = 0.2 * run.info.calibration["units_per_core_second"]
    assert ended["units_done"] == pytest.approx(planned, abs=1)
    if found < 1:  # at duty 1, the job may end before its plan, on a core that is faster than calibrated
        assert run.jobs["end"][0] - run.jobs["launched"][0] >= 20.0 - 2.0


@pytest.mark.parametrize("policy", [pytest.param("easy", marks=pytest.mark.slow), "pref"])
def test_a_replay_by_the_steady_clock_decides_like_any_other(tmp_path: Path, policy: str) -> None:
    work, inventory, out = workload(), emulated(4), tmp_path / "run"
    run = replay(work, inventory, policy, out, **replaying(400, clock="steady"))
    assert set(run.jobs["state"]) == {"completed"}
    assert (run.jobs["launched"] <= run.jobs["end"]).all()
    done = run.reconfigurations[run.reconfigurations["state"] == "applied"]
    assert (done["asked"] <= done["decided"]).all() and (done["decided"] <= done["applied"]).all()
    assert (done["applied"] <= done["ended"]).all() and done.empty == (policy == "easy")
    assert Run.load(out).info.parameters["clock"] == "steady"
    factor = run.info.parameters["clock_factor"]
    assert 0 < factor["min"] <= factor["mean"] <= 1.0 + 1e-9
    times = [entry.data for entry in journal.read(out / JOURNAL)[1] if entry.kind == "clock"]
    assert all(at["dilation"] >= 1.0 - 1e-6 for at in times)
    steady, wall = ([at[clock] for at in times] for clock in ("steady", "monotonic"))
    assert len(times) >= 1 and list(steady) == sorted(steady)
    assert (np.diff(steady) <= np.diff(wall) + 1e-6).all() and (np.diff(wall) >= pace.NOTE_S).all()
    jobs = Jobs.of(work)
    decisions = decided(out / JOURNAL)
    assert len(decisions) >= 12
    assert decided_again(out / JOURNAL, jobs, inventory, registry.load(policy)) == decisions


def test_by_the_steady_clock_a_job_does_not_begin_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short job may begin and end in one round, and the clock goes on while the round is processed."""
    monkeypatch.setattr(SteadyClock, "at", lambda self, monotonic: self.now() + 100.0)
    run = replay(workload(4), emulated(4), "fcfs", tmp_path / "run", **replaying(400, clock="steady"))
    assert (run.jobs["launched"] <= run.jobs["end"]).all()


def test_a_replay_closes_its_clock_and_its_journal(tmp_path: Path) -> None:
    replay(workload(2), emulated(4), "fcfs", tmp_path / "run", **replaying(2000, clock="steady"))
    opened = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor by which the folder was read
            opened.append(str(descriptor.readlink()))
    assert not [path for path in opened if path.startswith(f"{tmp_path}/run.partial-")]


class Stopper(threading.Thread):
    """Stops the first rank that holds the steady clock of a replay in `folder`, until `enough`; then sends `then`.

    `stopped` is the rank (0: none), `begun` the monotonic time of the stop, and `steady_s` the time of the steady clock
    that passed during the stop, s.
    """

    def __init__(self, folder: Path, enough: Callable[[Stopper], bool], then: int = signal.SIGCONT) -> None:
        super().__init__(daemon=True)
        self.folder, self.enough, self.then = folder, enough, then
        self.stopped, self.begun, self.steady_s = 0, 0.0, 0.0

    def run(self) -> None:
        assert until(lambda: any(path.stat().st_size for path in self.folder.glob("run.partial-*/clock")))
        [path] = self.folder.glob("run.partial-*/clock")
        with contextlib.closing(SteadyClock(path)) as clock:
            assert until(lambda: self._stop_within_a_part(clock), pause_s=0.001)
            self.begun = time.monotonic()
            steady = clock._at(self.begun)
            until(lambda: self.enough(self), pause_s=0.05)
            self.steady_s = clock._at(time.monotonic()) - steady
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.stopped, self.then)

    def _stop_within_a_part(self, clock: SteadyClock) -> bool:
        """Stop a rank within a part. On a busy machine, a rank may be stopped when its part has just ended."""
        deadline, process = min(zip(clock._state[3::2], clock._state[2::2], strict=True))
        if deadline == math.inf:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            rank = psutil.Process(int(process))
            rank.suspend()
            assert until(lambda: rank.status() == psutil.STATUS_STOPPED, pause_s=0.001)
            holds = deadline in clock._state[3::2]
            if holds and not re.search(rf"WRITE {rank.pid} ", Path("/proc/locks").read_text()):
                self.stopped = rank.pid
                return True
            rank.resume()
        return False

    def records(self) -> int:
        """Return the number of records of the clock in the journal that were made during the stop."""
        for path in self.folder.glob(f"run.partial-*/{JOURNAL}"):
            with contextlib.suppress(InputError):  # the journal is being written
                entries = journal.read(path)[1]
                return sum(entry.kind == "clock" and entry.data["monotonic"] > self.begun for entry in entries)
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["emulated", "computed"])
def test_a_rank_that_is_stopped_does_not_change_the_schedule(tmp_path: Path, kind: str) -> None:
    """The stop lasts longer than all jobs. The clock stands still, at the latest when the part of the rank is over."""
    inventory = Inventory("test", "agents", emulated(1).nodes, grain_s=1.0) if kind == "emulated" else computing(1.0)
    stopper = Stopper(tmp_path, lambda self: self.records() >= 3)
    stopper.start()
    work = jobs_in_a_row(3, 50.0)
    run = replay(work, inventory, "fcfs", tmp_path / "run", **replaying(100, clock="steady"))
    stopper.join()
    assert stopper.stopped and stopper.steady_s <= 0.5  # a part of a job of 0.5 s
    assert set(run.jobs["state"]) == {"completed"}
    assert run.info.parameters["clock_factor"]["min"] < 0.01  # of the time between two records
    assert decided_again(tmp_path / "run" / JOURNAL, Jobs.of(work), inventory, registry.load("fcfs")) == decided(
        tmp_path / "run" / JOURNAL
    )


@pytest.mark.slow
def test_a_steady_clock_that_stands_still_for_too_long_ends_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "STALL_S", 1.0)
    over = threading.Event()
    stopper = Stopper(tmp_path, lambda self: over.is_set())
    stopper.start()
    inventory = Inventory("test", "agents", emulated(1).nodes, grain_s=0.1)
    run = replay(jobs_in_a_row(), inventory, "fcfs", tmp_path / "run", **replaying(10, clock="steady"))
    over.set()
    stopper.join()
    assert run.info.state == "interrupted"
    [reason] = run.info.interruptions
    assert reason.startswith(f"the steady clock has stood still for 1 s: process {stopper.stopped} is a rank")


def test_a_replay_that_a_standing_clock_ends_has_the_decisions_of_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = journal.Journal.write
    submitted: set[str | None] = set()

    def seen(self: journal.Journal, entries: list[journal.Entry]) -> None:
        submitted.update(entry.job for entry in entries if entry.kind == "submit")
        write(self, entries)

    def note(self: pace.Pace) -> None:
        if submitted:
            raise TestbedError("the clock stands still")

    monkeypatch.setattr(journal.Journal, "write", seen)
    monkeypatch.setattr(pace.Pace, "note", note)
    run = replay(jobs_in_a_row(2), virtual(1), "fcfs", tmp_path / "run", **replaying(10))
    assert run.info.interruptions == ["the clock stands still"]
    assert run.jobs["start"].notna().tolist() == [True, False]
    pd.testing.assert_frame_equal(recovered(tmp_path / "run" / JOURNAL).jobs, run.jobs)


def test_a_rank_that_dies_lets_the_steady_clock_go_on(tmp_path: Path) -> None:
    Stopper(tmp_path, lambda self: True, signal.SIGKILL).start()
    inventory = Inventory("test", "agents", emulated(1).nodes, grain_s=0.5)
    run = replay(jobs_in_a_row(2), inventory, "fcfs", tmp_path / "run", **replaying(10, clock="steady"))
    assert run.jobs["state"].tolist() == ["failed", "completed"]
    assert run.jobs["reason"][0].startswith("was killed by signal 9")


def test_processes_of_several_machines_share_no_clock(tmp_path: Path) -> None:
    inventory = Inventory("test", "rack", emulated(1).nodes, where="rack.yaml")
    with pytest.raises(InputError, match=r"rack\.yaml: a steady clock needs the testbed local.*--clock wall"):
        pace.make_clock("steady", inventory, tmp_path)
    with pytest.raises(InputError, match="clock"):
        replaying(clock="sundial")
