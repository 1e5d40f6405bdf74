"""Comparisons of two runs: matched jobs, differences, warnings, health of the real run, and refused comparisons."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.runs import NAN, fcfs_run, make_run
from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import ExitCode, InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.nodes import NodeFacts
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.validation.metrics import Margin, all_metrics
from tracebed.validation.statistics import batch_means, differences
from tracebed.validation.verdict import Case, Validation, Verdict, combine, compare, validate

REAL = [(0.0, 0.0, 100.0, 2), (10.0, 100.0, 200.0, 4), (20.0, 200.0, 300.0, 4)]


def judged(real: Run, predicted: Run) -> Validation:
    """Return the validation of one prediction by one real run."""
    return validate([Case.of([real], [predicted])])


def test_hand_worked_comparison() -> None:
    predicted = [(0.0, 0.0, 90.0, 2), (10.0, 90.0, 180.0, 4), (20.0, 180.0, 270.0, 4)]
    found = compare(make_run(REAL), make_run(predicted, real=False))
    assert (found.real_metrics["mean_wait_s"], found.predicted_metrics["mean_wait_s"]) == (90, 80)
    assert (found.real_metrics["makespan_s"], found.predicted_metrics["makespan_s"]) == (300, 270)
    waits = found.differences["wait"]
    assert waits is not None
    assert (waits.bias, waits.mae, waits.jobs) == (-10, 10, 3)
    assert found.jobs["job_id"].tolist() == ["1", "2", "3"]


def test_identical_runs_do_not_differ() -> None:
    found = compare(fcfs_run(60, execution="computed"), fcfs_run(60, real=False))
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
    assert any("3 jobs (60.0 % of all) have no counterpart" in warning for warning in found.warnings)
    assert any("1 jobs ended in a different state" in warning for warning in found.warnings)


def test_jobs_rejected_on_both_sides_agree() -> None:
    jobs, states = [*REAL, (30.0, NAN, NAN, 9)], {"4": "rejected"}
    found = compare(make_run(jobs, states=states), make_run(jobs, states=states, real=False))
    assert found.matching.ended_in_neither == 1
    assert found.matching.unmatched == 0


def test_swapped_sides_are_refused() -> None:
    real, predicted = make_run(REAL), make_run(REAL, real=False)
    with pytest.raises(InputError, match="given as real is a prediction"):
        compare(predicted, predicted)
    with pytest.raises(InputError, match="given as predicted is a real run"):
        compare(real, real)


def test_different_workloads_are_refused_unless_allowed() -> None:
    real, other = make_run(REAL), make_run(REAL, real=False, sha256="b" * 64)
    with pytest.raises(InputError, match=r"have different workloads.*--match id"):
        compare(real, other)
    found = compare(real, other, allow_different_workloads=True)
    assert found.matching.matched == 3
    assert "different workloads" in found.warnings[0]
    strangers = make_run(REAL, real=False, ids=["x", "y", "z"])
    with pytest.raises(InputError, match="no job in common"):
        compare(real, strangers)


def test_differences_between_runs_are_warnings() -> None:
    real = make_run(
        REAL, speed=200.0, interval_s=10, parameters={"grain": 1}, state="interrupted", policy_parameters={"depth": 3}
    )
    predicted = make_run(REAL, real=False, policy="easy", machine=6, overheads=Overheads(end_s=1.0))
    said = " | ".join(compare(real, predicted).warnings)
    for what in (
        "policy differs: real fcfs, predicted easy",
        "number of nodes differs: real 4, predicted 6",
        "speed differs: real 200.0, predicted 1.0",
        "interval_s differs: real 10, predicted 0",
    ):
        assert what in said
    assert "grain" not in said
    assert "depth" not in said  # parameters of different policies always differ
    assert "policy parameter depth differs" in " | ".join(compare(real, make_run(REAL, real=False)).warnings)
    assert "overhead_end_s" not in said


def test_parameters_of_an_older_version_are_one_warning() -> None:
    real = make_run(REAL, policy_parameters={"count_idle": True, "old": 1})
    new = make_run(REAL, real=False, policy_parameters={"count_idle": "yes", "calls": "event", "ties": "start"})
    said = [text for text in compare(real, new).warnings if "policy parameter" in text]
    assert said == [
        "policy parameters are not recorded: real unknown, predicted calls event, ties start",
        "policy parameter old differs: real 1, predicted not recorded",
    ]


def test_the_speed_of_a_prediction_without_overheads_is_ignored() -> None:
    predicted = make_run(REAL, real=False, overheads=Overheads(launch_s=0.0))
    assert not any("speed" in text for text in compare(make_run(REAL, speed=200.0), predicted).warnings)


def test_late_submissions_are_reported() -> None:
    real = make_run(REAL)
    real.jobs.loc[1, "submit_planned"] = 3.0
    assert any("up to 7.0 trace seconds from" in text for text in compare(real, make_run(REAL, real=False)).warnings)


STOPPED = {"signal": "late_s", "value": 10.2, "limit": 1.0, "state": "unhealthy", "text": "a rank was 10.2 s late"}
LOADED = {"signal": "pressure", "value": 0.2, "limit": 0.1, "state": "degraded", "text": "pressure 20 %, limit 10 %"}


def health(state: str, *causes: dict[str, Any]) -> dict[str, Any]:
    return {"state": state, "causes": list(causes), "signals": {}, "thresholds": "0" * 64}


def test_an_interrupted_run_is_unhealthy_whatever_it_recorded() -> None:
    for recorded in ({}, health("healthy"), health("degraded", LOADED)):
        real = make_run(REAL, state="interrupted", interruptions=["SIGTERM"], health=recorded)
        assert compare(real, make_run(REAL, real=False)).health.state == "unhealthy"
        found = judged(real, make_run(REAL, real=False))
        assert found.exit_code == ExitCode.UNHEALTHY
        assert found.headline.startswith("the real run is unhealthy: the run was interrupted: SIGTERM; ")


def test_an_interruption_is_named_once() -> None:
    lost = STOPPED | {"text": "the agent of n1 was lost"}
    real = make_run(REAL, state="interrupted", interruptions=["agent lost"], health=health("unhealthy", lost))
    found = judged(real, make_run(REAL, real=False))
    assert [text for text in found.warnings if "unhealthy" in text] == [
        "the real run is unhealthy: the agent of n1 was lost"
    ]


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


def test_a_run_in_which_nothing_ended_is_compared_without_a_crash() -> None:
    nothing = [(0.0, NAN, NAN, 1), (1.0, NAN, NAN, 1)]
    found = compare(make_run(nothing, states={"1": "interrupted", "2": "interrupted"}), make_run(REAL[:2], real=False))
    assert found.differences["wait"] is None
    assert found.matching.matched == 0


def test_the_gate_is_the_protocols() -> None:
    assert {name for name, metric in all_metrics().items() if metric.margin and metric.margin.gate} == {
        "makespan_s",
        "utilization",
        "mean_response_s",
        "mean_wait_s",
        "mean_bounded_slowdown",
    }


def test_margins_in_seconds_are_compressed_like_the_workload() -> None:
    steps = [{"name": "scale", "parameters": {"run_time": factor}} for factor in (0.1, 0.5)] + [
        {"name": "scale", "parameters": {"nodes": 4}},
        {"name": "cirne", "parameters": {"run_time": 9.0}},
    ]
    workload = {"name": "w", "sha256": "a" * 64, "jobs": 3, "provenance": {"steps": steps}}
    jobs = [(0.0, 0.0, 9.0, 2), (1.0, 2.0, 4.0, 2)]
    found = compare(make_run(jobs, workload=workload), make_run(jobs, real=False, workload=workload))
    assert found.compression == pytest.approx(0.05)
    margins = {item.name: item.cases[0].margin for item in judged(found.real, found.predicted).metrics}
    assert margins["mean_wait_s"] == pytest.approx(0.5)
    assert margins["mean_bounded_slowdown"] == pytest.approx(0.1)


def test_margins_are_in_trace_time_at_any_speed() -> None:
    runs = [(make_run(REAL, speed=speed), make_run(REAL, real=False, speed=speed)) for speed in (1.0, 60.0)]
    slow, fast = ({item.name: item.cases[0].margin for item in judged(*pair).metrics} for pair in runs)
    assert slow["mean_wait_s"] == fast["mean_wait_s"] == 10.0


def test_operations_are_judged_where_jobs_are_malleable() -> None:
    rigid = judged(make_run(REAL), make_run(REAL, real=False))
    assert "expand_operations_per_job" not in {item.name for item in rigid.metrics}
    stairs = {"1": [(0.0, 50.0, 2), (50.0, 100.0, 3)]}
    asked = [("1", "expand", 2, 3, 49.0, 50.0, 50.0, 50.0, "applied")]
    real = make_run(REAL, staircases=stairs, reconfigurations=asked)
    found = judged(real, make_run(REAL, staircases=stairs, real=False))
    operations = next(item for item in found.metrics if item.name == "expand_operations_per_job")
    assert (operations.cases[0].real_mean, operations.cases[0].predicted) == (pytest.approx(1 / 3), 0)
    assert not operations.gate


def test_a_replay_without_a_record_of_its_health_is_a_warning() -> None:
    found = judged(make_run(REAL, health={}), make_run(REAL, real=False))
    assert found.exit_code == ExitCode.INCONCLUSIVE
    assert found.warnings[0].startswith("the health of the real run is unknown")
    log = judged(make_run(REAL, health={}, source="log", execution="logged"), make_run(REAL, real=False))
    assert not any("unknown" in text for text in log.warnings)


@given(st.lists(st.sampled_from(list(Verdict))))
def test_one_inaccurate_metric_is_enough_and_accurate_needs_all(verdicts: list[Verdict]) -> None:
    overall = combine(verdicts)
    assert (overall is Verdict.INACCURATE) == (Verdict.INACCURATE in verdicts)
    assert (overall is Verdict.ACCURATE) == (set(verdicts) == {Verdict.ACCURATE})


def test_exit_codes() -> None:
    assert [verdict.exit_code for verdict in Verdict] == [0, 1, 3]


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


def test_uneven_machines_are_measured_by_cores() -> None:
    run = make_run([(0, 0, 10, 1), (0, 10, 20, 1)], machine=2)
    run.info.nodes = [NodeFacts("small", 1), NodeFacts("big", 3)]
    found = compare(run, make_run([(0, 0, 10, 1), (0, 10, 20, 1)], machine=2, real=False))
    assert found.real_metrics["utilization_full"] == pytest.approx(20 / (4 * 20))
