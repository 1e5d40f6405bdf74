"""The replayer in virtual time under policies that decide at random, with crossing messages and killed ranks."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.faults.invariants import CoreWatch
from tests.faults.kinds import NODE_FAULTS
from tests.oracles.redecided import decided, decided_again
from tests.replay.test_replay_sharing import Crowding, assert_no_core_has_two_jobs, crowd
from tests.replay.test_replayer_mishaps import carry_out
from tests.runs import by_node, replaying
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.loop import Replayer
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.state import Decision, Resize, State
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node
from tracebed.orchestrator.testbeds.provider import world_of
from tracebed.testing.virtual.faults import Fault, arm
from tracebed.testing.virtual.kernel import VirtualWorld
from tracebed.testing.virtual.provider import VirtualSettings

SPEED = 1000.0


class Resizing(Crowding):
    """A policy that also resizes jobs that share no node."""

    malleable: ClassVar[bool] = True

    def decide(self, state: State) -> Iterator[Decision]:
        yield from super().decide(state)
        for job in [job for job in state.resizable if job not in state.resizing and not state.cluster.shares(job)]:
            most = min(state.jobs.high[job], state.size[job] + state.idle)
            size = self.draw.randint(state.jobs.low[job], most)
            if size != state.size[job]:
                yield Resize(job, size)


def assert_ranks_end_where_their_jobs_are(run: Run, path: Path) -> None:
    held: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in by_node(run).itertuples():
        held.setdefault((row.job_id, f"n{row.node + 1}"), []).append((row.start, row.end))
    for entry in journal.read(path)[1]:
        if entry.kind == "ended":
            assert any(start < entry.time <= end for start, end in held[entry.job or "", entry.node or ""]), entry


def replayed(seed: int, folder: Path, *over_limit: OverLimit) -> Counter[str]:
    """Replay one drawn case, check the invariants, and return what was observed.

    The treatment of jobs that exceed their limit is one of `over_limit`, or any if none is given.
    """
    draw = random.Random(seed)
    resizes, deaths, cancels = draw.random() < 0.5, draw.choice([0, 6, 20, 40]), draw.choice([0.0, 0.03, 0.2])
    work = crowd(draw.randint(5, 50), seed, resizes=resizes)
    policy = Resizing if resizes else Crowding
    options = replaying(
        SPEED, over_limit=draw.choice(over_limit or [*OverLimit]), interval_s=draw.choice([0.0, 0.0, 20.0])
    )
    settings = VirtualSettings(seed=seed, latency_s=10 ** draw.uniform(-4.0, -1.5), launch_s=0.005)
    nodes = tuple(Node(f"n{number}", 4, 1, None, True, provider="virtual") for number in range(1, 5))
    inventory = Inventory("test", "agents", nodes, grain_s=0.02, groups=(Group("test", "virtual", settings, nodes),))
    here, cores = world_of(inventory, SPEED, 60.0), CoreWatch()
    assert isinstance(here, VirtualWorld)
    here.observers.append(cores)
    lasts_s = work.table["submit_time"].max() / SPEED + 1.0
    times = sorted(here.now + 1.0 + draw.random() * lasts_s for _ in range(deaths))
    kills = [Fault("kill_rank", at, draw.choice(nodes).name, draw=draw.random()) for at in times]
    arm(here, kills, NODE_FAULTS)
    try:
        run = carry_out(work, policy(seed, cancels), folder, inventory, options, here=here)
    finally:
        here.end()
    assert cores.violations == []
    states = Counter(run.jobs["state"])
    assert states.keys() <= {"completed", "cancelled", "failed", "killed"}
    assert bool(deaths) >= bool(states["failed"]) and bool(cancels) >= bool(states["cancelled"])
    assert not run.info.handovers.get("overlap_s")
    assert_no_core_has_two_jobs(run.allocations, [4] * 4)
    assert_ranks_end_where_their_jobs_are(run, folder / JOURNAL)
    jobs = Jobs.of(work, over_limit=OverLimit(options.get("over_limit", "extend")))
    again = decided_again(folder / JOURNAL, jobs, inventory, policy(seed, cancels), options)
    assert again == decided(folder / JOURNAL)
    masks = sum(entry.kind == "mask" for entry in journal.read(folder / JOURNAL)[1])
    return states + Counter({"masks": masks}) + Counter(f"resize {state}" for state in run.reconfigurations["state"])


@pytest.mark.parametrize("block", range(4))
def test_any_message_order_and_any_killed_rank(tmp_path: Path, block: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block * 10, (block + 1) * 10):
        (tmp_path / str(seed)).mkdir()
        seen += replayed(seed, tmp_path / str(seed))
    assert min(seen[what] for what in ("completed", "cancelled", "failed", "masks", "resize applied")) > 10, seen


def test_limits_end_as_in_a_search_of_all_running_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replayer searches only the jobs whose expected ends come first."""
    next_limit, enforce = Replayer._next_limit, Replayer._enforce_limits
    counts: Counter[str] = Counter()

    def ends(replayer: Replayer, now: float) -> dict[int, float]:
        jobs, running = replayer.jobs, replayer.ranks.running
        able = [job for job in running if running[job].outcome is None and jobs.limit[job] != jobs.run_time[job]]
        return {job: replayer.scheduler.limit_end(job, now) for job in able}

    def checked_next_limit(replayer: Replayer) -> float:
        expected = min(ends(replayer, replayer.rounds.now).values(), default=math.inf)
        found = next_limit(replayer)
        assert found == pytest.approx(expected, rel=1e-12)
        counts["limits"] += found < math.inf
        return found

    def checked_enforce(replayer: Replayer, now: float) -> None:
        expected = [job for job, end in ends(replayer, now).items() if end <= now]
        entries = len(replayer.rounds.entries)
        enforce(replayer, now)
        kills = [replayer.event_handler.numbers[entry.job or ""] for entry in replayer.rounds.entries[entries:]]
        assert kills == expected
        counts["kills"] += len(kills)

    monkeypatch.setattr(Replayer, "_next_limit", checked_next_limit)
    monkeypatch.setattr(Replayer, "_enforce_limits", checked_enforce)
    for seed in range(12):
        (tmp_path / str(seed)).mkdir()
        counts += replayed(seed, tmp_path / str(seed), OverLimit.KILL)
    assert min(counts[what] for what in ("limits", "kills", "killed", "masks")) > 10, counts
