"""Input shaking: what changes in a workload, and the intervals of metrics in commands and studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import tracebed.api as tb
from tracebed.converters.shaking import Shaking, shaken
from tracebed.converters.workload import Workload
from tracebed.errors import InputError
from tracebed.orchestrator.cli import tracebed
from tracebed.orchestrator.run import SHAKEN
from tracebed.validation.accidents import intervals, kept


def workload(submit: list[float], **columns: Any) -> Workload:
    table = {"job_id": [f"j{number}" for number in range(len(submit))], "submit_time": submit, "run_time": 100.0}
    return Workload(pd.DataFrame(table | {"nodes": 1, "time_limit": 130.0} | columns))


def by_id(workload: Workload) -> pd.DataFrame:
    return workload.table.set_index("job_id").sort_index()


@settings(max_examples=60, deadline=None)
@given(
    submit=st.lists(st.integers(0, 500).map(float) | st.floats(0, 500), min_size=1, max_size=20),
    seed=st.integers(0, 100),
    submit_s=st.sampled_from([0.0, 0.5, 10.0]),
    limit_s=st.sampled_from([0.0, 60.0]),
)
def test_changes_are_small_and_leave_the_jobs(submit: list[float], seed: int, submit_s: float, limit_s: float) -> None:
    before = workload(submit, deadline=[time + 1000 for time in submit])
    after = shaken(before, seed, Shaking(submit_s, limit_s))
    old, new = by_id(before), by_id(after)
    assert old.index.equals(new.index)
    for name in ("run_time", "nodes"):
        assert old[name].equals(new[name])
    moved = new["submit_time"] - old["submit_time"]
    assert (moved.abs() <= submit_s + 1e-9).all() and (new["submit_time"] >= 0).all()
    assert np.allclose(new["deadline"] - new["submit_time"], 1000)
    longer = new["time_limit"] - old["time_limit"]
    assert ((longer >= 0) & (longer < max(limit_s, 1e-9))).all()
    if all(time == round(time) for time in submit):
        assert (new["submit_time"] == new["submit_time"].round()).all()
    assert shaken(before, seed, Shaking(submit_s, limit_s)).table.equals(after.table)


def test_without_moves_only_the_order_of_ties_changes() -> None:
    before = workload([0.0] * 5 + [7.0] * 5)
    orders = {tuple(shaken(before, seed, Shaking(0.0, 0.0)).table["job_id"]) for seed in range(20)}
    assert len(orders) > 10
    assert {frozenset(order[:5]) for order in orders} == {frozenset(f"j{number}" for number in range(5))}


def test_logged_times_are_left_out() -> None:
    after = shaken(workload([0.0, 5.0], logged_start=[1.0, 6.0], logged_end=[101.0, 106.0]), 1)
    assert "logged_start" not in after.table and "logged_end" not in after.table


@pytest.mark.parametrize("changes", [{"submit_s": -1.0}, {"limit_s": float("inf")}, {"submit_s": float("nan")}])
def test_an_invalid_change_is_an_error(changes: dict[str, float]) -> None:
    with pytest.raises(InputError, match="out of range"):
        tb.shake(tb.generate("cirne", jobs=5, nodes=8, seed=1), 1, **changes)


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(tracebed, list(arguments), catch_exceptions=False, standalone_mode=False)


def test_the_command_prints_and_keeps_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = tb.generate("lublin99", jobs=150, nodes=16, seed=2)
    tb.write(made, "w.parquet")
    for policy in ("fcfs", "easy"):
        command = ["simulate", "w.parquet", "--policy", policy, "--shake", "8", "--shake-submit", "30", "-o", policy]
        assert "95 % of the runs" in invoked(*command).output
    rows = kept(tmp_path / "easy")
    assert rows is not None and len(rows) == 8
    expected = [tb.simulate(tb.shake(made, seed, submit_s=30), "easy").metrics() for seed in range(1, 9)]
    assert rows["mean_wait_s"].tolist() == pytest.approx([figures["mean_wait_s"] for figures in expected])
    found = intervals(rows).loc["mean_wait_s"]
    assert rows["mean_wait_s"].min() <= found["low"] < found["median"] < found["high"] <= rows["mean_wait_s"].max()
    [line] = [line for line in invoked("metrics", "fcfs", "easy").output.splitlines() if line.startswith("wait, mean")]
    assert line.count(" to ") == 2
    [line] = [line for line in invoked("metrics", "easy", "--after", "60").output.splitlines() if "wait, mean" in line]
    assert " to " not in line  # the intervals are those of all jobs
    invoked("simulate", "w.parquet", "--policy", "easy", "-o", "fcfs")
    assert kept(tmp_path / "fcfs") is None  # another run has other intervals
    (tmp_path / "easy" / SHAKEN).write_text("a\nb\n")
    with pytest.raises(InputError, match="not a table of metrics"):
        invoked("metrics", "easy")


def test_a_study_has_a_point_for_each_change(tmp_path: Path) -> None:
    study = {
        "workloads": {"w": {"model": "lublin99", "options": {"jobs": 150, "nodes": 16}}},
        "malleable": {"shares": [0, 0.5]},
        "policies": ["easy", "pref"],
        "shake": 3,
        "shaking": {"submit_s": 30},
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(study))
    output = invoked("sweep", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "out"), "--workers", "1").output
    table = pd.read_parquet(tmp_path / "out" / "s" / "table.parquet")
    assert len(table) == 2 * 2 * 3
    assert table.groupby(["policy", "share"])["mean_wait_s"].nunique().min() == 3
    assert table[table["policy"] == "easy"].groupby("shake")["mean_wait_s"].nunique().max() == 1  # malleable or not
    assert next(line for line in output.splitlines() if " easy " in line).count(" to ") >= 4
    mixed = tb.make_malleable(tb.generate("lublin99", jobs=150, nodes=16, seed=0), 0.5, 0)
    [row] = table[(table["policy"] == "pref") & (table["share"] == 0.5) & (table["shake"] == 2)].to_dict("records")
    direct = tb.simulate(tb.shake(mixed, 2, submit_s=30), "pref").metrics()
    assert row["mean_wait_s"] == pytest.approx(direct["mean_wait_s"])
