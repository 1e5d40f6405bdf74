"""Comparisons with a baseline of which `exclude` leaves out cells."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracebed.api as tb
from tracebed.validation.experiments.views.averages import base_of

GRID = """workloads: {drawn: {model: cirne, options: {jobs: 40, nodes: 16, seed: 1}}}
malleable: {shares: [0, 0.5, 1]}
policies: [easy, pref]
perturbations: 6
exclude: [{policy: easy, share: [0.5, 1]}]
plots: {n: {kind: normalized, figures: [mean_response_s], relative_to: {policy: easy}}}
published:
  - {figure: mean_response_s, value: -0.5, at: {policy: pref, share: 1}, relative_to: {policy: easy}}
"""


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_baseline_with_one_share_is_compared_with_each_share(call: Callable[..., Any]) -> None:
    """A hand calculation: the mean of the differences over the same changes, and the mean at share 0 as the base."""
    Path("g.yaml").write_text(GRID)
    status, out, said = call("experiment", "g.yaml", "-o", "out", "--workers", "1")
    assert status == 0, said
    table = tb.experiment("g.yaml", "out", workers=1).set_index(["policy", "share", "perturbation"])["mean_response_s"]
    found = {row["share"]: row for row in rows_of(Path("out/g/differences.csv")) if row["figure"] == "mean_response_s"}
    base = table["easy", 0.0]
    for share, against in (("0.0", "easy"), ("0.5", "easy, share 0"), ("1.0", "easy, share 0")):
        changes = table["pref", float(share)] - base
        assert found[share]["against"] == against
        assert float(found[share]["change"]) == pytest.approx(float(changes.mean()))
        assert int(found[share]["pairs"]) == 6
    assert float(found["1.0"]["change"]) < 0
    assert "easy, share 0" in out
    ratios = {row["share"]: float(row["value"]) for row in rows_of(Path("out/g/plots/n.csv")) if row["what"] == "mean"}
    assert ratios == pytest.approx({share: table["pref", float(share)].mean() / base.mean() for share in ratios})
    assert set(ratios) == {"0.0", "0.5", "1.0"}
    ledger = json.loads(Path("out/g/ledger.json").read_text())["rows"][0]
    assert ledger["ours"] == pytest.approx(table["pref", 1.0].mean() / base.mean() - 1)


@pytest.mark.usefixtures("without_pictures")
def test_another_workload_is_no_baseline_and_its_points_are_named(call: Callable[..., Any]) -> None:
    tb.write(tb.generate("cirne", jobs=20, nodes=16, seed=1), "a.parquet")
    tb.write(tb.generate("cirne", jobs=20, nodes=16, seed=2), "b.parquet")
    Path("g.yaml").write_text(
        "workloads: {a: a.parquet, b: b.parquet}\npolicies: [easy, fcfs]\nperturbations: 3\n"
        "exclude: [{policy: easy, workload: b}]\n"
    )
    status, _, said = call("experiment", "g.yaml", "-o", "out", "--workers", "1")
    assert status == 0
    assert {row["workload"] for row in rows_of(Path("out/g/differences.csv"))} == {"a"}
    assert "1 points have no point of easy to compare with, the first workload b, policy fcfs" in said


@pytest.mark.usefixtures("without_pictures")
def test_a_baseline_with_one_seed_is_paired_with_each_seed(call: Callable[..., Any]) -> None:
    tb.write(tb.generate("cirne", jobs=30, nodes=16, seed=1), "a.parquet")
    Path("g.yaml").write_text(
        "workloads: {a: a.parquet}\npolicies: [easy, pref]\nmalleable: {shares: [0, 0.5]}\nseeds: 2\nperturbations: 3\n"
        "exclude: [{policy: easy, share: [0.5]}, {policy: easy, seed: 1}]\n"
    )
    status, _, said = call("experiment", "g.yaml", "-o", "out", "--workers", "1")
    assert status == 0, said
    rows = [row for row in rows_of(Path("out/g/differences.csv")) if row["figure"] == "mean_wait_s"]
    assert [(row["share"], row["pairs"]) for row in rows] == [("0.0", "6"), ("0.5", "6")]
    table = tb.experiment("g.yaml", "out", workers=1).set_index(["policy", "share", "seed", "perturbation"])[
        "mean_wait_s"
    ]
    changes = [
        table["pref", 0.5, seed, number] - table["easy", 0.0, 0, number] for seed in (0, 1) for number in (1, 2, 3)
    ]
    assert float(rows[1]["change"]) == pytest.approx(float(np.mean(changes)))


def test_the_baseline_of_a_point() -> None:
    base: list[dict[str, Any]] = [
        {"workload": "a", "share": 0.0, "interval_s": 0.0},
        {"workload": "a", "share": 0.0, "interval_s": 10.0},
        {"workload": "b", "share": 0.0, "interval_s": 0.0},
    ]
    keys = ("workload", "share", "interval_s")

    def found(workload: str, share: float, interval_s: float) -> list[int]:
        at = {"workload": workload, "share": share, "interval_s": interval_s}
        return [base.index(row) for row in base_of(at, base, keys)]

    assert found("a", 0.5, 10.0) == [1]  # one share stands for every share
    assert found("b", 0.5, 10.0) == [2]
    assert found("a", 0.5, 60.0) == []  # there are two intervals, and neither is this one
    assert found("c", 0.0, 0.0) == []
