"""The replayer runs the same policies as the simulator: for the events of a replay, they decide the same again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest

from tests.oracles.redecided import complete_budget, decided, decided_again, noting, virtual, workload
from tests.runs import replaying
from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.scheduling.decision_log import LoggedDecision
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Cancel, Decision, Policy, Reject, Reserve, Start, State, Wake, shares

INVENTORY = virtual(4)
SPEED = 800.0

pytestmark = pytest.mark.usefixtures("no_process_is_left")

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("fcfs", {}, replaying(SPEED)),
    ("firstfit", {}, replaying(SPEED)),
    ("easy", {}, replaying(SPEED)),
    ("conservative", {}, replaying(SPEED)),
    ("conservative", {"backfill_depth": 3, "backfill_interval_s": 50.0}, replaying(SPEED)),
    ("easy", {"reserve": "nodes"}, replaying(SPEED)),
    ("conservative", {"reserve": "nodes"}, replaying(SPEED)),
    ("conservative", {"reserve": "nodes", "backfill_depth": 3, "backfill_interval_s": 50.0}, replaying(SPEED)),
    ("deadline", {}, replaying(SPEED)),
    ("fcfs-malleable", {"pause_s": 1.0}, replaying(SPEED)),
    ("leak", {}, replaying(SPEED)),
    ("mallob", {}, replaying(SPEED)),
    ("slurm", {"bf_interval": 1, "bf_resolution": 1, "batch_sched_delay": 0}, replaying(SPEED)),
    ("oar", {"min_time_between_2_calls": 0, "job_security_time": 0}, replaying(SPEED)),
    ("avg", {}, replaying(SPEED)),
    ("min", {}, replaying(SPEED)),
    ("pref", {}, replaying(SPEED)),
    ("pref", {"promise": "direct"}, replaying(SPEED)),
    ("pref", {"promise": "steal"}, replaying(SPEED)),
    ("keep-pref", {"grow_at_start": True}, replaying(SPEED)),
    ("dmr", {}, replaying(SPEED)),
    ("sd", {}, replaying(SPEED)),
    ("sd", {"max_slowdown": "inf", "include_free_nodes": True}, replaying(SPEED, balance="dynamic")),
    ("drom-share", {}, replaying(SPEED)),
    ("easy", {}, replaying(SPEED, priority="aging")),
    ("easy", {}, replaying(SPEED, priority="largest-slowdown-first")),
    ("pref", {}, replaying(SPEED, priority="shortest-first", interval_s=40.0)),
    ("pref", {"calls": "tick"}, replaying(SPEED, interval_s=40.0)),
    ("pref", {"calls": "event", "count_idle": "head"}, replaying(SPEED)),
    ("conservative", {}, replaying(SPEED, interval_s=40.0)),
]
REPRESENTATIVES = [(policy, {}, replaying(SPEED)) for policy in ("conservative", "pref", "sd")]
"""Cases of the default run: a rigid policy, a malleable one, and one that shares nodes."""
PARAMETERS = [pytest.param(*case, marks=() if case in REPRESENTATIVES else pytest.mark.slow) for case in CASES]
KASSEL = ("avg", "min", "pref", "keep-pref")
SUSPENDING = {"max-min-fairness", "min-total-duration"}
"""Policies that suspend jobs, which a replay cannot."""
MALLEABLE = (*KASSEL, "dmr", "leak", "mallob", "fcfs-malleable")
SHARING = ("sd", "drom-share")


@dataclass
class Twice:
    """A replay, and its events fed to the same policy again."""

    said: list[tuple[float, Decision]]
    said_again: list[tuple[float, Decision]]
    done: list[LoggedDecision]
    done_again: list[LoggedDecision]
    states: list[str]


def twice(
    monkeypatch: pytest.MonkeyPatch, folder: Path, make: Callable[[], Policy], options: dict[str, Any], work: Workload
) -> Twice:
    said: list[tuple[float, Decision]] = []
    again: list[tuple[float, Decision]] = []

    def at_speed(policy: Policy) -> Policy:
        return registry.resolve(policy, speed=options["speed"])[1]

    def load(name: str, parameters: Mapping[str, Any] | None = None) -> Policy:
        return noting(at_speed(make()), said)

    monkeypatch.setattr(registry, "load", load)
    run = replay(work, INVENTORY, "under test", folder / "run", **options)
    path = folder / "run" / JOURNAL
    most = max(node.cores for node in INVENTORY.nodes)
    jobs = Jobs.of(work, cores_per_node=most, over_limit=OverLimit(options.get("over_limit", "extend")))
    done_again = decided_again(path, jobs, INVENTORY, noting(at_speed(make()), again), options)
    complete_budget(work, folder / "run", make)
    return Twice(said, again, decided(path), done_again, run.jobs["state"].tolist())


def label(case: object) -> str | None:
    if isinstance(case, dict) and "options" in case:
        return f"{case.get('priority', 'fcfs')},{case.get('interval_s', 0):g}s"
    if isinstance(case, dict):
        return ",".join(f"{key}={value}" for key, value in case.items()) or "defaults"
    return None


@pytest.mark.parametrize(("policy", "parameters", "options"), PARAMETERS, ids=label)
def test_fed_the_events_of_a_replay_a_policy_decides_as_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, parameters: dict[str, Any], options: dict[str, Any]
) -> None:
    load: Callable[..., Policy] = registry.load
    result = twice(monkeypatch, tmp_path, lambda: load(policy, parameters), options, workload(14, seed=7))
    assert result.said_again == result.said
    assert result.done_again == result.done
    kinds = Counter(decision.kind for decision in result.done)
    assert kinds["start"] == 14
    assert (kinds["resize"] > 0) == (policy in MALLEABLE)
    assert (kinds["cores"] > 0) == (policy in SHARING)
    overrun = {"cancelled"} if policy == "deadline" else set()  # a busy machine launches a job after its reservation
    assert {"completed"} <= set(result.states) <= {"completed"} | overrun
    said = {type(decision) for _, decision in result.said}
    at_intervals = "backfill_interval_s" in parameters or policy == "slurm"
    assert (Reserve in said) == (policy in ("conservative", "deadline", "oar") and not at_intervals)
    at_once = policy in KASSEL and parameters.get("calls") != "event"
    assert (Wake in said) == (at_intervals or at_once or policy in ("deadline", "oar", "fcfs-malleable"))


@pytest.mark.slow
@pytest.mark.parametrize("over_limit", OverLimit)
@pytest.mark.parametrize("policy", ["easy", "pref", "sd"])
def test_policies_decide_the_same_if_jobs_exceed_their_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, over_limit: OverLimit
) -> None:
    work = workload(14, seed=7)
    work.table["time_limit"] *= [0.4, 1.0] * 7  # the limits were 1.5 run times
    options = replaying(SPEED, over_limit=over_limit)
    load = registry.load
    result = twice(monkeypatch, tmp_path, lambda: load(policy), options, work)
    assert result.said_again == result.said
    assert result.done_again == result.done
    assert set(result.states) == ({"completed", "killed"} if over_limit is OverLimit.KILL else {"completed"})


def test_no_policy_is_left_out() -> None:
    assert set(registry.names()) - SUSPENDING == {name for name, *_ in CASES}
    assert {name for name in registry.names() if shares(registry.load(name))} == set(SHARING)


@dataclass(frozen=True)
class Picky:
    """First fit that also rejects jobs of three nodes, and cancels the oldest running job when no job fits."""

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        for job in state.queue.jobs():
            if state.jobs.nodes[job] == 3:
                yield Reject(job, "three are a crowd")
            elif state.jobs.nodes[job] <= state.idle:
                yield Start(job, state.jobs.nodes[job])
        if state.queue.head is not None and state.idle == 0 and state.arrived:
            yield Cancel(next(iter(state.size)), "has had its time")


def test_a_policy_refuses_and_cancels_again_as_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = twice(monkeypatch, tmp_path, Picky, replaying(SPEED), workload(14, seed=7))
    assert result.said_again == result.said
    assert result.done_again == result.done
    kinds = Counter(decision.kind for decision in result.done)
    assert kinds["reject"] > 1
    assert kinds["cancel"] > 0
    assert "cancelled" in result.states


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_a_replay_starts_jobs_on_the_nodes_that_were_named(tmp_path: Path, policy: str) -> None:
    """Job 2 has reserved 0, 1, 2. Job 3 is long and leaves the idle node 0 alone, job 4 is short and takes it."""
    jobs = [(0.0, 1, 50.0), (0.0, 3, 1000.0), (10.0, 3, 100.0), (100.0, 1, 3000.0), (120.0, 1, 100.0)]
    table = pd.DataFrame(jobs, columns=["submit_time", "nodes", "run_time"])
    work = Workload(table.assign(job_id=[*"01234"], time_limit=table["run_time"] * 1.2, kind="rigid"))
    run = replay(work, INVENTORY, policy, tmp_path / "run", policy_parameters={"reserve": "nodes"}, **replaying(10.0))
    rows = run.allocations
    held = {job: _nodes(rows[rows["job_id"] == job]) for job in "01234"}
    assert held == {"0": [0], "1": [1, 2, 3], "2": [0, 1, 2], "3": [3], "4": [0]}
    start = run.jobs.set_index("job_id")["start"]
    assert start["4"] < 200.0 < 1000.0 < start["2"] <= start["3"]


def _nodes(rows: pd.DataFrame) -> list[int]:
    return sorted(node for row in rows.itertuples() for node in range(row.node, row.node + row.count))
