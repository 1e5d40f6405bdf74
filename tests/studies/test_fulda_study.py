"""The study of the published runs whose nodes are off at night: its figures, and its ledger."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.oracles import fulda, fulda_study
from tests.oracles.fulda_published import KEY, MACHINES, published
from tracebed.machine.machine import Machine, NodeClass
from tracebed.machine.power import NodePower, Sleep, Tariff
from tracebed.machine.sources import read_machine
from tracebed.orchestrator.simulation.engine import missing
from tracebed.orchestrator.simulation.nights import rules_of, simulate

LEDGER = Path(__file__).parents[2] / "docs" / "explanation" / "nights-ledger.csv"
needs_engine = pytest.mark.skipif(bool(missing()), reason=missing())


@needs_engine
@pytest.mark.parametrize("scheduler", ["easy", "msa"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_figures_are_those_of_a_plain_sum(scheduler: str, share: float) -> None:
    draw, nodes = random.Random(7), 60
    rows = [(at, float(at * 400), draw.randint(1, 40), float(draw.randint(10, 20_000))) for at in range(400)]
    watts = fulda.Watts(idle=190, busy=362, boot=201, shutdown=156, off=5)
    power = NodePower(busy_w=362, idle_w=190, off_w=5, boot_w=201, shutdown_w=156, boot_s=159, shutdown_s=10)
    tariff = Tariff(
        grid_price=0.18,
        grid_co2_kg=0.264,
        solar_price=0.06,
        solar_co2_kg=0.04,
        solar_w=9000,
        solar_night=0.001,
        sunset="22:00",
    )
    sleep = Sleep(rule="windows", share=share) if share else None
    machine = Machine(classes=(NodeClass(count=nodes, cores=1, power=power),), sleep=sleep, tariff=tariff)
    rules = rules_of(machine, {"easy": "firstfit", "msa": "min"}[scheduler])
    inputs = fulda_study.inputs_of(rows, nodes, 50, "S0")
    found = fulda_study.figures(inputs, simulate(inputs, rules), rules, machine, 2.0)
    plain = fulda.Fulda(fulda.jobs_of(rows, nodes, 50, "S0"), nodes, scheduler, share).run()
    summed = fulda.figures(plain, fulda.Machine(nodes, watts, 9.0))
    assert {name: found[name] for name in summed} == pytest.approx(summed, rel=1e-9)


def test_solar_power_of_a_day_and_of_an_hour() -> None:
    tariff = Tariff(solar_w=1000.0, solar_night=0.1, sunrise="06:00", sunset="18:00")
    begin, end = np.array([0.0, 18_000.0]), np.array([86_400.0, 25_200.0])
    assert fulda_study.solar_kw(begin, end, tariff) == pytest.approx([0.55, 0.55])


def test_the_ledger_covers_the_runs_whose_logs_are_public() -> None:
    ledger = pd.read_csv(LEDGER)
    shown = published()
    shown = shown[shown["cluster"] != "theta"]
    assert {*map(tuple, ledger[KEY].to_numpy())} == {*map(tuple, shown[KEY].to_numpy())}
    both = ledger.merge(shown, on=KEY, suffixes=("", "_print"))
    for name in fulda_study.FIGURES:
        assert np.allclose(both[f"published_{name}"], both[f"{name}_print"], rtol=1e-6)
    assert {*ledger["cluster"]} <= {*MACHINES}
    assert all(read_machine(MACHINES[name]).sleep for name in {*ledger["cluster"]})
