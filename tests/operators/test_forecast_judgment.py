"""Collected states of a cluster, and how good the forecasts and Slurm's estimates were on them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

import tracebed.api as tb
from tests.executables import write_program
from tests.oracles import slurm_forecasts
from tests.slurm.test_forecast import CONFIG, folder_of, log_of, running, waiting
from tracebed.cli import tracebed
from tracebed.ground.errors import ExitCode, InputError
from tracebed.operators.judgment import before, collect, ends_of
from tracebed.slurm.state import COMMANDS, read_folder

UNIX = 1769860800.0
"""2026-01-31T12:00:00 UTC, the instant of the first state."""
LATER = CONFIG.replace("T12:00:00", "T13:00:00")


@pytest.fixture
def states(tmp_path: Path) -> Path:
    """Two states: job 3 is to start at 12:40 by the forecast, at 13:30 by Slurm, and starts at 12:41; job 4 is gone."""
    folder = tmp_path / "states"
    jobs = waiting(3, start="2026-01-31T13:30:00"), waiting(4, priority=50)
    for number, (config, own) in enumerate(
        ((CONFIG, (running(1, "n1"), running(2, "n2"), *jobs)), (LATER, (running(3, "n1", "2026-01-31T12:41:00"),)))
    ):
        saved = folder_of(tmp_path / str(number), *own, config=config)
        collect(folder, read_folder(saved))
    return folder


def history(zone: str | None = "UTC", later: bool = True) -> tb.Workload:
    """Return a log of jobs that ran for half of their limits, a day before the states, and of one that ran after."""
    table = log_of(gap=60.0).table
    table["job_id"] = "old-" + table["job_id"]
    table["logged_start"] = table["submit_time"]
    table["logged_end"] = table["submit_time"] + table["run_time"]
    if later:
        last = table.iloc[[-1]].assign(job_id="x", submit_time=90_000.0, run_time=6000.0)
        table = pd.concat([table, last.assign(logged_start=90_000.0, logged_end=96_000.0)], ignore_index=True)
    return tb.Workload(table, tb.Provenance(unix_start=UNIX - 86400.0, time_zone=zone))


def test_forecasts_and_estimates_are_compared_with_what_happened(states: Path) -> None:
    found = tb.judge_forecasts(states, history(), repetitions=8)
    assert found.states == 1
    assert found.table["job_id"].tolist() == ["3", "4"]
    assert found.table["real"].isna().tolist() == [False, True]
    (figures,) = found.figures()
    assert (figures["forecasts"], figures["compared"], figures["wait_s"]) == (1, 1, 41 * 60)
    assert (figures["slurm_error_s"], figures["slurm_bias_s"]) == (49 * 60, 49 * 60)
    error = (found.table["start"][0] - pd.Timestamp("2026-01-31T12:41:00")).total_seconds()
    assert (figures["error_s"], figures["bias_s"]) == (abs(error), error)
    assert figures["error_s"] < 120
    inside = found.table["earliest"][0] <= found.table["real"][0] <= found.table["latest"][0]
    assert figures["inside"] == float(inside)


def test_the_start_of_a_job_that_no_later_state_has_is_in_the_log(states: Path) -> None:
    log = history()
    table = log.table
    table.loc[0, ["job_id", "logged_start"]] = ["4", 86400.0 + 3000.0]
    found = tb.judge_forecasts(states, tb.Workload(table, log.provenance), repetitions=8).table
    assert found.set_index("job_id")["real"]["4"] == pd.Timestamp("2026-01-31T12:50:00")


def test_a_start_before_the_state_is_not_that_of_a_waiting_job(states: Path) -> None:
    """A job that was requeued has started before, too."""
    log = history()
    table = log.table
    table.loc[0, ["job_id", "logged_start"]] = ["3", 80_000.0]
    found = tb.judge_forecasts(states, tb.Workload(table, log.provenance), repetitions=8).table
    assert found.set_index("job_id")["real"]["3"] == pd.Timestamp("2026-01-31T12:41:00")


def test_a_forecast_learns_only_from_what_was_known(states: Path) -> None:
    known = before(history(), ends_of(history()), UNIX).table["job_id"].tolist()
    assert "x" not in known and len(known) == 40
    assert len(before(history(), ends_of(history()), UNIX - 86400.0 + 3000.0 + 60.0 * 10).table) == 11
    whole, cut = (tb.judge_forecasts(states, history(later=later), repetitions=8) for later in (True, False))
    assert whole.table.equals(cut.table)


def test_the_clock_of_the_log_is_that_of_the_cluster() -> None:
    """Noon in Berlin in January is 11:00 UTC."""
    berlin = history("Europe/Berlin")
    assert len(before(berlin, ends_of(berlin), UNIX - 86400.0 + 3600.0 + 3000.0).table) == 1
    assert len(before(berlin, ends_of(berlin), UNIX - 86400.0 + 3000.0).table) == 0


def test_a_log_without_a_date_and_a_folder_without_states_are_errors(states: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the log has no date"):
        tb.judge_forecasts(states, log_of(), repetitions=8)
    with pytest.raises(InputError, match="has 0 of the 2 states"):
        tb.judge_forecasts(tmp_path / "none", history(), repetitions=8)


def test_a_state_is_not_replaced(states: Path) -> None:
    with pytest.raises(InputError, match="exists: a state of this second"):
        collect(states, read_folder(states / "2026-01-31T12-00-00"))


def test_recorded_states_are_judged_better_than_slurms_estimates(tmp_path: Path) -> None:
    """Two states of a morning that Slurm had; the forecasts know only its first minutes."""
    recording = slurm_forecasts.recorded(sorted(slurm_forecasts.FOLDER.glob("*.json.xz"))[0])
    for state in recording["states"][:13:4]:
        collect(tmp_path / "states", {name: state[name] for name in COMMANDS if name in state})
    (tmp_path / "sacct.txt").write_text(recording["sacct"])
    log = tb.read(tmp_path / "sacct.txt", keep_names=True, time_zone="UTC")
    found = tb.judge_forecasts(tmp_path / "states", log, repetitions=8)
    every, *parts = found.figures()
    assert {each["partition"] for each in parts} == {*found.table["partition"]}
    assert every["forecasts"] == sum(each["forecasts"] for each in parts) > 20
    assert every["error_s"] < 0.5 * every["slurm_error_s"]
    assert 0.4 < every["inside"] <= 1.0


# -- the command ------------------------------------------------------------------------------------------------------


def call(*words: str) -> Any:
    return CliRunner().invoke(tracebed, ["forecast", *words])


@pytest.fixture
def log(tmp_path: Path) -> str:
    tb.write(history(), tmp_path / "log.parquet")
    return str(tmp_path / "log.parquet")


def test_the_command_judges(states: Path, log: str, tmp_path: Path) -> None:
    command = ["--judge", str(states), "--log", log, "--repetitions", "8"]
    result = call(*command, "-o", str(tmp_path / "forecasts.csv"))
    assert result.exit_code == ExitCode.OK, result.output
    head, row = result.stdout.splitlines()
    assert head.split()[:2] == ["partition", "forecasts"]
    assert row.split()[:4] == ["all", "1", "41", "min"]
    assert "49 min" in row
    assert "1 state; 1 forecast of jobs without a known start, left out" in result.stderr
    rows = [*csv.DictReader((tmp_path / "forecasts.csv").read_text().splitlines())]
    assert [(row["job_id"], row["instant"], row["real"]) for row in rows] == [
        ("3", "2026-01-31T12:00:00", "2026-01-31T12:41:00"),
        ("4", "2026-01-31T12:00:00", ""),
    ]
    found = json.loads(call(*command, "--json").stdout)
    assert (found["schema"], found["states"], found["without_start"]) == ("tracebed-forecast-judgment/1", 1, 1)
    assert found["figures"][0]["slurm_error_s"] == 2940.0


def test_the_command_collects_the_state_of_the_live_cluster(
    states: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = states / "2026-01-31T12-00-00"
    scontrol = f'#!/bin/sh\nfor last; do :; done\ncat "{saved}/$last.txt"\n'
    for name, text in (("scontrol", scontrol), ("sprio", "#!/bin/sh\nexit 1\n"), ("sshare", "#!/bin/sh\nexit 1\n")):
        write_program(tmp_path / "tools" / name, text)
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    result = call("--collect", str(tmp_path / "new" / "states"))
    assert result.exit_code == ExitCode.OK, result.output
    made = tmp_path / "new" / "states" / "2026-01-31T12-00-00"
    assert f"state: {made}" in result.stderr
    assert read_folder(made) == read_folder(saved)
    assert [path.name for path in made.parent.iterdir()] == [made.name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the log is missing"),
        (("--collect", "x", "--log", "{log}"), "--log does not apply with --collect"),
        (("--judge", "{states}"), "the log is missing"),
        (("--judge", "{states}", "--log", "{log}", "--only", "user=ann"), "--only does not apply with --judge"),
    ],
)
def test_options_that_do_not_belong_together_are_errors(
    words: tuple[str, ...], message: str, states: Path, log: str
) -> None:
    result = call(*(word.format(log=log, states=states) for word in words))
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
