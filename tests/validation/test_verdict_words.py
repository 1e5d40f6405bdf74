"""What a verdict must not say: sizes, counts, margins and causes that the runs do not support."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.oracles.validations import make_validation, predicted_run, real_runs
from tests.runs import fcfs_run, make_run
from tracebed.converters.workload import FloatArray
from tracebed.ground.display import json_values
from tracebed.orchestrator.run import Run
from tracebed.validation.report import words
from tracebed.validation.report.agreement import DIVERGENCES
from tracebed.validation.report.ci import annotate, junit
from tracebed.validation.report.html import banner
from tracebed.validation.report.markdown import markdown
from tracebed.validation.verdict import Case, Tolerances, Validation, Verdict, compare, validate
from tracebed.validation.verdict.baseline import CaseBaseline, SimulatorBaseline, simulator_baseline, worse
from tracebed.validation.verdict.cases import interval, memberships
from tracebed.validation.verdict.decision import Needed, Samples, estimate, needed, rounded_up
from tracebed.validation.verdict.gate import Gate

ALPHA, KAPPA = 0.025, 2.0
Row = tuple[float, float, float]
"""Mean and noise of the real runs, and the prediction."""


# The headline.


@pytest.fixture(scope="module")
def cancelling() -> Validation:
    """Errors of opposite sign, of one real run each: the mean is within the margin, and most cases are not."""
    stretches = {f"w{number}-fcfs": 1.2 if number % 2 else 0.8 for number in range(1, 7)}
    return make_validation(stretches, repetitions=1)


def texts(found: Validation) -> dict[str, str]:
    """Return the texts about a validation in each format that has a headline or a sentence per metric."""
    return {
        "headline": found.headline,
        "text": found.explain(),
        "notebook": found._repr_html_(),
        "banner": banner(found).headline,
        "Markdown": markdown(Gate([found])),
        "JUnit": junit(Gate([found])).decode(),
        "annotations": "\n".join(annotate(Gate([found]))),
    }


def test_no_metric_is_within_its_margin_while_the_guard_fails(cancelling: Validation) -> None:
    assert cancelling.verdict is Verdict.INCONCLUSIVE
    hidden = [item for item in cancelling.gated if abs(item.z) <= 1 and item.beyond(2)]
    assert hidden  # the signed mean lies within the margin
    beyond = sum(item.beyond(1) > 0 for item in cancelling.gated)
    assert f"{beyond} of {len(cancelling.gated)} gated metrics exceed their margins in some case" in cancelling.headline
    for name, text in texts(cancelling).items():
        assert "within their margins" not in text, name


def test_no_accurate_metric_is_within_its_margin_while_a_case_is_beyond_it() -> None:
    """The guard allows a case up to two margins."""
    found = make_validation({f"w{number}-fcfs": 1.04 if number % 2 else 0.96 for number in range(1, 7)})
    assert found.verdict is Verdict.ACCURATE
    assert any(item.beyond(1) for item in found.gated) and not any(item.beyond(2) for item in found.gated)
    assert found.headline.startswith("all 5 gated metrics are accurate over 6 cases; largest error: ")
    for name, text in texts(found).items():
        assert "within their margins" not in text, name


def test_no_signed_mean_stands_for_the_size_of_several_errors(cancelling: Validation) -> None:
    largest = max(cancelling.gated, key=lambda item: item.mean_absolute)
    worst = largest.worst
    assert worst is not None
    sizes = [abs(case.z) for case in largest.cases]
    assert largest.mean_absolute == pytest.approx(np.mean(sizes))
    assert (largest.beyond(1), largest.beyond(2)) == (sum(z > 1 for z in sizes), sum(z > 2 for z in sizes))
    for name, text in texts(cancelling).items():
        assert f"mean absolute error {largest.mean_absolute:.2g} margins" in text, name
        assert f"{worst.z:+.2g} ({worst.case})" in text, name
    assert "%" not in cancelling.headline  # of relative errors and of margins, the means may have different signs
    assert f"{largest.mean_absolute:.2g} margins" in {tile.error for tile in banner(cancelling).tiles}


def test_no_error_changes_its_sign_between_two_units() -> None:
    found = make_validation({"w1-fcfs": 0.9}, repetitions=1)
    for item in found.metrics:
        (case,) = item.cases
        if not math.isnan(case.z) and case.z:
            assert np.sign(case.z) == np.sign(case.predicted - case.real_mean)
            assert item.error[0] == words.signed(case.z)[0].replace("\N{MINUS SIGN}", "-")
    assert " of the margin" not in found.headline
    assert "-" in found.headline.partition("largest error: ")[2]


# Clusters.


def shared_case(name: str, workload: str, stretch: float, seed: int = 1, **more: str) -> Case:
    return Case(name, workload, "fcfs", real_runs(seed), (predicted_run(seed, stretch),), **more)


def test_one_real_run_in_several_cases_does_not_count_as_several() -> None:
    cases = [shared_case(f"c{number}", f"w{number}", 1.0) for number in range(4)]
    found, alone = validate(cases), validate(cases[:1])
    assert (found.real_runs, found.workloads) == (5, 1)
    assert found.population == {}
    assert any("4 cases have 1 different real run, " in text for text in found.warnings)
    for several, single in zip(found.gated, alone.gated, strict=True):
        assert several.se == pytest.approx(single.se)  # four copies have the noise of one
        assert several.df == pytest.approx(single.df)
    for result in found.cases:
        assert (result.to_json()["real_run"], result.to_json()["cluster"]) == ("c0", "w0")
    # Four copies of three repetitions are one case with three repetitions.
    few = [replace(case, real=case.real[:3]) for case in cases]
    assert [reason.value for reason in validate(few).reasons] == ["too_few_repeats"]


def test_a_log_is_not_another_workload_after_each_execution() -> None:
    """A log that is its own workload has another hash each time, and the same requests."""

    def executed(seed: int, hashed: str, stretch: float = 1.0) -> Run:
        return limited(fcfs_run(40, seed=seed, stretch=stretch, sha256=hashed * 64, source="log"), seed)

    cases = [
        Case(
            f"{seed}-{hashed}", f"{seed}-{hashed}.csv", "fcfs", (executed(seed, hashed, stretch),), (predicted_run(1),)
        )
        for seed in (1, 2)
        for hashed, stretch in ((f"{seed}", 1.0), (f"{seed + 4}", 1.01))
    ]
    found = memberships(cases, [[str(number)] for number in range(4)])
    assert [each.real_run for each in found] == [case.name for case in cases]
    assert [each.workload for each in found] == ["1-1.csv"] * 2 + ["2-2.csv"] * 2
    named = [replace(case, cluster=f"c{number}") for number, case in enumerate(cases)]
    assert [each.workload for each in memberships(named, [["a"]] * 4)] == ["c0", "c1", "c2", "c3"]


def limited(run: Run, seed: int) -> Run:
    """Return the run with a time limit for each job."""
    run.jobs["time_limit"] = 60.0 * np.random.default_rng(seed).integers(1, 100, len(run.jobs))
    return run


def reference_interval(z: list[float], units: list[str]) -> tuple[float, float]:
    """Return the interval of the mean over units, one after another."""
    from scipy import stats

    groups: dict[str, list[float]] = {}
    for value, unit in zip(z, units, strict=True):
        groups.setdefault(unit, []).append(value)
    means = [sum(own) / len(own) for own in groups.values()]
    middle = sum(means) / len(means)
    sd = math.sqrt(sum((mean - middle) ** 2 for mean in means) / (len(means) - 1))
    half = float(stats.t.ppf(1 - ALPHA, len(means) - 1)) * sd / math.sqrt(len(means))
    return middle - half, middle + half


@given(st.lists(st.tuples(st.floats(-5, 5), st.sampled_from("abcd")), min_size=2, max_size=12))
def test_the_interval_over_units_is_that_of_the_reference(rows: list[tuple[float, str]]) -> None:
    z, units = [row[0] for row in rows], [row[1] for row in rows]
    assume(len(set(units)) > 1)
    np.testing.assert_allclose(interval(np.array(z), units, ALPHA), reference_interval(z, units), atol=1e-9)


def test_dependent_cases_do_not_narrow_the_interval_below_its_level() -> None:
    """20 cases: two simulations of ten real runs of five workloads. The true mean error over workloads is 0."""
    generator, trials = np.random.default_rng(1), 2000
    workloads = generator.normal(size=(trials, 5, 1, 1))
    runs = generator.normal(scale=0.5, size=(trials, 5, 2, 1))
    errors = (workloads + runs + generator.normal(scale=0.2, size=(trials, 5, 2, 2))).reshape(trials, 20)
    cases = [str(number) for number in range(20)]
    of_workload = [str(number // 4) for number in range(20)]

    def covered(units: list[str]) -> float:
        ends = [interval(each, units, ALPHA) for each in errors]
        return float(np.mean([low <= 0 <= high for low, high in ends]))

    assert covered(of_workload) == pytest.approx(0.95, abs=0.02)
    assert covered(cases) < 0.75  # the level of 20 independent cases is an illusion


def test_shared_noise_does_not_narrow_the_interval_below_its_level() -> None:
    """Eight cases with the same five repetitions: only this noise is random, and the error is 0.9 margins."""
    generator, trials = np.random.default_rng(2), 4000
    real = np.repeat(100 + 10 * generator.normal(size=(trials, 1, 5)), 8, axis=1)
    samples = Samples.of(real, np.full((trials, 8), 109.0), np.full((trials, 8), 10.0))

    def covered(samples: Samples) -> float:
        found = estimate(samples, ALPHA, KAPPA)
        return float(np.mean((found.low <= 0.9) & (found.high >= 0.9)))

    assert covered(replace(samples, real_run=np.zeros(8, dtype=np.int64))) == pytest.approx(0.95, abs=0.015)
    assert covered(samples) < 0.7


@pytest.mark.slow
def test_20_comparisons_with_ten_real_runs_are_not_20_workloads(reference_data: Callable[[str], Path]) -> None:
    """Batsim's two models against OAR on Grid'5000: the real runs of a pair of files are the same."""
    folder = reference_data("grid5000-2016-02")
    cases = []
    for file in sorted(folder.glob("*.real_jobs.csv")):
        name = file.name.removesuffix(".real_jobs.csv")
        real = tb.import_run(file, side="real", nodes=int(name[-2:]), policy="easy")
        other = tb.import_run(folder / f"{name}.batsim_jobs.csv", side="predicted", workload=real, policy="easy")
        cases.append(Case(name, name, "easy", (real,), (other,)))
    found = validate(cases)
    assert (len(found.cases), found.real_runs, found.workloads) == (20, 10, 5)
    assert found.population == {}
    (wait,) = [item for item in found.gated if item.name == "mean_wait_s"]
    ends = [level.intervals["mean_wait_s"] for level in found.levels]
    assert [level.numbers["mean_wait_s"] for level in found.levels] == [20, 10, 5]
    np.testing.assert_allclose(ends, [(-2.28, 0.37), (-3.04, 1.13), (-3.98, 2.08)], atol=0.01)
    assert (wait.beyond(1), wait.beyond(2)) == (10, 8)
    assert "5 of 5 gated metrics exceed their margins in some case" in found.headline
    assert any("20 cases have 10 different real runs" in text for text in found.warnings)
    assert any("20 cases have 5 different workloads" in text for text in found.warnings)


# Run times.


def test_copied_run_times_could_not_have_failed() -> None:
    def run(start: float, *, real: bool, longer: float = 0.0) -> Run:
        jobs = [(0.0, 0.0, 100.0, 4), (10.0, start, start + 50.0 + longer, 4), (20.0, start + 60, start + 95, 4)]
        return make_run(jobs, real=real, execution="logged" if real else "simulated", source="log" if real else "csv")

    copied = validate([Case.of([run(100.0, real=True)], [run(130.0, real=False)])])
    assert "run times" not in copied.could_fail
    assert "run times: the predicted run times are copies of the observed ones" in copied.could_not_fail
    assert not next(item for item in copied.metrics if item.name == "median_run_s").evidence
    other = validate([Case.of([run(100.0, real=True)], [run(130.0, real=False, longer=5.0)])])
    assert "run times" in other.could_fail


# The margin needed.


def samples_of(rows: list[Row]) -> Samples:
    """Return cases of (real mean, noise, predicted), three repetitions each."""
    real = np.array([[mean - noise, mean, mean + noise] for mean, noise, _ in rows])
    return Samples.of(real, [row[2] for row in rows], np.ones(len(rows)))


def passes(samples: Samples, share: float, amount: float) -> bool:
    margin: FloatArray = np.maximum(share * np.abs(samples.real), amount)
    return bool(estimate(replace(samples, margin=margin), ALPHA, KAPPA).accurate)


def bisected(samples: Samples, amount: float) -> float:
    """Return the smallest share with which the metric is accurate, by judging again."""
    low, high = 0.0, 1e5
    if passes(samples, 1e-9, amount):
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if passes(samples, middle, amount) else (middle, high)
    return high


value = st.floats(1.0, 1000.0)
rows_of = st.lists(st.tuples(value, st.floats(0.0, 5.0), value), min_size=1, max_size=4)


@given(rows_of, st.sampled_from([0.0, 1.0, 10.0, 100.0]))
def test_no_margin_is_printed_with_which_the_metric_fails(
    rows: list[tuple[float, float, float]], amount: float
) -> None:
    samples = samples_of(rows)
    found = needed(samples, amount, np.ones(len(rows)), ALPHA, KAPPA)
    for share, least in ((found.relative, amount), (found.alone, 0.0)):
        assert math.isfinite(share)
        assert passes(samples, max(rounded_up(100 * share) / 100, 1e-9), least)
        assert passes(samples, share * 3 + 1e-9, least)  # and with each wider margin
        if share > 1e-6:
            assert not passes(samples, share * (1 - 1e-6), least)
    if len(rows) == 1:
        assert found.relative == pytest.approx(bisected(samples, amount), rel=1e-6, abs=1e-8)
    assert passes(samples, 0.0, rounded_up(found.absolute))


def test_a_margin_is_never_rounded_down() -> None:
    for value in (0.033500001, 22.61, 99.99, 0.0999999, 1234.5, 1e-7):
        assert value <= rounded_up(value) <= 1.01 * value
    assert rounded_up(22.61) == 22.7
    assert rounded_up(0.0) == 0.0


def test_an_absolute_amount_is_not_scaled_into_the_relative_margin_needed() -> None:
    """A wait of 20 s is predicted 3.35 s too long: within 10 s, and 17 % off."""
    samples = samples_of([(20.0, 0.0, 23.35)])
    found = needed(samples, 10.0, np.ones(1), ALPHA, KAPPA)
    assert found == Needed(0.0, pytest.approx(0.1675), pytest.approx(3.35))


def test_no_margin_is_promised_where_too_few_repetitions_forbid_the_verdict() -> None:
    found = make_validation({"w1-fcfs": 1.1}, repetitions=4)
    assert {item.margin_needed for item in found.gated} == {"-"}


# The causes.


def test_run_times_of_the_workload_times_a_factor_are_named() -> None:
    (why,) = banner(make_validation({"w1-fcfs": 1.05})).why
    assert re.search(r": predicted run times are 1\.05 times the workload's in (\d+) of \1 jobs$", why)


def test_a_uniform_bias_is_not_blamed_on_a_class_of_jobs() -> None:
    found = make_validation({"w1-fcfs": 1.05})
    found.pair.predicted.jobs["run_time"] = math.nan  # a simulator whose output has no run times of the workload
    (why,) = banner(found).why
    assert re.search(r"all run times (4\.9|5|5\.1) % longer in the prediction \(100 %", why)
    assert "jobs whose run times" not in why


def test_a_metric_that_passed_is_not_given_as_the_reason() -> None:
    found = make_validation({"w1-fcfs": 1.3})
    assert banner(found).why
    off = max(found.gated, key=lambda item: abs(item.z))
    passed = tuple(replace(item, verdict=Verdict.ACCURATE) if item is off else item for item in found.metrics)
    (why,) = banner(replace(found, metrics=passed)).why
    assert not why.startswith(off.metric.label)
    assert banner(replace(found, metrics=tuple(replace(item, verdict=Verdict.ACCURATE) for item in passed))).why == ()


def test_half_of_the_jobs_is_no_cause_of_half_of_the_error() -> None:
    """All jobs wait 5 s longer: no class explains this error."""
    submits = np.arange(40) * 1000.0
    real = make_run([(s, s + 20 + n % 3, s + 60, 1 + n % 2) for n, s in enumerate(submits)])
    late = make_run([(s, s + 25 + n % 3, s + 65, 1 + n % 2) for n, s in enumerate(submits)], real=False)
    wait = Tolerances.default().replaced({"wait": "1%"})
    assert banner(validate([Case.of([real], [late])], wait)).why == ()
    delays = [20 + n % 3 + 40 * (n % 2) for n in range(40)]
    jobs = [
        (s, s + delay, s + delay + 40 - n % 3, 1 + n % 2)
        for (n, s), delay in zip(enumerate(submits), delays, strict=True)
    ]
    (why,) = banner(validate([Case.of([real], [make_run(jobs, real=False)])], wait)).why
    assert "% of the error in jobs of " in why


# Words.


def a_log(count: int) -> Run:
    return fcfs_run(count, source="log", execution="logged", health={}, policy="not known")


def test_a_log_has_a_name_without_its_unknown_policy_and_a_reason_for_no_verdict() -> None:
    found = compare_all([a_log(60)], [fcfs_run(6, real=False)])
    assert found.title.endswith(": tiny, 1 real run")
    text = found.explain()
    assert "not known" not in text and "{}" not in text
    assert "policy of the real run is unknown; the prediction is made under fcfs" in text
    assert "since a log cannot be repeated: how much two runs of its machine differ is unknown" in found.headline
    assert "too many jobs ended in one run only (90.0%, accepted: 1.0%)" in found.headline
    assert re.search(r"largest error: [\w ,]+, -\d+(\.\d)? %", found.headline)
    assert "single case" not in found.headline and "limit of one case" not in found.headline  # there is one case


def test_two_tables_without_a_policy_are_not_called_a_prediction_under_not_known() -> None:
    found = compare_all([a_log(60)], [fcfs_run(60, real=False, policy="not known")])
    assert "the policies of both runs are unknown" in found.explain()
    assert "made under not known" not in found.explain()


def test_large_errors_have_no_exponents() -> None:
    found = compare_all([fcfs_run(60)], [fcfs_run(60, stretch=40.0, real=False)])
    assert abs(found.metrics[1].relative_error) > 10
    for text in (found.headline, found.explain(), markdown(Gate([found])), banner(found).headline):
        assert not re.search(r"\de[+-]\d", text), text


def test_the_noise_ratio_stands_beside_the_verdict() -> None:
    found = make_validation({"w1-fcfs": 1.05, "w2-fcfs": 1.0})
    ratios = {each.case.name: each.per_job.noise_ratio for each in found.cases if each.per_job}
    worst = max(ratios, key=lambda name: ratios[name])
    assert worst == "w1-fcfs"
    assert f"largest {ratios[worst]:.3g} (w1-fcfs); 1 is as close to a real run as another real run" in found.noise
    assert found.noise in markdown(Gate([found])) and found.noise in found.explain()
    assert banner(found).noise in found.noise and banner(found).noise
    assert compare_all([fcfs_run(60)], [fcfs_run(60, real=False)]).noise == ""  # one real run


def compare_all(real: list[Run], predicted: list[Run]) -> Validation:
    return validate([Case.of(real, predicted)])


def test_resizes_are_not_counted_in_two_ways() -> None:
    """Both runs decide the same expansion. In the prediction the job ends before it is applied."""
    stairs = {"1": [(0.0, 50.0, 1), (50.0, 100.0, 2)]}
    asked = ("1", "expand", 1, 2, 40.0, 40.0)
    real = make_run([(0.0, 0.0, 100.0, 1)], staircases=stairs, reconfigurations=[(*asked, 50.0, 50.0, "applied")])
    nan = float("nan")
    predicted = make_run(
        [(0.0, 0.0, 100.0, 1)],
        real=False,
        staircases={"1": [(0.0, 100.0, 1)]},
        reconfigurations=[(*asked, nan, nan, "cancelled")],
    )
    text = str(DIVERGENCES.content(compare(real, predicted)))
    assert "both make the same" not in text
    assert "both decide the same 2 starts and resizes" in text
    assert "0 in the real run, 1 in the prediction" in text


def test_a_log_of_unknown_origin_is_not_called_public() -> None:
    info = fcfs_run(3, source="log", execution="logged").info
    assert words.execution(info) == "logged: read from a log"
    assert words.real_side(info) == "jobs of a log"


def test_errors_that_cancel_do_not_hide_a_growth() -> None:
    before, after = (
        make_baseline(make_validation({f"w{seed}-fcfs": 1 + side * off for seed, side in ((1, 1), (2, -1))}))
        for off in (0.0, 0.03)
    )
    for name, item in before.metrics.items():
        later = after.metrics[name]
        cases = {
            case: replace_z(kept, 3.0 if index else -3.0) for index, (case, kept) in enumerate(later.cases.items())
        }
        found = worse(item, later.model_copy(update={"cases": cases}), KAPPA, 0.25)
        assert "the mean absolute error grew from " in found
        assert "to 3.00 margins" in found


def replace_z(case: CaseBaseline, z: float) -> CaseBaseline:
    return case.model_copy(update={"z": z})


def make_baseline(found: Validation) -> SimulatorBaseline:
    return simulator_baseline(json.loads(json.dumps(json_values(found.to_json()))))
