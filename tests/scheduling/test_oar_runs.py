"""Ten real runs of OAR on Grid'5000 (February 2016), predicted with reservations of counts and of named nodes.

python -m tests.scheduling.test_oar_runs FOLDER  # the table of a folder of `*.real_jobs.csv`, `*.batsim_jobs.csv`
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tracebed.api as tb
from tracebed.converters.workload import Workload

REPLANNED = {"backfill_depth": 100_000}
"""OAR plans the whole queue anew in each pass."""
PASS_S = 4.0
"""Interval of the passes, s."""
RULES: dict[str, tuple[str, dict[str, Any], float]] = {
    "easy, counts": ("easy", {}, 0.0),
    "easy, nodes": ("easy", {"reserve": "nodes"}, 0.0),
    "conservative, counts, passes": ("conservative", REPLANNED, PASS_S),
    "conservative, nodes, passes": ("conservative", REPLANNED | {"reserve": "nodes"}, PASS_S),
    "conservative, nodes, calls": ("conservative", REPLANNED | {"reserve": "nodes"}, 0.0),
    "oar, as 2.5.4": ("oar", {"min_time_between_2_calls": 0}, 0.0),
    "oar, as 2.5.9": ("oar", {}, 0.0),
}
"""Name -> policy, its parameters, and the interval of its calls, s."""


def runs(folder: Path) -> list[tuple[int, pd.DataFrame, pd.DataFrame]]:
    """Return (nodes, what OAR did, what Batsim predicted) of each real run, by job."""
    return [
        (nodes, *(_jobs(folder / f"g5k_workload_delay_seed{seed}_size{nodes}.{side}_jobs.csv") for side in _SIDES))
        for seed in range(5)
        for nodes in (34, 37)
    ]


_SIDES = ("real", "batsim")


def _jobs(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, index_col="jobID").sort_index()


def missed_s(
    cases: list[tuple[int, pd.DataFrame, pd.DataFrame]], policy: str, parameters: Mapping[str, Any], interval_s: float
) -> tuple[float, float]:
    """Return the mean error of the mean wait, s, with planned run times (those of Batsim) and with observed ones."""
    errors: dict[str, list[float]] = {"planned": [], "observed": []}
    for nodes, real, planned in cases:
        for track, run_times in (("planned", planned), ("observed", real)):
            table = pd.DataFrame(
                {
                    "job_id": real.index.astype(str),
                    "submit_time": real["submission_time"],
                    "run_time": run_times["execution_time"],
                    "time_limit": real["requested_time"],
                    "nodes": real["requested_number_of_processors"],
                    "kind": "rigid",
                }
            ).sort_values("submit_time", kind="stable")
            run = tb.simulate(Workload(table), policy, nodes, policy_parameters=dict(parameters), interval_s=interval_s)
            wait = (run.jobs["start"] - run.jobs["submit"]).mean()
            errors[track].append(abs(wait - real["waiting_time"].mean()))
    return sum(errors["planned"]) / len(cases), sum(errors["observed"]) / len(cases)


Cases = list[tuple[int, pd.DataFrame, pd.DataFrame]]


@pytest.fixture(scope="module")
def cases(reference_data: Callable[[str], Path]) -> Cases:
    return runs(reference_data("grid5000-2016-02"))


@pytest.mark.parametrize(
    ("rule", "errors"),
    [
        ("easy, counts", (5.31, 4.09)),
        ("conservative, counts, passes", (1.78, 1.49)),
        ("conservative, nodes, passes", (2.39, 0.93)),
        ("conservative, nodes, calls", (5.60, 3.10)),
        pytest.param("oar, as 2.5.4", (3.10, 2.00), marks=pytest.mark.slow),  # `test_oar_policy.py` is fast
        pytest.param("oar, as 2.5.9", (5.99, 6.79), marks=pytest.mark.slow),
    ],
)
def test_errors_of_the_mean_wait_of_oar(cases: Cases, rule: str, errors: tuple[float, float]) -> None:
    assert missed_s(cases, *RULES[rule]) == pytest.approx(errors, abs=5e-3)


def test_errors_of_the_mean_wait_that_batsim_predicted(cases: Cases) -> None:
    batsim = [abs(predicted["waiting_time"].mean() - real["waiting_time"].mean()) for _, real, predicted in cases]
    assert sum(batsim) / len(cases) == pytest.approx(25.84, abs=5e-3)


def main() -> int:
    """Print the table."""
    cases = runs(Path(sys.argv[1]))
    print(f"{'error of the mean wait, s':34}{'planned':>9}{'observed':>9}")  # noqa: T201
    for name, rule in RULES.items():
        planned, observed = missed_s(cases, *rule)
        print(f"{name:34}{planned:9.2f}{observed:9.2f}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
