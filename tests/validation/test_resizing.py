"""Resizes and staircases of malleable jobs: by hand, by a slow reference, and on the public runs of AMTE."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

import tracebed.api as tb
from tests.runs import fcfs_run, make_run
from tracebed.orchestrator.run import Run
from tracebed.validation.verdict import Case, validate
from tracebed.validation.verdict.resizing import NEAR_S, Resizing, resizing

Stairs = list[tuple[float, float, int]]


def run_of(stairs: Sequence[Stairs], *, real: bool = True) -> Run:
    """Return a run of malleable jobs, submitted at 0, that hold (from, to, nodes) in turn."""
    jobs = [(0.0, own[0][0], own[-1][1], own[0][2]) for own in stairs]
    names = [str(number + 1) for number in range(len(stairs))]
    return make_run(jobs, machine=40, real=real, staircases=dict(zip(names, stairs, strict=True)))


def figures(real: Sequence[Stairs], predicted: Sequence[Stairs]) -> Resizing:
    found = resizing([run_of(real)], [run_of(predicted, real=False)])
    assert found is not None
    return found


@st.composite
def staircases(draw: st.DrawFn) -> list[Stairs]:
    """Return staircases of three jobs at whole seconds: sizes of 1 to 4 nodes, and at least one resize."""
    found = []
    for _ in range(3):
        times = sorted(draw(st.sets(st.integers(0, 60), min_size=2, max_size=7)))
        sizes = draw(st.lists(st.integers(1, 4), min_size=len(times) - 1, max_size=len(times) - 1))
        found.append([(float(a), float(b), n) for a, b, n in zip(times, times[1:], sizes, strict=False)])
    return [*found, [(0.0, 10.0, 1), (10.0, 20.0, 2)]]


def held(own: Stairs) -> list[int]:
    """Return the nodes of a job in each second."""
    return [sum(nodes for start, end, nodes in own if start <= second < end) for second in range(60)]


def changes(own: Stairs, *, expands: bool) -> list[float]:
    """Return the times of the resizes of a job in one direction."""
    return [b[0] for a, b in itertools.pairwise(own) if a[2] != b[2] and (b[2] > a[2]) is expands]


@settings(max_examples=60)
@given(staircases(), staircases())
def test_they_are_those_of_a_slow_reference(real: list[Stairs], predicted: list[Stairs]) -> None:
    found = figures(real, predicted).predicted
    sides = [np.array([held(own) for own in side]) for side in (real, predicted)]
    assert found.area == pytest.approx(np.abs(sides[1] - sides[0]).sum() / sides[0].sum())
    assert found.machine_area == pytest.approx(np.abs((sides[1] - sides[0]).sum(axis=0)).sum() / sides[0].sum())
    assert found.machine_area <= found.area + 1e-9
    for expands, counted in ((False, found.shrinks), (True, found.expansions)):
        of_jobs = [
            (changes(a, expands=expands), changes(b, expands=expands)) for a, b in zip(real, predicted, strict=True)
        ]
        near = 0
        for ours, theirs in of_jobs:
            close = np.array([[abs(a - b) <= NEAR_S for b in theirs] for a in ours]).reshape(len(ours), len(theirs))
            near += int((maximum_bipartite_matching(csr_matrix(close), perm_type="column") >= 0).sum())
        expected = (
            sum(len(ours) for ours, _ in of_jobs),
            sum(len(theirs) for _, theirs in of_jobs),
            sum(min(len(ours), len(theirs)) for ours, theirs in of_jobs),
            near,
        )
        assert tuple(asdict(counted).values()) == expected
    assert found.start_s == pytest.approx(
        np.mean([abs(a[0][0] - b[0][0]) for a, b in zip(real, predicted, strict=True)])
    )
    ends = [abs(a[-1][1] - b[-1][1]) for a, b in zip(real, predicted, strict=True)]
    assert found.response_s == pytest.approx(np.mean(ends))


@settings(max_examples=60)
@given(staircases())
def test_equal_runs_have_no_area_and_all_resizes_paired(stairs: list[Stairs]) -> None:
    found = figures(stairs, stairs).predicted
    assert (found.area, found.machine_area, found.time_s, found.start_s, found.response_s) == (0, 0, 0, 0, 0)
    assert {found.precision(near=near) for near in (False, True)} == {1.0}
    assert {found.recall(near=near) for near in (False, True)} == {1.0}


@settings(max_examples=60)
@given(staircases(), staircases())
def test_exchanged_runs_have_the_same_area_and_exchange_precision_and_recall(a: list[Stairs], b: list[Stairs]) -> None:
    one, other = figures(a, b).predicted, figures(b, a).predicted
    seconds = [sum((end - start) * nodes for own in side for start, end, nodes in own) for side in (a, b)]
    assert one.area * seconds[0] == pytest.approx(other.area * seconds[1])
    assert one.machine_area * seconds[0] == pytest.approx(other.machine_area * seconds[1])
    for near in (False, True):
        assert one.precision(near=near) == other.recall(near=near)
    assert one.time_s == pytest.approx(other.time_s, nan_ok=True)


REAL: list[Stairs] = [[(0, 100, 2), (100, 200, 4), (200, 300, 1)], [(0, 50, 3)]]
LATE: list[Stairs] = [[(0, 110, 2), (110, 300, 4)], [(20, 70, 3)]]  # later by 10 s, no shrink; later by 20 s


def test_a_prediction_beside_two_real_runs_has_their_noise_beside_it() -> None:
    again: list[Stairs] = [[(0, 104, 2), (104, 200, 4), (200, 300, 1)], [(0, 50, 3)]]
    found = resizing([run_of(REAL), run_of(again)], [run_of(LATE, real=False)])
    assert found is not None and found.real is not None
    assert found.real.area == pytest.approx(8 / 850)
    assert (found.real.recall(near=True), found.real.time_s) == (1.0, 2.0)
    own = found.predicted
    assert (own.shrinks.real, own.shrinks.predicted, own.expansions.near) == (1, 0, 1)
    assert (own.recall(near=False), own.precision(near=False), own.time_s) == (0.5, 1.0, 8.0)
    assert (own.start_s, own.response_s) == (10.0, 10.0)
    assert own.area == pytest.approx(((20 + 300 + 120) / 850 + (12 + 300 + 120) / 842) / 2)
    assert "0 of 1 shrinks at the right job" in found.sentence and "real runs 0.941 %" in found.sentence


def test_a_predicted_resize_is_paired_once() -> None:
    """Two real expansions within 15 s of one predicted expansion; the other direction and other jobs do not count."""
    real: list[Stairs] = [[(0, 10, 1), (10, 20, 2), (20, 90, 3)], [(0, 15, 3), (15, 90, 1)]]
    predicted: list[Stairs] = [[(0, 15, 1), (15, 90, 3)], [(0, 15, 1), (15, 90, 3)]]
    found = figures(real, predicted).predicted
    assert tuple(asdict(found.expansions).values()) == (2, 2, 1, 1)
    assert tuple(asdict(found.shrinks).values()) == (1, 0, 0, 0)
    assert (found.precision(near=True), found.recall(near=True), found.time_s) == (0.5, 1 / 3, 5.0)


def test_without_resizes_or_allocations_there_are_none() -> None:
    assert resizing([fcfs_run(20)], [fcfs_run(20, real=False)]) is None
    box: list[Stairs] = [[(0, 50, 3)]]
    assert resizing([run_of(box)], [run_of(box, real=False)]) is None
    found = figures(box, [[(0, 25, 3), (25, 50, 2)]]).predicted
    assert math.isnan(found.recall(near=False)) and found.precision(near=False) == 0.0
    unknown = run_of(REAL)
    unknown.info.unknown["allocations"] = "the file does not say"
    assert resizing([unknown], [run_of(LATE, real=False)]) is None


def test_the_verdict_has_them() -> None:
    case = Case.of([run_of(REAL)], [run_of(LATE, real=False)])
    made = validate([case])
    assert made.resizes.startswith("malleable jobs: 0 of 1 shrinks at the right job")
    assert made.resizes in made.explain()
    (result,) = made.to_json()["cases"]
    assert result["resizing"]["predicted"]["shrinks"]["real"] == 1 and result["resizing"]["real"] is None


def test_the_blind_prediction_of_amte(reference_data: Callable[[str], Path]) -> None:
    """Finnerty et al. (AMTE 2023): four of six shrinks and both expansions at the right job."""
    log = reference_data("../peers/amte/workloads/AMTE-evaluation/malleableSchedule.csv")
    stored = Path(__file__).parents[2] / "docs" / "explanation" / "amte-malleable" / "prediction.csv"
    real = tb.import_run(log, form="amte", side="real", nodes=12)
    predicted = tb.import_run(stored, form="amte", side="predicted", workload=real, nodes=12)
    found = resizing([real], [predicted])
    assert found is not None and found.real is None
    assert tuple(asdict(found.predicted.shrinks).values()) == (6, 4, 4, 2)
    assert tuple(asdict(found.predicted.expansions).values()) == (2, 2, 2, 2)
    assert found.predicted.area == pytest.approx(0.3044, abs=1e-4)
    assert found.predicted.machine_area == pytest.approx(0.1884, abs=1e-4)
    assert found.predicted.start_s == pytest.approx(11.50, abs=0.01)
