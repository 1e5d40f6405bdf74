"""The pace of a replay: the duty of its nodes, and the steady clock."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from redecided import decided, decided_again, emulated, virtual, workload
from runs import replaying
from tracebed.benchmarks.clock import SteadyClock
from tracebed.converters.workload import Workload
from tracebed.errors import InputError, TestbedError
from tracebed.orchestrator.replay import journal, pace
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.testbeds.nodes import DEFAULT_DUTY, Inventory, Node

GUARD_S = 60.0
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
    assert not [path for path in opened if "run.partial-" in path]


class Stopper(threading.Thread):
    """Stops the first rank that holds the steady clock of a replay for `seconds`; then continues, or kills it."""

    def __init__(self, folder: Path, seconds: float, then: int = signal.SIGCONT) -> None:
        super().__init__(daemon=True)
        self.folder, self.seconds, self.then, self.stopped = folder, seconds, then, 0

    def run(self) -> None:
        until = time.monotonic() + GUARD_S
        while not (found := [path for path in self.folder.glob("run.partial-*/clock") if path.stat().st_size]):
            assert time.monotonic() < until
            time.sleep(0.01)
        with contextlib.closing(SteadyClock(found[0])) as clock:
            while not (holder := clock.holder()):
                assert time.monotonic() < until
                time.sleep(0.001)
            os.kill(holder, signal.SIGSTOP)
        self.stopped = holder
        time.sleep(self.seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder, self.then)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["emulated", "computed"])
def test_a_rank_that_is_stopped_does_not_change_the_schedule(tmp_path: Path, kind: str) -> None:
    """A pause of two seconds is 200 trace seconds by the wall clock. The jobs need 150."""
    inventory = Inventory("test", "agents", emulated(1).nodes, grain_s=1.0) if kind == "emulated" else computing(1.0)
    options = replaying(100, clock="steady")
    stopper = Stopper(tmp_path, 2.0)
    stopper.start()
    begun = time.monotonic()
    run = replay(jobs_in_a_row(3, 50.0), inventory, "fcfs", tmp_path / "run", **options)
    wall = time.monotonic() - begun
    stopper.join()
    assert stopper.stopped and wall >= 2.0
    assert set(run.jobs["state"]) == {"completed"}
    assert (run.jobs["end"] - run.jobs["launched"]).tolist() == [pytest.approx(50.0, abs=50.0)] * 3
    assert run.jobs["end"].max() < 150 + 100  # launches and ends of a busy machine
    assert run.info.parameters["clock_factor"]["min"] < 0.5


@pytest.mark.slow
def test_a_steady_clock_that_stands_still_for_too_long_ends_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "STALL_S", 1.0)
    stopper = Stopper(tmp_path, 20.0)
    stopper.start()
    inventory = Inventory("test", "agents", emulated(1).nodes, grain_s=0.1)
    run = replay(jobs_in_a_row(), inventory, "fcfs", tmp_path / "run", **replaying(10, clock="steady"))
    assert run.info.state == "interrupted"
    [reason] = run.info.interruptions
    locked = "a process has kept the lock of the steady clock"  # the rank was stopped while it held the lock
    still = f"the steady clock has stood still for 1 s: process {stopper.stopped} is a rank"
    assert reason.startswith(still) or locked in reason


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
    Stopper(tmp_path, 0.1, signal.SIGKILL).start()
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
