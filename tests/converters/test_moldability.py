"""Downey's speedup and the moldability of Cirne and Berman against their programs; conversion of rigid jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tracebed.converters.models.cirne import cirne
from tracebed.converters.models.lublin99 import lublin99
from tracebed.converters.models.moldability import (
    Constraint,
    MoldabilityDraws,
    MoldabilityParameters,
    candidates,
    draw,
    positions,
    sizes_at,
    subsets,
    with_moldability,
)
from tracebed.converters.speedup import downey_speedup, downey_useful_nodes, speedup_function
from tracebed.converters.workload import Kind, System, Workload
from tracebed.ground.errors import InputError

NAMES = dict(zip(("rigid", "powerof2", "square", "even", "multipleof4", "unconstraint"), Constraint, strict=True))


# -- Downey's speedup


def test_every_row_of_the_table_of_speedups(reference_data: Callable[[str], Path]) -> None:
    table = pd.read_csv(reference_data("models/exact/downey_speedup_table.csv"), dtype={"speedup": str})
    a, sigma, n = (table[name].to_numpy() for name in ("A", "sigma", "n"))
    found = downey_speedup(n, a, sigma)
    assert [f"{value:.12g}" for value in found] == [f"{float(value):.12g}" for value in table["speedup"]]
    assert (np.maximum(1, np.ceil(100_000 / found)) == table["exectime_L100000"]).all()
    assert (np.maximum(1, np.ceil(found * 1000)) == table["L_from_exec1000"]).all()
    assert (downey_useful_nodes(a, sigma) == table["maxnodes"]).all()


@given(st.floats(1.0, 500.0), st.floats(0.0, 6.0))
def test_the_speedup_begins_at_1_rises_to_the_average_and_stays(average: float, sigma: float) -> None:
    sizes = np.arange(1, int(downey_useful_nodes(average, sigma)) + 20)
    speeds = downey_speedup(sizes, average, sigma)
    assert speeds[0] == pytest.approx(1.0)
    assert (np.diff(speeds) >= -1e-9).all()
    assert speeds[sizes >= downey_useful_nodes(average, sigma)] == pytest.approx(average)
    assert (speeds <= sizes * (1 + 1e-9)).all()


@given(st.floats(1.0, 100.0), st.floats(0.0, 3.0))
def test_the_speedup_is_continuous_where_its_pieces_meet(average: float, sigma: float) -> None:
    for meet in (average, 2 * average - 1, average + average * sigma - sigma):
        beside = np.maximum(1.0, np.array([meet - 1e-9, meet, meet + 1e-9]))
        assert np.ptp(downey_speedup(beside, average, sigma)) < 1e-6


def test_the_scheduler_has_the_same_downey_speedup() -> None:
    s = speedup_function("downey", "10.5 1.5")
    assert [s(n) for n in range(1, 40)] == downey_speedup(np.arange(1, 40), 10.5, 1.5).tolist()


# -- the distributions


@pytest.mark.parametrize("seed", [1, 2])
def test_the_laws_are_those_of_the_reference(seed: int, reference_data: Callable[[str], Path]) -> None:
    expected = pd.read_csv(reference_data("models/cirne_moldability_128n_seed1_first20000.csv.gz"))
    rng = np.random.default_rng(seed)
    draws = draw(len(expected), rng, MoldabilityParameters())
    first, count = candidates(draws, np.minimum(draws.most, 128).astype(np.int64))
    one = sizes_at(first + subsets(count, np.ones_like(count), rng)[:, 0], draws.constraint)
    pairs = {
        "least": (draws.least, expected["cmin"]),
        "constraint": (draws.constraint, expected["constraint"].map(NAMES)),
        "requests": (draws.requests, expected["cu"]),
        "sigma": (draws.sigma, expected["sigma"]),
        "average": (draws.average, expected["A"]),
        "most": (draws.most, expected["maxnodes"]),
        "options": (np.minimum(count, draws.requests), expected["options"]),
        "an option": (one, expected["optlist"].str.split().str[0].astype(int)),
    }
    p_values = {name: stats.ks_2samp(ours, theirs).pvalue for name, (ours, theirs) in pairs.items()}
    assert min(p_values.values()) > 1e-3, p_values
    assert (draws.sigma == 0).mean() == pytest.approx(0.142, abs=0.01)
    assert (draws.least == 1).mean() == pytest.approx(0.628, abs=0.01)
    assert draws.least.max() <= 42


def test_the_possible_sizes_of_a_job_equal_the_references(reference_data: Callable[[str], Path]) -> None:
    expected = pd.read_csv(reference_data("models/cirne_moldability_128n_seed1_first20000.csv.gz"))
    draws = MoldabilityDraws(
        expected["cmin"].to_numpy(),
        expected["constraint"].map(NAMES).to_numpy(),
        *(expected[name].to_numpy() for name in ("cu", "sigma", "A")),
    )
    assert np.abs(draws.most - expected["maxnodes"]).max() <= 1  # the sample has six digits of A and sigma
    first, count = candidates(draws, np.minimum(expected["maxnodes"].to_numpy(), 128))
    assert (np.minimum(count, draws.requests) == expected["options"]).all()
    for row, options in enumerate(expected["optlist"].iloc[:3000]):
        allowed = sizes_at(first[row] + np.arange(count[row]), np.full(count[row], draws.constraint[row]))
        assert set(map(int, options.split())) <= set(allowed.tolist())


@given(st.sampled_from(Constraint), st.integers(1, 60))
def test_places_are_the_inverse_of_sizes(constraint: Constraint, place: int) -> None:
    of = np.array([constraint])
    size = sizes_at(np.array([place]), of)
    assert positions(size, of) == place


@given(st.integers(1, 12), st.data())
def test_subsets_are_subsets(count: int, data: st.DataObject) -> None:
    wanted = data.draw(st.integers(0, count))
    (row,) = subsets(np.array([count]), np.array([wanted]), np.random.default_rng(data.draw(st.integers(0, 99))))
    assert len(set(row)) == len(row) == wanted
    assert set(row) <= set(range(count))


def test_all_subsets_are_equally_likely() -> None:
    rows = subsets(np.full(20_000, 5), np.full(20_000, 2), np.random.default_rng(1))
    pairs = np.sort(rows, axis=1) @ [10, 1]
    found, counts = np.unique(pairs, return_counts=True)
    assert len(found) == 10
    assert stats.chisquare(counts).pvalue > 1e-3


# -- conversion of rigid jobs


@given(st.sampled_from([Kind.MOLDABLE, Kind.MALLEABLE]), st.integers(1, 300), st.floats(0.0, 1.0), st.integers(0, 99))
def test_a_job_can_have_its_size_and_no_more_than_the_machine(kind: Kind, nodes: int, share: float, seed: int) -> None:
    before = lublin99(150, nodes=nodes, seed=seed)
    after = with_moldability(before, seed, kind=kind, share=share)
    changed = after.column("kind") == kind
    counts = after.provenance.steps[-1].counts
    assert changed.sum() == counts[f"jobs made {kind}"]
    assert sum(counts.values()) == round(share * 150 + 1e-9)
    size, least, most = after.ints("nodes"), after.ints("nodes_min"), after.ints("nodes_max")
    assert (size == before.ints("nodes")).all()
    assert ((least >= 1) & (least <= size) & (size <= most) & (most <= nodes)).all()
    assert (least[~changed] == most[~changed]).all()
    for row in np.flatnonzero(changed):
        average, sigma = map(float, after.column("speedup_parameters")[row].split())
        assert most[row] <= downey_useful_nodes(average, sigma) + 1
        speedup_function(after.column("speedup")[row], after.column("speedup_parameters")[row])
    if kind is Kind.MOLDABLE:
        named = [list(map(int, sizes.split())) for sizes in after.column("extra_sizes")]
        assert all(bool(sizes) == moldable for sizes, moldable in zip(named, changed, strict=True))
        for row in np.flatnonzero(changed):
            assert named[row] == sorted(set(named[row]))
            assert size[row] in named[row]
            assert (named[row][0], named[row][-1]) == (least[row], most[row])


def test_a_constraint_holds_for_the_size_and_for_all_that_are_named() -> None:
    powers = MoldabilityParameters(rigid=0.0, power_of_two=1.0, square=0.0, even=0.0, multiple_of_4=0.0)
    after = with_moldability(cirne(2000, seed=1), 1, parameters=powers)
    moldable = after.column("kind") == "moldable"
    assert (after.provenance.steps[-1].counts["rigid after 100 draws"], moldable.all()) == ((~moldable).sum(), False)
    two = {2**i for i in range(8)}
    assert {int(size) for sizes in after.column("extra_sizes") for size in sizes.split()} <= two
    assert not two & set(after.ints("nodes")[~moldable])


def test_the_same_seed_draws_the_same_but_not_the_models_numbers() -> None:
    rigid = cirne(3000, seed=7, nodes=512)
    assert with_moldability(rigid, 7).sha256 == with_moldability(rigid, 7).sha256
    assert with_moldability(rigid, 7).sha256 != with_moldability(rigid, 8).sha256
    one = Workload(rigid.table.assign(nodes=1), rigid.provenance)  # of size 1, so that few draws are rejected
    sigma = [
        float(words.split()[1]) if words else 0.0 for words in with_moldability(one, 7).column("speedup_parameters")
    ]
    assert stats.spearmanr(sigma, rigid.floats("nodes")).pvalue > 1e-3
    assert stats.spearmanr(sigma, rigid.floats("time_limit")).pvalue > 1e-3


def test_jobs_that_are_not_rigid_stay() -> None:
    once = with_moldability(lublin99(200, seed=1), 1, kind=Kind.MALLEABLE, share=0.5)
    twice = with_moldability(once, 2, share=1.0)
    was = once.column("kind") == "malleable"
    assert (twice.column("kind")[was] == "malleable").all()
    assert (twice.column("speedup_parameters")[was] == once.column("speedup_parameters")[was]).all()


@pytest.mark.parametrize(
    ("wrong", "what"),
    [({"share": 1.5}, "share 1.5"), ({"kind": Kind.EVOLVING}, "kind"), ({"share": -0.1}, "share -0.1")],
)
def test_wrong_arguments_are_errors(wrong: dict[str, object], what: str) -> None:
    with pytest.raises(InputError, match=what):
        with_moldability(lublin99(5), **wrong)  # type: ignore[arg-type]


def test_a_machine_of_unknown_size_is_an_error() -> None:
    bare = lublin99(5).with_provenance(system=System())
    with pytest.raises(InputError, match="size of the workload's system is unknown"):
        with_moldability(bare)
    assert len(with_moldability(bare, nodes=128)) == 5


@pytest.mark.parametrize("wrong", [{"rigid": 0.9}, {"even": -0.1}, {"least_slope": 0.0}, {"sigma_deviation": -1.0}])
def test_wrong_parameters_are_errors(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="out of range"):
        MoldabilityParameters(**wrong)
