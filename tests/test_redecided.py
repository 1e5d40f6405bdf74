"""The journal of a real replay, fed to the same policy again, gives the same decisions, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redecided import decided, decided_again, emulated, workload
from tracebed.orchestrator.replayer import Options, replay
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry

pytestmark = pytest.mark.usefixtures("no_process_is_left")

REPLAYED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("fcfs", {}, {}),
    ("firstfit", {}, {}),
    ("easy", {}, {}),
    ("easy", {}, {"priority": "shortest-first"}),
    ("easy", {}, {"priority": "aging"}),
    ("easy", {}, {"interval_s": 30.0}),
    ("conservative", {}, {}),
    ("conservative", {"backfill_depth": 3, "backfill_interval_s": 40.0}, {}),
    ("avg", {}, {}),
    ("min", {}, {}),
    ("pref", {}, {}),
    ("pref", {"promise": "direct"}, {}),
    ("pref", {"promise": "steal", "backfill": "firstfit"}, {}),
    ("keep-pref", {"grow_at_start": True}, {"priority": "largest-slowdown-first"}),
    ("dmr", {}, {}),
]
REFUSED = {"sd", "drom-share"}
"""They share nodes, which the testbed does not do yet."""


def test_every_policy_is_here() -> None:
    assert {policy for policy, _, _ in REPLAYED} | REFUSED == set(registry.names())


@pytest.mark.parametrize(("policy", "parameters", "options"), REPLAYED)
def test_the_same_events_give_the_same_decisions(
    policy: str, parameters: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    work, inventory = workload(14, seed=3), emulated(4)
    run = replay(
        work, inventory, policy, tmp_path / "run", policy_parameters=parameters, options=Options(speed=800, **options)
    )
    assert run.info.counts == {"jobs": 14, "completed": 14}
    decisions = decided(tmp_path / "run" / JOURNAL)
    names = [node.name for node in inventory.nodes]
    again = decided_again(
        tmp_path / "run" / JOURNAL,
        Jobs.of(work, cores_per_node=2),
        names,
        registry.load(policy, parameters),
        priority=options.get("priority", "fcfs"),
    )
    assert len(decisions) >= 14
    assert again == decisions
    resizes = sum(kind == "resize" for kind, _, _ in decisions)
    assert (resizes > 0) == (policy in {"avg", "min", "pref", "keep-pref", "dmr"})
