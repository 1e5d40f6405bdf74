"""The papers' workloads: drawn workloads have the figures of the papers' tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import tracebed.api as tb
from tracebed.cli import tracebed
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.malleability import Sizes, gain_slopes, sizes_by_gain_slope
from tracebed.converters.models import deadlines, downey97, registry
from tracebed.converters.models.cirne import CirneParameters, cirne
from tracebed.converters.models.feitelson96 import Feitelson96Parameters, feitelson96
from tracebed.converters.models.papers import HPG_ALIGNER, SD, deadline, dmr, sd, sd_5
from tracebed.converters.speedup import speedup_function
from tracebed.converters.workload import System
from tracebed.ground.errors import InputError

TABLE_1 = {6: 0.7143, 12: 0.1176, 24: -0.0168, 48: -0.0672}
TABLE_3 = {6: 0.7504, 12: 0.1375, 24: 0.0022, 48: -0.0137}
"""Gains as the DMR study prints them."""


@pytest.mark.parametrize(("dataset", "printed"), [("production", TABLE_1), ("large", TABLE_3)])
def test_gain_slopes_are_those_printed(dataset: str, printed: dict[int, float]) -> None:
    assert gain_slopes(HPG_ALIGNER[dataset]) == pytest.approx(printed, abs=6e-5)


def test_sizes_by_gain_slope_are_those_printed() -> None:
    assert sizes_by_gain_slope(HPG_ALIGNER["production"]) == Sizes(3, 6, 12)
    assert sizes_by_gain_slope(HPG_ALIGNER["large"]) == Sizes(6, 6, 24)


def test_sizes_if_no_slope_is_steep_or_positive() -> None:
    assert sizes_by_gain_slope({4: 10.0}) == Sizes(4, 4, 4)
    assert sizes_by_gain_slope({2: 10.0, 4: 11.0, 8: 12.0}) == Sizes(2, 2, 2)
    assert sizes_by_gain_slope({2: 100.0, 4: 90.0, 8: 85.0}) == Sizes(2, 2, 8)
    assert sizes_by_gain_slope({8: 85.0, 2: 100.0, 4: 20.0}, least=0.9) == Sizes(2, 4, 4)


@given(st.dictionaries(st.integers(1, 64), st.floats(0.1, 1e5), min_size=1, max_size=8))
def test_sizes_by_gain_slope_are_measured_ones_in_order(times: dict[int, float]) -> None:
    sizes = sizes_by_gain_slope(times)
    assert sizes.least <= sizes.preferred <= sizes.most
    assert set(sizes) <= set(times)


@pytest.mark.parametrize("times", [{}, {0: 1.0}, {1: 0.0}, {1: float("nan")}])
def test_wrong_times_are_errors(times: dict[int, float]) -> None:
    with pytest.raises(InputError, match="measured times"):
        sizes_by_gain_slope(times)


@pytest.mark.parametrize("jobs", [100, 250, 500, 1000, 2000])
def test_dmr_workloads_are_those_of_the_study(jobs: int) -> None:
    workload = registry.draw(f"dmr-{jobs}", seed=1)
    assert len(workload) == jobs
    assert workload.provenance.system == System(49, 48, "DMR study")
    for name, value in {"nodes": 12, "nodes_min": 3, "nodes_pref": 6, "nodes_max": 12, "run_time": 40}.items():
        assert set(workload.column(name)) == {value}
    assert set(workload.column("kind")) == {"malleable"}
    gap = np.diff(workload.floats("submit_time"), prepend=0.0)
    assert stats.kstest(gap, stats.expon(scale=10).cdf).pvalue > 1e-3


@pytest.mark.parametrize("dataset", ["production", "large"])
def test_dmr_jobs_run_as_measured(dataset: str) -> None:
    table = dmr(5, dataset=dataset).table.iloc[0]  # type: ignore[arg-type]
    speedup = speedup_function(table["speedup"], table["speedup_parameters"])
    times = HPG_ALIGNER[dataset]
    on = {size: table["run_time"] * speedup(table["nodes"]) / speedup(size) for size in times}
    assert on == pytest.approx(times)


def test_dmr_jobs_may_be_fixed_and_arrive_otherwise() -> None:
    fixed = dmr(400, fixed=True, seed=3)
    assert set(fixed.column("kind")) == {"rigid"}
    assert set(fixed.ints("nodes_min")) == {12}
    assert fixed.floats("submit_time").tolist() == dmr(400, seed=3).floats("submit_time").tolist()
    steady = np.diff(dmr(400, gaps="poisson", factor=20.0).floats("submit_time"))
    assert (steady == np.round(steady)).all()
    assert steady.mean() == pytest.approx(20.0, rel=0.1)
    assert steady.std() == pytest.approx(np.sqrt(20.0), rel=0.15)
    assert dmr(1, dataset="large").ints("nodes").tolist() == [24]
    with pytest.raises(InputError, match="11 nodes"):
        dmr(5, nodes=11)
    with pytest.raises(InputError, match="dataset"):
        dmr(5, dataset="small")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "factor"), [("normal", 1500.0), ("heavy", 150.0), ("very-heavy", 1.0)])
def test_deadline_workloads_are_those_of_the_study(name: str, factor: float) -> None:
    workload = registry.draw(f"deadline-{name}", seed=2)
    assert len(workload) == 1000
    assert workload.provenance.system == System(128, 4, "deadline study", grid="8x16")
    plain = feitelson96(1000, seed=2, repeats="end", parameters=Feitelson96Parameters(factor=factor))
    for column in ("submit_time", "nodes", "run_time", "extra_executable"):
        assert workload.column(column).tolist() == plain.column(column).tolist()
    assert "after" not in workload.table
    assert set(workload.column("behaviour")) == set(deadlines.TYPES)
    counts = list(Counter(workload.column("behaviour")).values())
    assert stats.chisquare(counts).pvalue > 1e-3


def test_deadlines_leave_more_slack_for_larger_jobs() -> None:
    p = deadlines.DeadlineParameters(ahead=600.0, slack=0.2, slack_largest=1.0)
    table = deadline(20_000, parameters=p, seed=1).table
    ahead = table["earliest_start"] - table["submit_time"]
    assert stats.kstest(ahead, stats.expon(scale=600.0).cdf).pvalue > 1e-3
    slack = (table["deadline"] - table["earliest_start"]) / table["run_time"] - 1
    assert slack[table["nodes"] == 1].to_numpy() == pytest.approx(0.2, abs=1e-3)
    assert slack[table["nodes"] == 128].to_numpy() == pytest.approx(1.0, abs=1e-3)
    means = [slack[table["nodes"] == n].mean() for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert means == sorted(means)
    at_once = deadline(50, parameters=deadlines.DeadlineParameters(ahead=0.0)).table
    assert (at_once["earliest_start"] == at_once["submit_time"]).all()


def test_important_jobs_have_more_slack() -> None:
    """The importance spreads the slack about that of the size, evenly, and changes nothing else."""
    plain, spread = (
        deadline(5000, parameters=deadlines.DeadlineParameters(importance=importance), seed=1).table
        for importance in (0.0, 0.5)
    )
    assert plain.drop(columns="deadline").equals(spread.drop(columns="deadline"))
    slack = [((each["deadline"] - each["earliest_start"]) / each["run_time"] - 1) for each in (plain, spread)]
    assert stats.kstest(slack[1] / slack[0], stats.uniform(0.5, 1.0).cdf).pvalue > 1e-3
    with pytest.raises(InputError, match="importance"):
        deadlines.DeadlineParameters(importance=1.5)


def test_all_jobs_may_behave_alike() -> None:
    assert set(deadline(50, behaviour="bsp").column("behaviour")) == {"bsp"}
    with pytest.raises(InputError, match="behaviour"):
        deadline(5, behaviour="chatty")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="slack"):
        deadlines.DeadlineParameters(slack=-0.1)


@pytest.mark.parametrize(("arrivals", "machine"), [("nodes", 1024), ("cores", 49_152)])
def test_sd_1_is_cirne_with_arrivals_by_nodes_or_cores_and_sizes_in_nodes(
    arrivals: Literal["nodes", "cores"], machine: int
) -> None:
    workload = sd(seed=4, arrivals=arrivals)
    assert len(workload) == 5000
    assert workload.provenance.system == System(1024, 48, "SD-Policy paper")
    drawn = cirne(5000, nodes=machine, seed=4, parameters=SD)
    for column in ("submit_time", "run_time", "time_limit", "nodes"):
        assert workload.column(column).tolist() == drawn.column(column).tolist()
    assert workload.ints("nodes").max() == 128  # as in table 1
    assert set(workload.ints("cores_per_node")) == {48}
    assert "status" not in workload.table
    if arrivals == "nodes":
        assert registry.draw("sd-1", seed=4).table.equals(workload.table)
        assert np.ptp(workload.floats("submit_time")) > 5.9 * 86_400


def test_changed_constants_leave_the_others_of_the_workload() -> None:
    """Not those of the model: `sd-1` has no cancellations and sizes of its own."""
    workload = registry.draw("sd-1", jobs=50, parameters={"power_of_two": "0.75"})
    assert workload.table.equals(sd(50, parameters=replace(SD, power_of_two=0.75)).table)
    assert registry.draw("cirne", jobs=50, parameters={"cancelled": 0}).table.equals(
        cirne(50, parameters=CirneParameters(cancelled=0.0)).table
    )


def test_the_arrivals_of_sd_are_by_nodes_or_by_cores() -> None:
    with pytest.raises(InputError, match="nodes, cores"):
        sd(10, arrivals="threads")  # type: ignore[arg-type]


def test_sd_2_is_sd_1_with_exact_requests() -> None:
    one, two = (registry.draw(name, seed=4) for name in ("sd-1", "sd-2"))
    assert two.floats("time_limit").tolist() == one.floats("run_time").tolist()
    assert two.floats("run_time").tolist() == one.floats("run_time").tolist()
    assert (one.floats("time_limit") > one.floats("run_time")).mean() > 0.8


def test_static_backfill_of_sd_1_gives_table_1() -> None:
    """Section 4, table 1. With arrivals by cores, response and slowdown are three times the printed ones."""
    printed = {"mean_response_s": 122_152, "mean_slowdown_ref": 3339.5, "makespan_s": 899_888}
    setup = {"backfill_depth": 50, "backfill_interval_s": 30.0}
    runs = [tb.simulate(registry.draw("sd-1", seed=s), "conservative", policy_parameters=setup) for s in (0, 1, 2)]
    found = {name: np.mean([run.metrics()[name] for run in runs]) for name in printed}
    assert found == pytest.approx(printed, rel=0.15)


def test_sd_5_runs_applications_on_49_nodes() -> None:
    workload = registry.draw("sd-5", seed=4)
    assert len(workload) == 2000
    assert workload.provenance.system == System(49, 48, "SD-Policy paper")
    assert workload.ints("nodes").max() == 16
    assert np.ptp(workload.floats("submit_time")) < 2 * 86_400  # the run had 48 hours
    assert Counter(workload.column("application"))["coreneuron"] == 710
    assert [step.name for step in workload.provenance.steps] == ["cirne", "sd", "applications"]


def test_the_work_fits_into_the_makespan_of_the_sd_paper() -> None:
    """Table 1: 899,888 s on 1024 nodes, 159,313 s on 49: the work fills 70 to 100 % of the node time."""
    for draw, makespan, nodes in ((sd, 899_888, 1024), (sd_5, 159_313, 49)):
        busy = []
        for seed in range(5):
            workload = draw(seed=seed)
            busy.append(workload.floats("run_time") @ workload.ints("nodes") / nodes / makespan)
        assert 0.7 < np.mean(busy) < 1.0


def test_a_smaller_machine_and_other_numbers_of_jobs() -> None:
    workload = sd(300, nodes=16, cores_per_node=8, largest=4, seed=1)
    assert len(workload) == 300
    assert workload.ints("nodes").max() == 4
    assert workload.provenance.steps[1].counts["jobs cut to the largest size"] > 0
    assert len(registry.draw("dmr-100", 7)) == 7


@pytest.mark.parametrize(
    "options", [["feitelson96", "--set", "repeats=end"], ["downey97"], ["sd-5"], ["deadline-heavy"]]
)
@pytest.mark.parametrize("name", ["w.parquet", "w.csv", "w.swf"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_generate_writes_what_can_be_read_again(options: list[str], name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    result = CliRunner().invoke(tracebed, ["generate", *options, "--jobs", "60", "--seed", "3", "-o", str(path)])
    assert result.exit_code == 0, result.output
    again = read_workload(path)
    assert len(again) == 60
    if options[0] == "feitelson96":
        drawn = feitelson96(60, seed=3, repeats="end")
        assert again.column("after").tolist() == drawn.column("after").tolist()
        assert again.column("extra_executable").tolist() == drawn.column("extra_executable").tolist()


@pytest.mark.parametrize("model", ["feitelson96", "downey97"])
@pytest.mark.parametrize("extreme", ["1e-6", "1e12"])
def test_extreme_constants_give_a_workload_or_an_error(model: str, extreme: str, tmp_path: Path) -> None:
    """An extreme value of any constant gives a workload or an error of one line, never a traceback."""
    parameters = {"feitelson96": Feitelson96Parameters, "downey97": downey97.Downey97Parameters}[model]()
    for name in vars(parameters):
        arguments = ["generate", model, "--jobs", "20", "--set", f"{name}={extreme}", "-o", str(tmp_path / "w.parquet")]
        result = CliRunner().invoke(tracebed, arguments)
        assert result.exit_code == 0 or isinstance(result.exception, InputError), (name, result.exception)
