"""Energy by state, sleep, cost and CO2: by hand on tiny runs, and compared with a slow, simple reference."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.commands import call
from tests.runs import by_node, lending_run, make_run
from tests.validation.test_schemas import problems
from tracebed.ground.table import Table, repeated, texts
from tracebed.machine.calendar import UNDATED, Clock
from tracebed.machine.machine import Machine, NodeClass
from tracebed.machine.nodes import NodeFacts
from tracebed.machine.power import NodePower, Sleep, Tariff, seconds_of_day
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.validation.metrics import MeasuredRun, PowerModel, metrics
from tracebed.validation.metrics.power import ASLEEP, PARTS, solar_power
from tracebed.validation.report.gantt import sleep_blocks
from tracebed.validation.report.runs import pictures, render

POWER = NodePower(busy_w=300, idle_w=100, off_w=5, boot_w=150, shutdown_w=50, boot_s=10, shutdown_s=4)
TARIFF = Tariff(grid_price=0.36, grid_co2_kg=0.5, solar_price=0.036, solar_co2_kg=0.05, solar_w=200, solar_night=0.1)
States = Sequence[tuple[float, int, str]]
# Node 1 is switched off at 10, is off from 14 to 50, boots until 60, and runs the second job from then on.
JOBS = [(0.0, 0.0, 40.0, 1), (50.0, 60.0, 100.0, 2)]
SLEPT: States = [(10, 1, "shutdown"), (14, 1, "off"), (50, 1, "boot"), (60, 1, "on")]


def slept(
    run: Run,
    states: States = SLEPT,
    power: NodePower | None = POWER,
    tariff: Tariff | None = None,
    provenance: dict[str, Any] | None = None,
) -> Run:
    """Return the run with power states of its nodes, and a machine with their power and a tariff."""
    nodes = tuple(NodeClass(names=(node.name,), cores=node.cores, power=power) for node in run.info.nodes)
    run.info.machine = Machine(classes=nodes, tariff=tariff, sleep=Sleep(rule="idle"))
    if provenance is not None:
        run.info.workload["provenance"] = provenance
    table = pd.DataFrame(states, columns=["time", "node", "power_state"]).astype({"time": float, "node": int})
    return Run(run.info, run.jobs, run.allocations, run.reconfigurations, table)


def test_energy_by_state_by_hand() -> None:
    found = metrics(slept(make_run(JOBS, machine=2)), window="full")
    expected = {
        "busy": 300 * (40 + 2 * 40),
        "idle": 100 * (20 + 10),  # node 0 from 40 to 60, node 1 until 10
        "shutdown": 50 * 4,
        "off": 5 * 36,
        "boot": 150 * 10,
    }
    for part, energy in expected.items():
        assert found[f"modelled_{part}_energy_j"] == energy, part
    assert found["modelled_energy_j"] == found["modelled_energy_full_j"] == sum(expected.values())
    assert found["modelled_energy_above_idle_j"] == 200 * (40 + 2 * 40)
    assert found["off_share"] == 36 / 200
    assert found["quartiles"]["off_share"] == (0, 0.5)
    assert found["boots"] == 1
    assert found["asleep_node_h"] == pytest.approx(50 / 3600)
    assert found["switching_node_h"] == pytest.approx(14 / 3600)
    assert found["energy"]["figures"] == "machine"
    arrivals = metrics(slept(make_run(JOBS, machine=2)))  # until 50, the last submission
    assert arrivals["modelled_energy_full_j"] == sum(expected.values())
    assert arrivals["modelled_boot_energy_j"] == arrivals["boots"] == 0
    assert arrivals["modelled_energy_j"] == 300 * 40 + 100 * 20 + 200 + 180
    beyond = metrics(slept(make_run(JOBS, machine=2)), window=(100, 200))  # nodes remain on after the last job
    assert beyond["modelled_energy_j"] == beyond["modelled_idle_energy_j"] == 2 * 100 * 100


def test_a_job_that_holds_a_booting_node_adds_no_power() -> None:
    run = slept(make_run([(0, 0, 40, 1), (50, 50, 100, 2)], machine=2))  # the second job waits for the boot of node 1
    found = metrics(run, window="full")
    assert found["modelled_busy_energy_j"] == 300 * (40 + 50 + 40)
    assert found["modelled_boot_energy_j"] == 150 * 10


def test_a_node_with_some_cores_allocated_has_a_share_of_both_powers() -> None:
    run = make_run([(0, 0, 10, 1)], machine=1, cores=4)
    run.allocations["cores"] = 1
    found = metrics(slept(run, []), window="full")
    assert found["modelled_busy_energy_j"] == 300 / 4 * 10
    assert found["modelled_idle_energy_j"] == 100 * 3 / 4 * 10
    assert found["modelled_energy_j"] == (100 + 200 / 4) * 10
    assert found["off_share"] == found["boots"] == 0


def test_without_figures_a_run_has_states_and_no_modelled_energy() -> None:
    found = metrics(slept(make_run(JOBS, machine=2), power=None), window="full")
    assert found["off_share"] == 36 / 200
    assert "does not say the power" in found["undefined"]["modelled_energy_j"]
    assert found["energy"]["figures"] == "model"
    never = make_run(JOBS, machine=2)
    bare = metrics(never, window="full")
    assert bare["modelled_energy_j"] == 2 * 100 * 100 + 5 * 120
    for name in ("off_share", "boots", "asleep_node_h", "modelled_boot_energy_j", "energy_cost", "solar_share"):
        assert math.isnan(bare[name]), name
    assert bare["undefined"]["boots"] == "no node was switched off"
    assert bare["undefined"]["energy_cost"] == "the machine of the run has no tariff"


def test_the_figures_of_the_machine_replace_the_model() -> None:
    run = slept(make_run(JOBS, machine=2))
    assert metrics(run, power=PowerModel(1, 1))["modelled_energy_j"] == metrics(run)["modelled_energy_j"]


def test_a_boot_without_duration_counts() -> None:
    states = [(10.0, 1, "shutdown"), (10.0, 1, "off"), (50.0, 1, "boot"), (50.0, 1, "on")]
    found = metrics(slept(make_run([(0, 0, 40, 1), (50, 50, 100, 2)], machine=2), states), window="full")
    assert found["boots"] == 1
    assert found["modelled_boot_energy_j"] == found["switching_node_h"] == 0
    assert found["modelled_off_energy_j"] == 5 * 40


def test_samples_of_power_are_recorded_between_changes_of_the_state() -> None:
    run = slept(make_run([(0.0, 0.0, 50.0, 1), (100.0, 100.0, 101.0, 1)], machine=1, hosts=[{"name": "a"}]), [])
    samples = pd.DataFrame({"time": 10.0 * np.arange(11), "node": 0, "power_w": 200.0})
    states = pd.DataFrame({"time": [55.0, 57.0], "node": 0, "power_state": ["shutdown", "off"]})
    both = Run(run.info, run.jobs, run.allocations, None, pd.concat([samples, states]).fillna({"power_state": ""}))
    found = metrics(both)
    assert found["energy_j"] == pytest.approx(200 * 100)
    assert found["energy"]["recorded"]["gaps"] == 0
    assert found["modelled_off_energy_j"] == pytest.approx(5 * 43)


def spans(
    run: Run, start: float, end: float, more: Sequence[float] = ()
) -> Iterator[tuple[float, float, dict[str, float]]]:
    """Yield begin, end and the power by part, W, between consecutive changes of a run; slow, node by node."""
    held = by_node(run)
    changes = run.core_changes[run.core_changes["state"] == "applied"].sort_values("applied")
    states = run.nodes[run.nodes["power_state"] != ""]
    machine = run.info.machine
    assert machine is not None
    figures = {name: kind.power for kind in machine.classes for name in kind.names}
    instants = {start, end, *more, *held["start"], *held["end"], *changes["applied"], *states["time"]}
    for begin, stop in pairwise(sorted(each for each in instants if start <= each <= end)):
        watts = dict.fromkeys(PARTS, 0.0)
        for number, node in enumerate(run.info.nodes):
            power = figures[node.name]
            assert power is not None
            state = "on"
            for row in (
                states[(states["node"] == number) & (states["time"] <= begin)]
                .sort_values("time", kind="stable")
                .itertuples()
            ):
                state = row.power_state
            if state != "on":
                given = {"off": power.off_w, "boot": power.boot_w, "shutdown": power.shutdown_w}[state]
                watts[state] += power.idle_w if given is None else given
                continue
            busy = 0
            for row in held[(held["node"] == number) & (held["start"] <= begin) & (begin < held["end"])].itertuples():
                busy += row.cores
                mine = (changes["job_id"] == row.job_id) & (changes["node"] == number) & (changes["applied"] <= begin)
                for change in changes[mine].iloc[::-1].itertuples():
                    if change.cause != "operator":
                        break
                    busy += change.cores_to - change.cores_from
            watts["busy"] += power.busy_w * busy / node.cores
            watts["idle"] += power.idle_w * (1 - busy / node.cores)
        yield begin, stop, watts


def slow_sun(tariff: Tariff, provenance: dict[str, Any], instant: float) -> float:
    """Return the power of the panels at a trace instant, W, by its time of the day."""
    unix = provenance.get("unix_start")
    if unix is None:
        second = instant % 86_400
    else:
        date = datetime.fromtimestamp(unix, UTC) + timedelta(seconds=instant)
        local = date.astimezone(ZoneInfo(provenance.get("time_zone") or "UTC"))
        second = 3600 * local.hour + 60 * local.minute + local.second + local.microsecond / 1e6
    day = seconds_of_day("sunrise", tariff.sunrise) <= second < seconds_of_day("sunset", tariff.sunset)
    return tariff.solar_w if day else tariff.solar_night * tariff.solar_w


def check_by_reference(run: Run, start: float, end: float) -> None:
    """Compare the metrics of a run in a window with those of the slow reference."""
    machine = run.info.machine
    assert machine is not None
    zero = float(run.jobs["submit"].min())
    begin, stop = start + zero, end + zero
    found = metrics(run, window=(start, end))
    provenance = run.info.workload["provenance"]
    # Sunrise and sunset are whole hours of Unix time, and of trace time without it.
    unix = provenance.get("unix_start") or 0.0
    first = math.floor((begin + unix) / 3600) * 3600 - unix
    hours = [] if machine.tariff is None else list(np.arange(first, stop, 3600.0))
    expected = dict.fromkeys(PARTS, 0.0)
    grid = solar = 0.0
    for since, until, watts in spans(run, begin, stop, hours):
        for part in PARTS:
            expected[part] += watts[part] * (until - since)
        if machine.tariff is not None:
            given = min(sum(watts.values()), slow_sun(machine.tariff, provenance, (since + until) / 2))
            grid += (sum(watts.values()) - given) * (until - since)
            solar += given * (until - since)
    for part in PARTS:
        assert found[f"modelled_{part}_energy_j"] == pytest.approx(expected[part], rel=1e-9, abs=1e-6), part
    assert found["modelled_energy_j"] == pytest.approx(sum(expected.values()), rel=1e-9)
    if tariff := machine.tariff:
        cost = (grid * tariff.grid_price + solar * tariff.solar_price) / 3.6e6
        co2 = (grid * tariff.grid_co2_kg + solar * tariff.solar_co2_kg) / 3.6e6
        assert found["energy_cost"] == pytest.approx(cost, rel=1e-9, abs=1e-12)
        assert found["energy_co2_kg"] == pytest.approx(co2, rel=1e-9, abs=1e-12)
        assert found["solar_share"] == pytest.approx(solar / (grid + solar), rel=1e-9, abs=1e-12)
    rows = run.nodes
    started = (rows["power_state"] == "boot") & (rows["time"] >= begin) & (rows["time"] < stop)
    assert found["boots"] == int(started.sum())


@st.composite
def sleeping_runs(draw: st.DrawFn) -> Run:
    """Draw a run of some jobs on nodes of two classes, whose nodes change their state at any time."""
    number = draw(st.integers(1, 4))
    whole = st.integers(0, 40).map(lambda tick: tick * 900.0)
    jobs, states = [], []
    free = [0.0] * number
    for _ in range(draw(st.integers(1, 6))):
        node = draw(st.integers(0, number - 1))
        start = free[node] + draw(whole)
        free[node] = start + draw(whole)
        jobs.append((draw(st.sampled_from([0.0, start])), node, start, free[node], draw(st.integers(1, 4))))
    for node in range(number):
        at = 0.0
        for state in draw(st.lists(st.sampled_from(["shutdown", "off", "boot", "on"]), max_size=5)):
            at += draw(whole) + draw(st.sampled_from([0.0, 0.25]))
            states.append((at, node, state))
    cores = [4 if node % 2 else 2 for node in range(number)]
    order = sorted(range(len(jobs)), key=lambda job: jobs[job][0])
    names = [f"j{job}" for job in order]
    table = pd.DataFrame(
        {
            "job_id": names,
            "kind": "rigid",
            "submit_planned": [jobs[job][0] for job in order],
            "submit": [jobs[job][0] for job in order],
            "start": [jobs[job][2] for job in order],
            "end": [jobs[job][3] for job in order],
            "state": "completed",
            "nodes": 1,
            "run_time": [jobs[job][3] - jobs[job][2] for job in order],
            "time_limit": math.nan,
        }
    )
    held = pd.DataFrame(
        {
            "job_id": names,
            "node": [jobs[job][1] for job in order],
            "count": 1,
            "start": table["start"],
            "end": table["end"],
            "cores": [min(jobs[job][4], cores[jobs[job][1]]) for job in order],
        }
    )
    provenance = draw(
        st.sampled_from(
            [
                {},
                {"unix_start": 1_711_800_000.0, "time_zone": "Europe/Berlin"},  # the night in which summer time begins
                {"unix_start": 1_729_900_020.0, "time_zone": "America/New_York"},
                {"unix_start": 1e9},
            ]
        )
    )
    small = NodePower(busy_w=90.5, idle_w=40.25, off_w=draw(st.sampled_from([0.0, 3.5])), boot_s=1)
    machine = Machine(
        classes=tuple(
            NodeClass(names=(f"n{node}",), cores=cores[node], power=POWER if node % 2 else small)
            for node in range(number)
        ),
        tariff=draw(st.sampled_from([None, TARIFF])),
        sleep=Sleep(rule="idle"),
    )
    info = RunInfo(
        source="simulator",
        execution="simulated",
        nodes=[NodeFacts(f"n{node}", cores[node]) for node in range(number)],
        workload={"name": "w", "sha256": "0" * 64, "jobs": len(jobs), "provenance": provenance},
        machine=machine,
    )
    nodes = pd.DataFrame(states, columns=["time", "node", "power_state"]).astype({"time": float, "node": int})
    return Run(info, table, held, None, nodes.sort_values("time", kind="stable"))


@given(sleeping_runs(), st.integers(0, 20), st.integers(1, 60))
def test_drawn_runs_have_the_figures_of_the_reference(run: Run, start: int, length: int) -> None:
    check_by_reference(run, 2000.0 * start, 2000.0 * (start + length))


def test_changes_of_cores_by_an_operator_change_the_energy() -> None:
    run = slept(lending_run(), [(20, 1, "shutdown"), (30, 1, "off")], provenance={})
    check_by_reference(run, 0, 100)


def test_the_sun_follows_the_clock_of_the_workload() -> None:
    """Time 0 is 18:00 in New York, so that the panels give their power of the night until 06:00 there."""
    start = datetime(2026, 7, 1, 18, tzinfo=ZoneInfo("America/New_York")).timestamp()
    sun = solar_power(TARIFF, Clock(start, "America/New_York"), 0, 86_400)
    assert sun.times.tolist() == [0, 43_200, 86_400]
    assert sun.values.tolist() == pytest.approx([20, 200, 0])
    undated = solar_power(TARIFF, Clock(), 0, 86_400)
    assert undated.times.tolist() == [0, 21_600, 64_800, 86_400]
    assert undated.values.tolist() == pytest.approx([20, 200, 20, 0])


def test_a_day_of_a_change_of_the_clock_is_longer_or_shorter() -> None:
    start = datetime(2026, 3, 29, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    sun = solar_power(TARIFF, Clock(start, "Europe/Berlin"), 0, 86_400)
    assert sun.times.tolist()[1:3] == [5 * 3600, 17 * 3600]


def test_cost_and_co2_by_hand() -> None:
    """One node, busy for a day from midnight: 300 W, of which the panels give 200 W by day and 20 W at night."""
    run = make_run([(0, 0, 86_400, 1)], machine=1)
    found = metrics(slept(run, [], tariff=TARIFF), window="full")
    grid, solar = 0.3 * 24 - 0.22 * 12, 0.22 * 12  # kWh
    assert found["energy_cost"] == found["energy_cost_full"] == pytest.approx(grid * 0.36 + solar * 0.036)
    assert found["energy_co2_kg"] == found["energy_co2_full_kg"] == pytest.approx(grid * 0.5 + solar * 0.05)
    assert found["solar_share"] == pytest.approx(2.64 / 7.2)
    assert found["energy"]["clock"] == UNDATED
    dated = slept(make_run([(0, 0, 86_400, 1)], machine=1), [], tariff=TARIFF, provenance={"unix_start": 0.0})
    assert "in UTC" in metrics(dated)["energy"]["clock"]
    zoned = slept(run, [], tariff=TARIFF, provenance={"unix_start": 0.0, "time_zone": "Europe/Berlin"})
    assert metrics(zoned)["energy"]["clock"] == ""


def test_a_million_allocations_on_ten_thousand_nodes() -> None:
    """The figures are the sums over the rows: no job holds a node that is not on."""
    nodes, rows = 10_000, 1_000_000
    rng = np.random.default_rng(1)
    node, count = rng.integers(0, nodes - 8, rows), rng.integers(1, 9, rows)
    start = rng.integers(0, 10**6, rows).astype(float)
    end = start + rng.integers(1, 100, rows)
    own = np.arange(nodes)
    names = texts([str(job) for job in range(1000)])
    jobs = Table(
        {
            "job_id": names,
            "kind": repeated("rigid", 1000),
            "submit_planned": np.zeros(1000),
            "submit": np.zeros(1000),
            "start": np.zeros(1000),
            "end": np.full(1000, 2e6),
            "state": repeated("completed", 1000),
            "nodes": np.ones(1000, dtype=np.int64),
            "run_time": np.full(1000, 2e6),
            "time_limit": np.full(1000, math.nan),
        }
    )
    held = Table(
        {
            "job_id": names.take(rng.integers(0, 1000, rows)),
            "node": node,
            "count": count,
            "start": start,
            "end": end,
            "cores": np.ones(rows, dtype=np.int64),
        }
    )
    states = Table(
        {
            "time": np.concatenate([np.full(nodes, 1.2e6), np.full(nodes, 1.3e6)]),
            "node": np.concatenate([own, own]),
            "power_state": texts(["off"] * nodes + ["boot"] * nodes),
        }
    )
    info = RunInfo(
        source="simulator",
        execution="simulated",
        nodes=[NodeFacts(f"n{number:05d}", 64) for number in range(1, nodes + 1)],
        workload={"name": "w", "sha256": "0" * 64, "jobs": 1000, "provenance": {}},
        machine=Machine(classes=(NodeClass(count=nodes, cores=64, power=POWER),), tariff=TARIFF),
    )
    run = Run(info, jobs, held, None, states)
    measured = MeasuredRun(run, window="full")
    use = measured.power
    assert use.energy("busy", 0, 2e6) == pytest.approx(300 / 64 * float((count * (end - start)).sum()), rel=1e-12)
    assert use.energy("off", 0, 2e6) == pytest.approx(5 * nodes * 1e5, rel=1e-12)
    assert use.energy("boot", 0, 2e6) == pytest.approx(150 * nodes * 7e5, rel=1e-12)


def test_the_page_of_runs_shows_power_by_state_and_nodes_that_sleep() -> None:
    run = slept(make_run(JOBS, machine=2), tariff=TARIFF)
    page, bare = render({"a": run}), render({"a": make_run(JOBS, machine=2)})
    assert "Power and energy" in page
    assert "Power and energy" not in bare
    for words in ("busy", "boot", "solar panels", "modelled", UNDATED, "Hatched: nodes that boot"):
        assert words in page, words
        assert words not in bare or words == "modelled", words
    energies = pictures({"a": run})["power-2"]
    assert energies.data is not None
    table = energies.data()
    assert table["boot_j"].tolist() == [150 * 10]
    assert table["busy_j"].tolist() == [300 * 120]


def test_the_curve_of_the_power_has_the_energy_of_the_run() -> None:
    data = pictures({"a": slept(make_run(JOBS, machine=2))})["power-1"].data
    assert data is not None
    curve = data()
    lasted = np.diff(curve["time_s"])
    for part, energy in {"busy": 36_000, "idle": 3_000, "boot": 1_500, "shutdown": 200, "off": 180}.items():
        assert float((curve[f"{part}_w"].to_numpy()[:-1] * lasted).sum()) == energy, part


@given(sleeping_runs())
def test_bars_of_sleeping_nodes_are_the_periods_of_each_node(run: Run) -> None:
    zero = float(run.jobs["submit"].min())
    bars = sleep_blocks(run, 1e6)
    drawn = {
        (node, ASLEEP[bar.state].value, bar.start, bar.end)
        for bar in bars.itertuples()
        for node in range(bar.low, bar.high + 1)
    }
    expected = set()
    for node, own in run.nodes.groupby("node"):
        rows = [*own.sort_values("time", kind="stable").itertuples()]
        for row, until in zip(rows, [*(row.time for row in rows[1:]), math.inf], strict=True):
            start, end = max(row.time - zero, 0.0), min(until - zero, 1e6)
            if row.power_state != "on" and start < end:
                expected.add((node, row.power_state, start, end))
    assert drawn == expected
    assert (bars["end"] > bars["start"]).all()


def test_a_run_with_power_states_is_saved_and_measured_by_the_command(tmp_path: Path) -> None:
    slept(make_run(JOBS, machine=2), tariff=TARIFF).save(tmp_path / "run")
    shown = call("metrics", tmp_path / "run", "--window", "full").output
    assert "nodes off in the window, mean share" in shown
    assert "the modelled energy is that of the power of the nodes of its machine" in shown
    assert UNDATED in shown
    found = json.loads(call("metrics", tmp_path / "run", "--json").stdout)
    assert problems(found, "tracebed-metrics-1.json") == []
    assert tb.Run.load(tmp_path / "run").metrics()["boots"] == 0  # after the last submission


def test_recorded_power_is_shown_beside_what_is_modelled() -> None:
    """The curve has the recorded energy, and the bar of a run without a model is that energy."""
    run = make_run([(0.0, 0.0, 100.0, 1)], machine=1, hosts=[{"name": "a"}])
    samples = pd.DataFrame({"time": 10.0 * np.arange(1, 11), "node": 0, "power_w": [*[200.0] * 5, *[100.0] * 5]})
    recorded = Run(run.info, run.jobs, run.allocations, None, samples)
    both = {"recorded": recorded, "modelled": slept(make_run(JOBS, machine=2))}
    drawn = pictures(both)
    curve, bars = (drawn[f"power-{number}"].data for number in (1, 2))
    assert curve is not None and bars is not None
    own = curve()[lambda table: table["run"] == "recorded"]
    assert float((own["recorded_w"].to_numpy()[:-1] * np.diff(own["time_s"])).sum()) == pytest.approx(15_000)
    table = bars().set_index("run")
    assert table.loc["recorded"].tolist() == [0, 0, 0, 0, 0, pytest.approx(15_000)]
    assert table.loc["modelled", "recorded_j"] == 0
    assert "Green: what was recorded" in render(both)
    assert "Green" not in render({"modelled": both["modelled"]})
