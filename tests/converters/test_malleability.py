"""Conversion of rigid to malleable jobs: Amdahl's law, efficiency thresholds, shares."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracebed.api import generate, make_malleable
from tracebed.converters.malleability import (
    FRACTIONS,
    Thresholds,
    largest_efficient_size,
    malleable_sizes,
    to_malleable,
)
from tracebed.converters.speedup import Speedup, amdahl_speedup
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError, Tolerated


def rigid(sizes: list[int], machine: int | None = 128) -> Workload:
    table = pd.DataFrame(
        {
            "job_id": [f"j{i}" for i in range(len(sizes))],
            "submit_time": np.arange(len(sizes), dtype=float),
            "run_time": 10.0,
            "nodes": sizes,
        }
    )
    return Workload(table, Provenance(system=System(machine, 8)))


def slow_sizes(preferred: int, machine: int, thresholds: Thresholds) -> tuple[float, int, int]:
    """Return the sizes by a search over fractions and sizes in exact arithmetic."""

    def exact_efficiency(n: int, fraction: float) -> Fraction:
        f = Fraction(str(fraction))
        return 1 / ((1 - f) + f / n) / n

    chosen = FRACTIONS[-1]
    for fraction in FRACTIONS:
        if exact_efficiency(preferred, fraction) > Fraction(str(thresholds.preferred)):
            chosen = fraction
            break
    most = preferred
    n = 1
    while n <= machine and exact_efficiency(n, chosen) > Fraction(str(thresholds.most)):
        most = max(most, n)
        n += 1
    return chosen, max(1, int(Fraction(str(thresholds.least)) * preferred)), most


thresholds = st.builds(
    Thresholds,
    st.sampled_from([0.6, 0.75, 0.8, 0.9]),
    st.sampled_from([0.3, 0.5, 0.7]),
    st.sampled_from([0.1, 0.2, 0.25, 1.0]),
)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=8), st.integers(1, 2000), thresholds)
def test_sizes_are_those_of_the_plain_search(preferred: list[int], machine: int, t: Thresholds) -> None:
    fast = malleable_sizes(np.array(preferred), machine, t)
    slow = [slow_sizes(n, machine, t) for n in preferred]
    assert list(zip(*(column.tolist() for column in fast), strict=True)) == slow


@pytest.mark.parametrize(
    ("preferred", "fraction", "least", "most"),
    [
        (1, 0.95, 1, 20),  # on 21 nodes the efficiency is exactly 0.5, not above
        (5, 0.95, 1, 20),
        (6, 0.955, 1, 23),  # on 6 nodes, 0.95 has an efficiency of exactly 0.8
        (16, 0.985, 3, 67),
        (100, 0.999, 20, 1000),
        (4000, 0.999, 800, 4000),
    ],
)
def test_known_sizes(preferred: int, fraction: float, least: int, most: int) -> None:
    found = malleable_sizes(np.array([preferred]), 10_000, Thresholds())
    assert tuple(column[0] for column in found) == (fraction, least, most)


@pytest.mark.parametrize(
    ("doublings", "least", "most"),
    [(1, [1, 1, 1, 2, 8, 60], [2, 4, 6, 10, 32, 120]), (2, [1, 1, 1, 1, 4, 30], [4, 8, 12, 20, 64, 120])],
)
def test_doublings_are_the_sizes_of_eberius(doublings: int, least: list[int], most: list[int]) -> None:
    sizes = [1, 2, 3, 5, 16, 120]
    made = to_malleable(rigid(sizes), 1.0, nodes=120, thresholds=Thresholds(doublings=doublings))
    assert [made.ints(f"nodes_{name}").tolist() for name in ("min", "pref", "max")] == [least, sizes, most]
    speedups = {Speedup.parse(*row) for row in made.table[["speedup", "speedup_parameters"]].itertuples(index=False)}
    assert [speedup.of(nodes) for speedup in speedups for nodes in (1, 8, 64)] == [1, 8, 64], "linear"


@pytest.mark.parametrize("speedup", ["amdahl", "downey"])
def test_malleable_jobs_become_another_application(speedup: Literal["amdahl", "downey"]) -> None:
    before = generate("cirne", jobs=20, nodes=16)
    before.table["application"], before.table["application_parameters"] = "stream", "mib=3"
    plain, made = (make_malleable(before, 0.5, 1, speedup=speedup, application=name) for name in (None, "solver"))
    malleable = made.table["kind"] == "malleable"
    assert malleable.sum() == 10
    assert (made.table["application"] == "solver").equals(malleable)
    assert (made.table["application_parameters"] == "").equals(malleable)
    assert (
        not made.table.drop(columns=["application", "application_parameters"])
        .compare(plain.table.drop(columns=["application", "application_parameters"]))
        .size
    )
    assert plain.table["application"].unique().tolist() == ["stream"]
    assert made.provenance.steps[-1].parameters == {"application": "solver"}
    with pytest.raises(InputError, match="not a name"):
        make_malleable(before, 0.5, application="a b")


def test_doublings_out_of_range_are_an_error() -> None:
    for wrong in (-1, 31):
        with pytest.raises(InputError, match="doublings are out of range"):
            Thresholds(doublings=wrong)
    with pytest.raises(InputError, match="doublings take the place of the thresholds"):
        make_malleable(generate("cirne", jobs=3, nodes=16), 1.0, doublings=1, most=0.4)


def test_amdahl() -> None:
    assert amdahl_speedup(1, 0.9) == 1
    assert amdahl_speedup(10, 1.0) == 10
    assert amdahl_speedup(np.array([2.0, 1e12]), 0.5) == pytest.approx([4 / 3, 2.0])
    assert amdahl_speedup(21, 0.95) / 21 == pytest.approx(0.5)


@given(st.sampled_from(FRACTIONS), st.sampled_from([0.1, 0.5, 0.8, 0.99, 1.0]))
def test_reach_is_the_last_efficient_size(fraction: float, threshold: float) -> None:
    n = largest_efficient_size(fraction, threshold)
    assert n == 0 or amdahl_speedup(n, fraction) / n > threshold
    assert amdahl_speedup(n + 1, fraction) / (n + 1) <= threshold + 1e-12


@given(
    sizes=st.lists(st.integers(0, 128), min_size=1, max_size=30),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    seed=st.integers(0, 5),
)
def test_shares_are_exact_and_larger_shares_include_smaller_ones(
    sizes: list[int], shares: list[float], seed: int
) -> None:
    workload = rigid(sizes)
    known = sum(size > 0 for size in sizes)
    sets = []
    for share in shares:
        mixed = to_malleable(workload, share, seed)
        malleable = mixed.column("kind") == "malleable"
        assert abs(malleable.sum() - share * known) <= 0.5
        assert (mixed.ints("nodes") == sizes).all()
        low, pref, high = (mixed.ints(f"nodes_{name}") for name in ("min", "pref", "max"))
        assert (low <= pref).all()
        assert (pref == sizes).all()
        assert (pref <= high).all()
        assert (high <= 128).all()
        assert (low[malleable] >= 1).all()
        assert (low[~malleable] == high[~malleable]).all()
        assert set(mixed.column("speedup")[malleable]) <= {"amdahl"}
        assert set(mixed.column("speedup")[~malleable]) <= {"linear"}
        fractions = mixed.column("speedup_parameters")[malleable].astype(float)
        assert set(fractions) <= set(FRACTIONS)
        sets.append(set(mixed.column("job_id")[malleable]))
    assert sets[0] <= sets[1]


def test_a_second_round_leaves_malleable_jobs_alone_and_both_are_recorded() -> None:
    once = to_malleable(rigid([8] * 10), 0.5, seed=1)
    twice = to_malleable(once, 1.0, seed=2, thresholds=Thresholds(least=0.5))
    was = once.column("kind") == "malleable"
    assert (twice.column("kind") == "malleable").all()
    assert (twice.ints("nodes_min")[was] == 1).all()
    assert (twice.ints("nodes_min")[~was] == 4).all()
    assert [(s.name, s.seed, s.counts["jobs made malleable"]) for s in twice.provenance.steps] == [
        ("malleable", 1, 5),
        ("malleable", 2, 5),
    ]


def test_the_seed_affects_the_choice_of_jobs() -> None:
    workload = rigid([4] * 50)
    assert to_malleable(workload, 0.5, 1).sha256 == to_malleable(workload, 0.5, 1).sha256
    assert to_malleable(workload, 0.5, 1).sha256 != to_malleable(workload, 0.5, 2).sha256


def test_the_machine_size_is_needed_and_bounds_the_sizes() -> None:
    with pytest.raises(InputError, match="--nodes N"):
        to_malleable(rigid([1], machine=None), 1.0)
    assert to_malleable(rigid([1, 32], machine=None), 1.0, nodes=10).ints("nodes_max").tolist() == [10, 32]


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_an_invalid_share_is_an_error(share: float) -> None:
    with pytest.raises(InputError, match="share"):
        to_malleable(rigid([1]), share)


def test_an_invalid_threshold_is_an_error() -> None:
    with pytest.raises(InputError, match="threshold most"):
        Thresholds(most=0.0)


def test_jobs_larger_than_the_machine_are_reported() -> None:
    with pytest.warns(Tolerated, match=r"more than the machine's 2 nodes \(2 times\)"):
        to_malleable(rigid([1, 3, 4]), 1.0, nodes=2)
