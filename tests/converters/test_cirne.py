"""The Cirne model: bit for bit equal to its reference program, and statistically equal with NumPy's generator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tracebed.converters.models import registry
from tracebed.converters.models.cirne import (
    DAY,
    JOB,
    SITES,
    CirneDraws,
    CirneParameters,
    Randlib,
    arrivals,
    cirne,
    draw_exactly,
    draw_fast,
)
from tracebed.converters.workload import System
from tracebed.ground.errors import InputError

ORIGINAL = CirneParameters()
EDITED = CirneParameters(size_slope=0.1, size_offset=0.4, power_of_two=0.10, cancelled=0.0)
EXACT = {
    "orig_anl120_k1": ("anl", ORIGINAL),
    "orig_ctc430_k1": ("ctc", ORIGINAL),
    "orig_kth100_k1": ("kth", ORIGINAL),
    "orig_sdsc128_k1": ("sdsc", ORIGINAL),
    "orig_anl120_k2": ("anl", CirneParameters(load=2.0)),
    "orig_anl120_red2": ("anl", CirneParameters(reduction=2)),
    "bsc_anl120_k1": ("anl", EDITED),
}
LATE_ARRIVALS = {"anl": 6, "ctc": 0, "kth": 4, "sdsc": 0}
"""Of 20,000 arrivals, those whose second differs by one: the reference adds 1/86400 to its clock each second,
and gathers rounding errors where ours counts seconds."""


def differences(draws: CirneDraws, expected: pd.DataFrame) -> dict[str, int]:
    """Return the number of jobs that differ from the reference, by column."""
    ours = {
        "submit": draws.submit,
        "nodes": draws.nodes,
        "reqtime": draws.limit,
        "accuracy": [f"{accuracy:.8g}" for accuracy in draws.accuracy],
        "runtime": draws.run,
        "cancelled": draws.cancelled.astype(int),
        "cancellag": np.where(draws.cancelled, draws.lag, -1),
    }
    return {name: int((expected[name].to_numpy() != values).sum()) for name, values in ours.items()}


@pytest.mark.parametrize("name", EXACT)
def test_with_randlib_it_equals_the_reference_bit_for_bit(name: str, reference_data: Callable[[str], Path]) -> None:
    expected = pd.read_csv(reference_data(f"models/exact/cirne01_{name}_seed1_first400.csv"), dtype={"accuracy": str})
    site, parameters = EXACT[name]
    draws = draw_exactly(len(expected), SITES[site], SITES[site].nodes, 1, parameters)
    assert differences(draws, expected) == dict.fromkeys(expected.columns, 0)


def sample(site: str, reference_data: Callable[[str], Path]) -> pd.DataFrame:
    nodes = SITES[site].nodes
    path = reference_data(f"models/cirne01_orig_{site}{nodes}_k1_seed1_first20000.csv.gz")
    return pd.read_csv(path, dtype={"accuracy": str})


@pytest.mark.parametrize("site", SITES)
def test_over_20000_jobs_only_arrivals_differ_and_by_a_second(site: str, reference_data: Callable[[str], Path]) -> None:
    expected = sample(site, reference_data)
    draws = draw_exactly(len(expected), SITES[site], SITES[site].nodes, 1, ORIGINAL)
    zero = dict.fromkeys(expected.columns, 0)
    assert differences(draws, expected) == zero | {"submit": LATE_ARRIVALS[site]}
    assert np.abs(draws.submit - expected["submit"]).max() <= 1


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("seed", [1, 2])
def test_with_numpy_the_distributions_are_the_same(site: str, seed: int, reference_data: Callable[[str], Path]) -> None:
    expected = sample(site, reference_data)
    draws = draw_fast(len(expected), SITES[site], SITES[site].nodes, seed, ORIGINAL)
    pairs = {
        "nodes": (draws.nodes, expected["nodes"]),
        "runtime": (draws.run, expected["runtime"]),
        "reqtime": (draws.limit, expected["reqtime"]),
        "accuracy": (draws.accuracy, expected["accuracy"].astype(float)),
        "interarrival": (np.diff(draws.submit), np.diff(expected["submit"])),
        "lag": (draws.lag[draws.cancelled], expected["cancellag"][expected["cancelled"] == 1]),
    }
    p_values = {name: stats.ks_2samp(ours, theirs).pvalue for name, (ours, theirs) in pairs.items()}
    assert min(p_values.values()) > 1e-3, p_values
    hours = [np.bincount(submit // 3600 % 24, minlength=24) for submit in (draws.submit, expected["submit"])]
    assert stats.chi2_contingency(np.array(hours) + 1).pvalue > 1e-3


def slow_arrivals(jobs: int, site: str, machine: int, begin: float, p: CirneParameters) -> list[int]:
    """Return arrivals from the rate summed second by second, as in the model's description."""
    rate = SITES[site].rate
    found, sum_, second = [], 0.0, 0
    while len(found) < jobs:
        second += 1
        x = begin + second / DAY
        x -= np.ceil(x - 0.5)
        sum_ += p.load * p.reduction * machine / SITES[site].nodes * np.polyval(rate, x)
        if sum_ >= JOB:
            found.append(int(np.ceil((begin + 0.5) * DAY + second)))
            sum_ -= JOB
    return found


@settings(max_examples=12)
@given(
    site=st.sampled_from(sorted(SITES)),
    begin=st.floats(-0.49, 0.49),
    load=st.sampled_from([0.5, 1.0, 2.0]),
    machine=st.sampled_from([900, 2000, 4000]),
)
def test_arrivals_are_those_of_the_plain_loop(site: str, begin: float, load: float, machine: int) -> None:
    p = CirneParameters(load=load)
    slow = slow_arrivals(30, site, machine, begin, p)
    fast = arrivals(30, SITES[site], machine, begin, p)
    assert np.abs(fast - slow).max() <= 1
    assert (fast != slow).sum() <= 1


def test_the_workload_has_the_draws_and_their_provenance() -> None:
    workload = cirne(2000, site="ctc", seed=5, cores_per_node=4)
    draws = draw_fast(2000, SITES["ctc"], 430, 5, ORIGINAL)
    assert workload.provenance.system == System(430, 4, "Cirne and Berman ctc")
    assert workload.floats("time_limit").tolist() == draws.limit.tolist()
    assert (workload.ints("cores_per_node") == 4).all()
    cancelled = workload.column("status") == "cancelled"
    assert cancelled.tolist() == draws.cancelled.tolist()
    run = workload.floats("run_time")
    assert (run[~cancelled] == draws.run[~cancelled]).all()
    assert (run[cancelled] == np.maximum(1, draws.limit[cancelled] // 2)).all()
    lags = workload.floats("extra_cancel_lag")
    assert (np.isnan(lags) == ~cancelled).all()
    step = workload.provenance.steps[0]
    assert (step.name, step.seed) == ("cirne", 5)
    assert step.parameters["power_of_two"] == 0.75
    assert step.counts == {"jobs": 2000, "jobs cancelled": int(cancelled.sum())}


def test_the_same_seed_gives_the_same_workload_and_another_seed_another() -> None:
    assert cirne(100, seed=3).sha256 == cirne(100, seed=3).sha256
    assert cirne(100, seed=3).sha256 != cirne(100, seed=4).sha256
    assert cirne(100, exact=True, seed=3).sha256 == cirne(100, exact=True, seed=3).sha256


def test_parameters_have_their_documented_effect() -> None:
    assert "status" not in cirne(500, parameters=CirneParameters(cancelled=0.0)).table
    powers = cirne(500, nodes=128, parameters=CirneParameters(power_of_two=1.0)).ints("nodes")
    assert set(powers) <= {2**i for i in range(8)}
    assert cirne(5000, nodes=10).ints("nodes").max() == 10
    halves, wholes = (cirne(20_000, parameters=CirneParameters(reduction=r)) for r in (2, 1))
    assert halves.ints("nodes").mean() < 0.65 * wholes.ints("nodes").mean()
    assert halves.floats("submit_time")[-1] == pytest.approx(wholes.floats("submit_time")[-1] / 2, rel=0.01)
    double = cirne(20_000, nodes=240)
    assert double.floats("submit_time")[-1] == pytest.approx(wholes.floats("submit_time")[-1] / 2, rel=0.01)


def test_poisson_arrivals_keep_the_daily_cycle() -> None:
    regular, poisson = (
        cirne(20_000, seed=1, site="ctc", poisson=chosen).floats("submit_time") for chosen in (False, True)
    )
    assert poisson[-1] == pytest.approx(regular[-1], rel=0.03)
    hours = [np.bincount((submit // 3600 % 24).astype(int), minlength=24) for submit in (regular, poisson)]
    assert stats.chi2_contingency(np.array(hours) + 1).pvalue > 1e-3
    jobs_until = np.interp(poisson[poisson < regular[-1]], regular, np.arange(1, 20_001))  # in cumulative rate
    assert stats.kstest(np.diff(jobs_until), "expon").pvalue > 1e-3
    with pytest.raises(InputError, match="poisson with exact"):
        cirne(1, poisson=True, exact=True)


def test_the_registry_draws_by_name() -> None:
    assert registry.draw("cirne", 10, seed=1).sha256 == cirne(10, seed=1).sha256
    with pytest.raises(InputError, match="unknown model 'lublin'"):
        registry.draw("lublin", 10)


def test_randlib_draws_the_documented_distributions() -> None:
    random = Randlib(12345, 54321)
    uniforms = np.array([random.uniform() for _ in range(3000)])
    exponentials = np.array([random.exponential() for _ in range(3000)])
    gammas = np.array([random.gamma(0.6, 2.0) for _ in range(3000)])
    assert stats.kstest(uniforms, "uniform").pvalue > 1e-3
    assert stats.kstest(exponentials, "expon").pvalue > 1e-3
    assert stats.kstest(gammas, stats.gamma(0.6, scale=2.0).cdf).pvalue > 1e-3
