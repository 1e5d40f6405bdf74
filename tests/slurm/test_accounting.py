"""The comparison of a replay with `sacct`, with a Slurm that only answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from tests.oracles import accounting
from tests.oracles.accounting import agreement

ROWS = """t-0|1000|1010|n[1-2]
t-0|1010|1020|n[1-4]
t-0+2|1009|1010|n[3-4]
t-1|1010|1015|n5
other|1000|1020|n6
"""


def run_with(changed_s: float, cancelled_s: float, asked_s: float, pauses: Sequence[dict[str, float]] = ()) -> Any:
    """Return a run of two jobs, of which the first one expands, and the other one ends before it would."""
    rows = [("j0", 0, 2, 0.2, 20.6), ("j0", 2, 2, changed_s - 1000.0, 20.6), ("j1", 4, 1, 10.0, 15.9)]
    nodes = [SimpleNamespace(name=f"n{number}") for number in range(1, 6)]
    return SimpleNamespace(
        info=SimpleNamespace(nodes=nodes, batch={"epoch_s": 1000.0}, speed=1.0, pauses=pauses),
        jobs=pd.DataFrame({"job_id": ["j0", "j1"]}),
        allocations=pd.DataFrame(rows, columns=["job_id", "node", "count", "start", "end"]),
        reconfigurations=pd.DataFrame(
            [("j0", "applied", asked_s - 1000.0, changed_s - 1000.0), ("j1", "cancelled", cancelled_s, float("nan"))],
            columns=["job_id", "state", "asked", "ended"],
        ),
    )


@pytest.mark.parametrize(
    ("sacct", "changed_s", "cancelled_s", "late_s", "defects"),
    [
        (ROWS, 1010.4, 15.0, 0.2, 0),
        (ROWS, 1013.4, 15.0, 3.3, 0),  # asked for at 1010.1, done by Slurm then, and by the job three seconds later
        (
            ROWS.replace("1015|n5\n", "1012|n5\nt-1|1012|1016|n[5-6]\n"),
            1010.4,
            11.0,
            0.2,
            0,
        ),  # Slurm merged, no rank began
        (ROWS.replace("1015|n5\n", "1012|n5\nt-1|1012|1016|n[5-6]\n"), 1010.4, 15.0, 0.2, 1),
        (ROWS, 1013.4, 15.0, 0.2, 2),  # the end of the first size, and the change that sacct lacks
        (ROWS.replace("n[1-4]", "n[1-3]").replace("1020|n[1-3]", "1016|n1,n5"), 1010.4, 15.0, 0.2, 1),
        (ROWS.replace("t-1|1010", "t-1|1007"), 1010.4, 15.0, 0.2, 1),
        (ROWS.replace("t-1|1010|1015|n5\n", ""), 1010.4, 15.0, 0.2, 1),
    ],
)
def test_nodes_and_times_are_compared(
    monkeypatch: pytest.MonkeyPatch, sacct: str, changed_s: float, cancelled_s: float, late_s: float, defects: int
) -> None:
    monkeypatch.setattr(accounting, "prefix_of", lambda run: "t-")
    run = run_with(changed_s, cancelled_s, changed_s - late_s)
    found = agreement(lambda *command, **environment: sacct, run)  # type: ignore[arg-type]
    assert len(found.defects) == defects, found.defects
    if not defects:
        assert (found.jobs, found.rows) == (2, len(sacct.splitlines()) - 2)
        assert re.fullmatch(r"2 jobs, [34] sizes, [45] times: -0\.\d0 to \+0\.00 s; 0 defects", str(found))


@pytest.mark.parametrize(("at_s", "defects"), [(9.0, 0), (12.5, 2)])
def test_a_change_that_a_resumed_replay_finds_may_be_at_any_time_of_the_pause(
    monkeypatch: pytest.MonkeyPatch, at_s: float, defects: int
) -> None:
    monkeypatch.setattr(accounting, "prefix_of", lambda run: "t-")
    run = run_with(1013.4, 15.0, 1013.4, [{"at": at_s, "wall_s": 13.4 - at_s}])
    assert len(agreement(lambda *command, **environment: ROWS, run).defects) == defects  # type: ignore[arg-type]
