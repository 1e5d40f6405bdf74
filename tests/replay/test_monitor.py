"""What is sampled during a replay, and the claims on CPUs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.oracles.redecided import emulated, workload
from tests.patience import GUARD_S
from tests.replay.test_replayer import CPUS
from tests.runs import replaying
from tracebed.benchmarks.kernels import compute
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.replay import journal, loop
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.loop import SampleFilter
from tracebed.orchestrator.replay.monitor import LoopWatch, Monitor
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.testbeds.agent import claims
from tracebed.orchestrator.testbeds.agent.claims import claim_cpus
from tracebed.orchestrator.testbeds.agent.machine import Sampler
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

pytestmark = pytest.mark.usefixtures("no_process_is_left")


def real(*cpus: int, heartbeat_s: float = 1.0) -> Inventory:
    """Return an inventory with one node per CPU."""
    nodes = tuple(Node(f"n{cpu}", 1, 1, (cpu,)) for cpu in cpus)
    return Inventory("test", "agents", nodes, heartbeat_s=heartbeat_s)


# -- samples -----------------------------------------------------------------------------------------------------------


def spin(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        compute(0, 1000)


def test_a_sample_counts_the_cpu_time_of_running_and_of_reaped_ranks() -> None:
    sampler = Sampler(CPUS, host=True)
    before = sampler.sample()
    spin(0.1)
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        used = 0.0
        until = time.monotonic() + GUARD_S
        while used < 0.3 and time.monotonic() < until:
            time.sleep(0.02)
            used = sampler.sample([child.pid])["cpu_s"] - before["cpu_s"]
        assert used >= 0.3
        assert sampler.sample()["cpu_s"] - before["cpu_s"] < used  # without the child, which has not been reaped
    finally:
        child.kill()
        child.wait()
    after = sampler.sample([child.pid])
    assert after["cpu_s"] - before["cpu_s"] >= used  # the child is counted once it has been reaped
    assert after["busy_s"] - before["busy_s"] >= used - 0.1  # the counters of the kernel have steps of 10 ms
    assert after["host"]["cpus"] == os.cpu_count()
    assert after["host"]["busy_s"] >= after["busy_s"] > 0


def test_a_figure_that_the_kernel_does_not_have_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def absent(path: str, flags: int) -> int:
        if "pressure" in path:
            raise FileNotFoundError(path)
        return opened(path, flags)

    monkeypatch.setattr(os, "open", absent)
    host = Sampler(host=True).sample()["host"]
    assert (host["cpu"], host["io"], host["memory"]) == (None, None, None)
    assert host["busy_s"] > 0


def test_cpus_that_the_kernel_does_not_list_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may number its CPUs otherwise: no busy time would be found, and no load from outside."""
    absent = 10**6
    assert "busy_s" not in Sampler((absent,)).sample()
    assert "busy_s" not in Sampler((CPUS[0], absent)).sample()
    assert "busy_s" in Sampler(CPUS[:1]).sample()
    monkeypatch.setattr(os, "pread", lambda file, size, offset: b"cpu  1 2 3\n")
    figures = Sampler(CPUS, host=True).sample()
    assert "busy_s" not in figures
    assert figures["host"] == {"cpus": 1, "busy_s": None, "steal_s": None, "cpu": None, "io": None, "memory": None}


def test_a_computed_replay_has_a_row_for_each_node_and_heartbeat(tmp_path: Path) -> None:
    work, inventory = workload(4, nodes=1, malleable=0), real(CPUS[0], heartbeat_s=0.1)
    run = replay(work, inventory, "fcfs", tmp_path / "run", **replaying(speed=500))
    rows = run.nodes
    assert set(rows["node"]) == {0} and len(rows) > 3
    assert rows["time"].is_monotonic_increasing
    assert rows["time"].iloc[-1] >= run.jobs["end"].max()  # the last sample follows the last job
    assert (rows["cpu_busy"] > 0).any()
    assert rows["outside"].notna().all()
    _, entries = journal.read(tmp_path / "run" / JOURNAL)
    assert {"sample", "loop", "calibrated"} <= {entry.kind for entry in entries}
    [calibrated] = [entry for entry in entries if entry.kind == "calibrated"]
    assert calibrated.data["units_per_core_second"] > 0


def test_an_emulated_replay_samples_the_machine_once(tmp_path: Path) -> None:
    run = replay(workload(4), emulated(3), "fcfs", tmp_path / "run", **replaying(speed=500))
    assert set(run.nodes["node"]) == {0, 1, 2}
    assert run.nodes["cpu_busy"].isna().all()
    assert set(run.nodes.loc[run.nodes["pressure"].notna(), "node"]) <= {0}


def test_iterations_are_summed_over_the_time_between_two_samples() -> None:
    jobs = Jobs.of(workload(1, nodes=1, malleable=0))
    monitor = Monitor(jobs, [Node("a", 2, cpus=(0, 1))], speed=1.0)
    begin, [name] = jobs.submit[0], jobs.ids

    def sample(at: float, **figures: float) -> None:
        monitor.apply(Entry(0, begin + at, "sample", None, "a", {"time": 100.0 + at, **figures}))

    def iterations(*samples: list[float]) -> None:
        monitor.apply(Entry(0, begin, "work", name, "a", {"rank": "a", "samples": list(samples)}))

    sample(-1.0, cpu_s=0.0, busy_s=0.0, steal_s=0.0)
    monitor.apply(Entry(0, begin, "started", name, "a", {"time": 100.0}))
    iterations([100.5, 1000, 0.9, 1.0, 0.0], [101.0, 500, 0.6, 1.0, 0.002])
    sample(1.0, cpu_s=1.5, busy_s=2.5, steal_s=0.5)
    sample(2.0, cpu_s=1.6, busy_s=2.5, steal_s=0.5)
    iterations([111.0, 500, 0.5, 0.5, 0.0])
    first, second = monitor.table().to_dict("records")
    assert (first["work_rate"], first["cpu_share"], first["late_s"]) == (1500 / 1.5, 0.75, 0.002)
    assert (first["cpu_busy"], first["steal"], first["outside"]) == (1.25, 0.25, 0.5)
    assert second["work_rate"] != second["work_rate"] and second["outside"] == 0.0
    assert monitor.work.units == 2000
    assert (monitor.halt.value, monitor.halt.place) == (pytest.approx(9.75), f"job {name} on a")  # between iterations


class Told:
    """A witness of one job on node a, and what it is told, at seconds after the first submission."""

    def __init__(self) -> None:
        jobs = Jobs.of(workload(1, nodes=1, malleable=0))
        self.monitor = Monitor(jobs, [Node("a", 2, cpus=(0, 1))], speed=1.0)
        self.begin, self.job = jobs.submit[0], jobs.ids[0]

    def tell(self, kind: str, at: float, node: str | None = "a", **data: object) -> None:
        self.monitor.apply(Entry(0, self.begin + at, kind, self.job, node, {"time": 100.0 + at, **data}))


def test_a_counter_that_decreases_is_unknown() -> None:
    """Such a run could not be read: no figure of its samples may be negative."""
    told = Told()
    told.tell("sample", -1.0, cpu_s=0.0, busy_s=5.0, steal_s=2.0)
    told.tell("sample", 1.0, cpu_s=0.5, busy_s=4.0, steal_s=2.0)
    [row] = told.monitor.table().to_dict("records")
    assert row["cpu_busy"] != row["cpu_busy"] and row["outside"] != row["outside"]
    assert row["steal"] == 0.0
    assert told.monitor.external_load(computing=True) is None


def test_an_agent_that_is_late_before_the_first_submission_or_after_the_last_job_delays_nothing() -> None:
    told = Told()
    told.tell("sample", -0.1, late_s=3.0)
    assert told.monitor.agent_late.value == 0.0
    told.tell("sample", 1.0, late_s=0.5)
    assert told.monitor.agent_late.value == 0.5
    told.tell("calibrated", 2.0, units_per_core_second=1e6)
    told.tell("sample", 2.0, late_s=0.7)  # the agent could not send it during its calibration
    assert told.monitor.agent_late.value == 0.5


@pytest.mark.parametrize(("shared", "halt"), [({}, 0.5), ({"cores": {"a": "0"}}, 0.0)])
def test_the_iterations_of_a_job_on_a_shared_node_may_be_longer(shared: dict[str, object], halt: float) -> None:
    """The job has one core of the two that it requested, and computes on it all the time."""
    told = Told()
    told.tell("start", 0.0, None, nodes=["a"], **shared)
    told.tell("started", 0.0)
    told.tell("work", 1.0, rank="a", samples=[[101.0, 500, 1.0, 1.0, 0.0]])
    assert told.monitor.halt.value == halt


def test_a_rank_on_the_node_of_a_lost_leader_did_not_stand_still() -> None:
    """The job runs again, and its leader is on another node."""
    told = Told()
    told.tell("started", 0.0)
    told.tell("lost", 1.0, reason="ended")
    told.tell("work", 50.0, rank="a", samples=[[150.0, 500, 2.0, 1.0, 0.0]])
    assert told.monitor.halt.value == 0.0


@pytest.mark.parametrize("works", [False, True])
def test_without_samples_of_work_the_time_of_an_end_is_unknown(works: bool) -> None:
    told = Told()
    told.tell("started", 0.0)
    if works:
        told.tell("work", 50.0, rank="a", samples=[[150.0, 500, 1.0, 1.0, 0.0]])
    told.tell("ended", 50.25, state="completed", exit_code=0)
    assert told.monitor.ends == ({told.job: 0.25} if works else {})


def test_the_load_of_the_loop_is_that_after_the_first_submission() -> None:
    told = Told()
    for at, cpu_s in ((-2.0, 1.0), (-1.0, 5.0), (0.5, 5.1), (1.0, 6.0)):
        told.tell("loop", at, None, cpu_s=cpu_s, late_s=0.0)
    assert told.monitor._loop_load() == pytest.approx(0.5)
    assert len(told.monitor._loop) == 2  # not one of each second


def test_the_watch_of_the_loop_keeps_the_largest_lateness_of_a_period() -> None:
    watch = LoopWatch(1.0)
    assert watch.sample(10.0, 10.5) == {"time": 10.5, "cpu_s": pytest.approx(time.process_time(), abs=5), "late_s": 0.5}
    assert watch.sample(10.6, 10.9) is None
    assert watch.sample(11.4, 11.5)["late_s"] == pytest.approx(0.3)  # type: ignore[index]
    assert watch.sample(12.0, 11.9, last=True)["late_s"] == 0.0  # type: ignore[index]


# -- claims ------------------------------------------------------------------------------------------------------------

HOLD = """
import sys
from tracebed.orchestrator.testbeds.agent.claims import claim_cpus
claims = claim_cpus([5, 7])
print('claimed', flush=True)
sys.stdin.read()
"""


def test_a_claimed_cpu_is_refused_until_its_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"claimed\n"
        with pytest.raises(TestbedError, match="another replay computes on the CPUs 5,7"):
            claim_cpus([4, 5, 6, 7], wait_s=0.0)
        other = claim_cpus([4, 6], wait_s=0.0)  # a refused claim keeps no CPU
        with monkeypatch.context() as patch:
            patch.setenv(claims.SPACE, f"another-{os.getpid()}")
            other += claim_cpus([5], wait_s=0.0)
        holder.kill()
        holder.wait()
        for claim in other + claim_cpus([5, 7], wait_s=GUARD_S):
            claim.close()


def test_a_second_replay_on_the_same_cpus_is_refused(tmp_path: Path) -> None:
    refused: list[str] = []

    def second(ended: int) -> None:
        if not refused:
            with pytest.raises(TestbedError) as caught:
                replay(workload(1, nodes=1), real(CPUS[0]), "fcfs", tmp_path / "second", **replaying(1000))
            refused.append(str(caught.value))

    run = replay(workload(1, nodes=1), real(CPUS[0]), "fcfs", tmp_path / "run", **replaying(1000), on_progress=second)
    assert refused == [
        f"node n{CPUS[0]}: another replay computes on the CPUs {CPUS[0]}"
        " (wait until it ends, or use an inventory with other CPUs)"
    ]
    assert set(run.jobs["state"]) == {"completed"}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# -- the samples of a large replay -------------------------------------------------------------------------------------


def test_all_samples_are_recorded_unless_they_are_too_many() -> None:
    few = SampleFilter(1000, 10.0, 86_400.0)  # 8.6 million samples
    assert few.period_s == 0.0
    assert [few.late_s(7, at, late_s) for at, late_s in [(0.0, 0.2), (0.0, 0.1), (10.0, 0.3)]] == [0.2, 0.1, 0.3]
    many = SampleFilter(10_000, 10.0, 86_400.0)
    assert many.period_s == pytest.approx(86.4)
    assert 10_000 * 86_400.0 / many.period_s <= 1.001 * loop.SAMPLES


@pytest.mark.parametrize("seed", range(5))
def test_a_recorded_sample_has_the_largest_lateness_since_the_last_one(seed: int) -> None:
    draw = random.Random(seed)
    chosen = SampleFilter(3, 1.0, 20.0 * loop.SAMPLES / 3)  # every 20 s
    beats = [(at + draw.random(), node, draw.random()) for at in range(300) for node in range(3)]
    recorded: dict[int, list[float]] = {node: [] for node in range(3)}
    left: dict[int, list[float]] = {node: [] for node in range(3)}
    for at, node, late_s in sorted(beats):
        left[node].append(late_s)
        found = chosen.late_s(node, at, late_s)
        is_due = not recorded[node] or at >= recorded[node][-1] + 20.0
        assert found == (max(left[node]) if is_due else None)
        if is_due:
            recorded[node].append(at)
            left[node].clear()
    assert all(len(found) == 15 for found in recorded.values())


def test_a_replay_with_too_many_heartbeats_records_the_first_and_the_last_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAMPLES", 0.01)  # one for many planned durations
    inventory = replace(emulated(2), heartbeat_s=0.05)
    run = replay(workload(6, nodes=2), inventory, "easy", tmp_path / "run", **replaying(speed=2000))
    assert set(run.jobs["state"]) == {"completed"}
    _, entries = journal.read(tmp_path / "run" / JOURNAL)
    over = next(entry.round for entry in reversed(entries) if entry.kind == "end")
    for node in ("n1", "n2"):
        rounds = [entry.round for entry in entries if entry.kind == "sample" and entry.node == node]
        assert rounds[0] < over < rounds[1]
