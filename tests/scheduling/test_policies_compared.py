"""Policies compared by their real runs: pairs, intervals, and what cannot be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tracebed.api as tb
from tests.runs import fcfs_run
from tracebed.orchestrator.run import Run

STRETCHES = (1.0, 1.02, 1.05, 1.01, 1.03)
"""A drift of the machine that both policies meet."""


def repetitions(factor: float, noise: float = 0.001, **info: Any) -> list[Run]:
    """Return repetitions whose run times are longer by `factor`, by a drift, and by noise."""
    own = factor * np.array(STRETCHES) * (1 + noise * np.random.default_rng(int(100 * factor)).standard_normal(5))
    return [fcfs_run(30, seed=1, stretch=float(each), source="replay", **info) for each in own]  # type: ignore[arg-type]


def test_a_drift_that_both_policies_meet_cancels_in_the_pairs() -> None:
    slow, fast = repetitions(1.0), repetitions(0.98)
    found = tb.compare({"slow": slow, "fast": fast})
    row = found.to_frame().loc[("fast", "median_run_s")]
    values = [np.array([run.metrics()["median_run_s"] for run in map(tb.Run.of, runs)]) for runs in (slow, fast)]
    interval = stats.ttest_rel(values[1], values[0]).confidence_interval(0.95)
    assert (row["low"], row["high"]) == pytest.approx(tuple(np.array(interval) / values[0].mean()))
    assert row["change"] == pytest.approx(-0.02, abs=0.002)
    assert (row["pairs"], row["differ"]) == (5, True)
    unpaired = tb.compare({"slow": slow, "fast": fast[:4]}).to_frame().loc[("fast", "median_run_s")]
    assert (unpaired["pairs"], unpaired["differ"]) == (0, False)  # the drift hides the difference


def test_equal_policies_do_not_differ_and_one_repetition_decides_nothing() -> None:
    same = tb.compare({"a": repetitions(1.0), "b": repetitions(1.0)})
    assert not same.to_frame()["differ"].any()
    one = tb.compare({"a": repetitions(1.0)[:1], "b": repetitions(0.5)[:1]})
    assert one.to_frame()["differ"].isna().all()


def test_an_unhealthy_repetition_is_left_out_with_its_pair() -> None:
    slow, fast = repetitions(1.0), repetitions(0.9)
    slow[2].info.state = "interrupted"
    found = tb.compare({"slow": slow, "fast": fast})
    assert found.to_frame().loc[("fast", "median_run_s"), "pairs"] == 4
    assert [warning for warning in found.warnings if warning.startswith("slow, rep-03 is excluded")]


def test_the_comparison_is_readable() -> None:
    found = tb.compare({"slow": repetitions(1.0), "mine <b>": repetitions(0.9)})
    text = found.explain()
    assert text.startswith("mine <b> against slow on ")
    assert "5 pairs of real runs" in text
    assert "response, mean (s): -" in text
    assert "mine &lt;b&gt;" in found._repr_html_()
    assert found._repr_html_().count("<svg") == text.count("  ") > 3
    assert "\n" not in repr(found)


def test_folders_of_repetitions_are_read_and_other_settings_are_warned_of(tmp_path: Path) -> None:
    for name, factor in (("slow", 1.0), ("fast", 0.9)):
        for number, run in enumerate(repetitions(factor, parameters={"duty": factor}), 1):
            run.save(tmp_path / name / f"rep-{number:02d}")
    found = tb.compare({name: tmp_path / name for name in ("slow", "fast")})
    assert "duty differs: 1.0 with slow, 0.9 with fast" in found.warnings
    assert found.to_frame()["pairs"].max() == 5


def test_what_cannot_be_compared_is_refused() -> None:
    real = repetitions(1.0)
    predicted = fcfs_run(30, seed=1, real=False)
    other = fcfs_run(30, seed=2, source="replay", sha256="b" * 64)
    for runs, message in (
        ({"a": real}, "fewer than two policies"),
        ({"a": real, "b": []}, "b has no run"),
        ({"a": real, "b": [predicted]}, "a run of b is a prediction"),
        ({"a": real, "b": [other]}, "the workload of a run of b is another one"),
    ):
        with pytest.raises(tb.InputError, match=message):
            tb.compare(runs)
    with pytest.raises(tb.InputError, match="margins does not apply"):
        tb.compare({"a": real, "b": real}, margins={"wait": "5%"})
    with pytest.raises(tb.InputError, match="the prediction is missing"):
        tb.compare(real)


def test_tables_of_other_programs_are_read_as_for_a_prediction(tmp_path: Path) -> None:
    names = {"submit": "submit_time", "start": "start_time", "end": "finish_time"}
    jobs = fcfs_run(30, seed=1).jobs[["job_id", *names, "nodes"]].rename(columns=names)
    jobs.to_csv(tmp_path / "log.csv", index=False)
    found = tb.compare({"one": tmp_path / "log.csv", "other": [tmp_path / "log.csv"]})
    assert found.to_frame()["change"].abs().max() == 0
