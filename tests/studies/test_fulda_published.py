"""The transcribed figures of 270 published runs obey the arithmetic of their columns and of the shipped machines."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pytest

from tracebed.machine.machine import Machine
from tracebed.machine.power import NodePower, PowerState, Tariff, seconds_of_day
from tracebed.machine.sources import read_machine
from tracebed.studies.nights.study import CLUSTERS, KEY, published

POLICIES = {"F0": 0.0, "F10": 0.1, "F30": 0.3}
SCHEDULERS = ("rigid_easy_backfill", "min_steal_agreement")

SAVED = {
    ("cori_haswell", 0): (1.571870, 2.261572, 7.338954, 37.77793),
    ("cori_haswell", 25): (-4.867021, -22.49332, 4.983884, -22.33289),
    ("cori_haswell", 50): (-9.054430, -39.83957, 2.140355, -36.79195),
    ("cori_haswell", 75): (-9.562150, -51.54220, 1.695838, -46.36931),
    ("cori_haswell", 100): (-9.606314, -62.48773, 1.642614, -54.93681),
    ("cori_knl", 0): (0.05237532, 0.4042684, 8.863663, 3.873938),
    ("cori_knl", 25): (-3.873355, 19.15635, 7.538374, -14.04895),
    ("cori_knl", 50): (-3.906433, 16.50119, 7.005151, -20.94703),
    ("cori_knl", 75): (-3.906816, -14.30290, 6.789546, -22.91816),
    ("cori_knl", 100): (-3.862961, -62.70804, 7.031060, -53.00247),
    ("theta", 0): (-0.07631454, 0.9770510, 11.31136, -10.45512),
    ("theta", 25): (-1.430874, -12.66321, 12.67316, -56.20134),
    ("theta", 50): (-1.460147, -12.35093, 9.996193, -41.89875),
    ("theta", 75): (-1.488146, -19.55133, 9.190880, -30.05691),
    ("theta", 100): (-1.048027, -45.46231, 9.530982, -2.486660),
}
"""Published apart from the runs, as means over the seeds, in % of the run of the same seed without malleable jobs and
shutdown under `rigid_easy_backfill`: less cost in a day and longer turnaround of Min, without shutdown and with F30."""


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return published()


@cache
def on(cluster: str) -> tuple[Machine, NodePower, Tariff]:
    """Return the machine of a cluster, its power and its tariff."""
    machine = read_machine(CLUSTERS[cluster].machine)
    power, tariff = machine.classes[0].power, machine.tariff
    assert power is not None
    assert tariff is not None
    return machine, power, tariff


def test_all_runs_are_there_once(runs: pd.DataFrame) -> None:
    wanted = set(product(CLUSTERS, (0, 25, 50, 75, 100), ("S0", "S3", "S7"), SCHEDULERS, POLICIES))
    assert len(runs) == len(wanted) == 270
    assert {tuple(row) for row in runs[KEY].itertuples(index=False)} == wanted
    assert runs["cluster"].drop_duplicates().tolist() == list(CLUSTERS)
    assert not runs.isna().to_numpy().any()


def test_the_parts_of_each_row_have_their_sum(runs: pd.DataFrame) -> None:
    turnaround = runs["wait_mean_s"] + runs["runtime_mean_s"]
    assert turnaround.to_numpy() == pytest.approx(runs["turnaround_mean_s"].to_numpy(), rel=1e-6)
    total = runs["energy_total_kwh"].to_numpy()
    states = sum(runs[f"energy_{state}_kwh"] for state in PowerState)
    assert states.to_numpy() == pytest.approx(total, abs=3e-4)
    assert (runs["grid_energy_kwh"] + runs["solar_used_kwh"]).to_numpy() == pytest.approx(total, abs=2e-4)
    assert (runs["jobs_completed_window_submit"] <= runs["jobs_seen"]).all()
    assert runs.groupby("cluster")["jobs_seen"].agg(set).to_dict() == {
        "cori_haswell": {28259}, "cori_knl": {41524}, "theta": {1607}
    }  # fmt: skip


def test_cost_and_co2_are_those_of_the_tariff(runs: pd.DataFrame) -> None:
    for cluster, of in runs.groupby("cluster"):
        _, _, tariff = on(str(cluster))
        grid, solar = of["grid_energy_kwh"], of["solar_used_kwh"]
        cost = grid * tariff.grid_price + solar * tariff.solar_price
        co2 = grid * tariff.grid_co2_kg + solar * tariff.solar_co2_kg
        assert cost.to_numpy() == pytest.approx(of["cost_total_usd"].to_numpy(), abs=2e-4)
        assert co2.to_numpy() == pytest.approx(of["co2_total_kg"].to_numpy(), abs=2e-4)


def test_the_solar_energy_is_that_of_the_panels_in_the_window(runs: pd.DataFrame) -> None:
    """The panels give their power from sunrise to sunset, a share of it at night, and the machine takes all of it."""
    for row in runs.itertuples():
        _, _, tariff = on(row.cluster)
        rise, fall = seconds_of_day("sunrise", tariff.sunrise), seconds_of_day("sunset", tariff.sunset)
        days = 86_400 * np.arange(row.window_end_s // 86_400 + 1)
        sun = np.minimum(row.window_end_s, days + fall) - np.maximum(row.window_start_s, days + rise)
        light = sun[sun > 0].sum()
        dark = row.window_end_s - row.window_start_s - light
        kwh = tariff.solar_w * (light + tariff.solar_night * dark) / 3.6e6
        assert row.solar_used_kwh == pytest.approx(kwh, abs=1e-6)


def test_boots_and_shutdowns_are_whole_node_minutes(runs: pd.DataFrame) -> None:
    """The states are sampled each minute. Another power would give fractions of a minute."""
    for cluster, of in runs.groupby("cluster"):
        _, power, _ = on(str(cluster))
        for state in (PowerState.BOOT, PowerState.SHUTDOWN):
            minutes = (of[f"energy_{state}_kwh"] * 60_000 / power.watts(state)).to_numpy()
            assert minutes == pytest.approx(minutes.round(), abs=2e-3)


def test_the_off_share_is_that_of_the_energy_of_nodes_that_are_off(runs: pd.DataFrame) -> None:
    for row in runs.itertuples():
        machine, power, _ = on(row.cluster)
        node_hours = len(machine.nodes) * (row.window_end_s - row.window_start_s) / 3600
        share = row.energy_off_kwh * 1000 / power.off_w / node_hours
        assert row.off_fraction_mean == pytest.approx(share, abs=2e-9)
        nightly = POLICIES[row.policy] * 8 / 24  # the window of eight hours, and not all of it: nodes have jobs
        assert row.off_fraction_mean <= 1.1 * nightly
        assert (row.policy == "F0") == (row.energy_off_kwh == row.energy_boot_kwh == row.energy_shutdown_kwh == 0)
        # The nodes that are on have at least the power of idle ones, and at most that of busy ones.
        away_h = node_hours * share + row.energy_boot_kwh * 1000 / power.watts(PowerState.BOOT)
        on_h = node_hours - away_h - row.energy_shutdown_kwh * 1000 / power.watts(PowerState.SHUTDOWN)
        assert power.idle_w <= row.energy_on_kwh * 1000 / on_h <= power.busy_w


def test_without_malleable_jobs_and_shutdown_the_seed_hardly_matters_on_cori(runs: pd.DataFrame) -> None:
    """Nothing is drawn in these runs. On Theta, the runs published differ."""
    same = runs[(runs["mal"] == 0) & (runs["policy"] == "F0") & (runs["cluster"] != "theta")]
    for _, of in same.groupby(["cluster", "scheduler"]):
        numbers = of.drop(columns=KEY)
        assert len(numbers) == 3
        assert (numbers.max() - numbers.min() <= 2e-5 * numbers.max()).all()


@pytest.mark.parametrize(("cluster", "share"), SAVED)
def test_means_over_the_seeds_are_those_published_apart(runs: pd.DataFrame, cluster: str, share: int) -> None:
    of = runs[runs["cluster"] == cluster].copy()
    of["cost_per_s"] = of["cost_total_usd"] / (of["window_end_s"] - of["window_start_s"])
    columns = ["cost_per_s", "turnaround_mean_s"]
    rows = of.set_index(["scheduler", "mal", "policy", "seed"])[columns].sort_index()
    base = rows.loc[("rigid_easy_backfill", 0, "F0")]
    found = []
    for policy in ("F0", "F30"):
        change = 100 * (rows.loc[("min_steal_agreement", share, policy)] / base - 1).mean()
        found += [-change["cost_per_s"], change["turnaround_mean_s"]]
    assert found == pytest.approx(SAVED[cluster, share], rel=1e-6, abs=2e-6)
