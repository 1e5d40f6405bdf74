"""Comparisons: matched jobs, measured differences, verdicts, and refused comparisons."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from runs import NAN, fcfs_run, make_run
from tracebed.converters.workload import FloatArray
from tracebed.errors import ExitCode, InputError, Tolerated
from tracebed.orchestrator.run import NodeFacts
from tracebed.validation.metrics import Margin, all_metrics
from tracebed.validation.statistics import batch_means, differences
from tracebed.validation.verdict import MetricComparison, Reason, Verdict, combine, compare

REAL = [(0.0, 0.0, 100.0, 2), (10.0, 100.0, 200.0, 4), (20.0, 200.0, 300.0, 4)]


def judged(comparison: Any, name: str) -> MetricComparison:
    return next(item for item in comparison.metrics if item.name == name)


def test_hand_worked_comparison() -> None:
    predicted = [(0.0, 0.0, 90.0, 2), (10.0, 90.0, 180.0, 4), (20.0, 180.0, 270.0, 4)]
    found = compare(make_run(REAL), make_run(predicted, real=False))
    wait = judged(found, "mean_wait_s")
    assert (wait.real, wait.predicted) == (90, 80)
    assert wait.difference == -10
    assert wait.relative_error == pytest.approx(-1 / 9)
    assert wait.tolerance == 10  # 10 % of 90 s is less than 10 s
    assert wait.z == -1
    assert wait.observation == "off by -10 s, margin 10 s"
    makespan = judged(found, "makespan_s")
    assert makespan.tolerance == pytest.approx(9)
    assert makespan.observation == "off by -10.0 %, margin 3 %"
    waits = found.differences["wait"]
    assert waits is not None
    assert (waits.bias, waits.mae, waits.jobs) == (-10, 10, 3)
    assert found.jobs["job_id"].tolist() == ["1", "2", "3"]


@pytest.mark.parametrize("stretch", [1.0, 1.01, 5.0])
def test_one_real_run_is_inconclusive_however_near_or_far(stretch: float) -> None:
    found = compare(fcfs_run(60), fcfs_run(60, stretch=stretch, real=False))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons == (Reason.TOO_FEW_REPEATS,)
    assert found.exit_code == ExitCode.INCONCLUSIVE
    assert {item.verdict for item in found.metrics} == {Verdict.INCONCLUSIVE}
    assert "one real run: no accuracy claim" in found.headline
    gated = [item for item in found.metrics if item.margin.gate]
    inside = sum(abs(item.z) <= 1 for item in gated)
    assert f"{inside} of 5 gated metrics" in found.headline
    assert (inside == 5) == (stretch < 1.05)


def test_identical_runs_do_not_differ() -> None:
    found = compare(fcfs_run(60, execution="computed"), fcfs_run(60, real=False))
    assert all(item.difference == 0 for item in found.metrics)
    waits = found.differences["wait"]
    assert waits is not None
    assert (waits.mae, waits.wasserstein, waits.limits) == (0, 0, (0, 0))
    assert waits.kendall_tau == pytest.approx(1)
    assert not found.warnings


def test_jobs_are_matched_by_id_not_by_place() -> None:
    turned = make_run(REAL[::-1], ids=["3", "2", "1"], real=False)
    found = compare(make_run(REAL), turned)
    assert found.jobs["job_id"].tolist() == ["1", "2", "3"]
    assert (found.jobs["wait_predicted"] == found.jobs["wait_real"]).all()


def test_jobs_without_a_counterpart_are_counted_and_reported() -> None:
    real = make_run(REAL, states={"3": "failed"})
    predicted = [*REAL[:1], (10.0, NAN, NAN, 4), REAL[2], (30.0, 300.0, 310.0, 1), (40.0, NAN, NAN, 9)]
    found = compare(real, make_run(predicted, real=False, states={"2": "interrupted", "5": "rejected"}))
    matching = found.matching
    assert (matching.matched, matching.only_real, matching.only_predicted, matching.unlike) == (2, 1, 1, 1)
    assert matching.states_differ == 1
    assert matching.unmatched_share == pytest.approx(3 / 5)
    assert found.reasons == (Reason.UNMATCHED_JOBS, Reason.TOO_FEW_REPEATS)
    assert any("3 jobs (60.0 % of all) have no counterpart" in warning for warning in found.warnings)
    assert any("1 jobs ended in a different state" in warning for warning in found.warnings)


def test_jobs_rejected_on_both_sides_agree() -> None:
    jobs, states = [*REAL, (30.0, NAN, NAN, 9)], {"4": "rejected"}
    found = compare(make_run(jobs, states=states), make_run(jobs, states=states, real=False))
    assert found.matching.ended_in_neither == 1
    assert found.matching.unmatched == 0
    assert found.reasons == (Reason.TOO_FEW_REPEATS,)


def test_swapped_sides_are_refused() -> None:
    real, predicted = make_run(REAL), make_run(REAL, real=False)
    with pytest.raises(InputError, match="given as real is a prediction"):
        compare(predicted, predicted)
    with pytest.raises(InputError, match="given as predicted is a real run"):
        compare(real, real)


def test_different_workloads_are_refused_unless_allowed() -> None:
    real, other = make_run(REAL), make_run(REAL, real=False, sha256="b" * 64)
    with pytest.raises(InputError, match=r"have different workloads.*allow-different-workloads"):
        compare(real, other)
    found = compare(real, other, allow_different_workloads=True)
    assert found.matching.matched == 3
    assert "different workloads" in found.warnings[0]
    strangers = make_run(REAL, real=False, ids=["x", "y", "z"])
    with pytest.raises(InputError, match="no job in common"):
        compare(real, strangers)


def test_differences_between_runs_are_warnings() -> None:
    real = make_run(REAL, speed=200.0, parameters={"interval": 10, "grain": 1}, state="interrupted")
    predicted = make_run(REAL, real=False, policy="easy", machine=6, parameters={"interval": 0, "overhead_end": 1})
    said = " | ".join(compare(real, predicted).warnings)
    for what in (
        "policy differs: real fcfs, predicted easy",
        "number of nodes differs: real 4, predicted 6",
        "speed differs: real 200.0, predicted 1.0",
        "interval differs: real 10, predicted 0",
        "the real run is unhealthy: the run was interrupted: cause unknown",
    ):
        assert what in said
    assert "grain" not in said
    assert "overhead_end" not in said


def test_the_speed_of_a_prediction_without_overheads_is_ignored() -> None:
    predicted = make_run(REAL, real=False, parameters={"overhead_launch": 0.0})
    assert not any("speed" in text for text in compare(make_run(REAL, speed=200.0), predicted).warnings)


def test_late_submissions_are_reported() -> None:
    real = make_run(REAL)
    real.jobs.loc[1, "submit_planned"] = 3.0
    assert any("up to 7.0 trace seconds from" in text for text in compare(real, make_run(REAL, real=False)).warnings)


def test_contradicting_clocks_are_unhealthy() -> None:
    skewed = [*REAL[:2], (250.0, 200.0, 300.0, 4)]
    with pytest.warns(Tolerated, match="clock skew"):
        found = compare(make_run(skewed), make_run(REAL, real=False))
    assert found.reasons[0] is Reason.UNHEALTHY
    assert found.exit_code == ExitCode.UNHEALTHY
    text = "the real run is unhealthy: 1 jobs start before their submission or end before their start"
    assert found.headline.startswith(f"{text}; one real run")
    assert text in found.warnings


STOPPED = {"signal": "late_s", "value": 10.2, "limit": 1.0, "state": "unhealthy", "text": "a rank was 10.2 s late"}
LOADED = {"signal": "pressure", "value": 0.2, "limit": 0.1, "state": "degraded", "text": "pressure 20 %, limit 10 %"}


def health(state: str, *causes: dict[str, Any]) -> dict[str, Any]:
    return {"state": state, "causes": list(causes), "signals": {}, "thresholds": "0" * 64}


def test_an_unhealthy_run_ends_with_4_and_names_its_causes() -> None:
    real = make_run(REAL, health=health("unhealthy", LOADED, STOPPED))
    found = compare(real, make_run(REAL, real=False))
    assert found.exit_code == ExitCode.UNHEALTHY
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.headline.startswith("the real run is unhealthy: a rank was 10.2 s late; one real run")
    assert found.warnings[:2] == [
        "the real run is degraded: pressure 20 %, limit 10 %",
        "the real run is unhealthy: a rank was 10.2 s late",
    ]
    assert {Reason.UNHEALTHY} <= {*judged(found, "mean_wait_s").reasons}
    assert found.to_json()["health"] == {"state": "unhealthy", "causes": [LOADED, STOPPED]}
    assert found.to_json()["real"]["health"] == real.info.health


def test_a_degraded_run_is_a_warning() -> None:
    found = compare(make_run(REAL, health=health("degraded", LOADED)), make_run(REAL, real=False))
    assert found.exit_code == ExitCode.INCONCLUSIVE
    assert found.reasons == (Reason.TOO_FEW_REPEATS,)
    assert found.warnings[0] == "the real run is degraded: pressure 20 %, limit 10 %"


def test_an_interrupted_run_is_unhealthy_whatever_it_recorded() -> None:
    for recorded in ({}, health("healthy"), health("degraded", LOADED)):
        real = make_run(REAL, state="interrupted", interruptions=["SIGTERM"], health=recorded)
        found = compare(real, make_run(REAL, real=False))
        assert found.exit_code == ExitCode.UNHEALTHY
        assert found.headline.startswith("the real run is unhealthy: the run was interrupted: SIGTERM; ")


def test_an_interruption_is_named_once() -> None:
    lost = STOPPED | {"text": "the agent of n1 was lost"}
    real = make_run(REAL, state="interrupted", interruptions=["agent lost"], health=health("unhealthy", lost))
    found = compare(real, make_run(REAL, real=False))
    assert [text for text in found.warnings if "unhealthy" in text] == [
        "the real run is unhealthy: the agent of n1 was lost"
    ]


def test_a_replay_without_a_record_of_its_health_is_a_warning() -> None:
    found = compare(make_run(REAL, health={}), make_run(REAL, real=False))
    assert found.exit_code == ExitCode.INCONCLUSIVE
    assert found.warnings[0].startswith("the health of the real run is unknown")
    assert found.to_json()["health"]["state"] == "unknown"
    log = compare(make_run(REAL, health={}, source="log", execution="logged"), make_run(REAL, real=False))
    assert log.warnings == []


def test_a_prediction_is_not_judged_on_the_workload_of_its_calibration() -> None:
    predicted = make_run(REAL, real=False, calibration={"name": "here", "workloads": ["b" * 64, "a" * 64]})
    found = compare(make_run(REAL), predicted)
    assert found.reasons == (Reason.CALIBRATION_WORKLOAD, Reason.TOO_FEW_REPEATS)
    assert found.exit_code == ExitCode.INCONCLUSIVE
    assert "made from this workload" in found.headline
    held_out = make_run(REAL, real=False, calibration={"name": "here", "workloads": ["b" * 64]})
    assert compare(make_run(REAL), held_out).reasons == (Reason.TOO_FEW_REPEATS,)


@pytest.mark.parametrize(
    ("info", "by"),
    [
        ({"execution": "computed"}, ""),
        ({"execution": "computed", "parameters": {"duty": 1.0}}, ""),
        ({"execution": "logged", "source": "log"}, ""),
        ({"execution": "computed", "parameters": {"duty": 0.5}}, "(duty 0.5)"),
        ({"execution": "computed", "parameters": {"duty": [1.0, 0.7, 0.5]}}, "(duty 0.5 to 0.7)"),
        ({"execution": "emulated", "parameters": {"duty": 0.0}}, "(emulated nodes)"),
        ({"execution": "computed+emulated", "parameters": {"duty": [0.0, 0.5]}}, "(emulated nodes, duty 0.5)"),
    ],
)
def test_imposed_run_times_are_no_evidence(info: dict[str, Any], by: str) -> None:
    found = compare(make_run(REAL, **info), make_run(REAL, real=False))
    said = [text for text in found.warnings if "were imposed" in text]
    assert len(said) == bool(by)
    assert all(by in text for text in said)
    assert {item.name for item in found.metrics if not item.evidence} == ({"median_run_s"} if by else set())
    assert ("run times imposed" in judged(found, "median_run_s").sentence) == bool(by)


def test_a_run_in_which_nothing_ended_is_compared_without_a_crash() -> None:
    nothing = [(0.0, NAN, NAN, 1), (1.0, NAN, NAN, 1)]
    found = compare(make_run(nothing, states={"1": "interrupted", "2": "interrupted"}), make_run(REAL[:2], real=False))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert Reason.NOT_DEFINED in judged(found, "mean_wait_s").reasons
    assert judged(found, "mean_wait_s").observation == "not defined in both runs"
    assert found.differences["wait"] is None
    json.dumps(found.to_json())


def test_operations_are_judged_where_jobs_are_malleable() -> None:
    rigid = compare(make_run(REAL), make_run(REAL, real=False))
    assert "expand_operations_per_job" not in {item.name for item in rigid.metrics}
    stairs = {"1": [(0.0, 50.0, 2), (50.0, 100.0, 3)]}
    asked = [("1", "expand", 2, 3, 49.0, 50.0, 50.0, 50.0, "applied")]
    found = compare(
        make_run(REAL, staircases=stairs, reconfigurations=asked),
        make_run(REAL, staircases=stairs, real=False),
    )
    operations = judged(found, "expand_operations_per_job")
    assert (operations.real, operations.predicted) == (pytest.approx(1 / 3), 0)
    assert not operations.margin.gate


def test_the_gate_is_the_protocols() -> None:
    assert {name for name, metric in all_metrics().items() if metric.margin and metric.margin.gate} == {
        "makespan_s",
        "utilization",
        "mean_response_s",
        "mean_wait_s",
        "mean_bounded_slowdown",
    }


def test_margins_are_in_trace_time_at_any_speed() -> None:
    slow, fast = (compare(make_run(REAL, speed=s), make_run(REAL, real=False, speed=s)) for s in (1.0, 60.0))
    assert judged(slow, "mean_wait_s").tolerance == judged(fast, "mean_wait_s").tolerance == 10.0


def test_margins_in_seconds_are_compressed_like_the_workload() -> None:
    steps = [{"name": "scale", "parameters": {"run_time": factor}} for factor in (0.1, 0.5)] + [
        {"name": "scale", "parameters": {"nodes": 4}},
        {"name": "cirne", "parameters": {"run_time": 9.0}},
    ]
    workload = {"name": "w", "sha256": "a" * 64, "jobs": 3, "provenance": {"steps": steps}}
    jobs = [(0.0, 0.0, 9.0, 2), (1.0, 2.0, 4.0, 2)]
    found = compare(make_run(jobs, workload=workload), make_run(jobs, real=False, workload=workload))
    assert found.compression == pytest.approx(0.05)
    assert judged(found, "mean_wait_s").tolerance == pytest.approx(0.5)
    assert judged(found, "mean_bounded_slowdown").tolerance == pytest.approx(0.1)


@given(st.lists(st.sampled_from(list(Verdict))))
def test_one_inaccurate_metric_is_enough_and_accurate_needs_all(verdicts: list[Verdict]) -> None:
    overall = combine(verdicts)
    assert (overall is Verdict.INACCURATE) == (Verdict.INACCURATE in verdicts)
    assert (overall is Verdict.ACCURATE) == (set(verdicts) == {Verdict.ACCURATE})


def test_exit_codes() -> None:
    assert [verdict.exit_code for verdict in Verdict] == [0, 1, 3]


def test_stability_covers_the_difference_of_the_means() -> None:
    found = compare(fcfs_run(200), fcfs_run(200, stretch=1.05, real=False))
    for name in ("mean_wait_s", "mean_response_s", "mean_bounded_slowdown", "utilization"):
        item = judged(found, name)
        assert item.stability is not None
        assert item.stability.mean == pytest.approx(item.difference, rel=1e-2)
        assert item.stability.half_width > 0
    assert judged(found, "makespan_s").stability is None


def test_json_has_the_numbers_and_the_reason() -> None:
    found = compare(fcfs_run(30), fcfs_run(30, stretch=1.1, real=False)).to_json()
    assert found["schema"] == "tracebed-comparison/1"
    assert found["verdict"] == "inconclusive"
    assert found["repeats"] == 1
    wait = next(item for item in found["metrics"] if item["name"] == "mean_wait_s")
    assert wait["z"] == pytest.approx(wait["difference"] / wait["margin"])
    assert wait["reasons"] == ["too_few_repeats"]
    json.dumps(found)


# Statistics.


def test_batch_means_by_hand() -> None:
    values = np.repeat(np.arange(10.0), 3)
    interval = batch_means(values, level=0.90)
    assert interval is not None
    assert interval.mean == 4.5
    assert interval.half_width == pytest.approx(1.8331 * np.std(np.arange(10.0), ddof=1) / math.sqrt(10), rel=1e-4)
    assert (interval.low, interval.high) == (
        interval.mean - interval.half_width,
        interval.mean + interval.half_width,
    )
    assert batch_means(np.arange(19.0)) is None


def test_batch_means_see_correlation_that_independence_hides() -> None:
    generator = np.random.default_rng(1)
    series = np.zeros(2000)
    for index in range(1, 2000):
        series[index] = 0.95 * series[index - 1] + generator.normal()
    interval = batch_means(series)
    assert interval is not None
    assert interval.half_width > 3 * 1.645 * series.std() / math.sqrt(2000)


samples = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=30)


@given(samples)
def test_differences_agree_with_their_definitions(pairs: list[tuple[int, int]]) -> None:
    predicted, real = (np.array(side, dtype=np.float64) for side in zip(*pairs, strict=True))
    found = differences(predicted, real)
    assert found is not None
    d = [p - r for p, r in pairs]
    mean = sum(d) / len(d)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in d) / (len(d) - 1))
    assert found.bias == pytest.approx(mean)
    assert found.mae == pytest.approx(sum(map(abs, d)) / len(d))
    assert found.rmse == pytest.approx(math.sqrt(sum(x * x for x in d) / len(d)))
    assert found.limits == pytest.approx((mean - 1.96 * deviation, mean + 1.96 * deviation))
    gaps = [abs(p - r) for p, r in zip(sorted(predicted), sorted(real), strict=True)]
    assert found.wasserstein == pytest.approx(sum(gaps) / len(gaps))
    assert found.mae >= found.wasserstein - 1e-9
    assert found.kendall_tau == pytest.approx(_tau_b(predicted, real), nan_ok=True)


def _tau_b(x: FloatArray, y: FloatArray) -> float:
    score = tied_x = tied_y = pairs = 0
    for i in range(len(x)):
        for j in range(i):
            a, b = np.sign(x[i] - x[j]), np.sign(y[i] - y[j])
            score, tied_x, tied_y, pairs = score + a * b, tied_x + (a == 0), tied_y + (b == 0), pairs + 1
    spread = math.sqrt((pairs - tied_x) * (pairs - tied_y))
    return float(score) / spread if spread else math.nan


def test_shuffled_waits_have_the_same_distribution_and_are_no_good_prediction() -> None:
    waits = np.random.default_rng(2).exponential(100.0, 500)
    found = differences(np.roll(waits, 1), waits)
    assert found is not None
    assert found.wasserstein == pytest.approx(0)
    assert stats.ks_2samp(np.roll(waits, 1), waits).pvalue == 1  # the result of a test on the pooled jobs
    assert found.mae > 0.5 * waits.mean()


def test_margin_is_the_larger_of_share_and_amount() -> None:
    margin = Margin(0.1, 10.0)
    assert (margin.at(50.0), margin.at(1000.0)) == (10.0, 100.0)
    wait = all_metrics()["mean_wait_s"]
    item = MetricComparison(wait, 0.0, 3.0, replace(margin, absolute=0.0), None, Verdict.INCONCLUSIVE, ())
    assert math.isnan(item.relative_error)
    assert math.isnan(item.z)


def test_uneven_machines_are_measured_by_cores() -> None:
    run = make_run([(0, 0, 10, 1), (0, 10, 20, 1)], machine=2)
    run.info.nodes = [NodeFacts("small", 1), NodeFacts("big", 3)]
    found = compare(run, make_run([(0, 0, 10, 1), (0, 10, 20, 1)], machine=2, real=False))
    assert found.real_metrics["utilization_full"] == pytest.approx(20 / (4 * 20))


def test_a_comparison_has_a_text_and_an_html_representation() -> None:
    predicted = [(0.0, 0.0, 90.0, 2), (10.0, 90.0, 180.0, 4), (20.0, 180.0, 270.0, 4)]
    found = compare(make_run(REAL), make_run(predicted, real=False, policy="<easy>"))
    lines = found.explain().splitlines()
    assert lines[:2] == ["tiny, fcfs: replay and simulator: inconclusive", found.headline]
    assert "makespan (s): real 300, predicted 270; off by -10.0 %, margin 3 % [gate]" in lines
    assert "run, median (s): real 100, predicted 90; off by -10.0 %, margin 2 % [advisory, run times imposed]" in lines
    assert lines[-2] == "- policy differs: real fcfs, predicted <easy>"
    assert repr(found) == (
        "<Comparison of tiny, fcfs: replay and simulator: inconclusive, 3 of 5 gated metrics within their margins, "
        "3 jobs matched, warnings: 2>"
    )
    shown = found._repr_html_()
    assert "<td>makespan (s)</td><td>300</td><td>270</td><td>off by -10.0 %, margin 3 %</td><td>gate</td>" in shown
    assert "predicted &lt;easy&gt;" in shown
